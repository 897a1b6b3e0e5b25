package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// CheckOptions say what Check looks at. The callbacks are called from one
// goroutine at a time.
type CheckOptions struct {
	Data bool // read every byte and verify it; without it sizes are compared
	// Verified is what earlier checks have read: it is not read again. Only for views.
	Verified *Verified
	Problem  func(Problem)
	Progress func(done, total int64) // slots, or bytes with Data; may be nil
}

// Problem is one thing that a check found wrong.
type Problem struct {
	Path   string // of the file, when it has one
	Inode  InodeID
	Off    int64 // in the file, bytes
	Len    int64 // 0: not a range of a file
	Key    string
	Reason string
}

func (p Problem) String() string {
	var b strings.Builder
	switch {
	case p.Path != "":
		fmt.Fprintf(&b, "%s: ", p.Path)
	case p.Inode != 0:
		fmt.Fprintf(&b, "inode %d: ", p.Inode)
	}
	if p.Len > 0 {
		fmt.Fprintf(&b, "bytes %d to %d: ", p.Off, p.Off+p.Len)
	}
	if p.Key != "" {
		fmt.Fprintf(&b, "%s: ", p.Key)
	}
	return b.String() + p.Reason
}

// CheckReport sums a check up.
type CheckReport struct {
	Commit      metadata.CommitID
	Inodes      uint64
	Slots       int64
	Objects     int64 // referenced by slots
	Segments    int64
	Commits     int   // since the manifest
	Pages       int   // of the manifest
	Bytes       int64 // that were read and verified, with Data
	Orphans     int   // listed and referred to by nothing; uploads under way are among them
	OrphanBytes int64
	Problems    int
	PlainBytes  int64            // of the objects and extents that slots refer to
	StoredBytes int64            // that these take in the bucket
	Keys        map[string]int64 // of these, by the name of the encryption key; all that the state names
}

// Check verifies the last commit against itself and against the bucket: the
// index, the path of commits from the manifest on, that every object and
// segment is there with its size, and with Data every byte. Commits wait while
// the index is checked and go on during the rest. Damage is reported through
// Problem; the error says that something could not be checked (ErrStore).
func (v *Volume) Check(ctx context.Context, o CheckOptions) (CheckReport, error) {
	c := v.newCheck(v.index, &v.doc, o)
	select {
	case <-v.commit.run:
	case <-ctx.Done():
		return c.r, ErrInterrupted
	}
	err := c.index()
	v.commit.run <- struct{}{}
	if err != nil {
		return c.r, err
	}
	return c.r, c.bucket(ctx)
}

// Check is Volume.Check for the view's commit. ErrCollected: collection has passed it
// meanwhile, so that what was found missing is no damage.
func (v *View) Check(ctx context.Context, o CheckOptions) (CheckReport, error) {
	c := v.newCheck(v.Index(), &v.doc, o)
	c.view = true
	if err := c.index(); err != nil {
		return c.r, err
	}
	err := c.bucket(ctx)
	if err == nil && c.r.Problems > 0 {
		if err = v.kept(ctx); errors.Is(err, ErrCollected) {
			err = fmt.Errorf("what is missing was deleted while it was looked for, which is no damage: check again: %w", err)
		}
	}
	return c.r, err
}

// check is one run. Memory: about 100 bytes a key in the bucket, and 60 an
// inode once something is wrong.
type check struct {
	*fetcher
	ix     *metadata.Index
	slotSz int64
	adopts bool // the volume has objects outside it
	view   bool // the index stays with its commit
	o      CheckOptions
	head   metadata.Head
	listed map[string]int64 // key → size; those referred to are taken out for the count of orphans

	manifests map[string]bool // keys of the head's manifest and its pages

	shared    *lineage         // of a clone; nil: none
	elsewhere map[string]int64 // what volumes with which it shares have, key → size

	mu     sync.Mutex // guards the fields below while slots are verified in parallel
	r      CheckReport
	done   int64
	total  int64
	parent map[InodeID]metadata.Dentry // nil until a path is asked for
	broken map[readThing]*brokenThing  // with Verified: what is damaged and may be shared; nil: nothing is
}

func (f *fetcher) newCheck(ix *metadata.Index, doc *metadata.VolumeDoc, o CheckOptions) *check {
	return &check{
		fetcher: f, ix: ix, slotSz: doc.ObjectSize, adopts: doc.Adopted != nil, o: o,
		listed: map[string]int64{}, manifests: map[string]bool{}, shared: lineageOf(f.store), elsewhere: map[string]int64{},
	}
}

func (c *check) problem(p Problem) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p.Inode != 0 {
		p.Path = c.path(p.Inode)
	}
	c.r.Problems++
	c.o.Problem(p)
}

