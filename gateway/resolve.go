package gateway

import (
	"fmt"

	"github.com/cisternfs/cistern/metadata"
)

// span is a range of a file and where its live bytes are.
type span struct {
	off, end int64
	piece    piece
	slotNo   uint32         // of pieceSlot: the range lies within one slot
	slot     *metadata.Slot // nil: nothing committed there
}

func (s span) len() int64 { return s.end - s.off }

// resolve appends to buf where the live bytes of [off, end) are, ascending and
// without gaps. Caller holds v.mu.
func (v *Volume) resolve(ino InodeID, off, end int64, buf []span) ([]span, error) {
	return v.resolveFrom([]*layer{v.active, v.frozen}, ino, off, end, buf)
}

func (v *Volume) resolveFrom(layers []*layer, ino InodeID, off, end int64, buf []span) ([]span, error) {
	for len(layers) > 0 && (layers[0] == nil || layers[0].files[ino] == nil) {
		layers = layers[1:]
	}
	if len(layers) == 0 {
		return v.resolveSlots(ino, off, end, buf)
	}
	var err error
	at := off
	layers[0].files[ino].Visit(off, end, func(o, e int64, p piece) bool {
		if at < o {
			if buf, err = v.resolveFrom(layers[1:], ino, at, o, buf); err != nil {
				return false
			}
		}
		s := span{off: o, end: e, piece: p}
		if p.kind == pieceShare {
			// The object's bytes are read like a committed slot's.
			s.piece, s.slotNo, s.slot = piece{kind: pieceSlot}, uint32(o/v.objectSize), &metadata.Slot{Base: p.base}
		}
		buf = append(buf, s)
		at = e
		return true
	})
	if err == nil && at < end {
		buf, err = v.resolveFrom(layers[1:], ino, at, end, buf)
	}
	return buf, err
}

func (v *Volume) resolveSlots(ino InodeID, off, end int64, buf []span) ([]span, error) {
	for off < end {
		no := off / v.objectSize
		e := min(end, (no+1)*v.objectSize)
		s, err := v.index.Slot(ino, uint32(no))
		if err != nil {
			return buf, fmt.Errorf("slot %d of inode %d: %w", no, ino, err)
		}
		buf = append(buf, span{off: off, end: e, piece: piece{kind: pieceSlot}, slotNo: uint32(no), slot: s})
		off = e
	}
	return buf, nil
}

// covered counts the bytes of [off, end) that are data and not holes; end may
// be wholeFile. Caller holds v.mu.
func (v *Volume) covered(ino InodeID, off, end int64) (int64, error) {
	return v.coveredFrom([]*layer{v.active, v.frozen}, ino, off, end)
}

func (v *Volume) coveredFrom(layers []*layer, ino InodeID, off, end int64) (int64, error) {
	for len(layers) > 0 && (layers[0] == nil || layers[0].files[ino] == nil) {
		layers = layers[1:]
	}
	if off >= end {
		return 0, nil
	}
	if len(layers) == 0 {
		return v.coveredSlots(ino, off, end)
	}
	m := layers[0].files[ino]
	var sum int64
	m.Visit(off, end, func(o, e int64, p piece) bool {
		if p.kind != pieceZero {
			sum += e - o
		}
		return true
	})
	var err error
	m.Gaps(off, end, func(o, e int64) bool {
		var n int64
		n, err = v.coveredFrom(layers[1:], ino, o, e)
		sum += n
		return err == nil
	})
	return sum, err
}

func (v *Volume) coveredSlots(ino InodeID, off, end int64) (int64, error) {
	var sum int64
	count := func(no uint32, s *metadata.Slot) {
		if s == nil {
			return
		}
		start := int64(no) * v.objectSize
		from, to := max(off, start), min(end, start+v.objectSize)
		if from < to {
			sum += int64(s.Coverage(uint32(from-start), uint32(to-from)))
		}
	}
	first, last := off/v.objectSize, (end-1)/v.objectSize
	if last-first < 8 {
		for no := first; no <= last; no++ {
			s, err := v.index.Slot(ino, uint32(no))
			if err != nil {
				return 0, fmt.Errorf("slot %d of inode %d: %w", no, ino, err)
			}
			count(uint32(no), s)
		}
		return sum, nil
	}
	err := v.index.Slots(ino, uint32(first), func(no uint32, s *metadata.Slot) bool {
		if int64(no) > last {
			return false
		}
		count(no, s)
		return true
	})
	if err != nil {
		return 0, fmt.Errorf("slots of inode %d: %w", ino, err)
	}
	return sum, nil
}

// sameSource says whether two states of a slot take the bytes of [off, off+n)
// from the same places, so that bytes fetched for one are right for the other.
func sameSource(a, b *metadata.Slot, off, n uint32) bool {
	if a == b || a.Same(b) {
		return true
	}
	pa, pb := a.Resolve(off, n), b.Resolve(off, n)
	if len(pa) != len(pb) {
		return false
	}
	for i, p := range pa {
		q := pb[i]
		if p.Off != q.Off || p.Len != q.Len || p.Kind != q.Kind {
			return false
		}
		switch p.Kind {
		case metadata.PieceBase:
			if a.Base.Ref != b.Base.Ref {
				return false
			}
		case metadata.PiecePatch:
			x, y := a.Patches[p.PatchIndex], b.Patches[q.PatchIndex]
			if x.Seg != y.Seg || x.SegOff != y.SegOff || x.Off != y.Off {
				return false
			}
		}
	}
	return true
}
