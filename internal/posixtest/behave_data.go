package posixtest

import (
	"bytes"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/internal/testenv"
)

func (e *env) pwrite(fd int, b []byte, off int64) {
	e.Helper()
	n, err := unix.Pwrite(fd, b, off)
	e.must(err)
	e.equal("bytes written", n, len(b))
}

// pread reads n bytes or up to the end of the file.
func (e *env) pread(fd, n int, off int64) []byte {
	e.Helper()
	b := aligned(n)
	n, err := unix.Pread(fd, b, off)
	e.must(err)
	return b[:n]
}

func (e *env) same(what string, got, want []byte) {
	e.Helper()
	if bytes.Equal(got, want) {
		return
	}
	at := 0
	for at < min(len(got), len(want)) && got[at] == want[at] {
		at++
	}
	e.Fatalf("%s: %d bytes, want %d; the first difference is at %d", what, len(got), len(want), at)
}

const (
	punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	zero  = unix.FALLOC_FL_ZERO_RANGE
)

func fill(c byte, n int) []byte { return bytes.Repeat([]byte{c}, n) }

func dataBehaviours() []behaviour {
	return []behaviour{
		{"the writes of a column file", columnWrites},
		{"zeros between two writes", func(e *env) {
			fd := e.open(e.file("f", 0o644, ""), unix.O_RDWR)
			e.pwrite(fd, fill('a', 10), 0)
			e.pwrite(fd, fill('b', 10), 4096)
			e.same("content", e.pread(fd, 8192, 0), append(append(fill('a', 10), make([]byte, 4086)...), fill('b', 10)...))
		}},
		{"what was cut off never comes back", func(e *env) {
			for _, grow := range []func(fd int){
				func(fd int) { e.must(unix.Ftruncate(fd, 8192)) },
				func(fd int) { e.pwrite(fd, []byte{0}, 8191) },
				func(fd int) { e.must(unix.Fallocate(fd, 0, 0, 8192)) },
			} {
				fd := e.open(e.file("f", 0o644, strings.Repeat("A", 8192)), unix.O_RDWR)
				m := e.mmap(fd, 8192)
				e.equal("through the mapping", m[5000], byte('A'))
				e.must(unix.Ftruncate(fd, 100))
				grow(fd)
				want := append(fill('A', 100), make([]byte, 8092)...)
				e.same("content", e.pread(fd, 10000, 0), want)
				e.same("through the mapping", m, want)
			}
		}},
		{"sizes after truncate", func(e *env) {
			p := e.file("f", 0o644, strings.Repeat("0123456789abcdef", 1024))
			for _, size := range []int64{10240, 6000, 1, 0, 4096, 0} {
				e.must(unix.Truncate(p, size))
				e.equal("size", e.stat(p).Size, size)
				e.equal("length", int64(len(e.content(p))), size)
			}
		}},
		{"one byte at 10 GiB", func(e *env) {
			const at = 10 << 30
			p := e.file("f", 0o644, "")
			fd := e.open(p, unix.O_RDWR)
			e.pwrite(fd, []byte("x"), at)
			st := e.stat(p)
			e.equal("size", st.Size, int64(at+1))
			if st.Blocks > 1<<14 {
				e.Fatalf("st_blocks is %d", st.Blocks)
			}
			e.same("in the gap", e.pread(fd, 4096, 5<<30), make([]byte, 4096))
			e.same("the end", e.pread(fd, 4096, at-10), append(make([]byte, 10), 'x'))
		}},
		{"O_APPEND goes to the end, whoever wrote it", func(e *env) {
			p := e.file("f", 0o644, "")
			a, b := e.open(p, unix.O_WRONLY|unix.O_APPEND), e.open(p, unix.O_WRONLY|unix.O_APPEND)
			want := ""
			for i := range 20 {
				fd, s := a, strings.Repeat("a", i*300)
				if i%2 == 1 {
					fd, s = b, strings.Repeat("b", i)
				}
				_, err := unix.Write(fd, []byte(s))
				e.must(err)
				want += s
			}
			e.equal("content", e.content(p), want)
			e.must(unix.Truncate(p, 3))
			_, err := unix.Write(a, []byte("end"))
			e.must(err)
			e.equal("content", e.content(p), want[:3]+"end")
		}},
		{"O_TRUNC empties, also a file opened for reading and writing", func(e *env) {
			p := e.file("f", 0o644, "content")
			other := e.open(p, unix.O_RDONLY)
			fd := e.open(p, unix.O_RDWR|unix.O_TRUNC|unix.O_CREAT)
			e.equal("size", e.stat(p).Size, int64(0))
			e.pwrite(fd, []byte("x"), 2)
			e.same("through the other descriptor", e.pread(other, 10, 0), []byte("\x00\x00x"))
		}},
		{"part of a page written through a descriptor opened for writing only", func(e *env) {
			p := e.file("f", 0o644, strings.Repeat("A", 10000))
			fd := e.open(p, unix.O_WRONLY)
			e.pwrite(fd, []byte("mid"), 5001)
			e.pwrite(fd, []byte("end"), 9999)
			want := []byte(strings.Repeat("A", 10002))
			copy(want[5001:], "mid")
			copy(want[9999:], "end")
			e.equal("content", e.content(p), string(want))
		}},
		{"O_DIRECT and the page cache see the same bytes at once", directCoherence},
		{"O_SYNC and O_DSYNC", func(e *env) {
			for _, flags := range []int{unix.O_SYNC, unix.O_DSYNC, unix.O_DSYNC | unix.O_DIRECT, unix.O_SYNC | unix.O_APPEND} {
				p := e.file("f", 0o644, "")
				fd := e.open(p, unix.O_RDWR|flags)
				b := aligned(4096)
				copy(b, "synchronous")
				_, err := unix.Write(fd, b)
				e.must(err)
				e.equal("content", e.content(p), string(b))
			}
		}},
		{"SEEK_DATA and SEEK_HOLE", seekCheck},
		{"holes after punch and zero range", holeCheck},
		{"fallocate", func(e *env) {
			p := e.file("f", 0o644, "abc")
			fd := e.open(p, unix.O_RDWR)
			e.must(unix.Fallocate(fd, 0, 0, 100000))
			e.equal("size", e.stat(p).Size, int64(100000))
			e.same("content", e.pread(fd, 200000, 0), append([]byte("abc"), make([]byte, 99997)...))
			e.must(unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20))
			e.equal("size kept", e.stat(p).Size, int64(100000))
			e.must(unix.Fallocate(fd, zero, 99999, 11))
			e.equal("size grown by zero range", e.stat(p).Size, int64(100010))
			e.must(unix.Fallocate(fd, zero|unix.FALLOC_FL_KEEP_SIZE, 0, 1<<20))
			e.equal("size kept", e.stat(p).Size, int64(100010))
			e.same("zeros", e.pread(fd, 200000, 0), make([]byte, 100010))
		}},
		{"copy_file_range", copyCheck},
		{"readv and writev", func(e *env) {
			fd := e.open(e.file("f", 0o644, ""), unix.O_RDWR)
			n, err := unix.Pwritev(fd, [][]byte{[]byte("one"), {}, []byte("three")}, 5)
			e.must(err)
			e.equal("bytes written", n, 8)
			a, b := make([]byte, 6), make([]byte, 10)
			n, err = unix.Preadv(fd, [][]byte{a, b}, 5)
			e.must(err)
			e.equal("bytes read", n, 8)
			e.equal("first part", string(a), "onethr")
			e.equal("second part", string(b[:2]), "ee")
		}},
		{"asynchronous direct writes leave no old page", asyncDirectCheck},
		{"fio verifies what libaio, io_uring and mmap wrote", fioCheck},
	}
}