// path finds a path of an inode; empty when it has none. Caller holds c.mu.
func (c *check) path(ino InodeID) string {
	if c.parent == nil {
		c.parent = map[InodeID]metadata.Dentry{}
		dirs := []InodeID{metadata.RootInode}
		for len(dirs) > 0 {
			dir := dirs[len(dirs)-1]
			dirs = dirs[:len(dirs)-1]
			err := c.ix.Names(dir, 0, func(d metadata.Dentry) bool {
				if _, seen := c.parent[d.Inode]; !seen {
					c.parent[d.Inode] = d
					if uint32(d.Type)<<12 == modeDir {
						dirs = append(dirs, d.Inode)
					}
				}
				return true
			})
			if err != nil {
				break // the index's own check reports it
			}
		}
	}
	var parts []string
	for ino != metadata.RootInode {
		d, ok := c.parent[ino]
		if !ok || len(parts) > 4096 {
			return ""
		}
		parts = append(parts, d.Name)
		ino = d.Parent
	}
	slices.Reverse(parts)
	return strings.Join(parts, "/")
}

func (c *check) index() error {
	c.head = c.ix.Head()
	c.r.Commit, c.r.Inodes = c.head.CommitID, c.head.Totals.Inodes
	err := c.ix.Check(func(text string) { c.problem(Problem{Reason: "index: " + text}) })
	if errors.Is(err, metadata.ErrDamaged) {
		c.problem(Problem{Reason: err.Error()})
		return nil
	}
	return err
}

func (c *check) bucket(ctx context.Context) error {
	prefixes := []string{metadata.ObjectPrefix, metadata.SegmentPrefix, metadata.ManifestPrefix, metadata.CommitPrefix}
	if c.adopts {
		prefixes = append(prefixes, metadata.AdoptedPrefix)
	}
	for _, prefix := range prefixes {
		err := objstore.ListAll(ctx, c.store, prefix, "", func(i objstore.Info) error {
			c.listed[i.Key] = i.Size
			return nil
		})
		if err == nil && c.shared != nil {
			err = c.shared.listShared(ctx, prefix, func(i objstore.Info) error {
				c.elsewhere[i.Key] = i.Size
				return nil
			})
		}
		if err != nil {
			return storeErrorAt("list", prefix, err)
		}
	}
	if err := c.commits(ctx); err != nil {
		return err
	}
	if err := c.segments(ctx); err != nil {
		return err
	}
	if err := c.slots(ctx); err != nil {
		return err
	}
	if err := c.deadThings(ctx); err != nil {
		return err
	}
	return c.orphans()
}

// damage turns an error into a problem if it is damage or something missing,
// and returns it otherwise.
func (c *check) damage(key string, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, objstore.ErrNotExist):
		c.problem(Problem{Key: key, Reason: "is missing"})
	case errors.Is(err, ErrDamaged), errors.Is(err, metadata.ErrDamaged):
		c.problem(Problem{Key: key, Reason: err.Error()})
	default:
		return err
	}
	return nil
}

// commits verifies the manifest, its pages and the commits after it.
func (c *check) commits(ctx context.Context) error {
	at := metadata.CommitID{Epoch: 1, N: 1}
	prev := ""
	if m := c.head.Manifest; m.N != 0 {
		e, err := pathReader{c.store}.read(ctx, m)
		if err != nil {
			return c.damage(metadata.CommitKey(m), err)
		}
		// A manifest stands for its commit, which may be collected.
		if e != nil && e.commit != nil {
			prev = e.hash
		}
		at = metadata.CommitID{Epoch: m.Epoch, N: m.N + 1}
		if err := c.manifest(ctx, m); err != nil {
			return err
		}
	}
	for at.N <= c.head.N {
		e, err := pathReader{c.store}.read(ctx, at)
		if err != nil {
			return c.damage(metadata.CommitKey(at), err)
		}
		if e == nil {
			c.problem(Problem{Key: metadata.CommitKey(at), Reason: "is missing, so that the volume can't be mounted from the bucket alone"})
			return nil
		}
		if e.commit != nil {
			c.r.Commits++
			if prev != "" && e.commit.Prev != prev {
				c.problem(Problem{Key: metadata.CommitKey(at), Reason: "does not follow the commit before it"})
			}
			prev = e.hash
		}
		at = e.next()
	}
	if prev != "" && prev != c.head.Hash {
		c.problem(Problem{Key: metadata.CommitKey(c.head.CommitID), Reason: "is not the commit that the local index has"})
	}
	return nil
}

