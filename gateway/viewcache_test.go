package gateway

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// viewLab is a volume with some files in a bucket, for views with a cache.
type viewLab struct {
	*lab
	f files
}

// newViewLab makes a file of each kind: whole objects, patches over them,
// holes, a tail, small ones, and an empty one.
func newViewLab(t *testing.T) *viewLab {
	t.Helper()
	l := &viewLab{newLab(t, 5, 1<<20), files{}}
	v := l.mustMount(func(o *Options) { o.CacheBytes, o.JournalBytes = 64<<20, 64<<20 })
	l.f.put(t, v, "whole", l.noise(5<<20+4711), 0)
	l.f.put(t, v, "patched", l.noise(3<<20), 0)
	mustCommit(t, v)
	for i := range 20 {
		l.f.put(t, v, "patched", l.noise(5000), 1000+150_000*i)
	}
	l.f.put(t, v, "holes", l.noise(300), 100)
	l.f.put(t, v, "holes", l.noise(200_000), 3<<20+17)
	l.f.put(t, v, "holes", l.noise(1<<20), 9<<20)
	l.f.truncate(t, v, "holes", 12<<20)
	l.f.put(t, v, "small", l.noise(99), 0)
	l.f.put(t, v, "empty", nil, 0)
	mustCommit(t, v)
	mustClose(t, v)
	return l
}

// view opens a view of the last commit with a cache on the lab's disk.
func (l *viewLab) view(t *testing.T, s objstore.Store, d vfs.FS, dir string, limit int64) *View {
	t.Helper()
	v, err := OpenView(bg, ViewOptions{Store: s, URL: "mem://lab", KV: metadata.NewMemKV(), FS: d, CacheDir: dir, CacheBytes: limit})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func closeView(t *testing.T, v *View) {
	t.Helper()
	if err := v.local.cache.CheckAccounting(); err != nil {
		t.Errorf("cache: %v", err)
	}
	closeBusyView(t, v)
}

// closeBusyView closes a view that may be fetching.
func closeBusyView(t *testing.T, v *View) {
	t.Helper()
	dir, d := v.local.dir, v.local.fs
	if err := v.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if _, err := d.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the cache's directory is left: %v", err)
	}
}

func openView(t *testing.T, v *View, name string) *ViewFile {
	t.Helper()
	n, err := v.Lookup(name)
	if err != nil {
		t.Fatalf("lookup %s: %v", name, err)
	}
	f, err := v.Open(n.ID)
	if err != nil {
		t.Fatalf("open %s: %v", name, err)
	}
	return f
}

// wantBytes reads [off, off+n) and compares.
func (l *viewLab) wantBytes(t *testing.T, f *ViewFile, name string, off, n int) {
	t.Helper()
	want := l.f[name][min(off, len(l.f[name])):min(off+n, len(l.f[name]))]
	p := bytes.Repeat([]byte{0xaa}, n)
	k, err := f.Read(bg, p, int64(off))
	if err != nil || string(p[:k]) != want {
		t.Errorf("%s: read %d at %d: %d bytes, %v, the same: %v", name, n, off, k, err, string(p[:k]) == want)
	}
}

// wantAll reads a file in pieces and compares.
func (l *viewLab) wantAll(t *testing.T, v *View, name string, piece int) {
	t.Helper()
	f := openView(t, v, name)
	defer f.Close()
	for off := 0; off <= len(l.f[name]); off += piece {
		l.wantBytes(t, f, name, off, piece)
	}
}

func TestView_Read_CachedOnceFetched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newViewLab(t)
		s := faultstore.New(l.bucket, nil)
		v := l.view(t, s, l.disk, "/view/cache", 64<<20)
		for name := range l.f {
			for _, piece := range []int{4096, 130_000, 1 << 20} {
				l.wantAll(t, v, name, piece)
			}
		}
		synctest.Wait() // for read-ahead
		st := v.Status()
		if fresh := st.Fetched; fresh > 12<<20 {
			t.Errorf("fetched %d bytes of files that have about 9 MiB", fresh)
		}
		if st.Cache.Allocated == 0 || st.Cache.Allocated > 11<<20 {
			t.Errorf("the cache takes %d bytes: holes are kept in it, or nothing is", st.Cache.Allocated)
		}
		calls := s.Calls()
		for name := range l.f {
			l.wantAll(t, v, name, 77_777)
		}
		if n := s.Calls() - calls; n != 0 {
			t.Errorf("%d requests for what is in the cache", n)
		}
		closeView(t, v)
	})
}

