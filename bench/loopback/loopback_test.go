package main

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/internal/testenv"
)

func TestLoopback_Mount_ShowsTheDirectoryBelow(t *testing.T) {
	below, top := testenv.TempDir(t), filepath.Join(testenv.TempDir(t), "m")
	m := testenv.Loopback(t, below, top)
	must(t, os.MkdirAll(filepath.Join(top, "a/b"), 0o750))
	content := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	must(t, os.WriteFile(filepath.Join(top, "a/b/f"), content, 0o640))
	must(t, os.Link(filepath.Join(top, "a/b/f"), filepath.Join(top, "g")))
	must(t, os.Symlink("g", filepath.Join(top, "s")))
	must(t, os.Rename(filepath.Join(top, "a"), filepath.Join(top, "c")))
	must(t, os.Truncate(filepath.Join(top, "g"), 1_000_000))
	must(t, os.Chmod(filepath.Join(top, "g"), 0o600))
	for _, root := range []string{below, top} {
		got, err := os.ReadFile(filepath.Join(root, "c/b/f"))
		must(t, err)
		if !bytes.Equal(got, content[:1_000_000]) {
			t.Errorf("%s: other bytes", root)
		}
		if target, err := os.Readlink(filepath.Join(root, "s")); err != nil || target != "g" {
			t.Errorf("%s: link to %q, %v", root, target, err)
		}
		st, err := os.Stat(filepath.Join(root, "g"))
		must(t, err)
		if n := st.Sys().(*syscall.Stat_t).Nlink; st.Mode() != 0o600 || n != 2 {
			t.Errorf("%s: mode %v, %d links", root, st.Mode(), n)
		}
		if names := list(t, root); len(names) != 3 {
			t.Errorf("%s: names %v", root, names)
		}
	}
	if err := os.Remove(filepath.Join(top, "c")); !errors.Is(err, syscall.ENOTEMPTY) {
		t.Errorf("rmdir of a full directory: %v", err)
	}
	testenv.Umount(t, m)
}

func TestLoopback_UnlinkedOpenFile_KeepsItsBytes(t *testing.T) {
	below, top := testenv.TempDir(t), filepath.Join(testenv.TempDir(t), "m")
	testenv.Loopback(t, below, top)
	f, err := os.Create(filepath.Join(top, "x"))
	must(t, err)
	defer f.Close()
	must(t, os.Remove(f.Name()))
	_, err = f.WriteAt([]byte("still here"), 4096)
	must(t, err)
	must(t, f.Sync())
	buf := make([]byte, 10)
	if _, err := f.ReadAt(buf, 4096); err != nil || string(buf) != "still here" {
		t.Fatalf("read %q, %v", buf, err)
	}
	if _, err := os.Stat(filepath.Join(below, "x")); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the name must be gone below: %v", err)
	}
}

func TestLoopback_DatabaseCalls_Work(t *testing.T) {
	below, top := testenv.TempDir(t), filepath.Join(testenv.TempDir(t), "m")
	testenv.Loopback(t, below, top)
	f, err := os.OpenFile(filepath.Join(top, "x"), os.O_RDWR|os.O_CREATE|unix.O_DIRECT, 0o644)
	must(t, err)
	defer f.Close()
	fd := int(f.Fd())
	must(t, unix.Fallocate(fd, 0, 0, 1<<20))
	must(t, unix.Fdatasync(fd))
	must(t, unix.Flock(fd, unix.LOCK_EX))
	mapped, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	must(t, err)
	copy(mapped, "through the map")
	must(t, unix.Msync(mapped, unix.MS_SYNC))
	must(t, unix.Munmap(mapped))
	got, err := os.ReadFile(filepath.Join(below, "x"))
	must(t, err)
	if len(got) != 1<<20 || !bytes.HasPrefix(got, []byte("through the map")) {
		t.Fatalf("%d bytes below, beginning %q", len(got), got[:16])
	}
	tmp, err := unix.Open(top, unix.O_TMPFILE|unix.O_RDWR, 0o600)
	must(t, err)
	defer unix.Close(tmp)
	must(t, unix.Linkat(unix.AT_FDCWD, procPath(tmp), unix.AT_FDCWD, filepath.Join(top, "named"), unix.AT_SYMLINK_FOLLOW))
	if _, err := os.Stat(filepath.Join(below, "named")); err != nil {
		t.Fatal(err)
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	must(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
