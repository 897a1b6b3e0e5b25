package extent

import "github.com/tidwall/btree"

// Range is the half-open range [Off, End) of bytes or of numbered things.
type Range struct{ Off, End int64 }

// Len returns End-Off.
func (r Range) Len() int64 { return r.End - r.Off }

// Ranges is a set of ranges within [0, math.MaxInt64]; ranges that touch become
// one. The zero value is the empty set. Arguments that are empty or begin below
// zero are cut to what is valid of them.
type Ranges struct {
	tree  btree.Map[int64, int64] // off → end
	bytes int64
}

// Add puts [off, end) into the set.
func (s *Ranges) Add(off, end int64) {
	off = max(off, 0)
	if off >= end {
		return
	}
	if k, e, ok := s.upTo(off); ok && e >= off {
		if e >= end {
			return
		}
		off = k
	}
	for {
		k, e, ok := s.from(off)
		if !ok || k > end {
			break
		}
		s.tree.Delete(k)
		s.bytes -= e - k
		end = max(end, e)
	}
	s.tree.Set(off, end)
	s.bytes += end - off
}

// Remove takes [off, end) out of the set.
func (s *Ranges) Remove(off, end int64) {
	off = max(off, 0)
	if off >= end {
		return
	}
	if k, e, ok := s.upTo(off); ok && k < off && e > off {
		s.tree.Set(k, off)
		s.bytes -= e - off
		if e > end {
			s.tree.Set(end, e)
			s.bytes += e - end
		}
	}
	for {
		k, e, ok := s.from(off)
		if !ok || k >= end {
			return
		}
		s.tree.Delete(k)
		s.bytes -= e - k
		if e > end {
			s.tree.Set(end, e)
			s.bytes += e - end
		}
	}
}

// upTo returns the last range that begins at or below off.
func (s *Ranges) upTo(off int64) (k, e int64, ok bool) {
	s.tree.Descend(off, func(key, end int64) bool {
		k, e, ok = key, end, true
		return false
	})
	return k, e, ok
}

// from returns the first range that begins at or above off.
func (s *Ranges) from(off int64) (k, e int64, ok bool) {
	s.tree.Ascend(off, func(key, end int64) bool {
		k, e, ok = key, end, true
		return false
	})
	return k, e, ok
}

// Contains tells whether all of [off, end) is in the set; an empty range is.
func (s *Ranges) Contains(off, end int64) bool {
	if off >= end {
		return true
	}
	_, e, ok := s.upTo(off)
	return ok && e >= end
}

// Overlaps tells whether any of [off, end) is in the set.
func (s *Ranges) Overlaps(off, end int64) bool {
	off = max(off, 0)
	if off >= end {
		return false
	}
	if _, e, ok := s.upTo(off); ok && e > off {
		return true
	}
	k, _, ok := s.from(off)
	return ok && k < end
}

// Visit calls fn for what is in the set of [off, end), ascending and cut to it,
// until fn returns false.
func (s *Ranges) Visit(off, end int64, fn func(off, end int64) bool) {
	off = max(off, 0)
	if off >= end {
		return
	}
	if k, e, ok := s.upTo(off); ok && k < off && e > off {
		if !fn(off, min(e, end)) {
			return
		}
	}
	s.tree.Ascend(off, func(k, e int64) bool {
		return k < end && fn(k, min(e, end))
	})
}

// Gaps calls fn for each maximal range of [off, end) that is not in the set,
// ascending, until fn returns false.
func (s *Ranges) Gaps(off, end int64, fn func(off, end int64) bool) {
	off = max(off, 0)
	at, stopped := off, false
	s.Visit(off, end, func(o, e int64) bool {
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

// Len returns the number of separate ranges.
func (s *Ranges) Len() int { return s.tree.Len() }

// Bytes returns the sum of the ranges' lengths.
func (s *Ranges) Bytes() int64 { return s.bytes }

// Clear empties the set.
func (s *Ranges) Clear() {
	s.tree.Clear()
	s.bytes = 0
}
