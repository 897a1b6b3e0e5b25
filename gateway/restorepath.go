package gateway

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/cisternfs/cistern/metadata"
)

// restorePrefix begins the hidden name that a restored tree has until it is whole.
const restorePrefix = ".cistern-restore-"

// RestoredPath says what came back.
type RestoredPath struct {
	Files  int64 `json:"files"`
	Others int64 `json:"others"`       // directories, links and other nodes
	Shared int64 `json:"shared_bytes"` // in objects that are shared with the past
	Copied int64 `json:"copied_bytes"` // that were read and written again
	// Replaced says that the path had something, which is gone now but for the
	// snapshot.
	Replaced bool `json:"replaced"`
}

// RestorePathOptions say what comes back, and who hears of it.
type RestorePathOptions struct {
	View *View  // of an earlier commit of the same volume, which the caller keeps pinned until a commit after the call
	Path string // from the top, without a slash at either end; not empty
	// Progress is called now and then with the bytes done and in all; may be nil.
	Progress func(done, total int64)
	// Changed is told a name of which the kernel may believe something else; may
	// be nil.
	Changed func(parent InodeID, name string)
}

// RestorePath brings a file, or a directory with all below it, back to what it was
// at an earlier commit: copies, with new inode numbers, that share objects with
// the past. They get their place in one step when all of it is there, in place of
// what has it; whoever has that open keeps it. The directory that the path lies in
// must exist. When it ends early nothing has changed but a hidden directory entry,
// which the next call for the path removes. Errors: ErrNotExist, ErrNotDir,
// ErrStore, ErrDamaged, ErrNoSpace, ErrQuota, ErrReadOnly, ErrInterrupted.
func (v *Volume) RestorePath(ctx context.Context, o RestorePathOptions) (RestoredPath, error) {
	if o.View.doc.ID != v.doc.ID {
		return RestoredPath{}, fmt.Errorf("%w: the earlier state is of another volume", ErrInvalid)
	}
	if n, base := o.View.Head().N, v.doc.Base().N; n < base {
		return RestoredPath{}, fmt.Errorf("%w: commit %d is of the volume that this one was cloned from at commit %d: copy from that one", ErrInvalid, n, base)
	}
	then, err := o.View.Lookup(o.Path)
	if err != nil || o.Path == "" {
		if err == nil {
			err = ErrInvalid
		}
		return RestoredPath{}, fmt.Errorf("/%s at commit %d: %w", o.Path, o.View.Head().N, err)
	}
	parent, base, err := v.parentOf(ctx, o.Path)
	if err != nil {
		return RestoredPath{}, err
	}
	sum := sha256.Sum256([]byte(base))
	r := &pathRestore{v: v, o: o, ctx: ctx, parent: parent, base: base, hidden: restorePrefix + hex.EncodeToString(sum[:8]), links: map[InodeID]InodeID{}}
	if r.o.Changed == nil {
		r.o.Changed = func(InodeID, string) {}
	}
	if err := r.measure(then); err != nil {
		return r.out, err
	}
	if err := r.drop(r.hidden); err != nil {
		return r.out, fmt.Errorf("remove what an earlier restore of /%s left: %w", o.Path, err)
	}
	if err := r.node(parent, r.hidden, then); err != nil {
		if derr := r.drop(r.hidden); derr != nil && ctx.Err() == nil {
			err = errors.Join(err, derr)
		}
		return r.out, fmt.Errorf("restore /%s: %w", o.Path, err)
	}
	if err := r.swap(); err != nil {
		return r.out, fmt.Errorf("restore /%s: %w", o.Path, err)
	}
	return r.out, v.Fsync(ctx, parent)
}

// parentOf finds the directory of a path, and the name in it.
func (v *Volume) parentOf(ctx context.Context, name string) (InodeID, string, error) {
	dir, base := path.Split(name)
	at := metadata.RootInode
	for part := range strings.SplitSeq(strings.Trim(dir, "/"), "/") {
		if part == "" {
			continue
		}
		n, err := v.Lookup(ctx, at, part)
		if err != nil {
			return 0, "", fmt.Errorf("/%s, in which /%s is to come back: %w", strings.Trim(dir, "/"), name, err)
		}
		v.Forget(n.ID, 1)
		if n.Mode&modeType != modeDir {
			return 0, "", fmt.Errorf("/%s: %w", strings.Trim(dir, "/"), ErrNotDir)
		}
		at = n.ID
	}
	return at, base, nil
}

