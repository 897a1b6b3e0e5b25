package gateway

import (
	"math"
	"sort"

	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
)

// setAttrOp changes attributes. A nil field stays.
type setAttrOp struct {
	ino  InodeID
	set  SetAttr
	time int64
}

func (o *setAttrOp) kind() journal.Op { return opSetAttr }

func (o *setAttrOp) codec(c *codec) {
	c.ino(&o.ino)
	optional(c, &o.set.Mode, c.u32)
	optional(c, &o.set.UID, c.u32)
	optional(c, &o.set.GID, c.u32)
	optional(c, &o.set.Size, c.i64)
	optional(c, &o.set.Atime, c.i64)
	optional(c, &o.set.Mtime, c.i64)
	optional(c, &o.set.Ctime, c.i64)
	c.bool(&o.set.KillSetID)
	c.i64(&o.time)
}

func (o *setAttrOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	n, err := v.inode(o.ino)
	if err != nil {
		return nil, err
	}
	var freed int64
	cut := int64(-1) // where the file's bytes end after it
	if s := o.set.Size; s != nil {
		switch {
		case n.Mode&modeType == modeDir:
			return nil, ErrIsDir
		case n.Mode&modeType != modeRegular || *s < 0:
			return nil, ErrInvalid
		case *s > v.maxSize():
			return nil, ErrTooBig
		}
		if *s < n.Size || n.Staged > 0 && *s != n.Size {
			cut = min(*s, n.Size)
		}
		if cut == 0 {
			freed = n.Alloc
		} else if cut > 0 {
			if freed, err = v.covered(o.ino, cut, math.MaxInt64); err != nil {
				return nil, err
			}
		}
	}
	return func(journal.LSN, journal.Loc) { o.apply(v, n, cut, freed) }, nil
}

func (o *setAttrOp) apply(v *Volume, n *Inode, cut, freed int64) {
	c := *n
	s := &o.set
	c.Ctime = o.time
	if s.KillSetID {
		c.Mode = killSetID(c.Mode)
	}
	if s.Mode != nil {
		c.Mode = c.Mode&modeType | *s.Mode&modePerm
	}
	if s.UID != nil {
		c.UID = *s.UID
	}
	if s.GID != nil {
		c.GID = *s.GID
	}
	if s.Size != nil {
		if cut >= 0 {
			v.active.setPiece(o.ino, cut, math.MaxInt64, piece{kind: pieceZero})
			c.Staged = 0
		}
		c.Size = *s.Size
		c.Mtime = o.time
		v.addAlloc(&c, -freed)
	}
	if s.Atime != nil {
		c.Atime = *s.Atime
	}
	if s.Mtime != nil {
		c.Mtime = *s.Mtime
	}
	if s.Ctime != nil {
		c.Ctime = *s.Ctime
	}
	v.active.setInode(&c)
}

// xattrOp sets or removes an extended attribute.
type xattrOp struct {
	ino    InodeID
	name   string
	value  []byte
	remove bool
	flags  uint32
	time   int64
}

func (o *xattrOp) kind() journal.Op { return opXattr }

func (o *xattrOp) codec(c *codec) {
	c.ino(&o.ino)
	c.str(&o.name)
	c.bytes(&o.value)
	c.bool(&o.remove)
	c.u32(&o.flags)
	c.i64(&o.time)
}

// Flags of SetXattr.
const (
	xattrCreate  = 1
	xattrReplace = 2
)

// Bounds in bytes. The first two are the kernel's own: a longer value can't be
// set, and longer names could never be listed. The third leaves room for what
// else metadata.MaxInodeBytes counts.
const (
	maxXattrValue = 64 << 10
	maxXattrNames = 64 << 10  // of one inode, each with a NUL
	maxXattrs     = 128 << 10 // names and values of one inode
)

func (o *xattrOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	n, err := v.inode(o.ino)
	if err != nil {
		return nil, err
	}
	i := sort.Search(len(n.Xattrs), func(i int) bool { return n.Xattrs[i].Name >= o.name })
	found := i < len(n.Xattrs) && n.Xattrs[i].Name == o.name
	names, total := len(o.name)+1, len(o.name)+len(o.value)
	for _, x := range n.Xattrs {
		if x.Name != o.name {
			names += len(x.Name) + 1
			total += len(x.Name) + len(x.Value)
		}
	}
	switch {
	case o.remove && !found, !o.remove && o.flags&xattrReplace != 0 && !found:
		return nil, ErrNoXattr
	case !o.remove && o.flags&xattrCreate != 0 && found:
		return nil, ErrExist
	case !o.remove && (names > maxXattrNames || total > maxXattrs):
		return nil, ErrXattrBig
	}
	return func(journal.LSN, journal.Loc) {
		c := *n
		c.Ctime = o.time
		c.Xattrs = make([]metadata.Xattr, 0, len(n.Xattrs)+1)
		c.Xattrs = append(c.Xattrs, n.Xattrs[:i]...)
		rest := n.Xattrs[i:]
		if found {
			rest = rest[1:]
		}
		if !o.remove {
			c.Xattrs = append(c.Xattrs, metadata.Xattr{Name: o.name, Value: o.value})
			v.active.mem += int64(total)
		}
		c.Xattrs = append(c.Xattrs, rest...)
		v.active.setInode(&c)
	}, nil
}
