package gateway

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// wrongBy is by how much machines' clocks are wrong in the tests below.
var wrongBy = []time.Duration{-24 * time.Hour, -time.Hour, time.Hour, 24 * time.Hour, 10 * 365 * 24 * time.Hour}

func clockWrongBy(d time.Duration) func(*Options) {
	return func(o *Options) { o.Now = func() time.Time { return time.Now().Add(d) } }
}

// What dies under a writer whose clock is wrong is kept for the retention, no less
// and no more, whoever collects.
func TestVolume_Collect_WritersClocksApart(t *testing.T) {
	const retention = 6 * time.Hour
	for _, killer := range wrongBy {
		for _, collector := range []time.Duration{0, killer, -killer} {
			t.Run(fmt.Sprint(killer, " and ", collector), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := newLab(t, 1, 8192)
					v := a.mustMount(clockWrongBy(killer))
					if err := v.SetSettings(bg, 0, int64(retention/time.Second)); err != nil {
						t.Fatal(err)
					}
					time.Sleep(30 * time.Minute) // renewals and rounds of collection go by
					died := time.Now()
					old, then, now := someDead(t, a, v)
					mustClose(t, v)
					b := a.machine(2)
					v = b.mustMount(clockWrongBy(collector))
					time.Sleep(time.Until(died.Add(retention - time.Minute)))
					if c := mustCollect(t, v); c.Things != 0 || c.Kept == 0 {
						t.Errorf("a minute before its time: %+v", c)
					}
					if d := then.diff(bucketFiles(t, b.bucket, old.N)); d != "" {
						t.Errorf("a retained commit: %s", d)
					}
					time.Sleep(2 * time.Minute)
					before := v.stat.collected.Load()
					if c := mustCollect(t, v); c.Things == 0 && before == 0 {
						t.Errorf("a minute after its time: %+v", c)
					}
					wantFiles(t, v, now, "afterwards")
					mustClose(t, v)
				})
			})
		}
	}
}

// A pin counts for its lifetime by the store's clock, whatever that of who wrote it says.
func TestPin_PinCommit_ClocksApart(t *testing.T) {
	for _, wrong := range wrongBy {
		t.Run(fmt.Sprint(wrong), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, 1, 8192)
				v := l.mustMount(nil)
				old, then, _ := someDead(t, l, v)
				o := l.mountPin(l.bucket, old.N)
				o.Lifetime, o.Now = 4*time.Hour, func() time.Time { return time.Now().Add(wrong) }
				if _, err := PinCommit(bg, o); err != nil {
					t.Fatal(err)
				}
				time.Sleep(o.Lifetime - time.Minute)
				if c := mustCollect(t, v); c.Things != 0 || c.Kept == 0 {
					t.Errorf("within its lifetime: %+v", c)
				}
				if d := then.diff(bucketFiles(t, l.bucket, old.N)); d != "" {
					t.Error(d)
				}
				time.Sleep(2 * time.Minute)
				before := v.stat.collected.Load()
				if c := mustCollect(t, v); c.Things == 0 && before == 0 {
					t.Errorf("when it has ended: %+v", c)
				}
				mustClose(t, v)
			})
		})
	}
}

// Who renews a pin that has lapsed learns so, also when its clock was set back
// meanwhile; and another's lapsed pin vouches for nothing.
func TestPin_Renew_ClockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		old, _, _ := someDead(t, l, v)
		var wrong time.Duration
		o := l.mountPin(l.bucket, old.N)
		o.Lifetime, o.Now = 4*time.Hour, func() time.Time { return time.Now().Add(wrong) }
		p, err := PinCommit(bg, o)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Hour)
		wrong = -24 * time.Hour
		mustCollect(t, v)
		if _, err := l.bucket.Head(bg, p.Status().Key); err != nil {
			t.Fatalf("the lapsed pin is no proof, and no more: %v", err)
		}
		wantErr(t, p.Renew(bg), ErrCollected)
		_, err = PinCommit(bg, o)
		wantErr(t, err, ErrCollected)
		mustClose(t, v)
	})
}

// A store that tells no times keeps everything for ever rather than nothing for long.
func TestVolume_Collect_StoreWithoutTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		someDead(t, l, v)
		if !l.bucket.SetModified(metadata.LeaseKey, time.Time{}) {
			t.Fatal("no lease")
		}
		keys := len(bucketKeys(t, l.bucket))
		_, err := v.Collect(bg, false)
		wantErr(t, err, ErrStore)
		if n := len(bucketKeys(t, l.bucket)); n != keys {
			t.Errorf("%d objects of %d are left", n, keys)
		}
		l.kill(v)
	})
}

// Who destroys a volume sees the claim of a clone that is being made, whatever the
// clocks of the two say.
func TestDestroy_CloneBeingMade_ClocksApart(t *testing.T) {
	for _, wrong := range wrongBy {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 1, 8192)
			v := l.mustMount(nil)
			id := mustCommit(t, v)
			mustClose(t, v)
			claim := metadata.Pin{
				Kind: pinClaim, Name: clonePinPrefix + "x", Commit: id, Holder: "clone's host",
				Expiry: time.Now().Add(wrong + claimLifetime).UnixNano(), Lifetime: claimLifetime,
			}
			if err := objstore.Create(bg, l.bucket, metadata.PinKey(claim.Name, "0123456789ab"), metadata.EncodePin(&claim)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(claimLifetime - time.Minute)
			wantErr(t, Destroy(bg, l.bucket, "mem://lab", metadata.Owner{Host: "b"}, false, false, func(int) {}), ErrPinned)
			time.Sleep(2 * time.Minute)
			if err := Destroy(bg, l.bucket, "mem://lab", metadata.Owner{Host: "b"}, false, false, func(int) {}); err != nil {
				t.Errorf("clock wrong by %v: the claim has ended: %v", wrong, err)
			}
			if _, err := l.bucket.Head(bg, metadata.VolumeKey); !errors.Is(err, objstore.ErrNotExist) {
				t.Errorf("the volume is there: %v", err)
			}
		})
	}
}
