package gateway

import (
	"errors"
	"fmt"
	"math"

	"github.com/cisternfs/cistern/internal/extent"
	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
)

// writeOp stores bytes that the record carries. Staged bytes lie beyond the
// file's size and leave it as it is.
type writeOp struct {
	ino    InodeID
	off    int64
	length int64
	time   int64
	killID bool
	staged bool

	whole bool // the caller holds the whole file's range lock; not in the record
}

func (o *writeOp) kind() journal.Op { return opWrite }

func (o *writeOp) codec(c *codec) {
	c.ino(&o.ino)
	c.i64(&o.off)
	c.i64(&o.length)
	c.i64(&o.time)
	c.bool(&o.killID)
	c.bool(&o.staged)
}

func (o *writeOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	if !o.staged && !o.whole && v.dropsStaged(o.ino, o.off+o.length) {
		return nil, errWholeLock
	}
	apply, err := v.planBytes(o.ino, o.off, o.length, o.time, o.killID, o.staged)
	if err != nil {
		return nil, err
	}
	return func(lsn journal.LSN, loc journal.Loc) {
		apply(piece{kind: pieceData, loc: loc})
	}, nil
}

// refOp stores bytes that lie in the cache file. Its checksums are of BlockSize pieces
// that are counted from off on; of staged bytes, of the file's blocks, so that the first
// piece may be shorter: they come in parts of any size, and are the checksums of the
// objects that they become.
type refOp struct {
	ino    InodeID
	off    int64
	length int64
	time   int64
	killID bool
	sums   []uint32
	staged bool // told by the record's kind

	whole bool // as in writeOp
}

func (o *refOp) kind() journal.Op {
	if o.staged {
		return opStagedRef
	}
	return opRef
}

func (o *refOp) codec(c *codec) {
	c.ino(&o.ino)
	c.i64(&o.off)
	c.i64(&o.length)
	c.i64(&o.time)
	c.bool(&o.killID)
	c.sums(&o.sums)
	if c.decoding && !o.fits() {
		c.fail()
	}
}

// reference is what the record refers to.
func (o *refOp) reference(lsn journal.LSN) *reference {
	r := &reference{lsn: lsn, off: o.off, len: o.length, origin: o.off, sums: o.sums}
	if o.staged {
		r.origin -= o.off % metadata.BlockSize
	}
	return r
}

// fits says whether there is a checksum for each piece.
func (o *refOp) fits() bool {
	if o.off < 0 || o.length < 0 || o.off > math.MaxInt64-o.length-metadata.BlockSize {
		return false
	}
	r := o.reference(0)
	return int64(len(o.sums)) == (r.off+r.len-r.origin+metadata.BlockSize-1)/metadata.BlockSize
}

func (o *refOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	if m := v.refs[o.ino]; m != nil && m.Overlaps(o.off, o.off+o.length) {
		return nil, fmt.Errorf("%w: two references to bytes %d to %d of inode %d", ErrDamaged, o.off, o.off+o.length, o.ino)
	}
	if !o.staged && !o.whole && v.dropsStaged(o.ino, o.off+o.length) {
		return nil, errWholeLock
	}
	apply, err := v.planBytes(o.ino, o.off, o.length, o.time, o.killID, o.staged)
	if err != nil {
		return nil, err
	}
	return func(lsn journal.LSN, loc journal.Loc) {
		r := o.reference(lsn)
		apply(piece{kind: pieceRef, ref: r})
		m := v.refs[o.ino]
		if m == nil {
			m = &extent.Map[refValue]{}
			v.refs[o.ino] = m
		}
		m.Set(o.off, o.off+o.length, refValue{r})
		v.refBytes += o.length
	}, nil
}

// refValue makes a reference usable as an extent's value.
type refValue struct{ *reference }

// Slice keeps the value: a reference knows its own range.
func (r refValue) Slice(int64) refValue { return r }

// errWholeLock: the write drops staged bytes outside its own range, so it needs
// the whole file's range lock.
var errWholeLock = errors.New("write needs the whole file's range lock")

// dropsStaged says whether a write up to end drops bytes that are staged. Redo
// has no locks to take. Caller holds v.mu.
func (v *Volume) dropsStaged(ino InodeID, end int64) bool {
	n, err := v.inode(ino)
	return err == nil && !v.replaying && n.Staged > 0 && end > n.Size
}

