package fuse

import (
	"context"
	"log/slog"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/cisternfs/cistern/gateway"
)

// fileSystem is the raw FUSE file system. Its methods are one file a concern:
// attr.go, dir.go, file.go, name.go, xattr.go.
type fileSystem struct {
	fuse.RawFileSystem // answers ENOSYS to what is not here

	v          engine
	ctx        context.Context // the mount's
	dead       func() bool     // the kernel has given the mount up
	timeout    time.Duration   // how long the kernel may believe names and attributes
	log        *slog.Logger
	complaints complaints
	handles    handleTable
	pages      pageTable
	backing    *backings // nil without passthrough
	moves      bool      // the volume changes without the kernel

	server    *fuse.Server // set by Init, before the first request
	noOpenDir bool         // the kernel can do without OPENDIR
}

var _ fuse.RawFileSystem = (*fileSystem)(nil)

func newFileSystem(ctx context.Context, v engine, o *Options) *fileSystem {
	fs := &fileSystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		v:             v,
		ctx:           ctx,
		dead:          func() bool { return false },
		timeout:       o.CacheTimeout,
		log:           o.Logger,
		complaints:    complaints{log: o.Logger},
	}
	_, fs.moves = v.(followed)
	if o.Passthrough != nil {
		fs.backing = newBackings(fs, o.Passthrough)
	}
	return fs
}

func (fs *fileSystem) String() string { return "cistern" }

// Init is called between the kernel's INIT and its first request.
func (fs *fileSystem) Init(s *fuse.Server) {
	fs.server = s
	fs.noOpenDir = s.KernelSettings().Flags64()&fuse.CAP_NO_OPENDIR_SUPPORT != 0
}

// Forget gives back what lookups retained. The kernel sends none for inodes it
// still knows at unmount; those are retained until the volume is closed.
func (fs *fileSystem) Forget(nodeid, nlookup uint64) {
	if nodeid == fuse.FUSE_ROOT_ID {
		return // never looked up
	}
	fs.v.Forget(gateway.InodeID(nodeid), nlookup)
}

// statfsBlock is the block size that statfs answers in, in bytes.
const statfsBlock = 4096

// spareInodes is how many inodes df shows as free: the volume has no limit.
const spareInodes = 1 << 32

func (fs *fileSystem) StatFs(_ <-chan struct{}, _ *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	s := fs.v.Statfs()
	free := max(s.Total-s.Used, 0)
	out.Bsize = statfsBlock
	out.Frsize = statfsBlock
	out.Blocks = uint64(max(s.Total, s.Used)) / statfsBlock
	out.Bfree = uint64(free) / statfsBlock
	out.Bavail = out.Bfree
	out.Files = s.Inodes + spareInodes
	out.Ffree = spareInodes
	out.NameLen = gateway.MaxNameLen
	return fuse.OK
}

// closeAll closes what the kernel left open when the mount died.
func (fs *fileSystem) closeAll() {
	for _, f := range fs.handles.drain() {
		if err := fs.closeFile(f); err != nil {
			fs.complaints.report("close", uint64(f.ino), err)
		}
	}
}
