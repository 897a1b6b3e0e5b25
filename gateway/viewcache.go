package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
)

// viewCache keeps on the local disk what a view has read, by inode. A byte that
// is present is the one of the commit that is shown: a move drops what changes,
// and keeps the rest, whatever object it came from. View.moving is held shared
// over a look at the index and what follows from it here. A block that two
// readers want is fetched and stored by one of them: that is what keeps changes
// of one range apart, in place of a range lock.
type viewCache struct {
	v      *View
	fs     vfs.FS
	dir    string
	cache  *cache.Cache
	blocks blockTable
	dense  denseTable
	near   nearTable
	ahead  chan readAheadTask
	window int64 // most bytes that one reader makes read ahead

	group sync.WaitGroup
	ctx   context.Context
	stop  context.CancelFunc

	whole wholeFiles
}

func openViewCache(v *View, o ViewOptions) (*viewCache, error) {
	if err := o.FS.RemoveAll(o.CacheDir); err != nil {
		return nil, fmt.Errorf("clear cache %s: %w", o.CacheDir, err)
	}
	if err := makeDir(o.FS, o.CacheDir); err != nil {
		return nil, err
	}
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	c, err := cache.Open(o.FS, o.CacheDir, cache.Options{LimitBytes: o.CacheBytes, KeepFree: o.KeepFree, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("cache in %s: %w", o.CacheDir, err)
	}
	limit := c.Stats().Limit
	vc := &viewCache{
		v: v, fs: o.FS, dir: o.CacheDir, cache: c, ahead: make(chan readAheadTask, readAheadQueue),
		window: max(readAheadChunk, min(cache.DefaultMaxReadAhead, limit/8)),
		whole:  newWholeFiles(limit / 2),
	}
	vc.ctx, vc.stop = context.WithCancel(context.Background())
	for range readAheadWorkers {
		vc.group.Add(1)
		go vc.runReadAhead()
	}
	return vc, nil
}

// close ends all fetches and removes the cache.
func (c *viewCache) close() error {
	c.whole.close()
	c.stop()
	c.group.Wait()
	return errors.Join(c.whole.closeFiles(), c.cache.Close(), c.fs.RemoveAll(c.dir))
}

// gap is a part of a read that is not here: bytes of one block.
type gap struct {
	p    []byte
	skip uint32 // of the block
	key  blockKey
	slot *metadata.Slot // as the commit of the read has it
}

// read fills p from off on and returns how many bytes there are: holes from the
// metadata, the rest from the cache, or from the store by whole blocks, which
// it keeps. All are of one commit. n is nil for a file as it is now.
func (c *viewCache) read(ctx context.Context, ino InodeID, n *Inode, p []byte, off int64) (int, error) {
	f := c.cache.Get(uint64(ino))
	defer f.Release()
	k, gaps, err := c.plan(f, ino, n, p, off)
	if err != nil {
		return 0, err
	}
	if len(gaps) > 0 {
		c.askNear(gaps[0].key)
	}
	for len(gaps) > 0 {
		same := 1
		for same < len(gaps) && gaps[same].key.slot == gaps[0].key.slot {
			same++
		}
		if err := c.fill(ctx, f, gaps[:same]); err != nil {
			return 0, err
		}
		gaps = gaps[same:]
	}
	return k, nil
}

// plan fills what of a read is here and returns the rest.
func (c *viewCache) plan(f *cache.File, ino InodeID, n *Inode, p []byte, off int64) (k int, gaps []gap, err error) {
	c.v.moving.RLock()
	defer c.v.moving.RUnlock()
	if n == nil {
		if n, err = c.v.Inode(ino); err != nil {
			return 0, nil, gone(ino, err)
		}
	}
	if off >= n.Size {
		return 0, nil, nil
	}
	p = p[:min(int64(len(p)), n.Size-off)]
	if ok, err := f.ReadAt(p, off); ok {
		return len(p), nil, nil
	} else if err != nil {
		c.v.stats.cacheErrors.Add(1) // and the store has the bytes
	}
	err = c.v.eachSlot(n, off, off+int64(len(p)), func(no uint32, s *metadata.Slot, from, to int64) error {
		gaps = c.planSlot(gaps, f, blockKey{ino: ino, slot: no}, s, p[from-off:to-off], from)
		return nil
	})
	return len(p), gaps, err
}

// planSlot is plan for the bytes of one slot from a file offset on.
func (c *viewCache) planSlot(gaps []gap, f *cache.File, k blockKey, s *metadata.Slot, p []byte, off int64) []gap {
	start := int64(k.slot) * c.v.doc.ObjectSize
	for _, piece := range s.Resolve(uint32(off-start), uint32(len(p))) {
		buf := p[start+int64(piece.Off)-off:][:piece.Len]
		if piece.Kind == metadata.PieceZero {
			clear(buf)
			continue
		}
		for in := piece.Off; len(buf) > 0; {
			k.block = in / metadata.BlockSize
			g := gap{key: k, skip: in % metadata.BlockSize, slot: s}
			g.p = buf[:min(len(buf), int(metadata.BlockSize-g.skip))]
			if ok, _ := f.ReadAt(g.p, start+int64(in)); !ok {
				gaps = append(gaps, g)
			}
			buf, in = buf[len(g.p):], in+uint32(len(g.p))
		}
	}
	return gaps
}

// fill fills the gaps of one slot from the store.
func (c *viewCache) fill(ctx context.Context, f *cache.File, gaps []gap) error {
	s, ino, no := gaps[0].slot, gaps[0].key.ino, gaps[0].key.slot
	var blocks []uint32
	for _, g := range gaps {
		if k := len(blocks); k == 0 || blocks[k-1] != g.key.block {
			blocks = append(blocks, g.key.block)
		}
	}
	own := demand{}
	got, err := c.fetch(ctx, f, ino, no, s, blocks, own)
	if err != nil {
		return err
	}
	c.dense.ask(c.ahead, c.cache, f, c.v.doc.ObjectSize, own)
	for _, g := range gaps {
		block := got[g.key]
		// Who fetched it may have read another commit.
		if !sameSource(block.slot, s, g.key.block*metadata.BlockSize+g.skip, uint32(len(g.p))) {
			own, release, err := c.v.fetchRun(ctx, s, g.key.block, 1, false)
			if err != nil {
				return err
			}
			release() // one block, for as long as this call
			block = fetched{slot: s, data: own[0]}
			got[g.key] = block
		}
		copy(g.p, block.data[g.skip:])
	}
	return nil
}

// fetch returns blocks of a slot, each fetched by one reader at a time, and
// keeps them in the cache. What nobody else was fetching it adds to own; with nil
// they are wanted in the cache only, and come back without their data.
func (c *viewCache) fetch(ctx context.Context, f *cache.File, ino InodeID, no uint32, s *metadata.Slot, blocks []uint32, own demand) (map[blockKey]fetched, error) {
	keep := func(k blockKey, got fetched) {
		c.keep(f, k, got)
		own.add(k, got)
	}
	out := make(map[blockKey]fetched, len(blocks))
	for range maxReadTries {
		got, err := c.blocks.get(ctx, c.v.fetcher, ino, no, s, blocks, keep, own != nil)
		for k, g := range got {
			out[k] = g
		}
		if !errors.Is(err, errBlockRetry) {
			return out, err
		}
		left := blocks[:0:0]
		for _, b := range blocks {
			if _, ok := out[blockKey{ino, no, b}]; !ok {
				left = append(left, b)
			}
		}
		blocks = left
	}
	return nil, fmt.Errorf("%w: inode %d: those who fetched its bytes gave up too often", ErrStore, ino)
}

// keep puts a fetched block into the cache: what of it the commit that is shown
// has, too, without holes and what lies beyond the file's end. Failing is no
// error: the next reader fetches again.
func (c *viewCache) keep(f *cache.File, k blockKey, got fetched) {
	c.v.moving.RLock()
	defer c.v.moving.RUnlock()
	n, err := c.v.Inode(k.ino)
	if err != nil {
		return
	}
	now, err := c.v.Index().Slot(k.ino, k.slot)
	if err != nil {
		return
	}
	in := k.block * metadata.BlockSize
	start := int64(k.slot)*c.v.doc.ObjectSize + int64(in)
	size := min(int64(len(got.data)), n.Size-start)
	if size <= 0 {
		return
	}
	var only []cache.Range
	for _, p := range now.Resolve(in, uint32(size)) {
		if p.Kind != metadata.PieceZero && sameSource(got.slot, now, p.Off, p.Len) {
			at := start + int64(p.Off-in)
			only = append(only, cache.Range{Off: at, End: at + int64(p.Len)})
		}
	}
	if only = absentOf(f, only); len(only) == 0 {
		return
	}
	if ok, err := f.WriteAbsent(got.data[:size], start, only); !ok && err != nil {
		c.v.stats.cacheErrors.Add(1)
	}
}

// runReadAhead is one worker of read-ahead.
func (c *viewCache) runReadAhead() {
	defer c.group.Done()
	for {
		select {
		case t := <-c.ahead:
			_ = c.prefetch(c.ctx, t) // who reads there meets the error
			c.dense.done(t)
			c.near.done(t)
		case <-c.ctx.Done():
			return
		}
	}
}

// prefetch puts what of a range is no hole and not here into the cache.
func (c *viewCache) prefetch(ctx context.Context, t readAheadTask) error {
	f := c.cache.Get(uint64(t.ino))
	defer f.Release()
	type part struct {
		no     uint32
		s      *metadata.Slot
		blocks []uint32
	}
	var parts []part
	c.v.moving.RLock()
	n, err := c.v.Inode(t.ino)
	if err == nil {
		err = c.v.eachSlot(n, t.off, min(t.end, n.Size), func(no uint32, s *metadata.Slot, from, to int64) error {
			if blocks := c.missing(f, no, s, from, to); len(blocks) > 0 {
				parts = append(parts, part{no, s, t.dense.whole(blocks)})
			}
			return nil
		})
	}
	c.v.moving.RUnlock()
	for _, p := range parts {
		if err == nil {
			_, err = c.fetch(ctx, f, t.ino, p.no, p.s, p.blocks, nil)
		}
	}
	return err
}

// missing returns the blocks of a slot that hold data in [from, to) of the file
// that is not here.
func (c *viewCache) missing(f *cache.File, no uint32, s *metadata.Slot, from, to int64) (blocks []uint32) {
	start := int64(no) * c.v.doc.ObjectSize
	var data []cache.Range
	for _, p := range s.Resolve(uint32(from-start), uint32(to-from)) {
		if p.Kind != metadata.PieceZero {
			data = append(data, cache.Range{Off: start + int64(p.Off), End: start + int64(p.Off) + int64(p.Len)})
		}
	}
	for _, r := range absentOf(f, data) {
		for b := (r.Off - start) / metadata.BlockSize; b <= (r.End-1-start)/metadata.BlockSize; b++ {
			if k := len(blocks); k == 0 || blocks[k-1] != uint32(b) {
				blocks = append(blocks, uint32(b))
			}
		}
	}
	return blocks
}

// SetCacheBytes changes the limit of the view's cache, in bytes, and evicts down to
// it, but for whole files that the kernel reads.
func (v *View) SetCacheBytes(n int64) error {
	if n <= 0 {
		return fmt.Errorf("%w: a cache of %d bytes", ErrInvalid, n)
	}
	if v.local != nil {
		v.local.cache.SetLimit(n)
	}
	return nil
}
