package objstore_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

func put(ctx context.Context, s objstore.Store, key, body string, cond objstore.Condition) (objstore.Version, error) {
	return s.Put(ctx, key, bytes.NewReader([]byte(body)), int64(len(body)), cond)
}

func mustPut(t *testing.T, s objstore.Store, key, body string) objstore.Version {
	t.Helper()
	v, err := put(t.Context(), s, key, body, objstore.Condition{})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// content returns what key holds, or "(none)".
func content(t *testing.T, s objstore.Store, key string) string {
	t.Helper()
	p, _, err := objstore.ReadAll(t.Context(), s, key, 64<<20)
	if errors.Is(err, objstore.ErrNotExist) {
		return "(none)"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}

// settledFaults are all that can befall a request and must be settled without
// the caller noticing.
func settledFaults() map[string]faultstore.Fault {
	return map[string]faultstore.Fault{
		"before":          {Kind: faultstore.Before},
		"lost":            {Kind: faultstore.Lost},
		"lost, 412":       {Kind: faultstore.Lost, Err: objstore.ErrConditionFailed},
		"before, 409":     {Kind: faultstore.Before, Err: objstore.ErrConditionFailed},
		"late":            {Kind: faultstore.Late, Late: 10 * time.Millisecond},
		"late, much":      {Kind: faultstore.Late, Late: time.Minute},
		"duplicate":       {Kind: faultstore.Duplicate, Late: 10 * time.Millisecond},
		"duplicate, much": {Kind: faultstore.Duplicate, Late: time.Minute},
		"cut":             {Kind: faultstore.Cut, At: 3},
		"flip":            {Kind: faultstore.Flip, At: 3},
		"slow":            {Delay: time.Second},
	}
}

// walkFaults calls do with each fault at each call of it, and for each fault at
// the first call together with a lost reply before. do reports how many calls
// it made.
func walkFaults(t *testing.T, do func(t *testing.T, hook faultstore.Hook) (calls int)) {
	t.Helper()
	for name, fault := range settledFaults() {
		for n := 0; ; n++ {
			calls := 0
			t.Run(fmt.Sprintf("%s/%d", name, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { calls = do(t, faultstore.FailNth(n, fault)) })
			})
			t.Run(fmt.Sprintf("lost+%s/%d", name, n), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					calls = max(calls, do(t, func(op faultstore.Op, key string, i int) faultstore.Fault {
						if i == 0 {
							return faultstore.Fault{Kind: faultstore.Lost}
						}
						return faultstore.FailNth(n, fault)(op, key, i)
					}))
				})
			})
			if n >= calls {
				break
			}
		}
	}
}

