package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/internal/extent"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/journal"
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

// errSetAside: the journal must be set aside before the volume can be opened.
var errSetAside = errors.New("journal is to be set aside")

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

// readOwner reads owner.json, and refuses another volume's state directory.
func (v *Volume) readOwner() error {
	o, err := loadOwner(v.fs, v.opt.StateDir)
	if errors.Is(err, ErrDamaged) && v.opt.AcceptLostJournal {
		v.log.Warn("damage of owner.json was accepted: whose journal is there is not known", "error", err)
		o, err = newOwner(v.fs, v.opt.StateDir), nil
		o.damaged = true
	}
	if err != nil {
		return err
	}
	if o.Volume != "" && o.Volume != v.doc.ID {
		return fmt.Errorf("state directory %s belongs to volume %s, and %s is volume %s: choose another with --state, or delete it if that volume is gone", v.opt.StateDir, o.Volume, v.opt.URL, v.doc.ID)
	}
	v.owner = o
	return nil
}

// reign gives this mount an id and makes it durable before the lease names it.
func (v *Volume) reign() error {
	o := v.owner
	if err := v.unowned(o); err != nil {
		return err
	}
	if o.damaged { // somebody may still read in it whose the journal was
		if err := v.fs.Rename(o.path, o.path+damagedSuffix); err != nil {
			return fmt.Errorf("keep the damaged %s: %w", o.path, err)
		}
	}
	id, err := v.randomHex(16)
	if err != nil {
		return err
	}
	o.Volume, o.URL = v.doc.ID, v.opt.URL
	o.Reigns = append(o.Reigns, id)
	if len(o.Reigns) > maxReigns {
		return fmt.Errorf("state directory %s: mounted %d times without its journal being redone; something is wrong with the volume: see the log", v.opt.StateDir, len(o.Reigns))
	}
	return o.save()
}

// unowned looks for a journal beside a missing owner.json: the file is durable
// before there is a journal, so it was lost, and with it whose the journal is.
func (v *Volume) unowned(o *ownerFile) error {
	if o.found {
		return nil
	}
	dir := filepath.Join(v.opt.StateDir, "journal")
	list, err := v.fs.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(list) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", dir, err)
	}
	if !v.opt.AcceptLostJournal {
		return fmt.Errorf("%w: %s is there and %s is not, which says whose it is: bring it back, or mount with --accept-lost-journal to set the journal aside", ErrLostJournal, dir, o.path)
	}
	// Its identity is not known: a new one names the place where it is kept.
	if o.Journal, err = v.randomHex(16); err != nil {
		return err
	}
	o.Aside = true
	return nil
}

// takeHead sets what follows from the index's head. The layers are empty.
func (v *Volume) takeHead(h metadata.Head) {
	v.head = h
	v.used, v.inodes, v.nextInode = h.Totals.UsedBytes, h.Totals.Inodes, h.Totals.NextInode
	v.settings = h.Settings
}

// openJournal opens the journal and redoes it if it is this owner's to redo.
func (v *Volume) openJournal(ctx context.Context, path *pathEnd) error {
	epoch := v.epoch()
	dir := filepath.Join(v.opt.StateDir, "journal")
	known := v.owner.Journal
	if known == "" || v.owner.Aside {
		return v.freshJournal(dir, epoch)
	}
	id, err := hex.DecodeString(known)
	if err != nil || len(id) != 16 {
		return fmt.Errorf("%w: %s names journal %q", ErrDamaged, v.owner.path, known)
	}
	j, err := journal.Open(v.fs, dir, v.journalOptions([16]byte(id), false))
	if err == nil {
		v.journal = j
		return v.redoOwn(ctx, dir, epoch, path)
	}
	if errors.Is(err, journal.ErrMissing) || errors.Is(err, journal.ErrIdentity) {
		if !v.opt.AcceptLostJournal {
			return fmt.Errorf("%w: %s: %w; what it held beyond commit %s is lost: bring it back, or mount with --accept-lost-journal", ErrLostJournal, dir, err, v.head.CommitID)
		}
		v.log.Warn("journal is lost and that was accepted", "directory", dir, "error", err)
		return v.asideFrom("the journal was lost: " + err.Error())
	}
	return v.journalDamaged(dir, err)
}

