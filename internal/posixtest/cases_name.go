package posixtest

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// elsewhere returns a path on another file system.
func elsewhere(e *env) string {
	root := "/dev/shm"
	d, err := os.MkdirTemp(root, "posixtest-")
	e.must(err)
	e.Cleanup(func() { os.RemoveAll(d) })
	return d
}

// sticky makes a sticky directory with a file or directory "x" of userB's.
func sticky(e *env, dir bool) string {
	d := e.mkdir("sticky", 0o1777)
	if dir {
		e.mkdir("sticky/x", 0o777)
	} else {
		e.file("sticky/x", 0o666, "")
	}
	e.must(unix.Chown(d+"/x", userB, userB))
	return d + "/x"
}

func nameCases() []errnoCase {
	mkdir := func(p string) error { return unix.Mkdir(p, 0o755) }
	mknod := func(p string) error { return unix.Mknod(p, unix.S_IFIFO|0o644, 0) }
	symlink := func(p string) error { return unix.Symlink("t", p) }
	link := func(p string) error {
		src := p[:strings.LastIndex(p, "/")] + "/../src"
		return unix.Link(src, p)
	}
	cases := []errnoCase{
		{op: "rmdir", want: unix.ENOENT, name: "missing", call: func(e *env) error { return unix.Rmdir(e.path("x")) }},
		{op: "rmdir", want: unix.ENOTDIR, name: "file", call: func(e *env) error { return unix.Rmdir(e.file("f", 0o644, "")) }},
		{op: "rmdir", want: unix.ENOTDIR, name: "link to a directory", call: func(e *env) error {
			e.mkdir("d", 0o755)
			return unix.Rmdir(e.symlink("d", "l"))
		}},
		{op: "rmdir", want: unix.ENOTEMPTY, name: "full", call: func(e *env) error {
			d := e.mkdir("d", 0o755)
			e.file("d/f", 0o644, "")
			return unix.Rmdir(d)
		}},
		{op: "rmdir", want: unix.EINVAL, name: "dot", call: func(e *env) error { return unix.Rmdir(e.mkdir("d", 0o755) + "/.") }},
		{op: "rmdir", want: unix.ENOTEMPTY, name: "dot dot", call: func(e *env) error { return unix.Rmdir(e.mkdir("d", 0o755) + "/..") }},
		{op: "rmdir", want: unix.EACCES, name: "parent not writable", call: func(e *env) error {
			d := e.mkdir("d", 0o755)
			e.mkdir("d/x", 0o777)
			return asA(func() error { return unix.Rmdir(d + "/x") })
		}},
		{op: "rmdir", want: unix.EPERM, name: "sticky", call: func(e *env) error {
			p := sticky(e, true)
			return asA(func() error { return unix.Rmdir(p) })
		}},
		{op: "rmdir", want: unix.ENAMETOOLONG, name: "name", call: func(e *env) error { return unix.Rmdir(e.path(longName())) }},
		{op: "rmdir", want: unix.ELOOP, name: "loop", call: func(e *env) error { return unix.Rmdir(e.symlink("l", "l") + "/x") }},
		{op: "unlink", want: unix.ENOENT, name: "missing", call: func(e *env) error { return unix.Unlink(e.path("x")) }},
		{op: "unlink", want: unix.ENOENT, name: "twice", call: func(e *env) error {
			p := e.file("f", 0o644, "")
			e.must(unix.Unlink(p))
			return unix.Unlink(p)
		}},
		{op: "unlink", want: unix.ENOTDIR, name: "through a file", call: func(e *env) error { return unix.Unlink(e.file("f", 0o644, "") + "/x") }},
		{op: "unlink", want: unix.EISDIR, name: "directory", call: func(e *env) error { return unix.Unlink(e.mkdir("d", 0o755)) }},
		{op: "unlink", want: unix.EACCES, name: "parent not writable", call: func(e *env) error {
			d := e.mkdir("d", 0o755)
			e.file("d/x", 0o666, "")
			return asA(func() error { return unix.Unlink(d + "/x") })
		}},
		{op: "unlink", want: unix.EPERM, name: "sticky", call: func(e *env) error {
			p := sticky(e, false)
			return asA(func() error { return unix.Unlink(p) })
		}},
		{op: "unlink", want: unix.ENAMETOOLONG, name: "name", call: func(e *env) error { return unix.Unlink(e.path(longName())) }},
		{op: "unlink", want: unix.ELOOP, name: "loop", call: func(e *env) error { return unix.Unlink(e.symlink("l", "l") + "/x") }},
		{op: "link", want: unix.ENOENT, name: "no source", call: func(e *env) error { return unix.Link(e.path("x"), e.path("y")) }},
		{op: "link", want: unix.EPERM, name: "directory", call: func(e *env) error { return unix.Link(e.mkdir("d", 0o755), e.path("y")) }},
		{op: "link", want: unix.EXDEV, name: "another file system", call: func(e *env) error {
			return unix.Link(e.file("f", 0o644, ""), elsewhere(e)+"/x")
		}},
		{op: "symlink", want: unix.ENOENT, name: "empty target", call: func(e *env) error { return unix.Symlink("", e.path("l")) }},
		{op: "symlink", want: unix.ENAMETOOLONG, name: "target of 4096 bytes", call: func(e *env) error {
			return unix.Symlink(strings.Repeat("t", 4096), e.path("l"))
		}},
		{op: "readlink", want: unix.EINVAL, name: "file", call: func(e *env) error { return readlinkErr(e.file("f", 0o644, "")) }},
		{op: "readlink", want: unix.EINVAL, name: "directory", call: func(e *env) error { return readlinkErr(e.dir) }},
		{op: "readlink", want: unix.ENOENT, name: "missing", call: func(e *env) error { return readlinkErr(e.path("x")) }},
		{op: "readlink", want: unix.ENOTDIR, name: "through a file", call: func(e *env) error { return readlinkErr(e.file("f", 0o644, "") + "/x") }},
		{op: "readlink", want: unix.EACCES, name: "search", call: func(e *env) error {
			e.mkdir("d", 0o700)
			p := e.symlink("t", "d/l")
			return asA(func() error { return readlinkErr(p) })
		}},
		{op: "mknod", want: unix.EPERM, name: "device by a user", call: func(e *env) error {
			return asA(func() error { return unix.Mknod(e.path("c"), unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))) })
		}},
		{op: "mknod", want: unix.EPERM, name: "directory", call: func(e *env) error { return unix.Mknod(e.path("d"), unix.S_IFDIR|0o755, 0) }},
		{op: "getdents", want: unix.ENOTDIR, name: "file", call: func(e *env) error { return getdentsErr(e.open(e.file("f", 0o644, ""), unix.O_RDONLY), 4096) }},
		{op: "getdents", want: unix.EBADF, name: "closed", call: func(*env) error { return getdentsErr(-1, 4096) }},
		{op: "getdents", want: unix.EINVAL, name: "buffer too small", call: func(e *env) error { return getdentsErr(e.open(e.dir, unix.O_DIRECTORY), 8) }},
		{op: "getdents", want: unix.ENOENT, name: "removed directory", call: func(e *env) error {
			fd := e.open(e.mkdir("d", 0o755), unix.O_DIRECTORY)
			e.must(unix.Rmdir(e.path("d")))
			return getdentsErr(fd, 4096)
		}},
	}
	for _, maker := range []struct {
		op   string
		make func(p string) error
	}{{"mkdir", mkdir}, {"mknod", mknod}, {"symlink", symlink}, {"link", link}} {
		cases = append(cases, makerCases(maker.op, maker.make)...)
	}
	return cases
}

