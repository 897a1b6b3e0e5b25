package objstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

func TestReadRange_AllOrError(t *testing.T) {
	m := mem.New()
	mustPut(t, m, "k", "0123456789")
	for _, c := range []struct {
		off   int64
		n     int
		want  string
		class error
	}{
		{0, 10, "0123456789", nil}, {3, 4, "3456", nil}, {0, 0, "", nil}, {50, 0, "", nil},
		{0, 11, "", objstore.ErrDamaged}, {8, 3, "", objstore.ErrDamaged}, {10, 1, "", objstore.ErrDamaged},
	} {
		p := make([]byte, c.n)
		err := objstore.ReadRange(t.Context(), m, "k", c.off, p)
		if !errors.Is(err, c.class) || err == nil && string(p) != c.want {
			t.Errorf("%d+%d: %q, %v", c.off, c.n, p, err)
		}
	}
	if err := objstore.ReadRange(t.Context(), m, "k", -1, make([]byte, 1)); err == nil {
		t.Error("a negative offset was accepted")
	}
	if err := objstore.ReadRange(t.Context(), m, "none", 0, make([]byte, 1)); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("missing key: %v", err)
	}
	cut := faultstore.New(m, faultstore.FailNth(0, faultstore.Fault{Kind: faultstore.Cut, At: 5}))
	if err := objstore.ReadRange(t.Context(), cut, "k", 0, make([]byte, 10)); !errors.Is(err, objstore.ErrDamaged) {
		t.Errorf("a body cut short: %v", err)
	}
}

func TestReadAll_ChecksLength(t *testing.T) {
	m := mem.New()
	mustPut(t, m, "k", "0123456789")
	mustPut(t, m, "empty", "")
	if p, info, err := objstore.ReadAll(t.Context(), m, "k", 10); err != nil || string(p) != "0123456789" || info.Size != 10 {
		t.Errorf("%q, %+v, %v", p, info, err)
	}
	if p, _, err := objstore.ReadAll(t.Context(), m, "empty", 0); err != nil || len(p) != 0 {
		t.Errorf("%q, %v", p, err)
	}
	if _, info, err := objstore.ReadAll(t.Context(), m, "k", 9); !errors.Is(err, objstore.ErrTooLarge) || info.Size != 10 {
		t.Errorf("too large: %+v, %v", info, err)
	}
	for at := range int64(10) {
		s := faultstore.New(m, faultstore.FailNth(0, faultstore.Fault{Kind: faultstore.Cut, At: at}))
		if _, _, err := objstore.ReadAll(t.Context(), s, "k", 10); !errors.Is(err, objstore.ErrDamaged) {
			t.Errorf("cut at %d: %v", at, err)
		}
	}
	if _, _, err := objstore.ReadAll(t.Context(), &overlong{m}, "k", 100); !errors.Is(err, objstore.ErrDamaged) {
		t.Errorf("overlong body: %v", err)
	}
}

// listFunc is a store with a List of its own.
type listFunc struct {
	objstore.Store
	list func(prefix, startAfter string) []objstore.Info
}

func (l *listFunc) List(_ context.Context, prefix, startAfter string, _ int) ([]objstore.Info, error) {
	return l.list(prefix, startAfter), nil
}

func TestListAll_PagesAndErrors(t *testing.T) {
	m := mem.New()
	for i := range 2500 {
		mustPut(t, m, fmt.Sprintf("p/%05d", i), "")
	}
	mustPut(t, m, "q", "")
	n := 0
	count := func(objstore.Info) error { n++; return nil }
	if err := objstore.ListAll(t.Context(), m, "p/", "p/00999", count); err != nil || n != 1500 {
		t.Errorf("%d keys, %v", n, err)
	}
	stop := errors.New("stop")
	if err := objstore.ListAll(t.Context(), m, "", "", func(objstore.Info) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("the caller's error: %v", err)
	}
	for fail := range 3 {
		s := faultstore.New(m, faultstore.FailNth(fail, faultstore.Fault{Kind: faultstore.Before}))
		if err := objstore.ListAll(t.Context(), s, "p/", "", count); !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("page %d fails: %v", fail, err)
		}
	}
	// A store that never gets on must not be listed for ever.
	stuck := &listFunc{m, func(prefix, _ string) []objstore.Info {
		return []objstore.Info{{Key: prefix + "b"}, {Key: prefix + "a"}}
	}}
	if err := objstore.ListAll(t.Context(), stuck, "p/", "", count); !errors.Is(err, objstore.ErrDamaged) {
		t.Errorf("descending keys: %v", err)
	}
	foreign := &listFunc{m, func(string, string) []objstore.Info { return []objstore.Info{{Key: "x"}} }}
	if err := objstore.ListAll(t.Context(), foreign, "p/", "", count); !errors.Is(err, objstore.ErrDamaged) {
		t.Errorf("key outside the prefix: %v", err)
	}
}

func TestClass_NamesEverySentinel(t *testing.T) {
	for want, err := range map[string]error{
		"ok": nil, "not_exist": objstore.ErrNotExist, "condition_failed": objstore.ErrConditionFailed, "permission": objstore.ErrPermission,
		"no_bucket": objstore.ErrNoBucket, "unavailable": objstore.ErrUnavailable, "throttled": objstore.ErrThrottled, "damaged": objstore.ErrDamaged,
		"cancelled": context.Canceled, "other": errors.New("x"),
	} {
		if err != nil {
			err = fmt.Errorf("wrapped: %w", err)
		}
		if got := objstore.Class(err); got != want {
			t.Errorf("%v: %s", err, got)
		}
	}
}
