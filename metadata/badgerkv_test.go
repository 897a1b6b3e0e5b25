package metadata

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

func contents(t testing.TB, kv KV) map[string]string {
	t.Helper()
	m := map[string]string{}
	must(t, kv.Scan(nil, nil, func(k, v []byte) error {
		m[string(k)] = string(v)
		return nil
	}))
	return m
}

// eachKV runs a test on both implementations.
func eachKV(t *testing.T, fn func(t *testing.T, kv KV)) {
	t.Run("mem", func(t *testing.T) { fn(t, NewMemKV()) })
	t.Run("badger", func(t *testing.T) { fn(t, openTestBadger(t, t.TempDir())) })
}

func TestKV_Update_IsAllOrNothing(t *testing.T) {
	eachKV(t, func(t *testing.T, kv KV) {
		must(t, kv.Update(func(w Writer) error {
			return errors.Join(w.Set([]byte("a"), []byte("1")), w.Set([]byte("b"), []byte("2")))
		}))
		snap := kv.Snapshot()
		err := kv.Update(func(w Writer) error {
			must(t, w.Delete([]byte("a")))
			return errInjected
		})
		if !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		if v, err := kv.Get([]byte("a")); err != nil || string(v) != "1" {
			t.Fatalf("after a failed update: %q %v", v, err)
		}
		must(t, kv.Update(func(w Writer) error {
			return errors.Join(w.Delete([]byte("a")), w.Set([]byte("b"), []byte("3")), w.Set([]byte("c"), nil))
		}))
		if _, err := kv.Get([]byte("a")); !errors.Is(err, ErrNotExist) {
			t.Fatal(err)
		}
		if v, err := snap.Get([]byte("b")); err != nil || string(v) != "2" {
			t.Fatalf("the snapshot has %q %v", v, err)
		}
		var keys string
		must(t, snap.Scan(nil, nil, func(k, _ []byte) error { keys += string(k); return nil }))
		must(t, kv.Scan([]byte("b"), []byte("c"), func(k, v []byte) error { keys += string(k) + string(v); return nil }))
		if keys != "abb3" {
			t.Fatal(keys)
		}
		must(t, snap.Close())
		must(t, kv.Sync())
	})
}

