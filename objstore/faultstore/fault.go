package faultstore

import (
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cisternfs/cistern/objstore"
)

// Op names a method of objstore.Store.
type Op string

// The operations, as hooks see them. The key of a List is its prefix.
const (
	Get    Op = "get"
	Put    Op = "put"
	Head   Op = "head"
	List   Op = "list"
	Delete Op = "delete"
)

// Kind says what goes wrong.
type Kind int

const (
	// None lets the call pass (after Fault.Delay).
	None Kind = iota
	// Before fails the call without effect.
	Before
	// Lost lets the call take effect and then loses the reply.
	Lost
	// Late fails a PUT without effect at first; it is applied once Fault.Late
	// has passed, under its condition. On other operations: Before.
	Late
	// Duplicate loses the reply of a PUT that took effect and applies it once
	// more after Fault.Late, under its condition. On other operations: Lost.
	Duplicate
	// Cut ends the body of a Get after Fault.At bytes: with Fault.Err, or
	// silently when that is nil. On other operations: Before.
	Cut
	// Flip inverts one bit of the body of a Get, in byte Fault.At modulo its
	// length. On other operations: None.
	Flip
	// Hang never replies; the call ends with its context or with Kill.
	Hang
)

// Fault is what happens to one call. The zero value is none.
type Fault struct {
	Kind  Kind
	Err   error         // what the caller gets; nil: an error that wraps objstore.ErrUnavailable
	Delay time.Duration // before the call reaches the store
	Late  time.Duration // from the failed reply to the late PUT
	At    int64         // byte of the body, for Cut and Flip
}

// Hook decides the fault of the n-th call (from 0, all operations counted
// together). It is called concurrently, once a call.
type Hook func(op Op, key string, n int) Fault

// ErrKilled is what every call gets after Kill. It is of no class of
// objstore, so nothing retries it.
var ErrKilled = errors.New("object store client was killed")

// errInjected is the default error of a fault.
var errInjected = fmt.Errorf("injected fault: %w", objstore.ErrUnavailable)

// FailNth returns a hook that gives fault to the n-th call and none to all
// others: for tests that walk every failure.
func FailNth(n int, fault Fault) Hook {
	return func(_ Op, _ string, i int) Fault {
		if i == n {
			return fault
		}
		return Fault{}
	}
}

// Rates are the probabilities, 0 to 1, of each fault of Random; they add up to
// 1 at most.
type Rates struct {
	Before, Lost, Late, Duplicate, Cut, Flip, Hang float64

	MaxDelay time.Duration // each call is delayed by 0 to MaxDelay
	MaxLate  time.Duration // a late PUT comes after 0 to MaxLate
}

// Random returns a hook that draws faults from seed. What befalls the i-th
// call of one operation on one key depends on the seed, the operation, the
// key and i alone, not on how concurrent calls of other keys interleave.
func Random(seed uint64, rates Rates) Hook {
	var mu sync.Mutex // guards calls
	calls := make(map[string]uint64)
	return func(op Op, key string, _ int) Fault {
		id := string(op) + " " + key
		mu.Lock()
		i := calls[id]
		calls[id]++
		mu.Unlock()
		h := fnv.New64a()
		fmt.Fprintf(h, "%s %d", id, i)
		return rates.draw(rand.New(rand.NewPCG(seed, h.Sum64())))
	}
}

func (r Rates) draw(rng *rand.Rand) Fault {
	f := Fault{At: rng.Int64N(1 << 20)}
	if r.MaxDelay > 0 {
		f.Delay = time.Duration(rng.Int64N(int64(r.MaxDelay)))
	}
	if r.MaxLate > 0 {
		f.Late = time.Duration(rng.Int64N(int64(r.MaxLate)))
	}
	p := rng.Float64()
	for _, c := range []struct {
		kind Kind
		rate float64
	}{
		{Before, r.Before}, {Lost, r.Lost}, {Late, r.Late}, {Duplicate, r.Duplicate},
		{Cut, r.Cut}, {Flip, r.Flip}, {Hang, r.Hang},
	} {
		if p < c.rate {
			f.Kind = c.kind
			break
		}
		p -= c.rate
	}
	return f
}
