package cache

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
)

// scanLab is a closed cache of some files, under a disk on which a look at the file
// of inode 0, which is the first, waits for the gate.
type scanLab struct {
	*vfs.Fault
	gate chan struct{}
	dir  string
	size int64 // allocated when it was closed
}

const scanFiles = 12

func newScanLab(t *testing.T) *scanLab {
	t.Helper()
	l := &scanLab{vfs.NewFault(vfs.OS()), make(chan struct{}), filepath.Join(t.TempDir(), "cache"), 0}
	c := mustOpen(t, l, l.dir, l.options())
	for ino := range uint64(scanFiles) {
		f := c.Get(ino)
		mustWrite(t, f, fill(ino, 0, 0, BlockSize), 0)
		f.Release()
	}
	l.size = c.Stats().Allocated
	l.mustClose(t, c)
	l.SetHook(func(op, name string, _ int) error {
		if op == "Stat" && name == filepath.Join(l.dir, "00", "0") {
			<-l.gate
		}
		return nil
	})
	return l
}

func (l *scanLab) options() Options {
	return Options{LimitBytes: (scanFiles + 2) * BlockSize, ScanLater: scanFiles}
}

func (l *scanLab) mustClose(t *testing.T, c *Cache) {
	t.Helper()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
}

// scanning says whether files are left that were not looked at.
func scanning(c *Cache) bool {
	select {
	case <-c.Scanned():
		return false
	default:
		return true
	}
}

// believe is a check that takes what fill wrote.
func believe(ino uint64) func(int64, []byte) int64 {
	return func(no int64, p []byte) int64 {
		if string(p) == string(fill(ino, no*BlockSize, 0, len(p))) {
			return int64(len(p))
		}
		return 0
	}
}

// A cache of many files serves before it has looked at all of them: what is there
// is found, nothing of it is lost, and the limit holds as if all were known.
func TestCache_Open_ManyFiles_ServesBeforeAllAreLookedAt(t *testing.T) {
	l := newScanLab(t)
	c := mustOpen(t, l, l.dir, l.options())
	if !scanning(c) || c.Stats().Allocated != l.size {
		t.Fatalf("looking at files: %v, allocated %d, was %d", scanning(c), c.Stats().Allocated, l.size)
	}
	if _, err := os.Stat(filepath.Join(l.dir, closingName)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what Close left is still there: %v", err)
	}
	old := c.Get(7)
	if err := old.Verify(0, BlockSize, believe(7)); err != nil || !reads(t, old, fill(7, 0, 0, BlockSize), 0) {
		t.Errorf("a file that was there: %v", err)
	}
	mustWrite(t, old, fill(7, BlockSize, 0, 4096), BlockSize)
	if !reads(t, old, fill(7, 0, 0, BlockSize), 0) {
		t.Error("a write made the file's other bytes go")
	}
	old.Release()
	if err := c.Remove(8); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(l.dir, "08", "8")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the local file of an inode that is no more: %v", err)
	}
	for ino := uint64(100); ino < 120; ino++ {
		f := c.Get(ino)
		if _, err := f.WriteAt(fill(ino, 0, 0, BlockSize), 0); err != nil {
			t.Error(err)
		}
		f.Release()
		if n, d := c.Stats().Allocated, du(t, l.dir); n > l.options().LimitBytes || d > l.options().LimitBytes+64<<10 {
			t.Fatalf("allocated %d, on disk %d", n, d)
		}
	}
	close(l.gate)
	<-c.Scanned()
	checkAtRest(t, c)
	seen := map[uint64]bool{}
	if err := c.Inodes(func(ino uint64) error { seen[ino] = true; return nil }); err != nil || !seen[0] || seen[8] {
		t.Errorf("inodes %v, %v", seen, err)
	}
	l.mustClose(t, c)
}

