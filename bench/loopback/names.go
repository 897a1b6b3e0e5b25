package main

import (
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// cacheTime is how long the kernel may believe names and attributes: nobody
// else changes the directory below.
const cacheTime = time.Minute

// inodeKey names an inode of the file system below. An open descriptor keeps
// its number from being reused.
type inodeKey struct{ dev, ino uint64 }

// node is an inode that the kernel knows.
type node struct {
	key     inodeKey
	fd      int    // O_PATH
	lookups uint64 // the kernel's references
}

// loopback is the file system.
type loopback struct {
	fuse.RawFileSystem // answers every other request with ENOSYS

	mu      sync.Mutex // guards the fields below
	nodes   map[uint64]*node
	byInode map[inodeKey]uint64
	nextID  uint64
	handles map[uint64]*handle
	nextFh  uint64
}

func newLoopback(source string) (*loopback, error) {
	fd, err := unix.Open(source, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", source, err)
	}
	return &loopback{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		nodes:         map[uint64]*node{fuse.FUSE_ROOT_ID: {fd: fd, lookups: 1}},
		byInode:       map[inodeKey]uint64{},
		nextID:        fuse.FUSE_ROOT_ID + 1,
		handles:       map[uint64]*handle{},
		nextFh:        1,
	}, nil
}

func (l *loopback) String() string { return "loopback" }

// path descriptor of a node; the kernel only names nodes that it has not forgotten.
func (l *loopback) fd(id uint64) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := l.nodes[id]; n != nil {
		return n.fd
	}
	return -1
}

// procPath is a path that reopens an O_PATH descriptor.
func procPath(fd int) string { return fmt.Sprintf("/proc/self/fd/%d", fd) }

// enter makes the O_PATH descriptor fd a node, or finds the node that it is
// already, and fills the reply. It owns fd.
func (l *loopback) enter(fd int, out *fuse.EntryOut) fuse.Status {
	var st syscall.Stat_t
	if err := fstat(fd, &st); err != nil {
		unix.Close(fd)
		return fuse.ToStatus(err)
	}
	key := inodeKey{st.Dev, st.Ino}
	l.mu.Lock()
	id, known := l.byInode[key]
	if known {
		l.nodes[id].lookups++
	} else {
		id = l.nextID
		l.nextID++
		l.byInode[key] = id
		l.nodes[id] = &node{key: key, fd: fd, lookups: 1}
	}
	l.mu.Unlock()
	if known {
		unix.Close(fd)
	}
	out.NodeId, out.Generation = id, 1
	out.Attr.FromStat(&st)
	out.SetEntryTimeout(cacheTime)
	out.SetAttrTimeout(cacheTime)
	return fuse.OK
}

func fstat(fd int, st *syscall.Stat_t) error { return syscall.Fstat(fd, st) }

// lookup finds name in parent and enters it.
func (l *loopback) lookup(parent uint64, name string, out *fuse.EntryOut) fuse.Status {
	fd, err := unix.Openat(l.fd(parent), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fuse.ToStatus(err)
	}
	return l.enter(fd, out)
}

// made gives a new name in parent to the caller of the request and enters it.
func (l *loopback) made(h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if err := unix.Fchownat(l.fd(h.NodeId), name, int(h.Uid), int(h.Gid), unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return fuse.ToStatus(err)
	}
	return l.lookup(h.NodeId, name, out)
}

func (l *loopback) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	return l.lookup(h.NodeId, name, out)
}

func (l *loopback) Forget(id, n uint64) {
	l.mu.Lock()
	nd := l.nodes[id]
	gone := nd != nil && id != fuse.FUSE_ROOT_ID && nd.lookups <= n
	if gone {
		delete(l.nodes, id)
		delete(l.byInode, nd.key)
	} else if nd != nil && id != fuse.FUSE_ROOT_ID {
		nd.lookups -= n
	}
	l.mu.Unlock()
	if gone {
		unix.Close(nd.fd)
	}
}

func (l *loopback) Mknod(_ <-chan struct{}, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if err := unix.Mknodat(l.fd(in.NodeId), name, in.Mode, int(in.Rdev)); err != nil {
		return fuse.ToStatus(err)
	}
	return l.made(&in.InHeader, name, out)
}

