package main

import (
	"io"
	"os"
	"sync"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"
)

// fdatasyncOnly is the FSYNC request's flag for fdatasync (FUSE_FSYNC_FDATASYNC
// of the kernel's header).
const fdatasyncOnly = 1 << 0

// handle is an open file or directory.
type handle struct {
	fd int

	mu      sync.Mutex // guards entries
	entries []os.DirEntry
}

// openFlags keeps what an open of the file below must have. O_DIRECT would ask
// for alignment that the request's buffers don't have, O_APPEND would ignore
// the offset that the kernel has chosen.
func openFlags(flags uint32) int {
	return int(flags)&(unix.O_ACCMODE|unix.O_TRUNC|unix.O_SYNC|unix.O_DSYNC|unix.O_NOATIME) | unix.O_CLOEXEC
}

func (l *loopback) addHandle(fd int, out *fuse.OpenOut) {
	l.mu.Lock()
	defer l.mu.Unlock()
	out.Fh = l.nextFh
	l.nextFh++
	l.handles[out.Fh] = &handle{fd: fd}
	// Nobody else writes below, so the page cache stays right between opens.
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH
}

func (l *loopback) handle(fh uint64) *handle {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.handles[fh]
}

func (l *loopback) release(fh uint64) {
	l.mu.Lock()
	h := l.handles[fh]
	delete(l.handles, fh)
	l.mu.Unlock()
	if h != nil {
		unix.Close(h.fd)
	}
}

func (l *loopback) Create(_ <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	dir := l.fd(in.NodeId)
	flags := openFlags(in.Flags) | int(in.Flags)&unix.O_EXCL | unix.O_CREAT | unix.O_NOFOLLOW
	fd, err := unix.Openat(dir, name, flags, in.Mode)
	if err != nil {
		return fuse.ToStatus(err)
	}
	if status := l.made(&in.InHeader, name, &out.EntryOut); !status.Ok() {
		unix.Close(fd)
		return status
	}
	l.addHandle(fd, &out.OpenOut)
	return fuse.OK
}

func (l *loopback) Tmpfile(_ <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	fd, err := unix.Openat(l.fd(in.NodeId), ".", openFlags(in.Flags)|unix.O_TMPFILE, in.Mode)
	if err != nil {
		return fuse.ToStatus(err)
	}
	err = unix.Fchown(fd, int(in.Uid), int(in.Gid))
	path := -1
	if err == nil {
		path, err = unix.Open(procPath(fd), unix.O_PATH|unix.O_CLOEXEC, 0)
	}
	if err != nil {
		unix.Close(fd)
		return fuse.ToStatus(err)
	}
	if status := l.enter(path, &out.EntryOut); !status.Ok() {
		unix.Close(fd)
		return status
	}
	l.addHandle(fd, &out.OpenOut)
	return fuse.OK
}

func (l *loopback) Open(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	fd, err := unix.Open(procPath(l.fd(in.NodeId)), openFlags(in.Flags), 0)
	if err != nil {
		return fuse.ToStatus(err)
	}
	l.addHandle(fd, out)
	return fuse.OK
}

func (l *loopback) Release(_ <-chan struct{}, in *fuse.ReleaseIn) { l.release(in.Fh) }

func (l *loopback) Read(_ <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	n, err := unix.Pread(l.handle(in.Fh).fd, buf, int64(in.Offset))
	if err != nil {
		return nil, fuse.ToStatus(err)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

func (l *loopback) Write(_ <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	fd := l.handle(in.Fh).fd
	if in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 {
		if err := dropSetID(fd); err != nil {
			return 0, fuse.ToStatus(err)
		}
	}
	n, err := unix.Pwrite(fd, data, int64(in.Offset))
	return uint32(max(n, 0)), fuse.ToStatus(err)
}

// dropSetID clears the set-id bits, which a write by an ordinary user loses.
func dropSetID(fd int) error {
	var st syscall.Stat_t
	if err := fstat(fd, &st); err != nil {
		return err
	}
	mode := st.Mode &^ unix.S_ISUID
	if mode&unix.S_IXGRP != 0 {
		mode &^= unix.S_ISGID
	}
	if mode == st.Mode {
		return nil
	}
	return unix.Fchmod(fd, mode&0o7777)
}

func (l *loopback) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.OK }

func (l *loopback) Fsync(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	fd := l.handle(in.Fh).fd
	if in.FsyncFlags&fdatasyncOnly != 0 {
		return fuse.ToStatus(unix.Fdatasync(fd))
	}
	return fuse.ToStatus(unix.Fsync(fd))
}

func (l *loopback) Fallocate(_ <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	return fuse.ToStatus(unix.Fallocate(l.handle(in.Fh).fd, in.Mode, int64(in.Offset), int64(in.Length)))
}

func (l *loopback) Lseek(_ <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	off, err := unix.Seek(l.handle(in.Fh).fd, int64(in.Offset), int(in.Whence))
	out.Offset = uint64(max(off, 0))
	return fuse.ToStatus(err)
}

func (l *loopback) CopyFileRange(_ <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	from, to := int64(in.OffIn), int64(in.OffOut)
	length := int(min(in.Len, 1<<30)) // the reply has 32 bits
	n, err := unix.CopyFileRange(l.handle(in.FhIn).fd, &from, l.handle(in.FhOut).fd, &to, length, int(in.Flags))
	return uint32(max(n, 0)), fuse.ToStatus(err)
}

func (l *loopback) OpenDir(_ <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	fd, err := unix.Open(procPath(l.fd(in.NodeId)), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fuse.ToStatus(err)
	}
	l.addHandle(fd, out)
	out.OpenFlags = 0
	return fuse.OK
}

func (l *loopback) ReleaseDir(in *fuse.ReleaseIn) { l.release(in.Fh) }

// ReadDir lists from a copy of the names that is taken at offset 0, so that
// offsets stay right while the directory changes.
func (l *loopback) ReadDir(_ <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	h := l.handle(in.Fh)
	h.mu.Lock()
	defer h.mu.Unlock()
	if in.Offset == 0 {
		entries, err := readNames(h.fd)
		if err != nil {
			return fuse.ToStatus(err)
		}
		h.entries = entries
	}
	for i := in.Offset; i < uint64(len(h.entries)); i++ {
		e := h.entries[i]
		if !out.AddDirEntry(fuse.DirEntry{Name: e.Name(), Mode: typeBits(e), Off: i + 1}) {
			break
		}
	}
	return fuse.OK
}

func readNames(fd int) ([]os.DirEntry, error) {
	dir, err := os.Open(procPath(fd))
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	entries, err := dir.ReadDir(-1)
	if err == io.EOF {
		err = nil
	}
	return entries, err
}

func typeBits(e os.DirEntry) uint32 {
	switch {
	case e.IsDir():
		return unix.S_IFDIR
	case e.Type()&os.ModeSymlink != 0:
		return unix.S_IFLNK
	case e.Type()&os.ModeSocket != 0:
		return unix.S_IFSOCK
	case e.Type()&os.ModeNamedPipe != 0:
		return unix.S_IFIFO
	case e.Type()&os.ModeCharDevice != 0:
		return unix.S_IFCHR
	case e.Type()&os.ModeDevice != 0:
		return unix.S_IFBLK
	}
	return unix.S_IFREG
}

func (l *loopback) FsyncDir(_ <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return fuse.ToStatus(unix.Fsync(l.handle(in.Fh).fd))
}
