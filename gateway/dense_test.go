package gateway

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

func TestDenseTable_Credit_SpentOnceAndBounded(t *testing.T) {
	var d denseTable
	p := densePart{7, 1, 0}
	if n := d.earn(p, 100) + d.earn(p, 20); n != 220 {
		t.Errorf("credit of 100, then of 120: together %d", n)
	}
	if d.spend(p, 121) || !d.spend(p, 120) || d.spend(p, 0) {
		t.Error("credit that is not there was spent, or that which is there not exactly once")
	}
	if n := d.earn(p, 1000); n != 0 {
		t.Errorf("credit of %d for what is on its way", n)
	}
	d.done(readAheadTask{dense: &p})
	d.done(readAheadTask{}) // of a scan
	if n := d.earn(p, 5); n != 5 {
		t.Errorf("credit of %d after it was answered", n)
	}
	for i := range InodeID(3 * denseParts) {
		d.earn(densePart{i, 0, 0}, 1)
	}
	if len(d.m) > denseParts {
		t.Errorf("the credit of %d parts is remembered", len(d.m))
	}
}

// A slot larger than what is read ahead at a time is taken in parts.
func TestDensePart_Span_OfALargeSlot(t *testing.T) {
	const objectSize, end = 20 << 20, 18<<20 + 5
	for block, want := range map[uint32][2]int64{0: {20 << 20, 28 << 20}, 63: {20 << 20, 28 << 20}, 64: {28 << 20, 36 << 20}, 143: {36 << 20, 38<<20 + 5}} {
		if from, to := densePartOf(blockKey{7, 1, block}).span(objectSize, end); from != want[0] || to != want[1] {
			t.Errorf("block %d: [%d, %d), want %v", block, from, to, want)
		}
	}
}

// denseLab is a volume of files of 8 MiB, in slots of 4 MiB of 32 blocks each, that
// only the store has.
type denseLab struct {
	*lab
	v *Volume
	f files
	h map[string]*Handle
}

const denseFile = 8 << 20

func newDenseLab(t *testing.T, cacheBytes int64, names ...string) *denseLab {
	t.Helper()
	l := &denseLab{newLab(t, 3, 4<<20), nil, files{}, map[string]*Handle{}}
	v := l.mustMount(func(o *Options) { o.CacheBytes, o.JournalBytes = 256<<20, 256<<20 })
	for _, name := range names {
		l.f.put(t, v, name, l.noise(denseFile), 0)
	}
	mustClose(t, v)
	if err := l.disk.RemoveAll(l.dir); err != nil {
		t.Fatal(err)
	}
	l.v = l.mustMount(func(o *Options) { o.CacheBytes = cacheBytes })
	for _, name := range names {
		l.h[name] = openPath(t, l.v, name)
	}
	l.bucket.ResetStats()
	return l
}

func (l *denseLab) close(t *testing.T) {
	t.Helper()
	for _, h := range l.h {
		h.Close()
	}
	mustClose(t, l.v)
}

// read reads 16 KiB of a block, as a reader who knows no order, and compares.
func (l *denseLab) read(t *testing.T, name string, block int64) {
	t.Helper()
	h := l.h[name]
	h.ahead = lookahead{}
	off := block * metadata.BlockSize
	if got := pread(t, h, 16<<10, off); string(got) != l.f[name][off:off+16<<10] {
		t.Fatalf("%s, block %d: wrong bytes", name, block)
	}
}

// asked does the tasks that wait, and returns those for a dense slot.
func (l *denseLab) asked() (list []readAheadTask) {
	for {
		select {
		case t := <-l.v.ahead:
			l.v.prefetch(bg, t)
			l.v.dense.done(t)
			l.v.near.done(t)
			if t.dense != nil {
				list = append(list, t)
			}
		default:
			return list
		}
	}
}

// Who comes back to a slot at random places gets the rest of it with one request;
// the slot that was read once stays where it is.
func TestVolume_Read_DenseSlot_FetchedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newDenseLab(t, 64<<20, "a")
		l.read(t, "a", 3)
		for _, block := range []int64{32 + 5, 32 + 20, 32 + 7} {
			l.read(t, "a", block)
			l.read(t, "a", block) // from the cache: no credit
			if list := l.asked(); len(list) != 0 {
				t.Errorf("after block %d: %v", block, list)
			}
		}
		l.read(t, "a", 32)
		list := l.asked()
		if len(list) != 1 || list[0].off != 4<<20 || list[0].end != 8<<20 {
			t.Fatalf("%v", list)
		}
		if n := l.bucket.Stats().Get.Requests; n != 5+1 {
			t.Errorf("%d requests for five blocks and the rest of a slot", n)
		}
		l.bucket.ResetStats()
		for block := range int64(32) {
			l.read(t, "a", 32+block)
		}
		if n := l.bucket.Stats().Get.Requests; n != 0 {
			t.Errorf("%d requests for the slot that was fetched whole", n)
		}
		l.close(t)
	})
}

// Once others must go for it, a slot is dense when half of it is here.
func TestVolume_Read_DenseSlot_CacheWithoutRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newDenseLab(t, 6<<20, "a", "b")
		pread(t, l.h["b"], 5<<20, 0)
		l.asked()
		for i := range int64(16) {
			l.read(t, "a", 2*i)
			if list := l.asked(); len(list) != 0 && i < 15 {
				t.Fatalf("after %d of 32 blocks: %v", i+1, list)
			} else if len(list) == 0 && i == 15 {
				t.Error("not asked for with half of it here")
			}
		}
		l.close(t)
	})
}

