package gateway

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// mountPin are the options of a mounted point's pin.
func (l *lab) mountPin(s objstore.Store, n uint64) PinOptions {
	return PinOptions{Store: s, URL: "mem://lab", Kind: PinMount, Name: "mount", Holder: "lab", Commit: n, Lifetime: 24 * time.Hour, Rand: l}
}

// pinKinds are the kinds of the pins in a bucket.
func pinKinds(t *testing.T, s objstore.Store) (kinds []string) {
	t.Helper()
	err := objstore.ListAll(bg, s, metadata.PinPrefix, "", func(i objstore.Info) error {
		body, _, err := objstore.ReadAll(bg, s, i.Key, maxPinBytes)
		if err != nil {
			return err
		}
		p, err := metadata.DecodePin(body)
		if err == nil {
			kinds = append(kinds, p.Kind)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return kinds
}

func wantKinds(t *testing.T, s objstore.Store, when string, want ...string) {
	t.Helper()
	if got := pinKinds(t, s); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("%s: the bucket has pins %v, want %v", when, got, want)
	}
}

func mustCollect(t *testing.T, v *Volume) Collected {
	t.Helper()
	// As a mount does all the time: ages are judged as of the last renewal.
	if err := v.RenewLease(bg); err != nil {
		t.Fatal(err)
	}
	c, err := v.Collect(bg, false)
	if err != nil {
		t.Fatalf("collect: %v", err)
	}
	return c
}

func TestPin_PinCommit_KeepsItsCommitUntilReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		old, then, now := someDead(t, l, v)
		p, err := PinCommit(bg, l.mountPin(l.bucket, old.N))
		if err != nil {
			t.Fatal(err)
		}
		wantKinds(t, l.bucket, "pinned", PinMount)
		if p.Commit() != old || p.Status().Lapsed || p.Status().Expiry == nil {
			t.Errorf("%+v", p.Status())
		}
		if c := mustCollect(t, v); c.Things != 0 || c.Kept == 0 {
			t.Errorf("pinned: %+v", c)
		}
		if d := then.diff(bucketFiles(t, l.bucket, old.N)); d != "" {
			t.Error(d)
		}
		for range 2 {
			if err := p.Release(bg); err != nil {
				t.Fatal(err)
			}
		}
		wantErr(t, p.Renew(bg), ErrClosed)
		wantKinds(t, l.bucket, "released")
		if c := mustCollect(t, v); c.Things == 0 {
			t.Errorf("released: %+v", c)
		}
		wantFiles(t, v, now, "afterwards")
		mustClose(t, v)
	})
}

func TestPin_PinCommit_TooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		old, _, _ := someDead(t, l, v)
		mustCollect(t, v)
		// Later commits say how far collection has gone, too; so does another epoch.
		for i := range 3 {
			_, err := PinCommit(bg, l.mountPin(l.bucket, old.N))
			wantErr(t, err, ErrCollected)
			wantKinds(t, l.bucket, "too late")
			files{}.put(t, v, fmt.Sprint("more", i), l.noise(500), 0)
			mustCommit(t, v)
			mustClose(t, v)
			v = l.mustMount(nil)
		}
		if _, err := PinCommit(bg, l.mountPin(l.bucket, v.head.N)); err != nil {
			t.Errorf("the last commit: %v", err)
		}
		_, err := PinCommit(bg, l.mountPin(l.bucket, v.head.N+1))
		wantErr(t, err, ErrNotExist)
		o := l.mountPin(l.bucket, 1)
		o.Lifetime = time.Hour
		_, err = PinCommit(bg, o)
		wantErr(t, err, ErrInvalid)
		mustClose(t, v)
	})
}

// A collection of things that died long ago does not move the horizon back.
func TestPin_PinCommit_HorizonNeverGoesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		first, _, _ := someDead(t, l, v)
		early := pin(t, l.bucket, "early", first, 0)
		f := files{}
		f.put(t, v, "c", l.noise(20000), 0)
		middle := mustCommit(t, v)
		f.put(t, v, "c", l.noise(20000), 0)
		mustCommit(t, v)
		if c := mustCollect(t, v); c.Things == 0 || c.Kept == 0 {
			t.Fatalf("%+v", c)
		}
		if err := l.bucket.Delete(bg, early); err != nil {
			t.Fatal(err)
		}
		if c := mustCollect(t, v); c.Things == 0 {
			t.Fatalf("%+v", c)
		}
		_, err := PinCommit(bg, l.mountPin(l.bucket, middle.N))
		wantErr(t, err, ErrCollected)
		mustClose(t, v)
	})
}

