package cache

import (
	"errors"
	"log/slog"

	"github.com/cisternfs/cistern/internal/extent"
	"github.com/cisternfs/cistern/internal/vfs"
)

// BlockSize is the unit of eviction, verification and pinning, in bytes.
const BlockSize = 128 << 10

// Range is the half-open byte range [Off, End).
type Range = extent.Range

// ErrClosed is returned by what is called after Close.
var ErrClosed = errors.New("cache is closed")

// Options of a cache; the zero value gives the defaults.
type Options struct {
	LimitBytes   int64 // of local disk, counted in 4 KiB pages over all files; default 2 GiB
	MaxOpenFiles int   // descriptors; default 1024
	Logger       *slog.Logger
}

// Stats is a snapshot of the counters; sizes are bytes.
type Stats struct {
	Limit, Allocated, Pinned, Present int64
	Files, OpenFiles                  int
	Hits, Misses, Evictions           int64
	Failures                          int64 // operations of the local disk that failed
	LastError                         error // the latest of these; nil when there was none
}

type Cache struct{}

func Open(fs vfs.FS, dir string, o Options) (*Cache, error) { return nil, errors.ErrUnsupported }
func (c *Cache) Inodes(fn func(ino uint64) error) error     { return errors.ErrUnsupported }
func (c *Cache) Remove(ino uint64) error                    { return errors.ErrUnsupported }
func (c *Cache) Get(ino uint64) *File                       { return nil }
func (c *Cache) Evict(n int64) int64                        { return 0 }
func (c *Cache) Stats() Stats                               { return Stats{} }
func (c *Cache) CheckAccounting() error                     { return errors.ErrUnsupported }
func (c *Cache) Close() error                               { return errors.ErrUnsupported }

type File struct{}

func (f *File) Release() {}
func (f *File) Verify(off, n int64, check func(block int64, data []byte) (valid int64)) error {
	return errors.ErrUnsupported
}
func (f *File) ReadAt(p []byte, off int64) (ok bool, err error)                    { return false, nil }
func (f *File) Present(off, n int64, fn func(off, n int64) bool)                   {}
func (f *File) WriteAt(p []byte, off int64) (ok bool, err error)                   { return false, nil }
func (f *File) WriteAbsent(p []byte, off int64, only []Range) (ok bool, err error) { return false, nil }
func (f *File) Drop(off, end int64) error                                          { return errors.ErrUnsupported }
func (f *File) Pin(off, n int64)                                                   {}
func (f *File) Unpin(off, n int64)                                                 {}
func (f *File) WritePinned(p []byte, off int64) (ok bool, err error)               { return false, nil }
func (f *File) ReadPinned(p []byte, off int64) error                               { return errors.ErrUnsupported }
func (f *File) Sync() error                                                        { return errors.ErrUnsupported }
func (f *File) Hot(off, n int64)                                                   {}

// Pattern tells a sequential reader from a random one; one per open handle.
type Pattern struct{}

// Observe returns how many bytes to read ahead from off+n; 0 for a random reader.
func (p *Pattern) Observe(off, n int64) int64 { return 0 }
