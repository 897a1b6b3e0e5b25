package gateway

import (
	"cmp"
	"context"
	"slices"

	"github.com/cisternfs/cistern/metadata"
)

// assembly is how bytes [off, off+n) of a slot's committed state are put together:
// from its base, from extents of segments and from zeros. off and off+n lie on block
// boundaries or at the slot's end.
type assembly struct {
	slot   *metadata.Slot
	off, n uint32
	pieces []metadata.Piece
	lo, hi uint32       // whole blocks of the base that are needed; both 0: none
	runs   []segmentRun // in no certain order
}

// segmentRun is what one request reads of a segment.
type segmentRun struct {
	seg      metadata.Ref
	from, to uint32           // of the segment
	pieces   []metadata.Piece // that its extents are for, by their place in the segment
}

// Extents of one segment that lie within extentGap bytes of each other are read in
// one request of extentRun bytes at most, and for one assembly extentsAtOnce at most
// are held: a patch that shows a byte is read whole, so that what is read has no
// bound by what is asked for.
const (
	extentGap     = 64 << 10
	extentRun     = 4 << 20
	extentsAtOnce = 16 << 20
)

func newAssembly(s *metadata.Slot, off, n uint32) *assembly {
	a := &assembly{slot: s, off: off, n: n, pieces: s.Resolve(off, n)}
	var stored []metadata.Piece
	for _, p := range a.pieces {
		switch p.Kind {
		case metadata.PieceBase:
			if a.hi == 0 {
				a.lo = p.Off / metadata.BlockSize * metadata.BlockSize
			}
			a.hi = min(s.Base.Len, (p.Off+p.Len+metadata.BlockSize-1)/metadata.BlockSize*metadata.BlockSize)
		case metadata.PiecePatch:
			stored = append(stored, p)
		}
	}
	patch := func(p metadata.Piece) *metadata.Patch { return &s.Patches[p.PatchIndex] }
	slices.SortFunc(stored, func(p, q metadata.Piece) int {
		x, y := patch(p), patch(q)
		return cmp.Or(cmp.Compare(x.Seg.Key, y.Seg.Key), cmp.Compare(x.SegOff, y.SegOff))
	})
	for len(stored) > 0 {
		first := patch(stored[0])
		r := segmentRun{seg: first.Seg, from: first.SegOff, to: first.SegOff + first.StoredLen()}
		n := 1
		for ; n < len(stored); n++ {
			next := patch(stored[n])
			end := max(r.to, next.SegOff+next.StoredLen())
			if next.Seg != r.seg || next.SegOff > r.to+extentGap || end-r.from > extentRun {
				break
			}
			r.to = end
		}
		r.pieces, stored = stored[:n], stored[n:]
		a.runs = append(a.runs, r)
	}
	return a
}

// memory is how many bytes a run needs: as they are stored, and one extent without
// its frame.
func (r *segmentRun) memory() int64 { return int64(r.to-r.from) + metadata.BlockSize }

// memory is how many bytes filling a buffer with an assembly needs at most, those of
// the buffer among them.
func (a *assembly) memory() int64 {
	var base, extents int64
	if a.hi > 0 {
		if a.separate() {
			base = int64(a.hi - a.lo)
		}
		if b := a.slot.Base; b.Stored != nil {
			_, n := b.StoredRange(int(a.lo/metadata.BlockSize), int((a.hi+metadata.BlockSize-1)/metadata.BlockSize))
			base += n
		}
	}
	for i := range a.runs {
		extents += a.runs[i].memory()
	}
	return int64(a.n) + max(base, min(extents, extentsAtOnce)) // first the one, then the others
}

// separate says whether the base's blocks don't begin where the buffer does, or are
// more than it takes.
func (a *assembly) separate() bool { return a.lo != a.off || a.hi-a.lo > a.n }

// assemble fills buf with the committed bytes of a slot from off on: off and
// the end of buf lie on block boundaries or at the slot's end.
func (f *fetcher) assemble(ctx context.Context, s *metadata.Slot, off uint32, buf []byte) error {
	return f.fill(ctx, newAssembly(s, off, uint32(len(buf))), buf)
}

// fill fills buf with what an assembly puts together.
func (f *fetcher) fill(ctx context.Context, a *assembly, buf []byte) error {
	if a.hi > 0 {
		if err := f.fillBase(ctx, a, buf); err != nil {
			return err
		}
	}
	for _, p := range a.pieces {
		if p.Kind == metadata.PieceZero {
			clear(buf[p.Off-a.off:][:p.Len])
		}
	}
	return f.fillExtents(ctx, a, buf)
}

// fillBase reads the blocks of the base that are needed, verifies them and puts them
// into buf, whole.
func (f *fetcher) fillBase(ctx context.Context, a *assembly, buf []byte) error {
	raw := buf[:min(uint32(len(buf)), a.hi-a.lo)]
	if a.separate() {
		raw = make([]byte, a.hi-a.lo)
	}
	err := retryDamage(ctx, func() error {
		return f.readBlocks(ctx, a.slot.Base, a.lo, raw, func(_, _ uint32, err error) error {
			f.stat.damage.Add(1)
			return err
		})
	})
	if err != nil {
		return err
	}
	if a.separate() {
		from := max(a.lo, a.off)
		copy(buf[from-a.off:], raw[from-a.lo:])
	}
	return nil
}

// fillExtents reads the extents that are needed, whole, verifies them and puts what
// shows of them into buf. The runs are for different parts of it.
func (f *fetcher) fillExtents(ctx context.Context, a *assembly, buf []byte) error {
	room := newBudget(extentsAtOnce)
	return f.inParallel(ctx, len(a.runs), func(ctx context.Context, i int) error {
		r := &a.runs[i]
		held, err := room.take(ctx, r.memory())
		if err != nil {
			return ErrInterrupted
		}
		defer room.give(held)
		raw := make([]byte, r.to-r.from)
		return retryDamage(ctx, func() error {
			if err := f.readStore(ctx, r.seg, int64(r.from), raw); err != nil {
				return err
			}
			return f.fillRun(a, r, raw, buf)
		})
	})
}

// fillRun puts what shows of a run's extents into buf. raw has the run's bytes.
func (f *fetcher) fillRun(a *assembly, r *segmentRun, raw, buf []byte) (err error) {
	var extent []byte
	for i, p := range r.pieces {
		patch := &a.slot.Patches[p.PatchIndex]
		if i == 0 || p.PatchIndex != r.pieces[i-1].PatchIndex {
			if extent, err = f.openExtent(patch, raw, r.from); err != nil {
				f.stat.damage.Add(1)
				return err
			}
		}
		copy(buf[p.Off-a.off:][:p.Len], extent[p.Off-patch.Off:])
	}
	return nil
}