// journalDamaged answers a journal that can't be read: its damage is accepted
// only when that was said.
func (v *Volume) journalDamaged(dir string, err error) error {
	if !errors.Is(err, journal.ErrDamaged) {
		return journalError(err)
	}
	if !v.opt.AcceptLostJournal {
		return fmt.Errorf("%w; mount with --accept-lost-journal to set %s aside and go on from commit %s", journalError(err), dir, v.head.CommitID)
	}
	v.log.Warn("journal is damaged and that was accepted", "directory", dir, "error", err)
	return v.asideFrom(err.Error())
}

// asideFrom is asideNext for a journal that is known to build on the volume's last
// commit.
func (v *Volume) asideFrom(reason string) error {
	if err := v.noteAside(reason, v.head.CommitID, v.head.LastLSN); err != nil {
		return err
	}
	return v.asideNext()
}

func journalError(err error) error {
	if errors.Is(err, journal.ErrDamaged) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return fmt.Errorf("journal: %w", err)
}

func (v *Volume) journalOptions(id [16]byte, create bool) journal.Options {
	v.journalBytes = v.journalLimit()
	return journal.Options{
		Create: create, FileSize: v.opt.JournalFileBytes, MaxBytes: v.journalBytes, KeepFree: v.keepFree(), Identity: id,
		BeforeSync: v.syncReferences, Expand: v.expandReference, Verify: v.verifyRecord,
		Rand: v.opt.Rand, Logger: v.log,
	}
}

// keepFree is what cache and journal leave free of their disk: with what the index
// needs for a commit, the files that a recovery makes before it can give any back,
// which are up to two of records written anew and the one that follows.
func (v *Volume) keepFree() int64 {
	const files = 3
	if v.opt.KeepFree == 0 {
		return 0
	}
	return v.opt.KeepFree + files*v.opt.JournalFileBytes
}

// journalLimit is the journal's limit in bytes for this mount. Every mount
// begins a file, and one that ends before its first commit leaves it: however
// many did, there is room to begin another.
func (v *Volume) journalLimit() int64 {
	const spare = 3
	list, err := v.fs.ReadDir(filepath.Join(v.opt.StateDir, "journal"))
	if err != nil {
		return v.opt.JournalBytes // opening the journal meets it, too
	}
	return max(v.opt.JournalBytes, int64(len(list)+spare)*v.opt.JournalFileBytes)
}

// freshJournal starts an empty journal under a new identity, which owner.json
// has before any record is written.
func (v *Volume) freshJournal(dir string, epoch uint64) error {
	// What lies there without an identity in owner.json never held a record.
	if err := v.fs.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	if err := makeDir(v.fs, dir); err != nil {
		return err
	}
	id, err := v.randomHex(16)
	if err != nil {
		return err
	}
	raw, err := hex.DecodeString(id)
	if err != nil {
		return err
	}
	j, err := journal.Open(v.fs, dir, v.journalOptions([16]byte(raw), true))
	if err != nil {
		return journalError(err)
	}
	v.journal = j
	if err := j.Start(epoch, journal.LSN(v.head.LastLSN+1)); err != nil {
		return journalError(err)
	}
	v.owner.Journal, v.owner.Aside = id, false
	v.owner.Reigns = []string{v.owner.current()}
	return v.owner.save()
}

// asideWith is asideNext for a journal of which it is known what it builds on.
func (v *Volume) asideWith(ctx context.Context, epoch uint64, reason string) error {
	base, lsn, err := v.baseOf(ctx, epoch)
	if err != nil {
		return err
	}
	if err := v.noteAside(reason, base, lsn); err != nil {
		return err
	}
	return v.asideNext()
}

// asideNext makes the next attempt to open the volume set the journal aside.
// owner.json says so first: a mount that dies in between must not look like a
// lost journal, nor redo it after all.
func (v *Volume) asideNext() error {
	v.owner.Aside = true
	if err := v.owner.save(); err != nil {
		return err
	}
	return errSetAside
}

