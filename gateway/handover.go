package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cisternfs/cistern/metadata"
)

// While writes go on, a hand-over commits until so little is left that holding
// the writers for the rest is not felt, or until that many commits have not got
// there: they write faster than the bucket takes it.
const (
	handoverRest    = 1 << 20 // bytes
	handoverCommits = 8
)

// Handover gives the volume away: it commits everything while writes go on,
// holds the writers for the rest, releases the lease and leaves the volume
// read-only. Writers that were held, and all later ones, get ErrHandedOver,
// which is an ErrReadOnly; reads go on. It returns the commit at which the next
// owner begins, who need not wait.
//
// When it fails the writers go on as if nothing had been. It fails when ctx
// ends, and when nothing has reached the bucket for 10 s (ErrUncommitted), or
// the lease can't be released (ErrStore). Safe for concurrent use.
func (v *Volume) Handover(ctx context.Context) (metadata.CommitID, error) {
	if err := v.Stopped(); err != nil {
		return v.Head(), err
	}
	err := v.whileProgress(ctx, func(ctx context.Context) error {
		for i := 0; i < handoverCommits && (i == 0 || v.dirtyBytes() > handoverRest); i++ {
			if _, err := v.Commit(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return v.Head(), v.handoverFailed(ctx, err)
	}
	select {
	case <-v.commit.run:
	case <-ctx.Done():
		return v.Head(), v.handoverFailed(ctx, ctx.Err())
	}
	defer func() { v.commit.run <- struct{}{} }()
	if err := v.gate.close(ctx); err != nil {
		return v.Head(), v.handoverFailed(ctx, err)
	}
	defer v.gate.open() // the writers go on, or find the volume read-only
	err = v.whileProgress(ctx, func(ctx context.Context) error {
		for !v.clean() || v.commit.done != nil {
			if err := v.commitOnce(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		v.commit.wake(err)
		return v.Head(), v.handoverFailed(ctx, err)
	}
	return v.Head(), v.giveAway(ctx)
}

// Head is the last commit.
func (v *Volume) Head() metadata.CommitID {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.head.CommitID
}

// handoverFailed says why a hand-over did not come about.
func (v *Volume) handoverFailed(ctx context.Context, err error) error {
	if cause := v.Stopped(); cause != nil {
		return cause
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: the hand-over was given up; the mount goes on", ErrInterrupted)
	}
	return fmt.Errorf("the hand-over did not come about, and the mount goes on: %w", v.uncommitted(err))
}

// giveAway releases the lease. Everything is committed, nobody writes and no
// commit runs: the caller holds the gate shut and the token of commits.
func (v *Volume) giveAway(ctx context.Context) error {
	if ctx.Err() != nil {
		return v.handoverFailed(ctx, ctx.Err())
	}
	// From here on it is not given up half-way: nobody would know who owns it.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stallTime)
	defer cancel()
	if err := v.writeLease(ctx, true); err != nil {
		if !errors.Is(err, ErrFenced) {
			// The release may arrive yet. Until a renewal has come after it, or has
			// found that somebody took the volume, this mount is as one whose lease
			// ran out.
			v.renewSoon()
			err = fmt.Errorf("everything is committed, but the lease can't be given back, and the mount goes on: %w", err)
		}
		return err
	}
	reason := fmt.Errorf("%w: %w at commit %s", ErrReadOnly, ErrHandedOver, v.Head())
	if v.end(reason) {
		v.log.Info("volume was handed over", "volume", v.opt.URL, "commit", v.Head())
	}
	return nil
}

// renewSoon makes the lease count as not renewed, and asks for a renewal.
func (v *Volume) renewSoon() {
	v.lease.mu.Lock()
	v.lease.renewed = time.Now().Add(-v.opt.LeaseDuration)
	v.lease.mu.Unlock()
	select {
	case v.lease.soon <- struct{}{}:
	default:
	}
}
