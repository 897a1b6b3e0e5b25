package gateway

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
)

// machine is another machine with the same bucket and a disk of its own.
func (l *lab) machine(seed int64) *lab {
	c := l.forkEmpty(seed)
	c.opt.Owner = metadata.Owner{Host: "other", PID: int(seed), StateDir: "/other"}
	return c
}

func (l *lab) forkEmpty(seed int64) *lab {
	c := newLabAs(l.t, seed, 8192, l.form)
	c.bucket, c.opt.Durability, c.opt.LeaseDuration = l.bucket, l.opt.Durability, l.opt.LeaseDuration
	return c
}

// kill ends a mount as kill -9 does; the disk stays as it is.
func (l *lab) kill(v *Volume) {
	l.fault.Kill()
	_ = v.Abandon() // the disk is dead
	l.disk = l.disk.Crash(l.diskRng, vfs.KillProcess)
}

func TestVolume_Open_OwnLeaseAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "a", []byte("acknowledged"), 0)
		for range 3 {
			l.kill(v)
			start := time.Now()
			v = l.mustMount(nil)
			if d := time.Since(start); d != 0 {
				t.Fatalf("the owner waited %v for its own lease", d)
			}
			wantFiles(t, v, f, "after a kill")
			f.put(t, v, "b", l.noise(5000), 7)
		}
		mustClose(t, v)
	})
}

func TestVolume_Open_WaitsForAnothersLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newLab(t, 1, 8192)
		va := a.mustMount(nil)
		a.kill(va)
		b := a.machine(2)
		start := time.Now()
		vb := b.mustMount(nil)
		if d := time.Since(start); d < 15*time.Second || d > 17*time.Second {
			t.Errorf("a dead owner's lease of 15 s was waited for %v", d)
		}
		mustClose(t, vb)
		start = time.Now()
		mustClose(t, a.machine(3).mustMount(nil))
		if d := time.Since(start); d != 0 {
			t.Errorf("a released lease was waited for %v", d)
		}
	})
}

func TestVolume_Open_OwnedByLiveWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newLab(t, 1, 8192)
		va := a.mustMount(func(o *Options) { o.Manual = false })
		b := a.machine(2)
		_, err := b.mount(b.bucket, nil)
		wantErr(t, err, ErrOwned)
		if !strings.Contains(err.Error(), "lab, process 1") {
			t.Errorf("the error %q does not name the owner", err)
		}
		start := time.Now()
		_, err = b.mount(b.bucket, func(o *Options) { o.RequireReleased = true })
		wantErr(t, err, ErrOwned)
		if d := time.Since(start); d != 0 {
			t.Errorf("who needs a released lease waited %v", d)
		}
		f := files{}
		f.put(t, va, "a", []byte("the owner is unharmed"), 0)
		mustClose(t, va)
		vb := b.mustMount(func(o *Options) { o.RequireReleased = true })
		wantFiles(t, vb, f, "after a clean hand-over")
		mustClose(t, vb)
	})
}

func TestVolume_Open_TakeoverFencesTheOldWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newLab(t, 1, 8192)
		va := a.mustMount(nil)
		f := files{}
		f.put(t, va, "a", a.noise(30000), 0)
		f.put(t, va, "b", a.noise(3000), 0)
		mustCommit(t, va)
		h := openPath(t, va, "a")
		pwrite(t, h, []byte("never committed"), 5)
		mustFsync(t, va)

		b := a.machine(2)
		vb := b.mustMount(func(o *Options) { o.Takeover = true })
		wantFiles(t, vb, f, "at the new owner")
		f.put(t, vb, "a", b.noise(40000), 100)
		f.drop(t, vb, "b")
		mustCommit(t, vb)
		if _, err := vb.Collect(bg, false); err != nil {
			t.Fatal(err)
		}
		if _, err := vb.CollectOrphans(bg, false); err != nil {
			t.Fatal(err)
		}
		before := a.bucket.Len()

		_, err := va.Commit(bg)
		wantErr(t, err, ErrFenced)
		if !va.ReadOnly() {
			t.Error("a fenced volume takes writes")
		}
		_, err = h.Write(bg, []byte("x"), 0, WriteFlags{})
		wantErr(t, err, ErrFenced)
		_, err = va.Create(bg, 1, "n", modeRegular|0o600, 0, Owner{}, nil)
		wantErr(t, err, ErrFenced)
		if c, err := va.Collect(bg, false); c.Things != 0 {
			t.Errorf("a fenced writer collected %d things, %v", c.Things, err)
		}
		if c, err := va.CollectOrphans(bg, false); c.Things != 0 {
			t.Errorf("a fenced writer deleted %d orphans, %v", c.Things, err)
		}
		h.Close()
		wantErr(t, va.Close(bg), ErrFenced)
		for _, m := range a.bucket.History()[before:] {
			if m.Delete || m.Key == metadata.LeaseKey || strings.HasPrefix(m.Key, metadata.CommitPrefix) {
				t.Errorf("the fenced writer changed %s", m.Key)
			}
		}
		wantFiles(t, vb, f, "at the new owner, after the old one's attempt")
		wantCheckClean(t, vb)
		mustClose(t, vb)

		va = a.mustMount(nil)
		wantFiles(t, va, f, "back at the first owner")
		mustClose(t, va)
		list, err := a.disk.ReadDir(a.dir + "/quarantine")
		if err != nil || len(list) != 1 {
			t.Errorf("quarantine holds %d journals, %v", len(list), err)
		}
	})
}

