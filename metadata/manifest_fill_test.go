package metadata

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
)

// filledIndex has what a manifest is derived from in several directories, and dead things.
func filledIndex(t *testing.T) *Index {
	t.Helper()
	w := newWorld(33)
	ix := openTestIndex(t, NewMemKV())
	for range 40 {
		c, hash, local := w.next(20)
		must(t, ix.Apply(c, hash, local))
	}
	return ix
}

// Both ways to fill a store give the same records, however few of the derived
// ones may wait to be sorted.
func TestManifest_Load_FillEqualsUpdates(t *testing.T) {
	for name, ix := range map[string]*Index{"world": filledIndex(t), "one large directory": openTestIndex(t, NewMemKV())} {
		if name != "world" {
			manyFiles(t, ix, 12000)
		}
		b := newBucket()
		m, _ := writeTestManifest(t, ix, nil, b)
		mem := NewMemKV()
		must(t, loadPages(m, b.get, mem, derivedMax))
		want := contents(t, mem)
		for _, limit := range []int{derivedMax, 1 << 16, 100, 0} {
			kv := openTestBadger(t, t.TempDir())
			must(t, loadPages(m, b.get, kv, limit))
			if got := contents(t, kv); !maps.Equal(got, want) {
				t.Errorf("%s: %d records are filled in with a limit of %d, %d stored by updates; or they differ", name, len(got), limit, len(want))
			}
			must(t, kv.Update(func(w Writer) error { return w.Set([]byte("z"), []byte("1")) }))
			if v, err := kv.Get([]byte("z")); err != nil || string(v) != "1" {
				t.Errorf("%s: an update after it: %q, %v", name, v, err)
			}
		}
	}
}

// A fill that fails leaves a store that is refused, and that can be closed.
func TestManifest_Load_FillFailsWithEachPage(t *testing.T) {
	ix := openTestIndex(t, NewMemKV())
	manyFiles(t, ix, 3000)
	b := newBucket()
	_, doc := writeTestManifest(t, ix, nil, b)
	for n := 0; ; n++ {
		b.left = n
		dir := t.TempDir()
		kv := openTestBadger(t, dir)
		_, err := LoadManifest(doc, b.get, kv)
		if err == nil {
			if n < 3 {
				t.Fatalf("only %d pages", n)
			}
			checkClean(t, openTestIndex(t, kv))
			return
		}
		if !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		empty := len(contents(t, kv)) == 0
		if _, err := OpenIndex(kv, testSlotSize); !empty && !errors.Is(err, ErrDamaged) {
			t.Fatalf("page %d failed: the half-filled index opens with %v", n, err)
		}
	}
}

// Pages out of order are damage, not the end of the process.
func TestManifest_Load_PagesOutOfOrder(t *testing.T) {
	ix := openTestIndex(t, NewMemKV())
	manyFiles(t, ix, 3000)
	b := newBucket()
	m, _ := writeTestManifest(t, ix, nil, b)
	slices.Reverse(m.Pages)
	_, err := LoadManifest(EncodeManifest(m), b.get, openTestBadger(t, t.TempDir()))
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "out of order") {
		t.Fatal(err)
	}
}
