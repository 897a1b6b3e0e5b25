package objstore

import (
	"context"
	"fmt"
	"io"
	"sync"
)

// WithLimit returns a store on which at most uploads Puts and at most
// downloads Gets are under way at a time; the others wait, within their
// context. A Get is under way until its body is closed: who holds one and
// waits for another can wait for ever. Heads, Lists and Deletes pass. Both
// limits must be at least 1.
//
// What must not wait behind bulk traffic, such as the renewal of a lease, goes
// to the store below.
func WithLimit(s Store, uploads, downloads int) (Store, error) {
	if uploads < 1 || downloads < 1 {
		return nil, fmt.Errorf("limits of concurrent uploads (%d) and downloads (%d) must be at least 1", uploads, downloads)
	}
	return &limiter{Store: s, up: make(chan struct{}, uploads), down: make(chan struct{}, downloads)}, nil
}

type limiter struct {
	Store
	up, down chan struct{} // hold one token for each request under way
}

func acquire(ctx context.Context, sem chan struct{}) error {
	// A select over two ready cases draws lots, and a context that has ended
	// must win.
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case sem <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (l *limiter) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (Version, error) {
	if err := acquire(ctx, l.up); err != nil {
		return "", fmt.Errorf("put %s: wait for a free upload: %w", key, err)
	}
	defer func() { <-l.up }()
	return l.Store.Put(ctx, key, body, size, cond)
}

func (l *limiter) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error) {
	if err := acquire(ctx, l.down); err != nil {
		return nil, Info{}, fmt.Errorf("get %s: wait for a free download: %w", key, err)
	}
	body, info, err := l.Store.Get(ctx, key, off, length)
	if err != nil {
		<-l.down
		return nil, Info{}, err
	}
	return &limitedBody{ReadCloser: body, sem: l.down}, info, nil
}

// limitedBody gives its place back when it is closed.
type limitedBody struct {
	io.ReadCloser
	sem  chan struct{}
	once sync.Once
}

func (b *limitedBody) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(func() { <-b.sem })
	return err
}
