package gateway

import (
	"bytes"
	"context"
	"errors"
	"maps"
	"slices"

	"github.com/cisternfs/cistern/metadata"
)

// ChangeKind says what happened to a path between two commits.
type ChangeKind string

// Kinds of changes.
const (
	ChangeAdded   ChangeKind = "added"
	ChangeRemoved ChangeKind = "removed"
	ChangeChanged ChangeKind = "changed"
	ChangeRenamed ChangeKind = "renamed" // and perhaps changed
)

// Change is one difference between two commits. Paths are from the top, without
// a slash before them.
type Change struct {
	Kind   ChangeKind
	Path   string // in the later one; of what was removed, in the earlier one
	From   string // of what was renamed: the path in the earlier one
	Before *Inode // nil: added
	After  *Inode // nil: removed

	// Of what is in both.
	Content    bool // bytes or length, or a link's target
	Attributes bool // mode, owner, device, extended attributes
	Times      bool // times of a file whose bytes are the same
}

// Bounds of what Diff holds in memory.
const (
	diffNames   = 512      // names of a directory at a time, of each side
	diffRenames = 64 << 10 // paths of which the other half was not seen yet
)

// Diff calls fn for what differs between two commits of a volume. It reads no
// content: a file's slots tell by what they refer to. Directories are gone
// through in the order of names, and what was renamed comes when both of its
// paths were seen. Beyond 65,536 such paths at a time the rest is told as removed
// and added. Errors: fn's, ErrInterrupted, and the indexes'.
func Diff(ctx context.Context, before, after *View, fn func(Change) error) error {
	d := &differ{ctx: ctx, old: before, new: after, fn: fn, left: map[InodeID]string{}, come: map[InodeID]string{}}
	if err := d.inode("", "", metadata.RootInode, false); err != nil {
		return err
	}
	return d.unpaired()
}

type differ struct {
	ctx      context.Context
	old, new *View
	fn       func(Change) error

	// Inodes that both have, by a path that only one has: until the other shows up.
	left map[InodeID]string // path in old
	come map[InodeID]string // path in new
}

// inode compares what both have, and what is below it. It was renamed itself, or
// a directory above it was when from and to differ.
func (d *differ) inode(from, to string, ino InodeID, renamed bool) error {
	a, err := d.old.Inode(ino)
	if err != nil {
		return err
	}
	b, err := d.new.Inode(ino)
	if err != nil {
		return err
	}
	c := Change{Kind: ChangeChanged, Path: to, Before: a, After: b}
	if renamed {
		c.Kind, c.From = ChangeRenamed, from
	}
	if err := d.compare(&c); err != nil {
		return err
	}
	if renamed || c.Content || c.Attributes || c.Times {
		if err := d.fn(c); err != nil {
			return err
		}
	}
	if a.Mode&modeType != modeDir {
		return nil
	}
	return d.directory(from, to, ino)
}

// compare says how an inode differs.
func (d *differ) compare(c *Change) (err error) {
	a, b := c.Before, c.After
	c.Attributes = a.Mode != b.Mode || a.UID != b.UID || a.GID != b.GID || a.Rdev != b.Rdev || !slices.EqualFunc(a.Xattrs, b.Xattrs, func(x, y metadata.Xattr) bool {
		return x.Name == y.Name && bytes.Equal(x.Value, y.Value)
	})
	if a.Mode&modeType == modeDir {
		return nil // its times say that its names changed, which are told
	}
	c.Content = a.Size != b.Size || !bytes.Equal(a.Target, b.Target)
	// Whatever changes bytes changes the ctime, so that folding does not count.
	if !c.Content && (a.ID != b.ID || a.Ctime != b.Ctime) && a.Mode&modeType == modeRegular {
		if c.Content, err = d.content(a.ID, b.ID); err != nil {
			return err
		}
	}
	c.Times = !c.Content && a.Mtime != b.Mtime
	return nil
}

