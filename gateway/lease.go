package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// leaseState is this writer's hold on the volume. The lease only tells others
// to keep away; what fences is the seal.
type leaseState struct {
	mu      sync.Mutex // guards the fields below; not held over the network
	doc     metadata.Lease
	version objstore.Version
	renewed time.Time // when the last renewal that succeeded was sent
	err     error     // of the last renewal; nil when it succeeded
	changed chan struct{}
}

// epoch is this mount's.
func (v *Volume) epoch() uint64 {
	v.lease.mu.Lock()
	defer v.lease.mu.Unlock()
	return v.lease.doc.Epoch
}

// randomHex returns n random bytes in hexadecimal.
func (v *Volume) randomHex(n int) (string, error) {
	b := make([]byte, n)
	if _, err := io.ReadFull(v.opt.Rand, b); err != nil {
		return "", fmt.Errorf("random numbers: %w", err)
	}
	return hex.EncodeToString(b), nil
}

// readLease returns the lease as the store has it.
func readLease(ctx context.Context, s objstore.Store) (l *metadata.Lease, version objstore.Version, err error) {
	err = readDocument(ctx, s, metadata.LeaseKey, 1<<20, func(body []byte, i objstore.Info) (err error) {
		version = i.Version
		l, err = metadata.DecodeLease(body)
		return err
	})
	if errors.Is(err, objstore.ErrNotExist) {
		return nil, "", fmt.Errorf("%w: the volume has no %s", ErrDamaged, metadata.LeaseKey)
	}
	return l, version, err
}

// acquire takes the volume's next epoch: at once when the lease is released,
// one's own or to be taken over, otherwise after the same nonce was seen for
// the lease's whole duration.
func (v *Volume) acquire(ctx context.Context) error {
	var seen *metadata.Lease
	var since time.Time
	for {
		l, version, err := readLease(ctx, v.store)
		if err != nil {
			return err
		}
		free := l.Released || v.opt.Takeover || v.owner.has(l.Reign)
		if seen == nil || l.Nonce != seen.Nonce {
			if seen != nil && !free {
				return ownedError(l, v.opt.URL) // it is being renewed
			}
			seen, since = l, time.Now()
		}
		wait := time.Duration(l.DurationMS) * time.Millisecond
		switch {
		case free || time.Since(since) >= wait && !v.opt.RequireReleased:
			v.unclean = !l.Released
			taken, err := v.take(ctx, l, version)
			if taken || err != nil {
				return err
			}
			seen = nil // somebody was faster: look again
			continue
		case v.opt.RequireReleased:
			return fmt.Errorf("%w: %s was taken by %s and not given back; mount it again with that state directory and unmount it, or say --takeover if that process is dead for good",
				ErrOwned, v.opt.URL, ownerName(l.Owner))
		case time.Since(since) < time.Millisecond:
			v.log.Info("volume is owned: waiting for the lease time", "volume", v.opt.URL, "owner", ownerName(l.Owner), "wait", wait)
		}
		if err := v.sleep(ctx, max(wait/15, time.Millisecond)); err != nil {
			return ErrInterrupted
		}
	}
}

func ownerName(o metadata.Owner) string {
	return fmt.Sprintf("%s, process %d, state directory %s", o.Host, o.PID, o.StateDir)
}

func ownedError(l *metadata.Lease, url string) error {
	return fmt.Errorf("%w: %s is held by %s, which renewed its lease within the last %v; unmount it there, or say --takeover if that process is dead",
		ErrOwned, url, ownerName(l.Owner), time.Duration(l.DurationMS)*time.Millisecond)
}

// take swaps the lease for one of the next epoch.
func (v *Volume) take(ctx context.Context, old *metadata.Lease, version objstore.Version) (bool, error) {
	nonce, err := v.randomHex(8)
	if err != nil {
		return false, err
	}
	l := metadata.Lease{
		Epoch: old.Epoch + 1, Reign: v.owner.current(), Owner: v.opt.Owner, Nonce: nonce,
		DurationMS: v.opt.LeaseDuration.Milliseconds(), Hint: old.Hint,
	}
	sent := time.Now()
	now, err := objstore.CompareAndSwap(ctx, v.store, metadata.LeaseKey, version, metadata.EncodeLease(&l))
	if errors.Is(err, objstore.ErrConditionFailed) {
		return false, nil
	}
	if err != nil {
		return false, storeError("take the lease", err)
	}
	v.lease.mu.Lock()
	defer v.lease.mu.Unlock()
	v.lease.doc, v.lease.version, v.lease.renewed, v.lease.err = l, now, sent, nil
	return true, nil
}