// pathRestore is one call of RestorePath.
type pathRestore struct {
	v      *Volume
	o      RestorePathOptions
	ctx    context.Context
	parent InodeID
	base   string
	hidden string
	links  map[InodeID]InodeID // what became of files with several names
	out    RestoredPath
	total  int64
}

// measure counts the bytes that are to come back.
func (r *pathRestore) measure(n *Inode) error {
	r.total += n.Alloc
	if n.Mode&modeType != modeDir {
		return nil
	}
	var failed error
	err := r.o.View.Names(n.ID, func(d metadata.Dentry) bool {
		var c *Inode
		if c, failed = r.o.View.Inode(d.Inode); failed == nil {
			failed = r.measure(c)
		}
		return failed == nil
	})
	return errors.Join(err, failed)
}

// node makes a copy of an earlier node under a name, with all below it.
func (r *pathRestore) node(parent InodeID, name string, n *Inode) error {
	if r.ctx.Err() != nil {
		return ErrInterrupted
	}
	if to, ok := r.links[n.ID]; ok {
		l, err := r.v.Link(r.ctx, to, parent, name)
		if err == nil {
			r.v.Forget(l.ID, 1)
		}
		return err
	}
	c, err := r.v.Create(r.ctx, parent, name, n.Mode, n.Rdev, Owner{UID: n.UID, GID: n.GID}, n.Target)
	if err != nil {
		return err
	}
	defer r.v.Forget(c.ID, 1)
	if n.Nlink > 1 && n.Mode&modeType != modeDir {
		r.links[n.ID] = c.ID
	}
	switch n.Mode & modeType {
	case modeRegular:
		r.out.Files++
		err = r.file(c.ID, n)
	case modeDir:
		r.out.Others++
		err = r.below(c.ID, n)
	default:
		r.out.Others++
	}
	if err != nil {
		return err
	}
	for _, x := range n.Xattrs {
		if err := r.v.SetXattr(r.ctx, c.ID, x.Name, x.Value, 0); err != nil {
			return err
		}
	}
	mode := n.Mode &^ modeType
	_, err = r.v.SetAttr(r.ctx, c.ID, SetAttr{Mode: &mode, UID: &n.UID, GID: &n.GID, Atime: &n.Atime, Mtime: &n.Mtime})
	return err
}

