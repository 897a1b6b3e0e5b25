package gateway

import (
	"context"
	"sync"
)

// budget is a bounded number of bytes.
type budget struct {
	mu   sync.Mutex
	free int64
	all  int64
	ch   chan struct{}
}

func newBudget(n int64) *budget { return &budget{free: n, all: n, ch: make(chan struct{})} }

// take waits for n bytes; more than there ever are counts as all of them.
func (b *budget) take(ctx context.Context, n int64) (int64, error) {
	n = min(n, b.all)
	for {
		b.mu.Lock()
		if b.free >= n {
			b.free -= n
			b.mu.Unlock()
			return n, nil
		}
		ch := b.ch
		b.mu.Unlock()
		select {
		case <-ch:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

func (b *budget) give(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.free += n
	close(b.ch)
	b.ch = make(chan struct{})
}
