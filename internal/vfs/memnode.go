package vfs

import (
	"math/rand"
	"sync"
	"sync/atomic"
	"syscall"
)

const (
	pageSize   = 4096
	sectorSize = 512
)

// page holds bytes of a file. Only a node whose token is the page's owner may
// change it in place; others copy it first, so that a crash need not copy.
type page struct {
	owner uint64
	data  [pageSize]byte
}

// unsynced is what the disk may hold for a page instead of the live one. A nil
// page reads as zeros.
type unsynced struct {
	old    *page // as of the last sync
	mid    *page // an intermediate version that the kernel may have written
	hasMid bool
	lost   bool // a sync failed: the kernel won't write it again by itself
}

// memNode is a regular file's content.
type memNode struct {
	disk *memDisk

	mu         sync.RWMutex // guards the fields below
	token      uint64       // owner of the pages that may be changed in place
	pages      map[int64]*page
	size       int64
	dirty      map[int64]unsynced
	syncedSize int64
	handles    int
	linked     bool
}

// memDisk counts the pages of a Mem against its capacity.
type memDisk struct {
	used     atomic.Int64   // pages
	capacity atomic.Int64   // pages; negative: no limit
	tokens   *atomic.Uint64 // shared with the disks that crashes made of this one
	zero     *page          // likewise; stands for reserved pages that were never written; owner 0 is nobody
}

func newNode(d *memDisk) *memNode {
	return &memNode{disk: d, token: d.tokens.Add(1), pages: map[int64]*page{}, dirty: map[int64]unsynced{}, linked: true}
}

// take reserves a page of the disk; false when it is full.
func (d *memDisk) take() bool {
	for {
		used, limit := d.used.Load(), d.capacity.Load()
		if limit >= 0 && used >= limit {
			return false
		}
		if d.used.CompareAndSwap(used, used+1) {
			return true
		}
	}
}

// remember notes the page's present version before it changes; n.mu is held.
func (n *memNode) remember(i int64) {
	u, dirty := n.dirty[i]
	switch {
	case !dirty:
		n.dirty[i] = unsynced{old: n.pages[i]}
	case !u.hasMid || u.lost:
		u.mid, u.hasMid, u.lost = n.pages[i], true, false
		n.dirty[i] = u
	default:
		return
	}
	// The version is kept: it must not be changed in place.
	if p := n.pages[i]; p != nil && p.owner == n.token {
		p.owner = 0
	}
}

// writable returns the page, ready to be changed in place; whole means that all
// of it is about to be overwritten. It is nil when the disk is full.
func (n *memNode) writable(i int64, whole bool) *page {
	p := n.pages[i]
	if p == nil && !n.disk.take() {
		return nil
	}
	n.remember(i)
	if p != nil && p.owner == n.token {
		return p
	}
	fresh := &page{owner: n.token}
	if p != nil && !whole {
		fresh.data = p.data
	}
	n.pages[i] = fresh
	return fresh
}

func (n *memNode) drop(i int64) {
	if n.pages[i] == nil {
		return
	}
	n.remember(i)
	delete(n.pages, i)
	n.disk.used.Add(-1)
}

// writeAt writes as a disk does: up to where it is full.
func (n *memNode) writeAt(b []byte, off int64) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	done := 0
	for done < len(b) {
		pos := off + int64(done)
		i, in := pos/pageSize, int(pos%pageSize)
		m := min(pageSize-in, len(b)-done)
		p := n.writable(i, m == pageSize)
		if p == nil {
			return done, syscall.ENOSPC
		}
		copy(p.data[in:in+m], b[done:done+m])
		done += m
		n.size = max(n.size, pos+int64(m))
	}
	return done, nil
}

// readAt returns the bytes read: fewer than asked at the end of the file.
func (n *memNode) readAt(b []byte, off int64) int {
	n.mu.RLock()
	defer n.mu.RUnlock()
	if off >= n.size {
		return 0
	}
	b = b[:min(int64(len(b)), n.size-off)]
	done := 0
	for done < len(b) {
		pos := off + int64(done)
		in := int(pos % pageSize)
		m := min(pageSize-in, len(b)-done)
		if p := n.pages[pos/pageSize]; p != nil {
			copy(b[done:done+m], p.data[in:])
		} else {
			clear(b[done : done+m])
		}
		done += m
	}
	return done
}