// columnWrites is a sequence that overlaps, skips and covers pieces of 8 KiB.
func columnWrites(e *env) {
	const k = 1 << 10
	p := e.file("f", 0o644, "")
	fd := e.open(p, unix.O_RDWR)
	var model []byte
	write := func(n, off int) {
		b := make([]byte, n)
		for i := range b {
			b[i] = byte(i*7 + off/k + n)
		}
		e.pwrite(fd, b, int64(off))
		if grow := off + n - len(model); grow > 0 {
			model = append(model, make([]byte, grow)...)
		}
		copy(model[off:], b)
		e.equal("size", e.stat(p).Size, int64(len(model)))
		e.same("content", e.pread(fd, 200*k, 0), model)
	}
	for _, w := range [][2]int{{10, 0}, {4, 8}, {8, 4}, {16, 7}, {8, 32}, {10, 40}, {8, 24}, {96, 0}} {
		write(w[0]*k, w[1]*k)
	}
	for range 3 {
		write(7*k, len(model))
	}
}

func directCoherence(e *env) {
	const size = 64 << 10
	p := e.file("f", 0o644, string(fill('0', size)))
	cached, direct := e.open(p, unix.O_RDWR), e.open(p, unix.O_RDWR|unix.O_DIRECT)
	m := e.mmap(cached, size)
	for round := range 20 {
		c := byte('a' + round)
		off := int64(round%8) * 8192
		b := aligned(8192)
		copy(b, fill(c, len(b)))
		switch round % 3 {
		case 0:
			e.pwrite(cached, b, off)
		case 1:
			e.pwrite(direct, b, off)
		case 2:
			copy(m[off:], b)
		}
		e.same("cached read", e.pread(cached, 8192, off), b)
		e.same("direct read", e.pread(direct, 8192, off), b)
		e.same("mapping", m[off:off+8192], b)
	}
}

