package fuse

import (
	"context"
	"errors"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

// The first two cookies of every directory; the volume's own are greater.
const (
	cookieDot    = 1
	cookieDotDot = 2
)

// OpenDir tells the kernel to do without: reading a directory needs no state,
// the cookie says where to go on. The kernel then also caches the listing
// until the directory changes. Where the volume changes by itself it must not:
// a listing that is on its way when the directory changes would stay.
func (fs *fileSystem) OpenDir(_ <-chan struct{}, _ *fuse.OpenIn, out *fuse.OpenOut) fuse.Status {
	if fs.moves {
		return fuse.OK
	}
	if fs.noOpenDir {
		return fuse.ENOSYS
	}
	out.OpenFlags = fuse.FOPEN_KEEP_CACHE | fuse.FOPEN_CACHE_DIR
	return fuse.OK
}

func (fs *fileSystem) ReleaseDir(*fuse.ReleaseIn) {}

// dots returns those of "." and ".." that come after cookie offset.
func dots(ctx context.Context, v engine, ino, offset uint64) ([]fuse.DirEntry, error) {
	if offset >= cookieDotDot {
		return nil, nil
	}
	dir, err := v.GetAttr(ctx, gateway.InodeID(ino))
	if err != nil {
		return nil, err
	}
	parent := uint64(dir.Parent)
	if parent == 0 {
		parent = ino
	}
	entries := []fuse.DirEntry{
		{Name: ".", Ino: ino, Mode: fuse.S_IFDIR, Off: cookieDot},
		{Name: "..", Ino: parent, Mode: fuse.S_IFDIR, Off: cookieDotDot},
	}
	return entries[offset:], nil
}

func (fs *fileSystem) ReadDir(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	ctx := request(cancel)
	v, release := fs.v.steady()
	defer release()
	dots, err := dots(ctx, v, in.NodeId, in.Offset)
	if err != nil {
		return fs.nodeStatus("readdir", in.NodeId, err)
	}
	for _, e := range dots {
		if !out.AddDirEntry(e) {
			return fuse.OK
		}
	}
	added := len(dots)
	err = v.ReadDir(ctx, gateway.InodeID(in.NodeId), max(in.Offset, cookieDotDot), func(d metadata.Dentry) bool {
		if !out.AddDirEntry(direntOf(d)) {
			return false
		}
		added++
		return true
	})
	if err != nil && added == 0 {
		return fs.nodeStatus("readdir", in.NodeId, err)
	}
	return fuse.OK // an error after the first entry comes again at the next call
}

func direntOf(d metadata.Dentry) fuse.DirEntry {
	return fuse.DirEntry{Name: d.Name, Ino: uint64(d.Inode), Mode: uint32(d.Type) << 12, Off: d.Cookie}
}

// Sizes of a READDIRPLUS entry but for its name, which is padded to 8 bytes.
const plusEntrySize = 128 + 24

func plusSize(name string) int { return plusEntrySize + (len(name)+7)&^7 }

// ReadDirPlus lists names with their attributes. The names are gathered first:
// looking one up inside the volume's listing could wait for itself.
func (fs *fileSystem) ReadDirPlus(cancel <-chan struct{}, in *fuse.ReadIn, out *fuse.DirEntryList) fuse.Status {
	ctx := request(cancel)
	v, release := fs.v.steady()
	defer release()
	dots, err := dots(ctx, v, in.NodeId, in.Offset)
	if err != nil {
		return fs.nodeStatus("readdirplus", in.NodeId, err)
	}
	room := int(in.Size)
	for _, e := range dots {
		if out.AddDirLookupEntry(e) == nil {
			return fuse.OK
		}
		room -= plusSize(e.Name)
	}
	dir := gateway.InodeID(in.NodeId)
	names := make([]metadata.Dentry, 0, 64)
	after := max(in.Offset, cookieDotDot)
	for {
		left := room
		err = v.ReadDir(ctx, dir, after, func(d metadata.Dentry) bool {
			if left -= plusSize(d.Name); left < 0 {
				return false
			}
			names = append(names, d)
			return true
		})
		if err != nil && len(names) == 0 {
			if len(dots) > 0 {
				return fuse.OK
			}
			return fs.nodeStatus("readdirplus", in.NodeId, err)
		}
		listed, lookupErr := fs.addLookups(ctx, v, dir, names, out)
		if listed > 0 || len(dots) > 0 || len(names) == 0 {
			return fuse.OK
		}
		if lookupErr != nil {
			return fs.nodeStatus("readdirplus", in.NodeId, lookupErr)
		}
		// All of them were deleted meanwhile; an empty answer would be the end.
		after = names[len(names)-1].Cookie
		names = names[:0]
	}
}

// addLookups adds names with their attributes, leaving out those that are no
// longer there, and returns how many it added before an error.
func (fs *fileSystem) addLookups(ctx context.Context, v engine, dir gateway.InodeID, names []metadata.Dentry, out *fuse.DirEntryList) (int, error) {
	added := 0
	for _, d := range names {
		n, err := v.Lookup(ctx, dir, d.Name)
		if errors.Is(err, gateway.ErrNotExist) {
			continue
		}
		if err != nil {
			return added, err
		}
		entry := out.AddDirLookupEntry(fuse.DirEntry{
			Name: d.Name, Ino: uint64(n.ID), Mode: n.Mode, Off: d.Cookie,
		})
		if entry == nil {
			v.Forget(n.ID, 1)
			return added, nil
		}
		fs.fillEntry(entry, n)
		added++
	}
	return added, nil
}

// FsyncDir makes the directory's names durable.
func (fs *fileSystem) FsyncDir(cancel <-chan struct{}, in *fuse.FsyncIn) fuse.Status {
	return fs.fsync(cancel, in, "fsyncdir")
}
