package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

// live is a volume that is open in this process.
type live struct {
	reading
	v *gateway.Volume
	// changed tells the kernel about a name that changed behind its back; nil
	// when there is no mount.
	changed func(parent gateway.InodeID, name string)
	// relayed returns the archive of the binary log relay that runs in this
	// process, and its directory; nil when there is none.
	relayed func() (*binlogfs.Log, string)
}

func newLive(v *gateway.Volume, changed func(gateway.InodeID, string)) *live {
	if changed == nil {
		changed = func(gateway.InodeID, string) {}
	}
	return &live{reading: reading{liveTree{v}}, v: v, changed: changed}
}

func quietLogger() *slog.Logger { return slog.New(slog.DiscardHandler) }

// openKV opens an index's store.
func openKV(log *slog.Logger) func(string) (metadata.KV, error) {
	return func(dir string) (metadata.KV, error) { return metadata.OpenBadgerKV(dir, log) }
}

// parent finds the directory that a new name goes into.
func (l *live) parent(ctx context.Context, name string) (*gateway.Inode, string, error) {
	if name == "" {
		return nil, "", pathError(name, gateway.ErrIsDir)
	}
	dir, base := "", name
	if i := strings.LastIndexByte(name, '/'); i >= 0 {
		dir, base = name[:i], name[i+1:]
	}
	n, err := l.lookup(ctx, dir)
	if err != nil {
		return nil, "", err
	}
	if n.Mode&typeMask != typeDir {
		return nil, "", pathError(dir, gateway.ErrNotDir)
	}
	return n, base, nil
}

// putPiece is how many bytes are written at a time.
const putPiece = 1 << 20

func (l *live) put(ctx context.Context, name string, r io.Reader, o putOptions) (entry, error) {
	dir, base, err := l.parent(ctx, name)
	if err != nil {
		return entry{}, err
	}
	if old, err := l.t.child(ctx, dir.ID, base); err == nil && old.Mode&typeMask == typeDir {
		return entry{}, pathError(name, gateway.ErrIsDir)
	}
	// A file without a name: whatever ends this early leaves nothing behind.
	n, err := l.v.Tmpfile(ctx, dir.ID, o.Mode, gateway.Owner{UID: o.Owner[0], GID: o.Owner[1]})
	if err != nil {
		return entry{}, pathError(name, err)
	}
	defer l.v.Forget(n.ID, 1)
	if err := l.fill(ctx, n.ID, r, o); err != nil {
		return entry{}, pathError(name, err)
	}
	link := func(name string) error {
		n, err := l.v.Link(ctx, n.ID, dir.ID, name)
		if err == nil {
			l.v.Forget(n.ID, 1)
		}
		return err
	}
	if err := l.publish(ctx, dir.ID, base, link); err != nil {
		return entry{}, pathError(name, err)
	}
	l.changed(dir.ID, base)
	if err := l.v.Fsync(ctx, n.ID); err != nil {
		return entry{}, pathError(name, fmt.Errorf("make it durable: %w", err))
	}
	return l.stat(ctx, name, false)
}

// fill writes r's bytes into a file.
func (l *live) fill(ctx context.Context, ino gateway.InodeID, r io.Reader, o putOptions) error {
	h, err := l.v.Open(ctx, ino)
	if err != nil {
		return err
	}
	defer h.Close() // gives a reference back and can't fail
	buf := make([]byte, putPiece)
	for off, more := int64(0), true; more; {
		// Not io.ReadFull, which can't tell the end from a body that broke off.
		k := 0
		for k < len(buf) && more {
			n, err := r.Read(buf[k:])
			k += n
			if err != nil && err != io.EOF {
				return fmt.Errorf("read what to put: %w", err)
			}
			more = err == nil
		}
		if k == 0 {
			break
		}
		if _, err := h.Write(ctx, buf[:k], off, gateway.WriteFlags{}); err != nil {
			return err
		}
		off += int64(k)
	}
	if o.Mtime == 0 {
		return nil
	}
	_, err = l.v.SetAttr(ctx, ino, gateway.SetAttr{Mtime: &o.Mtime, Atime: &o.Mtime})
	return err
}

// publish makes something under a name, in place of what has it. A name can only
// be taken over from another name, so that what replaces something has a hidden
// name for the moment between two operations.
func (l *live) publish(ctx context.Context, dir gateway.InodeID, name string, create func(name string) error) error {
	err := create(name)
	if !errors.Is(err, gateway.ErrExist) {
		return err
	}
	hidden := ".cistern-put-" + rand.Text()
	if err := create(hidden); err != nil {
		return err
	}
	if err := l.v.Rename(ctx, dir, hidden, dir, name, 0); err != nil {
		return errors.Join(err, l.v.Unlink(context.WithoutCancel(ctx), dir, hidden))
	}
	return nil
}

