package objstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/local"
	"github.com/cisternfs/cistern/objstore/mem"
)

// putFunc is a store whose Puts are bent before the real one sees them.
type putFunc struct {
	objstore.Store
	put func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error)
}

func (b *putFunc) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	return b.put(ctx, key, func() []byte {
		p := make([]byte, size)
		if _, err := io.ReadFull(body, p); err != nil {
			panic(err)
		}
		return p
	}, cond)
}

// overlong declares one byte less than it sends.
type overlong struct{ objstore.Store }

func (o *overlong) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	r, info, err := o.Store.Get(ctx, key, off, length)
	info.Size--
	return r, info, err
}

// flatRange ignores the range of a Get.
type flatRange struct{ objstore.Store }

func (f *flatRange) Get(ctx context.Context, key string, _, length int64) (io.ReadCloser, objstore.Info, error) {
	return f.Store.Get(ctx, key, 0, length)
}

// staleList answers with the listing of before the last change to it.
type staleList struct {
	objstore.Store
	m *mem.Store
}

func (s *staleList) List(ctx context.Context, prefix, startAfter string, limit int) ([]objstore.Info, error) {
	now, err := s.m.List(ctx, prefix, startAfter, limit)
	for i := s.m.Len(); i >= 0 && err == nil; i-- {
		if before, err := s.m.At(i).List(ctx, prefix, startAfter, limit); err != nil || len(before) != len(now) {
			return before, err
		}
	}
	return now, err
}

func TestProbe_BrokenStores_AreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		breakIt func(m *mem.Store) objstore.Store
		want    string
	}{
		"ignores IfAbsent": {func(m *mem.Store) objstore.Store {
			return &putFunc{m, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
				cond.IfAbsent = false
				return put(ctx, m, key, string(read()), cond)
			}}
		}, "a create-only PUT to an existing key was accepted"},
		"says no but overwrites": {func(m *mem.Store) objstore.Store {
			return &putFunc{m, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
				_, headErr := m.Head(ctx, key)
				v, err := put(ctx, m, key, string(read()), objstore.Condition{IfVersion: cond.IfVersion})
				if headErr == nil && cond.IfAbsent {
					return "", objstore.ErrConditionFailed
				}
				return v, err
			}}
		}, "what is read after a refused create"},
		"checks before the body": {func(m *mem.Store) objstore.Store {
			return &putFunc{m, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
				if _, err := m.Head(ctx, key); cond.IfAbsent && err == nil {
					return "", objstore.ErrConditionFailed
				}
				return put(ctx, m, key, string(read()), objstore.Condition{IfVersion: cond.IfVersion})
			}}
		}, "concurrent create-only PUTs"},
		"ignores IfVersion": {func(m *mem.Store) objstore.Store {
			return &putFunc{m, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
				cond.IfVersion = ""
				return put(ctx, m, key, string(read()), cond)
			}}
		}, "a compare-and-swap PUT with a wrong version was accepted"},
		"ignores IfVersion of missing keys": {func(m *mem.Store) objstore.Store {
			return &putFunc{m, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
				if _, err := m.Head(ctx, key); err != nil {
					cond.IfVersion = ""
				}
				return put(ctx, m, key, string(read()), cond)
			}}
		}, "a compare-and-swap PUT to a missing key was accepted"},
		"drops writes": {func(m *mem.Store) objstore.Store {
			return &putFunc{m, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
				return "v0", nil
			}}
		}, "not found right after it was written"},
		"ranges ignored":    {func(m *mem.Store) objstore.Store { return &flatRange{m} }, "a read of a range"},
		"stale list":        {func(m *mem.Store) objstore.Store { return &staleList{m, m} }, "a listing"},
		"delete is ignored": {func(m *mem.Store) objstore.Store { return &noDelete{m} }, "a listing"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for _, probe := range probes() {
					m := mem.NewRecording()
					err := probe(t.Context(), c.breakIt(m))
					if !errors.Is(err, objstore.ErrGuarantee) || !strings.Contains(err.Error(), c.want) {
						t.Errorf("probe: %v", err)
					}
					if name != "delete is ignored" {
						wantEmpty(t, m)
					}
				}
			})
		})
	}
}

// probes are the two short forms.
func probes() []func(context.Context, objstore.Store) error {
	return []func(context.Context, objstore.Store) error{objstore.Probe, objstore.ProbeAgain}
}

// noDelete says that it deletes.
type noDelete struct{ objstore.Store }