// setAside moves a journal that must not be redone here out of the way, and
// with it the cache, whose files hold what its references point at. It returns
// the directory that has them.
func (v *Volume) setAside() (to string, err error) {
	// The name is the same at every attempt, so that the two stay together.
	name := v.owner.Journal
	if name == "" {
		name = fmt.Sprintf("unowned-%d", v.lease.doc.Epoch)
	}
	to = filepath.Join(v.opt.StateDir, "quarantine", name)
	if err := makeDir(v.fs, to); err != nil {
		return "", err
	}
	for _, name := range []string{"journal", "cache", asideFileName} {
		from := filepath.Join(v.opt.StateDir, name)
		if _, err := v.fs.Stat(from); errors.Is(err, fs.ErrNotExist) {
			continue // there is nothing to keep
		} else if err != nil {
			return "", fmt.Errorf("set %s aside: %w", from, err) // a new journal would take its place
		}
		if _, err := v.fs.Stat(filepath.Join(to, name)); err == nil {
			continue // moved by an earlier attempt, which began a new one
		}
		if err := v.fs.Rename(from, filepath.Join(to, name)); err != nil {
			return "", fmt.Errorf("set %s aside: %w", from, err)
		}
	}
	for _, d := range []string{to, v.opt.StateDir} {
		if err := v.fs.SyncDir(d); err != nil {
			return "", fmt.Errorf("sync %s: %w", d, err)
		}
	}
	v.log.Warn("journal and cache were set aside: `cistern salvage` shows what only they have, and brings it back as files", "state", v.opt.StateDir, "directory", to)
	return to, nil
}

// dropUnknown removes the cache files of inodes below limit of which gone says
// so. It ends early when the volume closes.
func (v *Volume) dropUnknown(limit InodeID, gone func(InodeID) (bool, error)) error {
	var all []InodeID
	err := v.cache.Inodes(func(ino uint64) error {
		if InodeID(ino) < limit {
			all = append(all, InodeID(ino))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cache files: %w", err)
	}
	slices.Sort(all) // neighbours share a block of the index
	for _, ino := range all {
		select {
		case <-v.quit:
			return nil
		default:
		}
		unknown, err := gone(ino)
		if err != nil {
			return fmt.Errorf("cache files: %w", err)
		}
		if !unknown {
			continue
		}
		if err := v.cache.Remove(uint64(ino)); err != nil {
			v.log.Warn("cache file of an unknown inode stays", "inode", ino, "error", err)
		}
	}
	return nil
}

// isUnknown says whether an inode is gone, as long as nothing is under way.
func (v *Volume) isUnknown(ino InodeID) (bool, error) {
	_, err := v.inode(ino)
	if errors.Is(err, ErrNotExist) {
		return true, nil
	}
	return false, err
}

// isForgotten says whether an inode is gone and its end is committed, too: until
// then a commit that is being built may still read its cache file.
func (v *Volume) isForgotten(ino InodeID) (bool, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if _, ok := v.active.inodes[ino]; ok {
		return false, nil
	}
	if v.frozen != nil {
		if _, ok := v.frozen.inodes[ino]; ok {
			return false, nil
		}
	}
	return v.isUnknown(ino)
}

// runTidy removes what tidy left, once.
func (v *Volume) runTidy(limit InodeID) {
	defer v.group.Done()
	select {
	case <-v.cache.Scanned():
	case <-v.quit:
		return
	}
	if err := v.dropUnknown(limit, v.isForgotten); err != nil {
		v.log.Warn("cache files of unknown inodes stay until the next mount", "error", err)
	}
}

// tidyAtOnce is how many cache files are looked at before the volume serves.
// With more of them that is left to runTidy: a file of an inode that is gone takes
// space, but nobody reads it, since inode numbers are never used again.
const tidyAtOnce = 10_000

// tidy removes cache files of inodes that are gone and frees inodes that
// nobody can hold any more.
func (v *Volume) tidy(ctx context.Context) error {
	many := v.cache.Stats().Files > tidyAtOnce
	select {
	case <-v.cache.Scanned():
	default:
		many = true
	}
	if v.tidyLater = many && !v.opt.Manual; !v.tidyLater {
		if err := v.dropUnknown(v.nextInode, v.isUnknown); err != nil {
			return err
		}
	}
	err := v.index.Orphans(func(ino InodeID) bool {
		v.reaping.add(ino)
		return true
	})
	if err != nil {
		return fmt.Errorf("orphans: %w", err)
	}
	for ino, joined := range v.active.orphans {
		if joined {
			v.reaping.add(ino)
		}
	}
	return nil
}
