package binlogfs

import (
	"bytes"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/testenv"
)

func TestPullStatus_Took_Cases(t *testing.T) {
	now := time.Unix(1_800_000_000, 0)
	hourAgo := uint32(now.Unix() - 3600)
	for _, c := range []struct {
		name    string
		h       Header
		seconds float64
		bytes   int64
	}{
		{"a file's head is as old as the file", Header{Type: replication.FORMAT_DESCRIPTION_EVENT, Time: hourAgo}, 7, 70},
		{"a list", Header{Type: replication.MARIADB_GTID_LIST_EVENT, Time: hourAgo}, 7, 70},
		{"a Rotate for replicas", Header{Type: replication.ROTATE_EVENT, Flags: flagArtificial}, 7, 70},
		{"an old group", Header{Type: replication.XID_EVENT, Time: hourAgo}, 3599, 70},
		{"a new group", Header{Type: replication.XID_EVENT, Time: uint32(now.Unix())}, 0, 70},
		{"a heartbeat", Header{Type: replication.HEARTBEAT_EVENT}, 0, 0},
	} {
		s := PullStatus{LagSeconds: 7, LagBytes: 70}
		s.took(c.h, now)
		if s.LagSeconds != c.seconds || s.LagBytes != c.bytes || !s.LastEvent.Equal(now) {
			t.Errorf("%s: %+v", c.name, s)
		}
	}
	s := PullStatus{LagBytes: lagUnknown}
	if s.took(Header{Type: replication.HEARTBEAT_EVENT}, now); s.LagBytes != lagUnknown {
		t.Errorf("a heartbeat made the unknown lag %d", s.LagBytes)
	}
}

func TestPuller_Lag_IsWhatTheSourceHasMore(t *testing.T) {
	testenv.Long(t)
	for _, k := range []dbtest.Kind{dbtest.MariaDB1011, dbtest.MySQL97} {
		t.Run(string(k), func(t *testing.T) {
			s := dbtest.Start(t, k)
			s.Exec(t, "create database d", "create table d.t (s longtext)", "flush binary logs", "insert into d.t values (repeat('x',100000))")
			l := newPlace(t).log()
			r := pull(t, l, func(o *PullOptions) { o.Heartbeat = time.Minute }, s)
			r.caughtUp(t, l, s)
			for deadline := time.Now().Add(pullWait); r.Status().LagBytes != 0; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%+v", r.Status())
				}
			}
			// What another place would lack, within a file and over several.
			c, err := r.connect(t.Context(), s.Addr(), false)
			if err != nil {
				t.Fatal(err)
			}
			defer c.close()
			file, end := position(t, s)
			first := l.Files()[0]
			for _, w := range []struct {
				at   SourcePlace
				want int64
			}{
				{SourcePlace{file, end}, 0}, {SourcePlace{file, end - 100000}, 100000}, {SourcePlace{first.Name, first.Size - 5}, end + 5},
				{SourcePlace{"mysql-bin.999999", 4}, lagUnknown}, {SourcePlace{}, lagUnknown},
			} {
				if got, err := c.lag(w.at); err != nil || got != w.want {
					t.Errorf("behind %v: %d, want %d; %v", w.at, got, w.want, err)
				}
			}
			if err := r.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Where a position is too large to be asked for, the source is asked by GTID.
func TestPuller_BeyondWhatAPositionCanTell_GoesOnByGTID(t *testing.T) {
	testenv.Long(t)
	for _, k := range []dbtest.Kind{dbtest.MariaDB1011, dbtest.MariaDB118, dbtest.MySQL97} {
		t.Run(string(k), func(t *testing.T) {
			s := dbtest.Start(t, k)
			l := newPlace(t).log()
			work(t, s, 0)
			r := pull(t, l, nil, s)
			r.caughtUp(t, l, s)
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				work(t, s, i+1)
				p, err := NewPuller(l, r.o)
				if err != nil {
					t.Fatal(err)
				}
				p.farthest = 100 // as if it were 4 GiB
				r.Puller = p
				r.again(t)
				r.caughtUp(t, l, s)
				if err := r.stop(); err != nil {
					t.Fatal(err)
				}
			}
			// The server may have written a checkpoint since.
			names, bodies := ownFiles(t, l)
			for i, name := range names {
				want := read(t, filepath.Join(s.DataDir, name))
				bodies[i][4+17], want[4+17] = 0, 0 // the mark of a file in use is not sent
				if !bytes.HasPrefix(want, bodies[i]) {
					t.Errorf("%s has %d bytes that are not the server's", name, len(bodies[i]))
				}
			}
		})
	}
}
