package posixtest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// maxExercise is the largest size of the exercised file in bytes. It is not a
// multiple of a page.
const maxExercise = 300_001

// exerciser does random operations on one file and knows what it must hold.
type exerciser struct {
	t      *testing.T
	rng    *rand.Rand
	path   string
	align  int // of direct I/O, in bytes
	model  []byte
	cached int
	direct int
	log    []string // the last operations
}

// Exercise does steps random operations on a file in dir: reads, writes,
// appends, truncations, holes, copies, mappings, direct I/O, syncs, reopening.
// Each result is compared with a model of the file's bytes; the whole file is
// compared from time to time. The seed decides everything.
func Exercise(t *testing.T, dir string, seed uint64, steps int) {
	t.Helper()
	t.Logf("Exercise(dir, %d, %d)", seed, steps)
	x := &exerciser{t: t, rng: rand.New(rand.NewPCG(seed, 1)), path: filepath.Join(dir, fmt.Sprintf("exercise-%d", seed)), align: 512}
	if kindOf(t, dir) == onFUSE {
		x.align = 1
	}
	x.open(unix.O_CREAT | unix.O_TRUNC)
	defer func() {
		unix.Close(x.cached)
		unix.Close(x.direct)
		unix.Unlink(x.path)
	}()
	operations := x.operations()
	for i := range steps {
		operations[x.rng.IntN(len(operations))]()
		if i%50 == 49 || i == steps-1 {
			x.compare()
		}
	}
}

func (x *exerciser) open(flags int) {
	x.t.Helper()
	var err error
	x.cached, err = unix.Open(x.path, unix.O_RDWR|unix.O_CLOEXEC|flags, 0o644)
	x.must(err)
	x.direct, err = unix.Open(x.path, unix.O_RDWR|unix.O_CLOEXEC|unix.O_DIRECT, 0)
	x.must(err)
}

// note remembers an operation for the report of a failure.
func (x *exerciser) note(format string, args ...any) {
	const kept = 40
	x.log = append(x.log, fmt.Sprintf(format, args...))
	if len(x.log) > kept {
		x.log = x.log[1:]
	}
}

func (x *exerciser) fail(format string, args ...any) {
	x.t.Helper()
	x.t.Fatalf("%s\nthe last operations:\n  %s", fmt.Sprintf(format, args...), strings.Join(x.log, "\n  "))
}

func (x *exerciser) must(err error) {
	x.t.Helper()
	if err != nil {
		x.fail("%v", err)
	}
}

// span picks a range; ends are often on or beside a page's edge.
func (x *exerciser) span() (off, n int) {
	off = x.rng.IntN(maxExercise - 1)
	n = 1 + x.rng.IntN(1<<x.rng.IntN(17))
	if x.rng.IntN(3) == 0 {
		off = off &^ 4095
	}
	if x.rng.IntN(4) == 0 {
		off = max(0, off+x.rng.IntN(3)-1)
	}
	return off, min(n, maxExercise-off)
}

// direct picks a range as direct I/O wants it.
func (x *exerciser) alignedSpan() (off, n int) {
	off, n = x.span()
	off -= off % x.align
	if n -= n % x.align; n == 0 {
		n = x.align
	}
	return off, n
}

func (x *exerciser) random(n int) []byte {
	b := aligned(n)
	c := byte(1 + x.rng.IntN(255))
	for i := range b {
		b[i] = c + byte(i>>8)
	}
	return b
}

// grow makes the model at least n bytes long.
func (x *exerciser) grow(n int) {
	if more := n - len(x.model); more > 0 {
		x.model = append(x.model, make([]byte, more)...)
	}
}

func (x *exerciser) put(b []byte, off int) {
	x.grow(off + len(b))
	copy(x.model[off:], b)
}

// part is what a read of n bytes at off must give.
func (x *exerciser) part(off, n int) []byte {
	if off >= len(x.model) {
		return nil
	}
	return x.model[off:min(off+n, len(x.model))]
}

func (x *exerciser) check(what string, off int, got, want []byte) {
	x.t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	x.fail("%s at %d: %d bytes, want %d; the first difference is at %d (page %d)", what, off, len(got), len(want), off+at, (off+at)/4096)
}

// compare reads the whole file in two ways.
func (x *exerciser) compare() {
	var st unix.Stat_t
	x.must(unix.Fstat(x.cached, &st))
	if st.Size != int64(len(x.model)) {
		x.fail("the size is %d, want %d", st.Size, len(x.model))
	}
	b := aligned(maxExercise + 8191)
	for _, fd := range []int{x.cached, x.direct} {
		n, err := unix.Pread(fd, b[:(maxExercise+511)/512*512], 0)
		x.must(err)
		x.check("whole file", 0, b[:n], x.model)
	}
}

func (x *exerciser) operations() []func() {
	return []func(){
		x.read, x.read, x.directRead, x.write, x.write, x.directWrite, x.append, x.truncate,
		func() { x.hole(punch) }, func() { x.hole(zero) }, func() { x.hole(zero | unix.FALLOC_FL_KEEP_SIZE) },
		x.allocate, x.copy, x.mapRead, x.mapWrite, x.seek, x.sync, x.reopen,
	}
}

func (x *exerciser) read() {
	off, n := x.span()
	x.note("read %d+%d", off, n)
	b := make([]byte, n)
	n, err := unix.Pread(x.cached, b, int64(off))
	x.must(err)
	x.check("read", off, b[:n], x.part(off, len(b)))
}

