package gateway

import (
	"fmt"
	"io"
	"slices"

	"github.com/cisternfs/cistern/internal/blockcodec"
	"github.com/cisternfs/cistern/metadata"
)

// contiguous says whether pieces hold data for every byte of [off, end) and
// nothing else.
func contiguous(pieces []span, off, end int64) bool {
	for _, s := range pieces {
		if s.piece.kind == pieceZero {
			if s.off >= end {
				continue // behind the end of the file
			}
			return false
		}
		if s.off != off {
			return false
		}
		off = s.end
	}
	return off >= end
}

// wholeSlot makes a slot whose every byte is new an object of its own.
func (b *builder) wholeSlot(n *Inode, no uint32, old *metadata.Slot, pieces []span, length int64) error {
	b.discardFold(slotKey{n.ID, no})
	held, err := b.v.uploads.take(b.ctx, b.v.bodyMemory(length))
	if err != nil {
		return ErrInterrupted
	}
	buf := make([]byte, 0, length)
	for _, s := range pieces {
		if s.piece.kind != pieceZero {
			if buf, err = b.bytes(n.ID, s, buf); err != nil {
				b.v.uploads.give(held)
				return err
			}
		}
	}
	start := int64(no) * b.v.objectSize
	base, body, err := b.v.newBase(buf, knownSums(pieces, start, length), b.c.CommitID, start, n.ID)
	if err != nil {
		b.v.uploads.give(held)
		return err
	}
	b.c.Objects = append(b.c.Objects, metadata.Object{Key: base.Key, Size: int64(len(body)), Sum: bodySum(base, body)})
	if plain := held - int64(len(body)); plain > 0 { // its frames are all that is left
		b.v.uploads.give(plain)
		held -= plain
	}
	b.upload(base.Key, body, held)
	if old != nil {
		b.dropSlot(old)
	}
	ch := metadata.SlotChange{Inode: n.ID, Slot: no, Base: base, DropThrough: b.c.N - 1}
	if old == nil || len(old.Patches) == 0 {
		ch.DropThrough = 0
	}
	b.c.Slots = append(b.c.Slots, ch)
	return nil
}

// bodyMemory is how many bytes are held while length bytes become an object: with
// frames both, until the plain ones are let go.
func (v *Volume) bodyMemory(length int64) int64 {
	if !v.codec.Framing() {
		return length
	}
	blocks := (length + metadata.BlockSize - 1) / metadata.BlockSize
	return 2*length + blocks*blockcodec.Overhead
}

// bodySum is the checksum of an object's body, which is its plain bytes unless it has
// frames.
func bodySum(base *metadata.Base, body []byte) uint32 {
	if base.Stored == nil {
		return joinedSum(base.Sums, len(body))
	}
	return checksum(body)
}

// newBase names an object for a slot's bytes, which lie at off in a file, and
// returns what is to be stored under that name. Checksums of some of its blocks may be
// known.
func (v *Volume) newBase(buf []byte, known []knownSum, id metadata.CommitID, off int64, ino InodeID) (*metadata.Base, []byte, error) {
	var random [10]byte
	if _, err := io.ReadFull(v.opt.Rand, random[:]); err != nil {
		return nil, nil, fmt.Errorf("random numbers: %w", err)
	}
	path := ""
	if !v.doc.EncryptsDocuments() {
		path = v.nodes.path(ino)
	}
	key := metadata.ObjectKey(metadata.ObjectUUID(id.Epoch, random), off, int64(len(buf)), path)
	f, err := v.newFrames(key)
	if err != nil {
		return nil, nil, err
	}
	base := &metadata.Base{Ref: metadata.Ref{Key: key}, Len: uint32(len(buf)), Birth: id.N, Sums: blockSumsKnowing(buf, known)}
	return base, f.object(buf, base), nil
}

// bytes appends a piece's bytes to buf, verified.
func (b *builder) bytes(ino InodeID, s span, buf []byte) ([]byte, error) {
	n := len(buf)
	switch s.piece.kind {
	case pieceData:
		buf = slices.Grow(buf, int(s.len()))[:n+int(s.len())]
		if err := b.v.readJournal(s.piece, buf[n:]); err != nil {
			return nil, fmt.Errorf("bytes %d to %d of inode %d: %w", s.off, s.end, ino, err)
		}
	case pieceRef:
		return b.v.appendReference(buf, s.piece.ref, ino, s.off, s.end)
	default:
		panic("gateway: a piece without bytes is to be uploaded")
	}
	return buf, nil
}

// patches packs a slot's pieces into the current segment. Zeros are noted only
// where the slot has something that they cover.
func (b *builder) patches(ino InodeID, start int64, old *metadata.Slot, pieces []span) ([]metadata.Patch, error) {
	var out []metadata.Patch
	for i := 0; i < len(pieces); {
		s := pieces[i]
		if s.piece.kind == pieceZero {
			if p, ok := zeroPatch(old, b.c.N, uint32(s.off-start), uint32(s.end-start)); ok {
				out = append(out, p)
			}
			i++
			continue
		}
		j := i + 1
		for j < len(pieces) && pieces[j].piece.kind != pieceZero && pieces[j].off == pieces[j-1].end {
			j++
		}
		run, err := b.extents(ino, start, pieces[i:j])
		if err != nil {
			return nil, err
		}
		out = append(out, run...)
		i = j
	}
	return out, nil
}

// zeroPatch covers what a slot has in [off, end) with zeros.
func zeroPatch(old *metadata.Slot, n uint64, off, end uint32) (metadata.Patch, bool) {
	if old == nil {
		return metadata.Patch{}, false
	}
	end = min(end, old.End())
	if off >= end || old.Coverage(off, end-off) == 0 {
		return metadata.Patch{}, false
	}
	return metadata.Patch{Commit: n, Off: off, Len: end - off, Zero: true}, true
}

// extents stores adjoining pieces as extents that end at block boundaries.
func (b *builder) extents(ino InodeID, start int64, pieces []span) ([]metadata.Patch, error) {
	var out []metadata.Patch
	begin, end := pieces[0].off, pieces[len(pieces)-1].end
	for begin < end {
		stop := min(end, start+((begin-start)/metadata.BlockSize+1)*metadata.BlockSize)
		s, err := b.segment(int(stop - begin))
		if err != nil {
			return nil, err
		}
		ext := b.scratch[:0]
		for len(pieces) > 0 && pieces[0].off < stop {
			part := pieces[0]
			if part.end > stop {
				part.end = stop
				pieces[0].piece = pieces[0].piece.Slice(stop - pieces[0].off)
				pieces[0].off = stop
			} else {
				pieces = pieces[1:]
			}
			if ext, err = b.bytes(ino, part, ext); err != nil {
				return nil, err
			}
		}
		p := metadata.Patch{Commit: b.c.N, Off: uint32(begin - start), Len: uint32(len(ext)), Seg: metadata.Ref{Key: s.key}}
		s.buf = s.frames.extent(s.buf, ext, &p)
		b.live[s.key] += int64(p.StoredLen())
		out = append(out, p)
		b.scratch = ext
		begin = stop
	}
	return out, nil
}
