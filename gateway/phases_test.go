package gateway

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// phase is a part of a volume's life in which the store is asked for something. run
// begins after prepare, and gets the store that has one fault.
type phase struct {
	prepare func(t *testing.T, l *lab, f files) *Volume
	run     func(t *testing.T, l *lab, v *Volume, f files, s objstore.Store) (*Volume, error)
}

// phases are those in which a fault was most likely to lose something.
func phases() map[string]phase {
	dirty := func(t *testing.T, l *lab, f files) *Volume {
		v := l.mustMount(nil)
		f.put(t, v, "a", l.noise(30000), 0)
		f.put(t, v, "b", l.noise(500), 0)
		mustCommit(t, v)
		f.put(t, v, "a", l.noise(9000), 5000)
		f.put(t, v, "c", l.noise(700), 100)
		mustFsync(t, v)
		return v
	}
	dead := func(t *testing.T, l *lab, f files) *Volume {
		v := dirty(t, l, f)
		f.drop(t, v, "b")
		if err := v.WriteManifest(bg); err != nil {
			t.Fatal(err)
		}
		mustCommit(t, v)
		time.Sleep(time.Minute)
		if err := v.RenewLease(bg); err != nil {
			t.Fatal(err)
		}
		return v
	}
	through := func(do func(v *Volume) error) func(*testing.T, *lab, *Volume, files, objstore.Store) (*Volume, error) {
		return func(_ *testing.T, _ *lab, v *Volume, _ files, s objstore.Store) (*Volume, error) {
			v.store, v.fetcher.store = s, s // of a manual volume that is at rest
			return v, do(v)
		}
	}
	return map[string]phase{
		"commit":   {dirty, through(func(v *Volume) error { _, err := v.Commit(bg); return err })},
		"manifest": {dead, through(func(v *Volume) error { _ = v.WriteManifest(bg); _, err := v.Commit(bg); return err })},
		"collection": {dead, through(func(v *Volume) error {
			_, err := v.Collect(bg, false)
			return err
		})},
		"check": {dead, through(func(v *Volume) error {
			var found error
			_, err := v.Check(bg, CheckOptions{Data: true, Problem: func(p Problem) { found = fmt.Errorf("%w: %s", ErrDamaged, p) }})
			return errors.Join(err, found)
		})},
		"orphans": {dead, through(func(v *Volume) error { _, err := v.CollectOrphans(bg, false); return err })},
		"recovery": {dirty, func(_ *testing.T, l *lab, v *Volume, _ files, s objstore.Store) (*Volume, error) {
			l.kill(v)
			return l.mount(s, nil)
		}},
		"take-over": {dirty, func(t *testing.T, l *lab, v *Volume, f files, s objstore.Store) (*Volume, error) {
			mustCommit(t, v)
			b := l.machine(2)
			w, err := b.mount(s, func(o *Options) { o.Takeover = true })
			if err == nil {
				f.put(t, w, "by b", b.noise(3000), 0)
				_, err = w.Commit(bg)
			}
			_, ferr := v.Commit(bg) // nothing to commit: it learns of the other at the lease
			if rerr := v.RenewLease(bg); ferr == nil && err == nil {
				wantErr(t, rerr, ErrFenced)
			}
			l.kill(v)
			return w, err
		}},
	}
}

// Any one request of any phase fails in any way: it is settled, the phase ends well,
// nothing is lost and nothing else changes.
func TestVolume_EveryPhase_EveryFaultAtEveryRequest(t *testing.T) {
	kinds := map[string]faultstore.Fault{
		"refused":        {Kind: faultstore.Before},
		"reply lost":     {Kind: faultstore.Lost},
		"applied late":   {Kind: faultstore.Late, Late: 3 * time.Second},
		"applied twice":  {Kind: faultstore.Duplicate, Late: 3 * time.Second},
		"cut":            {Kind: faultstore.Cut, At: 10},
		"a bit flipped":  {Kind: faultstore.Flip, At: 33},
		"hangs":          {Kind: faultstore.Hang},
		"access expired": {Kind: faultstore.Before, Err: fmt.Errorf("expired token: %w", objstore.ErrUnavailable)},
		"slow":           {Delay: 20 * time.Second},
	}
	for name, p := range phases() {
		t.Run(name, func(t *testing.T) {
			met := 0
			for what, fault := range kinds {
				for n := 0; ; n++ {
					if testing.Short() && n%3 != len(what)%3 && n > 2 {
						continue
					}
					if !faultyPhase(t, p, n, fault) {
						break
					}
					met++
					if t.Failed() {
						t.Fatalf("%s, request %d", what, n)
					}
				}
			}
			if met < 2*len(kinds) {
				t.Errorf("only %d faults were met", met)
			}
		})
	}
}

// faultyPhase runs a phase with a fault at its n-th request, and reports whether there
// was one.
func faultyPhase(t *testing.T, p phase, n int, fault faultstore.Fault) bool {
	t.Helper()
	var met atomic.Bool
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 3, 8192)
		f := files{}
		v := p.prepare(t, l, f)
		fs := faultstore.New(l.bucket, func(_ faultstore.Op, _ string, i int) faultstore.Fault {
			if i == n {
				met.Store(true)
				return fault
			}
			return faultstore.Fault{}
		})
		s := objstore.WithRetry(objstore.WithTimeout(fs, objstore.TimeoutOptions{}), objstore.RetryOptions{})
		v, err := p.run(t, l, v, f, s)
		fs.SetHook(nil)
		if err != nil {
			t.Errorf("it failed: %v", err)
			return
		}
		time.Sleep(time.Minute) // what comes late has come
		wantFiles(t, v, f, "afterwards")
		wantCheckClean(t, v)
		mustClose(t, v)
		fs.Close()
		if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
			t.Errorf("the bucket: %s", d)
		}
	})
	return met.Load()
}
