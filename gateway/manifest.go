package gateway

import (
	"context"
	"errors"
	"fmt"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// newManifest is a manifest that is in the bucket and that the next commit will
// name, with what dies by that.
type newManifest struct {
	m    *metadata.Manifest
	dead []metadata.Dead // Death and Time are the commit's
}

// manifestState counts what a mount would have to read beside the manifest.
type manifestState struct {
	commits int
	bytes   int64 // of their documents
	size    int64 // of the manifest's pages in the bucket, 0 where that is not known
}

// loadManifest reads a manifest's document.
func loadManifest(ctx context.Context, s objstore.Store, id metadata.CommitID) (*metadata.Manifest, []byte, error) {
	var m *metadata.Manifest
	var doc []byte
	key := metadata.ManifestKey(id)
	err := readDocument(ctx, s, key, maxDocument, func(body []byte, _ objstore.Info) (err error) {
		doc = body
		m, err = metadata.DecodeManifest(body)
		return err
	})
	if errors.Is(err, objstore.ErrNotExist) {
		return nil, nil, fmt.Errorf("%w: the volume's manifest %s is missing", ErrDamaged, key)
	}
	return m, doc, err
}

// ManifestDue says whether enough was committed, or by enough reigns, for another
// manifest: a mount without a state directory pays for each of them.
func (v *Volume) ManifestDue() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	s := &v.sinceManifest
	if v.head.Epoch >= v.head.Manifest.Epoch+manifestEpochs {
		return true
	}
	return s.commits >= manifestCommits || s.bytes >= min(manifestBytes, max(manifestLeast, s.size/2))
}

// WriteManifest writes the whole metadata as of the head into the bucket and
// makes the next commit name it.
func (v *Volume) WriteManifest(ctx context.Context) error { return v.writeManifest(ctx, false) }

// writeManifest writes a manifest, with due only if one still is.
func (v *Volume) writeManifest(ctx context.Context, due bool) error {
	// One at a time: the second finds what the first has written.
	select {
	case v.commit.manifest <- struct{}{}:
		defer func() { <-v.commit.manifest }()
	case <-ctx.Done():
		return ErrInterrupted
	}
	select {
	case <-v.commit.run:
	case <-ctx.Done():
		return ErrInterrupted
	}
	if due && !v.ManifestDue() {
		v.commit.run <- struct{}{}
		return nil
	}
	// Under the token nothing is applied: the snapshot is the head's state.
	if v.commit.done != nil || v.commit.adds.manifest != nil {
		v.commit.run <- struct{}{}
		return nil
	}
	v.mu.RLock()
	head := v.head
	v.mu.RUnlock()
	snap := v.index.Snapshot()
	v.commit.run <- struct{}{}
	defer snap.Close() // only read
	if head.Manifest == head.CommitID {
		return nil
	}

	var prev *metadata.Manifest
	if head.Manifest.N != 0 {
		var err error
		if prev, _, err = loadManifest(ctx, v.store, head.Manifest); err != nil {
			return err
		}
	}
	m, doc, err := metadata.WriteManifest(snap, prev, head.CommitID, func(key string, body []byte) error {
		err := v.persist(ctx, key, body)
		if errors.Is(err, objstore.ErrConditionFailed) {
			return fmt.Errorf("%w: page %s is there with other bytes", ErrDamaged, key)
		}
		return err
	})
	if err != nil {
		return err
	}
	if err := v.persist(ctx, metadata.ManifestKey(m.CommitID), doc); err != nil {
		return err
	}
	dead, err := v.replacedBy(ctx, m, prev)
	if err != nil {
		return err
	}
	select {
	case <-v.commit.run:
	case <-ctx.Done():
		return ErrInterrupted
	}
	v.commit.adds.manifest = &newManifest{m: m, dead: dead}
	v.commit.run <- struct{}{}
	return nil
}

// replacedBy lists what only points before the next commit need once it names
// the manifest m: the manifest before, its pages that m has not, and the commits
// up to m.
func (v *Volume) replacedBy(ctx context.Context, m, prev *metadata.Manifest) ([]metadata.Dead, error) {
	var dead []metadata.Dead
	from := metadata.CommitID{Epoch: 1}
	least := uint64(1) // the first commit that nothing names as dead yet
	if prev != nil {
		from, least = prev.CommitID, prev.N+1
		if prev.Head.Manifest == prev.CommitID {
			least = prev.N // a restore's commit, which names its own manifest
		}
		dead = append(dead, metadata.Dead{Key: metadata.ManifestKey(prev.CommitID), Birth: prev.N})
		_, gone := m.Diff(prev)
		for i := range gone {
			dead = append(dead, metadata.Dead{Key: gone[i].Key(), Size: gone[i].Size, Birth: gone[i].Born.N})
		}
	}
	for e := from.Epoch; e <= m.Epoch; e++ {
		last, err := pathReader{v.store}.lastOf(ctx, e, metadata.CommitID{})
		if err != nil {
			return nil, err
		}
		prefix := metadata.EpochPrefix(e)
		err = objstore.ListAll(ctx, v.store, prefix, "", func(i objstore.Info) error {
			id, ok := metadata.ParseCommitKey(i.Key)
			seal := e < m.Epoch && id == last // an epoch that is closed ends in its seal
			if ok && !seal && id.N >= least && id.N <= m.N {
				dead = append(dead, metadata.Dead{Key: i.Key, Size: i.Size, Birth: id.N})
			}
			return nil
		})
		if err != nil {
			return nil, storeErrorAt("list", prefix, err)
		}
	}
	return dead, nil
}

// runManifests writes a manifest whenever one is due.
func (v *Volume) runManifests() {
	defer v.group.Done()
	for {
		ch := v.commit.changed()
		if v.Stopped() != nil {
			return
		}
		if v.ManifestDue() {
			err := v.writeManifest(v.ctx, true)
			if v.ctx.Err() != nil {
				return
			}
			v.outages.manifest.note(v.log, workManifest, err)
			if err == nil {
				v.kickCommit()
			}
		}
		select {
		case <-ch:
		case <-v.quit:
			return
		}
	}
}
