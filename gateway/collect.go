package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// CollectPolicy says when dead things are deleted from the bucket.
type CollectPolicy struct {
	Every time.Duration // between rounds in the background; default 10 minutes
	Batch int           // things condemned by one commit; default 5000
	// OrphanAge is how old an unreferenced object of one's own epoch must be to
	// be deleted; default 24 h.
	OrphanAge time.Duration
}

func (p *CollectPolicy) setDefaults() {
	if p.Every == 0 {
		p.Every = 10 * time.Minute
	}
	if p.Batch == 0 {
		p.Batch = 5000
	}
	if p.OrphanAge == 0 {
		p.OrphanAge = 24 * time.Hour
	}
}

// Collected reports what a collection deleted, or would delete.
type Collected struct {
	Things  int      `json:"things"`
	Bytes   int64    `json:"bytes"`
	Kept    int      `json:"kept"` // dead, but pinned or within the retention
	Orphans int      `json:"orphans"`
	Keys    []string `json:"keys,omitempty"` // of a dry run, the first thousand
}

func (c *Collected) add(key string, size int64, dry bool) {
	c.Things++
	c.Bytes += size
	if dry && len(c.Keys) < 1000 {
		c.Keys = append(c.Keys, key)
	}
}

// pinListings bounds how often the pins are listed for one look at them.
const pinListings = 10

// pins reads all pins. One that can't be read is an error: nothing may be
// deleted while it is unknown what it keeps. They are listed until a listing
// shows no new one: a pin that is renewed goes to another key, and a listing
// under way then may show neither of the two.
func (v *Volume) pins(ctx context.Context) ([]metadata.Pin, error) {
	seen := map[string]bool{}
	var pins []metadata.Pin
	for i := 0; i < pinListings; i++ {
		known := len(seen)
		fresh, err := v.newPins(ctx, seen)
		if err != nil {
			return nil, err
		}
		pins = append(pins, fresh...)
		if i > 0 && len(seen) == known {
			return pins, nil
		}
	}
	return nil, fmt.Errorf("%w: %s: new pins come faster than they can be read", ErrStore, v.opt.URL)
}

// newPins lists the pins once and reads those that were not seen yet.
func (v *Volume) newPins(ctx context.Context, seen map[string]bool) ([]metadata.Pin, error) {
	var pins []metadata.Pin
	err := objstore.ListAll(ctx, v.store, metadata.PinPrefix, "", func(i objstore.Info) error {
		if seen[i.Key] {
			return nil
		}
		seen[i.Key] = true
		err := readDocument(ctx, v.store, i.Key, maxPinBytes, func(body []byte, info objstore.Info) error {
			p, err := decodePin(body, info)
			if err == nil {
				pins = append(pins, *p)
			}
			return err
		})
		if errors.Is(err, objstore.ErrNotExist) {
			return nil // taken away meanwhile
		}
		return err
	})
	if err != nil && !isDamage(err) && !errors.Is(err, ErrNewerFormat) && !errors.Is(err, ErrStore) {
		return nil, storeError("list pins", err)
	}
	return pins, err
}

// pinned says whether a pin keeps a dead thing.
func pinned(pins []metadata.Pin, d *metadata.Dead, now int64) bool {
	for i := range pins {
		p := &pins[i]
		if p.Expiry != 0 && p.Expiry < now {
			continue
		}
		if d.Birth <= p.Commit.N && p.Commit.N < d.Death {
			return true
		}
	}
	return false
}

// Collect deletes dead things that no pin and no retained commit needs: a
// commit condemns them, pins are read again, a commit takes back what one
// needs, the rest is deleted, and a commit forgets it. With dryRun it only
// reports. A collection that was interrupted goes on where it was.
func (v *Volume) Collect(ctx context.Context, dryRun bool) (Collected, error) {
	var out Collected
	dead := false
	err := v.index.DeadThings(func(metadata.Dead) bool { dead = true; return false })
	if err != nil {
		return out, fmt.Errorf("dead things: %w", err)
	}
	if !dead {
		return out, nil // an idle volume makes no requests
	}
	pins, err := v.pins(ctx)
	if err != nil {
		return out, err
	}
	now, err := v.storeTime(ctx)
	if err != nil {
		return out, err
	}
	v.mu.RLock()
	retention := v.settings.RetentionSec * int64(time.Second)
	shared := map[string]bool{}
	for _, l := range [...]*layer{v.active, v.frozen} {
		if l != nil {
			for _, key := range l.shares {
				shared[key] = true
			}
		}
	}
	v.mu.RUnlock()
	var fresh, condemned []metadata.Dead
	err = v.index.DeadThings(func(d metadata.Dead) bool {
		switch {
		case d.State == metadata.DeadCondemned:
			condemned = append(condemned, d)
		case retention > 0 && now-d.Time < retention || shared[d.Key] || pinned(pins, &d, now):
			out.Kept++
		case len(fresh) < v.opt.Collect.Batch:
			fresh = append(fresh, d)
		}
		return true
	})
	if err != nil {
		return out, fmt.Errorf("dead things: %w", err)
	}
	if dryRun {
		for _, d := range append(condemned, fresh...) {
			out.add(d.Key, d.Size, true)
		}
		return out, nil
	}
	if len(fresh) > 0 {
		if fresh, err = v.condemn(ctx, fresh); err != nil {
			return out, err
		}
		condemned = append(condemned, fresh...)
	}
	if len(condemned) == 0 {
		return out, nil
	}
	return out, v.deleteCondemned(ctx, condemned, now, &out)
}

