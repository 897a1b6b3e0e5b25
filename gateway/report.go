package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// Committed is the index of the last commit, for reports. It changes with every
// commit; what it lacks are the changes since.
func (v *Volume) Committed() *metadata.Index { return v.index }

// Summary is what a volume's bucket says about it without reading its metadata.
type Summary struct {
	Doc   metadata.VolumeDoc
	Lease metadata.Lease
	Head  CommitInfo
}

// Summarize reads a volume's identity, its lease and its last commit: a handful
// of requests whatever the volume's size. Errors: ErrNoVolume, ErrNewerFormat,
// ErrDamaged, ErrStore.
func Summarize(ctx context.Context, s objstore.Store, url string) (*Summary, error) {
	doc, err := ReadVolumeDoc(ctx, s, url)
	if err != nil {
		return nil, err
	}
	l, _, err := readLease(ctx, s)
	if err != nil {
		return nil, err
	}
	head, _, err := pathReader{s}.head(ctx, l.Epoch, l.Hint)
	if err != nil {
		return nil, err
	}
	return &Summary{Doc: *doc, Lease: *l, Head: commitInfo(head)}, nil
}

// ReadLease reads a volume's lease. Errors: ErrDamaged, ErrNewerFormat, ErrStore.
func ReadLease(ctx context.Context, s objstore.Store) (*metadata.Lease, error) {
	l, _, err := readLease(ctx, s)
	return l, err
}

// CommitInfo describes one commit for people.
type CommitInfo struct {
	ID       metadata.CommitID
	Prev     string // hash of the commit before
	Hash     string
	Time     int64 // nanoseconds since 1970
	Writer   string
	FirstLSN uint64
	LastLSN  uint64
	Manifest metadata.CommitID
	Document int64 // bytes of its JSON
	Uploaded int64 // bytes of its new objects and segments
	Objects  int   // new ones
	Segments int   // new ones
	Inodes   int   // new or changed
	Gone     int   // inodes freed
	Names    int   // set or removed
	Slots    int   // changed
	Totals   metadata.Totals
	Keys     []string // names of the encryption keys that its state needs
}

func commitInfo(e *entry) CommitInfo {
	c := e.commit
	i := CommitInfo{
		ID: e.id, Prev: c.Prev, Hash: e.hash, Time: c.Time, Writer: c.Writer, FirstLSN: c.FirstLSN, LastLSN: c.LastLSN,
		Manifest: c.Manifest, Document: e.size, Objects: len(c.Objects), Segments: len(c.Segments),
		Inodes: len(c.Inodes), Gone: len(c.Gone), Names: len(c.Names), Slots: len(c.Slots), Totals: c.Totals,
	}
	if c.Settings != nil {
		i.Keys = c.Settings.KeyNames()
	}
	for j := range c.Objects {
		i.Uploaded += c.Objects[j].Size
	}
	for j := range c.Segments {
		i.Uploaded += c.Segments[j].Size
	}
	return i
}

// Log calls fn for the commits of a volume, the last first, until it returns
// false or the oldest one that was not collected is reached. Each one's hash is
// checked against its successor. It costs one request or two a commit.
func Log(ctx context.Context, s objstore.Store, fn func(CommitInfo) bool) error {
	at, err := headOf(ctx, s)
	if err != nil {
		return err
	}
	for fn(commitInfo(at)) {
		if l := lineageOf(s); l != nil && at.id == l.doc.First() {
			return nil // what is before is its parent's
		}
		prev, err := pathReader{s}.before(ctx, at)
		if err != nil || prev == nil {
			return err
		}
		if prev.hash != at.commit.Prev {
			return fmt.Errorf("%w: commit %s does not follow commit %s", ErrDamaged, at.id, prev.id)
		}
		at = prev
	}
	return nil
}

