package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

// tree is where files are read from: a volume that is open, or one commit.
type tree interface {
	inode(ctx context.Context, ino gateway.InodeID) (*gateway.Inode, error)
	child(ctx context.Context, dir gateway.InodeID, name string) (*gateway.Inode, error)
	names(ctx context.Context, dir gateway.InodeID, fn func(metadata.Dentry) bool) error
	open(ctx context.Context, n *gateway.Inode) (file, error)
	index() *metadata.Index
}

// file is an open regular file.
type file interface {
	Read(ctx context.Context, p []byte, off int64) (int, error)
	Close() error
}

type viewTree struct{ v *gateway.View }

func (t viewTree) inode(_ context.Context, ino gateway.InodeID) (*gateway.Inode, error) {
	return t.v.Inode(ino)
}

func (t viewTree) child(_ context.Context, dir gateway.InodeID, name string) (*gateway.Inode, error) {
	d, err := t.v.Index().Lookup(dir, name)
	if errors.Is(err, metadata.ErrNotExist) {
		return nil, gateway.ErrNotExist
	}
	if err != nil {
		return nil, err
	}
	return t.v.Inode(d.Inode)
}

func (t viewTree) names(_ context.Context, dir gateway.InodeID, fn func(metadata.Dentry) bool) error {
	return t.v.Names(dir, fn)
}

func (t viewTree) open(_ context.Context, n *gateway.Inode) (file, error) {
	return viewFile{t.v, n}, nil
}

func (t viewTree) index() *metadata.Index { return t.v.Index() }

type viewFile struct {
	v *gateway.View
	n *gateway.Inode
}

func (f viewFile) Read(ctx context.Context, p []byte, off int64) (int, error) {
	return f.v.Read(ctx, f.n, p, off)
}

func (viewFile) Close() error { return nil }

type liveTree struct{ v *gateway.Volume }

func (t liveTree) inode(ctx context.Context, ino gateway.InodeID) (*gateway.Inode, error) {
	return t.v.GetAttr(ctx, ino)
}

func (t liveTree) child(ctx context.Context, dir gateway.InodeID, name string) (*gateway.Inode, error) {
	n, err := t.v.Lookup(ctx, dir, name)
	if err == nil {
		t.v.Forget(n.ID, 1)
	}
	return n, err
}

func (t liveTree) names(ctx context.Context, dir gateway.InodeID, fn func(metadata.Dentry) bool) error {
	return t.v.ReadDir(ctx, dir, 0, fn)
}

func (t liveTree) open(ctx context.Context, n *gateway.Inode) (file, error) {
	return t.v.Open(ctx, n.ID)
}

func (t liveTree) index() *metadata.Index { return t.v.Committed() }

// Types in st_mode.
const (
	typeMask = 0o170000
	typeDir  = 0o040000
	typeReg  = 0o100000
	typeLink = 0o120000
)

// reading is the half of a service that changes nothing.
type reading struct{ t tree }

// lookup follows a path from the top directory.
func (r reading) lookup(ctx context.Context, name string) (*gateway.Inode, error) {
	n, err := r.t.inode(ctx, metadata.RootInode)
	if err != nil || name == "" {
		return n, err
	}
	for part := range strings.SplitSeq(name, "/") {
		if n.Mode&typeMask != typeDir {
			return nil, pathError(name, gateway.ErrNotDir)
		}
		if n, err = r.t.child(ctx, n.ID, part); err != nil {
			return nil, pathError(name, err)
		}
	}
	return n, nil
}

func (r reading) entry(name string, n *gateway.Inode, slots bool) (entry, error) {
	at := func(ns int64) time.Time { return time.Unix(0, ns).UTC() }
	e := entry{
		Path: text(name), Inode: uint64(n.ID), Mode: n.Mode, Nlink: n.Nlink, UID: n.UID, GID: n.GID, Rdev: n.Rdev,
		Size: n.Size, Staged: n.Staged, Allocated: n.Alloc, Mtime: at(n.Mtime), Ctime: at(n.Ctime), Btime: at(n.Btime), Target: text(n.Target),
	}
	if !slots || n.Mode&typeMask != typeReg {
		return e, nil
	}
	e.Slots = &slotsInfo{}
	err := r.t.index().Slots(n.ID, 0, func(_ uint32, s *metadata.Slot) bool {
		e.Slots.Slots++
		if s.Base != nil {
			e.Slots.Objects++
			e.Slots.ObjectBytes += int64(s.Base.Len)
			e.Slots.StoredBytes += s.Base.StoredLen()
		}
		for i := range s.Patches {
			if p := &s.Patches[i]; !p.Zero {
				e.Slots.StoredBytes += int64(p.StoredLen())
			}
		}
		e.Slots.Patches += len(s.Patches)
		e.Slots.PatchBytes += s.PatchBytes()
		return true
	})
	return e, err
}

func (r reading) stat(ctx context.Context, name string, slots bool) (entry, error) {
	n, err := r.lookup(ctx, name)
	if err != nil {
		return entry{}, err
	}
	return r.entry(name, n, slots)
}

func (r reading) list(ctx context.Context, name string, o listOptions, fn func(entry) error) error {
	n, err := r.lookup(ctx, name)
	if err != nil {
		return err
	}
	if n.Mode&typeMask != typeDir {
		e, err := r.entry(name, n, o.slots)
		if err != nil {
			return err
		}
		return fn(e)
	}
	return r.listDir(ctx, name, n.ID, o, fn)
}

