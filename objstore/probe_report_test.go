package objstore_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/binary"
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
				if s.Errors != 0 || s.Min != 0.02 || s.Median != 0.02 || s.P95 != 0.02 || s.P99 != 0.02 || s.Requests != 2*s.Parallel || s.Seconds != 0.04 ||
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

// badSwaps are stores whose compare-and-swap is right when nobody else swaps.
func badSwaps(m *mem.Store) map[string]struct {
	s    objstore.Store
	want string
} {
	holds := func(ctx context.Context, key string, cond objstore.Condition) bool {
		info, err := m.Head(ctx, key)
		return err == nil && info.Version == cond.IfVersion
	}
	anyway := func(ctx context.Context, key, body string, cond objstore.Condition) (objstore.Version, error) {
		return put(ctx, m, key, body, objstore.Condition{IfAbsent: cond.IfAbsent})
	}
	var mu sync.Mutex // guards what follows
	under, told := map[string]int{}, map[string]bool{}
	return map[string]struct {
		s    objstore.Store
		want string
	}{
		"judges before it has the body": {&putFunc{m, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
			if cond.IfVersion != "" && !holds(ctx, key, cond) {
				return "", objstore.ErrConditionFailed
			}
			return anyway(ctx, key, string(read()), cond)
		}}, "16 of 16 concurrent compare-and-swap PUTs with one version were accepted: updates get lost"},
		"judges before it writes": {&putFunc{m, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
			body := string(read())
			if cond.IfVersion != "" && !holds(ctx, key, cond) {
				return "", objstore.ErrConditionFailed
			}
			time.Sleep(time.Millisecond)
			return anyway(ctx, key, body, cond)
		}}, "16 of 16 concurrent compare-and-swap PUTs with one version were accepted: updates get lost"},
		"says yes once and writes nothing": {&putFunc{m, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
			mu.Lock()
			under[key]++
			mu.Unlock()
			body := string(read())
			mu.Lock()
			defer mu.Unlock()
			under[key]--
			if cond.IfVersion == "" || under[key] == 0 && !told[key] {
				return put(ctx, m, key, body, cond)
			}
			if told[key] {
				return "", objstore.ErrConditionFailed
			}
			told[key] = true
			return "of nothing", nil
		}}, "a compare-and-swap PUT was accepted and had no effect"},
	}
}

// TestProbe_LostUpdates_AreNamed swaps on stores that lose updates, in both forms.
func TestProbe_LostUpdates_AreNamed(t *testing.T) {
	for name := range badSwaps(nil) {
		synctest.Test(t, func(t *testing.T) {
			m := mem.New()
			bad := badSwaps(m)[name]
			if err := objstore.Probe(t.Context(), bad.s); !errors.Is(err, objstore.ErrGuarantee) || !strings.Contains(err.Error(), bad.want) {
				t.Errorf("%s: the short form says %v", name, err)
			}
			r, err := objstore.ProbeStore(t.Context(), bad.s, objstore.ProbeOptions{})
			if err != nil || r.Fit() || !strings.Contains(r.Reason(), bad.want) {
				t.Errorf("%s: %v: %q", name, err, r.Reason())
			}
			if results(r)["create-only PUT"] != objstore.ProbeOK || results(r)["compare-and-swap PUT"] != objstore.ProbeOK {
				t.Errorf("%s: more is wrong than the race: %+v", name, r.Checks)
			}
			wantEmpty(t, m)
		})
	}
}

// TestProbe_SmallWindow_IsFoundNearlyAlways: requests arrive over 100 ms and a
// swap is judged 10 ms before it is written.
func TestProbe_SmallWindow_IsFoundNearlyAlways(t *testing.T) {
	const runs = 40
	missed := 0
	for seed := range uint64(runs) {
		synctest.Test(t, func(t *testing.T) {
			m := mem.New()
			s := &putFunc{m, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
				body := string(read())
				if info, err := m.Head(ctx, key); cond.IfVersion != "" && (err != nil || info.Version != cond.IfVersion) {
					return "", objstore.ErrConditionFailed
				}
				if cond.IfVersion != "" {
					time.Sleep(10 * time.Millisecond)
				}
				return put(ctx, m, key, body, objstore.Condition{IfAbsent: cond.IfAbsent})
			}}
			f := faultstore.New(s, faultstore.Random(seed, faultstore.Rates{MaxDelay: 100 * time.Millisecond}))
			err := objstore.Probe(t.Context(), f)
			if err == nil {
				missed++
			} else if !errors.Is(err, objstore.ErrGuarantee) {
				t.Errorf("seed %d: %v", seed, err)
			}
		})
	}
	if missed > runs/10 {
		t.Errorf("%d of %d probes accepted the store", missed, runs)
	}
}

// bodyVersions is a store that makes an object's version from its body, as S3
// does, and lets the racer with the lowest id of sixteen win.
type bodyVersions struct {
	*mem.Store
	mu sync.Mutex // held over a Put
}

func bodyVersion(body []byte) objstore.Version {
	return objstore.Version(fmt.Sprintf("%x", md5.Sum(body)))
}

func (s *bodyVersions) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	p := make([]byte, size)
	if _, err := io.ReadFull(body, p); err != nil {
		return "", err
	}
	if size > 8 {
		time.Sleep(time.Duration(binary.LittleEndian.Uint64(p)%16) * time.Millisecond)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if cond.IfVersion != "" {
		if info, err := s.Head(ctx, key); err != nil || info.Version != cond.IfVersion {
			return "", objstore.ErrConditionFailed
		}
	}
	_, err := put(ctx, s.Store, key, string(p), objstore.Condition{IfAbsent: cond.IfAbsent})
	return bodyVersion(p), err
}

func (s *bodyVersions) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	info, err := s.Head(ctx, key)
	if err != nil {
		return nil, info, err
	}
	r, _, err := s.Store.Get(ctx, key, off, length)
	return r, info, err
}

func (s *bodyVersions) Head(ctx context.Context, key string) (objstore.Info, error) {
	body, info, err := objstore.ReadAll(ctx, s.Store, key, 64<<20)
	info.Version = bodyVersion(body)
	return info, err
}

// TestProbe_VersionsOfBodies_NoFalseVerdict: the same racer wins every round, and
// no round may write what the one before wrote.
func TestProbe_VersionsOfBodies_NoFalseVerdict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &bodyVersions{Store: mem.New()}
		if err := objstore.Probe(t.Context(), s); err != nil {
			t.Error(err)
		}
		r, err := objstore.ProbeStore(t.Context(), s, objstore.ProbeOptions{})
		if err != nil || !r.Fit() {
			t.Errorf("%v: %q", err, r.Reason())
		}
		wantEmpty(t, s.Store)
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

// TestProbe_Slow_TakesFewRoundTrips bounds what format and a mount pay for their probes.
func TestProbe_Slow_TakesFewRoundTrips(t *testing.T) {
	probes := probes()
	fewRoundTrips(t, probes[0], 12, 150)
	fewRoundTrips(t, probes[1], 9, 100)
}

func fewRoundTrips(t *testing.T, probe func(context.Context, objstore.Store) error, trips, most int) {
	t.Helper()
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
		if err := probe(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(start); took > time.Duration(trips)*time.Second {
			t.Errorf("took %v where a round trip takes a second", took)
		}
		if puts > most {
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