// before returns the commit that another one follows, or nil when it was
// collected or there is none.
func (r pathReader) before(ctx context.Context, e *entry) (*entry, error) {
	if e.commit.Prev == "" {
		return nil, nil
	}
	at := metadata.CommitID{Epoch: e.id.Epoch, N: e.id.N - 1}
	for at.N > 0 && at.Epoch > 0 {
		x, err := r.read(ctx, at)
		switch {
		case err != nil:
			return nil, err
		case x == nil && at.Epoch == 1:
			return nil, nil
		case x == nil:
			at.Epoch-- // the epoch began here: a seal stands before it
			if at.Epoch == 0 {
				return nil, nil
			}
			if x, err = r.read(ctx, at); err != nil || x == nil {
				return nil, err
			}
		}
		if x.commit != nil {
			return x, nil
		}
		at.N-- // through a seal
	}
	return nil, nil
}

// FindCommit returns a commit by its number; 0 means the last. Errors:
// ErrNotExist, ErrDamaged, ErrStore.
func FindCommit(ctx context.Context, s objstore.Store, n uint64, url string) (CommitInfo, error) {
	head, err := headOf(ctx, s)
	if err == nil && n != 0 {
		head, err = commitAt(ctx, s, head, n, url)
	}
	if err != nil {
		return CommitInfo{}, err
	}
	return commitInfo(head), nil
}

// reignDestroyed stands in the lease of a volume that is being deleted.
const reignDestroyed = "destroyed"

// reignKept stands in the lease of a volume that was not deleted after all.
const reignKept = "kept"

// Destroy deletes everything that a volume has in the bucket, its identity
// first and its lease last, so that it can go on after an interruption. It
// takes the lease: ErrOwned when a writer has it, unless takeover is set.
// ErrPinned when a clone shares with the volume or a pin that does not expire keeps it,
// and ErrDamaged when the lease or a pin can't be read, unless force is set. deleted is called with the number of objects deleted
// so far.
func Destroy(ctx context.Context, s objstore.Store, url string, owner metadata.Owner, takeover, force bool, deleted func(n int)) error {
	if !force {
		if err := refusePinned(ctx, s, url, false); err != nil {
			return err
		}
	}
	// A lease that is damaged tells nobody anything: force goes on without it.
	if err := takeToDestroy(ctx, s, url, owner, takeover); err != nil && !(force && errors.Is(err, ErrDamaged)) {
		return err
	}
	if !force {
		// Whoever pins looks at the lease afterwards, and this looks at the pins
		// after the lease was taken: one of the two sees the other.
		if err := refusePinned(ctx, s, url, true); err != nil {
			return errors.Join(err, giveBackDestroyed(ctx, s))
		}
	}
	if err := s.Delete(ctx, metadata.VolumeKey); err != nil {
		return storeErrorAt("delete", metadata.VolumeKey, err)
	}
	return deleteAll(ctx, s, deleted)
}

// takeToDestroy takes the lease, so that nobody mounts what is being deleted.
func takeToDestroy(ctx context.Context, s objstore.Store, url string, owner metadata.Owner, takeover bool) error {
	if fenced, err := fenceUnfinished(ctx, s, owner); fenced || err != nil {
		return err
	}
	l, version, err := readLease(ctx, s)
	if err != nil {
		return err
	}
	if !l.Released && !takeover && l.Reign != reignDestroyed {
		return fmt.Errorf("%w: %s was taken by %s and not given back; unmount it there, or say --takeover if that process is dead for good", ErrOwned, url, ownerName(l.Owner))
	}
	next := metadata.Lease{Epoch: l.Epoch + 1, Reign: reignDestroyed, Owner: owner, Nonce: reignDestroyed, DurationMS: l.DurationMS, Hint: l.Hint}
	_, err = objstore.CompareAndSwap(ctx, s, metadata.LeaseKey, version, metadata.EncodeLease(&next))
	if errors.Is(err, objstore.ErrConditionFailed) {
		return fmt.Errorf("%w: somebody mounted %s meanwhile", ErrOwned, url)
	}
	if err != nil {
		return storeError("take the lease", err)
	}
	// What follows can't be taken back: the lease must read as it was written.
	now, _, err := readLease(ctx, s)
	if err != nil {
		return errors.Join(err, giveBackDestroyed(ctx, s))
	}
	if now.Epoch != next.Epoch || now.Reign != next.Reign {
		return lostSwap(fmt.Sprintf("the lease was taken to destroy the volume as epoch %d, and it reads as that of %s, epoch %d", next.Epoch, ownerName(now.Owner), now.Epoch))
	}
	return nil
}

