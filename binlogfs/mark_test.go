package binlogfs

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// hourly makes catalogues of files of 100 bytes, an hour apart.
func hourly(n int) (files []*FileInfo, first time.Time) {
	first = time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)
	for i := range n {
		at := first.Add(time.Duration(i) * time.Hour)
		files = append(files, &FileInfo{Epoch: uint32(i/5 + 1), Name: fmt.Sprintf("bin.%06d", i%5+1), Size: 100, FirstTime: at, LastTime: at.Add(59 * time.Minute)})
	}
	return files, first
}

func TestPolicy_Named(t *testing.T) {
	files, first := hourly(10)
	now := first.Add(10 * time.Hour)
	for _, c := range []struct {
		p    Policy
		want int
		err  error
	}{
		{Policy{}, 0, nil},
		{Policy{To: "bin.000003"}, 2, nil},
		{Policy{To: "000002/bin.000003"}, 7, nil},
		{Policy{To: "bin.000009"}, 0, ErrNotFound},
		{Policy{Before: first}, 0, nil},
		{Policy{Before: first.Add(3 * time.Hour)}, 3, nil},
		{Policy{Before: first.Add(1000 * time.Hour)}, 9, nil},
		{Policy{KeepAge: 4*time.Hour + time.Minute}, 5, nil},
		{Policy{KeepAge: time.Second}, 9, nil},
		{Policy{KeepFiles: 4}, 6, nil},
		{Policy{KeepFiles: 40}, 0, nil},
		{Policy{KeepSize: 300}, 7, nil},
		{Policy{KeepSize: 299}, 8, nil},
		{Policy{KeepSize: 1}, 9, nil},
		{Policy{KeepSize: 1 << 40}, 0, nil},
		{Policy{KeepFiles: 8, To: "bin.000004"}, 3, nil},
		{Policy{KeepFiles: -1}, 0, ErrPolicy},
		{Policy{KeepSize: -1}, 0, ErrPolicy},
	} {
		if n, err := c.p.named(files, now); n != c.want || !errors.Is(err, c.err) {
			t.Errorf("%+v: %d, %v; want %d, %v", c.p, n, err, c.want, c.err)
		}
	}
	if n, err := (&Policy{KeepFiles: 1}).named(nil, now); n != 0 || err != nil {
		t.Errorf("no files: %d, %v", n, err)
	}
}

func TestLog_Mark_KeptThroughPurgesAndKills(t *testing.T) {
	p, l, s := filled(t, "my97")
	gtid := s.begins(t, 0)[4].GTID
	sid := gtid.SID
	for at, want := range map[string]Position{
		sid + ":1-3":                  {1, s.names[0], 4},
		sid + ":1-19":                 {1, s.names[1], 4},
		s.names[0] + ":158":           {1, s.names[0], 158},
		"000001/" + s.names[1] + ":4": {1, s.names[1], 4},
	} {
		m, err := l.Mark(t.Context(), "nightly", at)
		if err != nil || m.Position() != want {
			t.Errorf("%s: %+v, %v; want %v", at, m, err, want)
		}
	}
	if m, err := l.Mark(t.Context(), "ahead", sid+":1-999"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), ":20-999") && !strings.Contains(err.Error(), "-999,") && !strings.Contains(err.Error(), "-999 ") {
		t.Errorf("a mark beyond the end: %+v, %v", m, err)
	}
	if _, err := l.Mark(t.Context(), "nightly", sid+":1-3"); err != nil {
		t.Fatal(err)
	}
	p.kill()
	l = p.log()
	if m := l.Marks(); len(m) != 1 || m[0].Name != "nightly" || m[0].File != s.names[0] || m[0].GTID != sid+":1-3" {
		t.Fatalf("marks after a kill: %+v", m)
	}
	for _, dry := range []bool{true, false} {
		got, err := l.Apply(t.Context(), Policy{KeepFiles: 1}, dry)
		if err != nil || len(got.Files) != 0 || got.Left != 2 || len(got.Kept) != 1 || got.Kept[0] != (KeptFor{"the mark nightly", 1, s.names[0], 1}) {
			t.Errorf("dry %v: purged what a mark needs: %+v, %v", dry, got, err)
		}
	}
	if err := l.Unmark(t.Context(), "nightly"); err != nil {
		t.Fatal(err)
	}
	l.Need("replica 12", Position{1, s.names[0], 900})
	if got, err := l.Apply(t.Context(), Policy{To: s.names[1]}, false); err != nil || len(got.Files) != 0 || got.Kept[0].Who != "replica 12" {
		t.Errorf("purged what a replica needs: %+v, %v", got, err)
	}
	l.Done("replica 12")
	if got, err := l.Apply(t.Context(), Policy{To: s.names[1]}, true); err != nil || len(got.Files) != 1 || len(l.Files()) != 2 || got.Left != 1 {
		t.Errorf("dry run: %+v, %v", got, err)
	}
	got, err := l.Apply(t.Context(), Policy{To: s.names[1]}, false)
	if err != nil || len(got.Files) != 1 || got.Files[0].Name != s.names[0] || got.Deleted != int64(len(s.bodies[0])) || got.Left != 1 || len(l.Files()) != 1 {
		t.Errorf("purged %+v, %v", got, err)
	}
	if _, err := l.Mark(t.Context(), "late", sid+":1-3"); !errors.Is(err, ErrNotFound) || !strings.Contains(err.Error(), "purged") {
		t.Errorf("a mark on what is purged: %v", err)
	}
}

