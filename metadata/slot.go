package metadata

import (
	"cmp"
	"slices"
)

// PieceKind says where the bytes of a piece are.
type PieceKind uint8

// Kinds of pieces.
const (
	PieceZero  PieceKind = iota // nowhere: zeros
	PieceBase                   // in the base object, at the piece's own offset
	PiecePatch                  // in the segment of a patch
)

// Piece is a range of a slot whose bytes lie in one place.
type Piece struct {
	Off, Len   uint32 // in the slot, bytes
	Kind       PieceKind
	PatchIndex int // into Patches; -1 unless Kind is PiecePatch
}

func (p Piece) end() uint32 { return p.Off + p.Len }

// Resolve returns what is visible in [off, off+n) of the slot, in order and
// without gaps; neighbouring pieces differ. A nil slot is zeros.
func (s *Slot) Resolve(off, n uint32) []Piece {
	if n == 0 {
		return nil
	}
	end := uint32(min(uint64(off)+uint64(n), 1<<32-1))
	v := s.visible()
	i, _ := slices.BinarySearchFunc(v, off, func(p Piece, off uint32) int {
		if p.end() <= off {
			return -1
		}
		return 1
	})
	out := make([]Piece, 0, 4)
	at := off
	zero := func(to uint32) {
		if at < to {
			out = append(out, Piece{Off: at, Len: to - at, PatchIndex: -1})
			at = to
		}
	}
	for ; i < len(v) && v[i].Off < end; i++ {
		p := v[i]
		start, stop := max(p.Off, off), min(p.end(), end)
		zero(start)
		p.Off, p.Len = start, stop-start
		out = append(out, p)
		at = stop
	}
	zero(end)
	return out
}

// Coverage returns how many bytes of [off, off+n) are data: of the base or a
// patch that is not zeros.
func (s *Slot) Coverage(off, n uint32) uint32 {
	end := uint64(off) + uint64(n)
	var sum uint32
	for _, p := range s.visible() {
		if lo, hi := max(p.Off, off), min(uint64(p.end()), end); uint64(lo) < hi {
			sum += uint32(hi) - lo
		}
	}
	return sum
}

// End returns the end of the slot's last byte that is data; 0 when there is none.
func (s *Slot) End() uint32 {
	v := s.visible()
	if len(v) == 0 {
		return 0
	}
	return v[len(v)-1].end()
}

// PatchBytes returns the bytes of all patches that lie in segments, visible or not.
func (s *Slot) PatchBytes() int64 {
	if s == nil {
		return 0
	}
	var n int64
	for i := range s.Patches {
		if !s.Patches[i].Zero {
			n += int64(s.Patches[i].Len)
		}
	}
	return n
}

// Same says whether both have the same base and patches.
func (s *Slot) Same(other *Slot) bool {
	if s == other {
		return true
	}
	if s == nil || other == nil {
		return s.empty() && other.empty()
	}
	return sameBase(s.Base, other.Base) && slices.Equal(s.Patches, other.Patches)
}

func (s *Slot) empty() bool { return s == nil || (s.Base == nil && len(s.Patches) == 0) }

func sameBase(a, b *Base) bool {
	if a == b || a == nil || b == nil {
		return a == b
	}
	return a.Ref == b.Ref && a.Len == b.Len && a.Birth == b.Birth
}

// With returns the slot after a change, nil when nothing is left of it. The slot
// itself stays as it is. With twice gives the same as once.
func (s *Slot) With(ch SlotChange) *Slot {
	out := &Slot{}
	if s != nil && !ch.Remove {
		out.Base = s.Base
	}
	if ch.Base != nil {
		out.Base = ch.Base
	}
	gone := make(map[PatchKey]bool, len(ch.Drop)+len(ch.Add))
	for _, k := range ch.Drop {
		gone[k] = true
	}
	for i := range ch.Add {
		gone[ch.Add[i].Key()] = true
	}
	if s != nil && !ch.Remove {
		out.Patches = make([]Patch, 0, len(s.Patches)+len(ch.Add))
		for _, p := range s.Patches {
			if (ch.DropThrough == 0 || p.Commit > ch.DropThrough) && !gone[p.Key()] {
				out.Patches = append(out.Patches, p)
			}
		}
	}
	out.Patches = append(out.Patches, ch.Add...)
	slices.SortFunc(out.Patches, comparePatches)
	if out.empty() {
		return nil
	}
	return out
}

// Key names the patch within its slot.
func (p *Patch) Key() PatchKey { return PatchKey{Commit: p.Commit, Off: p.Off} }

func comparePatches(a, b Patch) int {
	return cmp.Or(cmp.Compare(a.Commit, b.Commit), cmp.Compare(a.Off, b.Off))
}

// visible returns the pieces of the slot that are data, ordered. It is computed
// once a slot: a hot slot has up to thousands of patches.
func (s *Slot) visible() []Piece {
	if s == nil {
		return nil
	}
	if v := s.view.Load(); v != nil {
		return *v
	}
	var v []Piece
	if s.Base != nil && s.Base.Len > 0 {
		v = append(v, Piece{Len: s.Base.Len, Kind: PieceBase, PatchIndex: -1})
	}
	for i := range s.Patches {
		v = paint(v, &s.Patches[i], i)
	}
	s.view.Store(&v)
	return v
}

// paint lays a patch over the pieces below it.
func paint(v []Piece, p *Patch, index int) []Piece {
	end := p.Off + p.Len
	lo, _ := slices.BinarySearchFunc(v, p.Off, func(q Piece, off uint32) int {
		if q.end() <= off {
			return -1
		}
		return 1
	})
	hi := lo
	for hi < len(v) && v[hi].Off < end {
		hi++
	}
	var put [3]Piece
	n := 0
	if lo < hi && v[lo].Off < p.Off {
		left := v[lo]
		left.Len = p.Off - left.Off
		put[n], n = left, n+1
	}
	if !p.Zero {
		put[n], n = Piece{Off: p.Off, Len: p.Len, Kind: PiecePatch, PatchIndex: index}, n+1
	}
	if lo < hi && v[hi-1].end() > end {
		right := v[hi-1]
		right.Len = right.end() - end
		right.Off = end
		put[n], n = right, n+1
	}
	return slices.Replace(v, lo, hi, put[:n]...)
}

// cost estimates a decoded slot's memory in bytes, its visible pieces included.
func (s *Slot) cost() int64 {
	const slot, base, patch, piece = 64, 240, 120, 24
	if s == nil {
		return slot
	}
	n := int64(slot + len(s.Patches)*(patch+2*piece))
	if s.Base != nil {
		n += base + int64(len(s.Base.Key)+4*len(s.Base.Sums)+4*len(s.Base.Stored))
	}
	return n
}