func TestView_Read_Evicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newViewLab(t)
		v := l.view(t, l.bucket, l.disk, "/view/cache", 2<<20)
		for range 3 {
			for name := range l.f {
				l.wantAll(t, v, name, 300_000)
			}
		}
		for range 200 {
			f := openView(t, v, "patched")
			l.wantBytes(t, f, "patched", l.pick(3<<20), 1+l.pick(200_000))
			f.Close()
		}
		synctest.Wait()
		if c := v.Status().Cache; c.Allocated > c.Limit || c.Evictions == 0 {
			t.Errorf("%+v", c)
		}
		closeView(t, v)
	})
}

// A local disk that is full or fails costs speed, never an error.
func TestView_Read_LocalDiskFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newViewLab(t)
		d := vfs.NewFault(l.disk)
		v := l.view(t, l.bucket, d, "/view/cache", 64<<20)
		l.wantAll(t, v, "whole", 100_000)
		d.Kill()
		for name := range l.f {
			l.wantAll(t, v, name, 100_000)
		}
		synctest.Wait()
		if v.Status().Cache.Error == "" {
			t.Error("the status does not tell that the local disk fails")
		}
		_ = v.Close() // its disk is gone
	})
}

func TestView_Read_ManyReadersFetchOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newViewLab(t)
		var bytesRead atomic.Int64
		s := slowReads{l.bucket, &bytesRead}
		v := l.view(t, s, l.disk, "/view/cache", 64<<20)
		open := bytesRead.Load()
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				f := openView(t, v, "whole")
				defer f.Close()
				for k := range 40 {
					l.wantBytes(t, f, "whole", (i*3+k)%40*131_072, 140_000)
				}
			}()
		}
		wg.Wait()
		synctest.Wait()
		if n := bytesRead.Load() - open; n > 6<<20 {
			t.Errorf("%d bytes were fetched of a file of 5 MiB", n)
		}
		closeView(t, v)
	})
}

// slowReads takes 20 ms for each read of data.
type slowReads struct {
	objstore.Store
	n *atomic.Int64
}

func (s slowReads) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	if strings.HasPrefix(key, metadata.ObjectPrefix) || strings.HasPrefix(key, metadata.SegmentPrefix) {
		t := time.NewTimer(20 * time.Millisecond)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, objstore.Info{}, ctx.Err()
		}
		s.n.Add(length)
	}
	return s.Store.Get(ctx, key, off, length)
}

// A reader that goes away while others wait for what it fetches costs them
// nothing.
func TestView_Read_InterruptedReaderLeavesOthersAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newViewLab(t)
		v := l.view(t, slowReads{l.bucket, new(atomic.Int64)}, l.disk, "/view/cache", 64<<20)
		f := openView(t, v, "whole")
		defer f.Close()
		ctx, cancel := context.WithCancel(bg)
		var wg sync.WaitGroup
		wg.Add(2)
		go func() {
			defer wg.Done()
			_, err := f.Read(ctx, make([]byte, 1000), 0)
			wantErr(t, err, ErrInterrupted)
		}()
		synctest.Wait() // it fetches
		go func() {
			defer wg.Done()
			l.wantBytes(t, f, "whole", 500, 1000)
		}()
		synctest.Wait() // it waits for that
		cancel()
		wg.Wait()
		closeView(t, v)
	})
}

// A sequential reader finds what it wants in the cache; a random one makes
// nothing be fetched that it did not ask for.
func TestViewFile_Read_Ahead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newViewLab(t)
		v := l.view(t, slowReads{l.bucket, new(atomic.Int64)}, l.disk, "/view/cache", 64<<20)
		f := openView(t, v, "whole")
		for off := 4 << 20; off >= 0; off -= 1 << 20 {
			l.wantBytes(t, f, "whole", off, 1000)
		}
		time.Sleep(time.Second)
		if n := v.Status().Fetched; n != 5*metadata.BlockSize {
			t.Errorf("a random reader of 5 blocks made %d bytes be fetched", n)
		}
		f.Close()
		f = openView(t, v, "whole")
		waits := 0
		for off := 0; off < 5<<20; off += 64 << 10 {
			start := time.Now()
			l.wantBytes(t, f, "whole", off, 64<<10)
			if time.Since(start) > 0 {
				waits++
			}
			time.Sleep(time.Millisecond)
		}
		if waits > 8 {
			t.Errorf("a sequential reader waited %d times in 80 reads", waits)
		}
		f.Close()
		closeView(t, v)
	})
}

