package objstore

import (
	"container/list"
	"context"
	"sync"
	"time"
)

// How a gate's limit follows a store that throttles: halved at a refusal, and
// raised by one again for each pause without another, as TCP does it.
const (
	gateLowerEvery = time.Second
	gateRaiseEvery = 2 * time.Second
)

// gate lets a limited number of requests through at a time, first come, first
// served. It has no goroutine: what time brings is worked out by the next
// caller.
type gate struct {
	mu        sync.Mutex // guards the fields below; never held while waiting
	most      int        // never exceeded; the limit in quiet times
	limit     int        // 1 to most
	busy      int
	waiting   list.List // of chan struct{}, closed when its place is free
	changed   time.Time // when the limit was lowered or raised last
	lowered   time.Time // when it was lowered last
	throttled int64     // refusals seen
}

// GateStatus is how one direction's limit stands.
type GateStatus struct {
	Limit     int   `json:"limit"`     // requests at a time, now
	Most      int   `json:"most"`      // as it was set
	Busy      int   `json:"busy"`      // requests under way
	Waiting   int   `json:"waiting"`   // requests that wait for a place
	Throttled int64 `json:"throttled"` // replies that asked for fewer requests, since the start
}

func newGate(most int) *gate { return &gate{most: most, limit: most} }

// refresh raises the limit for the time that has passed. Caller holds mu.
func (g *gate) refresh(now time.Time) {
	if g.limit == g.most {
		return
	}
	steps := int64(now.Sub(g.changed) / gateRaiseEvery)
	if steps <= 0 {
		return
	}
	g.limit += int(min(steps, int64(g.most-g.limit)))
	g.changed = g.changed.Add(time.Duration(steps) * gateRaiseEvery)
	g.admit()
}

// admit hands free places to those who wait. Caller holds mu.
func (g *gate) admit() {
	for g.busy < g.limit {
		first := g.waiting.Front()
		if first == nil {
			return
		}
		g.busy++
		close(g.waiting.Remove(first).(chan struct{}))
	}
}

// enter takes a place, waiting for one within ctx, whose error it returns.
func (g *gate) enter(ctx context.Context) error {
	// A context that has ended must win over a free place.
	if err := ctx.Err(); err != nil {
		return err
	}
	g.mu.Lock()
	g.refresh(time.Now())
	if g.busy < g.limit && g.waiting.Len() == 0 {
		g.busy++
		g.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	me := g.waiting.PushBack(turn)
	g.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-turn: // the place came at the same moment: the next one gets it
		g.busy--
		g.admit()
	default:
		g.waiting.Remove(me)
	}
	return ctx.Err()
}

// tryEnter takes a place if one is free and nobody waits for it.
func (g *gate) tryEnter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refresh(time.Now())
	if g.busy >= g.limit || g.waiting.Len() > 0 {
		return false
	}
	g.busy++
	return true
}

// leave gives a place back.
func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.busy--
	g.refresh(time.Now())
	g.admit()
}

// slowDown lowers the limit because the store asked for that. The requests under
// way all get the same answer, so that it counts once in a while only.
func (g *gate) slowDown() {
	now := time.Now()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.throttled++
	g.refresh(now)
	if !g.lowered.IsZero() && now.Sub(g.lowered) < gateLowerEvery {
		g.changed = now // no raise right after a refusal
		return
	}
	g.limit = max(g.limit/2, 1)
	g.lowered, g.changed = now, now
}

// setMost sets what is never exceeded. Requests under way go on; a store that
// throttles is not forgotten.
func (g *gate) setMost(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refresh(time.Now())
	if g.limit == g.most {
		g.limit = n // it was not lowered
	}
	g.most, g.limit = n, min(g.limit, n)
	g.admit()
}

func (g *gate) status() GateStatus {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.refresh(time.Now())
	return GateStatus{Limit: g.limit, Most: g.most, Busy: g.busy, Waiting: g.waiting.Len(), Throttled: g.throttled}
}
