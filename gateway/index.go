package gateway

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// openIndex brings the local index, which it opens if it is not open, to the head
// of the path: from where it is when it is sound and on the path, else anew from
// the bucket.
func (v *Volume) openIndex(ctx context.Context, head *entry) error {
	dir := filepath.Join(v.opt.StateDir, "index")
	var read int64
	var err error
	if v.index == nil {
		err = v.tryIndex(dir)
	}
	if err == nil {
		local := v.index.Head()
		if v.found.N == 0 {
			v.found = local
		}
		if local.N > head.id.N {
			return fmt.Errorf("%w: the local index has commit %s and %s ends at commit %s: the bucket lost commits; bring them back, or mount with another state directory to go on from there",
				ErrDamaged, local.CommitID, v.opt.URL, head.id)
		}
		if local.N == 0 && head.commit.Manifest.N != 0 {
			err = fmt.Errorf("%w: it is empty", errOffPath)
		} else if read, err = catchUp(ctx, v.store, v.index, head); err == nil {
			v.countSinceManifest(read)
			return nil
		}
	}
	if !errors.Is(err, metadata.ErrDamaged) && !errors.Is(err, errOffPath) {
		return err
	}
	v.log.Info("index is built anew from the bucket", "reason", err)
	v.dropIndex()
	if err := v.fs.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the damaged index %s: %w", dir, err)
	}
	kv, err := v.opt.OpenKV(dir)
	if err != nil {
		return fmt.Errorf("index in %s: %w", dir, err)
	}
	v.kv = kv
	if v.index, read, err = loadIndex(ctx, v.store, kv, v.objectSize, head); err != nil {
		return err
	}
	v.countSinceManifest(read)
	return nil
}

// dropIndex closes the index, which is to be opened anew.
func (v *Volume) dropIndex() {
	if v.kv != nil {
		if err := v.kv.Close(); err != nil {
			v.log.Debug("closing an index that is not used", "error", err)
		}
	}
	v.kv, v.index, v.sinceManifest = nil, nil, manifestState{}
}

func (v *Volume) tryIndex(dir string) error {
	kv, err := v.opt.OpenKV(dir)
	if err != nil {
		return fmt.Errorf("index in %s: %w", dir, err)
	}
	v.kv = kv
	if v.index, err = metadata.OpenIndex(kv, v.objectSize); err != nil {
		return fmt.Errorf("index in %s: %w", dir, err)
	}
	return nil
}

// countSinceManifest begins to count; read are bytes of commits that were read,
// beside those that were before.
func (v *Volume) countSinceManifest(read int64) {
	h := v.index.Head()
	v.sinceManifest = manifestState{commits: int(h.N - h.Manifest.N), bytes: v.sinceManifest.bytes + read}
}

// errOffPath: the index can't be brought forward from where it is.
var errOffPath = errors.New("index is not on the volume's path of commits any more")

// catchUp applies the commits between the index's head and the given one, and
// returns the bytes of their documents.
func catchUp(ctx context.Context, s objstore.Store, ix *metadata.Index, head *entry) (read int64, err error) {
	local := ix.Head()
	if local.CommitID == head.id {
		if local.Hash != head.hash {
			return 0, errOffPath
		}
		return 0, nil
	}
	at := metadata.CommitID{Epoch: max(local.Epoch, 1), N: local.N + 1}
	ahead := newPathAhead(ctx, pathReader{s}, at, head.id.N-1)
	defer ahead.close()
	if at.Epoch < head.id.Epoch && at.N+1 < head.id.N {
		ahead.list()
	}
	for ix.Head().CommitID != head.id {
		e := head
		if ahead.at != head.id {
			if e, err = ahead.next(); err != nil {
				return 0, err
			}
		}
		if e == nil {
			return 0, fmt.Errorf("%w: there is no %s", errOffPath, metadata.CommitKey(ahead.at))
		}
		if e.commit == nil {
			continue
		}
		err = ix.Apply(e.commit, e.hash, nil)
		if errors.Is(err, metadata.ErrNotNext) {
			return 0, fmt.Errorf("%w: %w", errOffPath, err)
		}
		if err != nil {
			return 0, fmt.Errorf("apply commit %s to the local index: %w", e.id, err)
		}
	}
	return ahead.bytes + head.size, nil
}

// loadIndex fills an empty store with the state as of a commit, its manifest and
// the commits after that, and returns the bytes of their documents.
func loadIndex(ctx context.Context, s objstore.Store, kv metadata.KV, objectSize int64, head *entry) (ix *metadata.Index, read int64, err error) {
	if m := head.commit.Manifest; m.N != 0 {
		if err := loadPages(ctx, s, m, kv); err != nil {
			return nil, 0, err
		}
	}
	if ix, err = metadata.OpenIndex(kv, objectSize); err != nil {
		return nil, 0, fmt.Errorf("index: %w", err)
	}
	read, err = catchUp(ctx, s, ix, head)
	if errors.Is(err, errOffPath) {
		err = fmt.Errorf("%w: the commits after manifest %s: %w", ErrDamaged, head.commit.Manifest, err)
	}
	if err != nil {
		return nil, 0, err
	}
	return ix, read, nil
}

// loadPages fills an empty store with a manifest.
func loadPages(ctx context.Context, s objstore.Store, id metadata.CommitID, kv metadata.KV) error {
	manifest, doc, err := loadManifest(ctx, s, id)
	if err != nil {
		return err
	}
	sums := make(map[string]uint32, len(manifest.Pages))
	for i := range manifest.Pages {
		sums[manifest.Pages[i].Key()] = manifest.Pages[i].Sum
	}
	_, err = metadata.LoadManifest(doc, func(key string, size int64) ([]byte, error) {
		var page []byte
		err := readDocument(ctx, s, key, size, func(body []byte, _ objstore.Info) error {
			page = body
			if checksum(body) != sums[key] {
				return fmt.Errorf("%w: page %s: checksum does not match", metadata.ErrDamaged, key)
			}
			return nil
		})
		if errors.Is(err, objstore.ErrNotExist) {
			return nil, fmt.Errorf("%w: page %s of manifest %s is missing", ErrDamaged, key, id)
		}
		return page, err
	}, kv)
	if err != nil {
		return documentOrStore(metadata.ManifestKey(id), err)
	}
	return nil
}

// documentOrStore gives an error of loading its class: one of the store keeps
// its own.
func documentOrStore(key string, err error) error {
	if errors.Is(err, ErrStore) || errors.Is(err, ErrInterrupted) || errors.Is(err, ErrDamaged) || errors.Is(err, ErrKey) {
		return err
	}
	return documentError(key, err)
}
