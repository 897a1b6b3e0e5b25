package metadata

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

func openTestIndex(t testing.TB, kv KV) *Index {
	t.Helper()
	ix, err := OpenIndex(kv, testSlotSize)
	must(t, err)
	return ix
}

func openTestBadger(t testing.TB, dir string) *BadgerKV {
	t.Helper()
	kv, err := OpenBadgerKV(dir, nil)
	must(t, err)
	t.Cleanup(func() { must(t, kv.Close()) })
	return kv
}

func TestIndex_Apply_EqualsModel(t *testing.T) {
	for seed := range uint64(3) {
		for _, maxOps := range []int{7, batchOps} {
			t.Run(fmt.Sprintf("seed %d maxOps %d", seed, maxOps), func(t *testing.T) {
				w := newWorld(seed)
				mem, disk := openTestIndex(t, NewMemKV()), openTestIndex(t, openTestBadger(t, t.TempDir()))
				mem.maxOps, disk.maxOps = maxOps, maxOps
				for n := range 60 {
					c, hash, local := w.next(1 + n%20)
					decoded, err := DecodeCommit(EncodeCommit(c))
					must(t, err)
					must(t, mem.Apply(c, hash, local))
					must(t, disk.Apply(decoded, hash, local))
					must(t, disk.Apply(decoded, hash, nil)) // again: nothing happens
					if n%5 != 0 {
						continue
					}
					want := w.dump(true)
					sameText(t, dumpIndex(t, mem, w, true), want)
					sameText(t, dumpIndex(t, disk, w, true), want)
					checkClean(t, mem)
					checkClean(t, disk)
				}
			})
		}
	}
}

func TestSlot_Resolve_EqualsPaintedBytes(t *testing.T) {
	w := newWorld(11)
	ix := openTestIndex(t, NewMemKV())
	for range 80 {
		c, hash, local := w.next(12)
		must(t, ix.Apply(c, hash, local))
	}
	if len(w.slots) < 10 {
		t.Fatalf("only %d slots", len(w.slots))
	}
	for k, m := range w.slots {
		s, err := ix.Slot(k.ino, k.slot)
		must(t, err)
		painted := m.paintNaive()
		off := w.rng.Uint32N(testSlotSize - 1)
		n := 1 + w.rng.Uint32N(testSlotSize-off-1)
		for _, r := range [][2]uint32{{0, testSlotSize}, {off, n}} {
			comparePieces(t, s, painted, r[0], r[1])
		}
	}
	var none *Slot
	if p := none.Resolve(5, 10); len(p) != 1 || p[0] != (Piece{Off: 5, Len: 10, PatchIndex: -1}) {
		t.Fatalf("a slot that is not there resolves to %+v", p)
	}
}

func comparePieces(t *testing.T, s *Slot, painted []int, off, n uint32) {
	t.Helper()
	at, data := off, uint32(0)
	last := -1
	for _, p := range s.Resolve(off, n) {
		if p.Off != at || p.Len == 0 {
			t.Fatalf("piece %+v at %d", p, at)
		}
		want := map[PieceKind]int{PieceZero: 0, PieceBase: 1, PiecePatch: p.PatchIndex + 2}[p.Kind]
		if want == last {
			t.Fatalf("piece %+v continues the one before", p)
		}
		last = want
		for i := range p.Len {
			if painted[at+i] != want {
				t.Fatalf("byte %d of %+v comes from %d", at+i, p, painted[at+i])
			}
		}
		if p.Kind != PieceZero {
			data += p.Len
		}
		at += p.Len
	}
	if at != off+n || s.Coverage(off, n) != data {
		t.Fatalf("pieces end at %d of %d, coverage %d of %d", at, off+n, s.Coverage(off, n), data)
	}
	end := uint32(0)
	for i, v := range painted {
		if v != 0 {
			end = uint32(i) + 1
		}
	}
	if s.End() != end {
		t.Fatalf("end %d, want %d", s.End(), end)
	}
}

// failKV fails its n-th call of Update or Sync, before or after it is done.
type failKV struct {
	KV
	mu    sync.Mutex
	left  int
	after bool
}