func (r *pathRestore) below(dir InodeID, n *Inode) error {
	var list []metadata.Dentry
	if err := r.o.View.Names(n.ID, func(d metadata.Dentry) bool { list = append(list, d); return true }); err != nil {
		return err
	}
	for _, d := range list {
		c, err := r.o.View.Inode(d.Inode)
		if err == nil {
			err = r.node(dir, d.Name, c)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
	}
	return nil
}

// file fills a new file with the bytes of an earlier one, slot by slot.
func (r *pathRestore) file(ino InodeID, n *Inode) error {
	h, err := r.v.Open(r.ctx, ino)
	if err != nil {
		return err
	}
	defer h.Close() // gives a reference back and can't fail
	err = r.o.View.eachSlot(n, 0, n.Size, func(no uint32, s *metadata.Slot, from, to int64) error {
		if s == nil {
			return nil
		}
		if s.Base != nil && len(s.Patches) == 0 && s.Base.Volume == "" && int64(s.Base.Len) == to-from {
			ok, err := r.v.shareBase(r.ctx, h, no, s.Base)
			if err != nil {
				return err
			}
			if ok {
				r.out.Shared += to - from
				r.progress()
				return nil
			}
		}
		return r.copySlot(h, n, s, from, to)
	})
	if err == nil {
		_, err = r.v.SetAttr(r.ctx, ino, SetAttr{Size: &n.Size})
	}
	return err
}

// copySlot reads what is data of a slot and writes it.
func (r *pathRestore) copySlot(h *Handle, n *Inode, s *metadata.Slot, from, to int64) error {
	start := from / r.v.objectSize * r.v.objectSize
	for _, p := range s.Resolve(uint32(from-start), uint32(to-from)) {
		if p.Kind == metadata.PieceZero {
			continue
		}
		for off, end := start+int64(p.Off), start+int64(p.Off)+int64(p.Len); off < end; {
			buf := make([]byte, min(end-off, maxWrite))
			if _, err := r.o.View.Read(r.ctx, n, buf, off); err != nil {
				return err
			}
			if _, err := h.Write(r.ctx, buf, off, WriteFlags{}); err != nil {
				return err
			}
			off += int64(len(buf))
			r.out.Copied += int64(len(buf))
			r.progress()
		}
	}
	return nil
}

func (r *pathRestore) progress() {
	if r.o.Progress != nil {
		r.o.Progress(r.out.Shared+r.out.Copied, max(r.total, r.out.Shared+r.out.Copied))
	}
}

// swap gives the restored tree its name, and removes what had it.
func (r *pathRestore) swap() error {
	err := r.v.Rename(r.ctx, r.parent, r.hidden, r.parent, r.base, RenameNoReplace)
	if errors.Is(err, ErrExist) {
		r.out.Replaced = true
		err = r.v.Rename(r.ctx, r.parent, r.hidden, r.parent, r.base, RenameExchange)
	}
	if err != nil {
		return err
	}
	r.o.Changed(r.parent, r.base)
	r.o.Changed(r.parent, r.hidden)
	return r.drop(r.hidden)
}

// drop removes a name in the parent with all below it, if it is there.
func (r *pathRestore) drop(name string) error {
	ctx := context.WithoutCancel(r.ctx)
	n, err := r.v.Lookup(ctx, r.parent, name)
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	r.v.Forget(n.ID, 1)
	defer r.o.Changed(r.parent, name)
	return r.v.removeTree(ctx, r.parent, name, n)
}

// removeTree removes a name with all below it.
func (v *Volume) removeTree(ctx context.Context, parent InodeID, name string, n *Inode) error {
	if n.Mode&modeType != modeDir {
		return v.Unlink(ctx, parent, name)
	}
	const batch = 1000
	for {
		var list []metadata.Dentry
		err := v.ReadDir(ctx, n.ID, 0, func(d metadata.Dentry) bool { list = append(list, d); return len(list) < batch })
		if err != nil {
			return err
		}
		for _, d := range list {
			c, err := v.GetAttr(ctx, d.Inode)
			if err == nil {
				err = v.removeTree(ctx, n.ID, d.Name, c)
			}
			if err != nil {
				return err
			}
		}
		if len(list) < batch {
			return v.Rmdir(ctx, parent, name)
		}
	}
}

// shareBase makes a slot of a new file consist of an object that an earlier state
// of the volume refers to. It answers false when the bytes must be copied.
func (v *Volume) shareBase(ctx context.Context, dst *Handle, slot uint32, base *metadata.Base) (bool, error) {
	off := int64(slot) * v.objectSize
	res, err := v.reserve(ctx, int(8*v.objectSize/metadata.BlockSize)+1024)
	if err != nil {
		return false, err
	}
	defer res.Release()
	held, err := dst.node.lock.Lock(ctx, off, off+v.objectSize, true)
	if err != nil {
		return false, ErrInterrupted
	}
	defer held.Unlock()
	v.mu.Lock()
	n, err := v.inode(dst.node.id)
	if err != nil || n.Size > off || n.Staged > 0 {
		v.mu.Unlock()
		return false, err // somebody else has found the file and writes into it
	}
	op := &shareOp{ino: dst.node.id, slot: slot, base: *base, time: v.clock(), frames: base.Stored != nil}
	_, err = v.doLocked(res.Reservation, op, nil)
	v.mu.Unlock()
	if errors.Is(err, errWholeLock) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, v.dropCached(dst.node.id, off, off+int64(base.Len))
}
