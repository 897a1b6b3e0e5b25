package gateway

import (
	"context"
)

// Create makes a node of the type in mode's upper bits and returns it retained
// once. target is a symbolic link's. Errors: ErrExist, ErrNotExist, ErrNotDir,
// ErrNameTooLong, and those of every change (ErrNoSpace, ErrReadOnly, …).
func (v *Volume) Create(ctx context.Context, parent InodeID, name string, mode, rdev uint32, own Owner, target []byte) (*Inode, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if len(target) > 4095 {
		return nil, ErrNameTooLong
	}
	return v.create(ctx, &createOp{parent: parent, name: name, mode: mode, rdev: rdev, uid: own.UID, gid: own.GID, target: target})
}

// Tmpfile makes a regular file without a name and returns it retained once.
func (v *Volume) Tmpfile(ctx context.Context, parent InodeID, mode uint32, own Owner) (*Inode, error) {
	return v.create(ctx, &createOp{parent: parent, mode: mode&modePerm | modeRegular, uid: own.UID, gid: own.GID})
}

func (v *Volume) create(ctx context.Context, op *createOp) (*Inode, error) {
	res, err := v.reserve(ctx, len(op.name)+len(op.target))
	if err != nil {
		return nil, err
	}
	defer res.Release()
	v.mu.Lock()
	defer v.mu.Unlock()
	op.time = v.clock()
	op.ino = v.nextInode
	if _, err := v.doLocked(res.Reservation, op, nil); err != nil {
		return nil, err
	}
	v.nodes.named(op.ino, op.parent, op.name)
	return v.inode(op.ino)
}

// Link gives an inode a further name and returns it retained once.
func (v *Volume) Link(ctx context.Context, ino, newParent InodeID, newName string) (*Inode, error) {
	res, err := v.reserve(ctx, len(newName))
	if err != nil {
		return nil, err
	}
	defer res.Release()
	v.mu.Lock()
	defer v.mu.Unlock()
	op := &linkOp{ino: ino, parent: newParent, name: newName, time: v.clock()}
	if _, err := v.doLocked(res.Reservation, op, nil); err != nil {
		return nil, err
	}
	v.nodes.named(ino, newParent, newName)
	return v.inode(ino)
}

// Unlink takes a name of anything but a directory away.
func (v *Volume) Unlink(ctx context.Context, parent InodeID, name string) error {
	return v.unlink(ctx, &unlinkOp{parent: parent, name: name})
}

// Rmdir takes the name of an empty directory away.
func (v *Volume) Rmdir(ctx context.Context, parent InodeID, name string) error {
	return v.unlink(ctx, &unlinkOp{parent: parent, name: name, dir: true})
}

func (v *Volume) unlink(ctx context.Context, op *unlinkOp) error {
	res, err := v.reserve(ctx, len(op.name))
	if err != nil {
		return err
	}
	defer res.Release()
	v.mu.Lock()
	op.time = v.clock()
	d, _ := v.name(op.parent, op.name)
	_, err = v.doLocked(res.Reservation, op, nil)
	v.mu.Unlock()
	if err == nil {
		v.mayReap(d.Inode)
	}
	return err
}

// Rename moves a name; flags are RenameNoReplace or RenameExchange.
func (v *Volume) Rename(ctx context.Context, parent InodeID, name string, newParent InodeID, newName string, flags uint32) error {
	if flags&^(RenameNoReplace|RenameExchange) != 0 || flags == RenameNoReplace|RenameExchange {
		return ErrInvalid
	}
	res, err := v.reserve(ctx, len(name)+len(newName))
	if err != nil {
		return err
	}
	defer res.Release()
	op := &renameOp{parent: parent, name: name, newParent: newParent, newName: newName, flags: flags}
	v.mu.Lock()
	op.time = v.clock()
	old, _ := v.name(newParent, newName)
	_, err = v.doLocked(res.Reservation, op, nil)
	v.mu.Unlock()
	if err == nil && old.Inode != 0 {
		v.mayReap(old.Inode)
	}
	return err
}

// GetXattr returns an extended attribute's value; ErrNoXattr when there is none.
func (v *Volume) GetXattr(ctx context.Context, ino InodeID, name string) ([]byte, error) {
	n, err := v.GetAttr(ctx, ino)
	if err != nil {
		return nil, err
	}
	for _, x := range n.Xattrs {
		if x.Name == name {
			return x.Value, nil
		}
	}
	return nil, ErrNoXattr
}

// ListXattr returns the names of an inode's extended attributes.
func (v *Volume) ListXattr(ctx context.Context, ino InodeID) ([]string, error) {
	n, err := v.GetAttr(ctx, ino)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(n.Xattrs))
	for i, x := range n.Xattrs {
		names[i] = x.Name
	}
	return names, nil
}

// SetXattr sets an extended attribute; flags are XATTR_CREATE and XATTR_REPLACE.
// ErrXattrBig: the value is longer than 64 KiB, or the inode's names come to
// more than 64 KiB or names and values to more than 128 KiB.
func (v *Volume) SetXattr(ctx context.Context, ino InodeID, name string, value []byte, flags uint32) error {
	switch {
	case name == "":
		return ErrInvalid
	case len(name) > MaxNameLen:
		return ErrNameTooLong
	case len(value) > maxXattrValue:
		return ErrXattrBig
	case flags&^(xattrCreate|xattrReplace) != 0 || flags == xattrCreate|xattrReplace:
		return ErrInvalid
	}
	return v.change(ctx, &xattrOp{ino: ino, name: name, value: value, flags: flags, time: v.clock()}, len(name)+len(value))
}

// RemoveXattr removes an extended attribute.
func (v *Volume) RemoveXattr(ctx context.Context, ino InodeID, name string) error {
	return v.change(ctx, &xattrOp{ino: ino, name: name, remove: true, time: v.clock()}, len(name))
}

// SetSettings changes the volume's quota and retention; 0 means none.
func (v *Volume) SetSettings(ctx context.Context, quotaBytes, retentionSec int64) error {
	return v.change(ctx, &setOp{quota: quotaBytes, retention: retentionSec}, 0)
}
