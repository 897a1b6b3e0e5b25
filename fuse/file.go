package fuse

import (
	"context"
	"errors"
	"math"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
)

// openFlags are every open file's: pages stay valid from one open to the next
// because nobody else writes, and closing needs no FLUSH because every write
// has already reached the volume.
const openFlags = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_NOFLUSH

// open opens ino with open(2)'s flags and fills what both OPEN and CREATE answer.
func (fs *fileSystem) open(ctx context.Context, ino gateway.InodeID, flags uint32, out *fuse.OpenOut) error {
	h, err := fs.v.Open(ctx, ino)
	if err != nil {
		return err
	}
	if l, ok := h.(*gateway.Handle); ok && flags&unix.O_ACCMODE == unix.O_RDONLY {
		l.ExpectScan()
	}
	f := &openFile{handle: h, ino: ino}
	out.OpenFlags = openFlags
	if fs.backing != nil {
		f.shared = true
		if id, ok := fs.backing.open(ino); ok {
			out.OpenFlags = fuse.FOPEN_PASSTHROUGH | fuse.FOPEN_NOFLUSH
			out.BackingID = id
		}
	}
	out.Fh = fs.handles.add(f)
	if out.Fh == 0 {
		return errors.Join(unix.ENFILE, fs.closeFile(f))
	}
	return nil
}

func (fs *fileSystem) closeFile(f *openFile) error {
	if f.shared {
		fs.backing.close(f.ino)
	}
	return f.handle.Close()
}

func (fs *fileSystem) Open(cancel <-chan struct{}, in *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	err := fs.open(request(cancel), gateway.InodeID(in.NodeId), in.Flags, out)
	return fs.nodeStatus("open", in.NodeId, err)
}

// Create makes and opens a file. The kernel has found that the name is free; if
// it was taken since, and not by this mount, ESTALE makes the kernel look it up
// again: it is the kernel that says who may open what is there. With O_EXCL the
// name's being there is the answer.
func (fs *fileSystem) Create(cancel <-chan struct{}, in *fuse.CreateIn, name string, out *fuse.CreateOut) fuse.Status {
	n, err := fs.create(cancel, &in.InHeader, name, unix.S_IFREG|in.Mode&modePerm, 0, nil)
	if errors.Is(err, gateway.ErrExist) && in.Flags&unix.O_EXCL == 0 {
		err = gateway.ErrStale
	}
	return fs.answerCreate("create", cancel, in, n, err, out)
}

// Tmpfile makes and opens a file without a name (O_TMPFILE).
func (fs *fileSystem) Tmpfile(cancel <-chan struct{}, in *fuse.CreateIn, out *fuse.CreateOut) fuse.Status {
	var n *gateway.Inode
	err := fs.attend(cancel, &in.InHeader, func(ctx context.Context) error {
		mode, own, err := fs.placing(ctx, &in.InHeader, unix.S_IFREG|in.Mode&modePerm)
		if err != nil {
			return err
		}
		n, err = fs.v.Tmpfile(ctx, gateway.InodeID(in.NodeId), mode, own)
		return err
	})
	return fs.answerCreate("tmpfile", cancel, in, n, err, out)
}

func (fs *fileSystem) answerCreate(op string, cancel <-chan struct{}, in *fuse.CreateIn, n *gateway.Inode, err error, out *fuse.CreateOut) fuse.Status {
	if err != nil {
		return fs.nameStatus(op, in.NodeId, err)
	}
	if err = fs.open(request(cancel), n.ID, in.Flags, &out.OpenOut); err != nil {
		fs.v.Forget(n.ID, 1)
		return fs.nameStatus(op, in.NodeId, err)
	}
	fs.fillEntry(&out.EntryOut, n)
	return fuse.OK
}

func (fs *fileSystem) Release(_ <-chan struct{}, in *fuse.ReleaseIn) {
	f := fs.handles.remove(in.Fh)
	if f == nil {
		return
	}
	if err := fs.closeFile(f); err != nil {
		fs.complaints.report("release", in.NodeId, err)
	}
}

