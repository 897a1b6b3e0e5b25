package gateway

import (
	"fmt"
	"sort"
	"time"

	"github.com/cisternfs/cistern/metadata"
)

// folded is a slot's new form, uploaded and waiting for its commit: it replaces
// the state that it was made from, or is dropped.
type folded struct {
	ino     InodeID
	slot    uint32
	seen    *metadata.Slot
	through uint64           // the newest patch that it includes
	base    *metadata.Base   // an object, or
	sum     uint32           // of the object's body
	patches []metadata.Patch // extents of a packed segment
	pack    *pack
}

// pack is a segment of folded slots.
type pack struct {
	key  string
	size int64
	sum  uint32
}

// applies says whether the slot still is what was folded: for an object the
// later patches don't matter, they lie over it.
func (f *folded) applies(now *metadata.Slot) bool {
	if now == nil {
		return false
	}
	if f.base == nil {
		return f.seen.Same(now)
	}
	if (f.seen.Base == nil) != (now.Base == nil) || f.seen.Base != nil && f.seen.Base.Ref != now.Base.Ref {
		return false
	}
	if len(now.Patches) < len(f.seen.Patches) {
		return false
	}
	for i, p := range f.seen.Patches {
		if p != now.Patches[i] {
			return false
		}
	}
	return len(now.Patches) == len(f.seen.Patches) || now.Patches[len(f.seen.Patches)].Commit > f.through
}

// after returns the slot as the fold leaves it.
func (f *folded) after(now *metadata.Slot) *metadata.Slot {
	return now.With(metadata.SlotChange{Inode: f.ino, Slot: f.slot, Base: f.base, DropThrough: f.through})
}

// takeFold returns the object that a slot was folded to, if it still applies
// and goes together with further patches.
func (b *builder) takeFold(k slotKey, old *metadata.Slot) *folded {
	f := b.folds[k]
	if f == nil {
		return nil
	}
	if f.base == nil || !f.applies(old) {
		b.discardFold(k)
		return nil
	}
	delete(b.folds, k)
	return f
}

// discardFold drops a fold that came too late. An object's only does when the
// whole slot is another; what is to be packed does when anything changed.
func (b *builder) discardFold(k slotKey) {
	if f := b.folds[k]; f != nil {
		delete(b.folds, k)
		if f.base != nil {
			b.unused = append(b.unused, f.base.Key)
		} else {
			b.v.folds.late(k, time.Now().Add(b.v.opt.Fold.QuietAfter))
		}
	}
}

// useFold makes a slot's change replace its base and patches by what was folded.
func (b *builder) useFold(ch *metadata.SlotChange, f *folded, old *metadata.Slot) {
	ch.DropThrough = f.through
	for i := range old.Patches {
		if p := &old.Patches[i]; p.Commit <= f.through {
			b.dropPatch(p)
		}
	}
	if old.Base != nil {
		b.refs[old.Base.Key]--
		b.bases[old.Base.Key] = *old.Base
	}
	if f.base != nil {
		base := *f.base
		base.Birth = b.c.N
		ch.Base = &base
		b.c.Objects = append(b.c.Objects, metadata.Object{Key: base.Key, Size: base.StoredLen(), Sum: f.sum})
		return
	}
	for _, p := range f.patches {
		p.Commit = b.c.N
		ch.Add = append(ch.Add, p)
		b.live[p.Seg.Key] += int64(p.StoredLen())
	}
	if _, ok := b.newSegs[f.pack.key]; !ok {
		b.newSegs[f.pack.key] = len(b.c.Segments)
		b.c.Segments = append(b.c.Segments, metadata.Segment{Key: f.pack.key, Size: f.pack.size, Birth: b.c.N, Sum: f.pack.sum})
	}
}

// foldsAlone commits the folds of slots that nothing else changes.
func (b *builder) foldsAlone() error {
	keys := make([]slotKey, 0, len(b.folds))
	for k := range b.folds {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool {
		if keys[i].ino != keys[j].ino {
			return keys[i].ino < keys[j].ino
		}
		return keys[i].slot < keys[j].slot
	})
	for _, k := range keys {
		f := b.folds[k]
		old, err := b.v.index.Slot(k.ino, k.slot)
		if err != nil {
			return fmt.Errorf("slot %d of inode %d: %w", k.slot, k.ino, err)
		}
		if n, ok := b.l.inodes[k.ino]; ok && n == nil || b.changed(k) || !f.applies(old) {
			b.discardFold(k)
			continue
		}
		ch := metadata.SlotChange{Inode: k.ino, Slot: k.slot}
		b.useFold(&ch, f, old)
		if f.base == nil && old.Base != nil {
			// A base can't be taken away by a change of its own: the slot is made anew.
			ch.Remove, ch.DropThrough = true, 0
		}
		b.c.Slots = append(b.c.Slots, ch)
		delete(b.folds, k)
	}
	for key := range b.packs {
		if _, ok := b.newSegs[key]; !ok {
			b.unused = append(b.unused, key)
		}
	}
	return nil
}

// changed says whether the layer has bytes in a slot.
func (b *builder) changed(k slotKey) bool {
	m := b.l.files[k.ino]
	start := int64(k.slot) * b.v.objectSize
	return m != nil && m.Overlaps(start, start+b.v.objectSize)
}
