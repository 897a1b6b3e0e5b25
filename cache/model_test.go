package cache

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
)

const (
	modelSize   = 3*BlockSize + 5000
	modelInodes = 4
)

// modelFile is what a test knows of one inode: its true bytes, which of them
// may be in the cache, and what is pinned.
type modelFile struct {
	data  []byte
	may   []bool // in the cache, if nothing was evicted
	pins  []Range
	files *File
}

// model drives a cache and a naive copy of it with the same operations.
type model struct {
	t     *testing.T
	r     *rand.Rand
	fs    vfs.FS
	o     Options
	c     *Cache
	exact bool // nothing is ever evicted: what may be present must be
	inos  [modelInodes]*modelFile
}

func newModel(t *testing.T, seed uint64, fs vfs.FS, limit int64) *model {
	m := &model{
		t: t, r: rand.New(rand.NewPCG(seed, 7)), fs: fs,
		o: Options{LimitBytes: limit, MaxOpenFiles: 2}, exact: limit >= 4*modelInodes*modelSize,
	}
	for i := range m.inos {
		m.inos[i] = &modelFile{data: make([]byte, modelSize), may: make([]bool, modelSize)}
	}
	m.open()
	return m
}

func (m *model) open() {
	m.t.Helper()
	c, err := Open(m.fs, "cache", m.o)
	if err != nil {
		m.t.Fatal(err)
	}
	m.c = c
	for i, f := range m.inos {
		f.files = c.Get(uint64(i))
		for _, p := range f.pins {
			f.files.Pin(p.Off, p.Len())
		}
	}
}

func (m *model) span() (off, end int64) {
	off = m.r.Int64N(modelSize)
	n := 1 + m.r.Int64N(20_000)
	if m.r.UintN(8) == 0 {
		n = 1 + m.r.Int64N(2*BlockSize)
	}
	if m.r.UintN(3) == 0 {
		off, n = off&^4095, (n+4095)&^4095
	}
	return off, min(off+n, modelSize)
}

func (m *model) overlapsPin(f *modelFile, off, end int64) bool {
	for _, p := range f.pins {
		if off < p.End && p.Off < end {
			return true
		}
	}
	return false
}

func set(b []bool, off, end int64, v bool) {
	for i := off; i < end; i++ {
		b[i] = v
	}
}

func (m *model) step() {
	m.t.Helper()
	f := m.inos[m.r.IntN(modelInodes)]
	off, end := m.span()
	switch op := m.r.UintN(100); {
	case op < 25:
		m.write(f, off, end)
	case op < 60:
		m.read(f, off, end)
	case op < 68:
		m.hydrate(f, off, end)
	case op < 76:
		m.drop(f, off, end)
	case op < 82:
		m.writePinned(f, off, end)
	case op < 88:
		m.unpin(f)
	case op < 90:
		m.c.Evict(m.r.Int64N(2 * BlockSize))
		m.noLongerExact()
	case op < 92:
		if err := f.files.Sync(); err != nil {
			m.t.Fatal(err)
		}
	case op < 94:
		m.present(f, off, end)
	case op < 95:
		m.restart()
	case op < 97:
		m.regain(f)
	default:
		m.remove(f)
	}
}

// noLongerExact takes over what the cache has after an eviction.
func (m *model) noLongerExact() {
	for _, f := range m.inos {
		have := make([]bool, modelSize)
		f.files.Present(0, modelSize, func(off, n int64) bool { set(have, off, off+n, true); return true })
		for i := range have {
			if have[i] && !f.may[i] {
				m.t.Fatalf("byte %d is present and should not be", i)
			}
		}
		f.may = have
	}
}

func (m *model) write(f *modelFile, off, end int64) {
	if m.overlapsPin(f, off, end) {
		return // nobody writes over a reference
	}
	m.mustVerify(f, off, end)
	for i := off; i < end; i++ {
		f.data[i] = byte(m.r.Uint32() | 1)
	}
	if m.r.UintN(10) == 0 {
		clear(f.data[off:end])
	}
	ok, err := f.files.WriteAt(f.data[off:end], off)
	if err != nil || m.exact && !ok {
		m.t.Fatalf("write: %v %v", ok, err)
	}
	set(f.may, off, end, ok)
	m.read(f, off, end)
}

func (m *model) read(f *modelFile, off, end int64) {
	m.mustVerify(f, off, end)
	p := make([]byte, end-off)
	ok, err := f.files.ReadAt(p, off)
	if err != nil {
		m.t.Fatal(err)
	}
	want := true
	for i := off; i < end; i++ {
		want = want && f.may[i]
	}
	if ok && !want || m.exact && ok != want {
		m.t.Fatalf("read [%d,%d): ok %v, want %v", off, end, ok, want)
	}
	if ok && !bytes.Equal(p, f.data[off:end]) {
		m.t.Fatalf("read [%d,%d): wrong bytes", off, end)
	}
}

func (m *model) hydrate(f *modelFile, off, end int64) {
	m.mustVerify(f, off, end)
	mid := off + (end-off)/2
	only := []Range{{Off: off, End: mid}, {Off: mid + (end-mid)/2, End: end}}
	ok, err := f.files.WriteAbsent(f.data[off:end], off, only)
	if err != nil || m.exact && !ok {
		m.t.Fatalf("hydrate: %v %v", ok, err)
	}
	for _, r := range only {
		set(f.may, r.Off, r.End, true) // or still absent: reads will tell
	}
	if m.exact {
		m.read(f, only[0].Off, only[0].End)
	}
}

