package cache

import (
	"math/bits"
	"sync/atomic"

	"github.com/tidwall/btree"
)

const (
	pageSize      = 4 << 10
	pagesPerBlock = BlockSize / pageSize
	// maxSpans bounds the memory for one block's presence. Past it the smallest
	// span is forgotten, which costs a fetch.
	maxSpans = 64
)

// span is a present byte range within a block.
type span struct{ lo, hi uint32 }

// block is what is known of 128 KiB of a file. File.mu guards it, but for slot
// and recent.
type block struct {
	file     *File
	no       int64
	first    span   // the first present span; empty when nothing is present
	more     []span // the others, ascending, not touching
	pages    uint32 // pages on disk that are charged, one bit each
	loose    uint32 // pages that may be on disk without being charged as pages
	pins     int32
	busy     int32 // I/O in flight
	slot     int32 // place in the pool's clock; guarded by pool.mu
	recent   atomic.Bool
	inClock  bool
	punching bool // only pages that are not present are being punched
	trim     bool // has pages to give back once it is idle
}

func (b *block) idle() bool { return b.busy == 0 && b.pins == 0 && !b.punching }

func (b *block) empty() bool { return b.first.lo == b.first.hi }

// disposable tells whether nothing would be lost with b.
func (b *block) disposable() bool {
	return b.idle() && b.empty() && b.pages == 0 && b.loose == 0
}

// wantsClock tells whether b can be evicted for something, sooner or later.
func (b *block) wantsClock() bool {
	return b.pins == 0 && (b.pages|b.loose != 0 || !b.empty())
}

// has tells whether all of [lo, hi) is present.
func (b *block) has(lo, hi uint32) bool {
	if b.first.lo <= lo && hi <= b.first.hi {
		return true
	}
	for _, s := range b.more {
		if s.lo <= lo && hi <= s.hi {
			return true
		}
	}
	return false
}

// each calls fn for the present spans within [lo, hi), ascending and cut to it.
func (b *block) each(lo, hi uint32, fn func(lo, hi uint32)) {
	if l, h := max(lo, b.first.lo), min(hi, b.first.hi); l < h {
		fn(l, h)
	}
	for _, s := range b.more {
		if l, h := max(lo, s.lo), min(hi, s.hi); l < h {
			fn(l, h)
		}
	}
}

// present returns the number of present bytes.
func (b *block) present() int64 {
	n := int64(b.first.hi - b.first.lo)
	for _, s := range b.more {
		n += int64(s.hi - s.lo)
	}
	return n
}

// presentPages returns the pages that hold a present byte.
func (b *block) presentPages() uint32 {
	var m uint32
	b.each(0, BlockSize, func(lo, hi uint32) { m |= pageMask(lo, hi) })
	return m
}

// add makes [lo, hi) present.
func (b *block) add(lo, hi uint32) {
	if lo >= hi {
		return
	}
	if b.empty() {
		b.first = span{lo, hi}
		return
	}
	if b.more == nil && lo <= b.first.hi && b.first.lo <= hi {
		b.first = span{min(lo, b.first.lo), max(hi, b.first.hi)}
		return
	}
	var buf [maxSpans + 2]span
	out := buf[:0]
	placed := false
	put := func(s span) {
		switch {
		case s.hi < lo:
		case s.lo > hi:
			if !placed {
				out, placed = append(out, span{lo, hi}), true
			}
		default: // touches: melts into the new one
			lo, hi = min(lo, s.lo), max(hi, s.hi)
			return
		}
		out = append(out, s)
	}
	put(b.first)
	for _, s := range b.more {
		put(s)
	}
	if !placed {
		out = append(out, span{lo, hi})
	}
	if len(out) > maxSpans {
		out = withoutSmallest(out)
	}
	b.store(out)
}

func withoutSmallest(s []span) []span {
	k := 0
	for i := range s {
		if s[i].hi-s[i].lo < s[k].hi-s[k].lo {
			k = i
		}
	}
	return append(s[:k], s[k+1:]...)
}

// sub makes [lo, hi) absent.
func (b *block) sub(lo, hi uint32) {
	if lo >= hi || b.empty() {
		return
	}
	var buf [maxSpans + 2]span
	out := buf[:0]
	put := func(s span) {
		if s.lo < min(lo, s.hi) {
			out = append(out, span{s.lo, min(lo, s.hi)})
		}
		if max(hi, s.lo) < s.hi {
			out = append(out, span{max(hi, s.lo), s.hi})
		}
	}
	put(b.first)
	for _, s := range b.more {
		put(s)
	}
	if len(out) > maxSpans {
		out = withoutSmallest(out)
	}
	b.store(out)
}

