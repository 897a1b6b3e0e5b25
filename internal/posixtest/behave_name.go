package posixtest

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// oddNames are legal names that break careless code.
func oddNames() []string {
	return []string{
		"a~b", "x~", "~", "a_b__c", "f.meta", "f", "OWNED", "with space", " ", `"'`, `back\slash`, "new\nline", "tab\t",
		"\xff", "ok\xc3", "\x01", "-rf", "*", "...", "日本語", strings.Repeat("n", 255), strings.Repeat("\xff", 255),
	}
}

func nameBehaviours() []behaviour {
	return []behaviour{
		{"odd names keep apart and are listed as they are", oddNamesCheck},
		{"a path of 4000 bytes", longPathCheck},
		{"a name that was missing appears", func(e *env) {
			for _, make := range []func(p string) error{
				func(p string) error { return os.WriteFile(p, nil, 0o644) },
				func(p string) error { return unix.Mkdir(p, 0o755) },
				func(p string) error { return unix.Symlink("t", p) },
				func(p string) error { return unix.Link(e.file("src", 0o644, ""), p) },
				func(p string) error { return unix.Rename(e.file("old", 0o644, ""), p) },
				func(p string) error { return unix.Mkfifo(p, 0o644) },
			} {
				p := e.path("x")
				for range 2 {
					if err := unix.Lstat(p, new(unix.Stat_t)); !errors.Is(err, unix.ENOENT) {
						e.Fatalf("before: %v", err)
					}
				}
				e.must(make(p))
				e.stat(p)
				e.must(os.Remove(p))
			}
			if err := unix.Lstat(e.path("old"), new(unix.Stat_t)); !errors.Is(err, unix.ENOENT) {
				e.Fatalf("the old name of a rename: %v", err)
			}
		}},
		{"an unlinked file lives while open", func(e *env) {
			p := e.file("f", 0o644, "before")
			fd := e.open(p, unix.O_RDWR)
			e.must(unix.Unlink(p))
			_, err := unix.Pwrite(fd, []byte("AFTER!and more"), 0)
			e.must(err)
			b := make([]byte, 100)
			n, err := unix.Pread(fd, b, 0)
			e.must(err)
			e.equal("content", string(b[:n]), "AFTER!and more")
			var st unix.Stat_t
			e.must(unix.Fstat(fd, &st))
			e.equal("links", uint64(st.Nlink), uint64(0))
			e.equal("size", st.Size, int64(14))
			e.must(unix.Ftruncate(fd, 3))
			e.must(unix.Fchmod(fd, 0o600))
			e.must(unix.Fsync(fd))
		}},
		{"O_TMPFILE gets a name by link", func(e *env) {
			fd := e.open(e.dir, unix.O_TMPFILE|unix.O_RDWR)
			_, err := unix.Write(fd, []byte("content"))
			e.must(err)
			e.must(linkFD(fd, e.path("f")))
			e.equal("content", e.content(e.path("f")), "content")
			e.equal("links", uint64(e.stat(e.path("f")).Nlink), uint64(1))
		}},
		{"rename over an open file leaves the old one readable", func(e *env) {
			p := e.file("f", 0o644, "old")
			fd := e.open(p, unix.O_RDONLY)
			e.must(unix.Rename(e.file("g", 0o644, "new!"), p))
			b := make([]byte, 10)
			n, err := unix.Pread(fd, b, 0)
			e.must(err)
			e.equal("through the old descriptor", string(b[:n]), "old")
			e.equal("by name", e.content(p), "new!")
		}},
		{"rename onto itself does nothing", func(e *env) {
			p := e.file("f", 0o644, "content")
			e.must(unix.Rename(p, p))
			e.equal("content", e.content(p), "content")
		}},
		{"rename of one link onto another leaves both", func(e *env) {
			p := e.file("f", 0o644, "content")
			e.must(unix.Link(p, e.path("g")))
			e.must(unix.Rename(p, e.path("g")))
			e.equal("links", uint64(e.stat(p).Nlink), uint64(2))
			e.equal("content", e.content(e.path("g")), "content")
		}},
		{"RENAME_EXCHANGE swaps a file and a directory", func(e *env) {
			e.file("f", 0o644, "content")
			e.mkdir("a", 0o755)
			e.mkdir("b", 0o755)
			d := e.mkdir("b/d", 0o755)
			e.must(unix.Renameat2(unix.AT_FDCWD, e.path("f"), unix.AT_FDCWD, d, unix.RENAME_EXCHANGE))
			e.equal("file", e.content(d), "content")
			e.equal("type", e.stat(e.path("f")).Mode&unix.S_IFMT, uint32(unix.S_IFDIR))
			e.equal("dot dot", e.stat(e.path("f", "..")).Ino, e.stat(e.dir).Ino)
			e.equal("links of b", uint64(e.stat(e.path("b")).Nlink), uint64(2))
		}},
		{"a directory moves with what is in it", func(e *env) {
			e.mkdir("a", 0o755)
			e.mkdir("b", 0o755)
			e.mkdir("a/d", 0o755)
			e.file("a/d/f", 0o644, "content")
			e.must(unix.Rename(e.path("a", "d"), e.path("b", "d")))
			e.equal("content", e.content(e.path("b", "d", "f")), "content")
			e.equal("dot dot", e.stat(e.path("b", "d", "..")).Ino, e.stat(e.path("b")).Ino)
			e.equal("links of a", uint64(e.stat(e.path("a")).Nlink), uint64(2))
			e.equal("links of b", uint64(e.stat(e.path("b")).Nlink), uint64(3))
		}},
		{"symbolic links of 1 and 4095 bytes", func(e *env) {
			for i, target := range []string{"t", strings.Repeat("/t", 2047) + "t", "odd\xff\n~"} {
				p := e.symlink(target, "l"+string(rune('0'+i)))
				b := make([]byte, 5000)
				n, err := unix.Readlink(p, b)
				e.must(err)
				e.equal("target", string(b[:n]), target)
				e.equal("size", e.stat(p).Size, int64(len(target)))
			}
		}},
		{"special files keep type and device number", func(e *env) {
			for _, c := range []struct {
				mode uint32
				dev  uint64
			}{{unix.S_IFCHR | 0o640, unix.Mkdev(1, 3)}, {unix.S_IFBLK | 0o600, unix.Mkdev(4000, 70000)},
				{unix.S_IFIFO | 0o644, 0}, {unix.S_IFSOCK | 0o755, 0}, {unix.S_IFREG | 0o4755, 0}} {
				p := e.path("n")
				e.must(unix.Mknod(p, c.mode, int(c.dev)))
				st := e.stat(p)
				e.equal("mode", st.Mode, c.mode)
				e.equal("device", st.Rdev, c.dev)
				e.must(unix.Unlink(p))
			}
		}},
	}
}

