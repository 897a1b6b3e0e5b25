package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

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
	durable   bool     // the journal is, up to its cut
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
		var err error
		if b, err = v.buildSynced(ctx, frozen, totals); err != nil {
			return err
		}
	}
	if !b.durable {
		if err := v.syncJournal(ctx, journal.LSN(b.c.LastLSN)); err != nil {
			return err
		}
		b.durable = true
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

// buildSynced uploads what the commit of a frozen layer needs, while the journal
// becomes durable up to its cut: a bulk load would else leave the network idle for
// as long as the local disk takes. Nothing of the uploads counts before the
// document is written, and that waits for both.
func (v *Volume) buildSynced(ctx context.Context, frozen *layer, totals metadata.Totals) (*built, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	synced := make(chan error, 1)
	go func() {
		var err error
		if frozen.last > 0 {
			err = v.syncJournal(ctx, frozen.last)
		}
		if err != nil {
			cancel()
		}
		synced <- err
	}()
	b, err := v.build(ctx, frozen, totals)
	if err != nil {
		cancel()
	} else {
		v.commit.done = b
	}
	serr := <-synced
	switch {
	case err == nil:
		b.durable = serr == nil
		return b, serr
	case serr != nil && !errors.Is(serr, ErrInterrupted):
		return nil, serr // which called the uploads off
	}
	return nil, err
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
	case errors.Is(rerr, ErrKey):
		err = fmt.Errorf("%w: %s is encrypted with a key that this mount has not: whoever wrote it has a newer one, after commit %s; %s",
			ErrFenced, key, v.head.CommitID, v.keptForSalvage())
	case rerr != nil:
		return rerr
	case e == nil:
		return fmt.Errorf("%w: %s was refused as taken and is not there", ErrStore, key)
	case e.seal != nil:
		err = fmt.Errorf("%w: epoch %d of %s was sealed for epoch %d, after commit %s; %s",
			ErrFenced, b.c.Epoch, v.opt.URL, e.seal.Epoch, v.head.CommitID, v.keptForSalvage())
	default:
		err = fmt.Errorf("%w: %s holds a commit that this process did not write; %s", ErrFenced, key, v.keptForSalvage())
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
			return fmt.Errorf("%w: %w", ErrStore, objstore.At("write", key, err))
		}
		if stopped := v.Stopped(); stopped != nil {
			return stopped // nothing that this mount stores counts any more
		}
		if v.stat.up.failed(err, v.opt.Now()) {
			v.log.Warn("object store fails; going on locally", "key", key, "error", err)
		}
		if serr := v.sleep(ctx, pause); serr != nil {
			return fmt.Errorf("%w: %w", ErrStore, objstore.At("write", key, err))
		}
	}
}

// Sync makes everything acknowledged so far durable in the bucket and returns
// the commit that has it.
func (v *Volume) Sync(ctx context.Context) (metadata.CommitID, error) {
	return v.Commit(ctx)
}