func join(dir, name string) string {
	if dir == "" {
		return name
	}
	return dir + "/" + name
}

// listDir lists a directory in the order of names. It holds the names of the
// directories on the way in memory.
func (r reading) listDir(ctx context.Context, name string, dir gateway.InodeID, o listOptions, fn func(entry) error) error {
	var list []metadata.Dentry
	if err := r.t.names(ctx, dir, func(d metadata.Dentry) bool { list = append(list, d); return true }); err != nil {
		return pathError(name, err)
	}
	slices.SortFunc(list, func(a, b metadata.Dentry) int { return strings.Compare(a.Name, b.Name) })
	for _, d := range list {
		if ctx.Err() != nil {
			return gateway.ErrInterrupted
		}
		below := join(name, d.Name)
		n, err := r.t.inode(ctx, d.Inode)
		if errors.Is(err, gateway.ErrNotExist) {
			continue // removed since the names were read
		}
		if err != nil {
			return pathError(below, err)
		}
		e, err := r.entry(below, n, o.slots)
		if err == nil {
			err = fn(e)
		}
		if err == nil && o.recursive && e.dir() {
			err = r.listDir(ctx, below, d.Inode, o, fn)
			if errors.Is(err, gateway.ErrNotExist) {
				err = nil // as above
			}
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readPiece is how many bytes are read at a time.
const readPiece = 4 << 20

func (r reading) read(ctx context.Context, name string, off, length int64, w io.Writer) error {
	n, err := r.lookup(ctx, name)
	if err != nil {
		return err
	}
	switch n.Mode & typeMask {
	case typeReg:
	case typeDir:
		return pathError(name, gateway.ErrIsDir)
	default:
		return pathError(name, errors.New("is not a regular file"))
	}
	if off < 0 {
		return usage(fmt.Errorf("offset %d: must not be negative", off))
	}
	f, err := r.t.open(ctx, n)
	if err != nil {
		return pathError(name, err)
	}
	defer f.Close() // only read
	buf := make([]byte, min(readPiece, max(n.Size, 4096)))
	for length != 0 {
		if ctx.Err() != nil {
			return gateway.ErrInterrupted
		}
		p := buf
		if length > 0 {
			p = buf[:min(int64(len(buf)), length)]
		}
		k, err := f.Read(ctx, p, off)
		if err != nil {
			return pathError(name, fmt.Errorf("read at %d: %w", off, err))
		}
		if k == 0 {
			return nil
		}
		if _, err := w.Write(p[:k]); err != nil {
			return fmt.Errorf("write what was read: %w", err)
		}
		off += int64(k)
		if length > 0 {
			length -= int64(k)
		}
	}
	return nil
}

// viewService is a volume as its bucket has it.
type viewService struct {
	reading
	v *view
}

// errReadsOnly: a command asked for a change without asking for an owner, which
// its code must not do.
var errReadsOnly = fmt.Errorf("%w: opened for reading only", gateway.ErrReadOnly)

func (s *viewService) put(context.Context, string, io.Reader, putOptions) (entry, error) {
	return entry{}, errReadsOnly
}
func (s *viewService) symlink(context.Context, string, string, putOptions) error {
	return errReadsOnly
}
func (s *viewService) mkdir(context.Context, string, putOptions) error { return errReadsOnly }
func (s *viewService) remove(context.Context, string, bool) (int64, error) {
	return 0, errReadsOnly
}
func (s *viewService) collect(context.Context, bool) (collected, error) {
	return collected{}, errReadsOnly
}

// sync has nothing to do: what is shown is a commit.
func (s *viewService) sync(context.Context) (metadata.CommitID, error) {
	return s.v.Head().CommitID, nil
}

func (s *viewService) check(ctx context.Context, o checkRequest, fn func(checkEvent) error) (checkResult, error) {
	if o.Repair {
		return checkResult{}, errReadsOnly
	}
	return runCheck(ctx, s.v.View.Check, o, fn)
}

func (s *viewService) close(context.Context) error { return s.v.close() }

// runCheck runs a check and turns its answers into events.
func runCheck(ctx context.Context, check func(context.Context, gateway.CheckOptions) (gateway.CheckReport, error), o checkRequest, fn func(checkEvent) error) (checkResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var told error
	tell := func(e checkEvent) {
		if told == nil {
			if told = fn(e); told != nil {
				cancel()
			}
		}
	}
	last := time.Now()
	r, err := check(ctx, gateway.CheckOptions{
		Data: o.Data,
		Problem: func(p gateway.Problem) {
			tell(checkEvent{Problem: &checkProblem{Path: text(p.Path), Inode: uint64(p.Inode), Offset: p.Off, Length: p.Len, Key: p.Key, Reason: p.Reason}})
		},
		Progress: func(done, total int64) {
			if now := time.Now(); now.Sub(last) > 200*time.Millisecond {
				last = now
				tell(checkEvent{Done: done, Total: total})
			}
		},
	})
	if told != nil {
		err = told
	}
	return checkResult{
		Commit: r.Commit, Inodes: r.Inodes, Slots: r.Slots, Objects: r.Objects, Segments: r.Segments, Commits: r.Commits,
		Pages: r.Pages, Bytes: r.Bytes, Orphans: r.Orphans, OrphanBytes: r.OrphanBytes, Problems: r.Problems,
		PlainBytes: r.PlainBytes, StoredBytes: r.StoredBytes, Keys: r.Keys,
	}, err
}
