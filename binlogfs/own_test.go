package binlogfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"testing"
)

// ownLog is a log in own mode.
func (p *place) ownLog(most int64) *Log {
	p.t.Helper()
	l, err := OpenLog(p.t.Context(), p.v, LogOptions{Dir: "logs", Own: &OwnFiles{MaxSize: most, ServerID: 77}})
	if err != nil {
		p.t.Fatal(err)
	}
	return l
}

// groupsOf are the events of all groups in files, with GTID, without their places
// and checksums. Every event must end where it says, but for the zeros of a source.
func groupsOf(t testing.TB, names []string, bodies [][]byte, zeros bool) (all []string) {
	t.Helper()
	for i, body := range bodies {
		tr := newTracker(1, names[i])
		err := scan(t.Context(), bytes.NewReader(body), tr, func(e *Event) error {
			if end := uint32(e.Offset + int64(e.Size)); e.LogPos != end && !(zeros && e.LogPos == 0) {
				return fmt.Errorf("an event %v at %d that ends at %d says %d", e.Type, e.Offset, end, e.LogPos)
			}
			if e.Step == StepHead {
				return nil
			}
			all = append(all, fmt.Sprintf("%v %v %d %x", e.GTID, e.Type, e.Time, body[e.Offset+headerSize:e.Offset+headerSize+int64(e.Whole)]))
			return nil
		})
		if err != nil {
			t.Fatalf("%s: %v", names[i], err)
		}
	}
	return all
}

