package journal

import (
	"context"
	"fmt"
)

// Sync returns when all records up to lsn are durable. One caller does it for
// all who wait, and a caller who finds it done returns at once. When the context
// ends first, its error is returned, but a round that this call runs itself is
// finished. Errors: ErrBroken with the first cause, ErrClosed.
func (j *Journal) Sync(ctx context.Context, lsn LSN) error {
	for {
		if j.Durable() >= lsn {
			return nil
		}
		j.mu.Lock()
		err := j.usable()
		if err == nil && lsn > j.end {
			err = fmt.Errorf("%w: sync up to lsn %d, the journal ends at %d", ErrState, lsn, j.end)
		}
		finished := j.Durable() >= lsn // while this call came for the lock
		lead, done := err == nil && !finished && !j.leading, j.roundDone
		if lead {
			j.leading = true
		}
		j.mu.Unlock()
		switch {
		case finished:
			return nil
		case err != nil:
			return err
		case lead:
			j.round()
			continue
		}
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("wait for the journal: %w", ctx.Err())
		}
	}
}

// mend rewrites what a failed write left, unless another call has done it.
func (j *Journal) mend() error {
	for {
		j.mu.Lock()
		err := j.usable()
		failed := j.failed
		lead, done := !j.leading, j.roundDone
		if err == nil && failed != nil && lead {
			j.leading = true
		}
		j.mu.Unlock()
		switch {
		case err != nil || failed == nil:
			return err
		case lead:
			j.round()
		default:
			<-done
		}
	}
}

// round is one group commit. The caller leads; round ends that. A failure leaves
// the journal mended or broken.
func (j *Journal) round() {
	j.mu.Lock()
	target, err := j.end, j.failed
	j.mu.Unlock()
	if err == nil {
		err = j.flush(target)
	}
	if err != nil {
		j.out.Lock()
		j.wr.Lock()
		j.rewrite(err)
		j.wr.Unlock()
		j.out.Unlock()
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.leading = false
	j.stats.Syncs++
	close(j.roundDone)
	j.roundDone = make(chan struct{})
}

// dirtyFile is a file with records that are not known durable.
type dirtyFile struct {
	f    *file
	last LSN
}

// flush makes the records up to target durable.
func (j *Journal) flush(target LSN) error {
	if j.o.BeforeSync != nil {
		if err := j.o.BeforeSync(); err != nil {
			return fmt.Errorf("make durable what records refer to: %w", err)
		}
	}
	if err := j.writeOut(); err != nil {
		return err
	}
	for _, d := range j.dirtyFiles(target) {
		if err := d.f.f.Sync(); err != nil {
			return fmt.Errorf("sync journal file %s: %w", j.path(d.f.name), err)
		}
		j.settle(d.last)
	}
	return nil
}

// writeOut writes the queued groups, unless a Write of another caller has failed
// since the round began: what that one had taken out of the queue is only in pending
// then, and nothing here may call it durable.
func (j *Journal) writeOut() error {
	j.out.Lock()
	defer j.out.Unlock()
	j.mu.Lock()
	failed := j.failed
	j.mu.Unlock()
	if failed != nil {
		return failed
	}
	return j.writeQueue()
}

// dirtyFiles returns what is to be synced, the oldest first.
func (j *Journal) dirtyFiles(target LSN) []dirtyFile {
	durable := j.Durable()
	j.mu.Lock()
	defer j.mu.Unlock()
	var dirty []dirtyFile
	for _, f := range j.files {
		if f.last > durable && f.head.first <= target {
			dirty = append(dirty, dirtyFile{f, min(f.last, target)})
		}
	}
	return dirty
}

// settle notes that records are durable and lets go of their bytes.
func (j *Journal) settle(lsn LSN) {
	j.noteSynced(lsn)
	j.mu.Lock()
	defer j.mu.Unlock()
	n := 0
	for n < len(j.pending) && j.pending[n].last() <= lsn {
		j.unsynced -= int64(len(j.pending[n].buf))
		j.pools.put(j.pending[n])
		j.pending[n] = nil
		n++
	}
	if j.pending = j.pending[n:]; len(j.pending) == 0 {
		j.pending = j.pending[:0:0]
	}
	j.stats.SyncedGroups += uint64(n)
	j.stats.MostGroups = max(j.stats.MostGroups, n)
	j.advance(lsn)
}
