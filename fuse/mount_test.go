package fuse

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/internal/posixtest"
)

func TestMount_POSIX(t *testing.T) {
	posixtest.Run(t, mountVolume(t, serveOptions+"=suid,dev").dir)
}

func TestMount_Exercise(t *testing.T) {
	m := mountVolume(t)
	seeds := uint64(34) // 102,000 steps
	if testing.Short() {
		seeds = 3
	}
	for seed := range seeds {
		posixtest.Exercise(t, m.dir, seed, 3000)
	}
}

func TestMount_ExerciseTree(t *testing.T) {
	m := mountVolume(t)
	for seed := range uint64(3) {
		posixtest.ExerciseTree(t, m.dir, seed, 2000)
	}
}

func TestMount_Parallel(t *testing.T) {
	m := mountVolume(t)
	t.Run("all", func(t *testing.T) {
		for seed := range uint64(3) {
			t.Run(fmt.Sprintf("bytes %d", seed), func(t *testing.T) {
				t.Parallel()
				posixtest.Exercise(t, m.dir, 100+seed, 1500)
			})
			t.Run(fmt.Sprintf("names %d", seed), func(t *testing.T) {
				t.Parallel()
				posixtest.ExerciseTree(t, m.dir, 100+seed, 1500)
			})
		}
	})
}

func TestMount_Helped_POSIXNames(t *testing.T) {
	m := mountVolume(t, serveHelped+"=1")
	posixtest.ExerciseTree(t, m.dir, 7, 500)
	f, err := os.Create(m.dir + "/f")
	m.must(err)
	if _, err := m.try("unmount"); err == nil || !strings.Contains(err.Error(), "still use it") {
		t.Errorf("unmount while a file is open: %v", err)
	}
	m.must(f.Close())
	m.do("unmount")
}

func TestMount_ReadOnly_Refuses(t *testing.T) {
	m := mountVolume(t, serveOptions+"=ro")
	if err := os.WriteFile(m.dir+"/f", nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("create: %v", err)
	}
	if err := unix.Mkdir(m.dir+"/d", 0o755); !errors.Is(err, unix.EROFS) {
		t.Errorf("mkdir: %v", err)
	}
}

