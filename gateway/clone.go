package gateway

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// CloneOptions say what to clone, and where to.
type CloneOptions struct {
	Source    objstore.Store // as OpenStore returned it
	SourceURL string
	Commit    uint64 // its number; 0: the last
	Target    objstore.Store
	TargetURL string
	Keys      *Keys        // of an encrypted volume
	Open      Opener       // of other volumes in which the source's bodies lie
	Copy      *CopyOptions // copy all bodies, so that nothing is shared; nil: share them
	Rand      io.Reader    // default: the system's
	Now       func() time.Time
}

func (o *CloneOptions) complete() {
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Now == nil {
		o.Now = time.Now
	}
}

// CloneInfo is what a clone was made of.
type CloneInfo struct {
	Doc     *metadata.VolumeDoc // the clone's
	Commit  metadata.CommitID   // of the source
	Time    time.Time           // of that commit
	Totals  metadata.Totals
	Resumed bool // an earlier attempt had begun
	Copied  CopyProgress
}

// Clone makes a volume in Target that begins as a commit of the source and goes
// its own way from there. It takes no lease and copies nothing unless told to: the
// clone's history goes on behind the source's, and its keys lead to where the
// bodies lie. Every volume that holds some of them is pinned for good before the
// clone can be seen; volume.json comes last.
//
// What an attempt has written that ended half way is taken up by the next one with
// the same source: nothing is visible before. Errors: ErrExist when the target
// holds something else; ErrNotExist, ErrCollected, ErrInvalid, ErrKey, ErrDamaged,
// ErrStore, ErrInterrupted.
func Clone(ctx context.Context, o CloneOptions) (*CloneInfo, error) {
	o.complete()
	if o.Copy != nil {
		own := *o.Copy
		own.complete()
		o.Copy = &own
	}
	c := &cloner{o: o}
	if err := c.begin(ctx); err != nil {
		return nil, err
	}
	release, err := c.pinAll(ctx)
	if err != nil {
		return nil, errors.Join(err, c.takeBack(ctx))
	}
	defer release()
	if o.Copy != nil {
		if err := c.copyAll(ctx); err != nil {
			return nil, err
		}
	}
	if err := c.finish(ctx); err != nil {
		return nil, err
	}
	return c.info(), nil
}

// cloner is one run of Clone.
type cloner struct {
	o       CloneOptions
	src     *metadata.VolumeDoc
	base    *entry // what is cloned
	doc     *metadata.VolumeDoc
	claimed bool // by this run; otherwise an earlier one's claim is gone on with
	pins    []heldPin
	copied  CopyProgress
}

func (c *cloner) info() *CloneInfo {
	return &CloneInfo{
		Doc: c.doc, Commit: c.base.id, Time: time.Unix(0, c.base.commit.Time).UTC(), Totals: c.base.commit.Totals,
		Resumed: !c.claimed, Copied: c.copied,
	}
}

// begin finds out what to clone, and claims the target for it.
func (c *cloner) begin(ctx context.Context) error {
	var err error
	if c.src, err = ReadVolumeDoc(ctx, c.o.Source, c.o.SourceURL); err != nil {
		return err
	}
	if err := c.src.Writable(); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrNewerFormat, c.o.SourceURL, err)
	}
	if c.o.Copy != nil {
		if err := noAdopted(c.src, c.o.SourceURL); err != nil {
			return err
		}
	}
	earlier, err := readClaim(ctx, c.o.Target, c.o.TargetURL)
	if err != nil {
		return err
	}
	if earlier != nil && (c.o.Commit != 0 && earlier.Base().N != c.o.Commit || earlier.Parent().Volume != c.src.ID) {
		return c.anotherBegun(earlier)
	}
	head, err := headOf(ctx, c.o.Source)
	if err != nil {
		return err
	}
	n := c.o.Commit
	if earlier != nil {
		n = earlier.Base().N
	}
	c.base = head
	if n != 0 {
		c.base, err = commitAt(ctx, c.o.Source, head, n, c.o.SourceURL)
		if earlier != nil && errors.Is(err, ErrCollected) {
			return fmt.Errorf("%s holds the beginning of a clone that can't be gone on with, clear it with `cistern destroy --yes`: %w", c.o.TargetURL, err)
		}
		if err != nil {
			return err
		}
	}
	if own := c.src.Base(); c.base.id.N <= own.N {
		return beforeBirth(c.src, c.o.SourceURL, c.base.id.N)
	}
	if s := c.base.commit.Settings; s != nil {
		if err := needWriteKeys(*s, c.o.SourceURL, c.o.Keys); err != nil {
			return err
		}
	}
	return c.claim(ctx, earlier)
}

