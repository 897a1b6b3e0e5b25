package fuse

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
)

const (
	fsName = "cistern"
	fsType = "fuse." + fsName
)

// Server is a mounted volume. Its methods are safe for concurrent use. The
// process that serves a mount must never touch it by path.
type Server struct {
	raw    *fuse.Server
	fs     *fileSystem
	dir    string
	device *os.File // a duplicate of the connection's descriptor; nil with fusermount3
	helper bool
	done   chan struct{}  // closed when nothing is served any more
	moved  *gateway.Delta // the follower's last move; DropPages alone uses it
	log    *slog.Logger
}

// Mount mounts v on dir and serves it until it is unmounted. It returns when
// the mount is ready. ctx is the mount's: when it ends, calls under way give
// up, but the mount stays. The volume is not closed.
func Mount(ctx context.Context, v *gateway.Volume, dir string, o Options) (*Server, error) {
	return mount(ctx, live{v}, dir, o, (*Server).mountDirect)
}

// MountView is Mount for one commit of a volume, read-only. It is the caller
// who keeps the commit pinned.
func MountView(ctx context.Context, v *gateway.View, dir string, o Options) (*Server, error) {
	return mount(ctx, fixed{v}, dir, o, (*Server).mountDirect)
}

// mount tries how first, and fusermount3 where that is not permitted.
func mount(ctx context.Context, v engine, dir string, o Options, how func(*Server, *Options) error) (*Server, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o = o.withDefaults()
	o.ReadOnly = o.ReadOnly || v.ReadOnly()
	o.AllowOther = o.AllowOther || os.Geteuid() == 0
	dir, err := checkMountPoint(dir, o.NonEmpty)
	if err != nil {
		return nil, err
	}
	s := &Server{fs: newFileSystem(ctx, v, &o), dir: dir, done: make(chan struct{}), log: o.Logger}
	s.fs.dead = s.dead
	err = how(s, &o)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		err = s.mountHelped(&o)
	}
	if err != nil {
		return nil, err
	}
	if m, found, err := mountedAt(dir); err != nil || !found {
		o.Logger.Warn("the mount is not in the mount table", "dir", dir, "error", err)
	} else if err := setReadAhead(m.device, o.ReadAheadKiB); err != nil {
		o.Logger.Warn("sequential reads will be slow", "dir", dir, "error", err)
	}
	go s.serve()
	return s, nil
}

// mountDirect mounts with mount(2), which needs CAP_SYS_ADMIN.
func (s *Server) mountDirect(o *Options) error {
	fd, err := openDevice()
	if err != nil {
		return err
	}
	if err := mountDevice(fd, s.dir, o); err != nil {
		unix.Close(fd)
		return err
	}
	// The duplicate tells whether the connection lives; go-fuse owns fd.
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(fd)
		return errors.Join(fmt.Errorf("duplicate the FUSE descriptor: %w", err), s.unmount(unix.MNT_DETACH))
	}
	s.device = os.NewFile(uintptr(dup), "/dev/fuse")
	s.raw, err = fuse.NewServer(s.fs, "/dev/fd/"+strconv.Itoa(fd), protocolOptions(o))
	if err != nil {
		s.device.Close()
		return errors.Join(fmt.Errorf("greet the kernel: %w", err), s.unmount(unix.MNT_DETACH))
	}
	return nil
}

// mountHelped mounts through fusermount3, as an ordinary user must.
func (s *Server) mountHelped(o *Options) error {
	if _, err := helperPath(); err != nil {
		return err
	}
	s.helper = true
	po := protocolOptions(o)
	po.Options = o.helperOptions()
	po.AllowOther = o.AllowOther
	po.FsName = o.FSName
	raw, err := fuse.NewServer(s.fs, s.dir, po)
	if err != nil {
		return fmt.Errorf("mount on %s through fusermount3, which says above why not: %w", s.dir, err)
	}
	s.raw = raw
	return nil
}