func TestVolume_RenewLease_FindsTheTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newLab(t, 1, 8192)
		va := a.mustMount(nil)
		b := a.machine(2)
		vb := b.mustMount(func(o *Options) { o.Takeover = true })
		select {
		case <-va.Ended():
			t.Error("the first owner ended before it could know")
		default:
		}
		err := va.RenewLease(bg)
		wantErr(t, err, ErrFenced)
		<-va.Ended()
		if !strings.Contains(err.Error(), "other, process 2") {
			t.Errorf("the error %q does not name the new owner", err)
		}
		wantErr(t, va.Stopped(), ErrFenced)
		wantErr(t, va.Close(bg), ErrFenced)
		mustClose(t, vb)
	})
}

// In bucket mode everything that fsync acknowledged is with the next owner.
func TestVolume_Open_TakeoverKeepsBucketModeFsyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newLab(t, 1, 8192)
		bucket := func(o *Options) { o.Manual, o.Durability = false, Durability{Mode: ModeBucket} }
		va := a.mustMount(bucket)
		f := files{}
		for i := range 10 {
			f.put(t, va, "a", a.noise(900), 800*i)
			mustFsync(t, va)
		}
		b := a.machine(2)
		vb := b.mustMount(func(o *Options) { bucket(o); o.Takeover = true })
		wantFiles(t, vb, f, "after the take-over")
		h := openPath(t, va, "a")
		if _, err := h.Write(bg, []byte("too late"), 0, WriteFlags{}); err == nil {
			wantErr(t, va.Fsync(bg, h.Inode()), ErrFenced)
		}
		h.Close()
		wantErr(t, va.Close(bg), ErrFenced)
		wantFiles(t, vb, f, "after the old writer's last attempt")
		mustClose(t, vb)
	})
}

// A, B and A again, each with changes, some epochs without a commit.
func TestVolume_Open_BackAndForth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newLab(t, 1, 8192)
		b := a.machine(2)
		f := files{}
		for i := range 6 {
			for j, l := range []*lab{a, b} {
				v := l.mustMount(nil)
				wantFiles(t, v, f, "at the next owner")
				if (i+j)%3 != 0 {
					f.put(t, v, "a", l.noise(4000), 3000*i)
					f.put(t, v, string(rune('b'+j)), l.noise(9000), 100*i)
				}
				if i%2 == 0 {
					mustClose(t, v)
				} else {
					mustCommit(t, v)
					l.kill(v)
				}
			}
		}
		if d := f.diff(bucketFiles(t, a.bucket, 0)); d != "" {
			t.Error(d)
		}
	})
}

// Owners that die before their first commit leave epochs that hold nothing.
func TestVolume_Open_EpochsWithoutCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "a", l.noise(20000), 0)
		mustClose(t, v)
		for i := range 8 {
			m := l.machine(int64(10 + i))
			v := m.mustMount(func(o *Options) { o.Takeover = true })
			m.kill(v)
		}
		// An epoch whose owner died before it sealed anything.
		lease, version, err := readLease(bg, l.bucket)
		if err != nil {
			t.Fatal(err)
		}
		lease.Epoch, lease.Nonce = lease.Epoch+3, "0000000000000001"
		if _, err := l.bucket.Put(bg, metadata.LeaseKey, strings.NewReader(string(metadata.EncodeLease(lease))), int64(len(metadata.EncodeLease(lease))), conditionOf(version)); err != nil {
			t.Fatal(err)
		}
		if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
			t.Fatalf("a reader: %s", d)
		}
		v = l.mustMount(nil)
		wantFiles(t, v, f, "after epochs without commits")
		f.put(t, v, "a", []byte("more"), 77)
		mustClose(t, v)
		if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
			t.Fatalf("a reader afterwards: %s", d)
		}
	})
}

