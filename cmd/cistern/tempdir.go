package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/cisternfs/cistern/internal/vfs"
)

// What a command needs for the moment lies in the system's temporary directory:
//
//	cistern-index-<random>/     an index that is too large for memory
//	cistern-salvage-<random>/   the index of a salvage
//	cistern-restore-<random>/   mount point and files of a restore's private server
//	cistern-…/lock              locked while the command lives
//
// A command that is killed leaves it, and the next one of the same user takes it away.
// It is locked before it has its name: nobody takes away what is just being made.
const (
	indexPrefix   = "cistern-index-"
	salvagePrefix = "cistern-salvage-"
	restorePrefix = "cistern-restore-"

	unnamedPrefix = "new-" // before the prefix, until it is locked
)

// tempDir is such a directory. A nil one is none.
type tempDir struct {
	path string
	lock io.Closer
}

func newTempDir(prefix string) (*tempDir, error) {
	path, err := os.MkdirTemp("", unnamedPrefix+prefix)
	if err != nil {
		return nil, fmt.Errorf("temporary directory: %w", err)
	}
	d := &tempDir{path: filepath.Join(filepath.Dir(path), strings.TrimPrefix(filepath.Base(path), unnamedPrefix))}
	if d.lock, err = vfs.OS().Lock(filepath.Join(path, "lock")); err == nil {
		if err = os.Rename(path, d.path); err == nil {
			return d, nil
		}
		err = errors.Join(err, d.lock.Close())
	}
	return nil, errors.Join(fmt.Errorf("temporary directory %s: %w", path, err), os.RemoveAll(path))
}

// remove takes the directory away with all that is in it; a mount in it must have gone.
func (d *tempDir) remove() error {
	if d == nil {
		return nil
	}
	err := os.RemoveAll(d.path)
	if err != nil {
		err = fmt.Errorf("the temporary directory %w", localError(d.path, err))
	}
	return errors.Join(err, d.lock.Close())
}

// leftTempDirs are the temporary directories with one of these prefixes that killed
// commands of this user have left, locked. What can't be looked at is another's.
func leftTempDirs(prefixes ...string) (left []*tempDir) {
	list, err := os.ReadDir(os.TempDir())
	if err != nil {
		return nil // who needs a directory there is told
	}
	for _, e := range list {
		if !e.IsDir() || !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(e.Name(), p) }) {
			continue
		}
		path := filepath.Join(os.TempDir(), e.Name())
		if !keptBy(path, os.Geteuid()) {
			continue
		}
		name := filepath.Join(path, "lock")
		if _, err := os.Lstat(name); err != nil {
			continue // it was never a command's
		}
		if lock, err := vfs.OS().Lock(name); err == nil { // else its command lives
			left = append(left, &tempDir{path, lock})
		}
	}
	return left
}

// keptBy says whether a path is a directory of one of these users that nobody else
// can put anything into.
func keptBy(path string, uids ...int) bool {
	st, err := os.Lstat(path)
	if err != nil || !st.IsDir() || st.Mode().Perm()&0o022 != 0 {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && slices.Contains(uids, int(sys.Uid))
}

// sweepTemp removes the indexes that killed commands have left.
func (a *app) sweepTemp() {
	for _, d := range leftTempDirs(indexPrefix, salvagePrefix) {
		if err := d.remove(); err != nil && !errors.Is(err, fs.ErrNotExist) {
			a.note("what a killed command has left stays: %v", err)
		}
	}
}