// However random reads fall on a volume eight times as large as the cache: what is
// fetched unasked stays within its share of what was asked for, the cache within
// its limit, and the bytes are right.
func TestVolume_Read_RandomOverMuchMoreThanTheCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 12 << 20
		names := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}
		l := newDenseLab(t, limit, names...)
		var own, unasked, unaskedFull int64
		for _, hot := range []int{len(names), 3, 1} { // files: no slot stays, half of them stay, all stay
			for range 1500 {
				full := l.v.cache.Room() < 4<<20
				l.bucket.ResetStats()
				l.read(t, names[l.pick(hot)], int64(l.pick(denseFile/metadata.BlockSize)))
				own += l.bucket.Stats().Get.Bytes
				l.bucket.ResetStats()
				l.asked()
				n := l.bucket.Stats().Get.Bytes
				if unasked += n; full {
					unaskedFull += n
				}
				if a := l.v.cache.Stats().Allocated; a > limit {
					t.Fatalf("the cache has %d bytes", a)
				}
			}
			t.Logf("after random reads of %d files: %d MiB fetched by readers, %d MiB unasked, of these %d with a full cache", hot, own>>20, unasked>>20, unaskedFull>>20)
			if unasked > denseShare*own || unaskedFull > denseFull*own {
				t.Errorf("random reads of %d files: readers fetched %d bytes, and %d were fetched unasked, %d of them with a full cache", hot, own, unasked, unaskedFull)
			}
		}
		l.close(t)
	})
}

// A store that asks for fewer requests, or fails, is asked for no more than it
// was: the readers go on, and what was not fetched can be asked for again.
func TestVolume_Read_DenseSlot_StoreFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newDenseLab(t, 64<<20, "a")
		s := faultstore.New(l.bucket, nil)
		l.v.fetcher.store = s
		for block := range int64(4) {
			l.read(t, "a", 2*block)
		}
		s.SetHook(func(faultstore.Op, string, int) faultstore.Fault {
			return faultstore.Fault{Kind: faultstore.Before, Err: objstore.ErrThrottled}
		})
		calls := s.Calls()
		if list := l.asked(); len(list) != 1 {
			t.Fatalf("%v", list)
		}
		if n := s.Calls() - calls; n != 1 {
			t.Errorf("%d requests to a store that asks for fewer", n)
		}
		s.SetHook(nil)
		l.askedAfterFour(t, "a", 20)
		l.close(t)
	})
}

// askedAfterFour reads every other block from one on: the fourth has the credit to ask.
func (l *denseLab) askedAfterFour(t *testing.T, name string, block int64) {
	t.Helper()
	for i := range int64(4) {
		if list := l.asked(); len(list) != 0 {
			t.Errorf("without credit: %v", list)
		}
		l.read(t, name, block+2*i)
	}
	if list := l.asked(); len(list) != 1 {
		t.Errorf("not asked for again: %v", list)
	}
}

// A read that was given up asks for nothing, and a queue without room costs nothing.
func TestVolume_Read_DenseSlot_InterruptedOrNoRoomToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newDenseLab(t, 64<<20, "a")
		for block := range int64(3) {
			l.read(t, "a", 2*block)
		}
		ctx, cancel := context.WithCancel(bg)
		cancel()
		if _, err := l.v.read(ctx, l.h["a"].node, make([]byte, 100), 10*metadata.BlockSize, false); !errors.Is(err, ErrInterrupted) {
			t.Errorf("a read that was given up: %v", err)
		}
		if list := l.asked(); len(list) != 0 {
			t.Errorf("%v", list)
		}
		for len(l.v.ahead) < cap(l.v.ahead) {
			l.v.ahead <- readAheadTask{ino: 1 << 40}
		}
		l.read(t, "a", 12)
		if list := l.asked(); len(list) != 0 {
			t.Errorf("%v", list)
		}
		l.askedAfterFour(t, "a", 14)
		l.close(t)
	})
}

// Views, and so followers and mounts of a fixed commit, do the same.
func TestView_Read_DenseSlot_FetchedWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newViewLab(t)
		s := faultstore.New(l.bucket, nil)
		v := l.view(t, s, l.disk, "/view/cache", 64<<20)
		f := openView(t, v, "whole")
		calls := s.Calls()
		for i, block := range []int{5, 2, 7} {
			l.wantBytes(t, f, "whole", 1<<20+block*metadata.BlockSize, 16<<10)
			synctest.Wait()
			if n := s.Calls() - calls; n != i+1 {
				t.Errorf("%d requests for %d blocks", n, i+1)
			}
		}
		l.wantBytes(t, f, "whole", 1<<20, 16<<10)
		synctest.Wait()
		calls = s.Calls()
		for off := 1 << 20; off < 2<<20; off += 77_777 {
			f.ahead = lookahead{} // no reading ahead of a scan
			l.wantBytes(t, f, "whole", off, min(77_777, 2<<20-off))
		}
		if n := s.Calls() - calls; n != 0 {
			t.Errorf("%d requests for a slot that was read from four times", n)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		closeView(t, v)
	})
}
