package fuse

import (
	"context"
	"math"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
)

const (
	modeType  = unix.S_IFMT
	modePerm  = 0o7777
	modeSetID = unix.S_ISUID | unix.S_ISGID
)

// blockSize is st_blksize. Larger ones make the kernel believe in blocks
// beyond a page.
const blockSize = 4096

// splitTime turns nanoseconds since 1970 into seconds and the rest in [0, 1e9).
func splitTime(ns int64) (sec uint64, nsec uint32) {
	s, n := ns/1e9, ns%1e9
	if n < 0 {
		s, n = s-1, n+1e9
	}
	return uint64(s), uint32(n)
}

// joinTime is splitTime's inverse; what int64 nanoseconds can't hold (before
// 1677, after 2262) is moved to the nearest time that they can.
func joinTime(sec uint64, nsec uint32) int64 {
	s := int64(sec)
	switch {
	case s > math.MaxInt64/int64(1e9)-1:
		return math.MaxInt64
	case s < math.MinInt64/int64(1e9)+1:
		return math.MinInt64
	}
	return s*1e9 + int64(nsec)
}

func fileSize(n *gateway.Inode) uint64 {
	if n.Mode&modeType == unix.S_IFLNK {
		return uint64(len(n.Target))
	}
	return uint64(n.Size)
}

func fillAttr(a *fuse.Attr, n *gateway.Inode) {
	a.Ino = uint64(n.ID)
	a.Size = fileSize(n)
	a.Blocks = (uint64(n.Alloc) + 511) / 512
	a.Atime, a.Atimensec = splitTime(n.Atime)
	a.Mtime, a.Mtimensec = splitTime(n.Mtime)
	a.Ctime, a.Ctimensec = splitTime(n.Ctime)
	a.Mode = n.Mode
	a.Nlink = n.Nlink
	a.Uid = n.UID
	a.Gid = n.GID
	a.Rdev = n.Rdev
	a.Blksize = blockSize
}

// fillEntry answers a request that leaves the kernel with one more reference
// to n.
func (fs *fileSystem) fillEntry(out *fuse.EntryOut, n *gateway.Inode) {
	out.NodeId = uint64(n.ID)
	out.Generation = 0
	out.SetEntryTimeout(fs.timeout)
	out.SetAttrTimeout(fs.timeout)
	fillAttr(&out.Attr, n)
}

func (fs *fileSystem) GetAttr(cancel <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	n, err := fs.v.GetAttr(request(cancel), gateway.InodeID(in.NodeId))
	if err != nil {
		return fs.nodeStatus("getattr", in.NodeId, err)
	}
	out.SetTimeout(fs.timeout)
	fillAttr(&out.Attr, n)
	return fuse.OK
}

func (fs *fileSystem) Statx(cancel <-chan struct{}, in *fuse.StatxIn, out *fuse.StatxOut) fuse.Status {
	n, err := fs.v.GetAttr(request(cancel), gateway.InodeID(in.NodeId))
	if err != nil {
		return fs.nodeStatus("statx", in.NodeId, err)
	}
	out.SetTimeout(fs.timeout)
	out.Mask = unix.STATX_BASIC_STATS | unix.STATX_BTIME
	out.Blksize = blockSize
	out.Nlink = n.Nlink
	out.Statx.Uid = n.UID
	out.Statx.Gid = n.GID
	out.Mode = uint16(n.Mode)
	out.Ino = uint64(n.ID)
	out.Size = fileSize(n)
	out.Blocks = (uint64(n.Alloc) + 511) / 512
	out.Atime.Sec, out.Atime.Nsec = splitTime(n.Atime)
	out.Btime.Sec, out.Btime.Nsec = splitTime(n.Btime)
	out.Ctime.Sec, out.Ctime.Nsec = splitTime(n.Ctime)
	out.Mtime.Sec, out.Mtime.Nsec = splitTime(n.Mtime)
	// The kernel's 32-bit device number: 12 bits of major inside the minor.
	out.RdevMajor = n.Rdev & 0xfff00 >> 8
	out.RdevMinor = n.Rdev&0xff | n.Rdev>>12&0xfff00
	return fuse.OK
}

