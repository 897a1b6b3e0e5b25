package objstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// UnderWay knows the requests of a store that have no answer yet, and can end one.
// Safe for concurrent use.
type UnderWay struct {
	mu   sync.Mutex // guards the fields below; never held during a request
	last uint64
	all  map[uint64]*watchedRequest
}

// Request is one that is under way.
type Request struct {
	ID    uint64    `json:"id"`
	Op    string    `json:"op"`
	Key   string    `json:"key"` // of a List: the prefix
	Bytes int64     `json:"bytes,omitempty"`
	Since time.Time `json:"since"`
}

type watchedRequest struct {
	Request
	cancel context.CancelCauseFunc
}

// errEnded is why a request ended that End was told to end. It is ErrUnavailable:
// who needs the answer asks again.
var errEnded = fmt.Errorf("%w: the request was ended by hand", ErrUnavailable)

// NewUnderWay returns one that knows of nothing.
func NewUnderWay() *UnderWay { return &UnderWay{all: map[uint64]*watchedRequest{}} }

// List returns the requests, the oldest first.
func (u *UnderWay) List() []Request {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := make([]Request, 0, len(u.all))
	for _, r := range u.all {
		out = append(out, r.Request)
	}
	slices.SortFunc(out, func(a, b Request) int { return cmp.Compare(a.ID, b.ID) })
	return out
}

// End ends a request, which fails with ErrUnavailable, so that it is repeated by
// whoever repeats such requests; false: there is none of that number.
func (u *UnderWay) End(id uint64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	r := u.all[id]
	if r == nil {
		return false
	}
	r.cancel(errEnded)
	return true
}

// begin notes a request and returns its context and what notes its end.
func (u *UnderWay) begin(ctx context.Context, op, key string, bytes int64) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	u.mu.Lock()
	defer u.mu.Unlock()
	u.last++
	id := u.last
	u.all[id] = &watchedRequest{Request{id, op, key, bytes, time.Now()}, cancel}
	return ctx, func() {
		u.mu.Lock()
		delete(u.all, id)
		u.mu.Unlock()
		cancel(nil)
	}
}

// ended gives the error of a request that was ended by hand its class.
func ended(ctx context.Context, err error) error {
	if err != nil && errors.Is(context.Cause(ctx), errEnded) {
		return errEnded
	}
	return err
}

// Wrap returns a store whose requests are known to u. A Get is under way until its
// body is closed.
func (u *UnderWay) Wrap(s Store) Store { return &watched{s, u} }

type watched struct {
	s Store
	u *UnderWay
}

func (w *watched) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error) {
	ctx, done := w.u.begin(ctx, "GET", key, max(length, 0))
	body, info, err := w.s.Get(ctx, key, off, length)
	if err != nil {
		err = ended(ctx, err)
		done()
		return nil, info, err
	}
	return &watchedBody{body, ctx, done}, info, nil
}

func (w *watched) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (Version, error) {
	ctx, done := w.u.begin(ctx, "PUT", key, size)
	defer done()
	v, err := w.s.Put(ctx, key, body, size, cond)
	return v, ended(ctx, err)
}

func (w *watched) Head(ctx context.Context, key string) (Info, error) {
	ctx, done := w.u.begin(ctx, "HEAD", key, 0)
	defer done()
	info, err := w.s.Head(ctx, key)
	return info, ended(ctx, err)
}

func (w *watched) List(ctx context.Context, prefix, startAfter string, limit int) ([]Info, error) {
	ctx, done := w.u.begin(ctx, "LIST", prefix, 0)
	defer done()
	page, err := w.s.List(ctx, prefix, startAfter, limit)
	return page, ended(ctx, err)
}

func (w *watched) Delete(ctx context.Context, key string) error {
	ctx, done := w.u.begin(ctx, "DELETE", key, 0)
	defer done()
	return ended(ctx, w.s.Delete(ctx, key))
}

type watchedBody struct {
	io.ReadCloser
	ctx  context.Context
	done func()
}

func (b *watchedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		return n, err
	}
	return n, ended(b.ctx, err)
}

// Close may be called more than once.
func (b *watchedBody) Close() error {
	err := b.ReadCloser.Close()
	b.done()
	return err
}
