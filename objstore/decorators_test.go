package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/mem"
	"github.com/cisternfs/cistern/objstore/objstoretest"
)

func withLimit(t *testing.T, s objstore.Store, up, down int) objstore.Store {
	t.Helper()
	l, err := objstore.NewLimits(up, down, nil)
	if err != nil {
		t.Fatal(err)
	}
	return objstore.WithLimit(s, l)
}

func withMetrics(t *testing.T, s objstore.Store, reg prometheus.Registerer) *objstore.Metered {
	t.Helper()
	m, err := objstore.WithMetrics(s, reg)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func TestDecorators_Conformance(t *testing.T) {
	for name, wrap := range map[string]func(t *testing.T, s objstore.Store) objstore.Store{
		"retry": func(_ *testing.T, s objstore.Store) objstore.Store {
			return objstore.WithRetry(s, objstore.RetryOptions{})
		},
		"limit": func(t *testing.T, s objstore.Store) objstore.Store { return withLimit(t, s, 3, 3) },
		"hedge": func(t *testing.T, s objstore.Store) objstore.Store {
			return withHedge(t, s, objstore.HedgeOptions{MinWait: time.Nanosecond, Share: 1}, nil)
		},
		"bandwidth": func(_ *testing.T, s objstore.Store) objstore.Store {
			return objstore.WithBandwidth(s, objstore.BandwidthOptions{Upload: 1 << 30, Download: 1 << 30})
		},
		"timeout": func(_ *testing.T, s objstore.Store) objstore.Store {
			return objstore.WithTimeout(s, objstore.TimeoutOptions{})
		},
		"metrics": func(t *testing.T, s objstore.Store) objstore.Store {
			return withMetrics(t, s, prometheus.NewRegistry())
		},
		"prefix": func(t *testing.T, s objstore.Store) objstore.Store {
			// Neighbours that a wrong prefix would show.
			for _, key := range []string{"p", "p/", "p/q", "p/q~", "p/q.", "p/p", "p/r/x", "z"} {
				mustPut(t, s, key, "neighbour")
			}
			return objstore.WithPrefix(s, "p/q/")
		},
		"prefix, named": func(t *testing.T, s objstore.Store) objstore.Store {
			mustPut(t, s, "p/", "directory object")
			return objstore.WithPrefix(s, "p/")
		},
		"all": func(t *testing.T, s objstore.Store) objstore.Store {
			s = objstore.WithTimeout(objstore.WithPrefix(s, "a/b/"), objstore.TimeoutOptions{})
			limits, err := objstore.NewLimits(8, 8, nil)
			if err != nil {
				t.Fatal(err)
			}
			s = withMetrics(t, s, prometheus.NewRegistry())
			s = withHedge(t, s, objstore.HedgeOptions{MinWait: time.Nanosecond, Share: 1, Spare: limits.TrySpare}, nil)
			s = objstore.WithBandwidth(s, objstore.BandwidthOptions{Upload: 1 << 30, Download: 1 << 30})
			return objstore.WithRetry(objstore.WithLimit(s, limits), objstore.RetryOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			objstoretest.Run(t, func(t *testing.T) objstore.Store { return wrap(t, mem.New()) })
		})
	}
}

func TestWithPrefix_Empty_IsTheStore(t *testing.T) {
	m := mem.New()
	if objstore.WithPrefix(m, "") != objstore.Store(m) {
		t.Error("wrapped for nothing")
	}
}

// TestWithRetry_EveryFault_Unnoticed fails each call of a sequence in turn.
func TestWithRetry_EveryFault_Unnoticed(t *testing.T) {
	for _, fault := range []faultstore.Fault{
		{Kind: faultstore.Before},
		{Kind: faultstore.Before, Err: objstore.ErrDamaged},
		{Kind: faultstore.Lost},
		{Kind: faultstore.Cut, At: 4},
		{Kind: faultstore.Cut, At: 4, Err: objstore.ErrUnavailable},
		{Kind: faultstore.Cut, At: 0, Err: errors.Join(objstore.ErrUnavailable, io.ErrUnexpectedEOF)},
	} {
		for n, calls := 0, 1; n < calls; n++ {
			synctest.Test(t, func(t *testing.T) {
				f := faultstore.New(mem.New(), faultstore.FailNth(n, fault))
				s := objstore.WithRetry(f, objstore.RetryOptions{})
				mustPut(t, s, "k", "0123456789")
				p := make([]byte, 6)
				if err := objstore.ReadRange(t.Context(), s, "k", 2, p); err != nil || string(p) != "234567" {
					t.Errorf("%+v at call %d: range %q, %v", fault, n, p, err)
				}
				if got := content(t, s, "k"); got != "0123456789" {
					t.Errorf("%+v at call %d: got %q", fault, n, got)
				}
				if info, err := s.Head(t.Context(), "k"); err != nil || info.Size != 10 {
					t.Errorf("%+v at call %d: head %+v, %v", fault, n, info, err)
				}
				if page, err := s.List(t.Context(), "", "", 0); err != nil || len(page) != 1 {
					t.Errorf("%+v at call %d: list %v, %v", fault, n, page, err)
				}
				if err := s.Delete(t.Context(), "k"); err != nil {
					t.Errorf("%+v at call %d: delete: %v", fault, n, err)
				}
				calls = max(calls, f.Calls()-1)
			})
		}
	}
}

func TestWithRetry_ConditionalPut_MadeOnce(t *testing.T) {
	for _, cond := range []objstore.Condition{{IfAbsent: true}, {IfVersion: "v1"}} {
		f := faultstore.New(mem.New(), faultstore.FailNth(0, faultstore.Fault{Kind: faultstore.Before}))
		s := objstore.WithRetry(f, objstore.RetryOptions{})
		if _, err := put(t.Context(), s, "k", "x", cond); !errors.Is(err, objstore.ErrUnavailable) || f.Calls() != 1 {
			t.Errorf("%+v: %v after %d calls", cond, err, f.Calls())
		}
	}
}

func TestWithRetry_OtherErrors_NotRetried(t *testing.T) {
	for _, class := range []error{objstore.ErrPermission, objstore.ErrNoBucket, objstore.ErrNotExist, faultstore.ErrKilled} {
		f := faultstore.New(mem.New(), faultstore.FailNth(0, faultstore.Fault{Kind: faultstore.Before, Err: class}))
		s := objstore.WithRetry(f, objstore.RetryOptions{})
		if _, err := s.Head(t.Context(), "k"); !errors.Is(err, class) || f.Calls() != 1 {
			t.Errorf("%v after %d calls", err, f.Calls())
		}
	}
}

func TestWithRetry_Bounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := faultstore.New(mem.New(), nil)
		f.SetOutage(faultstore.Refusing)
		var pauses []time.Duration
		last := time.Now()
		f2 := &headFunc{f, func() {
			pauses = append(pauses, time.Since(last))
			last = time.Now()
		}}
		s := objstore.WithRetry(f2, objstore.RetryOptions{Attempts: 8, MinWait: time.Second, MaxWait: 10 * time.Second, Total: time.Hour, Jitter: func() float64 { return 0.5 }})
		if _, err := s.Head(t.Context(), "k"); !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("head: %v", err)
		}
		want := []time.Duration{0, 500 * time.Millisecond, time.Second, 2 * time.Second, 4 * time.Second, 5 * time.Second, 5 * time.Second, 5 * time.Second}
		if len(pauses) != len(want) {
			t.Fatalf("pauses %v, want %v", pauses, want)
		}
		for i := range want {
			if pauses[i] != want[i] {
				t.Errorf("pauses %v, want %v", pauses, want)
			}
		}

		start := time.Now()
		s = objstore.WithRetry(f, objstore.RetryOptions{Attempts: 1000, Total: 30 * time.Second})
		if _, err := s.Head(t.Context(), "k"); !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("head: %v", err)
		}
		if took := time.Since(start); took > 30*time.Second {
			t.Errorf("tried for %v", took)
		}

		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		s = objstore.WithRetry(f, objstore.RetryOptions{MinWait: time.Hour, MaxWait: time.Hour, Total: 24 * time.Hour, Jitter: func() float64 { return 0.9 }})
		if _, err := s.Head(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("head within a deadline: %v", err)
		}
	})
}

