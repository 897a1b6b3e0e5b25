package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// commitState is where the volume is with its commits.
type commitState struct {
	run  chan struct{}     // holds a token while no commit runs
	next metadata.CommitID // number of the next commit; under run
	done *built            // built and not yet applied; under run
	adds additions         // for the next commit; under run
	kick chan struct{}     // asks for a commit now
	// syncSoon asks for a sync of the journal.
	syncSoon chan struct{}
	manifest chan struct{} // holds a token while a manifest is written; taken before run

	mu      sync.Mutex // guards the fields below
	ch      chan struct{}
	since   time.Time // when the oldest uncommitted change was made; zero: none
	lastErr error     // of the last attempt
}

// additions are what background work puts into the next commit.
type additions struct {
	manifest  *newManifest
	folds     []*folded
	condemned []string
	takenBack []string
	collected []string
	horizon   uint64
}

func (a *additions) empty() bool {
	return a.manifest == nil && len(a.folds) == 0 && len(a.condemned) == 0 && len(a.takenBack) == 0 && len(a.collected) == 0 && a.horizon == 0
}

// built is a commit whose parts are all in the bucket. Until its outcome is
// known the same bytes are sent.
type built struct {
	c         *metadata.Commit
	body      []byte
	hash      string
	adds      additions
	unused    []string // uploads that it does not name
	published bool
}

func (c *commitState) init() {
	c.run = make(chan struct{}, 1)
	c.run <- struct{}{}
	c.kick = make(chan struct{}, 1)
	c.syncSoon = make(chan struct{}, 1)
	c.manifest = make(chan struct{}, 1)
	c.ch = make(chan struct{})
}

// changed returns a channel that is closed at the next commit or stop.
func (c *commitState) changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.ch
}

func (c *commitState) wake(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lastErr = err
	close(c.ch)
	c.ch = make(chan struct{})
}

func (c *commitState) dirtySince(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.since.IsZero() {
		c.since = t
	}
}

func (v *Volume) kickCommit() {
	select {
	case v.commit.kick <- struct{}{}:
	default:
	}
}

// Commit makes everything acknowledged before the call durable in the bucket
// and returns the last commit. It goes on through failures of the store until
// ctx ends.
func (v *Volume) Commit(ctx context.Context) (metadata.CommitID, error) {
	select {
	case <-v.commit.run:
	case <-ctx.Done():
		return metadata.CommitID{}, ErrInterrupted
	}
	defer func() { v.commit.run <- struct{}{} }()
	if err := v.reapAll(ctx); err != nil && ctx.Err() == nil {
		v.log.Warn("freeing inodes without names is put off", "error", err)
	}
	upTo := v.journal.End()
	for {
		if err := v.commitOnce(ctx); err != nil {
			v.commit.wake(err)
			return metadata.CommitID{}, err
		}
		v.mu.RLock()
		head := v.head
		v.mu.RUnlock()
		if journal.LSN(head.LastLSN) >= upTo || v.clean() {
			return head.CommitID, nil
		}
	}
}

// clean says whether the bucket has everything.
func (v *Volume) clean() bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.frozen == nil && v.active.empty()
}

// commitOnce freezes the active layer and commits it, or goes on with the
// commit that an earlier call could not end.
func (v *Volume) commitOnce(ctx context.Context) error {
	if err := v.Stopped(); err != nil {
		return err
	}
	b := v.commit.done
	if b == nil {
		frozen, totals := v.freeze()
		if frozen == nil {
			return nil
		}
		if frozen.last > 0 {
			if err := v.syncJournal(ctx, frozen.last); err != nil {
				return err
			}
		}
		var err error
		if b, err = v.build(ctx, frozen, totals); err != nil {
			return err
		}
		v.commit.done = b
	}
	if !b.published {
		if err := v.Stopped(); err != nil {
			return err // another's epoch was seen meanwhile
		}
		if err := v.publishCommit(ctx, b); err != nil {
			return err
		}
		b.published = true
	}
	return v.applyCommit(b)
}

