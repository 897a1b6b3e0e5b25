package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// refuseWrites is a bucket that only lets read.
type refuseWrites struct {
	objstore.Store
	t *testing.T
}

func (s refuseWrites) Put(_ context.Context, key string, _ io.ReadSeeker, _ int64, _ objstore.Condition) (objstore.Version, error) {
	s.t.Errorf("a follower writes %s", key)
	return "", objstore.ErrPermission
}

func (s refuseWrites) Delete(_ context.Context, key string) error {
	s.t.Errorf("a follower deletes %s", key)
	return objstore.ErrPermission
}

// followLab is the local disk of a follower.
type followLab struct {
	t    *testing.T
	disk *vfs.Mem
	kv   map[string]metadata.KV // by directory
}

func newFollowLab(t *testing.T) *followLab {
	return &followLab{t: t, disk: vfs.NewMem(), kv: map[string]metadata.KV{}}
}

func (l *followLab) openKV(dir string) (metadata.KV, error) {
	if _, err := l.disk.Stat(dir); err != nil {
		if err := l.disk.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
		l.kv[dir] = metadata.NewMemKV()
	}
	return keptKV{l.kv[dir]}, nil
}

// keptKV outlives its closing.
type keptKV struct{ metadata.KV }

func (keptKV) Close() error { return nil }

func (l *followLab) open(s objstore.Store, cacheBytes int64) (*Follower, error) {
	keys := testKeys(1, 2, 3)
	unlocked, _, err := Unlock(bg, refuseWrites{s, l.t}, "mem://lab", keys)
	if err != nil {
		return nil, err
	}
	return OpenFollower(bg, FollowOptions{
		Store: unlocked, Keys: keys, URL: "mem://lab", FS: l.disk, Dir: "/follow", OpenKV: l.openKV, Cache: cacheBytes,
	})
}

func (l *followLab) mustOpen(s objstore.Store) *Follower {
	l.t.Helper()
	f, err := l.open(s, 8<<20)
	if err != nil {
		l.t.Fatalf("follow: %v", err)
	}
	return f
}

func closeFollower(t *testing.T, f *Follower) {
	t.Helper()
	if err := f.view.local.cache.CheckAccounting(); err != nil {
		t.Errorf("cache: %v", err)
	}
	if err := f.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

func mustPoll(t *testing.T, f *Follower) {
	t.Helper()
	if err := f.Poll(bg); err != nil {
		t.Fatalf("poll: %v", err)
	}
}

// followTree shows a follower to the model, data through its open files.
type followTree struct{ f *Follower }

func (t followTree) inodeOf(ino InodeID) (*Inode, error) { return t.f.View().Inode(ino) }

func (t followTree) namesOf(ino InodeID) (map[string]InodeID, error) {
	return viewTree{t.f.View()}.namesOf(ino)
}

func (t followTree) bytesOf(n *Inode) ([]byte, error) {
	h, err := t.f.View().Open(n.ID)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	p := make([]byte, n.Size+10)
	at := 0
	for {
		k, err := h.Read(bg, p[at:min(len(p), at+50_000)], int64(at))
		if at += k; err != nil || k == 0 {
			return p[:at], err
		}
	}
}

// follows compares a follower with the model at the commit that it shows.
func (r *run) follows(f *Follower) {
	defer f.Hold()()
	h := f.Head()
	if d := r.at(journal.LSN(h.LastLSN)).diff(followTree{f}); d != "" {
		r.fatalf("the follower's commit %v differs from the state at lsn %d: %s", h.CommitID, h.LastLSN, d)
	}
}

// followRandom follows a random writer, which crashes, loses its disk, folds
// and collects.
func followRandom(t *testing.T, seed int64, steps int) {
	var l *followLab
	var f *Follower
	var s *faultstore.Store
	current := 0 // trace when what is shown was the head
	randomRun(t, seed, steps, seed%2 == 0, func(r *run) {
		hook := faultstore.Hook(nil)
		if r.faults {
			hook = faultstore.Random(uint64(r.rnd(1<<30)), faultstore.Rates{Before: 0.05, Cut: 0.03, Flip: 0.03, MaxDelay: time.Second})
		}
		if f == nil {
			l = newFollowLab(r.t)
			s = faultstore.New(r.bucket, nil)
			f = l.mustOpen(s)
			r.t.Cleanup(func() { closeFollower(r.t, f); s.Close() })
		}
		collected := slices.ContainsFunc(r.trace[current:], func(s string) bool { return strings.Contains(s, "collect") })
		switch k := r.rnd(40); {
		case k < 8:
			synctest.Wait() // for read-ahead, whose errors the next reader would meet
			s.SetHook(hook)
			err := f.Poll(bg)
			s.SetHook(nil)
			r.note("follower polls: %v, %v", f.Head().CommitID, err)
			if err != nil && (!r.faults || !r.allowed(err)) {
				r.fatalf("poll: %v", err)
			}
			if err == nil {
				current = len(r.trace)
				r.follows(f)
			}
		case k < 12 && !collected:
			r.follows(f)
		case k == 12:
			r.note("half a day passes")
			time.Sleep(13 * time.Hour)
		case k == 13:
			closeFollower(r.t, f)
			if r.rnd(2) == 0 {
				l.disk = l.disk.Crash(r.diskRng, vfs.PowerLoss)
			}
			f = l.mustOpen(s)
			r.note("follower starts again at %v", f.Head().CommitID)
			current = len(r.trace)
			r.follows(f)
		case k == 14:
			f.view.local.cache.Evict(1 << 30)
		}
	})
}

func TestFollower_Random_IsTheModelAtItsCommit(t *testing.T) {
	if *seedFlag != 0 {
		followRandom(t, *seedFlag, *stepsFlag)
		return
	}
	runs := 20
	if testing.Short() {
		runs = 6
	}
	for i := range runs {
		seed := int64(1000 + i)
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) { followRandom(t, seed, *stepsFlag) })
	}
	for start, seed := time.Now(), time.Now().UnixNano()%1e9; time.Since(start) < soakTime(t) && !t.Failed(); seed++ {
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) { followRandom(t, seed, *stepsFlag) })
	}
}