// condemn condemns the dead things that are what they were when they were chosen,
// and returns them. One that a restore has brought back meanwhile may have died anew:
// what needs it now is a younger past than the one that was judged.
func (v *Volume) condemn(ctx context.Context, chosen []metadata.Dead) (done []metadata.Dead, err error) {
	err = v.commitWith(ctx, func(a *additions) error {
		for _, d := range chosen {
			now, err := v.index.Dead(d.Key)
			if errors.Is(err, metadata.ErrNotExist) || err == nil && now.Death != d.Death {
				continue
			}
			if err != nil {
				return fmt.Errorf("dead things: %w", err)
			}
			a.condemned = append(a.condemned, d.Key)
			a.horizon = max(a.horizon, d.Death)
			done = append(done, d)
		}
		return nil
	})
	return done, err
}

// deleteCondemned takes back what a pin needs after all and deletes the rest.
func (v *Volume) deleteCondemned(ctx context.Context, condemned []metadata.Dead, now int64, out *Collected) error {
	pins, err := v.pins(ctx)
	if err != nil {
		return err
	}
	var back []string
	var gone []metadata.Dead
	for _, d := range condemned {
		// A pin counts at least as long as its commit was within the retention:
		// what is condemned has passed that.
		if pinned(pins, &d, now) {
			back = append(back, d.Key)
			out.Kept++
			continue
		}
		// After the pins: a restore that has brought it back to life meanwhile was
		// pinned until its commit.
		still, err := v.isCondemned(&d)
		if err != nil {
			return err
		}
		if still {
			gone = append(gone, d)
		}
	}
	if len(back) > 0 {
		err := v.commitWith(ctx, func(a *additions) error { a.takenBack = append(a.takenBack, back...); return nil })
		if err != nil {
			return err
		}
	}
	if err := v.Stopped(); err != nil {
		return err
	}
	err = v.inParallel(ctx, len(gone), func(ctx context.Context, i int) error {
		if err := v.store.Delete(ctx, gone[i].Key); err != nil {
			return storeErrorAt("delete", gone[i].Key, err)
		}
		return nil
	})
	if err != nil || len(gone) == 0 {
		return err
	}
	keys := make([]string, len(gone))
	for i, d := range gone {
		keys[i] = d.Key
		out.add(d.Key, d.Size, false)
	}
	v.stat.collected.Add(int64(len(gone)))
	return v.commitWith(ctx, func(a *additions) error { a.collected = append(a.collected, keys...); return nil })
}

// isCondemned says whether a thing is still condemned as of the last commit, for the
// death that is given.
func (v *Volume) isCondemned(d *metadata.Dead) (bool, error) {
	now, err := v.index.Dead(d.Key)
	if errors.Is(err, metadata.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("dead things: %w", err)
	}
	return now.State == metadata.DeadCondemned && now.Death == d.Death, nil
}

// commitWith lets add give additions to a commit, when the index has all commits
// before that, and waits until it is applied.
func (v *Volume) commitWith(ctx context.Context, add func(*additions) error) error {
	select {
	case <-v.commit.run:
	case <-ctx.Done():
		return ErrInterrupted
	}
	defer func() { v.commit.run <- struct{}{} }()
	// A commit that is under way does not have them: it goes first.
	for v.commit.done != nil || v.hasFrozen() {
		if err := v.commitOnce(ctx); err != nil {
			return err
		}
	}
	if err := add(&v.commit.adds); err != nil {
		return err
	}
	return v.commitOnce(ctx)
}

func (v *Volume) hasFrozen() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.frozen != nil
}

// collection puts the additions of background work into the document.
func (b *builder) collection(adds *additions) error {
	b.c.Condemned, b.c.TakenBack, b.c.Collected = adds.condemned, adds.takenBack, adds.collected
	// Every commit says how far collection has gone, so that who pins needs to
	// read the last one only; and it never goes back.
	b.c.Horizon = max(adds.horizon, b.v.head.Horizon)
	if m := adds.manifest; m != nil {
		b.c.Manifest = m.m.CommitID
		for _, d := range m.dead {
			d.Death, d.Time = b.c.N, b.v.clocks.latest()
			b.c.Dead = append(b.c.Dead, d)
		}
	}
	return nil
}

// afterCommit settles what a commit means for background work. Runs under the
// token.
func (v *Volume) afterCommit(b *built) {
	v.mu.Lock()
	if b.adds.manifest != nil {
		v.sinceManifest = manifestState{size: b.adds.manifest.m.StoredBytes()}
	}
	v.sinceManifest.commits++
	v.sinceManifest.bytes += int64(len(b.body))
	v.mu.Unlock()
	now := time.Now()
	for i := range b.c.Slots {
		k := slotKey{b.c.Slots[i].Inode, b.c.Slots[i].Slot}
		s, err := v.index.Slot(k.ino, k.slot)
		if err == nil {
			v.folds.set(k, s, now)
		}
	}
}

// deleteUnused deletes what was uploaded for a commit and it does not name.
func (v *Volume) deleteUnused(b *built) {
	for _, key := range b.unused {
		if err := v.store.Delete(v.ctx, key); err != nil {
			v.log.Debug("an unused upload stays until the orphan scan", "key", key, "error", err)
		}
	}
}

// runCollect collects in the background.
func (v *Volume) runCollect() {
	defer v.group.Done()
	for {
		t := time.NewTimer(v.opt.Collect.Every)
		select {
		case <-t.C:
		case <-v.quit:
			t.Stop()
			return
		}
		if v.Stopped() != nil {
			return
		}
		if _, err := v.Collect(v.ctx, false); v.ctx.Err() == nil {
			v.outages.collect.note(v.log, workCollect, err)
		}
		if v.unclean {
			// Once: what a writer that was cut off had uploaded and not committed.
			_, err := v.CollectOrphans(v.ctx, false)
			v.unclean = err != nil
			if v.ctx.Err() == nil {
				v.outages.orphans.note(v.log, workOrphans, err)
			}
		}
	}
}
