package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// restoreTag is the tag of a restore's commit, which names the commit that it
// went back to, and of the snapshot that it leaves.
const restoreTag = "restored"

// RestoreOptions say what a volume goes back to.
type RestoreOptions struct {
	Commit uint64          // its number; the caller keeps it pinned until Restore has returned
	Keep   SnapshotOptions // name, holder, tags and lifetime of the snapshot of what is replaced
	KV     metadata.KV     // an empty store to work in; closed by Restore
}

// Restored says what a restore did.
type Restored struct {
	Commit   metadata.CommitID // of the restore
	Then     metadata.Head     // the state that it went back to
	Replaced SnapshotInfo      // what was the present before
	metadata.Rewound
}

// errUnsettled: a restore's commit may be in the bucket or not.
var errUnsettled = errors.New("the restore's commit may be there or not")

// Restore rolls the whole volume back to an earlier commit by one new commit,
// after a snapshot of the present. It is for a volume without open files: no
// writer gets in while it runs, and when it has succeeded the lease is released
// and the volume is read-only (ErrHandedOver); Close it, and open it anew.
//
// The commit names a manifest of its own number, which holds all of its state
// (metadata.Rewind); whoever comes to it on the path reads that instead of
// applying a difference. Inode numbers, LSNs and epochs go on.
//
// When it fails before the commit was sent nothing has changed, and the volume
// goes on as before. An error later leaves it read-only, with the lease
// unreleased: the next Open finds out. Errors: ErrNotExist, ErrCollected,
// ErrNameTaken, ErrStore, ErrDamaged, ErrInterrupted.
func (v *Volume) Restore(ctx context.Context, o RestoreOptions) (out Restored, err error) {
	view, err := OpenView(ctx, ViewOptions{Store: v.opt.Store, Keys: v.opt.Keys, URL: v.opt.URL, KV: o.KV, Commit: o.Commit})
	if err != nil {
		return out, errors.Join(err, o.KV.Close())
	}
	defer func() { err = errors.Join(err, view.Close()) }()
	if out.Then = view.Head(); out.Then.N > v.Head().N {
		return out, fmt.Errorf("%w: %s has no commit %d yet", ErrNotExist, v.opt.URL, out.Then.N)
	}
	if base := v.doc.Base().N; out.Then.N < base {
		return out, fmt.Errorf("%w: commit %d is of the volume that %s was cloned from at commit %d: clone that one at the commit", ErrInvalid, out.Then.N, v.opt.URL, base)
	}
	end, err := v.alone(ctx)
	if err != nil {
		return out, err
	}
	defer end()
	if out.Then.CommitID == v.Head() {
		return out, fmt.Errorf("%w: commit %d is the present of %s: there is nothing to go back to", ErrInvalid, out.Then.N, v.opt.URL)
	}
	if out.Replaced, err = v.keepPresent(ctx, o); err != nil {
		return out, err
	}
	b, doc, err := v.rewind(ctx, view, o.KV, &out.Rewound)
	if err != nil {
		return out, errors.Join(err, v.forgetPresent(ctx, out.Replaced))
	}
	// From here on it is not given up half-way while the store takes things: the
	// manifest's key must not be used for another one.
	err = v.whileProgress(context.WithoutCancel(ctx), func(ctx context.Context) error {
		if err := v.putOnce(ctx, metadata.ManifestKey(b.c.CommitID), doc); err != nil {
			return err
		}
		return v.publishCommit(ctx, b)
	})
	if err != nil {
		if v.Stopped() == nil {
			v.stop(fmt.Errorf("%w: %w: %w", ErrReadOnly, errUnsettled, err))
		}
		return out, fmt.Errorf("restore %s to commit %d: %w; `cistern log` tells when the store can be reached", v.opt.URL, out.Then.N, v.Stopped())
	}
	out.Commit = b.c.CommitID
	v.mu.Lock()
	v.head.CommitID, v.head.Hash, v.head.Totals, v.head.Manifest = b.c.CommitID, b.hash, b.c.Totals, b.c.Manifest
	v.mu.Unlock()
	if err := v.giveAway(context.WithoutCancel(ctx)); err != nil {
		v.stop(fmt.Errorf("%w: it was restored, and the lease could not be given back: %w", ErrReadOnly, err))
	}
	return out, nil
}

