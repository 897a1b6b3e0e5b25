package fuse

import (
	"context"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

// fixed is one commit of a volume: nothing changes and nothing can be changed,
// so nothing needs to be retained either.
type fixed struct{ view *gateway.View }

func (f fixed) steady() (engine, func())       { return f, func() {} }
func (f fixed) ReadOnly() bool                 { return true }
func (f fixed) Forget(gateway.InodeID, uint64) {}

func (f fixed) GetAttr(_ context.Context, ino gateway.InodeID) (*gateway.Inode, error) {
	return f.view.Inode(ino)
}

func (f fixed) Lookup(_ context.Context, parent gateway.InodeID, name string) (*gateway.Inode, error) {
	n, err := f.view.Inode(parent)
	if err != nil || name == "." {
		return n, err
	}
	if n.Mode&modeType != unix.S_IFDIR {
		return nil, gateway.ErrNotDir
	}
	if name == ".." {
		return f.view.Inode(n.Parent)
	}
	d, err := f.view.Index().Lookup(parent, name)
	if errors.Is(err, metadata.ErrNotExist) {
		return nil, gateway.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return f.view.Inode(d.Inode)
}

// directory says whether ino is one.
func (f fixed) directory(ino gateway.InodeID) error {
	n, err := f.view.Inode(ino)
	if err != nil {
		return err
	}
	if n.Mode&modeType != unix.S_IFDIR {
		return gateway.ErrNotDir
	}
	return nil
}

func (f fixed) ReadDir(_ context.Context, ino gateway.InodeID, after uint64, fn func(metadata.Dentry) bool) error {
	if err := f.directory(ino); err != nil {
		return err
	}
	return f.view.Index().Names(ino, after, fn)
}

func (f fixed) GetXattr(_ context.Context, ino gateway.InodeID, name string) ([]byte, error) {
	n, err := f.view.Inode(ino)
	if err != nil {
		return nil, err
	}
	for _, x := range n.Xattrs {
		if x.Name == name {
			return x.Value, nil
		}
	}
	return nil, gateway.ErrNoXattr
}

func (f fixed) ListXattr(_ context.Context, ino gateway.InodeID) ([]string, error) {
	n, err := f.view.Inode(ino)
	if err != nil {
		return nil, err
	}
	list := make([]string, 0, len(n.Xattrs))
	for _, x := range n.Xattrs {
		list = append(list, x.Name)
	}
	return list, nil
}

// Statfs shows a volume that is exactly full.
func (f fixed) Statfs() gateway.Statfs {
	t := f.view.Head().Totals
	return gateway.Statfs{Total: t.UsedBytes, Used: t.UsedBytes, Inodes: t.Inodes}
}

func (f fixed) Open(_ context.Context, ino gateway.InodeID) (file, error) {
	h, err := f.view.Open(ino)
	if err != nil {
		return nil, err
	}
	return fixedFile{h}, nil
}

// What can't be done to a fixed commit.

func (f fixed) SetAttr(context.Context, gateway.InodeID, gateway.SetAttr) (*gateway.Inode, error) {
	return nil, gateway.ErrReadOnly
}

func (f fixed) Create(context.Context, gateway.InodeID, string, uint32, uint32, gateway.Owner, []byte) (*gateway.Inode, error) {
	return nil, gateway.ErrReadOnly
}

func (f fixed) Tmpfile(context.Context, gateway.InodeID, uint32, gateway.Owner) (*gateway.Inode, error) {
	return nil, gateway.ErrReadOnly
}

func (f fixed) Link(context.Context, gateway.InodeID, gateway.InodeID, string) (*gateway.Inode, error) {
	return nil, gateway.ErrReadOnly
}

func (f fixed) Unlink(context.Context, gateway.InodeID, string) error { return gateway.ErrReadOnly }
func (f fixed) Rmdir(context.Context, gateway.InodeID, string) error  { return gateway.ErrReadOnly }

func (f fixed) Rename(context.Context, gateway.InodeID, string, gateway.InodeID, string, uint32) error {
	return gateway.ErrReadOnly
}

func (f fixed) SetXattr(context.Context, gateway.InodeID, string, []byte, uint32) error {
	return gateway.ErrReadOnly
}

func (f fixed) RemoveXattr(context.Context, gateway.InodeID, string) error {
	return gateway.ErrReadOnly
}

func (f fixed) CopyRange(context.Context, file, int64, file, int64, int64) (int64, error) {
	return 0, gateway.ErrReadOnly
}

// Fsync has nothing to do: all of it is in the bucket.
func (f fixed) Fsync(context.Context, gateway.InodeID) error { return nil }

// fixedFile is an open file of a fixed commit.
type fixedFile struct{ *gateway.ViewFile }

func (f fixedFile) Write(context.Context, []byte, int64, gateway.WriteFlags) (int, error) {
	return 0, gateway.ErrReadOnly
}

func (f fixedFile) Fallocate(context.Context, uint32, int64, int64) error { return gateway.ErrReadOnly }
