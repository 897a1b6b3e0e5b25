package cache

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/cisternfs/cistern/internal/extent"
	"github.com/cisternfs/cistern/internal/vfs"
)

// File is the cached content of one inode. Get gives it out, Release gives it
// back. Offsets and lengths are bytes of the inode; a range that is negative or
// ends past math.MaxInt64 is an error, or is ignored where none can be returned.
type File struct {
	c    *Cache
	ino  uint64
	refs atomic.Int32 // holders; raised under Cache.mu

	unseen atomic.Bool // nobody has looked whether the local file is there

	mu     sync.Mutex    // guards the fields below; never held during I/O, but for stat
	wake   chan struct{} // closed, when there is one, by what others wait for
	blocks table
	known  *extent.Ranges // block numbers below unknownEnd that are known
	sweep  *Range         // block numbers being punched together
	h      vfs.File       // nil when not open
	users  int32          // of h

	unknownEnd int64 // blocks from here on are known
	npages     int64 // sum of the blocks' pages
	other      int64 // charged bytes beside npages: unknown blocks, what the file system adds
	moving     int64 // pages charged that the disk may not have yet, or not any more

	pinned  int32 // blocks with pins
	busy    int32 // operations on blocks under way
	punches int32 // under way
	fdSlot  int32 // guarded by descriptors.mu

	opening   bool // someone opens, closes or deletes the local file
	exists    bool // the local file
	unmet     bool // it could not be looked at: what is in it is not known
	newName   bool // its name may not be durable
	dirty     bool // pinned bytes were written since the last Sync
	fdRecent  bool
	removed   bool
	unsettled bool // other may be more than the disk says
	deleting  bool // someone is about to delete the local file
	syncErr   *error
}

// path returns the local file's name.
func (f *File) path() string {
	return filepath.Join(f.c.shard(f.ino), strconv.FormatUint(f.ino, 16))
}

// wait waits for the end of a punch, an opening or a use. Called with mu held,
// which it gives up meanwhile: everything must be looked at again.
func (f *File) wait() {
	if f.wake == nil {
		f.wake = make(chan struct{})
	}
	ch := f.wake
	f.mu.Unlock()
	<-ch
	f.mu.Lock()
}

func (f *File) wakeAll() {
	if f.wake != nil {
		close(f.wake)
		f.wake = nil
	}
}

// checkRange refuses what is no range of a file.
func checkRange(off, n int64) error {
	if off < 0 || n < 0 || off > math.MaxInt64-n {
		return fmt.Errorf("cache: %d bytes at offset %d are no range of a file", n, off)
	}
	return nil
}

// blockRange returns the numbers of the first and the last block of a range
// that is not empty.
func blockRange(off, n int64) (first, last int64) {
	return off / BlockSize, (off + n - 1) / BlockSize
}

// within returns the part of block no that [off, end) covers.
func within(no, off, end int64) (lo, hi uint32) {
	base := no * BlockSize
	lo = uint32(max(off, base) - base)
	if end-base >= BlockSize {
		return lo, BlockSize
	}
	return lo, uint32(end - base)
}

func (f *File) isUnknown(no int64) bool {
	return no < f.unknownEnd && (f.known == nil || !f.known.Contains(no, no+1))
}

// setKnown makes the blocks [from, to) known.
func (f *File) setKnown(from, to int64) {
	if from >= f.unknownEnd {
		return
	}
	if f.known == nil {
		f.known = new(extent.Ranges)
	}
	f.known.Add(from, min(to, f.unknownEnd))
	if f.known.Contains(0, f.unknownEnd) {
		f.known, f.unknownEnd = nil, 0
	}
}

// block returns block no, making its entry.
func (f *File) block(no int64) *block {
	b := f.blocks.get(no)
	if b == nil {
		b = &block{file: f, no: no}
		f.blocks.put(b)
	}
	return b
}

// blockPunched tells whether any of the blocks first..last is being punched.
func (f *File) blockPunched(first, last int64) bool {
	if f.punches == 0 {
		return false
	}
	if f.sweep != nil && first < f.sweep.End && f.sweep.Off <= last {
		return true
	}
	found := false
	f.blocks.ascend(first, last, func(b *block) bool {
		found = b.punching
		return !found
	})
	return found
}

// begin makes the blocks first..last busy: from here to end nothing of them is
// punched. Called with mu held, which it gives up while a punch is under way.
func (f *File) begin(first, last int64) {
	for f.blockPunched(first, last) {
		f.wait()
	}
	for no := first; no <= last; no++ {
		f.block(no).busy++
	}
	f.busy++
}

