package objstoretest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cisternfs/cistern/objstore"
)

// Run checks the stores that open returns: each call gives one that is empty
// and independent of the others. open registers its own cleanup.
func Run(t *testing.T, open func(t *testing.T) objstore.Store) { RunWithin(t, Limits{}, open) }

// RunWithin is Run for a store with limits.
func RunWithin(t *testing.T, limits Limits, open func(t *testing.T) objstore.Store) {
	for _, c := range []struct {
		name string
		test func(*suite)
	}{
		{"Get_Ranges", (*suite).ranges},
		{"Get_EmptyBody", (*suite).emptyBody},
		{"Get_BigBody", (*suite).bigBody},
		{"Get_WhileOverwritten", (*suite).readWhileOverwritten},
		{"Put_Overwrite", (*suite).overwrite},
		{"Put_BodyPosition", (*suite).bodyPosition},
		{"Put_ShortBody", (*suite).shortBody},
		{"Put_BadArguments", (*suite).badArguments},
		{"Put_IfAbsent", (*suite).ifAbsent},
		{"Put_IfAbsent_64Creators", (*suite).creators},
		{"Put_IfVersion", (*suite).ifVersion},
		{"Put_IfVersion_Incrementers", (*suite).incrementers},
		{"Put_OddKeys", (*suite).oddKeys},
		{"Head", (*suite).head},
		{"List_Paging", (*suite).paging},
		{"List_Prefix", (*suite).prefixes},
		{"List_Fresh", (*suite).fresh},
		{"Delete_Idempotent", (*suite).deleteTwice},
		{"Cancelled", (*suite).cancelled},
	} {
		if limits.leavesOut(c.name) {
			continue
		}
		t.Run(c.name, func(t *testing.T) { c.test(&suite{T: t, s: open(t), limits: limits}) })
	}
}

// suite is one test on one store.
type suite struct {
	*testing.T
	s      objstore.Store
	limits Limits
}

func (t *suite) put(key string, body []byte, cond objstore.Condition) (objstore.Version, error) {
	return t.s.Put(t.Context(), key, bytes.NewReader(body), int64(len(body)), cond)
}

func (t *suite) mustPut(key, body string) objstore.Version {
	t.Helper()
	v, err := t.put(key, []byte(body), objstore.Condition{})
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	if v == "" {
		t.Fatalf("put %q: the version is empty", key)
	}
	return v
}

func (t *suite) get(key string, off, length int64) ([]byte, objstore.Info) {
	t.Helper()
	r, info, err := t.s.Get(t.Context(), key, off, length)
	if err != nil {
		t.Fatalf("get %q at %d+%d: %v", key, off, length, err)
	}
	p, err := io.ReadAll(r)
	if err := errors.Join(err, r.Close()); err != nil {
		t.Fatalf("read %q at %d+%d: %v", key, off, length, err)
	}
	return p, info
}

func (t *suite) wantBody(key, body string) {
	t.Helper()
	if p, _ := t.get(key, 0, -1); string(p) != body {
		t.Fatalf("object %q holds %.60q, want %.60q", key, p, body)
	}
}

func (t *suite) wantErr(what string, err, class error) {
	t.Helper()
	if !errors.Is(err, class) {
		t.Fatalf("%s: got error %v, want one that is %q", what, err, class)
	}
}

func (t *suite) wantAbsent(key string) {
	t.Helper()
	_, _, err := t.s.Get(t.Context(), key, 0, -1)
	t.wantErr("get of a missing key", err, objstore.ErrNotExist)
	_, err = t.s.Head(t.Context(), key)
	t.wantErr("head of a missing key", err, objstore.ErrNotExist)
}

func (t *suite) keys(prefix, startAfter string, limit int) []string {
	t.Helper()
	page, err := t.s.List(t.Context(), prefix, startAfter, limit)
	if err != nil {
		t.Fatalf("list %q after %q: %v", prefix, startAfter, err)
	}
	keys := make([]string, 0, len(page))
	for _, info := range page {
		keys = append(keys, info.Key)
	}
	return keys
}

func (t *suite) ranges() {
	const body = "0123456789"
	t.mustPut("dir/object", body)
	for _, c := range []struct {
		off, length int64
		want        string
	}{
		{0, -1, body}, {0, 10, body}, {0, 3, "012"}, {4, 3, "456"}, {9, 1, "9"}, {7, -1, "789"},
		{7, 100, "789"}, {0, 11, body}, {10, -1, ""}, {10, 5, ""}, {11, 1, ""}, {1 << 40, -1, ""}, {3, 0, ""}, {0, 0, ""},
	} {
		p, info := t.get("dir/object", c.off, c.length)
		if string(p) != c.want {
			t.Errorf("range %d+%d: got %q, want %q", c.off, c.length, p, c.want)
		}
		if info.Size != int64(len(body)) || info.Key != "dir/object" || info.Version == "" {
			t.Errorf("range %d+%d: info %+v", c.off, c.length, info)
		}
	}
	if _, _, err := t.s.Get(t.Context(), "dir/object", -1, 1); err == nil {
		t.Error("a negative offset was accepted")
	}
	t.wantAbsent("dir")
	if !t.limits.Tree {
		t.wantAbsent("dir/")
		t.wantAbsent("dir/object/")
	}
	t.wantAbsent("dir/object/x")
}

