package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"sync"
	"syscall"
	"testing"
)

// outcomes crashes a disk many times and counts what is found.
func outcomes(m *Mem, mode CrashMode, look func(*Mem) string) map[string]int {
	found := map[string]int{}
	for seed := range int64(200) {
		found[look(m.Crash(rand.New(rand.NewSource(seed)), mode))]++
	}
	return found
}

// fileOrNone is a file's content, or "none".
func fileOrNone(name string) func(*Mem) string {
	return func(m *Mem) string {
		f, err := m.OpenFile(name, os.O_RDONLY, 0)
		if err != nil {
			return "none"
		}
		defer f.Close()
		size, _ := f.Size() // of a file in memory
		b := make([]byte, size)
		f.ReadAt(b, 0)
		return string(b)
	}
}

func wantOutcomes(t *testing.T, got map[string]int, want ...string) {
	t.Helper()
	for _, w := range want {
		if got[w] == 0 {
			t.Errorf("never found %q", w)
		}
		delete(got, w)
	}
	for g, n := range got {
		t.Errorf("found %q %d times", g, n)
	}
}

func durableFile(t *testing.T, m *Mem, name, data string) File {
	t.Helper()
	f := create(t, m, name)
	write(t, f, data, 0)
	must(t, f.Sync())
	must(t, m.SyncDir("/"))
	return f
}

func TestMem_Crash_KillKeepsEverything(t *testing.T) {
	m := NewMem()
	f := create(t, m, "/a")
	write(t, f, "unsynced", 0)
	wantOutcomes(t, outcomes(m, KillProcess, fileOrNone("/a")), "unsynced")
	// It is still unsynced after the kill.
	next := m.Crash(nil, KillProcess)
	got := outcomes(next, PowerLoss, fileOrNone("/a"))
	if got["unsynced"] == 0 || got["none"] == 0 {
		t.Fatalf("power loss after a kill: %v", got)
	}
}

func TestMem_Crash_SyncedIsKept(t *testing.T) {
	m := NewMem()
	durableFile(t, m, "/a", "synced")
	wantOutcomes(t, outcomes(m, PowerLoss, fileOrNone("/a")), "synced")
}

func TestMem_Crash_NameNeedsSyncDir(t *testing.T) {
	m := NewMem()
	f := create(t, m, "/a")
	write(t, f, "x", 0)
	must(t, f.Sync())
	wantOutcomes(t, outcomes(m, PowerLoss, fileOrNone("/a")), "x", "none")
	must(t, m.SyncDir("/"))
	must(t, m.Remove("/a"))
	wantOutcomes(t, outcomes(m, PowerLoss, fileOrNone("/a")), "x", "none")
	must(t, m.SyncDir("/"))
	wantOutcomes(t, outcomes(m, PowerLoss, fileOrNone("/a")), "none")
}

func TestMem_Crash_DirectoryNeedsItsParentsSync(t *testing.T) {
	m := NewMem()
	must(t, m.MkdirAll("/d/e", 0o700))
	f := create(t, m, "/d/e/a")
	write(t, f, "x", 0)
	must(t, f.Sync())
	must(t, m.SyncDir("/d/e"))
	must(t, m.SyncDir("/d"))
	wantOutcomes(t, outcomes(m, PowerLoss, fileOrNone("/d/e/a")), "x", "none")
	must(t, m.SyncDir("/"))
	wantOutcomes(t, outcomes(m, PowerLoss, fileOrNone("/d/e/a")), "x")
}

func TestMem_Crash_RenameIsEither(t *testing.T) {
	m := NewMem()
	durableFile(t, m, "/a", "old")
	durableFile(t, m, "/b", "new")
	must(t, m.Rename("/b", "/a"))
	both := func(m *Mem) string { return fileOrNone("/a")(m) + " " + fileOrNone("/b")(m) }
	wantOutcomes(t, outcomes(m, PowerLoss, both), "old new", "new none")
	must(t, m.SyncDir("/"))
	wantOutcomes(t, outcomes(m, PowerLoss, both), "new none")
}

func TestMem_Crash_RenameBetweenDirectories(t *testing.T) {
	m := NewMem()
	must(t, m.MkdirAll("/d", 0o700))
	durableFile(t, m, "/a", "x")
	must(t, m.Rename("/a", "/d/a"))
	both := func(m *Mem) string { return fileOrNone("/a")(m) + " " + fileOrNone("/d/a")(m) }
	wantOutcomes(t, outcomes(m, PowerLoss, both), "x none", "none x")
	must(t, m.SyncDir("/d"))
	wantOutcomes(t, outcomes(m, PowerLoss, both), "none x")
}

func TestMem_Crash_WritesAreTornAtSectors(t *testing.T) {
	m := NewMem()
	f := durableFile(t, m, "/a", string(bytes.Repeat([]byte{'o'}, 8192)))
	write(t, f, string(bytes.Repeat([]byte{'m'}, 8192)), 0)
	write(t, f, string(bytes.Repeat([]byte{'n'}, 8192)), 0)
	kinds := map[string]bool{}
	for s := range outcomes(m, PowerLoss, fileOrNone("/a")) {
		if len(s) != 8192 {
			t.Fatalf("size %d", len(s))
		}
		letters := map[byte]bool{}
		for i := 0; i < len(s); i += sectorSize {
			if n := bytes.Count([]byte(s[i:i+sectorSize]), []byte{s[i]}); n != sectorSize {
				t.Fatalf("sector at %d is torn within", i)
			}
			letters[s[i]] = true
		}
		kinds[fmt.Sprint(letters['o'], letters['m'], letters['n'])] = true
	}
	for _, k := range []string{"true false false", "false false true", "true true true"} {
		if !kinds[k] {
			t.Errorf("never found old, middle, new: %s", k)
		}
	}
}

