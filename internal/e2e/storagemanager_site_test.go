package e2e

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/local"
)

// tree is what the cases of Storage Manager do, on a volume in this process or
// through a mount. Paths are from the volume's top. Errors are errno.
type tree interface {
	write(path string, p []byte, off int64) error // makes the file
	read(path string) ([]byte, error)
	truncate(path string, size int64) error
	mkdir(path string) error
	rename(from, to string) error
	unlink(path string) error
	rmdir(path string) error
	list(path string) ([]string, error)
}

// inProcess is a volume in this process.
type inProcess struct {
	t     *testing.T
	store objstore.Store
	state string
	v     *gateway.Volume
}

func (p *inProcess) open() {
	p.t.Helper()
	v, err := gateway.Open(p.t.Context(), gateway.Options{
		Store: p.store, URL: "test://volume", FS: vfs.OS(), StateDir: p.state, OpenKV: func(string) (metadata.KV, error) { return metadata.NewMemKV(), nil },
		Manual: true, CacheBytes: 64 << 20, JournalBytes: 64 << 20, Owner: gateway.HostOwner(p.state),
	})
	if err != nil {
		p.t.Fatal(err)
	}
	p.v = v
}

func (p *inProcess) close() {
	p.t.Helper()
	if err := p.v.Close(context.Background()); err != nil {
		p.t.Fatal(err)
	}
}

// fromBucket ends the volume and opens it without anything local.
func (p *inProcess) fromBucket() {
	p.t.Helper()
	p.close()
	if err := os.RemoveAll(p.state); err != nil {
		p.t.Fatal(err)
	}
	p.open()
}

// errno translates the engine's errors as the file system does.
func errno(err error) error {
	for sentinel, no := range map[error]syscall.Errno{
		gateway.ErrNotExist: syscall.ENOENT, gateway.ErrExist: syscall.EEXIST, gateway.ErrIsDir: syscall.EISDIR, gateway.ErrNotDir: syscall.ENOTDIR,
		gateway.ErrNotEmpty: syscall.ENOTEMPTY, gateway.ErrNameTooLong: syscall.ENAMETOOLONG, gateway.ErrDamaged: syscall.EIO,
	} {
		if errors.Is(err, sentinel) {
			return errors.Join(no, err)
		}
	}
	return err
}

// find returns the inode at a path.
func (p *inProcess) find(path string) (*gateway.Inode, error) {
	n := &gateway.Inode{ID: metadata.RootInode}
	for part := range strings.SplitSeq(path, "/") {
		if path == "" {
			break
		}
		next, err := p.v.Lookup(p.t.Context(), n.ID, part)
		if err != nil {
			return nil, errno(err)
		}
		p.v.Forget(next.ID, 1)
		n = next
	}
	return n, nil
}

// parent returns the directory that a path's last name is in.
func (p *inProcess) parent(path string) (gateway.InodeID, string, error) {
	dir, name := "", path
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		dir, name = path[:i], path[i+1:]
	}
	n, err := p.find(dir)
	if err != nil {
		return 0, name, err
	}
	return n.ID, name, nil
}

func (p *inProcess) write(path string, b []byte, off int64) error {
	n, err := p.find(path)
	if errors.Is(err, syscall.ENOENT) {
		dir, name, perr := p.parent(path)
		if perr != nil {
			return perr
		}
		if n, err = p.v.Create(p.t.Context(), dir, name, 0o100644, 0, gateway.Owner{}, nil); err == nil {
			p.v.Forget(n.ID, 1)
		}
	}
	if err != nil {
		return errno(err)
	}
	h, err := p.v.Open(p.t.Context(), n.ID)
	if err != nil {
		return errno(err)
	}
	defer h.Close()
	k, err := h.Write(p.t.Context(), b, off, gateway.WriteFlags{})
	if err == nil && k != len(b) {
		err = io.ErrShortWrite
	}
	return errno(err)
}

