package main

import (
	"context"
	"errors"
	"math"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

// A snapshot records the position of the database in it when it is made, where that is
// found within what the snapshot takes anyway: `snapshot show` reads it from the files
// otherwise. Of a volume whose commits are encrypted nothing is recorded, since a pin
// is not.

// recordedLog is the longest binary log that is read for that, in bytes: a server's
// own limit is 1 GiB.
const recordedLog = 64 << 20

// committedTree is a volume of this process as its last commit has it. Binary logs only
// grow, so that their committed bytes can be read from the files as they are now.
type committedTree struct{ liveTree }

func (t committedTree) inode(_ context.Context, ino gateway.InodeID) (*gateway.Inode, error) {
	n, err := t.index().Inode(ino)
	if errors.Is(err, metadata.ErrNotExist) {
		return nil, gateway.ErrNotExist
	}
	return n, err
}

func (t committedTree) child(ctx context.Context, dir gateway.InodeID, name string) (*gateway.Inode, error) {
	d, err := t.index().Lookup(dir, name)
	if errors.Is(err, metadata.ErrNotExist) {
		return nil, gateway.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return t.inode(ctx, d.Inode)
}

func (t committedTree) names(_ context.Context, dir gateway.InodeID, fn func(metadata.Dentry) bool) error {
	return t.index().Names(dir, 0, fn)
}

func (t committedTree) open(ctx context.Context, n *gateway.Inode) (file, error) {
	f, err := t.liveTree.open(ctx, n)
	if err != nil {
		return nil, err
	}
	return cutFile{f, n.Size}, nil
}

// cutFile ends at a size.
type cutFile struct {
	file
	size int64
}

func (f cutFile) Read(ctx context.Context, p []byte, off int64) (int, error) {
	if ctx.Err() != nil { // what is cached is read all the same
		return 0, gateway.ErrInterrupted
	}
	if off >= f.size {
		return 0, nil
	}
	return f.file.Read(ctx, p[:min(int64(len(p)), f.size-off)], off)
}

// volumeDatabase finds the database in the last commit of a volume of this process, as
// long as that is the one that is asked for.
func volumeDatabase(v *gateway.Volume) gateway.DatabaseOf {
	return func(ctx context.Context, id metadata.CommitID) *metadata.PinDatabase {
		if v.EncryptsDocuments() || v.Committed().Head().CommitID != id {
			return nil
		}
		d := recordable(findDatabase(ctx, reading{committedTree{liveTree{v}}}, "", recordedLog))
		if v.Committed().Head().CommitID != id {
			return nil // the next commit was applied meanwhile
		}
		return d
	}
}

// bucketDatabase finds the database in a commit that is read from the bucket, when its
// index is small.
func bucketDatabase(s *store, url string) gateway.DatabaseOf {
	return func(ctx context.Context, id metadata.CommitID) *metadata.PinDatabase {
		if s.doc == nil || s.doc.EncryptsDocuments() {
			return nil
		}
		info, err := gateway.FindCommit(ctx, s, id.N, url)
		if err != nil || !smallIndex(&info) {
			return nil
		}
		kv := metadata.NewMemKV()
		v, err := gateway.OpenView(ctx, gateway.ViewOptions{Store: s, Keys: s.keys, URL: url, KV: kv, Commit: id.N})
		if err != nil {
			_ = kv.Close() // it is memory
			return nil
		}
		d := recordable(findDatabase(ctx, reading{viewTree{v}}, "", recordedLog))
		_ = v.Close() // only read
		return d
	}
}

// recordable is what a pin says of a database that was looked for: nothing when it has
// no binary log, or was not found, for whatever reason.
func recordable(d *database, err error) *metadata.PinDatabase {
	if err != nil || d.File == "" {
		return nil
	}
	return &metadata.PinDatabase{Dir: string(d.Dir), Server: d.Server, File: d.File, Offset: d.Offset, GTID: d.GTID}
}

// databaseAt reads where the database at a point goes on from; nil without one.
func (a *app) databaseAt(ctx context.Context, t target) (*database, error) {
	v, err := a.openView(ctx, t)
	if err != nil {
		return nil, err
	}
	d, err := findDatabase(ctx, reading{viewTree{v.View}}, "", math.MaxInt64)
	if errors.Is(err, errNoDatabase) {
		d, err = nil, nil
	}
	return d, errors.Join(err, v.close())
}
