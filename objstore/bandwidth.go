package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// BandwidthOptions bound the bytes of bodies that are moved in a second, each
// way; 0 means no bound.
type BandwidthOptions struct {
	Upload, Download int64 // bytes per second
}

// bandwidthBurst is the part of a second whose bytes may move at once after a
// pause, and how finely requests share the rest.
const bandwidthBurst = time.Second / 10

// WithBandwidth returns a store that moves at most so many bytes of bodies in a
// second, over all requests. A Put waits for its whole body's share before it
// begins, because providers read bodies more than once and servers give up on
// bodies that trickle; a Get's body is handed on as its shares come. Both wait
// within the context, and a wait that would outlast its deadline ends at once.
//
// The time that a body takes grows with it: see TimeoutFor.
func WithBandwidth(s Store, o BandwidthOptions) Store {
	if o.Upload <= 0 && o.Download <= 0 {
		return s
	}
	return NewBandwidth(o).Wrap(s)
}

// Bandwidth is a limit that can be changed while it is used.
type Bandwidth struct {
	up, down atomic.Pointer[bucket] // nil: no bound
}

// NewBandwidth returns a limit.
func NewBandwidth(o BandwidthOptions) *Bandwidth {
	b := &Bandwidth{}
	b.Set(o)
	return b
}

// Wrap is WithBandwidth with this limit.
func (b *Bandwidth) Wrap(s Store) Store { return &throttle{Store: s, b: b} }

// Set changes the limit. A request that waits for its share has the old one until
// its next piece.
func (b *Bandwidth) Set(o BandwidthOptions) {
	b.up.Store(newBucket(o.Upload))
	b.down.Store(newBucket(o.Download))
}

// TimeoutFor returns the options of a WithTimeout below, with which no body is
// given up only because as many downloads as given share the bandwidth.
func (o BandwidthOptions) TimeoutFor(downloads int) TimeoutOptions {
	t := TimeoutOptions{}
	if o.Download > 0 {
		t.BytesPerSecond = min(defaultBytesPerSecond, max(o.Download/int64(2*max(downloads, 1)), 1))
	}
	return t
}

// bucket is a token bucket; nil holds nobody up.
type bucket struct {
	l     *rate.Limiter
	chunk int // bytes taken at a time
}

func newBucket(bytesPerSecond int64) *bucket {
	if bytesPerSecond <= 0 {
		return nil
	}
	chunk := max(1, int(bytesPerSecond/int64(time.Second/bandwidthBurst)))
	return &bucket{l: rate.NewLimiter(rate.Limit(bytesPerSecond), chunk), chunk: chunk}
}

// wait takes n bytes' tokens, a chunk at a time, so that those who wait at the
// same time share what there is.
func (b *bucket) wait(ctx context.Context, n int64) error {
	for n > 0 {
		take := min(n, int64(b.chunk))
		if err := b.l.WaitN(ctx, int(take)); err != nil {
			if ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
				// The limiter tells in its own words that the deadline comes first.
				err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err)
			}
			return fmt.Errorf("wait for bandwidth: %w", err)
		}
		n -= take
	}
	return nil
}

type throttle struct {
	Store
	b *Bandwidth
}

func (t *throttle) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (Version, error) {
	if up := t.b.up.Load(); up != nil {
		if err := up.wait(ctx, size); err != nil {
			return "", fmt.Errorf("put %s: %w", key, err)
		}
	}
	return t.Store.Put(ctx, key, body, size, cond)
}

func (t *throttle) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error) {
	body, info, err := t.Store.Get(ctx, key, off, length)
	if err != nil {
		return nil, info, err
	}
	return &throttledBody{ReadCloser: body, ctx: ctx, key: key, b: t.b}, info, nil
}

// throttledBody pays for bytes once it has read them.
type throttledBody struct {
	io.ReadCloser
	ctx context.Context
	key string
	b   *Bandwidth
}

func (t *throttledBody) Read(p []byte) (int, error) {
	down := t.b.down.Load()
	if down == nil {
		return t.ReadCloser.Read(p)
	}
	n, err := t.ReadCloser.Read(p[:min(len(p), down.chunk)])
	if waitErr := down.wait(t.ctx, int64(n)); waitErr != nil {
		return n, fmt.Errorf("read object %s: %w", t.key, waitErr)
	}
	return n, err
}
