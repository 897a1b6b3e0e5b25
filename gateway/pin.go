package gateway

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// Kinds of pins, as their documents name them.
const (
	PinSnapshot = "snapshot"
	PinClone    = "clone"
	PinMount    = "mount"

	// pinClaim is a pin of which nobody knows yet whether it came in time: it
	// counts for the collector, and is no proof for another pin.
	pinClaim = "claim"
)

const (
	// pinSkew is how far the clocks of a store's servers may lie apart: a pin that
	// ends sooner than this is no proof any more.
	pinSkew = time.Hour
	// claimLifetime is how long a claim counts when who wrote it dies.
	claimLifetime = 24 * time.Hour

	minPinLifetime = 4 * time.Hour
	maxPinBytes    = 1 << 20

	pinGiveUp = 5 * time.Second // for taking back what was written
)

// ErrCollected: the commit, or something that it needs, may be deleted already.
var ErrCollected = errors.New("commit is not kept any more")

// PinOptions say what to pin and for whom.
type PinOptions struct {
	Store    objstore.Store
	URL      string // of the volume, for messages
	Kind     string // PinSnapshot, PinClone or PinMount
	Name     string // for people; the key shows an edited form
	Holder   string // for people
	Tags     map[string]string
	Commit   uint64        // its number; 0: the last
	Lifetime time.Duration // after which it ends unless renewed, at least 4 h; 0: it does not end
	Database DatabaseOf    // what the pin says of the database in the commit; nil: nothing
	Rand     io.Reader     // default: the system's
	Now      func() time.Time
}

// DatabaseOf finds the end of a database's binary log in a commit; nil when there is
// none, or it can't be told in time. It returns soon after its context has ended, which
// is soon: a pin does not wait for what is only told.
type DatabaseOf func(ctx context.Context, id metadata.CommitID) *metadata.PinDatabase

// databaseWait bounds the look at a database, which goes on while the pin is written.
const databaseWait = 100 * time.Millisecond

// look begins to look at the database in a commit. The function returns what was found
// and can be called several times; after its first return nothing goes on.
func (o *PinOptions) look(ctx context.Context, id metadata.CommitID) func() *metadata.PinDatabase {
	if o.Database == nil {
		return func() *metadata.PinDatabase { return nil }
	}
	ctx, cancel := context.WithTimeout(ctx, databaseWait)
	found := make(chan *metadata.PinDatabase, 1)
	go func() { found <- o.Database(ctx, id) }()
	return sync.OnceValue(func() *metadata.PinDatabase {
		defer cancel()
		return <-found
	})
}

func (o *PinOptions) complete() error {
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	switch {
	case o.Store == nil || o.Kind == "" || o.Kind == pinClaim || o.Name == "":
		return fmt.Errorf("%w: a pin needs a store, a kind and a name", ErrInvalid)
	case o.Lifetime != 0 && o.Lifetime < minPinLifetime:
		return fmt.Errorf("%w: a pin's lifetime of %v is below %v, what clocks may differ by and retries take", ErrInvalid, o.Lifetime, minPinLifetime)
	}
	return nil
}

// Pin keeps a commit alive: an object in the bucket, which needs no lease.
//
// Who collects condemns first, which moves the horizon, and lists the pins
// then; who pins writes first, and reads the head then. Either the collector
// sees the pin and takes back what it needs, or the horizon tells that the pin
// came too late. That is why every pin begins as a claim, and becomes a pin,
// under a key of its own, when it is known to hold. When a pin ends is judged by
// the store's clock alone: decodePin. Safe for concurrent use.
type Pin struct {
	o       PinOptions
	id      metadata.CommitID
	created int64           // nanoseconds since 1970
	of      metadata.Commit // time and totals, which the object shows
	look    func() *metadata.PinDatabase
	turn    chan struct{} // holds a token; whoever has it may renew or release

	mu       sync.Mutex // guards the fields below
	now      pinObject
	leftover []string // keys that could not be deleted when they had served
	released bool
	err      error // of the last renewal; nil when it succeeded
}

// pinObject is one object of a pin.
type pinObject struct {
	key    string
	expiry int64 // nanoseconds since 1970; 0: none
}

// PinCommit keeps a commit alive until Release, or until the lifetime has
// passed without Renew. ErrCollected: it came too late, and nothing is pinned.
// After any other error nothing is left but perhaps a claim that ends by
// itself. Errors: ErrNotExist, ErrCollected, ErrInvalid, ErrDamaged, ErrStore,
// ErrInterrupted.
func PinCommit(ctx context.Context, o PinOptions) (*Pin, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	head, err := headOf(ctx, o.Store)
	if err == nil && o.Commit != 0 {
		head, err = commitAt(ctx, o.Store, head, o.Commit, o.URL)
	}
	if err != nil {
		return nil, err
	}
	p := &Pin{o: o, id: head.id, created: o.Now().UnixNano(), turn: make(chan struct{}, 1)}
	p.of.Time, p.of.Totals = head.commit.Time, head.commit.Totals
	p.look = o.look(ctx, p.id)
	defer p.look()
	if p.now, err = p.establish(ctx, pinObject{}); err != nil {
		return nil, err
	}
	p.turn <- struct{}{}
	return p, nil
}

