package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// DetachOptions say which clone is to stand on its own.
type DetachOptions struct {
	Store objstore.Store // the clone's prefix as it is
	URL   string
	Keys  *Keys
	Open  Opener
	Copy  CopyOptions
	Rand  io.Reader // default: the system's
	Now   func() time.Time
}

// Detach copies what a clone shares into its own prefix, under the same keys, and
// takes its pins out of the volumes that it shared with. It takes no lease: the
// clone may be mounted and written to, since what is shared only becomes less.
// Everything that the clone's present and the commits that it keeps need is
// copied; then detached.json says so, and only then the pins go. Running it again
// goes on where it ended. Errors: ErrInvalid when the volume is no clone;
// ErrCollected, ErrDamaged, ErrStore, ErrInterrupted.
func Detach(ctx context.Context, o DetachOptions) (CopyProgress, error) {
	o.Copy.complete()
	if o.Now == nil {
		o.Now = time.Now
	}
	s, doc, err := OpenStore(ctx, o.Store, o.URL, o.Keys, o.Open)
	if err != nil {
		return CopyProgress{}, err
	}
	l := lineageOf(s)
	if l == nil {
		_, err := ReadVolumeDoc(ctx, s, o.URL)
		if err == nil {
			err = fmt.Errorf("%w: %s is no clone: it shares nothing", ErrInvalid, o.URL)
		}
		return CopyProgress{}, err
	}
	if err := noAdopted(doc, o.URL); err != nil {
		return CopyProgress{}, err
	}
	var done CopyProgress
	if !l.detached.Load() {
		if done, err = detach(ctx, &o, l); err != nil {
			return done, err
		}
	}
	return done, unpinAncestors(ctx, l)
}

// detach copies, and says that everything is copied.
func detach(ctx context.Context, o *DetachOptions, l *lineage) (done CopyProgress, err error) {
	// What is read here must stay until it was.
	pin, err := PinCommit(ctx, PinOptions{
		Store: l, URL: o.URL, Kind: PinMount, Name: "detach", Holder: "cistern clone --detach", Lifetime: copyLifetime, Rand: o.Rand, Now: o.Now,
	})
	if err != nil {
		return done, err
	}
	keep, stop := context.WithCancel(context.WithoutCancel(ctx))
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		pin.Keep(keep, o.Copy.Logger)
	}()
	defer func() {
		stop()
		<-kept
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), pinGiveUp)
		defer cancel()
		_ = pin.Release(end) // it ends by itself
	}()
	list, err := sharedThings(ctx, o, l, pin.Commit())
	if err != nil {
		return done, err
	}
	from := func(key string) string { return l.doc.Ancestors[l.doc.AncestorOf(key)].URL }
	k := copier{o: o.Copy, src: l, from: from, dst: l.raw}
	if done, err = k.run(ctx, list); err != nil {
		return done, err
	}
	d := metadata.Detached{Volume: l.doc.ID, Time: o.Now().UnixNano()}
	err = objstore.Create(ctx, l.raw, metadata.DetachedKey, metadata.EncodeDetached(&d))
	if err != nil && !errors.Is(err, objstore.ErrConditionFailed) { // another process was faster
		return done, storeErrorAt("write", metadata.DetachedKey, err)
	}
	return done, l.lookDetached(ctx)
}

// sharedThings lists the ancestors' things that a clone needs, for its present and
// for every commit of its own that it keeps.
func sharedThings(ctx context.Context, o *DetachOptions, l *lineage, at metadata.CommitID) ([]thing, error) {
	v, err := OpenView(ctx, ViewOptions{Store: l, Keys: o.Keys, URL: o.URL, KV: o.Copy.KV, Commit: at.N})
	if err != nil {
		return nil, err
	}
	n := newNeed(func(key string) bool { return l.doc.AncestorOf(key) >= 0 })
	ix := v.Index()
	err = n.state(ix)
	if err == nil {
		err = n.dead(ix, l.doc.Base().N)
	}
	if err == nil {
		err = n.manifest(ctx, l, ix.Head().Manifest)
	}
	if err = errors.Join(err, v.Close()); err != nil {
		return nil, err
	}
	// While the clone's first commit is kept, it and those after it are read from
	// the manifest before it.
	first, err := pathReader{l}.read(ctx, l.doc.First())
	if err != nil || first == nil || first.commit == nil {
		return n.list, err
	}
	return n.list, n.chain(ctx, l, first.commit.Manifest, l.doc.Base())
}
