package gateway

import (
	"errors"
	"math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// busyRun is a random run of one user while commits, folds, manifests,
// collection and eviction run in parallel as fast as they can.
func busyRun(t *testing.T, seed int64, steps int) {
	rng := rand.New(rand.NewPCG(uint64(seed), 3))
	sizes := []int64{8192, 131072, 262144, 1 << 20}
	size := sizes[rng.IntN(len(sizes))]
	l := newLab(t, seed, size)
	l.opt.CacheBytes = []int64{256 << 10, 8 << 20}[rng.IntN(2)]
	r := &run{lab: l, seed: seed, m: newModel(), open: map[InodeID]*Handle{}, size: size, maxFile: 400000}
	r.history = []state{{lsn: 0, m: r.m}}
	r.faulty = faultstore.New(l.bucket, nil)
	defer r.faulty.Close()
	r.store = objstore.WithRetry(r.faulty, objstore.RetryOptions{})
	v, err := l.mount(r.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.v = v
	stop := make(chan struct{})
	var wg sync.WaitGroup
	work := []func() error{
		func() error { _, err := v.Commit(bg); return err },
		func() error { _, err := v.Fold(bg, true); return err },
		func() error { return v.WriteManifest(bg) },
		func() error { _, err := v.Collect(bg, false); return err },
		func() error { v.cache.Evict(1 << 20); return nil },
	}
	for i, f := range work {
		wg.Add(1)
		go func() {
			defer wg.Done()
			pause := time.Duration(i*i) * time.Millisecond
			for {
				select {
				case <-stop:
					return
				case <-time.After(pause):
				}
				if err := f(); err != nil && !errors.Is(err, ErrClosed) {
					t.Errorf("seed %d: background work %d: %v", seed, i, err)
					return
				}
			}
		}()
	}
	quit := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer quit()
	for r.step = 0; r.step < steps && !t.Failed(); r.step++ {
		if err := r.operate(); err != nil && !r.allowed(err) {
			r.fatalf("%v", err)
		}
		if r.step%50 == 0 {
			r.check()
		}
	}
	r.check()
	quit()
	for _, h := range r.open {
		h.Close()
	}
	mustClose(t, v)
}

func TestVolume_Random_Busy(t *testing.T) {
	if *seedFlag != 0 {
		busyRun(t, *seedFlag, *stepsFlag)
		return
	}
	runs := 12
	if testing.Short() {
		runs = 3
	}
	for i := range runs {
		seed := int64(i + 1)
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) { busyRun(t, seed, 2**stepsFlag) })
	}
	for start, seed := time.Now(), time.Now().UnixNano()%1e9; time.Since(start) < soakTime(t) && !t.Failed(); seed++ {
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) { busyRun(t, seed, 2**stepsFlag) })
	}
}
