package binlogfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

// filled is a place whose archive holds the recorded logs of a kind.
func filled(t testing.TB, kind string) (*place, *Log, *stream) {
	t.Helper()
	p := newPlace(t)
	l := p.log()
	a := p.appender(l)
	s := recordedStream(t, kind)
	if err := feed(t.Context(), a, s.from(t, "", 4), never); err != nil {
		t.Fatal(err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return p, l, s
}

// view is the last commit of the place's volume.
func (p *place) view() ViewTree {
	p.t.Helper()
	if _, err := p.v.Sync(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
	v, err := gateway.OpenView(p.t.Context(), gateway.ViewOptions{Store: p.store, URL: "mem:", KV: metadata.NewMemKV()})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		if err := v.Close(); err != nil {
			p.t.Error(err)
		}
	})
	return ViewTree{v}
}

// begins are the groups of a recorded file.
func (s *stream) begins(t testing.TB, i int) (all []Event) {
	t.Helper()
	err := scan(t.Context(), bytes.NewReader(s.bodies[i]), newTracker(1, s.names[i]), func(e *Event) error {
		if e.Step == StepBegin || e.Step == StepWhole {
			all = append(all, *e)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestFind_RecordedLogs_EveryGroup(t *testing.T) {
	for _, kind := range []string{"m1011", "m118", "my56", "my97"} {
		p, l, s := filled(t, kind)
		fixed, err := OpenForSearch(t.Context(), p.view(), "logs")
		if err != nil {
			t.Fatal(err)
		}
		for n, a := range []Searchable{l, fixed} {
			var last uint32
			for i, name := range s.names {
				for _, e := range s.begins(t, i) {
					want := Position{1, name, e.Offset}
					if !e.GTID.Zero() {
						f, err := FindGTID(t.Context(), a, e.GTID)
						if err != nil || f.Position != want || f.GTID != e.GTID {
							t.Errorf("%s %d: %v: %+v, %v; want %v", kind, n, e.GTID, f, err, want)
						}
					}
					info, err := a.info(t.Context(), i)
					if err != nil {
						t.Fatal(err)
					}
					for _, at := range []int64{e.Offset, e.Offset + int64(e.Size) - 1} {
						if f, err := FindPosition(t.Context(), a, info, at); err != nil || f.Position != want {
							t.Errorf("%s %d: %s at %d: %+v, %v; want %v", kind, n, name, at, f, err, want)
						}
					}
					f, err := FindTime(t.Context(), a, time.Unix(int64(e.Time), 0))
					if err != nil || f.Time.Unix() < int64(e.Time) || e.Time > last && f.Position != want {
						t.Errorf("%s %d: time %d: %+v, %v; want %v", kind, n, e.Time, f, err, want)
					}
					last = max(last, e.Time)
				}
			}
			if f, err := FindTime(t.Context(), a, time.Unix(int64(last), 1)); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s %d: a time after the end: %+v, %v", kind, n, f, err)
			}
		}
	}
}

func TestFind_NotThere_SaysWhy(t *testing.T) {
	_, l, s := filled(t, "my97")
	own := s.begins(t, 0)[0].GTID
	for _, g := range []GTID{{Flavor: MySQL, SID: own.SID, Number: 999}, {Flavor: MySQL, SID: "00000000-0000-0000-0000-000000000001", Number: 1}, {Flavor: MariaDB, Domain: 0, ServerID: 1, Number: 1}} {
		if f, err := FindGTID(t.Context(), l, g); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), g.String()) {
			t.Errorf("%v: %+v, %v", g, f, err)
		}
	}
	if _, err := l.Apply(t.Context(), Policy{KeepFiles: 1}, false); err != nil {
		t.Fatal(err)
	}
	if f, err := FindGTID(t.Context(), l, own); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "purged") {
		t.Errorf("a purged group: %+v, %v", f, err)
	}
	info := l.Files()[0]
	for _, at := range []int64{-1, info.Size, info.Size + 1} {
		if f, err := FindPosition(t.Context(), l, info, at); !errors.Is(err, ErrNotFound) {
			t.Errorf("offset %d: %+v, %v", at, f, err)
		}
	}
}

// synthetic is a catalogue of many large files whose bytes are made as they are
// read: groups of 64 KiB, sixteen to an entry of the index.
type synthetic struct {
	files []*FileInfo
	asked int // catalogues
	read  int64
}

const (
	syntheticGroup  = 64 << 10
	syntheticGroups = 1 << 30 / syntheticGroup
	syntheticServer = 7
)

// syntheticBegan is the time of the first group.
var syntheticBegan = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func newSynthetic(n int) *synthetic {
	s := &synthetic{}
	for i := range n {
		first := uint64(i*syntheticGroups) + 1
		at := func(group int) time.Time {
			return syntheticBegan.Add(time.Duration(i*syntheticGroups+group) * time.Second)
		}
		f := &FileInfo{
			Format: catalogueFormat, Epoch: 1, Name: fmt.Sprintf("bin.%06d", i+1), Size: 1<<30 + 1<<20, Closed: true, Flavor: MariaDB, Server: "11.8-MariaDB",
			FirstTime: at(0), LastTime: at(syntheticGroups - 1), Groups: syntheticGroups,
			Added: fmt.Sprintf("0-%d-%d", syntheticServer, first+syntheticGroups-1),
		}
		if i > 0 {
			f.Previous = fmt.Sprintf("0-%d-%d", syntheticServer, first-1)
		}
		for g := range syntheticGroups {
			f.mark(int64(g+16)*syntheticGroup, at(g), GTID{Flavor: MariaDB, ServerID: syntheticServer, Number: first + uint64(g)}, nil)
			f.Groups++
		}
		s.files = append(s.files, f)
	}
	return s
}

func (s *synthetic) count() int { return len(s.files) }

func (s *synthetic) nameOf(i int) fileName { return fileName{s.files[i].Epoch, s.files[i].Name} }

func (s *synthetic) info(_ context.Context, i int) (*FileInfo, error) {
	s.asked++
	return s.files[i], nil
}

func (s *synthetic) Open(_ context.Context, _ uint32, name string) (File, error) {
	return &syntheticFile{s, int(logNumber(name)) - 1}, nil
}

type syntheticFile struct {
	s *synthetic
	n int
}

func (*syntheticFile) Close() error { return nil }

// Read implements File: a GTID event and a Query event for each group.
func (f *syntheticFile) Read(_ context.Context, p []byte, off int64) (int, error) {
	f.s.read += int64(len(p))
	group := make([]byte, syntheticGroup)
	for n := 0; n < len(p); {
		at := off + int64(n)
		no := at/syntheticGroup - 16
		number := uint64(f.n*syntheticGroups) + uint64(no) + 1
		when := uint32(f.s.files[f.n].FirstTime.Unix() + no)
		const gtidSize = headerSize + 19
		Header{Time: when, Type: replication.MARIADB_GTID_EVENT, ServerID: syntheticServer, Size: gtidSize}.put(group)
		binary.LittleEndian.PutUint64(group[headerSize:], number)
		group[headerSize+12] = gtidStandalone
		Header{Time: when, Type: replication.QUERY_EVENT, ServerID: syntheticServer, Size: syntheticGroup - gtidSize}.put(group[gtidSize:])
		n += copy(p[n:], group[at%syntheticGroup:])
	}
	return len(p), nil
}

func TestFind_ManyFiles_ReadsFewCataloguesAndOneMiB(t *testing.T) {
	s := newSynthetic(50)
	for _, number := range []uint64{1, 16, 17, syntheticGroups, syntheticGroups + 1, 20*syntheticGroups + 77, 50 * syntheticGroups} {
		s.asked, s.read = 0, 0
		g := GTID{Flavor: MariaDB, ServerID: syntheticServer, Number: number}
		f, err := FindGTID(t.Context(), s, g)
		want := Position{1, fmt.Sprintf("bin.%06d", (number-1)/syntheticGroups+1), int64((number-1)%syntheticGroups+16) * syntheticGroup}
		if err != nil || f.Position != want || f.GTID != g {
			t.Fatalf("%v: %+v, %v; want %v", g, f, err, want)
		}
		if s.asked > 8 || s.read > indexEvery+2*scanBuffer {
			t.Errorf("%v: %d catalogues and %d bytes read", g, s.asked, s.read)
		}
		s.asked, s.read = 0, 0
		if f, err = FindTime(t.Context(), s, f.Time); err != nil || f.Position != want {
			t.Fatalf("its time: %+v, %v; want %v", f, err, want)
		}
		if s.asked > 8 || s.read > indexEvery+2*scanBuffer {
			t.Errorf("its time: %d catalogues and %d bytes read", s.asked, s.read)
		}
		s.read = 0
		info := s.files[(number-1)/syntheticGroups]
		if f, err = FindPosition(t.Context(), s, info, want.Offset+5); err != nil || f.Position != want || s.read > indexEvery+2*scanBuffer {
			t.Fatalf("its position: %+v, %v, %d bytes read; want %v", f, err, s.read, want)
		}
	}
}

// BenchmarkFind is finding a group in 1,000 files of 1 GiB whose catalogues are
// in memory, as in a relay.
func BenchmarkFind(b *testing.B) {
	s := newSynthetic(1000)
	b.Run("gtid", func(b *testing.B) {
		for i := 0; b.Loop(); i++ {
			number := uint64(i)*7919*104729%(1000*syntheticGroups) + 1
			if _, err := FindGTID(b.Context(), s, GTID{Flavor: MariaDB, ServerID: syntheticServer, Number: number}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("time", func(b *testing.B) {
		began := s.files[0].FirstTime
		for i := 0; b.Loop(); i++ {
			if _, err := FindTime(b.Context(), s, began.Add(time.Duration(i*7919*104729%(1000*syntheticGroups))*time.Second)); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// A file without a group has no times. Wherever such files are, a time is found.
func TestFindTime_FilesWithoutGroups_AreNoEnd(t *testing.T) {
	const files = 7
	for empty := range 1 << files { // bit i: file i has no group
		s := newSynthetic(files)
		for i, f := range s.files {
			if empty>>i&1 == 1 {
				f.FirstTime, f.LastTime, f.Groups, f.Index = time.Time{}, time.Time{}, 0, nil
				f.Size, f.Added = 16*syntheticGroup, ""
			}
		}
		for i := range files {
			at := syntheticBegan.Add(time.Duration(i*syntheticGroups+100) * time.Second)
			next := i // the first file at or after i with groups
			for next < files && empty>>next&1 == 1 {
				next++
			}
			f, err := FindTime(t.Context(), s, at)
			if next == files {
				if !errors.Is(err, ErrNotFound) {
					t.Fatalf("without %07b, a time of file %d: %+v, %v; want nothing", empty, i, f, err)
				}
				continue
			}
			group := 0
			if next == i {
				group = 100
			}
			if want := (Position{1, s.files[next].Name, int64(group+16) * syntheticGroup}); err != nil || f.Position != want {
				t.Fatalf("without %07b, a time of file %d: %+v, %v; want %v", empty, i, f, err, want)
			}
		}
	}
}
