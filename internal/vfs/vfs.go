package vfs

import (
	"errors"
	"io"
	"io/fs"
)

// FS is the local disk as the engine uses it. All names are paths as the os
// package takes them. Implementations are safe for concurrent use. Errors wrap
// fs.ErrNotExist, fs.ErrExist or a syscall.Errno (ENOSPC, EIO) where one applies.
type FS interface {
	// OpenFile opens a regular file; flag is a combination of os.O_RDONLY,
	// O_RDWR, O_CREATE, O_EXCL and O_TRUNC.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// MkdirAll makes a directory and its missing parents. They are durable
	// after SyncDir of each parent.
	MkdirAll(name string, perm fs.FileMode) error
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// RemoveAll removes a tree; a missing one is no error.
	RemoveAll(name string) error
	// Rename replaces newname atomically.
	Rename(oldname, newname string) error
	// ReadDir lists a directory, sorted by name.
	ReadDir(name string) ([]fs.DirEntry, error)
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the directory's entries durable.
	SyncDir(name string) error
	// Lock takes an exclusive advisory lock on a file that it creates, without
	// waiting; ErrLocked when another holder has it.
	Lock(name string) (io.Closer, error)
	// Free returns the bytes that an ordinary user may still allocate on the
	// file system of the directory.
	Free(dir string) (int64, error)
}

// ErrLocked is returned by FS.Lock when another holder has the lock.
var ErrLocked = errors.New("locked by another process")

// BulkBytes is from where on a read or a write brings large pages into the
// kernel's cache, see File.DropPages. Each small write into such a page later
// looks at all of the page's blocks: BenchmarkOS_WriteAt_Overwrite16K.
const BulkBytes = 512 << 10

// File is an open regular file. ReadAt and WriteAt may run in parallel.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Sync makes the file's bytes and size durable (fdatasync).
	Sync() error
	// Truncate sets the size.
	Truncate(size int64) error
	// Allocate reserves blocks for [off, off+length) without changing the
	// size; ENOSPC when the disk is full.
	Allocate(off, length int64) error
	// PunchHole gives the range's blocks back; it reads as zeros afterwards.
	PunchHole(off, length int64) error
	// DropPages takes the range's clean pages out of the kernel's cache, as a
	// hint. Who reads or writes BulkBytes or more at a time calls it when that
	// is done and durable; dirty pages begin to be written back.
	DropPages(off, length int64)
	// Size returns the file's size in bytes.
	Size() (int64, error)
	// Allocated returns the bytes of disk that the file occupies.
	Allocated() (int64, error)
}
