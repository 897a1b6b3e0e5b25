package binlogfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/go-mysql-org/go-mysql/replication"
)

// directory is the recorded logs of a kind as a server's directory has them.
func (s *stream) directory() fstest.MapFS {
	dir := fstest.MapFS{"mysql-bin.index": {}, "auto.cnf": {Data: []byte("[auto]\nserver-uuid=A2BEDC31-ecea-11f1-98b0-02fc00000001\n")}, "ibdata1": {Data: []byte("x")}}
	var index strings.Builder
	for i, n := range s.names {
		dir[n] = &fstest.MapFile{Data: s.bodies[i]}
		index.WriteString("./" + n + "\n")
	}
	dir["mysql-bin.index"].Data = []byte(index.String())
	return dir
}

func TestAdopt_ServersDirectories_ByteIdenticalAndAgain(t *testing.T) {
	for _, kind := range []string{"m1011", "m118", "my56", "my97"} {
		for _, index := range []bool{true, false} {
			p := newPlace(t)
			l := p.log()
			s := recordedStream(t, kind)
			dir := s.directory()
			if !index {
				delete(dir, "mysql-bin.index")
			}
			var done, total int64
			got, err := Adopt(t.Context(), l, dir, AdoptOptions{Progress: func(d, n int64) { done, total = d, n }})
			size := int64(len(s.bodies[0]) + len(s.bodies[1]))
			if err != nil || got.Files != 2 || got.Had != 0 || got.Bytes != size || got.Dropped != 0 || done != size || total != size {
				t.Fatalf("%s: %+v, %v; %d of %d", kind, got, err, done, total)
			}
			s.check(t, l, true)
			for _, f := range l.Files() {
				if err := Verify(t.Context(), l.t, "logs", f); err != nil {
					t.Error(err)
				}
			}
			if err := Follows(l.Files()[0], l.Files()[1]); err != nil {
				t.Error(err)
			}
			if src := l.Sources(); len(src) != 1 || (src[0].Flavor == MySQL) != (src[0].UUID == "a2bedc31-ecea-11f1-98b0-02fc00000001") {
				t.Errorf("%s: %+v", kind, src)
			}
			if got, err = Adopt(t.Context(), p.log(), dir, AdoptOptions{}); err != nil || got.Files != 2 || got.Had != 2 || got.Bytes != 0 {
				t.Errorf("%s again: %+v, %v", kind, got, err)
			}
		}
	}
}

// cutFS gives an error after some bytes of all its files.
type cutFS struct {
	fs.FS
	left *int
}

type cutFile struct {
	fs.File
	left *int
}

var errDiskGone = errors.New("the disk is gone")

func (c cutFS) Open(name string) (fs.File, error) {
	f, err := c.FS.Open(name)
	return cutFile{f, c.left}, err
}

func (c cutFS) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(c.FS, name) }

func (c cutFile) Read(p []byte) (int, error) {
	if *c.left <= 0 {
		return 0, errDiskGone
	}
	n, err := c.File.Read(p[:min(len(p), *c.left)])
	*c.left -= n
	return n, err
}

func TestAdopt_InterruptedAnywhere_GoesOn(t *testing.T) {
	s := recordedStream(t, "m118")
	p := newPlace(t)
	l := p.log()
	cuts := 0
	for n := 200; ; n += 411 {
		left := n
		_, err := Adopt(t.Context(), l, cutFS{s.directory(), &left}, AdoptOptions{})
		s.check(t, l, false)
		if err == nil {
			break
		}
		if !errors.Is(err, errDiskGone) {
			t.Fatalf("cut at %d: %v", n, err)
		}
		if cuts++; cuts%4 == 0 {
			p.kill()
			l = p.log()
		}
	}
	s.check(t, l, true)
	if cuts < 10 {
		t.Errorf("only %d cuts", cuts)
	}
}

