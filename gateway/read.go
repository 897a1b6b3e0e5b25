package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// maxReadTries bounds how often a read starts over because what it was about
// to use was committed, folded or freed meanwhile.
const maxReadTries = 1000

// Read fills p with the file's bytes from off on and returns how many there
// are, which is fewer than len(p) only at the end of the file. Errors:
// ErrDamaged with what is damaged, ErrStore when the bytes are only in the
// store and it can't be reached, ErrInterrupted.
func (h *Handle) Read(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, ErrInvalid
	}
	// Before the read itself: what follows is on its way while this waits.
	if from, to, chunk := h.ahead.next(off, int64(len(p)), h.v.scanChunk()); from < to {
		readAhead(h.v.ahead, h.node.id, from, to, chunk)
	}
	return h.v.read(ctx, h.node, p, off, false)
}

// ReadStaged is Read over the bytes that are staged beyond the end, too.
func (h *Handle) ReadStaged(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, ErrInvalid
	}
	return h.v.read(ctx, h.node, p, off, true)
}

func (v *Volume) read(ctx context.Context, nd *node, p []byte, off int64, staged bool) (int, error) {
	f := v.cache.Get(uint64(nd.id))
	defer f.Release()
	r := reader{v: v, nd: nd, f: f, staged: staged}
	for try := 0; try < maxReadTries; try++ {
		n, done, err := r.attempt(ctx, p, off)
		if done || err != nil {
			return n, err
		}
		if len(r.missing) > 0 {
			v.askNear(r.missing[0].key)
		}
		own := demand{}
		if err := r.fetchMissing(ctx, own); err != nil {
			return 0, err
		}
		v.dense.ask(v.ahead, v.cache, f, v.objectSize, own)
	}
	return 0, fmt.Errorf("%w: inode %d changes faster than bytes at %d can be fetched", ErrStore, nd.id, off)
}

// reader is one read under way.
type reader struct {
	v       *Volume
	nd      *node
	f       *cache.File
	staged  bool
	missing []missing
	got     map[blockKey]fetched
	retried map[blockKey]*metadata.Slot // blocks of which something was missing, and in which state of the slot
	spans   []span
}

// missing is a block of a slot that must come from the store.
type missing struct {
	key  blockKey
	slot *metadata.Slot
}

// attempt serves the read from what is here. Without done it has noted in
// r.missing what must be fetched first.
func (r *reader) attempt(ctx context.Context, p []byte, off int64) (n int, done bool, err error) {
	v := r.v
	held, err := r.nd.lock.Lock(ctx, off, off+int64(len(p)), false)
	if err != nil {
		return 0, false, ErrInterrupted
	}
	defer held.Unlock()
	v.mu.RLock()
	inode, err := v.inode(r.nd.id)
	v.mu.RUnlock()
	if err != nil {
		return 0, false, err
	}
	size := inode.Size
	if r.staged {
		size = max(size, inode.Staged)
	}
	if off >= size {
		return 0, true, nil
	}
	p = p[:min(int64(len(p)), size-off)]
	if err := r.f.Verify(off, int64(len(p)), v.believable(r.nd.id)); err != nil {
		v.stat.cacheErrors.Add(1)
	}
	if ok, err := r.f.ReadAt(p, off); ok {
		return len(p), true, nil
	} else if err != nil {
		v.stat.cacheErrors.Add(1) // and the journal or the store has the bytes
	}
	v.mu.RLock()
	r.spans, err = v.resolve(r.nd.id, off, off+int64(len(p)), r.spans[:0])
	v.mu.RUnlock()
	if err != nil {
		return 0, false, err
	}
	r.missing = r.missing[:0]
	for _, s := range r.spans {
		if err := r.serve(p[s.off-off:s.end-off], s); err != nil {
			if errors.Is(err, journal.ErrFreed) {
				return 0, false, nil // committed meanwhile: resolve again
			}
			return 0, false, err
		}
	}
	return len(p), len(r.missing) == 0, nil
}

// serve fills p from where a span's bytes are, or notes what is missing.
func (r *reader) serve(p []byte, s span) error {
	switch s.piece.kind {
	case pieceZero:
		clear(p)
		return nil
	case pieceData:
		if ok, _ := r.f.ReadAt(p, s.off); ok {
			return nil
		}
		return r.v.readJournal(s.piece, p)
	case pieceRef:
		if ok, _ := r.f.ReadAt(p, s.off); ok {
			return nil
		}
		data, err := r.v.readReference(s.piece.ref, r.nd.id, s.off, s.end)
		if err == nil {
			copy(p, data)
		}
		return err
	}
	return r.serveSlot(p, s)
}

func (v *Volume) readJournal(p piece, buf []byte) error {
	err := v.journal.ReadData(p.loc, buf, p.off)
	if errors.Is(err, journal.ErrDamaged) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return err
}

// readReference returns bytes [off, end) of a reference, verified.
func (v *Volume) readReference(ref *reference, ino InodeID, off, end int64) ([]byte, error) {
	return v.appendReference(nil, ref, ino, off, end)
}

// appendReference appends bytes [off, end) of a reference to p, verified. When
// the cache file lost them, the journal may have them after a failed sync.
func (v *Volume) appendReference(p []byte, ref *reference, ino InodeID, off, end int64) ([]byte, error) {
	first, last := ref.piece(off), ref.piece(end-1)
	from, _ := ref.bounds(first)
	_, to := ref.bounds(last)
	had := len(p)
	p = slices.Grow(p, int(to-from))
	buf := p[had : had+int(to-from)]
	f := v.cache.Get(uint64(ino))
	defer f.Release()
	err := f.ReadPinned(buf, from)
	if err == nil {
		for b := first; b <= last; b++ {
			lo, hi := ref.bounds(b)
			if checksum(buf[lo-from:hi-from]) != ref.sums[b] {
				err = fmt.Errorf("%w: cache file of inode %d, bytes %d to %d: checksum of journal record %d does not match", ErrDamaged, ino, lo, hi, ref.lsn)
				break
			}
		}
	}
	if err == nil {
		if off > from {
			copy(buf, buf[off-from:])
		}
		return p[:had+int(end-off)], nil
	}
	loc, ok := v.journal.Expanded(ref.lsn)
	if !ok {
		return nil, err
	}
	buf = buf[:end-off]
	return p[:had+len(buf)], v.readJournal(piece{loc: loc, off: off - ref.off}, buf)
}