// PinStatus is a picture of a pin.
type PinStatus struct {
	Commit metadata.CommitID `json:"commit"`
	Key    string            `json:"key"`
	Expiry *time.Time        `json:"expiry,omitempty"` // nil: it does not end
	Lapsed bool              `json:"lapsed,omitempty"` // it ended before it could be renewed
	Error  string            `json:"error,omitempty"`  // why the last renewal failed
}

// Status never waits for the store.
func (p *Pin) Status() PinStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := PinStatus{Commit: p.id, Key: p.now.key, Error: text(p.err)}
	if p.now.expiry != 0 {
		at := time.Unix(0, p.now.expiry).UTC()
		s.Expiry, s.Lapsed = &at, !at.After(p.o.Now())
	}
	return s
}

// Commit is what is pinned.
func (p *Pin) Commit() metadata.CommitID { return p.id }

// Renew puts a pin with a whole lifetime in place of the one that there is,
// which stays until the new one holds. After an error the old one counts as
// before. ErrCollected: it had lapsed, and something was condemned meanwhile.
func (p *Pin) Renew(ctx context.Context) error {
	if err := p.take(ctx); err != nil {
		return err
	}
	defer p.give()
	p.mu.Lock()
	old, released := p.now, p.released
	p.mu.Unlock()
	if released {
		return fmt.Errorf("%w: the pin of commit %s is released", ErrClosed, p.id)
	}
	fresh, err := p.establish(ctx, old)
	p.mu.Lock()
	p.err = err
	if err == nil {
		p.now = fresh
	}
	p.mu.Unlock()
	if err == nil {
		p.drop(ctx, old.key)
	}
	return err
}

// Keep renews the pin until ctx ends: four times in its lifetime, and more
// often while that fails. A pin without a lifetime needs it not.
func (p *Pin) Keep(ctx context.Context, log *slog.Logger) {
	if p.o.Lifetime == 0 {
		return
	}
	every := p.o.Lifetime / 4
	wait := every
	for {
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return
		}
		wait = every
		if err := p.Renew(ctx); err != nil && ctx.Err() == nil {
			wait = every / 20
			log.Warn("pin can't be renewed; trying again", "commit", p.id.String(), "ends", time.Unix(0, p.expiry()).UTC(), "wait", wait, "error", err)
		}
	}
}

func (p *Pin) expiry() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.now.expiry
}

// Release deletes the pin; releasing twice is harmless. After an error it may
// be there still, and counts until it ends.
func (p *Pin) Release(ctx context.Context) error {
	if err := p.take(ctx); err != nil {
		return err
	}
	defer p.give()
	p.mu.Lock()
	keys := p.leftover
	if !p.released {
		keys = append(keys, p.now.key)
	}
	p.leftover, p.released = nil, true
	p.mu.Unlock()
	p.drop(ctx, keys...)
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.leftover) > 0 {
		return fmt.Errorf("%w: pin %s of commit %s can't be deleted", ErrStore, p.leftover[0], p.id)
	}
	return nil
}

func (p *Pin) take(ctx context.Context) error {
	select {
	case <-p.turn:
		return nil
	case <-ctx.Done():
		return ErrInterrupted
	}
}

func (p *Pin) give() { p.turn <- struct{}{} }

// drop deletes objects of the pin and remembers those that it can't.
func (p *Pin) drop(ctx context.Context, keys ...string) {
	for _, key := range keys {
		if key == "" {
			continue // it was never written
		}
		if err := p.o.Store.Delete(ctx, key); err != nil {
			p.mu.Lock()
			p.leftover = append(p.leftover, key)
			p.mu.Unlock()
		}
	}
}

// establish writes a claim, makes sure that it holds, and puts a pin in its
// place. old is what the caller has of its own, or empty.
func (p *Pin) establish(ctx context.Context, old pinObject) (pinObject, error) {
	began, wall := time.Now(), p.o.Now()
	claim, err := p.write(ctx, pinClaim, claimLifetime)
	if err == nil {
		err = p.prove(ctx, claim, old)
	}
	if err != nil {
		p.giveUp(ctx, claim.key)
		return pinObject{}, err
	}
	pin, err := p.write(ctx, p.o.Kind, p.o.Lifetime)
	// The one clock stands still while the machine is suspended, the other may be set.
	if took := max(time.Since(began), p.o.Now().Sub(wall)); err == nil && took > claimLifetime-pinSkew {
		err = fmt.Errorf("%w: pinning commit %s took so long that the claim to it has ended", ErrStore, p.id)
	}
	if err != nil {
		p.giveUp(ctx, pin.key, claim.key)
		return pinObject{}, err
	}
	p.drop(ctx, claim.key)
	return pin, nil
}

