package objstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

func withHedge(t *testing.T, s objstore.Store, o objstore.HedgeOptions, reg prometheus.Registerer) objstore.Store {
	t.Helper()
	h, err := objstore.WithHedge(s, o, reg)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// openBodies counts the bodies that were not closed.
type openBodies struct {
	objstore.Store
	open atomic.Int64
}

func (o *openBodies) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	r, info, err := o.Store.Get(ctx, key, off, length)
	if err != nil {
		return nil, info, err
	}
	o.open.Add(1)
	return &countedBody{r, sync.OnceFunc(func() { o.open.Add(-1) })}, info, nil
}

type countedBody struct {
	io.ReadCloser
	closed func()
}

func (c *countedBody) Close() error {
	c.closed()
	return c.ReadCloser.Close()
}

// hedgeCase is a store with a hedged read on top, which has learnt that it
// answers within 20 ms.
type hedgeCase struct {
	faults *faultstore.Store
	open   *openBodies
	reg    *prometheus.Registry
	s      objstore.Store
	calls  int // made while learning
}

func newHedgeCase(t *testing.T, o objstore.HedgeOptions) *hedgeCase {
	t.Helper()
	m := mem.New()
	mustPut(t, m, "k", "0123456789")
	c := &hedgeCase{faults: faultstore.New(m, func(faultstore.Op, string, int) faultstore.Fault {
		return faultstore.Fault{Delay: 20 * time.Millisecond}
	}), reg: prometheus.NewRegistry()}
	c.open = &openBodies{Store: c.faults}
	c.s = withHedge(t, c.open, o, c.reg)
	for range 20 {
		c.read(t, nil)
	}
	c.calls = c.faults.Calls()
	if c.calls != 20 {
		t.Fatalf("%d requests for 20 reads while nothing was known", c.calls)
	}
	return c
}

// read reads a range and wants the error, and no body left open.
func (c *hedgeCase) read(t *testing.T, want error) time.Duration {
	t.Helper()
	start := time.Now()
	p := make([]byte, 4)
	err := objstore.ReadRange(t.Context(), c.s, "k", 2, p)
	took := time.Since(start)
	if !errors.Is(err, want) || err == nil && string(p) != "2345" {
		t.Errorf("read %q, %v, want %v", p, err, want)
	}
	if n := c.open.open.Load(); n != 0 {
		t.Errorf("%d bodies left open", n)
	}
	return took
}

// then sets the faults of the next requests.
func (c *hedgeCase) then(faults ...faultstore.Fault) {
	first := c.faults.Calls()
	c.faults.SetHook(func(_ faultstore.Op, _ string, n int) faultstore.Fault {
		if n -= first; n < len(faults) {
			return faults[n]
		}
		return faultstore.Fault{Delay: 20 * time.Millisecond}
	})
}

