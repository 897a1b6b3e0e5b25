package smtest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/columnstore/storagemanager"
)

// World is a Storage Manager's state in a directory, with LocalStorage as its
// bucket.
type World struct {
	t    testing.TB
	rng  *rand.Rand
	Tree storagemanager.Tree
	// Bucket is LocalStorage's path.
	Bucket     string
	ObjectSize int64
	KeyPrefix  string
	// Want is what each file holds, by its path with the prefix.
	Want map[string][]byte
}

// New makes an empty world below dir.
func New(t testing.TB, dir string, seed uint64, objectSize int64) *World {
	w := &World{
		t: t, rng: rand.New(rand.NewPCG(seed, 11)), Bucket: filepath.Join(dir, "fake-cloud"), ObjectSize: objectSize, Want: map[string][]byte{},
		Tree: storagemanager.Tree{Metadata: filepath.Join(dir, "metadata"), Journal: filepath.Join(dir, "journal"), Cache: filepath.Join(dir, "cache")},
	}
	for _, d := range []string{w.Bucket, w.Tree.Metadata, w.Tree.Journal, w.Tree.Cache} {
		w.must(os.MkdirAll(d, 0o755))
	}
	return w
}

func (w *World) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// Noise returns n random bytes.
func (w *World) Noise(n int64) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(w.rng.Uint32())
	}
	return p
}

func (w *World) uuid() string {
	b := w.Noise(16)
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:])
}

// Piece is one object of a file to be made, and its journal.
type Piece struct {
	Offset  int64
	Length  int64 // that the metadata says
	Stored  []byte
	Missing bool // it is not in the bucket
	Cached  bool // it is in the cache
	Changes []storagemanager.Change
	Tail    []byte // torn bytes at the journal's end
	Journal bool   // it has a journal although nothing is in it
}

func prefixOf(path string) string { p, _, _ := strings.Cut(path, "/"); return p }

// File makes a file. path begins with the prefix. What the file holds is worked
// out by the rules of package storagemanager's documentation, byte by byte, and
// noted in Want. It returns the keys of the objects.
func (w *World) File(path string, pieces ...Piece) []string {
	w.t.Helper()
	var meta storagemanager.Meta
	var keys []string
	var want []byte
	for _, p := range pieces {
		key := storagemanager.Key(w.uuid(), p.Offset, p.Length, path)
		keys = append(keys, key)
		meta.Objects = append(meta.Objects, storagemanager.Object{Offset: p.Offset, Length: p.Length, Key: key})
		w.object(prefixOf(path), key, p)
		for int64(len(want)) < p.Offset+p.Length {
			want = append(want, 0)
		}
		copy(want[p.Offset:], p.Stored)
		for _, c := range p.Changes {
			for i, b := range c.Bytes {
				if at := c.Offset + int64(i); at < p.Length {
					want[p.Offset+at] = b
				}
			}
		}
	}
	w.Want[path] = want[:len(want):len(want)]
	w.put(filepath.Join(w.Tree.Metadata, path+storagemanager.MetaSuffix), meta.Encode())
	return keys
}

func (w *World) object(prefix, key string, p Piece) {
	if !p.Missing {
		w.put(filepath.Join(w.Bucket, w.KeyPrefix+key), p.Stored)
	}
	if p.Cached {
		w.put(filepath.Join(w.Tree.Cache, prefix, key), p.Stored)
	}
	if len(p.Changes) > 0 || len(p.Tail) > 0 || p.Journal {
		body := append(storagemanager.EncodeJournal(p.Changes), p.Tail...)
		w.put(filepath.Join(w.Tree.Journal, prefix, key+storagemanager.JournalSuffix), body)
	}
}

func (w *World) put(name string, body []byte) {
	w.t.Helper()
	w.must(os.MkdirAll(filepath.Dir(name), 0o755))
	w.must(os.WriteFile(name, body, 0o600))
}

// Whole returns the pieces of a file of n bytes, all of them in the bucket.
func (w *World) Whole(n int64) []Piece {
	var out []Piece
	for off := int64(0); off < n; off += w.ObjectSize {
		k := min(w.ObjectSize, n-off)
		out = append(out, Piece{Offset: off, Length: k, Stored: w.Noise(k)})
	}
	return out
}

// Change returns random bytes for an object at off.
func (w *World) Change(off, n int64) storagemanager.Change {
	return storagemanager.Change{Offset: off, Bytes: w.Noise(n)}
}

