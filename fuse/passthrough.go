package fuse

import (
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/cisternfs/cistern/gateway"
)

// backings knows which inodes are open and whether in passthrough: the kernel
// wants every open of an inode alike. Safe for concurrent use.
type backings struct {
	find       func(gateway.InodeID) (int, bool)
	register   func(fd int) (int32, syscall.Errno)
	unregister func(id int32) syscall.Errno
	log        func(msg string, args ...any)

	mu     sync.Mutex // guards the fields below; held during the two ioctls, which don't wait
	inodes map[gateway.InodeID]*backing
	off    bool // the kernel can't
}

// backing is one open inode.
type backing struct {
	opens int
	id    int32
	on    bool
}

func newBackings(fs *fileSystem, find func(gateway.InodeID) (int, bool)) *backings {
	return &backings{
		find: find,
		register: func(fd int) (int32, syscall.Errno) {
			return fs.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
		},
		unregister: func(id int32) syscall.Errno { return fs.server.UnregisterBackingFd(id) },
		log:        fs.log.Warn,
		inodes:     make(map[gateway.InodeID]*backing),
	}
}

// open counts an open of ino and returns the id of its backing file, if it is
// in passthrough. When the kernel refuses, reads go through the volume.
func (b *backings) open(ino gateway.InodeID) (int32, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if e := b.inodes[ino]; e != nil {
		e.opens++
		return e.id, e.on
	}
	e := &backing{opens: 1}
	b.inodes[ino] = e
	if b.off {
		return 0, false
	}
	fd, ok := b.find(ino)
	if !ok {
		return 0, false
	}
	id, errno := b.register(fd)
	if errno != 0 {
		b.off = errno == syscall.EPERM || errno == syscall.EOPNOTSUPP || errno == syscall.ENOTTY || errno == syscall.ENOSYS
		b.log("reads of a file can't bypass this process", "inode", uint64(ino), "error", errno, "tried_again", !b.off)
		return 0, false
	}
	e.id, e.on = id, true
	return id, true
}

// close undoes one open.
func (b *backings) close(ino gateway.InodeID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.inodes[ino]
	if e.opens--; e.opens > 0 {
		return
	}
	delete(b.inodes, ino)
	if e.on {
		if errno := b.unregister(e.id); errno != 0 {
			b.log("release a backing file", "inode", uint64(ino), "error", errno)
		}
	}
}
