package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// pin keeps a commit as a snapshot does.
func pin(t *testing.T, s objstore.Store, name string, id metadata.CommitID, expiry int64) string {
	t.Helper()
	key := metadata.PinKey(name, "0123456789ab")
	p := metadata.EncodePin(&metadata.Pin{Kind: "snapshot", Name: name, Commit: id, Holder: "test", Expiry: expiry})
	if err := objstore.Create(bg, s, key, p); err != nil {
		t.Fatal(err)
	}
	return key
}

// churn does one random piece of work on a few files, background work included.
func churn(t *testing.T, l *lab, v *Volume, f files) {
	t.Helper()
	name := fmt.Sprint("f", l.pick(5))
	switch k := l.pick(20); {
	case k < 9:
		f.put(t, v, name, l.noise(1+l.pick(9000)), l.pick(20000))
	case k < 11:
		if _, ok := f[name]; ok {
			f.drop(t, v, name)
		}
	case k < 13:
		if p, ok := f[name]; ok {
			f.truncate(t, v, name, l.pick(len(p)+1))
		}
	case k < 15:
		if _, err := v.Fold(bg, true); err != nil {
			t.Fatal(err)
		}
	case k < 16:
		if err := v.WriteManifest(bg); err != nil {
			t.Fatal(err)
		}
	case k < 18:
		if _, err := v.Collect(bg, false); err != nil {
			t.Fatal(err)
		}
	default:
		mustCommit(t, v)
	}
}

func (l *lab) pick(n int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.rng.IntN(n)
}

func (f files) truncate(t *testing.T, v *Volume, name string, size int) {
	t.Helper()
	h := openPath(t, v, name)
	defer h.Close()
	if _, err := v.SetAttr(bg, h.Inode(), SetAttr{Size: ptr(int64(size))}); err != nil {
		t.Fatal(err)
	}
	b := append([]byte(f[name]), make([]byte, max(0, size-len(f[name])))...)
	f[name] = string(b[:size])
}

// Pins keep exactly what their commits need, through all that comes.
func TestVolume_Collect_PinsKeepTheirCommits(t *testing.T) {
	for seed := range int64(6) {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 100+seed, 8192)
			v := l.mustMount(nil)
			f := files{}
			pinned, keys := map[uint64]files{}, []string{}
			for i := range 250 {
				churn(t, l, v, f)
				if i%25 == 24 {
					id := mustCommit(t, v)
					if _, ok := pinned[id.N]; !ok {
						keys = append(keys, pin(t, l.bucket, fmt.Sprint("p", id.N), id, 0))
						pinned[id.N] = maps.Clone(f)
					}
				}
				if i%60 == 59 {
					mustClose(t, v)
					v = l.mustMount(nil)
				}
			}
			mustCommit(t, v)
			for range 2 {
				if _, err := v.Collect(bg, false); err != nil {
					t.Fatal(err)
				}
			}
			for n, want := range pinned {
				if d := want.diff(bucketFiles(t, l.bucket, n)); d != "" {
					t.Errorf("seed %d: pinned commit %d: %s", seed, n, d)
				}
			}
			wantCheckClean(t, v)
			// Without the pins nothing is left but the present.
			for _, key := range keys {
				if err := l.bucket.Delete(bg, key); err != nil {
					t.Fatal(err)
				}
			}
			if err := v.WriteManifest(bg); err != nil {
				t.Fatal(err)
			}
			mustCommit(t, v)
			for range 3 {
				if _, err := v.Collect(bg, false); err != nil {
					t.Fatal(err)
				}
			}
			wantNothingDead(t, v, l)
			wantFiles(t, v, f, "after all was collected")
			wantCheckClean(t, v)
			mustClose(t, v)
		})
	}
}

