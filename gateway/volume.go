package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/internal/extent"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
)

// Volume is a mounted volume with this process as its one writer. All methods
// are safe for concurrent use.
type Volume struct {
	*fetcher
	opt        Options
	log        *slog.Logger
	fs         vfs.FS
	doc        metadata.VolumeDoc
	objectSize int64

	journal *journal.Journal
	cache   *cache.Cache
	index   *metadata.Index
	kv      metadata.KV
	owner   *ownerFile
	stateLk interface{ Close() error }
	nodes   nodeTable
	lease   leaseState
	blocks  blockTable
	dense   denseTable
	near    nearTable
	uploads *budget // bytes of buffers being uploaded

	cacheBytes atomic.Int64 // limit of the cache; references take half of it at most
	ahead      chan readAheadTask

	mu            sync.RWMutex // guards the fields below; see doc.go for the order of locks
	active        *layer
	frozen        *layer                            // being committed, or nil
	refs          map[InodeID]*extent.Map[refValue] // uncommitted references
	refBytes      int64
	used          int64  // Totals.UsedBytes as of now
	inodes        uint64 // Totals.Inodes as of now
	tidyLater     bool   // set by open alone
	nextInode     InodeID
	settings      metadata.Settings
	head          metadata.Head
	sinceManifest manifestState

	stopped atomic.Pointer[stopCause] // why nothing may be written any more, or nil
	ended   chan struct{}             // closed when stopped is set
	pending atomic.Int64              // estimated memory of the layers

	found        metadata.Head // what the local index had when it was opened
	journalBytes int64         // the journal's limit
	redone       journal.LSN   // last record that was redone and is not committed; under the token of commits
	unclean      bool          // the owner before did not release the lease: it may have left orphans

	replaying bool         // redo runs: limits don't apply
	sinceSync atomic.Int64 // bytes appended since the journal was last synced
	unsynced  syncSet      // cache files with references not yet durable

	clocks  storeClock
	gate    writerGate
	commit  commitState
	reaping reapQueue
	folds   foldState
	outages outages

	scheduleSoon chan struct{} // asks for a look at the schedules of snapshots now

	group  sync.WaitGroup
	ctx    context.Context // ends when Close gives up waiting
	cancel context.CancelFunc
	quit   chan struct{} // closed when background work must end
	closed atomic.Bool
}

// stopCause is why a volume takes no more writes.
type stopCause struct{ err error }

// writable returns why nothing may be written, or nil.
func (v *Volume) writable() error { return v.Stopped() }

// stop makes the volume read-only for good, and says so once.
func (v *Volume) stop(reason error) {
	if v.end(reason) {
		v.log.Error("volume turned read-only", "volume", v.opt.URL, "reason", reason)
	}
}

// end is stop without a word; false when the volume had ended before.
func (v *Volume) end(reason error) bool {
	if !v.stopped.CompareAndSwap(nil, &stopCause{reason}) {
		return false
	}
	close(v.ended)
	v.commit.wake(reason)
	return true
}

// Stopped returns why the volume is read-only, or nil.
func (v *Volume) Stopped() error {
	if c := v.stopped.Load(); c != nil {
		return c.err
	}
	return nil
}

// Ended returns a channel that is closed when Stopped has an error: a writer that
// has nothing to write learns so that another has the volume. That takes a third of
// the lease's duration at most while the store can be reached.
func (v *Volume) Ended() <-chan struct{} { return v.ended }

// ReadOnly says whether writes are refused.
func (v *Volume) ReadOnly() bool { return v.Stopped() != nil }

// ObjectSize is the size of a slot in bytes.
func (v *Volume) ObjectSize() int64 { return v.objectSize }

// ID is the volume's identity.
func (v *Volume) ID() string { return v.doc.ID }

// EncryptsDocuments says whether names and positions are to be seen with a key alone.
func (v *Volume) EncryptsDocuments() bool { return v.doc.EncryptsDocuments() }

func (v *Volume) clock() int64 { return v.opt.Now().UnixNano() }

// Appended operations need at most this many bytes beside their data and names.
const opOverhead = 512

// reserve waits for room for an operation of n bytes: in the journal, and in
// the memory and cache that uncommitted changes may take; and while writers are
// held, for a hand-over or because the lease ran out. It is called before any
// lock.
func (v *Volume) reserve(ctx context.Context, n int) (*admission, error) {
	if err := v.Stopped(); err != nil {
		return nil, err
	}
	for {
		if err := v.leaseGate(ctx); err != nil {
			return nil, err
		}
		res, err := v.room(ctx, n)
		if err != nil {
			return nil, err
		}
		if err := v.gate.enter(ctx); err != nil {
			res.Release()
			return nil, ErrInterrupted
		}
		a := &admission{res, &v.gate}
		// The lease may have run out during the wait for room. Who waits for it
		// holds neither room nor up a hand-over.
		if !v.opt.StopOnLeaseLost || v.leaseLost() == 0 {
			return a, nil
		}
		a.Release()
	}
}

