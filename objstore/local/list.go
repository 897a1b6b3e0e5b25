package local

import (
	"container/heap"
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/cisternfs/cistern/objstore"
)

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) ([]objstore.Info, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list %q: %w", prefix, err)
	}
	if err := s.here(); err != nil {
		return nil, s.fail("list", prefix, err)
	}
	w := &walk{ctx: ctx, prefix: prefix, after: startAfter, limit: objstore.PageSize(limit)}
	if err := w.dir(s.root, ""); err != nil {
		return nil, s.fail("list", prefix, err)
	}
	// What was not found is not there only if the bucket still is.
	if err := s.here(); err != nil {
		return nil, s.fail("list", prefix, err)
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
	dir   string // the directory that holds it
	name  string // in dir
	isDir bool
}

// entries are a heap by key: a page needs only the smallest of a directory's.
type entries []entry

func (e entries) Len() int           { return len(e) }
func (e entries) Less(i, j int) bool { return e[i].key < e[j].key }
func (e entries) Swap(i, j int)      { e[i], e[j] = e[j], e[i] }
func (e *entries) Push(x any)        { *e = append(*e, x.(entry)) }

func (e *entries) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// dir appends the keys in the directory at path, all of which begin with base,
// and in those below it.
func (w *walk) dir(path, base string) error {
	found, err := w.read(nil, path, base)
	if err != nil {
		return err
	}
	// No key of a directory x/ sorts between others of its parent, so that
	// the order by x/ orders them all.
	heap.Init(&found)
	for len(found) > 0 && len(w.page) < w.limit {
		e := heap.Pop(&found).(entry)
		path := filepath.Join(e.dir, e.name)
		if e.isDir {
			if err := w.dir(path, e.key); err != nil {
				return err
			}
			continue
		}
		st, err := os.Lstat(path)
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
func (w *walk) read(found entries, path, base string) (entries, error) {
	if err := w.ctx.Err(); err != nil {
		return nil, err
	}
	names, err := readDir(path)
	if err != nil {
		return nil, err
	}
	for _, d := range names {
		isDir := d.IsDir()
		if !isDir && d.Type()&fs.ModeType != 0 {
			continue
		}
		seg, k := parseName(d.Name(), isDir)
		e := entry{key: base + seg, dir: path, name: d.Name(), isDir: isDir}
		switch {
		case k == foreign:
		case k == object:
			if e.key > w.after && strings.HasPrefix(e.key, w.prefix) {
				found = append(found, e)
			}
		case k == directory:
			e.key += "/"
			if w.wanted(e.key) {
				found = append(found, e)
			}
		case w.wanted(e.key):
			if found, err = w.read(found, filepath.Join(path, e.name), e.key); err != nil {
				return nil, err
			}
		}
	}
	return found, nil
}

// readDir returns what a directory holds, in no order; nothing when it is
// missing.
func readDir(path string) ([]fs.DirEntry, error) {
	f, err := os.Open(path)
	if missing(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	names, err := f.ReadDir(-1)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	return names, err
}

// wanted says whether keys that begin with base can be part of the page.
func (w *walk) wanted(base string) bool {
	if base <= w.after && !strings.HasPrefix(w.after, base) {
		return false // all of them sort before after
	}
	return strings.HasPrefix(base, w.prefix) || strings.HasPrefix(w.prefix, base)
}