// giveBackDestroyed releases the lease that was taken to destroy a volume, also
// when ctx has ended: with it nobody could read the volume.
func giveBackDestroyed(ctx context.Context, s objstore.Store) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), pinGiveUp)
	defer cancel()
	l, version, err := readLease(ctx, s)
	if err != nil || l.Reign != reignDestroyed {
		return err
	}
	l.Reign, l.Released = reignKept, true
	l.Nonce = fmt.Sprintf("%s-%d", reignKept, l.Epoch) // new at every write
	if _, err := objstore.CompareAndSwap(ctx, s, metadata.LeaseKey, version, metadata.EncodeLease(l)); err != nil {
		return storeError("give the lease back", err)
	}
	return nil
}

// refusePinned fails when a pin without an expiry stands, and names the clones
// that there are; with claims also when a clone is being made.
func refusePinned(ctx context.Context, s objstore.Store, url string, claims bool) error {
	now, err := int64(0), error(nil)
	if claims { // they count for a while only; the lease was written just now
		i, terr := storeTime(ctx, s)
		if terr != nil {
			return terr
		}
		now = i.Modified.UnixNano()
	}
	var clones []string
	var kept error
	err = objstore.ListAll(ctx, s, metadata.PinPrefix, "", func(i objstore.Info) error {
		body, info, err := objstore.ReadAll(ctx, s, i.Key, maxPinBytes)
		if errors.Is(err, objstore.ErrNotExist) {
			return nil // taken away meanwhile
		}
		if err != nil {
			return storeErrorAt("read pin", i.Key, err)
		}
		p, err := decodePin(body, info)
		switch {
		case err != nil:
			return documentError(i.Key, err)
		case p.Kind == PinClone, claims && p.Kind == pinClaim && strings.HasPrefix(p.Name, clonePinPrefix):
			if p.Expiry == 0 || p.Expiry > now {
				clones = append(clones, p.Holder)
			}
		case p.Expiry == 0:
			kept = fmt.Errorf("%w: %s is kept by the %s %q of %s; --force deletes it all the same", ErrPinned, url, p.Kind, p.Name, p.Holder)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if len(clones) == 0 {
		return kept
	}
	slices.Sort(clones)
	return fmt.Errorf("%w: %s shares its past with its clone at %s: `cistern clone --detach` copies what a clone shares, and `cistern clone list --prune <id>` forgets one that is gone for good; --force deletes it all the same, and what they share with it",
		ErrPinned, url, strings.Join(slices.Compact(clones), " and at "))
}

// destroyPrefixes are what a volume's keys begin with, in the order in which
// they are deleted: what needs the rest goes first.
func destroyPrefixes() []string {
	return []string{metadata.SchedulePrefix, metadata.PinPrefix, metadata.CommitPrefix, metadata.ManifestPrefix, metadata.SegmentPrefix, metadata.ObjectPrefix, objstore.ProbePrefix}
}

func deleteAll(ctx context.Context, s objstore.Store, deleted func(n int)) error {
	n := 0
	f := newFetcher(s, &metadata.VolumeDoc{}, 16, &counters{}, nil)
	for _, prefix := range destroyPrefixes() {
		for {
			page, err := s.List(ctx, prefix, "", 0)
			if err != nil {
				return storeErrorAt("list", prefix, err)
			}
			if len(page) == 0 {
				break
			}
			err = f.inParallel(ctx, len(page), func(ctx context.Context, i int) error {
				if err := s.Delete(ctx, page[i].Key); err != nil {
					return storeErrorAt("delete", page[i].Key, err)
				}
				return nil
			})
			if err != nil {
				return err
			}
			n += len(page)
			deleted(n)
		}
	}
	for _, key := range []string{metadata.DetachedKey, metadata.LeaseKey} {
		if err := s.Delete(ctx, key); err != nil {
			return storeErrorAt("delete", key, err)
		}
	}
	return nil
}