// freeze makes the active layer the frozen one, in O(1): what it returns is the
// state at the cut. It returns nil when there is nothing to commit.
func (v *Volume) freeze() (*layer, metadata.Totals) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.frozen == nil {
		if v.active.empty() && v.commit.adds.empty() {
			return nil, metadata.Totals{}
		}
		v.frozen = v.active
		v.frozen.totals = metadata.Totals{Inodes: v.inodes, UsedBytes: v.used, NextInode: v.nextInode}
		v.active = newLayer()
		v.commit.mu.Lock()
		v.frozen.since = v.commit.since
		v.commit.since = time.Time{}
		v.commit.mu.Unlock()
	}
	return v.frozen, v.frozen.totals
}

// publishCommit writes the commit's document under the next number of the path
// and settles what came of it.
func (v *Volume) publishCommit(ctx context.Context, b *built) error {
	key := metadata.CommitKey(b.c.CommitID)
	err := v.persist(ctx, key, b.body)
	if !errors.Is(err, objstore.ErrConditionFailed) {
		return err
	}
	e, rerr := pathReader{v.store}.read(ctx, b.c.CommitID)
	switch {
	case rerr != nil:
		return rerr
	case e == nil:
		return fmt.Errorf("%w: %s was refused as taken and is not there", ErrStore, key)
	case e.seal != nil:
		err = fmt.Errorf("%w: epoch %d of %s was sealed for epoch %d; what this mount acknowledged after commit %s is kept for `cistern salvage`",
			ErrFenced, b.c.Epoch, v.opt.URL, e.seal.Epoch, v.head.CommitID)
	default:
		err = fmt.Errorf("%w: %s holds a commit that this process did not write", ErrFenced, key)
	}
	v.stop(err)
	return err
}

// Pauses between attempts to store something.
const (
	persistFirstPause = 100 * time.Millisecond
	persistLastPause  = 5 * time.Second
)

// persist stores a new object and does not give up on failures that may pass
// until ctx ends: the caller has nowhere else to put it. Status shows that it
// fails and since when.
func (v *Volume) persist(ctx context.Context, key string, body []byte) error {
	for pause := persistFirstPause; ; pause = min(2*pause, persistLastPause) {
		err := objstore.Create(ctx, v.store, key, body)
		if err == nil {
			v.stat.uploaded.Add(int64(len(body)))
			v.stat.uploads.Add(1)
			if lasted, tell := v.stat.up.worked(v.opt.Now()); tell {
				v.log.Info("object store works again", "failed for", lasted.Round(time.Second))
			}
			return nil
		}
		if errors.Is(err, objstore.ErrConditionFailed) {
			return err
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: write %s: %w", ErrStore, key, err)
		}
		if v.stat.up.failed(err, v.opt.Now()) {
			v.log.Warn("object store fails; going on locally", "key", key, "error", err)
		}
		if serr := v.sleep(ctx, pause); serr != nil {
			return fmt.Errorf("%w: write %s: %w", ErrStore, key, err)
		}
	}
}

// applyCommit brings the index to a published commit, drops the frozen layer
// and frees the journal. Each step may be repeated after a failure.
func (v *Volume) applyCommit(b *built) error {
	if err := v.index.Apply(b.c, b.hash, v.localSums(b.c)); err != nil {
		return fmt.Errorf("apply commit %s to the local index: %w", b.c.CommitID, err)
	}
	cut := journal.LSN(b.c.LastLSN)
	v.mu.Lock()
	v.frozen = nil
	v.head = v.index.Head()
	freed := v.dropReferences(cut)
	v.notePending()
	v.mu.Unlock()
	v.settleReigns(cut)
	v.commit.done = nil
	v.commit.next = metadata.CommitID{Epoch: b.c.Epoch, N: b.c.N + 1}
	v.afterCommit(b)
	for _, r := range freed {
		v.unpin(r)
	}
	if err := v.journal.Free(cut); err != nil {
		v.log.Warn("journal files stay", "up to", cut, "error", err)
	}
	v.stat.commits.Add(1)
	v.commit.wake(nil)
	return nil
}

// settleReigns forgets earlier reigns once all that was redone of their journal
// is committed.
func (v *Volume) settleReigns(cut journal.LSN) {
	if v.redone == 0 || cut < v.redone {
		return
	}
	v.redone = 0
	all := v.owner.Reigns
	v.owner.Reigns = []string{v.owner.current()}
	if err := v.owner.save(); err != nil {
		v.owner.Reigns = all // the next mount has more of them to compare with
		v.log.Warn("owner.json keeps earlier reigns", "error", err)
	}
}

// ownedReference is a reference and whose it is.
type ownedReference struct {
	ino InodeID
	ref *reference
}

