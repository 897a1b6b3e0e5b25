package gateway

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

func TestNearTable_Missed_OnlyNearTheLast(t *testing.T) {
	var n nearTable
	for i, c := range []struct {
		ino   InodeID
		again bool
	}{{1000, false}, {5000, false}, {1000 + nearRange, true}, {1000 + nearRange, false}, {5001 + nearRange, false}, {1, false}, {2, true}} {
		if got := n.missed(c.ino); got != c.again {
			t.Errorf("%d: inode %d: %v", i, c.ino, got)
		}
	}
	for i := range InodeID(nearRecent) {
		n.missed(1_000_000 * (i + 1))
	}
	if n.missed(1001) {
		t.Error("what is long past is near")
	}
}

func TestNearTable_Ask_NearestFirstAndOnce(t *testing.T) {
	var n nearTable
	queue := make(chan readAheadTask, 10)
	ask := func(ino InodeID, most int, wanted func(InodeID) bool) (got []InodeID) {
		n.ask(queue, ino, most, wanted)
		for len(queue) > 0 {
			got = append(got, (<-queue).ino)
		}
		return got
	}
	odd := func(ino InodeID) bool { return ino%2 == 1 }
	if got := fmt.Sprint(ask(100, 4, odd)); got != "[101 99 103 97]" {
		t.Error(got)
	}
	if got := fmt.Sprint(ask(102, 3, odd)); got != "[105 107 109]" {
		t.Errorf("with others on their way: %s", got)
	}
	n.done(readAheadTask{ino: 103, near: true})
	if got := fmt.Sprint(ask(102, 1, odd)); got != "[103]" {
		t.Errorf("what has come was not asked for again: %s", got)
	}
	if got := fmt.Sprint(ask(1, 100, func(ino InodeID) bool { return ino < 4 })); got != "[2 0 3]" && got != "[2 3]" {
		t.Errorf("at the first inode: %s", got)
	}
	small := make(chan readAheadTask, 2)
	n.ask(small, 1000, 8, odd)
	if len(small) != 2 || n.asked[1005] {
		t.Errorf("a queue without room: %d wait, and %v", len(small), n.asked)
	}
	if len(n.asked) > 20 {
		t.Errorf("%d are remembered", len(n.asked))
	}
}

// nearLab is a volume of small files that only the store has, each with a directory
// of its own.
func nearLab(t *testing.T, n int) (*lab, *Volume, files) {
	t.Helper()
	l := newLab(t, 8, 1<<20)
	v := l.mustMount(nil)
	f := files{}
	for i := range n {
		if _, err := v.Create(bg, metadata.RootInode, fmt.Sprintf("d%d", i), modeDir|0o755, 0, Owner{}, nil); err != nil {
			t.Fatal(err)
		}
		f.put(t, v, fmt.Sprintf("f%d", i), l.noise(5000+i), 0)
	}
	mustClose(t, v)
	if err := l.disk.RemoveAll(l.dir); err != nil {
		t.Fatal(err)
	}
	return l, l.mustMount(live), f
}

// Who reads one small file after the other waits for few of them.
func TestVolume_Read_FilesNearBy_FetchedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n, latency = 40, 20 * time.Millisecond
		l, v, f := nearLab(t, n)
		s := faultstore.New(l.bucket, slow(latency))
		v.fetcher.store = s
		calls := s.Calls()
		begun := time.Now()
		for i := range n {
			name := fmt.Sprintf("f%d", i)
			h := openPath(t, v, name)
			if got := pread(t, h, len(f[name]), 0); string(got) != f[name] {
				t.Errorf("%s: wrong bytes", name)
			}
			h.Close()
		}
		waits := time.Since(begun) / latency
		synctest.Wait()
		if got := s.Calls() - calls; waits > n/4 || got > n+nearMost {
			t.Errorf("%d files: %d round trips were waited for, %d requests", n, waits, got)
		}
		mustClose(t, v)
	})
}

// Who reads files here and there is asked for nothing else.
func TestVolume_Read_FilesFarApart_NothingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, v, f := nearLab(t, 200)
		s := faultstore.New(l.bucket, nil)
		v.fetcher.store = s
		calls := s.Calls()
		for i := 0; i < 200; i += 40 {
			name := fmt.Sprintf("f%d", i)
			h := openPath(t, v, name)
			pread(t, h, len(f[name]), 0)
			h.Close()
			synctest.Wait()
		}
		if got := s.Calls() - calls; got != 5 {
			t.Errorf("%d requests for five files", got)
		}
		mustClose(t, v)
	})
}

// Views, and so followers and mounts of a fixed commit, do the same.
func TestView_Read_FilesNearBy_FetchedAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20
		l, v, f := nearLab(t, n)
		mustClose(t, v)
		s := faultstore.New(l.bucket, nil)
		view, err := OpenView(bg, ViewOptions{Store: s, URL: "mem://lab", KV: metadata.NewMemKV(), FS: l.disk, CacheDir: "/view/cache", CacheBytes: 64 << 20})
		if err != nil {
			t.Fatal(err)
		}
		waits := 0
		for i := range n {
			name := fmt.Sprintf("f%d", i)
			file := openView(t, view, name)
			calls := s.Calls()
			p := make([]byte, len(f[name]))
			if _, err := file.Read(bg, p, 0); err != nil || string(p) != f[name] {
				t.Errorf("%s: %v", name, err)
			}
			if s.Calls() > calls {
				waits++
			}
			synctest.Wait()
			if err := file.Close(); err != nil {
				t.Error(err)
			}
		}
		if waits > n/4 {
			t.Errorf("%d of %d files were waited for", waits, n)
		}
		closeView(t, view)
	})
}