// followPair is a writer and what follows it.
type followPair struct {
	*lab
	v *Volume
	s *faultstore.Store // of the follower
	l *followLab
	f *Follower

	have files
}

func newFollowPair(t *testing.T, objectSize int64) *followPair {
	t.Helper()
	p := &followPair{lab: newLab(t, 3, objectSize), l: newFollowLab(t), have: files{}}
	p.v = p.mustMount(func(o *Options) { o.CacheBytes, o.JournalBytes = 64<<20, 64<<20 })
	mustCommit(t, p.v)
	p.s = faultstore.New(p.bucket, nil)
	p.f = p.l.mustOpen(p.s)
	return p
}

// close ends both.
func (p *followPair) close(t *testing.T) {
	t.Helper()
	closeFollower(t, p.f)
	p.s.Close()
	mustClose(t, p.v)
}

// put writes a file whole, and commits it.
func (p *followPair) put(t *testing.T, name string, body []byte) {
	t.Helper()
	p.have.put(t, p.v, name, body, 0)
	if len(p.have[name]) > len(body) {
		p.have.truncate(t, p.v, name, len(body))
	}
	mustCommit(t, p.v)
}

func (p *followPair) open(t *testing.T, name string) *ViewFile {
	t.Helper()
	defer p.f.Hold()()
	return openView(t, p.f.View(), name)
}

func readAllOf(t *testing.T, f *ViewFile) string {
	t.Helper()
	buf := make([]byte, 1<<20)
	n, err := f.Read(bg, buf, 0)
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return string(buf[:n])
}

// A handle that was opened before shows the new content after a move.
func TestFollower_Poll_OpenFileMovesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFollowPair(t, 8192)
		p.put(t, "f", []byte("one"))
		mustPoll(t, p.f)
		h := p.open(t, "f")
		for _, content := range []string{"one", "a longer two", "3", strings.Repeat("four", 9000), ""} {
			p.put(t, "f", []byte(content))
			mustPoll(t, p.f)
			if got := readAllOf(t, h); got != content {
				t.Errorf("%d bytes, want %d, or other ones", len(got), len(content))
			}
		}
		if err := p.v.Unlink(bg, metadata.RootInode, "f"); err != nil {
			t.Fatal(err)
		}
		mustCommit(t, p.v)
		mustPoll(t, p.f)
		_, err := h.Read(bg, make([]byte, 9), 0)
		wantErr(t, err, ErrStale)
		_, err = h.Seek(bg, 0, SeekData)
		wantErr(t, err, ErrStale)
		h.Close()
		p.close(t)
	})
}

