package metadata

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

func BenchmarkIndex_Slot_Hot(b *testing.B) {
	ix := openTestIndex(b, NewMemKV())
	c := rootCommit()
	ch := SlotChange{Inode: 2, Base: &Base{Ref: Ref{Key: "o"}, Len: testSlotSize, Birth: 1, Sums: make([]uint32, testSlotSize/BlockSize)}}
	for i := range uint32(60) {
		ch.Add = append(ch.Add, Patch{Commit: 1, Off: i * 3000, Len: 1000, Seg: Ref{Key: "s"}, Sum: i})
	}
	c.Slots = []SlotChange{ch}
	must(b, ix.Apply(c, "h", nil))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s, err := ix.Slot(2, 0)
		if err != nil || len(s.Resolve(uint32(i%8)*16384, 16384)) == 0 {
			b.Fatal(err)
		}
	}
}

func BenchmarkIndex_Slot_Cold(b *testing.B) {
	ix := openTestIndex(b, openTestBadger(b, b.TempDir()))
	manyFiles(b, ix, 50000)
	rng := rand.New(rand.NewPCG(1, 1))
	for b.Loop() {
		if s, err := ix.loadSlot(slotKey{InodeID(2 + rng.IntN(50000)), 0}); err != nil || s == nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkIndex_Apply_2000Patches is a second of random 16 KiB writes: 2,000 patches in 200 slots.
func BenchmarkIndex_Apply_2000Patches(b *testing.B) {
	ix := openTestIndex(b, openTestBadger(b, b.TempDir()))
	c := rootCommit()
	must(b, ix.Apply(c, "1", nil))
	for n := uint64(2); b.Loop(); n++ {
		next := &Commit{CommitID: CommitID{Epoch: 1, N: n}, Prev: fmt.Sprint(n - 1), Totals: c.Totals}
		seg := Ref{Key: SegmentKey(1, n, n, "r")}
		for s := range uint32(200) {
			ch := SlotChange{Inode: 2, Slot: s}
			if n > 20 {
				ch.DropThrough = n - 20
			}
			for p := range uint32(10) {
				ch.Add = append(ch.Add, Patch{Commit: n, Off: p * 16384, Len: 16384, Seg: seg, SegOff: (s*10 + p) * 16384})
			}
			next.Slots = append(next.Slots, ch)
		}
		must(b, ix.Apply(next, fmt.Sprint(n), nil))
	}
}

func BenchmarkManifest_WriteAndLoad_100000Files(b *testing.B) {
	ix := openTestIndex(b, NewMemKV())
	manyFiles(b, ix, 100000)
	for b.Loop() {
		bk := newBucket()
		m, doc := writeTestManifest(b, ix, nil, bk)
		kv := openTestBadger(b, b.TempDir())
		if _, err := LoadManifest(doc, bk.get, kv); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(len(m.Pages)), "pages")
	}
}

func BenchmarkEncodeCommit_2000Patches(b *testing.B) {
	c := rootCommit()
	seg := Ref{Key: SegmentKey(1, 1, 1, "r")}
	c.Segments = []Segment{{Key: seg.Key}}
	for i := range uint32(2000) {
		c.Slots = append(c.Slots, SlotChange{Inode: 2, Slot: i, Add: []Patch{{Commit: 1, Len: 16384, Seg: seg, SegOff: i * 16384, Sum: i}}})
	}
	for b.Loop() {
		b.SetBytes(int64(len(EncodeCommit(c))))
	}
}
