package gateway

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// patched is a file of two slots with a base and patches.
func patched(t *testing.T, l *lab, v *Volume) files {
	t.Helper()
	f := files{}
	f.put(t, v, "a", l.noise(16384), 0)
	mustCommit(t, v)
	for i := range 6 {
		f.put(t, v, "a", l.noise(200), 2500*i+11)
		mustCommit(t, v)
	}
	return f
}

// Whatever happens to a file between a fold's reading and its commit, or while
// the fold uploads, is not undone by it.
func TestVolume_Fold_FileChangesMeanwhile(t *testing.T) {
	changes := map[string]func(t *testing.T, l *lab, v *Volume, f files){
		"write":          func(t *testing.T, l *lab, v *Volume, f files) { f.put(t, v, "a", l.noise(700), 3000) },
		"write all":      func(t *testing.T, l *lab, v *Volume, f files) { f.put(t, v, "a", l.noise(16384), 0) },
		"write one slot": func(t *testing.T, l *lab, v *Volume, f files) { f.put(t, v, "a", l.noise(8192), 8192) },
		"truncate":       func(t *testing.T, l *lab, v *Volume, f files) { f.truncate(t, v, "a", 5000) },
		"truncate and extend": func(t *testing.T, l *lab, v *Volume, f files) {
			f.truncate(t, v, "a", 5000)
			f.truncate(t, v, "a", 16384)
		},
		"truncate to nothing": func(t *testing.T, l *lab, v *Volume, f files) { f.truncate(t, v, "a", 0) },
		"unlink":              func(t *testing.T, l *lab, v *Volume, f files) { f.drop(t, v, "a") },
		"unlink and again": func(t *testing.T, l *lab, v *Volume, f files) {
			f.drop(t, v, "a")
			f.put(t, v, "a", l.noise(9000), 100)
		},
		"punch": func(t *testing.T, l *lab, v *Volume, f files) { f.punch(t, v, "a", 1000, 9000) },
		"punch a slot and write": func(t *testing.T, l *lab, v *Volume, f files) {
			f.punch(t, v, "a", 0, 8192)
			f.put(t, v, "a", l.noise(10), 4000)
		},
	}
	for name, change := range changes {
		for _, when := range []string{"during the upload", "before the commit", "with a commit between"} {
			t.Run(name+" "+when, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { foldRace(t, when, change) })
			})
		}
	}
}

func foldRace(t *testing.T, when string, change func(t *testing.T, l *lab, v *Volume, f files)) {
	l := newLab(t, 1, 8192)
	s := faultstore.New(l.bucket, nil)
	v, err := l.mount(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	f := patched(t, l, v)
	done := false
	if when == "during the upload" {
		s.SetHook(func(op faultstore.Op, key string, _ int) faultstore.Fault {
			if op == faultstore.Put && strings.HasPrefix(key, metadata.ObjectPrefix) && !done {
				done = true
				change(t, l, v, f)
			}
			return faultstore.Fault{}
		})
	}
	n, err := v.Fold(bg, true)
	if err != nil || n == 0 {
		t.Fatalf("folded %d, %v", n, err)
	}
	s.SetHook(nil)
	if !done {
		change(t, l, v, f)
	}
	if when == "with a commit between" {
		adds := v.commit.adds
		v.commit.adds = additions{}
		mustCommit(t, v)
		v.commit.adds = adds
	}
	wantFiles(t, v, f, "before the commit")
	mustCommit(t, v)
	v.cache.Evict(1 << 30)
	wantFiles(t, v, f, "after the commit")
	if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
		t.Errorf("the bucket: %s", d)
	}
	wantCheckClean(t, v)
	for range 2 {
		if _, err := v.Collect(bg, false); err != nil {
			t.Fatal(err)
		}
	}
	mustClose(t, v)
	v = l.mustMount(nil)
	if _, err := v.CollectOrphans(bg, false); err != nil {
		t.Fatal(err)
	}
	wantFiles(t, v, f, "after the collection")
	wantCheckClean(t, v)
	mustClose(t, v)
}

func (f files) punch(t *testing.T, v *Volume, name string, off, end int) {
	t.Helper()
	h := openPath(t, v, name)
	defer h.Close()
	if err := h.Fallocate(bg, FallocPunchHole|FallocKeepSize, int64(off), int64(end-off)); err != nil {
		t.Fatal(err)
	}
	b := []byte(f[name])
	if off < len(b) {
		clear(b[off:min(end, len(b))])
	}
	f[name] = string(b)
}

