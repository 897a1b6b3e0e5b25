package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
)

// viewCache keeps on the local disk what a view of one commit has read. The
// content of a file never changes there, so a byte that is present stays right,
// and a block that two readers want is fetched and stored by one of them: that
// is what keeps changes of one range apart, in place of a range lock.
type viewCache struct {
	v      *View
	fs     vfs.FS
	dir    string
	cache  *cache.Cache
	blocks blockTable
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
	c, err := cache.Open(o.FS, o.CacheDir, cache.Options{LimitBytes: o.CacheBytes, Logger: log})
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

// read fills p, which lies within the file: holes from the metadata, the rest
// from the cache, or from the store by whole blocks, which it keeps.
func (c *viewCache) read(ctx context.Context, n *Inode, p []byte, off int64) error {
	f := c.cache.Get(uint64(n.ID))
	defer f.Release()
	if ok, err := f.ReadAt(p, off); ok {
		return nil
	} else if err != nil {
		c.v.stats.cacheErrors.Add(1) // and the store has the bytes
	}
	return c.v.eachSlot(n, off, off+int64(len(p)), func(no uint32, s *metadata.Slot, from, to int64) error {
		return c.readSlot(ctx, f, n, no, s, p[from-off:to-off], from)
	})
}

// readSlot fills p with the bytes of one slot from a file offset on.
func (c *viewCache) readSlot(ctx context.Context, f *cache.File, n *Inode, no uint32, s *metadata.Slot, p []byte, off int64) error {
	start := int64(no) * c.v.doc.ObjectSize
	type gap struct {
		p    []byte
		skip uint32 // of the block
		key  blockKey
	}
	var gaps []gap
	var blocks []uint32
	for _, piece := range s.Resolve(uint32(off-start), uint32(len(p))) {
		buf := p[start+int64(piece.Off)-off:][:piece.Len]
		if piece.Kind == metadata.PieceZero {
			clear(buf)
			continue
		}
		for in := piece.Off; len(buf) > 0; {
			g := gap{key: blockKey{n.ID, no, in / metadata.BlockSize}, skip: in % metadata.BlockSize}
			g.p = buf[:min(len(buf), int(metadata.BlockSize-g.skip))]
			if ok, _ := f.ReadAt(g.p, start+int64(in)); !ok {
				gaps = append(gaps, g)
				if k := len(blocks); k == 0 || blocks[k-1] != g.key.block {
					blocks = append(blocks, g.key.block)
				}
			}
			buf, in = buf[len(g.p):], in+uint32(len(g.p))
		}
	}
	if len(gaps) == 0 {
		return nil
	}
	got, err := c.fetch(ctx, f, n, no, s, blocks)
	if err != nil {
		return err
	}
	for _, g := range gaps {
		copy(g.p, got[g.key].data[g.skip:])
	}
	return nil
}

// fetch returns blocks of a slot, each fetched by one reader at a time, and
// keeps them in the cache.
func (c *viewCache) fetch(ctx context.Context, f *cache.File, n *Inode, no uint32, s *metadata.Slot, blocks []uint32) (map[blockKey]fetched, error) {
	keep := func(k blockKey, got fetched) { c.keep(f, n, k, got) }
	out := make(map[blockKey]fetched, len(blocks))
	for range maxReadTries {
		got, err := c.blocks.get(ctx, c.v.fetcher, n.ID, no, s, blocks, keep)
		for k, g := range got {
			out[k] = g
		}
		if !errors.Is(err, errBlockRetry) {
			return out, err
		}
		left := blocks[:0:0]
		for _, b := range blocks {
			if _, ok := out[blockKey{n.ID, no, b}]; !ok {
				left = append(left, b)
			}
		}
		blocks = left
	}
	return nil, fmt.Errorf("%w: inode %d: those who fetched its bytes gave up too often", ErrStore, n.ID)
}

// keep puts a fetched block into the cache, without its holes and what lies
// beyond the file's end. Failing is no error: the next reader fetches again.
func (c *viewCache) keep(f *cache.File, n *Inode, k blockKey, got fetched) {
	in := k.block * metadata.BlockSize
	start := int64(k.slot)*c.v.doc.ObjectSize + int64(in)
	size := min(int64(len(got.data)), n.Size-start)
	if size <= 0 {
		return
	}
	var only []cache.Range
	for _, p := range got.slot.Resolve(in, uint32(size)) {
		if p.Kind != metadata.PieceZero {
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

// readAhead asks for a range to be put into the cache. It never waits.
func (c *viewCache) readAhead(ino InodeID, off, end int64) {
	for off < end {
		e := min(end, off/readAheadChunk*readAheadChunk+readAheadChunk)
		select {
		case c.ahead <- readAheadTask{ino, off, e}:
		default:
			return
		}
		off = e
	}
}

// runReadAhead is one worker of read-ahead.
func (c *viewCache) runReadAhead() {
	defer c.group.Done()
	for {
		select {
		case t := <-c.ahead:
			if n, err := c.v.Inode(t.ino); err == nil {
				// Who reads there meets the error.
				_ = c.prefetch(c.ctx, n, t.off, t.end)
			}
		case <-c.ctx.Done():
			return
		}
	}
}

// prefetch puts what of a range is no hole and not here into the cache.
func (c *viewCache) prefetch(ctx context.Context, n *Inode, off, end int64) error {
	f := c.cache.Get(uint64(n.ID))
	defer f.Release()
	return c.v.eachSlot(n, off, min(end, n.Size), func(no uint32, s *metadata.Slot, from, to int64) error {
		start := int64(no) * c.v.doc.ObjectSize
		var data []cache.Range
		for _, p := range s.Resolve(uint32(from-start), uint32(to-from)) {
			if p.Kind != metadata.PieceZero {
				data = append(data, cache.Range{Off: start + int64(p.Off), End: start + int64(p.Off) + int64(p.Len)})
			}
		}
		var blocks []uint32
		for _, r := range absentOf(f, data) {
			for b := (r.Off - start) / metadata.BlockSize; b <= (r.End-1-start)/metadata.BlockSize; b++ {
				if k := len(blocks); k == 0 || blocks[k-1] != uint32(b) {
					blocks = append(blocks, uint32(b))
				}
			}
		}
		if len(blocks) == 0 {
			return nil
		}
		_, err := c.fetch(ctx, f, n, no, s, blocks)
		return err
	})
}

// Bounds of files that the kernel reads by itself.
const (
	maxWhole    = 256 // open at a time
	wholeAtOnce = 2   // being fetched at a time
)

// wholeFiles are the files that are wholly in the cache, pinned there and open
// for the kernel, and those that are on the way. Those that nobody has open
// make room for others.
type wholeFiles struct {
	limit int64         // bytes of all together
	turn  chan struct{} // bounds the fetches

	mu     sync.Mutex // guards the fields below
	files  map[InodeID]*localFile
	open   map[InodeID]int // open files of the view, by inode
	bytes  int64           // of files
	clock  uint64
	closed bool
}

type localFile struct {
	size int64
	file *os.File // nil while it is being fetched
	used uint64   // clock of the last opening
	free func()   // undoes the pin
}

func newWholeFiles(limit int64) wholeFiles {
	return wholeFiles{limit: limit, turn: make(chan struct{}, wholeAtOnce), files: map[InodeID]*localFile{}, open: map[InodeID]int{}}
}

func (w *wholeFiles) opened(ino InodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open[ino]++
}

func (w *wholeFiles) released(ino InodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open[ino]--; w.open[ino] == 0 {
		delete(w.open, ino)
	}
}

// begin says whether the caller is to fetch a file, after it has called
// started, and then to call done or drop.
func (w *wholeFiles) begin(ino InodeID, size int64, started func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed || w.files[ino] != nil || !w.makeRoom(size) {
		return false
	}
	w.clock++
	w.files[ino] = &localFile{size: size, used: w.clock}
	w.bytes += size
	started() // before close can wait for it
	return true
}

// find returns the open local file of an inode, nil when there is none.
func (w *wholeFiles) find(ino InodeID) *os.File {
	w.mu.Lock()
	defer w.mu.Unlock()
	x := w.files[ino]
	if x == nil {
		return nil
	}
	w.clock++
	x.used = w.clock
	return x.file
}

// makeRoom lets go of files that nobody has open, the longest unused first.
// Caller holds mu.
func (w *wholeFiles) makeRoom(size int64) bool {
	for size > w.limit-w.bytes || len(w.files) >= maxWhole {
		var oldest InodeID
		for ino, x := range w.files {
			if x.file != nil && w.open[ino] == 0 && (oldest == 0 || x.used < w.files[oldest].used) {
				oldest = ino
			}
		}
		if oldest == 0 || size > w.limit {
			return false
		}
		x := w.files[oldest]
		// Only read: closing it loses nothing.
		_ = x.file.Close()
		x.free()
		w.bytes -= x.size
		delete(w.files, oldest)
	}
	return true
}

func (w *wholeFiles) done(ino InodeID, file *os.File, free func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.files[ino].file, w.files[ino].free = file, free
}

func (w *wholeFiles) drop(ino InodeID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.bytes -= w.files[ino].size
	delete(w.files, ino)
}

// close lets no further fetch begin.
func (w *wholeFiles) close() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

func (w *wholeFiles) closeFiles() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	var errs []error
	for _, x := range w.files {
		errs = append(errs, x.file.Close()) // no fetch is under way any more
		x.free()
	}
	clear(w.files)
	return errors.Join(errs...)
}

// Backing returns an open local file that holds all of a file's bytes, for the
// kernel to read by itself. The first call for a file without holes starts to
// fetch it; until that is done, and for all other files, the answer is false.
// The descriptor belongs to the view: it is good until the last ViewFile of the
// inode is closed.
func (v *View) Backing(ino InodeID) (fd int, ok bool) {
	c := v.local
	if c == nil {
		return 0, false
	}
	if f := c.whole.find(ino); f != nil {
		return int(f.Fd()), true
	}
	n, err := v.Inode(ino)
	if err != nil || n.Mode&modeType != modeRegular || n.Size == 0 || n.Alloc != n.Size || n.Staged != 0 {
		return 0, false
	}
	if c.whole.begin(ino, n.Size, func() { c.group.Add(1) }) {
		go func() {
			defer c.group.Done()
			c.fetchWhole(n)
		}()
	}
	return 0, false
}

// fetchWhole brings a file into the cache, pins it there and opens it. When it
// can't, reads go on through the view, and the next opening tries again.
func (c *viewCache) fetchWhole(n *Inode) {
	select {
	case c.whole.turn <- struct{}{}:
		defer func() { <-c.whole.turn }()
	case <-c.ctx.Done():
		c.whole.drop(n.ID)
		return
	}
	f := c.cache.Get(uint64(n.ID))
	f.Pin(0, n.Size)
	free := func() {
		f.Unpin(0, n.Size)
		f.Release()
	}
	file, err := c.bringWhole(f, n)
	if err != nil || file == nil {
		free()
		c.whole.drop(n.ID)
		return
	}
	c.whole.done(n.ID, file, free)
}

// bringWhole returns nil when the local disk can't hold the file.
func (c *viewCache) bringWhole(f *cache.File, n *Inode) (*os.File, error) {
	pieces := (n.Size + readAheadChunk - 1) / readAheadChunk
	err := c.v.inParallel(c.ctx, int(pieces), func(ctx context.Context, i int) error {
		off := int64(i) * readAheadChunk
		return c.prefetch(ctx, n, off, off+readAheadChunk)
	})
	if err != nil || len(absentOf(f, []cache.Range{{Off: 0, End: n.Size}})) > 0 {
		return nil, err
	}
	file, err := os.Open(f.Path())
	if err != nil {
		return nil, err
	}
	// The kernel takes the end of the file from the local one.
	if st, err := file.Stat(); err != nil || st.Size() != n.Size {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}
