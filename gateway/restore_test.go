package gateway

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// restore rolls an open volume back, keeping the present as keep, and closes it.
func (l *lab) restore(v *Volume, n uint64, keep string) (Restored, error) {
	p, err := PinCommit(bg, l.mountPin(v.store, n))
	if err != nil {
		return Restored{}, err
	}
	ctx, cancel := soon()
	defer cancel()
	r, err := v.Restore(ctx, RestoreOptions{Commit: n, KV: metadata.NewMemKV(), Keep: SnapshotOptions{Name: keep, Holder: "lab"}})
	if rerr := p.Release(ctx); err == nil {
		err = rerr
	}
	return r, err
}

func (l *lab) mustRestore(t *testing.T, v *Volume, n uint64, keep string) Restored {
	t.Helper()
	r, err := l.restore(v, n, keep)
	if err != nil {
		t.Fatalf("restore commit %d: %v", n, err)
	}
	if err := v.Close(bg); err != nil {
		t.Fatalf("close after a restore: %v", err)
	}
	return r
}

func TestVolume_Restore_ThereAndBack(t *testing.T) {
	eachForm(t, func(t *testing.T, as form) {
		u := newUsedAs(t, 8192, as)
		v := u.mustMount(nil)
		wantFiles(t, v, u.now, "before")
		old := commitOf(t, v, 2)
		then := bucketFiles(t, u.bucket, old)
		next := v.head.Totals.NextInode
		r := u.mustRestore(t, v, old, "present")
		if r.Then.N != old || r.Commit.N <= r.Replaced.Commit.N || r.Replaced.Tags[restoreTag] == "" || r.Revived == 0 || r.Died == 0 {
			t.Errorf("%+v", r)
		}
		if d := then.diff(bucketFiles(t, u.bucket, 0)); d != "" {
			t.Errorf("restored: %s", d)
		}
		if d := u.now.diff(bucketFiles(t, u.bucket, r.Replaced.Commit.N)); d != "" {
			t.Errorf("replaced: %s", d)
		}
		// The index in the state directory is that of the replaced commit.
		v = u.mustMount(nil)
		wantFiles(t, v, then, "mounted")
		if v.head.CommitID != r.Commit || v.nextInode < next {
			t.Errorf("head %v, next inode %d; want %v and at least %d", v.head.CommitID, v.nextInode, r.Commit, next)
		}
		then.put(t, v, "base", u.noise(500), 900)
		then.put(t, v, "new", u.noise(20000), 0)
		then.drop(t, v, "small")
		mustCommit(t, v)
		time.Sleep(48 * time.Hour)
		mustCollect(t, v)
		wantCheckClean(t, v)
		if d := u.now.diff(bucketFiles(t, u.bucket, r.Replaced.Commit.N)); d != "" {
			t.Errorf("replaced, after a collection: %s", d)
		}
		r = u.mustRestore(t, v, r.Replaced.Commit.N, "second")
		v = u.mustMount(nil)
		wantFiles(t, v, u.now, "and back")
		for range 2 {
			time.Sleep(48 * time.Hour)
			mustCollect(t, v)
		}
		if d := then.diff(bucketFiles(t, u.bucket, r.Replaced.Commit.N)); d != "" {
			t.Errorf("the second snapshot: %s", d)
		}
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}

// commitOf returns the number of the n-th commit that is still there.
func commitOf(t *testing.T, v *Volume, n int) uint64 {
	t.Helper()
	for i := uint64(1); i <= v.head.N; i++ {
		if _, err := FindCommit(bg, v.store, i, "mem://lab"); err == nil {
			if n--; n == 0 {
				return i
			}
		}
	}
	t.Fatal("there are not so many commits")
	return 0
}

// However it dies, the volume is as it was, or as it is to be, and whole.
func TestVolume_Restore_DiesAtEveryStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		v := u.mustMount(nil)
		mustCommit(t, v)
		old := commitOf(t, v, 3)
		then := bucketFiles(t, u.bucket, old)
		u.mustSnapshot(t, "old", old)
		mustClose(t, v)
		step := func(v *Volume) error {
			if _, err := u.restore(v, old, "present"); err != nil {
				return err
			}
			return v.Close(bg)
		}
		restored := 0
		u.walk(t, false, step, func(l *lab, when string) {
			got := bucketFiles(t, l.bucket, 0)
			is, want := then, then
			if u.now.diff(got) == "" {
				is, want = u.now, u.now
			} else if d := then.diff(got); d != "" {
				t.Fatalf("%s: neither the present nor the past: %s", when, d)
			} else {
				restored++
				if s := l.named(t, "present"); len(s) != 1 || u.now.diff(bucketFiles(t, l.bucket, s[0].Commit.N)) != "" {
					t.Fatalf("%s: the replaced state is not kept: %+v", when, s)
				}
			}
			v := l.mustMount(nil)
			wantFiles(t, v, is, when)
			wantNoOrphans(t, v)
			want = maps.Clone(want)
			want.put(t, v, "base", []byte("written afterwards"), 40)
			mustCommit(t, v)
			time.Sleep(48 * time.Hour)
			mustCollect(t, v)
			wantCheckClean(t, v)
			// It can be done again.
			l.mustRestore(t, v, old, "again")
			v = l.mustMount(nil)
			wantFiles(t, v, then, when+", once more")
			wantCheckClean(t, v)
			mustClose(t, v)
		})
		if restored < 4 {
			t.Errorf("%d deaths left a restored volume", restored)
		}
	})
}

