package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// TimeoutOptions say how long a request may take. Zero fields take the
// defaults.
type TimeoutOptions struct {
	Base           time.Duration // any request, without its body; default 10 s
	BytesPerSecond int64         // a body slower than this is given up; default 256 KiB/s
}

// defaultBytesPerSecond is the slowest body that is waited for.
const defaultBytesPerSecond = 256 << 10

// WithTimeout returns a store that gives every request a deadline by its size:
// Base plus the size over BytesPerSecond; for a Get, Base until the store
// answers and then that. A request that misses it fails with ErrUnavailable.
func WithTimeout(s Store, o TimeoutOptions) Store {
	if o.Base <= 0 {
		o.Base = 10 * time.Second
	}
	if o.BytesPerSecond <= 0 {
		o.BytesPerSecond = defaultBytesPerSecond
	}
	return &timed{s: s, o: o}
}

type timed struct {
	s Store
	o TimeoutOptions
}

// allowed returns how long a request with a body of size bytes may take.
func (t *timed) allowed(size int64) time.Duration {
	return t.o.Base + time.Duration(float64(size)/float64(t.o.BytesPerSecond)*float64(time.Second))
}

var errTimeout = errors.New("the store took too long")

// request is a context that ends with its parent or when its time is up.
type request struct {
	context.Context
	cancel context.CancelCauseFunc
	timer  *time.Timer
}

func (t *timed) start(ctx context.Context, size int64) *request {
	ctx, cancel := context.WithCancelCause(ctx)
	return &request{
		Context: ctx,
		cancel:  cancel,
		timer:   time.AfterFunc(t.allowed(size), func() { cancel(errTimeout) }),
	}
}

func (r *request) end() {
	r.timer.Stop()
	r.cancel(nil)
}

// err turns an error that the deadline caused into ErrUnavailable. It is not
// to look as if the caller had given up, so the original is only quoted.
func (r *request) err(err error) error {
	if err == nil || err == io.EOF || context.Cause(r.Context) != errTimeout {
		return err
	}
	return fmt.Errorf("%w: %w: %v", ErrUnavailable, errTimeout, err)
}

func (t *timed) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error) {
	r := t.start(ctx, 0)
	body, info, err := t.s.Get(r, key, off, length)
	if err != nil {
		err = r.err(err)
		r.end()
		return nil, Info{}, err
	}
	n := max(info.Size-off, 0)
	if length >= 0 {
		n = min(n, length)
	}
	r.timer.Reset(t.allowed(n))
	return &timedBody{r: r, body: body}, info, nil
}

// timedBody keeps its request's deadline until it is closed.
type timedBody struct {
	r    *request
	body io.ReadCloser
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.body.Read(p)
	return n, b.r.err(err)
}

func (b *timedBody) Close() error {
	err := b.r.err(b.body.Close())
	b.r.end()
	return err
}

func (t *timed) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (Version, error) {
	r := t.start(ctx, size)
	defer r.end()
	v, err := t.s.Put(r, key, body, size, cond)
	return v, r.err(err)
}

func (t *timed) Head(ctx context.Context, key string) (Info, error) {
	r := t.start(ctx, 0)
	defer r.end()
	info, err := t.s.Head(r, key)
	return info, r.err(err)
}

func (t *timed) List(ctx context.Context, prefix, startAfter string, limit int) ([]Info, error) {
	r := t.start(ctx, 0)
	defer r.end()
	page, err := t.s.List(r, prefix, startAfter, limit)
	return page, r.err(err)
}

func (t *timed) Delete(ctx context.Context, key string) error {
	r := t.start(ctx, 0)
	defer r.end()
	return r.err(t.s.Delete(r, key))
}
