package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/cisternfs/cistern/metadata"
)

// indexPrefix begins the names of a follower's index directories: while one is
// built anew there are two, and the one with the greater number counts when it
// is whole.
const indexPrefix = "index-"

func (f *Follower) indexDir(n int) string {
	return filepath.Join(f.o.Dir, indexPrefix+strconv.Itoa(n))
}

// openIndex brings the index that an earlier follower left to the head, or
// makes another.
func (f *Follower) openIndex(ctx context.Context) error {
	list, err := f.o.FS.ReadDir(f.o.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read %s: %w", f.o.Dir, err)
	}
	var have []int
	for _, e := range list {
		if s, ok := strings.CutPrefix(e.Name(), indexPrefix); ok {
			if n, err := strconv.Atoi(s); err == nil && n > 0 {
				have = append(have, n)
				f.step.number = max(f.step.number, n)
			}
		}
	}
	head, next, err := f.findHead(ctx)
	if err != nil {
		return err
	}
	ix, kv := f.reuse(ctx, head)
	keep := f.step.number
	if ix == nil {
		if err := ctx.Err(); err != nil {
			return ErrInterrupted
		}
		keep++
		if ix, kv, err = f.build(ctx, keep, head); err != nil {
			return err
		}
	}
	for _, n := range have {
		if n == keep {
			continue
		}
		if err := f.o.FS.RemoveAll(f.indexDir(n)); err != nil {
			return errors.Join(fmt.Errorf("remove the old index %s: %w", f.indexDir(n), err), kv.Close())
		}
	}
	f.step.number, f.step.next, f.step.headSeen = keep, next, time.Now()
	f.view.index.Store(ix)
	f.view.kv = kv
	f.noteLook(nil)
	return nil
}

// findHead returns the last commit, and where the path goes on after it.
func (f *Follower) findHead(ctx context.Context) (*entry, metadata.CommitID, error) {
	l, _, err := readLease(ctx, f.o.Store)
	if err != nil {
		return nil, metadata.CommitID{}, err
	}
	return pathReader{f.o.Store}.head(ctx, l.Epoch, l.Hint)
}

// reuse brings the newest index that there is to the head; nil when it is not
// sound or too old. What it holds is all in the bucket, too.
func (f *Follower) reuse(ctx context.Context, head *entry) (*metadata.Index, metadata.KV) {
	if f.step.number == 0 {
		return nil, nil
	}
	dir := f.indexDir(f.step.number)
	kv, err := f.o.OpenKV(dir)
	if err == nil {
		var ix *metadata.Index
		ix, err = metadata.OpenIndex(kv, f.view.doc.ObjectSize)
		if err == nil && ix.Head().N == 0 && head.commit.Manifest.N != 0 {
			err = errOffPath
		}
		if err == nil {
			_, err = catchUp(ctx, f.o.Store, ix, head)
		}
		if err == nil {
			return ix, kv
		}
		err = errors.Join(err, kv.Close())
	}
	f.o.Logger.Info("index is built anew from the bucket", "index", dir, "reason", err)
	return nil, nil
}

// build makes the index of a commit in a directory of its own.
func (f *Follower) build(ctx context.Context, number int, head *entry) (*metadata.Index, metadata.KV, error) {
	dir := f.indexDir(number)
	if err := f.o.FS.RemoveAll(dir); err != nil {
		return nil, nil, fmt.Errorf("remove a half-built index %s: %w", dir, err)
	}
	kv, err := f.o.OpenKV(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("index in %s: %w", dir, err)
	}
	ix, _, err := loadIndex(ctx, f.o.Store, kv, f.view.doc.ObjectSize, head)
	if err != nil {
		return nil, nil, errors.Join(err, kv.Close(), f.o.FS.RemoveAll(dir))
	}
	return ix, kv, nil
}

// rebuild loads the state of the head anew and moves to it: everything may have
// changed.
func (f *Follower) rebuild(ctx context.Context, moved func()) error {
	head, next, err := f.findHead(ctx)
	if err != nil {
		return err
	}
	number := f.step.number + 1
	ix, kv, err := f.build(ctx, number, head)
	if err != nil {
		return err
	}
	v := f.view
	f.names.Lock()
	v.moving.Lock()
	f.step.untold = Delta{All: true, Limit: max(f.step.untold.Limit, ix.Head().Totals.NextInode, v.Head().Totals.NextInode)}
	err = v.local.forget(&f.step.untold, nil)
	old := v.kv
	v.index.Store(ix)
	v.kv = kv
	v.broken = err
	v.moves.moved()
	v.moving.Unlock()
	f.step.next, f.step.number = next, number
	moved()
	f.dropPages()
	f.names.Unlock()
	f.dropNames()
	f.noteRebuilt()
	return errors.Join(err, old.Close(), f.o.FS.RemoveAll(f.indexDir(number-1)))
}

func (f *Follower) isBroken() bool {
	f.view.moving.RLock()
	defer f.view.moving.RUnlock()
	return f.view.broken != nil
}