// An idle volume costs one request an interval, and one more for the lease now
// and then; what was cached stays over commits that don't change it.
func TestFollower_Poll_IsCheapAndKeepsTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFollowPair(t, 1<<20)
		body := p.noise(2<<20 + 99)
		p.put(t, "big", body)
		mustPoll(t, p.f)
		h := p.open(t, "big")
		buf := make([]byte, len(body))
		if n, err := h.Read(bg, buf, 0); err != nil || !bytes.Equal(buf[:n], body) {
			t.Fatalf("%d, %v", n, err)
		}
		calls := p.s.Calls()
		for range 10 {
			mustPoll(t, p.f)
		}
		if n := p.s.Calls() - calls; n > 11 {
			t.Errorf("10 looks at an idle volume took %d requests", n)
		}
		copy(body[500_000:], p.noise(1000))
		p.have.put(t, p.v, "big", body[500_000:501_000], 500_000)
		p.put(t, "other", p.noise(100_000))
		mustPoll(t, p.f)
		before := p.f.Status().Fetched
		if n, err := h.Read(bg, buf, 0); err != nil || !bytes.Equal(buf[:n], body) {
			t.Errorf("after a change: %d, %v", n, err)
		}
		if n := p.f.Status().Fetched - before; n > 300_000 {
			t.Errorf("a change of 1000 bytes made %d bytes be fetched again", n)
		}
		h.Close()
		p.close(t)
	})
}

// Every read is of one commit: a file that is rewritten with one byte in every
// commit never shows two of them, nor zeros, and never goes back.
func TestFollower_Read_OfOneCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFollowPair(t, 256<<10)
		content := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 300_000+i*1111) }
		p.put(t, "f", content(1))
		mustPoll(t, p.f)
		p.s.SetHook(faultstore.Random(5, faultstore.Rates{MaxDelay: 300 * time.Millisecond}))
		p.f.Start(nil)
		h := p.open(t, "f")
		done := make(chan struct{})
		var wg sync.WaitGroup
		for range 6 {
			wg.Add(1)
			go func() {
				defer wg.Done()
				last := byte(1)
				buf := make([]byte, 1<<20)
				for {
					select {
					case <-done:
						return
					case <-time.After(17 * time.Millisecond):
					}
					n, err := h.Read(bg, buf, 0)
					if err != nil || n == 0 {
						t.Errorf("read: %d, %v", n, err)
						return
					}
					c := buf[0]
					if c < last || n != len(content(int(c))) || bytes.Count(buf[:n], []byte{c}) != n {
						t.Errorf("%d bytes that begin with %d after %d: torn, or back in time", n, c, last)
						return
					}
					last = c
				}
			}()
		}
		for i := 2; i < 40; i++ {
			p.put(t, "f", content(i))
			if i%5 == 0 {
				if _, err := p.v.Fold(bg, true); err != nil {
					t.Errorf("fold: %v", err)
				}
			}
			time.Sleep(700 * time.Millisecond)
		}
		close(done)
		wg.Wait()
		h.Close()
		p.s.SetHook(nil)
		p.close(t)
	})
}

// The bucket is away for longer than the retention, and collection goes on:
// what is shown is loaded anew when it is back.
func TestFollower_Poll_PausedBeyondTheRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFollowPair(t, 8192)
		p.put(t, "stays", p.noise(20_000))
		p.put(t, "f", p.noise(50_000))
		mustPoll(t, p.f)
		stays := p.open(t, "stays")
		want := readAllOf(t, stays)
		p.f.Start(nil)
		p.s.SetOutage(faultstore.Refusing)
		for i := range 30 {
			p.put(t, "f", p.noise(50_000+i))
			if i%10 == 9 {
				if err := p.v.WriteManifest(bg); err != nil {
					t.Fatal(err)
				}
				mustCommit(t, p.v)
			}
			time.Sleep(2 * time.Hour)
			if err := p.v.RenewLease(bg); err != nil { // collection takes the time from it
				t.Fatal(err)
			}
			if _, err := p.v.Collect(bg, false); err != nil {
				t.Fatal(err)
			}
		}
		mustCommit(t, p.v)
		if err := p.v.RenewLease(bg); err != nil {
			t.Fatal(err)
		}
		st := p.f.Status()
		if !st.Follow.Overdue || st.Follow.Error == "" || st.Follow.ErrorSince == nil || st.Follow.LagSeconds < 50*3600 {
			t.Errorf("status: %+v", st.Follow)
		}
		if got := readAllOf(t, stays); got != want {
			t.Error("what is cached is not read any more")
		}
		p.s.SetOutage(faultstore.Up)
		time.Sleep(time.Minute)
		st = p.f.Status()
		if st.Commit != p.v.Status().Commit || st.Follow.Rebuilds != 1 || st.Follow.Overdue || st.Follow.Error != "" || st.Follow.LagCommits != 0 {
			t.Errorf("status: %v %+v, the writer is at %v", st.Commit, st.Follow, p.v.Status().Commit)
		}
		if got := readAllOf(t, stays); got != want {
			t.Error("an open file that did not change shows other bytes")
		}
		if got, err := filesOf(followTree{p.f}); err != nil || len(got["f"]) != 50_029 {
			t.Errorf("%d bytes, %v", len(got["f"]), err)
		}
		stays.Close()
		p.close(t)
	})
}

