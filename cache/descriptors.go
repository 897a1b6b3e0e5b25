package cache

import (
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"

	"github.com/cisternfs/cistern/internal/vfs"
)

// descriptors bounds the open local files. A file keeps its descriptor until
// another one needs the room; the least used idle one is closed, by a clock.
type descriptors struct {
	mu      sync.Mutex // a leaf: nothing is locked under it
	max     int
	n       int     // open or about to be
	ring    []*File // files with a descriptor
	hand    int
	waiting atomic.Int32
	changes uint64 // rises when a descriptor became idle or was closed
	freed   *sync.Cond
}

func newDescriptors(max int) *descriptors {
	d := &descriptors{max: max}
	d.freed = sync.NewCond(&d.mu)
	return d
}

// take counts one more descriptor, closing an idle one when it must and waiting
// when all are in use. Called without any lock, by who uses none itself.
func (d *descriptors) take() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.n >= d.max {
		d.waiting.Add(1)
		changes := d.changes
		if !d.closeOne() && d.changes == changes {
			d.freed.Wait()
		}
		d.waiting.Add(-1)
	}
	d.n++
}

// closeOne closes an idle descriptor. Two passes: the first takes away the
// marks of recent use and leaves those that must be synced before. Called with
// mu held, which it gives up meanwhile.
func (d *descriptors) closeOne() bool {
	if d.n < d.max {
		return true
	}
	for tries := 2*len(d.ring) + 1; tries > 0 && len(d.ring) > 0; tries-- {
		if d.hand >= len(d.ring) {
			d.hand = 0
		}
		f, force := d.ring[d.hand], tries <= len(d.ring)
		d.hand++
		d.mu.Unlock()
		closed := f.closeIdle(force)
		d.mu.Lock()
		if closed {
			return d.n < d.max
		}
		if d.n < d.max {
			return true
		}
	}
	return false
}

func (d *descriptors) add(f *File) {
	d.mu.Lock()
	f.fdSlot = int32(len(d.ring))
	d.ring = append(d.ring, f)
	d.mu.Unlock()
}

// remove takes f from the ring; the descriptor counts until give.
func (d *descriptors) remove(f *File) {
	d.mu.Lock()
	last := d.ring[len(d.ring)-1]
	d.ring[f.fdSlot], last.fdSlot = last, f.fdSlot
	d.ring[len(d.ring)-1] = nil
	d.ring = d.ring[:len(d.ring)-1]
	d.mu.Unlock()
}

func (d *descriptors) give() {
	d.mu.Lock()
	d.n--
	d.mu.Unlock()
	d.changed()
}

// changed wakes those who wait for an idle descriptor.
func (d *descriptors) changed() {
	d.mu.Lock()
	d.changes++
	d.freed.Broadcast()
	d.mu.Unlock()
}

func (d *descriptors) open() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.n
}

// acquire returns the open local file, which stays open until release. Called
// with f.mu held, which it gives up when the file has to be opened. With create
// the file is made when there is none.
func (f *File) acquire(create bool) (vfs.File, error) {
	for f.h == nil {
		switch {
		case f.opening:
			f.wait()
			continue
		case f.c.closed.Load():
			return nil, ErrClosed
		case !f.exists && (!create || f.removed):
			return nil, fmt.Errorf("cache file %s: %w", f.path(), fs.ErrNotExist)
		}
		if err := f.open(); err != nil {
			return nil, err
		}
	}
	f.users++
	f.fdRecent = true
	return f.h, nil
}

// open opens or makes the local file, one caller at a time. Called with f.mu
// held, which it gives up meanwhile.
func (f *File) open() error {
	f.opening = true
	flag := os.O_RDWR
	if !f.exists {
		flag |= os.O_CREATE | os.O_TRUNC
	}
	f.mu.Unlock()
	f.c.fds.take()
	h, err := f.c.fs.OpenFile(f.path(), flag, 0o600)
	if err != nil {
		f.c.fds.give()
	}
	f.mu.Lock()
	f.opening = false
	f.wakeAll()
	if err != nil {
		return fmt.Errorf("open cache file %s: %w", f.path(), err)
	}
	f.h = h
	if !f.exists {
		f.exists, f.newName = true, true
	}
	f.c.fds.add(f)
	return nil
}

// release ends a use of the descriptor. Called with f.mu held.
func (f *File) release() {
	f.users--
	if f.unsettled && f.moving == 0 {
		f.settle()
	}
	if f.users > 0 {
		return
	}
	f.wakeAll()
	if f.c.fds.waiting.Load() > 0 {
		f.c.fds.changed()
	}
}

// closeIdle closes the descriptor when nobody uses it. Without force one of
// recent use, or with pinned bytes that were not synced, is kept this time.
func (f *File) closeIdle(force bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.h == nil || f.users > 0 || f.opening {
		return false
	}
	if !force && (f.fdRecent || f.dirty) {
		f.fdRecent = false
		return false
	}
	if err := f.closeHandle(); err != nil {
		f.c.failed(err)
	}
	return true
}

// closeHandle closes the descriptor, which nobody uses. Bytes that a reference
// relies on are synced before: an error of their write-back might be lost with
// the descriptor. Called with f.mu held, which it gives up meanwhile.
func (f *File) closeHandle() error {
	h := f.h
	f.settle()
	f.h, f.opening = nil, true // opening: keeps everybody off until it is closed
	f.c.fds.remove(f)
	dirty := f.dirty
	f.mu.Unlock()
	var syncErr error
	if dirty {
		syncErr = h.Sync()
	}
	err := h.Close()
	f.c.fds.give()
	f.mu.Lock()
	f.opening = false
	f.wakeAll()
	if syncErr != nil {
		f.forgetAll()
		f.setSyncErr(fmt.Errorf("sync cache file %s before closing it: %w", f.path(), syncErr))
		return syncErr
	}
	if dirty {
		f.dirty = false
	}
	if err != nil {
		return fmt.Errorf("close cache file %s: %w", f.path(), err)
	}
	return nil
}
