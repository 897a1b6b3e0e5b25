package gateway

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
)

// A commit that collection has passed is said to be collected, not damaged.
func TestOpenView_CollectedCommitIsNoDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 51, 8192)
		v := l.mustMount(nil)
		h := mkfile(t, v, metadata.RootInode, "a")
		pwrite(t, h, fill(l.rng, 20000), 0)
		old, err := v.Commit(bg)
		if err != nil {
			t.Fatal(err)
		}
		pwrite(t, h, fill(l.rng, 20000), 0)
		h.Close()
		checkAfterCommit(t, v)
		open := func() error {
			view, err := OpenView(bg, ViewOptions{Store: l.bucket, URL: "mem://lab", KV: metadata.NewMemKV(), Commit: old.N})
			if err == nil {
				err = view.Close()
			}
			return err
		}
		if err := open(); err != nil {
			t.Errorf("before collection: %v", err)
		}
		if _, err := v.Collect(bg, false); err != nil {
			t.Fatal(err)
		}
		wantErr(t, open(), ErrCollected)
		mustClose(t, v)
	})
}

// A view that reads what collection has deleted meanwhile says so; what is missing
// though nothing was collected is damage.
func TestView_Read_CollectedMeanwhileIsNoDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 52, 8192)
		v := l.mustMount(nil)
		h := mkfile(t, v, metadata.RootInode, "a")
		pwrite(t, h, fill(l.rng, 20000), 0)
		if _, err := v.Commit(bg); err != nil {
			t.Fatal(err)
		}
		open := func() (*View, *Inode) {
			view, err := OpenView(bg, ViewOptions{Store: l.bucket, URL: "mem://lab", KV: metadata.NewMemKV()})
			if err != nil {
				t.Fatal(err)
			}
			n, err := view.Lookup("a")
			if err != nil {
				t.Fatal(err)
			}
			return view, n
		}
		view, n := open()
		time.Sleep(time.Second) // since the lease was taken, by which ages go
		pwrite(t, h, fill(l.rng, 20000), 0)
		h.Close()
		checkAfterCommit(t, v)
		if c, err := v.Collect(bg, false); err != nil || c.Things == 0 {
			t.Fatalf("%+v, %v", c, err)
		}
		buf := make([]byte, 20000)
		_, err := view.Read(bg, n, buf, 0)
		wantErr(t, err, ErrCollected)
		if errors.Is(err, ErrDamaged) {
			t.Errorf("it is called damage: %v", err)
		}
		_, err = view.Check(bg, CheckOptions{Data: true, Problem: func(Problem) {}})
		wantErr(t, err, ErrCollected)
		if err := view.Close(); err != nil {
			t.Error(err)
		}

		view, n = open()
		for _, key := range bucketKeys(t, l.bucket) {
			if strings.HasPrefix(key, metadata.ObjectPrefix) || strings.HasPrefix(key, metadata.SegmentPrefix) {
				if err := l.bucket.Delete(bg, key); err != nil {
					t.Fatal(err)
				}
			}
		}
		_, err = view.Read(bg, n, buf, 0)
		wantErr(t, err, ErrDamaged)
		if r, err := view.Check(bg, CheckOptions{Data: true, Problem: func(Problem) {}}); err != nil || r.Problems == 0 {
			t.Errorf("check of what is missing: %+v, %v", r, err)
		}
		if err := view.Close(); err != nil {
			t.Error(err)
		}
		_ = v.Abandon() // its check would find what was deleted
	})
}

// Without a retention collection deletes at once what the next commit replaces: who
// follows shows one commit or the next, and never an error or other bytes.
func TestFollower_Read_WithoutARetention(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newFollowPair(t, 8192)
		if s := p.v.settings; s.RetentionSec != 0 {
			t.Fatalf("the volume keeps commits for %d s", s.RetentionSec)
		}
		old := p.noise(20_000)
		p.put(t, "f", old)
		p.f.Start(nil)
		time.Sleep(time.Minute)
		h := p.open(t, "f")
		for range 20 {
			now := p.noise(20_000)
			p.put(t, "f", now)
			time.Sleep(time.Millisecond) // far less than the interval of looks
			if c := mustCollect(t, p.v); c.Things == 0 {
				t.Error("nothing was collected")
			}
			p.f.view.local.cache.Evict(1 << 30)
			got := make([]byte, 20_000)
			if k, err := h.Read(bg, got, 0); err != nil || k != len(got) || !bytes.Equal(got, old) && !bytes.Equal(got, now) {
				t.Errorf("%d bytes of neither commit, %v", k, err)
			}
			old = now
		}
		if st := p.f.Status(); st.Damage != 0 || st.Follow.Overdue {
			t.Errorf("%d times damage, %+v", st.Damage, st.Follow)
		}
		h.Close()
		p.close(t)
	})
}