// An object that was collected since the commit that is shown makes a read look
// for a later one; one that is missing in the head, too, is damage.
func TestFollower_Read_MissingObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFollowPair(t, 256<<10)
		p.put(t, "f", p.noise(256<<10))
		mustPoll(t, p.f)
		h := p.open(t, "f")
		now := p.noise(256 << 10)
		p.put(t, "f", now)
		time.Sleep(25 * time.Hour)
		if _, err := p.v.Collect(bg, false); err != nil {
			t.Fatal(err)
		}
		p.f.Start(nil)
		if got := readAllOf(t, h); got != string(now) {
			t.Error("other bytes")
		}
		if st := p.f.Status(); st.Damage != 0 {
			t.Errorf("damage was seen %d times", st.Damage)
		}
		p.f.view.local.cache.Evict(1 << 30)
		key := ""
		for _, k := range bucketKeys(t, p.bucket) {
			if strings.HasPrefix(k, metadata.ObjectPrefix) {
				key = k
			}
		}
		if err := p.bucket.Delete(bg, key); err != nil {
			t.Fatal(err)
		}
		_, err := h.Read(bg, make([]byte, 100), 0)
		if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), key) {
			t.Errorf("read of what is missing: %v", err)
		}
		if st := p.f.Status(); st.Damage != 1 {
			t.Errorf("damage was seen %d times", st.Damage)
		}
		h.Close()
		closeFollower(t, p.f)
		_ = p.v.Abandon() // its check would find what was deleted
	})
}

// watching notes what it hears, and reads while it does.
type watching struct {
	pages, names func(d *Delta)
}

func (w watching) DropPages(d *Delta) { w.pages(d) }
func (w watching) DropNames(d *Delta) { w.names(d) }

// While pages are dropped, reads are new and attributes wait: nobody can see a
// new size beside old bytes.
func TestFollower_Move_NoNewSizeBesideOldPages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFollowPair(t, 8192)
		p.put(t, "f", []byte("short"))
		mustPoll(t, p.f)
		h := p.open(t, "f")
		var dropped, told atomic.Bool
		size := make(chan int64, 1)
		w := watching{func(d *Delta) {
			if dropped.Swap(true) {
				return
			}
			if got := readAllOf(t, h); got != "long enough" {
				t.Errorf("a read while pages are dropped: %q", got)
			}
			go func() {
				defer p.f.Hold()()
				n, err := p.f.View().Inode(h.Inode().ID)
				if err != nil {
					t.Error(err)
				}
				size <- n.Size
			}()
			for range 1000 {
				runtime.Gosched() // time stands still while it waits for the lock
			}
			if len(size) != 0 {
				t.Error("an attribute was answered before the old pages were gone")
			}
			if !slices.ContainsFunc(d.Ranges, func(r ByteRange) bool { return r.Inode == h.Inode().ID && r.Off <= 5 && r.End > 5 }) {
				t.Errorf("the last page of the old file stays: %+v", d.Ranges)
			}
		}, func(*Delta) { told.Store(true) }}
		p.f.Start(w)
		p.put(t, "f", []byte("long enough"))
		time.Sleep(5 * time.Second)
		if !dropped.Load() || !told.Load() {
			t.Fatal("the watcher heard nothing")
		}
		if n := <-size; n != 11 {
			t.Errorf("size %d", n)
		}
		h.Close()
		p.close(t)
	})
}

