package faultstore_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/mem"
	"github.com/cisternfs/cistern/objstore/objstoretest"
)

func put(ctx context.Context, s objstore.Store, key, body string, cond objstore.Condition) error {
	_, err := s.Put(ctx, key, bytes.NewReader([]byte(body)), int64(len(body)), cond)
	return err
}

func body(t *testing.T, s objstore.Store, key string) string {
	t.Helper()
	p, _, err := objstore.ReadAll(t.Context(), s, key, 1<<20)
	if errors.Is(err, objstore.ErrNotExist) {
		return "(none)"
	}
	if err != nil {
		t.Fatal(err)
	}
	return string(p)
}

func TestStore_Conformance(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Store { return faultstore.New(mem.New(), nil) })
}

func TestStore_Put_Faults(t *testing.T) {
	for name, c := range map[string]struct {
		fault      faultstore.Fault
		now, later string
		answered   bool
	}{
		"none":      {faultstore.Fault{}, "x", "x", true},
		"before":    {faultstore.Fault{Kind: faultstore.Before}, "(none)", "(none)", false},
		"lost":      {faultstore.Fault{Kind: faultstore.Lost}, "x", "x", false},
		"late":      {faultstore.Fault{Kind: faultstore.Late, Late: time.Second}, "(none)", "x", false},
		"duplicate": {faultstore.Fault{Kind: faultstore.Duplicate, Late: time.Second}, "x", "x", false},
		"cut":       {faultstore.Fault{Kind: faultstore.Cut}, "(none)", "(none)", false},
		"flip":      {faultstore.Fault{Kind: faultstore.Flip}, "x", "x", true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := mem.New()
				s := faultstore.New(m, faultstore.FailNth(0, c.fault))
				defer s.Close()
				err := put(t.Context(), s, "k", "x", objstore.Condition{IfAbsent: true})
				if c.answered != (err == nil) || err != nil && !errors.Is(err, objstore.ErrUnavailable) {
					t.Fatalf("put: %v", err)
				}
				if got := body(t, m, "k"); got != c.now {
					t.Fatalf("right after the put: %s, want %s", got, c.now)
				}
				time.Sleep(2 * time.Second)
				if got := body(t, m, "k"); got != c.later {
					t.Fatalf("later: %s, want %s", got, c.later)
				}
			})
		})
	}
}

func TestStore_Put_DuplicateKeepsItsCondition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		duplicate := faultstore.Fault{Kind: faultstore.Duplicate, Late: time.Second}
		s := faultstore.New(m, faultstore.FailNth(0, duplicate))
		defer s.Close()
		if err := put(t.Context(), s, "k", "first", objstore.Condition{IfAbsent: true}); err == nil {
			t.Fatal("the reply was not lost")
		}
		if err := put(t.Context(), s, "k", "second", objstore.Condition{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if got := body(t, m, "k"); got != "second" {
			t.Fatalf("the late create-only put overwrote: %s", got)
		}
		// Deleted in between, the late one does come back.
		s.SetHook(faultstore.FailNth(2, duplicate))
		if err := put(t.Context(), s, "l", "x", objstore.Condition{IfAbsent: true}); err == nil {
			t.Fatal("the reply was not lost")
		}
		if err := s.Delete(t.Context(), "l"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Second)
		if got := body(t, m, "l"); got != "x" {
			t.Fatalf("the late put was not applied: %s", got)
		}
	})
}

func TestStore_Close_DropsLatePuts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		s := faultstore.New(m, faultstore.FailNth(0, faultstore.Fault{Kind: faultstore.Late, Late: time.Second}))
		if err := put(t.Context(), s, "k", "x", objstore.Condition{}); err == nil {
			t.Fatal("no error")
		}
		s.Close()
		time.Sleep(2 * time.Second)
		if got := body(t, m, "k"); got != "(none)" {
			t.Fatalf("applied after Close: %s", got)
		}
	})
}

