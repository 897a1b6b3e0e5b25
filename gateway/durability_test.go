package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// live makes a mount do its background work.
func live(o *Options) { o.Manual = false }

// slow delays every request to the store.
func slow(d time.Duration) faultstore.Hook {
	return func(faultstore.Op, string, int) faultstore.Fault { return faultstore.Fault{Delay: d} }
}

func TestVolume_Fsync_BucketModeWaitsForTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, func(o *Options) { live(o); o.Durability.Mode = ModeBucket })
		if err != nil {
			t.Fatal(err)
		}
		f := files{}
		for i := range 5 {
			f.put(t, v, "a", l.noise(100), 90*i)
			mustFsync(t, v)
			if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
				t.Fatalf("after fsync the bucket has: %s", d)
			}
		}
		s.SetOutage(faultstore.Refusing)
		f.put(t, v, "a", []byte("while the store is away"), 7)
		done := make(chan error, 1)
		go func() { done <- v.Fsync(bg, 1) }()
		time.Sleep(5 * time.Minute)
		select {
		case err := <-done:
			t.Fatalf("fsync returned %v without a commit", err)
		default:
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		wantErr(t, v.Fsync(ctx, 1), ErrInterrupted)
		cancel()
		s.SetOutage(faultstore.Up)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
			t.Fatalf("after the outage the bucket has: %s", d)
		}
		mustClose(t, v)
	})
}

func TestVolume_Fsync_BucketModeWaitersShareACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, slow(50*time.Millisecond))
		v, err := l.mount(s, func(o *Options) { live(o); o.Durability.Mode = ModeBucket })
		if err != nil {
			t.Fatal(err)
		}
		before := v.Status().Commits
		var wg sync.WaitGroup
		for i := range 60 {
			wg.Go(func() {
				h := mkfile(t, v, 1, fmt.Sprint(i))
				defer h.Close()
				pwrite(t, h, []byte("x"), 0)
				if err := v.Fsync(bg, h.Inode()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := v.Status().Commits - before; n < 1 || n > 4 {
			t.Errorf("60 waiters took %d commits", n)
		}
		mustClose(t, v)
	})
}

func TestVolume_Fsync_LagModeWaitsWhenTooOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, func(o *Options) { live(o); o.Durability = Durability{ModeLag, 3 * time.Second} })
		if err != nil {
			t.Fatal(err)
		}
		f := files{}
		s.SetOutage(faultstore.Refusing)
		start := time.Now()
		for i := range 25 { // 2.5 s of simulated time: not too old yet
			f.put(t, v, "a", []byte("lagging"), i)
			at := time.Now()
			mustFsync(t, v)
			if d := time.Since(at); d != 0 {
				t.Fatalf("an fsync waited %v when the oldest change was %v old", d, time.Since(start))
			}
			time.Sleep(100 * time.Millisecond)
		}
		time.Sleep(time.Second)
		f.put(t, v, "a", []byte("too late"), 3)
		done := make(chan error, 1)
		go func() { done <- v.Fsync(bg, 1) }()
		time.Sleep(time.Minute)
		select {
		case err := <-done:
			t.Fatalf("fsync returned %v with changes of %v outside the bucket", err, time.Since(start))
		default:
		}
		s.SetOutage(faultstore.Up)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if age := v.dirtyAge(); age > 3*time.Second {
			t.Errorf("the oldest change is %v old", age)
		}
		mustClose(t, v)
		if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
			t.Error(d)
		}
	})
}

// A burst is not committed in its midst, however it falls between two ticks, and
// nothing waits longer than the interval.
func TestVolume_Commits_AnIntervalAfterTheFirstChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(func(o *Options) { live(o); o.CommitInterval = time.Second })
		time.Sleep(10*time.Second + 900*time.Millisecond)
		before := v.Status().Commits
		f := files{}
		for i := range 9 {
			f.put(t, v, "a", []byte("burst"), i)
			time.Sleep(100 * time.Millisecond)
		}
		if n := v.Status().Commits; n != before {
			t.Errorf("%d commits within the first 0.9 s of a burst", n-before)
		}
		time.Sleep(100*time.Millisecond + time.Millisecond)
		if n := v.Status().Commits; n != before+1 {
			t.Errorf("%d commits an interval after the first change", n-before)
		}
		mustClose(t, v)
	})
}