// serveSlot fills p from committed bytes: holes, cached or just fetched ones.
func (r *reader) serveSlot(p []byte, s span) error {
	if s.slot == nil {
		clear(p)
		return nil
	}
	start := int64(s.slotNo) * r.v.objectSize
	for _, piece := range s.slot.Resolve(uint32(s.off-start), uint32(s.len())) {
		at := start + int64(piece.Off)
		buf := p[at-s.off:][:piece.Len]
		if piece.Kind == metadata.PieceZero {
			clear(buf)
			continue
		}
		r.serveStored(buf, at, s)
	}
	return nil
}

// serveStored fills buf with stored bytes at a file offset, block by block.
func (r *reader) serveStored(buf []byte, at int64, s span) {
	start := int64(s.slotNo) * r.v.objectSize
	for len(buf) > 0 {
		in := uint32(at - start)
		key := blockKey{ino: r.nd.id, slot: s.slotNo, block: in / metadata.BlockSize}
		skip := in % metadata.BlockSize
		n := min(len(buf), int(metadata.BlockSize-skip))
		if got, ok := r.got[key]; ok && sameSource(got.slot, s.slot, in, uint32(n)) {
			copy(buf[:n], got.data[skip:])
		} else if ok, _ := r.f.ReadAt(buf[:n], at); !ok {
			if k := len(r.missing); k == 0 || r.missing[k-1].key != key {
				r.missing = append(r.missing, missing{key: key, slot: s.slot})
			}
		}
		buf, at = buf[n:], at+int64(n)
	}
}

// fetchMissing gets the missing blocks from the store, without any lock, puts them
// into the cache, and adds those that nobody else was fetching to own.
func (r *reader) fetchMissing(ctx context.Context, own demand) error {
	if len(r.missing) == 0 {
		return nil
	}
	if r.got == nil {
		r.got = map[blockKey]fetched{}
	}
	list := r.missing
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n].key.slot == list[0].key.slot && list[n].slot == list[0].slot {
			n++
		}
		blocks := make([]uint32, n)
		for i := range blocks {
			blocks[i] = list[i].key.block
		}
		got, err := r.v.getBlocks(ctx, r.nd.id, list[0].key.slot, list[0].slot, blocks, own)
		if err != nil {
			if err = r.again(list[:n], err); err != nil {
				return err
			}
		}
		for k, g := range got {
			r.got[k] = g
		}
		list = list[n:]
	}
	return nil
}

// again decides whether a failed fetch is worth another look at the mapping:
// when something is missing and was not missing before in the same state, since
// a fold may have replaced it and a collection deleted it.
func (r *reader) again(list []missing, err error) error {
	if errors.Is(err, errBlockRetry) {
		return nil
	}
	if !errors.Is(err, objstore.ErrNotExist) {
		return err
	}
	if r.retried == nil {
		r.retried = map[blockKey]*metadata.Slot{}
	}
	for _, m := range list {
		if last, ok := r.retried[m.key]; ok && last.Same(m.slot) {
			r.v.log.Error("stored bytes are missing", "inode", r.nd.id, "error", err)
			return err
		}
		r.retried[m.key] = m.slot
	}
	return nil
}

// believable gives the check that the cache applies to a block it found on
// disk: how many of its first bytes are the live ones.
func (v *Volume) believable(ino InodeID) func(block int64, data []byte) int64 {
	return func(block int64, data []byte) int64 {
		v.mu.RLock()
		defer v.mu.RUnlock()
		off := block * metadata.BlockSize
		for _, l := range [...]*layer{v.active, v.frozen} {
			if l != nil && l.files[ino] != nil && l.files[ino].Overlaps(off, off+metadata.BlockSize) {
				return 0
			}
		}
		return v.matching(ino, block, data)
	}
}

// matching says how many first bytes of a block match a checksum of the
// committed state. Caller holds v.mu.
func (v *Volume) matching(ino InodeID, block int64, data []byte) int64 {
	off := block * metadata.BlockSize
	n, err := v.index.Inode(ino)
	if err != nil {
		return 0
	}
	if sum, ok, err := v.index.LocalSum(ino, block); err != nil {
		return 0
	} else if ok {
		size := min(int64(len(data)), n.Size-off)
		if size > 0 && checksum(data[:size]) == sum {
			return size
		}
		return 0
	}
	if v.objectSize%metadata.BlockSize != 0 {
		return 0 // blocks of the cache and of objects don't line up
	}
	no := off / v.objectSize
	s, err := v.index.Slot(ino, uint32(no))
	if err != nil || s == nil || s.Base == nil {
		return 0
	}
	in := uint32(off - no*v.objectSize)
	if in >= s.Base.Len {
		return 0
	}
	size := min(uint32(len(data)), s.Base.Len-in)
	pieces := s.Resolve(in, size)
	if len(pieces) != 1 || pieces[0].Kind != metadata.PieceBase {
		return 0
	}
	if uint32(min(metadata.BlockSize, int64(s.Base.Len-in))) != size || checksum(data[:size]) != s.Base.Sums[in/metadata.BlockSize] {
		return 0
	}
	return int64(size)
}