// With StopOnLeaseLost writers and fsyncs wait while the lease can't be renewed,
// can be interrupted, and go on when it is; without it they go on all the time,
// and status says so.
func TestVolume_Write_LeaseLost(t *testing.T) {
	for _, stop := range []bool{true, false} {
		for _, mode := range []Mode{ModeLocal, ModeLag} {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, 1, 8192)
				v := l.mustMount(func(o *Options) {
					o.StopOnLeaseLost = stop
					o.Durability = Durability{Mode: mode, Lag: time.Hour}
				})
				f := files{}
				f.put(t, v, "a", []byte("x"), 0)
				mustFsync(t, v)
				h := openPath(t, v, "a")
				defer h.Close()
				time.Sleep(16 * time.Second)
				ctx, cancel := context.WithCancel(bg)
				gone, done := make(chan error, 1), make(chan error, 2)
				go func() { _, err := h.Write(ctx, []byte("interrupted"), 0, WriteFlags{}); gone <- err }()
				go func() { done <- v.Fsync(bg, 1) }()
				go func() { _, err := h.Write(bg, []byte("y"), 1, WriteFlags{}); done <- err }()
				synctest.Wait()
				s := v.Status()
				if s.LeaseLost != 1 {
					t.Errorf("status says that the lease ran out %v s ago", s.LeaseLost)
				}
				if held := len(done) == 0; held != stop || (s.WritersHeld != "") != stop {
					t.Fatalf("stop %v: held %v, status says %q", stop, held, s.WritersHeld)
				}
				if got := pread(t, h, 1, 0); stop && string(got) != "x" {
					t.Errorf("reads %q", got)
				}
				cancel()
				if err := <-gone; stop {
					wantErr(t, err, ErrInterrupted)
				}
				if err := v.RenewLease(bg); err != nil {
					t.Fatal(err)
				}
				for range 2 {
					if err := <-done; err != nil {
						t.Fatal(err)
					}
				}
				if s := v.Status(); s.LeaseLost != 0 || s.WritersHeld != "" {
					t.Errorf("after the renewal status says %v s, %q", s.LeaseLost, s.WritersHeld)
				}
				mustClose(t, v)
			})
		}
	}
}

// A writer that waited for room in the journal while the lease ran out is not
// let in when there is room, but when the lease is renewed.
func TestVolume_Write_LeaseLostDuringTheWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		l.opt.ReferenceBytes = 1 << 30
		v := l.mustMount(func(o *Options) { o.StopOnLeaseLost = true })
		h := mkfile(t, v, 1, "a")
		defer h.Close()
		data := l.noise(12 << 20)
		var written atomic.Int64
		done := make(chan error, 1)
		go func() {
			var err error
			for off := 0; off < len(data) && err == nil; off += 64 << 10 {
				_, err = h.Write(bg, data[off:off+64<<10], int64(off), WriteFlags{})
				written.Add(64 << 10)
			}
			done <- err
		}()
		time.Sleep(14 * time.Second)
		before := written.Load()
		if before == 0 || before == int64(len(data)) {
			t.Fatalf("%d bytes were written, and nobody waits for room", before)
		}
		time.Sleep(2 * time.Second)
		mustCommit(t, v)
		synctest.Wait()
		if n := written.Load() - before; n != 0 {
			t.Errorf("%d bytes were acknowledged without the lease", n)
		}
		if err := v.RenewLease(bg); err != nil {
			t.Fatal(err)
		}
		if err := v.Fsync(bg, 1); err != nil {
			t.Fatal(err)
		}
		for len(done) == 0 {
			mustCommit(t, v)
			synctest.Wait()
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		mustClose(t, v)
	})
}

