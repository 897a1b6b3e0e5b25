package posixtest

import (
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

func openErr(p string, flags int) error {
	fd, err := unix.Open(p, flags|unix.O_CLOEXEC, 0o644)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func longName() string { return strings.Repeat("n", 256) }

// longPath is longer than any path may be.
func longPath(e *env) string { return e.dir + strings.Repeat("/.", 2100) + "/x" }

func openCases() []errnoCase {
	return []errnoCase{
		{op: "open", want: unix.ENOENT, name: "missing", call: func(e *env) error { return openErr(e.path("x"), unix.O_RDONLY) }},
		{op: "open", want: unix.ENOENT, name: "missing twice", call: func(e *env) error {
			openErr(e.path("x"), unix.O_RDONLY)
			return openErr(e.path("x"), unix.O_RDONLY)
		}},
		{op: "open", want: unix.ENOENT, name: "missing parent", call: func(e *env) error { return openErr(e.path("d", "x"), unix.O_RDWR|unix.O_CREAT) }},
		{op: "open", want: unix.ENOENT, name: "empty path", call: func(*env) error { return openErr("", unix.O_RDONLY) }},
		{op: "open", want: unix.ENOENT, name: "dangling link", call: func(e *env) error { return openErr(e.symlink("x", "l"), unix.O_RDONLY) }},
		{op: "open", want: unix.ENOENT, name: "create in a removed directory", call: func(e *env) error {
			d := e.open(e.mkdir("d", 0o755), unix.O_DIRECTORY)
			e.must(unix.Rmdir(e.path("d")))
			_, err := unix.Openat(d, "x", unix.O_CREAT|unix.O_RDWR, 0o644)
			return err
		}},
		{op: "open", want: unix.ENOTDIR, name: "through a file", call: func(e *env) error { return openErr(e.file("f", 0o644, "")+"/x", unix.O_RDONLY) }},
		{op: "open", want: unix.ENOTDIR, name: "O_DIRECTORY of a file", call: func(e *env) error { return openErr(e.file("f", 0o644, ""), unix.O_DIRECTORY) }},
		{op: "open", want: unix.EISDIR, name: "write a directory", call: func(e *env) error { return openErr(e.mkdir("d", 0o755), unix.O_WRONLY) }},
		{op: "open", want: unix.EISDIR, name: "O_CREAT of a directory", call: func(e *env) error { return openErr(e.mkdir("d", 0o755), unix.O_CREAT|unix.O_RDONLY) }},
		{op: "open", want: unix.EEXIST, name: "O_EXCL", call: func(e *env) error { return openErr(e.file("f", 0o644, ""), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR) }},
		{op: "open", want: unix.EEXIST, name: "O_EXCL of a dangling link", call: func(e *env) error {
			return openErr(e.symlink("x", "l"), unix.O_CREAT|unix.O_EXCL|unix.O_RDWR)
		}},
		{op: "open", want: unix.ELOOP, name: "link to itself", call: func(e *env) error { return openErr(e.symlink("l", "l"), unix.O_RDONLY) }},
		{op: "open", want: unix.ELOOP, name: "O_NOFOLLOW", call: func(e *env) error {
			e.file("f", 0o644, "")
			return openErr(e.symlink("f", "l"), unix.O_NOFOLLOW|unix.O_RDONLY)
		}},
		{op: "open", want: unix.ENAMETOOLONG, name: "name of 256 bytes", call: func(e *env) error { return openErr(e.path(longName()), unix.O_CREAT|unix.O_RDWR) }},
		{op: "open", want: unix.ENAMETOOLONG, name: "path of over 4096 bytes", call: func(e *env) error { return openErr(longPath(e), unix.O_RDONLY) }},
		{op: "open", want: unix.EACCES, name: "read", call: func(e *env) error {
			p := e.file("f", 0o200, "")
			return asA(func() error { return openErr(p, unix.O_RDONLY) })
		}},
		{op: "open", want: unix.EACCES, name: "write", call: func(e *env) error {
			p := e.file("f", 0o644, "")
			return asA(func() error { return openErr(p, unix.O_WRONLY) })
		}},
		{op: "open", want: unix.EACCES, name: "truncate", call: func(e *env) error {
			p := e.file("f", 0o444, "")
			return asA(func() error { return openErr(p, unix.O_RDONLY|unix.O_TRUNC) })
		}},
		{op: "open", want: unix.EACCES, name: "search", call: func(e *env) error {
			e.mkdir("d", 0o755)
			p := e.file("d/f", 0o644, "")
			e.must(unix.Chmod(e.path("d"), 0o600))
			return asA(func() error { return openErr(p, unix.O_RDONLY) })
		}},
		{op: "open", want: unix.EACCES, name: "create", call: func(e *env) error {
			d := e.mkdir("d", 0o755)
			return asA(func() error { return openErr(d+"/x", unix.O_CREAT|unix.O_RDWR) })
		}},
		{op: "open", want: unix.EACCES, name: "owner without a bit that others have", call: func(e *env) error {
			p := e.file("f", 0o066, "")
			e.must(unix.Chown(p, userA, userA))
			return asA(func() error { return openErr(p, unix.O_RDONLY) })
		}},
		{op: "open", want: unix.EPERM, name: "O_NOATIME of another's file", call: func(e *env) error {
			p := e.file("f", 0o644, "")
			return asA(func() error { return openErr(p, unix.O_RDONLY|unix.O_NOATIME) })
		}},
		{op: "open", want: unix.ENXIO, name: "fifo without a reader", call: func(e *env) error {
			e.must(unix.Mkfifo(e.path("p"), 0o644))
			return openErr(e.path("p"), unix.O_WRONLY|unix.O_NONBLOCK)
		}},
		{op: "open", want: unix.ENXIO, name: "socket", call: func(e *env) error {
			e.must(unix.Mknod(e.path("s"), unix.S_IFSOCK|0o644, 0))
			return openErr(e.path("s"), unix.O_RDONLY)
		}},
		{op: "open", want: unix.EINVAL, name: "O_TMPFILE without writing", call: func(e *env) error { return openErr(e.dir, unix.O_TMPFILE|unix.O_RDONLY) }},
		{op: "open", want: unix.ETXTBSY, name: "write a running program", call: runningProgram},
		{op: "tmpfile", want: unix.ENOTDIR, name: "in a file", call: func(e *env) error { return openErr(e.file("f", 0o644, ""), unix.O_TMPFILE|unix.O_RDWR) }},
		{op: "tmpfile", want: unix.EACCES, name: "another's directory", call: func(e *env) error {
			d := e.mkdir("d", 0o755)
			return asA(func() error { return openErr(d, unix.O_TMPFILE|unix.O_RDWR) })
		}},
		{op: "tmpfile", want: unix.ENOENT, name: "link of an O_EXCL one", call: func(e *env) error {
			fd := e.open(e.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_EXCL)
			return linkFD(fd, e.path("x"))
		}},
		{op: "chdir", want: unix.ENOTDIR, name: "file", call: func(e *env) error { return unix.Chdir(e.file("f", 0o644, "")) }},
		{op: "chdir", want: unix.ENOENT, name: "missing", call: func(e *env) error { return unix.Chdir(e.path("x")) }},
		{op: "execve", want: unix.EACCES, name: "no execute bit", call: func(e *env) error {
			return exec.Command(e.file("f", 0o644, "#!/bin/sh\n")).Run()
		}},
		{op: "execve", want: unix.EACCES, name: "a directory", call: func(e *env) error {
			return unix.Exec(e.mkdir("d", 0o755), []string{"d"}, nil)
		}},
	}
}

func linkFD(fd int, p string) error {
	return unix.Linkat(fd, "", unix.AT_FDCWD, p, unix.AT_EMPTY_PATH)
}

// runningProgram opens a program for writing while it runs.
func runningProgram(e *env) error {
	code, err := os.ReadFile("/bin/sleep")
	e.must(err)
	p := e.path("sleep")
	e.must(os.WriteFile(p, code, 0o755))
	cmd := exec.Command(p, "100")
	e.must(cmd.Start())
	defer func() {
		cmd.Process.Kill()
		cmd.Wait()
	}()
	return openErr(p, unix.O_WRONLY)
}