// dropReferences takes the references that a commit covers off the books.
// Caller holds v.mu.
func (v *Volume) dropReferences(cut journal.LSN) []ownedReference {
	var freed []ownedReference
	for ino, m := range v.refs {
		var mine []*reference
		m.Visit(0, wholeFile, func(_, _ int64, r refValue) bool {
			if r.lsn <= cut {
				mine = append(mine, r.reference)
			}
			return true
		})
		for _, r := range mine {
			m.Delete(r.off, r.off+r.len)
			v.refBytes -= r.len
			freed = append(freed, ownedReference{ino, r})
		}
		if m.Len() == 0 {
			delete(v.refs, ino)
		}
	}
	return freed
}

// unpin gives a committed reference's bytes back to the cache, after newer
// bytes that had to stay in the journal are put over them.
func (v *Volume) unpin(r ownedReference) {
	f := v.cache.Get(uint64(r.ino))
	defer f.Release()
	defer f.Unpin(r.ref.off, r.ref.len)
	f.DropPages(r.ref.off, r.ref.len)
	nd := v.nodes.use(r.ino)
	defer v.nodes.done(nd)
	held, err := nd.lock.Lock(v.ctx, r.ref.off, r.ref.off+r.ref.len, true)
	if err != nil {
		return
	}
	defer held.Unlock()
	var later []span
	v.mu.RLock()
	// A new reference may have come to the range meanwhile: its bytes stay, and
	// what lies over them is read from the journal until it is committed, too.
	refs := v.refs[r.ino]
	if m := v.active.files[r.ino]; m != nil {
		m.Visit(r.ref.off, r.ref.off+r.ref.len, func(off, end int64, p piece) bool {
			if p.kind == pieceData && (refs == nil || !refs.Overlaps(off, end)) {
				later = append(later, span{off: off, end: end, piece: p})
			}
			return true
		})
	}
	v.mu.RUnlock()
	for _, s := range later {
		buf := make([]byte, s.len())
		if v.readJournal(s.piece, buf) != nil {
			continue // readers take it from the journal, or hear of it
		}
		if ok, err := f.WriteAt(buf, s.off); !ok && err != nil {
			v.stat.cacheErrors.Add(1)
		}
	}
}

// maxLocalSums bounds the blocks that one commit reads back from the cache.
const maxLocalSums = 1024

// localSums computes what the index keeps for believing the cache after a
// restart: the checksums of blocks that a commit changed and that are wholly
// present and not changed since.
func (v *Volume) localSums(c *metadata.Commit) []metadata.LocalSum {
	var sums []metadata.LocalSum
	buf := make([]byte, metadata.BlockSize)
	seen := map[blockKey]bool{}
	for i := range c.Slots {
		s := &c.Slots[i]
		if s.Remove || s.Base != nil && v.objectSize%metadata.BlockSize == 0 && len(s.Add) == 0 {
			continue
		}
		start := int64(s.Slot) * v.objectSize
		touch := func(off, n int64) {
			for b := (start + off) / metadata.BlockSize; b <= (start+off+n-1)/metadata.BlockSize; b++ {
				k := blockKey{ino: s.Inode, block: uint32(b)}
				if seen[k] || len(seen) >= maxLocalSums {
					continue
				}
				seen[k] = true
				if sum, ok := v.localSum(s.Inode, b, buf); ok {
					sums = append(sums, metadata.LocalSum{Inode: s.Inode, Block: b, Sum: sum})
				}
			}
		}
		for _, p := range s.Add {
			touch(int64(p.Off), int64(p.Len))
		}
		if s.Base != nil && v.objectSize%metadata.BlockSize != 0 {
			touch(0, int64(s.Base.Len))
		}
	}
	return sums
}