// content says whether two files' slots differ.
func (d *differ) content(a, b InodeID) (differs bool, err error) {
	check := func(x *metadata.Index, ino InodeID, y *metadata.Index, other InodeID) error {
		var inner error
		err := x.Slots(ino, 0, func(n uint32, s *metadata.Slot) bool {
			var o *metadata.Slot
			if inner = d.ctx.Err(); inner == nil {
				o, inner = y.Slot(other, n)
			}
			differs = inner == nil && !sameContent(s, o)
			return inner == nil && !differs
		})
		return errors.Join(err, inner)
	}
	if err = check(d.old.Index(), a, d.new.Index(), b); err == nil && !differs {
		err = check(d.new.Index(), b, d.old.Index(), a)
	}
	if d.ctx.Err() != nil {
		err = ErrInterrupted
	}
	return differs, err
}

// sameContent says whether two slots are the same by what they refer to, or are
// whole objects of the same checksums.
func sameContent(a, b *metadata.Slot) bool {
	if a.Same(b) {
		return true
	}
	whole := func(s *metadata.Slot) bool { return s != nil && s.Base != nil && len(s.Patches) == 0 }
	return whole(a) && whole(b) && a.Base.Len == b.Base.Len && slices.Equal(a.Base.Sums, b.Base.Sums)
}

// directory compares the names of a directory that both have.
func (d *differ) directory(from, to string, ino InodeID) error {
	olds, news := nameReader{v: d.old, dir: ino}, nameReader{v: d.new, dir: ino}
	for {
		if d.ctx.Err() != nil {
			return ErrInterrupted
		}
		a, err := olds.peek()
		if err != nil {
			return err
		}
		b, err := news.peek()
		if err != nil {
			return err
		}
		switch {
		case a == nil && b == nil:
			return nil
		case b == nil || a != nil && a.Name < b.Name:
			olds.take()
			err = d.gone(below(from, a.Name), a.Inode)
		case a == nil || b.Name < a.Name:
			news.take()
			err = d.came(below(to, b.Name), b.Inode)
		default:
			olds.take()
			news.take()
			err = d.both(below(from, a.Name), below(to, b.Name), a.Inode, b.Inode)
		}
		if err != nil {
			return err
		}
	}
}

