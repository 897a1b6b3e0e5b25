package posixtest

import (
	"os"

	"golang.org/x/sys/unix"
)

// mmap maps the first n bytes of fd, shared and writable, until the case ends.
func (e *env) mmap(fd, n int) []byte {
	e.Helper()
	m, err := unix.Mmap(fd, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	e.must(err)
	e.Cleanup(func() { unix.Munmap(m) })
	return m
}

func mapBehaviours() []behaviour {
	return []behaviour{
		{"a shared mapping and read and write are one", func(e *env) {
			fd := e.open(e.file("f", 0o644, string(fill('A', 10000))), unix.O_RDWR)
			m := e.mmap(fd, 10000)
			copy(m[4000:], "mapped")
			e.same("read", e.pread(fd, 6, 4000), []byte("mapped"))
			e.pwrite(fd, []byte("written"), 8190)
			e.equal("mapping", string(m[8190:8197]), "written")
		}},
		{"a private mapping keeps its changes to itself", func(e *env) {
			fd := e.open(e.file("f", 0o644, "content"), unix.O_RDWR)
			m, err := unix.Mmap(fd, 0, 7, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
			e.must(err)
			defer unix.Munmap(m)
			copy(m, "private")
			e.same("file", e.pread(fd, 7, 0), []byte("content"))
		}},
		{"msync, then another descriptor", func(e *env) {
			p := e.file("f", 0o644, string(fill('A', 8192)))
			m := e.mmap(e.open(p, unix.O_RDWR), 8192)
			copy(m[5000:], "mapped")
			e.must(unix.Msync(m, unix.MS_SYNC))
			e.equal("content", e.content(p)[5000:5006], "mapped")
			e.same("direct", e.pread(e.open(p, unix.O_RDONLY|unix.O_DIRECT), 8192, 0)[5000:5006], []byte("mapped"))
		}},
		{"a mapping outlives its descriptor and its name", func(e *env) {
			p := e.file("f", 0o644, string(fill('A', 4096)))
			fd, err := unix.Open(p, unix.O_RDWR, 0)
			e.must(err)
			m := e.mmap(fd, 4096)
			reader := e.open(p, unix.O_RDONLY)
			e.must(unix.Close(fd))
			e.must(unix.Unlink(p))
			copy(m, "still here")
			e.must(unix.Msync(m, unix.MS_SYNC))
			e.same("content", e.pread(reader, 10, 0), []byte("still here"))
		}},
		{"bytes mapped beyond the end do not become the file's", func(e *env) {
			p := e.file("f", 0o644, "short")
			fd := e.open(p, unix.O_RDWR)
			m := e.mmap(fd, 4096)
			copy(m[5:], "beyond")
			e.must(unix.Msync(m, unix.MS_SYNC))
			e.equal("content", e.content(p), "short")
			e.must(os.Truncate(p, 20))
			e.same("after growing", e.pread(fd, 20, 0), append([]byte("short"), make([]byte, 15)...))
		}},
		{"writing through a mapping moves mtime", func(e *env) {
			p := e.file("f", 0o644, "0123456789")
			m := e.mmap(e.open(p, unix.O_RDWR), 10)
			got := e.changed(p, func() {
				m[0] = 'x'
				e.must(unix.Msync(m, unix.MS_SYNC))
			})
			e.equal("moved", got, "mc")
		}},
	}
}
