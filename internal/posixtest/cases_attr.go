package posixtest

import (
	"golang.org/x/sys/unix"
)

func attrCases() []errnoCase {
	var cases []errnoCase
	for _, c := range []struct {
		op   string
		call func(p string) error
	}{
		{"stat", func(p string) error { return unix.Stat(p, new(unix.Stat_t)) }},
		{"statfs", func(p string) error { return unix.Statfs(p, new(unix.Statfs_t)) }},
		{"statx", func(p string) error {
			return unix.Statx(unix.AT_FDCWD, p, 0, unix.STATX_BTIME, new(unix.Statx_t))
		}},
		{"access", func(p string) error { return unix.Access(p, unix.F_OK) }},
		{"chmod", func(p string) error { return unix.Chmod(p, 0o600) }},
		{"chown", func(p string) error { return unix.Chown(p, -1, -1) }},
		{"truncate", func(p string) error { return unix.Truncate(p, 0) }},
		{"utimensat", func(p string) error { return unix.UtimesNanoAt(unix.AT_FDCWD, p, nil, 0) }},
		{"getxattr", func(p string) error { _, err := unix.Getxattr(p, "user.a", nil); return err }},
		{"listxattr", func(p string) error { _, err := unix.Listxattr(p, nil); return err }},
		{"setxattr", func(p string) error { return unix.Setxattr(p, "user.a", nil, 0) }},
		{"removexattr", func(p string) error { return unix.Removexattr(p, "user.a") }},
	} {
		cases = append(cases, pathCases(c.op, c.call)...)
	}
	return append(cases, ownCases()...)
}

// pathCases are the failures that every operation on a path has in common.
func pathCases(op string, call func(p string) error) []errnoCase {
	return []errnoCase{
		{op: op, want: unix.ENOENT, name: "missing", call: func(e *env) error { return call(e.path("x")) }},
		{op: op, want: unix.ENOTDIR, name: "through a file", call: func(e *env) error { return call(e.file("f", 0o644, "") + "/x") }},
		{op: op, want: unix.ELOOP, name: "loop", call: func(e *env) error { return call(e.symlink("l", "l")) }},
		{op: op, want: unix.ENAMETOOLONG, name: "name of 256 bytes", call: func(e *env) error { return call(e.path(longName())) }},
		{op: op, want: unix.ENAMETOOLONG, name: "path of over 4096 bytes", call: func(e *env) error { return call(longPath(e)) }},
		{op: op, want: unix.EACCES, name: "search", call: func(e *env) error {
			e.mkdir("d", 0o700)
			p := e.file("d/f", 0o666, "")
			return asA(func() error { return call(p) })
		}},
	}
}

func ownCases() []errnoCase {
	return []errnoCase{
		{op: "access", want: unix.EACCES, name: "write", call: func(e *env) error {
			p := e.file("f", 0o644, "")
			return asA(func() error { return unix.Faccessat(unix.AT_FDCWD, p, unix.W_OK, 0) })
		}},
		{op: "chmod", want: unix.EPERM, name: "another's file", call: func(e *env) error {
			p := e.file("f", 0o666, "")
			return asA(func() error { return unix.Chmod(p, 0o777) })
		}},
		{op: "fchmod", want: unix.EBADF, name: "closed", call: func(*env) error { return unix.Fchmod(-1, 0o644) }},
		{op: "chown", want: unix.EPERM, name: "give away", call: func(e *env) error {
			p := e.file("f", 0o666, "")
			e.must(unix.Chown(p, userA, userA))
			return asA(func() error { return unix.Chown(p, userB, -1) })
		}},
		{op: "chown", want: unix.EPERM, name: "foreign group", call: func(e *env) error {
			p := e.file("f", 0o666, "")
			e.must(unix.Chown(p, userA, userA))
			return asA(func() error { return unix.Chown(p, -1, userB) })
		}},
		{op: "chown", want: unix.EPERM, name: "another's file", call: func(e *env) error {
			p := e.file("f", 0o666, "")
			return asA(func() error { return unix.Chown(p, -1, userA) })
		}},
		{op: "utimensat", want: unix.EACCES, name: "now, not writable", call: func(e *env) error {
			p := e.file("f", 0o644, "")
			return asA(func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, p, nil, 0) })
		}},
		{op: "utimensat", want: unix.EPERM, name: "set, another's file", call: func(e *env) error {
			p := e.file("f", 0o666, "")
			return asA(func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, p, make([]unix.Timespec, 2), 0) })
		}},
		{op: "utimensat", want: unix.EINVAL, name: "nanoseconds", call: func(e *env) error {
			return unix.UtimesNanoAt(unix.AT_FDCWD, e.file("f", 0o666, ""), []unix.Timespec{{Nsec: 1e9}, {}}, 0)
		}},
		{op: "truncate", want: unix.EISDIR, name: "directory", call: func(e *env) error { return unix.Truncate(e.mkdir("d", 0o755), 0) }},
		{op: "truncate", want: unix.EINVAL, name: "negative", call: func(e *env) error { return unix.Truncate(e.file("f", 0o644, ""), -1) }},
		{op: "truncate", want: unix.EINVAL, name: "fifo", call: func(e *env) error {
			e.must(unix.Mkfifo(e.path("p"), 0o644))
			return unix.Truncate(e.path("p"), 0)
		}},
		{op: "truncate", want: unix.EACCES, name: "not writable", call: func(e *env) error {
			p := e.file("f", 0o444, "")
			return asA(func() error { return unix.Truncate(p, 0) })
		}},
		{op: "truncate", want: unix.EFBIG, name: "beyond every limit", call: func(e *env) error { return unix.Truncate(e.file("f", 0o644, ""), 1<<63-1) }},
		{op: "ftruncate", want: unix.EINVAL, name: "opened for reading", call: func(e *env) error {
			return unix.Ftruncate(e.open(e.file("f", 0o644, ""), unix.O_RDONLY), 0)
		}},
		{op: "ftruncate", want: unix.EINVAL, name: "negative", call: func(e *env) error {
			return unix.Ftruncate(e.open(e.file("f", 0o644, ""), unix.O_RDWR), -1)
		}},
		{op: "ftruncate", want: unix.EFBIG, name: "beyond every limit", call: func(e *env) error {
			return unix.Ftruncate(e.open(e.file("f", 0o644, ""), unix.O_RDWR), 1<<63-1)
		}},
		{op: "ftruncate", want: unix.EBADF, name: "closed", call: func(*env) error { return unix.Ftruncate(-1, 0) }},
		{op: "fstatfs", want: unix.EBADF, name: "closed", call: func(*env) error { return unix.Fstatfs(-1, new(unix.Statfs_t)) }},
	}
}