// A volume at rest is objects: after folding no slot has patches but packed ones.
func TestVolume_Fold_LeavesObjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		f := patched(t, l, v)
		for range 3 {
			if _, err := v.Fold(bg, true); err != nil {
				t.Fatal(err)
			}
			mustCommit(t, v)
		}
		err := v.index.AllSlots(func(ino InodeID, no uint32, s *metadata.Slot) bool {
			if s.Base == nil || len(s.Patches) != 0 {
				t.Errorf("slot %d of inode %d has %d patches", no, ino, len(s.Patches))
			}
			return true
		})
		if err != nil {
			t.Fatal(err)
		}
		wantFiles(t, v, f, "folded")
		before := v.Status().Uploads
		if n, err := v.Fold(bg, true); n != 0 || err != nil {
			t.Errorf("folded %d again, %v", n, err)
		}
		if d := v.Status().Uploads - before; d != 0 {
			t.Errorf("%d uploads for nothing", d)
		}
		mustClose(t, v)
	})
}

// wantFoldedForGood folds all there is and wants nothing left that would be folded
// again, for ever.
func wantFoldedForGood(t *testing.T, v *Volume) {
	t.Helper()
	if err := v.findPatched(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // a commit may have been made of folds before
		mustCommit(t, v)
		keys := v.ripe(time.Now(), true, 1<<30)
		b := &foldBatch{v: v, began: time.Now()}
		err := errors.Join(b.run(bg, keys, true), v.deliver(bg, b.done))
		if err != nil || len(b.done) != len(keys) {
			t.Fatalf("folded %d of %d slots, %v", len(b.done), len(keys), err)
		}
		mustCommit(t, v)
	}
	time.Sleep(v.opt.Fold.QuietAfter)
	if left := v.ripe(time.Now(), false, 10); len(left) != 0 {
		s, err := v.index.Slot(left[0].ino, left[0].slot)
		t.Errorf("%d and more slots are folded again, like %v: %d patches, %v", len(left), left[0], len(s.Patches), err)
	}
}

// A slot whose data is damaged keeps what it has and holds up no other one; it is
// tried again, for the store may be mended.
func TestVolume_Fold_DamageHoldsUpNoOtherSlot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		f := patched(t, l, v)
		f.put(t, v, "b", l.noise(8192), 0)
		mustCommit(t, v)
		f.put(t, v, "b", l.noise(200), 100)
		mustCommit(t, v)
		a := mustLookup(t, v, metadata.RootInode, "a")
		s, err := v.index.Slot(a.ID, 0)
		if err != nil || s.Base == nil {
			t.Fatalf("%+v, %v", s, err)
		}
		whole, _, err := objstore.ReadAll(bg, l.bucket, s.Base.Key, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		harm(t, l.bucket, s.Base.Key, "missing")
		v.cache.Evict(1 << 30)
		n, err := v.Fold(bg, true)
		if !errors.Is(err, ErrDamaged) || n != 2 {
			t.Errorf("folded %d, %v", n, err)
		}
		mustCommit(t, v)
		if n, err := v.Fold(bg, true); n != 0 || err != nil {
			t.Errorf("at once after the damage: folded %d, %v", n, err)
		}
		if err := objstore.Create(bg, l.bucket, s.Base.Key, whole); err != nil {
			t.Fatal(err)
		}
		time.Sleep(damageRest + time.Second)
		if n, err := v.Fold(bg, true); n != 1 || err != nil {
			t.Errorf("after the store was mended: folded %d, %v", n, err)
		}
		mustCommit(t, v)
		v.cache.Evict(1 << 30)
		wantFiles(t, v, f, "folded")
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}

// An upload that the store doesn't take holds up no reader, however little memory
// there is for both.
func TestVolume_Fold_StuckUploadHoldsUpNoRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		f := patched(t, l, v)
		f.put(t, v, "b", l.noise(8192), 0)
		mustCommit(t, v)
		v.cache.Evict(1 << 30)
		v.loads = newBudget(8192)
		h := openPath(t, v, "b")
		looked := false
		s.SetHook(func(op faultstore.Op, key string, _ int) faultstore.Fault {
			if op == faultstore.Put && strings.HasPrefix(key, metadata.ObjectPrefix) && !looked {
				looked = true
				ctx, cancel := soon()
				defer cancel()
				p := make([]byte, 8192)
				if n, err := h.Read(ctx, p, 0); err != nil || string(p[:n]) != f["b"] {
					t.Errorf("during the upload: %d bytes, %v", n, err)
				}
			}
			return faultstore.Fault{}
		})
		if n, err := v.Fold(bg, true); err != nil || n == 0 || !looked {
			t.Errorf("folded %d, %v", n, err)
		}
		h.Close()
		mustCommit(t, v)
		v.cache.Evict(1 << 30)
		wantFiles(t, v, f, "folded")
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}