// room waits for room as the limits allow.
func (v *Volume) room(ctx context.Context, n int) (*journal.Reservation, error) {
	if v.opt.LimitENOSPC {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, v.opt.LimitWait, errLimit)
		defer cancel()
	}
	if err := v.waitRoom(ctx); err != nil {
		return nil, v.waitError(ctx, err)
	}
	if err := v.boundUnsynced(ctx); err != nil {
		return nil, v.waitError(ctx, err)
	}
	res, err := v.journal.Reserve(ctx, int64(n)+opOverhead, false)
	if err != nil {
		return nil, v.waitError(ctx, err)
	}
	return res, nil
}

var errLimit = errors.New("limit of uncommitted data reached")

// waitError turns what a wait ended with into what the caller answers.
func (v *Volume) waitError(ctx context.Context, err error) error {
	switch {
	case errors.Is(context.Cause(ctx), errLimit), errors.Is(err, journal.ErrNoSpace):
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	case errors.Is(err, journal.ErrBroken):
		v.stop(fmt.Errorf("%w: %w", ErrReadOnly, err))
		return v.Stopped()
	case errors.Is(err, journal.ErrClosed):
		return ErrClosed
	case ctx.Err() != nil:
		return ErrInterrupted
	}
	return err
}

// waitRoom waits while uncommitted changes take more memory than they may.
func (v *Volume) waitRoom(ctx context.Context) error {
	for v.pending.Load() > v.opt.MemoryBytes {
		ch := v.commit.changed()
		if err := v.Stopped(); err != nil {
			return err
		}
		if v.pending.Load() <= v.opt.MemoryBytes {
			break
		}
		v.stat.throttled.Add(1)
		v.kickCommit()
		select {
		case <-ch:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// notePending publishes how much memory the layers take. Caller holds v.mu.
func (v *Volume) notePending() {
	mem := v.active.mem
	if v.frozen != nil {
		mem += v.frozen.mem
	}
	v.pending.Store(mem)
}

// Unsynced journal bytes above which a sync is asked for, and above which the
// writer does it itself.
const (
	syncSoon = 4 << 20
	syncNow  = 12 << 20
)

func (v *Volume) boundUnsynced(ctx context.Context) error {
	if v.sinceSync.Load() < syncNow {
		return nil
	}
	return v.syncJournal(ctx, v.journal.End())
}

// syncJournal makes everything up to lsn durable on the local disk.
func (v *Volume) syncJournal(ctx context.Context, lsn journal.LSN) error {
	before := v.sinceSync.Load()
	if err := v.journal.Sync(ctx, lsn); err != nil {
		return v.waitError(ctx, err)
	}
	if before > 0 {
		v.sinceSync.Add(-before)
	}
	return nil
}

// do journals and applies one operation. The caller has reserved for it and
// holds no lock but the range lock that the operation needs.
func (v *Volume) do(res *journal.Reservation, op operation, data []byte) (journal.LSN, error) {
	v.mu.Lock()
	lsn, err := v.enqueue(res, op, data)
	v.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return lsn, v.handOver(lsn)
}

// doLocked is do for callers that hold v.mu.
func (v *Volume) doLocked(res *journal.Reservation, op operation, data []byte) (journal.LSN, error) {
	lsn, err := v.enqueue(res, op, data)
	if err != nil {
		return 0, err
	}
	return lsn, v.handOver(lsn)
}

// enqueue gives an operation its place in the journal and applies it. It must
// not be acknowledged before handOver. Caller holds v.mu.
func (v *Volume) enqueue(res *journal.Reservation, op operation, data []byte) (journal.LSN, error) {
	if err := v.writable(); err != nil {
		return 0, err
	}
	apply, err := op.plan(v)
	if err != nil {
		return 0, err
	}
	lsn, locs, err := v.journal.Enqueue(res, journal.Entry{Op: op.kind(), Body: encodeOp(op), Data: data})
	if err != nil {
		return 0, v.appendError(err)
	}
	v.applied(lsn, apply, locs[0])
	v.sinceSync.Add(int64(len(data)) + opOverhead/2)
	return lsn, nil
}

// handOver hands everything up to lsn to the kernel: from then on it survives
// the end of this process.
func (v *Volume) handOver(lsn journal.LSN) error {
	if err := v.journal.Write(lsn); err != nil {
		return v.appendError(err)
	}
	return nil
}

// appendError stops the volume when the journal can't be written any more.
func (v *Volume) appendError(err error) error {
	if !errors.Is(err, journal.ErrBroken) {
		return fmt.Errorf("journal: %w", err)
	}
	v.stop(fmt.Errorf("%w: %w", ErrReadOnly, err))
	return v.Stopped()
}

// applied applies an operation that the journal has. Caller holds v.mu.
func (v *Volume) applied(lsn journal.LSN, apply func(journal.LSN, journal.Loc), loc journal.Loc) {
	if v.active.first == 0 {
		v.active.first = lsn
		v.commit.dirtySince(time.Now())
	}
	v.active.last = lsn
	apply(lsn, loc)
	v.notePending()
	if v.active.bulk >= v.opt.BulkBytes {
		v.kickCommit()
	}
}

// change reserves for, journals and applies an operation without data.
func (v *Volume) change(ctx context.Context, op operation, names int) error {
	res, err := v.reserve(ctx, names)
	if err != nil {
		return err
	}
	defer res.Release()
	_, err = v.do(res.Reservation, op, nil)
	return err
}

// checkQuota refuses to grow beyond the quota. Caller holds v.mu.
func (v *Volume) checkQuota(grow int64) error {
	if grow <= 0 || v.replaying {
		return nil
	}
	if q := v.settings.QuotaBytes; q > 0 && v.used+grow > q {
		return fmt.Errorf("%w: %d bytes used, %d more wanted, quota %d", ErrQuota, v.used, grow, q)
	}
	return nil
}

// Statfs answers statfs(2).
func (v *Volume) Statfs() Statfs {
	v.mu.RLock()
	defer v.mu.RUnlock()
	s := Statfs{Total: v.settings.QuotaBytes, Used: v.used, Inodes: v.inodes}
	if s.Total == 0 {
		s.Total = 1 << 50
	}
	return s
}

// Fsync makes everything acknowledged so far durable in the mount's mode,
// whatever inode it is asked for.
func (v *Volume) Fsync(ctx context.Context, ino InodeID) error {
	if err := v.Stopped(); err != nil {
		if errors.Is(err, ErrHandedOver) {
			return nil // everything is in the bucket, whatever the mode
		}
		return err
	}
	lsn := v.journal.End()
	if err := v.syncJournal(ctx, lsn); err != nil {
		return err
	}
	switch d := v.opt.Durability; d.Mode {
	case ModeBucket:
		return v.waitCommitted(ctx, lsn)
	case ModeLag:
		if err := v.waitLag(ctx, d.Lag); err != nil {
			return err
		}
	}
	return v.leaseGate(ctx)
}

// syncSet is the set of cache files with references that no sync covers yet.
type syncSet struct {
	mu    sync.Mutex
	files map[InodeID]struct{}
}

func (s *syncSet) add(ino InodeID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.files == nil {
		s.files = map[InodeID]struct{}{}
	}
	s.files[ino] = struct{}{}
}

// has says whether the file is to be synced anyway, as far as can be told.
func (s *syncSet) has(ino InodeID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.files[ino]
	return ok
}

func (s *syncSet) take() map[InodeID]struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.files
	s.files = nil
	return m
}

// syncReferences makes the bytes of all references so far durable; the journal
// calls it before each fdatasync. On failure the journal writes the records
// anew with the bytes in them (expandReference).
func (v *Volume) syncReferences() error {
	files := v.unsynced.take()
	var first error
	for ino := range files {
		f := v.cache.Get(uint64(ino))
		err := f.Sync()
		f.Release()
		if err != nil && first == nil {
			first = fmt.Errorf("sync cache file of inode %d: %w", ino, err)
		}
	}
	return first
}

// expandReference replaces a reference's record by one that carries the bytes.
func (v *Volume) expandReference(lsn journal.LSN, e journal.Entry) (journal.Entry, error) {
	if !refers(e.Op) {
		return e, nil
	}
	op, err := decodeOp(journal.Record{LSN: lsn, Op: e.Op, Body: e.Body})
	if err != nil {
		return e, err
	}
	o := op.(*refOp)
	data, err := v.readReference(o.reference(lsn), o.ino, o.off, o.off+o.length)
	if err != nil {
		return e, err
	}
	w := &writeOp{ino: o.ino, off: o.off, length: o.length, time: o.time, killID: o.killID, staged: o.staged}
	return journal.Entry{Op: opWrite, Body: encodeOp(w), Data: data}, nil
}

const wholeFile = int64(math.MaxInt64)

// sleep waits for d, or less when ctx ends.
func (v *Volume) sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// SetCacheBytes changes the limit of the local cache, in bytes, and evicts down to
// it; what only the cache has stays until it is committed.
func (v *Volume) SetCacheBytes(n int64) error {
	if n <= 0 {
		return fmt.Errorf("%w: a cache of %d bytes", ErrInvalid, n)
	}
	v.cacheBytes.Store(n)
	v.cache.SetLimit(n)
	return nil
}