// end undoes begin and does what was waiting for it. Called with mu held, which
// it gives up meanwhile.
func (f *File) end(first, last int64) {
	tidy := false
	f.blocks.ascend(first, last, func(b *block) bool {
		b.busy--
		tidy = tidy || b.trim && b.idle() || b.disposable() || b.inClock != b.wantsClock()
		return true
	})
	if tidy {
		f.tidy(first, last)
	}
	f.busy--
	f.unlinkIfRemoved()
}

// tidy brings the blocks first..last into order that are idle: gives pages back
// that hold nothing present, drops empty entries, puts the others into the
// clock. Called with mu held, which it gives up while it punches.
func (f *File) tidy(first, last int64) {
	for {
		var next *block
		f.blocks.ascend(first, last, func(b *block) bool {
			if b.idle() && b.trim {
				next = b
			}
			return next == nil
		})
		if next == nil {
			break
		}
		f.trim(next)
	}
	var gone []*block
	f.blocks.ascend(first, last, func(b *block) bool {
		f.place(b)
		if b.disposable() {
			gone = append(gone, b)
		}
		return true
	})
	for _, b := range gone {
		f.blocks.del(b.no)
	}
}

// place puts b into the clock or takes it out.
func (f *File) place(b *block) {
	want := b.wantsClock()
	if want == b.inClock {
		return
	}
	b.inClock = want
	if want {
		f.c.pool.add(b)
	} else {
		f.c.pool.remove(b)
	}
}

// addPages charges pages of b that are not yet charged; the room is reserved.
func (f *File) addPages(b *block, m uint32) {
	m &^= b.pages
	b.pages |= m
	if b.loose&m != 0 { // perhaps charged twice now
		b.loose &^= m
		f.unsettled = true
	}
	n := pageBytes(m)
	f.npages += n / pageSize
	if b.pins > 0 {
		f.c.pinned.Add(n)
	}
}

// removePages takes pages off b; the caller gives the room back.
func (f *File) removePages(b *block, m uint32) int64 {
	m &= b.pages
	b.pages &^= m
	n := pageBytes(m)
	f.npages -= n / pageSize
	if b.pins > 0 {
		f.c.pinned.Add(-n)
	}
	return n
}

func (f *File) addPresent(b *block, lo, hi uint32) {
	before := b.present()
	b.add(lo, hi)
	f.c.present.Add(b.present() - before)
}

func (f *File) subPresent(b *block, lo, hi uint32) {
	before := b.present()
	b.sub(lo, hi)
	f.c.present.Add(b.present() - before)
}

// forget makes [off, end) absent in the blocks that have an entry, which give
// the pages back when they are idle and tidied.
func (f *File) forget(off, end int64) {
	if off >= end {
		return
	}
	f.blocks.ascend(off/BlockSize, (end-1)/BlockSize, func(b *block) bool {
		lo, hi := within(b.no, off, end)
		f.subPresent(b, lo, hi)
		b.trim = true
		return true
	})
}

// forgetAll makes every byte absent: the disk may have lost any of them. What
// is unknown will be verified anyway.
func (f *File) forgetAll() { f.forget(0, math.MaxInt64) }

func (f *File) setSyncErr(err error) { f.syncErr = &err }

// settle corrects what the file is charged beside its pages by what the disk
// says. Writes and punches under way leave a margin of pages that may count
// already or still; the charge stays within it. Called with mu held, and by
// someone who keeps the descriptor open or whom nobody can close it under.
func (f *File) settle() {
	if f.h == nil {
		return
	}
	a, err := f.h.Allocated()
	if err != nil {
		f.c.failed(fmt.Errorf("size on disk of cache file %s: %w", f.path(), err))
		return
	}
	low := a - f.npages*pageSize
	now := min(max(f.other, low), low+f.moving*pageSize)
	f.c.pool.charge(now - f.other)
	f.other = now
	f.unsettled = f.moving != 0
}

// Release gives the file back. It is forgotten, and its local file deleted, when
// nobody else holds it and nothing of it is cached.
func (f *File) Release() {
	switch n := f.refs.Add(-1); {
	case n < 0:
		panic(fmt.Sprintf("cache: inode %d released more often than got", f.ino))
	case n == 0:
		f.mu.Lock()
		f.retire()
		f.mu.Unlock()
	}
}

// useless tells whether the local file holds nothing for anybody.
func (f *File) useless() bool {
	return f.blocks.len() == 0 && f.unknownEnd == 0 && f.busy == 0 && f.punches == 0 && !f.unmet
}

// retire deletes the local file and the entry when nobody holds the file and it
// is useless. Called with mu held, which it gives up meanwhile.
func (f *File) retire() {
	if f.refs.Load() > 0 || !f.useless() || f.deleting || f.c.closed.Load() {
		return
	}
	if err := f.unlink(func() bool { return f.refs.Load() == 0 && f.useless() }); err != nil {
		f.c.failed(err)
		return
	}
	f.mu.Unlock() // Cache.mu comes first
	f.c.drop(f)
	f.mu.Lock()
}
