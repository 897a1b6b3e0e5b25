package extent

import (
	"math"
	"math/rand/v2"
	"testing"
)

// place is a value that knows its position: the byte at the extent's offset o
// is number at+o of source src.
type place struct {
	src int32
	at  int64
}

func (p place) Slice(delta int64) place { return place{p.src, p.at + delta} }

const modelSize = 256

// model is the obvious implementation: one cell a byte.
type model [modelSize]struct {
	set bool
	v   place
}

func (m *model) apply(t *testing.T, got *Map[place], op, a, b byte, src int32) {
	t.Helper()
	off, end := int64(a), int64(b)
	top := end
	if op&4 != 0 {
		end, top = math.MaxInt64, modelSize
	}
	switch op & 3 {
	case 0, 1:
		got.Set(off, end, place{src, 1000})
	default:
		got.Delete(off, end)
	}
	for i := off; i < top; i++ {
		m[i].set = op&3 < 2
		m[i].v = place{src, 1000 + i - off}
	}
}

func (m *model) check(t *testing.T, got *Map[place], off, end int64) {
	t.Helper()
	var seen model
	last := int64(-1)
	got.Visit(off, end, func(o, e int64, v place) bool {
		if o < off || e > end || o >= e || o < last {
			t.Fatalf("visit of [%d,%d) gives [%d,%d) after %d", off, end, o, e, last)
		}
		last = e
		for i := o; i < min(e, modelSize); i++ {
			seen[i].set, seen[i].v = true, v.Slice(i-o)
		}
		return true
	})
	var any bool
	for i := off; i < min(end, modelSize); i++ {
		any = any || m[i].set
		if seen[i].set != m[i].set || seen[i].set && seen[i].v != m[i].v {
			t.Fatalf("byte %d: have %v, want %v", i, seen[i], m[i])
		}
	}
	if end <= modelSize && got.Overlaps(off, end) != any {
		t.Fatalf("Overlaps(%d,%d) = %v, want %v", off, end, !any, any)
	}
	got.Gaps(off, min(end, modelSize), func(o, e int64) bool {
		if o >= e {
			t.Fatalf("empty gap [%d,%d)", o, e)
		}
		for i := o; i < e; i++ {
			if m[i].set || seen[i].set {
				t.Fatalf("gap [%d,%d) holds byte %d", o, e, i)
			}
			seen[i].set = true
		}
		return true
	})
	for i := off; i < min(end, modelSize); i++ {
		if !seen[i].set {
			t.Fatalf("byte %d is neither in an extent nor in a gap", i)
		}
	}
}

func checkSums(t *testing.T, m *Map[place]) {
	t.Helper()
	n, sum := 0, int64(0)
	m.Visit(0, math.MaxInt64, func(o, e int64, _ place) bool {
		n++
		sum += e - o
		return true
	})
	if n != m.Len() || sum != m.Bytes() {
		t.Fatalf("Len %d Bytes %d, but visited %d, %d", m.Len(), m.Bytes(), n, sum)
	}
}

func TestMap_RandomOps_Model(t *testing.T) {
	for seed := uint64(0); seed < 50; seed++ {
		r := rand.New(rand.NewPCG(seed, 1))
		var got Map[place]
		var want model
		for i := int32(0); i < 400; i++ {
			op := byte(r.UintN(4))
			if r.UintN(40) == 0 {
				op |= 4
			}
			want.apply(t, &got, op, byte(r.UintN(256)), byte(r.UintN(256)), i)
			a, b := int64(r.UintN(257)), int64(r.UintN(257))
			want.check(t, &got, min(a, b), max(a, b))
			want.check(t, &got, 0, math.MaxInt64)
			checkSums(t, &got)
		}
		got.Clear()
		if got.Len() != 0 || got.Bytes() != 0 || got.Overlaps(0, math.MaxInt64) {
			t.Fatalf("seed %d: not empty after Clear", seed)
		}
	}
}

func FuzzMap(f *testing.F) {
	f.Add([]byte{0, 10, 200, 2, 50, 60, 0, 55, 255, 6, 100, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var got Map[place]
		var want model
		for i := 0; i+3 <= len(data); i += 3 {
			want.apply(t, &got, data[i], data[i+1], data[i+2], int32(i))
		}
		want.check(t, &got, 0, math.MaxInt64)
		checkSums(t, &got)
	})
}

func TestMap_Set_SplitsInTwo(t *testing.T) {
	var m Map[place]
	m.Set(0, 100, place{1, 0})
	m.Set(40, 60, place{2, 0})
	var got []Range
	m.Visit(0, 100, func(o, e int64, v place) bool {
		got = append(got, Range{o, e})
		if o == 60 && v != (place{1, 60}) {
			t.Fatalf("right part's value is %v", v)
		}
		return true
	})
	if len(got) != 3 || got[2] != (Range{60, 100}) {
		t.Fatalf("extents %v", got)
	}
}

