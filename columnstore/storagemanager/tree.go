package storagemanager

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Tree is where one machine's Storage Manager keeps its local state.
type Tree struct {
	Metadata string // metadata_path
	Journal  string // journal_path
	Cache    string // [Cache] path; empty: there is none
}

// isMark says whether a file of a prefix is one by which nodes agree who owns it.
func isMark(name string) bool {
	return name == "OWNED" || name == "REQUEST_TRANSFER" || name == "FLUSHING"
}

// Prefixes lists the prefixes that have metadata: data1, data2, …
func (t Tree) Prefixes() ([]string, error) {
	list, err := os.ReadDir(t.Metadata)
	if err != nil {
		return nil, fmt.Errorf("Storage Manager's metadata: %w", err)
	}
	var out []string
	for _, e := range list {
		if e.IsDir() {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

// Owned says whether a prefix has an owner, or had one that did not end cleanly.
func (t Tree) Owned(prefix string) (bool, error) {
	_, err := os.Lstat(filepath.Join(t.Metadata, prefix, "OWNED"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// File is one entry of a prefix's metadata.
type File struct {
	Path string // below the prefix, with slashes
	Dir  bool
	Meta string // the metadata file, or the directory
	Info fs.FileInfo
}

// Walk calls fn for every directory and file of a prefix, a directory before what
// is in it, in the order of names. odd is called for what is neither.
func (t Tree) Walk(prefix string, fn func(File) error, odd func(path string)) error {
	top := filepath.Join(t.Metadata, prefix)
	return filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("Storage Manager's metadata: %w", err)
		}
		rel, err := filepath.Rel(top, name)
		if err != nil {
			return fmt.Errorf("Storage Manager's metadata: %w", err)
		}
		if rel == "." || isMark(rel) {
			return nil
		}
		file, isMeta := strings.CutSuffix(rel, MetaSuffix)
		if !d.IsDir() && (!d.Type().IsRegular() || !isMeta || filepath.Base(rel) == MetaSuffix) {
			odd(name)
			return nil
		}
		st, err := d.Info()
		if err != nil {
			return fmt.Errorf("Storage Manager's metadata: %w", err)
		}
		if d.IsDir() {
			return fn(File{Path: filepath.ToSlash(rel), Dir: true, Meta: name, Info: st})
		}
		return fn(File{Path: filepath.ToSlash(file), Meta: name, Info: st})
	})
}

// ReadMeta reads a file's metadata and returns its bytes too.
func ReadMeta(path string) (*Meta, []byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if st.Size() > MaxMeta {
		return nil, nil, fmt.Errorf("%w: metadata of %d bytes", ErrDamaged, st.Size())
	}
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, err
	}
	m, err := ParseMeta(body)
	return m, body, err
}

// JournalFile is an open journal.
type JournalFile struct {
	*os.File
	*Journal
	Size int64
}

// OpenJournal opens the journal of an object; nil when it has none.
func (t Tree) OpenJournal(prefix, key string) (*JournalFile, error) {
	f, err := os.Open(filepath.Join(t.Journal, prefix, key+JournalSuffix))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENAMETOOLONG) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	st, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	j, err := ReadJournal(f, st.Size())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", f.Name(), err), f.Close())
	}
	return &JournalFile{f, j, st.Size()}, nil
}

// CachePath is where the cache holds an object; empty: there is no cache.
func (t Tree) CachePath(prefix, key string) string {
	if t.Cache == "" {
		return ""
	}
	return filepath.Join(t.Cache, prefix, key)
}

// Journals lists the keys that have a journal in a prefix.
func (t Tree) Journals(prefix string) ([]string, error) {
	list, err := os.ReadDir(filepath.Join(t.Journal, prefix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("Storage Manager's journals: %w", err)
	}
	var keys []string
	for _, e := range list {
		if key, ok := strings.CutSuffix(e.Name(), JournalSuffix); ok && e.Type().IsRegular() {
			keys = append(keys, key)
		}
	}
	return keys, nil
}