// When there are too many patches, those with the most are folded although it is not
// worth it by itself, and no more of them than that takes.
func TestVolume_Fold_TooManyPatches_NoneWorthIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 1<<20)
		v := l.mustMount(func(o *Options) { o.Fold.MaxTotal = 10 })
		f := files{}
		for _, name := range []string{"a", "b", "c"} {
			f.put(t, v, name, l.noise(1<<20), 0)
		}
		mustCommit(t, v)
		for name, n := range map[string]int{"a": 3, "b": 7, "c": 4} {
			for i := range n {
				f.put(t, v, name, l.noise(100), 1000*i)
				mustCommit(t, v)
			}
		}
		if slots, patches := v.folds.count(); slots != 3 || patches != 14 {
			t.Fatalf("%d patches in %d slots", patches, slots)
		}
		for i, want := range []int{1, 0, 0} {
			n, err := v.Fold(bg, false)
			if err != nil || n != want {
				t.Errorf("fold %d: %d slots, %v", i, n, err)
			}
			mustCommit(t, v)
			time.Sleep(2 * v.opt.Fold.QuietAfter)
		}
		if slots, patches := v.folds.count(); slots != 2 || patches != 7 || len(v.folds.idle.slots) != 2 {
			t.Errorf("in the end %d patches in %d slots, %d of them idle", patches, slots, len(v.folds.idle.slots))
		}
		for i := range 4 { // what rests counts
			f.put(t, v, "b", l.noise(100), 1000*i)
		}
		mustCommit(t, v)
		if n, err := v.Fold(bg, false); err != nil || n != 1 {
			t.Errorf("with 11 patches: folded %d, %v", n, err)
		}
		mustCommit(t, v)
		if _, patches := v.folds.count(); patches != 7 {
			t.Errorf("%d patches are left", patches)
		}
		if n, err := v.Fold(bg, true); err != nil || n != 2 {
			t.Errorf("when all are to be folded: %d, %v", n, err)
		}
		mustCommit(t, v)
		v.cache.Evict(1 << 30)
		wantFiles(t, v, f, "folded")
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}

// What is folded into no object of its own is stored as soon as it fills a
// segment, and not held in memory to the end.
func TestVolume_Fold_StoresAsItGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 16<<20)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		f := files{}
		for i := range 4 { // 6 MiB that have a hole
			name := string(rune('a' + i))
			f.put(t, v, name, l.noise(100), 0)
			f.put(t, v, name, l.noise(100), 6<<20)
			mustCommit(t, v)
			f.put(t, v, name, l.noise(100), 50)
			mustCommit(t, v)
		}
		b := &foldBatch{v: v, began: time.Now()}
		segments := 0
		s.SetHook(func(op faultstore.Op, key string, _ int) faultstore.Fault {
			if op == faultstore.Put && strings.HasPrefix(key, metadata.SegmentPrefix) {
				segments++
				if b.size > 2*(6<<20+100) {
					t.Errorf("%d bytes were held for a segment", b.size)
				}
			}
			return faultstore.Fault{}
		})
		if err := b.run(bg, v.ripe(time.Now(), true, 64), true); err != nil || len(b.done) != 4 || segments == 0 {
			t.Fatalf("folded %d into %d segments, %v", len(b.done), segments, err)
		}
		s.SetHook(nil)
		if err := v.deliver(bg, b.done); err != nil {
			t.Fatal(err)
		}
		mustCommit(t, v)
		v.cache.Evict(1 << 30)
		wantFiles(t, v, f, "folded")
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}

// Slots that are packed already cost the search for what to fold nothing, however
// many they are, and count as patches all the same.
func TestFoldState_Ripe_LeavesPackedSlotsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 1<<20)
		v := l.mustMount(nil)
		patch := func(n uint32) metadata.Patch { return metadata.Patch{Off: n * 1000, Len: 1000} }
		one := &metadata.Slot{Patches: []metadata.Patch{patch(0)}}
		two := &metadata.Slot{Patches: []metadata.Patch{patch(0), patch(1)}}
		for i := range InodeID(1000) {
			v.folds.set(slotKey{1000 + i, 0}, one, time.Time{})
		}
		v.folds.set(slotKey{1, 0}, two, time.Time{})
		if got := v.ripe(time.Now(), false, 10); len(got) != 1 || got[0].ino != 1 {
			t.Errorf("ripe: %v", got)
		}
		if got := v.ripe(time.Now(), true, 10); len(got) != 10 || got[0].ino != 1 {
			t.Errorf("ripe when all are to be folded: %v", got)
		}
		if s := v.Status(); s.PatchedSlots != 1001 || s.Patches != 1002 {
			t.Errorf("%d patches in %d slots", s.Patches, s.PatchedSlots)
		}
		v.folds.force(slotKey{1007, 0}, one) // its segment is mostly dead
		if got := v.ripe(time.Now(), false, 10); len(got) != 2 {
			t.Errorf("ripe with a slot of a dead segment: %v", got)
		}
		for i := range InodeID(1000) {
			v.folds.set(slotKey{1000 + i, 0}, nil, time.Time{})
		}
		v.folds.set(slotKey{1, 0}, one, time.Time{})
		if s := v.Status(); s.PatchedSlots != 1 || s.Patches != 1 || v.folds.total != 0 {
			t.Errorf("in the end: %d patches in %d slots, %d of candidates", s.Patches, s.PatchedSlots, v.folds.total)
		}
		v.folds.set(slotKey{1, 0}, nil, time.Time{})
		mustClose(t, v)
	})
}