// Another pin on the same commit shows that it was never without one; a claim
// does not, nor a pin of another commit, nor one that ends now.
func TestPin_PinCommit_BesideAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		old, then, now := someDead(t, l, v)
		snapshot := pin(t, l.bucket, "snap", old, 0)
		now.put(t, v, "c", l.noise(20000), 0)
		other := mustCommit(t, v)
		now.put(t, v, "c", l.noise(20000), 0)
		mustCommit(t, v)
		mustCollect(t, v)
		_, err := PinCommit(bg, l.mountPin(l.bucket, other.N))
		wantErr(t, err, ErrCollected)
		p, err := PinCommit(bg, l.mountPin(l.bucket, old.N))
		if err != nil {
			t.Fatalf("beside a snapshot: %v", err)
		}
		if err := l.bucket.Delete(bg, snapshot); err != nil {
			t.Fatal(err)
		}
		mustCollect(t, v)
		if d := then.diff(bucketFiles(t, l.bucket, old.N)); d != "" {
			t.Error(d)
		}
		if err := p.Release(bg); err != nil {
			t.Fatal(err)
		}
		soon := time.Now().Add(pinSkew / 2).UnixNano()
		for _, x := range []metadata.Pin{
			{Kind: pinClaim, Commit: old}, {Kind: PinSnapshot, Commit: other}, {Kind: PinMount, Commit: old, Expiry: soon},
		} {
			key := metadata.PinKey("no-proof", fmt.Sprint(x.Kind, x.Expiry))
			if err := objstore.Create(bg, l.bucket, key, metadata.EncodePin(&x)); err != nil {
				t.Fatal(err)
			}
		}
		harmed := pin(t, l.bucket, "harmed", old, 0)
		harm(t, l.bucket, harmed, "flipped")
		_, err = PinCommit(bg, l.mountPin(l.bucket, old.N))
		wantErr(t, err, ErrCollected)
		mustClose(t, v)
	})
}

// raceAt runs other, once, within the n-th call of a store, and says whether
// there was one.
func raceAt(s *faultstore.Store, n int, other func()) (ran func() bool) {
	var mu sync.Mutex
	did, calls := false, 0
	s.SetHook(func(faultstore.Op, string, int) faultstore.Fault {
		mu.Lock()
		defer mu.Unlock()
		if calls++; calls == n+1 && !did {
			did = true
			other()
		}
		return faultstore.Fault{}
	})
	return func() bool { s.SetHook(nil); return did }
}

// honest checks that a pin holds if and only if PinCommit said so.
func honest(t *testing.T, l *lab, v *Volume, old metadata.CommitID, then files, p *Pin, err error, what string) {
	t.Helper()
	mustCollect(t, v)
	if err != nil {
		wantErr(t, err, ErrCollected)
		wantKinds(t, l.bucket, what+": refused")
		return
	}
	if d := then.diff(bucketFiles(t, l.bucket, old.N)); d != "" {
		t.Errorf("%s: pinned, and yet: %s", what, d)
	}
	if err := p.Release(bg); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

func TestPin_PinCommit_RaceWithCollect(t *testing.T) {
	held, refused := 0, 0
	for n := 0; ; n++ {
		more := false
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 1, 8192)
			v := l.mustMount(nil)
			old, then, now := someDead(t, l, v)
			s := faultstore.New(l.bucket, nil)
			ran := raceAt(s, n, func() { mustCollect(t, v) })
			p, err := PinCommit(bg, l.mountPin(s, old.N))
			more = ran()
			honest(t, l, v, old, then, p, err, fmt.Sprint("collection in request ", n))
			if err == nil {
				held++
			} else {
				refused++
			}
			wantFiles(t, v, now, "afterwards")
			mustClose(t, v)
		})
		if !more {
			break
		}
	}
	if held == 0 || refused == 0 {
		t.Errorf("%d pins held and %d were refused", held, refused)
	}
}

func TestVolume_Collect_RaceWithPinCommit(t *testing.T) {
	held, refused := 0, 0
	for n := 0; ; n++ {
		more := false
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 1, 8192)
			s := faultstore.New(l.bucket, nil)
			v, err := l.mount(s, nil)
			if err != nil {
				t.Fatal(err)
			}
			old, then, _ := someDead(t, l, v)
			var p *Pin
			ran := raceAt(s, n, func() { p, err = PinCommit(bg, l.mountPin(l.bucket, old.N)) })
			mustCollect(t, v)
			if more = ran(); more {
				honest(t, l, v, old, then, p, err, fmt.Sprint("pin in request ", n))
				if err == nil {
					held++
				} else {
					refused++
				}
			}
			mustClose(t, v)
		})
		if !more {
			break
		}
	}
	if held == 0 || refused == 0 {
		t.Errorf("%d pins held and %d were refused", held, refused)
	}
}

