package cache

import (
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/cisternfs/cistern/internal/extent"
	"github.com/cisternfs/cistern/internal/vfs"
)

// BlockSize is the unit of eviction, verification and pinning, in bytes.
const BlockSize = 128 << 10

// Range is the half-open byte range [Off, End).
type Range = extent.Range

// ErrClosed is returned by what is called after Close.
var ErrClosed = errors.New("cache is closed")

// Options of a cache; zero values give the defaults.
type Options struct {
	LimitBytes   int64 // of local disk, counted in 4 KiB pages over all files; default 2 GiB
	KeepFree     int64 // bytes of the disk that stay free for others, whatever the limit; default none
	MaxOpenFiles int   // descriptors; default 1024
	ScanLater    int64 // files from which on Open may return before it has looked at all; default 20,000
	Logger       *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.LimitBytes < 0 || o.KeepFree < 0 || o.MaxOpenFiles < 0 {
		return o, fmt.Errorf("cache: limit of %d bytes, %d bytes kept free and %d open files: must not be negative", o.LimitBytes, o.KeepFree, o.MaxOpenFiles)
	}
	if o.LimitBytes == 0 {
		o.LimitBytes = 2 << 30
	}
	if o.MaxOpenFiles == 0 {
		o.MaxOpenFiles = 1024
	}
	if o.ScanLater <= 0 {
		o.ScanLater = defaultScanLater
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// Cache is a directory of cache files. See the package comment.
type Cache struct {
	fs   vfs.FS
	dir  string
	log  *slog.Logger
	pool *pool
	fds  *descriptors

	mu     sync.Mutex // guards the fields below
	files  map[uint64]*File
	unseen bool // a new entry's file may be there

	closed    atomic.Bool
	scanLater int64
	left      closing       // by the Close before
	scanned   bool          // all files that were there; this and the next are valid after scanEnd
	scanErr   error         // why not
	scanEnd   chan struct{} // closed when no more of them are looked at

	present, pinned atomic.Int64 // bytes
	hits, misses    atomic.Int64
	buffers         sync.Pool // of *[BlockSize]byte, for Verify

	failMu   sync.Mutex // a leaf; guards what follows
	failures int64
	lastErr  error
}

// shard returns the directory of an inode's local file.
func (c *Cache) shard(ino uint64) string {
	const hex = "0123456789abcdef"
	return filepath.Join(c.dir, string([]byte{hex[ino>>4&15], hex[ino&15]}))
}

// failed counts a failure of the local disk, and logs it when it is news.
func (c *Cache) failed(err error) {
	// EFBIG: farther out than the local file system can address; no disk failed.
	if errors.Is(err, ErrClosed) || errors.Is(err, syscall.EFBIG) {
		return
	}
	c.failMu.Lock()
	c.failures++
	news := c.failures&(c.failures-1) == 0 // 1st, 2nd, 4th, …: a dead disk fails every call
	n := c.failures
	c.lastErr = err
	c.failMu.Unlock()
	if news {
		c.log.Warn("local cache disk failed; going on without what it can't hold", "error", err, "failures", n)
	}
}

// Get returns the file of an inode, to be given back with Release. The local
// file is made at the first write.
func (c *Cache) Get(ino uint64) *File {
	f := c.enter(ino)
	if err := f.look(); err != nil {
		c.failed(err)
	}
	return f
}

// enter is Get for who looks at the file himself.
func (c *Cache) enter(ino uint64) *File {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.files[ino]
	if f == nil {
		f = &File{c: c, ino: ino}
		f.unseen.Store(c.unseen)
		c.files[ino] = f
	}
	f.refs.Add(1)
	return f
}

// drop forgets an entry that nobody holds and that has no local file.
func (c *Cache) drop(f *File) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refs.Load() == 0 && f.useless() && !f.exists && !f.deleting && c.files[f.ino] == f {
		delete(c.files, f.ino)
	}
}

// Remove deletes what is cached of an inode that is no more. While blocks are
// pinned or in use the local file stays, until the last Unpin; from now on
// nothing is stored for the inode. An inode that is not cached is no error.
func (c *Cache) Remove(ino uint64) error {
	c.mu.Lock()
	f, unseen := c.files[ino], c.unseen
	c.mu.Unlock()
	if f == nil && !unseen {
		return nil
	}
	if unseen {
		f = c.Get(ino)
		defer f.Release()
	}
	return f.remove()
}

// Inodes calls fn for each inode that has an entry, in no certain order, until
// fn returns an error. Right after Open these are the files that were found, for
// which it waits. fn may call Remove.
func (c *Cache) Inodes(fn func(ino uint64) error) error {
	<-c.scanEnd
	c.mu.Lock()
	all := make([]uint64, 0, len(c.files))
	for ino := range c.files {
		all = append(all, ino)
	}
	c.mu.Unlock()
	for _, ino := range all {
		if err := fn(ino); err != nil {
			return err
		}
	}
	return nil
}

// SetLimit changes the limit of local disk, in bytes, and evicts down to it. Bytes
// that are pinned stay until they are unpinned.
func (c *Cache) SetLimit(n int64) { c.pool.setLimit(n) }

// Room is how many bytes can be stored before something is evicted for them, as far
// as that can be known: others write to the disk, too.
func (c *Cache) Room() int64 {
	c.pool.mu.Lock()
	n := c.pool.limit - c.pool.allocated
	c.pool.mu.Unlock()
	if c.pool.room != nil {
		if disk, err := c.pool.room(); err == nil {
			n = min(n, disk)
		}
	}
	return max(n, 0)
}

// Evict frees about n bytes, as far as there is something to evict, and returns
// how many it freed.
func (c *Cache) Evict(n int64) int64 { return c.pool.evict(n) }

// KeepFree evicts until the disk has Options.KeepFree free again, which others may
// have taken meanwhile, as far as there is something to evict.
func (c *Cache) KeepFree() error {
	if c.pool.room == nil {
		return nil
	}
	c.pool.forgetRoom()
	for {
		room, err := c.pool.room()
		if err != nil || room >= 0 || c.pool.evict(-room) == 0 {
			return err
		}
	}
}

// Stats is a snapshot of the counters; sizes are bytes.
type Stats struct {
	Limit, Allocated, Present int64
	Pinned                    int64 // on disk in pinned blocks
	Files, OpenFiles          int
	Hits, Misses, Evictions   int64
	Failures                  int64 // operations of the local disk that failed
	LastError                 error // the latest of these; nil when there was none
}

// Stats returns the counters.
func (c *Cache) Stats() Stats {
	s := Stats{
		Present: c.present.Load(), Pinned: c.pinned.Load(),
		Hits: c.hits.Load(), Misses: c.misses.Load(),
		OpenFiles: c.fds.open(),
	}
	c.mu.Lock()
	s.Files = len(c.files)
	c.mu.Unlock()
	c.pool.mu.Lock()
	s.Limit, s.Allocated, s.Evictions = c.pool.limit, c.pool.allocated, c.pool.evictions
	c.pool.mu.Unlock()
	c.failMu.Lock()
	s.Failures, s.LastError = c.failures, c.lastErr
	c.failMu.Unlock()
	return s
}

// all returns the entries.
func (c *Cache) all() []*File {
	c.mu.Lock()
	defer c.mu.Unlock()
	fs := make([]*File, 0, len(c.files))
	for _, f := range c.files {
		fs = append(fs, f)
	}
	return fs
}

// Close waits for the operations under way and closes the descriptors; what is
// cached stays on disk, unknown to the next Open. Later calls that need the disk
// return ErrClosed.
func (c *Cache) Close() error {
	if c.closed.Swap(true) {
		return ErrClosed
	}
	<-c.scanEnd
	var errs []error
	for _, f := range c.all() {
		f.mu.Lock()
		for f.opening || f.users > 0 || f.deleting {
			f.wait()
		}
		if f.h != nil {
			errs = append(errs, f.closeHandle())
		}
		f.mu.Unlock()
	}
	if err := errors.Join(errs...); err != nil || c.scanErr != nil {
		return err
	}
	if err := c.leaveClosing(); err != nil {
		c.log.Warn("the next mount must look at all cache files before it serves", "error", err)
	}
	return nil
}
