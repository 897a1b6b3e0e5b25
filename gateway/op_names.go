package gateway

import (
	"errors"
	"fmt"
	"math"

	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
)

// Types of a node in Inode.Mode, as st_mode has them.
const (
	modeType    = 0o170000
	modeSocket  = 0o140000
	modeLink    = 0o120000
	modeRegular = 0o100000
	modeBlock   = 0o060000
	modeDir     = 0o040000
	modeChar    = 0o020000
	modeFIFO    = 0o010000
	modeSetUID  = 0o4000
	modeSetGID  = 0o2000
	modePerm    = 0o7777
)

const maxLinks = math.MaxUint32 / 2

// killSetID clears what a write by an ordinary user clears: set-uid, and
// set-gid where the group may execute.
func killSetID(mode uint32) uint32 {
	mode &^= modeSetUID
	if mode&0o010 != 0 {
		mode &^= modeSetGID
	}
	return mode
}

// cookie gives the readdir position of the new name that a record makes: after
// every other one of its directory.
func cookie(lsn journal.LSN) uint64 { return uint64(lsn)<<1 + 16 }

func checkName(name string) error {
	switch {
	case len(name) > MaxNameLen:
		return ErrNameTooLong
	case name == "":
		return ErrNotExist
	case name == "." || name == "..":
		return ErrInvalid
	}
	for i := 0; i < len(name); i++ {
		if name[i] == 0 || name[i] == '/' {
			return ErrInvalid
		}
	}
	return nil
}