// renewable is a volume with a pin that is old enough to be renewed, on a
// commit that nothing else keeps.
func renewable(t *testing.T, l *lab, v *Volume, s objstore.Store) (old metadata.CommitID, then files, p *Pin) {
	t.Helper()
	old, then, _ = someDead(t, l, v)
	p, err := PinCommit(bg, l.mountPin(s, old.N))
	if err != nil {
		t.Fatal(err)
	}
	// The horizon passes the commit: only the pins count from here on.
	files{}.put(t, v, "x", l.noise(20000), 0)
	mustCommit(t, v)
	if err := v.Unlink(bg, metadata.RootInode, "x"); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, v)
	if c := mustCollect(t, v); c.Things == 0 || v.head.Horizon <= old.N {
		t.Fatalf("%+v, horizon %d", c, v.head.Horizon)
	}
	time.Sleep(20 * time.Hour)
	return old, then, p
}

func TestPin_Renew_RaceWithCollect(t *testing.T) {
	for n, more := 0, true; more; n++ {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 1, 8192)
			v := l.mustMount(nil)
			s := faultstore.New(l.bucket, nil)
			old, then, p := renewable(t, l, v, s)
			ran := raceAt(s, n, func() { mustCollect(t, v) })
			err := p.Renew(bg)
			more = ran()
			if err != nil {
				t.Errorf("collection in request %d: %v", n, err)
			}
			wantKinds(t, l.bucket, "renewed", PinMount)
			time.Sleep(23 * time.Hour) // the first pin would have ended
			honest(t, l, v, old, then, p, err, fmt.Sprint("collection in request ", n))
			mustClose(t, v)
		})
	}
}

func TestVolume_Collect_RaceWithRenew(t *testing.T) {
	for n, more := 0, true; more; n++ {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 1, 8192)
			s := faultstore.New(l.bucket, nil)
			v, err := l.mount(s, nil)
			if err != nil {
				t.Fatal(err)
			}
			old, then, p := renewable(t, l, v, l.bucket)
			ran := raceAt(s, n, func() { err = p.Renew(bg) })
			mustCollect(t, v)
			if more = ran(); more && err != nil {
				t.Errorf("in request %d of a collection: %v", n, err)
			}
			honest(t, l, v, old, then, p, nil, fmt.Sprint("renewal in request ", n))
			mustClose(t, v)
		})
	}
}

// A pin that lapsed while the store was away holds again if nothing was
// condemned meanwhile, and says so otherwise.
func TestPin_Renew_AfterItLapsed(t *testing.T) {
	for _, collected := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 1, 8192)
			v := l.mustMount(nil)
			old, then, _ := someDead(t, l, v)
			p, err := PinCommit(bg, l.mountPin(l.bucket, old.N))
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(25 * time.Hour)
			if !p.Status().Lapsed {
				t.Errorf("%+v", p.Status())
			}
			if collected {
				mustCollect(t, v)
			}
			err = p.Renew(bg)
			if collected {
				wantErr(t, err, ErrCollected)
				if s := p.Status(); !s.Lapsed || !strings.Contains(s.Error, "may be deleted") {
					t.Errorf("%+v", s)
				}
			} else if honest(t, l, v, old, then, p, err, "lapsed"); p.Status().Lapsed {
				t.Errorf("%+v", p.Status())
			}
			mustClose(t, v)
		})
	}
}

func TestPin_Keep_RenewsThroughAnOutage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		s := faultstore.New(l.bucket, nil)
		old, then, p := renewable(t, l, v, s)
		ctx, cancel := context.WithCancel(bg)
		done := make(chan struct{})
		go func() { p.Keep(ctx, slog.New(slog.DiscardHandler)); close(done) }()
		time.Sleep(time.Hour) // it began 20 hours late: the first renewal is near
		if err := p.Renew(bg); err != nil {
			t.Fatal(err)
		}
		for day := range 5 {
			if day == 2 {
				s.SetHook(func(faultstore.Op, string, int) faultstore.Fault { return faultstore.Fault{Kind: faultstore.Before} })
				time.Sleep(20 * time.Hour)
				if p.Status().Error == "" {
					t.Error("the outage is not told")
				}
				s.SetHook(nil)
			}
			time.Sleep(24 * time.Hour)
			if c := mustCollect(t, v); c.Kept == 0 || p.Status().Lapsed || p.Status().Error != "" {
				t.Errorf("day %d: %+v, %+v", day, c, p.Status())
			}
		}
		cancel()
		<-done
		honest(t, l, v, old, then, p, nil, "after five days")
		mustClose(t, v)
	})
}