func (x *exerciser) directRead() {
	off, n := x.alignedSpan()
	x.note("direct read %d+%d", off, n)
	b := aligned(n)
	n, err := unix.Pread(x.direct, b, int64(off))
	x.must(err)
	x.check("direct read", off, b[:n], x.part(off, len(b)))
}

func (x *exerciser) writeTo(what string, fd, off, n int) {
	x.note("%s %d+%d", what, off, n)
	b := x.random(n)
	n, err := unix.Pwrite(fd, b, int64(off))
	x.must(err)
	if n != len(b) {
		x.fail("wrote %d of %d bytes", n, len(b))
	}
	x.put(b, off)
}

func (x *exerciser) write() {
	off, n := x.span()
	x.writeTo("write", x.cached, off, n)
}

func (x *exerciser) directWrite() {
	off, n := x.alignedSpan()
	x.writeTo("direct write", x.direct, off, n)
}

func (x *exerciser) append() {
	if n := min(1+x.rng.IntN(5000), maxExercise-len(x.model)); n > 0 {
		x.writeTo("append", x.cached, len(x.model), n)
	}
}

func (x *exerciser) truncate() {
	size, _ := x.span()
	x.note("truncate %d -> %d", len(x.model), size)
	x.must(unix.Ftruncate(x.cached, int64(size)))
	x.grow(size)
	x.model = x.model[:size:size]
}

func (x *exerciser) hole(mode uint32) {
	off, n := x.span()
	x.note("fallocate %#x %d+%d", mode, off, n)
	x.must(unix.Fallocate(x.cached, mode, int64(off), int64(n)))
	if mode == zero {
		x.grow(off + n)
	}
	clear(x.part(off, n))
}

func (x *exerciser) allocate() {
	off, n := x.span()
	mode := uint32(x.rng.IntN(2)) * unix.FALLOC_FL_KEEP_SIZE
	x.note("fallocate %#x %d+%d", mode, off, n)
	x.must(unix.Fallocate(x.cached, mode, int64(off), int64(n)))
	if mode == 0 {
		x.grow(off + n)
	}
}

func (x *exerciser) copy() {
	from, n := x.span()
	to, m := x.span()
	n = min(n, m, max(0, len(x.model)-from))
	if n == 0 || from < to+n && to < from+n {
		return
	}
	x.note("copy %d+%d to %d", from, n, to)
	src, dst := int64(from), int64(to)
	n, err := unix.CopyFileRange(x.cached, &src, x.cached, &dst, n, 0)
	x.must(err)
	x.put(bytes.Clone(x.model[from:from+n]), to)
}

// mapped gives do a mapping of the pages that hold a range within the file.
func (x *exerciser) mapped(prot int, do func(m []byte, off int)) {
	off, n := x.span()
	n = min(n, len(x.model)-off)
	if n <= 0 {
		return
	}
	start := off &^ 4095
	m, err := unix.Mmap(x.cached, int64(start), off+n-start, prot, unix.MAP_SHARED)
	x.must(err)
	do(m[off-start:], off)
	x.must(unix.Munmap(m))
}

func (x *exerciser) mapRead() {
	x.mapped(unix.PROT_READ, func(m []byte, off int) {
		x.note("mapped read %d+%d", off, len(m))
		x.check("mapped read", off, m, x.part(off, len(m)))
	})
}

func (x *exerciser) mapWrite() {
	x.mapped(unix.PROT_READ|unix.PROT_WRITE, func(m []byte, off int) {
		x.note("mapped write %d+%d", off, len(m))
		copy(m, x.random(len(m)))
		x.put(m, off)
		if x.rng.IntN(3) == 0 {
			x.must(unix.Fsync(x.cached))
		}
	})
}

// seek checks that no data hides in what is called a hole.
func (x *exerciser) seek() {
	off, _ := x.span()
	x.note("seek %d", off)
	data, err := unix.Seek(x.cached, int64(off), unix.SEEK_DATA)
	if err == unix.ENXIO {
		data = int64(len(x.model))
	} else {
		x.must(err)
	}
	for i := off; i < min(int(data), len(x.model)); i++ {
		if x.model[i] != 0 {
			x.fail("SEEK_DATA from %d skips data at %d", off, i)
		}
	}
	hole, err := unix.Seek(x.cached, int64(off), unix.SEEK_HOLE)
	if off >= len(x.model) {
		if err != unix.ENXIO {
			x.fail("SEEK_HOLE beyond the end: %v", err)
		}
		return
	}
	x.must(err)
	if hole < int64(off) || hole > int64(len(x.model)) {
		x.fail("SEEK_HOLE from %d gives %d in a file of %d bytes", off, hole, len(x.model))
	}
}

func (x *exerciser) sync() {
	switch x.rng.IntN(3) {
	case 0:
		x.note("fsync")
		x.must(unix.Fsync(x.cached))
	case 1:
		x.note("fdatasync")
		x.must(unix.Fdatasync(x.direct))
	case 2:
		x.note("sync_file_range")
		x.must(unix.SyncFileRange(x.cached, 0, 0, 2))
	}
}

func (x *exerciser) reopen() {
	x.note("reopen")
	x.must(unix.Close(x.cached))
	x.must(unix.Close(x.direct))
	x.open(0)
}