// free says whether a name can be made in a directory, and returns it.
func (v *Volume) free(parent InodeID, name string) (*Inode, error) {
	p, err := v.dir(parent)
	if err != nil {
		return nil, err
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	if p.Nlink == 0 {
		return nil, ErrNotExist
	}
	if _, err := v.name(parent, name); err == nil {
		return nil, ErrExist
	} else if !errors.Is(err, ErrNotExist) {
		return nil, err
	}
	return p, nil
}

// touch gives a changed directory new times and another number of links.
func (v *Volume) touch(p *Inode, now int64, links int) {
	c := *p
	c.Mtime, c.Ctime = now, now
	c.Nlink = uint32(int(c.Nlink) + links)
	v.active.setInode(&c)
}

// createOp makes a node; one without a name joins the orphans.
type createOp struct {
	parent InodeID
	name   string // empty: none
	ino    InodeID
	mode   uint32
	rdev   uint32
	uid    uint32
	gid    uint32
	target []byte
	time   int64
}

func (o *createOp) kind() journal.Op { return opCreate }

func (o *createOp) codec(c *codec) {
	c.ino(&o.parent)
	c.str(&o.name)
	c.ino(&o.ino)
	c.u32(&o.mode)
	c.u32(&o.rdev)
	c.u32(&o.uid)
	c.u32(&o.gid)
	c.bytes(&o.target)
	c.i64(&o.time)
}

func (o *createOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	var p *Inode
	var err error
	if o.name == "" {
		p, err = v.dir(o.parent)
	} else {
		p, err = v.free(o.parent, o.name)
	}
	if err != nil {
		return nil, err
	}
	isDir := o.mode&modeType == modeDir
	if isDir && p.Nlink >= maxLinks {
		return nil, ErrTooManyLink
	}
	return func(lsn journal.LSN, _ journal.Loc) {
		n := &Inode{
			ID: o.ino, Mode: o.mode, UID: o.uid, GID: o.gid, Nlink: 1, Rdev: o.rdev, Target: o.target,
			Atime: o.time, Mtime: o.time, Ctime: o.time, Btime: o.time,
		}
		switch {
		case isDir:
			n.Nlink, n.Parent = 2, o.parent
		case o.mode&modeType == modeLink:
			n.Size = int64(len(o.target))
		}
		v.nextInode = max(v.nextInode, o.ino+1)
		v.active.born++
		v.inodes++
		if o.name == "" {
			n.Nlink = 0
			v.active.orphans[o.ino] = true
		} else {
			v.active.setName(metadata.Dentry{Parent: o.parent, Name: o.name, Inode: o.ino, Type: uint8(o.mode >> 12), Cookie: cookie(lsn)})
			links := 0
			if isDir {
				links = 1
			}
			v.touch(p, o.time, links)
		}
		v.active.setInode(n)
	}, nil
}

// linkOp gives a node a further name, or its first after O_TMPFILE.
type linkOp struct {
	ino    InodeID
	parent InodeID
	name   string
	time   int64
}

func (o *linkOp) kind() journal.Op { return opLink }

func (o *linkOp) codec(c *codec) {
	c.ino(&o.ino)
	c.ino(&o.parent)
	c.str(&o.name)
	c.i64(&o.time)
}

func (o *linkOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	n, err := v.inode(o.ino)
	if err != nil {
		return nil, err
	}
	if n.Mode&modeType == modeDir {
		return nil, ErrNotPermit
	}
	p, err := v.free(o.parent, o.name)
	if err != nil {
		return nil, err
	}
	if n.Nlink >= maxLinks {
		return nil, ErrTooManyLink
	}
	return func(lsn journal.LSN, _ journal.Loc) {
		c := *n
		c.Ctime = o.time
		if c.Nlink == 0 {
			v.active.orphans[c.ID] = false
		}
		c.Nlink++
		v.active.setInode(&c)
		v.active.setName(metadata.Dentry{Parent: o.parent, Name: o.name, Inode: o.ino, Type: uint8(n.Mode >> 12), Cookie: cookie(lsn)})
		v.touch(p, o.time, 0)
	}, nil
}

// unlinkOp takes a name away: of an empty directory when dir is set, of
// anything else when not.
type unlinkOp struct {
	parent InodeID
	name   string
	dir    bool
	time   int64
}

func (o *unlinkOp) kind() journal.Op { return opUnlink }

func (o *unlinkOp) codec(c *codec) {
	c.ino(&o.parent)
	c.str(&o.name)
	c.bool(&o.dir)
	c.i64(&o.time)
}

func (o *unlinkOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	p, err := v.dir(o.parent)
	if err != nil {
		return nil, err
	}
	if len(o.name) > MaxNameLen {
		return nil, ErrNameTooLong
	}
	d, err := v.name(o.parent, o.name)
	if err != nil {
		return nil, err
	}
	n, err := v.victim(d, o.dir)
	if err != nil {
		return nil, err
	}
	return func(journal.LSN, journal.Loc) {
		v.active.dropName(o.parent, o.name)
		links := 0
		if o.dir {
			links = -1
		}
		v.touch(p, o.time, links)
		v.dropLink(n, o.time)
	}, nil
}

// victim returns the inode that a name leads to if the name may go: as a
// directory, which must be empty, or as anything else.
func (v *Volume) victim(d metadata.Dentry, dir bool) (*Inode, error) {
	n, err := v.inode(d.Inode)
	if err != nil {
		return nil, fmt.Errorf("inode %d of name %q: %w", d.Inode, d.Name, err)
	}
	isDir := n.Mode&modeType == modeDir
	switch {
	case dir && !isDir:
		return nil, ErrNotDir
	case !dir && isDir:
		return nil, ErrIsDir
	case isDir:
		full, err := v.hasNames(n.ID)
		if err != nil {
			return nil, err
		}
		if full {
			return nil, ErrNotEmpty
		}
	}
	return n, nil
}

// dropLink takes one name's worth of links from an inode; one that has none
// left joins the orphans.
func (v *Volume) dropLink(n *Inode, now int64) {
	c := *n
	c.Ctime = now
	if c.Mode&modeType == modeDir {
		c.Nlink = 0
	} else {
		c.Nlink--
	}
	if c.Nlink == 0 {
		v.active.orphans[c.ID] = true
	}
	v.active.setInode(&c)
}

// renameOp moves a name, over another one if there is, or swaps two.
type renameOp struct {
	parent, newParent InodeID
	name, newName     string
	flags             uint32
	time              int64
}

func (o *renameOp) kind() journal.Op { return opRename }

func (o *renameOp) codec(c *codec) {
	c.ino(&o.parent)
	c.str(&o.name)
	c.ino(&o.newParent)
	c.str(&o.newName)
	c.u32(&o.flags)
	c.i64(&o.time)
}

func (o *renameOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	if _, err := v.dir(o.parent); err != nil {
		return nil, err
	}
	if np, err := v.dir(o.newParent); err != nil {
		return nil, err
	} else if np.Nlink == 0 {
		return nil, ErrNotExist
	}
	if err := errors.Join(checkName(o.name), checkName(o.newName)); err != nil {
		return nil, firstName(o.name, o.newName)
	}
	from, err := v.name(o.parent, o.name)
	if err != nil {
		return nil, err
	}
	n, err := v.inode(from.Inode)
	if err != nil {
		return nil, fmt.Errorf("inode %d of name %q: %w", from.Inode, o.name, err)
	}
	if err := v.noLoop(n, o.newParent); err != nil {
		return nil, err
	}
	to, err := v.name(o.newParent, o.newName)
	missing := errors.Is(err, ErrNotExist)
	if err != nil && !missing {
		return nil, err
	}
	switch {
	case o.flags&RenameExchange != 0 && missing:
		return nil, ErrNotExist
	case o.flags&RenameExchange != 0:
		return o.planExchange(v, from, to, n)
	case !missing && o.flags&RenameNoReplace != 0:
		return nil, ErrExist
	}
	var old *Inode
	if !missing {
		if to.Inode == from.Inode {
			return func(journal.LSN, journal.Loc) {}, nil // two names of one inode: nothing happens
		}
		if old, err = v.victim(to, n.Mode&modeType == modeDir); err != nil {
			return nil, err
		}
	}
	return func(lsn journal.LSN, _ journal.Loc) { o.apply(v, o.place(lsn, from, to), n, old) }, nil
}

// place gives the new name's readdir position. A name that is replaced keeps
// its own and a file that stays in its directory that of its old name, so that
// a program that renames what it lists meets every file once, and one that
// replaces a file hides it from nobody. to is zero when there is no such name.
func (o *renameOp) place(lsn journal.LSN, from, to metadata.Dentry) uint64 {
	switch {
	case to.Inode != 0:
		return to.Cookie
	case o.parent == o.newParent:
		return from.Cookie
	default:
		return cookie(lsn)
	}
}

func firstName(a, b string) error {
	if err := checkName(a); err != nil {
		return err
	}
	return checkName(b)
}

// noLoop refuses to move a directory into itself or below.
func (v *Volume) noLoop(n *Inode, newParent InodeID) error {
	if n.Mode&modeType != modeDir {
		return nil
	}
	for at := newParent; ; {
		if at == n.ID {
			return ErrInvalid
		}
		if at == metadata.RootInode {
			return nil
		}
		p, err := v.dir(at)
		if err != nil {
			return fmt.Errorf("directory %d above the new name: %w", at, err)
		}
		at = p.Parent
	}
}

func (o *renameOp) apply(v *Volume, at uint64, n, old *Inode) {
	v.active.dropName(o.parent, o.name)
	v.active.setName(metadata.Dentry{Parent: o.newParent, Name: o.newName, Inode: n.ID, Type: uint8(n.Mode >> 12), Cookie: at})
	c := *n
	c.Ctime = o.time
	isDir := n.Mode&modeType == modeDir
	if isDir {
		c.Parent = o.newParent
	}
	v.active.setInode(&c)
	fromLinks, toLinks := 0, 0
	if isDir {
		fromLinks, toLinks = -1, 1
	}
	if old != nil {
		v.dropLink(old, o.time)
		if isDir {
			toLinks--
		}
	}
	v.moveLinks(o.parent, o.newParent, fromLinks, toLinks, o.time)
}

// moveLinks touches the two directories of a rename, which may be one.
func (v *Volume) moveLinks(from, to InodeID, fromLinks, toLinks int, now int64) {
	for _, d := range [...]struct {
		ino   InodeID
		links int
	}{{from, fromLinks}, {to, toLinks}} {
		p, err := v.inode(d.ino)
		if err != nil {
			panic(fmt.Sprintf("gateway: directory %d of a planned rename is gone: %v", d.ino, err))
		}
		v.touch(p, now, d.links)
	}
}

func (o *renameOp) planExchange(v *Volume, from, to metadata.Dentry, n *Inode) (func(journal.LSN, journal.Loc), error) {
	m, err := v.inode(to.Inode)
	if err != nil {
		return nil, fmt.Errorf("inode %d of name %q: %w", to.Inode, o.newName, err)
	}
	if err := v.noLoop(m, o.parent); err != nil {
		return nil, err
	}
	if n.ID == m.ID {
		return func(journal.LSN, journal.Loc) {}, nil
	}
	return func(journal.LSN, journal.Loc) {
		v.active.setName(metadata.Dentry{Parent: o.newParent, Name: o.newName, Inode: n.ID, Type: uint8(n.Mode >> 12), Cookie: to.Cookie})
		v.active.setName(metadata.Dentry{Parent: o.parent, Name: o.name, Inode: m.ID, Type: uint8(m.Mode >> 12), Cookie: from.Cookie})
		fromLinks, toLinks := 0, 0
		for _, x := range [...]struct {
			n      *Inode
			parent InodeID
			delta  int
		}{{n, o.newParent, 1}, {m, o.parent, -1}} {
			c := *x.n
			c.Ctime = o.time
			if c.Mode&modeType == modeDir {
				c.Parent = x.parent
				fromLinks -= x.delta
				toLinks += x.delta
			}
			v.active.setInode(&c)
		}
		v.moveLinks(o.parent, o.newParent, fromLinks, toLinks, o.time)
	}, nil
}

// reapOp frees an inode that has no names.
type reapOp struct {
	ino InodeID
}

func (o *reapOp) kind() journal.Op { return opReap }

func (o *reapOp) codec(c *codec) { c.ino(&o.ino) }

func (o *reapOp) plan(v *Volume) (func(journal.LSN, journal.Loc), error) {
	n, err := v.inode(o.ino)
	if err != nil {
		return nil, err
	}
	if n.Nlink != 0 {
		return nil, fmt.Errorf("%w: inode %d has names and can't be freed", ErrInvalid, o.ino)
	}
	return func(journal.LSN, journal.Loc) {
		c := *n
		v.addAlloc(&c, -n.Alloc)
		v.active.born--
		v.inodes--
		v.active.setInode(&c)
		v.active.inodes[o.ino] = nil
		delete(v.active.files, o.ino)
		v.active.orphans[o.ino] = false
	}, nil
}
