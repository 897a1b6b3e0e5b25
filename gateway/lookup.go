package gateway

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cisternfs/cistern/metadata"
)

// inode returns the live inode. The caller holds v.mu, shared or exclusive.
func (v *Volume) inode(ino InodeID) (*Inode, error) {
	if n, ok := v.active.inodes[ino]; ok {
		if n == nil {
			return nil, ErrNotExist
		}
		return n, nil
	}
	if v.frozen != nil {
		if n, ok := v.frozen.inodes[ino]; ok {
			if n == nil {
				return nil, ErrNotExist
			}
			return n, nil
		}
	}
	n, err := v.index.Inode(ino)
	if errors.Is(err, metadata.ErrNotExist) {
		return nil, ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("inode %d: %w", ino, err)
	}
	return n, nil
}

// dir returns a live inode that must be a directory. Caller holds v.mu.
func (v *Volume) dir(ino InodeID) (*Inode, error) {
	n, err := v.inode(ino)
	if err != nil {
		return nil, err
	}
	if n.Mode&modeType != modeDir {
		return nil, ErrNotDir
	}
	return n, nil
}

// name looks a live name up. Caller holds v.mu.
func (v *Volume) name(parent InodeID, name string) (metadata.Dentry, error) {
	for _, l := range [...]*layer{v.active, v.frozen} {
		if l == nil {
			continue
		}
		if d := l.dirs[parent]; d != nil {
			if e, ok := d.byName[name]; ok {
				if e == nil {
					return metadata.Dentry{}, ErrNotExist
				}
				return *e, nil
			}
		}
	}
	d, err := v.index.Lookup(parent, name)
	if errors.Is(err, metadata.ErrNotExist) {
		return metadata.Dentry{}, ErrNotExist
	}
	if err != nil {
		return metadata.Dentry{}, fmt.Errorf("name %q in directory %d: %w", name, parent, err)
	}
	return d, nil
}

// names calls fn for the live names of a directory in the order of their
// cookies, from the first above after, until fn returns false. Caller holds
// v.mu.
func (v *Volume) names(parent InodeID, after uint64, fn func(metadata.Dentry) bool) error {
	changed := v.changedNames(parent, after)
	more := true
	upTo := func(cookie uint64) {
		for more {
			e := changed.next(cookie)
			if e == nil {
				return
			}
			more = fn(*e)
		}
	}
	err := v.index.Names(parent, after, func(e metadata.Dentry) bool {
		if changed.hide(e.Name, len(changed)) {
			return true
		}
		upTo(e.Cookie)
		more = more && fn(e)
		return more
	})
	if err != nil {
		return fmt.Errorf("directory %d: %w", parent, err)
	}
	upTo(math.MaxUint64)
	return nil
}

// changedNames goes through the names of one directory that the layers set,
// newest layer first.
type changedNames []nameCursor

type nameCursor struct {
	dir  *dirLayer
	rest []*metadata.Dentry // of dir.list: what is not passed yet
}

func (v *Volume) changedNames(parent InodeID, after uint64) changedNames {
	var c changedNames
	for _, l := range [...]*layer{v.active, v.frozen} {
		if l != nil && l.dirs[parent] != nil {
			c = append(c, nameCursor{l.dirs[parent], l.dirs[parent].after(after)})
		}
	}
	return c
}

// hide says whether one of the newest n layers knows name better than what is
// below them.
func (c changedNames) hide(name string, n int) bool {
	for _, l := range c[:n] {
		if _, ok := l.dir.byName[name]; ok {
			return true
		}
	}
	return false
}

// next passes the live name with the lowest cookie, nil when that is above
// limit or there is none.
func (c changedNames) next(limit uint64) *metadata.Dentry {
	lowest := -1
	for i := range c {
		l := &c[i]
		for len(l.rest) > 0 && (!l.dir.live(l.rest[0]) || c.hide(l.rest[0].Name, i)) {
			l.rest = l.rest[1:]
		}
		if len(l.rest) > 0 && (lowest < 0 || l.rest[0].Cookie < c[lowest].rest[0].Cookie) {
			lowest = i
		}
	}
	if lowest < 0 || c[lowest].rest[0].Cookie > limit {
		return nil
	}
	e := c[lowest].rest[0]
	c[lowest].rest = c[lowest].rest[1:]
	return e
}

// hasNames says whether a directory has any name. Caller holds v.mu.
func (v *Volume) hasNames(parent InodeID) (bool, error) {
	found := false
	err := v.names(parent, 0, func(metadata.Dentry) bool { found = true; return false })
	return found, err
}

// Lookup finds a name and returns its inode, retained once for the caller. "."
// is the inode itself, whatever its type, if it still has a name.
func (v *Volume) Lookup(ctx context.Context, parent InodeID, name string) (*Inode, error) {
	if len(name) > MaxNameLen {
		return nil, ErrNameTooLong
	}
	v.mu.RLock()
	defer v.mu.RUnlock()
	if name == "." {
		n, err := v.inode(parent)
		if err != nil {
			return nil, err
		}
		if n.Nlink == 0 {
			return nil, ErrNotExist
		}
		v.nodes.retain(parent, 1)
		return n, nil
	}
	p, err := v.dir(parent)
	if err != nil {
		return nil, err
	}
	ino := p.Parent
	if name != ".." {
		d, err := v.name(parent, name)
		if err != nil {
			return nil, err
		}
		ino = d.Inode
	}
	n, err := v.inode(ino)
	if errors.Is(err, ErrNotExist) {
		return nil, fmt.Errorf("%w: name %q in directory %d leads to inode %d, which does not exist", ErrDamaged, name, parent, ino)
	}
	if err != nil {
		return nil, err
	}
	if name == ".." {
		v.nodes.retain(ino, 1)
	} else {
		v.nodes.named(ino, parent, name)
	}
	return n, nil
}

// GetAttr returns an inode's attributes.
func (v *Volume) GetAttr(ctx context.Context, ino InodeID) (*Inode, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.inode(ino)
}

// readDirBatch bounds the names that one hold of v.mu collects.
const readDirBatch = 512

// ReadDir calls fn for the names of a directory in the order of their cookies,
// from the first above after, until fn returns false. Cookies are above 2 and
// stay valid as long as the name does. fn runs without locks.
func (v *Volume) ReadDir(ctx context.Context, ino InodeID, after uint64, fn func(metadata.Dentry) bool) error {
	for {
		batch := make([]metadata.Dentry, 0, 64)
		v.mu.RLock()
		_, err := v.dir(ino)
		if err == nil {
			err = v.names(ino, after, func(d metadata.Dentry) bool {
				batch = append(batch, d)
				return len(batch) < readDirBatch
			})
		}
		v.mu.RUnlock()
		if err != nil {
			return err
		}
		for _, d := range batch {
			if !fn(d) {
				return nil
			}
			after = d.Cookie
		}
		if len(batch) < readDirBatch {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return ErrInterrupted
		}
	}
}