// Flush is not needed: see openFlags.
func (fs *fileSystem) Flush(<-chan struct{}, *fuse.FlushIn) fuse.Status { return fuse.ENOSYS }

// Read fills the reply's own buffer.
func (fs *fileSystem) Read(cancel <-chan struct{}, in *fuse.ReadIn, buf []byte) (fuse.ReadResult, fuse.Status) {
	f := fs.handles.get(in.Fh)
	if f == nil {
		return nil, fuse.EBADF
	}
	if in.Offset > math.MaxInt64 {
		return nil, fuse.EINVAL
	}
	if in.ReadFlags&fuse.READ_LOCKOWNER == 0 {
		fs.pages.add(f.ino) // before the bytes are read: see dropPages
	}
	n, err := f.handle.Read(request(cancel), buf, int64(in.Offset))
	if err != nil && interrupted(err) {
		err = fs.persist(&in.InHeader, func(ctx context.Context) (err error) {
			n, err = f.handle.Read(ctx, buf, int64(in.Offset))
			return err
		})
	}
	if err != nil {
		return nil, fs.nodeStatus("read", in.NodeId, err)
	}
	return fuse.ReadResultData(buf[:n]), fuse.OK
}

// Write hands data to the volume. Bytes written before an error count: the
// error comes again when the program writes the rest.
func (fs *fileSystem) Write(cancel <-chan struct{}, in *fuse.WriteIn, data []byte) (uint32, fuse.Status) {
	f := fs.handles.get(in.Fh)
	if f == nil {
		return 0, fuse.EBADF
	}
	if in.Offset > gateway.MaxFileSize || in.Offset+uint64(len(data)) > gateway.MaxFileSize {
		return 0, fuse.Status(unix.EFBIG)
	}
	direct := in.WriteFlags&fuse.WRITE_LOCKOWNER != 0
	if !direct {
		fs.pages.add(f.ino)
	}
	ctx := request(cancel)
	kill := in.WriteFlags&fuse.WRITE_KILL_SUIDGID != 0 && fs.hasSetID(ctx, f.ino)
	flags := gateway.WriteFlags{KillSetID: kill}
	n, err := f.handle.Write(ctx, data, int64(in.Offset), flags)
	if err != nil && interrupted(err) {
		err = fs.persist(&in.InHeader, func(ctx context.Context) error {
			m, err := f.handle.Write(ctx, data[n:], int64(in.Offset)+int64(n), flags)
			n += m
			return err
		})
	}
	if kill && n > 0 {
		fs.invalidateAttr(f.ino) // the kernel does not know that the mode changed
	}
	if n == 0 && err != nil {
		return 0, fs.nodeStatus("write", in.NodeId, err)
	}
	if direct && fs.pages.has(f.ino) {
		if err = fs.dropPages(f.ino, int64(in.Offset), int64(n)); err != nil {
			return 0, fs.nodeStatus("write", in.NodeId, err)
		}
	}
	const directSync = unix.O_DIRECT | unix.O_DSYNC
	if in.Flags&directSync == directSync {
		// Asynchronous direct writes end in the kernel without its FSYNC.
		err = fs.attend(cancel, &in.InHeader, func(ctx context.Context) error { return fs.v.Fsync(ctx, f.ino) })
		if err != nil {
			return 0, fs.nodeStatus("write", in.NodeId, err)
		}
	}
	return uint32(n), fuse.OK
}

// dropPages takes the pages of a direct write out of the kernel's cache. For
// an asynchronous write the kernel does so before it only: a buffered read that
// overtook the write in this process would leave an old page there for good.
// Such a read has put the inode into fs.pages before it read the old bytes.
//
// Direct reads and writes are told by their lock owner. For writes that must be
// exact: this waits for pages that are being read or written, and a write
// through the page cache may hold one of its own.
func (fs *fileSystem) dropPages(ino gateway.InodeID, off, n int64) error {
	return notified("inode", ino, fs.server.InodeNotify(uint64(ino), off, n))
}