func (l *loopback) Mkdir(_ <-chan struct{}, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	if err := unix.Mkdirat(l.fd(in.NodeId), name, in.Mode); err != nil {
		return fuse.ToStatus(err)
	}
	return l.made(&in.InHeader, name, out)
}

func (l *loopback) Symlink(_ <-chan struct{}, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	if err := unix.Symlinkat(target, l.fd(h.NodeId), name); err != nil {
		return fuse.ToStatus(err)
	}
	return l.made(h, name, out)
}

func (l *loopback) Readlink(_ <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(l.fd(h.NodeId), "", buf)
	if err != nil {
		return nil, fuse.ToStatus(err)
	}
	return buf[:n], fuse.OK
}

func (l *loopback) Link(_ <-chan struct{}, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	if err := unix.Linkat(unix.AT_FDCWD, procPath(l.fd(in.Oldnodeid)), l.fd(in.NodeId), name, unix.AT_SYMLINK_FOLLOW); err != nil {
		return fuse.ToStatus(err)
	}
	return l.lookup(in.NodeId, name, out)
}

func (l *loopback) Unlink(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return fuse.ToStatus(unix.Unlinkat(l.fd(h.NodeId), name, 0))
}

func (l *loopback) Rmdir(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return fuse.ToStatus(unix.Unlinkat(l.fd(h.NodeId), name, unix.AT_REMOVEDIR))
}

func (l *loopback) Rename(_ <-chan struct{}, in *fuse.RenameIn, from, to string) fuse.Status {
	return fuse.ToStatus(unix.Renameat2(l.fd(in.NodeId), from, l.fd(in.Newdir), to, uint(in.Flags)))
}

func (l *loopback) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	return l.attr(in.NodeId, out)
}

func (l *loopback) attr(id uint64, out *fuse.AttrOut) fuse.Status {
	var st syscall.Stat_t
	if err := fstat(l.fd(id), &st); err != nil {
		return fuse.ToStatus(err)
	}
	out.Attr.FromStat(&st)
	out.SetTimeout(cacheTime)
	return fuse.OK
}

func (l *loopback) SetAttr(_ <-chan struct{}, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	fd := l.fd(in.NodeId)
	if err := setAttr(fd, in); err != nil {
		return fuse.ToStatus(err)
	}
	return l.attr(in.NodeId, out)
}

func setAttr(fd int, in *fuse.SetAttrIn) error {
	uid, setUID := in.GetUID()
	gid, setGID := in.GetGID()
	if setUID || setGID { // what is not set is -1, which chown leaves alone
		if err := unix.Fchownat(fd, "", int(int32(uid)), int(int32(gid)), unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if size, ok := in.GetSize(); ok {
		if err := unix.Truncate(procPath(fd), int64(size)); err != nil {
			return err
		}
	}
	if mode, ok := in.GetMode(); ok {
		if err := unix.Chmod(procPath(fd), mode); err != nil {
			return err
		}
	}
	atime, setA := in.GetATime()
	mtime, setM := in.GetMTime()
	if !setA && !setM {
		return nil
	}
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, {Nsec: unix.UTIME_OMIT}}
	if setA {
		times[0] = unix.NsecToTimespec(atime.UnixNano())
	}
	if setM {
		times[1] = unix.NsecToTimespec(mtime.UnixNano())
	}
	return unix.UtimesNanoAt(fd, "", times, unix.AT_EMPTY_PATH)
}

func (l *loopback) GetXAttr(_ <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	n, err := unix.Getxattr(procPath(l.fd(h.NodeId)), name, dest)
	return uint32(max(n, 0)), fuse.ToStatus(err)
}

func (l *loopback) ListXAttr(_ <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	n, err := unix.Listxattr(procPath(l.fd(h.NodeId)), dest)
	return uint32(max(n, 0)), fuse.ToStatus(err)
}

func (l *loopback) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, name string, data []byte) fuse.Status {
	return fuse.ToStatus(unix.Setxattr(procPath(l.fd(in.NodeId)), name, data, int(in.Flags)))
}

func (l *loopback) RemoveXAttr(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	return fuse.ToStatus(unix.Removexattr(procPath(l.fd(h.NodeId)), name))
}

func (l *loopback) StatFs(_ <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	var st syscall.Statfs_t
	if err := syscall.Fstatfs(l.fd(h.NodeId), &st); err != nil {
		return fuse.ToStatus(err)
	}
	out.FromStatfsT(&st)
	return fuse.OK
}
