package objstoretest

import (
	"fmt"
	"slices"
	"strings"

	"github.com/cisternfs/cistern/objstore"
)

func (t *suite) paging() {
	var all []string
	for i := range 60 {
		for _, form := range []string{"d%02d/x", "d%02d", "d%02d/y/z~", "d%02d-"} {
			all = append(all, fmt.Sprintf(form, i))
		}
	}
	all = t.limits.keep(all)
	for _, key := range all {
		t.mustPut(key, key)
	}
	slices.Sort(all)
	for _, limit := range []int{1, 7, len(all) - 1, len(all), len(all) + 1, 1000, 0, 5000} {
		var got []string
		for pages := 0; pages <= len(all); pages++ {
			last := ""
			if len(got) > 0 {
				last = got[len(got)-1]
			}
			page := t.keys("", last, limit)
			got = append(got, page...)
			if len(page) > objstore.PageSize(limit) {
				t.Fatalf("limit %d: a page of %d keys", limit, len(page))
			}
			if len(page) < objstore.PageSize(limit) {
				break
			}
		}
		if !slices.Equal(got, all) {
			t.Fatalf("limit %d: listed %d keys, want %d:\n%q", limit, len(got), len(all), got)
		}
	}
	n := 0
	if err := objstore.ListAll(t.Context(), t.s, "", "d30", func(objstore.Info) error { n++; return nil }); err != nil {
		t.Fatal(err)
	}
	want := 0
	for _, key := range all {
		if key > "d30" {
			want++
		}
	}
	if n != want {
		t.Fatalf("ListAll after d30: %d keys, want %d", n, want)
	}
}

func (t *suite) prefixes() {
	all := []string{"a", "a/", "a//", "a/1", "a/2", "a0", "b/c/d/1", "b/c/d/2", "b/c/e", "b/c.", "b/c.d/x", "b/c", "b/d", "c~d/e~f", "c~d/g"}
	all = t.limits.keep(all)
	for _, key := range all {
		t.mustPut(key, key)
	}
	slices.Sort(all)
	prefixes := []string{"", "a", "a/", "a//", "a/1", "a/1x", "b", "b/", "b/c", "b/c/", "b/c.", "b/c/d", "b/c/d/", "b/c/d/2", "c~", "c~d/e", "z", "b/x/y"}
	for _, prefix := range prefixes {
		for _, after := range append([]string{"", "0", "b/c/d/1", "zz", "b/c/", "a/1"}, prefixes...) {
			var want []string
			for _, key := range all {
				if strings.HasPrefix(key, prefix) && key > after {
					want = append(want, key)
				}
			}
			if got := t.keys(prefix, after, 0); !slices.Equal(got, want) {
				t.Errorf("prefix %q after %q: listed %q, want %q", prefix, after, got, want)
			}
		}
	}
}

// fresh makes sure that a listing sees what was done just before.
func (t *suite) fresh() {
	for i := range 50 {
		key := fmt.Sprintf("fresh/%03d", i)
		t.mustPut(key, "x")
		if keys := t.keys("fresh/", "", 0); !slices.Contains(keys, key) {
			t.Fatalf("%s was put but is not listed: %q", key, keys)
		}
		if i%2 == 1 {
			continue
		}
		if err := t.s.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
		if keys := t.keys("fresh/", "", 0); slices.Contains(keys, key) {
			t.Fatalf("%s was deleted but is listed: %q", key, keys)
		}
	}
}
