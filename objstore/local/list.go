package local

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cisternfs/cistern/objstore"
)

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) ([]objstore.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list %q: %w", prefix, err)
	}
	w := &walk{ctx: ctx, prefix: prefix, after: startAfter, limit: objstore.PageSize(limit)}
	if err := w.dir(s.root, ""); err != nil {
		return nil, s.fail("list", prefix, err)
	}
	if len(w.page) == 0 {
		// Nothing found: because there is nothing, or because it is gone?
		if _, err := os.Stat(s.root); err != nil {
			return nil, s.fail("list", prefix, err)
		}
	}
	return w.page, nil
}

// walk collects one page.
type walk struct {
	ctx           context.Context
	prefix, after string
	limit         int
	page          []objstore.Info
}

// entry is a key, or a directory whose keys all begin with key, which then
// ends with a slash.
type entry struct {
	key   string
	path  string
	isDir bool
}

// dir appends the keys in the directory at path, all of which begin with base,
// and in those below it.
func (w *walk) dir(path, base string) error {
	entries, err := w.read(nil, path, base)
	if err != nil {
		return err
	}
	// No key of a directory x/ sorts between others of its parent, so that
	// sorting by x/ sorts them all.
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.key, b.key) })
	for _, e := range entries {
		if len(w.page) == w.limit {
			return nil
		}
		if e.isDir {
			if err := w.dir(e.path, e.key); err != nil {
				return err
			}
			continue
		}
		st, err := os.Lstat(e.path)
		if missing(err) {
			continue // deleted since the directory was read
		}
		if err != nil {
			return err
		}
		if st.Mode().IsRegular() {
			w.page = append(w.page, infoOf(e.key, st))
		}
	}
	return nil
}

// read appends the entries of one directory that can lead to wanted keys. The
// pieces of long segments are read at once, since what they hold may sort
// between other entries.
func (w *walk) read(entries []entry, path, base string) ([]entry, error) {
	if err := w.ctx.Err(); err != nil {
		return nil, err
	}
	names, err := os.ReadDir(path)
	if err != nil && !missing(err) {
		return nil, err
	}
	for _, d := range names {
		isDir := d.IsDir()
		if !isDir && d.Type()&fs.ModeType != 0 {
			continue
		}
		seg, k := parseName(d.Name(), isDir)
		e := entry{key: base + seg, path: filepath.Join(path, d.Name()), isDir: isDir}
		switch {
		case k == foreign:
		case k == object:
			if e.key > w.after && strings.HasPrefix(e.key, w.prefix) {
				entries = append(entries, e)
			}
		case k == directory:
			e.key += "/"
			if w.wanted(e.key) {
				entries = append(entries, e)
			}
		case w.wanted(e.key):
			if entries, err = w.read(entries, e.path, e.key); err != nil {
				return nil, err
			}
		}
	}
	return entries, nil
}

// wanted says whether keys that begin with base can be part of the page.
func (w *walk) wanted(base string) bool {
	if base <= w.after && !strings.HasPrefix(w.after, base) {
		return false // all of them sort before after
	}
	return strings.HasPrefix(base, w.prefix) || strings.HasPrefix(w.prefix, base)
}