// store replaces the spans by a copy of s.
func (b *block) store(s []span) {
	b.first = span{}
	if len(s) > 0 {
		b.first, s = s[0], s[1:]
	}
	switch {
	case len(s) == 0:
		b.more = nil
	case cap(b.more) >= len(s) && cap(b.more) <= 4*len(s):
		b.more = append(b.more[:0], s...)
	default:
		b.more = append(make([]span, 0, len(s)), s...)
	}
}

// pageMask returns the pages that [lo, hi) of a block touches.
func pageMask(lo, hi uint32) uint32 {
	if lo >= hi {
		return 0
	}
	from, to := lo/pageSize, (hi-1)/pageSize
	return (^uint32(0) >> (pagesPerBlock - 1 - (to - from))) << from
}

// pageRuns calls fn for each run of set bits, as a byte range of the block.
func pageRuns(m uint32, fn func(off, n int64) error) error {
	for m != 0 {
		from := bits.TrailingZeros32(m)
		n := bits.TrailingZeros32(^(m >> from))
		if err := fn(int64(from)*pageSize, int64(n)*pageSize); err != nil {
			return err
		}
		if from+n >= pagesPerBlock {
			return nil
		}
		m &= ^uint32(0) << (from + n)
	}
	return nil
}

func pageBytes(m uint32) int64 { return int64(bits.OnesCount32(m)) * pageSize }

// listMax is the size up to which a table is a plain sorted list: most files
// are small, and 200,000 trees would cost more than what they hold.
const listMax = 32

// table holds the blocks of a file by number.
type table struct {
	list []*block
	tree *btree.Map[int64, *block] // in place of list, once that was full
}

func (t *table) len() int {
	if t.tree != nil {
		return t.tree.Len()
	}
	return len(t.list)
}

// find returns the place of the first block numbered no or above.
func (t *table) find(no int64) int {
	lo, hi := 0, len(t.list)
	for lo < hi {
		if mid := (lo + hi) / 2; t.list[mid].no < no {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

func (t *table) get(no int64) *block {
	if t.tree != nil {
		b, _ := t.tree.Get(no)
		return b
	}
	if i := t.find(no); i < len(t.list) && t.list[i].no == no {
		return t.list[i]
	}
	return nil
}

func (t *table) put(b *block) {
	if t.tree == nil && len(t.list) == listMax {
		t.tree = new(btree.Map[int64, *block])
		for _, o := range t.list {
			t.tree.Set(o.no, o)
		}
		t.list = nil
	}
	if t.tree != nil {
		t.tree.Set(b.no, b)
		return
	}
	i := t.find(b.no)
	if t.list == nil {
		t.list = make([]*block, 0, 1)
	}
	t.list = append(t.list, nil)
	copy(t.list[i+1:], t.list[i:])
	t.list[i] = b
}

func (t *table) del(no int64) {
	if t.tree != nil {
		if t.tree.Delete(no); t.tree.Len() == 0 {
			t.tree = nil
		}
		return
	}
	if i := t.find(no); i < len(t.list) && t.list[i].no == no {
		t.list = append(t.list[:i], t.list[i+1:]...)
		t.list[:len(t.list)+1][len(t.list)] = nil
		if len(t.list) == 0 {
			t.list = nil
		}
	}
}

// ascend calls fn for the blocks numbered from..to, both included, until it
// returns false. fn must not change the table.
func (t *table) ascend(from, to int64, fn func(*block) bool) {
	if t.tree != nil {
		t.tree.Ascend(from, func(no int64, b *block) bool { return no <= to && fn(b) })
		return
	}
	for i := t.find(from); i < len(t.list) && t.list[i].no <= to; i++ {
		if !fn(t.list[i]) {
			return
		}
	}
}

// last returns the highest block number, -1 for an empty table.
func (t *table) last() int64 {
	if t.tree != nil {
		no, _, _ := t.tree.Max()
		return no
	}
	if len(t.list) == 0 {
		return -1
	}
	return t.list[len(t.list)-1].no
}