// protocolOptions is what the kernel is asked for: see the package comment.
func protocolOptions(o *Options) *fuse.MountOptions {
	po := &fuse.MountOptions{
		Name:                     fsName,
		MaxWrite:                 o.MaxRead,
		MaxBackground:            o.MaxBackground,
		ExplicitDataCacheControl: true,
		EnableSymlinkCaching:     true,
		// Replies are in memory: splicing would only add a pipe's system calls.
		DisableSplice: true,
		ExtraCapabilities: fuse.CAP_ASYNC_DIO | fuse.CAP_HANDLE_KILLPRIV_V2 |
			fuse.CAP_READDIRPLUS_AUTO | fuse.CAP_NO_OPENDIR_SUPPORT | fuse.CAP_EXPORT_SUPPORT,
		Logger: slog.NewLogLogger(o.Logger.Handler(), slog.LevelWarn),
		Debug:  o.Debug,
		// A broken invariant must not go on serving: recovery starts from the journal.
		PanicHandler: func(broken any) fuse.Status { panic(broken) },
	}
	if o.Passthrough == nil {
		po.DisabledCapabilities = fuse.CAP_PASSTHROUGH
	}
	return po
}

// serve answers requests until the mount is gone. Wait waits for it.
func (s *Server) serve() {
	defer close(s.done)
	s.raw.Serve()
	s.fs.closeAll()
	if s.device != nil {
		s.device.Close()
	}
}

// Dir is where the volume is mounted: absolute and without links.
func (s *Server) Dir() string { return s.dir }

// Wait returns when the mount is gone and every request has been answered.
func (s *Server) Wait() { <-s.done }

// Done is closed when Wait would return.
func (s *Server) Done() <-chan struct{} { return s.done }

// Unmount unmounts and waits until every file is closed. While programs use
// the mount it fails with an error that wraps EBUSY, and the mount stays. If
// the mount is gone already it succeeds. It never waits for the bucket.
func (s *Server) Unmount() error {
	select {
	case <-s.done:
		return nil
	default:
	}
	if err := s.unmount(0); err != nil {
		return err
	}
	s.Wait()
	return nil
}

// Detach takes the mount out of the directory tree at once even though
// programs use it, and does not wait: they keep what they have open.
func (s *Server) Detach() error {
	select {
	case <-s.done:
		return nil
	default:
		return s.unmount(unix.MNT_DETACH)
	}
}

func (s *Server) unmount(flags int) error {
	if s.helper {
		return s.unmountHelped(flags)
	}
	err := unix.Unmount(s.dir, flags)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("unmount %s: programs still use it: %w", s.dir, err)
	case errors.Is(err, unix.EINVAL) && s.dead():
		return nil // someone else unmounted it
	default:
		return fmt.Errorf("unmount %s: %w", s.dir, err)
	}
}

func (s *Server) unmountHelped(flags int) error {
	path, err := helperPath()
	if err != nil {
		return err
	}
	args := []string{"-u"}
	if flags&unix.MNT_DETACH != 0 {
		args = append(args, "-z")
	}
	out, err := exec.Command(path, append(args, "--", s.dir)...).CombinedOutput()
	if err == nil {
		return nil
	}
	if s.dead() {
		return nil
	}
	said := strings.TrimSpace(string(out))
	if bytes.Contains(out, []byte("busy")) {
		return fmt.Errorf("unmount %s: programs still use it: %s: %w", s.dir, said, unix.EBUSY)
	}
	return fmt.Errorf("unmount %s: %s: %w", s.dir, said, err)
}

// dead says whether the kernel has given the mount up: unmounted, or aborted
// through fusectl.
func (s *Server) dead() bool {
	select {
	case <-s.done:
		return true
	default:
	}
	if s.device != nil {
		return hungUp(s.device)
	}
	m, found, err := mountedAt(s.dir)
	return err == nil && (!found || m.fsType != fsType)
}

func toErrno(status fuse.Status) syscall.Errno { return syscall.Errno(status) }
