package cache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Verify makes the blocks of the range known. For each that is unknown, as all
// are after a restart, it reads what is on disk; check returns how many of its
// first bytes are what they should be. data is a whole block, zeros where the
// local file ends before; check must not keep it. Those bytes become present,
// the others absent. What can't be read is absent; the error is for ranges that
// are none and for a closed cache. Two at a time for one block are harmless.
func (f *File) Verify(off, n int64, check func(block int64, data []byte) (valid int64)) error {
	if err := checkRange(off, n); err != nil || n == 0 {
		return err
	}
	first, last := blockRange(off, n)
	f.mu.Lock()
	defer f.mu.Unlock()
	any := false
	for no := first; no <= min(last, f.unknownEnd-1); no++ {
		if !f.isUnknown(no) {
			continue
		}
		any = true
		f.begin(no, no)
		err := f.verify(no, check)
		f.end(no, no)
		if errors.Is(err, ErrClosed) {
			return err
		}
	}
	if any {
		f.settle()
	}
	return nil
}

// verify reads and checks one busy block. Called with mu held, which it gives
// up meanwhile.
func (f *File) verify(no int64, check func(int64, []byte) int64) error {
	h, err := f.acquire(false)
	if errors.Is(err, ErrClosed) {
		return err
	}
	var n int
	var valid int64
	var zero uint32
	if err == nil {
		buf := f.c.buffers.Get().(*[BlockSize]byte)
		f.mu.Unlock()
		if n, err = readUpTo(h, buf[:], no*BlockSize); err == nil {
			valid = min(max(check(no, buf[:]), 0), int64(n))
			zero = zeroPages(buf[:])
		}
		f.mu.Lock()
		f.release()
		f.c.buffers.Put(buf)
	}
	if !f.isUnknown(no) { // someone was faster, or wrote, or dropped it
		return nil
	}
	b := f.block(no)
	f.setKnown(no, no+1)
	b.trim = true
	if err != nil {
		f.c.failed(fmt.Errorf("read block %d of cache file %s to verify it: %w", no, f.path(), err))
		b.loose = ^uint32(0)
		return nil
	}
	// A page that is not zeros is on disk. One of zeros may be a hole: it is
	// punched, which changes nothing of what it reads as, to be sure of it.
	b.loose = pageMask(0, uint32(n)) & zero
	f.addPages(b, pageMask(0, uint32(n))&^zero)
	f.other -= pageBytes(b.pages) // they were charged as unknown
	if !f.removed {
		f.addPresent(b, 0, uint32(valid))
	}
	return nil
}

// readUpTo reads what there is of a block and clears the rest of p.
func readUpTo(r io.ReaderAt, p []byte, off int64) (int, error) {
	n, err := r.ReadAt(p, off)
	if n < len(p) && !errors.Is(err, io.EOF) {
		if err == nil {
			err = io.ErrNoProgress
		}
		return 0, err
	}
	clear(p[n:])
	return n, nil
}

// zeroPages returns the pages of a block that hold nothing but zeros.
func zeroPages(p []byte) uint32 {
	var m uint32
	for i := range pagesPerBlock {
		if isZero(p[i*pageSize : (i+1)*pageSize]) {
			m |= 1 << i
		}
	}
	return m
}

func isZero(p []byte) bool {
	for ; len(p) >= 8; p = p[8:] {
		if binary.LittleEndian.Uint64(p) != 0 {
			return false
		}
	}
	return true
}
