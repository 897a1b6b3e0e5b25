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
	write chan struct{} // holds a token while nobody writes the lease
	soon  chan struct{} // asks for a renewal now

	mu       sync.Mutex // guards the fields below; not held over the network
	doc      metadata.Lease
	version  objstore.Version
	renewed  time.Time // when the last renewal that succeeded was sent
	released bool      // given back: it is written no more
	err      error     // of the last renewal; nil when it succeeded
	changed  chan struct{}
}

func (l *leaseState) init() {
	l.write = make(chan struct{}, 1)
	l.write <- struct{}{}
	l.soon = make(chan struct{}, 1)
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
	l, info, err := readLeaseInfo(ctx, s)
	return l, info.Version, err
}

// readLeaseInfo is readLease with all that the store says about it.
func readLeaseInfo(ctx context.Context, s objstore.Store) (l *metadata.Lease, info objstore.Info, err error) {
	err = readDocument(ctx, s, metadata.LeaseKey, 1<<20, func(body []byte, i objstore.Info) (err error) {
		info = i
		l, err = metadata.DecodeLease(body)
		return err
	})
	if errors.Is(err, objstore.ErrNotExist) {
		return nil, info, fmt.Errorf("%w: the volume has no %s", ErrDamaged, metadata.LeaseKey)
	}
	return l, info, err
}

// acquire takes the volume's next epoch: at once when the lease is released,
// one's own or to be taken over, otherwise after the same nonce was seen for
// the lease's whole duration on this machine's monotonic clock. It returns the
// lease that it took the place of; the survey has the one to begin with.
func (v *Volume) acquire(ctx context.Context, s *survey) (*metadata.Lease, error) {
	l, version := s.lease, s.version
	var seen *metadata.Lease
	var heard time.Time // when the last nonce was seen first
	begin, told := time.Now(), false
	for first := true; ; first = false {
		if !first {
			var err error
			if l, version, err = readLease(ctx, v.store); err != nil {
				return nil, err
			}
		}
		free := l.Released || v.opt.Takeover || v.owner.has(l.Reign)
		renewed := seen != nil && l.Nonce != seen.Nonce
		if seen == nil || renewed {
			seen, heard = l, time.Now()
		}
		duration := time.Duration(l.DurationMS) * time.Millisecond
		switch waited := time.Since(begin); {
		case free || time.Since(heard) >= duration && !v.opt.RequireReleased:
			v.unclean = !l.Released
			taken, err := v.take(ctx, l, version)
			if taken || err != nil {
				return l, err
			}
			seen = nil // somebody was faster: look again
			continue
		case v.opt.RequireReleased:
			return nil, fmt.Errorf("%w: %s was taken by %s and not given back; mount it again with that state directory and unmount it, or say --takeover if that process is dead for good",
				ErrOwned, v.opt.URL, ownerName(l.Owner))
		case renewed && v.opt.Wait == 0:
			return nil, fmt.Errorf("%w: %s is held by %s, which renewed its lease while this mount waited; unmount it there, or say --takeover if that process is dead",
				ErrOwned, v.opt.URL, ownerName(l.Owner))
		case v.opt.Wait > 0 && waited >= v.opt.Wait:
			return nil, fmt.Errorf("%w: %s is held by %s, which was heard of %v ago at the latest, and this mount was told to wait %v; unmount it there, wait longer, or say --takeover if that process is dead",
				ErrOwned, v.opt.URL, ownerName(l.Owner), time.Since(heard).Round(time.Millisecond), v.opt.Wait)
		case !told:
			told = true
			v.log.Info("volume is owned: waiting", "volume", v.opt.URL, "owner", ownerName(l.Owner), "lease", duration, "wait", v.opt.Wait)
		}
		if err := v.sleep(ctx, max(min(duration/15, acquirePause), time.Millisecond)); err != nil {
			return nil, fmt.Errorf("%w: %s is still held by %s", ErrInterrupted, v.opt.URL, ownerName(l.Owner))
		}
	}
}

// acquirePause is how often who waits for a volume looks at its lease, at least:
// it is what a clean hand-over may take longer for it.
const acquirePause = 500 * time.Millisecond

