package binlogfs

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/testenv"
)

// transaction makes a group of MariaDB's on a real server and returns the stream
// that a source sends of it, and the number of events.
func transaction(t *testing.T, k dbtest.Kind, statements ...string) *stream {
	t.Helper()
	s := dbtest.Start(t, k)
	s.Exec(t, "create database d", "create table d.t (i int primary key, s varchar(100), j decimal(10,2), d datetime(3))", "flush binary logs")
	s.Exec(t, append(append([]string{"begin"}, statements...), "commit")...)
	out := &stream{}
	list := s.BinaryLogs(t)
	out.names, out.bodies = []string{"mysql-bin.000001"}, [][]byte{read(t, list[len(list)-1])}
	return out
}

// fragmentsOf counts the parts that a stream's largest group went to the volume in.
func fragmentsOf(t *testing.T, s *stream, f Fragment) (parts, bytes int64) {
	t.Helper()
	p := newPlace(t)
	l, err := OpenLog(t.Context(), p.v, LogOptions{Dir: "logs", Fragment: f})
	if err != nil {
		t.Fatal(err)
	}
	a := p.appender(l)
	in := s.from(t, "", int64(len(magic)))
	for at := 0; at < len(in); {
		n := 4 + int(binary.LittleEndian.Uint32(in[at:]))
		if err := feed(t.Context(), a, in[at:at+n], never); err != nil {
			t.Fatal(err)
		}
		if g := a.Pending(); g != nil && g.Bytes > 0 {
			if end, _ := l.End(); end.Offset > g.Offset {
				t.Fatalf("published up to %v, and the group begins at %d", end, g.Offset)
			}
			parts, bytes = g.Fragments, g.Bytes
		}
		at += n
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if parts > 0 && a.Pending() != nil {
		t.Error("it is pending still")
	}
	return parts, bytes
}

func TestFragment_Units_PartsOfAnOpenGroup(t *testing.T) {
	testenv.Long(t)
	for _, k := range []dbtest.Kind{dbtest.MariaDB1011, dbtest.MySQL97} {
		t.Run(string(k), func(t *testing.T) {
			// 10 statements with 5 rows each, then an update and a delete of 25 rows each.
			var statements []string
			for i := range 10 {
				statements = append(statements, fmt.Sprintf("insert into d.t select seq.n*10+%d, repeat('x',90), 1.5, now(3) from (select 0 n union select 1 union select 2 union select 3 union select 4) seq", i))
			}
			statements = append(statements, "update d.t set s=repeat('y',90) where i<25", "delete from d.t where i>=25")
			s := transaction(t, k, statements...)
			for _, c := range []struct {
				f           Fragment
				least, most int64
			}{
				{Fragment{}, 0, 0},
				{Fragment{FragmentStatements, 1}, 11, 12}, // the last one goes with the group
				{Fragment{FragmentStatements, 4}, 2, 3},
				{Fragment{FragmentRows, 1}, 12, 14},
				{Fragment{FragmentRows, 25}, 4, 4}, // 50 inserted, 25 changed, 25 deleted
				{Fragment{FragmentRows, 50}, 2, 2},
				{Fragment{FragmentRows, 101}, 0, 0},
				{Fragment{FragmentBytes, 4096}, 1, 4},
			} {
				if got, _ := fragmentsOf(t, s, c.f); got < c.least || got > c.most {
					t.Errorf("%+v: %d fragments, not %d to %d", c.f, got, c.least, c.most)
				}
			}
		})
	}
}

func TestRowCounter_GarbledEvent_CountsOne(t *testing.T) {
	s := recordedStream(t, "my97")
	var c rowCounter
	counted := int64(0)
	for _, body := range s.bodies {
		for at := len(magic); at < len(body); {
			n := int(binary.LittleEndian.Uint32(body[at+9:]))
			event := body[at : at+n]
			h, err := DecodeHeader(event)
			if err != nil {
				t.Fatal(err)
			}
			if at == len(magic) {
				f, err := DecodeFormat(event)
				if err != nil {
					t.Fatal(err)
				}
				c.format(event, &f)
			}
			rows := append([]byte(nil), event[headerSize:n-checksumSize]...)
			for i := range rows {
				rows[i] ^= byte(i * 37)
			}
			if hasRows(h.Type) {
				if got := c.count(event[:headerSize], h, rows); got != 1 {
					t.Errorf("a garbled event at %d counts %d rows", at, got)
				}
			}
			counted += c.count(event[:headerSize], h, event[headerSize:n-checksumSize])
			at += n
		}
	}
	if counted < 3 {
		t.Errorf("%d rows", counted)
	}
}
