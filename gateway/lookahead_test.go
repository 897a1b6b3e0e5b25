package gateway

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
)

// TestLookahead_Next_WholeSlotsOnceItIsAScan reads a file in order: every byte
// is told once, in pieces that end at slots as soon as some of them fit.
func TestLookahead_Next_WholeSlotsOnceItIsAScan(t *testing.T) {
	const slot, request = 5 << 20, 128 << 10
	var l lookahead
	told, large := int64(-1), 0
	for off := int64(0); off < 200<<20; off += request {
		from, to, chunk := l.next(off, request, slot)
		if from == to {
			continue
		}
		if told >= 0 && from != told {
			t.Fatalf("at %d: told up to %d, and then from %d on", off, told, from)
		}
		if told = to; to%chunk != 0 || to <= off {
			t.Fatalf("at %d: told up to %d in pieces of %d", off, to, chunk)
		}
		switch {
		case chunk == slot:
			large++
		case chunk != readAheadChunk || large > 0:
			t.Fatalf("at %d: pieces of %d after %d of whole slots", off, chunk, large)
		}
	}
	if large < 30 || told < 200<<20 {
		t.Errorf("told of whole slots %d times and up to %d", large, told)
	}
}

// TestLookahead_Next_ExpectedScan_BeginsWithTheFirstSlot: only a first read, only
// at the beginning, and never the block that the read itself fetches.
func TestLookahead_Next_ExpectedScan_BeginsWithTheFirstSlot(t *testing.T) {
	const slot = 5 << 20
	var l lookahead
	l.expectScan()
	if from, to, chunk := l.next(0, 12<<10, slot); from != metadata.BlockSize || to != slot || chunk != slot {
		t.Errorf("told of [%d, %d) in pieces of %d", from, to, chunk)
	}
	if from, to, _ := l.next(0, 12<<10, slot); from != to {
		t.Errorf("the second read: told of [%d, %d)", from, to)
	}
	var middle lookahead
	middle.expectScan()
	for _, off := range []int64{1 << 20, 0} {
		if from, to, _ := middle.next(off, 16<<10, slot); from != to {
			t.Errorf("a reader that began in the middle: told of [%d, %d)", from, to)
		}
	}
	var small lookahead
	small.expectScan()
	if from, to, _ := small.next(0, 1<<20, 4096); to > from {
		t.Errorf("a read beyond the slot: told of [%d, %d)", from, to)
	}
}

func TestReadAhead_FullQueue_DoesNotWait(t *testing.T) {
	queue := make(chan readAheadTask, 2)
	readAhead(queue, 7, 3, 40, 10)
	for _, want := range []readAheadTask{{ino: 7, off: 3, end: 10}, {ino: 7, off: 10, end: 20}} {
		if got := <-queue; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	if len(queue) != 0 {
		t.Errorf("%d more tasks", len(queue))
	}
}

// TestVolume_Commit_BulkDoesNotWaitForTheInterval loads a file under an interval
// of an hour: a commit begins as soon as enough large writes are there, and small
// ones bring none.
func TestVolume_Commit_BulkDoesNotWaitForTheInterval(t *testing.T) {
	for given, enough := range map[int64]int64{0: bulkCommit, 16 << 20: 16 << 20} {
		bulkDoesNotWait(t, given, enough)
	}
}

func bulkDoesNotWait(t *testing.T, given, enough int64) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 1<<20)
		v := l.mustMount(func(o *Options) {
			live(o)
			o.BulkBytes = given
			o.CommitInterval, o.CacheBytes, o.JournalBytes, o.JournalFileBytes = time.Hour, 256<<20, 64<<20, 8<<20
		})
		h := mkfile(t, v, 1, "load")
		before := v.Status().Commits
		small, large := make([]byte, 1000), make([]byte, 1<<20)
		for i := range int64(1000) {
			pwrite(t, h, small, i*1000)
		}
		for off := int64(len(large)); off < enough; off += int64(len(large)) {
			pwrite(t, h, large, off)
		}
		synctest.Wait()
		if n := v.Status().Commits - before; n != 0 {
			t.Fatalf("%d commits before there is enough", n)
		}
		pwrite(t, h, large, enough)
		synctest.Wait()
		if n := v.Status().Commits - before; n != 1 {
			t.Errorf("%d commits of %d bytes of large writes", n, enough)
		}
		h.Close()
		mustClose(t, v)
	})
}

// After a restart nothing of the cache is believed before it was compared: reading
// ahead compares, too, and asks the store for nothing that is here.
func TestVolume_Prefetch_AfterARestart_BelievesTheCacheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 9, 256<<10)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "a", l.noise(1<<20), 0)
		mustCommit(t, v)
		l.kill(v)
		v = l.mustMount(nil)
		n, err := v.Lookup(bg, metadata.RootInode, "a")
		if err != nil {
			t.Fatal(err)
		}
		v.Forget(n.ID, 1)
		ahead := func() int64 {
			l.bucket.ResetStats()
			v.prefetch(bg, readAheadTask{ino: n.ID, end: 1 << 20})
			return l.bucket.Stats().Get.Requests
		}
		if n := ahead(); n != 0 {
			t.Errorf("%d requests for what is cached", n)
		}
		v.cache.Evict(1 << 40)
		if n := ahead(); n == 0 {
			t.Error("no request for what is not")
		}
		wantFiles(t, v, f, "at the end")
		mustClose(t, v)
	})
}
