package fuse

import (
	"context"
	"math"
	"time"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

// followed is a volume as its writer's last commit has it. A request is answered
// from one commit: what it asks about names and attributes while the follower
// holds still, and data by the follower's own rule.
type followed struct {
	fixed
	f *gateway.Follower
}

func (f followed) steady() (engine, func()) { return f.fixed, f.f.Hold() }

func (f followed) GetAttr(ctx context.Context, ino gateway.InodeID) (*gateway.Inode, error) {
	defer f.f.Hold()()
	return f.fixed.GetAttr(ctx, ino)
}

func (f followed) Lookup(ctx context.Context, parent gateway.InodeID, name string) (*gateway.Inode, error) {
	defer f.f.Hold()()
	return f.fixed.Lookup(ctx, parent, name)
}

func (f followed) ReadDir(ctx context.Context, ino gateway.InodeID, after uint64, fn func(metadata.Dentry) bool) error {
	defer f.f.Hold()()
	return f.fixed.ReadDir(ctx, ino, after, fn)
}

func (f followed) GetXattr(ctx context.Context, ino gateway.InodeID, name string) ([]byte, error) {
	defer f.f.Hold()()
	return f.fixed.GetXattr(ctx, ino, name)
}

func (f followed) ListXattr(ctx context.Context, ino gateway.InodeID) ([]string, error) {
	defer f.f.Hold()()
	return f.fixed.ListXattr(ctx, ino)
}

func (f followed) Open(ctx context.Context, ino gateway.InodeID) (file, error) {
	defer f.f.Hold()()
	h, err := f.fixed.Open(ctx, ino)
	if err != nil {
		return nil, err
	}
	return followedFile{h, f.f}, nil
}

// followedFile is an open file of a followed volume. Its reads hold nothing.
type followedFile struct {
	file
	f *gateway.Follower
}

func (f followedFile) Seek(ctx context.Context, off int64, whence int) (int64, error) {
	defer f.f.Hold()()
	return f.file.Seek(ctx, off, whence)
}

// MountFollower is Mount for a volume that another process, perhaps on another
// machine, writes to: read-only. The caller starts the follower with the server
// as its Watcher, which makes the kernel forget what changes. Names and
// attributes are believed for a second at most, unless o says otherwise.
func MountFollower(ctx context.Context, f *gateway.Follower, dir string, o Options) (*Server, error) {
	if o.CacheTimeout == 0 {
		o.CacheTimeout = time.Second
	}
	o.Passthrough = nil // what the kernel reads by itself would not move on
	return mount(ctx, followed{fixed{f.View()}, f}, dir, o, (*Server).mountDirect)
}

// DropPages implements gateway.Watcher. The kernel keeps a page locked while it
// is being read, and takes it out of its cache when that has ended: what was
// answered from an earlier commit is gone, too, when this returns. But it leaves a
// page where it is, and does not say so, while a program copies from it; so the
// pages of a move are dropped again at its end, and once more at the next one.
func (s *Server) DropPages(d *gateway.Delta) {
	if s.moved != nil && !d.All {
		s.dropPages(s.moved)
	}
	s.dropPages(d)
	s.moved = d
}

func (s *Server) dropPages(d *gateway.Delta) {
	if d.All {
		s.fs.pages.each(d.Limit, func(ino gateway.InodeID) { s.told(s.Invalidate(ino)) })
		return
	}
	for _, r := range d.Ranges {
		if !s.fs.pages.has(r.Inode) {
			continue
		}
		n := r.End - r.Off
		if r.End == math.MaxInt64 {
			n = 0 // to the end
		}
		s.told(notified("inode", r.Inode, s.raw.InodeNotify(uint64(r.Inode), r.Off, n)))
	}
}

// DropNames implements gateway.Watcher. After a move to a state that was loaded
// anew names and attributes are believed until their time has passed.
func (s *Server) DropNames(d *gateway.Delta) {
	s.dropPages(d)
	for _, ino := range d.Inodes {
		s.told(s.InvalidateAttr(ino))
	}
	for _, n := range d.Names {
		s.told(notified("directory", n.Parent, s.raw.EntryNotify(uint64(n.Parent), n.Name)))
	}
}

// told logs a notification that the kernel did not take.
func (s *Server) told(err error) {
	if err != nil && !s.dead() {
		s.fs.complaints.report("notify", 0, err)
	}
}
