package posixtest

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func nanos(t unix.Timespec) int64 { return t.Sec*1e9 + t.Nsec }

// step waits until a new timestamp differs from every earlier one: the local
// disk's are as coarse as the kernel's tick.
func step() { time.Sleep(12 * time.Millisecond) }

// changed makes a change and returns which of atime, mtime and ctime of p it
// moved, as letters.
func (e *env) changed(p string, change func()) string {
	e.Helper()
	before := e.stat(p)
	step()
	change()
	after := e.stat(p)
	moved := ""
	for _, x := range []struct {
		letter string
		a, b   unix.Timespec
	}{{"m", before.Mtim, after.Mtim}, {"c", before.Ctim, after.Ctim}} {
		if nanos(x.b) < nanos(x.a) {
			e.Fatalf("%s of %s went back", x.letter, p)
		}
		if x.a != x.b {
			moved += x.letter
		}
	}
	return moved
}

func attrBehaviours() []behaviour {
	return []behaviour{
		{"timestamps of a file", fileTimes},
		{"timestamps of directories", dirTimes},
		{"set times come back to the nanosecond", func(e *env) {
			p := e.file("f", 0o644, "")
			for _, want := range []unix.Timespec{{Sec: 1, Nsec: 1}, {Sec: 1700000000, Nsec: 999999999}, {Sec: 0}, {Sec: -5, Nsec: 250000000}, {Sec: 5000000000, Nsec: 5}} {
				e.must(unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{want, want}, 0))
				e.equal("atime", nanos(e.stat(p).Atim), nanos(want))
				e.equal("mtime", nanos(e.stat(p).Mtim), nanos(want))
			}
			before := e.stat(p)
			omit := unix.Timespec{Nsec: unix.UTIME_OMIT}
			e.must(unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{omit, {Sec: 7}}, 0))
			e.equal("omitted atime", e.stat(p).Atim, before.Atim)
			e.equal("mtime", e.stat(p).Mtim.Sec, int64(7))
			e.must(unix.UtimesNanoAt(unix.AT_FDCWD, p, []unix.Timespec{{Nsec: unix.UTIME_NOW}, omit}, 0))
			if age := time.Now().Unix() - e.stat(p).Atim.Sec; age < -2 || age > 60 {
				e.Fatalf("UTIME_NOW is %d seconds ago", age)
			}
			e.equal("omitted mtime", e.stat(p).Mtim.Sec, int64(7))
		}},
		{"birth time stays", func(e *env) {
			p := e.file("f", 0o644, "")
			birth := func() unix.StatxTimestamp {
				var st unix.Statx_t
				e.must(unix.Statx(unix.AT_FDCWD, p, 0, unix.STATX_ALL, &st))
				if st.Mask&unix.STATX_BTIME == 0 || st.Btime.Sec == 0 {
					e.Fatal("there is no birth time")
				}
				return st.Btime
			}
			first := birth()
			step()
			e.must(os.WriteFile(p, []byte("x"), 0o644))
			e.must(unix.Chmod(p, 0o600))
			e.equal("birth time", birth(), first)
		}},
		{"link counts", func(e *env) {
			links := func(p string) uint64 { return uint64(e.stat(p).Nlink) }
			d := e.mkdir("d", 0o755)
			e.equal("new directory", links(d), uint64(2))
			e.mkdir("d/a", 0o755)
			e.mkdir("d/b", 0o755)
			e.equal("with two", links(d), uint64(4))
			e.must(unix.Rmdir(d + "/a"))
			e.equal("with one", links(d), uint64(3))
			f := e.file("f", 0o644, "")
			e.must(unix.Link(f, d+"/f"))
			e.equal("file with two names", links(f), uint64(2))
			e.must(unix.Unlink(f))
			e.equal("with one name", links(d+"/f"), uint64(1))
			e.must(unix.Rename(d+"/b", e.path("b")))
			e.equal("directory that lost one", links(d), uint64(2))
			e.must(unix.Rename(e.mkdir("c", 0o755), e.path("b")))
			e.equal("renamed over", links(e.path("b")), uint64(2))
		}},
		{"the set-group-id bit of a directory hands its group down", func(e *env) {
			d := e.mkdir("d", 0o777)
			e.must(unix.Chown(d, 0, userB))
			e.must(unix.Chmod(d, 0o2777))
			e.must(asA(func() error { return os.WriteFile(d+"/f", nil, 0o644) }))
			e.must(asA(func() error { return unix.Mkdir(d+"/e", 0o755) }))
			e.must(asA(func() error { return unix.Symlink("t", d+"/l") }))
			e.equal("group of a file", e.stat(d+"/f").Gid, uint32(userB))
			e.equal("group of a link", e.stat(d+"/l").Gid, uint32(userB))
			e.equal("group of a directory", e.stat(d+"/e").Gid, uint32(userB))
			e.equal("mode of a directory", e.stat(d+"/e").Mode&0o7777, uint32(0o2755))
			e.equal("owner", e.stat(d+"/f").Uid, uint32(userA))
			e.must(asA(func() error { return os.WriteFile(e.path("plain"), nil, 0o644) }))
			e.equal("group elsewhere", e.stat(e.path("plain")).Gid, uint32(userA))
		}},
		{"set-id bits go when an ordinary user writes", setIDCheck},
		{"the umask takes bits away", func(e *env) {
			old := unix.Umask(0o027)
			defer unix.Umask(old)
			e.must(unix.Mkdir(e.path("d"), 0o777))
			fd, err := unix.Open(e.path("f"), unix.O_CREAT|unix.O_RDWR, 0o666)
			e.must(err)
			unix.Close(fd)
			e.must(unix.Mknod(e.path("p"), unix.S_IFIFO|0o666, 0))
			e.equal("directory", e.stat(e.path("d")).Mode&0o7777, uint32(0o750))
			e.equal("file", e.stat(e.path("f")).Mode&0o7777, uint32(0o640))
			e.equal("fifo", e.stat(e.path("p")).Mode&0o7777, uint32(0o640))
		}},
		{"a chmod by an owner outside the group drops the set-group-id bit", func(e *env) {
			p := e.file("f", 0o755, "")
			e.must(unix.Chown(p, userA, userB))
			e.must(asA(func() error { return unix.Chmod(p, 0o2755) }))
			e.equal("mode", e.stat(p).Mode&0o7777, uint32(0o755))
		}},
		{"in a sticky directory the owners may", func(e *env) {
			p := sticky(e, false)
			e.must(as(userB, userB, func() error { return unix.Rename(p, p+"2") }))
			e.must(as(userB, userB, func() error { return unix.Unlink(p + "2") }))
		}},
		{"extended attributes", xattrCheck},
		{"statfs is sane", func(e *env) {
			var st unix.Statfs_t
			e.must(unix.Statfs(e.dir, &st))
			if st.Bsize <= 0 || st.Blocks == 0 || st.Bavail > st.Blocks || st.Bfree > st.Blocks || st.Namelen != 255 || st.Ffree > st.Files {
				e.Fatalf("%+v", st)
			}
		}},
	}
}

