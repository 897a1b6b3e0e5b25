package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/internal/rangelock"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
)

// viewCache keeps what a view of a fixed commit has read. The content of a
// file never changes, so a byte that is present stays right.
type viewCache struct {
	v     *View
	fs    vfs.FS
	dir   string
	cache *cache.Cache
	group sync.WaitGroup
	ctx   context.Context
	stop  context.CancelFunc

	mu    sync.Mutex // guards the fields below
	locks map[InodeID]*viewLock
	whole map[InodeID]*os.File // files that are wholly here, pinned and open
	tried map[InodeID]bool     // files that are being fetched, or can't be
}

// viewLock is the range lock of a file in use.
type viewLock struct {
	rangelock.Lock
	users int
}

// A view fetches this many whole files at a time, in pieces of this size.
const (
	wholePiece = 4 << 20
	maxWhole   = 256 // files kept open for passthrough
)

func openViewCache(v *View, o ViewOptions) (*viewCache, error) {
	if err := o.FS.RemoveAll(o.CacheDir); err != nil {
		return nil, fmt.Errorf("clear cache %s: %w", o.CacheDir, err)
	}
	if err := makeDir(o.FS, o.CacheDir); err != nil {
		return nil, err
	}
	c, err := cache.Open(o.FS, o.CacheDir, cache.Options{LimitBytes: o.CacheBytes, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, fmt.Errorf("cache in %s: %w", o.CacheDir, err)
	}
	vc := &viewCache{v: v, fs: o.FS, dir: o.CacheDir, cache: c, locks: map[InodeID]*viewLock{}, whole: map[InodeID]*os.File{}, tried: map[InodeID]bool{}}
	vc.ctx, vc.stop = context.WithCancel(context.Background())
	return vc, nil
}

func (c *viewCache) close() error {
	c.stop()
	c.group.Wait()
	var errs []error
	for _, f := range c.whole {
		errs = append(errs, f.Close())
	}
	errs = append(errs, c.cache.Close(), c.fs.RemoveAll(c.dir))
	return errors.Join(errs...)
}

// lock locks a range of a file.
func (c *viewCache) lock(ctx context.Context, ino InodeID, off, end int64, exclusive bool) (func(), error) {
	c.mu.Lock()
	l := c.locks[ino]
	if l == nil {
		l = &viewLock{}
		c.locks[ino] = l
	}
	l.users++
	c.mu.Unlock()
	done := func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(c.locks, ino)
		}
	}
	held, err := l.Lock.Lock(ctx, off, end, exclusive)
	if err != nil {
		done()
		return nil, ErrInterrupted
	}
	return func() { held.Unlock(); done() }, nil
}

// read fills p from the cache, or fetches whole blocks and keeps them.
func (c *viewCache) read(ctx context.Context, n *Inode, p []byte, off int64) error {
	f := c.cache.Get(uint64(n.ID))
	defer f.Release()
	unlock, err := c.lock(ctx, n.ID, off, off+int64(len(p)), false)
	if err != nil {
		return err
	}
	ok, _ := f.ReadAt(p, off)
	unlock()
	if ok {
		return nil
	}
	from := off / metadata.BlockSize * metadata.BlockSize
	to := min(n.Size, (off+int64(len(p))+metadata.BlockSize-1)/metadata.BlockSize*metadata.BlockSize)
	buf := make([]byte, to-from)
	if err := c.v.readRange(ctx, n, buf, from); err != nil {
		return err
	}
	copy(p, buf[off-from:])
	if unlock, err = c.lock(ctx, n.ID, from, to, true); err != nil {
		return nil // p is filled; the next reader fetches again
	}
	defer unlock()
	if only := absentOf(f, []cache.Range{{Off: from, End: to}}); len(only) > 0 {
		_, err = f.WriteAbsent(buf, from, only)
	}
	return err
}

// Backing returns an open local file that holds all of a file's bytes, for the
// kernel to read by itself. The first call for a file without holes starts to
// fetch it; until that is done, and for all other files, the answer is false.
// The descriptor belongs to the view.
func (v *View) Backing(ino InodeID) (fd int, ok bool) {
	c := v.local
	if c == nil {
		return 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.whole[ino]; f != nil {
		return int(f.Fd()), true
	}
	if c.tried[ino] || len(c.whole) >= maxWhole || c.ctx.Err() != nil {
		return 0, false
	}
	n, err := v.Inode(ino)
	if err != nil || n.Mode&modeType != modeRegular || n.Size == 0 || n.Alloc != n.Size || n.Staged != 0 {
		return 0, false
	}
	c.tried[ino] = true
	c.group.Add(1)
	go func() {
		defer c.group.Done()
		c.fetchWhole(n)
	}()
	return 0, false
}

// fetchWhole brings a file into the cache, pins it there and opens it.
func (c *viewCache) fetchWhole(n *Inode) {
	f := c.cache.Get(uint64(n.ID))
	defer f.Release()
	s := c.cache.Stats()
	if s.Pinned+n.Size > s.Limit/2 {
		return // it would push everything else out
	}
	f.Pin(0, n.Size)
	ok := false
	defer func() {
		if !ok {
			f.Unpin(0, n.Size)
		}
	}()
	buf := make([]byte, min(n.Size, wholePiece))
	for off := int64(0); off < n.Size; off += int64(len(buf)) {
		if c.read(c.ctx, n, buf[:min(int64(len(buf)), n.Size-off)], off) != nil {
			return
		}
	}
	if len(absentOf(f, []cache.Range{{Off: 0, End: n.Size}})) > 0 {
		return
	}
	file, err := os.Open(f.Path())
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.whole[n.ID] = file
	ok = true
}
