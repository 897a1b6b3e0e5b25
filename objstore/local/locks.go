package local

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	lockCount   = 64 // on disk: all processes must agree
	lockMinWait = 500 * time.Microsecond
	lockMaxWait = 20 * time.Millisecond
	openTries   = 3 // while somebody clears the locks away
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
	f, err := l.take(ctx, fmt.Sprintf("%02x", n), unix.LOCK_EX)
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

// take opens and locks a file of the lock directory within ctx. Closing it
// gives the lock back.
func (l *locks) take(ctx context.Context, name string, how int) (*os.File, error) {
	for {
		f, err := l.open(filepath.Join(l.dir, name))
		if err != nil {
			return nil, err
		}
		if err := flock(ctx, f, how); err != nil {
			return nil, errors.Join(err, f.Close())
		}
		st, err := f.Stat()
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if sys, ok := st.Sys().(*syscall.Stat_t); !ok || sys.Nlink > 0 {
			return f, nil
		}
		// Somebody cleared the bucket's locks away meanwhile: others lock the
		// file that took this one's place. An empty file loses nothing here.
		_ = f.Close()
	}
}

// clear removes the files of all keys' locks, each under its lock.
func (l *locks) clear(ctx context.Context) error {
	for n := range lockCount {
		name := fmt.Sprintf("%02x", n)
		if _, err := os.Stat(filepath.Join(l.dir, name)); missing(err) {
			continue
		}
		f, err := l.take(ctx, name, unix.LOCK_EX)
		if err != nil {
			return err
		}
		if err := errors.Join(os.Remove(f.Name()), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

func (l *locks) open(name string) (*os.File, error) {
	for try := 0; ; try++ {
		f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
		if !errors.Is(err, fs.ErrNotExist) || try == openTries {
			return f, err
		}
		if err := os.Mkdir(l.dir, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
}

// flock polls, because a flock that blocks can't be called off when ctx ends.
func flock(ctx context.Context, f *os.File, how int) error {
	for wait := lockMinWait; ; wait = min(2*wait, lockMaxWait) {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
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
