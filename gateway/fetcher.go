package gateway

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"time"

	"github.com/cisternfs/cistern/internal/blockcodec"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// fetcher reads committed bytes from the store and verifies them. Safe for
// concurrent use; it holds no lock over a request.
type fetcher struct {
	store objstore.Store
	vol   *metadata.VolumeDoc // whose bytes are read
	slots chan struct{}       // bounds parallel requests
	loads *budget             // bounds bytes of buffers
	stat  *counters
	now   func() time.Time
	// follows: what is missing may have been collected since its commit, so that
	// only who has looked for a later one knows whether it is damage.
	follows bool
	codec   *blockcodec.Codec // of the volume; nil until its identity is known
}

// fetchBytes bounds the buffers of parallel fetches.
const fetchBytes = 64 << 20

func newFetcher(s objstore.Store, vol *metadata.VolumeDoc, parallel int, stat *counters, now func() time.Time) *fetcher {
	return &fetcher{store: s, vol: vol, slots: make(chan struct{}, parallel), loads: newBudget(fetchBytes), stat: stat, now: now}
}

// fetchRun returns n consecutive blocks of a slot.
func (f *fetcher) fetchRun(ctx context.Context, s *metadata.Slot, first uint32, n int) ([][]byte, error) {
	off := first * metadata.BlockSize
	end := min(s.End(), off+uint32(n)*metadata.BlockSize)
	out := make([][]byte, n)
	if end <= off {
		return out, nil
	}
	held, err := f.loads.take(ctx, int64(end-off))
	if err != nil {
		return nil, ErrInterrupted
	}
	defer f.loads.give(held)
	buf := make([]byte, end-off)
	if err := f.assemble(ctx, s, off, buf); err != nil {
		return nil, err
	}
	for i := range out {
		lo := min(len(buf), i*metadata.BlockSize)
		hi := min(len(buf), lo+metadata.BlockSize)
		out[i] = buf[lo:hi:hi]
	}
	return out, nil
}

// assemble fills buf with the committed bytes of a slot from off on: off and
// the end of buf lie on block boundaries or at the slot's end.
func (f *fetcher) assemble(ctx context.Context, s *metadata.Slot, off uint32, buf []byte) error {
	pieces := s.Resolve(off, uint32(len(buf)))
	if b := s.Base; b != nil {
		lo, hi := uint32(0), uint32(0)
		for _, p := range pieces {
			if p.Kind == metadata.PieceBase {
				if hi == 0 {
					lo = p.Off
				}
				hi = p.Off + p.Len
			}
		}
		if hi > 0 {
			if err := f.fetchBase(ctx, b, lo, hi, off, buf); err != nil {
				return err
			}
		}
	}
	var need []int
	for _, p := range pieces {
		switch p.Kind {
		case metadata.PieceZero:
			clear(buf[p.Off-off:][:p.Len])
		case metadata.PiecePatch:
			if k := len(need); k == 0 || need[k-1] != p.PatchIndex {
				need = append(need, p.PatchIndex)
			}
		}
	}
	extents, err := f.fetchExtents(ctx, s, need)
	if err != nil {
		return err
	}
	for _, p := range pieces {
		if p.Kind == metadata.PiecePatch {
			patch := s.Patches[p.PatchIndex]
			copy(buf[p.Off-off:][:p.Len], extents[p.PatchIndex][p.Off-patch.Off:])
		}
	}
	return nil
}

// fetchBase reads the whole blocks of a base that hold [lo, hi) of its slot,
// verifies them and puts them into buf, which starts at off.
func (f *fetcher) fetchBase(ctx context.Context, b *metadata.Base, lo, hi, off uint32, buf []byte) error {
	lo = lo / metadata.BlockSize * metadata.BlockSize
	hi = min(b.Len, (hi+metadata.BlockSize-1)/metadata.BlockSize*metadata.BlockSize)
	raw := buf
	if lo != off || hi-lo > uint32(len(buf)) {
		raw = make([]byte, hi-lo)
	} else {
		raw = buf[:hi-lo]
	}
	err := retryDamage(ctx, func() error {
		return f.readBlocks(ctx, b, lo, raw, func(_, _ uint32, err error) error {
			f.stat.damage.Add(1)
			return err
		})
	})
	if err != nil {
		return err
	}
	if len(raw) > 0 && &raw[0] != &buf[0] {
		from := max(lo, off)
		copy(buf[from-off:], raw[from-lo:])
	}
	return nil
}

// readBlocks reads the whole blocks of a base from off on into plain. It calls
// wrong for each block [at, at+n) of the slot that is not what was stored, and
// ends with the error that this returns, if any.
func (f *fetcher) readBlocks(ctx context.Context, b *metadata.Base, off uint32, plain []byte, wrong func(at, n uint32, err error) error) error {
	first := int(off / metadata.BlockSize)
	blocks := (len(plain) + metadata.BlockSize - 1) / metadata.BlockSize
	raw, from := plain, int64(off)
	if b.Stored != nil {
		var n int64
		from, n = b.StoredRange(first, first+blocks)
		raw = make([]byte, n)
	}
	if err := f.readStore(ctx, b.Ref, from, raw); err != nil {
		return err
	}
	for no := first; no < first+blocks; no++ {
		at := uint32(no) * metadata.BlockSize
		block := plain[at-off:]
		block = block[:min(len(block), metadata.BlockSize)]
		var err error
		if b.Stored != nil {
			err = f.openFrame(block, raw[:b.Stored[no]], b.Ref, b.Cipher, uint32(no), fmt.Sprintf("object %s, block %d", b.Key, no))
			raw = raw[b.Stored[no]:]
		}
		if err == nil && checksum(block) != b.Sums[no] {
			err = fmt.Errorf("%w: object %s, bytes %d to %d: checksum does not match", ErrDamaged, b.Key, at, int(at)+len(block))
		}
		if errors.Is(err, ErrKey) {
			return err
		}
		if err != nil {
			if err = wrong(at, uint32(len(block)), err); err != nil {
				return err
			}
		}
	}
	return nil
}