// localSum reads one block of the cache, if it is what the frozen layer has.
func (v *Volume) localSum(ino InodeID, block int64, buf []byte) (uint32, bool) {
	nd := v.nodes.use(ino)
	defer v.nodes.done(nd)
	off := block * metadata.BlockSize
	held, ok := nd.lock.TryLock(off, off+metadata.BlockSize, false)
	if !ok {
		return 0, false
	}
	defer held.Unlock()
	v.mu.RLock()
	n, ok := v.frozen.inodes[ino]
	if !ok {
		n, _ = v.index.Inode(ino)
	}
	changed := v.active.files[ino] != nil && v.active.files[ino].Overlaps(off, off+metadata.BlockSize)
	v.mu.RUnlock()
	if n == nil || changed || n.Size <= off {
		return 0, false
	}
	size := min(metadata.BlockSize, n.Size-off)
	f := v.cache.Get(uint64(ino))
	defer f.Release()
	whole := int64(0)
	f.Present(off, size, func(_, n int64) bool { whole += n; return true })
	if whole != size {
		return 0, false
	}
	if ok, err := f.ReadAt(buf[:size], off); !ok || err != nil {
		return 0, false
	}
	return checksum(buf[:size]), true
}

// The cache and the format agree on the size of a block.
const (
	_ = uint(cache.BlockSize - metadata.BlockSize)
	_ = uint(metadata.BlockSize - cache.BlockSize)
)

// waitCommitted waits until a commit covers lsn.
func (v *Volume) waitCommitted(ctx context.Context, lsn journal.LSN) error {
	for {
		ch := v.commit.changed()
		v.mu.RLock()
		done := journal.LSN(v.head.LastLSN) >= lsn
		v.mu.RUnlock()
		if done {
			return nil
		}
		if err := v.Stopped(); err != nil {
			return err
		}
		v.kickCommit()
		select {
		case <-ch:
		case <-ctx.Done():
			return ErrInterrupted
		case <-v.quit:
			return ErrClosed
		}
	}
}

// waitLag waits while the oldest change that is not in the bucket is older
// than lag.
func (v *Volume) waitLag(ctx context.Context, lag time.Duration) error {
	for {
		ch := v.commit.changed()
		if v.dirtyAge() <= lag {
			return nil
		}
		if err := v.Stopped(); err != nil {
			return err
		}
		v.kickCommit()
		select {
		case <-ch:
		case <-ctx.Done():
			return ErrInterrupted
		case <-v.quit:
			return ErrClosed
		}
	}
}

// dirtyAge is the age of the oldest change that is not in the bucket.
func (v *Volume) dirtyAge() time.Duration {
	v.mu.RLock()
	frozen := v.frozen
	v.mu.RUnlock()
	v.commit.mu.Lock()
	since := v.commit.since
	v.commit.mu.Unlock()
	if frozen != nil {
		since = frozen.since
	}
	if since.IsZero() {
		return 0
	}
	return time.Since(since)
}

// Sync makes everything acknowledged so far durable in the bucket and returns
// the commit that has it.
func (v *Volume) Sync(ctx context.Context) (metadata.CommitID, error) {
	return v.Commit(ctx)
}

// runCommits commits when changes have gathered for an interval, and at once when
// asked. Between two commits it lets an interval pass.
func (v *Volume) runCommits() {
	defer v.group.Done()
	timer := time.NewTimer(v.opt.CommitInterval)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			if early := v.opt.CommitInterval - v.dirtyAge(); 0 < early && early < v.opt.CommitInterval {
				timer.Reset(early)
				continue
			}
		case <-v.commit.kick:
		case <-v.journal.Pressure():
		case <-v.quit:
			return
		}
		if v.Stopped() != nil {
			return
		}
		_, err := v.Commit(v.ctx)
		if v.ctx.Err() == nil {
			v.outages.commit.note(v.log, workCommit, err, "volume", v.opt.URL)
		}
		if err != nil && v.ctx.Err() == nil {
			if v.sleep(v.ctx, persistFirstPause) != nil {
				return
			}
		}
		timer.Reset(v.pause())
	}
}

// pause is how long commits rest after one: not at all when a bulk load has
// filled the time that the last one took.
func (v *Volume) pause() time.Duration {
	v.mu.RLock()
	bulk := v.active.bulk
	v.mu.RUnlock()
	if bulk >= bulkCommit && v.dirtyAge() >= v.opt.CommitInterval {
		return 0
	}
	return v.opt.CommitInterval
}

// runSync syncs the journal whenever much is waiting for it, so that no fsync
// finds a long queue.
func (v *Volume) runSync() {
	defer v.group.Done()
	for {
		select {
		case <-v.commit.syncSoon:
			if err := v.syncJournal(v.ctx, v.journal.End()); v.ctx.Err() == nil {
				v.outages.journal.note(v.log, workJournal, err)
			}
		case <-v.quit:
			return
		}
	}
}
