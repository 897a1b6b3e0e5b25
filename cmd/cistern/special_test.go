package main

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// specialTree is a directory with one of each kind of thing, and what of it has to be
// a symbolic link in a copy.
func (p *place) specialTree() (dir string, links map[string]string) {
	p.t.Helper()
	dir = p.path("src")
	old := time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC)
	p.write("src/dir/file", random(3000))
	links = map[string]string{"relative": "dir/file", "dangling": "no/such", "absolute": "/etc", "dir/up": "..", "b\xff": "t\xfe"}
	for name, to := range links {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			p.t.Fatal(err)
		}
	}
	at := []unix.Timespec{unix.NsecToTimespec(old.UnixNano()), unix.NsecToTimespec(old.UnixNano())}
	if err := errors.Join(
		os.Chmod(filepath.Join(dir, "dir/file"), 0o640),
		os.Chtimes(filepath.Join(dir, "dir/file"), old, old),
		unix.UtimesNanoAt(unix.AT_FDCWD, filepath.Join(dir, "relative"), at, unix.AT_SYMLINK_NOFOLLOW),
		os.Link(filepath.Join(dir, "dir/file"), filepath.Join(dir, "second name")),
	); err != nil {
		p.t.Fatal(err)
	}
	return dir, links
}

// wantLinks makes sure that a directory has these symbolic links.
func (p *place) wantLinks(dir string, links map[string]string) {
	p.t.Helper()
	for name, want := range links {
		if got, err := os.Readlink(filepath.Join(dir, name)); err != nil || got != want {
			p.t.Errorf("%q in %s leads to %q, %v, want %q", name, dir, got, err, want)
		}
	}
}

// A directory goes into a volume and comes back with its links, modes and times,
// through the bucket and through a mount; a second time it replaces what is there.
func TestApp_PutGet_SymbolicLinks_AreKept(t *testing.T) {
	p, mnt := mountPlace(t)
	src, links := p.specialTree()
	pid := 0
	for i, vol := range []string{p.url(), mnt} {
		if vol == mnt {
			pid = p.mount()
		}
		into := []string{"a", "b"}[i]
		name := into + "/src"
		for range 2 {
			if out := p.must("put", "-p", vol, src, into+"/"); !strings.Contains(out, "/"+name+"/relative -> dir/file\n") {
				t.Errorf("put through %s says %q", vol, out)
			}
		}
		back := p.path("back " + into)
		p.must("get", vol, name, back)
		compareTrees(t, src, back)
		p.wantLinks(back, links)
		st, err := os.Stat(filepath.Join(back, "dir/file"))
		if err != nil || st.Mode().Perm() != 0o640 || st.ModTime().UnixNano() != time.Date(2001, 2, 3, 4, 5, 6, 7, time.UTC).UnixNano() {
			t.Errorf("%v, %v", st, err)
		}
		for _, e := range decode[[]entry](t, p.must("stat", "--json", vol, name+"/relative", name+"/second name")) {
			if e.Nlink != 1 || e.dir() || e.Path == text(name+"/relative") && e.Mtime.Year() != 2001 {
				t.Errorf("%+v", e)
			}
		}
	}
	p.wantLinks(filepath.Join(mnt, "b/src"), links)
	// A link takes a file's name, a file a link's, and neither a directory's.
	p.write("swap/x", []byte("file"))
	p.must("put", mnt, p.path("swap"), ".")
	if err := errors.Join(os.Remove(p.path("swap/x")), os.Symlink("there", p.path("swap/x"))); err != nil {
		t.Fatal(err)
	}
	p.must("put", mnt, p.path("swap"), ".")
	p.wantLinks(filepath.Join(mnt, "swap"), map[string]string{"x": "there"})
	if err := errors.Join(os.Remove(filepath.Join(mnt, "swap/x")), os.Mkdir(filepath.Join(mnt, "swap/x"), 0o755)); err != nil {
		t.Fatal(err)
	}
	p.fails(exitFailed, "in the volume: /swap/x: is a directory", "put", mnt, p.path("swap"), ".")
	// One that is named itself is followed.
	p.must("put", mnt, filepath.Join(src, "relative"), "followed")
	if got := p.must("cat", mnt, "followed"); got != string(random(3000)) {
		t.Error("put of a link by its name did not put the file")
	}
	p.must("umount", mnt)
	p.unmounted(pid)
	p.must("check", "--data", p.url())
}