// Writers that wait for the lease hear of it when another has it, whoever finds
// that out.
func TestVolume_Write_HeldUntilFenced(t *testing.T) {
	for _, finder := range []func(v *Volume) error{
		func(v *Volume) error { return v.RenewLease(bg) },
		func(v *Volume) error { _, err := v.Commit(bg); return err },
	} {
		synctest.Test(t, func(t *testing.T) {
			a := newLab(t, 1, 8192)
			va := a.mustMount(func(o *Options) { o.StopOnLeaseLost = true })
			files{}.put(t, va, "a", []byte("x"), 0)
			h := openPath(t, va, "a")
			b := a.machine(2)
			vb := b.mustMount(nil)
			done := make(chan error, 1)
			go func() { _, err := h.Write(bg, []byte("y"), 0, WriteFlags{}); done <- err }()
			synctest.Wait()
			if len(done) > 0 {
				t.Fatalf("the write returned %v", <-done)
			}
			wantErr(t, finder(va), ErrFenced)
			wantErr(t, <-done, ErrFenced)
			h.Close()
			wantErr(t, va.Close(bg), ErrFenced)
			mustClose(t, vb)
		})
	}
}

// A lease whose renewal came late is ours all the same, and is renewed at once.
func TestVolume_RenewLease_EarlierOneCameLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		late := v.lease.doc
		late.Nonce = "00000000000000ff"
		body := string(metadata.EncodeLease(&late))
		if _, err := l.bucket.Put(bg, metadata.LeaseKey, strings.NewReader(body), int64(len(body)), conditionOf(v.lease.version)); err != nil {
			t.Fatal(err)
		}
		if err := v.RenewLease(bg); err != nil {
			t.Error(err)
		}
		mustClose(t, v)
	})
}

// Who is told to wait for a living owner takes over when that one lets go, and
// gives up when the time is over.
func TestVolume_Open_WaitsAsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newLab(t, 1, 8192)
		va := a.mustMount(func(o *Options) { o.Manual = false })
		b := a.machine(2)
		for _, wait := range []time.Duration{2 * time.Second, 40 * time.Second} {
			start := time.Now()
			_, err := b.mount(b.bucket, func(o *Options) { o.Wait = wait })
			wantErr(t, err, ErrOwned)
			if d := time.Since(start); d < wait || d > wait+time.Second {
				t.Errorf("told to wait %v it waited %v", wait, d)
			}
			if !strings.Contains(err.Error(), "lab, process 1") || !strings.Contains(err.Error(), "heard of") {
				t.Errorf("the error %q does not name the owner and when it was heard of", err)
			}
		}
		f := files{}
		f.put(t, va, "a", []byte("handed over"), 0)
		opened := make(chan *Volume, 1)
		go func() {
			vb, err := b.mount(b.bucket, func(o *Options) { o.Wait = time.Hour })
			if err != nil {
				t.Error(err)
			}
			opened <- vb
		}()
		time.Sleep(time.Minute)
		start := time.Now()
		if _, err := va.Handover(bg); err != nil {
			t.Fatal(err)
		}
		vb := <-opened
		if d := time.Since(start); d > time.Second {
			t.Errorf("the next owner waited %v after a hand-over", d)
		}
		wantFiles(t, vb, f, "after a hand-over")
		mustClose(t, vb)
		if err := va.Close(bg); err != nil {
			t.Errorf("close after a hand-over: %v", err)
		}
	})
}

// Clocks decide nothing: commit times never go back and leases run on the
// monotonic clock.
func TestVolume_Commit_WallClockJumps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		var jump time.Duration
		now := func(o *Options) { o.Now = func() time.Time { return time.Now().Add(jump) } }
		v := l.mustMount(now)
		f := files{}
		last := v.head.Time
		for i, d := range []time.Duration{0, 5 * time.Hour, -9 * time.Hour, -10000 * time.Hour, time.Hour, 0} {
			jump = d
			f.put(t, v, "a", l.noise(500), 400*i)
			mustCommit(t, v)
			if v.head.Time < last {
				t.Errorf("jump of %v: the commit's time went back by %v", d, time.Duration(last-v.head.Time))
			}
			last = v.head.Time
			if err := v.RenewLease(bg); err != nil {
				t.Errorf("jump of %v: %v", d, err)
			}
			b := l.machine(int64(100 + i))
			start := time.Now()
			_, err := b.mount(b.bucket, func(o *Options) { now(o); o.RequireReleased = true })
			wantErr(t, err, ErrOwned)
			if time.Since(start) != 0 {
				t.Error("the contender waited")
			}
		}
		l.kill(v)
		jump = -time.Hour
		b := l.machine(50)
		start := time.Now()
		vb := b.mustMount(now)
		if d := time.Since(start); d < 15*time.Second || d > 17*time.Second {
			t.Errorf("with a jumping clock the lease was waited for %v", d)
		}
		wantFiles(t, vb, f, "after the take-over")
		mustClose(t, vb)
	})
}