// alone commits everything, keeps writers out and takes the tokens of commits
// and manifests, until end is called.
func (v *Volume) alone(ctx context.Context) (end func(), err error) {
	if _, err := v.Commit(ctx); err != nil {
		return nil, err
	}
	select {
	case v.commit.manifest <- struct{}{}:
	case <-ctx.Done():
		return nil, ErrInterrupted
	}
	select {
	case <-v.commit.run:
	case <-ctx.Done():
		<-v.commit.manifest
		return nil, ErrInterrupted
	}
	give := func() {
		v.commit.run <- struct{}{}
		<-v.commit.manifest
	}
	if err := v.gate.close(ctx); err != nil {
		give()
		return nil, ErrInterrupted
	}
	end = func() {
		v.gate.open()
		give()
	}
	for !v.clean() || v.commit.done != nil || !v.commit.adds.empty() {
		if err := v.commitOnce(ctx); err != nil {
			end()
			return nil, err
		}
	}
	return end, nil
}

// keepPresent makes a snapshot of the head.
func (v *Volume) keepPresent(ctx context.Context, o RestoreOptions) (SnapshotInfo, error) {
	k := o.Keep
	k.Store, k.URL, k.Commit, k.Rand, k.Now = v.store, v.opt.URL, v.Head().N, v.opt.Rand, v.opt.Now
	for key, v := range k.Tags {
		if err := CheckTag(key, v); err != nil {
			return SnapshotInfo{}, err
		}
	}
	k.Tags = maps.Clone(k.Tags)
	if k.Tags == nil {
		k.Tags = map[string]string{}
	}
	k.Tags[restoreTag] = strconv.FormatUint(o.Commit, 10)
	return createSnapshot(ctx, k)
}

// forgetPresent takes the snapshot of a restore back that did not come about.
func (v *Volume) forgetPresent(ctx context.Context, s SnapshotInfo) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pinGiveUp)
	defer cancel()
	if err := v.store.Delete(ctx, s.Key); err != nil {
		return fmt.Errorf("nothing was restored; snapshot %s stays: %w", s.Name, storeErrorAt("delete", s.Key, err))
	}
	return nil
}

// rewind makes the restore's commit and the document of its manifest, whose pages
// it puts into the bucket. kv, which the view reads, becomes the state of the
// commit. Caller holds the tokens.
func (v *Volume) rewind(ctx context.Context, view *View, kv metadata.KV, done *metadata.Rewound) (b *built, doc []byte, err error) {
	v.mu.RLock()
	head := v.head
	v.mu.RUnlock()
	totals := view.Head().Totals
	totals.NextInode = max(totals.NextInode, head.Totals.NextInode)
	c := &metadata.Commit{
		CommitID: v.commit.next, Prev: head.Hash, FirstLSN: head.LastLSN, LastLSN: head.LastLSN,
		Time: max(v.clock(), head.Time), Writer: v.opt.Owner.Host, Reign: v.owner.current(),
		Manifest: v.commit.next, Settings: v.settingsAt(v.active), Totals: totals, Horizon: head.Horizon,
		Tags: map[string]string{restoreTag: strconv.FormatUint(view.Head().N, 10)},
	}
	body := metadata.EncodeCommit(c)
	b = &built{c: c, body: body, hash: metadata.Hash(body)}
	var prev *metadata.Manifest
	if head.Manifest.N != 0 {
		if prev, _, err = loadManifest(ctx, v.store, head.Manifest); err != nil {
			return nil, nil, err
		}
	}
	dead, err := v.replacedBy(ctx, &metadata.Manifest{CommitID: head.CommitID}, prev)
	if err != nil {
		return nil, nil, err
	}
	for i := range dead {
		dead[i].Death, dead[i].Time = c.N, v.clocks.latest()
	}
	*done, err = metadata.Rewind(kv, view.Index(), v.index, c, b.hash, v.clocks.latest(), dead)
	if errors.Is(err, metadata.ErrNotKept) {
		err = fmt.Errorf("%w: %w", ErrCollected, err)
	}
	if err != nil {
		return nil, nil, err
	}
	snap := kv.Snapshot()
	defer snap.Close() // only read
	_, doc, err = metadata.WriteManifest(snap, nil, c.CommitID, func(key string, body []byte) error { return v.putOnce(ctx, key, body) })
	return b, doc, err
}

// putOnce stores a document under a key that nothing else may have.
func (v *Volume) putOnce(ctx context.Context, key string, body []byte) error {
	err := v.persist(ctx, key, body)
	if errors.Is(err, objstore.ErrConditionFailed) {
		return fmt.Errorf("%w: %s is there with other bytes", ErrDamaged, key)
	}
	return err
}

// PresentName is the name of the snapshot that a restore leaves where none is
// given: it tells when, to the millisecond, in UTC.
func PresentName(now time.Time) string {
	return "before-restore-" + now.UTC().Format("20060102-150405.000")
}
