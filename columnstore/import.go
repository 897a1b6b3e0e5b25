package columnstore

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"sort"
	"strings"
	"sync"

	"github.com/cisternfs/cistern/columnstore/storagemanager"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// Import is one import of a prefix (data1, data2, …) into a volume that this
// process owns.
type Import struct {
	Volume *gateway.Volume
	Tree   storagemanager.Tree
	Prefix string

	Bucket    objstore.Store // the whole bucket
	KeyPrefix string         // before Storage Manager's keys in the bucket
	Adopt     bool           // by reference where possible; the volume must have been formatted so

	Parallel int // files at a time; default 8

	// FileMode and DirMode are the permission bits; default 0640 and 0750. The
	// owner and the time of change are those of the metadata file, and the owner of
	// an empty volume's top directory that of the prefix's.
	FileMode, DirMode uint32

	Progress func(Result)  // after each file; may be nil
	Problem  func(Problem) // what is not as it should be
}

// Problem is one thing that an import found wrong.
type Problem struct {
	Path   string `json:"path,omitempty"` // of the file; empty: of none
	Key    string `json:"key,omitempty"`  // of the object
	Reason string `json:"reason"`
	Left   bool   `json:"left_out"` // the file is not in the volume because of it
}

func (p Problem) String() string {
	s := p.Reason
	if p.Key != "" {
		s = p.Key + ": " + s
	}
	if p.Path != "" {
		s = p.Path + ": " + s
	}
	if p.Left {
		s += "; the file is left out"
	}
	return s
}

// Result sums an import up.
type Result struct {
	Files       int64 `json:"files"`   // imported now
	Skipped     int64 `json:"skipped"` // imported before
	Directories int64 `json:"directories"`
	Bytes       int64 `json:"bytes"` // of the files imported now
	Adopted     int64 `json:"adopted_objects"`
	Copied      int64 `json:"copied_objects"`
	CopiedBytes int64 `json:"copied_bytes"`
	FromCache   int64 `json:"objects_from_cache"` // that the bucket lacks
	Journals    int64 `json:"journals"`           // merged
	Changes     int64 `json:"journal_changes"`
	Torn        int64 `json:"torn_journals"`
	Left        int64 `json:"left_out"` // files that are not in the volume
	Missing     int64 `json:"missing_objects"`
	Orphans     int64 `json:"orphans"` // objects and journals that no metadata names
	OrphanBytes int64 `json:"orphan_bytes"`
	Problems    int64 `json:"problems"`
}

// run is an import under way.
type run struct {
	*Import
	listed map[string]int64 // size by key: the bucket's objects, of other prefixes too

	mu   sync.Mutex // guards the fields below, and calls of the callbacks
	r    Result
	used map[string]bool // keys that metadata names
	took map[string]bool // keys that slots of the volume adopted
}

// Run imports what is not in the volume yet and makes it durable there. The error
// says what ended it early: it can be run again then. What is wrong with single
// files is no error, but told through Problem and counted.
func (im *Import) Run(ctx context.Context) (Result, error) {
	if im.Parallel == 0 {
		im.Parallel = 8
	}
	if im.FileMode == 0 {
		im.FileMode = 0o640
	}
	if im.DirMode == 0 {
		im.DirMode = 0o750
	}
	r := &run{Import: im, listed: map[string]int64{}, used: map[string]bool{}, took: map[string]bool{}}
	if err := r.prepare(ctx); err != nil {
		return r.r, err
	}
	if err := r.top(ctx); err != nil {
		return r.r, err
	}
	if err := r.files(ctx); err != nil {
		return r.r, err
	}
	if err := r.orphans(); err != nil {
		return r.r, err
	}
	if _, err := im.Volume.Sync(ctx); err != nil {
		return r.r, fmt.Errorf("commit what was imported: %w", err)
	}
	return r.r, nil
}

// prepare finds out what the bucket has and what the volume took of it before.
func (r *run) prepare(ctx context.Context) error {
	err := objstore.ListAll(ctx, r.Bucket, r.KeyPrefix, "", func(i objstore.Info) error {
		r.listed[strings.TrimPrefix(i.Key, r.KeyPrefix)] = i.Size
		return nil
	})
	if err != nil {
		return fmt.Errorf("list Storage Manager's objects: %w", err)
	}
	if !r.Adopt {
		return nil
	}
	if _, err := r.Volume.Sync(ctx); err != nil {
		return err // an earlier import's changes, that only the journal has
	}
	return r.Volume.AdoptedKeys(func(key string) { r.took[strings.TrimPrefix(key, r.KeyPrefix)] = true })
}

