package binlogfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

// Tree is what the archive reads: a volume that is being written to, or one
// commit of it. Paths have no slash at their ends. Errors are the gateway's.
type Tree interface {
	// Names returns a directory's names in ascending order.
	Names(ctx context.Context, dir string) ([]string, error)
	// Open opens a regular file for reading, up to its published end.
	Open(ctx context.Context, name string) (File, error)
}

// File is an open file of a Tree, safe for concurrent use.
type File interface {
	// Read fills p from off on; fewer bytes than len(p) mean the end.
	Read(ctx context.Context, p []byte, off int64) (int, error)
	Close() error
}

// readFile returns a whole file of at most limit bytes.
func readFile(ctx context.Context, t Tree, name string, limit int) ([]byte, error) {
	f, err := t.Open(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer f.Close() // only read
	body := make([]byte, 0, 4096)
	for {
		body = slices.Grow(body, 4096)
		room := body[len(body):cap(body)]
		n, err := f.Read(ctx, room, int64(len(body)))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		body = body[:len(body)+n]
		if len(body) > limit {
			return nil, fmt.Errorf("%s: it is longer than %d bytes", name, limit)
		}
		if n < len(room) {
			return body, nil
		}
	}
}

// ViewTree is one commit of a volume.
type ViewTree struct{ V *gateway.View }

// Names implements Tree.
func (t ViewTree) Names(_ context.Context, dir string) ([]string, error) {
	n, err := t.V.Lookup("/" + dir)
	if err != nil {
		return nil, err
	}
	var names []string
	err = t.V.Names(n.ID, func(d metadata.Dentry) bool {
		names = append(names, d.Name)
		return true
	})
	slices.Sort(names)
	return names, err
}

// Open implements Tree.
func (t ViewTree) Open(_ context.Context, name string) (File, error) {
	n, err := t.V.Lookup("/" + name)
	if err != nil {
		return nil, err
	}
	return t.V.Open(n.ID)
}

// VolumeTree is a volume with this process as its writer.
type VolumeTree struct{ V *gateway.Volume }

// node is a node of the volume, retained until done was called.
func (t VolumeTree) node(ctx context.Context, name string) (n *gateway.Inode, done func(), err error) {
	ino := metadata.RootInode
	held := false
	forget := func() {
		if held {
			t.V.Forget(ino, 1)
		}
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" {
			continue
		}
		next, err := t.V.Lookup(ctx, ino, part)
		forget()
		if err != nil {
			return nil, nil, err
		}
		n, ino, held = next, next.ID, true
	}
	if n == nil {
		n, err = t.V.GetAttr(ctx, ino)
	}
	return n, forget, err
}

// Names implements Tree.
func (t VolumeTree) Names(ctx context.Context, dir string) ([]string, error) {
	n, done, err := t.node(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer done()
	var names []string
	err = t.V.ReadDir(ctx, n.ID, 0, func(d metadata.Dentry) bool {
		names = append(names, d.Name)
		return true
	})
	slices.Sort(names)
	return names, err
}

// Open implements Tree.
func (t VolumeTree) Open(ctx context.Context, name string) (File, error) { return t.handle(ctx, name) }

func (t VolumeTree) handle(ctx context.Context, name string) (*gateway.Handle, error) {
	n, done, err := t.node(ctx, name)
	if err != nil {
		return nil, err
	}
	defer done()
	return t.V.Open(ctx, n.ID)
}

// size is a file's published end.
func (t VolumeTree) size(ctx context.Context, name string) (int64, error) {
	n, done, err := t.node(ctx, name)
	if err != nil {
		return 0, err
	}
	done()
	return n.Size, nil
}

const (
	modeDir  = 0o40750
	modeFile = 0o100640
)

// mkdirAll makes a directory and those above it.
func (t VolumeTree) mkdirAll(ctx context.Context, dir string) error {
	if dir == "" || dir == "." {
		return nil
	}
	if err := t.mkdirAll(ctx, path.Dir(dir)); err != nil {
		return err
	}
	err := t.create(ctx, dir, modeDir)
	if errors.Is(err, gateway.ErrExist) {
		return nil
	}
	return err
}

// create makes a node.
func (t VolumeTree) create(ctx context.Context, name string, mode uint32) error {
	parent, done, err := t.node(ctx, parentOf(name))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	defer done()
	n, err := t.V.Create(ctx, parent.ID, path.Base(name), mode, 0, gateway.Owner{}, nil)
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	t.V.Forget(n.ID, 1)
	return nil
}

func parentOf(name string) string {
	if dir := path.Dir(name); dir != "." {
		return dir
	}
	return ""
}

// writeFile puts a whole file in place of what has its name, in one step.
func (t VolumeTree) writeFile(ctx context.Context, name string, body []byte) error {
	tmp := name + ".new"
	if err := t.remove(ctx, tmp); err != nil {
		return err
	}
	if err := t.create(ctx, tmp, modeFile); err != nil {
		return err
	}
	h, err := t.handle(ctx, tmp)
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	_, err = h.Write(ctx, body, 0, gateway.WriteFlags{})
	if cerr := h.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	parent, done, err := t.node(ctx, parentOf(name))
	if err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	defer done()
	if err := t.V.Rename(ctx, parent.ID, path.Base(tmp), parent.ID, path.Base(name), 0); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// remove deletes a file; a missing one is no error.
func (t VolumeTree) remove(ctx context.Context, name string) error {
	parent, done, err := t.node(ctx, parentOf(name))
	if errors.Is(err, gateway.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	defer done()
	if err := t.V.Unlink(ctx, parent.ID, path.Base(name)); err != nil && !errors.Is(err, gateway.ErrNotExist) {
		return fmt.Errorf("remove %s: %w", name, err)
	}
	return nil
}

// reader reads a file from a place on.
type reader struct {
	ctx context.Context
	f   File
	off int64
}

// NewReader reads a file from its beginning.
func NewReader(ctx context.Context, f File) io.Reader { return &reader{ctx: ctx, f: f} }

// Read implements io.Reader.
func (r *reader) Read(p []byte) (int, error) {
	n, err := r.f.Read(r.ctx, p, r.off)
	r.off += int64(n)
	if err == nil && n == 0 && len(p) > 0 {
		err = io.EOF
	}
	return n, err
}