func TestMem_Crash_SizeMayBeEither(t *testing.T) {
	m := NewMem()
	f := durableFile(t, m, "/a", "0123456789")
	must(t, f.Truncate(4))
	got := outcomes(m, PowerLoss, func(m *Mem) string { return fmt.Sprint(len(fileOrNone("/a")(m))) })
	wantOutcomes(t, got, "4", "10")
	must(t, f.Sync())
	wantOutcomes(t, outcomes(m, PowerLoss, fileOrNone("/a")), "0123")
	write(t, f, "abc", 4)
	for s := range outcomes(m, PowerLoss, fileOrNone("/a")) {
		if len(s) < 4 || len(s) > 7 || s[:4] != "0123" {
			t.Errorf("found %q", s)
		}
	}
}

func TestMem_Crash_OldHandlesDontTouchTheNewDisk(t *testing.T) {
	m := NewMem()
	f := durableFile(t, m, "/a", "before")
	next := m.Crash(nil, KillProcess)
	write(t, f, "after!", 0)
	must(t, f.Sync())
	must(t, m.Remove("/a"))
	if got := fileOrNone("/a")(next); got != "before" {
		t.Fatalf("new disk has %q", got)
	}
	nf, err := next.OpenFile("/a", os.O_RDWR, 0)
	must(t, err)
	write(t, nf, "NEW", 0)
	if got := content(t, f); got != "after!" {
		t.Fatalf("old handle reads %q", got)
	}
	if got := content(t, nf); got != "NEWore" {
		t.Fatalf("new handle reads %q", got)
	}
}

func TestMem_Crash_SameSeedSameDisk(t *testing.T) {
	build := func() *Mem {
		m := NewMem()
		for i := range 20 {
			f := create(t, m, fmt.Sprintf("/f%d", i))
			for k := range 5 {
				write(t, f, string(bytes.Repeat([]byte{byte(i + k)}, 3000)), int64(k*2500))
				if (i+k)%4 == 0 {
					must(t, f.Sync())
				}
			}
		}
		return m.Crash(rand.New(rand.NewSource(5)), PowerLoss)
	}
	a, b := build(), build()
	for i := range 20 {
		name := fmt.Sprintf("/f%d", i)
		if fileOrNone(name)(a) != fileOrNone(name)(b) {
			t.Fatalf("%s differs", name)
		}
	}
}

func TestMem_Capacity(t *testing.T) {
	m := NewMem()
	m.SetCapacity(5 * pageSize)
	f := create(t, m, "/a")
	n, err := f.WriteAt(make([]byte, 8*pageSize), 100)
	if n != 5*pageSize-100 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("wrote %d, %v", n, err)
	}
	if size, _ := f.Size(); size != 5*pageSize {
		t.Fatalf("size %d", size)
	}
	write(t, f, "over what is there", 4000)
	if err := f.Allocate(8*pageSize, 1); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("allocate: %v", err)
	}
	must(t, f.PunchHole(0, 2*pageSize))
	if free, err := m.Free("/"); err != nil || free != 2*pageSize {
		t.Fatalf("free %d, %v", free, err)
	}
	must(t, f.Allocate(8*pageSize, 2*pageSize))
	if err := writeErr(f, 20*pageSize); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("write: %v", err)
	}
	must(t, writeErr(f, 8*pageSize)) // reserved
	must(t, m.Remove("/a"))
	if used := m.Used(); used != 5*pageSize {
		t.Fatalf("used %d with an open handle", used)
	}
	must(t, f.Close())
	if used := m.Used(); used != 0 {
		t.Fatalf("used %d at the end", used)
	}
}

func writeErr(f File, off int64) error {
	_, err := f.WriteAt([]byte("x"), off)
	return err
}

func TestMem_Parallel(t *testing.T) {
	m := NewMem()
	var wg sync.WaitGroup
	for w := range 6 {
		wg.Go(func() {
			name := fmt.Sprintf("/f%d", w%3)
			for i := range 100 {
				f, err := m.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
				if err != nil {
					t.Error(err)
					return
				}
				f.WriteAt(make([]byte, 5000), int64(i*100))
				f.ReadAt(make([]byte, 5000), 0)
				f.Sync()
				m.SyncDir("/")
				if i%20 == 0 {
					m.Crash(rand.New(rand.NewSource(int64(i))), PowerLoss)
				}
				f.Close()
				if i%10 == 0 {
					m.Rename(name, name+"x")
				}
			}
		})
	}
	wg.Wait()
	for i := range 3 {
		m.RemoveAll(fmt.Sprintf("/f%d", i))
		m.RemoveAll(fmt.Sprintf("/f%dx", i))
	}
	if used := m.Used(); used != 0 {
		t.Fatalf("used %d after all was removed", used)
	}
}

func BenchmarkMem_WriteAt_1MiB(b *testing.B) {
	m := NewMem()
	f := create(b, m, "/a")
	p := make([]byte, 1<<20)
	b.SetBytes(1 << 20)
	for i := 0; b.Loop(); i++ {
		if _, err := f.WriteAt(p, int64(i%64)<<20); err != nil {
			b.Fatal(err)
		}
		if i%64 == 63 {
			f.Sync()
		}
	}
}
