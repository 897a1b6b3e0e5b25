package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
)

// special makes a symbolic link, a device, a pipe or a socket.
func (f *filler) special(n fillNode) error {
	if err := os.Remove(n.path); err != nil && !os.IsNotExist(err) {
		return localError(n.path, err)
	}
	var err error
	if n.n.Mode&typeMask == typeLink {
		err = os.Symlink(string(n.n.Target), n.path)
	} else {
		err = unix.Mknod(n.path, n.n.Mode, int(n.n.Rdev))
	}
	if err != nil {
		return localError(n.path, err)
	}
	if err := f.attributes(n); err != nil {
		return err
	}
	f.finished(n, false)
	return nil
}

// attributes sets owner, extended attributes, mode and times, the times last: what
// has them is whole.
func (f *filler) attributes(n fillNode) error {
	if os.Geteuid() == 0 {
		if err := os.Lchown(n.path, int(n.n.UID), int(n.n.GID)); err != nil {
			return localError(n.path, err)
		}
	}
	for _, x := range n.n.Xattrs {
		if err := unix.Lsetxattr(n.path, x.Name, x.Value, 0); err != nil {
			return fmt.Errorf("%s: extended attribute %s: %w", text(n.path).shown(), x.Name, err)
		}
	}
	if n.n.Mode&typeMask != typeLink {
		if err := unix.Chmod(n.path, n.n.Mode&0o7777); err != nil {
			return localError(n.path, err)
		}
	}
	times := []unix.Timespec{unix.NsecToTimespec(n.n.Atime), unix.NsecToTimespec(n.n.Mtime)}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, n.path, times, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return localError(n.path, err)
	}
	return nil
}

// rest makes the further names of files, and gives directories their attributes:
// what is in them last.
func (f *filler) rest(ctx context.Context) error {
	for _, l := range f.links {
		if err := os.Remove(l.path); err != nil && !os.IsNotExist(err) {
			return localError(l.path, err)
		}
		if err := os.Link(l.of, l.path); err != nil {
			return localError(l.path, err)
		}
	}
	for _, d := range slices.Backward(f.dirs) {
		if ctx.Err() != nil {
			return gateway.ErrInterrupted
		}
		if err := f.attributes(d); err != nil {
			return err
		}
	}
	return nil
}

// sync makes everything durable, and then says that it is complete.
func (f *filler) sync() error {
	if err := unix.Syncfs(int(f.top.Fd())); err != nil {
		// What was lost is not known, and the next sync would not tell of it again.
		f.mark.Boot = ""
		return errors.Join(fmt.Errorf("sync the file system of %s: %w; the same command copies everything again", f.dir, err), f.writeMark())
	}
	if err := os.Remove(filepath.Join(f.dir, cloneMark)); err != nil {
		return localError(f.dir, err)
	}
	// That has changed the top directory's times.
	if err := f.attributes(f.dirs[0]); err != nil {
		return err
	}
	if err := f.top.Sync(); err != nil {
		return localError(f.dir, err)
	}
	return nil
}
