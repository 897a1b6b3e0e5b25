package gateway

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// taken is how many bytes are counted.
func (b *budget) taken() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all - b.free
}

// slotOf returns a file's slot as the last commit has it, of which the cache has
// nothing.
func slotOf(t *testing.T, v *Volume, name string, no uint32) *metadata.Slot {
	t.Helper()
	s, err := v.index.Slot(mustLookup(t, v, metadata.RootInode, name).ID, no)
	if err != nil || s == nil {
		t.Fatalf("slot %d of %s: %v, %v", no, name, s, err)
	}
	v.cache.Evict(1 << 30)
	return s
}

// onSegments makes the store call do for each read of a segment.
func onSegments(v *Volume, do func()) {
	s := faultstore.New(v.store, nil)
	s.SetHook(func(op faultstore.Op, key string, _ int) faultstore.Fault {
		if op == faultstore.Get && strings.HasPrefix(key, metadata.SegmentPrefix) {
			do()
		}
		return faultstore.Fault{}
	})
	v.store = s
}

// A patch of which one byte shows is read whole: a block may need many times what it
// has, and that counts before it is read.
func TestFetcher_FetchRun_ExtentsCountAsMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 1<<20)
		v := l.mustMount(nil)
		const patches, size = 20, 100_000
		f := files{}
		f.put(t, v, "a", l.noise(size), 0)
		mustCommit(t, v)
		for i := 1; i < patches; i++ {
			f.put(t, v, "a", l.noise(size-1000*i), 1000*i)
			mustCommit(t, v)
		}
		s := slotOf(t, v, "a", 0)
		want := s.PatchBytes() + size
		if len(s.Patches) != patches || want < 15*size {
			t.Fatalf("%d patches of %d bytes", len(s.Patches), want)
		}
		var least atomic.Int64
		least.Store(1 << 62)
		onSegments(v, func() { least.Store(min(least.Load(), v.loads.taken())) })
		blocks, release, err := v.fetchRun(bg, s, 0, 1, false)
		if err != nil || string(blocks[0]) != f["a"] {
			t.Fatalf("wrong bytes, %v", err)
		}
		if got := least.Load(); got < want {
			t.Errorf("%d bytes were counted while %d were read", got, want)
		}
		if v.loads.taken() < size {
			t.Error("the bytes don't count while they are kept")
		}
		release()
		if n := v.loads.taken(); n != 0 {
			t.Errorf("%d bytes are counted in the end", n)
		}
		mustClose(t, v)
	})
}

// However much of segments a run needs, a bounded part of it is held at a time.
func TestFetcher_FetchRun_ExtentsAtOnceAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 32<<20)
		v := l.mustMount(func(o *Options) { o.CacheBytes, o.JournalBytes = 256<<20, 256<<20 })
		f := files{}
		const every = extentRun + metadata.BlockSize // with a hole between, or it would be an object
		f.put(t, v, "a", l.noise(1), 6*every)
		mustCommit(t, v)
		for i := range 6 {
			f.put(t, v, "a", l.noise(extentRun), i*every)
			mustCommit(t, v)
		}
		s := slotOf(t, v, "a", 0)
		a := newAssembly(s, 0, s.End())
		if len(a.runs) != 7 || a.memory() != int64(s.End())+extentsAtOnce {
			t.Fatalf("%d runs, %d bytes", len(a.runs), a.memory())
		}
		var now, most atomic.Int64
		onSegments(v, func() {
			most.Store(max(most.Load(), now.Add(1)))
			time.Sleep(time.Second)
			now.Add(-1)
		})
		buf := make([]byte, s.End())
		if err := v.fill(bg, a, buf); err != nil || string(buf) != f["a"] {
			t.Fatalf("wrong bytes, %v", err)
		}
		if n := most.Load(); n < 2 || n*extentRun > extentsAtOnce {
			t.Errorf("%d MiB were read at once", n*extentRun>>20)
		}
		mustClose(t, v)
	})
}

