package gateway

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

// uploaded sums the bodies that were stored from a place in the history on,
// leases left out, and counts them.
func uploaded(s *mem.Store, from int, prefixes ...string) (bytes int64, puts int) {
	for _, m := range s.History()[from:] {
		if m.Delete || m.Key == metadata.LeaseKey {
			continue
		}
		match := len(prefixes) == 0
		for _, p := range prefixes {
			match = match || strings.HasPrefix(m.Key, p)
		}
		if match {
			bytes += int64(len(m.Body))
			puts++
		}
	}
	return bytes, puts
}

// A commit's cost follows what changed, not the size of the file.
func TestVolume_Commit_CostFollowsTheDirtyBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const slot = 5 << 20
		l := newLab(t, 1, slot)
		l.opt.CacheBytes = 64 << 20
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "src", l.noise(slot), 0)
		mustCommit(t, v)
		src, dst := openPath(t, v, "src"), mkfile(t, v, 1, "dst")
		for off := int64(0); off < 1<<30; off += slot {
			if n, err := v.CopyRange(bg, src, 0, dst, off, slot); n != slot || err != nil {
				t.Fatalf("copy at %d: %d, %v", off, n, err)
			}
		}
		before := l.bucket.Len()
		mustCommit(t, v)
		if n, _ := uploaded(l.bucket, before); n > 1<<20 {
			t.Errorf("copies of whole slots uploaded %d bytes", n)
		}
		for i := range 10 {
			from := l.bucket.Len()
			l.bucket.ResetStats()
			off := int64(l.pick(1<<16)) << 14
			pwrite(t, dst, l.noise(16<<10), off)
			mustFsync(t, v)
			if st := l.bucket.Stats(); st.Put.Requests+st.Get.Requests+st.Head.Requests+st.List.Requests != 0 {
				t.Errorf("fsync made requests: %+v", st)
			}
			mustCommit(t, v)
			n, puts := uploaded(l.bucket, from)
			st := l.bucket.Stats()
			if n > 16<<10+4<<10 || puts != 2 || st.Get.Requests+st.List.Requests+st.Head.Requests != 0 {
				t.Errorf("round %d: %d bytes in %d PUTs; %+v", i, n, puts, st)
			}
		}
		src.Close()
		dst.Close()
		mustClose(t, v)
	})
}

// settle lets the background work go on until it uploads nothing more.
func settle(t *testing.T, l *lab, v *Volume) {
	t.Helper()
	for range 50 {
		n, _ := uploaded(l.bucket, 0)
		time.Sleep(10 * time.Minute)
		if m, _ := uploaded(l.bucket, 0); m == n {
			return
		}
	}
	t.Error("background work does not end")
}

func TestVolume_RandomOverwrites_UploadedBytes(t *testing.T) {
	for _, span := range []int64{32 << 20, 128 << 20} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 1, 5<<20)
			l.opt.CacheBytes, l.opt.JournalBytes, l.opt.ReferenceBytes = 256<<20, 64<<20, 64<<10
			v := l.mustMount(live)
			h := mkfile(t, v, 1, "ibdata")
			for off := int64(0); off < span; off += 1 << 20 {
				pwrite(t, h, l.noise(1<<20), off)
			}
			mustCommit(t, v)
			settle(t, l, v)
			from := l.bucket.Len()
			const rounds, each = 60, 40
			user := int64(rounds*each) * 16 << 10
			page := l.noise(16 << 10)
			for range rounds {
				for range each {
					page[0]++
					pwrite(t, h, page, int64(l.pick(int(span>>14)))<<14)
				}
				mustFsync(t, v)
				time.Sleep(time.Second)
			}
			mustCommit(t, v)
			n, _ := uploaded(l.bucket, from, metadata.SegmentPrefix, metadata.CommitPrefix)
			t.Logf("%d MiB: %.2f times the user's bytes in segments and commits", span>>20, float64(n)/float64(user))
			if float64(n) > 1.3*float64(user) {
				t.Errorf("%d MiB: segments and commits take %.2f times the user's bytes", span>>20, float64(n)/float64(user))
			}
			settle(t, l, v)
			n, _ = uploaded(l.bucket, from)
			t.Logf("%d MiB: %.2f times in all", span>>20, float64(n)/float64(user))
			if float64(n) > 3.5*float64(user) {
				t.Errorf("%d MiB: everything takes %.2f times the user's bytes", span>>20, float64(n)/float64(user))
			}
			h.Close()
			wantCheckClean(t, v)
			mustClose(t, v)
		})
	}
}

