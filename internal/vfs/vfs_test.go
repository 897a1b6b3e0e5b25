package vfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"math/rand"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eachFS runs a test over every implementation.
func eachFS(t *testing.T, fn func(t *testing.T, fs FS, dir string)) {
	t.Run("OS", func(t *testing.T) { fn(t, OS(), t.TempDir()) })
	t.Run("Mem", func(t *testing.T) { fn(t, NewMem(), "/") })
	t.Run("Fault", func(t *testing.T) { fn(t, NewFault(NewMem()), "/") })
}

func create(t testing.TB, fs FS, name string) File {
	t.Helper()
	f, err := fs.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	must(t, err)
	return f
}

func write(t testing.TB, f File, s string, off int64) {
	t.Helper()
	n, err := f.WriteAt([]byte(s), off)
	must(t, err)
	if n != len(s) {
		t.Fatalf("wrote %d of %d bytes", n, len(s))
	}
}

func content(t testing.TB, f File) string {
	t.Helper()
	size, err := f.Size()
	must(t, err)
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF || n != len(b) {
		t.Fatalf("read %d of %d bytes: %v", n, len(b), err)
	}
	return string(b)
}

func TestFS_ReadWrite(t *testing.T) {
	eachFS(t, func(t *testing.T, fs FS, dir string) {
		f := create(t, fs, filepath.Join(dir, "a"))
		defer f.Close()
		write(t, f, "hello", 0)
		write(t, f, "world", 10000)
		b := make([]byte, 20)
		n, err := f.ReadAt(b, 9990)
		if n != 15 || err != io.EOF || string(b[:n]) != "\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00world" {
			t.Fatalf("read %q, %v", b[:n], err)
		}
		if n, err := f.ReadAt(b, 20000); n != 0 || err != io.EOF {
			t.Fatalf("read beyond the end: %d, %v", n, err)
		}
		if n, err := f.ReadAt(b[:5], 10000); n != 5 || err != nil {
			t.Fatalf("read up to the end: %d, %v", n, err)
		}
		must(t, f.Sync())
		must(t, f.Truncate(3))
		must(t, f.Truncate(8))
		if got := content(t, f); got != "hel\x00\x00\x00\x00\x00" {
			t.Fatalf("after truncate: %q", got)
		}
		if _, err := f.WriteAt([]byte("x"), -1); err == nil {
			t.Fatal("write at a negative offset succeeded")
		}
	})
}

func TestFS_RandomWritesMatchModel(t *testing.T) {
	eachFS(t, func(t *testing.T, fs FS, dir string) {
		rng := rand.New(rand.NewSource(3))
		f := create(t, fs, filepath.Join(dir, "a"))
		defer f.Close()
		var model []byte
		grow := func(n int) {
			for len(model) < n {
				model = append(model, 0)
			}
		}
		for i := range 400 {
			off, n := rng.Intn(40000), 1+rng.Intn(12000)
			switch rng.Intn(6) {
			case 0:
				must(t, f.PunchHole(int64(off), int64(n)))
				if off < len(model) {
					clear(model[off:min(len(model), off+n)])
				}
			case 1:
				must(t, f.Truncate(int64(off)))
				grow(off)
				model = model[:off]
			case 2:
				must(t, f.Allocate(int64(off), int64(n)))
			case 3:
				must(t, f.Sync())
			default:
				p := make([]byte, n)
				rng.Read(p)
				write(t, f, string(p), int64(off))
				grow(off + n)
				copy(model[off:], p)
			}
			if got := content(t, f); got != string(model) {
				t.Fatalf("step %d: content differs (%d and %d bytes)", i, len(got), len(model))
			}
		}
	})
}

func TestFS_Names(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		p := func(name string) string { return filepath.Join(dir, name) }
		must(t, fsys.MkdirAll(p("d/e"), 0o700))
		must(t, fsys.MkdirAll(p("d/e"), 0o700))
		must(t, create(t, fsys, p("d/b")).Close())
		f := create(t, fsys, p("d/a"))
		write(t, f, "12345", 0)
		list, err := fsys.ReadDir(p("d"))
		must(t, err)
		if len(list) != 3 || list[0].Name() != "a" || list[1].Name() != "b" || !list[2].IsDir() {
			t.Fatalf("listing %v", list)
		}
		if fi, err := list[0].Info(); err != nil || fi.Size() != 5 {
			t.Fatalf("info %v, %v", fi, err)
		}
		must(t, fsys.Rename(p("d/a"), p("d/b")))
		fi, err := fsys.Stat(p("d/b"))
		if err != nil || fi.Size() != 5 || fi.IsDir() {
			t.Fatalf("stat %v, %v", fi, err)
		}
		must(t, fsys.Remove(p("d/b")))
		if got := content(t, f); got != "12345" {
			t.Fatalf("removed open file reads %q", got)
		}
		must(t, f.Close())
		must(t, fsys.SyncDir(p("d")))
		must(t, create(t, fsys, p("d/e/x")).Close())
		must(t, fsys.RemoveAll(p("d")))
		must(t, fsys.RemoveAll(p("d")))
		if _, err := fsys.Stat(p("d")); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("stat of a removed tree: %v", err)
		}
	})
}