// A run whose first extent fails gives everything back.
func TestFetcher_FetchRun_FailedIsNotCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		patched(t, l, v)
		s := slotOf(t, v, "a", 0)
		for _, p := range s.Patches {
			harm(t, l.bucket, p.Seg.Key, "missing")
		}
		_, _, err := v.fetchRun(bg, s, 0, 1, false)
		wantErr(t, err, ErrDamaged)
		if n := v.loads.taken(); n != 0 {
			t.Errorf("%d bytes are counted in the end", n)
		}
		_ = v.Abandon() // its check would find what is missing
	})
}

// What is read ahead counts until the cache has it, not only until it is read.
func TestVolume_Prefetch_CountsUntilTheCacheHasIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newDenseLab(t, 64<<20, "a")
		nd := l.h["a"].node
		s := faultstore.New(l.v.store, nil)
		var unlock func()
		s.SetHook(func(op faultstore.Op, key string, _ int) faultstore.Fault {
			if op == faultstore.Get && unlock == nil {
				held, err := nd.lock.Lock(bg, 0, denseFile, true) // as a write under way
				if err != nil {
					t.Error(err)
				}
				unlock = held.Unlock
			}
			return faultstore.Fault{}
		})
		l.v.store = s
		done := make(chan struct{})
		go func() {
			defer close(done)
			l.v.prefetch(bg, readAheadTask{ino: nd.id, end: 4 << 20})
		}()
		synctest.Wait()
		if n := l.v.loads.taken(); n != 4<<20 {
			t.Errorf("%d bytes are counted while they wait for the cache", n)
		}
		unlock()
		<-done
		if n := l.v.loads.taken(); n != 0 {
			t.Errorf("%d bytes are counted in the end", n)
		}
		l.bucket.ResetStats()
		l.read(t, "a", 17)
		if n := l.bucket.Stats().Get.Requests; n != 0 {
			t.Errorf("%d requests for what is in the cache", n)
		}
		l.close(t)
	})
}

// However many fetches of what nobody waits for hang in the store, who reads something
// else finds memory for it.
func TestVolume_Read_WhatIsReadAheadHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newDenseLab(t, 256<<20, "a", "b")
		l.v.loads, l.v.unasked = newBudget(4<<20), newBudget(3<<20)
		ofA := map[string]bool{}
		err := l.v.index.Slots(l.h["a"].node.id, 0, func(_ uint32, s *metadata.Slot) bool { ofA[s.Base.Key] = true; return true })
		if err != nil {
			t.Fatal(err)
		}
		h := faultstore.New(l.v.store, nil)
		h.SetHook(func(op faultstore.Op, key string, _ int) faultstore.Fault {
			if op == faultstore.Get && ofA[key] {
				return faultstore.Fault{Kind: faultstore.Hang}
			}
			return faultstore.Fault{}
		})
		l.v.store = h
		ctx, cancel := context.WithCancel(bg)
		var wg sync.WaitGroup
		for off := int64(0); off < denseFile; off += 1 << 20 {
			wg.Go(func() { l.v.prefetch(ctx, readAheadTask{ino: l.h["a"].node.id, off: off, end: off + 1<<20}) })
		}
		synctest.Wait()
		if n := l.v.loads.taken(); n != 3<<20 {
			t.Errorf("%d bytes are counted for what is read ahead", n)
		}
		shortly, end := soon()
		defer end()
		p := make([]byte, 16<<10)
		if n, err := l.h["b"].Read(shortly, p, 5<<20); err != nil || string(p[:n]) != l.f["b"][5<<20:5<<20+16<<10] {
			t.Errorf("%d bytes, %v", n, err)
		}
		cancel()
		wg.Wait()
		if l.v.loads.taken() != 0 || l.v.unasked.taken() != 0 {
			t.Errorf("%d and %d bytes are counted in the end", l.v.loads.taken(), l.v.unasked.taken())
		}
		l.close(t)
	})
}
