package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

// results are a report's checks by name.
func results(r *objstore.ProbeReport) map[string]string {
	m := map[string]string{}
	for _, c := range r.Checks {
		m[c.Name] = c.Result
	}
	return m
}

func TestProbeStore_GoodStore_IsFitAndMeasured(t *testing.T) {
	for _, short := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			m := mem.New()
			mustPut(t, m, "volume.json", "a volume")
			mustPut(t, m, "probe/other/one", "another's probe")
			f := faultstore.New(m, func(faultstore.Op, string, int) faultstore.Fault {
				return faultstore.Fault{Delay: 20 * time.Millisecond}
			})
			var steps []int
			last := 0
			start := time.Now()
			r, err := objstore.ProbeStore(t.Context(), f, objstore.ProbeOptions{Short: short, CellTime: 40 * time.Millisecond, Progress: func(done, total int) {
				steps, last = append(steps, done), total
			}})
			if err != nil || !r.Fit() || r.Reason() != "" || r.Left != "" {
				t.Fatalf("%v: %+v", err, r)
			}
			if len(steps) != last || steps[len(steps)-1] != last {
				t.Errorf("progress %v of %d", steps, last)
			}
			for _, name := range []string{
				"may PUT", "may GET", "may HEAD", "may LIST", "may DELETE", "create-only PUT", "compare-and-swap PUT",
				"64 concurrent creators", "16 concurrent swappers", "range reads", "listing", "deleting",
			} {
				if results(r)[name] != objstore.ProbeOK {
					t.Errorf("%s: %q", name, results(r)[name])
				}
			}
			if page, err := m.List(t.Context(), "", "", 0); err != nil || len(page) != 2 {
				t.Errorf("left behind: %d keys, %v", len(page), err)
			}
			if short {
				if len(r.Speed) != 0 {
					t.Errorf("measured: %+v", r.Speed)
				}
				return
			}
			if len(r.Speed) != 12 {
				t.Fatalf("%d measurements", len(r.Speed))
			}
			for _, s := range r.Speed {
				if s.Errors != 0 || s.Min != 20 || s.Median != 20 || s.P95 != 20 || s.P99 != 20 || s.Requests != 2*s.Parallel || s.Seconds != 0.04 ||
					s.BytesPerSecond != float64(s.Size)*float64(s.Requests)/s.Seconds {
					t.Errorf("%+v", s)
				}
			}
			if took := time.Since(start); took > 30*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}

// TestProbeStore_LostUpdates_AreNamed swaps on a store that compares the version
// before it has the body.
func TestProbeStore_LostUpdates_AreNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		s := &putFunc{m, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
			if info, err := m.Head(ctx, key); cond.IfVersion != "" && (err != nil || info.Version != cond.IfVersion) {
				return "", objstore.ErrConditionFailed
			}
			return put(ctx, m, key, string(read()), objstore.Condition{IfAbsent: cond.IfAbsent})
		}}
		r, err := objstore.ProbeStore(t.Context(), s, objstore.ProbeOptions{})
		if err != nil || r.Fit() || !strings.Contains(r.Reason(), "16 concurrent compare-and-swap PUTs with one version were accepted: updates get lost") {
			t.Errorf("%v: %q", err, r.Reason())
		}
		if results(r)["create-only PUT"] != objstore.ProbeOK || results(r)["compare-and-swap PUT"] != objstore.ProbeOK {
			t.Errorf("more is wrong than the race: %+v", r.Checks)
		}
		wantEmpty(t, m)
	})
}

func TestProbeStore_Permissions_EachIsNamed(t *testing.T) {
	for op, name := range map[faultstore.Op]string{
		faultstore.Put: "may PUT", faultstore.Get: "may GET", faultstore.Head: "may HEAD", faultstore.List: "may LIST", faultstore.Delete: "may DELETE",
	} {
		synctest.Test(t, func(t *testing.T) {
			f := faultstore.New(mem.New(), func(o faultstore.Op, _ string, _ int) faultstore.Fault {
				if o == op {
					return faultstore.Fault{Kind: faultstore.Before, Err: objstore.ErrPermission}
				}
				return faultstore.Fault{}
			})
			r, err := objstore.ProbeStore(t.Context(), f, objstore.ProbeOptions{})
			if err != nil || r.Fit() || !strings.HasPrefix(r.Reason(), name+": ") || len(r.Checks) != 5 {
				t.Fatalf("%v: %+v", err, r)
			}
			for other, result := range results(r) {
				if want := map[bool]string{true: objstore.ProbeDenied, false: objstore.ProbeOK}[other == name]; result != want {
					t.Errorf("without %s: %s is %s", op, other, result)
				}
			}
			if op == faultstore.Delete && r.Left == "" {
				t.Error("does not say what was left behind")
			}
		})
	}
}