// What can't be copied is named, the rest is there, and only who says that it may be
// left out has exit status 0. A socket is nothing.
func TestApp_PutGetExport_DevicesAndPipes_AreNamed(t *testing.T) {
	p, mnt := mountPlace(t)
	src := p.path("src")
	p.write("src/file", []byte("x"))
	l, err := net.Listen("unix", filepath.Join(src, "sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	p.must("put", p.url(), p.write("first", []byte("x")), "first")
	status, _, errs := p.run("put", p.url(), src, "only-socket")
	if status != exitDone || strings.Count(errs, "\n") != 1 || !strings.Contains(errs, "src/sock is a socket, which holds nothing, and is left out") {
		t.Errorf("a socket: %d, %q", status, errs)
	}
	if err := syscall.Mkfifo(filepath.Join(src, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	check := func(args []string, pipe, socket, file string) {
		t.Helper()
		status, _, errs := p.run(args...)
		if status != exitFailed || strings.Count(errs, "\n") != 3 || !strings.Contains(errs, pipe+" is a device or pipe and is left out") || !strings.Contains(errs, socket+" is a socket") ||
			!strings.Contains(errs, "1 device or pipe was left out, and everything else is copied: --skip-special says that this is right") {
			t.Errorf("%v: %d, %s", args, status, errs)
		}
		if file != "" && readFile(t, file) != "x" {
			t.Errorf("%v: the file is not there", args)
		}
		if status, _, errs := p.run(append(args, "--skip-special")...); status != exitDone || strings.Count(errs, "\n") != 2 {
			t.Errorf("%v --skip-special: %d, %s", args, status, errs)
		}
	}
	check([]string{"put", p.url(), src, "dir"}, filepath.Join(src, "pipe"), filepath.Join(src, "sock"), "")
	if got := p.must("cat", p.url(), "dir/file"); got != "x" {
		t.Errorf("%q", got)
	}
	// And the way back, of what a program made in a mount.
	pid := p.mount()
	if err := errors.Join(syscall.Mkfifo(filepath.Join(mnt, "dir/pipe"), 0o600), syscall.Mknod(filepath.Join(mnt, "dir/sock"), syscall.S_IFSOCK|0o600, 0)); err != nil {
		t.Fatal(err)
	}
	check([]string{"get", mnt, "dir", p.path("got")}, "/dir/pipe", "/dir/sock", p.path("got/file"))
	p.must("umount", mnt)
	p.unmounted(pid)
	status, _, errs = p.run("export", p.url(), p.path("exported"))
	if status != exitFailed || !strings.Contains(errs, "/dir/pipe is a device or pipe") || readFile(t, p.path("exported/dir/file")) != "x" {
		t.Errorf("export: %d, %s", status, errs)
	}
	if status, _, errs := p.run("export", "--skip-special", p.url(), p.path("exported again")); status != exitDone {
		t.Errorf("export --skip-special: %d, %s", status, errs)
	}
}

// Who copies between two sides hears on which of them a path is.
func TestApp_PutGet_Errors_SayOnWhichSide(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u)
	local := p.write("file", []byte("x"))
	p.must("put", u, local, "file")
	if err := os.Mkdir(p.path("dir"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{1, "on this machine: " + p.path("none") + ": no such file or directory", []string{"put", u, p.path("none"), "x"}},
		{1, "in the volume: /no: no such file or directory", []string{"put", u, local, "no/x"}},
		{1, "in the volume: /file: not a directory", []string{"put", "-p", u, local, "file/x"}},
		{2, "on this machine: /dev/null is neither a file nor a directory", []string{"put", u, "/dev/null", "x"}},
		{1, "in the volume: /none: no such file or directory", []string{"get", u, "none", p.path("out")}},
		{1, "in the volume: /none: no such file or directory", []string{"get", u, "none", "-"}},
		{1, "on this machine: " + p.path("no") + ": no such file or directory", []string{"get", u, "file", p.path("no/out")}},
	} {
		p.fails(c.status, c.want, c.args...)
	}
}