// Work, snapshots, restores and collections at random: every snapshot stays
// what it was, and no byte that anything needs goes.
func TestVolume_Restore_Random(t *testing.T) {
	for seed := range int64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { restoreRandom(t, seed, 120) })
		})
	}
}

func restoreRandom(t *testing.T, seed int64, steps int) {
	l := newLab(t, 900+seed, 8192)
	v := l.mustMount(nil)
	f := files{}
	kept := map[string]files{} // by the name of the snapshot
	at := map[string]uint64{}
	names := []string{}
	restores := 0
	for i := range steps {
		time.Sleep(time.Duration(l.pick(3)) * time.Hour)
		switch k := l.pick(16); {
		case k < 10:
			churn(t, l, v, f)
		case k < 13:
			mustCommit(t, v)
			name := fmt.Sprint("s", i)
			at[name] = l.mustSnapshot(t, name, 0).Commit.N
			kept[name] = maps.Clone(f)
			names = append(names, name)
		case k < 14 && len(names) > 3:
			j := l.pick(len(names))
			if _, err := DeleteSnapshot(bg, l.bucket, "mem://lab", names[j]); err != nil {
				t.Fatal(err)
			}
			delete(kept, names[j])
			names = append(names[:j], names[j+1:]...)
		case len(names) > 0:
			name := names[l.pick(len(names))]
			mustCommit(t, v)
			if at[name] == v.head.N {
				continue
			}
			was := maps.Clone(f)
			present := fmt.Sprint("r", i)
			r := l.mustRestore(t, v, at[name], present)
			kept[present], at[present] = was, r.Replaced.Commit.N
			names = append(names, present)
			f = maps.Clone(kept[name])
			if l.pick(2) == 0 {
				if err := l.disk.RemoveAll(l.dir); err != nil {
					t.Fatal(err)
				}
			}
			v = l.mustMount(nil)
			wantFiles(t, v, f, "restored")
			checkIndex(t, v.index)
			restores++
		}
	}
	time.Sleep(48 * time.Hour)
	mustCollect(t, v)
	mustCollect(t, v)
	wantCheckClean(t, v)
	for name, want := range kept {
		if d := want.diff(bucketFiles(t, l.bucket, at[name])); d != "" {
			t.Errorf("snapshot %s: %s", name, d)
		}
	}
	wantFiles(t, v, f, "at the end")
	mustClose(t, v)
	if restores == 0 {
		t.Error("nothing was restored")
	}
}

