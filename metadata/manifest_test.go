package metadata

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
)

// bucket is where a test's pages lie.
type bucket struct {
	mu    sync.Mutex
	pages map[string][]byte
	puts  int
	left  int // calls until one fails; negative: never
}

func newBucket() *bucket { return &bucket{pages: map[string][]byte{}, left: -1} }

func (b *bucket) fails() bool {
	b.left--
	return b.left == -1
}

func (b *bucket) put(key string, body []byte) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left >= 0 && b.fails() {
		return errInjected
	}
	if _, ok := b.pages[key]; ok {
		return fmt.Errorf("%s is put twice", key)
	}
	b.pages[key] = bytes.Clone(body)
	b.puts++
	return nil
}

func (b *bucket) get(key string, size int64) ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.left >= 0 && b.fails() {
		return nil, errInjected
	}
	p, ok := b.pages[key]
	if !ok {
		return nil, fmt.Errorf("%s is not there", key)
	}
	return bytes.Clone(p), nil
}

func writeTestManifest(t testing.TB, ix *Index, prev *Manifest, b *bucket) (*Manifest, []byte) {
	t.Helper()
	snap := ix.Snapshot()
	defer snap.Close()
	m, doc, err := WriteManifest(snap, prev, ix.Head().CommitID, b.put)
	must(t, err)
	return m, doc
}

func TestManifest_RoundTrip_EqualsModel(t *testing.T) {
	w := newWorld(21)
	ix := openTestIndex(t, NewMemKV())
	b := newBucket()
	var prev *Manifest
	for n := range 60 {
		c, hash, local := w.next(12)
		must(t, ix.Apply(c, hash, local))
		if n%20 != 19 {
			continue
		}
		m, doc := writeTestManifest(t, ix, prev, b)
		prev = m
		mem := NewMemKV()
		for _, kv := range []KV{mem, openTestBadger(t, t.TempDir())} {
			head, err := LoadManifest(doc, b.get, kv)
			must(t, err)
			if head != ix.Head() {
				t.Fatalf("head %+v, want %+v", head, ix.Head())
			}
			loaded := openTestIndex(t, kv)
			sameText(t, dumpIndex(t, loaded, w, false), w.dump(false))
			checkClean(t, loaded)
			if _, ok, err := loaded.LocalSum(2, 0); ok || err != nil {
				t.Fatalf("a local checksum came with a manifest: %v", err)
			}
		}
		// The loaded index goes on with the next commits.
		loaded := openTestIndex(t, mem)
		c, hash, local = w.next(12)
		must(t, ix.Apply(c, hash, local))
		must(t, loaded.Apply(c, hash, nil))
		sameText(t, dumpIndex(t, loaded, w, false), w.dump(false))
	}
}

// manyFiles applies commits that make n files with a slot each.
func manyFiles(t testing.TB, ix *Index, n int) {
	t.Helper()
	const perCommit = 10000
	next := InodeID(2)
	for made := 0; made < n; {
		head := ix.Head()
		c := &Commit{CommitID: CommitID{Epoch: 1, N: head.N + 1}, Prev: head.Hash, Time: 1e18}
		if made == 0 {
			c.Inodes = append(c.Inodes, Inode{ID: 1, Mode: modeDir | 0o755, Nlink: 2, Parent: 1})
		}
		for range min(perCommit, n-made) {
			c.Inodes = append(c.Inodes, Inode{ID: next, Mode: modeReg | 0o644, Nlink: 1, Size: 1 << 20, Alloc: 100000, Mtime: 1e18, Ctime: 1e18, Btime: 1e18})
			c.Names = append(c.Names, NameChange{Dentry: Dentry{Parent: 1, Name: fmt.Sprintf("table%07d.ibd", next), Inode: next, Type: 8, Cookie: uint64(next)}})
			c.Slots = append(c.Slots, SlotChange{Inode: next, Base: &Base{Ref: Ref{Key: ObjectKey(ObjectUUID(1, [10]byte{byte(next), byte(next >> 8), byte(next >> 16)}), 0, 100000, "/x")}, Len: 100000, Birth: c.N, Sums: []uint32{uint32(next)}}})
			next++
			made++
		}
		c.Totals = Totals{Inodes: uint64(made + 1), UsedBytes: int64(made) * 100000, NextInode: next}
		must(t, ix.Apply(c, fmt.Sprint(c.N), nil))
	}
}

