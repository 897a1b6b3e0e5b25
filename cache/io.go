package cache

import (
	"errors"
	"fmt"
	"io"
	"math/bits"

	"github.com/cisternfs/cistern/internal/vfs"
)

// ReadAt fills p with the bytes at off; ok only if every one of them was
// present. An error of the local disk is returned with ok false; the range is
// absent then.
func (f *File) ReadAt(p []byte, off int64) (ok bool, err error) {
	n := int64(len(p))
	if err := checkRange(off, n); err != nil {
		return false, err
	}
	if n == 0 {
		return true, nil
	}
	first, last := blockRange(off, n)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.take(first, last, off, off+n) {
		f.c.misses.Add(1)
		return false, nil
	}
	h, err := f.acquire(false)
	if err == nil {
		f.mu.Unlock()
		if err = readFull(h, p, off); err == nil {
			dropPages(h, off, n)
		}
		f.mu.Lock()
		f.release()
	}
	if err != nil {
		err = fmt.Errorf("read %d bytes at %d of cache file %s: %w", n, off, f.path(), err)
		f.forget(off, off+n)
	}
	f.end(first, last)
	if err != nil {
		if !errors.Is(err, ErrClosed) {
			f.c.failed(err)
		}
		return false, err
	}
	f.c.hits.Add(1)
	return true, nil
}

// largestPage is the largest page that the kernel's read-ahead makes.
const largestPage = 2 << 20

// dropPages takes a large read or write out of the kernel's cache again: who
// reads through the mount has it there once more, and the large pages that it
// came in make small writes slow. The page in which the range begins goes with
// the range that it ends in.
func dropPages(h vfs.File, off, n int64) {
	if n >= vfs.BulkBytes {
		from := off - off%largestPage
		h.DropPages(from, off+n-from)
	}
}