func TestVolume_Fsync_LocalModeNeverTouchesTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		l.bucket.ResetStats()
		f := files{}
		for i := range 50 {
			f.put(t, v, "a", l.noise(5000), 3000*i)
			mustFsync(t, v)
		}
		wantFiles(t, v, f, "before any commit")
		st := l.bucket.Stats()
		if n := st.Get.Requests + st.Put.Requests + st.Head.Requests + st.List.Requests + st.Delete.Requests; n != 0 {
			t.Errorf("%d requests to the store", n)
		}
		mustClose(t, v)
	})
}

// Minutes without the store, under load: nothing fails but what only the store
// has, and afterwards everything drains.
func TestVolume_Outage_UnderLoad(t *testing.T) {
	for _, kind := range []faultstore.Outage{faultstore.Refusing, faultstore.Silent} {
		t.Run(fmt.Sprintf("kind %d", kind), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { throughOutage(t, kind) })
		})
	}
}

func throughOutage(t *testing.T, kind faultstore.Outage) {
	l := newLab(t, 1, 8192)
	inner := faultstore.New(l.bucket, slow(20*time.Millisecond))
	s := objstore.WithRetry(objstore.WithTimeout(inner, objstore.TimeoutOptions{}), objstore.RetryOptions{})
	v, err := l.mount(s, live)
	if err != nil {
		t.Fatal(err)
	}
	f := files{}
	f.put(t, v, "cold", l.noise(20000), 0)
	f.put(t, v, "hot", l.noise(20000), 0)
	if _, err := v.Commit(bg); err != nil {
		t.Fatal(err)
	}
	cold, hot := openPath(t, v, "cold"), openPath(t, v, "hot")
	if err := v.dropCached(cold.Inode(), 0, wholeFile); err != nil {
		t.Fatal(err)
	}
	inner.SetOutage(kind)
	start := time.Now()
	for i := range 300 {
		at := time.Now()
		f.put(t, v, "hot", l.noise(700), 50*i)
		if i%10 == 0 {
			f.put(t, v, fmt.Sprint("new", i), []byte("made without the store"), 0)
		}
		mustFsync(t, v)
		if got := pread(t, hot, 30000, 0); string(got) != f["hot"] {
			t.Fatal("local data reads wrong during the outage")
		}
		v.Statfs()
		if st := v.Status(); time.Since(start) > 30*time.Second && (st.StoreError+st.LeaseError == "" || st.DirtyBytes == 0 || st.DirtySeconds < 20) {
			t.Fatalf("status hides the outage: %q, %d bytes, %v s", st.StoreError+st.LeaseError, st.DirtyBytes, st.DirtySeconds)
		}
		if d := time.Since(at); d != 0 {
			t.Fatalf("local work waited %v during the outage", d)
		}
		time.Sleep(time.Second)
	}
	ctx, cancel := context.WithTimeout(bg, 2*time.Second)
	_, err = cold.Read(ctx, make([]byte, 10), 0)
	cancel()
	if err == nil || !errors.Is(err, ErrStore) && !errors.Is(err, ErrInterrupted) || errors.Is(err, ErrDamaged) {
		t.Errorf("what only the store has reads with %v", err)
	}
	inner.SetOutage(faultstore.Up)
	time.Sleep(30 * time.Second)
	if n := v.dirtyBytes(); n != 0 {
		t.Errorf("30 s after the outage %d bytes are not in the bucket", n)
	}
	if got := pread(t, cold, 30000, 0); string(got) != f["cold"] {
		t.Error("the same handle reads wrong after the outage")
	}
	if st := v.Status(); st.StoreError != "" || st.ReadOnly != "" {
		t.Errorf("after the outage the status says %q, %q", st.StoreError, st.ReadOnly)
	}
	cold.Close()
	hot.Close()
	wantFiles(t, v, f, "after the outage")
	mustClose(t, v)
	inner.Close()
	if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
		t.Error(d)
	}
}