// planBytes is what writes of both kinds have in common.
func (v *Volume) planBytes(ino InodeID, off, length, now int64, killID, staged bool) (func(piece), error) {
	n, err := v.inode(ino)
	if err != nil {
		return nil, err
	}
	if n.Mode&modeType != modeRegular {
		return nil, ErrInvalid
	}
	end := off + length
	if staged && off < n.Size {
		return nil, fmt.Errorf("%w: staged bytes at %d would lie within the file's %d bytes", ErrInvalid, off, n.Size)
	}
	covered, err := v.covered(ino, off, end)
	if err != nil {
		return nil, err
	}
	drop := !staged && n.Staged > 0 && end > n.Size
	var dropped int64
	if drop {
		if dropped, err = v.covered(ino, n.Size, math.MaxInt64); err != nil {
			return nil, err
		}
		if covered, err = v.covered(ino, off, min(end, n.Size)); err != nil {
			return nil, err
		}
	}
	grow := length - covered - dropped
	if err := v.checkQuota(grow); err != nil {
		return nil, err
	}
	return func(p piece) {
		c := *n
		if drop {
			v.active.setPiece(ino, n.Size, math.MaxInt64, piece{kind: pieceZero})
			c.Staged = 0
		}
		v.active.setPiece(ino, off, end, p)
		if staged {
			c.Staged = max(c.Staged, end)
		} else {
			c.Size = max(c.Size, end)
			c.Mtime, c.Ctime = now, now
			if killID {
				c.Mode = killSetID(c.Mode)
			}
		}
		v.addAlloc(&c, grow)
		v.active.setInode(&c)
	}, nil
}

// addAlloc changes an inode's and the volume's allocated bytes.
func (v *Volume) addAlloc(n *Inode, delta int64) {
	n.Alloc += delta
	v.active.usedBy += delta
	v.used += delta
}

// zeroOp makes a range a hole, and may move the end of the file behind it.
type zeroOp struct {
	ino  InodeID
	off  int64
	end  int64
	size int64 // new size when larger than the file's
	time int64
}

func (o *zeroOp) kind() journal.Op { return opZero }

func (o *zeroOp) codec(c *codec) {
	c.ino(&o.ino)
	c.i64(&o.off)
	c.i64(&o.end)
	c.i64(&o.size)
	c.i64(&o.time)
}

func (o *zeroOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	n, err := v.inode(o.ino)
	if err != nil {
		return nil, err
	}
	if n.Mode&modeType != modeRegular {
		return nil, ErrInvalid
	}
	covered, err := v.covered(o.ino, o.off, o.end)
	if err != nil {
		return nil, err
	}
	dropStaged := n.Staged > 0 && o.size > n.Size
	if dropStaged {
		if covered, err = v.covered(o.ino, o.off, min(o.end, n.Size)); err != nil {
			return nil, err
		}
		beyond, err := v.covered(o.ino, n.Size, math.MaxInt64)
		if err != nil {
			return nil, err
		}
		covered += beyond
	}
	return func(journal.LSN, journal.Loc) {
		c := *n
		if o.end > o.off {
			v.active.setPiece(o.ino, o.off, o.end, piece{kind: pieceZero})
		}
		if dropStaged {
			v.active.setPiece(o.ino, n.Size, math.MaxInt64, piece{kind: pieceZero})
			c.Staged = 0
		}
		c.Size = max(c.Size, o.size)
		c.Mtime, c.Ctime = o.time, o.time
		v.addAlloc(&c, -covered)
		v.active.setInode(&c)
	}, nil
}

// publishOp moves the end of a file over bytes that were staged beyond it, or
// drops them when the size stays.
type publishOp struct {
	ino  InodeID
	size int64
	time int64
}

func (o *publishOp) kind() journal.Op { return opPublish }

func (o *publishOp) codec(c *codec) {
	c.ino(&o.ino)
	c.i64(&o.size)
	c.i64(&o.time)
}

func (o *publishOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	n, err := v.inode(o.ino)
	if err != nil {
		return nil, err
	}
	if n.Mode&modeType != modeRegular || o.size < n.Size || o.size > max(n.Staged, n.Size) {
		return nil, fmt.Errorf("%w: inode %d can be published up to %d, not to %d", ErrInvalid, o.ino, n.Staged, o.size)
	}
	var rest int64
	if n.Staged > o.size {
		if rest, err = v.covered(o.ino, o.size, math.MaxInt64); err != nil {
			return nil, err
		}
	}
	return func(journal.LSN, journal.Loc) {
		c := *n
		if n.Staged > o.size {
			v.active.setPiece(o.ino, o.size, math.MaxInt64, piece{kind: pieceZero})
		}
		c.Staged = 0
		if o.size > n.Size {
			c.Size = o.size
			c.Mtime, c.Ctime = o.time, o.time
		}
		v.addAlloc(&c, -rest)
		v.active.setInode(&c)
	}, nil
}

// setOp changes the volume's settings.
type setOp struct {
	quota     int64
	retention int64
}

func (o *setOp) kind() journal.Op { return opSet }

func (o *setOp) codec(c *codec) {
	c.i64(&o.quota)
	c.i64(&o.retention)
}

func (o *setOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	if o.quota < 0 || o.retention < 0 {
		return nil, ErrInvalid
	}
	return func(journal.LSN, journal.Loc) {
		v.settings.QuotaBytes, v.settings.RetentionSec = o.quota, o.retention
		s := v.settings
		v.active.settings = &s
	}, nil
}