// openExtent returns a patch's plain bytes, given what its segment has from
// offset start on.
func (f *fetcher) openExtent(p *metadata.Patch, raw []byte, start uint32) ([]byte, error) {
	ext := raw[p.SegOff-start:][:p.StoredLen()]
	if p.Stored != 0 {
		plain := make([]byte, p.Len)
		if err := f.openFrame(plain, ext, p.Seg, p.Cipher, p.SegOff, fmt.Sprintf("segment %s, bytes %d to %d", p.Seg.Key, p.SegOff, p.SegOff+p.Stored)); err != nil {
			return nil, err
		}
		ext = plain
	}
	if checksum(ext) != p.Sum {
		return nil, fmt.Errorf("%w: segment %s, bytes %d to %d: checksum does not match", ErrDamaged, p.Seg.Key, p.SegOff, p.SegOff+p.StoredLen())
	}
	return ext, nil
}

// Extents of one segment that lie within this many bytes of each other are
// read in one request.
const (
	extentGap = 64 << 10
	extentRun = 4 << 20
)

// fetchExtents reads patches' extents, whole and verified, by patch index.
func (f *fetcher) fetchExtents(ctx context.Context, s *metadata.Slot, need []int) (map[int][]byte, error) {
	sort.Slice(need, func(i, j int) bool {
		a, b := s.Patches[need[i]], s.Patches[need[j]]
		if a.Seg != b.Seg {
			return a.Seg.Key < b.Seg.Key
		}
		return a.SegOff < b.SegOff
	})
	out := make(map[int][]byte, len(need))
	var mu sync.Mutex
	var runs [][]int
	for len(need) > 0 {
		n := 1
		first, last := s.Patches[need[0]], s.Patches[need[0]]
		for n < len(need) {
			p := s.Patches[need[n]]
			end := last.SegOff + last.StoredLen()
			if p.Seg != first.Seg || p.SegOff > end+extentGap || p.SegOff+p.StoredLen()-first.SegOff > extentRun {
				break
			}
			last = p
			n++
		}
		runs = append(runs, need[:n])
		need = need[n:]
	}
	err := f.inParallel(ctx, len(runs), func(ctx context.Context, i int) error {
		run := runs[i]
		first, last := s.Patches[run[0]], s.Patches[run[len(run)-1]]
		raw := make([]byte, last.SegOff+last.StoredLen()-first.SegOff)
		plain := make([][]byte, len(run))
		err := retryDamage(ctx, func() (err error) {
			if err := f.readStore(ctx, first.Seg, int64(first.SegOff), raw); err != nil {
				return err
			}
			for i, k := range run {
				if plain[i], err = f.openExtent(&s.Patches[k], raw, first.SegOff); err != nil {
					f.stat.damage.Add(1)
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		for i, k := range run {
			out[k] = plain[i]
		}
		return nil
	})
	return out, err
}

// inParallel runs n tasks, a few at a time, and returns the first error.
func (f *fetcher) inParallel(ctx context.Context, n int, task func(ctx context.Context, i int) error) error {
	if n == 1 {
		return task(ctx, 0)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	var mu sync.Mutex
	var first error
	next := 0
	for range min(n, cap(f.slots)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				mu.Lock()
				i := next
				next++
				stop := first != nil
				mu.Unlock()
				if i >= n || stop {
					return
				}
				if err := task(ctx, i); err != nil {
					mu.Lock()
					if first == nil {
						first = err
						cancel()
					}
					mu.Unlock()
				}
			}
		}()
	}
	wg.Wait()
	return first
}

// readStore reads a range of an object or segment, within the limit of
// parallel requests.
func (f *fetcher) readStore(ctx context.Context, ref metadata.Ref, off int64, p []byte) error {
	if ref.Volume != "" && ref.Volume != f.vol.ID {
		return fmt.Errorf("%w: object %s belongs to volume %s, which is not known here", ErrDamaged, ref.Key, ref.Volume)
	}
	select {
	case f.slots <- struct{}{}:
	case <-ctx.Done():
		return ErrInterrupted
	}
	err := objstore.ReadRange(ctx, f.store, ref.Key, off, p)
	<-f.slots
	switch {
	case err == nil:
		f.stat.fetched.Add(int64(len(p)))
		f.stat.fetches.Add(1)
		f.stat.down.worked(f.now())
		return nil
	case ctx.Err() != nil:
		return ErrInterrupted
	case errors.Is(err, objstore.ErrDamaged), errors.Is(err, objstore.ErrNotExist):
		if !f.follows || !errors.Is(err, objstore.ErrNotExist) {
			f.stat.damage.Add(1)
		}
		if gone := asGone(err); gone != nil {
			return gone
		}
		return fmt.Errorf("%w: %w", ErrDamaged, objstore.At("read", ref.Key, err))
	}
	f.stat.down.failed(err, f.now())
	return fmt.Errorf("%w: %w", ErrStore, objstore.At("read", ref.Key, err))
}