// headFunc calls before at each Head.
type headFunc struct {
	objstore.Store
	before func()
}

func (h *headFunc) Head(ctx context.Context, key string) (objstore.Info, error) {
	h.before()
	return h.Store.Head(ctx, key)
}

func TestWithRetry_ReplacedWhileRead_NeverMixed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		mustPut(t, m, "k", "aaaaaaaaaa")
		s := objstore.WithRetry(faultstore.New(m, faultstore.FailNth(0, faultstore.Fault{Kind: faultstore.Cut, At: 4})), objstore.RetryOptions{})
		r, _, err := s.Get(t.Context(), "k", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		mustPut(t, m, "k", "bbbbbbbbbb")
		if p, err := io.ReadAll(r); !errors.Is(err, objstore.ErrUnavailable) || string(p) != "aaaa" {
			t.Errorf("read %q, %v", p, err)
		}
	})
}

func TestWithRetry_BodyKeepsBreaking_GivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		mustPut(t, m, "k", "aaaaaaaaaa")
		f := faultstore.New(m, func(faultstore.Op, string, int) faultstore.Fault { return faultstore.Fault{Kind: faultstore.Cut} })
		s := objstore.WithRetry(f, objstore.RetryOptions{Attempts: 4})
		if _, _, err := objstore.ReadAll(t.Context(), s, "k", 100); !errors.Is(err, objstore.ErrUnavailable) || f.Calls() != 4 {
			t.Errorf("%v after %d calls", err, f.Calls())
		}
	})
}