// A log that grows slowly is not uploaded again and again.
func TestVolume_GrowingLog_UploadedBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 5<<20)
		l.opt.CacheBytes = 64 << 20
		v := l.mustMount(live)
		h := mkfile(t, v, 1, "binlog.000001")
		from := l.bucket.Len()
		const seconds = 2 * 3600
		line := l.noise(1 << 10)
		for i := range int64(seconds) {
			pwrite(t, h, line, i<<10)
			mustFsync(t, v)
			time.Sleep(time.Second)
		}
		settle(t, l, v)
		n, _ := uploaded(l.bucket, from)
		commits, puts := uploaded(l.bucket, from, metadata.CommitPrefix)
		user := int64(seconds << 10)
		t.Logf("%d user bytes, %d uploaded, %d of them in %d commits", user, n, commits, puts)
		if n > user*5/2+int64(puts)*2<<10 {
			t.Errorf("%d bytes uploaded for %d of the user's and %d commits", n, user, puts)
		}
		h.Close()
		mustClose(t, v)
	})
}

// A volume that nobody uses costs the renewals of its lease, whatever its files
// look like.
func TestVolume_Idle_Requests(t *testing.T) {
	fill := func(f files, t *testing.T, l *lab, v *Volume, size, step, end int) {
		for off := 0; off < end; off += step {
			f.put(t, v, "a", l.noise(size), off)
		}
	}
	shapes := map[string]func(f files, t *testing.T, l *lab, v *Volume){
		"whole":          func(f files, t *testing.T, l *lab, v *Volume) { f.put(t, v, "a", l.noise(30000), 0) },
		"pieces":         func(f files, t *testing.T, l *lab, v *Volume) { fill(f, t, l, v, 100, 300, 30000) },
		"a piece a slot": func(f files, t *testing.T, l *lab, v *Volume) { fill(f, t, l, v, 10, 8192, 80000) },
		"pieces of several commits": func(f files, t *testing.T, l *lab, v *Volume) {
			for i := range 5 {
				fill(f, t, l, v, 100, 300+i, 30000)
				mustCommit(t, v)
			}
		},
		"more pieces than are borne": func(f files, t *testing.T, l *lab, v *Volume) { fill(f, t, l, v, 4, 8, 20000) },
		"holes in what was whole": func(f files, t *testing.T, l *lab, v *Volume) {
			f.put(t, v, "a", l.noise(30000), 0)
			mustCommit(t, v)
			for off := 1000; off < 30000; off += 2500 {
				f.punch(t, v, "a", off, off+700)
			}
		},
		"zeros in pieces, and cut": func(f files, t *testing.T, l *lab, v *Volume) {
			fill(f, t, l, v, 100, 300, 30000)
			mustCommit(t, v)
			f.punch(t, v, "a", 950, 9050)
			f.truncate(t, v, "a", 20010)
		},
		"written over again and again": func(f files, t *testing.T, l *lab, v *Volume) {
			f.put(t, v, "a", l.noise(100), 20000)
			for i := range 80 {
				f.put(t, v, "a", l.noise(600), 37*i)
				mustCommit(t, v)
			}
		},
	}
	for name, shape := range shapes {
		for _, as := range []form{{}, {compress: "lz4", encrypt: true}} {
			t.Run(fmt.Sprintf("%s %+v", name, as), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { idleHour(t, as, shape) })
			})
		}
	}
}

func idleHour(t *testing.T, as form, shape func(f files, t *testing.T, l *lab, v *Volume)) {
	l := newLabAs(t, 1, 8192, as)
	v := l.mustMount(func(o *Options) { live(o); o.Fold.MaxPatches = 500 })
	f := files{}
	shape(f, t, l, v)
	mustCommit(t, v)
	settle(t, l, v)
	l.bucket.ResetStats()
	from := l.bucket.Len()
	time.Sleep(time.Hour)
	st := l.bucket.Stats()
	if n := st.Get.Requests + st.Head.Requests + st.List.Requests + st.Delete.Requests; n != 0 {
		t.Errorf("an idle hour made requests: %+v", st)
	}
	for _, m := range l.bucket.History()[from:] {
		if m.Key != metadata.LeaseKey {
			t.Errorf("an idle hour changed %s", m.Key)
		}
	}
	if st.Put.Requests > 3600/5+1 {
		t.Errorf("%d renewals in an hour", st.Put.Requests)
	}
	v.cache.Evict(1 << 30)
	wantFiles(t, v, f, "after the hour")
	mustClose(t, v)
}

// What is folded into a piece of a segment has to be as it was read when the fold
// is committed. A slot with holes that is written all the time is not folded for
// nothing all the time.
func TestVolume_Fold_SparseSlotThatChanges_TriesNowAndThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, slow(300*time.Millisecond))
		v, err := l.mount(s, live)
		if err != nil {
			t.Fatal(err)
		}
		f := files{}
		f.put(t, v, "a", l.noise(100), 8000)
		const minutes = 5
		for i := range minutes * 60 * 10 {
			f.put(t, v, "a", l.noise(500), i*37%7000)
			time.Sleep(100 * time.Millisecond)
		}
		if n := v.stat.folds.Load(); n == 0 || n > 2*minutes {
			t.Errorf("%d folds in %d minutes", n, minutes)
		}
		settle(t, l, v)
		v.cache.Evict(1 << 30)
		wantFiles(t, v, f, "at rest")
		s.SetHook(nil)
		mustClose(t, v)
	})
}