func (c *check) manifest(ctx context.Context, id metadata.CommitID) error {
	c.manifests[metadata.ManifestKey(id)] = true
	m, _, err := loadManifest(ctx, c.store, id)
	if err != nil {
		return c.damage(metadata.ManifestKey(id), err)
	}
	for i := range m.Pages {
		p := &m.Pages[i]
		c.r.Pages++
		c.manifests[p.Key()] = true
		if !c.o.Data {
			if err := c.present(ctx, p.Key(), p.Size); err != nil {
				return err
			}
			continue
		}
		err := readDocument(ctx, c.store, p.Key(), p.Size, func(body []byte, _ objstore.Info) error {
			c.r.Bytes += int64(len(body))
			return metadata.ReadPage(p, body, func([]byte) error { return nil })
		})
		if err := c.damage(p.Key(), err); err != nil {
			return err
		}
	}
	return nil
}

// listing returns the size that a listing showed for a key.
func (c *check) listing(key string) (size int64, ok bool) {
	if size, ok = c.listed[key]; !ok {
		size, ok = c.elsewhere[key]
	}
	return size, ok
}

// stored returns the size of what a key has in the bucket.
func (c *check) stored(ctx context.Context, key string) (size int64, there bool, err error) {
	if size, there = c.listing(key); there {
		return size, true, nil
	}
	// It may be younger than the listing.
	i, err := c.store.Head(ctx, key)
	if errors.Is(err, objstore.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, storeErrorAt("look at", key, err)
	}
	return i.Size, true, nil
}

const isMissing = "is missing"

// lookUp says whether a key is there with a size, and what is wrong if not.
func (c *check) lookUp(ctx context.Context, key string, size int64) (wrong string, err error) {
	got, there, err := c.stored(ctx, key)
	switch {
	case err != nil:
		return "", err
	case !there:
		return isMissing, nil
	case got != size:
		return fmt.Sprintf("has %d bytes instead of %d", got, size), nil
	}
	return "", nil
}

func (c *check) present(ctx context.Context, key string, size int64) error {
	wrong, err := c.lookUp(ctx, key, size)
	if err == nil && wrong != "" {
		c.problem(Problem{Key: key, Reason: wrong})
	}
	return err
}

func (c *check) segments(ctx context.Context) error {
	var list []metadata.Segment
	err := c.ix.Segments(func(s metadata.Segment) bool { list = append(list, s); return true })
	if err != nil {
		return fmt.Errorf("segments of the index: %w", err)
	}
	c.r.Segments = int64(len(list))
	for _, s := range list {
		wrong, err := c.lookUp(ctx, s.Key, s.Size)
		if err != nil {
			return err
		}
		if wrong == "" {
			continue
		}
		if _, err := c.ix.Segment(s.Key); errors.Is(err, metadata.ErrNotExist) {
			continue // collected meanwhile
		}
		if _, err := c.ix.Dead(s.Key); err == nil {
			continue // being collected, or deadThings tells of it
		}
		c.problem(Problem{Key: s.Key, Reason: wrong})
	}
	return nil
}

// deadThings makes sure that what kept commits need is there.
func (c *check) deadThings(ctx context.Context) error {
	var list []metadata.Dead
	err := c.ix.DeadThings(func(d metadata.Dead) bool {
		if d.State == metadata.DeadKept && d.Death > c.vol.Base().N { // a clone needs nothing that died before it
			list = append(list, d)
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("dead things of the index: %w", err)
	}
	for _, d := range list {
		_, there, err := c.stored(ctx, d.Key)
		if err != nil {
			return err
		}
		if there {
			continue
		}
		if now, err := c.ix.Dead(d.Key); err != nil || now.State != metadata.DeadKept {
			continue // collected meanwhile
		}
		if past, err := c.past(ctx); err != nil || past {
			return err // what earlier commits need, the last one knows
		}
		c.problem(Problem{Key: d.Key, Reason: fmt.Sprintf("%s; commits %d to %d need it", isMissing, d.Birth, d.Death-1)})
	}
	return nil
}

// past says whether the check is of a view whose commit is not the volume's last any
// more.
func (c *check) past(ctx context.Context) (bool, error) {
	if !c.view {
		return false, nil
	}
	head, err := headOf(ctx, c.store)
	return err == nil && head.id != c.head.CommitID, err
}

// orphans counts what is listed and referred to by nothing.
func (c *check) orphans() error {
	known, err := referenced(c.ix)
	if err != nil {
		return err
	}
	for key, size := range c.listed {
		scanned := !strings.HasPrefix(key, metadata.CommitPrefix) && !strings.HasPrefix(key, metadata.AdoptedPrefix)
		if scanned && !c.manifests[key] && !known.has(key) {
			c.r.Orphans++
			c.r.OrphanBytes += size
		}
	}
	return nil
}
