package vfs

import (
	"io"
	"io/fs"
	"sync/atomic"
	"syscall"
)

// memFile is an open file of a Mem.
type memFile struct {
	fs       *Mem
	node     *memNode
	name     string
	writable bool
	closed   atomic.Bool
}

func (f *memFile) check(op string, off int64, write bool) error {
	switch {
	case f.closed.Load():
		return pathError(op, f.name, fs.ErrClosed)
	case write && !f.writable:
		return pathError(op, f.name, syscall.EBADF)
	case off < 0:
		return pathError(op, f.name, syscall.EINVAL)
	}
	return nil
}

// ReadAt implements io.ReaderAt.
func (f *memFile) ReadAt(b []byte, off int64) (int, error) {
	if err := f.check("read", off, false); err != nil {
		return 0, err
	}
	n := f.node.readAt(b, off)
	if n < len(b) {
		return n, io.EOF
	}
	return n, nil
}

// WriteAt implements io.WriterAt.
func (f *memFile) WriteAt(b []byte, off int64) (int, error) {
	if err := f.check("write", off, true); err != nil {
		return 0, err
	}
	n, err := f.node.writeAt(b, off)
	return n, pathError("write", f.name, err)
}

// Sync implements File.
func (f *memFile) Sync() error {
	if err := f.check("fdatasync", 0, false); err != nil {
		return err
	}
	f.node.sync()
	return nil
}

// loseDirty is called in place of Sync when a test makes that fail.
func (f *memFile) loseDirty() { f.node.loseDirty() }

// Truncate implements File.
func (f *memFile) Truncate(size int64) error {
	if err := f.check("truncate", size, true); err != nil {
		return err
	}
	f.node.truncate(size)
	return nil
}

// Allocate implements File.
func (f *memFile) Allocate(off, length int64) error {
	if err := f.checkRange("fallocate", off, length); err != nil {
		return err
	}
	return pathError("fallocate", f.name, f.node.allocate(off, length))
}

// PunchHole implements File.
func (f *memFile) PunchHole(off, length int64) error {
	if err := f.checkRange("punch hole", off, length); err != nil {
		return err
	}
	f.node.punch(off, length)
	return nil
}

func (f *memFile) checkRange(op string, off, length int64) error {
	if length <= 0 {
		return pathError(op, f.name, syscall.EINVAL)
	}
	return f.check(op, off, true)
}

// DropPages implements File: what is in memory stays there.
func (f *memFile) DropPages(int64, int64) {}

// Size implements File.
func (f *memFile) Size() (int64, error) {
	if err := f.check("stat", 0, false); err != nil {
		return 0, err
	}
	f.node.mu.RLock()
	defer f.node.mu.RUnlock()
	return f.node.size, nil
}

// Allocated implements File.
func (f *memFile) Allocated() (int64, error) {
	if err := f.check("stat", 0, false); err != nil {
		return 0, err
	}
	f.node.mu.RLock()
	defer f.node.mu.RUnlock()
	return int64(len(f.node.pages)) * pageSize, nil
}

// Close implements io.Closer.
func (f *memFile) Close() error {
	if f.closed.Swap(true) {
		return pathError("close", f.name, fs.ErrClosed)
	}
	f.node.mu.Lock()
	defer f.node.mu.Unlock()
	f.node.handles--
	f.node.release()
	return nil
}
