package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cisternfs/cistern/metadata"
)

// FoldPolicy says when patches are merged into objects.
type FoldPolicy struct {
	// Ratio of patch bytes to the object size at which a slot is folded while
	// it is written to; default 2.
	Ratio float64
	// MaxPatches of a slot, at which it is folded whatever their size; default 4096.
	MaxPatches int
	// MaxTotal patches of all slots; above it the largest are folded; default 1 million.
	MaxTotal int
	// QuietAfter is how long a slot must not have changed to be folded although
	// its patches are few; default 1 minute. Then patches of at least half the
	// slot's bytes are folded, so that folding costs at most twice the bytes
	// that were written.
	QuietAfter time.Duration
	// BytesPerSecond bounds what folding uploads; default 64 MiB.
	BytesPerSecond int64
	// DeadRatio of a segment's bytes at which its live ones move to another;
	// default 0.75.
	DeadRatio float64
}

func (p *FoldPolicy) setDefaults() {
	if p.Ratio == 0 {
		p.Ratio = 2
	}
	if p.MaxPatches == 0 {
		p.MaxPatches = 4096
	}
	if p.MaxTotal == 0 {
		p.MaxTotal = 1 << 20
	}
	if p.QuietAfter == 0 {
		p.QuietAfter = time.Minute
	}
	if p.BytesPerSecond == 0 {
		p.BytesPerSecond = 64 << 20
	}
	if p.DeadRatio == 0 {
		p.DeadRatio = 0.75
	}
}

// Fold folds the slots that are ripe, a bounded number of them, for the next
// commit; force takes every slot that has patches. It returns how many it
// folded. A slot that is damaged (ErrDamaged) keeps its patches and holds up no
// other: it is logged, and left alone for an hour or until it changes.
func (v *Volume) Fold(ctx context.Context, force bool) (int, error) {
	const batch = 64
	b := &foldBatch{v: v, began: time.Now()}
	err := b.run(ctx, v.ripe(b.began, force, batch), force)
	if err := errors.Join(err, v.deliver(ctx, b.done)); err != nil {
		return len(b.done), err
	}
	return len(b.done), b.damage
}

// foldBatch is one call of Fold.
type foldBatch struct {
	v        *Volume
	began    time.Time
	uploaded int64 // bytes

	done   []*folded
	packed []*folded // not stored yet: they get no object of their own
	bodies [][]byte  // of packed
	size   int       // of bodies

	damage error // the first that was met
}

func (b *foldBatch) run(ctx context.Context, ripe []slotKey, force bool) error {
	for _, k := range ripe {
		f, body, err := b.v.foldSlot(ctx, k, force)
		switch {
		case errors.Is(err, ErrDamaged):
			b.v.log.Warn("a slot can't be folded", "inode", k.ino, "slot", k.slot, "error", err)
			b.v.folds.rest(k, time.Now())
			if b.damage == nil {
				b.damage = err
			}
		case err != nil:
			return err
		case f == nil:
		case f.base != nil:
			b.uploaded += int64(len(body))
			b.done = append(b.done, f)
		default:
			b.packed, b.bodies, b.size = append(b.packed, f), append(b.bodies, body), b.size+len(body)
		}
		if b.size >= segmentTarget { // before more is held in memory
			if err := b.pack(ctx); err != nil {
				return err
			}
		}
		if err := b.pace(ctx); err != nil {
			return err
		}
	}
	return b.pack(ctx)
}

// pack stores the folded slots that get no object of their own.
func (b *foldBatch) pack(ctx context.Context) error {
	done, err := b.v.packFolds(ctx, b.packed, b.bodies)
	b.uploaded += int64(b.size)
	b.done = append(b.done, done...)
	b.packed, b.bodies, b.size = nil, nil, 0
	return err
}

// pace waits until no more is uploaded than FoldPolicy.BytesPerSecond.
func (b *foldBatch) pace(ctx context.Context) error {
	if b.v.opt.Manual {
		return nil
	}
	want := time.Duration(float64(b.uploaded) / float64(b.v.opt.Fold.BytesPerSecond) * float64(time.Second))
	if ahead := want - time.Since(b.began); ahead > 0 {
		return b.v.sleep(ctx, ahead)
	}
	return nil
}

// deliver hands folds to the next commit.
func (v *Volume) deliver(ctx context.Context, done []*folded) error {
	if len(done) == 0 {
		return nil
	}
	select {
	case <-v.commit.run:
	case <-ctx.Done():
		return ErrInterrupted // the orphan scan finds what was uploaded
	}
	v.commit.adds.folds = append(v.commit.adds.folds, done...)
	v.commit.run <- struct{}{}
	v.stat.folds.Add(int64(len(done)))
	return nil
}

