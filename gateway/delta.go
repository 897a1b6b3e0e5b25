package gateway

import (
	"math"

	"github.com/cisternfs/cistern/metadata"
)

// Delta is what a move from one commit to a later one changes: nothing that is
// not in it does. It may name things that stay the same.
type Delta struct {
	All    bool        // everything may differ, and nothing else is filled in
	Limit  InodeID     // the lowest number that no inode has ever had
	Ranges []ByteRange // of regular files, as far as their bytes differ
	Inodes []InodeID   // whose attributes differ, or that are gone
	Names  []NameIn    // that are new, gone or another file's
}

// ByteRange is [Off, End) of a file; End is math.MaxInt64 for all that follows.
type ByteRange struct {
	Inode    InodeID
	Off, End int64
}

// NameIn is a name in a directory.
type NameIn struct {
	Parent InodeID
	Name   string
}

func (d *Delta) empty() bool {
	return !d.All && len(d.Ranges)+len(d.Inodes)+len(d.Names) == 0
}

// add takes in what a commit will change in an index that is at the commit's
// predecessor, or between the two.
func (d *Delta) add(ix *metadata.Index, c *metadata.Commit, slotSize int64) error {
	for i := range c.Inodes {
		if err := d.addInode(ix, &c.Inodes[i]); err != nil {
			return err
		}
	}
	for _, ino := range c.Gone {
		d.Inodes = append(d.Inodes, ino)
		d.Ranges = append(d.Ranges, ByteRange{ino, 0, math.MaxInt64})
	}
	for i := range c.Names {
		d.Names = append(d.Names, NameIn{c.Names[i].Parent, c.Names[i].Name})
	}
	for i := range c.Slots {
		ch := &c.Slots[i]
		old, err := ix.Slot(ch.Inode, ch.Slot)
		if err != nil {
			return err
		}
		start := int64(ch.Slot) * slotSize
		for _, r := range differing(old, old.With(*ch), uint32(slotSize)) {
			d.Ranges = append(d.Ranges, ByteRange{ch.Inode, start + int64(r[0]), start + int64(r[1])})
		}
	}
	d.Limit = max(d.Limit, c.Totals.NextInode)
	return nil
}

// addInode takes in an inode: bytes beyond the lower of two sizes differ, since
// zeros fill the last page that a reader has of the shorter file.
func (d *Delta) addInode(ix *metadata.Index, n *Inode) error {
	old, err := ix.Inode(n.ID)
	if isGone(err) {
		return nil // it is new, and its names tell
	}
	if err != nil {
		return err
	}
	d.Inodes = append(d.Inodes, n.ID)
	if old.Size != n.Size {
		d.Ranges = append(d.Ranges, ByteRange{n.ID, min(old.Size, n.Size), math.MaxInt64})
	}
	return nil
}

// differing returns the ranges of [0, size) in which two states of a slot take
// their bytes from different places, in order.
func differing(a, b *metadata.Slot, size uint32) (out [][2]uint32) {
	pa, pb := a.Resolve(0, size), b.Resolve(0, size)
	for i, j, at := 0, 0, uint32(0); at < size; {
		endA, endB := pa[i].Off+pa[i].Len, pb[j].Off+pb[j].Len
		end := min(endA, endB)
		if !samePlace(a, pa[i], b, pb[j]) {
			if k := len(out); k > 0 && out[k-1][1] == at {
				out[k-1][1] = end
			} else {
				out = append(out, [2]uint32{at, end})
			}
		}
		if endA == end {
			i++
		}
		if endB == end {
			j++
		}
		at = end
	}
	return out
}

// samePlace says whether two pieces of a slot, where they overlap, are the same
// bytes of the same body.
func samePlace(a *metadata.Slot, p metadata.Piece, b *metadata.Slot, q metadata.Piece) bool {
	if p.Kind != q.Kind {
		return false
	}
	switch p.Kind {
	case metadata.PieceBase:
		return a.Base.Ref == b.Base.Ref
	case metadata.PiecePatch:
		x, y := &a.Patches[p.PatchIndex], &b.Patches[q.PatchIndex]
		return x.Seg == y.Seg && x.SegOff == y.SegOff && x.Off == y.Off
	}
	return true
}
