package extent

import "github.com/tidwall/btree"

// Slicer is implemented by values that know where they begin, such as a place
// in a journal. Slice returns the value for what is left of the extent after
// delta of its first bytes are cut off. Values without it are copied.
type Slicer[V any] interface {
	Slice(delta int64) V
}

// Map holds non-overlapping ranges [off, end) with 0 <= off < end <=
// math.MaxInt64, each with a value. The zero value is an empty map. Ranges that
// touch stay apart, because their values differ. A range that is empty or
// begins below zero in an argument is cut to what is valid of it.
type Map[V any] struct {
	tree  btree.Map[int64, entry[V]]
	bytes int64
}

type entry[V any] struct {
	end int64
	v   V
}

func cut[V any](v V, delta int64) V {
	if delta == 0 {
		return v
	}
	if s, ok := any(v).(Slicer[V]); ok {
		return s.Slice(delta)
	}
	return v
}

// Set gives [off, end) the value v, in place of everything that was there.
// Extents that it overlaps in part keep their other part or parts.
func (m *Map[V]) Set(off, end int64, v V) {
	off = max(off, 0)
	if off >= end {
		return
	}
	m.Delete(off, end)
	m.put(off, end, v)
}

// Delete leaves nothing in [off, end).
func (m *Map[V]) Delete(off, end int64) {
	off = max(off, 0)
	if off >= end {
		return
	}
	if k, e, ok := m.before(off); ok && e.end > off {
		m.bytes -= e.end - k
		m.put(k, off, e.v)
		if e.end > end {
			m.put(end, e.end, cut(e.v, end-k))
		}
	}
	for {
		k, e, ok := m.from(off)
		if !ok || k >= end {
			return
		}
		m.tree.Delete(k)
		m.bytes -= e.end - k
		if e.end > end {
			m.put(end, e.end, cut(e.v, end-k))
		}
	}
}

func (m *Map[V]) put(off, end int64, v V) {
	m.tree.Set(off, entry[V]{end, v})
	m.bytes += end - off
}

// before returns the last extent that begins below off.
func (m *Map[V]) before(off int64) (k int64, e entry[V], ok bool) {
	if off == 0 {
		return 0, e, false
	}
	m.tree.Descend(off-1, func(key int64, v entry[V]) bool {
		k, e, ok = key, v, true
		return false
	})
	return k, e, ok
}

// from returns the first extent that begins at or above off.
func (m *Map[V]) from(off int64) (k int64, e entry[V], ok bool) {
	m.tree.Ascend(off, func(key int64, v entry[V]) bool {
		k, e, ok = key, v, true
		return false
	})
	return k, e, ok
}

// Visit calls fn for what lies in [off, end), ascending and cut to it, until fn
// returns false.
func (m *Map[V]) Visit(off, end int64, fn func(off, end int64, v V) bool) {
	off = max(off, 0)
	if off >= end {
		return
	}
	if k, e, ok := m.before(off); ok && e.end > off {
		if !fn(off, min(e.end, end), cut(e.v, off-k)) {
			return
		}
	}
	m.tree.Ascend(off, func(k int64, e entry[V]) bool {
		return k < end && fn(k, min(e.end, end), e.v)
	})
}

// Gaps calls fn for each maximal range of [off, end) that no extent covers,
// ascending, until fn returns false.
func (m *Map[V]) Gaps(off, end int64, fn func(off, end int64) bool) {
	off = max(off, 0)
	at, stopped := off, false
	m.Visit(off, end, func(o, e int64, _ V) bool {
		if o > at && !fn(at, o) {
			stopped = true
			return false
		}
		at = e
		return true
	})
	if !stopped && at < end {
		fn(at, end)
	}
}

// Overlaps tells whether any extent has a byte in [off, end).
func (m *Map[V]) Overlaps(off, end int64) bool {
	off = max(off, 0)
	if off >= end {
		return false
	}
	if _, e, ok := m.before(off); ok && e.end > off {
		return true
	}
	k, _, ok := m.from(off)
	return ok && k < end
}

// Len returns the number of extents.
func (m *Map[V]) Len() int { return m.tree.Len() }

// Bytes returns the sum of the extents' lengths.
func (m *Map[V]) Bytes() int64 { return m.bytes }

// Clear empties the map.
func (m *Map[V]) Clear() {
	m.tree.Clear()
	m.bytes = 0
}