func TestVolume_Close_DuringAnOutage(t *testing.T) {
	for _, kind := range []faultstore.Outage{faultstore.Refusing, faultstore.Silent} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 1, 8192)
			s := faultstore.New(l.bucket, nil)
			v, err := l.mount(s, live)
			if err != nil {
				t.Fatal(err)
			}
			f := files{}
			f.put(t, v, "a", l.noise(9000), 0)
			mustCommit(t, v)
			f.put(t, v, "a", l.noise(9000), 5000)
			f.put(t, v, "b", l.noise(90), 0)
			s.SetOutage(kind)
			start := time.Now()
			err = v.Close(bg)
			wantErr(t, err, ErrUncommitted)
			if d := time.Since(start); d < 10*time.Second || d > 12*time.Second {
				t.Errorf("close took %v", d)
			}
			lease, _, err := readLease(bg, l.bucket)
			if err != nil || lease.Released {
				t.Errorf("the lease is released with uncommitted changes, %v", err)
			}
			l.disk = l.disk.Crash(l.diskRng, vfs.PowerLoss)
			start = time.Now()
			v = l.mustMount(nil)
			if time.Since(start) != 0 {
				t.Error("the next mount waited")
			}
			wantFiles(t, v, f, "at the next mount")
			mustClose(t, v)
		})
	}
}

// Close goes on as long as commits make progress, however slow.
func TestVolume_Close_WaitsWhileThereIsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(one(t, s), nil)
		if err != nil {
			t.Fatal(err)
		}
		f := files{}
		f.put(t, v, "a", l.noise(12*8192), 0)
		s.SetHook(slow(6 * time.Second))
		start := time.Now()
		if err := v.Close(bg); err != nil {
			t.Fatalf("close after %v: %v", time.Since(start), err)
		}
		if d := time.Since(start); d < 60*time.Second {
			t.Errorf("close took %v: the store was not slow", d)
		}
		if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
			t.Error(d)
		}
	})
}

// At the journal's limit writers wait for a commit and then go on.
func TestHandle_Write_JournalLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		l.opt.ReferenceBytes = 1 << 30
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, live)
		if err != nil {
			t.Fatal(err)
		}
		f := files{}
		s.SetOutage(faultstore.Refusing)
		h := mkfile(t, v, 1, "a")
		var written atomic.Int64
		done := make(chan error, 1)
		data := l.noise(20 << 20)
		go func() {
			var err error
			for off := 0; off < len(data) && err == nil; off += 64 << 10 {
				_, err = h.Write(bg, data[off:off+64<<10], int64(off), WriteFlags{})
				written.Add(64 << 10)
			}
			done <- err
		}()
		time.Sleep(10 * time.Minute)
		if n := written.Load(); n < 2<<20 || n > 9<<20 {
			t.Errorf("%d bytes were taken by a journal of 8 MiB", n)
		}
		if used := l.disk.Used(); used > 8<<20+9<<20 {
			t.Errorf("the disk holds %d bytes", used)
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		_, err = h.Write(ctx, []byte("interrupted"), 0, WriteFlags{})
		cancel()
		wantErr(t, err, ErrInterrupted)
		if st := v.Status(); st.Journal.Live < 5<<20 {
			t.Errorf("status shows %d live bytes of journal", st.Journal.Live)
		}
		s.SetOutage(faultstore.Up)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		h.Close()
		f["a"] = string(data)
		wantFiles(t, v, f, "after the wait")
		mustClose(t, v)
		if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
			t.Error(d)
		}
	})
}

