package cache

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/bits"
)

// unknownRun is how many blocks of unknown content are punched together at
// first; holes are passed in doubling steps.
const unknownRun = 8

// trim gives back the pages of an idle block that hold nothing present, and
// returns the bytes freed. Called with mu held, which it gives up meanwhile.
func (f *File) trim(b *block) (int64, outcome) {
	b.trim = false
	keep := b.presentPages()
	charged, loose := b.pages&^keep, b.loose
	if charged|loose == 0 {
		return 0, evicted
	}
	b.punching = true
	f.punches++
	freed, o := f.punchPages(b, charged, loose, keep == 0)
	b.punching = false
	f.punches--
	f.wakeAll()
	return freed, o
}

func (f *File) punchPages(b *block, charged, loose uint32, whole bool) (int64, outcome) {
	h, err := f.acquire(false)
	if errors.Is(err, fs.ErrNotExist) { // it could not even be made: nothing is on disk
		b.loose = 0
		freed := f.removePages(b, charged)
		f.c.pool.charge(-freed)
		return freed, evicted
	}
	if err != nil {
		f.c.failed(err)
		return 0, broken
	}
	defer f.release()
	base := b.no * BlockSize
	moving := int64(bits.OnesCount32(charged))
	f.moving += moving
	f.mu.Unlock()
	if whole {
		err = h.PunchHole(base, BlockSize)
	} else {
		err = pageRuns(charged|loose, func(off, n int64) error { return h.PunchHole(base+off, n) })
	}
	f.mu.Lock()
	f.moving -= moving
	if err != nil {
		f.c.failed(fmt.Errorf("free block %d of cache file %s: %w", b.no, f.path(), err))
		return 0, broken
	}
	freed := f.removePages(b, charged)
	f.c.pool.charge(-freed)
	if loose != 0 {
		b.loose = 0
		before := f.other
		f.settle()
		freed += max(before-f.other, 0)
	}
	return freed, evicted
}

// evict takes the whole block b away when nobody needs it. Called by the pool
// without any lock.
func (f *File) evict(b *block) (freed int64, o outcome) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.blocks.get(b.no) != b || !b.idle() || f.blockPunched(b.no, b.no) {
		return 0, skipped
	}
	f.subPresent(b, 0, BlockSize)
	freed, o = f.trim(b)
	f.tidy(b.no, b.no)
	f.retire()
	return freed, o
}

// evictUnknown punches the next run of unknown blocks. more is false when there
// is none left. Called by the pool without any lock.
func (f *File) evictUnknown() (freed int64, o outcome, more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sweep != nil {
		return 0, skipped, true
	}
	o = skipped
	for run := int64(unknownRun); freed == 0 && f.sweep == nil; run *= 2 {
		from, to := f.nextUnknown(run)
		if from == to {
			break
		}
		if freed, o = f.sweepRun(from, to); o == broken {
			break
		}
	}
	more = f.unknownEnd > 0
	f.retire()
	return freed, o, more
}

// nextUnknown returns the first run of unknown blocks, n at most, of which none
// is pinned or in use.
func (f *File) nextUnknown(n int64) (from, to int64) {
	find := func(lo, hi int64) bool {
		for lo < hi {
			stop := hi
			f.blocks.ascend(lo, hi-1, func(b *block) bool { stop = b.no; return false })
			if stop > lo {
				from, to = lo, min(stop, lo+n)
				return false
			}
			lo++
		}
		return true
	}
	if f.known == nil {
		find(0, f.unknownEnd)
	} else {
		f.known.Gaps(0, f.unknownEnd, find)
	}
	return from, to
}

// sweepRun punches the blocks [from, to) in one go; those with an entry are idle
// and have nothing present, and no other sweep is under way. Called with mu
// held, which it gives up meanwhile.
func (f *File) sweepRun(from, to int64) (freed int64, o outcome) {
	var in []*block
	var pages uint32
	var moving int64
	f.blocks.ascend(from, to-1, func(b *block) bool {
		in = append(in, b)
		pages |= b.pages | b.loose
		moving += int64(bits.OnesCount32(b.pages))
		return true
	})
	unknown := from < f.unknownEnd && (f.known == nil || !f.known.Contains(from, min(to, f.unknownEnd)))
	if pages == 0 && !unknown {
		return 0, evicted
	}
	f.sweep = &Range{Off: from, End: to}
	f.punches++
	err := f.punchRun(from, to, moving, func() {
		for _, b := range in {
			freed += f.removePages(b, ^uint32(0))
			b.loose, b.trim = 0, false
		}
		f.c.pool.charge(-freed)
		before := f.other
		f.setKnown(from, to)
		f.settle()
		freed += max(before-f.other, 0)
	})
	f.punches--
	f.sweep = nil
	f.wakeAll()
	if err != nil {
		f.c.failed(fmt.Errorf("free blocks %d to %d of cache file %s: %w", from, to-1, f.path(), err))
		return 0, broken
	}
	return freed, evicted
}

