package gateway

import (
	"context"
	"errors"

	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
)

// shareOp makes a slot of a file consist of an object that a slot of another
// file, or of the same, has as its base: a copy without any bytes.
type shareOp struct {
	ino  InodeID
	slot uint32
	base metadata.Base
	time int64
	// frames: the object has frames. Such records are of a kind of their own.
	frames bool
}

func (o *shareOp) kind() journal.Op {
	if o.frames {
		return opShareFrames
	}
	return opShare
}

func (o *shareOp) codec(c *codec) {
	c.ino(&o.ino)
	c.u32(&o.slot)
	c.str(&o.base.Volume)
	c.str(&o.base.Key)
	c.u32(&o.base.Len)
	c.u64(&o.base.Birth)
	c.sums(&o.base.Sums)
	c.i64(&o.time)
	if !o.frames {
		return
	}
	c.sums(&o.base.Stored)
	for _, s := range []*string{&o.base.Cipher.Key, &o.base.Cipher.Born.Volume, &o.base.Cipher.Born.Key} {
		c.str(s)
	}
}

func (o *shareOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	off := int64(o.slot) * v.objectSize
	if o.base.Len == 0 || int64(o.base.Len) > v.objectSize {
		return nil, ErrInvalid
	}
	if !v.replaying && v.dropsStaged(o.ino, off+int64(o.base.Len)) {
		return nil, errWholeLock
	}
	apply, err := v.planBytes(o.ino, off, int64(o.base.Len), o.time, false, false)
	if err != nil {
		return nil, err
	}
	return func(journal.LSN, journal.Loc) {
		base := o.base
		apply(piece{kind: pieceShare, base: &base})
		v.active.data -= int64(base.Len) // nothing of it is uploaded
		v.active.shares = append(v.active.shares, base.Key)
	}, nil
}

// share copies one slot by reference if source and destination allow it: the
// source slot is committed, unchanged and nothing but an object, all of it is
// to be copied, and the destination has nothing behind the object's end in
// that slot. It answers false when the bytes must be copied.
func (v *Volume) share(ctx context.Context, src *Handle, srcOff int64, dst *Handle, dstOff, n int64) (int64, bool, error) {
	size := v.objectSize
	if srcOff%size != 0 || dstOff%size != 0 {
		return 0, false, nil
	}
	res, err := v.reserve(ctx, int(8*size/metadata.BlockSize)+1024)
	if err != nil {
		return 0, false, err
	}
	defer res.Release()
	held, err := dst.node.lock.Lock(ctx, dstOff, dstOff+size, true)
	if err != nil {
		return 0, false, ErrInterrupted
	}
	defer held.Unlock()
	v.mu.Lock()
	base, err := v.sharable(src.node.id, srcOff, dst.node.id, dstOff, n)
	if base == nil || err != nil {
		v.mu.Unlock()
		return 0, false, err
	}
	op := &shareOp{ino: dst.node.id, slot: uint32(dstOff / size), base: *base, time: v.clock(), frames: base.Stored != nil}
	_, err = v.doLocked(res.Reservation, op, nil)
	v.mu.Unlock()
	if errors.Is(err, errWholeLock) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, err
	}
	return int64(base.Len), true, v.dropCached(dst.node.id, dstOff, dstOff+int64(base.Len))
}

// sharable returns the object to share, or nil. Caller holds v.mu.
func (v *Volume) sharable(src InodeID, srcOff int64, dst InodeID, dstOff, n int64) (*metadata.Base, error) {
	size := v.objectSize
	from, err := v.inode(src)
	if err != nil {
		return nil, err
	}
	to, err := v.inode(dst)
	if err != nil {
		return nil, err
	}
	length := min(size, from.Size-srcOff)
	spans, err := v.resolve(src, srcOff, srcOff+length, nil)
	if err != nil || len(spans) != 1 {
		return nil, err
	}
	s := spans[0].slot
	switch {
	case spans[0].piece.kind != pieceSlot || s == nil || s.Base == nil || len(s.Patches) > 0:
		return nil, nil // not an object and nothing else
	case int64(s.Base.Len) != length || n < length:
		return nil, nil // not all of it is to be copied
	case length < size && (to.Size > dstOff+length || to.Staged > 0):
		return nil, nil // the destination goes on in the same slot
	case s.Base.Volume != "":
		return nil, nil // counted by the volume that owns it
	}
	return s.Base, nil
}