func TestWithLimit_BoundsConcurrency(t *testing.T) {
	if _, err := objstore.NewLimits(0, 1, nil); err == nil {
		t.Error("no upload at all was accepted")
	}
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		mustPut(t, m, "k", "x")
		var now, most atomic.Int32
		slow := faultstore.New(&putFunc{m, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			now.Add(-1)
			return put(ctx, m, key, string(read()), cond)
		}}, nil)
		s := withLimit(t, slow, 3, 2)
		start := time.Now()
		var wg sync.WaitGroup
		for range 12 {
			wg.Go(func() { mustPut(t, s, "u", "x") })
		}
		wg.Wait()
		if most.Load() != 3 || time.Since(start) != 4*time.Second {
			t.Errorf("%d uploads at a time, %v in all", most.Load(), time.Since(start))
		}

		var bodies []io.Closer
		for range 2 {
			body, _, err := s.Get(t.Context(), "k", 0, -1)
			if err != nil {
				t.Fatal(err)
			}
			bodies = append(bodies, body)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := s.Get(ctx, "k", 0, -1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("third download: %v", err)
		}
		for range 2 { // closing twice must not free two places
			if err := bodies[0].Close(); err != nil {
				t.Fatal(err)
			}
		}
		if got := content(t, s, "k"); got != "x" {
			t.Errorf("after a close: %q", got)
		}
		if _, _, err := s.Get(t.Context(), "none", 0, -1); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("a failed download: %v", err)
		}
		if got := content(t, s, "k"); got != "x" {
			t.Errorf("after a failed download: %q", got)
		}
	})
}

func TestWithTimeout_BySize(t *testing.T) {
	o := objstore.TimeoutOptions{Base: time.Second, BytesPerSecond: 10}
	for name, c := range map[string]struct {
		do   func(ctx context.Context, s objstore.Store) error
		want time.Duration
	}{
		"put": {func(ctx context.Context, s objstore.Store) error {
			_, err := put(ctx, s, "k", "12345", objstore.Condition{})
			return err
		}, 1500 * time.Millisecond},
		"get":    {func(ctx context.Context, s objstore.Store) error { _, _, err := s.Get(ctx, "k", 0, -1); return err }, time.Second},
		"head":   {func(ctx context.Context, s objstore.Store) error { _, err := s.Head(ctx, "k"); return err }, time.Second},
		"list":   {func(ctx context.Context, s objstore.Store) error { _, err := s.List(ctx, "", "", 0); return err }, time.Second},
		"delete": {func(ctx context.Context, s objstore.Store) error { return s.Delete(ctx, "k") }, time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := faultstore.New(mem.New(), nil)
				f.SetOutage(faultstore.Silent)
				s := objstore.WithTimeout(f, o)
				start := time.Now()
				err := c.do(t.Context(), s)
				if !errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, context.Canceled) || time.Since(start) != c.want {
					t.Errorf("%v after %v", err, time.Since(start))
				}
				// When the caller gives up it is not the store's fault.
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if err := c.do(ctx, s); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, objstore.ErrUnavailable) {
					t.Errorf("the caller's deadline: %v", err)
				}
			})
		})
	}
}

func TestWithTimeout_Body_HasItsOwnTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		mustPut(t, m, "k", "0123456789")
		f := faultstore.New(m, func(faultstore.Op, string, int) faultstore.Fault {
			return faultstore.Fault{Delay: 900 * time.Millisecond}
		})
		s := objstore.WithTimeout(f, objstore.TimeoutOptions{Base: time.Second, BytesPerSecond: 10})
		r, _, err := s.Get(t.Context(), "k", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(1900 * time.Millisecond)
		if p, err := io.ReadAll(r); err != nil || len(p) != 10 {
			t.Errorf("within its time: %q, %v", p, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if r, _, err = s.Get(t.Context(), "k", 0, -1); err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		f.SetOutage(faultstore.Silent)
		start := time.Now()
		if _, err := io.ReadAll(r); !errors.Is(err, objstore.ErrUnavailable) || time.Since(start) != 2*time.Second {
			t.Errorf("hanging body: %v after %v", err, time.Since(start))
		}
	})
}