func TestProbeStore_Unreachable_IsNoVerdict(t *testing.T) {
	for _, outage := range []error{objstore.ErrUnavailable, objstore.ErrNoBucket} {
		for _, after := range []int{0, 1, 5, 40, 100} {
			synctest.Test(t, func(t *testing.T) {
				f := faultstore.New(mem.New(), func(_ faultstore.Op, _ string, n int) faultstore.Fault {
					if n >= after {
						return faultstore.Fault{Kind: faultstore.Before, Err: outage}
					}
					return faultstore.Fault{}
				})
				r, err := objstore.ProbeStore(t.Context(), f, objstore.ProbeOptions{Short: true})
				if !errors.Is(err, outage) {
					t.Errorf("away after %d calls: %v", after, err)
				}
				for _, c := range r.Checks {
					if c.Result == objstore.ProbeFailed {
						t.Errorf("away after %d calls: a verdict: %+v", after, c)
					}
				}
			})
		}
	}
}

func TestProbeStore_Cancelled_LeavesNothing(t *testing.T) {
	for _, after := range []time.Duration{time.Millisecond, 300 * time.Millisecond, time.Second, 4 * time.Second, 6 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			m := mem.New()
			f := faultstore.New(m, func(faultstore.Op, string, int) faultstore.Fault {
				return faultstore.Fault{Delay: 100 * time.Millisecond}
			})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(after, cancel)
			start := time.Now()
			if _, err := objstore.ProbeStore(ctx, f, objstore.ProbeOptions{CellTime: 200 * time.Millisecond}); !errors.Is(err, context.Canceled) {
				t.Errorf("cancelled after %v: %v", after, err)
			}
			if took := time.Since(start); took > after+30*time.Second {
				t.Errorf("cancelled after %v, ended after %v", after, took)
			}
			wantEmpty(t, m)
		})
	}
}

// twoPasses is a store whose client reads a body once for its checksum and once
// more to send it.
type twoPasses struct {
	objstore.Store
	verify bool
}

func (s *twoPasses) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	sum, err := io.ReadAll(body)
	if err != nil {
		return "", err
	}
	if _, err := body.Seek(0, io.SeekStart); err != nil {
		return "", err
	}
	sent, err := io.ReadAll(body)
	if err != nil {
		return "", err
	}
	if s.verify && !bytes.Equal(sum, sent) {
		return "", errors.New("bad digest")
	}
	return s.Store.Put(ctx, key, bytes.NewReader(sent), size, cond)
}

func TestProbeStore_DamagedUpload_SaysWhatTheStoreDoes(t *testing.T) {
	for want, wrap := range map[string]func(s objstore.Store) objstore.Store{
		"refused by the store": func(s objstore.Store) objstore.Store { return &twoPasses{s, true} },
		"stored as they came":  func(s objstore.Store) objstore.Store { return &twoPasses{s, false} },
		"not tested":           func(s objstore.Store) objstore.Store { return s },
	} {
		synctest.Test(t, func(t *testing.T) {
			r, err := objstore.ProbeStore(t.Context(), wrap(mem.New()), objstore.ProbeOptions{Short: true})
			if err != nil || !r.Fit() {
				t.Fatalf("%v: %+v", err, r)
			}
			for _, c := range r.Checks {
				if c.Name == "damaged uploads" && !strings.HasPrefix(c.Detail, want) {
					t.Errorf("%q, want %q", c.Detail, want)
				}
			}
		})
	}
}

// TestProbe_Slow_TakesFewRoundTrips bounds what a mount pays for its probe.
func TestProbe_Slow_TakesFewRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		f := faultstore.New(m, func(faultstore.Op, string, int) faultstore.Fault { return faultstore.Fault{Delay: time.Second} })
		var mu sync.Mutex
		puts := 0
		s := &putFunc{f, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
			mu.Lock()
			puts++
			mu.Unlock()
			return put(ctx, f, key, string(read()), cond)
		}}
		start := time.Now()
		if err := objstore.Probe(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > 12*time.Second {
			t.Errorf("took %v where a round trip takes a second", took)
		}
		if puts > 80 {
			t.Errorf("%d PUTs", puts)
		}
		wantEmpty(t, m)
	})
}

func TestProbeStore_FaultsInPassing_NoFalseVerdict(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			m := mem.New()
			f := faultstore.New(m, faultstore.Random(seed, faultstore.Rates{Before: 0.1, Lost: 0.1, MaxDelay: 100 * time.Millisecond}))
			r, err := objstore.ProbeStore(t.Context(), f, objstore.ProbeOptions{Short: true})
			if err != nil && !errors.Is(err, objstore.ErrUnavailable) {
				t.Errorf("seed %d: %v", seed, err)
			}
			for _, c := range r.Checks {
				if c.Result == objstore.ProbeFailed {
					t.Errorf("seed %d: a good store was refused: %s", seed, fmt.Sprint(c))
				}
			}
		})
	}
}