func TestWithHedge_Get_Cases(t *testing.T) {
	const ms = time.Millisecond
	slow, quick := faultstore.Fault{Delay: time.Second}, faultstore.Fault{Delay: 5 * ms}
	failing := func(after time.Duration) faultstore.Fault {
		return faultstore.Fault{Kind: faultstore.Before, Delay: after}
	}
	for name, c := range map[string]struct {
		faults    []faultstore.Fault
		took      time.Duration
		want      error
		calls     int
		won, lost float64
	}{
		"in time":                       {[]faultstore.Fault{quick}, 5 * ms, nil, 1, 0, 0},
		"slow, second wins":             {[]faultstore.Fault{slow, quick}, 25 * ms, nil, 2, 1, 0},
		"hangs, second wins":            {[]faultstore.Fault{{Kind: faultstore.Hang}, quick}, 25 * ms, nil, 2, 1, 0},
		"slow, first wins":              {[]faultstore.Fault{{Delay: 30 * ms}, slow}, 30 * ms, nil, 2, 0, 1},
		"second fails":                  {[]faultstore.Fault{{Delay: 60 * ms}, failing(5 * ms)}, 60 * ms, nil, 2, 0, 1},
		"first fails, second is coming": {[]faultstore.Fault{failing(30 * ms), {Delay: 30 * ms}}, 50 * ms, nil, 2, 1, 0},
		"first fails at once":           {[]faultstore.Fault{failing(5 * ms)}, 5 * ms, objstore.ErrUnavailable, 1, 0, 0},
		"both fail":                     {[]faultstore.Fault{failing(30 * ms), failing(30 * ms)}, 50 * ms, objstore.ErrUnavailable, 2, 0, 1},
		"second says that it is gone": {[]faultstore.Fault{slow, {Kind: faultstore.Before, Err: objstore.ErrNotExist}},
			20 * ms, objstore.ErrNotExist, 2, 1, 0},
		"both at the same moment": {[]faultstore.Fault{{Delay: 40 * ms}, {Delay: 20 * ms}}, 40 * ms, nil, 2, -1, -1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHedgeCase(t, objstore.HedgeOptions{})
				h.then(c.faults...)
				if took := h.read(t, c.want); took != c.took {
					t.Errorf("took %v, want %v", took, c.took)
				}
				if n := h.faults.Calls() - h.calls; n != c.calls {
					t.Errorf("%d requests, want %d", n, c.calls)
				}
				won, lost := gathered(t, h.reg, "cistern_objstore_hedges_total", map[string]string{"won": "true"}), gathered(t, h.reg, "cistern_objstore_hedges_total", map[string]string{"won": "false"})
				if c.won >= 0 && (won != c.won || lost != c.lost) || won+lost != float64(c.calls-1) {
					t.Errorf("%v won and %v lost, want %v and %v", won, lost, c.won, c.lost)
				}
			})
		})
	}
}

func TestWithHedge_Get_CallerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHedgeCase(t, objstore.HedgeOptions{})
		h.then(faultstore.Fault{Kind: faultstore.Hang}, faultstore.Fault{Kind: faultstore.Hang})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if _, _, err := h.s.Get(ctx, "k", 2, 4); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("get: %v", err)
		}
	})
}

// TestWithHedge_Get_Budget makes a store slow for good: at most one read in
// twenty is asked for twice, after a few that were saved.
func TestWithHedge_Get_Budget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHedgeCase(t, objstore.HedgeOptions{})
		const reads = 400
		h.faults.SetHook(func(_ faultstore.Op, _ string, n int) faultstore.Fault {
			// Slower and slower, so that no percentile catches up.
			return faultstore.Fault{Delay: 100*time.Millisecond + time.Duration(n)*10*time.Millisecond}
		})
		for range reads {
			h.read(t, nil)
		}
		extra := h.faults.Calls() - h.calls - reads
		if extra < reads/20-1 || extra > reads/20+4 {
			t.Errorf("%d second requests for %d reads", extra, reads)
		}
	})
}

func TestWithHedge_OthersPass_MadeOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHedgeCase(t, objstore.HedgeOptions{MaxBytes: 8})
		h.faults.SetHook(func(faultstore.Op, string, int) faultstore.Fault { return faultstore.Fault{Delay: time.Second} })
		for name, do := range map[string]func() error{
			"put":        func() error { _, err := put(t.Context(), h.s, "p", "x", objstore.Condition{}); return err },
			"head":       func() error { _, err := h.s.Head(t.Context(), "k"); return err },
			"list":       func() error { _, err := h.s.List(t.Context(), "", "", 0); return err },
			"whole get":  func() error { _, _, err := objstore.ReadAll(t.Context(), h.s, "k", 100); return err },
			"long range": func() error { return objstore.ReadRange(t.Context(), h.s, "k", 0, make([]byte, 9)) },
			"delete":     func() error { return h.s.Delete(t.Context(), "p") },
		} {
			before := h.faults.Calls()
			if err := do(); err != nil || h.faults.Calls() != before+1 {
				t.Errorf("%s: %v with %d requests", name, err, h.faults.Calls()-before)
			}
		}
	})
}