// RenewLease writes the lease anew. Another's epoch in it fences the volume.
func (v *Volume) RenewLease(ctx context.Context) error {
	return v.writeLease(ctx, false)
}

func (v *Volume) writeLease(ctx context.Context, release bool) error {
	nonce, err := v.randomHex(8)
	if err != nil {
		return err
	}
	v.mu.RLock()
	hint := v.head.CommitID
	v.mu.RUnlock()
	v.lease.mu.Lock()
	l, version := v.lease.doc, v.lease.version
	v.lease.mu.Unlock()
	l.Nonce, l.Released = nonce, release
	if hint.N != 0 {
		l.Hint = hint
	}
	sent := time.Now()
	now, err := objstore.CompareAndSwap(ctx, v.store, metadata.LeaseKey, version, metadata.EncodeLease(&l))
	if errors.Is(err, objstore.ErrConditionFailed) {
		return v.leaseChanged(ctx)
	}
	if err != nil {
		err = storeError("renew the lease", err)
		v.lease.mu.Lock()
		v.lease.err = err
		v.lease.mu.Unlock()
		return err
	}
	v.lease.mu.Lock()
	v.lease.doc, v.lease.version, v.lease.renewed, v.lease.err = l, now, sent, nil
	if v.lease.changed != nil {
		close(v.lease.changed)
		v.lease.changed = nil
	}
	v.lease.mu.Unlock()
	return nil
}

// leaseChanged settles a renewal that found another lease than ours: another
// reign's fences; our own, of a write that came late, is taken as it is; and where
// it can't be read, nothing is known, and the seal decides.
func (v *Volume) leaseChanged(ctx context.Context) error {
	other, version, err := readLease(ctx, v.store)
	switch {
	case err != nil:
		err = fmt.Errorf("renew the lease: it is not as it was left, and can't be read: %w", err)
	case other.Reign != v.owner.current():
		err = fmt.Errorf("%w: %s took %s over as epoch %d", ErrFenced, ownerName(other.Owner), v.opt.URL, other.Epoch)
		v.stop(err)
	default:
		err = fmt.Errorf("%w: renew the lease: an earlier renewal came late", ErrStore)
	}
	v.lease.mu.Lock()
	defer v.lease.mu.Unlock()
	v.lease.err = err
	if other != nil && other.Reign == v.owner.current() {
		v.lease.version = version
	}
	return err
}

// runLease renews the lease until the volume closes.
func (v *Volume) runLease() {
	defer v.group.Done()
	every := v.opt.LeaseDuration / 3
	failing := false
	for {
		t := time.NewTimer(every)
		select {
		case <-t.C:
		case <-v.quit:
			t.Stop()
			return
		}
		if v.Stopped() != nil {
			return
		}
		ctx, cancel := context.WithTimeout(v.ctx, every)
		err := v.RenewLease(ctx)
		cancel()
		switch {
		case errors.Is(err, ErrFenced):
			return
		case err != nil && !failing:
			failing = true
			v.log.Warn("lease can't be renewed; going on locally", "volume", v.opt.URL, "error", err)
		case err == nil && failing:
			failing = false
			v.log.Info("lease renewed again", "volume", v.opt.URL)
		}
	}
}

// leaseGate makes an fsync wait while the lease is out of date, where the
// mount was told so: nothing may be acknowledged that another owner might
// never see.
func (v *Volume) leaseGate(ctx context.Context) error {
	if !v.opt.StopOnLeaseLost {
		return nil
	}
	for {
		v.lease.mu.Lock()
		fresh := time.Since(v.lease.renewed) < v.opt.LeaseDuration
		if v.lease.changed == nil {
			v.lease.changed = make(chan struct{})
		}
		ch := v.lease.changed
		v.lease.mu.Unlock()
		if fresh {
			return nil
		}
		if err := v.Stopped(); err != nil {
			return err
		}
		select {
		case <-ch:
		case <-ctx.Done():
			return ErrInterrupted
		case <-v.quit:
			return ErrClosed
		}
	}
}

// storeError gives a failure of the store its class.
func storeError(what string, err error) error {
	switch {
	case errors.Is(err, objstore.ErrDamaged):
		return fmt.Errorf("%w: %s: %w", ErrDamaged, what, err)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: %s: %w", ErrInterrupted, what, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrStore, what, err)
}

// documentError gives a document that can't be used its class.
func documentError(key string, err error) error {
	if errors.Is(err, metadata.ErrNewerFormat) {
		return fmt.Errorf("%w: %s: %w", ErrNewerFormat, key, err)
	}
	return fmt.Errorf("%w: %s: %w", ErrDamaged, key, err)
}