// giveUp deletes what an attempt has written, as far as the store lets it: also
// after a failure of which nobody knows what it did.
func (p *Pin) giveUp(ctx context.Context, keys ...string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pinGiveUp)
	defer cancel()
	p.drop(ctx, keys...)
}

// write writes one object of the pin under a key that nothing ever had. The
// key is returned with an error, too: the object may be there.
func (p *Pin) write(ctx context.Context, kind string, lifetime time.Duration) (pinObject, error) {
	var random [8]byte
	if _, err := io.ReadFull(p.o.Rand, random[:]); err != nil {
		return pinObject{}, fmt.Errorf("random numbers: %w", err)
	}
	x := pinObject{key: metadata.PinKey(p.o.Name, hex.EncodeToString(random[:]))}
	if lifetime != 0 {
		x.expiry = p.o.Now().Add(lifetime).UnixNano()
	}
	doc := metadata.Pin{
		Database: p.database(kind), Kind: kind, Name: p.o.Name, Commit: p.id, Holder: p.o.Holder, Expiry: x.expiry,
		Lifetime: lifetime, Created: p.created, Time: p.of.Time, Totals: p.of.Totals, Tags: p.o.Tags,
	}
	if err := objstore.Create(ctx, p.o.Store, x.key, metadata.EncodePin(&doc)); err != nil {
		return x, storeError("pin commit "+p.id.String(), err)
	}
	return x, nil
}

// database is what the document of that kind says of the database: a claim nothing,
// which is written at once.
func (p *Pin) database(kind string) *metadata.PinDatabase {
	if kind == pinClaim {
		return nil
	}
	return p.look()
}

// decodePin reads a pin's document. Its Expiry is as the store's clock has it, in
// which who wrote it and who judges it need not agree about the time.
func decodePin(body []byte, i objstore.Info) (*metadata.Pin, error) {
	p, err := metadata.DecodePin(body)
	if err == nil && p.Lifetime > 0 && !i.Modified.IsZero() {
		p.Expiry = i.Modified.Add(p.Lifetime).UnixNano()
	}
	return p, err
}

// lasts says whether a pin that ends at expiry still counted, and for a while, when
// something was written at that time of the store.
func lasts(expiry int64, written time.Time) bool {
	return expiry == 0 || written.Add(pinSkew).UnixNano() < expiry
}

// prove makes sure that a claim, which is written, was not too late: nothing
// after its commit was condemned before, or another pin that was in time is
// still there, so that the commit was never without one.
func (p *Pin) prove(ctx context.Context, claim, old pinObject) error {
	if found, err := p.followed(ctx, claim, old); err != nil || found {
		return err
	}
	head, err := headOf(ctx, p.o.Store)
	if err != nil {
		return err
	}
	horizon := head.commit.Horizon
	if horizon <= p.id.N {
		return nil
	}
	found, err := p.vouched(ctx, claim)
	if err != nil || found {
		return err
	}
	return fmt.Errorf("%w: what commit %s of %s needs may be deleted: collection has gone up to commit %d, and no snapshot, clone or mount has kept it", ErrCollected, p.id, p.o.URL, horizon)
}

// followed says whether the claim came while the pin's old object still counted.
func (p *Pin) followed(ctx context.Context, claim, old pinObject) (bool, error) {
	if old.key == "" {
		return false, nil
	}
	c, err := p.o.Store.Head(ctx, claim.key)
	if err != nil {
		return false, storeErrorAt("look at pin", claim.key, err)
	}
	o, err := p.o.Store.Head(ctx, old.key)
	if errors.Is(err, objstore.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, storeErrorAt("look at pin", old.key, err)
	}
	return old.expiry == 0 || lasts(o.Modified.Add(p.o.Lifetime).UnixNano(), c.Modified), nil
}

// vouched looks for a pin of another, or an earlier one's, that was in time. A
// pin that can't be read proves nothing.
func (p *Pin) vouched(ctx context.Context, claim pinObject) (bool, error) {
	var written time.Time // the claim
	var ends []int64      // of pins on the same commit
	err := objstore.ListAll(ctx, p.o.Store, metadata.PinPrefix, "", func(i objstore.Info) error {
		if i.Key == claim.key {
			written = i.Modified
			return nil
		}
		err := readDocument(ctx, p.o.Store, i.Key, maxPinBytes, func(body []byte, i objstore.Info) error {
			x, err := decodePin(body, i)
			if err == nil && x.Kind != pinClaim && x.Commit == p.id {
				ends = append(ends, x.Expiry)
			}
			return err
		})
		if errors.Is(err, objstore.ErrNotExist) || errors.Is(err, ErrDamaged) || errors.Is(err, ErrNewerFormat) {
			return nil
		}
		return err
	})
	if err != nil && !errors.Is(err, ErrStore) && !errors.Is(err, ErrInterrupted) {
		err = storeError("list pins", err)
	}
	if err != nil || written.IsZero() {
		return false, err
	}
	return slices.ContainsFunc(ends, func(e int64) bool { return lasts(e, written) }), nil
}