// TestWithHedge_UnderLimit_NeverWaitsForAPlace hedges under a limit of one, where
// there is never a spare place, and of two.
func TestWithHedge_UnderLimit_NeverWaitsForAPlace(t *testing.T) {
	for downloads, want := range map[int]int{1: 1, 2: 2} {
		synctest.Test(t, func(t *testing.T) {
			limits, err := objstore.NewLimits(1, downloads, nil)
			if err != nil {
				t.Fatal(err)
			}
			h := newHedgeCase(t, objstore.HedgeOptions{Spare: limits.TrySpare})
			h.s = objstore.WithLimit(h.s, limits)
			h.then(faultstore.Fault{Delay: time.Second}, faultstore.Fault{Delay: 5 * time.Millisecond})
			h.read(t, nil)
			if n := h.faults.Calls() - h.calls; n != want {
				t.Errorf("%d requests with %d places", n, downloads)
			}
			if s := limits.Status().Downloads; s.Busy != 0 || s.Waiting != 0 {
				t.Errorf("places are still taken: %+v", s)
			}
		})
	}
}

// TestWithHedge_Replaced_NeverMixed reads a key that is replaced between the two
// requests: the body and its description belong together.
func TestWithHedge_Replaced_NeverMixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHedgeCase(t, objstore.HedgeOptions{})
		old, err := h.faults.Head(t.Context(), "k")
		if err != nil {
			t.Fatal(err)
		}
		h.then(faultstore.Fault{Delay: time.Second}, faultstore.Fault{})
		body, info, err := h.s.Get(t.Context(), "k", 2, 4)
		if err != nil {
			t.Fatal(err)
		}
		mustPut(t, h.faults, "k", "abcdefghij")
		p, err := io.ReadAll(body)
		if err := errors.Join(err, body.Close()); err != nil || string(p) != "2345" || info.Version != old.Version {
			t.Errorf("read %q of %+v, %v; the version was %s", p, info, err, old.Version)
		}
	})
}

func TestWithBandwidth_Rates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		s := objstore.WithBandwidth(m, objstore.BandwidthOptions{Upload: 1000, Download: 2000})
		body := strings.Repeat("x", 5000)
		start := time.Now()
		mustPut(t, s, "k", body)
		// The first tenth of a second's bytes may go at once.
		if took := time.Since(start); took != 4900*time.Millisecond {
			t.Errorf("5000 bytes up at 1000 a second took %v", took)
		}
		start = time.Now()
		if got := content(t, s, "k"); got != body {
			t.Error("another body")
		}
		if took := time.Since(start); took != 2400*time.Millisecond {
			t.Errorf("5000 bytes down at 2000 a second took %v", took)
		}
		start = time.Now()
		var wg sync.WaitGroup
		for i := range 5 {
			wg.Go(func() { mustPut(t, s, fmt.Sprint(i), body[:1000]) })
		}
		wg.Wait()
		if took := time.Since(start); took < 4900*time.Millisecond || took > 5*time.Second {
			t.Errorf("5 x 1000 bytes at a time took %v", took)
		}
		if objstore.WithBandwidth(m, objstore.BandwidthOptions{}) != objstore.Store(m) {
			t.Error("wrapped for nothing")
		}
	})
}

func TestWithBandwidth_ContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		s := objstore.WithBandwidth(m, objstore.BandwidthOptions{Upload: 1000, Download: 1000})
		mustPut(t, m, "k", strings.Repeat("x", 5000))
		for name, do := range map[string]func(ctx context.Context) error{
			"put": func(ctx context.Context) error {
				_, err := put(ctx, s, "p", strings.Repeat("x", 5000), objstore.Condition{})
				return err
			},
			"get": func(ctx context.Context) error { _, _, err := objstore.ReadAll(ctx, s, "k", 9999); return err },
		} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			start := time.Now()
			if err := do(ctx); !errors.Is(err, context.DeadlineExceeded) || objstore.Class(err) != "cancelled" || time.Since(start) > time.Second {
				t.Errorf("%s within a deadline: %v after %v", name, err, time.Since(start))
			}
			cancel()
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			if err := do(ctx); !errors.Is(err, context.Canceled) {
				t.Errorf("%s that is cancelled: %v", name, err)
			}
		}
		if _, err := m.Head(t.Context(), "p"); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("an upload that was given up was made: %v", err)
		}
	})
}