// wantNothingDead makes sure that the bucket has only what the present needs.
func wantNothingDead(t *testing.T, v *Volume, l *lab) {
	t.Helper()
	err := v.index.DeadThings(func(d metadata.Dead) bool { t.Errorf("%s is dead and kept", d.Key); return true })
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]bool{}
	err = v.index.AllSlots(func(_ InodeID, _ uint32, s *metadata.Slot) bool {
		if s.Base != nil {
			used[s.Base.Key] = true
		}
		for _, p := range s.Patches {
			used[p.Seg.Key] = true
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range bucketKeys(t, l.bucket) {
		thing := strings.HasPrefix(key, metadata.ObjectPrefix) || strings.HasPrefix(key, metadata.SegmentPrefix)
		if thing && !used[key] {
			t.Errorf("%s is used by nothing and still there", key)
		}
	}
}

// someDead is a volume with dead things and the commit that still had them.
func someDead(t *testing.T, l *lab, v *Volume) (old metadata.CommitID, then, now files) {
	t.Helper()
	f := files{}
	f.put(t, v, "a", l.noise(20000), 0)
	f.put(t, v, "b", l.noise(300), 0)
	old = mustCommit(t, v)
	then = maps.Clone(f)
	f.put(t, v, "a", l.noise(20000), 0)
	f.drop(t, v, "b")
	mustCommit(t, v)
	return old, then, f
}

func TestVolume_Collect_UnreadablePinStopsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		_, _, now := someDead(t, l, v)
		key := pin(t, l.bucket, "p", v.head.CommitID, 0)
		for _, how := range []string{"flipped", "truncated", "empty"} {
			whole, _, err := objstore.ReadAll(bg, l.bucket, key, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			harm(t, l.bucket, key, how)
			before := l.bucket.Len()
			_, err = v.Collect(bg, false)
			wantErr(t, err, ErrDamaged)
			if err == nil || !strings.Contains(err.Error(), key) {
				t.Errorf("%s: the error %v does not name the pin", how, err)
			}
			if l.bucket.Len() != before {
				t.Errorf("%s: something was changed", how)
			}
			if _, err := l.bucket.Put(bg, key, bytes.NewReader(whole), int64(len(whole)), objstore.Condition{}); err != nil {
				t.Fatal(err)
			}
		}
		if c, err := v.Collect(bg, false); err != nil || c.Things == 0 {
			t.Errorf("with the pin readable: %d things, %v", c.Things, err)
		}
		wantFiles(t, v, now, "afterwards")
		mustClose(t, v)
	})
}

func TestVolume_Collect_ExpiredPin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		old, then, now := someDead(t, l, v)
		pin(t, l.bucket, "p", old, time.Now().Add(time.Hour).UnixNano())
		time.Sleep(59 * time.Minute)
		if c, err := v.Collect(bg, false); err != nil || c.Things != 0 || c.Kept == 0 {
			t.Errorf("before it expires: %+v, %v", c, err)
		}
		if d := then.diff(bucketFiles(t, l.bucket, old.N)); d != "" {
			t.Error(d)
		}
		time.Sleep(2 * time.Minute)
		if err := v.RenewLease(bg); err != nil {
			t.Fatal(err)
		}
		if c, err := v.Collect(bg, false); err != nil || c.Things == 0 {
			t.Errorf("after it expired: %+v, %v", c, err)
		}
		wantFiles(t, v, now, "afterwards")
		mustClose(t, v)
	})
}

func TestVolume_Collect_Retention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		if err := v.SetSettings(bg, 0, 24*3600); err != nil {
			t.Fatal(err)
		}
		old, then, now := someDead(t, l, v)
		for h := range 24 {
			if c, err := v.Collect(bg, false); err != nil || c.Things != 0 {
				t.Fatalf("after %d hours: %+v, %v", h, c, err)
			}
			if d := then.diff(bucketFiles(t, l.bucket, old.N)); d != "" {
				t.Fatalf("after %d hours: %s", h, d)
			}
			time.Sleep(59 * time.Minute)
		}
		time.Sleep(30 * time.Minute)
		if err := v.RenewLease(bg); err != nil {
			t.Fatal(err)
		}
		dry, err := v.Collect(bg, true)
		if err != nil || dry.Things == 0 || len(dry.Keys) != dry.Things {
			t.Errorf("dry run: %+v, %v", dry, err)
		}
		c, err := v.Collect(bg, false)
		if err != nil || c.Things != dry.Things || c.Bytes != dry.Bytes {
			t.Errorf("after a day: %+v, a dry run said %+v, %v", c, dry, err)
		}
		wantFiles(t, v, now, "afterwards")
		wantNothingDead(t, v, l)
		mustClose(t, v)
	})
}