func TestViewFile_Seek_EveryHole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newViewLab(t)
		s := faultstore.New(l.bucket, nil)
		v := l.view(t, s, l.disk, "/view/cache", 64<<20)
		calls := s.Calls()
		data := [][2]int64{{100, 400}, {3<<20 + 17, 3<<20 + 17 + 200_000}, {9 << 20, 10 << 20}}
		next := func(off int64, whence int) (int64, error) {
			for _, d := range data {
				switch {
				case whence == SeekData && off < d[1]:
					return max(off, d[0]), nil
				case whence == SeekHole && off < d[0]:
					return off, nil
				case whence == SeekHole && off < d[1]:
					return d[1], nil
				}
			}
			if whence == SeekHole {
				return off, nil
			}
			return 0, ErrNoData
		}
		f := openView(t, v, "holes")
		defer f.Close()
		var places []int64
		for _, d := range append(data, [2]int64{0, 1 << 20}, [2]int64{2 << 20, 12<<20 - 1}) {
			for _, at := range d {
				places = append(places, max(0, at-1), at, at+1)
			}
		}
		for _, off := range places {
			for _, whence := range []int{SeekData, SeekHole} {
				if off >= 12<<20 {
					continue
				}
				want, wantE := next(off, whence)
				if at, err := f.Seek(bg, off, whence); at != want || !errors.Is(err, wantE) {
					t.Errorf("seek %d from %d: %d, %v, want %d, %v", whence, off, at, err, want, wantE)
				}
			}
		}
		for off, want := range map[int64]error{-1: ErrNoData, 12 << 20: ErrNoData, 13 << 20: ErrNoData} {
			_, err := f.Seek(bg, off, SeekHole)
			wantErr(t, err, want)
		}
		_, err := f.Seek(bg, 0, 0)
		wantErr(t, err, ErrInvalid)
		g := openView(t, v, "whole")
		defer g.Close()
		if at, err := g.Seek(bg, 5, SeekHole); err != nil || at != int64(len(l.f["whole"])) {
			t.Errorf("a file without holes: %d, %v", at, err)
		}
		if s.Calls() != calls {
			t.Error("seeking asked the store")
		}
		closeView(t, v)
	})
}

// Every damage in the bucket is an error that names the object, and never wrong
// bytes, with the cache as without; the reads of other files go on.
func TestView_Read_DamageThroughTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newViewLab(t)
		hurt := 0
		for _, key := range bucketKeys(t, l.bucket) {
			if !strings.HasPrefix(key, metadata.ObjectPrefix) && !strings.HasPrefix(key, metadata.SegmentPrefix) {
				continue
			}
			for how := range damages {
				s := l.bucket.Snapshot()
				harm(t, s, key, how)
				v := l.view(t, s, l.disk, "/view/cache", 64<<20)
				for range 2 {
					bad := 0
					for name, want := range l.f {
						n, err := v.Lookup(name)
						if err != nil {
							t.Fatal(err)
						}
						p := make([]byte, len(want)+1)
						k, err := v.Read(bg, n, p, 0)
						if err != nil {
							damageAnswer(t, "cached view", key, how, err)
							bad++
						} else if string(p[:k]) != want {
							t.Errorf("%s %s: wrong bytes in %s", key, how, name)
						}
					}
					if bad > 3 { // as many share a segment
						t.Errorf("%s %s: %d files can't be read", key, how, bad)
					}
					hurt += bad
				}
				closeView(t, v)
			}
		}
		if hurt == 0 {
			t.Error("no damage was noticed")
		}
	})
}

// A file is given to the kernel when all of it is here, and is right then.
func TestView_Backing_WholeFile(t *testing.T) {
	l := newViewLab(t)
	v := l.view(t, l.bucket, vfs.OS(), filepath.Join(t.TempDir(), "cache"), 64<<20)
	for name, want := range map[string]bool{"whole": true, "patched": true, "small": true, "holes": false, "empty": false} {
		f := openView(t, v, name)
		if _, ok := v.Backing(f.Inode().ID); ok {
			t.Errorf("%s: given to the kernel before it was fetched", name)
		}
		v.local.settle()
		fd, ok := v.Backing(f.Inode().ID)
		if ok != want {
			t.Errorf("%s: given to the kernel: %v", name, ok)
		}
		if ok {
			p := make([]byte, len(l.f[name])+1)
			n, err := unix.Pread(fd, p, 0)
			if err != nil || string(p[:n]) != l.f[name] {
				t.Errorf("%s: the kernel would read other bytes: %v", name, err)
			}
		}
		f.Close()
	}
	if _, ok := v.Backing(metadata.RootInode); ok {
		t.Error("a directory is given to the kernel")
	}
	if c := v.Status().Cache; c.Pinned == 0 {
		t.Errorf("nothing is pinned: %+v", c)
	}
	closeView(t, v)
}

