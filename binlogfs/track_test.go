package binlogfs

import (
	"bytes"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// recorded returns the binary logs that real servers wrote: MariaDB 10.11 and
// 11.8, MySQL 5.6 and 9.7.
func recorded(t testing.TB) (files []string) {
	t.Helper()
	files, err := filepath.Glob("testdata/m*/mysql-bin.0*[0-9]")
	if err != nil || len(files) != 8 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	return files
}

func read(t testing.TB, name string) []byte {
	t.Helper()
	body, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// describe lists a file's events and its catalogue.
func describe(t testing.TB, body []byte) (string, *FileInfo) {
	t.Helper()
	var b strings.Builder
	tr := newTracker(1, "log.000001")
	err := scan(t.Context(), bytes.NewReader(body), tr, func(e *Event) error {
		text := ""
		if s, err := queryText(e.Header, e.Body, e.Whole); e.Type == 2 && err == nil {
			text = fmt.Sprintf("%q", s)
		}
		fmt.Fprintf(&b, "%6d %5d %-8s %v %s %s\n", e.Offset, e.Size, []string{"head", "begin", "inner", "end", "whole"}[e.Step], e.Type, e.GTID, text)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	info := tr.catalogue()
	out, err := info.encode()
	if err != nil {
		t.Fatal(err)
	}
	b.Write(out)
	return b.String(), info
}

func TestScan_RecordedLogs_GroupsAndCatalogue(t *testing.T) {
	for _, name := range recorded(t) {
		body := read(t, name)
		got, info := describe(t, body)
		golden := name + ".txt"
		if *update {
			if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if want := string(read(t, golden)); got != want {
			t.Errorf("%s:\n%s\nwant\n%s", name, got, want)
		}
		if info.Size != int64(len(body)) || !info.Closed {
			t.Errorf("%s: %d bytes of %d, closed %v", name, info.Size, len(body), info.Closed)
		}
	}
}

func TestScan_CutAnywhere_KeepsWholeGroups(t *testing.T) {
	for _, name := range recorded(t) {
		body := read(t, name)
		var ends []int64
		tr := newTracker(1, "x.000001")
		if err := scan(t.Context(), bytes.NewReader(body), tr, func(e *Event) error {
			if e.Step == StepHead || e.Step == StepEnd || e.Step == StepWhole {
				ends = append(ends, e.Offset+int64(e.Size))
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		for n := len(magic); n < len(body); n += 1 + n%7 {
			tr := newTracker(1, "x.000001")
			if err := scan(t.Context(), bytes.NewReader(body[:n]), tr, nil); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%s cut at %d: %v", name, n, err)
			}
			want := int64(len(magic))
			for _, e := range ends {
				if e <= int64(n) {
					want = e
				}
			}
			if got := tr.catalogue().Size; got != want {
				t.Fatalf("%s cut at %d: whole groups up to %d, want %d", name, n, got, want)
			}
		}
	}
}

func TestScan_FlippedByte_IsFound(t *testing.T) {
	for _, name := range recorded(t) {
		body := read(t, name)
		for n := len(name) % 3; n < len(body); n += 5 {
			bad := slices.Clone(body)
			bad[n] ^= 0x10
			tr := newTracker(1, "x.000001")
			err := scan(t.Context(), bytes.NewReader(bad), tr, nil)
			if err == nil && tr.catalogue().CRC32C == 0 {
				t.Fatal("no checksum")
			}
			if err == nil && !inUseFlag(bad, n) {
				t.Fatalf("%s: a flipped bit at %d goes unnoticed\n%s", name, n, hex.Dump(bad[max(0, n-16):n+16]))
			}
		}
	}
}

// inUseFlag says whether a byte is the first of the flags of the format
// description, one bit of which no checksum covers.
func inUseFlag(_ []byte, at int) bool { return at == len(magic)+17 }

func TestTracker_Resume_GoesOnAsIfNeverStopped(t *testing.T) {
	for _, name := range recorded(t) {
		body := read(t, name)
		_, want := describe(t, body)
		for n := 200; n < len(body); n += 97 {
			tr := newTracker(1, "log.000001")
			if err := scan(t.Context(), bytes.NewReader(body[:n]), tr, nil); err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatal(err)
			}
			half := tr.catalogue()
			again, err := resume(half, tr.format)
			if err != nil {
				t.Fatal(err)
			}
			if err := scan(t.Context(), bytes.NewReader(body[half.Size:]), again, nil); err != nil {
				t.Fatalf("%s from %d: %v", name, half.Size, err)
			}
			got, _ := again.catalogue().encode()
			full, _ := want.encode()
			if !bytes.Equal(got, full) {
				t.Fatalf("%s from %d:\n%s\nwant\n%s", name, half.Size, got, full)
			}
		}
	}
}

func TestScan_NoBinaryLog(t *testing.T) {
	for _, body := range []string{"", "x", "no log", "\xfdbin1234", "\xfebin" + strings.Repeat("\x00", 40)} {
		err := scan(t.Context(), strings.NewReader(body), newTracker(1, "x.000001"), nil)
		if !errors.Is(err, ErrCorrupt) {
			t.Errorf("%q: %v", body, err)
		}
	}
}

// What keeps a file from being read says nothing of what is in it.
func TestScan_FailingReader_IsNoDamage(t *testing.T) {
	body := recordedStream(t, "m1011").bodies[0]
	broken := errors.New("the bucket is away")
	for n := range len(body) {
		r := io.MultiReader(bytes.NewReader(body[:n]), iotest.ErrReader(broken))
		err := scan(t.Context(), r, newTracker(1, "x.000001"), nil)
		if !errors.Is(err, broken) || errors.Is(err, ErrCorrupt) {
			t.Fatalf("after %d bytes: %v", n, err)
		}
	}
}

// An event is read where the buffer has it: however many there are, a scan takes
// little memory.
func TestScan_ManyEvents_LittleMemory(t *testing.T) {
	body := recordedStream(t, "m1011").bodies[0]
	events, before, after := 0, runtime.MemStats{}, runtime.MemStats{}
	runtime.ReadMemStats(&before)
	err := scan(t.Context(), bytes.NewReader(body), newTracker(1, "x.000001"), func(*Event) error { events++; return nil })
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; err != nil || events < 50 || got > 1<<20+uint64(events)*(8<<10) {
		t.Errorf("%d events took %d bytes: %v", events, got, err)
	}
}

// What is kept of groups that nobody has asked for yet is a set: it does not grow
// with their number.
func TestTracker_Take_IsASet(t *testing.T) {
	tr := newTracker(1, "x.000001")
	tr.noGTIDs(MariaDB)
	for n := range uint64(100_000) {
		tr.groups.gtid = GTID{Flavor: MariaDB, ServerID: 1, Number: n + 1}
		tr.endGroup()
	}
	if got := tr.take(); got.String() != "0-1-100000" || len(got.list()) != 1 {
		t.Errorf("%d entries: %s", len(got.list()), got)
	}
	if got := tr.take(); !got.Empty() {
		t.Errorf("taken twice: %s", got)
	}
}