func TestStore_Get_CutAndFlip(t *testing.T) {
	m := mem.New()
	if err := put(t.Context(), m, "k", "0123456789", objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
	read := func(f faultstore.Fault) (string, error) {
		r, _, err := faultstore.New(m, faultstore.FailNth(0, f)).Get(t.Context(), "k", 2, 5)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		p, err := io.ReadAll(r)
		return string(p), err
	}
	if p, err := read(faultstore.Fault{Kind: faultstore.Cut, At: 3}); p != "234" || err != nil {
		t.Errorf("silent cut: %q, %v", p, err)
	}
	if p, err := read(faultstore.Fault{Kind: faultstore.Cut, At: 3, Err: objstore.ErrUnavailable}); p != "234" || !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("cut with error: %q, %v", p, err)
	}
	if p, err := read(faultstore.Fault{Kind: faultstore.Flip, At: 6}); p != "2#456" || err != nil {
		t.Errorf("flip: %q, %v", p, err)
	}
	if p, err := read(faultstore.Fault{}); p != "23456" || err != nil {
		t.Errorf("no fault: %q, %v", p, err)
	}
}

func TestStore_Kill_EndsCallsInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		if err := put(t.Context(), m, "k", "x", objstore.Condition{}); err != nil {
			t.Fatal(err)
		}
		s := faultstore.New(m, nil)
		r, _, err := s.Get(t.Context(), "k", 0, -1)
		if err != nil {
			t.Fatal(err)
		}
		s.SetHook(func(faultstore.Op, string, int) faultstore.Fault {
			return faultstore.Fault{Kind: faultstore.Hang}
		})
		hanging := make(chan error)
		go func() { hanging <- s.Delete(t.Context(), "k") }()
		synctest.Wait()
		s.Kill()
		s.Kill()
		if err := <-hanging; !errors.Is(err, faultstore.ErrKilled) {
			t.Errorf("call in flight: %v", err)
		}
		if _, err := io.ReadAll(r); !errors.Is(err, faultstore.ErrKilled) {
			t.Errorf("body in flight: %v", err)
		}
		s.SetHook(nil)
		if _, err := s.List(t.Context(), "", "", 0); !errors.Is(err, faultstore.ErrKilled) {
			t.Errorf("later call: %v", err)
		}
		if got := body(t, m, "k"); got != "x" {
			t.Errorf("the killed delete took effect: %s", got)
		}
	})
}

func TestStore_SetOutage_RefusingAndSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := faultstore.New(mem.New(), nil)
		s.SetOutage(faultstore.Refusing)
		if err := s.Delete(t.Context(), "k"); !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("refusing: %v", err)
		}
		s.SetOutage(faultstore.Silent)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.Delete(ctx, "k"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("silent, until the deadline: %v", err)
		}
		result := make(chan error)
		go func() { result <- s.Delete(t.Context(), "k") }()
		synctest.Wait()
		s.SetOutage(faultstore.Up)
		if err := <-result; !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("silent, until the end of the outage: %v", err)
		}
		if err := s.Delete(t.Context(), "k"); err != nil {
			t.Errorf("after the outage: %v", err)
		}
		if s.Calls() != 4 {
			t.Errorf("%d calls counted", s.Calls())
		}
	})
}

func TestRandom_SameSeed_SameFaults(t *testing.T) {
	rates := faultstore.Rates{Before: 0.2, Lost: 0.2, Late: 0.1, Duplicate: 0.1, Cut: 0.1, Flip: 0.1, Hang: 0.1, MaxDelay: time.Second, MaxLate: time.Second}
	draw := func(seed uint64, keys ...string) map[string][]faultstore.Fault {
		h := faultstore.Random(seed, rates)
		m := make(map[string][]faultstore.Fault)
		for i := range 100 {
			for _, k := range keys {
				m[k] = append(m[k], h(faultstore.Put, k, i))
			}
		}
		return m
	}
	a, b, other := draw(1, "x", "y"), draw(1, "y", "x"), draw(2, "x", "y")
	seen, same := make(map[faultstore.Kind]bool), true
	for k := range a {
		for i := range a[k] {
			if a[k][i] != b[k][i] {
				t.Fatalf("key %s, call %d: %v and %v", k, i, a[k][i], b[k][i])
			}
			same = same && a[k][i] == other[k][i]
			seen[a[k][i].Kind] = true
		}
	}
	if same {
		t.Error("another seed gave the same faults")
	}
	if len(seen) != 8 {
		t.Errorf("only %d kinds of faults drawn", len(seen))
	}
}