func TestMap_Visit_StopsWhenTold(t *testing.T) {
	var m Map[int]
	for i := int64(0); i < 10; i++ {
		m.Set(i*10, i*10+5, int(i))
	}
	n := 0
	m.Visit(2, 100, func(_, _ int64, _ int) bool { n++; return n < 3 })
	gaps := 0
	m.Gaps(0, 100, func(_, _ int64) bool { gaps++; return gaps < 2 })
	if n != 3 || gaps != 2 {
		t.Fatalf("visited %d extents and %d gaps, want 3 and 2", n, gaps)
	}
}

func TestMap_NegativeAndEmpty_AreCut(t *testing.T) {
	var m Map[int]
	m.Set(5, 5, 1)
	m.Set(9, 3, 1)
	m.Set(-10, -1, 1)
	if m.Len() != 0 {
		t.Fatalf("%d extents of nothing", m.Len())
	}
	m.Set(-10, 10, 1)
	if m.Bytes() != 10 || m.Overlaps(-5, 0) || !m.Overlaps(-5, 1) {
		t.Fatalf("bytes %d", m.Bytes())
	}
	m.Delete(-3, 4)
	if m.Bytes() != 6 {
		t.Fatalf("bytes %d after delete", m.Bytes())
	}
}

func TestRanges_RandomOps_Model(t *testing.T) {
	for seed := uint64(0); seed < 50; seed++ {
		r := rand.New(rand.NewPCG(seed, 2))
		var s Ranges
		var want [modelSize]bool
		for range 400 {
			a, b := int64(r.UintN(257)), int64(r.UintN(257))
			off, end := min(a, b), max(a, b)
			add := r.UintN(2) == 0
			if add {
				s.Add(off, end)
			} else {
				s.Remove(off, end)
			}
			for i := off; i < end; i++ {
				want[i] = add
			}
			checkRanges(t, &s, &want)
			q, p := int64(r.UintN(257)), int64(r.UintN(257))
			checkQuery(t, &s, &want, min(q, p), max(q, p))
		}
	}
}

func checkRanges(t *testing.T, s *Ranges, want *[modelSize]bool) {
	t.Helper()
	var have [modelSize]bool
	n, sum, last := 0, int64(0), int64(-1)
	s.Visit(0, math.MaxInt64, func(o, e int64) bool {
		if o <= last || o >= e {
			t.Fatalf("range [%d,%d) after %d: not coalesced or not ascending", o, e, last)
		}
		n, sum, last = n+1, sum+e-o, e
		for i := o; i < e; i++ {
			have[i] = true
		}
		return true
	})
	if have != *want || n != s.Len() || sum != s.Bytes() {
		t.Fatalf("set differs from the model, or Len %d/%d, Bytes %d/%d", s.Len(), n, s.Bytes(), sum)
	}
}

func checkQuery(t *testing.T, s *Ranges, want *[modelSize]bool, off, end int64) {
	t.Helper()
	all, any := true, false
	var cover [modelSize]bool
	for i := off; i < end; i++ {
		all, any = all && want[i], any || want[i]
	}
	if s.Contains(off, end) != all || s.Overlaps(off, end) != any {
		t.Fatalf("[%d,%d): Contains %v Overlaps %v, want %v %v",
			off, end, s.Contains(off, end), s.Overlaps(off, end), all, any)
	}
	s.Visit(off, end, func(o, e int64) bool {
		for i := o; i < e; i++ {
			if !want[i] || i < off || i >= end {
				t.Fatalf("visited %d outside of the set", i)
			}
			cover[i] = true
		}
		return true
	})
	s.Gaps(off, end, func(o, e int64) bool {
		for i := o; i < e; i++ {
			if want[i] {
				t.Fatalf("gap over %d", i)
			}
			cover[i] = true
		}
		return true
	})
	for i := off; i < end; i++ {
		if !cover[i] {
			t.Fatalf("%d is neither in a range nor in a gap", i)
		}
	}
}

func BenchmarkMap_Set(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	var m Map[place]
	for range 100_000 {
		off := r.Int64N(1 << 40)
		m.Set(off, off+16<<10, place{})
	}
	b.ReportAllocs()
	for b.Loop() {
		off := r.Int64N(1<<40) &^ 16383
		m.Set(off, off+16<<10, place{})
	}
}

func BenchmarkMap_Overlaps(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	var m Map[place]
	for range 100_000 {
		off := r.Int64N(1 << 40)
		m.Set(off, off+16<<10, place{})
	}
	b.ReportAllocs()
	for b.Loop() {
		off := r.Int64N(1 << 40)
		m.Overlaps(off, off+4096)
	}
}