// What the kernel reads stays while it is open; what nobody has open makes
// room, and all together take half the cache.
func TestView_Backing_MakesRoom(t *testing.T) {
	l := newViewLab(t)
	v := l.view(t, l.bucket, vfs.OS(), filepath.Join(t.TempDir(), "cache"), 12<<20)
	whole, patched := openView(t, v, "whole"), openView(t, v, "patched")
	v.Backing(whole.Inode().ID)
	v.local.settle()
	if _, ok := v.Backing(whole.Inode().ID); !ok {
		t.Fatal("a file of less than half the cache was not fetched")
	}
	v.Backing(patched.Inode().ID)
	v.local.settle()
	if _, ok := v.Backing(patched.Inode().ID); ok {
		t.Error("two files take more than half the cache")
	}
	if _, ok := v.Backing(whole.Inode().ID); !ok {
		t.Error("an open file had to go")
	}
	whole.Close()
	whole.Close()
	v.Backing(patched.Inode().ID)
	v.local.settle()
	if _, ok := v.Backing(patched.Inode().ID); !ok {
		t.Error("a file that nobody has open did not make room")
	}
	for name := range l.f {
		l.wantAll(t, v, name, 500_000)
	}
	v.local.settle()
	if c := v.Status().Cache; c.Pinned > c.Limit/2 || c.Allocated > c.Limit {
		t.Errorf("%+v", c)
	}
	patched.Close()
	closeView(t, v)
	small := l.view(t, l.bucket, vfs.OS(), filepath.Join(t.TempDir(), "cache"), 8<<20)
	f := openView(t, small, "whole")
	small.Backing(f.Inode().ID)
	small.local.settle()
	if _, ok := small.Backing(f.Inode().ID); ok {
		t.Error("a file of more than half the cache was fetched whole")
	}
	f.Close()
	closeView(t, small)
}

// A fetch that fails is tried again at the next opening.
func TestView_Backing_StoreFails(t *testing.T) {
	l := newViewLab(t)
	s := faultstore.New(l.bucket, nil)
	v := l.view(t, s, vfs.OS(), filepath.Join(t.TempDir(), "cache"), 64<<20)
	s.SetHook(func(_ faultstore.Op, key string, _ int) faultstore.Fault {
		if strings.HasPrefix(key, metadata.ObjectPrefix) {
			return faultstore.Fault{Kind: faultstore.Before}
		}
		return faultstore.Fault{}
	})
	f := openView(t, v, "whole")
	defer f.Close()
	for range 2 {
		v.Backing(f.Inode().ID)
		v.local.settle()
		if _, ok := v.Backing(f.Inode().ID); ok {
			t.Error("given to the kernel without its bytes")
		}
		v.local.settle()
	}
	if v.Status().StoreError == "" {
		t.Error("the status does not tell that the store is away")
	}
	s.SetHook(nil)
	v.Backing(f.Inode().ID)
	v.local.settle()
	if _, ok := v.Backing(f.Inode().ID); !ok {
		t.Error("not fetched when the store was back")
	}
	if st := v.Status(); st.StoreError != "" {
		t.Errorf("the store is back and the status says %q", st.StoreError)
	}
	closeView(t, v)
}

func TestView_Close_DuringFetches(t *testing.T) {
	l := newViewLab(t)
	for hold := range 3 {
		s := faultstore.New(l.bucket, nil)
		v := l.view(t, s, vfs.OS(), filepath.Join(t.TempDir(), "cache"), 64<<20)
		began := make(chan struct{}, 100)
		s.SetHook(func(_ faultstore.Op, key string, _ int) faultstore.Fault {
			if !strings.HasPrefix(key, metadata.ObjectPrefix) {
				return faultstore.Fault{}
			}
			began <- struct{}{}
			return faultstore.Fault{Kind: faultstore.Hang}
		})
		for _, name := range []string{"whole", "patched"}[:min(2, hold+1)] {
			f := openView(t, v, name)
			v.Backing(f.Inode().ID)
			if hold == 2 {
				readAhead(v.local.ahead, f.Inode().ID, 0, 2<<20, readAheadChunk)
			}
			f.Close()
		}
		<-began
		closeBusyView(t, v)
		if _, ok := v.Backing(openView(t, v, "whole").Inode().ID); ok {
			t.Error("a closed view gives files to the kernel")
		}
	}
}

// settle waits until no file is being fetched whole.
func (c *viewCache) settle() {
	for {
		c.whole.mu.Lock()
		busy := false
		for _, x := range c.whole.files {
			busy = busy || x.file == nil
		}
		c.whole.mu.Unlock()
		if !busy {
			return
		}
		time.Sleep(time.Millisecond)
	}
}
