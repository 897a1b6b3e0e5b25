package gateway

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// ErrUncommitted: the volume was closed with changes that are only in the local
// journal. They are safe there and go to the bucket at the next mount with the
// same state directory.
var ErrUncommitted = errors.New("changes are only in the local journal")

// errNotAwaited: whoever closed the volume had no time for its last commit.
var errNotAwaited = errors.New("their commit was not waited for")

// stallTime is how long Close waits without any progress.
const stallTime = 10 * time.Second

func (v *Volume) startBackground() {
	if v.opt.Manual {
		return
	}
	run := []func(){v.runCommits, v.runSync, v.runLease, v.runFolds, v.runManifests, v.runCollect, v.runWatch}
	if v.opt.Schedules {
		run = append(run, v.runSchedules)
	}
	if limit := v.nextInode; v.tidyLater {
		run = append(run, func() { v.runTidy(limit) })
	}
	for range readAheadWorkers {
		run = append(run, v.runReadAhead)
	}
	for _, f := range run {
		v.group.Add(1)
		go f()
	}
}

// Close commits everything, releases the lease and lets the state directory
// go. It waits as long as commits make progress; after 10 s without any, or
// when ctx ends, it leaves the rest in the journal, keeps the lease unreleased
// and returns ErrUncommitted. No other method may run any more.
func (v *Volume) Close(ctx context.Context) error {
	if v.closed.Swap(true) {
		return ErrClosed
	}
	err := v.Stopped()
	if err == nil {
		if err = v.drain(ctx); err == nil {
			v.leaveManifest(ctx)
		}
	}
	v.endBackground()
	if err == nil {
		lctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stallTime)
		err = v.writeLease(lctx, true)
		cancel()
		if err != nil && !errors.Is(err, ErrFenced) {
			err = fmt.Errorf("everything is committed, but the lease was not given back, and an owner elsewhere waits until it runs out: %w", err)
		}
	}
	if errors.Is(err, ErrHandedOver) {
		err = nil // the lease was given back then
	}
	aside, lerr := v.closeLocal(err)
	switch {
	case !errors.Is(err, ErrFenced) || lerr != nil:
	case aside == "":
		err = fmt.Errorf("%w; there is nothing of that: everything was committed before", err)
	default:
		err = fmt.Errorf("%w; it lies in %s now", err, aside)
	}
	return errors.Join(err, lerr)
}

// drain commits until nothing is left.
func (v *Volume) drain(ctx context.Context) error {
	if v.clean() {
		return nil
	}
	err := v.whileProgress(ctx, func(ctx context.Context) error {
		_, err := v.Commit(ctx)
		for err == nil && !v.clean() {
			_, err = v.Commit(ctx)
		}
		return err
	})
	if err == nil {
		return nil
	}
	if cause := v.Stopped(); cause != nil {
		return cause
	}
	if ctx.Err() != nil {
		err = errNotAwaited
	}
	return v.uncommitted(err)
}

// leaveManifest writes the manifest that is due, so that the next mount without
// this state directory does not read all commits since the last one. Without it
// nothing is lost.
func (v *Volume) leaveManifest(ctx context.Context) {
	if v.opt.Manual || !v.ManifestDue() {
		return
	}
	err := v.whileProgress(ctx, func(ctx context.Context) error {
		if err := v.writeManifest(ctx, true); err != nil {
			return err
		}
		_, err := v.Commit(ctx)
		return err
	})
	if err != nil {
		v.log.Warn("manifest not written; the next mount reads more", "error", err)
	}
}

// uncommitted says what could not be committed and why.
func (v *Volume) uncommitted(err error) error {
	if cause, _ := v.stat.storeError(); cause != nil {
		err = fmt.Errorf("%w: %w", ErrStore, cause)
	}
	what := "names and attributes, no data"
	if n := v.dirtyBytes(); n > 0 {
		what = fmt.Sprintf("%d bytes", n)
	}
	return fmt.Errorf("%w: %s: %w", ErrUncommitted, what, err)
}

// whileProgress runs f, whose context ends when nothing has reached the bucket
// for stallTime: what f returns then is ErrStore.
func (v *Volume) whileProgress(ctx context.Context, f func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- f(ctx) }()
	last, since, stalled := v.stat.progress(), time.Now(), false
	tick := time.NewTicker(stallTime / 20)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if stalled && (errors.Is(err, ErrInterrupted) || errors.Is(err, context.Canceled) || errors.Is(err, ErrStore)) {
				// What f was interrupted in says nothing.
				err = fmt.Errorf("%w: nothing has reached the bucket for %v", ErrStore, stallTime)
			}
			return err
		case <-tick.C:
			if now := v.stat.progress(); now != last {
				last, since = now, time.Now()
			} else if time.Since(since) >= stallTime {
				stalled = true
				cancel()
			}
		}
	}
}

// Abandon ends everything at once without committing, as if the process were
// killed; what is in the journal stays there.
func (v *Volume) Abandon() error {
	if v.closed.Swap(true) {
		return ErrClosed
	}
	v.endBackground()
	_, err := v.closeLocal(nil)
	return err
}

func (v *Volume) endBackground() {
	close(v.quit)
	v.cancel()
	v.group.Wait()
}

// closeLocal closes what open opened. What a mount that ends because it was
// fenced acknowledged and did not commit is set aside: aside is the directory,
// empty when there was nothing.
func (v *Volume) closeLocal(reason error) (aside string, err error) {
	var errs []error
	if v.journal != nil {
		errs = append(errs, v.journal.Close())
	}
	if v.cache != nil {
		errs = append(errs, v.cache.Close())
	}
	if v.kv != nil {
		errs = append(errs, v.kv.Close())
	}
	if errors.Is(reason, ErrFenced) {
		if aside, err = v.asideAtClose(reason); err != nil {
			errs = append(errs, fmt.Errorf("set the journal aside: %w; the next mount does it", err))
		}
	}
	if v.stateLk != nil {
		errs = append(errs, v.stateLk.Close())
	}
	return aside, errors.Join(errs...)
}

// dirtyBytes are the bytes of data that are not committed.
func (v *Volume) dirtyBytes() int64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	n := v.active.data
	if v.frozen != nil {
		n += v.frozen.data
	}
	return n
}
