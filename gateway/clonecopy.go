package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// CopyOptions say how the bodies of a clone are copied.
type CopyOptions struct {
	KV       metadata.KV // an empty store for an index; closed when it was used
	Parallel int         // copies at a time, default 16
	// Server copies a body of so many bytes (-1: not known) from the volume at a
	// URL into the clone under the same key, without moving it through this machine.
	// After an error this machine does it; after errors.ErrUnsupported it does all.
	// nil: there is no such way.
	Server   func(ctx context.Context, fromURL, key string, size int64) error
	Progress func(CopyProgress) // called from one goroutine at a time; may be nil
	Logger   *slog.Logger
}

func (o *CopyOptions) complete() {
	if o.Parallel == 0 {
		o.Parallel = 16
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.KV == nil {
		o.KV = metadata.NewMemKV()
	}
}

// CopyProgress is how far a copy has come.
type CopyProgress struct {
	Things     int64 `json:"things"` // objects, segments and documents
	Bytes      int64 `json:"bytes"`
	DoneThings int64 `json:"done_things"` // those that were there included
	DoneBytes  int64 `json:"done_bytes"`
	Found      int64 `json:"found"`  // of the things, those that an earlier attempt had copied
	Served     int64 `json:"served"` // of the things, those that the store copied itself
}

// thing is one body to copy. Memory: about 300 bytes each.
type thing struct {
	key   string
	size  int64                  // in the bucket; -1: not known
	same  func(body []byte) bool // whether it is what the metadata says; nil: it carries its own checksum
	there int64                  // its size in the target; -1: it is not there
}

// need collects what a state needs in the bucket, each thing once.
type need struct {
	mine func(key string) bool // says which keys count
	seen map[string]bool
	list []thing
}

func newNeed(mine func(key string) bool) *need {
	return &need{mine: mine, seen: map[string]bool{}}
}

func (n *need) add(t thing) {
	if n.mine(t.key) && !n.seen[t.key] {
		n.seen[t.key] = true
		t.there = -1
		n.list = append(n.list, t)
	}
}

func (n *need) segment(s *metadata.Segment) {
	t := thing{key: s.Key, size: s.Size}
	if sum := s.Sum; sum != 0 {
		t.same = func(body []byte) bool { return checksum(body) == sum }
	}
	n.add(t)
}

// state adds what the index refers to: objects and segments.
func (n *need) state(ix *metadata.Index) error {
	segments := map[string]bool{}
	err := ix.AllSlots(func(_ InodeID, _ uint32, s *metadata.Slot) bool {
		if b := s.Base; b != nil {
			t := thing{key: b.Key, size: b.StoredLen()}
			if b.Stored == nil {
				sums := b.Sums
				t.same = func(body []byte) bool { return slices.Equal(blockSums(body), sums) }
			}
			n.add(t)
		}
		for i := range s.Patches {
			if p := &s.Patches[i]; !p.Zero {
				segments[p.Seg.Key] = true
			}
		}
		return true
	})
	if err == nil {
		err = ix.Segments(func(s metadata.Segment) bool {
			if segments[s.Key] {
				n.segment(&s)
			}
			return true
		})
	}
	if err != nil {
		return fmt.Errorf("references: %w", err)
	}
	return nil
}

// dead adds what only earlier commits from a number on need.
func (n *need) dead(ix *metadata.Index, from uint64) error {
	var err error
	derr := ix.DeadThings(func(d metadata.Dead) bool {
		if d.Death <= from {
			return true
		}
		if strings.HasPrefix(d.Key, metadata.SegmentPrefix) {
			var s metadata.Segment
			if s, err = ix.Segment(d.Key); err == nil {
				n.segment(&s)
			}
			return err == nil
		}
		t := thing{key: d.Key, size: d.Size}
		if !strings.HasPrefix(d.Key, metadata.ObjectPrefix) {
			t.size = -1 // of a document the size may be that of its plain text
		}
		n.add(t)
		return true
	})
	if err = errors.Join(derr, err); err != nil {
		return fmt.Errorf("dead things: %w", err)
	}
	return nil
}

// manifest adds a manifest with its pages.
func (n *need) manifest(ctx context.Context, s objstore.Store, id metadata.CommitID) error {
	if id.N == 0 {
		return nil
	}
	m, _, err := loadManifest(ctx, s, id)
	if err != nil {
		return err
	}
	n.add(thing{key: metadata.ManifestKey(id), size: -1})
	for i := range m.Pages {
		n.add(thing{key: m.Pages[i].Key(), size: -1})
	}
	return nil
}

// chain adds the manifest on which a commit builds and the path from there to it.
func (n *need) chain(ctx context.Context, s objstore.Store, manifest, last metadata.CommitID) error {
	if err := n.manifest(ctx, s, manifest); err != nil {
		return err
	}
	first := metadata.CommitID{Epoch: max(manifest.Epoch, 1), N: manifest.N + 1}
	if manifest == last {
		first = last // a restore's commit, which names its own manifest
	}
	ahead := newPathAhead(ctx, pathReader{s}, first, last.N)
	defer ahead.close()
	for at := (metadata.CommitID{}); at != last; {
		e, err := ahead.next()
		if err != nil {
			return err
		}
		if e == nil || e.id.N > last.N {
			return fmt.Errorf("%w: there is no %s on the way to commit %s", ErrDamaged, metadata.CommitKey(ahead.at), last)
		}
		at = e.id
		n.add(thing{key: metadata.CommitKey(at), size: -1})
	}
	return nil
}

// copier copies bodies into a clone's prefix under their own keys. What is there
// is not copied again: a body is there whole or not at all.
type copier struct {
	o    CopyOptions
	src  objstore.Store // through which the bodies are found
	from func(key string) string
	dst  objstore.Store
	hold *budget // bytes in memory; of copyMemory when nil

	plain atomic.Bool // the store can't copy by itself
	told  atomic.Bool // that it did not copy one
	mu    sync.Mutex  // guards the field below
	done  CopyProgress
}

// copyMemory bounds the bytes that copies hold: at least one body.
const copyMemory = 96 << 20

// run copies what is needed, in the order of the keys. Errors: ErrDamaged, ErrStore,
// ErrInterrupted.
func (c *copier) run(ctx context.Context, list []thing) (CopyProgress, error) {
	if c.hold == nil {
		c.hold = newBudget(copyMemory)
	}
	c.plain.Store(c.o.Server == nil)
	slices.SortFunc(list, func(a, b thing) int { return strings.Compare(a.key, b.key) })
	if err := c.lookThere(ctx, list); err != nil {
		return c.done, err
	}
	c.done.Things = int64(len(list))
	for i := range list {
		c.done.Bytes += max(list[i].size, 0)
	}
	f := newFetcher(c.src, &metadata.VolumeDoc{}, c.o.Parallel, &counters{}, nil)
	err := f.inParallel(ctx, len(list), func(ctx context.Context, i int) error { return c.one(ctx, &list[i]) })
	if err != nil && ctx.Err() != nil {
		err = ErrInterrupted
	}
	return c.done, err
}

// lookThere notes which of the things, in the order of their keys, the target has.
// What else is there, as in the prefix of a clone that is being detached, costs no
// memory.
func (c *copier) lookThere(ctx context.Context, list []thing) error {
	for _, prefix := range []string{metadata.ObjectPrefix, metadata.SegmentPrefix, metadata.ManifestPrefix, metadata.CommitPrefix} {
		err := objstore.ListAll(ctx, c.dst, prefix, "", func(info objstore.Info) error {
			i, found := slices.BinarySearchFunc(list, info.Key, func(t thing, key string) int { return strings.Compare(t.key, key) })
			if found {
				list[i].there = info.Size
			}
			return nil
		})
		if err != nil {
			return storeErrorAt("list", prefix, err)
		}
	}
	return nil
}

// finished counts a thing.
func (c *copier) finished(t *thing, found, served bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done.DoneThings++
	c.done.DoneBytes += max(t.size, 0)
	if found {
		c.done.Found++
	}
	if served {
		c.done.Served++
	}
	if c.o.Progress != nil {
		c.o.Progress(c.done)
	}
}

// one copies a body, unless it is there.
func (c *copier) one(ctx context.Context, t *thing) error {
	if t.there >= 0 {
		if t.size >= 0 && t.there != t.size {
			return fmt.Errorf("%w: %s has %d bytes in the clone instead of %d: delete it there and go on", ErrDamaged, t.key, t.there, t.size)
		}
		c.finished(t, true, false)
		return nil
	}
	served, err := c.serve(ctx, t)
	if err == nil && !served {
		err = c.move(ctx, t)
	}
	if err != nil {
		return err
	}
	c.finished(t, false, served)
	return nil
}

// serve lets the store copy a body, if it can. What it fails to do this machine
// tries, and meets the reason.
func (c *copier) serve(ctx context.Context, t *thing) (bool, error) {
	if c.plain.Load() {
		return false, nil
	}
	err := c.o.Server(ctx, c.from(t.key), t.key, t.size)
	if err != nil && ctx.Err() != nil {
		return false, ErrInterrupted
	}
	if err != nil {
		if errors.Is(err, errors.ErrUnsupported) {
			c.plain.Store(true)
		}
		if !c.told.Swap(true) {
			c.o.Logger.Info("the store did not copy a body by itself: this one, and others like it, go through this machine", "key", t.key, "reason", err)
		}
		return false, nil
	}
	if t.size < 0 {
		return true, nil
	}
	i, err := c.dst.Head(ctx, t.key)
	if err != nil {
		return false, storeErrorAt("look at the copy of", t.key, err)
	}
	if i.Size != t.size {
		return false, fmt.Errorf("%w: the store made a copy of %s with %d bytes instead of %d: delete it in the clone and go on", ErrDamaged, t.key, i.Size, t.size)
	}
	return true, nil
}

// move copies a body through this machine, and verifies it on the way. It is held
// whole, as many at a time as copyMemory allows.
func (c *copier) move(ctx context.Context, t *thing) error {
	src := rawStore(c.src, t.key)
	size := t.size
	if size < 0 {
		info, err := src.Head(ctx, t.key)
		if err != nil {
			return copyError(t.key, err)
		}
		size = info.Size
	}
	if size > maxDocument+documentOverhead {
		return fmt.Errorf("%w: copy %s: it has %d bytes, more than anything in a volume", ErrDamaged, t.key, size)
	}
	held, err := c.hold.take(ctx, max(size, 1<<20))
	if err != nil {
		return ErrInterrupted
	}
	defer c.hold.give(held)
	var body []byte
	err = retryDamage(ctx, func() (err error) {
		body, err = t.read(ctx, src, size)
		return err
	})
	if err == nil {
		err = objstore.Create(ctx, c.dst, t.key, body)
	}
	return copyError(t.key, err)
}

// read reads the whole body, which must have so many bytes.
func (t *thing) read(ctx context.Context, src objstore.Store, size int64) ([]byte, error) {
	body, info, err := objstore.ReadAll(ctx, src, t.key, size)
	switch {
	case errors.Is(err, objstore.ErrTooLarge) || err == nil && info.Size != size:
		return nil, fmt.Errorf("%w: %s has %d bytes instead of %d", ErrDamaged, t.key, info.Size, size)
	case err != nil:
		return nil, err
	case t.same != nil && !t.same(body):
		return nil, fmt.Errorf("%w: %s: checksum does not match", ErrDamaged, t.key)
	}
	return body, nil
}

func copyError(key string, err error) error {
	switch {
	case err == nil || errors.Is(err, ErrDamaged):
		return err
	case errors.Is(err, objstore.ErrNotExist):
		return fmt.Errorf("%w: %w", ErrDamaged, objstore.At("copy", key, err))
	}
	return storeErrorAt("copy", key, err)
}

// copyAll copies all that the source's commit needs into the clone's prefix.
func (c *cloner) copyAll(ctx context.Context) error {
	v, err := OpenView(ctx, ViewOptions{Store: c.o.Source, Keys: c.o.Keys, URL: c.o.SourceURL, KV: c.o.Copy.KV, Commit: c.base.id.N})
	if err != nil {
		return err
	}
	n := newNeed(func(string) bool { return true })
	err = n.state(v.Index())
	if err == nil {
		err = n.chain(ctx, c.o.Source, c.base.commit.Manifest, c.base.id)
	}
	if err = errors.Join(err, v.Close()); err != nil {
		return err
	}
	from := func(key string) string {
		if i := c.doc.AncestorOf(key); i >= 0 {
			return c.doc.Ancestors[i].URL
		}
		return c.o.SourceURL
	}
	k := copier{o: *c.o.Copy, src: c.o.Source, from: from, dst: c.o.Target}
	c.copied, err = k.run(ctx, n.list)
	return err
}
