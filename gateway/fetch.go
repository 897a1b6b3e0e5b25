package gateway

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/metadata"
)

// blockKey names a block of a slot: block counts BlockSize pieces from the
// slot's start.
type blockKey struct {
	ino   InodeID
	slot  uint32
	block uint32
}

// fetched is a block as a certain state of its slot has it. Immutable.
type fetched struct {
	slot *metadata.Slot
	data []byte // from the block's start on; short in a slot's last block
}

// errBlockRetry: who fetched the block for us gave up; try again.
var errBlockRetry = errors.New("fetch of a block was abandoned")

// blockTable makes parallel fetches of one block share one request.
type blockTable struct {
	mu sync.Mutex
	m  map[blockKey]*blockCall
}

type blockCall struct {
	done chan struct{}
	got  fetched // valid after done
	err  error
}

// claim returns the calls for blocks that somebody fetches already, and those
// that the caller now must fetch and finish.
func (t *blockTable) claim(ino InodeID, slot uint32, blocks []uint32) (theirs, mine map[uint32]*blockCall) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.m == nil {
		t.m = map[blockKey]*blockCall{}
	}
	theirs, mine = map[uint32]*blockCall{}, map[uint32]*blockCall{}
	for _, b := range blocks {
		k := blockKey{ino, slot, b}
		if c := t.m[k]; c != nil {
			theirs[b] = c
			continue
		}
		c := &blockCall{done: make(chan struct{})}
		t.m[k] = c
		mine[b] = c
	}
	return theirs, mine
}

func (t *blockTable) finish(k blockKey, c *blockCall, got fetched, err error) {
	t.mu.Lock()
	delete(t.m, k)
	t.mu.Unlock()
	c.got, c.err = got, err
	close(c.done)
}

// getBlocks returns blocks of a slot from the store, verified and with their
// patches applied, and puts them into the cache. What nobody else was fetching it
// adds to own; with nil the blocks are wanted in the cache only, and come back
// without their data. No lock is held.
func (v *Volume) getBlocks(ctx context.Context, ino InodeID, slotNo uint32, s *metadata.Slot, blocks []uint32, own demand) (map[blockKey]fetched, error) {
	keep := func(k blockKey, got fetched) {
		v.hydrate(ctx, k, got)
		own.add(k, got)
	}
	return v.blocks.get(ctx, v.fetcher, ino, slotNo, s, blocks, keep, own != nil)
}

// get fetches blocks of a slot: those that nobody else is fetching, which it
// gives to keep, and it waits for the rest. Unless they are wanted, they come back
// without data, which is a lot where much is read ahead. errBlockRetry: who was
// fetching one of these gave up.
func (t *blockTable) get(ctx context.Context, f *fetcher, ino InodeID, slotNo uint32, s *metadata.Slot, blocks []uint32, keep func(blockKey, fetched), wanted bool) (map[blockKey]fetched, error) {
	theirs, mine := t.claim(ino, slotNo, blocks)
	out := make(map[blockKey]fetched, len(blocks))
	put := func(k blockKey, got fetched) {
		if !wanted {
			got.data = nil
		}
		out[k] = got
	}
	var first error
	list := slices.Sorted(maps.Keys(mine))
	for len(list) > 0 {
		n := 1
		for n < len(list) && list[n] == list[0]+uint32(n) {
			n++
		}
		data, release, err := f.fetchRun(ctx, s, list[0], n, !wanted)
		for i, b := range list[:n] {
			k := blockKey{ino, slotNo, b}
			var got fetched
			if err == nil {
				got = fetched{slot: s, data: data[i]}
				put(k, got)
				keep(k, got)
			}
			t.finish(k, mine[b], got, err)
		}
		if err == nil {
			release()
		} else if first == nil {
			first = err
		}
		list = list[n:]
	}
	for b, c := range theirs {
		select {
		case <-c.done:
		case <-ctx.Done():
			return out, ErrInterrupted
		}
		switch {
		case c.err == nil:
			put(blockKey{ino, slotNo, b}, c.got)
		case first == nil && (errors.Is(c.err, context.Canceled) || errors.Is(c.err, ErrInterrupted)):
			first = errBlockRetry
		case first == nil:
			first = c.err
		}
	}
	return out, first
}

