package gateway

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(p []byte) uint32 { return crc32.Checksum(p, castagnoli) }

// maxWrite bounds one record's data in bytes; longer writes are several operations.
const maxWrite = 1 << 20

// maxSize is the largest file that the volume's slots can number.
func (v *Volume) maxSize() int64 { return min(MaxFileSize, v.objectSize*(1<<32-2)) }

// Handle is an open regular file. It keeps an inode without names alive.
type Handle struct {
	v    *Volume
	node *node

	ahead lookahead

	mu     sync.Mutex // guards the field below
	closed bool
}

// Open opens a regular file.
func (v *Volume) Open(ctx context.Context, ino InodeID) (*Handle, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	n, err := v.inode(ino)
	if err != nil {
		return nil, err
	}
	switch n.Mode & modeType {
	case modeRegular:
	case modeDir:
		return nil, ErrIsDir
	default:
		return nil, ErrInvalid
	}
	return &Handle{v: v, node: v.nodes.retain(ino, 1)}, nil
}

// ExpectScan says that the file was opened for reading alone. Who does that and
// begins at the beginning, as a copy, a backup or a column store's scan does, gets
// the first slot (of a large one 8 MiB) with the first read: one request of the
// store instead of several, at the price of bytes that a mere look at a header does
// not need.
func (h *Handle) ExpectScan() { h.ahead.expectScan() }

// Inode returns the file's number.
func (h *Handle) Inode() InodeID { return h.node.id }

// Close gives the handle back; closing twice is harmless.
func (h *Handle) Close() error {
	h.mu.Lock()
	closed := h.closed
	h.closed = true
	h.mu.Unlock()
	if !closed {
		h.v.Forget(h.node.id, 1)
	}
	return nil
}

