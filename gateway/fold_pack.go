package gateway

import (
	"context"

	"github.com/cisternfs/cistern/metadata"
)

// packFolds stores folded slots that get no object of their own in segments.
func (v *Volume) packFolds(ctx context.Context, list []*folded, bodies [][]byte) ([]*folded, error) {
	var done []*folded
	for len(list) > 0 {
		n, size := 0, 0
		for n < len(list) && (n == 0 || size+len(bodies[n]) <= segmentTarget) {
			size += len(bodies[n])
			n++
		}
		if err := v.packSegment(ctx, list[:n], bodies[:n]); err != nil {
			return done, err
		}
		done = append(done, list[:n]...)
		list, bodies = list[n:], bodies[n:]
	}
	return done, nil
}

// packSegment stores folded slots in one segment.
func (v *Volume) packSegment(ctx context.Context, list []*folded, bodies [][]byte) error {
	random, err := v.randomHex(6)
	if err != nil {
		return err
	}
	v.mu.RLock()
	lsn := v.head.LastLSN
	v.mu.RUnlock()
	pk := &pack{key: metadata.SegmentKey(v.epoch(), lsn, lsn, random)}
	fr, err := v.newFrames(pk.key)
	if err != nil {
		return err
	}
	var buf []byte
	for i, f := range list {
		f.patches = extentsOf(f.seen, uint32(len(bodies[i])))
		for j := range f.patches {
			p := &f.patches[j]
			p.Seg = metadata.Ref{Key: pk.key}
			buf = fr.extent(buf, bodies[i][p.Off:][:p.Len], p)
		}
	}
	pk.size, pk.sum = int64(len(buf)), checksum(buf)
	if err := v.persist(ctx, pk.key, buf); err != nil {
		return err
	}
	for _, f := range list {
		f.pack = pk
	}
	return nil
}

// extentsOf cuts what of a slot is data into extents that end at block
// boundaries, as few as there can be.
func extentsOf(s *metadata.Slot, length uint32) []metadata.Patch {
	var out []metadata.Patch
	for _, p := range s.Resolve(0, length) {
		for off, end := p.Off, p.Off+p.Len; off < end && p.Kind != metadata.PieceZero; {
			e := min(end, (off/metadata.BlockSize+1)*metadata.BlockSize)
			if n := len(out); n > 0 && joins(&out[n-1], off, e) {
				out[n-1].Len += e - off
			} else {
				out = append(out, metadata.Patch{Off: off, Len: e - off})
			}
			off = e
		}
	}
	return out
}

// joins says whether [off, end) goes on where a patch ends, in the same block.
func joins(p *metadata.Patch, off, end uint32) bool {
	return p.Off+p.Len == off && p.Off/metadata.BlockSize == (end-1)/metadata.BlockSize
}

// isPack says whether patches are those that packSegment makes of the extents.
func isPack(patches, extents []metadata.Patch) bool {
	if len(patches) != len(extents) {
		return false
	}
	for i := range patches {
		p := &patches[i]
		if p.Seg.Key != patches[0].Seg.Key || p.Off != extents[i].Off || p.Len != extents[i].Len {
			return false
		}
	}
	return true
}
