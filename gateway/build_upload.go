package gateway

import (
	"sort"

	"github.com/cisternfs/cistern/metadata"
)

// segment is one being filled.
type segment struct {
	key    string
	frames frames
	buf    []byte
	held   int64
}

// segment returns the segment that the next extent of n bytes goes to.
func (b *builder) segment(n int) (*segment, error) {
	if b.seg != nil && len(b.seg.buf)+n > segmentTarget {
		b.flush()
	}
	if b.seg == nil {
		held, err := b.v.uploads.take(b.ctx, segmentTarget)
		if err != nil {
			return nil, ErrInterrupted
		}
		random, err := b.v.randomHex(6)
		if err != nil {
			b.v.uploads.give(held)
			return nil, err
		}
		key := metadata.SegmentKey(b.c.Epoch, b.c.FirstLSN, b.c.LastLSN, random)
		f, err := b.v.newFrames(key)
		if err != nil {
			b.v.uploads.give(held)
			return nil, err
		}
		b.seg = &segment{key: key, frames: f, held: held, buf: make([]byte, 0, min(segmentTarget, max(int(b.l.data-b.packed), n)))}
		b.newSegs[key] = -1
	}
	b.packed += int64(n)
	return b.seg, nil
}

// flush uploads the current segment.
func (b *builder) flush() {
	s := b.seg
	b.seg = nil
	if s == nil {
		return
	}
	b.newSegs[s.key] = len(b.c.Segments)
	b.c.Segments = append(b.c.Segments, metadata.Segment{Key: s.key, Size: int64(len(s.buf)), Live: int64(len(s.buf)), Birth: b.c.N, Sum: checksum(s.buf)})
	b.upload(s.key, s.buf, s.held)
}

// upload stores a body in the background; the budget that it holds bounds how
// many there are.
func (b *builder) upload(key string, body []byte, held int64) {
	b.group.Add(1)
	go func() {
		defer b.group.Done()
		defer b.v.uploads.give(held)
		err := b.v.persist(b.ctx, key, body)
		if err != nil {
			b.mu.Lock()
			if b.err == nil {
				b.err = err
				b.stop()
			}
			b.mu.Unlock()
		}
	}()
}

// sortedKeys gives a map's keys in order, so that a commit's bytes depend on
// the state alone.
func sortedKeys[K interface{ ~uint64 | ~string }, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, j int) bool { return keys[i] < keys[j] })
	return keys
}
