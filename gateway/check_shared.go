package gateway

import (
	"fmt"

	"github.com/cisternfs/cistern/metadata"
)

const sumMismatch = "checksum does not match"

// maxSharers bounds the slots that a check names because they share what another
// slot's verification found damaged.
const maxSharers = 10000

// readThing is an object, or the extent of a segment that begins at an offset.
type readThing struct {
	key string
	off uint32
}

// brokenThing is a thing that is damaged, and the slots of which that was said.
type brokenThing struct {
	reason string
	said   map[slotKey]bool
}

// bad notes that a slot's thing is damaged. Where things are read once, other slots
// may share it: sharers names them, and the next commit's check reads it again.
func (c *check) bad(at oneSlot, key string, off uint32, reason string) {
	if c.o.Verified == nil {
		return // each slot is verified by itself
	}
	c.o.Verified.forget(key, off)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.broken == nil {
		c.broken = map[readThing]*brokenThing{}
	}
	b := c.broken[readThing{key, off}]
	if b == nil {
		b = &brokenThing{reason: reason, said: map[slotKey]bool{}}
		c.broken[readThing{key, off}] = b
	}
	b.said[slotKey{at.ino, at.no}] = true
}

// sharers names the slots that have a damaged thing and were not verified because
// another slot's verification had read it.
func (c *check) sharers() error {
	if c.broken == nil {
		return nil
	}
	var list []Problem
	more := 0
	tell := func(at slotKey, t readThing, off, n uint32) {
		b := c.broken[t]
		if b == nil || b.said[at] {
			return
		}
		if len(list) == maxSharers {
			more++
			return
		}
		list = append(list, Problem{Inode: at.ino, Off: int64(at.slot)*c.slotSz + int64(off), Len: int64(n), Key: t.key, Reason: b.reason})
	}
	err := c.ix.AllSlots(func(ino InodeID, no uint32, s *metadata.Slot) bool {
		at := slotKey{ino, no}
		if s.Base != nil && c.own(s.Base.Ref) {
			tell(at, readThing{s.Base.Key, 0}, 0, s.Base.Len)
		}
		for i := range s.Patches {
			if p := &s.Patches[i]; !p.Zero && c.own(p.Seg) {
				tell(at, readThing{p.Seg.Key, p.SegOff}, p.Off, p.Len)
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("slots of the index: %w", err)
	}
	for _, p := range list {
		c.problem(p)
	}
	if more > 0 {
		c.problem(Problem{Reason: fmt.Sprintf("%d more pieces of files share what is damaged", more)})
	}
	return nil
}
