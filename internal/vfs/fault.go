package vfs

import (
	"errors"
	"io"
	"io/fs"
	"sync"
	"syscall"
)

// ErrKilled is what every call returns after Fault.Kill.
var ErrKilled = errors.New("process was killed")

// Fault wraps a disk and makes calls fail. Calls are numbered from 0 in the
// order in which they arrive; every call counts but Close. A call that fails
// has no effect, with two exceptions: a WriteAt that fails with ENOSPC or
// ErrKilled has written the first half of its bytes, and after a failed Sync
// a Mem doesn't write the unsynced bytes any more, as Linux does.
type Fault struct {
	fs FS

	mu     sync.Mutex // guards the fields below; never held during I/O
	calls  int
	failAt int
	err    error
	hook   func(op, name string, n int) error
	killed bool
	locks  map[*faultLock]bool
}

// NewFault wraps a disk; nothing fails until it is told to.
func NewFault(fs FS) *Fault {
	return &Fault{fs: fs, failAt: -1, locks: map[*faultLock]bool{}}
}

// FailAt makes the call of number n fail with err, once. With ErrKilled the
// process dies at it, as by Kill. It replaces an earlier FailAt.
func (f *Fault) FailAt(n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failAt, f.err = n, err
}

// SetHook asks fn before each call; an error that it returns is the call's.
// The op is the method's name, the name that of the file or directory. Calls
// may come in parallel. A nil fn takes the hook away.
func (f *Fault) SetHook(fn func(op, name string, n int) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.hook = fn
}

// Calls returns the number of calls so far.
func (f *Fault) Calls() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// Killed tells whether the process is dead.
func (f *Fault) Killed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.killed
}

// Kill makes every later call fail with ErrKilled, for ever, and frees the
// locks. Calls under way end as they would have.
func (f *Fault) Kill() {
	f.mu.Lock()
	locks := f.locks
	f.killed, f.locks = true, map[*faultLock]bool{}
	f.mu.Unlock()
	for l := range locks {
		l.Closer.Close() // the kernel frees a dead process's locks whatever happens
	}
}

// step counts a call and decides its fate.
func (f *Fault) step(op, name string) error {
	f.mu.Lock()
	n, hook := f.calls, f.hook
	f.calls++
	killed := f.killed
	var err error
	if n == f.failAt {
		err = f.err
	}
	f.mu.Unlock()
	if killed {
		return pathError(op, name, ErrKilled)
	}
	if err == nil && hook != nil {
		err = hook(op, name, n)
	}
	if errors.Is(err, ErrKilled) {
		f.Kill()
	}
	return pathError(op, name, err)
}

// OpenFile implements FS.
func (f *Fault) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	if err := f.step("OpenFile", name); err != nil {
		return nil, err
	}
	file, err := f.fs.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultFile{fault: f, file: file, name: name}, nil
}

// MkdirAll implements FS.
func (f *Fault) MkdirAll(name string, perm fs.FileMode) error {
	if err := f.step("MkdirAll", name); err != nil {
		return err
	}
	return f.fs.MkdirAll(name, perm)
}

// Remove implements FS.
func (f *Fault) Remove(name string) error {
	if err := f.step("Remove", name); err != nil {
		return err
	}
	return f.fs.Remove(name)
}

// RemoveAll implements FS.
func (f *Fault) RemoveAll(name string) error {
	if err := f.step("RemoveAll", name); err != nil {
		return err
	}
	return f.fs.RemoveAll(name)
}

// Rename implements FS; the hook sees the old name.
func (f *Fault) Rename(oldname, newname string) error {
	if err := f.step("Rename", oldname); err != nil {
		return err
	}
	return f.fs.Rename(oldname, newname)
}

// ReadDir implements FS.
func (f *Fault) ReadDir(name string) ([]fs.DirEntry, error) {
	if err := f.step("ReadDir", name); err != nil {
		return nil, err
	}
	return f.fs.ReadDir(name)
}

// Stat implements FS.
func (f *Fault) Stat(name string) (fs.FileInfo, error) {
	if err := f.step("Stat", name); err != nil {
		return nil, err
	}
	return f.fs.Stat(name)
}