// ownFiles are the published files of a log.
func ownFiles(t testing.TB, l *Log) (names []string, bodies [][]byte) {
	t.Helper()
	for _, f := range l.Files() {
		body, err := readFile(t.Context(), l.t, l.path(f), 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		if len(body) == 0 {
			continue // made, and killed
		}
		names, bodies = append(names, f.Name), append(bodies, body)
	}
	return names, bodies
}

// checkOwn compares a log's groups with a prefix of the source's.
func (s *stream) checkOwn(t testing.TB, l *Log, whole bool) {
	t.Helper()
	names, bodies := ownFiles(t, l)
	got, want := groupsOf(t, names, bodies, false), groupsOf(t, s.names, s.bodies, true)
	if len(got) > len(want) || whole && len(got) < len(want) {
		t.Fatalf("%d events, of the source's %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("event %d is\n%.300s\nand the source's\n%.300s", i, got[i], want[i])
		}
	}
	// Each file begins with the GTIDs of those before it.
	var before *GTIDState
	for i, f := range l.Files() {
		if f.Size == 0 {
			continue
		}
		prev, err := ParseGTIDState(f.Flavor, f.Previous)
		if err != nil {
			t.Fatal(err)
		}
		if before != nil && prev.String() != before.String() {
			t.Errorf("file %d begins with %s, behind %s", i, prev, before)
		}
		if before, err = stateAfter(f); err != nil {
			t.Fatal(err)
		}
	}
	if before != nil && l.State().String() != before.String() {
		t.Errorf("the state is %s, the last file's %s", l.State(), before)
	}
}

func TestOwn_RecordedLogs_SameGroupsOtherFiles(t *testing.T) {
	for _, kind := range []string{"m1011", "m118", "my97"} {
		for _, most := range []int64{leastOwnSize, 1 << 20} {
			t.Run(fmt.Sprintf("%s-%d", kind, most), func(t *testing.T) {
				p := newPlace(t)
				l, s := p.ownLog(most), recordedStream(t, kind)
				p.resume(l, s, "", int64(len(magic)))
				s.checkOwn(t, l, true)
				files := l.Files()
				least := 1 // MariaDB's goes on where the source's file ends
				if kind == "my97" || most == leastOwnSize {
					least = 2
				}
				if len(files) < least || files[0].Name != "binlog.000001" {
					t.Errorf("%d files, the first is %s", len(files), files[0].Name)
				}
				for i, f := range files {
					if f.Closed != (i < len(files)-1) || f.ServerID != 77 {
						t.Errorf("%s: closed %v, server %d", f.Name, f.Closed, f.ServerID)
					}
				}
				l = p.ownLog(most) // and read anew
				s.checkOwn(t, l, true)
			})
		}
	}
}

// The source sends everything again after each cut, as none does that is asked by
// GTID: nothing may be there twice, and nothing be missing.
func TestOwn_KilledAnywhere_NothingTwice(t *testing.T) {
	for _, kind := range []string{"m1011", "my97"} {
		t.Run(kind, func(t *testing.T) {
			p := newPlace(t)
			s := recordedStream(t, kind)
			all := s.from(t, "", int64(len(magic)))
			for cut := 1; cut < len(all); cut += 1 + len(all)/12 {
				l := p.ownLog(leastOwnSize)
				a, err := l.Append(t.Context(), testSource, false, nil)
				if err != nil {
					t.Fatal(err)
				}
				state, err := l.published(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				in := s.after(t, state)
				err = feed(t.Context(), a, in[:min(cut, len(in))], always)
				if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Fatalf("cut %d: %v", cut, err)
				}
				if cut%2 == 0 {
					if err := a.Close(t.Context()); err != nil {
						t.Fatal(err)
					}
				} else {
					p.kill()
				}
				s.checkOwn(t, p.ownLog(leastOwnSize), false)
			}
			l := p.ownLog(leastOwnSize)
			state, err := l.published(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			a, err := l.Append(t.Context(), testSource, false, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := feed(t.Context(), a, s.after(t, state), always); err != nil {
				t.Fatal(err)
			}
			if err := a.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.checkOwn(t, l, true)
		})
	}
}

// after makes the stream as a source sends it to a replica with a state.
func (s *stream) after(t testing.TB, state *GTIDState) (out []byte) {
	t.Helper()
	all := s.from(t, "", int64(len(magic)))
	if state == nil {
		return all
	}
	var groups Groups
	var format Format
	skipping := false
	for at := 0; at < len(all); {
		n := int(binary.LittleEndian.Uint32(all[at:]))
		event := all[at+4 : at+4+n]
		h, err := DecodeHeader(event)
		if err != nil {
			t.Fatal(err)
		}
		if h.Type == 15 {
			if format, err = DecodeFormat(event); err != nil {
				t.Fatal(err)
			}
		}
		step := StepHead
		if !h.Artificial() && h.Type != 27 {
			whole := n - headerSize - checksumSize
			if step, err = groups.Next(&format, h, event[headerSize:headerSize+min(whole, MaxPrefix)], whole); err != nil {
				t.Fatal(err)
			}
		}
		if step == StepBegin || step == StepWhole {
			skipping = state.Has(groups.GTID())
		}
		if step == StepHead || !skipping {
			out = append(out, all[at:at+4+n]...)
		}
		at += 4 + n
	}
	return out
}

func TestOwn_SentTwice_StoredOnce(t *testing.T) {
	for _, kind := range []string{"m1011", "m118", "my97"} {
		p := newPlace(t)
		l, s := p.ownLog(leastOwnSize), recordedStream(t, kind)
		a := p.appender(l)
		one := s.from(t, s.names[0], int64(len(magic)))
		one = one[:len(one)-len(s.from(t, s.names[1], int64(len(magic))))] // the first file alone
		for range 2 {
			if err := feed(t.Context(), a, one, never); err != nil {
				t.Fatalf("%s: %v", kind, err)
			}
		}
		if err := feed(t.Context(), a, s.from(t, s.names[1], int64(len(magic))), never); err != nil {
			t.Fatalf("%s: %v", kind, err)
		}
		if err := a.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		s.checkOwn(t, l, true)
	}
}

func TestOwn_Ack_IsThePlaceInTheSourcesFile(t *testing.T) {
	p := newPlace(t)
	l, s := p.ownLog(leastOwnSize), recordedStream(t, "m1011")
	var last SourcePlace
	a, err := l.Append(t.Context(), testSource, false, func(at SourcePlace) { last = at })
	if err != nil {
		t.Fatal(err)
	}
	if err := feed(t.Context(), a, s.from(t, "", int64(len(magic))), always); err != nil {
		t.Fatal(err)
	}
	came := a.Received()
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	want := SourcePlace{s.names[1], int64(len(s.bodies[1]))}
	if came != want {
		t.Errorf("received up to %v, not %v", came, want)
	}
	if last.File != want.File || last.Offset > want.Offset || last.Offset <= int64(len(magic)) {
		t.Errorf("acknowledged %v, and the file ends at %v", last, want)
	}
}

func TestOwn_OtherMode_Refused(t *testing.T) {
	p := newPlace(t)
	p.resume(p.ownLog(leastOwnSize), recordedStream(t, "m1011"), "", int64(len(magic)))
	if _, err := p.log().Append(t.Context(), testSource, false, nil); !errors.Is(err, ErrMode) {
		t.Errorf("mirror mode on own files: %v", err)
	}
	other, err := OpenLog(t.Context(), p.v, LogOptions{Dir: "logs", Own: &OwnFiles{Name: "else", ServerID: 77}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := other.Append(t.Context(), testSource, false, nil); !errors.Is(err, ErrMode) {
		t.Errorf("another name: %v", err)
	}
	q := newPlace(t)
	q.filled("m1011")
	if _, err := q.ownLog(leastOwnSize).Append(t.Context(), testSource, false, nil); !errors.Is(err, ErrMode) {
		t.Errorf("own mode on the source's files: %v", err)
	}
	for _, o := range []OwnFiles{{ServerID: 1, MaxSize: 100}, {ServerID: 1, MaxSize: 2 << 30}, {Name: "a/b", ServerID: 1}, {Name: "x"}} {
		if _, err := OpenLog(t.Context(), p.v, LogOptions{Own: &o}); err == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
}

func TestOwn_WithoutGTIDs_Refused(t *testing.T) {
	p := newPlace(t)
	a, err := p.ownLog(leastOwnSize).Append(t.Context(), testSource, false, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := recordedStream(t, "my56")
	if err := feed(t.Context(), a, s.from(t, "", int64(len(magic))), always); !errors.Is(err, ErrMode) {
		t.Errorf("groups without GTIDs: %v", err)
	}
	if err := a.Close(context.Background()); err != nil {
		t.Error(err)
	}
}

func TestOwn_OtherSource_GoesOnInTheSequence(t *testing.T) {
	p := newPlace(t)
	l, s := p.ownLog(1<<20), recordedStream(t, "m1011")
	p.resume(l, s, "", int64(len(magic)))
	n := len(l.Files())
	// The other has the same groups: it sends none that is archived, and one more.
	a, err := l.Append(t.Context(), Source{Flavor: MariaDB, ServerID: 12}, true, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := feed(t.Context(), a, s.after(t, l.State()), always); err != nil {
		t.Fatal(err)
	}
	if err := a.Cut(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.checkOwn(t, l, true)
	files := l.Files()
	if len(files) != n+1 || files[n].Epoch != 1 || files[n].Name != nextName(files[n-1].Name) {
		t.Errorf("%d files, before %d; the last is %s", len(files), n, files[len(files)-1].Path())
	}
	if all := l.Sources(); len(all) != 2 || all[1].Epoch != 1 {
		t.Errorf("sources %+v", all)
	}
	again := p.ownLog(1 << 20)
	if len(again.Files()) != n+1 {
		t.Errorf("read anew it has %d files", len(again.Files()))
	}
}

// MySQL's groups of two of its files must not share one of the archive's: a cut that
// failed is made by the next attempt of the same process.
func TestOwn_CutFailed_MadeByTheNextAttempt(t *testing.T) {
	p := newPlace(t)
	l, s := p.ownLog(1<<20), recordedStream(t, "my97")
	first := &stream{s.names[:1], s.bodies[:1]}
	p.resume(l, first, "", int64(len(magic)))
	n := len(l.Files())
	// Nobody can add a file: the cut waits for that, and its time is over.
	give, err := l.takeNames(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := p.appender(l)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	second := &stream{s.names[1:], s.bodies[1:]}
	if err := feed(ctx, a, second.from(t, second.names[0], int64(len(magic))), always); !errors.Is(err, context.Canceled) {
		t.Fatalf("the file was cut: %v", err)
	}
	if l.ownFrom != s.names[0] {
		t.Errorf("a cut that failed counts as made: the file's last group is from %s, it says", l.ownFrom)
	}
	give()
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.resume(l, second, second.names[0], int64(len(magic)))
	s.checkOwn(t, l, true)
	if files := l.Files(); len(files) != n+1 || files[n].Groups == 0 {
		t.Errorf("%d files after %d", len(files), n)
	}
}