func below(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// both handles a name that a directory has in both commits. A file that was
// written anew and put in another's place counts as the changed one.
func (d *differ) both(from, to string, a, b InodeID) error {
	if a == b {
		return d.inode(from, to, a, false)
	}
	x, y, err := d.replaced(a, b)
	if err != nil {
		return err
	}
	if x == nil || y == nil {
		if err := d.gone(from, a); err != nil {
			return err
		}
		return d.came(to, b)
	}
	c := Change{Kind: ChangeChanged, Path: to, Before: x, After: y}
	if err := d.compare(&c); err != nil {
		return err
	}
	if !c.Content && !c.Attributes && !c.Times {
		return nil
	}
	return d.fn(c)
}

// replaced returns two inodes when both are regular files, and each is in one
// commit only.
func (d *differ) replaced(a, b InodeID) (x, y *Inode, err error) {
	if _, err := d.new.Inode(a); !errors.Is(err, ErrNotExist) {
		return nil, nil, err
	}
	if _, err := d.old.Inode(b); !errors.Is(err, ErrNotExist) {
		return nil, nil, err
	}
	if x, err = d.old.Inode(a); err != nil {
		return nil, nil, err
	}
	if y, err = d.new.Inode(b); err != nil {
		return nil, nil, err
	}
	if x.Mode&modeType != modeRegular || y.Mode&modeType != modeRegular {
		return nil, nil, nil
	}
	return x, y, nil
}

// gone handles a path that only the earlier commit has.
func (d *differ) gone(path string, ino InodeID) error {
	if to, ok := d.come[ino]; ok {
		delete(d.come, ino)
		return d.inode(path, to, ino, true)
	}
	_, err := d.new.Inode(ino)
	if err == nil && d.wait(d.left, ino, path) {
		return nil
	}
	if err != nil && !errors.Is(err, ErrNotExist) {
		return err
	}
	return d.removed(path, ino)
}

// came handles a path that only the later commit has.
func (d *differ) came(path string, ino InodeID) error {
	if from, ok := d.left[ino]; ok {
		delete(d.left, ino)
		return d.inode(from, path, ino, true)
	}
	_, err := d.old.Inode(ino)
	if err == nil && d.wait(d.come, ino, path) {
		return nil
	}
	if err != nil && !errors.Is(err, ErrNotExist) {
		return err
	}
	return d.added(path, ino)
}

// wait keeps a path until its other half shows up; false: there is no room, or
// the inode has a path of that side that waits.
func (d *differ) wait(m map[InodeID]string, ino InodeID, path string) bool {
	if _, ok := m[ino]; ok || len(d.left)+len(d.come) >= diffRenames {
		return false
	}
	m[ino] = path
	return true
}

// whole tells about a path that one side has, and hands on what is below it.
func (d *differ) whole(path string, ino InodeID, v *View, tell func(*Inode, string) error, each func(string, InodeID) error) error {
	n, err := v.Inode(ino)
	if err != nil {
		return err
	}
	if err := tell(n, path); err != nil || n.Mode&modeType != modeDir {
		return err
	}
	names := nameReader{v: v, dir: ino}
	for {
		if d.ctx.Err() != nil {
			return ErrInterrupted
		}
		e, err := names.peek()
		if err != nil || e == nil {
			return err
		}
		names.take()
		if err := each(below(path, e.Name), e.Inode); err != nil {
			return err
		}
	}
}

func (d *differ) removed(path string, ino InodeID) error {
	return d.whole(path, ino, d.old, func(n *Inode, path string) error {
		return d.fn(Change{Kind: ChangeRemoved, Path: path, Before: n})
	}, d.gone)
}

func (d *differ) added(path string, ino InodeID) error {
	return d.whole(path, ino, d.new, func(n *Inode, path string) error {
		return d.fn(Change{Kind: ChangeAdded, Path: path, After: n})
	}, d.came)
}

// unpaired tells about paths whose other half never came: of inodes that have
// other names in both commits, or none in one where they are still open.
func (d *differ) unpaired() error {
	for len(d.left)+len(d.come) > 0 { // what is below one may have to wait, too
		if err := d.drain(d.left, d.removed); err != nil {
			return err
		}
		if err := d.drain(d.come, d.added); err != nil {
			return err
		}
	}
	return nil
}

func (d *differ) drain(m map[InodeID]string, tell func(string, InodeID) error) error {
	for _, ino := range slices.Sorted(maps.Keys(m)) {
		path, ok := m[ino]
		if !ok {
			continue // found its other half below another one
		}
		delete(m, ino)
		if err := tell(path, ino); err != nil {
			return err
		}
	}
	return nil
}

// nameReader reads a directory in the order of names, some at a time.
type nameReader struct {
	v    *View
	dir  InodeID
	list []metadata.Dentry // not taken yet
	last string
	end  bool
}

// peek returns the next name, nil after the last.
func (r *nameReader) peek() (*metadata.Dentry, error) {
	if len(r.list) == 0 && !r.end {
		r.list = nil
		err := r.v.Index().SortedNames(r.dir, r.last, func(e metadata.Dentry) bool {
			r.list = append(r.list, e)
			return len(r.list) < diffNames
		})
		if err != nil {
			return nil, err
		}
		r.end = len(r.list) < diffNames
	}
	if len(r.list) == 0 {
		return nil, nil
	}
	return &r.list[0], nil
}

func (r *nameReader) take() {
	r.last = r.list[0].Name
	r.list = r.list[1:]
}
