package gateway

import (
	"context"
	"errors"
	"os"
	"sync"

	"github.com/cisternfs/cistern/cache"
)

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
		return c.prefetch(ctx, readAheadTask{ino: n.ID, off: off, end: off + readAheadChunk})
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
