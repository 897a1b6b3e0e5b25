package local

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	maxDurable = 10000 // directories remembered; past it they are fsynced again

	// dirsLock guards the bucket's tree of directories: who makes a key holds it
	// shared, who removes an empty directory holds it alone. Its size is the
	// number of removals; by it, and by its time, processes notice those of others.
	dirsLock = "dirs"
)

// dirs makes directories and removes empty ones. It remembers those whose names
// are known to be on disk. A directory that is merely there is not: another
// process may have made it a moment ago.
type dirs struct {
	root  string
	locks *locks

	mu    sync.Mutex // guards the fields below; never held during I/O
	known map[string]struct{}
	as    fileVersion // of the lock's file when known was true
}

func newDirs(root string, l *locks) *dirs {
	return &dirs{root: root, locks: l, known: make(map[string]struct{})}
}

// hold keeps every directory in place until release is called.
func (d *dirs) hold(ctx context.Context) (release func(), err error) {
	f, err := d.locks.take(ctx, dirsLock, unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	d.mu.Lock()
	if v := fileVersionOf(st); d.as != v {
		d.as = v
		clear(d.known)
	}
	d.mu.Unlock()
	// Closing a file that was not written to can only release its lock.
	return func() { _ = f.Close() }, nil
}

// make makes dir, which is the root or below it, durable with all directories
// on the way. It never makes the root: a bucket that is gone is an error. Called
// between hold and release.
func (d *dirs) make(dir string) error {
	if dir == d.root || d.has(dir) {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := d.make(parent); err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if err := syncDir(parent); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.known) >= maxDurable {
		clear(d.known)
	}
	d.known[dir] = struct{}{}
	return nil
}

func (d *dirs) has(dir string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.known[dir]
	return ok
}

// prune removes dir and its parents below the root as far as they are empty. It
// is a courtesy: while keys are being made, and on any failure, they stay.
func (d *dirs) prune(ctx context.Context, dir string) error {
	if dir == d.root || !isEmpty(dir) {
		return nil
	}
	f, err := d.locks.take(ctx, dirsLock, unix.LOCK_EX)
	if err != nil {
		return err
	}
	// Counted first: who holds a directory for durable that is gone would lose keys.
	st, err := f.Stat()
	if err == nil {
		err = f.Truncate(st.Size() + 1)
	}
	for err == nil && dir != d.root {
		if err = os.Remove(dir); err == nil {
			dir = filepath.Dir(dir)
		}
	}
	if errors.Is(err, syscall.ENOTEMPTY) || missing(err) {
		err = nil
	}
	return errors.Join(err, f.Close())
}

// isEmpty says whether a directory can be read and holds nothing.
func isEmpty(dir string) bool {
	f, err := os.Open(dir)
	if err != nil {
		return false
	}
	_, err = f.Readdirnames(1)
	// It was only read.
	_ = f.Close()
	return err == io.EOF
}
