package gateway

import (
	"context"
	"time"

	"github.com/cisternfs/cistern/journal"
)

// waitCommitted waits until a commit covers lsn.
func (v *Volume) waitCommitted(ctx context.Context, lsn journal.LSN) error {
	return v.commitUntil(ctx, func() bool {
		v.mu.RLock()
		defer v.mu.RUnlock()
		return journal.LSN(v.head.LastLSN) >= lsn
	})
}

// waitLag waits while the oldest change that is not in the bucket is older
// than lag.
func (v *Volume) waitLag(ctx context.Context, lag time.Duration) error {
	return v.commitUntil(ctx, func() bool { return v.dirtyAge() <= lag })
}

// commitUntil asks for commits, and waits for them, until done.
func (v *Volume) commitUntil(ctx context.Context, done func() bool) error {
	for {
		ch := v.commit.changed()
		if done() {
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
