package binlogfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/mem"
)

// place is a volume that a test can close, kill and open again.
type place struct {
	t     testing.TB
	store *mem.Store
	fs    *vfs.Mem
	v     *gateway.Volume
}

func newPlace(t testing.TB) *place {
	t.Helper()
	p := &place{t: t, store: mem.New(), fs: vfs.NewMem()}
	if _, err := gateway.Format(t.Context(), gateway.FormatOptions{Store: p.store, URL: "mem:"}); err != nil {
		t.Fatal(err)
	}
	p.open()
	t.Cleanup(func() {
		if err := p.v.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *place) open() {
	p.t.Helper()
	v, err := gateway.Open(p.t.Context(), gateway.Options{
		Store: p.store, URL: "mem:", FS: p.fs, StateDir: "/state", CommitInterval: 20e6,
		OpenKV: func(string) (metadata.KV, error) { return metadata.NewMemKV(), nil },
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.v = v
}

// kill ends the volume as a kill of its process does, and opens it again.
func (p *place) kill() {
	p.t.Helper()
	if err := p.v.Abandon(); err != nil {
		p.t.Fatal(err)
	}
	p.open()
}

func (p *place) log() *Log {
	p.t.Helper()
	l, err := OpenLog(p.t.Context(), p.v, LogOptions{Dir: "logs"})
	if err != nil {
		p.t.Fatal(err)
	}
	return l
}

// filled is a log that has all that a recorded source has.
func (p *place) filled(kind string) (*Log, *stream) {
	p.t.Helper()
	l, s := p.log(), recordedStream(p.t, kind)
	p.resume(l, s, "", int64(len(magic)))
	return l, s
}

// resume appends a stream from a place on, and closes the appender.
func (p *place) resume(l *Log, s *stream, file string, offset int64) {
	p.t.Helper()
	a := p.appender(l)
	if err := feed(p.t.Context(), a, s.from(p.t, file, offset), always); err != nil {
		p.t.Fatal(err)
	}
	if err := a.Close(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

var testSource = Source{Flavor: MariaDB, ServerID: 11}

func (p *place) appender(l *Log) *Appender {
	p.t.Helper()
	a, err := l.Append(p.t.Context(), testSource, false, nil)
	if err != nil {
		p.t.Fatal(err)
	}
	return a
}

// stream is what a source sends of its files: events, each with its length
// before it, so that a test can cut it anywhere.
type stream struct {
	names  []string
	bodies [][]byte
}

func recordedStream(t testing.TB, kind string) *stream {
	s := &stream{}
	for i := 1; i <= 2; i++ {
		name := fmt.Sprintf("mysql-bin.%06d", i)
		s.names = append(s.names, name)
		s.bodies = append(s.bodies, read(t, "testdata/"+kind+"/"+name))
	}
	return s
}

// from makes the stream as a source sends it from a file's offset on.
func (s *stream) from(t testing.TB, file string, offset int64) (out []byte) {
	t.Helper()
	send := func(event []byte) {
		out = binary.LittleEndian.AppendUint32(out, uint32(len(event)))
		out = append(out, event...)
	}
	started := file == ""
	for i, name := range s.names {
		if !started && name != file {
			continue
		}
		if !started || file == "" {
			offset = max(offset, int64(len(magic)))
		}
		started = true
		send(RotateEvent(Header{Flags: flagArtificial, ServerID: 11}, name, uint64(offset), false))
		body := s.bodies[i]
		if offset > int64(len(magic)) {
			fde := bytes.Clone(body[4 : 4+binary.LittleEndian.Uint32(body[13:])])
			h, err := DecodeHeader(fde)
			if err != nil {
				t.Fatal(err)
			}
			h.LogPos = 0
			send(seal(fde[:len(fde)-checksumSize], h, true))
		}
		for at := offset; at < int64(len(body)); {
			n := int64(binary.LittleEndian.Uint32(body[at+9:]))
			send(body[at : at+n])
			at += n
		}
		file, offset = "", int64(len(magic))
		send(HeartbeatEvent(11, name, int64(len(body)), true))
	}
	return out
}

// feed gives a stream to an appender, and returns io.ErrUnexpectedEOF where it
// was cut.
func feed(ctx context.Context, a *Appender, in []byte, flush func(n int) bool) error {
	r := bytes.NewReader(in)
	for n := 0; ; n++ {
		var size [4]byte
		if _, err := io.ReadFull(r, size[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if _, err := a.Event(ctx, int64(binary.LittleEndian.Uint32(size[:])), r); err != nil {
			return err
		}
		if flush(n) {
			if err := a.Flush(ctx); err != nil {
				return err
			}
		}
	}
}

// check compares what is published with a prefix of what the source has.
func (s *stream) check(t testing.TB, l *Log, whole bool) {
	t.Helper()
	for i, name := range s.names {
		body, err := readFile(t.Context(), l.t, path.Join("logs", "000001", name), 1<<20)
		if errors.Is(err, gateway.ErrNotExist) && !whole {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(s.bodies[i], body) || whole && len(body) != len(s.bodies[i]) {
			t.Fatalf("%s has %d bytes that are not the source's %d", name, len(body), len(s.bodies[i]))
		}
	}
}

func always(int) bool { return true }
func never(int) bool  { return false }

func TestAppender_RecordedLogs_ByteIdentical(t *testing.T) {
	for _, kind := range []string{"m1011", "m118", "my56", "my97"} {
		for i, flush := range []func(int) bool{always, never, func(n int) bool { return n%7 == 0 }} {
			t.Run(fmt.Sprint(kind, i), func(t *testing.T) {
				p := newPlace(t)
				l := p.log()
				a := p.appender(l)
				s := recordedStream(t, kind)
				if err := feed(t.Context(), a, s.from(t, "", 4), flush); err != nil {
					t.Fatal(err)
				}
				if err := a.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				s.check(t, l, true)
				files := l.Files()
				if len(files) != 2 || !files[0].Closed {
					t.Fatalf("%d files: %+v", len(files), files)
				}
				for _, f := range files {
					if err := Verify(t.Context(), l.t, "logs", f); err != nil {
						t.Error(err)
					}
				}
				want, err := stateAfter(files[1])
				if err != nil {
					t.Fatal(err)
				}
				if got := l.State().String(); got != want.String() || strings.HasPrefix(kind, "my56") != (got == "") {
					t.Errorf("state %q, want %q", got, want)
				}
				index, err := readFile(t.Context(), l.t, "logs/000001/binlog.index", 100)
				if err != nil || string(index) != "./mysql-bin.000001\n./mysql-bin.000002\n" {
					t.Errorf("index %q: %v", index, err)
				}
				before := l.State().String()
				if got := p.log(); got.State().String() != before {
					t.Errorf("opened again: %q, want %q", got.State(), before)
				}
			})
		}
	}
}

// TestAppender_CutAnywhere cuts the stream at byte positions in order, kills the
// relay at some of them, and goes on from where the archive says.
func TestAppender_CutAnywhere_GoesOnByteIdentical(t *testing.T) {
	for _, kind := range []string{"m1011", "m118", "my56", "my97"} {
		t.Run(kind, func(t *testing.T) {
			p := newPlace(t)
			l := p.log()
			s := recordedStream(t, kind)
			told := Position{}
			for cut := 1; ; cut++ {
				a := p.appender(l)
				file, offset := a.Resume()
				in := s.from(t, file, max(offset, 4))
				ended := cut*53 >= len(in)
				err := feed(t.Context(), a, in[:min(len(in), 53*cut)], func(n int) bool { return (n+cut)%3 == 0 })
				if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("cut %d: %v", cut, err)
				}
				if err := a.Close(t.Context()); err != nil {
					t.Fatalf("cut %d: %v", cut, err)
				}
				s.check(t, l, false)
				if cut%5 == 0 {
					p.kill()
					l = p.log()
				}
				end, _ := l.End()
				if logNumber(end.File) < logNumber(told.File) || end.File == told.File && end.Offset < told.Offset {
					t.Fatalf("cut %d: the published end went back from %v to %v", cut, told, end)
				}
				if told = end; ended && err == nil {
					break
				}
			}
			s.check(t, l, true)
		})
	}
}

func TestAppender_KilledWithAnOpenGroup_DropsIt(t *testing.T) {
	p := newPlace(t)
	l := p.log()
	s := recordedStream(t, "my97")
	in := s.from(t, "", 4)
	a := p.appender(l)
	if err := feed(t.Context(), a, in[:1500], always); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	if err := a.stage(t.Context()); err != nil { // the open group's bytes are in the volume
		t.Fatal(err)
	}
	if a.Pending() == nil || a.Pending().GTID.Zero() {
		t.Fatalf("pending: %+v", a.Pending())
	}
	if err := a.hard.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	end, _ := l.End()
	p.kill()
	l = p.log()
	if again, _ := l.End(); again != end {
		t.Errorf("published up to %v after the kill, %v before", again, end)
	}
	a = p.appender(l)
	file, offset := a.Resume()
	if file != end.File || offset != end.Offset {
		t.Errorf("goes on at %s %d, want %v", file, offset, end)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.resume(l, s, file, offset)
	s.check(t, l, true)
}

func TestAppender_SentTwice_StoredOnce(t *testing.T) {
	p := newPlace(t)
	l := p.log()
	a := p.appender(l)
	s := recordedStream(t, "m118")
	in := s.from(t, "", 4)
	if err := feed(t.Context(), a, in[:3000], always); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.resume(l, s, s.names[0], 4)
	s.check(t, l, true)
}

// What a source calls its files becomes a name in the archive's directory.
func TestAppender_Rotate_OnlyNamesOfBinaryLogs(t *testing.T) {
	for _, l := range []*Log{newPlace(t).log(), newPlace(t).ownLog(leastOwnSize)} {
		for _, name := range []string{"x", "../x.000001", "a/b.000001", "a\nb.000001", "x.00001", ".000001", "x.00000a"} {
			a, err := l.Append(t.Context(), testSource, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			rotate := RotateEvent(Header{Flags: flagArtificial}, name, 4, false)
			if _, err := a.Event(t.Context(), int64(len(rotate)), bytes.NewReader(rotate)); !errors.Is(err, ErrCorrupt) {
				t.Errorf("%q: %v, want ErrCorrupt", name, err)
			}
			if err := a.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestAppender_GapsAndForeigners_AreRefused(t *testing.T) {
	p := newPlace(t)
	l := p.log()
	a := p.appender(l)
	s := recordedStream(t, "my97")
	in := s.from(t, "", 4)
	if err := feed(t.Context(), a, in[:1200], always); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Fatal(err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	file, offset := p.appender(l).Resume()
	// Leave out the next group.
	body := s.bodies[0]
	next := offset
	for n := 0; n < 5; n++ {
		next += int64(binary.LittleEndian.Uint32(body[next+9:]))
		if body[next+4] == 33 {
			break
		}
	}
	a = p.appender(l)
	gap := RotateEvent(Header{Flags: flagArtificial}, file, uint64(offset), false)
	gap = append(binary.LittleEndian.AppendUint32(nil, uint32(len(gap))), gap...)
	rest := s.from(t, file, next)
	rest = rest[4+binary.LittleEndian.Uint32(rest):]
	if err := feed(t.Context(), a, append(gap, rest...), always); !errors.Is(err, ErrGap) {
		t.Errorf("a group left out: %v", err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := p.appender(l).Rotate(t.Context(), "mysql-bin.000009", 4); !errors.Is(err, ErrGap) {
		t.Errorf("files left out: %v", err)
	}
	if err := p.appender(l).Rotate(t.Context(), file, offset+1000); !errors.Is(err, ErrGap) {
		t.Errorf("bytes left out: %v", err)
	}
	if _, err := l.Append(t.Context(), Source{Flavor: MariaDB, ServerID: 12}, false, nil); !errors.Is(err, ErrOtherSource) {
		t.Errorf("another server: %v", err)
	}
	s.check(t, l, false)
}

func TestLog_Purge_KeepsWhatIsNeededAndTheLast(t *testing.T) {
	p := newPlace(t)
	l, s := p.filled("m1011")
	l.Need("backup", Position{1, s.names[0], 200})
	if gone, err := l.Purge(t.Context(), 1, s.names[1]); err != nil || len(gone) != 0 {
		t.Errorf("purged what is needed: %v, %v", gone, err)
	}
	l.Done("backup")
	gone, err := l.Purge(t.Context(), 9, "mysql-bin.999999")
	if err != nil || len(gone) != 1 || gone[0].Name != s.names[0] || len(l.Files()) != 1 {
		t.Errorf("purged %v, %v; left %v", gone, err, l.Files())
	}
	names, err := l.t.Names(t.Context(), "logs/000001")
	if want := "binlog.index mysql-bin.000002 mysql-bin.000002.json"; err != nil || strings.Join(names, " ") != want {
		t.Errorf("left %q, %v", names, err)
	}
}

func TestAppender_Rotate_EmptyFileOfAFailedAttempt(t *testing.T) {
	p := newPlace(t)
	l := p.log()
	a := p.appender(l)
	s := recordedStream(t, "m1011")
	if err := l.t.create(t.Context(), "logs/000001/"+s.names[0], modeFile); err != nil {
		t.Fatal(err)
	}
	if err := feed(t.Context(), a, s.from(t, "", 4), never); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.check(t, l, true)
}

func TestLog_Purge_Failed_TheFileStaysListed(t *testing.T) {
	p := newPlace(t)
	l, s := p.filled("m1011")
	p.kill() // the log's volume takes nothing any more
	if gone, err := l.Purge(t.Context(), 1, s.names[1]); err == nil || len(gone) != 0 || len(l.Files()) != 2 {
		t.Errorf("purged %v of a dead volume, %v; listed %d", gone, err, len(l.Files()))
	}
	if files := p.log().Files(); len(files) != 2 {
		t.Errorf("%d files afterwards", len(files))
	}
}

// The index names exactly the files that there are, whatever the appender and a
// purge do at the same time.
func TestLog_Purge_WhileFilesAreAdded_IndexIsRight(t *testing.T) {
	p := newPlace(t)
	l := p.log()
	a := p.appender(l)
	s := recordedStream(t, "m1011")
	first, second := s.from(t, s.names[0], 4), s.from(t, s.names[1], 4)
	first = first[:len(first)-len(second)]
	done := make(chan error)
	stop := make(chan struct{})
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := l.Purge(context.Background(), 1, "mysql-bin.999999"); err != nil {
				done <- err
				return
			}
		}
	}()
	err := feed(t.Context(), a, first, never)
	if err == nil {
		err = feed(t.Context(), a, second, never)
	}
	for i := 3; i < 30 && err == nil; i++ {
		// Further files that hold nothing but their beginning.
		if err = a.Rotate(t.Context(), fmt.Sprintf("mysql-bin.%06d", i), 4); err == nil {
			fde := s.bodies[0][4 : 4+binary.LittleEndian.Uint32(s.bodies[0][13:])]
			_, err = a.Event(t.Context(), int64(len(fde)), bytes.NewReader(fde))
		}
	}
	close(stop)
	if perr := <-done; err != nil || perr != nil {
		t.Fatal(err, perr)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	for _, f := range l.Files() {
		fmt.Fprintf(&want, "./%s\n", f.Name)
	}
	index, err := readFile(t.Context(), l.t, "logs/000001/binlog.index", 1<<16)
	if err != nil || string(index) != want.String() {
		t.Errorf("index %q, want %q: %v", index, want.String(), err)
	}
}