func (p *inProcess) read(path string) ([]byte, error) {
	n, err := p.find(path)
	if err != nil {
		return nil, err
	}
	h, err := p.v.Open(p.t.Context(), n.ID)
	if err != nil {
		return nil, errno(err)
	}
	defer h.Close()
	buf := make([]byte, n.Size)
	for off := int64(0); off < n.Size; {
		k, err := h.Read(p.t.Context(), buf[off:], off)
		if err != nil || k == 0 {
			return nil, errors.Join(errno(err), io.ErrUnexpectedEOF)
		}
		off += int64(k)
	}
	return buf, nil
}

func (p *inProcess) truncate(path string, size int64) error {
	n, err := p.find(path)
	if err == nil {
		_, err = p.v.SetAttr(p.t.Context(), n.ID, gateway.SetAttr{Size: &size})
	}
	return errno(err)
}

func (p *inProcess) mkdir(path string) error {
	dir, name, err := p.parent(path)
	if err != nil {
		return err
	}
	n, err := p.v.Create(p.t.Context(), dir, name, 0o40755, 0, gateway.Owner{}, nil)
	if err == nil {
		p.v.Forget(n.ID, 1)
	}
	return errno(err)
}

func (p *inProcess) rename(from, to string) error {
	d1, n1, err := p.parent(from)
	if err != nil {
		return err
	}
	d2, n2, err := p.parent(to)
	if err != nil {
		return err
	}
	return errno(p.v.Rename(p.t.Context(), d1, n1, d2, n2, 0))
}

func (p *inProcess) unlink(path string) error {
	dir, name, err := p.parent(path)
	if err != nil {
		return err
	}
	return errno(p.v.Unlink(p.t.Context(), dir, name))
}

func (p *inProcess) rmdir(path string) error {
	dir, name, err := p.parent(path)
	if err != nil {
		return err
	}
	return errno(p.v.Rmdir(p.t.Context(), dir, name))
}

func (p *inProcess) list(path string) ([]string, error) {
	n, err := p.find(path)
	if err != nil {
		return nil, err
	}
	var names []string
	err = p.v.ReadDir(p.t.Context(), n.ID, 0, func(d metadata.Dentry) bool { names = append(names, d.Name); return true })
	slices.Sort(names)
	return names, errno(err)
}

// mounted is a mounted directory.
type mounted struct{ dir string }

func (m mounted) at(path string) string { return m.dir + "/" + path }

func (m mounted) write(path string, b []byte, off int64) error {
	f, err := os.OpenFile(m.at(path), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, off)
	return errors.Join(err, f.Close())
}

func (m mounted) read(path string) ([]byte, error) { return os.ReadFile(m.at(path)) }
func (m mounted) truncate(path string, size int64) error {
	return os.Truncate(m.at(path), size)
}
func (m mounted) mkdir(path string) error      { return os.Mkdir(m.at(path), 0o755) }
func (m mounted) rename(from, to string) error { return syscall.Rename(m.at(from), m.at(to)) }
func (m mounted) unlink(path string) error     { return syscall.Unlink(m.at(path)) }
func (m mounted) rmdir(path string) error      { return syscall.Rmdir(m.at(path)) }

func (m mounted) list(path string) ([]string, error) {
	list, err := os.ReadDir(m.at(path))
	var names []string
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names, err
}

// caseStores are the stores that the cases run on.
func caseStores() map[string]func(t *testing.T) objstore.Store {
	return map[string]func(t *testing.T) objstore.Store{
		"file": func(t *testing.T) objstore.Store {
			s, err := local.Create(filepath.Join(t.TempDir(), "bucket"))
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		"s3":  func(t *testing.T) objstore.Store { return newRemote(t, storeserver.Versitygw).store },
		"gcs": func(t *testing.T) objstore.Store { return newRemote(t, storeserver.FakeGCS).store },
	}
}
