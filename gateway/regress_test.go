package gateway

import (
	"context"
	"strings"
	"sync"
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
		const far = 1 << 20
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		f := files{}
		f.put(t, v, "a", l.noise(8192), 0) // two references
		f.put(t, v, "a", l.noise(8192), far)
		var once sync.Once
		s.SetHook(func(op faultstore.Op, _ string, _ int) faultstore.Fault {
			if op == faultstore.Put {
				once.Do(func() { f.put(t, v, "a", l.noise(100), 10) }) // over the first
			}
			return faultstore.Fault{}
		})
		before, done := v.Head().N, false
		l.fault.SetHook(func(op, name string, _ int) error {
			// The first is released: what lies over it goes to the cache.
			if op == "WriteAt" && strings.Contains(name, "/cache/") && v.Head().N > before && !done {
				done = true
				f.put(t, v, "a", l.noise(8192), far)
				f.put(t, v, "a", l.noise(100), far+10)
			}
			return nil
		})
		mustCommit(t, v)
		if !done {
			t.Fatal("nothing was put into the cache")
		}
		s.SetHook(nil)
		l.fault.SetHook(nil)
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