func TestCreate_EveryFault_StoresOnce(t *testing.T) {
	walkFaults(t, func(t *testing.T, hook faultstore.Hook) int {
		m := mem.NewRecording()
		s := faultstore.New(m, hook)
		defer s.Close()
		if err := objstore.Create(t.Context(), s, "k", []byte("my body")); err != nil {
			t.Errorf("create: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if got := content(t, m, "k"); got != "my body" || m.Len() != 1 {
			t.Errorf("the key holds %q after %d mutations", got, m.Len())
		}
		return s.Calls()
	})
}

func TestCreate_EveryFault_ConflictIsCertain(t *testing.T) {
	walkFaults(t, func(t *testing.T, hook faultstore.Hook) int {
		m := mem.New()
		mustPut(t, m, "k", "others")
		s := faultstore.New(m, hook)
		defer s.Close()
		err := objstore.Create(t.Context(), s, "k", []byte("mybody"))
		var conflict *objstore.ConflictError
		if !errors.As(err, &conflict) || !errors.Is(err, objstore.ErrConditionFailed) {
			t.Fatalf("create: %v", err)
		}
		if string(conflict.Body) != "others" || conflict.Found.Size != 6 || conflict.Key != "k" {
			t.Errorf("found %+v with body %q", conflict.Found, conflict.Body)
		}
		time.Sleep(2 * time.Minute)
		if got := content(t, m, "k"); got != "others" {
			t.Errorf("the key holds %q", got)
		}
		return s.Calls()
	})
}

func TestCompareAndSwap_EveryFault_SwapsOnce(t *testing.T) {
	walkFaults(t, func(t *testing.T, hook faultstore.Hook) int {
		m := mem.NewRecording()
		v1 := mustPut(t, m, "k", "old body")
		s := faultstore.New(m, hook)
		defer s.Close()
		v, err := objstore.CompareAndSwap(t.Context(), s, "k", v1, []byte("new body"))
		if err != nil {
			t.Fatalf("swap: %v", err)
		}
		time.Sleep(2 * time.Minute)
		info, err := m.Head(t.Context(), "k")
		if err != nil || info.Version != v || content(t, m, "k") != "new body" || m.Len() != 2 {
			t.Errorf("swap gave %q; the key is %+v (%v) after %d mutations", v, info, err, m.Len())
		}
		return s.Calls()
	})
}

func TestCompareAndSwap_EveryFault_ConflictIsCertain(t *testing.T) {
	walkFaults(t, func(t *testing.T, hook faultstore.Hook) int {
		m := mem.New()
		v1 := mustPut(t, m, "k", "old")
		mustPut(t, m, "k", "others")
		s := faultstore.New(m, hook)
		defer s.Close()
		_, err := objstore.CompareAndSwap(t.Context(), s, "k", v1, []byte("mybody"))
		var conflict *objstore.ConflictError
		if !errors.As(err, &conflict) || string(conflict.Body) != "others" {
			t.Fatalf("swap: %v", err)
		}
		time.Sleep(2 * time.Minute)
		if got := content(t, m, "k"); got != "others" {
			t.Errorf("the key holds %q", got)
		}
		return s.Calls()
	})
}

func TestCompareAndSwap_MissingKey_Conflict(t *testing.T) {
	var conflict *objstore.ConflictError
	_, err := objstore.CompareAndSwap(t.Context(), mem.New(), "k", "v1", []byte("x"))
	if !errors.As(err, &conflict) || conflict.Found.Version != "" || conflict.Body != nil {
		t.Errorf("swap: %v", err)
	}
}

func TestCompareAndSwap_EmptyVersion_WritesNothing(t *testing.T) {
	m := mem.New()
	mustPut(t, m, "k", "old")
	if _, err := objstore.CompareAndSwap(t.Context(), m, "k", "", []byte("new")); err == nil {
		t.Error("swapped from the empty version")
	}
	if got := content(t, m, "k"); got != "old" {
		t.Errorf("the key holds %q", got)
	}
}

func TestCreate_StoreStaysDown_OutcomeUnknown(t *testing.T) {
	for name, hook := range map[string]faultstore.Hook{
		"unavailable": func(faultstore.Op, string, int) faultstore.Fault {
			return faultstore.Fault{Kind: faultstore.Before}
		},
		"refuses for no reason": func(op faultstore.Op, _ string, _ int) faultstore.Fault {
			if op == faultstore.Put {
				return faultstore.Fault{Kind: faultstore.Before, Err: objstore.ErrConditionFailed}
			}
			return faultstore.Fault{}
		},
		"refuses and can't be read": func(op faultstore.Op, _ string, _ int) faultstore.Fault {
			if op == faultstore.Put {
				return faultstore.Fault{Kind: faultstore.Before, Err: objstore.ErrConditionFailed}
			}
			return faultstore.Fault{Kind: faultstore.Before}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := faultstore.New(mem.New(), hook)
				start := time.Now()
				err := objstore.Create(t.Context(), s, "k", []byte("x"))
				if !errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, objstore.ErrConditionFailed) {
					t.Errorf("create: %v", err)
				}
				if took := time.Since(start); took > time.Minute {
					t.Errorf("gave up after %v", took)
				}
				// A context that ends must not make a refusal look certain either.
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
				defer cancel()
				err = objstore.Create(ctx, s, "k", []byte("x"))
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, objstore.ErrConditionFailed) {
					t.Errorf("create with a deadline: %v", err)
				}
			})
		})
	}
}

func TestCreate_NoAccess_FailsAtOnce(t *testing.T) {
	for _, class := range []error{objstore.ErrPermission, objstore.ErrNoBucket} {
		s := faultstore.New(mem.New(), faultstore.FailNth(0, faultstore.Fault{Kind: faultstore.Before, Err: class}))
		if err := objstore.Create(t.Context(), s, "k", nil); !errors.Is(err, class) || s.Calls() != 1 {
			t.Errorf("create: %v after %d calls", err, s.Calls())
		}
	}
}

func TestCreate_LargeForeignBody_NotCarried(t *testing.T) {
	m := mem.New()
	mustPut(t, m, "k", strings.Repeat("x", 2<<20))
	var conflict *objstore.ConflictError
	if err := objstore.Create(t.Context(), m, "k", []byte("x")); !errors.As(err, &conflict) || conflict.Body != nil || conflict.Found.Size != 2<<20 {
		t.Errorf("create: %v", err)
	}
}

// TestCompareAndSwap_Incrementers_LoseNothing counts up through a store that
// loses, delays and repeats requests.
func TestCompareAndSwap_Incrementers_LoseNothing(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			m := mem.New()
			mustPut(t, m, "k", "")
			s := faultstore.New(m, faultstore.Random(seed, faultstore.Rates{
				Before: 0.1, Lost: 0.1, Late: 0.05, Duplicate: 0.05, Cut: 0.05, Flip: 0.05, MaxDelay: time.Second, MaxLate: 10 * time.Second}))
			defer s.Close()
			var wg sync.WaitGroup
			var mu sync.Mutex
			acked := make(map[string]bool)
			for w := range 4 {
				wg.Go(func() {
					for i := range 10 {
						// Each appends a line of its own; the body is unique.
						p, info, err := objstore.ReadAll(t.Context(), m, "k", 1<<20)
						if err != nil {
							t.Errorf("read: %v", err)
							return
						}
						line := fmt.Sprintf("%d.%d\n", w, i)
						if _, err := objstore.CompareAndSwap(t.Context(), s, "k", info.Version, append(p, line...)); err == nil {
							mu.Lock()
							acked[line] = true
							mu.Unlock()
						}
					}
				})
			}
			wg.Wait()
			final := content(t, m, "k")
			for line := range acked {
				if strings.Count("\n"+final, "\n"+line) != 1 {
					t.Errorf("seed %d: acknowledged %q is not there once", seed, line)
				}
			}
			if len(acked) == 0 {
				t.Errorf("seed %d: nothing got through", seed)
			}
		})
	}
}