func TestKV_Update_IsBounded(t *testing.T) {
	eachKV(t, func(t *testing.T, kv KV) {
		fill := func(ops, size int) error {
			return kv.Update(func(w Writer) error {
				for i := range ops {
					if err := w.Set(fmt.Appendf(nil, "%05d", i), make([]byte, size)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		must(t, fill(MaxUpdateOps, 30))
		must(t, fill(4, MaxUpdateBytes/4-5))
		if err := fill(MaxUpdateOps+1, 1); !errors.Is(err, ErrUpdateTooBig) {
			t.Fatal(err)
		}
		if err := fill(5, MaxUpdateBytes/4-5); !errors.Is(err, ErrUpdateTooBig) {
			t.Fatal(err)
		}
	})
}

func TestKV_Close_EndsScansAndRefusesCalls(t *testing.T) {
	eachKV(t, func(t *testing.T, kv KV) {
		must(t, kv.Update(func(w Writer) error {
			return errors.Join(w.Set([]byte("a"), []byte("1")), w.Set([]byte("b"), []byte("2")))
		}))
		started, closing := make(chan struct{}), make(chan struct{})
		var wg sync.WaitGroup
		wg.Add(1)
		go func() {
			defer wg.Done()
			err := kv.Scan(nil, nil, func(_, _ []byte) error {
				select {
				case <-started:
				default:
					close(started)
				}
				<-closing
				_, err := kv.Get([]byte("a"))
				return err
			})
			if err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		}()
		<-started
		close(closing)
		must(t, kv.Close())
		wg.Wait()
		_, err := kv.Get([]byte("a"))
		for _, err := range []error{err, kv.Sync(), kv.Update(func(Writer) error { return nil }), kv.Scan(nil, nil, nil)} {
			if !errors.Is(err, ErrClosed) {
				t.Fatalf("after Close: %v", err)
			}
		}
		must(t, kv.Close())
	})
}

// TestBadgerKV_Sync_SurvivesKill copies the directory of a running store, as a
// kill would leave it, and opens the copy.
func TestBadgerKV_Sync_SurvivesKill(t *testing.T) {
	dir := t.TempDir()
	kv := openTestBadger(t, dir)
	for i := range 60 { // more than one memtable
		must(t, kv.Update(func(w Writer) error {
			return errors.Join(w.Set(fmt.Appendf(nil, "big%03d", i), bytes.Repeat([]byte{byte(i)}, 500<<10)), w.Set(fmt.Appendf(nil, "small%03d", i), []byte{byte(i)}))
		}))
	}
	must(t, kv.Sync())
	want := contents(t, kv)
	again := openTestBadger(t, copyAtRest(t, dir))
	got := contents(t, again)
	if len(got) != 120 || len(got) != len(want) {
		t.Fatalf("%d keys of %d", len(got), len(want))
	}
	for k, v := range want {
		if got[k] != v {
			t.Fatalf("key %s differs", k)
		}
	}
	must(t, again.Verify())
	for more := true; more; {
		var err error
		more, err = again.GC()
		must(t, err)
	}
}

// copyAtRest copies the directory of a store that is open and not written to. A
// kill is one moment and a copy is not: it is taken again when the store's own
// background work changed a file meanwhile.
func copyAtRest(t *testing.T, dir string) string {
	t.Helper()
	list := func() string {
		entries, err := os.ReadDir(dir)
		must(t, err)
		var out strings.Builder
		for _, e := range entries {
			i, err := e.Info()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			must(t, err)
			fmt.Fprintln(&out, e.Name(), i.Size(), i.ModTime())
		}
		return out.String()
	}
	for range 200 {
		before := list()
		twin := filepath.Join(t.TempDir(), "twin")
		err := os.CopyFS(twin, os.DirFS(dir))
		if err == nil && list() == before {
			return twin
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatal("the store never came to rest")
	return ""
}

// makeStore leaves a closed store with tables and a log, and what it holds.
func makeStore(t *testing.T, dir string) {
	t.Helper()
	kv, err := OpenBadgerKV(dir, nil)
	must(t, err)
	put := func(from, to int) {
		must(t, kv.Update(func(w Writer) error {
			for i := from; i < to; i++ {
				if err := w.Set(fmt.Appendf(nil, "key%05d", i), bytes.Repeat(fmt.Appendf(nil, "%d", i), 20)); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	put(0, 8000)
	must(t, kv.Close()) // writes a table
	kv, err = OpenBadgerKV(dir, nil)
	must(t, err)
	put(8000, 9000)
	must(t, kv.Close())
}

// openInChild names the directory that a child of the test opens.
const openInChild = "METADATA_TEST_OPEN"

// openByChild opens a store in another process, since some damage ends the process
// that meets it, and returns what it said: "damaged", "error …" or the number of keys
// and a hash of them.
func openByChild(t *testing.T, dir string) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestBadgerKV_Open_DamagedFiles$", "-test.count=1")
	cmd.Env = append(os.Environ(), openInChild+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Logf("%s", out)
		return "died"
	}
	_, said, _ := strings.Cut(string(out), "opened: ")
	said, _, _ = strings.Cut(said, "\n")
	return said
}

func reportOpening(dir string) string {
	kv, err := OpenBadgerKV(dir, nil)
	if errors.Is(err, ErrDamaged) {
		return "damaged"
	}
	if err != nil {
		return "error " + err.Error()
	}
	var all []byte
	n := 0
	err = kv.Scan(nil, nil, func(k, v []byte) error {
		n++
		all = append(append(all, k...), v...)
		return nil
	})
	if err := errors.Join(err, kv.Close()); err != nil {
		return "error " + err.Error()
	}
	return fmt.Sprint(n, " keys ", Hash(all))
}

// TestBadgerKV_Open_DamagedFiles damages each file in several ways: the store is
// refused as damaged, at the latest by the process after one that died of it, or is
// empty, or holds exactly what it held.
func TestBadgerKV_Open_DamagedFiles(t *testing.T) {
	if dir := os.Getenv(openInChild); dir != "" {
		fmt.Println("opened:", reportOpening(dir))
		return
	}
	origin := filepath.Join(t.TempDir(), "origin")
	makeStore(t, origin)
	copied := filepath.Join(t.TempDir(), "copied")
	must(t, os.CopyFS(copied, os.DirFS(origin)))
	whole := openByChild(t, copied)
	if !strings.HasPrefix(whole, "9000 keys") {
		t.Fatal(whole)
	}
	files, err := os.ReadDir(origin)
	must(t, err)
	seen := map[string]int{}
	for _, e := range files {
		if e.Name() != "MANIFEST" && e.Name() != "KEYREGISTRY" && !strings.HasSuffix(e.Name(), ".sst") {
			continue // hold nothing of a closed store's contents
		}
		for name, edit := range map[string]func(path string, size int64) error{
			"missing":   func(path string, _ int64) error { return os.Remove(path) },
			"empty":     func(path string, _ int64) error { return os.Truncate(path, 0) },
			"half":      func(path string, size int64) error { return os.Truncate(path, size/2) },
			"first":     func(path string, _ int64) error { return flipInFile(path, 9) },
			"middle":    func(path string, size int64) error { return flipInFile(path, size/2) },
			"near end":  func(path string, size int64) error { return flipInFile(path, size-40) },
			"last byte": func(path string, size int64) error { return flipInFile(path, size-1) },
		} {
			info, err := e.Info()
			must(t, err)
			dir := filepath.Join(t.TempDir(), "copy")
			must(t, os.CopyFS(dir, os.DirFS(origin)))
			must(t, edit(filepath.Join(dir, e.Name()), info.Size()))
			said := openByChild(t, dir)
			if said == "died" {
				seen[said]++
				said = openByChild(t, dir)
			}
			if said != "damaged" && said != whole && !strings.HasPrefix(said, "0 keys") {
				t.Errorf("%s, %s: %s", e.Name(), name, said)
			}
			seen[strings.Fields(said)[0]]++
		}
	}
	t.Logf("%v", seen)
	if seen["damaged"] < 10 {
		t.Errorf("few damages were noticed: %v", seen)
	}
}

func flipInFile(path string, at int64) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	at = max(0, min(at, int64(len(b))-1))
	b[at] ^= 0x41
	return os.WriteFile(path, b, 0o600)
}

func TestBadgerKV_Open_LockAndMark(t *testing.T) {
	dir := t.TempDir()
	kv := openTestBadger(t, dir)
	_, err := OpenBadgerKV(dir, nil)
	if err == nil || errors.Is(err, ErrDamaged) {
		t.Fatalf("a store in use: %v", err)
	}
	must(t, kv.Close())
	if _, err := os.Lstat(filepath.Join(dir, openingMark)); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("the mark is still there: %v", err)
	}
	must(t, os.WriteFile(filepath.Join(dir, openingMark), nil, 0o600))
	if _, err := OpenBadgerKV(dir, nil); !errors.Is(err, ErrDamaged) {
		t.Fatalf("an opening that never ended: %v", err)
	}
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	if _, err := OpenBadgerKV(file, nil); err == nil || errors.Is(err, ErrDamaged) {
		t.Fatalf("a file as directory: %v", err)
	}
}
