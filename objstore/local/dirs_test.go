package local

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/objstore"
)

// another opens the same bucket as another process would.
func another(t *testing.T, s *Store) *Store {
	t.Helper()
	o, err := Open(s.root)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// dirsOf returns the bucket's directories of keys.
func dirsOf(t *testing.T, s *Store) (found []string) {
	t.Helper()
	err := filepath.WalkDir(s.root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && path != s.root {
			if strings.HasPrefix(d.Name(), ".") {
				return fs.SkipDir
			}
			rel, rerr := filepath.Rel(s.root, path)
			found = append(found, rel)
			return rerr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestStore_Delete_RemovesEmptyDirectories(t *testing.T) {
	s := open(t)
	for _, key := range []string{"probe/r/list/a/x", "probe/r/one", "objects/o", "top"} {
		mustPut(t, s, key, "x")
	}
	for _, c := range []struct {
		key  string
		left string
	}{
		{"probe/r/list/none", "objects probe probe/r probe/r/list probe/r/list/a"},
		{"probe/r/list/a/x", "objects probe probe/r"},
		{"probe/r/one", "objects"},
		{"probe/r/one", "objects"},
		{"top", "objects"},
		{"objects/o", ""},
	} {
		if err := s.Delete(t.Context(), c.key); err != nil {
			t.Fatal(err)
		}
		if got := strings.Join(dirsOf(t, s), " "); got != c.left {
			t.Errorf("after %s: %q, want %q", c.key, got, c.left)
		}
	}
	if _, err := os.Stat(s.root); err != nil {
		t.Error(err)
	}
	mustPut(t, s, "probe/r/one", "again")
}

// TestStore_Put_DirectoryRemovedByOthers_MadeDurableAgain: what one process
// knows of durable directories ends when another removes one.
func TestStore_Put_DirectoryRemovedByOthers_MadeDurableAgain(t *testing.T) {
	s := open(t)
	other := another(t, s)
	mustPut(t, s, "a/b/k", "x")
	if !s.dirs.has(filepath.Join(s.root, "a", "b")) {
		t.Fatal("a directory that was just made is not known")
	}
	if err := other.Delete(t.Context(), "a/b/k"); err != nil {
		t.Fatal(err)
	}
	release, err := s.dirs.hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.dirs.has(filepath.Join(s.root, "a", "b")) || s.dirs.has(filepath.Join(s.root, "a")) {
		t.Error("directories that are gone count as durable")
	}
	release()
	mustPut(t, s, "a/b/l", "y")
	if got := keys(t, other); len(got) != 1 || got[0] != "a/b/l" {
		t.Errorf("keys %v", got)
	}
}

func TestStore_Delete_CreatorsRace_NoKeyIsLost(t *testing.T) {
	s := open(t)
	stores := []*Store{s, another(t, s), another(t, s)}
	var wg sync.WaitGroup
	for w := range 6 {
		mine := stores[w%len(stores)]
		wg.Go(func() {
			for i := range 40 {
				key := fmt.Sprintf("d/%d/e/%d-%d", i%3, w, i)
				if _, err := put(t.Context(), mine, key, "x", objstore.Condition{IfAbsent: i%2 == 0}); err != nil {
					t.Errorf("put %s: %v", key, err)
					continue
				}
				if _, _, err := objstore.ReadAll(t.Context(), stores[(w+1)%len(stores)], key, 10); err != nil {
					t.Errorf("right after the put: %v", err)
				}
				if err := mine.Delete(t.Context(), key); err != nil {
					t.Errorf("delete %s: %v", key, err)
				}
			}
		})
	}
	wg.Wait()
	if got := keys(t, s); len(got) != 0 {
		t.Errorf("keys %v", got)
	}
}

func TestStore_Delete_CreatorHoldsDirectories_TheyStay(t *testing.T) {
	s := open(t)
	mustPut(t, s, "a/k", "x")
	release, err := another(t, s).dirs.hold(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer release()
	if err := s.Delete(t.Context(), "a/k"); err != nil {
		t.Fatal(err)
	}
	if got := dirsOf(t, s); len(got) != 1 {
		t.Errorf("directories %v", got)
	}
}

func TestStore_Clear_LeavesAnEmptyDirectory(t *testing.T) {
	s := open(t)
	other := another(t, s)
	mustPut(t, s, "a/k", "x")
	mustPut(t, other, "b/k", "x")
	if err := s.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := keys(t, s); len(got) != 2 {
		t.Errorf("a bucket with keys was cleared: %v", got)
	}
	for _, key := range []string{"a/k", "b/k"} {
		if err := s.Delete(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(s.root); err != nil || len(left) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	for i, st := range []*Store{other, s} { // the bucket works on
		mustPut(t, st, fmt.Sprintf("c/%d", i), "x")
	}
	if got := keys(t, s); len(got) != 2 {
		t.Errorf("keys %v", got)
	}
}

// TestLocks_Take_ClearedMeanwhile waits for a lock whose file is removed before
// it is free: who waited must not hold the file that nobody else locks.
func TestLocks_Take_ClearedMeanwhile(t *testing.T) {
	s := open(t)
	first, err := s.locks.take(t.Context(), "00", unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	var second *os.File
	done := make(chan error)
	go func() {
		var err error
		second, err = another(t, s).locks.take(t.Context(), "00", unix.LOCK_EX)
		done <- err
	}()
	time.Sleep(20 * time.Millisecond) // it waits by now, or comes later
	if err := os.Remove(first.Name()); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if f, err := s.locks.take(ctx, "00", unix.LOCK_EX); err == nil {
		t.Errorf("two hold the lock %s", f.Name())
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
}
