package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/faultproxy"
	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
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

// inProcess is a volume in this process, on a machine whose disk and whose way to
// the store a case may harm.
type inProcess struct {
	t      *testing.T
	bucket objstore.Store    // the volume's prefix, bare
	bad    *faultstore.Store // over bucket, of the process under way
	store  objstore.Store    // over bad, with every decorator
	state  string
	disk   *vfs.Fault // of the process under way
	below  vfs.FS     // what it is over; nil for the real one
	kv     *metadata.MemKV
	change func(*gateway.Options)
	log    *bytes.Buffer // of the volume, when it is not nil
	v      *gateway.Volume
}

// keptKV outlives the mount that closes it.
type keptKV struct{ *metadata.MemKV }

func (keptKV) Close() error { return nil }

// start is a new process: nothing of what befell the one before befalls it.
func (p *inProcess) start() {
	p.t.Helper()
	p.bad = faultstore.New(p.bucket, nil)
	p.store = decorated(p.t, p.bad)
	if p.below == nil {
		p.below = vfs.OS()
	}
	p.disk = vfs.NewFault(p.below)
}

func (p *inProcess) tryOpen() error {
	o := gateway.Options{
		Store: p.store, URL: "test://volume", FS: p.disk, StateDir: p.state,
		OpenKV: func(string) (metadata.KV, error) { return keptKV{p.kv}, nil },
		Manual: true, CacheBytes: 64 << 20, JournalBytes: 64 << 20, Owner: gateway.HostOwner(p.state),
	}
	if p.log != nil {
		o.Logger = slog.New(slog.NewTextHandler(p.log, nil))
	}
	if p.change != nil {
		p.change(&o)
	}
	v, err := gateway.Open(p.t.Context(), o)
	if err == nil {
		p.v = v
	}
	return err
}

func (p *inProcess) open() {
	p.t.Helper()
	p.start()
	if err := p.tryOpen(); err != nil {
		p.t.Fatal(err)
	}
}

func (p *inProcess) close() {
	p.t.Helper()
	if err := p.v.Close(context.Background()); err != nil {
		p.t.Fatal(err)
	}
}

// kill ends the process as kill -9 does; open begins the next one.
func (p *inProcess) kill() {
	p.disk.Kill()
	p.bad.Kill()
	_ = p.v.Abandon() // its disk is dead
}

func (p *inProcess) sync() {
	p.t.Helper()
	if _, err := p.v.Sync(p.t.Context()); err != nil {
		p.t.Fatal(err)
	}
}

func (p *inProcess) fsync() {
	p.t.Helper()
	if err := p.v.Fsync(p.t.Context(), metadata.RootInode); err != nil {
		p.t.Fatal(err)
	}
}

// fromBucket ends the volume and opens it without anything local.
func (p *inProcess) fromBucket() {
	p.t.Helper()
	p.close()
	p.forget()
	p.open()
}

// forget takes away what is local.
func (p *inProcess) forget() {
	p.t.Helper()
	if err := p.below.RemoveAll(p.state); err != nil {
		p.t.Fatal(err)
	}
	p.kv = metadata.NewMemKV()
}

// errno translates the engine's errors as the file system does.
func errno(err error) error {
	for sentinel, no := range map[error]syscall.Errno{
		gateway.ErrNotExist: syscall.ENOENT, gateway.ErrExist: syscall.EEXIST, gateway.ErrIsDir: syscall.EISDIR, gateway.ErrNotDir: syscall.ENOTDIR,
		gateway.ErrNotEmpty: syscall.ENOTEMPTY, gateway.ErrNameTooLong: syscall.ENAMETOOLONG, gateway.ErrDamaged: syscall.EIO,
		gateway.ErrNoSpace: syscall.ENOSPC,
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

// caseBucket is a store that the cases run on.
type caseBucket struct {
	bare  objstore.Store
	proxy *faultproxy.Proxy // in front of a real server; nil for a directory
	kind  storeserver.Kind  // of that server
}

// volume formats one below a prefix of its own and opens it.
func (b caseBucket) volume(t *testing.T, name string, change func(p *inProcess)) *inProcess {
	t.Helper()
	bucket := objstore.WithPrefix(b.bare, name+"/")
	if _, err := gateway.Format(t.Context(), gateway.FormatOptions{Store: decorated(t, bucket), URL: "test://volume", ObjectSize: 8192}); err != nil {
		t.Fatal(err)
	}
	p := &inProcess{t: t, bucket: bucket, state: filepath.Join(t.TempDir(), "state"), kv: metadata.NewMemKV()}
	if change != nil {
		change(p)
	}
	p.open()
	return p
}

// caseStores are the stores that the cases run on.
func caseStores() map[string]func(t *testing.T) caseBucket {
	server := func(kind storeserver.Kind) func(t *testing.T) caseBucket {
		return func(t *testing.T) caseBucket {
			r := newRemote(t, kind)
			return caseBucket{r.bare, r.proxy, kind}
		}
	}
	return map[string]func(t *testing.T) caseBucket{
		"file": func(t *testing.T) caseBucket {
			s, err := local.Create(filepath.Join(t.TempDir(), "bucket"))
			if err != nil {
				t.Fatal(err)
			}
			return caseBucket{bare: s}
		},
		"s3":  server(storeserver.Versitygw),
		"gcs": server(storeserver.FakeGCS),
	}
}