func TestAdopt_GrownDirectory_AddsTheRest(t *testing.T) {
	s := recordedStream(t, "my97")
	p := newPlace(t)
	l := p.log()
	dir := s.directory()
	// A server that runs: the last file ends within a group, or an event.
	for _, n := range []int{300, 1000, 2001, len(s.bodies[0]) - 20} {
		young := fstest.MapFS{s.names[0]: {Data: s.bodies[0][:n]}}
		got, err := Adopt(t.Context(), l, young, AdoptOptions{UUID: "a2bedc31-ecea-11f1-98b0-02fc00000001"})
		if err != nil || got.Dropped != int64(n)-l.Files()[0].Size {
			t.Fatalf("%d bytes: %+v, %v", n, got, err)
		}
		s.check(t, l, false)
	}
	if _, err := Adopt(t.Context(), l, dir, AdoptOptions{}); err != nil {
		t.Fatal(err)
	}
	s.check(t, l, true)
}

func TestAdopt_Refused_SaysWhy(t *testing.T) {
	s, other := recordedStream(t, "m1011"), recordedStream(t, "m118")
	with := func(change func(d fstest.MapFS)) fstest.MapFS {
		d := s.directory()
		change(d)
		return d
	}
	for name, c := range map[string]struct {
		dir  fstest.MapFS
		err  error
		want string
	}{
		"empty":         {fstest.MapFS{}, ErrNoLogs, "mysql-bin.000001"},
		"missing":       {with(func(d fstest.MapFS) { delete(d, s.names[0]) }), ErrGap, "mysql-bin.index names mysql-bin.000001"},
		"hole":          {fstest.MapFS{"b.000001": {Data: s.bodies[0]}, "b.000003": {Data: s.bodies[1]}}, ErrGap, "b.000003 follows b.000001"},
		"two names":     {fstest.MapFS{"a.000001": {Data: s.bodies[0]}, "b.000001": {Data: s.bodies[1]}}, ErrNoLogs, "two names"},
		"two indexes":   {with(func(d fstest.MapFS) { d["relay-bin.index"] = &fstest.MapFile{} }), ErrNoLogs, "relay-bin.index"},
		"bad index":     {with(func(d fstest.MapFS) { d["mysql-bin.index"].Data = []byte("./x\n") }), ErrCorrupt, "mysql-bin.index"},
		"groups lost":   {fstest.MapFS{"b.000001": {Data: s.bodies[0][:1448]}, "b.000002": {Data: s.bodies[1]}}, ErrGap, "b.000002 begins after the groups 3-11-"},
		"file reset":    {fstest.MapFS{"b.000001": {Data: s.bodies[0]}, "b.000002": {Data: s.bodies[0]}}, ErrGap, "begins without the groups 3-11-"},
		"within group":  {fstest.MapFS{"b.000001": {Data: s.bodies[0][:1076]}, "b.000002": {Data: s.bodies[1]}}, ErrCorrupt, "b.000001 ends within the group at 1034"},
		"within event":  {fstest.MapFS{"b.000001": {Data: s.bodies[0][:1080]}, "b.000002": {Data: s.bodies[1]}}, ErrCorrupt, "b.000001 ends within the event at 1076"},
		"mysql crypt":   {fstest.MapFS{"b.000001": {Data: append([]byte("\xfdbin"), s.bodies[0][4:]...)}}, ErrEncrypted, "b.000001"},
		"mariadb crypt": {fstest.MapFS{"b.000001": {Data: startEncryption(s.bodies[0])}}, ErrEncrypted, "b.000001"},
		"no log":        {fstest.MapFS{"b.000001": {Data: []byte("no binary log")}}, ErrCorrupt, "b.000001"},
		"nothing in it": {fstest.MapFS{"b.000001": {Data: []byte(magic)}}, ErrCorrupt, "b.000001"},
		"flipped bit": {with(func(d fstest.MapFS) {
			body := bytes.Clone(s.bodies[0])
			body[1460] ^= 4
			d[s.names[0]].Data = body
		}), ErrCorrupt, "1448"},
	} {
		l := newPlace(t).log()
		got, err := Adopt(t.Context(), l, c.dir, AdoptOptions{})
		if !errors.Is(err, c.err) || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	l := newPlace(t).log()
	if _, err := Adopt(t.Context(), l, s.directory(), AdoptOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := Adopt(t.Context(), l, other.directory(), AdoptOptions{}); !errors.Is(err, ErrOtherSource) {
		t.Errorf("another server's: %v", err)
	}
	if _, err := Adopt(t.Context(), l, fstest.MapFS{"mysql-bin.000000": {Data: s.bodies[0]}}, AdoptOptions{}); !errors.Is(err, ErrGap) {
		t.Errorf("before the archive: %v", err)
	}
	s.check(t, l, true)
	for i := range 2 { // and again, as if it had been interrupted
		if _, err := Adopt(t.Context(), l, other.directory(), AdoptOptions{NewEpoch: true}); err != nil || len(l.Sources()) != 2 || len(l.Files()) != 4 {
			t.Errorf("an epoch of its own, time %d: %v, %+v", i, err, l.Sources())
		}
	}
}

// startEncryption puts MariaDB's Start_encryption behind the format description.
func startEncryption(body []byte) []byte {
	head := 4 + binary.LittleEndian.Uint32(body[13:])
	event := seal(append(make([]byte, headerSize), make([]byte, 17)...), Header{Type: replication.MARIADB_START_ENCRYPTION_EVENT, LogPos: head + 40}, true)
	return append(append(bytes.Clone(body[:head]), event...), []byte(strings.Repeat("sealed", 100))...)
}

// ripple is a file as Ripple would have written it from a server's.
func ripple(t *testing.T, body []byte, master string) []byte {
	t.Helper()
	out := []byte(magic)
	add := func(h Header, body []byte) {
		h.Size = uint32(headerSize + len(body))
		h.LogPos = uint32(len(out)) + h.Size
		head := make([]byte, headerSize)
		h.put(head)
		out = append(append(out, head...), body...)
	}
	err := scan(t.Context(), bytes.NewReader(body), newTracker(1, "x.000001"), func(e *Event) error {
		content := body[e.Offset+headerSize : e.Offset+int64(e.Size)-checksumSize]
		switch e.Type {
		case replication.FORMAT_DESCRIPTION_EVENT:
			add(Header{Type: e.Type, ServerID: 112211}, append(bytes.Clone(content[:len(content)-1]), checksumOff))
			add(Header{Type: e.Type, ServerID: e.ServerID}, append(bytes.Clone(content[:len(content)-1]), checksumOff))
			// The artificial Rotate that begins a dump, with its flag.
			add(Header{Type: replication.ROTATE_EVENT, Flags: flagArtificial}, append(binary.LittleEndian.AppendUint64(nil, 4), master...))
		case replication.STOP_EVENT, replication.MARIADB_GTID_LIST_EVENT, replication.PREVIOUS_GTIDS_EVENT, replication.MARIADB_BINLOG_CHECKPOINT_EVENT:
		default:
			add(e.Header, content)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAdopt_Ripple_BecomesAServersLog(t *testing.T) {
	for kind, start := range map[string]string{"m1011": "3-11-", "m118": "", "my97": "a2bedc31-ecea-11f1-98b0-02fc00000001:0-0-"} {
		_, pulled, s := filled(t, kind)
		at := pulled.Files()[1].Previous
		if kind == "my97" {
			at = start + "19"
		}
		own := binary.LittleEndian.Uint32(ripple(t, s.bodies[1], s.names[1])[4+9:])
		dir := fstest.MapFS{
			"binlog.000000": {Data: ripple(t, s.bodies[0], s.names[0])},
			"binlog.000001": {Data: ripple(t, s.bodies[1], s.names[1])},
			"binlog.000002": {Data: ripple(t, s.bodies[1], s.names[1])[:4+own]}, // made, and nothing received
			"binlog.index": {Data: []byte(rippleIndex + "\nfilename=binlog.000000 start_pos='' end_pos='" + at + "' last_next_master_pos=x:4\n" +
				"filename=binlog.000001 start_pos='" + at + "'")},
		}
		l := newPlace(t).log()
		got, err := Adopt(t.Context(), l, dir, AdoptOptions{})
		if err != nil || !got.Ripple || got.Files != 2 {
			t.Fatalf("%s: %+v, %v", kind, got, err)
		}
		if l.State().String() != pulled.State().String() {
			t.Errorf("%s: state %s, want %s", kind, l.State(), pulled.State())
		}
		for i, f := range l.Files() {
			if err := Verify(t.Context(), l.t, "logs", f); err != nil {
				t.Error(err)
			}
			if want := pulled.Files()[i]; f.Groups != want.Groups || f.Added != want.Added || f.Previous != want.Previous || f.Flavor != want.Flavor || f.ServerID != want.ServerID {
				t.Errorf("%s: %+v\nwant %+v", kind, f, want)
			}
			if i == 0 && !f.Closed {
				t.Errorf("%s: no Rotate leads to the next file", kind)
			}
			for _, e := range s.begins(t, i) {
				if found, err := FindGTID(t.Context(), l, e.GTID); err != nil || found.File != f.Name {
					t.Errorf("%s: %v: %+v, %v", kind, e.GTID, found, err)
				}
			}
		}
		if again, err := Adopt(t.Context(), l, dir, AdoptOptions{}); err != nil || again.Had != 2 {
			t.Errorf("%s again: %+v, %v", kind, again, err)
		}
		sealed := bytes.Clone(dir["binlog.000001"].Data)
		h, err := DecodeHeader(sealed[4:])
		if err != nil {
			t.Fatal(err)
		}
		sealed[4+2*h.Size+4] = byte(replication.MARIADB_START_ENCRYPTION_EVENT) // instead of the Rotate
		dir["binlog.000001"] = &fstest.MapFile{Data: sealed}
		if _, err := Adopt(t.Context(), newPlace(t).log(), dir, AdoptOptions{}); !errors.Is(err, ErrEncrypted) {
			t.Errorf("%s: an encrypted file: %v", kind, err)
		}
	}
}

func TestParseRippleState(t *testing.T) {
	const u = "6c27ed6d-7ee1-11e3-be39-6c626d957cfc"
	for _, c := range []struct {
		f          Flavor
		text, want string
		bad        bool
	}{
		{MariaDB, "", "", false},
		{MariaDB, "0-1-5,3-2-7", "0-1-5,3-2-7", false},
		{MariaDB, u + ":1-1-5", "1-1-5", false},
		{MySQL, u + ":0-0-5", u + ":1-5", false},
		{MySQL, u + ":0-0-[1-5][7-9]", u + ":1-5:7-9", false},
		{MySQL, u + ":0-0-[3-5]", u + ":3-5", false},
		{MySQL, "0-1-5", "", true},
		{MariaDB, "0-1-", "", true},
		{MariaDB, "x", "", true},
	} {
		s, err := parseRippleState(c.f, c.text)
		if c.bad != (err != nil) || err == nil && s.String() != c.want {
			t.Errorf("%s %q: %v, %v", c.f, c.text, s, err)
		}
	}
}

func TestAdopt_RealDirectory(t *testing.T) {
	l := newPlace(t).log()
	got, err := Adopt(context.Background(), l, os.DirFS("testdata/m118"), AdoptOptions{})
	if err != nil || got.Files != 2 || got.Groups != l.Files()[0].Groups+l.Files()[1].Groups {
		t.Errorf("%+v, %v", got, err)
	}
}