func (m *model) drop(f *modelFile, off, end int64) {
	if m.r.UintN(4) == 0 {
		end = math.MaxInt64
	}
	if err := f.files.Drop(off, end); err != nil {
		m.t.Fatal(err)
	}
	set(f.may, off, min(end, modelSize), false)
	if m.r.UintN(2) == 0 { // a drop often is a truncate: blocks in part unknown must not come back
		for _, p := range f.pins {
			off = max(off, p.End)
		}
		if off < min(end, modelSize) && !m.overlapsPin(f, off, min(end, modelSize)) {
			clear(f.data[off:min(end, modelSize)])
		}
	}
}

func (m *model) writePinned(f *modelFile, off, end int64) {
	if m.overlapsPin(f, off, end) || len(f.pins) > 3 {
		return
	}
	m.mustVerify(f, off, end)
	for i := off; i < end; i++ {
		f.data[i] = byte(m.r.Uint32())
	}
	ok, err := f.files.WritePinned(f.data[off:end], off)
	if err != nil || m.exact && !ok {
		m.t.Fatalf("write pinned: %v %v", ok, err)
	}
	set(f.may, off, end, ok)
	if ok {
		f.pins = append(f.pins, Range{Off: off, End: end})
	}
}

func (m *model) checkPins() {
	for _, f := range m.inos {
		for _, p := range f.pins {
			got := make([]byte, p.Len())
			if err := f.files.ReadPinned(got, p.Off); err != nil || !bytes.Equal(got, f.data[p.Off:p.End]) {
				m.t.Fatalf("pinned bytes [%d,%d): %v, or they changed", p.Off, p.End, err)
			}
		}
	}
}

func (m *model) unpin(f *modelFile) {
	if len(f.pins) == 0 {
		return
	}
	i := m.r.IntN(len(f.pins))
	p := f.pins[i]
	f.pins = append(f.pins[:i], f.pins[i+1:]...)
	f.files.Unpin(p.Off, p.Len())
}

func (m *model) present(f *modelFile, off, end int64) {
	last := off - 1
	f.files.Present(off, end-off, func(o, n int64) bool {
		if o <= last || o+n > end || n <= 0 {
			m.t.Fatalf("present [%d,+%d) of [%d,%d) after %d", o, n, off, end, last)
		}
		last = o + n
		m.read(f, o, o+n)
		return true
	})
}

func (m *model) mustVerify(f *modelFile, off, end int64) {
	err := f.files.Verify(off, end-off, func(no int64, data []byte) int64 {
		want := make([]byte, BlockSize)
		copy(want, f.data[min(no*BlockSize, modelSize):min((no+1)*BlockSize, modelSize)])
		n := 0
		for n < BlockSize && data[n] == want[n] {
			n++
		}
		for i := no * BlockSize; i < min(no*BlockSize+int64(n), modelSize); i++ {
			f.may[i] = true
		}
		return int64(n)
	})
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) restart() {
	if err := m.c.Close(); err != nil {
		m.t.Fatal(err)
	}
	m.open()
	for _, f := range m.inos {
		set(f.may, 0, modelSize, false)
		before := make([]byte, 10)
		if ok, err := f.files.ReadAt(before, 0); ok || err != nil {
			m.t.Fatalf("read before verify: %v %v", ok, err)
		}
	}
	if m.r.UintN(2) == 0 {
		for _, f := range m.inos {
			m.mustVerify(f, 0, modelSize)
		}
		m.noLongerExact()
	}
	m.exact = false
}

func (m *model) regain(f *modelFile) {
	for i := range m.inos {
		if m.inos[i] == f {
			f.files.Release()
			f.files = m.c.Get(uint64(i))
		}
	}
}

func (m *model) remove(f *modelFile) {
	for i := range m.inos {
		if m.inos[i] != f {
			continue
		}
		if err := m.c.Remove(uint64(i)); err != nil {
			m.t.Fatal(err)
		}
		m.checkPins()
		for len(f.pins) > 0 {
			m.unpin(f)
		}
		set(f.may, 0, modelSize, false)
		if ok, err := f.files.WriteAt([]byte{1}, 0); ok || err != nil {
			m.t.Fatalf("write to a removed inode: %v %v", ok, err)
		}
		f.files.Release()
		f.files = m.c.Get(uint64(i))
	}
}

func (m *model) check() {
	m.t.Helper()
	m.checkPins()
	if err := m.c.checkAccounting(false); err != nil {
		m.t.Fatal(err)
	}
	if s := m.c.Stats(); s.Allocated > s.Limit || s.OpenFiles > 2 {
		m.t.Fatalf("allocated %d of %d, %d files open", s.Allocated, s.Limit, s.OpenFiles)
	}
}

func TestFile_RandomOps_Model(t *testing.T) {
	for _, limit := range []int64{1 << 30, 700 << 10, 200 << 10, 40 << 10} {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("limit=%d/seed=%d", limit, seed), func(t *testing.T) {
				mem := vfs.NewMem()
				m := newModel(t, seed, mem, limit)
				for i := range 600 {
					m.step()
					if i%10 == 0 {
						m.check()
					}
					if used := mem.Used(); used > limit {
						t.Fatalf("step %d: %d bytes on disk, limit %d", i, used, limit)
					}
				}
				for _, f := range m.inos {
					for len(f.pins) > 0 {
						m.unpin(f)
					}
					if err := f.files.Drop(0, math.MaxInt64); err != nil {
						t.Fatal(err)
					}
					f.files.Release()
				}
				if s := m.c.Stats(); s.Allocated != 0 || s.Present != 0 || s.Files != 0 || mem.Used() != 0 {
					t.Fatalf("left when all was dropped: %+v, %d on disk", s, mem.Used())
				}
				if err := m.c.checkAccounting(false); err != nil {
					t.Fatal(err)
				}
				if err := m.c.Close(); err != nil {
					t.Fatal(err)
				}
			})
		}
	}
}