func TestFS_Errors(t *testing.T) {
	eachFS(t, func(t *testing.T, fsys FS, dir string) {
		p := func(name string) string { return filepath.Join(dir, name) }
		must(t, fsys.MkdirAll(p("full/dir"), 0o700))
		must(t, create(t, fsys, p("file")).Close())
		readOnly, err := fsys.OpenFile(p("file"), os.O_RDONLY, 0)
		must(t, err)
		_, writeErr := readOnly.WriteAt([]byte("x"), 0)
		_, createErr := fsys.OpenFile(p("file"), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		_, openErr := fsys.OpenFile(p("none"), os.O_RDWR, 0)
		_, listErr := fsys.ReadDir(p("none"))
		_, freeErr := fsys.Free(p("none"))
		for i, c := range []struct{ got, want error }{
			{writeErr, syscall.EBADF}, {createErr, fs.ErrExist}, {openErr, fs.ErrNotExist}, {listErr, fs.ErrNotExist},
			{freeErr, fs.ErrNotExist}, {fsys.Remove(p("none")), fs.ErrNotExist}, {fsys.Remove(p("full")), syscall.ENOTEMPTY},
			{fsys.Rename(p("none"), p("x")), fs.ErrNotExist}, {fsys.Rename(p("full"), p("full/dir/x")), syscall.EINVAL},
			{fsys.MkdirAll(p("file/x"), 0o700), syscall.ENOTDIR}, {fsys.SyncDir(p("none")), fs.ErrNotExist},
			{readOnly.Close(), nil}, {readOnly.Close(), fs.ErrClosed}, {readOnly.Truncate(1), fs.ErrClosed},
		} {
			if !errors.Is(c.got, c.want) {
				t.Errorf("case %d: got %v, want %v", i, c.got, c.want)
			}
		}
	})
}

func TestFS_OpenFlags(t *testing.T) {
	eachFS(t, func(t *testing.T, fs FS, dir string) {
		name := filepath.Join(dir, "a")
		f := create(t, fs, name)
		write(t, f, "data", 0)
		again, err := fs.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
		must(t, err)
		if got := content(t, again); got != "data" {
			t.Fatalf("second handle reads %q", got)
		}
		must(t, again.Close())
		again, err = fs.OpenFile(name, os.O_RDWR|os.O_TRUNC, 0)
		must(t, err)
		if got := content(t, f); got != "" {
			t.Fatalf("truncated file reads %q", got)
		}
		must(t, again.Close())
		must(t, f.Close())
	})
}

func TestFS_AllocateAndPunch(t *testing.T) {
	eachFS(t, func(t *testing.T, fs FS, dir string) {
		f := create(t, fs, filepath.Join(dir, "a"))
		defer f.Close()
		must(t, f.Allocate(0, 1<<20))
		size, err := f.Size()
		must(t, err)
		full, err := f.Allocated()
		must(t, err)
		if size != 0 || full < 1<<20 {
			t.Fatalf("size %d, allocated %d", size, full)
		}
		write(t, f, string(bytes.Repeat([]byte{7}, 1<<20)), 0)
		must(t, f.Sync())
		must(t, f.PunchHole(256<<10, 512<<10))
		left, err := f.Allocated()
		must(t, err)
		if left > full-512<<10 {
			t.Fatalf("allocated %d after a hole in %d", left, full)
		}
		want := bytes.Repeat([]byte{7}, 1<<20)
		clear(want[256<<10 : 768<<10])
		if got := content(t, f); got != string(want) {
			t.Fatal("content differs after the hole")
		}
	})
}

func TestFS_Lock(t *testing.T) {
	eachFS(t, func(t *testing.T, fs FS, dir string) {
		name := filepath.Join(dir, "lock")
		l, err := fs.Lock(name)
		must(t, err)
		if _, err := fs.Lock(name); !errors.Is(err, ErrLocked) {
			t.Fatalf("second lock: %v", err)
		}
		must(t, l.Close())
		l, err = fs.Lock(name)
		must(t, err)
		must(t, l.Close())
		if free, err := fs.Free(dir); err != nil || free <= 0 {
			t.Fatalf("free %d, %v", free, err)
		}
	})
}