func seekCheck(e *env) {
	fd := e.open(e.file("f", 0o644, ""), unix.O_RDWR)
	const block = 1 << 20
	e.must(unix.Ftruncate(fd, 5*block))
	e.pwrite(fd, fill('x', block), block)
	e.pwrite(fd, fill('x', block), 3*block)
	e.must(unix.Fsync(fd))
	for _, c := range []struct {
		off    int64
		whence int
		want   int64
	}{
		{0, unix.SEEK_DATA, block}, {0, unix.SEEK_HOLE, 0}, {block, unix.SEEK_DATA, block}, {block + 5, unix.SEEK_DATA, block + 5},
		{block, unix.SEEK_HOLE, 2 * block}, {2*block + 7, unix.SEEK_HOLE, 2*block + 7}, {2 * block, unix.SEEK_DATA, 3 * block}, {3*block + 1, unix.SEEK_HOLE, 4 * block},
	} {
		got, err := unix.Seek(fd, c.off, c.whence)
		e.must(err)
		e.equal("seek", got, c.want)
	}
	e.must(unix.Ftruncate(fd, 4*block))
	got, err := unix.Seek(fd, 3*block, unix.SEEK_HOLE)
	e.must(err)
	e.equal("the hole at the end", got, int64(4*block))
}

func holeCheck(e *env) {
	for _, mode := range []uint32{punch, zero, zero | unix.FALLOC_FL_KEEP_SIZE} {
		p := e.file("f", 0o644, string(fill('A', 40000)))
		fd, direct := e.open(p, unix.O_RDWR), e.open(p, unix.O_RDONLY|unix.O_DIRECT)
		m := e.mmap(fd, 40000)
		e.equal("before", m[10000], byte('A'))
		want := fill('A', 40000)
		for _, r := range [][2]int64{{5000, 100}, {8192, 4096}, {10001, 20000}, {39990, 10}} {
			m[r[0]] = 'M' // a dirty page under the hole
			e.must(unix.Fallocate(fd, mode, r[0], r[1]))
			clear(want[r[0] : r[0]+r[1]])
			e.same("read", e.pread(fd, 50000, 0), want)
			e.same("mapping", m, want)
			e.same("direct read", e.pread(direct, 40960, 0), want)
		}
	}
}

func copyCheck(e *env) {
	src := make([]byte, 300000)
	for i := range src {
		src[i] = byte(i / 251)
	}
	p := e.file("src", 0o644, string(src))
	in, out := e.open(p, unix.O_RDWR), e.open(e.file("dst", 0o644, string(fill('D', 1000))), unix.O_RDWR)
	model := fill('D', 1000)
	put := func(b []byte, off int) {
		if grow := off + len(b) - len(model); grow > 0 {
			model = append(model, make([]byte, grow)...)
		}
		copy(model[off:], b)
	}
	for _, c := range [][3]int{{0, 0, 100}, {100, 50, 200000}, {299990, 200050, 100}, {4096, 8192, 4096}, {77, 400000, 5}} {
		from, to := int64(c[0]), int64(c[1])
		length := min(c[2], len(src)-c[0])
		for done := 0; done < length; {
			n, err := unix.CopyFileRange(in, &from, out, &to, length-done, 0)
			e.must(err)
			if n == 0 {
				e.Fatal("copy_file_range copied nothing")
			}
			done += n
		}
		put(src[c[0]:c[0]+length], c[1])
		e.same("copy", e.pread(out, 500000, 0), model)
	}
	off, to := int64(300000), int64(0)
	n, err := unix.CopyFileRange(in, &off, out, &to, 10, 0)
	e.must(err)
	e.equal("copied from the end", n, 0)
	off, to = 0, 100000
	n, err = unix.CopyFileRange(in, &off, in, &to, 100000, 0)
	e.must(err)
	copy(src[100000:], src[:n])
	e.same("copy within a file", e.pread(in, 400000, 0), src)
}

func fioCheck(e *env) {
	testenv.NeedPrograms(e.T, "fio")
	for _, args := range [][]string{
		{"--ioengine=libaio", "--direct=1", "--iodepth=16", "--rw=randwrite"},
		{"--ioengine=io_uring", "--direct=1", "--iodepth=16", "--rw=randwrite"},
		{"--ioengine=io_uring", "--direct=0", "--iodepth=8", "--rw=randwrite"},
		{"--ioengine=mmap", "--rw=randwrite"},
		{"--ioengine=libaio", "--direct=1", "--sync=dsync", "--iodepth=4", "--rw=randwrite"},
	} {
		args = append(args, "--name=verify", "--directory="+e.dir, "--size=4m", "--bs=16k", "--verify=crc32c",
			"--do_verify=1", "--verify_fatal=1", "--randrepeat=1", "--end_fsync=1", "--unlink=1")
		cmd := exec.Command("fio", args...)
		cmd.Dir = os.TempDir()
		if out, err := cmd.CombinedOutput(); err != nil {
			e.Errorf("fio %s: %v\n%s", args[0], err, out)
		}
	}
}
