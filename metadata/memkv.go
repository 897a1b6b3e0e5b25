package metadata

import (
	"bytes"
	"math/rand/v2"
	"sync"

	"github.com/tidwall/btree"
)

// maxUnsynced is how many states after the last Sync a MemKV remembers for Crash.
const maxUnsynced = 64

type memItem struct{ key, value []byte }

type memTree = btree.BTreeG[memItem]

// MemKV is a KV in memory: a copy-on-write tree. Durable only in the sense of Crash.
type MemKV struct {
	mu       sync.Mutex // guards the fields below; never held while a callback runs, but Update's
	tree     *memTree
	synced   *memTree
	unsynced []*memTree // states after the Updates since the last Sync, oldest first
	closed   bool
}

// NewMemKV returns an empty store.
func NewMemKV() *MemKV {
	t := newMemTree()
	return &MemKV{tree: t, synced: t.Copy()}
}

func newMemTree() *memTree {
	less := func(a, b memItem) bool { return bytes.Compare(a.key, b.key) < 0 }
	return btree.NewBTreeGOptions(less, btree.Options{NoLocks: true})
}

// Crash returns what a power cut now would leave: the Updates up to the last Sync
// and a random number of those after it, the first ones. Of more than 64 Updates
// after a Sync it leaves none or at least all but the last 64. The store itself stays usable.
func (m *MemKV) Crash(rng *rand.Rand) *MemKV {
	m.mu.Lock()
	defer m.mu.Unlock()
	t := m.synced
	if n := rng.IntN(len(m.unsynced) + 1); n > 0 {
		t = m.unsynced[n-1]
	}
	return &MemKV{tree: t.Copy(), synced: t.Copy()}
}

// Get implements KV.
func (m *MemKV) Get(key []byte) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return nil, ErrClosed
	}
	return treeGet(m.tree, key)
}

// Scan implements KV.
func (m *MemKV) Scan(from, to []byte, fn func(key, value []byte) error) error {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return ErrClosed
	}
	t := m.tree.Copy()
	m.mu.Unlock()
	return treeScan(t, from, to, fn)
}

// Update implements KV. fn runs with the store locked.
func (m *MemKV) Update(fn func(w Writer) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	w := &memWriter{tree: m.tree.Copy()}
	if err := fn(w); err != nil {
		return err
	}
	m.tree = w.tree
	m.unsynced = append(m.unsynced, m.tree.Copy())
	if len(m.unsynced) > maxUnsynced {
		m.unsynced = append(m.unsynced[:0], m.unsynced[1:]...)
	}
	return nil
}

// Sync implements KV.
func (m *MemKV) Sync() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		return ErrClosed
	}
	m.synced, m.unsynced = m.tree.Copy(), nil
	return nil
}

// Snapshot implements KV.
func (m *MemKV) Snapshot() Snapshot {
	m.mu.Lock()
	defer m.mu.Unlock()
	return &memSnapshot{tree: m.tree.Copy()}
}

// Close implements KV.
func (m *MemKV) Close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	m.unsynced = nil
	return nil
}

type memSnapshot struct{ tree *memTree }

func (s *memSnapshot) Get(key []byte) ([]byte, error) { return treeGet(s.tree, key) }
func (s *memSnapshot) Close() error                   { return nil }
func (s *memSnapshot) Scan(from, to []byte, fn func(key, value []byte) error) error {
	return treeScan(s.tree, from, to, fn)
}

type memWriter struct {
	tree *memTree
	size updateSize
}

func (w *memWriter) Set(key, value []byte) error {
	if err := w.size.add(key, value); err != nil {
		return err
	}
	w.tree.Set(memItem{key, value})
	return nil
}

func (w *memWriter) Delete(key []byte) error {
	if err := w.size.add(key, nil); err != nil {
		return err
	}
	w.tree.Delete(memItem{key: key})
	return nil
}

func treeGet(t *memTree, key []byte) ([]byte, error) {
	it, ok := t.Get(memItem{key: key})
	if !ok {
		return nil, ErrNotExist
	}
	return bytes.Clone(it.value), nil
}

func treeScan(t *memTree, from, to []byte, fn func(key, value []byte) error) error {
	var err error
	t.Ascend(memItem{key: from}, func(it memItem) bool {
		if len(to) > 0 && bytes.Compare(it.key, to) >= 0 {
			return false
		}
		err = fn(it.key, it.value)
		return err == nil
	})
	return err
}