func TestMount_MountTable_ShowsOptionsAndReadAhead(t *testing.T) {
	m := mountVolume(t, serveOptions+"=fsname=vol,noatime,noexec,max_read=65536")
	entry, found, err := mountedAt(m.dir)
	if err != nil || !found {
		t.Fatalf("not in the mount table: %v", err)
	}
	if entry.fsType != "fuse.cistern" {
		t.Errorf("type %s", entry.fsType)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	m.must(err)
	line := ""
	for l := range strings.Lines(string(mounts)) {
		if strings.Contains(l, " "+m.dir+" ") {
			line = l
		}
	}
	for _, want := range []string{"vol ", "nosuid", "nodev", "noexec", "noatime", "default_permissions", "allow_other", "max_read=65536"} {
		if !strings.Contains(line, want) {
			t.Errorf("%s is not in %q", want, line)
		}
	}
	kib, err := os.ReadFile("/sys/class/bdi/" + entry.device + "/read_ahead_kb")
	m.must(err)
	if got := strings.TrimSpace(string(kib)); got != "4096" {
		t.Errorf("read-ahead is %s KiB", got)
	}
}

func TestServer_Unmount_BusyThenFree(t *testing.T) {
	m := mountVolume(t)
	f, err := os.Create(m.dir + "/f")
	m.must(err)
	if _, err := m.try("unmount"); err == nil || !strings.Contains(err.Error(), "still use it") {
		t.Fatalf("unmount while a file is open: %v", err)
	}
	if _, err := f.WriteString("the mount still works"); err != nil {
		t.Fatal(err)
	}
	m.must(f.Close())
	m.do("unmount")
	if _, found, _ := mountedAt(m.dir); found {
		t.Error("still mounted")
	}
	m.do("unmount") // again
	if got := m.do("dead"); got != "true" {
		t.Errorf("dead is %s", got)
	}
}

func TestServer_Detach_OpenFileGoesOn(t *testing.T) {
	m := mountVolume(t)
	f, err := os.Create(m.dir + "/f")
	m.must(err)
	m.do("detach")
	if _, found, _ := mountedAt(m.dir); found {
		t.Error("still in the tree")
	}
	if _, err := f.WriteString("x"); err != nil {
		t.Errorf("write after detach: %v", err)
	}
	if got := m.do("dead"); got != "false" {
		t.Errorf("dead is %s", got)
	}
	m.must(f.Close())
}

func TestServer_ExternalUnmount_EndsTheServer(t *testing.T) {
	m := mountVolume(t)
	m.must(unix.Unmount(m.dir, 0))
	m.do("unmount")
}

func TestServer_Abort_ClosesWhatWasOpen(t *testing.T) {
	m := mountVolume(t)
	f, err := os.Create(m.dir + "/f")
	m.must(err)
	defer f.Close()
	if got := m.do("open"); got != "1" {
		t.Fatalf("%s files are open", got)
	}
	entry, _, err := mountedAt(m.dir)
	m.must(err)
	_, minor, _ := strings.Cut(entry.device, ":")
	control := t.TempDir()
	m.must(unix.Mount("fusectl", control, "fusectl", 0, ""))
	defer unix.Unmount(control, 0)
	m.must(os.WriteFile(control+"/"+minor+"/abort", []byte("1"), 0))
	if _, err := f.WriteString("x"); !errors.Is(err, unix.ENOTCONN) && !errors.Is(err, unix.ECONNABORTED) {
		t.Errorf("write after the abort: %v", err)
	}
	m.must(unix.Unmount(m.dir, unix.MNT_DETACH))
	m.do("unmount")
	if got := m.do("open"); got != "0" {
		t.Errorf("%s files are open", got)
	}
}

func TestServer_Release_GivesHandlesBack(t *testing.T) {
	m := mountVolume(t)
	for range 300 {
		m.must(os.WriteFile(m.dir+"/f", []byte("x"), 0o644))
	}
	f, err := os.Open(m.dir + "/f")
	m.must(err)
	defer f.Close()
	for m.do("open") != "1" { // RELEASE comes after close has returned
	}
}

func TestServer_InvalidateEntry_ShowsANewName(t *testing.T) {
	m := mountVolume(t)
	p := m.dir + "/f"
	missing := func() bool { return errors.Is(unix.Stat(p, new(unix.Stat_t)), unix.ENOENT) }
	if !missing() {
		t.Fatal("there before it was made")
	}
	m.do("create f")
	if !missing() {
		t.Error("the kernel does not remember that a name is missing")
	}
	m.do("invalidate-entry f")
	if missing() {
		t.Error("missing after invalidation")
	}
	m.do("unlink f")
	if missing() {
		t.Error("the kernel does not remember names")
	}
	m.do("invalidate-entry f")
	if !missing() {
		t.Error("there after invalidation")
	}
	m.do("invalidate-entry f") // one that the kernel does not know
}

// A name that the kernel believes to be free and that was taken: what is there is
// opened, by those who may.
func TestMount_Create_NameWasTaken(t *testing.T) {
	m := mountVolume(t)
	m.must(os.Chmod(m.dir, 0o777))
	taken := func(name string) string {
		p := m.dir + "/" + name
		if err := unix.Stat(p, new(unix.Stat_t)); !errors.Is(err, unix.ENOENT) {
			t.Fatalf("%s before it was made: %v", name, err)
		}
		m.do("write %s there", m.do("create %s", name)) // of mode 0644
		return p
	}
	b := make([]byte, 5)
	f, err := os.OpenFile(taken("a"), os.O_CREATE|os.O_RDWR, 0o666)
	m.must(err)
	if _, err := f.ReadAt(b, 0); string(b) != "there" {
		t.Errorf("read %q, %v", b, err)
	}
	m.must(f.Close())
	if _, err := os.OpenFile(taken("b"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o666); !errors.Is(err, unix.EEXIST) {
		t.Errorf("with O_EXCL: %v", err)
	}
	p := taken("c")
	c := exec.Command("/bin/sh", "-c", `echo mine >>"$0"`, p)
	c.Dir, c.SysProcAttr = "/", &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	if said, err := c.CombinedOutput(); err == nil || !strings.Contains(string(said), "Permission denied") {
		t.Errorf("one who may not write opened it: %s, %v", said, err)
	}
	if got, err := os.ReadFile(p); string(got) != "there" {
		t.Errorf("%q, %v", got, err)
	}
	f, err = os.OpenFile(taken("d"), os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o666)
	m.must(err)
	m.must(f.Close())
	if got, err := os.ReadFile(m.dir + "/d"); len(got) != 0 || err != nil {
		t.Errorf("%q after O_TRUNC, %v", got, err)
	}
}

func TestServer_InvalidateEntry_RefreshesListings(t *testing.T) {
	m := mountVolume(t)
	count := func() int { entries, err := os.ReadDir(m.dir); m.must(err); return len(entries) }
	for range 3 { // the kernel caches what was listed twice
		if got := count(); got != 0 {
			t.Fatalf("%d names", got)
		}
	}
	m.do("create f")
	m.do("invalidate-entry f")
	if got := count(); got != 1 {
		t.Errorf("%d names after invalidation", got)
	}
}

func TestServer_Invalidate_ShowsNewBytes(t *testing.T) {
	m := mountVolume(t)
	p := m.dir + "/f"
	m.must(os.WriteFile(p, []byte("before"), 0o644))
	var st unix.Stat_t
	m.must(unix.Stat(p, &st))
	read := func() string { b, err := os.ReadFile(p); m.must(err); return string(b) }
	if got := read(); got != "before" {
		t.Fatalf("read %q", got)
	}
	m.do("write %d after!", st.Ino)
	if got := read(); got != "before" {
		t.Errorf("the kernel does not cache pages: read %q", got)
	}
	m.do("invalidate %d", st.Ino)
	if got := read(); got != "after!" {
		t.Errorf("read %q after it was told", got)
	}
	m.do("invalidate 123456789") // one that the kernel does not know
	m.do("invalidate-attr %d", st.Ino)
}

func TestMount_Passthrough_ReadsTheBackingFile(t *testing.T) {
	backing := filepath.Join(t.TempDir(), "backing")
	if err := os.WriteFile(backing, []byte("behind"), 0o644); err != nil {
		t.Fatal(err)
	}
	m := mountVolume(t, serveBacking+"="+backing)
	ino := m.do("create f")
	m.do("write %s volume", ino)
	for range 3 {
		b, err := os.ReadFile(m.dir + "/f")
		m.must(err)
		if string(b) != "behind" {
			t.Fatalf("read %q, not the backing file", b)
		}
	}
}

func TestMount_Passthrough_RefusedByTheKernel(t *testing.T) {
	m := mountVolume(t, serveBacking+"=/proc/self/status") // of a file system that can't back
	ino := m.do("create f")
	m.do("write %s volume", ino)
	b, err := os.ReadFile(m.dir + "/f")
	m.must(err)
	if string(b) != "volume" {
		t.Fatalf("read %q", b)
	}
}

func TestMount_Twice_IsRefused(t *testing.T) {
	m := mountVolume(t)
	_, err := tryMount(t, m.dir)
	if err == nil || !strings.Contains(err.Error(), "already") {
		t.Errorf("a second mount: %v", err)
	}
}

func TestMountView_ShowsTheCommit(t *testing.T) {
	m := mountVolume(t, serveView+"=1")
	b, err := os.ReadFile(m.dir + "/d/l") // a link to f
	m.must(err)
	want := append(make([]byte, 1<<20), "content"...)
	if string(b) != string(want) {
		t.Errorf("read %d bytes, want %d", len(b), len(want))
	}
	var names []string
	for range 2 {
		entries, err := os.ReadDir(m.dir)
		m.must(err)
		names = names[:0]
		for _, e := range entries {
			names = append(names, e.Name())
		}
	}
	if got := strings.Join(names, " "); got != "d f" {
		t.Errorf("names %q", got)
	}
	value := make([]byte, 10)
	n, err := unix.Getxattr(m.dir+"/f", "user.a", value)
	if err != nil || string(value[:n]) != "v" {
		t.Errorf("attribute %q, %v", value[:max(n, 0)], err)
	}
	if _, err := os.ReadFile(m.dir + "/no"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a missing name: %v", err)
	}
	if err := os.WriteFile(m.dir+"/f", nil, 0o644); !errors.Is(err, unix.EROFS) {
		t.Errorf("write: %v", err)
	}
	if err := os.Remove(m.dir + "/f"); !errors.Is(err, unix.EROFS) {
		t.Errorf("remove: %v", err)
	}
	var st unix.Statfs_t
	m.must(unix.Statfs(m.dir, &st))
	if st.Bavail != 0 || st.Files < 3 {
		t.Errorf("statfs %+v", st)
	}
	fd, err := unix.Open(m.dir+"/f", unix.O_RDONLY, 0)
	m.must(err)
	defer unix.Close(fd)
	for _, c := range []struct {
		from   int64
		whence int
		want   int64
	}{
		{5, unix.SEEK_HOLE, 5}, {5, unix.SEEK_DATA, 1 << 20}, {1 << 20, unix.SEEK_HOLE, 1<<20 + 7}, {1<<20 + 3, unix.SEEK_DATA, 1<<20 + 3},
	} {
		if off, err := unix.Seek(fd, c.from, c.whence); err != nil || off != c.want {
			t.Errorf("seek %d from %d: %d, %v, want %d", c.whence, c.from, off, err, c.want)
		}
	}
	if _, err := unix.Seek(fd, 1<<20+7, unix.SEEK_DATA); !errors.Is(err, unix.ENXIO) {
		t.Errorf("SEEK_DATA at the end: %v", err)
	}
}