// anotherBegun is the error of a target that holds the beginning of another clone.
func (c *cloner) anotherBegun(earlier *metadata.VolumeDoc) error {
	a := earlier.Parent()
	return fmt.Errorf("%w: %s holds the beginning of a clone of commit %d of %s: go on with that one, or clear it with `cistern destroy --yes`", ErrExist, c.o.TargetURL, a.Through.N, a.URL)
}

// noAdopted refuses to make a volume stand alone that refers to objects of no
// volume: nothing would keep them for it.
func noAdopted(doc *metadata.VolumeDoc, url string) error {
	if doc.Adopted == nil {
		return nil
	}
	return fmt.Errorf("%w: %s refers to objects in %s that it adopted: a clone can share them, but can't stand alone; `cistern clone --to DIR` makes a copy", ErrNotSupport, url, doc.Adopted.URL)
}

// beforeBirth is the error of a point that a clone shares with its parent.
func beforeBirth(doc *metadata.VolumeDoc, url string, n uint64) error {
	parent := doc.Parent()
	return fmt.Errorf("%w: %s has no commit %d of its own: it was made of commit %d of %s, where older ones may be", noCommit{}, url, n, parent.Through.N, parent.URL)
}

// readClaim returns what an earlier attempt began in the target; nil when it is
// empty. Anything else there is ErrExist.
func readClaim(ctx context.Context, s objstore.Store, url string) (*metadata.VolumeDoc, error) {
	list, err := objstore.FirstKeys(ctx, s, 5)
	if err != nil {
		return nil, storeErrorAt("list", url, err)
	}
	if len(list) == 0 {
		return nil, nil
	}
	if list[0].Key != metadata.ClaimKey {
		return nil, formatTarget(ctx, s, url)
	}
	_, err = s.Head(ctx, metadata.VolumeKey)
	switch {
	case err == nil:
		return nil, fmt.Errorf("%w: %s is a volume already, a clone that is complete; `cistern destroy` deletes one", ErrExist, url)
	case !errors.Is(err, objstore.ErrNotExist):
		return nil, storeErrorAt("look at", metadata.VolumeKey, err)
	}
	return ReadClaim(ctx, s)
}

// ReadClaim returns what a clone's volume.json will be, or is; nil when the store
// holds no clone. Errors: ErrDamaged, ErrNewerFormat, ErrStore.
func ReadClaim(ctx context.Context, s objstore.Store) (doc *metadata.VolumeDoc, err error) {
	err = readDocument(ctx, s, metadata.ClaimKey, 1<<20, func(body []byte, _ objstore.Info) (err error) {
		doc, err = metadata.DecodeVolume(body)
		return err
	})
	if errors.Is(err, objstore.ErrNotExist) {
		return nil, nil
	}
	return doc, err
}

// claim writes the claim, or makes sure that the earlier one is of this clone.
func (c *cloner) claim(ctx context.Context, earlier *metadata.VolumeDoc) error {
	list := c.ancestors()
	if earlier != nil {
		if !slices.Equal(earlier.Ancestors, list) {
			return c.anotherBegun(earlier)
		}
		c.doc = earlier
		return nil
	}
	id, err := uuid.NewRandomFromReader(c.o.Rand)
	if err != nil {
		return fmt.Errorf("random numbers: %w", err)
	}
	doc := *c.src
	doc.ID, doc.Created, doc.Ancestors = id.String(), c.o.Now().UnixNano(), list
	if !slices.Contains(doc.Incompat, metadata.FeatureAncestors) {
		doc.Incompat = append(slices.Clone(doc.Incompat), metadata.FeatureAncestors)
	}
	c.doc, c.claimed = &doc, true
	return c.create(ctx, c.o.Target, metadata.ClaimKey, metadata.EncodeVolume(&doc))
}

// ancestors are the clone's: the source's, and the source.
func (c *cloner) ancestors() []metadata.Ancestor {
	list := slices.Clone(c.src.Ancestors)
	if l := lineageOf(c.o.Source); l != nil && l.detached.Load() {
		for i := range list {
			list[i].URL, list[i].Place = c.o.SourceURL, c.src.ID
		}
	}
	return append(list, metadata.Ancestor{Volume: c.src.ID, Through: c.base.id, URL: c.o.SourceURL, Place: c.src.ID})
}