func TestVolume_Collect_InterruptedGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, _, now := someDead(t, l, v)
		var deletes atomic.Int64
		s.SetHook(func(op faultstore.Op, _ string, _ int) faultstore.Fault {
			if op == faultstore.Delete && deletes.Add(1) > 1 {
				return faultstore.Fault{Kind: faultstore.Before}
			}
			return faultstore.Fault{}
		})
		_, err = v.Collect(bg, false)
		wantErr(t, err, ErrStore)
		s.SetHook(nil)
		l.kill(v)
		v = l.mustMount(nil)
		if c, err := v.Collect(bg, false); err != nil || c.Things == 0 {
			t.Errorf("the next collection: %+v, %v", c, err)
		}
		wantFiles(t, v, now, "afterwards")
		wantNothingDead(t, v, l)
		mustClose(t, v)
	})
}

// A pin that comes between the condemning and the deleting is honoured.
func TestVolume_Collect_TakesBackWhatAPinNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		old, then, now := someDead(t, l, v)
		lists := 0
		s.SetHook(func(op faultstore.Op, key string, _ int) faultstore.Fault {
			if op == faultstore.List && key == metadata.PinPrefix {
				if lists++; lists == 3 { // two for the look before
					pin(t, l.bucket, "late", old, 0)
				}
			}
			return faultstore.Fault{}
		})
		c, err := v.Collect(bg, false)
		if err != nil || c.Things != 0 || c.Kept == 0 {
			t.Errorf("%+v, %v", c, err)
		}
		if d := then.diff(bucketFiles(t, l.bucket, old.N)); d != "" {
			t.Errorf("the pinned commit: %s", d)
		}
		if err := l.bucket.Delete(bg, metadata.PinKey("late", "0123456789ab")); err != nil {
			t.Fatal(err)
		}
		if c, err := v.Collect(bg, false); err != nil || c.Things == 0 {
			t.Errorf("without the pin: %+v, %v", c, err)
		}
		wantFiles(t, v, now, "afterwards")
		wantNothingDead(t, v, l)
		mustClose(t, v)
	})
}

// What was chosen as dead, and has been restored and has died anew since, is left to the
// next look: its new past has a retention, too.
func TestVolume_Condemn_DeadAnewSinceItWasChosen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "a", l.noise(16384), 0)
		old := mustCommit(t, v)
		f.drop(t, v, "a")
		mustCommit(t, v)
		var chosen []metadata.Dead
		err := v.index.DeadThings(func(d metadata.Dead) bool { chosen = append(chosen, d); return true })
		if err != nil || len(chosen) != 2 {
			t.Fatalf("%v, %v", chosen, err)
		}
		if r, err := l.restorePath(v, old.N, "a"); err != nil || r.Shared != 16384 {
			t.Fatalf("%+v, %v", r, err)
		}
		again := mustCommit(t, v)
		then := bucketFiles(t, l.bucket, again.N)
		if err := v.Unlink(bg, metadata.RootInode, "a"); err != nil {
			t.Fatal(err)
		}
		mustCommit(t, v)
		done, err := v.condemn(bg, chosen)
		if err != nil || len(done) != 0 {
			t.Errorf("condemned %v, %v", done, err)
		}
		for _, d := range chosen {
			now, err := v.index.Dead(d.Key)
			if err != nil || now.State == metadata.DeadCondemned || now.Death <= again.N {
				t.Errorf("%+v, %v", now, err)
			}
			if still, err := v.isCondemned(&d); err != nil || still {
				t.Errorf("it counts as condemned, %v", err)
			}
		}
		pin(t, l.bucket, "p", again, 0)
		if c, err := v.Collect(bg, false); err != nil || c.Kept == 0 {
			t.Errorf("%+v, %v", c, err)
		}
		if d := then.diff(bucketFiles(t, l.bucket, again.N)); d != "" {
			t.Errorf("the commit that had it again: %s", d)
		}
		mustClose(t, v)
	})
}

