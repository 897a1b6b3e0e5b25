package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	return &throttle{Store: s, up: newBucket(o.Upload), down: newBucket(o.Download)}
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
	up, down *bucket
}

func (t *throttle) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (Version, error) {
	if t.up != nil {
		if err := t.up.wait(ctx, size); err != nil {
			return "", fmt.Errorf("put %s: %w", key, err)
		}
	}
	return t.Store.Put(ctx, key, body, size, cond)
}

func (t *throttle) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error) {
	body, info, err := t.Store.Get(ctx, key, off, length)
	if err != nil || t.down == nil {
		return body, info, err
	}
	return &throttledBody{ReadCloser: body, ctx: ctx, key: key, b: t.down}, info, nil
}

// throttledBody pays for bytes once it has read them.
type throttledBody struct {
	io.ReadCloser
	ctx context.Context
	key string
	b   *bucket
}

func (t *throttledBody) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p[:min(len(p), t.b.chunk)])
	if waitErr := t.b.wait(t.ctx, int64(n)); waitErr != nil {
		return n, fmt.Errorf("read object %s: %w", t.key, waitErr)
	}
	return n, err
}