func (t *suite) emptyBody() {
	t.mustPut("empty", "")
	p, info := t.get("empty", 0, -1)
	if len(p) != 0 || info.Size != 0 {
		t.Fatalf("got %d bytes and size %d", len(p), info.Size)
	}
	if p, _ := t.get("empty", 5, 5); len(p) != 0 {
		t.Fatalf("got %d bytes past the end", len(p))
	}
	_, err := t.put("empty", []byte("x"), objstore.Condition{IfAbsent: true})
	t.wantErr("create over an empty object", err, objstore.ErrConditionFailed)
	if keys := t.keys("", "", 0); !slices.Equal(keys, []string{"empty"}) {
		t.Fatalf("listed %q", keys)
	}
}

func (t *suite) bigBody() {
	body := make([]byte, 16<<20)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < len(body); i += 8 {
		for j, v := 0, rng.Uint64(); j < 8; j++ {
			body[i+j] = byte(v >> (8 * j))
		}
	}
	if _, err := t.put("big", body, objstore.Condition{IfAbsent: true}); err != nil {
		t.Fatal(err)
	}
	if p, info := t.get("big", 0, -1); !bytes.Equal(p, body) || info.Size != int64(len(body)) {
		t.Fatalf("read back %d bytes that differ (size %d)", len(p), info.Size)
	}
	const off, n = 5<<20 + 13, 3<<20 + 1
	if p, _ := t.get("big", off, n); !bytes.Equal(p, body[off:off+n]) {
		t.Fatalf("range of %d bytes differs", len(p))
	}
}

func (t *suite) overwrite() {
	v1 := t.mustPut("k", "one")
	v2 := t.mustPut("k", "second")
	t.wantBody("k", "second")
	if v1 == v2 {
		t.Errorf("two bodies have the version %s", v1)
	}
	if _, info := t.get("k", 0, -1); info.Version != v2 || info.Size != 6 {
		t.Errorf("put returned version %s, get says %+v", v2, info)
	}
}

