package fuse

import (
	"context"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

// engine is what requests are answered from: a writable volume, or a view of
// one commit. Its methods are gateway.Volume's and have their rules.
type engine interface {
	names
	attributes
	Open(ctx context.Context, ino gateway.InodeID) (file, error)
	CopyRange(ctx context.Context, src file, srcOff int64, dst file, dstOff, n int64) (int64, error)
	Fsync(ctx context.Context, ino gateway.InodeID) error
	Statfs() gateway.Statfs
	ReadOnly() bool
	// steady is what a request that makes several calls is answered from: one
	// state. release is called when it is answered.
	steady() (e engine, release func())
}

type names interface {
	Lookup(ctx context.Context, parent gateway.InodeID, name string) (*gateway.Inode, error)
	Forget(ino gateway.InodeID, n uint64)
	Create(ctx context.Context, parent gateway.InodeID, name string, mode, rdev uint32, own gateway.Owner, target []byte) (*gateway.Inode, error)
	Tmpfile(ctx context.Context, parent gateway.InodeID, mode uint32, own gateway.Owner) (*gateway.Inode, error)
	Link(ctx context.Context, ino, newParent gateway.InodeID, newName string) (*gateway.Inode, error)
	Unlink(ctx context.Context, parent gateway.InodeID, name string) error
	Rmdir(ctx context.Context, parent gateway.InodeID, name string) error
	Rename(ctx context.Context, parent gateway.InodeID, name string, newParent gateway.InodeID, newName string, flags uint32) error
	ReadDir(ctx context.Context, ino gateway.InodeID, after uint64, fn func(metadata.Dentry) bool) error
}

type attributes interface {
	GetAttr(ctx context.Context, ino gateway.InodeID) (*gateway.Inode, error)
	SetAttr(ctx context.Context, ino gateway.InodeID, set gateway.SetAttr) (*gateway.Inode, error)
	GetXattr(ctx context.Context, ino gateway.InodeID, name string) ([]byte, error)
	SetXattr(ctx context.Context, ino gateway.InodeID, name string, value []byte, flags uint32) error
	ListXattr(ctx context.Context, ino gateway.InodeID) ([]string, error)
	RemoveXattr(ctx context.Context, ino gateway.InodeID, name string) error
}

// file is an open regular file: gateway.Handle's methods.
type file interface {
	Read(ctx context.Context, p []byte, off int64) (int, error)
	Write(ctx context.Context, p []byte, off int64, flags gateway.WriteFlags) (int, error)
	Fallocate(ctx context.Context, mode uint32, off, length int64) error
	Seek(ctx context.Context, off int64, whence int) (int64, error)
	Close() error
}

// live is a writable volume.
type live struct{ *gateway.Volume }

func (l live) steady() (engine, func()) { return l, func() {} }

func (l live) Open(ctx context.Context, ino gateway.InodeID) (file, error) {
	h, err := l.Volume.Open(ctx, ino)
	if err != nil {
		return nil, err // not h: a nil handle in an interface is not nil
	}
	return h, nil
}

func (l live) CopyRange(ctx context.Context, src file, srcOff int64, dst file, dstOff, n int64) (int64, error) {
	from, okFrom := src.(*gateway.Handle)
	to, okTo := dst.(*gateway.Handle)
	if !okFrom || !okTo {
		return 0, gateway.ErrNotSupport
	}
	return l.Volume.CopyRange(ctx, from, srcOff, to, dstOff, n)
}