// Every request fails once, before or after it took effect: a pin that is
// returned holds, and what an error leaves is a claim at most.
func TestPin_PinCommit_EveryFailure(t *testing.T) {
	for _, kind := range []faultstore.Kind{faultstore.Before, faultstore.Lost} {
		for n, more := 0, true; more; n++ {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, 1, 8192)
				v := l.mustMount(nil)
				s := faultstore.New(l.bucket, nil)
				old, then, now := someDead(t, l, v)
				failed := false
				s.SetHook(func(_ faultstore.Op, _ string, i int) faultstore.Fault {
					if i != n {
						return faultstore.Fault{}
					}
					failed = true
					return faultstore.Fault{Kind: kind}
				})
				p, err := PinCommit(bg, l.mountPin(s, old.N))
				more = failed
				s.SetHook(nil)
				if err != nil {
					wantErr(t, err, ErrStore)
					for _, k := range pinKinds(t, l.bucket) {
						if k != pinClaim {
							t.Errorf("failure of request %d left a pin of kind %s", n, k)
						}
					}
					time.Sleep(claimLifetime + time.Second)
					if c := mustCollect(t, v); c.Things == 0 {
						t.Errorf("failure of request %d keeps what nobody pinned: %+v", n, c)
					}
				} else {
					if c := mustCollect(t, v); c.Things != 0 {
						t.Errorf("failure of request %d: the pin does not hold: %+v", n, c)
					}
					if d := then.diff(bucketFiles(t, l.bucket, old.N)); d != "" {
						t.Error(d)
					}
					if err := p.Release(bg); err != nil {
						t.Error(err)
					}
					wantKinds(t, l.bucket, fmt.Sprintf("released after failure of request %d", n))
				}
				wantFiles(t, v, now, "afterwards")
				mustClose(t, v)
			})
		}
	}
}

// interleave runs other beside a collection: it begins within the first-th
// request of the collection, stops in its own stop-th and goes on within the
// second-th. It says whether the collection and other got that far.
func interleave(collecting *faultstore.Store, first, second int, other *faultstore.Store, stop int, run func(), collect func()) (far, stopped bool) {
	paused, resume, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	other.SetHook(func(faultstore.Op, string, int) faultstore.Fault {
		if calls.Add(1) == int64(stop+1) {
			stopped = true
			close(paused)
			<-resume
		}
		return faultstore.Fault{}
	})
	var mu sync.Mutex
	n, begun, ended := 0, false, false
	finish := func() {
		if begun && !ended {
			ended = true
			close(resume)
			<-done
		}
	}
	collecting.SetHook(func(faultstore.Op, string, int) faultstore.Fault {
		mu.Lock()
		defer mu.Unlock()
		n++
		if n == first+1 {
			begun = true
			go func() { defer close(done); run() }()
			select {
			case <-paused:
			case <-done:
			}
		}
		if n == second+1 {
			finish()
		}
		return faultstore.Fault{}
	})
	collect()
	mu.Lock()
	defer mu.Unlock()
	far = n > second
	finish()
	collecting.SetHook(nil)
	other.SetHook(nil)
	return far, stopped
}

// A pin that is being made while a collection lists the pins is seen, as the
// claim or as the pin, or is refused.
func TestVolume_Collect_InterleavedWithPinCommit(t *testing.T) {
	held, refused := 0, 0
	for first, begins := 0, true; begins; first++ {
		begins = false
		for second, far := first, true; far; second++ {
			far = false
			for stop, stops := 0, true; stops; stop++ {
				synctest.Test(t, func(t *testing.T) {
					l := newLab(t, 1, 8192)
					s, o := faultstore.New(l.bucket, nil), faultstore.New(l.bucket, nil)
					v, err := l.mount(s, nil)
					if err != nil {
						t.Fatal(err)
					}
					old, then, _ := someDead(t, l, v)
					var p *Pin
					err = errors.New("never begun")
					run := func() { p, err = PinCommit(bg, l.mountPin(o, old.N)) }
					far, stops = interleave(s, first, second, o, stop, run, func() { mustCollect(t, v) })
					if begins = begins || far; far {
						honest(t, l, v, old, then, p, err, fmt.Sprintf("pin begun in request %d, stopped in its %d, gone on in %d", first, stop, second))
						if err == nil {
							held++
						} else {
							refused++
						}
					}
					mustClose(t, v)
				})
				if !far {
					break
				}
			}
		}
	}
	if held == 0 || refused == 0 {
		t.Errorf("%d pins held and %d were refused", held, refused)
	}
	t.Logf("%d pins held and %d were refused", held, refused)
}