// A read for which the store lets one wait does not hold a move up for ever.
func TestFollower_Move_GivesUpReadsThatHang(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFollowPair(t, 8192)
		p.put(t, "f", p.noise(40_000))
		mustPoll(t, p.f)
		h := p.open(t, "f")
		p.s.SetHook(func(_ faultstore.Op, key string, _ int) faultstore.Fault {
			if strings.HasPrefix(key, metadata.CommitPrefix) {
				return faultstore.Fault{}
			}
			return faultstore.Fault{Kind: faultstore.Hang}
		})
		ended := make(chan error, 1)
		go func() {
			_, err := h.Read(bg, make([]byte, 100), 0)
			ended <- err
		}()
		synctest.Wait()
		// As the kernel does, which has a page locked for the read.
		p.f.Start(watching{func(*Delta) { ended <- <-ended }, func(*Delta) {}})
		p.put(t, "f", p.noise(41_000))
		time.Sleep(10 * time.Second)
		if st := p.f.Status(); st.Commit != p.v.Status().Commit {
			t.Errorf("the follower is at %v, the writer at %v", st.Commit, p.v.Status().Commit)
		}
		wantErr(t, <-ended, ErrStore)
		h.Close()
		p.close(t)
	})
}

// Every failing request, and every failing call of the local index, in a move
// is followed by a later one that catches up.
func TestFollower_Poll_EveryFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFollowPair(t, 8192)
		want := files{}
		for n, ended := 0, false; !ended; n++ {
			for i := range 3 {
				want.put(t, p.v, fmt.Sprintf("f%d", i), p.noise(9000), 1000*n%30_000)
				mustCommit(t, p.v)
			}
			calls, failed := p.s.Calls(), false
			p.s.SetHook(func(_ faultstore.Op, _ string, i int) faultstore.Fault {
				if i-calls == n {
					failed = true
					return faultstore.Fault{Kind: faultstore.Before}
				}
				return faultstore.Fault{}
			})
			if err := p.f.Poll(bg); failed != (err != nil) {
				t.Errorf("request %d fails: %v", n, err)
			}
			p.s.SetHook(nil)
			mustPoll(t, p.f)
			if got, err := filesOf(followTree{p.f}); err != nil || fmt.Sprint(got) != fmt.Sprint(want) {
				t.Fatalf("after request %d failed: %v", n, err)
			}
			ended = !failed
		}
		p.close(t)
	})
}

// The index that a follower leaves is where the next one begins.
func TestOpenFollower_GoesOnFromItsIndex(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFollowPair(t, 8192)
		for i := range 50 {
			p.put(t, fmt.Sprintf("f%d", i), p.noise(100))
		}
		mustPoll(t, p.f)
		closeFollower(t, p.f)
		p.put(t, "later", p.noise(100))
		calls := p.s.Calls()
		p.f = p.l.mustOpen(p.s)
		if n := p.s.Calls() - calls; n > 10 {
			t.Errorf("it took %d requests to start again one commit later", n)
		}
		if p.f.Head().CommitID != p.v.Status().Commit {
			t.Errorf("it shows %v", p.f.Head().CommitID)
		}
		p.close(t)
	})
}

func TestOpenFollower_DamagedIndexIsBuiltAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFollowPair(t, 8192)
		p.put(t, "f", []byte("content"))
		closeFollower(t, p.f)
		for dir, kv := range p.l.kv {
			err := kv.Update(func(w metadata.Writer) error { return w.Delete([]byte{0}) })
			if err != nil {
				t.Fatal(dir, err)
			}
			p.l.kv[dir] = metadata.NewMemKV()
			if err := p.l.kv[dir].Update(func(w metadata.Writer) error { return w.Set([]byte("x"), []byte("y")) }); err != nil {
				t.Fatal(err)
			}
		}
		p.f = p.l.mustOpen(p.s)
		if got := readAllOf(t, p.open(t, "f")); got != "content" {
			t.Errorf("%q", got)
		}
		p.close(t)
	})
}

func TestOpenFollower_NoVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		if err := l.bucket.Delete(bg, metadata.VolumeKey); err != nil {
			t.Fatal(err)
		}
		_, err := newFollowLab(t).open(l.bucket, 8<<20)
		wantErr(t, err, ErrNoVolume)
	})
}
