package gateway

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// TestVolume_Open_AfterACleanEnd_FewRoundTrips holds what a hand-over costs: the
// next owner, on an empty state directory, waits for the bucket a few times one
// after another, however many owners were before it, and not for what judges the
// store besides.
func TestVolume_Open_AfterACleanEnd_FewRoundTrips(t *testing.T) {
	const (
		latency = 20 * time.Millisecond
		fit     = 9 * latency
		trips   = 12
	)
	for _, owners := range []int{1, 12} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 1, 8192)
			f := files{}
			for i := range owners {
				v := l.mustMount(nil)
				if i%3 == 0 { // some commit nothing
					f.put(t, v, fmt.Sprint("f", i), l.noise(20000), 0)
				}
				mustClose(t, v)
			}
			s := faultstore.New(l.bucket, slow(latency))
			start := time.Now()
			v, err := l.forkEmpty(2).mount(s, func(o *Options) {
				o.Fit = func(context.Context) error { time.Sleep(fit); return nil }
			})
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(start); took > trips*latency {
				t.Errorf("after %d owners: the mount took %v, %d round trips", owners, took, took/latency)
			}
			s.SetHook(nil)
			wantFiles(t, v, f, "from the bucket")
			wantCheckClean(t, v)
			mustClose(t, v)
		})
	}
}

// TestVolume_Open_Unfit_ChangesNothing: the judgement of the store comes before
// anything is written, also where the volume could be read by then.
func TestVolume_Open_Unfit_ChangesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		mustClose(t, l.mustMount(nil))
		before := allKeys(t, l.bucket)
		_, err := l.mount(l.bucket, func(o *Options) {
			o.Fit = func(context.Context) error {
				time.Sleep(time.Minute)
				return fmt.Errorf("%w: it forgets", objstore.ErrGuarantee)
			}
		})
		wantErr(t, err, objstore.ErrGuarantee)
		if after := allKeys(t, l.bucket); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("the bucket had %v and has %v", before, after)
		}
		mustClose(t, l.mustMount(nil))
	})
}

// TestVolume_Open_OwnerGoesOnMeanwhile takes a volume over from an owner that
// commits, folds and collects between what the mount reads and the seal.
func TestVolume_Open_OwnerGoesOnMeanwhile(t *testing.T) {
	for _, commits := range []int{0, 1, 40} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 1, 8192)
			f := files{}
			old := l.mustMount(nil)
			f.put(t, old, "a", l.noise(30000), 0)
			mustCommit(t, old)
			v, err := l.machine(2).mount(l.bucket, func(o *Options) {
				o.Takeover = true
				o.Fit = func(ctx context.Context) error {
					for i := range commits {
						f.put(t, old, fmt.Sprint("f", i%5), l.noise(9000+i), 0)
						mustCommit(t, old)
					}
					if err := old.RenewLease(ctx); err != nil {
						return err
					}
					time.Sleep(25 * time.Hour) // past the retention
					_, err := old.Collect(ctx, false)
					return err
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			wantFiles(t, v, f, "after the take-over")
			wantCheckClean(t, v)
			mustClose(t, v)
			if err := old.RenewLease(bg); !errors.Is(err, ErrFenced) {
				t.Errorf("the old owner's renewal: %v", err)
			}
			_ = old.Abandon()
		})
	}
}

// TestPathReader_End_HintOfNoUse: what a lease's hint says is no more than a place
// to begin. Where the commit that it names is gone, the end is found all the same;
// where those after it are, that is damage and not the end.
func TestPathReader_End_HintOfNoUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		f := files{}
		v := l.mustMount(nil)
		var ids []metadata.CommitID
		for i := range 6 {
			f.put(t, v, "a", l.noise(10000+i), 0)
			ids = append(ids, mustCommit(t, v))
		}
		mustClose(t, v)
		r := pathReader{l.bucket}
		lease, _, err := readLease(bg, l.bucket)
		if err != nil {
			t.Fatal(err)
		}
		last := ids[len(ids)-1]
		for _, hint := range append([]metadata.CommitID{{}, {Epoch: 7, N: 90}}, ids...) {
			p, err := r.end(bg, lease.Epoch, hint)
			if hint.Epoch == 7 {
				if !errors.Is(err, ErrDamaged) && (err != nil || p.last.id != last) {
					t.Errorf("a hint beyond the end: %v", err)
				}
				continue
			}
			if err != nil || p.last.id != last || p.next() != (metadata.CommitID{Epoch: last.Epoch, N: last.N + 1}) {
				t.Errorf("from %v: %+v, %v", hint, p, err)
			}
		}
		if err := l.bucket.Delete(bg, metadata.CommitKey(ids[2])); err != nil {
			t.Fatal(err)
		}
		if p, err := r.end(bg, lease.Epoch, ids[1]); err != nil || p.last.id != last {
			t.Errorf("with a gap after the hint: %v, %v", p, err)
		}
		if p, err := r.end(bg, lease.Epoch, ids[2]); err != nil || p.last.id != last {
			t.Errorf("without the hint's commit: %v, %v", p, err)
		}
	})
}

// allKeys lists what a bucket has, with versions.
func allKeys(t *testing.T, s objstore.Store) []string {
	t.Helper()
	var keys []string
	err := objstore.ListAll(bg, s, "", "", func(i objstore.Info) error {
		keys = append(keys, i.Key+" "+string(i.Version))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}