// errReferenced: the cache file's bytes belong to the journal until its commit.
var errReferenced = errors.New("range is under a reference")

// hydrate puts a fetched block into the cache: only bytes that are still
// absent and still come from the same place. Failing is no error: the next
// reader fetches again.
func (v *Volume) hydrate(ctx context.Context, k blockKey, got fetched) {
	if len(got.data) == 0 {
		return
	}
	start := int64(k.slot)*v.objectSize + int64(k.block)*metadata.BlockSize
	end := start + int64(len(got.data))
	nd := v.nodes.use(k.ino)
	defer v.nodes.done(nd)
	held, err := nd.lock.Lock(ctx, start, end, true)
	if err != nil {
		return
	}
	defer held.Unlock()
	f := v.cache.Get(uint64(k.ino))
	defer f.Release()
	if err := f.Verify(start, end-start, v.believable(k.ino)); err != nil {
		return
	}
	v.mu.RLock()
	var spans []span
	if _, err = v.inode(k.ino); err == nil {
		spans, err = v.resolve(k.ino, start, end, nil)
	}
	// What a journaled reference points at stays as it is, whatever lies over it.
	if m := v.refs[k.ino]; m != nil && m.Overlaps(start, end) {
		err = errReferenced
	}
	v.mu.RUnlock()
	if err != nil {
		return
	}
	var only []cache.Range
	for _, s := range spans {
		if s.piece.kind != pieceSlot || s.slot == nil {
			continue
		}
		in := uint32(s.off - int64(k.slot)*v.objectSize)
		for _, p := range s.slot.Resolve(in, uint32(s.len())) {
			at := int64(k.slot)*v.objectSize + int64(p.Off)
			if p.Kind != metadata.PieceZero && sameSource(got.slot, s.slot, p.Off, p.Len) {
				only = append(only, cache.Range{Off: at, End: at + int64(p.Len)})
			}
		}
	}
	only = absentOf(f, only)
	if len(only) == 0 {
		return
	}
	if ok, err := f.WriteAbsent(got.data, start, only); !ok && err != nil {
		v.stat.cacheErrors.Add(1)
	}
}

// absentOf cuts ranges down to what the cache does not have.
func absentOf(f *cache.File, ranges []cache.Range) []cache.Range {
	var out []cache.Range
	for _, r := range ranges {
		at := r.Off
		f.Present(r.Off, r.End-r.Off, func(off, n int64) bool {
			if at < off {
				out = append(out, cache.Range{Off: at, End: off})
			}
			at = off + n
			return true
		})
		if at < r.End {
			out = append(out, cache.Range{Off: at, End: r.End})
		}
	}
	return out
}

// readAheadTask is a range that a sequential reader will want.
type readAheadTask struct {
	ino      InodeID
	off, end int64
	dense    *densePart // that was asked for; nil: none
	near     bool       // a first block that was asked for
}

const (
	readAheadQueue   = 64      // tasks that wait; more are dropped
	readAheadWorkers = 16      // in parallel
	readAheadChunk   = 1 << 20 // bytes of one task at first
	readAheadLargest = 8 << 20 // bytes of one task of a long scan at most
)

// scanChunk is the bytes of one task of a long scan: a slot where that is not too
// much. A store bills requests, not bytes, and serves whole objects with less work.
func (v *Volume) scanChunk() int64 {
	return max(min(v.objectSize, readAheadLargest), readAheadChunk)
}

// lookahead tells what a sequential reader of one open file will want. Safe for
// concurrent use; the zero value is ready.
type lookahead struct {
	pattern cache.Pattern

	mu    sync.Mutex // guards the fields below
	asked int64      // end of what was told already
	whole bool       // a first read at the beginning wants more than it asks for
}

