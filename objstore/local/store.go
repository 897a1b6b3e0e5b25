package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/objstore"
)

const (
	tmpDir  = ".tmp"
	lockDir = ".lock"

	// staleAfter is how long a temporary file that no living process holds is
	// left alone: far longer than it takes to open and lock one.
	staleAfter = 10 * time.Minute

	// pruneWait is how long a Delete waits for its turn to remove directories.
	pruneWait = 100 * time.Millisecond
)

// Store is an objstore.Store in a directory.
type Store struct {
	root  string
	dir   *os.File    // the directory that was opened, whatever its path leads to later
	id    fs.FileInfo // of dir
	locks *locks
	dirs  *dirs
}

// Open returns the bucket in the existing directory root, and removes what
// writers that died left in its temporary directory. A missing root gives
// objstore.ErrNoBucket. A Store holds one descriptor, of the directory, so that
// its file system can't be unmounted by accident; it goes with the Store.
//
// While the path leads to nothing, or to another directory than the one that was
// opened (its file system is not mounted any more, it was moved away), every
// operation fails with objstore.ErrUnavailable: nothing is stored in a directory
// that only has the bucket's name.
func Open(root string) (*Store, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("open bucket directory: %w", err)
	}
	st, err := os.Stat(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("open bucket directory %s: %w", root, objstore.ErrNoBucket)
	}
	if err != nil {
		return nil, fmt.Errorf("open bucket directory %s: %w", root, classify(bare(err)))
	}
	if !st.IsDir() {
		return nil, fmt.Errorf("open bucket directory %s: %w: it is not a directory", root, objstore.ErrNoBucket)
	}
	dir, err := os.Open(root)
	if err != nil {
		return nil, fmt.Errorf("open bucket directory %s: %w", root, classify(bare(err)))
	}
	if st, err = dir.Stat(); err != nil {
		return nil, errors.Join(fmt.Errorf("open bucket directory %s: %w", root, classify(bare(err))), dir.Close())
	}
	l := newLocks(filepath.Join(root, lockDir))
	s := &Store{root: root, dir: dir, id: st, locks: l, dirs: newDirs(root, l)}
	if err := s.removeStale(time.Now()); err != nil {
		return nil, errors.Join(fmt.Errorf("open bucket directory %s: clean up %s: %w", root, tmpDir, err), dir.Close())
	}
	return s, nil
}

// Create makes the directory root, with its parents, where it is missing, and
// opens it.
func Create(root string) (*Store, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, fmt.Errorf("create bucket directory: %w", err)
	}
	var missing []string
	for dir := root; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		missing = append(missing, dir)
	}
	if err := os.MkdirAll(root, 0o777); err != nil {
		return nil, fmt.Errorf("create bucket directory %s: %w", root, classify(bare(err)))
	}
	for _, dir := range missing {
		if err := syncDir(filepath.Dir(dir)); err != nil {
			return nil, fmt.Errorf("create bucket directory %s: %w", root, err)
		}
	}
	return Open(root)
}

// bare is an error of the system without the path that it names.
func bare(err error) error {
	if e, ok := err.(*fs.PathError); ok {
		return e.Err
	}
	return err
}

// classify adds the class of an error of the file system to it.
func classify(err error) error {
	class := error(nil)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		class = objstore.ErrPermission
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		class = objstore.ErrNotExist
	case errors.Is(err, syscall.EIO), errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT),
		errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE), errors.Is(err, syscall.ESTALE), errors.Is(err, syscall.ENOMEM):
		class = objstore.ErrUnavailable
	default:
		return err
	}
	return fmt.Errorf("%w: %w", class, err)
}

// fail wraps err with the operation and key. What does not exist is the
// bucket, when its directory is gone.
func (s *Store) fail(op, key string, err error) error {
	name, err := s.named(key, err)
	err = classify(err)
	if errors.Is(err, objstore.ErrNotExist) {
		if gone := s.here(); gone != nil {
			name, err = key, gone
		}
	}
	return fmt.Errorf("%s %s: %w", op, name, err)
}

// named says once which file an error is about, though the system says it, too: by
// its path where that shows the key as it is.
func (s *Store) named(key string, err error) (string, error) {
	path, name := s.path(key), key
	if strings.Contains(path, key) {
		name = path
	}
	switch e := err.(type) {
	case *fs.PathError:
		if e.Path == path {
			return name, e.Err
		}
	case *os.LinkError:
		if e.New == path {
			return name, e.Err
		}
	}
	return key, err
}

// here returns an error unless the bucket's path leads to the directory that was
// opened.
func (s *Store) here() error {
	st, err := os.Stat(s.root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w: %s is gone", objstore.ErrUnavailable, objstore.ErrNoBucket, s.root)
	case err != nil:
		return classify(err)
	case !os.SameFile(st, s.id):
		return fmt.Errorf("%w: %s is not the directory that was opened as the bucket: is its file system mounted?", objstore.ErrUnavailable, s.root)
	}
	return nil
}

// arrived returns an error unless the file f lies under path, which begins with
// the bucket's, in the directory that was opened.
func (s *Store) arrived(f *os.File, path string) error {
	rel, err := filepath.Rel(s.root, path)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	var there unix.Stat_t
	err = unix.Fstatat(int(s.dir.Fd()), rel, &there, unix.AT_SYMLINK_NOFOLLOW)
	own, ok := st.Sys().(*syscall.Stat_t)
	if err != nil || !ok || there.Ino != own.Ino || uint64(there.Dev) != uint64(own.Dev) {
		return fmt.Errorf("%w: what was stored is not in the directory that was opened as the bucket %s", objstore.ErrUnavailable, s.root)
	}
	return nil
}

