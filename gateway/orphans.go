package gateway

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// CollectOrphans deletes objects, segments, manifests and their pages that nothing
// refers to: those of sealed epochs, and of one's own those older than the policy's
// age. They are left by writers that ended between an upload and its commit. Pins
// that expired a week ago go, too. No manifest is written meanwhile: it may use pages
// and a name that such a writer has left.
func (v *Volume) CollectOrphans(ctx context.Context, dryRun bool) (Collected, error) {
	var out Collected
	select {
	case v.commit.manifest <- struct{}{}:
		defer func() { <-v.commit.manifest }()
	case <-ctx.Done():
		return out, ErrInterrupted
	}
	now, err := v.storeTime(ctx)
	if err != nil {
		return out, err
	}
	if err := v.collectPins(ctx, now, dryRun, &out); err != nil {
		return out, err
	}
	// Listed before the references are read: what is uploaded later is not in
	// the list, and what is in the list of a sealed epoch gets no new reference.
	list, err := v.maybeOrphans(ctx, now)
	if err != nil || len(list) == 0 {
		return out, err
	}
	// Everything that is uploaded by now and will be referred to is committed
	// by this, or of this epoch and young.
	if _, err := v.Commit(ctx); err != nil {
		return out, err
	}
	known, err := referenced(v.index)
	if err == nil {
		err = v.referencedManifest(ctx, known)
	}
	if err != nil {
		return out, err
	}
	for _, t := range list {
		if known.has(t.Key) {
			continue
		}
		if err := v.Stopped(); err != nil {
			return out, err
		}
		if !dryRun {
			if err := v.store.Delete(ctx, t.Key); err != nil {
				return out, storeErrorAt("delete", t.Key, err)
			}
		}
		out.Orphans++
		out.add(t.Key, t.Size, dryRun)
	}
	return out, nil
}

// maybeOrphans lists what is orphaned unless something refers to it. now is the
// store's, in nanoseconds.
func (v *Volume) maybeOrphans(ctx context.Context, now int64) (list []objstore.Info, err error) {
	own := v.epoch()
	for _, kind := range []struct {
		prefix string
		epoch  func(key string) (uint64, bool)
	}{
		{metadata.ObjectPrefix, metadata.ObjectEpoch},
		{metadata.SegmentPrefix, metadata.SegmentEpoch},
		{metadata.ManifestPrefix, metadata.ManifestEpoch},
	} {
		err := objstore.ListAll(ctx, v.store, kind.prefix, "", func(i objstore.Info) error {
			epoch, ok := kind.epoch(i.Key)
			old := time.Unix(0, now).Sub(i.Modified) > v.opt.Collect.OrphanAge
			if ok && epoch < own || ok && old && epoch == own {
				list = append(list, i)
			}
			return nil
		})
		if err != nil {
			return nil, storeErrorAt("list", kind.prefix, err)
		}
	}
	return list, nil
}

// referencedManifest adds the manifest on which the head builds. Caller holds the
// token of manifests, and has committed since: no other one will be named.
func (v *Volume) referencedManifest(ctx context.Context, known *keySet) error {
	v.mu.RLock()
	head := v.head.Manifest
	v.mu.RUnlock()
	if head.N == 0 {
		return nil
	}
	m, _, err := loadManifest(ctx, v.store, head)
	if err != nil {
		return err
	}
	known.add(metadata.ManifestKey(m.CommitID))
	for i := range m.Pages {
		known.add(m.Pages[i].Key())
	}
	return nil
}

// pinsKept is how long a pin stays in the bucket after it has expired, so that
// it can still be seen what a mount that ended badly had shown.
const pinsKept = 7 * 24 * time.Hour

// collectPins deletes pins that expired long ago. Whoever renews one writes
// another and does not miss it.
func (v *Volume) collectPins(ctx context.Context, now int64, dryRun bool, out *Collected) error {
	var lapsed []objstore.Info
	err := objstore.ListAll(ctx, v.store, metadata.PinPrefix, "", func(i objstore.Info) error {
		err := readDocument(ctx, v.store, i.Key, maxPinBytes, func(body []byte, info objstore.Info) error {
			p, err := decodePin(body, info)
			if err == nil && p.Expiry != 0 && p.Expiry+int64(pinsKept) < now {
				lapsed = append(lapsed, i)
			}
			return err
		})
		if errors.Is(err, objstore.ErrNotExist) {
			return nil // taken away meanwhile
		}
		return err
	})
	if err != nil && !isDamage(err) && !errors.Is(err, ErrNewerFormat) && !errors.Is(err, ErrStore) {
		return storeError("list pins", err)
	}
	if err != nil {
		return err
	}
	for _, i := range lapsed {
		if err := v.Stopped(); err != nil {
			return err
		}
		if !dryRun {
			if err := v.store.Delete(ctx, i.Key); err != nil {
				return storeErrorAt("delete", i.Key, err)
			}
		}
		out.add(i.Key, i.Size, dryRun)
	}
	return nil
}

// keySet is a set of keys by their hash. A collision keeps an orphan; it never
// deletes what is referred to.
type keySet struct {
	seed maphash.Seed
	m    map[uint64]struct{}
}

func (s *keySet) add(key string)      { s.m[maphash.String(s.seed, key)] = struct{}{} }
func (s *keySet) has(key string) bool { _, ok := s.m[maphash.String(s.seed, key)]; return ok }

// referenced returns every key that an index's state or a retained or pinned
// one refers to: what died stays listed until it is collected.
func referenced(ix *metadata.Index) (*keySet, error) {
	set := &keySet{seed: maphash.MakeSeed(), m: map[uint64]struct{}{}}
	err := ix.AllSlots(func(_ InodeID, _ uint32, s *metadata.Slot) bool {
		if s.Base != nil {
			set.add(s.Base.Key)
		}
		for i := range s.Patches {
			set.add(s.Patches[i].Seg.Key)
		}
		return true
	})
	if err == nil {
		err = ix.Segments(func(s metadata.Segment) bool { set.add(s.Key); return true })
	}
	if err == nil {
		err = ix.DeadThings(func(d metadata.Dead) bool { set.add(d.Key); return true })
	}
	if err != nil {
		return nil, fmt.Errorf("references: %w", err)
	}
	return set, nil
}