// expectScan makes a first read at the file's beginning ask for a scan's first
// piece at once.
func (l *lookahead) expectScan() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.whole = true
}

// begins says whether a read is the first one and begins a scan.
func (l *lookahead) begins(off int64) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	whole := l.whole && off == 0
	l.whole = false
	return whole
}

// next notes a read and returns the range that is wanted next and was not told
// yet, and the size of the pieces in which it is to be fetched: scan once enough
// of them fit into what is read ahead. The range ends between two pieces, so that
// most reads find it empty.
func (l *lookahead) next(off, n, scan int64) (from, to, chunk int64) {
	window := l.pattern.Observe(off, n)
	if l.begins(off) {
		// From the next block on: the read itself must not wait for the rest.
		from = (n + metadata.BlockSize - 1) / metadata.BlockSize * metadata.BlockSize
		return from, max(from, scan), scan
	}
	if window == 0 {
		return 0, 0, 0
	}
	chunk = readAheadChunk
	if window >= 4*scan {
		chunk = scan
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	from, to = off+n, off+n+window
	if from < l.asked && l.asked <= to+window {
		from = l.asked
	}
	if to = to / chunk * chunk; to <= from {
		return 0, 0, 0
	}
	l.asked = to
	return from, to, chunk
}

// readAhead asks for a range to be put into the cache, in pieces that begin at
// multiples of chunk. It never waits.
func readAhead(queue chan<- readAheadTask, ino InodeID, off, end, chunk int64) {
	for off < end {
		e := min(end, off/chunk*chunk+chunk)
		select {
		case queue <- readAheadTask{ino: ino, off: off, end: e}:
		default:
			return
		}
		off = e
	}
}

// runReadAhead is one worker of read-ahead.
func (v *Volume) runReadAhead() {
	defer v.group.Done()
	for {
		select {
		case t := <-v.ahead:
			v.prefetch(v.ctx, t)
			v.dense.done(t)
			v.near.done(t)
		case <-v.quit:
			return
		}
	}
}

// verifyAhead finds out what of a range the cache really has, as a read does: after
// a restart nothing of it is believed, and all would be fetched anew.
func (v *Volume) verifyAhead(ctx context.Context, f *cache.File, t readAheadTask) error {
	nd := v.nodes.use(t.ino)
	defer v.nodes.done(nd)
	for off := t.off; off < t.end; off += readAheadChunk {
		end := min(off+readAheadChunk, t.end)
		held, err := nd.lock.Lock(ctx, off, end, false)
		if err != nil {
			return err
		}
		err = f.Verify(off, end-off, v.believable(t.ino))
		held.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// prefetch fetches what of a range is committed and neither present nor dirty.
func (v *Volume) prefetch(ctx context.Context, t readAheadTask) {
	f := v.cache.Get(uint64(t.ino))
	defer f.Release()
	if err := v.verifyAhead(ctx, f, t); err != nil {
		return
	}
	v.mu.RLock()
	n, err := v.inode(t.ino)
	var spans []span
	if err == nil && t.off < n.Size {
		spans, err = v.resolve(t.ino, t.off, min(t.end, n.Size), nil)
	}
	v.mu.RUnlock()
	if err != nil {
		return
	}
	for _, s := range spans {
		if s.piece.kind != pieceSlot || s.slot == nil {
			continue
		}
		start := int64(s.slotNo) * v.objectSize
		var blocks []uint32
		for _, r := range absentOf(f, []cache.Range{{Off: s.off, End: min(s.end, start+int64(s.slot.End()))}}) {
			for b := (r.Off - start) / metadata.BlockSize; b <= (r.End-1-start)/metadata.BlockSize; b++ {
				if k := len(blocks); k == 0 || blocks[k-1] != uint32(b) {
					blocks = append(blocks, uint32(b))
				}
			}
		}
		if len(blocks) == 0 {
			continue
		}
		if _, err := v.getBlocks(ctx, t.ino, s.slotNo, s.slot, t.dense.whole(blocks), nil); err != nil {
			return // the reader itself will meet the error
		}
	}
}