// Without word from Close, or with one that makes no sense, all files are looked
// at first; and Close leaves none for a few files.
func TestCache_Open_LooksAtAllFirst(t *testing.T) {
	for name, what := range map[string]string{"a crash": "", "torn": `{"files": 12, "by`, "nonsense": `{"files": -12, "bytes": 5}`, "few": `{"files": 11, "bytes": 5}`} {
		t.Run(name, func(t *testing.T) {
			l := newScanLab(t)
			close(l.gate)
			path := filepath.Join(l.dir, closingName)
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			if what != "" {
				if err := os.WriteFile(path, []byte(what), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			c := mustOpen(t, l, l.dir, l.options())
			if scanning(c) || c.Stats().Files != scanFiles || c.Stats().Allocated != l.size {
				t.Errorf("looking at files: %v, %+v", scanning(c), c.Stats())
			}
			checkAtRest(t, c)
			if err := c.Remove(3); err != nil {
				t.Error(err)
			}
			l.mustClose(t, c)
			if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("Close left word of few files: %v", err)
			}
		})
	}
}

// Word that is not true any more is wrong by what it says of the account, until all
// files are looked at.
func TestCache_Open_StaleWord_AccountIsRightInTheEnd(t *testing.T) {
	for _, bytes := range []string{"0", "99999999999"} {
		l := newScanLab(t)
		if err := os.WriteFile(filepath.Join(l.dir, closingName), []byte(`{"files": 99, "bytes": `+bytes+`}`), 0o600); err != nil {
			t.Fatal(err)
		}
		c := mustOpen(t, l, l.dir, l.options())
		f := c.Get(200)
		if _, err := f.WriteAt(fill(200, 0, 0, 4096), 0); err != nil {
			t.Errorf("bytes %s: %v", bytes, err)
		}
		f.Release()
		close(l.gate)
		<-c.Scanned()
		checkAtRest(t, c)
		l.mustClose(t, c)
	}
}

// A cache that is closed before all files are looked at leaves word all the same.
func TestCache_Close_BeforeAllAreLookedAt(t *testing.T) {
	l := newScanLab(t)
	c := mustOpen(t, l, l.dir, l.options())
	done := make(chan error)
	go func() { done <- c.Close() }()
	for !c.closed.Load() {
		runtime.Gosched()
	}
	close(l.gate)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	l.gate = make(chan struct{})
	c = mustOpen(t, l, l.dir, l.options())
	if !scanning(c) || c.Stats().Allocated != l.size {
		t.Errorf("looking at files: %v, allocated %d, was %d", scanning(c), c.Stats().Allocated, l.size)
	}
	close(l.gate)
	<-c.Scanned()
	checkAtRest(t, c)
	l.mustClose(t, c)
}

// Whatever call fails: Open says so, or the files are found and kept.
func TestCache_Open_ManyFiles_FailEveryCall(t *testing.T) {
	for n := 0; ; n++ {
		l := newScanLab(t)
		close(l.gate)
		l.SetHook(nil)
		before := l.Calls()
		l.FailAt(before+n, syscall.EIO)
		c, err := Open(l, l.dir, l.options())
		if err == nil {
			<-c.Scanned()
		}
		failed := l.Calls() > before+n
		l.FailAt(-1, nil)
		if err != nil {
			if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), l.dir) && !strings.Contains(err.Error(), filepath.Dir(l.dir)) {
				t.Errorf("call %d: %v", n, err)
			}
			c = mustOpen(t, l, l.dir, l.options())
			<-c.Scanned()
		}
		for ino := range uint64(scanFiles) {
			f := c.Get(ino)
			f.Pin(0, BlockSize)
			p := make([]byte, BlockSize)
			if err := f.ReadPinned(p, 0); err != nil || string(p) != string(fill(ino, 0, 0, BlockSize)) {
				t.Errorf("call %d: inode %d: %v", n, ino, err)
			}
			f.Unpin(0, BlockSize)
			f.Release()
		}
		l.mustClose(t, c)
		if !failed {
			return
		}
	}
}

// A file that could not be looked at may hold what a reference in the journal means:
// it is not deleted because nobody knows of anything in it.
func TestCache_Get_LookFails_FileStays(t *testing.T) {
	l := newScanLab(t)
	l.SetHook(func(op, name string, _ int) error {
		switch {
		case op == "Stat" && name == filepath.Join(l.dir, "00", "0"):
			<-l.gate
		case op == "Stat" && name == filepath.Join(l.dir, "05", "5"):
			return syscall.EIO
		}
		return nil
	})
	c := mustOpen(t, l, l.dir, l.options())
	p := make([]byte, BlockSize)
	for range 2 {
		f := c.Get(5)
		if err := f.ReadPinned(p, 0); err != nil || string(p) != string(fill(5, 0, 0, BlockSize)) {
			t.Errorf("its bytes: %v", err)
		}
		f.Release()
	}
	f := c.Get(5)
	mustWrite(t, f, fill(5, BlockSize, 1, 4096), BlockSize)
	if !reads(t, f, fill(5, BlockSize, 1, 4096), BlockSize) {
		t.Error("what was written to it is not there")
	}
	if err := f.Drop(0, 2*BlockSize); err != nil {
		t.Error(err)
	}
	f.Release()
	if _, err := os.Stat(filepath.Join(l.dir, "05", "5")); err != nil {
		t.Errorf("nobody removed it: %v", err)
	}
	if err := c.Remove(5); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(l.dir, "05", "5")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it was removed: %v", err)
	}
	close(l.gate)
	<-c.Scanned()
	l.mustClose(t, c)
}
