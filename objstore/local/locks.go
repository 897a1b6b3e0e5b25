package local

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockCount   = 64 // on disk: all processes must agree
	lockMinWait = 500 * time.Microsecond
	lockMaxWait = 20 * time.Millisecond

	maxDurable = 10000 // directories remembered; past it they are fsynced again
)

// locks are the bucket's locks: goroutines exclude each other by a channel,
// processes by flock.
type locks struct {
	dir   string
	local [lockCount]chan struct{} // holds a token while the lock is taken
}

func newLocks(dir string) *locks {
	l := &locks{dir: dir}
	for i := range l.local {
		l.local[i] = make(chan struct{}, 1)
	}
	return l
}

// lock takes the lock of key within ctx and returns how to give it back.
func (l *locks) lock(ctx context.Context, key string) (unlock func(), err error) {
	h := fnv.New32a()
	// A hash takes every byte.
	_, _ = h.Write([]byte(key))
	n := h.Sum32() % lockCount
	select {
	case l.local[n] <- struct{}{}:
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the lock of the key: %w", ctx.Err())
	}
	f, err := l.open(filepath.Join(l.dir, fmt.Sprintf("%02x", n)))
	if err == nil {
		if err = flock(ctx, f); err != nil {
			err = errors.Join(err, f.Close())
		}
	}
	if err != nil {
		<-l.local[n]
		return nil, err
	}
	return func() {
		// Closing an empty file can only release its lock.
		_ = f.Close()
		<-l.local[n]
	}, nil
}

func (l *locks) open(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if err := os.Mkdir(l.dir, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
}

// flock polls, because a flock that blocks can't be called off when ctx ends.
func flock(ctx context.Context, f *os.File) error {
	for wait := lockMinWait; ; wait = min(2*wait, lockMaxWait) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return fmt.Errorf("wait for the lock of the key: %w", ctx.Err())
		}
	}
}

// durableDirs makes directories and remembers those whose names are known to
// be on disk. A directory that is merely there is not: another process may
// have made it a moment ago.
type durableDirs struct {
	root string

	mu    sync.Mutex // guards known; never held during I/O
	known map[string]struct{}
}

func newDurableDirs(root string) *durableDirs {
	return &durableDirs{root: root, known: make(map[string]struct{})}
}

// make makes dir, which is the root or below it, durable with all directories
// on the way. It never makes the root: a bucket that is gone is an error.
func (d *durableDirs) make(dir string) error {
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

func (d *durableDirs) has(dir string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	_, ok := d.known[dir]
	return ok
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return errors.Join(err, f.Close())
	}
	return f.Close()
}