// makerCases are the failures that everything that makes a name has in common.
func makerCases(op string, make func(p string) error) []errnoCase {
	source := func(e *env) { e.file("src", 0o666, "") } // where link looks for it
	return []errnoCase{
		{op: op, want: unix.EEXIST, name: "file there", call: func(e *env) error {
			e.mkdir("d", 0o777)
			source(e)
			return make(e.file("d/f", 0o644, ""))
		}},
		{op: op, want: unix.EEXIST, name: "directory there", call: func(e *env) error {
			e.mkdir("d", 0o777)
			source(e)
			return make(e.mkdir("d/e", 0o755))
		}},
		{op: op, want: unix.EEXIST, name: "dangling link there", call: func(e *env) error {
			e.mkdir("d", 0o777)
			source(e)
			return make(e.symlink("nowhere", "d/l"))
		}},
		{op: op, want: unix.ENOTDIR, name: "through a file", call: func(e *env) error {
			source(e)
			if op == "link" {
				return unix.Link(e.path("src"), e.file("f", 0o644, "")+"/x")
			}
			return make(e.file("f", 0o644, "") + "/x")
		}},
		{op: op, want: unix.EACCES, name: "parent not writable", call: func(e *env) error {
			d := e.mkdir("d", 0o755)
			source(e)
			return asA(func() error { return make(d + "/x") })
		}},
		{op: op, want: unix.ENAMETOOLONG, name: "name of 256 bytes", call: func(e *env) error {
			d := e.mkdir("d", 0o777)
			source(e)
			return make(d + "/" + longName())
		}},
		{op: op, want: unix.ELOOP, name: "loop", call: func(e *env) error {
			source(e)
			if op == "link" {
				return unix.Link(e.path("src"), e.symlink("l", "l")+"/x")
			}
			return make(e.symlink("l", "l") + "/x")
		}},
		{op: op, want: unix.ENOENT, name: "missing parent", call: func(e *env) error {
			source(e)
			if op == "link" {
				return unix.Link(e.path("src"), e.path("no", "x"))
			}
			return make(e.path("no", "x"))
		}},
	}
}

