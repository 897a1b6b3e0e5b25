package gateway

import (
	"context"
	"fmt"
	"strings"

	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
)

// adoptOp makes a slot start from an object that was there before the volume. No
// other slot refers to it yet: nothing else would tell a first reference from a
// second one, since one reference is not recorded.
type adoptOp struct {
	ino    InodeID
	slot   uint32
	key    string
	length uint32
	sums   []uint32
	time   int64
}

func (o *adoptOp) kind() journal.Op { return opAdopt }

func (o *adoptOp) codec(c *codec) {
	c.ino(&o.ino)
	c.u32(&o.slot)
	c.str(&o.key)
	c.u32(&o.length)
	c.sums(&o.sums)
	c.i64(&o.time)
}

func (o *adoptOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	off, n := int64(o.slot)*v.objectSize, int64(o.length)
	blocks := (n + metadata.BlockSize - 1) / metadata.BlockSize
	if n == 0 || n > v.objectSize || int64(len(o.sums)) != blocks || !strings.HasPrefix(o.key, metadata.AdoptedPrefix) {
		return nil, ErrInvalid
	}
	if held, err := v.covered(o.ino, off, off+v.objectSize); err != nil {
		return nil, err
	} else if held > 0 {
		return nil, fmt.Errorf("%w: slot %d of inode %d has bytes already", ErrInvalid, o.slot, o.ino)
	}
	apply, err := v.planBytes(o.ino, off, n, o.time, false, false)
	if err != nil {
		return nil, err
	}
	return func(journal.LSN, journal.Loc) {
		// The commit that names it first is this layer's, which is at least that:
		// a birth that is too early keeps the object longer, and no more.
		base := metadata.Base{Ref: metadata.Ref{Key: o.key}, Len: o.length, Birth: v.head.N + 1, Sums: o.sums}
		apply(piece{kind: pieceShare, base: &base})
		v.active.data -= n // nothing of it is uploaded
		v.active.shares = append(v.active.shares, o.key)
		if v.active.adopted == nil {
			v.active.adopted = map[string]bool{}
		}
		v.active.adopted[o.key] = true
	}, nil
}

// Adopt makes the slot at off, in which the file has nothing yet, start from an
// object that was there before the volume: one that lies where VolumeDoc.Adopted
// says, under key, and holds exactly the plain bytes. At most one slot of the
// volume may adopt an object; further ones share it with CopyRange. ErrInvalid
// when off is no slot's start, when the bytes are none or more than a slot, or
// when the volume was formatted without Adopted.
func (h *Handle) Adopt(ctx context.Context, off int64, key string, plain []byte) error {
	v := h.v
	if v.doc.Adopted == nil || off < 0 || off%v.objectSize != 0 || len(plain) == 0 || int64(len(plain)) > v.objectSize {
		return ErrInvalid
	}
	if off > v.maxSize()-v.objectSize {
		return ErrTooBig
	}
	res, err := v.reserve(ctx, int(8*v.objectSize/metadata.BlockSize)+len(key)+1024)
	if err != nil {
		return err
	}
	defer res.Release()
	held, err := h.node.lock.Lock(ctx, 0, wholeFile, true)
	if err != nil {
		return ErrInterrupted
	}
	defer held.Unlock()
	op := &adoptOp{
		ino: h.node.id, slot: uint32(off / v.objectSize), key: metadata.AdoptedPrefix + key,
		length: uint32(len(plain)), sums: blockSums(plain), time: v.clock(),
	}
	v.mu.Lock()
	n, err := v.inode(h.node.id)
	if err == nil {
		_, err = v.doLocked(res.Reservation, op, nil)
	}
	v.mu.Unlock()
	if err != nil {
		return err
	}
	if n.Staged > 0 { // beyond the size, which moves: it was dropped
		return v.dropCached(h.node.id, min(n.Size, off), wholeFile)
	}
	return v.dropCached(h.node.id, off, off+int64(len(plain)))
}

// AdoptedKeys calls fn with the key of every adopted object, as Adopt was given it,
// that a slot of the last commit starts from.
func (v *Volume) AdoptedKeys(fn func(key string)) error {
	err := v.index.AllSlots(func(_ InodeID, _ uint32, s *metadata.Slot) bool {
		if s.Base != nil {
			if key, ok := strings.CutPrefix(s.Base.Key, metadata.AdoptedPrefix); ok {
				fn(key)
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("slots of the index: %w", err)
	}
	return nil
}