// What a crashed writer uploaded and never committed is found, and only that.
func TestVolume_CollectOrphans_OfACrashedWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		old, then, now := someDead(t, l, v)
		pin(t, l.bucket, "p", old, 0)
		now.put(t, v, "c", l.noise(3*8192+99), 0)
		mustFsync(t, v)
		before := bucketKeys(t, l.bucket)
		s.SetHook(func(op faultstore.Op, key string, _ int) faultstore.Fault {
			if strings.HasPrefix(key, metadata.CommitPrefix) {
				return faultstore.Fault{Kind: faultstore.Before}
			}
			return faultstore.Fault{}
		})
		ctx, cancel := soon()
		_, err = v.Commit(ctx)
		cancel()
		wantErr(t, err, ErrStore)
		l.kill(v)
		orphans := slices.DeleteFunc(bucketKeys(t, l.bucket), func(k string) bool { return slices.Contains(before, k) })
		if len(orphans) < 4 {
			t.Fatalf("the writer left %d uploads", len(orphans))
		}
		v = l.mustMount(nil)
		mustCommit(t, v)
		dry, err := v.CollectOrphans(bg, true)
		slices.Sort(dry.Keys)
		if err != nil || !slices.Equal(dry.Keys, orphans) {
			t.Errorf("orphans found: %v, want %v, %v", dry.Keys, orphans, err)
		}
		if c, err := v.CollectOrphans(bg, false); err != nil || c.Orphans != len(orphans) {
			t.Errorf("%+v, %v", c, err)
		}
		wantFiles(t, v, now, "afterwards")
		if d := then.diff(bucketFiles(t, l.bucket, old.N)); d != "" {
			t.Errorf("the pinned commit: %s", d)
		}
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}

// A manifest has the name of the commit whose state it is, which may be an earlier
// epoch's: one that is written, and that no commit names yet, is no orphan.
func TestVolume_CollectOrphans_ManifestThatTheNextCommitNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "a", l.noise(3*8192), 0)
		mustCommit(t, v)
		mustClose(t, v)
		for i := range 3 {
			v = l.mustMount(nil)
			if err := v.WriteManifest(bg); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				l.kill(v) // and leaves the manifest and its pages
				continue
			}
			if i == 1 {
				// Nobody commits it before the scan: what the one before has left is used again.
				if c, err := v.CollectOrphans(bg, false); err != nil || c.Orphans != 0 {
					t.Errorf("%+v, %v", c, err)
				}
			}
			f.put(t, v, fmt.Sprint("b", i), l.noise(5000), 0)
			mustCommit(t, v)
			wantNoOrphans(t, v)
			wantCheckClean(t, v)
			mustClose(t, v)
			if err := l.disk.RemoveAll(l.dir); err != nil {
				t.Fatal(err)
			}
			v = l.mustMount(nil)
			wantFiles(t, v, f, "from the bucket alone")
			mustClose(t, v)
		}
	})
}

// One's own uploads are not orphans before they are a day old.
func TestVolume_CollectOrphans_OwnEpochYoung(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		var jump time.Duration
		v := l.mustMount(func(o *Options) { o.Now = func() time.Time { return time.Now().Add(jump) } })
		young := metadata.ObjectKey(metadata.ObjectUUID(v.lease.doc.Epoch, [10]byte{1}), 0, 5, "x")
		future := metadata.ObjectKey(metadata.ObjectUUID(v.lease.doc.Epoch+1, [10]byte{1}), 0, 5, "x")
		for _, key := range []string{young, future, "objects/not-a-name"} {
			if err := objstore.Create(bg, l.bucket, key, []byte("bytes")); err != nil {
				t.Fatal(err)
			}
		}
		for _, jump = range []time.Duration{0, 1000 * time.Hour, -1000 * time.Hour} {
			if c, err := v.CollectOrphans(bg, false); err != nil || c.Things != 0 {
				t.Errorf("young, with a clock that is wrong by %v: %+v, %v", jump, c, err)
			}
		}
		jump = 0
		for _, key := range []string{young, future} {
			l.bucket.SetModified(key, time.Now().Add(-25*time.Hour))
		}
		if c, err := v.CollectOrphans(bg, false); err != nil || c.Things != 1 {
			t.Errorf("old: %+v, %v", c, err)
		}
		if _, err := l.bucket.Head(bg, young); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("the old orphan: %v", err)
		}
		if _, err := l.bucket.Head(bg, future); err != nil {
			t.Errorf("a later epoch's upload: %v", err)
		}
		mustClose(t, v)
	})
}

