package local

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/objstore"
)

const copyChunk = 1 << 20 // bytes copied between two looks at the context

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	if err := objstore.CheckPut(key, size, cond); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("put %s: %w", key, err)
	}
	if err := s.here(); err != nil {
		return "", s.fail("put", key, err)
	}
	if err := s.refuseEarly(key, cond); err != nil {
		return "", s.fail("put", key, err)
	}
	f, err := s.newTemp()
	if err != nil {
		return "", s.fail("put", key, err)
	}
	v, err := s.publish(ctx, f, key, body, size, cond)
	// After a rename the temporary name is gone already. The file was fsynced,
	// so closing it tells nothing new about the object, and a name that stays
	// behind is removed as stale later on.
	_ = os.Remove(f.Name())
	_ = f.Close()
	if err != nil {
		return "", s.fail("put", key, err)
	}
	return v, nil
}

// refuseEarly spares writing a body that is going to be refused. What it lets
// pass is judged again, in one step with publishing.
func (s *Store) refuseEarly(key string, cond objstore.Condition) error {
	if cond == (objstore.Condition{}) {
		return nil
	}
	_, err := s.current(s.path(key), cond)
	return err
}

// current returns the file that holds the key's body, nil when there is none,
// or ErrConditionFailed when cond does not hold.
func (s *Store) current(path string, cond objstore.Condition) (fs.FileInfo, error) {
	st, err := os.Lstat(path)
	if missing(err) {
		if cond.IfVersion != "" {
			return nil, fmt.Errorf("%w: it does not exist", objstore.ErrConditionFailed)
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a regular file", path)
	}
	if cond.IfAbsent {
		return nil, fmt.Errorf("%w: it exists", objstore.ErrConditionFailed)
	}
	if v := fileVersionOf(st).version(); cond.IfVersion != "" && v != cond.IfVersion {
		return nil, fmt.Errorf("%w: it is at version %s, not %s", objstore.ErrConditionFailed, v, cond.IfVersion)
	}
	return st, nil
}

// publish writes the body to the temporary file f, makes it durable and then
// makes it appear under key.
func (s *Store) publish(ctx context.Context, f *os.File, key string, body io.Reader, size int64, cond objstore.Condition) (objstore.Version, error) {
	if err := fill(ctx, f, body, size); err != nil {
		return "", err
	}
	v, err := stamp(f, time.Now())
	if err != nil {
		return "", err
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	letGo(f, size)
	path := s.path(key)
	dir := filepath.Dir(path)
	release, err := s.dirs.hold(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	if err := s.dirs.make(dir); err != nil {
		return "", err
	}
	unlock, err := s.locks.lock(ctx, key)
	if err != nil {
		return "", err
	}
	defer unlock()
	old, err := s.current(path, cond)
	if err != nil {
		return "", err
	}
	if old != nil && v.time <= old.ModTime().UnixNano() {
		// Another body got a later time while this one was being written.
		if v, err = stamp(f, time.Unix(0, old.ModTime().UnixNano()+1)); err != nil {
			return "", err
		}
		if err := f.Sync(); err != nil {
			return "", err
		}
	}
	if cond.IfAbsent {
		// link(2) never replaces, whatever else goes on in that directory.
		err = os.Link(f.Name(), path)
		if errors.Is(err, fs.ErrExist) {
			return "", fmt.Errorf("%w: it exists", objstore.ErrConditionFailed)
		}
	} else {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return "", err
	}
	if err := syncDir(dir); err != nil {
		return "", err
	}
	return v.version(), s.arrived(f, path)
}

// bulk is the size of a body from which on it does not stay in the page cache.
const bulk = 256 << 10

// letGo takes a durable body out of the page cache, which has better use for the
// room: whoever put it rarely reads it again. It is advice, and so it can't fail
// in a way that matters.
func letGo(f *os.File, size int64) {
	if size >= bulk {
		_ = unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
}

// fill copies exactly size bytes.
func fill(ctx context.Context, f *os.File, body io.Reader, size int64) error {
	for left := size; left > 0; {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, err := io.CopyN(f, body, min(left, copyChunk))
		left -= n
		if err == io.EOF {
			return fmt.Errorf("body ended after %d of %d bytes: %w", size-left, size, io.ErrUnexpectedEOF)
		}
		if err != nil {
			return err
		}
	}
	if n, err := io.ReadFull(body, make([]byte, 1)); n != 0 {
		return fmt.Errorf("body is longer than the declared %d bytes", size)
	} else if err != io.EOF {
		return fmt.Errorf("read body: %w", err)
	}
	return ctx.Err()
}

// stamp gives f the modification time that makes its version.
func stamp(f *os.File, at time.Time) (fileVersion, error) {
	ts := unix.NsecToTimespec(at.UnixNano())
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, f.Name(), []unix.Timespec{ts, ts}, 0); err != nil {
		return fileVersion{}, fmt.Errorf("set the time of %s: %w", f.Name(), err)
	}
	st, err := f.Stat()
	if err != nil {
		return fileVersion{}, err
	}
	if st.ModTime().UnixNano() != at.UnixNano() {
		return fileVersion{}, fmt.Errorf("the file system of %s keeps times too coarsely to hold a bucket: set %d ns, got %d ns",
			f.Name(), at.UnixNano(), st.ModTime().UnixNano())
	}
	return fileVersionOf(st), nil
}

// newTemp makes a temporary file. It is locked for as long as it is open, which
// tells other processes that it is in use.
func (s *Store) newTemp() (*os.File, error) {
	dir := filepath.Join(s.root, tmpDir)
	name := filepath.Join(dir, fmt.Sprintf("%d-%s", os.Getpid(), rand.Text()))
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.Mkdir(dir, 0o777); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		f, err = os.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o666)
	}
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), os.Remove(name), f.Close())
	}
	return f, nil
}

// removeStale removes the temporary files of writers that died.
func (s *Store) removeStale(now time.Time) error {
	dir := filepath.Join(s.root, tmpDir)
	entries, err := os.ReadDir(dir)
	if missing(err) {
		return nil
	}
	if err != nil {
		return classify(err)
	}
	for _, e := range entries {
		st, err := e.Info()
		if missing(err) || err == nil && (!st.Mode().IsRegular() || now.Sub(st.ModTime()) < staleAfter) {
			continue
		}
		if err == nil {
			err = removeUnlessLocked(filepath.Join(dir, e.Name()))
		}
		// Someone who may only read the bucket may open it all the same.
		if err != nil && !errors.Is(err, fs.ErrPermission) && !errors.Is(err, syscall.EROFS) {
			return classify(err)
		}
	}
	return nil
}

// removeUnlessLocked removes a temporary file that no process holds open.
func removeUnlessLocked(name string) error {
	f, err := os.Open(name)
	if missing(err) {
		return nil
	}
	if err != nil {
		return err
	}
	// A file opened only for its lock has nothing to lose at close.
	defer func() { _ = f.Close() }()
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case errors.Is(err, unix.EWOULDBLOCK):
		return nil
	case err != nil:
		return fmt.Errorf("lock %s: %w", name, err)
	}
	if err := os.Remove(name); !missing(err) {
		return err
	}
	return nil
}