// bodyPosition makes sure that a body is taken from where it stands, as a
// retry that seeks back to there expects.
func (t *suite) bodyPosition() {
	r := bytes.NewReader([]byte("skipped|stored"))
	if _, err := r.Seek(8, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	if _, err := t.s.Put(t.Context(), "k", r, 6, objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
	t.wantBody("k", "stored")
}

func (t *suite) shortBody() {
	_, err := t.s.Put(t.Context(), "k", bytes.NewReader([]byte("short")), 10, objstore.Condition{})
	if err == nil {
		t.Fatal("a body of 5 bytes was taken for one of 10")
	}
	t.wantAbsent("k")
	if keys := t.keys("", "", 0); len(keys) != 0 {
		t.Fatalf("it left %q behind", keys)
	}
}

func (t *suite) badArguments() {
	ctx := t.Context()
	if _, err := t.put("", nil, objstore.Condition{}); err == nil {
		t.Error("put: an empty key was accepted")
	}
	if _, err := t.put(string(bytes.Repeat([]byte("k"), objstore.MaxKey+1)), nil, objstore.Condition{}); err == nil {
		t.Error("put: an overlong key was accepted")
	}
	if _, err := t.put("k", nil, objstore.Condition{IfAbsent: true, IfVersion: "v"}); err == nil {
		t.Error("put: two conditions were accepted")
	}
	if _, _, err := t.s.Get(ctx, "", 0, -1); err == nil {
		t.Error("get: an empty key was accepted")
	}
	if _, err := t.s.Head(ctx, ""); err == nil {
		t.Error("head: an empty key was accepted")
	}
	if err := t.s.Delete(ctx, ""); err == nil {
		t.Error("delete: an empty key was accepted")
	}
}

func (t *suite) head() {
	v := t.mustPut("a/b", "body")
	info, err := t.s.Head(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	if info.Key != "a/b" || info.Size != 4 || info.Version != v || info.Modified.IsZero() {
		t.Errorf("head says %+v, put said version %s", info, v)
	}
	page, err := t.s.List(t.Context(), "a/", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(page) != 1 || page[0].Key != info.Key || page[0].Size != info.Size || page[0].Version != info.Version {
		t.Errorf("head says %+v, list %+v", info, page)
	}
	_, got := t.get("a/b", 1, 1)
	if got.Key != info.Key || got.Size != info.Size || got.Version != info.Version {
		t.Errorf("head says %+v, get %+v", info, got)
	}
	t.wantAbsent("a")
	t.wantAbsent("a/b/c")
}

func (t *suite) deleteTwice() {
	below := "a/b"
	if t.limits.Tree {
		below = "a-b/c"
	}
	t.mustPut("a", "1")
	t.mustPut(below, "2")
	for range 2 {
		if err := t.s.Delete(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		t.wantAbsent("a")
		t.wantBody(below, "2")
	}
	if err := t.s.Delete(t.Context(), "never/was/there"); err != nil {
		t.Fatal(err)
	}
	if keys := t.keys("", "", 0); !slices.Equal(keys, []string{below}) {
		t.Fatalf("listed %q", keys)
	}
	if _, err := t.put("a", []byte("3"), objstore.Condition{IfAbsent: true}); err != nil {
		t.Fatalf("create after a delete: %v", err)
	}
	t.wantBody("a", "3")
}

func (t *suite) cancelled() {
	t.mustPut("k", "old")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := t.s.Put(ctx, "k", bytes.NewReader([]byte("new")), 3, objstore.Condition{})
	t.wantErr("put", err, context.Canceled)
	_, _, err = t.s.Get(ctx, "k", 0, -1)
	t.wantErr("get", err, context.Canceled)
	_, err = t.s.Head(ctx, "k")
	t.wantErr("head", err, context.Canceled)
	_, err = t.s.List(ctx, "", "", 0)
	t.wantErr("list", err, context.Canceled)
	t.wantErr("delete", t.s.Delete(ctx, "k"), context.Canceled)
	t.wantBody("k", "old")

	ctx, cancel = context.WithCancel(t.Context())
	big := bytes.Repeat([]byte("x"), 16<<20)
	if _, err := t.put("big", big, objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
	r, _, err := t.s.Get(ctx, "big", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if n, err := io.Copy(io.Discard, r); err == nil {
		t.Errorf("read %d bytes of a body whose context had ended", n)
	}
	// Only that it may be closed matters: the body's error was seen above.
	_ = r.Close()
}

// oddNames are keys that file systems, URLs and listings like to stumble over.
func oddNames() []string {
	long := string(bytes.Repeat([]byte("0123456789"), 30))
	names := []string{
		"~", "a", "a/b", "a/b/c", "a b", " lead", "trail ", "tab\there", "new\nline", "a~b~/c", "percent%41", "percent%", "%2F", "a%",
		"plus+", "quote'\"", "back\\slash", "star*?[x]", "semi;colon&amp=1#2", "ümläut", "日本語/文字", "😀", "-dash", "dot.", "a.b", "a.b/c",
		"x.", "data1~000.dir~255.dir~FILE000.cdf", "A", "a-", "a0", "a.", "UPPER/lower", "upper/LOWER",
		"hidden/.file", "h/.tmp", "deep/1/2/3/4/5/6/7/8/9/10/11/12/13/14/15/16",
		long, long + "/x", long + "/" + long, long[:240], long[:241], long[:239] + "~x", long[:239] + "é", long[:240] + "/y", long[:240] + "-z", long[:240] + "0z", long[:250] + ".d/e",
	}
	eight := ""
	for len(eight) < 780 {
		eight += "0123456789abcdefghi~/"
	}
	names = append(names, eight[:789]+"exactly-800", eight[:789]+"exactly-801")
	slices.Sort(names)
	return slices.Compact(names)
}

func (t *suite) oddKeys() {
	names := t.limits.keep(oddNames())
	for i, name := range names {
		if _, err := t.put(name, fmt.Appendf(nil, "body %d", i), objstore.Condition{IfAbsent: true}); err != nil {
			t.Fatalf("put %q: %v", name, err)
		}
	}
	for i, name := range names {
		t.wantBody(name, fmt.Sprintf("body %d", i))
		_, err := t.put(name, nil, objstore.Condition{IfAbsent: true})
		t.wantErr(fmt.Sprintf("second create of %q", name), err, objstore.ErrConditionFailed)
	}
	if keys := t.keys("", "", 0); !slices.Equal(keys, names) {
		t.Fatalf("listed\n%q, want\n%q", keys, names)
	}
	// Listing on from each key, and from just before and after it.
	for i, name := range names {
		if keys := t.keys("", name, 0); !slices.Equal(keys, names[i+1:]) {
			t.Fatalf("after %q: listed\n%q, want\n%q", name, keys, names[i+1:])
		}
		before := name[:len(name)-1] + string([]byte{name[len(name)-1] - 1}) + "\x7f"
		j, _ := slices.BinarySearch(names, before)
		if keys := t.keys("", before, 3); !slices.Equal(keys, names[j:min(j+3, len(names))]) {
			t.Fatalf("after %q: listed\n%q, want\n%q", before, keys, names[j:min(j+3, len(names))])
		}
	}
	for i, name := range names {
		if err := t.s.Delete(t.Context(), name); err != nil {
			t.Fatalf("delete %q: %v", name, err)
		}
		if keys := t.keys("", "", 0); !slices.Equal(keys, names[i+1:]) {
			t.Fatalf("after deleting %q: listed\n%q, want\n%q", name, keys, names[i+1:])
		}
	}
}
