package cache

import (
	"errors"
	"fmt"
)

// Pin keeps the blocks of [off, off+n) on disk until as many Unpins: they are
// neither evicted nor punched. It pins bytes that are not present, too.
func (f *File) Pin(off, n int64) {
	if checkRange(off, n) != nil || n == 0 {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.pin(blockRange(off, n))
}

func (f *File) pin(first, last int64) {
	for f.blockPunched(first, last) {
		f.wait()
	}
	for no := first; no <= last; no++ {
		b := f.block(no)
		if b.pins++; b.pins == 1 {
			f.pinned++
			f.c.pinned.Add(pageBytes(b.pages))
			f.place(b)
		}
	}
}

// Unpin undoes one Pin or WritePinned of the same range. Pages that lost their
// last pin and hold nothing present are given back, and the local file of a
// removed inode is deleted with its last pin. It panics for what is not pinned.
func (f *File) Unpin(off, n int64) {
	if checkRange(off, n) != nil || n == 0 {
		return
	}
	first, last := blockRange(off, n)
	f.mu.Lock()
	defer f.mu.Unlock()
	for no := first; no <= last; no++ {
		b := f.blocks.get(no)
		if b == nil || b.pins == 0 {
			panic(fmt.Sprintf("cache: unpin of block %d of inode %d, which is not pinned", no, f.ino))
		}
		if b.pins--; b.pins == 0 {
			f.pinned--
			f.c.pinned.Add(-pageBytes(b.pages))
			b.trim = true
		}
	}
	f.tidy(first, last)
	f.unlinkIfRemoved()
}

// WritePinned pins the range, stores p and makes it present. When it is not ok,
// as for WriteAt, nothing is pinned.
func (f *File) WritePinned(p []byte, off int64) (ok bool, err error) {
	f.Pin(off, int64(len(p)))
	ok, err = f.write(p, off, nil, true)
	if !ok {
		f.Unpin(off, int64(len(p)))
	}
	return ok, err
}

// ReadPinned reads the bytes on disk of a pinned range, present or not; holes
// are zeros. The caller compares them with a checksum of its own: after a
// restart or a failed Sync they may not be what was written. What lies beyond
// the end of the local file, or a local file that is not there, is an error.
func (f *File) ReadPinned(p []byte, off int64) error {
	if err := checkRange(off, int64(len(p))); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	h, err := f.acquire(false)
	if err != nil {
		return err
	}
	f.mu.Unlock()
	err = readFull(h, p, off)
	f.mu.Lock()
	f.release()
	if err != nil {
		err = fmt.Errorf("read %d pinned bytes at %d of cache file %s: %w", len(p), off, f.path(), err)
		f.c.failed(err)
	}
	return err
}

// Sync makes durable what was written to the local file before, and its name.
// After an error nothing of the file is believed: everything is absent, and who
// relies on pinned bytes must take them from elsewhere or check them.
func (f *File) Sync() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.syncErr != nil { // of an earlier descriptor: the kernel tells it once
		err := *f.syncErr
		f.syncErr = nil
		return err
	}
	if !f.exists {
		return nil
	}
	err := f.sync()
	if err != nil && !errors.Is(err, ErrClosed) {
		err = fmt.Errorf("sync cache file %s: %w", f.path(), err)
		f.forgetAll()
		f.c.failed(err)
	}
	return err
}

// sync syncs the local file and, the first time, its directory. Called with mu
// held, which it gives up meanwhile.
func (f *File) sync() error {
	h, err := f.acquire(false)
	if err != nil {
		return err
	}
	defer f.release()
	newName := f.newName
	f.newName, f.dirty = false, false
	f.mu.Unlock()
	err = h.Sync()
	if err == nil && newName {
		err = f.c.fs.SyncDir(f.c.shard(f.ino))
	}
	f.mu.Lock()
	f.settle()
	if err != nil {
		f.newName, f.dirty = f.newName || newName, true
	}
	return err
}