func TestVolume_Restore_Refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 5, 8192)
		v := l.mustMount(nil)
		old, _, now := someDead(t, l, v)
		try := func(n uint64, keep string, want error) {
			t.Helper()
			_, err := v.Restore(bg, RestoreOptions{Commit: n, KV: metadata.NewMemKV(), Keep: SnapshotOptions{Name: keep, Holder: "lab"}})
			wantErr(t, err, want)
			wantFiles(t, v, now, "after a refusal")
		}
		try(99, "x", ErrNotExist)
		try(v.head.N, "x", ErrInvalid)
		l.mustSnapshot(t, "taken", 0)
		try(old.N, "taken", ErrNameTaken)
		try(old.N, "a@b", ErrInvalid)
		time.Sleep(48 * time.Hour)
		mustCollect(t, v)
		try(old.N, "x", ErrCollected)
		// A pin that came too late and that nobody has checked proves nothing.
		pin(t, l.bucket, "late", old, 0)
		try(old.N, "x", ErrCollected)
		if got := l.named(t, "x"); len(got) != 0 {
			t.Errorf("a restore that failed left %+v", got)
		}
		now.put(t, v, "more", l.noise(100), 0)
		mustCommit(t, v)
		mustClose(t, v)
	})
}

func TestFollower_Restore_ShowsThePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFollowPair(t, 8192)
		p.put(t, "a", p.noise(20000))
		p.put(t, "b", p.noise(300))
		then, n := maps.Clone(p.have), p.v.head.N
		p.put(t, "a", p.noise(30000))
		p.put(t, "c", p.noise(9000))
		mustPoll(t, p.f)
		open := p.open(t, "a")
		if readAllOf(t, open) != p.have["a"] {
			t.Error("before the restore")
		}
		p.mustRestore(t, p.v, n, "present")
		p.v = p.mustMount(nil)
		then.put(t, p.v, "b", []byte("after"), 0)
		p.have = then
		mustCommit(t, p.v)
		mustPoll(t, p.f)
		got, err := filesOf(followTree{p.f})
		if err != nil {
			t.Fatal(err)
		}
		if d := then.diff(got); d != "" {
			t.Error(d)
		}
		if got := readAllOf(t, open); got != then["a"] {
			t.Errorf("an open file has %d bytes, want %d", len(got), len(then["a"]))
		}
		p.close(t)
	})
}

// A restore's own document goes when later manifests have made it of no use.
func TestVolume_Restore_ItsDocumentsAreCollected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 6, 8192)
		v := l.mustMount(nil)
		old, then, _ := someDead(t, l, v)
		r := l.mustRestore(t, v, old.N, "present")
		v = l.mustMount(nil)
		for range 3 {
			then.put(t, v, "a", l.noise(10), 0)
			mustCommit(t, v)
			if err := v.WriteManifest(bg); err != nil {
				t.Fatal(err)
			}
			mustCommit(t, v)
		}
		if _, err := DeleteSnapshot(bg, l.bucket, "mem://lab", "present"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(48 * time.Hour)
		mustCollect(t, v)
		left := []string{}
		err := objstore.ListAll(bg, l.bucket, "", "", func(i objstore.Info) error {
			if id := fmt.Sprintf("%d/%020d", r.Commit.Epoch, r.Commit.N); strings.Contains(i.Key, id) || strings.Contains(i.Key, fmt.Sprintf("%d-%020d", r.Commit.Epoch, r.Commit.N)) {
				left = append(left, i.Key)
			}
			return nil
		})
		if err != nil || len(left) != 0 {
			t.Errorf("left: %v, %v", left, err)
		}
		wantFiles(t, v, then, "at the end")
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}