func TestManifest_Write_ReusesPagesOfUnchangedKeys(t *testing.T) {
	ix := openTestIndex(t, NewMemKV())
	manyFiles(t, ix, 20000)
	b := newBucket()
	first, _ := writeTestManifest(t, ix, nil, b)
	if len(first.Pages) < 10 || b.puts != len(first.Pages) {
		t.Fatalf("%d pages, %d put", len(first.Pages), b.puts)
	}
	for _, p := range first.Pages {
		if p.Raw > pageMax || p.Size != int64(len(b.pages[p.Key()])) {
			t.Fatalf("page %+v of %d bytes", p, len(b.pages[p.Key()]))
		}
	}
	head := ix.Head()
	c := &Commit{
		CommitID: CommitID{Epoch: 1, N: head.N + 1}, Prev: head.Hash, Totals: head.Totals,
		Inodes: []Inode{{ID: 777, Mode: modeReg | 0o600, Nlink: 1, Size: 1 << 20, Alloc: 100000}, {ID: 30000, Mode: modeReg, Nlink: 1}},
		Names:  []NameChange{{Dentry: Dentry{Parent: 1, Name: "a new one", Inode: 30000, Type: 8, Cookie: 30000}}},
	}
	c.Totals.Inodes, c.Totals.NextInode = c.Totals.Inodes+1, 30001
	must(t, ix.Apply(c, "x", nil))
	checkClean(t, ix)
	b.puts = 0
	second, doc := writeTestManifest(t, ix, first, b)
	born, dead := second.Diff(first)
	if len(born) != b.puts || len(born) > 3 || len(dead) > 3 || len(born) == 0 || len(dead) == 0 {
		t.Fatalf("%d pages born, %d dead, %d put of %d", len(born), len(dead), b.puts, len(second.Pages))
	}
	kv := NewMemKV()
	_, err := LoadManifest(doc, b.get, kv)
	must(t, err)
	checkClean(t, openTestIndex(t, kv))
	all, none := second.Diff(nil)
	if len(all) != len(second.Pages) || none != nil {
		t.Fatalf("%d pages born of %d, dead %v", len(all), len(second.Pages), none)
	}
}

func TestManifest_Write_FailsWithEachPut(t *testing.T) {
	ix := openTestIndex(t, NewMemKV())
	manyFiles(t, ix, 4000)
	for n := 0; ; n++ {
		b := newBucket()
		b.left = n
		snap := ix.Snapshot()
		_, _, err := WriteManifest(snap, nil, ix.Head().CommitID, b.put)
		must(t, snap.Close())
		if err == nil {
			if n < 3 {
				t.Fatalf("only %d pages", n)
			}
			return
		}
		if !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
	}
}

func TestManifest_Load_RefusesDamage(t *testing.T) {
	ix := openTestIndex(t, NewMemKV())
	manyFiles(t, ix, 4000)
	b := newBucket()
	m, doc := writeTestManifest(t, ix, nil, b)
	for i := range m.Pages {
		key := m.Pages[i].Key()
		whole := b.pages[key]
		for name, body := range map[string][]byte{
			"flipped":   append(append(bytes.Clone(whole[:len(whole)/2]), whole[len(whole)/2]^1), whole[len(whole)/2+1:]...),
			"cut":       whole[:len(whole)-1],
			"empty":     nil,
			"too long":  append(bytes.Clone(whole), 0),
			"exchanged": b.pages[m.Pages[(i+1)%len(m.Pages)].Key()],
		} {
			b.pages[key] = body
			kv := NewMemKV()
			_, err := LoadManifest(doc, b.get, kv)
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), key) {
				t.Fatalf("%s page: %v", name, err)
			}
			empty := kv.Scan(nil, nil, func(_, _ []byte) error { return errStop }) == nil
			if _, err := OpenIndex(kv, testSlotSize); !empty && !errors.Is(err, ErrDamaged) {
				t.Fatalf("%s page: the half-loaded index opens with %v", name, err)
			}
		}
		b.pages[key] = whole
	}
	for n := 0; ; n++ { // a store that fails at each call
		b.left = n
		kv := NewMemKV()
		_, err := LoadManifest(doc, b.get, kv)
		if err == nil {
			break
		}
		if !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
	}
	b.left = -1
	for n := 0; ; n++ { // an index that fails at each update
		kv := NewMemKV()
		_, err := LoadManifest(doc, b.get, &failKV{KV: kv, left: n})
		if err == nil {
			break
		}
		if !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		empty := kv.Scan(nil, nil, func(_, _ []byte) error { return errStop }) == nil
		if _, err := OpenIndex(kv, testSlotSize); !empty && err == nil {
			// Only the very last sync may fail with everything in place.
			checkClean(t, openTestIndex(t, kv))
		} else if !empty && !errors.Is(err, ErrDamaged) {
			t.Fatalf("a half-loaded index: %v", err)
		}
	}
	if _, err := LoadManifest(doc, b.get, ix.kv); err == nil {
		t.Fatal("loaded into an index that was not empty")
	}
}