// DropPages tells that the range was written at once, by WritePinned, and is
// durable. It is a hint.
func (f *File) DropPages(off, n int64) {
	if checkRange(off, n) != nil || n < vfs.BulkBytes {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	h, err := f.acquire(false)
	if err != nil {
		return // closed or gone, and its pages with it
	}
	f.mu.Unlock()
	dropPages(h, off, n)
	f.mu.Lock()
	f.release()
}

// take makes the blocks first..last busy if all of [off, end) is present. It
// needs to wait for no punch: what is present is not being punched.
func (f *File) take(first, last, off, end int64) bool {
	for no := first; no <= last; no++ {
		b := f.blocks.get(no)
		if b == nil {
			return false
		}
		if lo, hi := within(no, off, end); !b.has(lo, hi) {
			return false
		}
	}
	f.blocks.ascend(first, last, func(b *block) bool {
		b.busy++
		if !b.recent.Load() {
			b.recent.Store(true)
		}
		return true
	})
	f.busy++
	return true
}

func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Present calls fn for the present parts of [off, off+n), ascending, until it
// returns false. They may be evicted by the time fn sees them. fn may call the
// file.
func (f *File) Present(off, n int64, fn func(off, n int64) bool) {
	if checkRange(off, n) != nil || n == 0 {
		return
	}
	for _, r := range f.presentIn(off, off+n) {
		if !fn(r.Off, r.Len()) {
			return
		}
	}
}

func (f *File) presentIn(off, end int64) []Range {
	var out []Range
	f.mu.Lock()
	defer f.mu.Unlock()
	f.blocks.ascend(off/BlockSize, (end-1)/BlockSize, func(b *block) bool {
		base := b.no * BlockSize
		lo, hi := within(b.no, off, end)
		b.each(lo, hi, func(lo, hi uint32) {
			r := Range{Off: base + int64(lo), End: base + int64(hi)}
			if k := len(out) - 1; k >= 0 && out[k].End == r.Off {
				out[k].End = r.End
				return
			}
			out = append(out, r)
		})
		return true
	})
	return out
}

// WriteAt stores p at off and makes exactly these bytes present. It is not ok
// when there is no room under the limit, or the local disk is full or fails:
// then the range is absent, and Stats has the disk's error. The error is for
// ranges that are none and for a closed cache.
func (f *File) WriteAt(p []byte, off int64) (ok bool, err error) {
	return f.write(p, off, nil, false)
}

// WriteAbsent is WriteAt for what was fetched: p holds the bytes from off, and
// of the sub-ranges in only (of the file, ascending, within p; nil for all of p)
// it stores what is absent.
func (f *File) WriteAbsent(p []byte, off int64, only []Range) (ok bool, err error) {
	if only == nil {
		only = []Range{{Off: off, End: off + int64(len(p))}}
	}
	for _, r := range only {
		if r.Off < off || r.End < r.Off || r.End-off > int64(len(p)) {
			return false, fmt.Errorf("cache: range [%d,%d) is not within the %d bytes at %d", r.Off, r.End, len(p), off)
		}
	}
	return f.write(p, off, only, false)
}

// write stores p, or what of it is absent within only when that is not nil.
func (f *File) write(p []byte, off int64, only []Range, pinned bool) (bool, error) {
	n := int64(len(p))
	if err := checkRange(off, n); err != nil {
		return false, err
	}
	if f.c.closed.Load() {
		return false, ErrClosed
	}
	if n == 0 {
		return true, nil
	}
	first, last := blockRange(off, n)
	f.mu.Lock()
	defer f.mu.Unlock()
	f.begin(first, last)
	if f.removed {
		f.end(first, last)
		return false, nil
	}
	f.blocks.ascend(first, last, func(b *block) bool { f.dropUnknown(b); return true })
	var one [1]Range
	parts := append(one[:0], Range{Off: off, End: off + n})
	if only != nil {
		parts = f.absentIn(only)
	}
	err := f.store(p, off, parts, pinned)
	f.end(first, last)
	if err == nil || errors.Is(err, ErrClosed) {
		return err == nil, err
	}
	if !errors.Is(err, errNoRoom) {
		f.c.failed(err)
	}
	return false, nil
}

// absentIn returns what is absent of the ranges.
func (f *File) absentIn(only []Range) []Range {
	var out []Range
	for _, r := range only {
		at := r.Off
		for at < r.End {
			no := at / BlockSize
			end := min(r.End, (no+1)*BlockSize)
			lo, hi := within(no, at, end)
			gap := lo
			b := f.blocks.get(no)
			put := func(from, to uint32) {
				if from < to {
					base := no * BlockSize
					out = appendRange(out, Range{Off: base + int64(from), End: base + int64(to)})
				}
			}
			b.each(lo, hi, func(l, h uint32) { put(gap, l); gap = h })
			put(gap, hi)
			at = end
		}
	}
	return out
}

func appendRange(s []Range, r Range) []Range {
	if k := len(s) - 1; k >= 0 && s[k].End == r.Off {
		s[k].End = r.End
		return s
	}
	return append(s, r)
}

var errNoRoom = errors.New("no room in the cache")

// store writes the parts of p to the local file, in busy blocks, and makes them
// present, or all of those absent that were not written. Called with mu held,
// which it gives up meanwhile.
func (f *File) store(p []byte, off int64, parts []Range, pinned bool) error {
	fail := func(from int, err error) error {
		for _, r := range parts[from:] {
			f.forget(r.Off, r.End)
		}
		return err
	}
	fresh, ok := f.charge(parts)
	if !ok {
		return fail(0, errNoRoom)
	}
	f.moving += fresh
	h, err := f.acquire(true)
	if err != nil {
		f.moving -= fresh
		return fail(0, err)
	}
	defer func() {
		f.moving -= fresh
		f.release()
	}()
	for i, r := range parts {
		f.mu.Unlock()
		n, err := h.WriteAt(p[r.Off-off:r.End-off], r.Off)
		f.mu.Lock()
		if err == nil && int64(n) < r.Len() {
			err = io.ErrShortWrite
		}
		if err != nil {
			return fail(i, fmt.Errorf("write %d bytes at %d of cache file %s: %w", r.Len(), r.Off, f.path(), err))
		}
		if pinned {
			f.dirty = true
		}
		f.markPresent(r.Off, r.End)
	}
	return nil
}

// markPresent makes [off, end) present, unless the file was removed meanwhile.
func (f *File) markPresent(off, end int64) {
	if f.removed {
		return
	}
	f.blocks.ascend(off/BlockSize, (end-1)/BlockSize, func(b *block) bool {
		lo, hi := within(b.no, off, end)
		f.addPresent(b, lo, hi)
		return true
	})
}

// charge reserves room for the pages of the parts that are not on disk yet and
// returns how many these are. Called with mu held, which it gives up while it
// makes room; the blocks are busy, so that no page goes away meanwhile.
func (f *File) charge(parts []Range) (fresh int64, ok bool) {
	need := f.eachPage(parts, nil)
	if need == 0 {
		return 0, true
	}
	f.mu.Unlock()
	ok = f.c.pool.reserve(need * pageSize)
	f.mu.Lock()
	if !ok {
		return 0, false
	}
	f.eachPage(parts, func(b *block, m uint32) {
		fresh += int64(bits.OnesCount32(m &^ b.pages))
		f.addPages(b, m)
	})
	f.c.pool.charge((fresh - need) * pageSize)
	return fresh, true
}

// eachPage calls fn, if any, with the pages of each part, and returns how many
// of them are not charged. Two parts in one page count it twice.
func (f *File) eachPage(parts []Range, fn func(b *block, m uint32)) (missing int64) {
	for _, r := range parts {
		f.blocks.ascend(r.Off/BlockSize, (r.End-1)/BlockSize, func(b *block) bool {
			m := pageMask(within(b.no, r.Off, r.End))
			missing += int64(bits.OnesCount32(m &^ b.pages))
			if fn != nil {
				fn(b, m)
			}
			return true
		})
	}
	return missing
}
