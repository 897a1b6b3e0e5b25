package rangelock

import (
	"context"
	"sync"
)

// maxFree bounds the requests that an idle Lock keeps for reuse.
const maxFree = 8

// Lock is a lock over the ranges of [0, math.MaxInt64]. The zero value is
// ready. It must not be copied after its first use.
type Lock struct {
	mu         sync.Mutex
	head, tail *request // oldest to newest, held and waiting
	free       *request // linked by next
	nfree      int
	seq        uint64
}

type request struct {
	next, prev *request
	off, end   int64
	seq        uint64 // 0: not in use; else never the same again
	blockers   int    // earlier requests in the way; 0: held
	exclusive  bool
	ready      chan struct{} // gets one token when blockers reaches 0 for a waiter
}

func (r *request) conflicts(off, end int64, exclusive bool) bool {
	return max(r.off, off) < min(r.end, end) && (r.exclusive || exclusive)
}

// Held is a range that is locked, to be unlocked once. It is a small value;
// copies stand for the same range.
type Held struct {
	l   *Lock
	r   *request
	seq uint64
}

// Lock waits until it holds [off, end), or ctx is done: then it returns ctx's
// error and holds nothing. An empty range conflicts with nothing. An
// uncontended call allocates nothing once the lock was used.
func (l *Lock) Lock(ctx context.Context, off, end int64, exclusive bool) (Held, error) {
	l.mu.Lock()
	r := l.enqueue(off, end, exclusive)
	h := Held{l, r, r.seq}
	if r.blockers == 0 {
		l.mu.Unlock()
		return h, nil
	}
	if r.ready == nil {
		r.ready = make(chan struct{}, 1)
	}
	l.mu.Unlock()

	select {
	case <-r.ready:
		return h, nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.blockers == 0 {
		<-r.ready // granted meanwhile: the token would wake the next user of r
	}
	l.leave(r)
	return Held{}, ctx.Err()
}

// TryLock is Lock for those who can't wait; false when it would have to.
func (l *Lock) TryLock(off, end int64, exclusive bool) (Held, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for o := l.head; o != nil; o = o.next {
		if o.conflicts(off, end, exclusive) {
			return Held{}, false
		}
	}
	r := l.enqueue(off, end, exclusive)
	return Held{l, r, r.seq}, true
}

// Unlock gives the range back. It panics when the range is not held (any more).
func (h Held) Unlock() {
	h.l.mu.Lock()
	defer h.l.mu.Unlock()
	if h.r.seq != h.seq {
		panic("rangelock: unlock of a range that is not held")
	}
	h.l.leave(h.r)
}

// enqueue appends a request with its count of blockers. Called with mu held.
func (l *Lock) enqueue(off, end int64, exclusive bool) *request {
	r := l.free
	if r != nil {
		l.free = r.next
		l.nfree--
	} else {
		r = new(request)
	}
	l.seq++
	r.off, r.end, r.exclusive, r.seq, r.blockers = off, end, exclusive, l.seq, 0
	for o := l.head; o != nil; o = o.next {
		if o.conflicts(off, end, exclusive) {
			r.blockers++
		}
	}
	r.next, r.prev = nil, l.tail
	if l.tail == nil {
		l.head = r
	} else {
		l.tail.next = r
	}
	l.tail = r
	return r
}

// leave takes r off the list and wakes whom it blocked alone. Called with mu held.
func (l *Lock) leave(r *request) {
	for o := r.next; o != nil; o = o.next {
		if !r.conflicts(o.off, o.end, o.exclusive) {
			continue
		}
		if o.blockers--; o.blockers == 0 {
			o.ready <- struct{}{}
		}
	}
	if r.prev == nil {
		l.head = r.next
	} else {
		r.prev.next = r.next
	}
	if r.next == nil {
		l.tail = r.prev
	} else {
		r.next.prev = r.prev
	}
	r.seq, r.prev, r.next = 0, nil, nil
	if l.nfree < maxFree {
		r.next, l.free = l.free, r
		l.nfree++
	}
}
