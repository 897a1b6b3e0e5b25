package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// lateSwap judges a swap of the lease first and writes it some time later, so
// that two contenders can both be told that they have it.
type lateSwap struct {
	objstore.Store
	window time.Duration
	drop   bool // and then writes nothing
}

func (s *lateSwap) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	if key != metadata.LeaseKey || cond.IfVersion == "" {
		return s.Store.Put(ctx, key, body, size, cond)
	}
	if info, err := s.Head(ctx, key); err != nil || info.Version != cond.IfVersion {
		return "", errors.Join(objstore.ErrConditionFailed, err)
	}
	time.Sleep(s.window)
	if s.drop {
		return "of nothing", nil
	}
	return s.Store.Put(ctx, key, body, size, objstore.Condition{})
}

// TestVolume_Open_SwapWithoutEffect_Refused: the store said yes and the lease is
// still the old one.
func TestVolume_Open_SwapWithoutEffect_Refused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		f := files{}
		v := l.mustMount(nil)
		f.put(t, v, "a", l.noise(20000), 0)
		mustClose(t, v)
		_, err := l.mount(&lateSwap{Store: l.bucket, drop: true}, nil)
		wantErr(t, err, objstore.ErrGuarantee)
		wantErr(t, err, ErrFenced)
		// The epoch has the refused mount's seal: it is nobody else's.
		_, err = l.mount(l.bucket, func(o *Options) { o.Takeover = true })
		wantErr(t, err, objstore.ErrGuarantee)
		v = l.mustMount(func(o *Options) { o.Takeover = true })
		wantFiles(t, v, f, "after a refused mount")
		mustClose(t, v)
	})
}

// TestDestroy_SwapWithoutEffect_DeletesNothing: who does not have the lease after
// all must not delete a volume that another may just be mounting.
func TestDestroy_SwapWithoutEffect_DeletesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		f := files{}
		v := l.mustMount(nil)
		f.put(t, v, "a", l.noise(20000), 0)
		mustClose(t, v)
		before := allKeys(t, l.bucket)
		err := Destroy(bg, &lateSwap{Store: l.bucket, drop: true}, "mem://lab", metadata.Owner{}, false, false, func(int) {})
		wantErr(t, err, objstore.ErrGuarantee)
		if after := allKeys(t, l.bucket); fmt.Sprint(after) != fmt.Sprint(before) {
			t.Errorf("the bucket had %v and has %v", before, after)
		}
		v = l.mustMount(nil)
		wantFiles(t, v, f, "after the refused destroy")
		mustClose(t, v)
	})
}

// contender is one of two machines that mount at the same time.
type contender struct {
	*lab
	store *faultstore.Store
	v     *Volume
	err   error
}

// contend mounts both on a store that loses swaps. One of them may die before
// its dies-th call; -1 for never.
func contend(both []*contender, seed uint64, dies int) {
	var wg sync.WaitGroup
	for i, c := range both {
		random := faultstore.Random(seed*2+uint64(i), faultstore.Rates{MaxDelay: 20 * time.Millisecond})
		c.store = faultstore.New(&lateSwap{Store: c.bucket, window: 10 * time.Millisecond}, func(op faultstore.Op, key string, n int) faultstore.Fault {
			if i == 0 && n == dies {
				c.fault.Kill()
				c.store.Kill()
			}
			return random(op, key, n)
		})
		wg.Go(func() { c.v, c.err = c.open(c.store, func(o *Options) { o.RequireReleased = true }) })
	}
	wg.Wait()
}

// writeAndDie commits a file, acknowledges another, and ends as kill -9 does.
func (c *contender) writeAndDie(t *testing.T, f files) {
	t.Helper()
	f.put(t, c.v, "winner's", c.noise(30000), 0)
	mustCommit(t, c.v)
	files{}.put(t, c.v, "not committed", c.noise(5000), 0)
	c.kill(c.v)
}

// TestVolume_Open_TwoHaveOneEpoch_OneGoesOn races two mounts for a released
// volume on such a store, with crashes of one, and has the loser's machine and
// then the winner's mount again: one at most has the volume, what it committed stays,
// and what it did not commit is not redone over what the other wrote since.
func TestVolume_Open_TwoHaveOneEpoch_OneGoesOn(t *testing.T) {
	outcomes := map[string]int{}
	for seed := range uint64(60) {
		dies := -1
		if seed%2 == 1 {
			dies = int(seed/2) % 12
		}
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 1, 8192)
			mustClose(t, l.mustMount(nil))
			both := []*contender{{lab: l}, {lab: l.machine(2)}}
			contend(both, seed, dies)
			f := files{}
			open, last := 0, 0
			for i, c := range both {
				switch {
				case c.err == nil && i == 0 && dies >= 0 && c.store.Calls() > dies:
					c.kill(c.v) // it died and did not notice
					continue
				case c.err == nil:
					open, last = open+1, i
					c.store.SetHook(nil) // it did not get as far as where it was to die
					c.writeAndDie(t, f)
					continue
				case errors.Is(c.err, objstore.ErrGuarantee):
					outcomes["lost swap"]++
				case !errors.Is(c.err, ErrFenced) && !errors.Is(c.err, ErrOwned) && (dies < 0 || i != 0):
					t.Errorf("seed %d: mount %d: %v", seed, i, c.err)
				}
				c.disk = c.disk.Crash(c.diskRng, vfs.KillProcess)
			}
			if open > 1 {
				t.Errorf("seed %d: both mounts are open", seed)
			}
			outcomes[fmt.Sprintf("%d open", open)]++
			for _, c := range []*contender{both[1-last], both[last], both[1-last]} {
				v := c.mustMount(func(o *Options) { o.Takeover = true })
				wantFiles(t, v, f, fmt.Sprintf("seed %d, machine %d", seed, c.opt.Owner.PID))
				f.put(t, v, "turn", c.noise(9000), 0)
				mustCommit(t, v)
				wantCheckClean(t, v)
				mustClose(t, v)
			}
		})
	}
	t.Logf("%v", outcomes)
	for _, o := range []string{"lost swap", "1 open", "0 open"} {
		if outcomes[o] == 0 {
			t.Errorf("no race ended with %q: %v", o, outcomes)
		}
	}
}
