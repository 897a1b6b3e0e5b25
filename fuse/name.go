package fuse

import (
	"context"
	"errors"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
)

// Lookup finds a name. That there is none is also remembered by the kernel: a
// node id of 0 with a timeout.
func (fs *fileSystem) Lookup(cancel <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if len(name) > gateway.MaxNameLen {
		return fuse.Status(unix.ENAMETOOLONG)
	}
	n, err := fs.v.Lookup(request(cancel), gateway.InodeID(h.NodeId), name)
	if errors.Is(err, gateway.ErrNotExist) {
		out.NodeId = 0
		out.SetEntryTimeout(fs.timeout)
		return fuse.OK
	}
	if err != nil {
		return fs.nameStatus("lookup", h.NodeId, err)
	}
	fs.fillEntry(out, n)
	return fuse.OK
}

// placing works out mode and owner of a new node in directory h.NodeId: a
// directory with the set-group-id bit gives its group to what is made in it,
// and the bit to directories.
func (fs *fileSystem) placing(ctx context.Context, h *fuse.InHeader, mode uint32) (uint32, gateway.Owner, error) {
	own := gateway.Owner{UID: h.Uid, GID: h.Gid}
	dir, err := fs.v.GetAttr(ctx, gateway.InodeID(h.NodeId))
	if err != nil {
		return 0, own, err
	}
	if dir.Mode&unix.S_ISGID != 0 {
		own.GID = dir.GID
		if mode&modeType == unix.S_IFDIR {
			mode |= unix.S_ISGID
		}
	}
	return mode, own, nil
}

// create makes a node of any type; the kernel holds it once afterwards.
func (fs *fileSystem) create(cancel <-chan struct{}, h *fuse.InHeader, name string, mode, rdev uint32, target []byte) (*gateway.Inode, error) {
	if len(name) > gateway.MaxNameLen {
		return nil, gateway.ErrNameTooLong
	}
	var n *gateway.Inode
	err := fs.attend(cancel, h, func(ctx context.Context) error {
		mode, own, err := fs.placing(ctx, h, mode)
		if err != nil {
			return err
		}
		n, err = fs.v.Create(ctx, gateway.InodeID(h.NodeId), name, mode, rdev, own, target)
		return err
	})
	return n, err
}

// answerNew ends an operation that made a name.
func (fs *fileSystem) answerNew(op string, h *fuse.InHeader, n *gateway.Inode, err error, out *fuse.EntryOut) fuse.Status {
	if err != nil {
		return fs.nameStatus(op, h.NodeId, err)
	}
	fs.fillEntry(out, n)
	return fuse.OK
}

func (fs *fileSystem) Mknod(cancel <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	mode := in.Mode & (modeType | modePerm)
	if mode&modeType == 0 {
		mode |= unix.S_IFREG
	}
	n, err := fs.create(cancel, &in.InHeader, name, mode, in.Rdev, nil)
	return fs.answerNew("mknod", &in.InHeader, n, err, out)
}

func (fs *fileSystem) Mkdir(cancel <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	n, err := fs.create(cancel, &in.InHeader, name, unix.S_IFDIR|in.Mode&modePerm, 0, nil)
	return fs.answerNew("mkdir", &in.InHeader, n, err, out)
}

func (fs *fileSystem) Symlink(cancel <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	n, err := fs.create(cancel, h, name, unix.S_IFLNK|0o777, 0, []byte(target))
	return fs.answerNew("symlink", h, n, err, out)
}

func (fs *fileSystem) Readlink(cancel <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	n, err := fs.v.GetAttr(request(cancel), gateway.InodeID(h.NodeId))
	if err != nil {
		return nil, fs.nodeStatus("readlink", h.NodeId, err)
	}
	if n.Mode&modeType != unix.S_IFLNK {
		return nil, fuse.EINVAL
	}
	return n.Target, fuse.OK
}

func (fs *fileSystem) Link(cancel <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	if len(name) > gateway.MaxNameLen {
		return fuse.Status(unix.ENAMETOOLONG)
	}
	var n *gateway.Inode
	err := fs.attend(cancel, &in.InHeader, func(ctx context.Context) (err error) {
		n, err = fs.v.Link(ctx, gateway.InodeID(in.Oldnodeid), gateway.InodeID(in.NodeId), name)
		return err
	})
	return fs.answerNew("link", &in.InHeader, n, err, out)
}

func (fs *fileSystem) Unlink(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return fs.nameStatus("unlink", h.NodeId, fs.attend(cancel, h, func(ctx context.Context) error {
		return fs.v.Unlink(ctx, gateway.InodeID(h.NodeId), name)
	}))
}

func (fs *fileSystem) Rmdir(cancel <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return fs.nameStatus("rmdir", h.NodeId, fs.attend(cancel, h, func(ctx context.Context) error {
		return fs.v.Rmdir(ctx, gateway.InodeID(h.NodeId), name)
	}))
}

// Rename refuses RENAME_WHITEOUT: only overlay file systems use it.
func (fs *fileSystem) Rename(cancel <-chan struct{}, in *fuse.RenameIn, oldName, newName string) fuse.Status {
	if in.Flags&^(gateway.RenameNoReplace|gateway.RenameExchange) != 0 {
		return fuse.EINVAL
	}
	if len(newName) > gateway.MaxNameLen {
		return fuse.Status(unix.ENAMETOOLONG)
	}
	return fs.nameStatus("rename", in.NodeId, fs.attend(cancel, &in.InHeader, func(ctx context.Context) error {
		return fs.v.Rename(ctx, gateway.InodeID(in.NodeId), oldName, gateway.InodeID(in.Newdir), newName, in.Flags)
	}))
}