func readlinkErr(p string) error {
	_, err := unix.Readlink(p, make([]byte, 4096))
	return err
}

func getdentsErr(fd, size int) error {
	_, err := unix.Getdents(fd, make([]byte, size))
	return err
}

func renameCases() []errnoCase {
	flags := func(old, new string, f uint) error {
		return unix.Renameat2(unix.AT_FDCWD, old, unix.AT_FDCWD, new, f)
	}
	return []errnoCase{
		{op: "rename", want: unix.ENOENT, name: "no source", call: func(e *env) error { return unix.Rename(e.path("x"), e.path("y")) }},
		{op: "rename", want: unix.ENOENT, name: "no new parent", call: func(e *env) error { return unix.Rename(e.file("f", 0o644, ""), e.path("no", "y")) }},
		{op: "rename", want: unix.ENOTEMPTY, name: "over a full directory", call: func(e *env) error {
			e.mkdir("d", 0o755)
			e.file("d/f", 0o644, "")
			return unix.Rename(e.mkdir("s", 0o755), e.path("d"))
		}},
		{op: "rename", want: unix.EISDIR, name: "file over a directory", call: func(e *env) error {
			return unix.Rename(e.file("f", 0o644, ""), e.mkdir("d", 0o755))
		}},
		{op: "rename", want: unix.ENOTDIR, name: "directory over a file", call: func(e *env) error {
			return unix.Rename(e.mkdir("d", 0o755), e.file("f", 0o644, ""))
		}},
		{op: "rename", want: unix.ENOTDIR, name: "through a file", call: func(e *env) error {
			return unix.Rename(e.file("f", 0o644, ""), e.file("g", 0o644, "")+"/x")
		}},
		{op: "rename", want: unix.EINVAL, name: "into itself", call: func(e *env) error {
			d := e.mkdir("d", 0o755)
			return unix.Rename(d, d+"/x")
		}},
		{op: "rename", want: unix.ENOTEMPTY, name: "over its own parent", call: func(e *env) error {
			e.mkdir("d", 0o755)
			return unix.Rename(e.mkdir("d/e", 0o755), e.path("d"))
		}},
		{op: "rename", want: unix.EBUSY, name: "dot", call: func(e *env) error { return unix.Rename(e.mkdir("d", 0o755)+"/.", e.path("x")) }},
		{op: "rename", want: unix.EXDEV, name: "another file system", call: func(e *env) error {
			return unix.Rename(e.file("f", 0o644, ""), elsewhere(e)+"/x")
		}},
		{op: "rename", want: unix.EACCES, name: "old parent not writable", call: func(e *env) error {
			d := e.mkdir("d", 0o755)
			e.file("d/x", 0o666, "")
			return asA(func() error { return unix.Rename(d+"/x", e.path("y")) })
		}},
		{op: "rename", want: unix.EACCES, name: "new parent not writable", call: func(e *env) error {
			d := e.mkdir("d", 0o755)
			e.must(asA(func() error { return os.WriteFile(e.path("x"), nil, 0o644) }))
			return asA(func() error { return unix.Rename(e.path("x"), d+"/y") })
		}},
		{op: "rename", want: unix.EPERM, name: "sticky source", call: func(e *env) error {
			p := sticky(e, false)
			return asA(func() error { return unix.Rename(p, e.path("y")) })
		}},
		{op: "rename", want: unix.EPERM, name: "sticky target", call: func(e *env) error {
			p := sticky(e, false)
			e.must(asA(func() error { return os.WriteFile(e.path("mine"), nil, 0o644) }))
			return asA(func() error { return unix.Rename(e.path("mine"), p) })
		}},
		{op: "rename", want: unix.ENAMETOOLONG, name: "new name", call: func(e *env) error { return unix.Rename(e.file("f", 0o644, ""), e.path(longName())) }},
		{op: "rename", want: unix.ENAMETOOLONG, name: "old name", call: func(e *env) error { return unix.Rename(e.path(longName()), e.path("x")) }},
		{op: "rename", want: unix.ELOOP, name: "loop", call: func(e *env) error { return unix.Rename(e.symlink("l", "l")+"/x", e.path("y")) }},
		{op: "renameat2", want: unix.EEXIST, name: "NOREPLACE", call: func(e *env) error {
			return flags(e.file("f", 0o644, ""), e.file("g", 0o644, ""), unix.RENAME_NOREPLACE)
		}},
		{op: "renameat2", want: unix.EEXIST, name: "NOREPLACE onto itself", call: func(e *env) error {
			f := e.file("f", 0o644, "")
			return flags(f, f, unix.RENAME_NOREPLACE)
		}},
		{op: "renameat2", want: unix.ENOENT, name: "EXCHANGE with nothing", call: func(e *env) error {
			return flags(e.file("f", 0o644, ""), e.path("x"), unix.RENAME_EXCHANGE)
		}},
		{op: "renameat2", want: unix.EINVAL, name: "EXCHANGE with a descendant", call: func(e *env) error {
			d := e.mkdir("d", 0o755)
			return flags(d, e.mkdir("d/e", 0o755), unix.RENAME_EXCHANGE)
		}},
		{op: "renameat2", want: unix.EINVAL, name: "both flags", call: func(e *env) error {
			return flags(e.file("f", 0o644, ""), e.file("g", 0o644, ""), unix.RENAME_EXCHANGE|unix.RENAME_NOREPLACE)
		}},
		{op: "renameat2", want: 0, name: "WHITEOUT", fuse: otherwise(unix.EINVAL), call: func(e *env) error {
			return flags(e.file("f", 0o644, ""), e.path("g"), unix.RENAME_WHITEOUT)
		}},
	}
}