// Write stores p at off; when it returns, the bytes are with the kernel and
// survive the end of this process. It returns how many bytes were stored,
// which are fewer than len(p) only with an error. Errors: ErrNoSpace,
// ErrQuota, ErrTooBig, ErrReadOnly, ErrFenced, ErrInterrupted.
func (h *Handle) Write(ctx context.Context, p []byte, off int64, flags WriteFlags) (int, error) {
	if off < 0 {
		return 0, ErrInvalid
	}
	if off > h.v.maxSize()-int64(len(p)) {
		return 0, ErrTooBig
	}
	done := 0
	for done < len(p) {
		n := min(len(p)-done, maxWrite)
		if err := h.v.write(ctx, h.node, p[done:done+n], off+int64(done), flags.KillSetID, false); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// Stage stores bytes at or beyond the end of the file without moving it:
// readers don't see them until Publish does. Any other change of the size
// drops them.
func (h *Handle) Stage(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 || off > h.v.maxSize()-int64(len(p)) {
		return 0, ErrInvalid
	}
	done := 0
	for done < len(p) {
		n := min(len(p)-done, maxWrite)
		if err := h.v.write(ctx, h.node, p[done:done+n], off+int64(done), false, true); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

// Publish makes staged bytes up to size visible in one step and drops those
// beyond; with the file's own size it drops them all.
func (h *Handle) Publish(ctx context.Context, size int64) error {
	v := h.v
	res, err := v.reserve(ctx, 0)
	if err != nil {
		return err
	}
	defer res.Release()
	held, err := h.node.lock.Lock(ctx, 0, wholeFile, true)
	if err != nil {
		return ErrInterrupted
	}
	defer held.Unlock()
	if _, err := v.do(res.Reservation, &publishOp{ino: h.node.id, size: size, time: v.clock()}, nil); err != nil {
		return err
	}
	return v.dropCached(h.node.id, size, wholeFile)
}

func (v *Volume) write(ctx context.Context, nd *node, p []byte, off int64, killID, staged bool) error {
	res, err := v.reserve(ctx, len(p))
	if err != nil {
		return err
	}
	defer res.Release()
	f := v.cache.Get(uint64(nd.id))
	defer f.Release()
	w := &write{v: v, nd: nd, f: f, res: res.Reservation, p: p, off: off, end: off + int64(len(p)), killID: killID, staged: staged}
	err = w.locked(ctx, off, w.end)
	if errors.Is(err, errWholeLock) {
		w.whole = true
		err = w.locked(ctx, 0, wholeFile)
	}
	return err
}

// write is one write under way.
type write struct {
	v        *Volume
	nd       *node
	f        *cache.File
	res      *journal.Reservation
	p        []byte
	off, end int64
	killID   bool
	staged   bool
	whole    bool // the whole file is locked
}

// locked does the write under a lock of the given range.
func (w *write) locked(ctx context.Context, off, end int64) error {
	held, err := w.nd.lock.Lock(ctx, off, end, true)
	if err != nil {
		return ErrInterrupted
	}
	defer held.Unlock()
	if err := w.f.Verify(w.off, w.end-w.off, w.v.believable(w.nd.id)); err != nil {
		w.v.stat.cacheErrors.Add(1)
	}
	size, err := w.droppable()
	if err != nil {
		return err
	}
	if w.large() {
		done, err := w.reference(size)
		if done || err != nil {
			return err
		}
	}
	return w.data(size)
}

// smallReference is how many staged bytes are referred to, at least, in a file that has
// to be synced anyway. Below, a reference's record and its place in memory cost more
// than writing the bytes twice.
const smallReference = 16 << 10

// large says whether the bytes are better referred to than journaled.
func (w *write) large() bool {
	least := w.v.opt.ReferenceBytes
	if w.staged && least > smallReference && w.v.unsynced.has(w.nd.id) {
		least = smallReference
	}
	return len(w.p) >= least
}

// sums are the checksums of a reference to the bytes.
func (w *write) sums() []uint32 {
	in := w.off % metadata.BlockSize
	if !w.staged || in == 0 {
		return blockSums(w.p)
	}
	n := min(int64(len(w.p)), metadata.BlockSize-in)
	return append([]uint32{checksum(w.p[:n])}, blockSums(w.p[n:])...)
}

// droppable returns from where on the write drops what is staged; wholeFile
// when it drops nothing.
func (w *write) droppable() (int64, error) {
	if !w.whole {
		return wholeFile, nil
	}
	w.v.mu.RLock()
	defer w.v.mu.RUnlock()
	n, err := w.v.inode(w.nd.id)
	if err != nil {
		return 0, err
	}
	if n.Staged > 0 && w.end > n.Size {
		return n.Size, nil
	}
	return wholeFile, nil
}

// dropStaged makes the cache forget staged bytes that the write dropped.
func (w *write) dropStaged(size int64) error {
	if size == wholeFile {
		return nil
	}
	if size < w.off {
		if err := w.v.dropRange(w.f, w.nd.id, size, w.off); err != nil {
			return err
		}
	}
	return w.v.dropRange(w.f, w.nd.id, w.end, wholeFile)
}

// data journals the bytes, then puts them into the cache if it has room.
func (w *write) data(stagedFrom int64) error {
	v := w.v
	op := &writeOp{ino: w.nd.id, off: w.off, length: int64(len(w.p)), time: v.clock(), killID: w.killID, staged: w.staged, whole: w.whole}
	v.mu.Lock()
	lsn, err := v.enqueue(w.res, op, w.p)
	m := v.refs[w.nd.id]
	overRef := m != nil && m.Overlaps(w.off, w.end)
	v.mu.Unlock()
	if err == nil {
		err = v.handOver(lsn)
	}
	if err != nil {
		return err
	}
	v.stat.written.Add(int64(len(w.p)))
	v.maySync()
	if err := w.dropStaged(stagedFrom); err != nil {
		return err
	}
	if overRef {
		// The journal refers to what the cache file has here: it stays, and the
		// new bytes are read from the journal.
		return v.dropRange(w.f, w.nd.id, w.off, w.end)
	}
	if ok, err := w.f.WriteAt(w.p, w.off); !ok && err != nil {
		v.stat.cacheErrors.Add(1)
	}
	return nil
}

// reference puts the bytes into the cache file and journals a reference. It
// answers false when the bytes must go into the journal instead.
func (w *write) reference(stagedFrom int64) (bool, error) {
	v := w.v
	if !v.referable(w.nd.id, w.off, w.end) {
		return false, nil
	}
	if ok, _ := w.f.WritePinned(w.p, w.off); !ok {
		return false, nil
	}
	v.unsynced.add(w.nd.id)
	op := &refOp{ino: w.nd.id, off: w.off, length: int64(len(w.p)), time: v.clock(), killID: w.killID, sums: w.sums(), staged: w.staged, whole: w.whole}
	v.mu.Lock()
	lsn, err := v.enqueue(w.res, op, nil)
	v.mu.Unlock()
	if err != nil {
		w.f.Unpin(w.off, int64(len(w.p)))
		if derr := v.dropRange(w.f, w.nd.id, w.off, w.end); derr != nil {
			return true, fmt.Errorf("%w (and the cache: %w)", err, derr)
		}
		return true, err
	}
	// From here on the layer refers to the bytes: they stay pinned whatever comes.
	if err := v.handOver(lsn); err != nil {
		return true, err
	}
	v.stat.written.Add(int64(len(w.p)))
	v.sinceSync.Add(int64(len(w.p)) / 4)
	v.maySync()
	return true, w.dropStaged(stagedFrom)
}

// referable says whether no live record refers to any byte of the range and
// references may take more of the cache.
func (v *Volume) referable(ino InodeID, off, end int64) bool {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if v.refBytes+end-off > v.cacheBytes.Load()/2 {
		return false
	}
	if m := v.refs[ino]; m != nil && m.Overlaps(off, end) {
		return false
	}
	for _, l := range [...]*layer{v.active, v.frozen} {
		if l == nil || l.files[ino] == nil {
			continue
		}
		clean := true
		l.files[ino].Visit(off, end, func(_, _ int64, p piece) bool {
			clean = p.kind == pieceZero
			return clean
		})
		if !clean {
			return false
		}
	}
	return true
}

// maySync asks for a sync of the journal when much is waiting for one.
func (v *Volume) maySync() {
	if v.sinceSync.Load() >= syncSoon {
		select {
		case v.commit.syncSoon <- struct{}{}:
		default:
		}
	}
}

// dropCached makes the cache forget a range, whose bytes are not live any more.
// The caller holds the range lock.
func (v *Volume) dropCached(ino InodeID, off, end int64) error {
	f := v.cache.Get(uint64(ino))
	defer f.Release()
	return v.dropRange(f, ino, off, end)
}

func (v *Volume) dropRange(f *cache.File, ino InodeID, off, end int64) error {
	if err := f.Drop(off, end); err != nil {
		return fmt.Errorf("cache file of inode %d: %w", ino, err)
	}
	return nil
}

// SetAttr changes attributes and returns the new ones.
func (v *Volume) SetAttr(ctx context.Context, ino InodeID, set SetAttr) (*Inode, error) {
	res, err := v.reserve(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer res.Release()
	op := &setAttrOp{ino: ino, set: set}
	if set.Size == nil {
		v.mu.Lock()
		defer v.mu.Unlock()
		op.time = v.clock()
		if _, err := v.doLocked(res.Reservation, op, nil); err != nil {
			return nil, err
		}
		return v.inode(ino)
	}
	return v.truncate(ctx, res, op)
}

func (v *Volume) truncate(ctx context.Context, res *admission, op *setAttrOp) (*Inode, error) {
	size := *op.set.Size
	if size < 0 {
		return nil, ErrInvalid
	}
	nd := v.nodes.use(op.ino)
	defer v.nodes.done(nd)
	held, err := nd.lock.Lock(ctx, 0, wholeFile, true)
	if err != nil {
		return nil, ErrInterrupted
	}
	defer held.Unlock()
	v.mu.Lock()
	op.time = v.clock()
	old, err := v.inode(op.ino)
	if err == nil {
		_, err = v.doLocked(res.Reservation, op, nil)
	}
	var now *Inode
	if err == nil {
		now, err = v.inode(op.ino)
	}
	v.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if old.Mode&modeType == modeRegular && (size < old.Size || old.Staged > 0) {
		if err := v.dropCached(op.ino, min(size, old.Size), wholeFile); err != nil {
			return nil, err
		}
	}
	return now, nil
}

// Fallocate allocates (mode 0 or FallocKeepSize), makes a hole
// (FallocPunchHole with FallocKeepSize) or zeros a range (FallocZeroRange).
// Allocating reserves nothing in the bucket: it moves the end of the file.
func (h *Handle) Fallocate(ctx context.Context, mode uint32, off, length int64) error {
	if off < 0 || length <= 0 {
		return ErrInvalid
	}
	if off > h.v.maxSize()-length {
		return ErrTooBig
	}
	end := off + length
	op := &zeroOp{ino: h.node.id, off: end, end: end}
	switch mode &^ FallocKeepSize {
	case 0, FallocUnshare:
	case FallocPunchHole:
		if mode&FallocKeepSize == 0 {
			return ErrNotSupport
		}
		op.off = off
	case FallocZeroRange:
		op.off = off
	default:
		return ErrNotSupport
	}
	if mode&FallocKeepSize == 0 {
		op.size = end
	}
	return h.v.zero(ctx, h.node, op)
}

func (v *Volume) zero(ctx context.Context, nd *node, op *zeroOp) error {
	res, err := v.reserve(ctx, 0)
	if err != nil {
		return err
	}
	defer res.Release()
	held, err := nd.lock.Lock(ctx, 0, wholeFile, true)
	if err != nil {
		return ErrInterrupted
	}
	defer held.Unlock()
	v.mu.Lock()
	old, err := v.inode(op.ino)
	if err == nil {
		// Beyond the end there is nothing to zero but what is staged there.
		op.end = max(op.off, min(op.end, max(old.Size, op.size)))
		op.time = v.clock()
		if grow := op.size - old.Size; grow > 0 {
			err = v.checkQuota(grow)
		}
	}
	if err == nil {
		_, err = v.doLocked(res.Reservation, op, nil)
	}
	v.mu.Unlock()
	if err != nil {
		return err
	}
	if old.Staged > 0 && op.size > old.Size {
		if err := v.dropCached(op.ino, old.Size, wholeFile); err != nil {
			return err
		}
	}
	if op.off < op.end {
		return v.dropCached(op.ino, op.off, op.end)
	}
	return nil
}
