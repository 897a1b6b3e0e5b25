package fuse

import (
	"sync"
	"sync/atomic"

	"github.com/cisternfs/cistern/gateway"
)

// openFile is what a file handle of the kernel stands for.
type openFile struct {
	handle file
	ino    gateway.InodeID
	shared bool // counted in passthrough
}

const (
	handlesPerPage = 1024
	maxHandlePages = 1024 // about a million open files
)

type handlePage [handlesPerPage]atomic.Pointer[openFile]

// handleTable numbers open files. Numbers start at 1. get takes no lock.
type handleTable struct {
	pages [maxHandlePages]atomic.Pointer[handlePage]

	mu   sync.Mutex // guards the fields below
	free []uint32
	used uint32 // numbers ever given out, but for the free ones in use
}

// add gives f a number, or 0 when the table is full.
func (t *handleTable) add(f *openFile) uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	var slot uint32
	if n := len(t.free); n > 0 {
		slot = t.free[n-1]
		t.free = t.free[:n-1]
	} else {
		if t.used == handlesPerPage*maxHandlePages {
			return 0
		}
		slot = t.used
		t.used++
		if slot%handlesPerPage == 0 {
			t.pages[slot/handlesPerPage].Store(new(handlePage))
		}
	}
	t.pages[slot/handlesPerPage].Load()[slot%handlesPerPage].Store(f)
	return uint64(slot) + 1
}

// get returns the file of number fh, nil if there is none.
func (t *handleTable) get(fh uint64) *openFile {
	slot := fh - 1
	if slot >= handlesPerPage*maxHandlePages {
		return nil
	}
	page := t.pages[slot/handlesPerPage].Load()
	if page == nil {
		return nil
	}
	return page[slot%handlesPerPage].Load()
}

// remove takes number fh back and returns its file, nil if there is none.
func (t *handleTable) remove(fh uint64) *openFile {
	f := t.get(fh)
	if f == nil {
		return nil
	}
	slot := uint32(fh - 1)
	t.pages[slot/handlesPerPage].Load()[slot%handlesPerPage].Store(nil)
	t.mu.Lock()
	t.free = append(t.free, slot)
	t.mu.Unlock()
	return f
}

// drain empties the table and returns what was open.
func (t *handleTable) drain() []*openFile {
	t.mu.Lock()
	used := t.used
	t.mu.Unlock()
	var open []*openFile
	for fh := uint64(1); fh <= uint64(used); fh++ {
		if f := t.remove(fh); f != nil {
			open = append(open, f)
		}
	}
	return open
}
