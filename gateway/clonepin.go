package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// A clone keeps what it shares by pins of the kind PinClone, one in every volume
// that holds some of it, which do not expire:
//
//	pins/clone-<id of the clone>~<random>.json   {holder: URL of the clone}
const clonePinPrefix = "clone-"

func clonePinName(id string) string { return clonePinPrefix + id }

// ClonePin is a clone as a pin in another volume tells of it.
type ClonePin struct {
	Volume string // the clone's id
	URL    string // the clone's, when it was made
	Commit metadata.CommitID
	Time   time.Time // when it was pinned
	Key    string
}

// ClonePins lists the clones that share with a volume, each once: one that was
// interrupted and gone on with may have several pins. Errors: ErrDamaged, ErrStore.
func ClonePins(ctx context.Context, s objstore.Store) ([]ClonePin, error) {
	list, err := clonePins(ctx, s, "")
	seen := map[string]bool{}
	list = slices.DeleteFunc(list, func(p ClonePin) bool {
		again := seen[p.Volume]
		seen[p.Volume] = true
		return again
	})
	return list, err
}

// clonePins lists the pins of one clone, or of all.
func clonePins(ctx context.Context, s objstore.Store, id string) (list []ClonePin, err error) {
	prefix := metadata.PinPrefix + clonePinPrefix + id
	err = objstore.ListAll(ctx, s, prefix, "", func(i objstore.Info) error {
		err := readDocument(ctx, s, i.Key, maxPinBytes, func(body []byte, info objstore.Info) error {
			p, err := decodePin(body, info)
			if err == nil && p.Kind == PinClone && p.Expiry == 0 {
				list = append(list, ClonePin{
					Volume: strings.TrimPrefix(p.Name, clonePinPrefix), URL: p.Holder, Commit: p.Commit, Time: time.Unix(0, p.Created).UTC(), Key: i.Key,
				})
			}
			return err
		})
		if errors.Is(err, objstore.ErrNotExist) {
			return nil // taken away meanwhile
		}
		return err
	})
	if err != nil && !errors.Is(err, ErrStore) && !errors.Is(err, ErrInterrupted) && !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewerFormat) {
		err = storeError("list pins", err)
	}
	return list, err
}

// copyLifetime is how long a pin counts whose clone is being copied, when nobody
// renews it: what was copied stays, and the next attempt pins again.
const copyLifetime = 24 * time.Hour

// pinAll pins every volume that holds what the clone needs: for good when it will
// share with them, and else while it is copied. release ends the latter.
func (c *cloner) pinAll(ctx context.Context) (release func(), err error) {
	keep, stop := context.WithCancel(context.WithoutCancel(ctx))
	var pins []*Pin
	var kept []chan struct{}
	release = func() {
		stop()
		for _, done := range kept {
			<-done
		}
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), pinGiveUp)
		defer cancel()
		for _, p := range pins {
			_ = p.Release(end) // it ends by itself
		}
	}
	for _, h := range c.lineage().holders {
		p, err := c.pinIn(ctx, h)
		if err != nil {
			release()
			return nil, err
		}
		c.pins = append(c.pins, heldPin{p, h})
		if c.o.Copy == nil {
			continue
		}
		pins = append(pins, p)
		done := make(chan struct{})
		kept = append(kept, done)
		go func() {
			defer close(done)
			p.Keep(keep, c.o.Copy.Logger)
		}()
	}
	return release, nil
}

// heldPin is a pin that one run of Clone has written.
type heldPin struct {
	*Pin
	h *holder
}

// pinIn pins the last commit that the clone shares in one volume, also when an
// earlier attempt has done so: another run that fails takes its own pins back,
// and this one's clone must not have counted on them.
func (c *cloner) pinIn(ctx context.Context, h *holder) (*Pin, error) {
	s := c.o.Source
	if h.a.Place != c.src.ID {
		raw, err := h.store(ctx)
		if err != nil {
			return nil, err
		}
		if s, _, err = OpenStore(ctx, raw, h.a.URL, c.o.Keys, c.o.Open); err != nil {
			return nil, err
		}
	}
	o := PinOptions{
		Store: s, URL: h.a.URL, Kind: PinClone, Name: clonePinName(c.doc.ID), Holder: c.o.TargetURL, Commit: h.a.Through.N, Rand: c.o.Rand, Now: c.o.Now,
	}
	if c.o.Copy != nil {
		o.Lifetime = copyLifetime
	}
	p, err := PinCommit(ctx, o)
	if err != nil {
		return nil, err
	}
	if p.Commit() != h.a.Through {
		return p, errors.Join(fmt.Errorf("%w: commit %d of %s is %s and was %s", ErrDamaged, h.a.Through.N, h.a.URL, p.Commit(), h.a.Through), p.Release(ctx))
	}
	return p, nil
}

// takeBack removes what this run has written of a clone of which nothing came:
// its pins, and its claim unless another run has taken that up.
func (c *cloner) takeBack(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pinGiveUp)
	defer cancel()
	var errs []error
	for _, p := range c.pins {
		errs = append(errs, p.Release(ctx))
	}
	if !c.claimed {
		return errors.Join(errs...)
	}
	for _, h := range c.lineage().holders {
		s, err := h.store(ctx)
		if errors.Is(err, ErrParentGone) {
			continue
		}
		var others []ClonePin
		if err == nil {
			others, err = clonePins(ctx, s, c.doc.ID)
		}
		if err != nil {
			return errors.Join(append(errs, err)...) // what is not known stays
		}
		if len(others) > 0 {
			return errors.Join(errs...)
		}
	}
	if err := c.o.Target.Delete(ctx, metadata.ClaimKey); err != nil {
		errs = append(errs, storeErrorAt("delete", metadata.ClaimKey, err))
	}
	return errors.Join(errs...)
}