func (l *live) symlink(ctx context.Context, name, target string, o putOptions) error {
	dir, base, err := l.parent(ctx, name)
	if err != nil {
		return err
	}
	if old, err := l.t.child(ctx, dir.ID, base); err == nil && old.Mode&typeMask == typeDir {
		return pathError(name, gateway.ErrIsDir)
	}
	err = l.publish(ctx, dir.ID, base, func(name string) error {
		n, err := l.v.Create(ctx, dir.ID, name, typeLink|0o777, 0, gateway.Owner{UID: o.Owner[0], GID: o.Owner[1]}, []byte(target))
		if err != nil {
			return err
		}
		defer l.v.Forget(n.ID, 1)
		if o.Mtime == 0 {
			return nil
		}
		if _, err = l.v.SetAttr(ctx, n.ID, gateway.SetAttr{Mtime: &o.Mtime, Atime: &o.Mtime}); err != nil {
			return errors.Join(err, l.v.Unlink(context.WithoutCancel(ctx), dir.ID, name))
		}
		return nil
	})
	if err != nil {
		return pathError(name, err)
	}
	l.changed(dir.ID, base)
	if err := l.v.Fsync(ctx, dir.ID); err != nil {
		return pathError(name, fmt.Errorf("make it durable: %w", err))
	}
	return nil
}

func (l *live) mkdir(ctx context.Context, name string, o putOptions) error {
	if name == "" {
		return nil
	}
	dir, base, err := l.parent(ctx, name)
	if err != nil {
		return err
	}
	n, err := l.v.Create(ctx, dir.ID, base, typeDir|o.Mode, 0, gateway.Owner{UID: o.Owner[0], GID: o.Owner[1]}, nil)
	if errors.Is(err, gateway.ErrExist) {
		if n, err = l.t.child(ctx, dir.ID, base); err == nil && n.Mode&typeMask != typeDir {
			err = gateway.ErrNotDir
		}
	} else if err == nil {
		l.v.Forget(n.ID, 1)
		l.changed(dir.ID, base)
	}
	if err != nil {
		return pathError(name, err)
	}
	return nil
}

func (l *live) remove(ctx context.Context, name string, recursive bool) (int64, error) {
	dir, base, err := l.parent(ctx, name)
	if err != nil {
		return 0, err
	}
	n, err := l.t.child(ctx, dir.ID, base)
	if err != nil {
		return 0, pathError(name, err)
	}
	if n.Mode&typeMask == typeDir && !recursive {
		return 0, pathError(name, fmt.Errorf("%w: -r removes a directory and all below it", gateway.ErrIsDir))
	}
	gone, err := l.removeTree(ctx, name, dir.ID, base, n)
	if err != nil {
		return gone, err
	}
	return gone, l.v.Fsync(ctx, dir.ID)
}

// removeTree removes what is below a name, and then the name.
func (l *live) removeTree(ctx context.Context, name string, dir gateway.InodeID, base string, n *gateway.Inode) (gone int64, err error) {
	if n.Mode&typeMask != typeDir {
		err = l.v.Unlink(ctx, dir, base)
	} else {
		const batch = 1000
		for {
			list := make([]metadata.Dentry, 0, 64)
			err := l.t.names(ctx, n.ID, func(d metadata.Dentry) bool { list = append(list, d); return len(list) < batch })
			if err != nil {
				return gone, pathError(name, err)
			}
			for _, d := range list {
				c, err := l.t.inode(ctx, d.Inode)
				if err != nil {
					return gone, pathError(join(name, d.Name), err)
				}
				k, err := l.removeTree(ctx, join(name, d.Name), n.ID, d.Name, c)
				gone += k
				if err != nil {
					return gone, err
				}
			}
			if len(list) < batch {
				break
			}
		}
		err = l.v.Rmdir(ctx, dir, base)
	}
	if err != nil {
		return gone, pathError(name, err)
	}
	l.changed(dir, base)
	return gone + 1, nil
}

func (l *live) sync(ctx context.Context) (metadata.CommitID, error) { return l.v.Sync(ctx) }

func (l *live) collect(ctx context.Context, dry bool) (collected, error) {
	out := collected{DryRun: dry}
	for {
		c, err := l.v.Collect(ctx, dry)
		out.Dead.Things += c.Things
		out.Dead.Bytes += c.Bytes
		out.Dead.Kept = c.Kept
		out.Dead.Keys = c.Keys
		if err != nil {
			return out, err
		}
		if dry || c.Things == 0 {
			break
		}
	}
	var err error
	out.Orphans, err = l.v.CollectOrphans(ctx, dry)
	return out, err
}

func (l *live) check(ctx context.Context, o checkRequest, fn func(checkEvent) error) (checkResult, error) {
	r, err := runCheck(ctx, l.v.Check, o, fn)
	if err != nil || !o.Repair {
		return r, err
	}
	c, err := l.v.CollectOrphans(ctx, false)
	r.Deleted = c.Orphans
	return r, err
}