// job is a file to import, with the directory that it goes into.
type job struct {
	file   storagemanager.File
	parent gateway.InodeID
}

// files walks the metadata, makes directories, and has files imported.
func (r *run) files(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	jobs := make(chan job)
	failed := make(chan error, r.Parallel)
	var group sync.WaitGroup
	for range r.Parallel {
		group.Add(1)
		go func() {
			defer group.Done()
			for j := range jobs {
				if err := r.file(ctx, j); err != nil {
					failed <- err
					cancel()
					return
				}
			}
		}()
	}
	dirs := map[string]gateway.InodeID{".": metadata.RootInode}
	err := r.Tree.Walk(r.Prefix, func(f storagemanager.File) error {
		parent := dirs[path.Dir(f.Path)]
		if f.Dir {
			ino, err := r.directory(ctx, parent, f)
			dirs[f.Path] = ino
			return err
		}
		select {
		case jobs <- job{f, parent}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}, func(name string) {
		r.problem(Problem{Path: name, Reason: "is no metadata of Storage Manager and is ignored"})
	})
	close(jobs)
	group.Wait()
	select {
	case first := <-failed:
		return first
	default:
		return err
	}
}

// top gives an empty volume's top directory the owner of the prefix's: ColumnStore
// makes files in it.
func (r *run) top(ctx context.Context) error {
	empty := true
	if err := r.Volume.ReadDir(ctx, metadata.RootInode, 0, func(metadata.Dentry) bool { empty = false; return false }); err != nil || !empty {
		return err
	}
	st, err := os.Stat(filepath.Join(r.Tree.Metadata, r.Prefix))
	if err != nil {
		return fmt.Errorf("metadata of %s: %w", r.Prefix, err)
	}
	owner := ownerOf(storagemanager.File{Info: st})
	_, err = r.Volume.SetAttr(ctx, metadata.RootInode, gateway.SetAttr{UID: &owner.UID, GID: &owner.GID})
	return err
}

// directory makes a directory unless it is there.
func (r *run) directory(ctx context.Context, parent gateway.InodeID, f storagemanager.File) (gateway.InodeID, error) {
	v := r.Volume
	n, err := v.Create(ctx, parent, path.Base(f.Path), typeDir|r.DirMode, 0, ownerOf(f), nil)
	if errors.Is(err, gateway.ErrExist) {
		if n, err = v.Lookup(ctx, parent, path.Base(f.Path)); err == nil && n.Mode&typeMask != typeDir {
			err = gateway.ErrNotDir
		}
	}
	if err != nil {
		return 0, fmt.Errorf("directory %s: %w", f.Path, err)
	}
	v.Forget(n.ID, 1)
	r.mu.Lock()
	r.r.Directories++
	r.mu.Unlock()
	return n.ID, nil
}

func (r *run) problem(p Problem) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.r.Problems++
	if p.Left {
		r.r.Left++
	}
	if r.Problem != nil {
		r.Problem(p)
	}
}

// orphans tells of objects and journals that no metadata names.
func (r *run) orphans() error {
	var keys []string
	for key := range r.listed {
		if p, ok := storagemanager.KeyPrefix(key); ok && p == r.Prefix && !r.used[key] {
			keys = append(keys, key)
		}
	}
	sort.Strings(keys)
	for _, key := range keys {
		r.r.Orphans++
		r.r.OrphanBytes += r.listed[key]
		r.problem(Problem{Key: key, Reason: fmt.Sprintf("orphan: an object of %d bytes that no metadata names", r.listed[key])})
	}
	journals, err := r.Tree.Journals(r.Prefix)
	if err != nil {
		return err
	}
	for _, key := range journals {
		if !r.used[key] {
			r.r.Orphans++
			r.problem(Problem{Key: key, Reason: "orphan: a journal of an object that no metadata names"})
		}
	}
	return nil
}
