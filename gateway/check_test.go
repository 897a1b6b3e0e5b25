package gateway

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

// checkLab is a bucket with an object, a segment, a manifest and commits of two
// epochs after it.
func checkLab(t *testing.T) *lab {
	t.Helper()
	l := newLab(t, 11, 8192)
	v := l.mustMount(nil)
	d, err := v.Create(bg, metadata.RootInode, "dir", modeDir|0o755, 0, Owner{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h := mkfile(t, v, d.ID, "a")
	pwrite(t, h, fill(l.rng, 20000), 0)
	checkAfterCommit(t, v)
	if err := v.WriteManifest(bg); err != nil {
		t.Fatal(err)
	}
	pwrite(t, h, []byte("patch"), 9000)
	checkAfterCommit(t, v)
	h.Close()
	mustClose(t, v)
	v = l.mustMount(nil)
	h = mkfile(t, v, metadata.RootInode, "b")
	pwrite(t, h, fill(l.rng, 300), 0)
	h.Close()
	mustClose(t, v)
	return l
}

// problems runs a check of a bucket and returns what it finds.
func problems(t *testing.T, s objstore.Store, data bool) ([]Problem, CheckReport) {
	t.Helper()
	v, err := bucketView(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	var found []Problem
	r, err := v.Check(bg, CheckOptions{Data: data, Problem: func(p Problem) { found = append(found, p) }})
	if err != nil {
		t.Fatal(err)
	}
	if r.Problems != len(found) {
		t.Errorf("%d problems counted, %d reported", r.Problems, len(found))
	}
	return found, r
}

func TestView_Check_SoundVolume(t *testing.T) {
	l := checkLab(t)
	found, r := problems(t, l.bucket, true)
	if len(found) > 0 {
		t.Errorf("found %v", found)
	}
	if r.Objects < 2 || r.Segments < 1 || r.Commits < 2 || r.Pages < 1 || r.Bytes < 20300 || r.Orphans != 0 || r.Inodes != 4 {
		t.Errorf("%+v", r)
	}
}

// What was stored and replaced while the check ran is in no listing of the check, and
// is no damage.
func TestVolume_Check_ObjectsThatCameAndDiedMeanwhile(t *testing.T) {
	l := checkLab(t)
	v := l.mustMount(nil)
	defer v.Abandon()
	h := mkfile(t, v, metadata.RootInode, "busy")
	defer h.Close()
	rounds := 0
	r, err := v.Check(bg, CheckOptions{Problem: func(p Problem) { t.Errorf("found %s", p) }, Progress: func(int64, int64) {
		if rounds++; rounds == 1 {
			for range 3 {
				pwrite(t, h, fill(l.rng, 8192), 0)
				checkAfterCommit(t, v)
			}
		}
	}})
	if err != nil || rounds == 0 || r.Problems != 0 {
		t.Errorf("%d calls of progress, %+v, %v", rounds, r, err)
	}
}

func TestVolume_Check_SeesWhatTheBucketLost(t *testing.T) {
	l := checkLab(t)
	v := l.mustMount(nil)
	defer v.Abandon()
	for key := range snapshotKeys(t, l.bucket) {
		if key == metadata.LeaseKey || key == metadata.VolumeKey {
			continue
		}
		body, _, err := objstore.ReadAll(bg, l.bucket, key, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.bucket.Delete(bg, key); err != nil {
			t.Fatal(err)
		}
		var found []string
		if _, err := v.Check(bg, CheckOptions{Problem: func(p Problem) { found = append(found, p.String()) }}); err != nil {
			t.Errorf("check without %s: %v", key, err)
		}
		if needed := keyIsNeeded(v, key); needed != strings.Contains(strings.Join(found, "\n"), key) {
			t.Errorf("without %s (needed: %v) the check finds %q", key, needed, found)
		}
		if err := objstore.Create(bg, l.bucket, key, body); err != nil {
			t.Fatal(err)
		}
	}
	var again []Problem
	if _, err := v.Check(bg, CheckOptions{Data: true, Problem: func(p Problem) { again = append(again, p) }}); err != nil || len(again) > 0 {
		t.Errorf("with everything back: %v, %v", again, err)
	}
}

func snapshotKeys(t *testing.T, s *mem.Store) map[string]int64 {
	t.Helper()
	keys := map[string]int64{}
	if err := objstore.ListAll(bg, s, "", "", func(i objstore.Info) error { keys[i.Key] = i.Size; return nil }); err != nil {
		t.Fatal(err)
	}
	return keys
}

// keyIsNeeded says whether the head or a kept commit needs a key: everything in
// these buckets but the seals before the manifest.
func keyIsNeeded(v *Volume, key string) bool {
	id, ok := metadata.ParseCommitKey(key)
	if !ok {
		return true
	}
	if _, err := v.index.Dead(key); err == nil {
		return true
	}
	return id.N > v.head.Manifest.N && id.N <= v.head.N
}

func TestView_Check_Data_NamesEveryDamage(t *testing.T) {
	l := checkLab(t)
	for key := range snapshotKeys(t, l.bucket) {
		if !strings.HasPrefix(key, metadata.ObjectPrefix) && !strings.HasPrefix(key, metadata.SegmentPrefix) {
			continue
		}
		s := l.bucket.Snapshot()
		body, i, err := objstore.ReadAll(bg, s, key, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		for n := range body {
			body[n] ^= 0xff
		}
		if _, err := objstore.CompareAndSwap(bg, s, key, i.Version, body); err != nil {
			t.Fatal(err)
		}
		found, _ := problems(t, s, true)
		if len(found) == 0 {
			t.Errorf("%s is damaged and nothing is found", key)
		}
		for _, p := range found {
			if p.Key != key || p.Path != "dir/a" && p.Path != "b" || p.Len == 0 {
				t.Errorf("damage of %s is reported as %v", key, p)
			}
		}
		if found, _ := problems(t, s, false); len(found) > 0 {
			t.Errorf("sizes are right, and a check without data finds %v", found)
		}
	}
}

func TestView_Check_StoreFails_NeverSaysSound(t *testing.T) {
	l := checkLab(t)
	s := l.bucket.Snapshot()
	for key := range snapshotKeys(t, s) {
		if strings.HasPrefix(key, metadata.SegmentPrefix) {
			if err := s.Delete(bg, key); err != nil {
				t.Fatal(err)
			}
		}
	}
	v, err := bucketView(s, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer v.Close()
	for n := 0; ; n++ {
		f := faultstore.New(s, faultstore.FailNth(n, faultstore.Fault{Kind: faultstore.Before}))
		v.store = f
		problems := 0
		_, err := v.Check(bg, CheckOptions{Data: true, Problem: func(Problem) { problems++ }})
		f.Close()
		if n >= f.Calls() {
			if err != nil || problems == 0 {
				t.Errorf("without a fault: %d problems, %v", problems, err)
			}
			return
		}
		if err == nil {
			t.Errorf("call %d of the store failed and the check says nothing", n)
		}
	}
}

func TestLog_AllCommits_ThroughSeals(t *testing.T) {
	l := checkLab(t)
	var ids []metadata.CommitID
	if err := Log(bg, l.bucket, func(i CommitInfo) bool { ids = append(ids, i.ID); return true }); err != nil {
		t.Fatal(err)
	}
	want := map[metadata.CommitID]bool{}
	for key := range snapshotKeys(t, l.bucket) {
		if id, ok := metadata.ParseCommitKey(key); ok {
			if e, err := (pathReader{l.bucket}).read(bg, id); err != nil {
				t.Fatal(err)
			} else if e.commit != nil {
				want[id] = true
			}
		}
	}
	for i, id := range ids {
		if !want[id] || i > 0 && id.N >= ids[i-1].N {
			t.Errorf("log: %v, want %v in descending order", ids, want)
		}
		delete(want, id)
	}
	if len(want) > 0 {
		t.Errorf("the log lacks %v", want)
	}
	sum, err := Summarize(bg, l.bucket, "mem://lab")
	if err != nil || sum.Head.ID != ids[0] || !sum.Lease.Released {
		t.Errorf("%+v, %v", sum, err)
	}
	// Only the commits after a collected one are listed.
	if err := l.bucket.Delete(bg, metadata.CommitKey(ids[1])); err != nil {
		t.Fatal(err)
	}
	n := 0
	if err := Log(bg, l.bucket, func(CommitInfo) bool { n++; return true }); err != nil || n != 1 {
		t.Errorf("%d commits, %v", n, err)
	}
}

func TestDestroy_EveryFailure_CanGoOn(t *testing.T) {
	l := checkLab(t)
	for n := 0; ; n++ {
		s := l.bucket.Snapshot()
		f := faultstore.New(s, faultstore.FailNth(n, faultstore.Fault{Kind: faultstore.Before}))
		err := Destroy(bg, f, "mem://lab", metadata.Owner{}, false, false, func(int) {})
		f.Close()
		if n >= f.Calls() {
			if err != nil || len(snapshotKeys(t, s)) > 0 {
				t.Errorf("without a fault: %d objects left, %v", len(snapshotKeys(t, s)), err)
			}
			return
		}
		if len(snapshotKeys(t, s)) > 0 && err == nil {
			t.Errorf("call %d failed, %d objects are left, and destroy says nothing", n, len(snapshotKeys(t, s)))
		}
		if err := Destroy(bg, s, "mem://lab", metadata.Owner{}, false, false, func(int) {}); len(snapshotKeys(t, s)) > 0 {
			t.Errorf("after a failure of call %d destroy can't go on: %v", n, err)
		}
	}
}

// Whenever it is interrupted before it has sent the first deletion, whose outcome
// would not be known, the volume can be read as before.
func TestDestroy_InterruptedAtEveryCall_LeavesNoVolumeThatCannotBeRead(t *testing.T) {
	l := checkLab(t)
	for n, kept := 0, 0; ; n++ {
		s := l.bucket.Snapshot()
		ctx, cancel := context.WithCancel(bg)
		sent := false
		f := faultstore.New(s, func(op faultstore.Op, _ string, at int) faultstore.Fault {
			sent = sent || op == faultstore.Delete
			if at == n {
				cancel()
			}
			return faultstore.Fault{}
		})
		err := Destroy(ctx, f, "mem://lab", metadata.Owner{}, false, false, func(int) {})
		f.Close()
		cancel()
		if n >= f.Calls() {
			if err != nil || kept < 3 {
				t.Errorf("without an interruption: %v; %d interruptions left the volume", err, kept)
			}
			return
		}
		if sent {
			continue
		}
		kept++
		if v, verr := bucketView(s, nil); verr != nil {
			t.Errorf("interrupted at call %d (%v), it can't be read: %v", n, err, verr)
		} else {
			v.Close()
		}
	}
}

func TestDestroy_OwnedOrPinned_IsRefused(t *testing.T) {
	l := checkLab(t)
	before := len(snapshotKeys(t, l.bucket))
	pin := metadata.Pin{Kind: "clone", Name: "copy", Commit: metadata.CommitID{Epoch: 1, N: 1}, Holder: "other"}
	if err := objstore.Create(bg, l.bucket, metadata.PinKey("copy", "1"), metadata.EncodePin(&pin)); err != nil {
		t.Fatal(err)
	}
	wantErr(t, Destroy(bg, l.bucket, "mem://lab", metadata.Owner{}, false, false, func(int) {}), ErrPinned)
	if err := l.bucket.Delete(bg, metadata.PinKey("copy", "1")); err != nil {
		t.Fatal(err)
	}
	v := l.mustMount(nil)
	wantErr(t, Destroy(bg, l.bucket, "mem://lab", metadata.Owner{}, false, false, func(int) {}), ErrOwned)
	if len(snapshotKeys(t, l.bucket)) < before {
		t.Errorf("%d of %d objects are left", len(snapshotKeys(t, l.bucket)), before)
	}
	if err := Destroy(bg, l.bucket, "mem://lab", metadata.Owner{}, true, false, func(int) {}); err != nil || len(snapshotKeys(t, l.bucket)) > 0 {
		t.Errorf("with takeover: %d left, %v", len(snapshotKeys(t, l.bucket)), err)
	}
	if err := v.RenewLease(bg); err == nil {
		t.Error("the old owner keeps its lease")
	}
	v.Abandon()
}

func TestProblem_String_NamesWhatItHas(t *testing.T) {
	for want, p := range map[string]Problem{
		"a/b: bytes 5 to 7: objects/x: is missing": {Path: "a/b", Inode: 3, Off: 5, Len: 2, Key: "objects/x", Reason: "is missing"},
		"inode 3: broken":                          {Inode: 3, Reason: "broken"},
		"commits/x: is missing":                    {Key: "commits/x", Reason: "is missing"},
		"index: something wrong":                   {Reason: "index: something wrong"},
	} {
		if got := p.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What was dead at a pinned commit, and kept for earlier ones then, may go later: no
// damage of the pinned commit. Of the last commit it is damage.
func TestView_Check_WhatDiedBeforeThePinMayGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		someDead(t, l, v)
		at := v.head.CommitID
		pin(t, l.bucket, "p", at, 0)
		problems := func(n uint64) (found []string) {
			t.Helper()
			past, err := bucketView(l.bucket, func(o *ViewOptions) { o.Commit = n })
			if err != nil {
				t.Fatal(err)
			}
			defer past.Close()
			if _, err := past.Check(bg, CheckOptions{Data: true, Problem: func(p Problem) { found = append(found, p.String()) }}); err != nil {
				t.Error(err)
			}
			return found
		}
		var dead string
		if err := v.index.DeadThings(func(d metadata.Dead) bool {
			if strings.HasPrefix(d.Key, metadata.SegmentPrefix) || strings.HasPrefix(d.Key, metadata.ObjectPrefix) {
				dead = d.Key
			}
			return true
		}); err != nil || dead == "" {
			t.Fatal(dead, err)
		}
		body, _, err := objstore.ReadAll(bg, l.bucket, dead, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.bucket.Delete(bg, dead); err != nil {
			t.Fatal(err)
		}
		if found := problems(0); len(found) != 1 || !strings.Contains(found[0], dead) {
			t.Errorf("the last commit without %s: %q", dead, found)
		}
		if err := objstore.Create(bg, l.bucket, dead, body); err != nil {
			t.Fatal(err)
		}
		time.Sleep(72 * time.Hour)
		mustCollect(t, v)
		mustCollect(t, v)
		if _, err := l.bucket.Head(bg, dead); !errors.Is(err, objstore.ErrNotExist) {
			t.Fatalf("%s was not collected: %v", dead, err)
		}
		if found := problems(at.N); len(found) > 0 {
			t.Errorf("the pinned commit: %q", found)
		}
		mustClose(t, v)
	})
}
