package gateway

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/internal/extent"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// Open makes this process the writer of a volume and brings the state
// directory's journal back: it takes an epoch, reads the bucket's head, redoes
// what the journal has beyond it, and starts background work. Errors:
// ErrNoVolume, ErrNewerFormat, ErrOwned, ErrLostJournal, ErrDamaged, ErrStore;
// on error nothing that was acknowledged is changed.
func Open(ctx context.Context, o Options) (*Volume, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	o.setDefaults()
	v, err := openOnce(ctx, o)
	if errors.Is(err, errSetAside) {
		// The journal is not to be redone: owner.json says so, and the next
		// attempt begins by moving it away.
		o.Fit = nil // it was asked
		v, err = openOnce(ctx, o)
	}
	if err != nil {
		return nil, err
	}
	v.startBackground()
	return v, nil
}

func openOnce(ctx context.Context, o Options) (*Volume, error) {
	v := &Volume{
		fetcher: newFetcher(o.Store, &metadata.VolumeDoc{}, o.Fetches, &counters{}, o.Now),
		opt:     o, log: o.Logger, fs: o.FS,
		active: newLayer(), refs: map[InodeID]*extent.Map[refValue]{},
		ahead: make(chan readAheadTask, readAheadQueue),
		quit:  make(chan struct{}), ended: make(chan struct{}), scheduleSoon: make(chan struct{}, 1),
	}
	v.commit.init()
	v.lease.init()
	v.ctx, v.cancel = context.WithCancel(context.WithoutCancel(ctx))
	if err := v.open(ctx); err != nil {
		v.giveBack(ctx, err)
		v.cancel()
		_, cerr := v.closeLocal(nil)
		return nil, errors.Join(err, cerr)
	}
	return v, nil
}

// giveBack releases the lease of a mount that failed, where there is no journal
// that the next owner would have to wait for: nothing was written in its epoch.
func (v *Volume) giveBack(ctx context.Context, cause error) {
	if v.epoch() == 0 || v.owner.Journal != "" || errors.Is(cause, ErrFenced) {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), v.opt.LeaseDuration/3)
	defer cancel()
	if err := v.writeLease(ctx, true); err != nil {
		v.log.Warn("lease stays unreleased", "volume", v.opt.URL, "error", err)
	}
}

// ReadVolumeDoc reads a volume's identity document.
func ReadVolumeDoc(ctx context.Context, s objstore.Store, url string) (*metadata.VolumeDoc, error) {
	var d *metadata.VolumeDoc
	err := readDocument(ctx, s, metadata.VolumeKey, 1<<20, func(body []byte, _ objstore.Info) (err error) {
		d, err = metadata.DecodeVolume(body)
		return err
	})
	if errors.Is(err, objstore.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s has no %s; check the URL, or make a volume with `cistern format`", ErrNoVolume, url, metadata.VolumeKey)
	}
	return d, err
}

func (v *Volume) open(ctx context.Context) error {
	dir := v.opt.StateDir
	if err := makeDir(v.fs, dir); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	lk, err := v.fs.Lock(filepath.Join(dir, "lock"))
	if errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("state directory %s is in use by another mount or command: %w", dir, vfs.ErrLocked)
	}
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	v.stateLk = lk
	seen, err := v.survey(ctx)
	if err != nil {
		return err
	}
	if err := v.reign(); err != nil {
		return err
	}
	path, err := v.become(ctx, seen)
	if err != nil {
		return err
	}
	v.commit.next = path.next()
	if err := v.openIndex(ctx, path.last); err != nil {
		return err
	}
	if v.owner.Aside {
		if _, err := v.setAside(); err != nil {
			return err
		}
	}
	v.cacheBytes.Store(v.opt.CacheBytes)
	if v.cache, err = cache.Open(v.fs, filepath.Join(dir, "cache"), cache.Options{LimitBytes: v.opt.CacheBytes, KeepFree: v.keepFree(), Logger: v.log}); err != nil {
		return fmt.Errorf("cache in %s: %w", dir, err)
	}
	v.takeHead(v.index.Head())
	if err := v.openJournal(ctx, path); err != nil {
		return err
	}
	if err := v.dropInherited(ctx); err != nil {
		return err
	}
	return v.tidy(ctx)
}

// dropInherited drops bytes that were staged when a clone was made: they belong
// to what the parent's writer was at. That is due as long as the clone has no
// commit but its first; what its own writer has staged since is in the journal
// behind the records that this writes.
func (v *Volume) dropInherited(ctx context.Context) error {
	if first := v.doc.First(); first.N == 0 || v.head.CommitID != first {
		return nil
	}
	var list []*Inode
	if err := v.index.StagedInodes(func(n *Inode) bool { list = append(list, n); return true }); err != nil {
		return fmt.Errorf("staged bytes: %w", err)
	}
	for _, n := range list {
		if _, own := v.active.inodes[n.ID]; own {
			continue
		}
		if err := v.change(ctx, &publishOp{ino: n.ID, size: n.Size, time: v.clock()}, 0); err != nil {
			return fmt.Errorf("drop the staged bytes of inode %d: %w", n.ID, err)
		}
	}
	return nil
}

func (v *Volume) useDoc(doc *metadata.VolumeDoc) error {
	v.doc = *doc
	v.vol = &v.doc
	v.objectSize = doc.ObjectSize
	if v.objectSize < minObjectSize || v.objectSize > maxObjectSize {
		return fmt.Errorf("%w: %s gives an object size of %d bytes", ErrDamaged, metadata.VolumeKey, v.objectSize)
	}
	if err := doc.Writable(); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrNewerFormat, v.opt.URL, err)
	}
	var err error
	if v.codec, err = newCodec(doc, v.opt.URL, v.opt.Keys); err != nil {
		return err
	}
	// A commit holds one segment while it waits for room for one object.
	v.uploads = newBudget(max(v.opt.UploadBytes, segmentTarget+v.bodyMemory(v.objectSize)))
	return nil
}

// fencedAt: somebody sealed this epoch before it began.
func (v *Volume) fencedAt(epoch uint64) error {
	return fmt.Errorf("%w: %s was taken over as epoch %d while it was being mounted", ErrFenced, v.opt.URL, epoch)
}

// takeHead sets what follows from the index's head. The layers are empty.
func (v *Volume) takeHead(h metadata.Head) {
	v.head = h
	v.used, v.inodes, v.nextInode = h.Totals.UsedBytes, h.Totals.Inodes, h.Totals.NextInode
	v.settings = h.Settings
}