func fileTimes(e *env) {
	p := e.file("f", 0o644, "0123456789")
	fd := e.open(p, unix.O_RDWR)
	for _, c := range []struct {
		name, want string
		change     func()
	}{
		{"write", "mc", func() { _, err := unix.Pwrite(fd, []byte("x"), 0); e.must(err) }},
		{"write of nothing", "", func() { _, err := unix.Pwrite(fd, nil, 0); e.must(err) }},
		{"read", "", func() { _, err := unix.Pread(fd, make([]byte, 1), 0); e.must(err) }},
		{"truncate", "mc", func() { e.must(unix.Truncate(p, 5)) }},
		{"ftruncate to the same size", "mc", func() { e.must(unix.Ftruncate(fd, 5)) }},
		{"O_TRUNC", "mc", func() { e.open(p, unix.O_WRONLY|unix.O_TRUNC) }},
		{"fallocate", "mc", func() { e.must(unix.Fallocate(fd, 0, 0, 100)) }},
		{"punch", "mc", func() { e.must(unix.Fallocate(fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, 50)) }},
		{"chmod", "c", func() { e.must(unix.Chmod(p, 0o600)) }},
		{"chown", "c", func() { e.must(unix.Chown(p, userA, -1)) }},
		{"link", "c", func() { e.must(unix.Link(p, e.path("g"))) }},
		{"unlink of another name", "c", func() { e.must(unix.Unlink(e.path("g"))) }},
		{"rename", "c", func() { e.must(unix.Rename(p, e.path("h"))); e.must(unix.Link(e.path("h"), p)) }},
		{"setxattr", "c", func() { e.must(unix.Setxattr(p, "user.a", []byte("v"), 0)) }},
		{"removexattr", "c", func() { e.must(unix.Removexattr(p, "user.a")) }},
		{"fsync", "", func() { e.must(unix.Fsync(fd)) }},
	} {
		if got := e.changed(p, c.change); got != c.want {
			e.Errorf("%s moved %q, want %q", c.name, got, c.want)
		}
	}
}

