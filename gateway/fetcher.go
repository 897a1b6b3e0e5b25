package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cisternfs/cistern/internal/blockcodec"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// fetcher reads committed bytes from the store and verifies them. Safe for
// concurrent use; it holds no lock over a request.
type fetcher struct {
	store   objstore.Store
	vol     *metadata.VolumeDoc // whose bytes are read
	slots   chan struct{}       // bounds parallel requests
	loads   *budget             // bounds bytes of buffers
	unasked *budget             // bounds those of loads that no reader waits for
	stat    *counters
	now     func() time.Time
	// follows: what is missing may have been collected since its commit, so that
	// only who has looked for a later one knows whether it is damage.
	follows bool
	codec   *blockcodec.Codec // of the volume; nil until its identity is known
}

// fetchBytes bounds the buffers of parallel fetches, and unaskedBytes those of them
// that no reader waits for: however slowly the store answers what is fetched ahead,
// folded or checked, there is room for who reads.
const (
	fetchBytes   = 64 << 20
	unaskedBytes = fetchBytes / 8 * 7
)

func newFetcher(s objstore.Store, vol *metadata.VolumeDoc, parallel int, stat *counters, now func() time.Time) *fetcher {
	return &fetcher{store: s, vol: vol, slots: make(chan struct{}, parallel), loads: newBudget(fetchBytes), unasked: newBudget(unaskedBytes), stat: stat, now: now}
}

// takeMemory takes n bytes for a fetch, and returns what gives them back. unasked:
// no reader waits for it.
func (f *fetcher) takeMemory(ctx context.Context, n int64, unasked bool) (give func(), err error) {
	if !unasked {
		held, err := f.loads.take(ctx, n)
		if err != nil {
			return nil, ErrInterrupted
		}
		return func() { f.loads.give(held) }, nil
	}
	held, err := f.unasked.take(ctx, n)
	if err != nil {
		return nil, ErrInterrupted
	}
	whole, err := f.takeMemory(ctx, held, false)
	if err != nil {
		f.unasked.give(held)
		return nil, err
	}
	return func() { whole(); f.unasked.give(held) }, nil
}

// fetchRun returns n consecutive blocks of a slot; unasked: no reader waits for them.
// Their memory counts until release is called, which it has to be unless there is an
// error.
func (f *fetcher) fetchRun(ctx context.Context, s *metadata.Slot, first uint32, n int, unasked bool) (blocks [][]byte, release func(), err error) {
	off := first * metadata.BlockSize
	end := min(s.End(), off+uint32(n)*metadata.BlockSize)
	out := make([][]byte, n)
	if end <= off {
		return out, func() {}, nil
	}
	a := newAssembly(s, off, end-off)
	if release, err = f.takeMemory(ctx, a.memory(), unasked); err != nil {
		return nil, nil, err
	}
	buf := make([]byte, end-off)
	if err := f.fill(ctx, a, buf); err != nil {
		release()
		return nil, nil, err
	}
	for i := range out {
		lo := min(len(buf), i*metadata.BlockSize)
		hi := min(len(buf), lo+metadata.BlockSize)
		out[i] = buf[lo:hi:hi]
	}
	return out, release, nil
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