// path returns where key's body is.
func (s *Store) path(key string) string { return filepath.Join(s.root, pathOf(key)) }

// infoOf returns what a stat of key's file says about the object.
func infoOf(key string, st fs.FileInfo) objstore.Info {
	return objstore.Info{Key: key, Size: st.Size(), Version: fileVersionOf(st).version(), Modified: st.ModTime()}
}

// fileVersion is what a version is made of.
type fileVersion struct {
	time int64 // ns
	size int64 // bytes
}

func fileVersionOf(st fs.FileInfo) fileVersion {
	return fileVersion{time: st.ModTime().UnixNano(), size: st.Size()}
}

func (v fileVersion) version() objstore.Version {
	return objstore.Version(fmt.Sprintf("%x-%x", v.time, v.size))
}

// check is what every operation on a key begins with.
func check(ctx context.Context, op, key string) error {
	if err := objstore.CheckKey(key); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("%s %s: %w", op, key, err)
	}
	return nil
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	if err := check(ctx, "get", key); err != nil {
		return nil, objstore.Info{}, err
	}
	if off < 0 {
		return nil, objstore.Info{}, fmt.Errorf("get %s: offset %d is negative", key, off)
	}
	if err := s.here(); err != nil {
		return nil, objstore.Info{}, s.fail("get", key, err)
	}
	// O_NONBLOCK: a FIFO that someone put there must not hang the reader.
	f, err := os.OpenFile(s.path(key), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, objstore.Info{}, s.fail("get", key, err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return nil, objstore.Info{}, errors.Join(s.fail("get", key, err), f.Close())
	}
	n := max(st.Size()-off, 0)
	if length >= 0 {
		n = min(n, length)
	}
	return &reader{ctx: ctx, f: f, key: key, section: io.NewSectionReader(f, off, n), left: n}, infoOf(key, st), nil
}

// reader is the body of a Get. It notices a file that became shorter.
type reader struct {
	ctx     context.Context
	f       *os.File
	key     string
	section *io.SectionReader
	left    int64
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, fmt.Errorf("read %s: %w", r.key, err)
	}
	n, err := r.section.Read(p)
	r.left -= int64(n)
	switch {
	case err == io.EOF && r.left > 0:
		return n, fmt.Errorf("read %s: %w: its file ended %d bytes early", r.key, objstore.ErrDamaged, r.left)
	case err != nil && err != io.EOF:
		return n, fmt.Errorf("read %s: %w", r.key, classify(err))
	}
	return n, err
}

func (r *reader) Close() error { return r.f.Close() }

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	if err := check(ctx, "head", key); err != nil {
		return objstore.Info{}, err
	}
	if err := s.here(); err != nil {
		return objstore.Info{}, s.fail("head", key, err)
	}
	st, err := os.Lstat(s.path(key))
	if err == nil && !st.Mode().IsRegular() {
		err = fs.ErrNotExist
	}
	if err != nil {
		return objstore.Info{}, s.fail("head", key, err)
	}
	return infoOf(key, st), nil
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := check(ctx, "delete", key); err != nil {
		return err
	}
	if err := s.here(); err != nil {
		return s.fail("delete", key, err)
	}
	path := s.path(key)
	if err := s.unlink(ctx, key, path); err != nil {
		return s.fail("delete", key, err)
	}
	// The key is gone, whatever becomes of the directories that held it alone.
	ctx, cancel := context.WithTimeout(ctx, pruneWait)
	defer cancel()
	_ = s.dirs.prune(ctx, filepath.Dir(path))
	return nil
}

// unlink removes the file of a key, if there is one, under the key's lock, so
// that no compare-and-swap brings it back.
func (s *Store) unlink(ctx context.Context, key, path string) error {
	unlock, err := s.locks.lock(ctx, key)
	if err != nil {
		return err
	}
	defer unlock()
	switch err := unix.Unlink(path); {
	case errors.Is(err, syscall.EISDIR):
		return nil // a directory of other keys: the key itself is missing
	case missing(err):
		return s.here()
	case err != nil:
		return &fs.PathError{Op: "unlink", Path: path, Err: err}
	}
	err = syncDir(filepath.Dir(path))
	if missing(err) {
		return s.here() // removed as empty already, and the key with it
	}
	return err
}

// Clear removes what the bucket's directory keeps beside its keys, if it holds
// none: after the last key was deleted nothing is left but the directory itself.
// Whoever uses the bucket meanwhile makes it again.
func (s *Store) Clear(ctx context.Context) error {
	page, err := s.List(ctx, "", "", 1)
	if err != nil || len(page) > 0 {
		return err
	}
	if err := s.removeTemporary(); err != nil {
		return s.fail("clear", s.root, err)
	}
	// Alone: nobody makes keys. The locks of keys go under their own locks.
	f, err := s.locks.take(ctx, dirsLock, unix.LOCK_EX)
	if err != nil {
		return s.fail("clear", s.root, err)
	}
	err = s.locks.clear(ctx)
	if err == nil {
		err = os.Remove(f.Name())
	}
	err = errors.Join(err, f.Close())
	if rerr := os.Remove(s.locks.dir); err == nil && !errors.Is(rerr, syscall.ENOTEMPTY) && !missing(rerr) {
		err = rerr
	}
	if err != nil {
		return s.fail("clear", s.root, err)
	}
	return nil
}

// removeTemporary removes the directory of temporary files when no writer has
// one in it.
func (s *Store) removeTemporary() error {
	err := os.Remove(filepath.Join(s.root, tmpDir))
	if errors.Is(err, syscall.ENOTEMPTY) || missing(err) {
		return nil
	}
	return err
}

// missing says whether err means that a path is not there.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR)
}