// punchRun punches blocks of which so many pages are charged, and calls done
// when that worked.
func (f *File) punchRun(from, to, pages int64, done func()) error {
	h, err := f.acquire(false)
	if err != nil {
		return err
	}
	defer f.release()
	f.moving += pages
	f.mu.Unlock()
	err = h.PunchHole(from*BlockSize, (to-from)*BlockSize)
	f.mu.Lock()
	f.moving -= pages
	if err == nil {
		done()
	}
	return err
}

// Drop makes [off, end) absent and gives back the pages that hold nothing
// present any more; end may be math.MaxInt64. Pinned blocks keep their bytes on
// disk until the last Unpin. A local disk that refuses to free pages is no
// error: they stay charged and are evicted later.
func (f *File) Drop(off, end int64) error {
	if err := checkRange(off, end-off); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.forget(off, end)
	if off == end || !f.exists {
		return nil
	}
	first, last := blockRange(off, end-off)
	last = min(last, max(f.blocks.last(), f.unknownEnd-1))
	for from := first; from <= last; {
		if f.sweep != nil {
			f.wait()
			continue
		}
		stay := last + 1
		f.blocks.ascend(from, last, func(b *block) bool {
			if !b.idle() || !b.empty() {
				stay = b.no
				f.dropUnknown(b)
			}
			return stay > last
		})
		if stay > from {
			if _, o := f.sweepRun(from, stay); o == broken {
				return nil
			}
		}
		from = stay + 1
	}
	f.tidy(first, last)
	return nil
}

// dropUnknown makes the block of an entry known to hold nothing present, where
// it was unknown. What is on disk of it goes when the block is idle.
func (f *File) dropUnknown(b *block) {
	if f.isUnknown(b.no) {
		f.setKnown(b.no, b.no+1)
		b.loose = ^b.pages
		b.trim = true
	}
}

// remove forgets the file and deletes the local one, at the latest when the
// last pin is gone.
func (f *File) remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.removed = true
	f.forget(0, math.MaxInt64)
	return f.unlinkRemoved()
}

// unlinkIfRemoved deletes the local file of a removed inode once it can go.
// Called with mu held, which it gives up meanwhile.
func (f *File) unlinkIfRemoved() {
	if f.removed && f.exists && f.pinned == 0 && f.busy == 0 && !f.deleting {
		if err := f.unlinkRemoved(); err != nil {
			f.c.failed(err)
		}
	}
}

func (f *File) unlinkRemoved() error {
	if f.deleting {
		return nil // whoever deletes sees that the file is removed
	}
	err := f.unlink(func() bool { return f.pinned == 0 && f.busy == 0 })
	f.mu.Unlock()
	f.c.drop(f)
	f.mu.Lock()
	return err
}

// unlink deletes the local file once no descriptor is in use and nothing is
// being punched, if ok still holds then; a later writer makes a new one. Called
// with mu held, which it gives up meanwhile.
func (f *File) unlink(ok func() bool) error {
	f.deleting = true
	defer func() { f.deleting = false }()
	for f.opening || f.users > 0 || f.punches > 0 {
		f.wait()
	}
	if !ok() || !f.exists {
		return nil
	}
	h := f.h
	if h != nil {
		f.h = nil
		f.c.fds.remove(f)
	}
	f.opening = true
	f.mu.Unlock()
	var closeErr error
	if h != nil {
		closeErr = h.Close()
		f.c.fds.give()
	}
	err := f.c.fs.Remove(f.path())
	f.mu.Lock()
	f.opening = false
	f.wakeAll()
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("delete cache file %s: %w", f.path(), err)
	}
	if closeErr != nil {
		f.c.failed(fmt.Errorf("close deleted cache file %s: %w", f.path(), closeErr))
	}
	f.exists, f.newName, f.dirty, f.unmet = false, false, false, false
	if f.removed {
		f.clear()
	}
	f.c.pool.charge(-f.other)
	f.other = 0
	return nil
}

// clear forgets all blocks of a file whose local file is gone.
func (f *File) clear() {
	f.known, f.unknownEnd = nil, 0
	var all []*block
	f.blocks.ascend(0, math.MaxInt64, func(b *block) bool { all = append(all, b); return true })
	for _, b := range all {
		f.subPresent(b, 0, BlockSize)
		f.c.pool.charge(-f.removePages(b, ^uint32(0)))
		b.loose, b.trim = 0, false
		f.place(b)
		if b.disposable() {
			f.blocks.del(b.no)
		}
	}
}