// SyncDir implements FS.
func (f *Fault) SyncDir(name string) error {
	if err := f.step("SyncDir", name); err != nil {
		return err
	}
	return f.fs.SyncDir(name)
}

// Lock implements FS.
func (f *Fault) Lock(name string) (io.Closer, error) {
	if err := f.step("Lock", name); err != nil {
		return nil, err
	}
	c, err := f.fs.Lock(name)
	if err != nil {
		return nil, err
	}
	l := &faultLock{Closer: c, fault: f}
	f.mu.Lock()
	killed := f.killed
	if !killed {
		f.locks[l] = true
	}
	f.mu.Unlock()
	if killed {
		c.Close() // as Kill does
		return nil, pathError("Lock", name, ErrKilled)
	}
	return l, nil
}

// Free implements FS.
func (f *Fault) Free(dir string) (int64, error) {
	if err := f.step("Free", dir); err != nil {
		return 0, err
	}
	return f.fs.Free(dir)
}

type faultLock struct {
	io.Closer
	fault *Fault
}

// Close frees the lock; after Kill it is free already.
func (l *faultLock) Close() error {
	l.fault.mu.Lock()
	held := l.fault.locks[l]
	delete(l.fault.locks, l)
	l.fault.mu.Unlock()
	if !held {
		return ErrKilled
	}
	return l.Closer.Close()
}

type faultFile struct {
	fault *Fault
	file  File
	name  string
}

// ReadAt implements io.ReaderAt.
func (f *faultFile) ReadAt(b []byte, off int64) (int, error) {
	if err := f.fault.step("ReadAt", f.name); err != nil {
		return 0, err
	}
	return f.file.ReadAt(b, off)
}

// WriteAt implements io.WriterAt.
func (f *faultFile) WriteAt(b []byte, off int64) (int, error) {
	dead := f.fault.Killed()
	err := f.fault.step("WriteAt", f.name)
	if err == nil {
		return f.file.WriteAt(b, off)
	}
	if dead || !errors.Is(err, ErrKilled) && !errors.Is(err, syscall.ENOSPC) {
		return 0, err
	}
	n, writeErr := f.file.WriteAt(b[:len(b)/2], off)
	return n, errors.Join(err, writeErr)
}

// Sync implements File.
func (f *faultFile) Sync() error {
	err := f.fault.step("Sync", f.name)
	if err == nil {
		return f.file.Sync()
	}
	if l, ok := f.file.(interface{ loseDirty() }); ok && !errors.Is(err, ErrKilled) {
		l.loseDirty()
	}
	return err
}

// Truncate implements File.
func (f *faultFile) Truncate(size int64) error {
	if err := f.fault.step("Truncate", f.name); err != nil {
		return err
	}
	return f.file.Truncate(size)
}

// Allocate implements File.
func (f *faultFile) Allocate(off, length int64) error {
	if err := f.fault.step("Allocate", f.name); err != nil {
		return err
	}
	return f.file.Allocate(off, length)
}

// PunchHole implements File.
func (f *faultFile) PunchHole(off, length int64) error {
	if err := f.fault.step("PunchHole", f.name); err != nil {
		return err
	}
	return f.file.PunchHole(off, length)
}

// DropPages implements File. It is no step: it has no effect that could fail.
func (f *faultFile) DropPages(off, length int64) { f.file.DropPages(off, length) }

// Size implements File.
func (f *faultFile) Size() (int64, error) {
	if err := f.fault.step("Size", f.name); err != nil {
		return 0, err
	}
	return f.file.Size()
}

// Allocated implements File.
func (f *faultFile) Allocated() (int64, error) {
	if err := f.fault.step("Allocated", f.name); err != nil {
		return 0, err
	}
	return f.file.Allocated()
}

// Close closes the file, also after Kill, when it returns ErrKilled.
func (f *faultFile) Close() error {
	err := f.file.Close()
	if f.fault.Killed() {
		return pathError("Close", f.name, ErrKilled)
	}
	return err
}