func TestLog_Mark_BadInput(t *testing.T) {
	_, l, s := filled(t, "m1011")
	group := s.begins(t, 0)[5]
	at := func(offset int64) string { return fmt.Sprintf("%s:%d", s.names[0], offset) }
	for _, c := range []struct {
		name, at string
		err      error
	}{
		{"x", at(group.Offset + 1), ErrMark},
		{"x", at(group.Offset + int64(group.Size)), ErrMark}, // its second event
		{"x", at(0), ErrMark},
		{"x", at(3), ErrMark},
		{"x", at(5), ErrMark},
		{"x", at(int64(len(s.bodies[0])) + 1), ErrMark},
		{"x", "3-999-5", ErrNotFound}, // that server has logged nothing
		{"x", "3-11-5,3-11-4", ErrMark},
		{"", "3-11-5", ErrMark},
		{"a b", "3-11-5", ErrMark},
		{strings.Repeat("x", 101), "3-11-5", ErrMark},
		{"x", "", ErrMark},
		{"x", "yesterday", ErrMark},
		{"x", "a2bedc31-ecea-11f1-98b0-02fc00000001:1", ErrMark},
		{"x", s.names[0] + ":9999999", ErrMark},
		{"x", "9-11-5", ErrNotFound},
		{"x", "3-11-5,9-11-5", ErrNotFound},
		{"x", "3-11-999999", ErrNotFound},
		{"x", "mysql-bin.000009:4", ErrNotFound},
	} {
		if m, err := l.Mark(t.Context(), c.name, c.at); !errors.Is(err, c.err) {
			t.Errorf("%q at %q: %+v, %v", c.name, c.at, m, err)
		}
	}
	if err := l.Unmark(t.Context(), "x"); !errors.Is(err, ErrMark) || len(l.Marks()) != 0 {
		t.Errorf("%v, left %v", err, l.Marks())
	}
	if m, err := l.Mark(t.Context(), "x", "3-11-5"); err != nil || m.File != s.names[0] {
		t.Errorf("%+v, %v", m, err)
	}
	for _, offset := range []int64{4, group.Offset, int64(len(s.bodies[0]))} {
		if m, err := l.Mark(t.Context(), "x", at(offset)); err != nil || m.Offset != offset {
			t.Errorf("between groups at %d: %+v, %v", offset, m, err)
		}
	}
}

func TestLog_Mark_DamagedDocument_IsRefused(t *testing.T) {
	p, l, _ := filled(t, "m1011")
	if err := l.t.writeFile(t.Context(), "logs/marks.json", []byte("{")); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenLog(t.Context(), p.v, LogOptions{Dir: "logs"}); !errors.Is(err, ErrCorrupt) {
		t.Errorf("opened: %v", err)
	}
	if _, err := OpenArchive(t.Context(), p.view(), "logs"); !errors.Is(err, ErrCorrupt) {
		t.Errorf("archive opened: %v", err)
	}
}