// lineage is the clone's store as it will be opened; the source, which is open,
// included.
func (c *cloner) lineage() *lineage {
	l := newLineage(c.o.Target, c.o.TargetURL, c.doc, c.o.Keys, c.o.Open)
	raw := rawStore(c.o.Source, metadata.VolumeKey)
	for _, h := range l.holders {
		if h.a.Place == c.src.ID {
			h.s.Store(&raw)
		}
	}
	return l
}

// create writes an object of the clone, or finds it as it must be.
func (c *cloner) create(ctx context.Context, s objstore.Store, key string, body []byte) error {
	err := objstore.Create(ctx, s, key, body)
	if errors.Is(err, objstore.ErrConditionFailed) {
		return fmt.Errorf("%w: somebody else writes to %s at the same time: %w", ErrExist, c.o.TargetURL, err)
	}
	if err != nil {
		return storeErrorAt("write", key, err)
	}
	return nil
}

// reign is the name of the reign in which a clone's first commit was made. All
// that an attempt writes follows from the claim, so that another writes the same.
func (c *cloner) reign() string { return strings.ReplaceAll(c.doc.ID, "-", "") }

// finish writes the clone's own beginning: the seal that ends the source's epoch
// for it, a commit that changes nothing but the horizon, and the lease; and at
// last the identity, which makes it a volume.
func (c *cloner) finish(ctx context.Context) error {
	own := unlock(c.o.Target, c.doc, c.o.Keys)
	first := c.doc.First()
	lease := metadata.Lease{
		Epoch: first.Epoch, Reign: c.reign(), Owner: metadata.Owner{Host: "cistern clone"}, Nonce: c.reign()[:16],
		DurationMS: 15000, Released: true, Hint: first,
	}
	seal := metadata.Seal{CommitID: metadata.CommitID{Epoch: c.base.id.Epoch, N: c.base.id.N + 1}, By: c.reign(), Epoch: first.Epoch}
	b := c.base.commit
	commit := metadata.Commit{
		CommitID: first, Prev: c.base.hash, FirstLSN: b.LastLSN, LastLSN: b.LastLSN, Time: max(c.doc.Created, b.Time),
		Writer: "cistern clone", Reign: c.reign(), Manifest: b.Manifest, Settings: b.Settings, Totals: b.Totals, Horizon: first.N,
	}
	for _, x := range []struct {
		key  string
		body []byte
	}{
		{metadata.LeaseKey, metadata.EncodeLease(&lease)},
		{metadata.CommitKey(seal.CommitID), metadata.EncodeSeal(&seal)},
		{metadata.CommitKey(first), metadata.EncodeCommit(&commit)},
	} {
		if err := c.create(ctx, own, x.key, x.body); err != nil {
			return err
		}
	}
	if c.o.Copy != nil {
		d := metadata.Detached{Volume: c.doc.ID, Time: c.doc.Created}
		if err := c.create(ctx, c.o.Target, metadata.DetachedKey, metadata.EncodeDetached(&d)); err != nil {
			return err
		}
	}
	return c.publish(ctx)
}

// publish makes the clone a volume, unless somebody clears it away meanwhile. Once
// it can be seen somebody may have mounted it: then only a clone that is being
// destroyed is taken back.
func (c *cloner) publish(ctx context.Context) error {
	if _, err := c.destroyed(ctx); err != nil {
		return err
	}
	if err := c.stillKept(ctx); err != nil {
		return err
	}
	if err := c.create(ctx, c.o.Target, metadata.VolumeKey, metadata.EncodeVolume(c.doc)); err != nil {
		return err
	}
	if gone, err := c.destroyed(ctx); gone {
		return errors.Join(err, c.o.Target.Delete(ctx, metadata.VolumeKey))
	} else if err != nil {
		return err
	}
	if c.o.Copy == nil {
		return c.stillKept(ctx)
	}
	// An earlier attempt may have meant to share.
	return unpinAncestors(ctx, c.lineage())
}

// destroyed says whether somebody destroys the clone; then there is an error, too.
// A store that doesn't answer is only an error.
func (c *cloner) destroyed(ctx context.Context) (bool, error) {
	l, _, err := readLease(ctx, c.o.Target)
	gone := err == nil && l.Reign == reignDestroyed
	if errors.Is(err, ErrDamaged) {
		// Only who destroys it deletes the lease that this run has written.
		_, herr := c.o.Target.Head(ctx, metadata.LeaseKey)
		gone = errors.Is(herr, objstore.ErrNotExist)
	}
	if gone {
		return true, fmt.Errorf("%w: %s is being destroyed", ErrNotExist, c.o.TargetURL)
	}
	return false, err
}