func (*noDelete) Delete(context.Context, string) error { return nil }

func wantEmpty(t *testing.T, s objstore.Store) {
	t.Helper()
	if page, err := s.List(context.WithoutCancel(t.Context()), "", "", 0); err != nil || len(page) != 0 {
		t.Errorf("left behind: %v, %v", page, err)
	}
}

// Old S3 gateways refuse every compare-and-swap.
func TestProbe_RefusesEveryVersion_IsNamed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		s := &putFunc{m, func(ctx context.Context, key string, read func() []byte, cond objstore.Condition) (objstore.Version, error) {
			if cond.IfVersion != "" {
				return "", objstore.ErrConditionFailed
			}
			return put(ctx, m, key, string(read()), cond)
		}}
		err := objstore.Probe(t.Context(), s)
		if !errors.Is(err, objstore.ErrGuarantee) || !strings.Contains(err.Error(), "with the right version was refused") {
			t.Errorf("probe: %v", err)
		}
		wantEmpty(t, m)
	})
}

func TestProbe_GoodStores_Pass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		mustPut(t, m, "probe", "")
		mustPut(t, m, "probe/x", "")
		limited := withLimit(t, objstore.WithPrefix(m, "p/"), 4, 4)
		for _, s := range []objstore.Store{m, objstore.WithRetry(limited, objstore.RetryOptions{})} {
			for _, probe := range probes() {
				if err := probe(t.Context(), s); err != nil {
					t.Error(err)
				}
			}
		}
		if page, err := m.List(t.Context(), "", "", 0); err != nil || len(page) != 2 {
			t.Errorf("left behind: %v, %v", page, err)
		}
	})
	dir, err := local.Create(filepath.Join(t.TempDir(), "b"))
	if err != nil {
		t.Fatal(err)
	}
	if err := objstore.Probe(t.Context(), dir); err != nil {
		t.Error(err)
	}
	wantEmpty(t, dir)
}

func TestProbe_EveryFault_NoFalseVerdict(t *testing.T) {
	for _, fault := range []faultstore.Fault{{Kind: faultstore.Before}, {Kind: faultstore.Lost}} {
		for n, calls := 0, 1; n < calls; n++ {
			synctest.Test(t, func(t *testing.T) {
				m := mem.New()
				s := faultstore.New(m, faultstore.FailNth(n, fault))
				err := objstore.Probe(t.Context(), s)
				if errors.Is(err, objstore.ErrGuarantee) {
					t.Errorf("fault at call %d: a good store was refused: %v", n, err)
				}
				if err != nil && !errors.Is(err, objstore.ErrUnavailable) {
					t.Errorf("fault at call %d: %v", n, err)
				}
				if page, _ := m.List(t.Context(), "", "", 0); len(page) != 0 && (err == nil || !strings.Contains(err.Error(), "remove")) {
					t.Errorf("fault at call %d: left %v behind and said %v", n, page, err)
				}
				calls = max(calls, s.Calls())
			})
		}
	}
}

func TestProbe_ContextEnds_CleansUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := mem.New()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		s := faultstore.New(m, func(op faultstore.Op, _ string, n int) faultstore.Fault {
			if n == 6 {
				cancel()
				return faultstore.Fault{Delay: time.Second}
			}
			return faultstore.Fault{}
		})
		if err := objstore.Probe(ctx, s); !errors.Is(err, context.Canceled) {
			t.Errorf("probe: %v", err)
		}
		wantEmpty(t, m)
	})
}

func TestFirstKeys_WithoutWhatProbesLeft(t *testing.T) {
	m := mem.New()
	want := func(most int, keys ...string) {
		t.Helper()
		list, err := objstore.FirstKeys(t.Context(), m, most)
		var got []string
		for _, i := range list {
			got = append(got, i.Key)
		}
		if err != nil || !slices.Equal(got, keys) {
			t.Errorf("first %d: %q, %v, want %q", most, got, err, keys)
		}
	}
	want(2)
	for i := range 7 {
		mustPut(t, m, fmt.Sprintf("probe/ABC/%d", i), "left")
	}
	want(1)
	want(5)
	mustPut(t, m, "volume.json", "")
	want(1, "volume.json")
	mustPut(t, m, "probe0", "")
	want(1, "probe0")
	mustPut(t, m, "lease.json", "")
	want(1, "lease.json")
	want(5, "lease.json", "probe0", "volume.json")
}
