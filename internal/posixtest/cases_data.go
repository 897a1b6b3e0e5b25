package posixtest

import (
	"math"
	"unsafe"

	"golang.org/x/sys/unix"
)

// aligned returns n bytes that start on a page, as direct I/O wants them.
func aligned(n int) []byte {
	const page = 4096
	b := make([]byte, n+page)
	skip := (page - int(uintptr(unsafe.Pointer(&b[0]))%page)) % page
	return b[skip : skip+n]
}

func dataCases() []errnoCase {
	rw := func(e *env) int { return e.open(e.file("f", 0o644, "0123456789"), unix.O_RDWR) }
	ro := func(e *env) int { return e.open(e.file("f", 0o644, "0123456789"), unix.O_RDONLY) }
	wo := func(e *env) int { return e.open(e.file("f", 0o644, "0123456789"), unix.O_WRONLY) }
	fifo := func(e *env) int {
		e.must(unix.Mkfifo(e.path("p"), 0o644))
		return e.open(e.path("p"), unix.O_RDWR)
	}
	pread := func(fd, n int, off int64) error { _, err := unix.Pread(fd, make([]byte, n), off); return err }
	pwrite := func(fd, n int, off int64) error { _, err := unix.Pwrite(fd, make([]byte, n), off); return err }
	seek := func(fd int, off int64, whence int) error { _, err := unix.Seek(fd, off, whence); return err }
	mmap := func(fd int, off int64, n, prot, flags int) error {
		b, err := unix.Mmap(fd, off, n, prot, flags)
		if err == nil {
			unix.Munmap(b)
		}
		return err
	}
	cases := []errnoCase{
		{op: "read", want: unix.EISDIR, name: "directory", call: func(e *env) error { return pread(e.open(e.dir, unix.O_RDONLY), 1, 0) }},
		{op: "read", want: unix.EBADF, name: "opened for writing", call: func(e *env) error { return pread(wo(e), 1, 0) }},
		{op: "pread", want: unix.EINVAL, name: "negative offset", call: func(e *env) error { return pread(rw(e), 1, -1) }},
		{op: "pread", want: unix.ESPIPE, name: "fifo", call: func(e *env) error { return pread(fifo(e), 1, 0) }},
		{op: "write", want: unix.EBADF, name: "opened for reading", call: func(e *env) error { return pwrite(ro(e), 1, 0) }},
		{op: "pwrite", want: unix.EINVAL, name: "negative offset", call: func(e *env) error { return pwrite(rw(e), 1, -1) }},
		{op: "pwrite", want: unix.EFBIG, name: "beyond every limit", call: func(e *env) error { return pwrite(rw(e), 1, math.MaxInt64-4096) }},
		{op: "pwrite", want: unix.EINVAL, name: "O_DIRECT, odd length", fuse: otherwise(0), call: func(e *env) error {
			fd := e.open(e.file("f", 0o644, ""), unix.O_RDWR|unix.O_DIRECT)
			_, err := unix.Pwrite(fd, aligned(4096)[:777], 0)
			return err
		}},
		{op: "pwrite", want: unix.EINVAL, name: "O_DIRECT, odd offset", fuse: otherwise(0), call: func(e *env) error {
			fd := e.open(e.file("f", 0o644, ""), unix.O_RDWR|unix.O_DIRECT)
			_, err := unix.Pwrite(fd, aligned(4096), 13)
			return err
		}},
		{op: "pread", want: unix.EINVAL, name: "O_DIRECT, odd memory", fuse: otherwise(0), call: func(e *env) error {
			p := e.file("f", 0o644, string(make([]byte, 8192)))
			fd := e.open(p, unix.O_RDWR|unix.O_DIRECT)
			_, err := unix.Pread(fd, aligned(8192)[1:4097], 0)
			return err
		}},
		{op: "lseek", want: unix.EINVAL, name: "negative", call: func(e *env) error { return seek(rw(e), -1, unix.SEEK_SET) }},
		{op: "lseek", want: unix.EINVAL, name: "whence", call: func(e *env) error { return seek(rw(e), 0, 99) }},
		{op: "lseek", want: unix.ENXIO, name: "data at the end", call: func(e *env) error { return seek(rw(e), 10, unix.SEEK_DATA) }},
		{op: "lseek", want: unix.ENXIO, name: "hole past the end", call: func(e *env) error { return seek(rw(e), 11, unix.SEEK_HOLE) }},
		{op: "lseek", want: unix.ENXIO, name: "data in an empty file", call: func(e *env) error {
			return seek(e.open(e.file("f", 0o644, ""), unix.O_RDONLY), 0, unix.SEEK_DATA)
		}},
		{op: "lseek", want: unix.ENXIO, name: "data at a negative offset", call: func(e *env) error { return seek(rw(e), -5, unix.SEEK_DATA) }},
		{op: "lseek", want: unix.ENXIO, name: "data only before", call: func(e *env) error {
			fd := rw(e)
			e.must(unix.Ftruncate(fd, 1<<20))
			return seek(fd, 1<<19, unix.SEEK_DATA)
		}},
		{op: "lseek", want: unix.ESPIPE, name: "fifo", call: func(e *env) error { return seek(fifo(e), 0, unix.SEEK_SET) }},
		{op: "fallocate", want: unix.EBADF, name: "opened for reading", call: func(e *env) error { return unix.Fallocate(ro(e), 0, 0, 1) }},
		{op: "fallocate", want: unix.EINVAL, name: "no length", call: func(e *env) error { return unix.Fallocate(rw(e), 0, 0, 0) }},
		{op: "fallocate", want: unix.EINVAL, name: "negative offset", call: func(e *env) error { return unix.Fallocate(rw(e), 0, -1, 1) }},
		{op: "fallocate", want: unix.EFBIG, name: "beyond every limit", call: func(e *env) error { return unix.Fallocate(rw(e), 0, math.MaxInt64-4096, 4096) }},
		{op: "fallocate", want: unix.ESPIPE, name: "fifo", call: func(e *env) error { return unix.Fallocate(fifo(e), 0, 0, 1) }},
		{op: "fallocate", want: unix.EOPNOTSUPP, name: "punch without keeping the size", call: func(e *env) error {
			return unix.Fallocate(rw(e), unix.FALLOC_FL_PUNCH_HOLE, 0, 1)
		}},
		{op: "fallocate", want: unix.EOPNOTSUPP, name: "unknown mode", call: func(e *env) error { return unix.Fallocate(rw(e), 0x800, 0, 1) }},
		{op: "fsync", want: unix.EBADF, name: "closed", call: func(*env) error { return unix.Fsync(-1) }},
		{op: "fsync", want: unix.EINVAL, name: "fifo", call: func(e *env) error { return unix.Fsync(fifo(e)) }},
		{op: "fdatasync", want: unix.EBADF, name: "closed", call: func(*env) error { return unix.Fdatasync(-1) }},
		{op: "mmap", want: unix.EACCES, name: "shared and writable of a file opened for reading", call: func(e *env) error {
			return mmap(ro(e), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		}},
		{op: "mmap", want: unix.EACCES, name: "file opened for writing", call: func(e *env) error { return mmap(wo(e), 0, 4096, unix.PROT_READ, unix.MAP_SHARED) }},
		{op: "mmap", want: unix.ENODEV, name: "directory", call: func(e *env) error {
			return mmap(e.open(e.dir, unix.O_RDONLY), 0, 4096, unix.PROT_READ, unix.MAP_PRIVATE)
		}},
		{op: "mmap", want: unix.EINVAL, name: "odd offset", call: func(e *env) error { return mmap(rw(e), 100, 4096, unix.PROT_READ, unix.MAP_SHARED) }},
		{op: "mmap", want: unix.EBADF, name: "closed", call: func(*env) error { return mmap(-1, 0, 4096, unix.PROT_READ, unix.MAP_SHARED) }},
	}
	return append(cases, copyCases()...)
}

func copyCases() []errnoCase {
	copyRange := func(src int, srcOff int64, dst int, dstOff int64, n, flags int) error {
		_, err := unix.CopyFileRange(src, &srcOff, dst, &dstOff, n, flags)
		return err
	}
	file := func(e *env, name string, flags int) int { return e.open(e.file(name, 0o644, "0123456789"), flags) }
	return []errnoCase{
		{op: "copy_file_range", want: unix.EBADF, name: "to a file opened for reading", call: func(e *env) error {
			return copyRange(file(e, "a", unix.O_RDONLY), 0, file(e, "b", unix.O_RDONLY), 0, 1, 0)
		}},
		{op: "copy_file_range", want: unix.EBADF, name: "from a file opened for writing", call: func(e *env) error {
			return copyRange(file(e, "a", unix.O_WRONLY), 0, file(e, "b", unix.O_WRONLY), 0, 1, 0)
		}},
		{op: "copy_file_range", want: unix.EBADF, name: "to O_APPEND", call: func(e *env) error {
			return copyRange(file(e, "a", unix.O_RDONLY), 0, file(e, "b", unix.O_WRONLY|unix.O_APPEND), 0, 1, 0)
		}},
		{op: "copy_file_range", want: unix.EINVAL, name: "overlap", call: func(e *env) error {
			fd := file(e, "a", unix.O_RDWR)
			return copyRange(fd, 0, fd, 2, 5, 0)
		}},
		{op: "copy_file_range", want: unix.EINVAL, name: "flags", call: func(e *env) error {
			return copyRange(file(e, "a", unix.O_RDONLY), 0, file(e, "b", unix.O_WRONLY), 0, 1, 8)
		}},
		{op: "copy_file_range", want: unix.EISDIR, name: "directory", call: func(e *env) error {
			return copyRange(e.open(e.dir, unix.O_RDONLY), 0, file(e, "b", unix.O_WRONLY), 0, 1, 0)
		}},
		{op: "copy_file_range", want: unix.EINVAL, name: "fifo", call: func(e *env) error {
			e.must(unix.Mkfifo(e.path("p"), 0o644))
			return copyRange(e.open(e.path("p"), unix.O_RDWR), 0, file(e, "b", unix.O_WRONLY), 0, 1, 0)
		}},
		{op: "copy_file_range", want: unix.EFBIG, name: "beyond every limit", call: func(e *env) error {
			return copyRange(file(e, "a", unix.O_RDONLY), 0, file(e, "b", unix.O_WRONLY), math.MaxInt64-4, 4, 0)
		}},
	}
}

func xattrCases() []errnoCase {
	file := func(e *env) string { return e.file("f", 0o644, "") }
	return []errnoCase{
		{op: "getxattr", want: unix.ENODATA, name: "missing", call: func(e *env) error { _, err := unix.Getxattr(file(e), "user.a", nil); return err }},
		{op: "getxattr", want: unix.ERANGE, name: "small buffer", call: func(e *env) error {
			p := file(e)
			e.must(unix.Setxattr(p, "user.a", []byte("value"), 0))
			_, err := unix.Getxattr(p, "user.a", make([]byte, 2))
			return err
		}},
		{op: "getxattr", want: unix.EOPNOTSUPP, name: "unknown name space", call: func(e *env) error { _, err := unix.Getxattr(file(e), "foo.a", nil); return err }},
		{op: "getxattr", want: unix.EACCES, name: "not readable", call: func(e *env) error {
			p := e.file("f", 0o200, "")
			return asA(func() error { _, err := unix.Getxattr(p, "user.a", nil); return err })
		}},
		{op: "listxattr", want: unix.ERANGE, name: "small buffer", call: func(e *env) error {
			p := file(e)
			e.must(unix.Setxattr(p, "user.a", []byte("value"), 0))
			_, err := unix.Listxattr(p, make([]byte, 2))
			return err
		}},
		{op: "setxattr", want: unix.EEXIST, name: "XATTR_CREATE", call: func(e *env) error {
			p := file(e)
			e.must(unix.Setxattr(p, "user.a", nil, 0))
			return unix.Setxattr(p, "user.a", nil, unix.XATTR_CREATE)
		}},
		{op: "setxattr", want: unix.ENODATA, name: "XATTR_REPLACE", call: func(e *env) error { return unix.Setxattr(file(e), "user.a", nil, unix.XATTR_REPLACE) }},
		{op: "setxattr", want: unix.EOPNOTSUPP, name: "unknown name space", call: func(e *env) error { return unix.Setxattr(file(e), "foo.a", nil, 0) }},
		{op: "setxattr", want: unix.EOPNOTSUPP, name: "no name space", call: func(e *env) error { return unix.Setxattr(file(e), "foo", nil, 0) }},
		{op: "setxattr", want: unix.EINVAL, name: "name space only", call: func(e *env) error { return unix.Setxattr(file(e), "user.", nil, 0) }},
		{op: "setxattr", want: unix.ERANGE, name: "name of 256 bytes", call: func(e *env) error { return unix.Setxattr(file(e), "user."+longName(), nil, 0) }},
		{op: "setxattr", want: unix.E2BIG, name: "value over 64 KiB", call: func(e *env) error { return unix.Setxattr(file(e), "user.a", make([]byte, 65537), 0) }},
		{op: "setxattr", want: unix.EACCES, name: "not writable", call: func(e *env) error {
			p := file(e)
			return asA(func() error { return unix.Setxattr(p, "user.a", nil, 0) })
		}},
		{op: "setxattr", want: unix.EPERM, name: "user attribute of a link", call: func(e *env) error { return unix.Lsetxattr(e.symlink("t", "l"), "user.a", nil, 0) }},
		{op: "setxattr", want: unix.EPERM, name: "user attribute of a fifo", call: func(e *env) error {
			e.must(unix.Mkfifo(e.path("p"), 0o666))
			return unix.Setxattr(e.path("p"), "user.a", nil, 0)
		}},
		{op: "setxattr", want: unix.EPERM, name: "trusted, by a user", call: func(e *env) error {
			p := e.file("f", 0o666, "")
			return asA(func() error { return unix.Setxattr(p, "trusted.a", nil, 0) })
		}},
		{op: "setxattr", want: unix.EPERM, name: "user attribute of another's sticky directory", call: func(e *env) error {
			d := e.mkdir("d", 0o1777)
			return asA(func() error { return unix.Setxattr(d, "user.a", nil, 0) })
		}},
		{op: "removexattr", want: unix.ENODATA, name: "missing", call: func(e *env) error { return unix.Removexattr(file(e), "user.a") }},
		{op: "removexattr", want: unix.EACCES, name: "not writable", call: func(e *env) error {
			p := file(e)
			e.must(unix.Setxattr(p, "user.a", nil, 0))
			return asA(func() error { return unix.Removexattr(p, "user.a") })
		}},
	}
}