// TestWithBandwidth_SlowestShare_NotTimedOut reads as many bodies at a time as
// there may be, over a link that they fill.
func TestWithBandwidth_SlowestShare_NotTimedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const downloads = 8
		o := objstore.BandwidthOptions{Download: 64 << 10}
		m := mem.New()
		mustPut(t, m, "k", strings.Repeat("x", 1<<20))
		s := objstore.WithBandwidth(objstore.WithTimeout(m, o.TimeoutFor(downloads)), o)
		var wg sync.WaitGroup
		for range downloads {
			wg.Go(func() {
				if _, _, err := objstore.ReadAll(t.Context(), s, "k", 1<<20); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
	})
}

func TestWithLimit_Throttled_LowersAndRaises(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		limits, err := objstore.NewLimits(16, 8, reg)
		if err != nil {
			t.Fatal(err)
		}
		f := faultstore.New(mem.New(), nil)
		s := objstore.WithLimit(f, limits)
		throttle := func(on bool) {
			f.SetHook(nil)
			if on {
				f.SetHook(func(faultstore.Op, string, int) faultstore.Fault {
					return faultstore.Fault{Kind: faultstore.Before, Err: objstore.ErrThrottled}
				})
			}
		}
		want := func(up, down int) {
			t.Helper()
			st := limits.Status()
			if st.Uploads.Limit != up || st.Downloads.Limit != down {
				t.Errorf("limits %d up, %d down, want %d, %d", st.Uploads.Limit, st.Downloads.Limit, up, down)
			}
			if got := gathered(t, reg, "cistern_objstore_limit", map[string]string{"direction": "up"}); got != float64(up) {
				t.Errorf("metric: %v uploads, want %d", got, up)
			}
		}
		upload := func() {
			t.Helper()
			if _, err := put(t.Context(), s, "k", "x", objstore.Condition{}); !errors.Is(err, objstore.ErrThrottled) {
				t.Errorf("put: %v", err)
			}
		}
		want(16, 8)
		throttle(true)
		for range 10 { // in the same second: once
			upload()
		}
		want(8, 8)
		for _, limit := range []int{4, 2, 1, 1} {
			time.Sleep(time.Second)
			upload()
			want(limit, 8)
		}
		if _, _, err := s.Get(t.Context(), "k", 0, -1); !errors.Is(err, objstore.ErrThrottled) {
			t.Errorf("get: %v", err)
		}
		want(1, 4)
		time.Sleep(1500 * time.Millisecond)
		if err := s.Delete(t.Context(), "k"); !errors.Is(err, objstore.ErrThrottled) {
			t.Errorf("delete: %v", err)
		}
		want(1, 4)
		throttle(false)
		for _, c := range [][2]int{{2, 5}, {3, 6}, {4, 7}, {5, 8}, {6, 8}} {
			time.Sleep(2 * time.Second)
			want(c[0], c[1])
		}
		time.Sleep(time.Hour)
		want(16, 8)
		if n := limits.Status().Uploads.Throttled; n != 15 {
			t.Errorf("%d refusals counted", n)
		}
	})
}

// TestWithLimit_Waiters_FirstComeFirstServed starts requests one after the other
// and wants them made in that order, also around those that give up.
func TestWithLimit_Waiters_FirstComeFirstServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var order []string
		s := withLimit(t, &putFunc{mem.New(), func(_ context.Context, key string, _ func() []byte, _ objstore.Condition) (objstore.Version, error) {
			mu.Lock()
			order = append(order, key)
			mu.Unlock()
			time.Sleep(time.Second)
			return "v", nil
		}}, 2, 1)
		var wg sync.WaitGroup
		var want []string
		for i := range 20 {
			ctx, cancel := t.Context(), context.CancelFunc(func() {})
			if i%5 == 3 {
				ctx, cancel = context.WithTimeout(ctx, time.Millisecond)
			} else {
				want = append(want, fmt.Sprint(i))
			}
			wg.Go(func() {
				defer cancel()
				if _, err := put(ctx, s, fmt.Sprint(i), "x", objstore.Condition{}); (err != nil) != (i%5 == 3) {
					t.Errorf("put %d: %v", i, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if fmt.Sprint(order) != fmt.Sprint(want) {
			t.Errorf("made in the order %v, want %v", order, want)
		}
	})
}
