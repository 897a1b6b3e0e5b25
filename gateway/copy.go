package gateway

import (
	"context"
	"fmt"

	"github.com/cisternfs/cistern/metadata"
)

// Whence of Seek, as lseek(2) has them.
const (
	SeekData = 3
	SeekHole = 4
)

// Seek finds the next byte of data, or the next hole, at or after off; the end
// of the file counts as a hole. ErrNoData when there is none.
func (h *Handle) Seek(ctx context.Context, off int64, whence int) (int64, error) {
	if whence != SeekData && whence != SeekHole {
		return 0, ErrInvalid
	}
	v := h.v
	v.mu.RLock()
	n, err := v.inode(h.node.id)
	v.mu.RUnlock()
	if err != nil {
		return 0, err
	}
	if off < 0 || off >= n.Size {
		return 0, ErrNoData
	}
	for off < n.Size {
		end := min(n.Size, off/v.objectSize*v.objectSize+v.objectSize)
		at, found, err := v.seekIn(h.node.id, off, end, whence == SeekData)
		if err != nil || found {
			return at, err
		}
		next := end
		if whence == SeekData {
			if next, err = v.skipHoles(h.node.id, end, n.Size); err != nil {
				return 0, err
			}
		}
		off = next
		if err := ctx.Err(); err != nil {
			return 0, ErrInterrupted
		}
	}
	if whence == SeekHole {
		return n.Size, nil
	}
	return 0, ErrNoData
}

// seekIn looks for data, or a hole, within one slot.
func (v *Volume) seekIn(ino InodeID, off, end int64, data bool) (int64, bool, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	spans, err := v.resolve(ino, off, end, nil)
	if err != nil {
		return 0, false, err
	}
	for _, s := range spans {
		switch {
		case s.piece.kind != pieceSlot:
			if (s.piece.kind != pieceZero) == data {
				return s.off, true, nil
			}
		case s.slot == nil:
			if !data {
				return s.off, true, nil
			}
		default:
			start := int64(s.slotNo) * v.objectSize
			for _, p := range s.slot.Resolve(uint32(s.off-start), uint32(s.len())) {
				if (p.Kind != metadata.PieceZero) == data {
					return start + int64(p.Off), true, nil
				}
			}
		}
	}
	return 0, false, nil
}

// skipHoles returns the start of the next slot at or after off, which is a
// slot's start, that may have data; size when there is none.
func (v *Volume) skipHoles(ino InodeID, off, size int64) (int64, error) {
	next := size
	v.mu.RLock()
	defer v.mu.RUnlock()
	for _, l := range [...]*layer{v.active, v.frozen} {
		if l == nil || l.files[ino] == nil {
			continue
		}
		l.files[ino].Visit(off, size, func(o, _ int64, p piece) bool {
			if p.kind == pieceZero {
				return true
			}
			next = min(next, o)
			return false
		})
	}
	err := v.index.Slots(ino, uint32(off/v.objectSize), func(no uint32, s *metadata.Slot) bool {
		if s.Coverage(0, s.End()) == 0 {
			return true
		}
		next = min(next, max(off, int64(no)*v.objectSize))
		return false
	})
	if err != nil {
		return 0, fmt.Errorf("slots of inode %d: %w", ino, err)
	}
	return max(off, next), nil
}

// CopyRange copies n bytes between files, or within one, as copy_file_range(2)
// does, and returns how many it copied: fewer than n at the end of the source.
// Whole slots that are objects are shared, not copied.
func (v *Volume) CopyRange(ctx context.Context, src *Handle, srcOff int64, dst *Handle, dstOff, n int64) (int64, error) {
	if srcOff < 0 || dstOff < 0 || n < 0 {
		return 0, ErrInvalid
	}
	if dstOff > v.maxSize()-n {
		return 0, ErrTooBig
	}
	if src.node == dst.node && srcOff < dstOff+n && dstOff < srcOff+n {
		return 0, ErrInvalid
	}
	buf := make([]byte, min(n, maxWrite))
	var done int64
	for done < n {
		shared, ok, err := v.share(ctx, src, srcOff+done, dst, dstOff+done, n-done)
		if err != nil {
			return done, ignoreIf(done > 0, err)
		}
		if ok {
			done += shared
			continue
		}
		k, err := src.Read(ctx, buf[:min(int64(len(buf)), n-done)], srcOff+done)
		if err != nil || k == 0 {
			return done, ignoreIf(done > 0, err)
		}
		if _, err := dst.Write(ctx, buf[:k], dstOff+done, WriteFlags{}); err != nil {
			return done, ignoreIf(done > 0, err)
		}
		done += int64(k)
	}
	return done, nil
}

// ignoreIf drops an error where a shorter count tells of it: the caller comes
// again for the rest and meets it then.
func ignoreIf(partly bool, err error) error {
	if partly {
		return nil
	}
	return err
}
