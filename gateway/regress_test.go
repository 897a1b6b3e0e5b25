package gateway

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// When a commit gives a reference's bytes back to the cache, a new reference
// may hold the same range, with newer bytes in the journal over it: they must
// not be put into the cache file, of which the new reference has checksums.
func TestVolume_Commit_NewReferenceBeforeTheOldIsReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		f := patched(t, l, v)
		if n, err := v.Fold(bg, true); err != nil || n == 0 {
			t.Fatalf("folded %d, %v", n, err)
		}
		f.put(t, v, "a", l.noise(8192), 0) // a reference; it makes the fold useless
		done := false
		s.SetHook(func(op faultstore.Op, _ string, _ int) faultstore.Fault {
			if op == faultstore.Delete && !done { // of the fold's object, after the commit
				done = true
				f.put(t, v, "a", l.noise(8192), 0)
				f.put(t, v, "a", l.noise(100), 10)
			}
			return faultstore.Fault{}
		})
		mustCommit(t, v)
		if !done {
			t.Fatal("nothing was deleted")
		}
		wantFiles(t, v, f, "after the first commit")
		mustCommit(t, v)
		wantFiles(t, v, f, "after the second commit")
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}

// A commit that fails on the way gives its share of the upload buffers back.
func TestVolume_Commit_FailureGivesBuffersBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, func(o *Options) { o.UploadBytes = 1 })
		if err != nil {
			t.Fatal(err)
		}
		f := files{}
		f.put(t, v, "small", l.noise(100), 0)
		f.put(t, v, "large", l.noise(3*8192), 0)
		s.SetOutage(faultstore.Silent)
		for range 3 {
			ctx, cancel := context.WithTimeout(bg, time.Second)
			if _, err := v.Commit(ctx); err == nil {
				t.Fatal("a commit without a store")
			}
			cancel()
		}
		s.SetOutage(faultstore.Up)
		ctx, cancel := soon()
		defer cancel()
		if _, err := v.Commit(ctx); err != nil {
			t.Fatalf("the buffers are gone: %v", err)
		}
		mustClose(t, v)
		if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
			t.Error(d)
		}
	})
}

// one makes a store that takes one upload at a time.
func one(t *testing.T, s objstore.Store) objstore.Store {
	t.Helper()
	limits, err := objstore.NewLimits(1, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	return objstore.WithLimit(s, limits)
}
