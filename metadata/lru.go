package metadata

import "sync"

// lru is a bounded cache of decoded values. A load that began before a change
// does not put its value: put compares the generation that begin returned.
type lru[K comparable, V any] struct {
	mu    sync.Mutex // guards all; never held during I/O
	limit int64      // of cost
	cost  int64
	gen   uint64
	items map[K]*lruItem[K, V]
	root  lruItem[K, V] // ring: next is the most recent
}

type lruItem[K comparable, V any] struct {
	next, prev *lruItem[K, V]
	key        K
	value      V
	cost       int64
}

// itemCost is what an entry costs beside its value, in bytes.
const itemCost = 96

func newLRU[K comparable, V any](limit int64) *lru[K, V] {
	c := &lru[K, V]{limit: limit, items: make(map[K]*lruItem[K, V])}
	c.root.next, c.root.prev = &c.root, &c.root
	return c
}

func (c *lru[K, V]) get(k K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	it, ok := c.items[k]
	if !ok {
		var zero V
		return zero, false
	}
	if c.root.next != it {
		it.unlink()
		c.front(it)
	}
	return it.value, true
}

// begin returns the generation for a later put.
func (c *lru[K, V]) begin() uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gen
}

// put keeps a value that was loaded since begin returned gen, unless anything
// changed meanwhile.
func (c *lru[K, V]) put(gen uint64, k K, v V, cost int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if gen == c.gen {
		c.store(k, v, cost)
	}
}

// change starts a new generation: fn removes or replaces what changed.
func (c *lru[K, V]) change(fn func(remove func(K), replace func(K, V, int64))) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gen++
	fn(c.remove, c.store)
}

func (c *lru[K, V]) store(k K, v V, cost int64) {
	c.remove(k)
	cost += itemCost
	if cost > c.limit/4 {
		return // one value must not throw all others out
	}
	it := &lruItem[K, V]{key: k, value: v, cost: cost}
	c.items[k] = it
	c.front(it)
	c.cost += cost
	for c.cost > c.limit {
		c.remove(c.root.prev.key)
	}
}

func (c *lru[K, V]) remove(k K) {
	if it, ok := c.items[k]; ok {
		delete(c.items, k)
		it.unlink()
		c.cost -= it.cost
	}
}

func (c *lru[K, V]) front(it *lruItem[K, V]) {
	it.prev, it.next = &c.root, c.root.next
	it.prev.next, it.next.prev = it, it
}

func (it *lruItem[K, V]) unlink() {
	it.prev.next, it.next.prev = it.next, it.prev
}