// stillKept makes sure that the claim and this run's pins are there: the run that
// had begun may have taken the claim back, and then somebody the pins, as those
// of a clone that is gone. With the claim there nobody takes them any more.
func (c *cloner) stillKept(ctx context.Context) error {
	if err := c.create(ctx, c.o.Target, metadata.ClaimKey, metadata.EncodeVolume(c.doc)); err != nil {
		return err
	}
	for i := range c.pins {
		p := &c.pins[i]
		s, err := p.h.store(ctx)
		if err != nil {
			return err
		}
		key := p.Status().Key
		_, err = s.Head(ctx, key)
		if errors.Is(err, objstore.ErrNotExist) && c.o.Copy != nil {
			continue // it was renewed meanwhile, or ends with the copying that is done
		}
		if errors.Is(err, objstore.ErrNotExist) {
			p.Pin, err = c.pinIn(ctx, p.h)
			if err != nil {
				return fmt.Errorf("%s was taken away from %s, and can't be pinned again: clear %s with `cistern destroy --yes`: %w", key, p.h.a.URL, c.o.TargetURL, err)
			}
			continue
		}
		if err != nil {
			return storeErrorAt("look at", key, err)
		}
	}
	return nil
}

// unpinAncestors deletes the pins of a clone that shares nothing, or is no more.
// A volume that is gone has none.
func unpinAncestors(ctx context.Context, l *lineage) error {
	var errs []error
	for _, h := range l.holders {
		s, err := h.store(ctx)
		if errors.Is(err, ErrParentGone) {
			continue
		}
		if err == nil {
			err = deleteClonePins(ctx, s, l.doc.ID)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s stays pinned for the clone %s: %w", h.a.URL, l.url, err))
		}
	}
	return errors.Join(errs...)
}

// deleteClonePins deletes a clone's pins in one volume, claims included.
func deleteClonePins(ctx context.Context, s objstore.Store, id string) error {
	return objstore.ListAll(ctx, s, metadata.PinPrefix+clonePinName(id)+"~", "", func(i objstore.Info) error {
		if err := s.Delete(ctx, i.Key); err != nil {
			return storeErrorAt("delete", i.Key, err)
		}
		return nil
	})
}

// PruneClonePin deletes the pins of a clone that is no more. ErrPinned when
// there is a volume with its id at its URL, or an attempt to make it. clone is the
// store at the pin's URL; nil: it can't be opened for good.
func PruneClonePin(ctx context.Context, s, clone objstore.Store, p ClonePin) error {
	alive, err := CloneAlive(ctx, clone, p)
	if err != nil {
		return err
	}
	if alive {
		return fmt.Errorf("%w: %s is there, and shares with this volume", ErrPinned, p.URL)
	}
	return deleteClonePins(ctx, s, p.Volume)
}

// CloneAlive says whether the clone that a pin stands for is there, or somebody
// has begun to make it. clone is the store at the pin's URL; nil: there is none.
func CloneAlive(ctx context.Context, clone objstore.Store, p ClonePin) (bool, error) {
	if clone == nil {
		return false, nil
	}
	claim, err := ReadClaim(ctx, clone)
	if err != nil {
		return false, err
	}
	return claim != nil && claim.ID == p.Volume, nil
}

// fenceUnfinished keeps an attempt to clone from going on in a prefix that has no
// lease yet; false when there is none, or a lease.
func fenceUnfinished(ctx context.Context, s objstore.Store, owner metadata.Owner) (bool, error) {
	_, err := s.Head(ctx, metadata.LeaseKey)
	if !errors.Is(err, objstore.ErrNotExist) {
		return false, nil // who reads it tells of errors
	}
	claim, err := ReadClaim(ctx, s)
	if err != nil || claim == nil {
		return false, err
	}
	l := metadata.Lease{Epoch: 1, Reign: reignDestroyed, Owner: owner, Nonce: reignDestroyed}
	err = objstore.Create(ctx, s, metadata.LeaseKey, metadata.EncodeLease(&l))
	if errors.Is(err, objstore.ErrConditionFailed) {
		return false, nil // it came meanwhile
	}
	if err != nil {
		return false, storeError("take the lease", err)
	}
	return true, nil
}

// ForgetClone takes the pins of a clone that was destroyed out of the volumes that
// it shared with, and then its last trace. It does nothing for other volumes; the
// clone's lease must be gone.
func ForgetClone(ctx context.Context, s objstore.Store, url string, open Opener) error {
	claim, err := ReadClaim(ctx, s)
	if err != nil || claim == nil {
		return err
	}
	if err := unpinAncestors(ctx, newLineage(s, url, claim, nil, open)); err != nil {
		return err
	}
	if err := s.Delete(ctx, metadata.ClaimKey); err != nil {
		return storeErrorAt("delete", metadata.ClaimKey, err)
	}
	return nil
}