// Fsync is fsync, fdatasync, msync and what follows a synchronous write.
func (fs *fileSystem) Fsync(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return fs.fsync(cancel, in, "fsync")
}

func (fs *fileSystem) fsync(cancel <-chan struct{}, in *fuse.FsyncIn, op string) fuse.Status {
	ino := gateway.InodeID(in.NodeId)
	err := fs.v.Fsync(request(cancel), ino)
	if err != nil && interrupted(err) {
		err = fs.persist(&in.InHeader, func(ctx context.Context) error { return fs.v.Fsync(ctx, ino) })
	}
	return fs.nodeStatus(op, in.NodeId, err)
}

func (fs *fileSystem) Fallocate(cancel <-chan struct{}, in *fuse.FallocateIn) fuse.Status {
	f := fs.handles.get(in.Fh)
	if f == nil {
		return fuse.EBADF
	}
	if in.Offset > gateway.MaxFileSize || in.Length > gateway.MaxFileSize || in.Offset+in.Length > gateway.MaxFileSize {
		return fuse.Status(unix.EFBIG)
	}
	err := fs.attend(cancel, &in.InHeader, func(ctx context.Context) error {
		if err := fs.dropSetID(ctx, in.Uid, f.ino); err != nil {
			return err
		}
		return f.handle.Fallocate(ctx, in.Mode, int64(in.Offset), int64(in.Length))
	})
	return fs.nodeStatus("fallocate", in.NodeId, err)
}

// Lseek is asked for SEEK_DATA and SEEK_HOLE only.
func (fs *fileSystem) Lseek(cancel <-chan struct{}, in *fuse.LseekIn, out *fuse.LseekOut) fuse.Status {
	f := fs.handles.get(in.Fh)
	if f == nil {
		return fuse.EBADF
	}
	if in.Offset > math.MaxInt64 {
		return fuse.Status(unix.ENXIO) // a negative offset
	}
	var off int64
	err := fs.attend(cancel, &in.InHeader, func(ctx context.Context) (err error) {
		off, err = f.handle.Seek(ctx, int64(in.Offset), int(in.Whence))
		return err
	})
	if err != nil {
		return fs.nodeStatus("lseek", in.NodeId, err)
	}
	out.Offset = uint64(off)
	return fuse.OK
}

// maxCopy bounds one COPY_FILE_RANGE in bytes, so that a signal never waits
// long; programs go on where a short copy ended.
const maxCopy = 1 << 30

func (fs *fileSystem) CopyFileRange(cancel <-chan struct{}, in *fuse.CopyFileRangeIn) (uint32, fuse.Status) {
	src, dst := fs.handles.get(in.FhIn), fs.handles.get(in.FhOut)
	if src == nil || dst == nil {
		return 0, fuse.EBADF
	}
	if in.Flags != 0 || in.OffIn > math.MaxInt64 {
		return 0, fuse.EINVAL
	}
	length := min(in.Len, maxCopy)
	if in.OffOut > gateway.MaxFileSize || in.OffOut+length > gateway.MaxFileSize {
		return 0, fuse.Status(unix.EFBIG)
	}
	var n int64
	err := fs.attend(cancel, &in.InHeader, func(ctx context.Context) error {
		err := fs.dropSetID(ctx, in.Uid, dst.ino)
		if err != nil {
			return err
		}
		n, err = fs.v.CopyRange(ctx, src.handle, int64(in.OffIn), dst.handle, int64(in.OffOut), int64(length))
		if n > 0 {
			return nil // what was copied counts; an error comes again
		}
		return err
	})
	if err != nil {
		return 0, fs.nodeStatus("copy_file_range", in.NodeId, err)
	}
	return uint32(n), fuse.OK
}

// Ioctl knows none.
func (fs *fileSystem) Ioctl(<-chan struct{}, *fuse.IoctlIn, []byte, *fuse.IoctlOut, []byte) fuse.Status {
	return fuse.Status(unix.ENOTTY)
}