// foldSlot merges a slot's patches: into an object, which it uploads, or into
// bytes to be packed with others, which it returns. nil: it isn't worth it.
func (v *Volume) foldSlot(ctx context.Context, k slotKey, force bool) (*folded, []byte, error) {
	s, err := v.index.Slot(k.ino, k.slot)
	if err != nil {
		return nil, nil, fmt.Errorf("slot %d of inode %d: %w", k.slot, k.ino, err)
	}
	if s == nil || len(s.Patches) == 0 {
		v.folds.set(k, nil, time.Time{})
		return nil, nil, nil
	}
	if forced, crowded := v.folds.must(k); !force && !forced && !v.worthFolding(s) && !(crowded && merged(s) < len(s.Patches)) {
		v.folds.leave(k, s)
		return nil, nil, nil
	}
	buf, err := v.slotBytes(ctx, k, s)
	if err != nil {
		if now, ierr := v.index.Slot(k.ino, k.slot); ierr == nil && !s.Same(now) {
			return nil, nil, nil // it changed meanwhile, and what it was made of may be gone
		}
		return nil, nil, err
	}
	length := s.End()
	f := &folded{ino: k.ino, slot: k.slot, seen: s, through: s.Patches[len(s.Patches)-1].Commit}
	if int64(s.Coverage(0, length)) < int64(length) || int64(length) < min(minOwnObject, v.objectSize) {
		return f, buf, nil
	}
	id := metadata.CommitID{Epoch: v.epoch()}
	framed, err := v.uploads.take(ctx, v.bodyMemory(int64(length))-int64(length))
	if err != nil {
		return nil, nil, ErrInterrupted
	}
	defer v.uploads.give(framed)
	var body []byte
	if f.base, body, err = v.newBase(buf, nil, id, int64(k.slot)*v.objectSize, k.ino); err != nil {
		return nil, nil, err
	}
	f.sum = bodySum(f.base, body)
	if err := v.persist(ctx, f.base.Key, body); err != nil {
		return nil, nil, err
	}
	return f, body, nil
}

// worthFolding says whether the patches are so many, or so much of the slot,
// that merging them pays.
func (v *Volume) worthFolding(s *metadata.Slot) bool {
	switch {
	case packed(s):
		return false
	case len(s.Patches) >= v.opt.Fold.MaxPatches:
		return true
	}
	return int64(s.PatchBytes())*2 >= int64(s.Coverage(0, s.End()))
}

// slotBytes returns a slot's committed bytes. Their memory counts among that of
// fetches until they are there, and no longer: readers must not wait for an upload
// that the store doesn't take.
func (v *Volume) slotBytes(ctx context.Context, k slotKey, s *metadata.Slot) ([]byte, error) {
	give, err := v.takeMemory(ctx, newAssembly(s, 0, s.End()).memory(), true)
	if err != nil {
		return nil, err
	}
	defer give()
	buf := make([]byte, s.End())
	return buf, v.readCommitted(ctx, k, s, buf)
}

// readCommitted fills buf with a slot's committed bytes: from the cache where
// it has exactly those, else from the store.
func (v *Volume) readCommitted(ctx context.Context, k slotKey, s *metadata.Slot, buf []byte) error {
	start := int64(k.slot) * v.objectSize
	for off := 0; off < len(buf); off += metadata.BlockSize {
		end := min(off+metadata.BlockSize, len(buf))
		if v.readClean(k.ino, start+int64(off), buf[off:end]) {
			continue
		}
		if err := v.assemble(ctx, s, uint32(off), buf[off:end]); err != nil {
			return err
		}
	}
	return nil
}

// readClean reads bytes from the cache if all are there and none is newer than
// the committed state.
func (v *Volume) readClean(ino InodeID, off int64, p []byte) bool {
	nd := v.nodes.use(ino)
	defer v.nodes.done(nd)
	held, ok := nd.lock.TryLock(off, off+int64(len(p)), false)
	if !ok {
		return false
	}
	defer held.Unlock()
	v.mu.RLock()
	dirty := false
	for _, l := range [...]*layer{v.active, v.frozen} {
		dirty = dirty || l != nil && l.files[ino] != nil && l.files[ino].Overlaps(off, off+int64(len(p)))
	}
	v.mu.RUnlock()
	if dirty {
		return false
	}
	f := v.cache.Get(uint64(ino))
	defer f.Release()
	ok, err := f.ReadAt(p, off)
	return ok && err == nil
}

// findPatched notes every slot that has patches, once after the mount.
func (v *Volume) findPatched() error {
	now := time.Now()
	return v.index.AllSlots(func(ino InodeID, no uint32, s *metadata.Slot) bool {
		if len(s.Patches) > 0 {
			v.folds.set(slotKey{ino, no}, s, now)
		}
		return !v.closed.Load()
	})
}

// markDeadSegments makes slots that refer to mostly dead segments fold, so that
// those segments die.
func (v *Volume) markDeadSegments() error {
	victims := map[string]bool{}
	err := v.index.Segments(func(s metadata.Segment) bool {
		if float64(s.Live) <= float64(s.Size)*(1-v.opt.Fold.DeadRatio) {
			victims[s.Key] = true
		}
		return true
	})
	if err != nil || len(victims) == 0 {
		return err
	}
	return v.index.AllSlots(func(ino InodeID, no uint32, s *metadata.Slot) bool {
		for i := range s.Patches {
			if victims[s.Patches[i].Seg.Key] {
				v.folds.force(slotKey{ino, no}, s)
				break
			}
		}
		return !v.closed.Load()
	})
}

// deadSegmentsEvery is how often mostly dead segments are looked for.
const deadSegmentsEvery = 10 * time.Minute

// runFolds folds in the background.
func (v *Volume) runFolds() {
	defer v.group.Done()
	looked := time.Now()
	for first := true; ; first = false {
		if time.Since(looked) >= deadSegmentsEvery {
			looked = time.Now()
			v.outages.deadSegments.note(v.log, workDeadSegments, v.markDeadSegments())
		}
		t := time.NewTimer(time.Second)
		select {
		case <-t.C:
		case <-v.quit:
			t.Stop()
			return
		}
		if v.Stopped() != nil {
			return
		}
		if first { // not before: the reads that a mount was waited for go first
			if err := v.findPatched(); err != nil {
				v.log.Warn("slots with patches are not known until they change", "error", err)
			}
		}
		n, err := v.Fold(v.ctx, false)
		if v.ctx.Err() == nil && !errors.Is(err, ErrDamaged) { // damage is told already
			v.outages.fold.note(v.log, workFold, err)
		}
		if n > 0 {
			v.kickCommit()
		}
	}
}