// gathered sums a metric over the label values given.
func gathered(t *testing.T, reg *prometheus.Registry, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	metrics:
		for _, m := range family.GetMetric() {
			for _, l := range m.GetLabel() {
				if want, ok := labels[l.GetName()]; ok && want != l.GetValue() {
					continue metrics
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

func TestWithMetrics_CountsAndHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reg := prometheus.NewRegistry()
		f := faultstore.New(mem.New(), nil)
		s := withMetrics(t, f, reg)
		if _, err := objstore.WithMetrics(f, reg); err == nil {
			t.Error("registered twice")
		}
		began := time.Now()
		mustPut(t, s, "k", "0123456789")
		if got := content(t, s, "none"); got != "(none)" {
			t.Error(got)
		}
		r, _, err := s.Get(t.Context(), "k", 2, 3)
		if err != nil {
			t.Fatal(err)
		}
		inFlight := map[string]string{"op": "get"}
		if n := gathered(t, reg, "cistern_objstore_in_flight", inFlight); n != 1 {
			t.Errorf("%v gets in flight", n)
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		for name, c := range map[string]struct {
			labels map[string]string
			want   float64
		}{
			"cistern_objstore_in_flight":       {nil, 0},
			"cistern_objstore_requests_total":  {nil, 3},
			"cistern_objstore_errors_total":    {map[string]string{"op": "get", "class": "not_exist"}, 1},
			"cistern_objstore_bytes_total":     {map[string]string{"direction": "down"}, 3},
			"cistern_objstore_request_seconds": {map[string]string{"op": "put"}, 1},
		} {
			if got := gathered(t, reg, name, c.labels); got != c.want {
				t.Errorf("%s%v = %v, want %v", name, c.labels, got, c.want)
			}
		}
		if got := gathered(t, reg, "cistern_objstore_bytes_total", map[string]string{"direction": "up"}); got != 10 {
			t.Errorf("%v bytes up", got)
		}
		if h := s.Health(); !h.Available || !h.Since.Equal(began) || h.LastError != nil {
			t.Errorf("healthy: %+v", h)
		}

		time.Sleep(time.Minute)
		f.SetOutage(faultstore.Refusing)
		down := time.Now()
		for range 3 {
			if _, err := s.Head(t.Context(), "k"); err == nil {
				t.Error("no outage")
			}
			time.Sleep(time.Second)
		}
		if h := s.Health(); h.Available || !h.Since.Equal(down) || !errors.Is(h.LastError, objstore.ErrUnavailable) || !h.LastErrorAt.Equal(down.Add(2*time.Second)) {
			t.Errorf("outage since %v: %+v", down, h)
		}
		f.SetOutage(faultstore.Up)
		up := time.Now()
		if _, err := s.Head(t.Context(), "none"); !errors.Is(err, objstore.ErrNotExist) {
			t.Error(err)
		}
		if h := s.Health(); !h.Available || !h.Since.Equal(up) || h.LastError == nil {
			t.Errorf("up since %v: %+v", up, h)
		}
	})
}

// TestDecorators_RandomFaults_NothingLost runs writers through the whole stack
// over a bad store: what was acknowledged is there, and nothing else.
func TestDecorators_RandomFaults_NothingLost(t *testing.T) {
	for seed := range uint64(10) {
		synctest.Test(t, func(t *testing.T) {
			m := mem.New()
			f := faultstore.New(m, faultstore.Random(seed, faultstore.Rates{
				Before: 0.1, Lost: 0.1, Late: 0.05, Duplicate: 0.05, Cut: 0.1, Hang: 0.05, MaxDelay: time.Second, MaxLate: time.Minute}))
			defer f.Close()
			timed := objstore.WithTimeout(f, objstore.TimeoutOptions{})
			s := objstore.WithRetry(withLimit(t, withMetrics(t, timed, prometheus.NewRegistry()), 4, 4), objstore.RetryOptions{Attempts: 30, Total: time.Hour})
			var wg sync.WaitGroup
			for w := range 8 {
				wg.Go(func() {
					for i := range 10 {
						key := string(rune('a'+w)) + "/" + string(rune('0'+i))
						body := bytes.Repeat([]byte(key), 100)
						if err := objstore.Create(t.Context(), s, key, body); err != nil {
							t.Errorf("seed %d: %v", seed, err)
							continue
						}
						if got := content(t, s, key); got != string(body) {
							t.Errorf("seed %d: %s holds %.20q", seed, key, got)
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