var errInjected = errors.New("injected")

func (f *failKV) fails() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.left--
	return f.left == -1
}

func (f *failKV) call(fn func() error) error {
	if !f.fails() {
		return fn()
	}
	if f.after {
		if err := fn(); err != nil {
			return err
		}
	}
	return errInjected
}

func (f *failKV) Update(fn func(w Writer) error) error {
	return f.call(func() error { return f.KV.Update(fn) })
}
func (f *failKV) Sync() error { return f.call(f.KV.Sync) }

// TestIndex_Apply_CrashAnywhere cuts the power at every update and sync of a
// commit's Apply and applies it again.
func TestIndex_Apply_CrashAnywhere(t *testing.T) {
	w := newWorld(5)
	before := NewMemKV()
	ix := openTestIndex(t, before)
	for range 30 {
		c, hash, local := w.next(10)
		must(t, ix.Apply(c, hash, local))
	}
	c, hash, _ := w.next(40)
	for k := range w.local { // a commit applied again after a crash sets none
		if v, ok, err := ix.LocalSum(InodeID(k[0]), k[1]); err != nil || !ok || v != w.local[k] {
			delete(w.local, k)
		}
	}
	want := w.dump(false)
	rng := rand.New(rand.NewPCG(1, 2))
	for _, maxOps := range []int{5, batchOps} {
		for n := 0; ; n++ {
			ended := false
			for _, after := range []bool{false, true} {
				kv := before.Crash(rng) // everything is synced: a copy
				f := &failKV{KV: kv, left: n, after: after}
				opened, err := OpenIndex(kv, testSlotSize)
				must(t, err)
				opened.kv, opened.maxOps = f, maxOps
				err = opened.Apply(c, hash, nil)
				ended = err == nil
				if err != nil && !errors.Is(err, errInjected) {
					t.Fatal(err)
				}
				crashed := kv.Crash(rng)
				again := openTestIndex(t, crashed)
				again.maxOps = maxOps
				if id, h, ok := again.Pending(); ok && (id != c.CommitID || h != hash) {
					t.Fatalf("pending is %v", id)
				}
				must(t, again.Apply(c, hash, nil))
				sameText(t, dumpIndex(t, again, w, false), want)
				checkClean(t, again)
				// Without a crash the same index goes on, its caches included.
				must(t, opened.Apply(c, hash, nil))
				sameText(t, dumpIndex(t, opened, w, false), want)
			}
			if ended {
				if maxOps == 5 && n < 10 {
					t.Fatalf("only %d calls", n)
				}
				break
			}
		}
	}
}

func TestIndex_Apply_RefusesWhatDoesNotFollow(t *testing.T) {
	w := newWorld(3)
	kv := NewMemKV()
	ix := openTestIndex(t, kv)
	for range 5 {
		c, hash, local := w.next(5)
		must(t, ix.Apply(c, hash, local))
	}
	c, hash, _ := w.next(30)
	for name, edit := range map[string]func(c *Commit){
		"number": func(c *Commit) { c.N++ },
		"older":  func(c *Commit) { c.N -= 2 },
		"epoch":  func(c *Commit) { c.Epoch++ },
		"hash":   func(c *Commit) { c.Prev = "other" },
	} {
		bad := *c
		edit(&bad)
		if err := ix.Apply(&bad, hash, nil); !errors.Is(err, ErrNotNext) {
			t.Errorf("%s: %v", name, err)
		}
	}
	f := &failKV{KV: kv, left: 3}
	ix.kv, ix.maxOps = f, 5
	if err := ix.Apply(c, hash, nil); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	reopened := openTestIndex(t, kv)
	if id, h, ok := reopened.Pending(); !ok || id != c.CommitID || h != hash {
		t.Fatalf("pending %v %q %v", id, h, ok)
	}
	if err := reopened.Apply(c, "another hash", nil); !errors.Is(err, ErrNotNext) {
		t.Fatalf("another commit after an interrupted one: %v", err)
	}
	if _, _, err := WriteManifest(reopened.Snapshot(), nil, reopened.Head().CommitID, nil); err == nil {
		t.Fatal("a manifest of half a commit was written")
	}
	must(t, reopened.Apply(c, hash, nil))
	checkClean(t, reopened)
}