func (fs *fileSystem) SetAttr(cancel <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	set, err := setAttrOf(in, time.Now().UnixNano())
	if err != nil {
		return fs.nodeStatus("setattr", in.NodeId, err)
	}
	var n *gateway.Inode
	err = fs.attend(cancel, &in.InHeader, func(ctx context.Context) error {
		n, err = fs.v.SetAttr(ctx, gateway.InodeID(in.NodeId), set)
		return err
	})
	if err != nil {
		return fs.nodeStatus("setattr", in.NodeId, err)
	}
	out.SetTimeout(fs.timeout)
	fillAttr(&out.Attr, n)
	return fuse.OK
}

// setAttrOf translates a SETATTR; now is in nanoseconds since 1970. Whatever
// changes the size also changes mtime: the kernel leaves that out for
// ftruncate and O_TRUNC.
func setAttrOf(in *fuse.SetAttrIn, now int64) (gateway.SetAttr, error) {
	var set gateway.SetAttr
	valid := in.Valid
	if valid&fuse.FATTR_MODE != 0 {
		mode := in.Mode & modePerm
		set.Mode = &mode
	}
	if valid&fuse.FATTR_UID != 0 {
		uid := in.Owner.Uid
		set.UID = &uid
	}
	if valid&fuse.FATTR_GID != 0 {
		gid := in.Owner.Gid
		set.GID = &gid
	}
	if valid&fuse.FATTR_SIZE != 0 {
		if in.Size > gateway.MaxFileSize {
			return set, gateway.ErrTooBig
		}
		size := int64(in.Size)
		set.Size = &size
		set.Mtime = &now
	}
	if valid&fuse.FATTR_ATIME_NOW != 0 {
		set.Atime = &now
	} else if valid&fuse.FATTR_ATIME != 0 {
		t := joinTime(in.Atime, in.Atimensec)
		set.Atime = &t
	}
	if valid&fuse.FATTR_MTIME_NOW != 0 {
		set.Mtime = &now
	} else if valid&fuse.FATTR_MTIME != 0 {
		t := joinTime(in.Mtime, in.Mtimensec)
		set.Mtime = &t
	}
	if valid&fuse.FATTR_CTIME != 0 {
		t := joinTime(in.Ctime, in.Ctimensec)
		set.Ctime = &t
	}
	set.KillSetID = valid&fuse.FATTR_KILL_SUIDGID != 0
	return set, nil
}

// Access is never asked with default_permissions.
func (fs *fileSystem) Access(<-chan struct{}, *fuse.AccessIn) fuse.Status { return fuse.ENOSYS }

// hasSetID says whether a write by an ordinary user must clear bits of ino.
func (fs *fileSystem) hasSetID(ctx context.Context, ino gateway.InodeID) bool {
	n, err := fs.v.GetAttr(ctx, ino)
	return err != nil || n.Mode&modeSetID != 0
}

// dropSetID clears ino's set-id bits for an operation about to be done by uid
// whose request, unlike WRITE, can't tell that they must go.
func (fs *fileSystem) dropSetID(ctx context.Context, uid uint32, ino gateway.InodeID) error {
	if uid == 0 || !fs.hasSetID(ctx, ino) {
		return nil
	}
	if _, err := fs.v.SetAttr(ctx, ino, gateway.SetAttr{KillSetID: true}); err != nil {
		return err
	}
	fs.invalidateAttr(ino)
	return nil
}

// invalidateAttr makes the kernel ask for ino's attributes again. Safe inside
// a request: it takes no lock of the inode's.
func (fs *fileSystem) invalidateAttr(ino gateway.InodeID) {
	fs.server.InodeNotify(uint64(ino), -1, 0)
}
