package rangelock

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
)

func mustLock(t *testing.T, l *Lock, off, end int64, exclusive bool) Held {
	t.Helper()
	h, err := l.Lock(context.Background(), off, end, exclusive)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// waiters returns how many requests wait.
func (l *Lock) waiters() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for r := l.head; r != nil; r = r.next {
		if r.blockers > 0 {
			n++
		}
	}
	return n
}

// inBackground starts a Lock that has to wait and returns once it waits.
func inBackground(ctx context.Context, l *Lock, off, end int64, exclusive bool) chan result {
	before := l.waiters()
	c := make(chan result, 1)
	go func() {
		h, err := l.Lock(ctx, off, end, exclusive)
		c <- result{h, err}
	}()
	for l.waiters() == before {
		select {
		case r := <-c: // did not wait after all
			c <- r
			return c
		default:
		}
	}
	return c
}

type result struct {
	h   Held
	err error
}

func TestLock_Lock_Conflicts(t *testing.T) {
	for _, c := range []struct {
		off, end  int64
		exclusive bool
		want      bool
	}{
		{0, 10, false, true}, {0, 11, false, true}, {0, 11, true, false}, {19, 30, true, false},
		{20, 30, true, true}, {0, math.MaxInt64, true, false}, {15, 15, true, true},
	} {
		var l Lock
		h := mustLock(t, &l, 10, 20, false)
		got, ok := l.TryLock(c.off, c.end, c.exclusive)
		if ok != c.want {
			t.Errorf("%+v beside shared [10,20): %v", c, ok)
		}
		if ok {
			got.Unlock()
		}
		h.Unlock()
		h = mustLock(t, &l, 10, 20, true)
		_, ok = l.TryLock(c.off, c.end, c.exclusive)
		if want := c.end <= 10 || c.off >= 20 || c.off == c.end; ok != want && c.off != c.end {
			t.Errorf("%+v beside exclusive [10,20): %v", c, ok)
		}
		h.Unlock()
	}
}

func TestLock_Lock_ExclusiveIsNotStarved(t *testing.T) {
	var l Lock
	reader := mustLock(t, &l, 0, 100, false)
	writer := inBackground(context.Background(), &l, 50, 60, true)
	if _, ok := l.TryLock(55, 56, false); ok {
		t.Fatal("a shared request overtook an exclusive waiter")
	}
	late := inBackground(context.Background(), &l, 0, 100, false)
	other, ok := l.TryLock(60, 100, false)
	if !ok {
		t.Fatal("a request beside the waiter's range has to wait")
	}
	other.Unlock()
	reader.Unlock()
	w := <-writer
	select {
	case <-late:
		t.Fatal("the late reader holds its range together with the writer")
	default:
	}
	w.h.Unlock()
	r := <-late
	r.h.Unlock()
	if l.head != nil || l.tail != nil {
		t.Fatal("requests are left")
	}
}

func TestLock_Lock_CancelledWaiterLetsOthersPass(t *testing.T) {
	var l Lock
	reader := mustLock(t, &l, 0, 10, false)
	ctx, cancel := context.WithCancel(context.Background())
	writer := inBackground(ctx, &l, 0, 10, true)
	late := inBackground(context.Background(), &l, 0, 10, false)
	cancel()
	if w := <-writer; !errors.Is(w.err, context.Canceled) {
		t.Fatalf("cancelled waiter: %v", w.err)
	}
	r := <-late // passes although the first reader still holds its range
	r.h.Unlock()
	reader.Unlock()
	if h, ok := l.TryLock(0, 10, true); !ok {
		t.Fatal("not free")
	} else {
		h.Unlock()
	}
}

func TestLock_Lock_CancelRacesWithGrant(t *testing.T) {
	var l Lock
	for range 2000 {
		h := mustLock(t, &l, 0, 10, true)
		ctx, cancel := context.WithCancel(context.Background())
		w := inBackground(ctx, &l, 0, 10, true)
		var wg sync.WaitGroup
		wg.Go(cancel)
		wg.Go(h.Unlock)
		wg.Wait()
		if r := <-w; r.err == nil {
			r.h.Unlock()
		}
		h, ok := l.TryLock(0, 10, true)
		if !ok {
			t.Fatal("not free after both left")
		}
		h.Unlock()
	}
}

func TestHeld_Unlock_TwicePanics(t *testing.T) {
	var l Lock
	h := mustLock(t, &l, 0, 1, true)
	h.Unlock()
	again := mustLock(t, &l, 0, 1, true) // reuses the request
	defer again.Unlock()
	defer func() {
		if recover() == nil {
			t.Fatal("no panic")
		}
	}()
	h.Unlock()
}

func TestLock_RandomRanges_Exclusion(t *testing.T) {
	const cells = 64
	var l Lock
	var state [cells]atomic.Int32 // readers, or -1 for a writer
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 3))
			for range 3000 {
				off := r.Int64N(cells)
				end := off + 1 + r.Int64N(cells-off)
				ex := r.UintN(3) == 0
				h, err := l.Lock(context.Background(), off, end, ex)
				if err != nil {
					t.Error(err)
					return
				}
				for i := off; i < end; i++ {
					if ex && !state[i].CompareAndSwap(0, -1) || !ex && state[i].Add(1) <= 0 {
						t.Errorf("cell %d is shared with a writer", i)
					}
				}
				for i := off; i < end; i++ {
					if ex {
						state[i].Store(0)
					} else {
						state[i].Add(-1)
					}
				}
				h.Unlock()
			}
		})
	}
	wg.Wait()
	if l.head != nil || l.nfree > maxFree {
		t.Fatalf("requests left, or %d kept", l.nfree)
	}
}

func TestLock_Uncontended_AllocatesNothing(t *testing.T) {
	var l Lock
	ctx := context.Background()
	if n := testing.AllocsPerRun(100, func() {
		h, _ := l.Lock(ctx, 0, 4096, true)
		h.Unlock()
	}); n != 0 {
		t.Fatalf("%v allocations", n)
	}
}

func BenchmarkLock_Uncontended(b *testing.B) {
	var l Lock
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		h, _ := l.Lock(ctx, 0, 4096, true)
		h.Unlock()
	}
}

func BenchmarkLock_SharedParallel(b *testing.B) {
	var l Lock
	ctx := context.Background()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			h, _ := l.Lock(ctx, 0, 4096, false)
			h.Unlock()
		}
	})
}
