package local

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/objstoretest"
)

const workerEnv = "CISTERN_LOCAL_TEST_WORKER"

// TestMain lets the test binary be one of several processes that use a bucket.
func TestMain(m *testing.M) {
	if dir := os.Getenv(workerEnv); dir != "" {
		if err := work(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

const workEach = 25

// work counts up one object and races for the creation of others; it prints
// the races that it won.
func work(dir string) error {
	ctx := context.Background()
	s, err := Open(dir)
	if err != nil {
		return err
	}
	for done := 0; done < workEach; {
		p, info, err := objstore.ReadAll(ctx, s, "counter", 100)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(string(p))
		if err != nil {
			return err
		}
		_, err = put(ctx, s, "counter", strconv.Itoa(n+1), objstore.Condition{IfVersion: info.Version})
		if err == nil {
			done++
		} else if !errors.Is(err, objstore.ErrConditionFailed) {
			return err
		}
	}
	for i := range workEach {
		_, err := put(ctx, s, fmt.Sprintf("race/%d/won", i), strconv.Itoa(os.Getpid()), objstore.Condition{IfAbsent: true})
		if err == nil {
			fmt.Println(i)
		} else if !errors.Is(err, objstore.ErrConditionFailed) {
			return err
		}
	}
	return nil
}

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

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Create(filepath.Join(t.TempDir(), "new", "bucket"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(filepath.Join(s.root, tmpDir))
		if err != nil && !missing(err) || len(left) != 0 {
			t.Errorf("temporary files left: %v, %v", left, err)
		}
	})
	return s
}

func keys(t *testing.T, s objstore.Store) []string {
	t.Helper()
	var all []string
	if err := objstore.ListAll(t.Context(), s, "", "", func(i objstore.Info) error { all = append(all, i.Key); return nil }); err != nil {
		t.Fatal(err)
	}
	return all
}

func TestStore_Conformance(t *testing.T) {
	objstoretest.Run(t, func(t *testing.T) objstore.Store { return open(t) })
}

func TestStore_Put_ManyProcesses(t *testing.T) {
	s := open(t)
	mustPut(t, s, "counter", "0")
	const processes = 4
	var outs [processes]bytes.Buffer
	var cmds [processes]*exec.Cmd
	for i := range cmds {
		cmds[i] = exec.CommandContext(t.Context(), os.Args[0])
		cmds[i].Env = append(os.Environ(), workerEnv+"="+s.root)
		cmds[i].Stdout, cmds[i].Stderr = &outs[i], &outs[i]
		if err := cmds[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	won := make(map[string]int)
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil {
			t.Fatalf("process %d: %v: %s", i, err, outs[i].String())
		}
		for _, race := range strings.Fields(outs[i].String()) {
			won[race]++
		}
	}
	p, _, err := objstore.ReadAll(t.Context(), s, "counter", 100)
	if err != nil || string(p) != strconv.Itoa(processes*workEach) {
		t.Errorf("counted to %s (%v), want %d", p, err, processes*workEach)
	}
	for i := range workEach {
		if n := won[strconv.Itoa(i)]; n != 1 {
			t.Errorf("race %d has %d winners", i, n)
		}
	}
}

func TestStore_Put_UsualNamesOnDisk(t *testing.T) {
	s := open(t)
	for key, want := range map[string]string{
		"commits/0000000001/07.json":          "commits/0000000001/07.json",
		"objects/u_0_5_data1~000.dir~F.cdf":   "objects/u_0_5_data1~000.dir~F.cdf",
		"a":                                   "a%",
		"a/b.c/d":                             "a/b.c%/d%",
		".x/../y":                             "%2Ex%/%2E.%/y%",
		"a//":                                 "a/%_/%_%",
		"é%\n":                                "%C3%A9%25%0A%",
		strings.Repeat("x", 241):              strings.Repeat("x", 240) + "%%/x%",
		strings.Repeat("x", 239) + "\x01/y.z": strings.Repeat("x", 239) + "%%/%01/y.z",
	} {
		mustPut(t, s, key, "body of "+key)
		p, err := os.ReadFile(filepath.Join(s.root, want))
		if err != nil || string(p) != "body of "+key {
			t.Errorf("key %q: %q, %v", key, p, err)
		}
	}
}

func TestStore_List_IgnoresForeignFiles(t *testing.T) {
	s := open(t)
	mustPut(t, s, "d/mine.json", "x")
	for _, name := range []string{"noDot", "d/.hidden", "d/%41.x", "d/%zz.y", "d/x%%", "d/%", "lost+found/x"} {
		path := filepath.Join(s.root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("mine.json", filepath.Join(s.root, "d/link.json")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(filepath.Join(s.root, "d/fifo.json"), 0o666); err != nil {
		t.Fatal(err)
	}
	if got := keys(t, s); !slices.Equal(got, []string{"d/mine.json"}) {
		t.Errorf("listed %q", got)
	}
	if _, _, err := s.Get(t.Context(), "d/fifo.json", 0, -1); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("get of a FIFO: %v", err)
	}
}

func TestWalk_Wanted_PrunesDirectories(t *testing.T) {
	for _, c := range []struct {
		prefix, after string
		want          []string
	}{
		{"", "", []string{"d0/", "d1/", "d1/x/", "d2/"}},
		{"d1/", "", []string{"d1/", "d1/x/"}},
		{"d1/x", "", []string{"d1/", "d1/x/"}},
		{"d1/y", "", []string{"d1/"}},
		{"", "d1/x", []string{"d1/", "d1/x/", "d2/"}},
		{"", "d1/x/9", []string{"d1/", "d1/x/", "d2/"}},
		{"", "d1/y", []string{"d1/", "d2/"}},
		{"", "d1~", []string{"d2/"}},
		{"d", "d2/z", []string{"d2/"}},
		{"e", "", nil},
	} {
		w := &walk{ctx: t.Context(), prefix: c.prefix, after: c.after}
		var got []string
		for _, base := range []string{"d0/", "d1/", "d1/x/", "d2/"} {
			if w.wanted(base) {
				got = append(got, base)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("prefix %q after %q: reads %q, want %q", c.prefix, c.after, got, c.want)
		}
	}
}

func TestOpen_CopyOfABucket_WorksOn(t *testing.T) {
	for _, flag := range []string{"-a", "-r"} {
		s := open(t)
		v := mustPut(t, s, "lease.json", "one")
		mustPut(t, s, "a/b", "two")
		dst := filepath.Join(t.TempDir(), "copy")
		if out, err := exec.CommandContext(t.Context(), "cp", flag, s.root, dst).CombinedOutput(); err != nil {
			t.Fatalf("cp: %v: %s", err, out)
		}
		c, err := Open(dst)
		if err != nil {
			t.Fatal(err)
		}
		if got := keys(t, c); !slices.Equal(got, []string{"a/b", "lease.json"}) {
			t.Errorf("cp %s: listed %q", flag, got)
		}
		info, err := c.Head(t.Context(), "lease.json")
		if err != nil {
			t.Fatal(err)
		}
		if flag == "-a" && info.Version != v {
			t.Errorf("cp -a changed the version from %s to %s", v, info.Version)
		}
		if _, err := put(t.Context(), c, "lease.json", "new", objstore.Condition{IfVersion: info.Version}); err != nil {
			t.Errorf("cp %s: swap: %v", flag, err)
		}
		if _, err := put(t.Context(), c, "lease.json", "old", objstore.Condition{IfVersion: info.Version}); !errors.Is(err, objstore.ErrConditionFailed) {
			t.Errorf("cp %s: swap from the old version: %v", flag, err)
		}
	}
}

func TestStore_Put_VersionsNeverRepeat(t *testing.T) {
	s := open(t)
	mustPut(t, s, "k", "0")
	// A clock that was ahead must not let later bodies look older.
	future := time.Now().Add(time.Hour)
	if err := os.Chtimes(s.path("k"), future, future); err != nil {
		t.Fatal(err)
	}
	seen := make(map[objstore.Version]bool)
	last := future
	for range 50 {
		v := mustPut(t, s, "k", "x")
		info, err := s.Head(t.Context(), "k")
		if err != nil || info.Version != v || seen[v] || !info.Modified.After(last) {
			t.Fatalf("version %s, head %+v, %v; the one before was of %v", v, info, err, last)
		}
		seen[v], last = true, info.Modified
	}
}

func TestOpen_StaleTemporaryFiles_Removed(t *testing.T) {
	s := open(t)
	mustPut(t, s, "k", "x")
	old := time.Now().Add(-2 * staleAfter)
	name := func(n string) string { return filepath.Join(s.root, tmpDir, n) }
	for _, n := range []string{"stale", "fresh", "held"} {
		if err := os.WriteFile(name(n), []byte("part"), 0o666); err != nil {
			t.Fatal(err)
		}
		if n != "fresh" {
			if err := os.Chtimes(name(n), old, old); err != nil {
				t.Fatal(err)
			}
		}
	}
	held, err := os.Open(name("held"))
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	if err := unix.Flock(int(held.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if got := keys(t, s); !slices.Equal(got, []string{"k"}) {
		t.Errorf("listed %q", got)
	}
	if _, err := Open(s.root); err != nil {
		t.Fatal(err)
	}
	for n, want := range map[string]bool{"stale": false, "fresh": true, "held": true} {
		if _, err := os.Stat(name(n)); (err == nil) != want {
			t.Errorf("%s: %v", n, err)
		}
		if want {
			if err := os.Remove(name(n)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestStore_BucketGone_NoBucket(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "b")
	if _, err := Open(dir); !errors.Is(err, objstore.ErrNoBucket) {
		t.Fatalf("open: %v", err)
	}
	s, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, "a/k", "x")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	_, _, getErr := s.Get(ctx, "a/k", 0, -1)
	_, headErr := s.Head(ctx, "a/k")
	_, listErr := s.List(ctx, "", "", 0)
	_, putErr := put(ctx, s, "a/k", "x", objstore.Condition{})
	_, createErr := put(ctx, s, "a/k", "x", objstore.Condition{IfAbsent: true})
	for name, err := range map[string]error{
		"get": getErr, "head": headErr, "list": listErr, "put": putErr, "create": createErr, "delete": s.Delete(ctx, "a/k"),
	} {
		if !errors.Is(err, objstore.ErrNoBucket) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("the bucket's directory was made anew")
	}
}

// A directory that only has the bucket's name takes and tells nothing: the
// bucket's file system was unmounted, or the directory was moved away.
func TestStore_BucketReplaced_StoresNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "b")
	s, err := Create(dir)
	if err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, "a/k", "x")
	if err := os.Rename(dir, dir+".real"); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	_, _, getErr := s.Get(ctx, "a/k", 0, -1)
	_, headErr := s.Head(ctx, "a/k")
	_, listErr := s.List(ctx, "", "", 0)
	_, putErr := put(ctx, s, "new/dir/k", "x", objstore.Condition{})
	_, createErr := put(ctx, s, "a/n", "x", objstore.Condition{IfAbsent: true})
	for name, err := range map[string]error{
		"get": getErr, "head": headErr, "list": listErr, "put": putErr, "create": createErr, "delete": s.Delete(ctx, "a/k"),
	} {
		if !errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 0 {
		t.Errorf("the other directory holds %v, %v", list, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir+".real", dir); err != nil {
		t.Fatal(err)
	}
	mustPut(t, s, "new/dir/k", "y")
	if _, err := s.Head(ctx, "a/k"); err != nil {
		t.Errorf("the bucket is back: %v", err)
	}
}

// Also when the exchange happens in the middle of a Put and is undone before
// anything looks at the bucket's path again.
func TestStore_Arrived_OnlyInTheBucket(t *testing.T) {
	s := open(t)
	mustPut(t, s, "k", "x")
	f, err := os.Open(s.path("k"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := s.arrived(f, s.path("k")); err != nil {
		t.Errorf("an object that is there: %v", err)
	}
	if err := s.arrived(f, s.path("other")); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("an object that is not there: %v", err)
	}
	mustPut(t, s, "other", "x")
	if err := s.arrived(f, s.path("other")); !errors.Is(err, objstore.ErrUnavailable) {
		t.Errorf("another object: %v", err)
	}
}

func TestStore_Put_LockHeldElsewhere_EndsWithContext(t *testing.T) {
	s := open(t)
	mustPut(t, s, "k", "old")
	unlock, err := newLocks(filepath.Join(s.root, lockDir)).lock(t.Context(), "k") // as another process would
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := put(ctx, s, "k", "new", objstore.Condition{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("put: %v", err)
	}
	unlock()
	mustPut(t, s, "k", "newer")
}

func TestStore_Get_FileCutShort_IsDamage(t *testing.T) {
	s := open(t)
	mustPut(t, s, "k.x", strings.Repeat("x", 100))
	r, _, err := s.Get(t.Context(), "k.x", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := os.Truncate(s.path("k.x"), 10); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 100)
	var total int
	for err == nil {
		var n int
		n, err = r.Read(buf)
		total += n
	}
	if total != 10 || !errors.Is(err, objstore.ErrDamaged) {
		t.Errorf("read %d bytes, then %v", total, err)
	}
}

func FuzzNames_RoundTrip(f *testing.F) {
	for _, key := range []string{"a/b", "%", ".", "..", "//", "a.b/c.d", strings.Repeat("é/", 300), strings.Repeat("\x00", 300)} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if key == "" {
			return
		}
		var got string
		parts := strings.Split(pathOf(key), "/")
		for i, name := range parts {
			if len(name) > 255 || name == "" || name[0] == '.' {
				t.Fatalf("key %q: bad name %q", key, name)
			}
			seg, k := parseName(name, i < len(parts)-1)
			switch k {
			case foreign:
				t.Fatalf("key %q: name %q is foreign", key, name)
			case directory:
				seg += "/"
			}
			got += seg
		}
		if got != key {
			t.Fatalf("key %q came back as %q", key, got)
		}
	})
}

// countingContext ends at the n-th look at it.
type countingContext struct {
	context.Context
	left int
}

func (c *countingContext) Err() error {
	if c.left--; c.left < 0 {
		return context.Canceled
	}
	return nil
}

// brokenBody fails after some bytes.
type brokenBody struct {
	*bytes.Reader
	left int64
}

var errBody = errors.New("the body can't be read")

func (b *brokenBody) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, errBody
	}
	n, err := b.Reader.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

func TestStore_Put_EveryFailure_OldOrNew(t *testing.T) {
	s := open(t)
	size := 3*copyChunk + 1
	old, body := strings.Repeat("o", 10), bytes.Repeat([]byte("n"), size)
	for _, cond := range []objstore.Condition{{}, {IfAbsent: true}, {IfVersion: "set below"}} {
		for n, done := 0, false; !done; n++ {
			key := fmt.Sprintf("walk/%v/%d", cond.IfAbsent, n)
			if !cond.IfAbsent {
				v := mustPut(t, s, key, old)
				if cond.IfVersion != "" {
					cond.IfVersion = v
				}
			}
			_, err := s.Put(&countingContext{t.Context(), n}, key, bytes.NewReader(body), int64(size), cond)
			done = err == nil
			if err != nil && !errors.Is(err, context.Canceled) {
				t.Fatalf("%+v, look %d: %v", cond, n, err)
			}
			got, _, readErr := objstore.ReadAll(t.Context(), s, key, 64<<20)
			switch {
			case done && !bytes.Equal(got, body):
				t.Fatalf("%+v: answered, but %d bytes are there (%v)", cond, len(got), readErr)
			case !done && cond.IfAbsent && !errors.Is(readErr, objstore.ErrNotExist):
				t.Fatalf("%+v, look %d: given up, but %d bytes are there (%v)", cond, n, len(got), readErr)
			case !done && !cond.IfAbsent && string(got) != old:
				t.Fatalf("%+v, look %d: given up, but %d bytes are there (%v)", cond, n, len(got), readErr)
			}
			if done && n < 4 {
				t.Fatalf("%+v: looked at its context only %d times", cond, n)
			}
		}
	}
	for _, left := range []int64{0, 1, copyChunk, int64(size) - 1} {
		_, err := s.Put(t.Context(), "broken", &brokenBody{bytes.NewReader(body), left}, int64(size), objstore.Condition{})
		if !errors.Is(err, errBody) {
			t.Errorf("body broken after %d bytes: %v", left, err)
		}
	}
	if _, err := s.Head(t.Context(), "broken"); !errors.Is(err, objstore.ErrNotExist) {
		t.Errorf("a broken body was stored: %v", err)
	}
}

func BenchmarkStore_List_FlatDirectory(b *testing.B) {
	s, err := Create(filepath.Join(b.TempDir(), "b"))
	if err != nil {
		b.Fatal(err)
	}
	dir := filepath.Join(s.root, "objects")
	if err := os.Mkdir(dir, 0o777); err != nil {
		b.Fatal(err)
	}
	for i := range 50000 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%032d_0_5242880_data1~000.dir~001.dir~FILE000.cdf", i)), nil, 0o666); err != nil {
			b.Fatal(err)
		}
	}
	after := fmt.Sprintf("objects/%032d", 25000)
	for b.Loop() {
		if page, err := s.List(b.Context(), "objects/", after, 0); err != nil || len(page) != objstore.MaxList {
			b.Fatal(len(page), err)
		}
	}
}

func BenchmarkStore_Put_4KiB(b *testing.B) {
	s, err := Create(filepath.Join(b.TempDir(), "b"))
	if err != nil {
		b.Fatal(err)
	}
	body := make([]byte, 4096)
	for i := 0; b.Loop(); i++ {
		if _, err := s.Put(b.Context(), fmt.Sprintf("commits/1/%d.json", i), bytes.NewReader(body), 4096, objstore.Condition{IfAbsent: true}); err != nil {
			b.Fatal(err)
		}
	}
}