// Shapes makes a file of every shape in prefix: names, sizes, objects and journals.
// None of them is damaged.
func (w *World) Shapes(prefix string) {
	w.t.Helper()
	s := w.ObjectSize
	name := func(n string) string { return prefix + "/" + n }
	w.File(name("000.dir/000.dir/003.dir/233.dir/000.dir/FILE000.cdf"), w.Whole(2*s+s/3)...)
	w.File(name("systemFiles/dbrm/SMTxnID"), Piece{Length: 8, Stored: w.Noise(8), Changes: []storagemanager.Change{w.Change(4, 4)}})
	w.File(name("empty"))
	w.File(name("one byte"), w.Whole(1)...)
	w.File(name("exactly one object"), w.Whole(s)...)
	for i, n := range []string{"a~b", "x~", "a_b__c", "f.meta", "a", "a.meta", "OWNED", "with \"quotes\" and \\", "new\nline", "ünï", strings.Repeat("n", 100)} {
		w.File(name("names/"+n), w.Whole(100+int64(i)*37)...)
	}
	w.must(os.MkdirAll(filepath.Join(w.Tree.Metadata, prefix, "an empty directory"), 0o755))
	w.File(name("journal within"), Piece{Length: s, Stored: w.Noise(s), Changes: []storagemanager.Change{w.Change(10, 100), w.Change(50, 100), w.Change(s-1, 1), w.Change(0, 1)}})
	w.File(name("journal beyond the object"), Piece{Length: s - 7, Stored: w.Noise(100), Changes: []storagemanager.Change{w.Change(s-200, 193)}})
	w.File(name("journal beyond the length"), Piece{Length: 500, Stored: w.Noise(500), Changes: []storagemanager.Change{w.Change(400, 300), w.Change(600, 10)}})
	w.File(name("journal over all"), Piece{Length: s, Stored: w.Noise(s), Changes: []storagemanager.Change{w.Change(0, s)}})
	w.File(name("journal without entries"), Piece{Length: 300, Stored: w.Noise(300), Journal: true})
	w.File(name("object shorter than its length"), Piece{Length: 1000, Stored: w.Noise(10)})
	w.File(name("object longer than its length"), Piece{Length: 1000, Stored: w.Noise(s)})
	w.File(name("cut in the middle"), Piece{Length: s / 2, Stored: w.Noise(s)}, Piece{Offset: s, Length: 10, Stored: w.Noise(10)})
	w.File(name("a gap between objects"), Piece{Length: 10, Stored: w.Noise(10)}, Piece{Offset: 3 * s, Length: s, Stored: w.Noise(s)})
	w.File(name("begins with a gap"), Piece{Offset: 5 * s, Length: 99, Stored: w.Noise(99)})
	w.File(name("objects of another size"), Piece{Length: s / 2, Stored: w.Noise(s / 2)}, Piece{Offset: s / 2, Length: s / 2, Stored: w.Noise(s / 2)}, Piece{Offset: s, Length: s / 2, Stored: w.Noise(s / 2)})
	w.File(name("an object larger than a slot"), Piece{Length: 2*s + 5, Stored: w.Noise(2*s + 5), Changes: []storagemanager.Change{w.Change(s-5, 10)}})
	w.File(name("only in the cache"), Piece{Length: s, Stored: w.Noise(s), Missing: true, Cached: true}, Piece{Offset: s, Length: 20, Stored: w.Noise(20), Cached: true})
	w.File(name("only in the cache, with a journal"), Piece{Length: 200, Stored: w.Noise(200), Missing: true, Cached: true, Changes: []storagemanager.Change{w.Change(100, 100)}})
	w.random(prefix)
}

// random makes files of random objects and journals.
func (w *World) random(prefix string) {
	for i := range 20 {
		var pieces []Piece
		for off := int64(0); off < w.rng.Int64N(4*w.ObjectSize); off += w.ObjectSize {
			p := Piece{Offset: off, Length: 1 + w.rng.Int64N(w.ObjectSize)}
			p.Stored = w.Noise(w.rng.Int64N(p.Length + 1))
			for range w.rng.IntN(6) {
				at := w.rng.Int64N(w.ObjectSize)
				p.Changes = append(p.Changes, w.Change(at, 1+w.rng.Int64N(w.ObjectSize-at)))
			}
			pieces = append(pieces, p)
		}
		w.File(fmt.Sprintf("%s/random/%d/f", prefix, i), pieces...)
	}
}

// Lose takes an object out of the bucket and the cache.
func (w *World) Lose(key string) {
	w.must(os.Remove(filepath.Join(w.Bucket, w.KeyPrefix+key)))
}

// Compare compares a directory of plain files with what those of a prefix hold.
func (w *World) Compare(dir, prefix string) {
	w.t.Helper()
	n := 0
	for path, want := range w.Want {
		rel, ok := strings.CutPrefix(path, prefix+"/")
		if !ok {
			continue
		}
		n++
		got, err := os.ReadFile(filepath.Join(dir, rel))
		if err != nil || !bytes.Equal(got, want) {
			w.t.Errorf("%s: %d bytes that differ from the %d wanted: %v", path, len(got), len(want), err)
		}
	}
	found := 0
	w.must(filepath.WalkDir(dir, func(name string, d os.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			found++
		}
		return err
	}))
	if found != n {
		w.t.Errorf("%s has %d files instead of %d", dir, found, n)
	}
}