// Commits, manifests and pages that nobody needs go; seals stay.
func TestVolume_Collect_CommitsAndManifests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		f := files{}
		for e := range 4 {
			v := l.mustMount(nil)
			for i := range 6 {
				f.put(t, v, fmt.Sprint("f", i), l.noise(5000), 1000*e)
				mustCommit(t, v)
			}
			if err := v.WriteManifest(bg); err != nil {
				t.Fatal(err)
			}
			mustClose(t, v)
		}
		v := l.mustMount(nil)
		var seals []string
		for _, key := range bucketKeys(t, l.bucket) {
			if id, ok := metadata.ParseCommitKey(key); ok {
				e, err := pathReader{l.bucket}.read(bg, id)
				if err != nil {
					t.Fatal(err)
				}
				if e.seal != nil {
					seals = append(seals, key)
				}
			}
		}
		for range 2 {
			if _, err := v.Collect(bg, false); err != nil {
				t.Fatal(err)
			}
		}
		keys := bucketKeys(t, l.bucket)
		manifests := 0
		for _, key := range keys {
			if id, ok := metadata.ParseCommitKey(key); ok && id.N <= v.head.Manifest.N && !slices.Contains(seals, key) {
				t.Errorf("%s is there, the manifest is of commit %s", key, v.head.Manifest)
			}
			if _, ok := metadata.ParseManifestKey(key); ok {
				manifests++
			}
		}
		for _, key := range seals {
			if !slices.Contains(keys, key) {
				t.Errorf("seal %s was deleted", key)
			}
		}
		if manifests != 1 || len(seals) != 5 {
			t.Errorf("%d manifests, %d seals", manifests, len(seals))
		}
		wantCheckClean(t, v)
		mustClose(t, v)
		if err := l.disk.RemoveAll(l.dir); err != nil {
			t.Fatal(err)
		}
		v = l.mustMount(nil)
		wantFiles(t, v, f, "from what is left")
		mustClose(t, v)
	})
}

// A clock that runs ahead must not make the retained past look old.
func TestVolume_Collect_ClockAhead_KeepsTheRetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		var jump time.Duration
		v := l.mustMount(func(o *Options) { o.Now = func() time.Time { return time.Now().Add(jump) } })
		if err := v.SetSettings(bg, 0, 24*3600); err != nil {
			t.Fatal(err)
		}
		old, then, _ := someDead(t, l, v)
		jump = 1000 * time.Hour
		if c, err := v.Collect(bg, false); err != nil || c.Things != 0 {
			t.Errorf("collected %+v, %v", c, err)
		}
		if d := then.diff(bucketFiles(t, l.bucket, old.N)); d != "" {
			t.Errorf("the retained commit: %s", d)
		}
		mustClose(t, v)
	})
}

func TestVolume_CollectOrphans_LapsedPins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		old, _, _ := someDead(t, l, v)
		lapsed := pin(t, l.bucket, "a", old, time.Now().Add(time.Hour).UnixNano())
		for _, keep := range []string{
			pin(t, l.bucket, "b", old, 0), pin(t, l.bucket, "c", old, time.Now().Add(48*time.Hour).UnixNano()),
		} {
			defer func() {
				if _, err := l.bucket.Head(bg, keep); err != nil {
					t.Errorf("a pin that counts: %v", err)
				}
			}()
		}
		for _, wait := range []time.Duration{0, 7 * 24 * time.Hour, 2 * time.Hour} {
			if _, err := l.bucket.Head(bg, lapsed); err != nil {
				t.Errorf("gone too early: %v", err)
			}
			time.Sleep(wait)
			if err := v.RenewLease(bg); err != nil {
				t.Fatal(err)
			}
			if dry, err := v.CollectOrphans(bg, true); err != nil || wait == 2*time.Hour != slices.Contains(dry.Keys, lapsed) {
				t.Errorf("dry run: %+v, %v", dry, err)
			}
			if _, err := v.CollectOrphans(bg, false); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := l.bucket.Head(bg, lapsed); !errors.Is(err, objstore.ErrNotExist) {
			t.Errorf("a pin that lapsed a week ago: %v", err)
		}
		mustClose(t, v)
	})
}

// Without a retention what has just died may go at once.
func TestVolume_Collect_NoRetention_NeedsNoAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		time.Sleep(time.Second) // since the lease was taken, by which ages go
		_, _, now := someDead(t, l, v)
		if c, err := v.Collect(bg, false); err != nil || c.Things == 0 || c.Kept != 0 {
			t.Errorf("%+v, %v", c, err)
		}
		wantFiles(t, v, now, "afterwards")
		mustClose(t, v)
	})
}