func ownerName(o metadata.Owner) string {
	return fmt.Sprintf("%s, process %d, state directory %s", o.Host, o.PID, o.StateDir)
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

// confirmLease reads the lease back once the seals are written: it must be the
// one that take wrote, unless a newer epoch has begun.
func (v *Volume) confirmLease(ctx context.Context) error {
	l, info, err := readLeaseInfo(ctx, v.store)
	epoch := v.epoch()
	switch {
	case err != nil:
		return err
	case l.Epoch > epoch:
		return v.fencedAt(l.Epoch)
	case l.Epoch == epoch && l.Reign == v.owner.current():
		v.noteStoreTime(info)
		return nil
	}
	return lostSwap(fmt.Sprintf("this mount was told that it took the lease as epoch %d, and it reads as that of %s, epoch %d", epoch, ownerName(l.Owner), l.Epoch))
}

// lostSwap is the error of who shares its epoch, or has none: it changed nothing
// yet, and its lease is not its own to give back.
func lostSwap(what string) error {
	return fmt.Errorf("%w: %w: a compare-and-swap of %s was lost: %s; nothing was changed: try again, and if that happens twice move the volume to a store for which `cistern probe` says fit",
		ErrFenced, objstore.ErrGuarantee, metadata.LeaseKey, what)
}

// RenewLease writes the lease anew. Another's epoch in it fences the volume.
func (v *Volume) RenewLease(ctx context.Context) error {
	return v.writeLease(ctx, false)
}

// leaseTries bounds how often a lease is written that was not as it was left.
const leaseTries = 3

// writeLease writes the lease with a new nonce; with release, for the last time.
func (v *Volume) writeLease(ctx context.Context, release bool) error {
	select {
	case <-v.lease.write:
	case <-ctx.Done():
		return storeError("renew the lease", ctx.Err())
	}
	defer func() { v.lease.write <- struct{}{} }()
	v.lease.mu.Lock()
	released := v.lease.released
	v.lease.mu.Unlock()
	if released {
		return nil
	}
	err := v.swapLease(ctx, release)
	for try := 1; try < leaseTries && errors.Is(err, errLeaseLate); try++ {
		err = v.swapLease(ctx, release)
	}
	v.lease.mu.Lock()
	defer v.lease.mu.Unlock()
	v.lease.err = err
	v.lease.released = err == nil && release
	return err
}

// swapLease compares and swaps the lease once. Runs under the token.
func (v *Volume) swapLease(ctx context.Context, release bool) error {
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
		return storeError("renew the lease", err)
	}
	v.lease.mu.Lock()
	defer v.lease.mu.Unlock()
	v.lease.doc, v.lease.version, v.lease.renewed = l, now, sent
	if v.lease.changed != nil {
		close(v.lease.changed)
		v.lease.changed = nil
	}
	return nil
}

// errLeaseLate: the lease is ours and not as it was left: an earlier write of it
// came late.
var errLeaseLate = errors.New("an earlier renewal came late")

// leaseChanged settles a renewal that found another lease than ours: another
// reign's fences; our own, of a write that came late, is taken as it is; and where
// it can't be read, nothing is known, and the seal decides.
func (v *Volume) leaseChanged(ctx context.Context) error {
	other, version, err := readLease(ctx, v.store)
	switch {
	case err != nil:
		return fmt.Errorf("renew the lease: it is not as it was left, and can't be read: %w", err)
	case other.Reign != v.owner.current():
		err = fmt.Errorf("%w: %s took %s over as epoch %d; %s",
			ErrFenced, ownerName(other.Owner), v.opt.URL, other.Epoch, v.keptForSalvage())
		v.stop(err)
		return err
	}
	v.lease.mu.Lock()
	defer v.lease.mu.Unlock()
	v.lease.version = version
	return fmt.Errorf("%w: renew the lease: %w", ErrStore, errLeaseLate)
}

// runLease renews the lease until the volume closes.
func (v *Volume) runLease() {
	defer v.group.Done()
	every := v.opt.LeaseDuration / 3
	then := "going on locally"
	if v.opt.StopOnLeaseLost {
		then = "writers wait from when it runs out"
	}
	for {
		t := time.NewTimer(every)
		select {
		case <-t.C:
		case <-v.lease.soon:
			t.Stop()
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
		if errors.Is(err, ErrFenced) {
			return
		}
		v.outages.lease.note(v.log, workLease, err, "volume", v.opt.URL, "then", then, "duration", v.opt.LeaseDuration)
	}
}

// leaseGate makes writers and fsyncs wait while the lease is out of date, where
// the mount was told so: nothing may be acknowledged that another owner might
// never see. They go on when it is renewed, and fail when another has it.
func (v *Volume) leaseGate(ctx context.Context) error {
	if !v.opt.StopOnLeaseLost {
		return nil
	}
	for {
		stopped := v.commit.changed()
		v.lease.mu.Lock()
		fresh := time.Since(v.lease.renewed) < v.opt.LeaseDuration
		if v.lease.changed == nil {
			v.lease.changed = make(chan struct{})
		}
		renewed := v.lease.changed
		v.lease.mu.Unlock()
		if fresh {
			return nil
		}
		if err := v.Stopped(); err != nil {
			return err
		}
		select {
		case <-renewed:
		case <-stopped:
		case <-ctx.Done():
			return ErrInterrupted
		case <-v.quit:
			return ErrClosed
		}
	}
}

// leaseLost is how long ago the lease ran out; 0 when it did not.
func (v *Volume) leaseLost() time.Duration {
	v.lease.mu.Lock()
	defer v.lease.mu.Unlock()
	if v.lease.released {
		return 0
	}
	return max(0, time.Since(v.lease.renewed)-v.opt.LeaseDuration)
}

// storeError gives a failure of the store its class.
func storeError(what string, err error) error {
	if what != "" {
		what += ": "
	}
	if gone := asGone(err); gone != nil {
		return gone
	}
	switch {
	case errors.Is(err, ErrKey):
		return fmt.Errorf("%s%w", what, err)
	case errors.Is(err, objstore.ErrDamaged):
		return fmt.Errorf("%w: %s%w", ErrDamaged, what, err)
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%w: %s%w", ErrInterrupted, what, err)
	}
	return fmt.Errorf("%w: %s%w", ErrStore, what, err)
}

// storeErrorAt is storeError for what was done to one object.
func storeErrorAt(op, key string, err error) error {
	if objstore.Names(err, key) {
		return storeError("", err)
	}
	return storeError(op+" "+key, err)
}

// documentError gives a document that can't be used its class.
func documentError(key string, err error) error {
	class := ErrDamaged
	if errors.Is(err, metadata.ErrNewerFormat) {
		class = ErrNewerFormat
	}
	if objstore.Names(err, key) {
		return fmt.Errorf("%w: %w", class, err)
	}
	return fmt.Errorf("%w: %s: %w", class, key, err)
}