// However many inodes wait to be freed, a full journal doesn't hold up the commit
// that gives it room.
func TestVolume_Commit_ManyInodesToFreeAndAFullJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		l.opt.JournalBytes, l.opt.ReferenceBytes = 4<<20, 1<<30
		v := l.mustMount(nil)
		const inodes = 10000 // their records are more than what is kept for the engine
		for i := range inodes {
			n, err := v.Create(bg, metadata.RootInode, fmt.Sprint(i), modeRegular|0o600, 0, Owner{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			v.Forget(n.ID, 1)
		}
		mustCommit(t, v)
		for i := range inodes {
			if err := v.Unlink(bg, metadata.RootInode, fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
		}
		h := mkfile(t, v, metadata.RootInode, "a")
		p := l.noise(128 << 10)
		var err error
		for off := int64(0); err == nil; off += int64(len(p)) {
			ctx, cancel := context.WithTimeout(bg, time.Second)
			_, err = h.Write(ctx, p, off, WriteFlags{})
			cancel()
		}
		wantErr(t, err, ErrInterrupted)
		h.Close()
		for range 3 {
			ctx, cancel := soon()
			if _, err := v.Commit(ctx); err != nil {
				t.Fatal(err)
			}
			cancel()
		}
		if left := v.reaping.take(); len(left) != 0 {
			t.Errorf("%d inodes are not freed", len(left))
		}
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}

func TestHandle_Write_LimitENOSPC(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		l.opt.ReferenceBytes = 1 << 30
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, func(o *Options) { live(o); o.LimitENOSPC = true })
		if err != nil {
			t.Fatal(err)
		}
		s.SetOutage(faultstore.Refusing)
		h := mkfile(t, v, 1, "a")
		p := make([]byte, 64<<10)
		off := int64(0)
		start := time.Now()
		for err == nil {
			at := time.Now()
			if _, err = h.Write(bg, p, off, WriteFlags{}); err == nil {
				off += int64(len(p))
			} else if d := time.Since(at); d != 5*time.Minute {
				t.Errorf("ENOSPC after %v", d)
			}
		}
		wantErr(t, err, ErrNoSpace)
		if time.Since(start) > 6*time.Minute || off < 2<<20 {
			t.Errorf("%d bytes in %v", off, time.Since(start))
		}
		n, err := v.GetAttr(bg, h.Inode())
		if err != nil || n.Size != off {
			t.Errorf("size %d after %d acknowledged bytes, %v", n.Size, off, err)
		}
		s.SetOutage(faultstore.Up)
		time.Sleep(20 * time.Second)
		pwrite(t, h, []byte("goes on"), off)
		h.Close()
		mustClose(t, v)
	})
}

// The bound on what uncommitted changes take in memory makes writers wait.
func TestVolume_MemoryLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, func(o *Options) { live(o); o.MemoryBytes = 1 << 20 })
		if err != nil {
			t.Fatal(err)
		}
		s.SetOutage(faultstore.Refusing)
		done := make(chan error, 1)
		var made atomic.Int64
		go func() {
			var err error
			for i := 0; i < 4000 && err == nil; i++ {
				var n *Inode
				if n, err = v.Create(bg, metadata.RootInode, fmt.Sprintf("file %d", i), modeRegular|0o600, 0, Owner{}, nil); err == nil {
					v.Forget(n.ID, 1)
				}
				made.Add(1)
			}
			done <- err
		}()
		time.Sleep(time.Minute)
		if n := made.Load(); n < 1000 || n > 3000 {
			t.Errorf("%d creates went into 1 MiB", n)
		}
		st := v.Status()
		if st.MemoryBytes > 2<<20 || st.Throttled == 0 {
			t.Errorf("status: %d bytes, throttled %d times", st.MemoryBytes, st.Throttled)
		}
		s.SetOutage(faultstore.Up)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		mustClose(t, v)
	})
}

// A full local disk: writers get room by commits or hear of it, nothing
// acknowledged is lost, and it goes on when there is space, without a restart.
func TestVolume_LocalDiskFull(t *testing.T) {
	for _, ref := range []int{3000, 1 << 30} {
		t.Run(fmt.Sprintf("references from %d bytes", ref), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { diskFull(t, ref) })
		})
	}
}