func (n *memNode) truncate(size int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if size < n.size {
		if in := size % pageSize; in != 0 && n.pages[size/pageSize] != nil {
			clear(n.writable(size/pageSize, false).data[in:])
		}
		n.dropFrom((size + pageSize - 1) / pageSize)
	}
	n.size = size
}

func (n *memNode) dropFrom(first int64) {
	for i := range n.pages {
		if i >= first {
			n.drop(i)
		}
	}
}

func (n *memNode) allocate(off, length int64) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := off / pageSize; i*pageSize < off+length; i++ {
		if n.pages[i] != nil {
			continue
		}
		if !n.disk.take() {
			return syscall.ENOSPC
		}
		n.remember(i)
		n.pages[i] = n.disk.zero
	}
	return nil
}

func (n *memNode) punch(off, length int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	end := off + length
	for pos := off; pos < end; {
		i, in := pos/pageSize, pos%pageSize
		m := min(pageSize-in, end-pos)
		switch {
		case n.pages[i] == nil:
		case m == pageSize:
			n.drop(i)
		default:
			clear(n.writable(i, false).data[in : in+m])
		}
		pos += m
	}
}

func (n *memNode) sync() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, u := range n.dirty {
		if !u.lost {
			delete(n.dirty, i)
		}
	}
	n.syncedSize = n.size
}

// loseDirty is what Linux does after a failed fdatasync: the pages count as
// clean, so the next one succeeds without writing them.
func (n *memNode) loseDirty() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i, u := range n.dirty {
		u.lost = true
		n.dirty[i] = u
	}
}

// release gives the pages back when neither a name nor a handle is left. The
// content stays for as long as a power loss may bring the name back.
func (n *memNode) release() {
	if !n.linked && n.handles == 0 {
		n.disk.used.Add(-int64(len(n.pages)))
	}
}

// clone is the file as a new disk has it after kill -9: all that was written,
// and what of it is not yet synced. Both sides copy pages before they change
// them from now on.
func (n *memNode) clone(d *memDisk) *memNode {
	n.mu.Lock()
	defer n.mu.Unlock()
	c := newNode(d)
	n.token = d.tokens.Add(1)
	c.size, c.syncedSize = n.size, n.syncedSize
	for i, p := range n.pages {
		c.pages[i] = p
	}
	for i, u := range n.dirty {
		c.dirty[i] = u
	}
	return c
}

// losePower settles what the disk holds; afterwards nothing is unsynced.
func (n *memNode) losePower(rng *rand.Rand) {
	style := rng.Intn(4) // all kept, all dropped, by page, by sector
	for _, i := range sortedKeys(n.dirty) {
		u := n.dirty[i]
		versions := []*page{u.old, n.pages[i]}
		if u.hasMid {
			versions = append(versions, u.mid)
		}
		var p *page
		switch style {
		case 0:
			p = n.pages[i]
			if u.lost {
				p = u.old
			}
		case 1:
			p = u.old
		case 2:
			p = versions[rng.Intn(len(versions))]
		default:
			p = tornPage(rng, versions)
		}
		if p == nil {
			delete(n.pages, i)
		} else {
			n.pages[i] = p
		}
	}
	n.size = lostSize(rng, style, n.syncedSize, n.size)
	n.dirty = map[int64]unsynced{}
	n.syncedSize = n.size
	n.cut()
}

// cut removes what lies beyond the size.
func (n *memNode) cut() {
	for i, p := range n.pages {
		switch start := i * pageSize; {
		case p == n.disk.zero: // reserved, possibly beyond the size
		case start >= n.size:
			delete(n.pages, i)
		case start+pageSize > n.size:
			c := &page{owner: n.token, data: p.data}
			clear(c.data[n.size-start:])
			n.pages[i] = c
		}
	}
}

func tornPage(rng *rand.Rand, versions []*page) *page {
	p := &page{}
	for s := 0; s < pageSize; s += sectorSize {
		if v := versions[rng.Intn(len(versions))]; v != nil {
			copy(p.data[s:s+sectorSize], v.data[s:])
		}
	}
	return p
}

// lostSize picks the size that the disk knows: the synced one, the last one, or
// one that the kernel wrote in between.
func lostSize(rng *rand.Rand, style int, synced, last int64) int64 {
	switch {
	case style == 0:
		return last
	case style == 1:
		return synced
	case last > synced && rng.Intn(3) == 0:
		return synced + rng.Int63n(last-synced+1)
	case rng.Intn(2) == 0:
		return last
	}
	return synced
}