func dirTimes(e *env) {
	d := e.mkdir("d", 0o755)
	f := d + "/f"
	for _, c := range []struct {
		name, want string
		change     func()
	}{
		{"create", "mc", func() { e.file("d/f", 0o644, "") }},
		{"write to a file in it", "", func() { e.must(os.WriteFile(f, []byte("x"), 0o644)) }},
		{"chmod of a file in it", "", func() { e.must(unix.Chmod(f, 0o600)) }},
		{"link", "mc", func() { e.must(unix.Link(f, d+"/g")) }},
		{"unlink", "mc", func() { e.must(unix.Unlink(d + "/g")) }},
		{"mkdir", "mc", func() { e.mkdir("d/e", 0o755) }},
		{"create in a directory in it", "", func() { e.file("d/e/f", 0o644, "") }},
		{"rename within", "mc", func() { e.must(unix.Rename(f, d+"/h")) }},
		{"rename out", "mc", func() { e.must(unix.Rename(d+"/h", e.path("h"))) }},
		{"rename in", "mc", func() { e.must(unix.Rename(e.path("h"), d+"/h")) }},
		{"symlink", "mc", func() { e.symlink("t", "d/l") }},
		{"list", "", func() { e.list(e.open(d, unix.O_DIRECTORY), 4096) }},
		{"failed create", "", func() { unix.Mkdir(d+"/e", 0o755) }},
	} {
		if got := e.changed(d, c.change); got != c.want {
			e.Errorf("%s moved %q, want %q", c.name, got, c.want)
		}
	}
}

func setIDCheck(e *env) {
	for _, c := range []struct {
		name string
		call func(p string) error
	}{
		{"write", func(p string) error { return os.WriteFile(p, []byte("x"), 0) }},
		{"write of one byte", func(p string) error {
			fd, err := unix.Open(p, unix.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			_, err = unix.Pwrite(fd, []byte("x"), 0)
			return err
		}},
		{"O_DIRECT write", func(p string) error {
			fd, err := unix.Open(p, unix.O_WRONLY|unix.O_DIRECT, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			_, err = unix.Pwrite(fd, aligned(4096), 0)
			return err
		}},
		{"truncate", func(p string) error { return unix.Truncate(p, 3) }},
		{"fallocate", func(p string) error {
			fd, err := unix.Open(p, unix.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Fallocate(fd, 0, 0, 100)
		}},
	} {
		for _, m := range []struct{ mode, want uint32 }{{0o6777, 0o777}, {0o4767, 0o767}, {0o2777, 0o777}} {
			p := e.file("f", m.mode, "0123456789")
			e.equal("mode before "+c.name, e.stat(p).Mode&0o7777, m.mode)
			e.must(asA(func() error { return c.call(p) }))
			e.equal("mode after "+c.name, e.stat(p).Mode&0o7777, m.want)
			e.must(unix.Unlink(p))
		}
	}
	p := e.file("f", 0o6777, "")
	e.must(os.WriteFile(p, []byte("x"), 0))
	e.equal("mode after root's write", e.stat(p).Mode&0o7777, uint32(0o6777))
	e.must(unix.Chown(p, userA, userA))
	e.equal("mode after chown", e.stat(p).Mode&0o7777, uint32(0o777))
	d := e.mkdir("d", 0o6777)
	e.must(unix.Chown(d, userA, userA))
	e.equal("mode of a directory after chown", e.stat(d).Mode&0o7777, uint32(0o6777))
}

func xattrCheck(e *env) {
	p := e.file("f", 0o644, "")
	big := make([]byte, 3000)
	for i := range big {
		big[i] = byte(i)
	}
	values := map[string][]byte{"user.a": {}, "user.odd\xff": []byte("\x00\xff"), "trusted.t": []byte("t"), "user.big": big}
	for name, v := range values {
		e.must(unix.Setxattr(p, name, v, unix.XATTR_CREATE))
	}
	for name, v := range values {
		b := make([]byte, 65536)
		n, err := unix.Getxattr(p, name, b)
		e.must(err)
		e.equal(name, string(b[:n]), string(v))
		n, err = unix.Getxattr(p, name, nil)
		e.must(err)
		e.equal("size of "+name, n, len(v))
	}
	list := func() int { n, err := unix.Listxattr(p, nil); e.must(err); return n }
	e.equal("length of the list", list(), len("user.a\x00user.odd?\x00trusted.t\x00user.big\x00"))
	var seen int
	e.must(asA(func() (err error) { seen, err = unix.Listxattr(p, nil); return err }))
	e.equal("length of a user's list", seen, len("user.a\x00user.odd?\x00user.big\x00"))
	e.must(unix.Setxattr(p, "user.a", []byte("new"), unix.XATTR_REPLACE))
	e.must(unix.Removexattr(p, "user.big"))
	e.equal("length of the list", list(), len("user.a\x00user.odd?\x00trusted.t\x00"))
	d := e.mkdir("d", 0o755)
	e.must(unix.Setxattr(d, "user.d", []byte("v"), 0))
	e.must(unix.Lsetxattr(e.symlink("t", "l"), "trusted.l", []byte("v"), 0))
}