func diskFull(t *testing.T, ref int) {
	l := newLab(t, 1, 8192)
	l.opt.ReferenceBytes = ref
	s := faultstore.New(l.bucket, nil)
	v, err := l.mount(s, func(o *Options) { live(o); o.LimitENOSPC, o.LimitWait = true, 20*time.Second })
	if err != nil {
		t.Fatal(err)
	}
	f := files{}
	f.put(t, v, "a", l.noise(50000), 0)
	mustCommit(t, v)
	s.SetOutage(faultstore.Refusing)
	l.disk.SetCapacity(l.disk.Used() + 100<<10)
	h := openPath(t, v, "a")
	data := []byte(f["a"])
	failed := 0
	for i := 0; i < 300 && failed < 3; i++ {
		p := l.noise(40000)
		n, err := h.Write(bg, p, int64(len(data)), WriteFlags{})
		data = append(data, p[:n]...)
		if err != nil {
			wantErr(t, err, ErrNoSpace)
			failed++
		}
	}
	if failed == 0 {
		t.Fatal("a full disk was never noticed")
	}
	f["a"] = string(data)
	if got := pread(t, h, len(data)+10, 0); string(got) != f["a"] {
		t.Fatal("what was acknowledged reads wrong on the full disk")
	}
	mustFsync(t, v)
	s.SetOutage(faultstore.Up)
	time.Sleep(30 * time.Second)
	if v.ReadOnly() {
		t.Fatal(v.Stopped())
	}
	l.disk.SetCapacity(-1)
	time.Sleep(30 * time.Second)
	f.put(t, v, "a", l.noise(3000), 100)
	f.put(t, v, "b", l.noise(30000), 100)
	h.Close()
	wantFiles(t, v, f, "with space again")
	mustClose(t, v)
	if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
		t.Error(d)
	}
}

// needyKV is an index that takes no update on a nearly full disk.
type needyKV struct {
	metadata.KV
	l    *lab
	need int64
}

func (k needyKV) Update(fn func(metadata.Writer) error) error {
	if free, err := k.l.disk.Free(k.l.dir); err != nil || free < k.need {
		return errors.Join(err, syscall.ENOSPC)
	}
	return k.KV.Update(fn)
}

// A disk that is smaller than the limits of cache and journal, and whose index
// needs room for every commit, is not filled so that nothing goes on: loads of
// many times its size pass, also after a kill.
func TestVolume_DiskSmallerThanTheLimits(t *testing.T) {
	for _, ref := range []int{3000, 1 << 30} {
		t.Run(fmt.Sprintf("references from %d bytes", ref), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, 1, 8192)
				l.opt.ReferenceBytes = ref
				set := func(o *Options) {
					live(o)
					o.CacheBytes, o.JournalBytes, o.KeepFree = 1<<30, 1<<30, 2<<20
					o.JournalFileBytes = 2 << 20
					open := o.OpenKV
					o.OpenKV = func(dir string) (metadata.KV, error) {
						kv, err := open(dir)
						return needyKV{kv, l, 1 << 20}, err
					}
				}
				l.disk.SetCapacity(16 << 20)
				f := files{}
				for round := range 3 {
					v, err := l.mount(l.bucket, set)
					if err != nil {
						t.Fatalf("round %d: %v", round, err)
					}
					wantFiles(t, v, f, fmt.Sprintf("round %d begins", round))
					for i := range 60 {
						f.put(t, v, fmt.Sprintf("file%d", i%20), l.noise(400_000), 0)
						mustFsync(t, v)
						time.Sleep(100 * time.Millisecond)
					}
					wantFiles(t, v, f, fmt.Sprintf("round %d ends", round))
					if free, err := l.disk.Free(l.dir); err != nil || free < 1<<20 {
						t.Fatalf("%d bytes free, %v", free, err)
					}
					l.kill(v)
				}
			})
		})
	}
}
