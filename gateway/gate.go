package gateway

import (
	"context"
	"sync"

	"github.com/cisternfs/cistern/journal"
)

// writerGate lets operations in one by one and can be shut: then those inside
// end, and nothing is journaled for a caller until it opens. The engine's own
// records don't pass through it.
type writerGate struct {
	mu     sync.Mutex // guards the fields below; never held during a wait
	shut   bool
	inside int
	moved  chan struct{} // closed when a wait may have ended; nil: nobody waits
}

// enter waits while the gate is shut.
func (g *writerGate) enter(ctx context.Context) error {
	return g.wait(ctx, func() bool {
		if g.shut {
			return false
		}
		g.inside++
		return true
	})
}

func (g *writerGate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.inside--
	if g.inside == 0 {
		g.wake()
	}
}

// close shuts the gate and waits until nobody is inside. On error it is open
// again.
func (g *writerGate) close(ctx context.Context) error {
	g.mu.Lock()
	g.shut = true
	g.mu.Unlock()
	err := g.wait(ctx, func() bool { return g.inside == 0 })
	if err != nil {
		g.open()
	}
	return err
}

func (g *writerGate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = false
	g.wake()
}

// wake ends all waits, which look again. Caller holds mu.
func (g *writerGate) wake() {
	if g.moved != nil {
		close(g.moved)
		g.moved = nil
	}
}

// wait returns when done, which runs under mu, says so, or when ctx ends.
func (g *writerGate) wait(ctx context.Context, done func() bool) error {
	for {
		g.mu.Lock()
		if done() {
			g.mu.Unlock()
			return nil
		}
		if g.moved == nil {
			g.moved = make(chan struct{})
		}
		moved := g.moved
		g.mu.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// admission is an operation's room in the journal and its place inside the gate.
type admission struct {
	*journal.Reservation
	gate *writerGate
}

// Release gives both back. It is called once.
func (a *admission) Release() {
	a.Reservation.Release()
	a.gate.leave()
}