func oddNamesCheck(e *env) {
	for _, name := range oddNames() {
		e.must(os.WriteFile(e.path("")+"/"+name, []byte(name), 0o644))
	}
	listed := map[string]bool{}
	entries, err := os.ReadDir(e.dir)
	e.must(err)
	for _, d := range entries {
		listed[d.Name()] = true
	}
	e.equal("number of names", len(entries), len(oddNames()))
	for _, name := range oddNames() {
		if !listed[name] {
			e.Errorf("%q is not listed", name)
		}
		e.equal("content", e.content(e.dir+"/"+name), name)
	}
	e.must(unix.Unlink(e.path("f")))
	e.equal("f.meta after unlink of f", e.content(e.path("f.meta")), "f.meta")
}

// longPathCheck goes down directories to a path of about 4,000 bytes.
func longPathCheck(e *env) {
	p := e.dir
	for len(p) < 3800 {
		p += "/" + strings.Repeat("d", 190)
		e.must(unix.Mkdir(p, 0o755))
	}
	p += "/" + strings.Repeat("f", 4000-len(p)-1)
	e.equal("length", len(p), 4000)
	e.must(os.WriteFile(p, []byte("deep"), 0o644))
	e.equal("content", e.content(p), "deep")
}

// direntName returns name, offset and length of the first entry in b.
func direntName(b []byte) (name string, off int64, size int) {
	off = int64(uint64(b[8]) | uint64(b[9])<<8 | uint64(b[10])<<16 | uint64(b[11])<<24 |
		uint64(b[12])<<32 | uint64(b[13])<<40 | uint64(b[14])<<48 | uint64(b[15])<<56)
	size = int(b[16]) | int(b[17])<<8
	name, _, _ = strings.Cut(string(b[19:size]), "\x00")
	return name, off, size
}

// list reads names and the offsets after them from descriptor fd on, with a
// buffer of bufSize bytes.
func (e *env) list(fd, bufSize int) (names []string, offs []int64) {
	e.Helper()
	buf := make([]byte, bufSize)
	for {
		n, err := syscall.Getdents(fd, buf)
		e.must(err)
		if n == 0 {
			return names, offs
		}
		for b := buf[:n]; len(b) > 0; {
			name, off, size := direntName(b)
			b = b[size:]
			names, offs = append(names, name), append(offs, off)
		}
	}
}