func TestIndex_Apply_OneSlotBeyondAnUpdate(t *testing.T) {
	ix := openTestIndex(t, NewMemKV())
	c := rootCommit()
	ch := SlotChange{Inode: 2}
	for i := range uint32(MaxUpdateOps + 1000) {
		ch.Add = append(ch.Add, Patch{Commit: 1, Off: i * 4, Len: 3, Zero: true})
	}
	c.Slots = append(c.Slots, ch)
	must(t, ix.Apply(c, "h", nil))
	again := openTestIndex(t, ix.kv)
	s, err := again.Slot(2, 0)
	must(t, err)
	if len(s.Patches) != len(ch.Add) {
		t.Fatalf("%d patches of %d", len(s.Patches), len(ch.Add))
	}
	checkClean(t, again)
}

// rootCommit is a first commit: the root and the empty file 2 named "f".
func rootCommit() *Commit {
	return &Commit{
		CommitID: CommitID{Epoch: 1, N: 1}, Time: 1,
		Totals: Totals{Inodes: 2, NextInode: 3},
		Inodes: []Inode{{ID: 1, Mode: modeDir | 0o755, Nlink: 2, Parent: 1}, {ID: 2, Mode: modeReg | 0o644, Nlink: 1}},
		Names:  []NameChange{{Dentry: Dentry{Parent: 1, Name: "f", Inode: 2, Type: 8, Cookie: 1}}},
	}
}

// TestIndex_Slot_NeverStaleAfterApply reads while commits are applied: what is
// read after Apply returned is never older.
func TestIndex_Slot_NeverStaleAfterApply(t *testing.T) {
	ix := openTestIndex(t, NewMemKV())
	c := rootCommit()
	must(t, ix.Apply(c, "1", nil))
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for {
				select {
				case <-stop:
					return
				default:
				}
				applied := ix.Head().N
				s, err := ix.Slot(2, 0)
				if err != nil {
					t.Error(err)
					return
				}
				if applied > 1 && (s == nil || s.Patches[0].Commit < applied) {
					t.Errorf("after commit %d the slot is older", applied)
					return
				}
				i, err := ix.Inode(2)
				if err != nil || uint64(i.Mtime) < applied && applied > 1 {
					t.Errorf("after commit %d the inode is older: %v", applied, err)
					return
				}
			}
		}()
	}
	for n := uint64(2); n < 600; n++ {
		ch := SlotChange{Inode: 2, DropThrough: n - 1, Add: []Patch{{Commit: n, Off: 0, Len: 8, Zero: true}}}
		next := &Commit{CommitID: CommitID{Epoch: 1, N: n}, Prev: fmt.Sprint(n - 1), Slots: []SlotChange{ch}, Totals: c.Totals}
		next.Inodes = []Inode{{ID: 2, Mode: modeReg | 0o644, Nlink: 1, Mtime: int64(n)}}
		must(t, ix.Apply(next, fmt.Sprint(n), nil))
		if n%3 == 0 { // loads, not only hits
			ix.slots.change(func(remove func(slotKey), _ func(slotKey, *Slot, int64)) { remove(slotKey{2, 0}) })
		}
	}
	close(stop)
	wg.Wait()
}

func TestLRU_Store_KeepsToItsLimit(t *testing.T) {
	c := newLRU[int, int](100 * (itemCost + 100))
	for i := range 1000 {
		c.put(c.begin(), i, i, 100)
		if i >= 50 {
			if v, ok := c.get(50); !ok || v != 50 { // used: stays
				t.Fatalf("the entry in use went at %d", i)
			}
		}
	}
	if c.cost > c.limit || len(c.items) != 100 {
		t.Fatalf("cost %d of %d, %d entries", c.cost, c.limit, len(c.items))
	}
	gen := c.begin()
	c.change(func(remove func(int), _ func(int, int, int64)) { remove(999) })
	c.put(gen, 999, 1, 1)
	if _, ok := c.get(999); ok {
		t.Fatal("a load that began before a change put its value")
	}
}
