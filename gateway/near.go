package gateway

import (
	"sync"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/metadata"
)

// Who opens one file after the other, as a database does at its start and a load
// with its columns, pays a round trip for the first block of each. Files that were
// made together are often read together: so when the first block of a file has to be
// fetched, and not long before that of one near by had to, those of others near by
// are fetched at the same time, as if they were read ahead: at most nearMost of them
// for one that was asked for, and nearFull when others must leave the cache for them.
//
// Near are inodes of nearly the same number, which are given in order and never
// again.
const (
	nearRange  = 32
	nearMost   = 8
	nearFull   = 4
	nearRecent = 8 // first blocks that are remembered
)

// nearTable knows which files' first blocks were fetched lately. Safe for
// concurrent use; the zero value is ready.
type nearTable struct {
	mu     sync.Mutex // guards the fields below
	recent [nearRecent]InodeID
	next   int
	asked  map[InodeID]bool // as many as wait or are fetched at most
}

// missed notes that a file's first block has to be fetched, and says whether that
// of another one near by had to be, too.
func (n *nearTable) missed(ino InodeID) (again bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.recent {
		if r == ino {
			return false
		}
		again = again || r != 0 && max(r, ino)-min(r, ino) <= nearRange
	}
	n.recent[n.next] = ino
	n.next = (n.next + 1) % nearRecent
	return again
}

// ask asks for the first blocks of files near ino, as many as most, for which
// wanted says so. It never waits.
func (n *nearTable) ask(queue chan<- readAheadTask, ino InodeID, most int, wanted func(InodeID) bool) {
	for i := InodeID(2); i <= 2*nearRange+1 && most > 0; i++ {
		at := ino + i/2
		if i%2 == 1 {
			if at = ino - i/2; at > ino {
				continue // below the first
			}
		}
		if !n.begin(at) {
			continue
		}
		t := readAheadTask{ino: at, end: metadata.BlockSize, near: true}
		if !wanted(at) {
			n.done(t)
			continue
		}
		select {
		case queue <- t:
			most--
		default:
			n.done(t)
			return
		}
	}
}

func (n *nearTable) begin(ino InodeID) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.asked[ino] {
		return false
	}
	if n.asked == nil {
		n.asked = map[InodeID]bool{}
	}
	n.asked[ino] = true
	return true
}

// done lets a file that was asked for be asked for again.
func (n *nearTable) done(t readAheadTask) {
	if !t.near {
		return
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.asked, t.ino)
}

// first says whether a block is its file's first.
func (k blockKey) first() bool { return k.slot == 0 && k.block == 0 }

// askNear asks for the first blocks of files near the one of a read that has to
// fetch the given block first.
func (v *Volume) askNear(k blockKey) {
	if !k.first() || !v.near.missed(k.ino) {
		return
	}
	v.near.ask(v.ahead, k.ino, nearCount(v.cache.Room()), func(ino InodeID) bool {
		v.mu.RLock()
		n, err := v.inode(ino)
		v.mu.RUnlock()
		return err == nil && nearWanted(n, v.cache)
	})
}

// askNear is Volume.askNear for a view.
func (c *viewCache) askNear(k blockKey) {
	if !k.first() || !c.near.missed(k.ino) {
		return
	}
	c.near.ask(c.ahead, k.ino, nearCount(c.cache.Room()), func(ino InodeID) bool {
		c.v.moving.RLock()
		n, err := c.v.Inode(ino)
		c.v.moving.RUnlock()
		return err == nil && nearWanted(n, c.cache)
	})
}

// nearCount is how many files are asked for, given the room in the cache in bytes.
func nearCount(room int64) int {
	if room < nearMost*metadata.BlockSize {
		return nearFull
	}
	return nearMost
}

// nearWanted says whether a node is a file of whose first block nothing is here.
func nearWanted(n *Inode, c *cache.Cache) bool {
	if n.Mode&modeType != modeRegular || n.Size == 0 {
		return false
	}
	f := c.Get(uint64(n.ID))
	defer f.Release()
	wanted := true
	f.Present(0, min(n.Size, metadata.BlockSize), func(_, _ int64) bool { wanted = false; return false })
	return wanted
}
