package vfs

import (
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// OS returns the real disk.
func OS() FS { return osFS{} }

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &osFile{f}, nil
}

func (osFS) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (osFS) Remove(name string) error                     { return os.Remove(name) }
func (osFS) RemoveAll(name string) error                  { return os.RemoveAll(name) }
func (osFS) Rename(oldname, newname string) error         { return os.Rename(oldname, newname) }
func (osFS) ReadDir(name string) ([]fs.DirEntry, error)   { return os.ReadDir(name) }
func (osFS) Stat(name string) (fs.FileInfo, error)        { return os.Stat(name) }

func (osFS) SyncDir(name string) error {
	d, err := os.Open(name)
	if err != nil {
		return err
	}
	if err := d.Sync(); err != nil {
		d.Close() // the failed sync is what the caller must hear of
		return err
	}
	return d.Close()
}

func (osFS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	err = control(f, func(fd int) error { return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) })
	switch {
	case err == unix.EWOULDBLOCK:
		f.Close() // nothing was written to it
		return nil, fmt.Errorf("lock %s: %w", name, ErrLocked)
	case err != nil:
		f.Close()
		return nil, &fs.PathError{Op: "flock", Path: name, Err: err}
	}
	return f, nil
}

func (osFS) Free(dir string) (int64, error) {
	var st unix.Statfs_t
	if err := retryInterrupted(func() error { return unix.Statfs(dir, &st) }); err != nil {
		return 0, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// osFile adds to os.File what the standard library leaves out.
type osFile struct{ *os.File }

// writePiece is how much of a write below BulkBytes is given to the kernel at a
// time, so that no page in its cache gets larger.
const writePiece = 64 << 10

// WriteAt writes p whole from BulkBytes on, which is fastest, and else in pieces
// that end at multiples of writePiece.
func (f *osFile) WriteAt(p []byte, off int64) (int, error) {
	if len(p) >= BulkBytes {
		return f.File.WriteAt(p, off)
	}
	done := 0
	for {
		n := len(p) - done
		if room := writePiece - int((off+int64(done))&(writePiece-1)); n > room {
			n = room
		}
		m, err := f.File.WriteAt(p[done:done+n], off+int64(done))
		done += m
		if err != nil || done == len(p) {
			return done, err
		}
	}
}

func (f *osFile) Sync() error { return f.call("fdatasync", unix.Fdatasync) }

func (f *osFile) Allocate(off, length int64) error {
	return f.call("fallocate", func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, off, length)
	})
}

func (f *osFile) PunchHole(off, length int64) error {
	return f.call("punch hole", func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, off, length)
	})
}

// DropPages is best effort: what fails leaves pages in the cache.
func (f *osFile) DropPages(off, length int64) {
	_ = f.call("fadvise", func(fd int) error {
		return unix.Fadvise(fd, off, length, unix.FADV_DONTNEED)
	})
}

func (f *osFile) Size() (int64, error) {
	fi, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

func (f *osFile) Allocated() (int64, error) {
	var st unix.Stat_t
	err := f.call("fstat", func(fd int) error { return unix.Fstat(fd, &st) })
	return st.Blocks * 512, err
}

func (f *osFile) call(op string, fn func(fd int) error) error {
	if err := control(f.File, fn); err != nil {
		return &fs.PathError{Op: op, Path: f.Name(), Err: err}
	}
	return nil
}

// control runs fn on the descriptor, which stays open meanwhile.
func control(f *os.File, fn func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	if err := conn.Control(func(fd uintptr) {
		result = retryInterrupted(func() error { return fn(int(fd)) })
	}); err != nil {
		return err
	}
	return result
}

func retryInterrupted(fn func() error) error {
	for {
		if err := fn(); err != unix.EINTR {
			return err
		}
	}
}
