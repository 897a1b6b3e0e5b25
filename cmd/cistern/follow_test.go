package main

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/testenv"
)

// followAt mounts the volume, following its writer, and returns its status.
func (p *place) followAt(dir string, more ...string) mountStatus {
	p.t.Helper()
	args := append([]string{"mount", p.url(), dir, "--follow-interval", "30ms"}, more...)
	if out := p.mustBinary(args...); !strings.Contains(out, "is mounted on "+dir) {
		p.t.Errorf("mount says %q", out)
	}
	st := decode[mountStatus](p.t, p.must("status", "--json", dir))
	if st.Follow == nil || st.Point != nil || !st.Healthy {
		p.t.Fatalf("status of a mount that follows: %+v", st)
	}
	return st
}

// eventually waits until ok, for a bounded number of looks.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for try := 0; !ok(); try++ {
		if try == 600 {
			t.Fatalf("%s: not within 600 looks", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func (p *place) wantSoon(path, want string) {
	p.t.Helper()
	eventually(p.t, path, func() bool {
		got, err := os.ReadFile(path)
		return err == nil && string(got) == want
	})
}

func TestMount_ReadOnly_FollowsTheWriter(t *testing.T) {
	p, mnt := mountPlace(t)
	writer := p.mount("--commit-interval", "20ms")
	p.commit("early", []byte("there before"))
	dir, other := p.mountPoint("one"), p.mountPoint("two")
	st := p.followAt(dir, "--read-only", "--state", p.path("state2"), "--cache-size", "32M")
	if st.PID == writer || st.Cache.Limit != 32<<20 || st.StateDir != p.path("state2") {
		t.Errorf("status: %+v", st)
	}
	p.followAt(other, "-o", "ro")
	for _, d := range []string{dir, other} {
		p.wantSoon(filepath.Join(d, "early"), "there before")
	}
	big := random(3<<20 + 11)
	for _, body := range []string{"first", string(big), "", "last"} {
		if err := os.WriteFile(filepath.Join(mnt, "f"), []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
		for _, d := range []string{dir, other} {
			p.wantSoon(filepath.Join(d, "f"), body)
		}
	}
	f, err := os.Open(filepath.Join(dir, "f"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := syscall.Mmap(int(f.Fd()), 0, 4096, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	if string(page[:4]) != "last" {
		t.Errorf("through the mapping: %q", page[:4])
	}
	p.commit("f", []byte("next"))
	eventually(t, "the mapping", func() bool { return string(page[:4]) == "next" })
	if err := os.Rename(filepath.Join(mnt, "early"), filepath.Join(mnt, "f")); err != nil {
		t.Fatal(err)
	}
	p.wantSoon(filepath.Join(dir, "f"), "there before")
	if _, err := os.Stat(filepath.Join(dir, "early")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the old name: %v", err)
	}
	if _, err := f.ReadAt(make([]byte, 4), 0); !errors.Is(err, syscall.ESTALE) {
		t.Errorf("read of a replaced file: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "new"), nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a change of what is followed: %v", err)
	}
	if err := errors.Join(syscall.Munmap(page), f.Close()); err != nil {
		t.Fatal(err)
	}
	p.commit("big", big)
	p.wantSoon(filepath.Join(dir, "big"), string(big))
	p.followCommands(dir, writer)
	if len(p.pins()) != 0 {
		t.Errorf("pins: %v", p.pins())
	}
	p.fails(3, "is mounted on", "destroy", "--yes", dir)
	for _, d := range []string{dir, other} {
		if out := p.mustBinary("umount", d); !strings.Contains(out, "it showed commit") {
			t.Errorf("umount says %q", out)
		}
	}
	p.mustBinary("umount", mnt)
}

// followCommands runs commands on a mount that follows.
func (p *place) followCommands(dir string, writer int) {
	t := p.t
	t.Helper()
	for _, vol := range []string{dir, p.url()} {
		if got := p.must("cat", vol, "f"); got != "there before" {
			t.Errorf("cat of %s: %q", vol, got)
		}
		p.must("ls", "-lR", "--slots", vol)
		p.must("log", vol)
	}
	if got := decode[mountStatus](t, p.must("status", "--json", p.url())).PID; got != writer {
		t.Errorf("the volume's status comes from process %d, its writer is %d", got, writer)
	}
	if out := p.must("status", dir); !strings.Contains(out, "follows") || !strings.Contains(out, "lag") {
		t.Errorf("status: %q", out)
	}
	if out := p.must("top", "--once", "--interval", "100ms", dir); !strings.Contains(out, "follows") {
		t.Errorf("top: %q", out)
	}
	if f := decode[topFrame](t, p.must("top", "--once", "--json", "--interval", "100ms", dir)); f.Status.Follow == nil {
		t.Errorf("top: %+v", f.Status)
	}
	p.fails(2, "changes nothing", "rm", dir, "f")
	p.fails(2, "nothing to sync", "sync", dir)
	p.fails(2, "give the volume's URL", "check", dir)
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil || fs.Blocks == 0 || fs.Bfree != 0 {
		t.Errorf("statfs: %+v, %v", fs, err)
	}
}

func TestMount_ReadOnly_WriterFlagsAreRefused(t *testing.T) {
	p, _ := mountPlace(t)
	dir := p.mountPoint("one")
	for _, flag := range []string{"--durability=bucket", "--takeover", "--journal-size=64M", "--commit-interval=1s", "--limit-reached=wait", "--on-lease-lost=stop", "--accept-lost-journal", "--wait=1s"} {
		p.fails(2, "follows the volume's writer and has no journal and no lease", "mount", p.url(), dir, "--read-only", flag)
		p.fails(2, "follows the volume's writer and has no journal and no lease", "mount", p.url(), dir, "-o", "ro", flag)
	}
	p.fails(2, "only a mount with --read-only", "mount", p.url(), dir, "--follow-interval", "1s")
	p.fails(2, "only a mount with --read-only", "mount", p.url()+"@1", dir, "--read-only", "--follow-interval", "1s")
	p.fails(2, "it must be", "mount", p.url(), dir, "--read-only", "--follow-interval", "0s")
	p.mount()
	p.fails(2, "that of a mount that is written to", "mount", p.url(), dir, "--read-only", "--state", p.path("state"))
	p.mustBinary("umount", p.path("mnt"))
}

// Permission to read is enough: the bucket's directory can't be written to.
func TestMount_ReadOnly_OfABucketThatCantBeWritten(t *testing.T) {
	p, mnt := mountPlace(t)
	p.mount()
	p.commit("f", []byte("content"))
	sealed := p.path("sealed")
	if err := os.Mkdir(sealed, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount(p.path("bucket"), sealed, "", syscall.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(sealed, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	if err := syscall.Mount("", sealed, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	dir := p.mountPoint("one")
	p.mustBinary("mount", "file://"+sealed, dir, "--read-only", "--follow-interval", "30ms")
	p.wantSoon(filepath.Join(dir, "f"), "content")
	p.commit("f", []byte("and on"))
	p.wantSoon(filepath.Join(dir, "f"), "and on")
	p.mustBinary("umount", dir)
	p.mustBinary("umount", mnt)
}

// Another machine takes the volume over; who follows goes on to its commits.
func TestMount_ReadOnly_FollowsATakeover(t *testing.T) {
	p, mnt := mountPlace(t)
	pid := p.mount()
	p.commit("f", []byte("of the first"))
	dir := p.mountPoint("one")
	p.followAt(dir, "--read-only")
	p.kill(pid)
	if err := syscall.Unmount(mnt, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	p.mustBinary("mount", p.url(), mnt, "--state", p.path("state2"), "--takeover")
	p.commit("f", []byte("of the second"))
	p.wantSoon(filepath.Join(dir, "f"), "of the second")
	if st := decode[mountStatus](t, p.must("status", "--json", dir)); st.Commit.Epoch < 2 || st.Follow.Rebuilds != 0 {
		t.Errorf("status: %+v", st)
	}
	p.mustBinary("umount", dir)
	p.mustBinary("umount", mnt)
}

// While the bucket is away everything answers, what was read is read, and the
// status tells; when it is back the mount follows again.
func TestMount_ReadOnly_BucketAway(t *testing.T) {
	p, mnt := mountPlace(t)
	p.mount()
	p.commit("f", []byte("content"))
	dir := p.mountPoint("one")
	p.followAt(dir, "--read-only", "--state", p.path("state2"), "--metrics-addr", "127.0.0.1:0")
	p.wantSoon(filepath.Join(dir, "f"), "content")
	away := func(from, to string) {
		t.Helper()
		if err := os.Rename(p.path(from), p.path(to)); err != nil {
			t.Fatal(err)
		}
	}
	away("bucket", "away")
	status := func() mountStatus { return decode[mountStatus](t, p.must("status", "--json", dir)) }
	eventually(t, "the status tells", func() bool { return status().Follow.Error != "" })
	if st := status(); !st.Healthy || st.Follow.ErrorSince == nil {
		t.Errorf("status: %+v %+v", st, st.Follow)
	}
	if out := p.must("status", dir); !strings.Contains(out, "follow error") {
		t.Errorf("status: %q", out)
	}
	if got := readFile(t, filepath.Join(dir, "f")); got != "content" {
		t.Errorf("%q", got)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) != 1 {
		t.Errorf("ls: %v, %v", list, err)
	}
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		t.Errorf("df: %v", err)
	}
	away("away", "bucket")
	p.commit("f", []byte("it goes on"))
	p.wantSoon(filepath.Join(dir, "f"), "it goes on")
	eventually(t, "the status tells", func() bool { return status().Follow.Error == "" })
	p.mustBinary("umount", mnt)
	away("bucket", "away")
	if out, err := exec.Command(testenv.Cistern(t), "umount", dir).CombinedOutput(); err != nil {
		t.Errorf("umount: %v, %s", err, out)
	}
	away("away", "bucket")
}

// A mount that was killed leaves an index, from where the next one begins, and
// a cache that goes.
func TestMount_ReadOnly_Killed(t *testing.T) {
	p, mnt := mountPlace(t)
	p.mount()
	p.commit("f", random(2<<20))
	dir := p.mountPoint("one")
	state := p.path("state2")
	st := p.followAt(dir, "--read-only", "--state", state)
	readFile(t, filepath.Join(dir, "f"))
	p.kill(st.PID)
	p.fails(1, "takes the mount away", "status", dir)
	if status, got, errs := p.binary("cat", dir, "f"); status != 0 || got != string(random(2<<20)) || !strings.Contains(errs, "this is the last commit") {
		t.Errorf("cat of a dead mount: status %d, %d bytes, %q", status, len(got), errs)
	}
	if out := p.mustBinary("umount", dir); !strings.Contains(out, "is taken away") {
		t.Errorf("umount says %q", out)
	}
	if _, err := os.Stat(filepath.Join(state, followName, "cache")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("its cache is left: %v", err)
	}
	p.commit("g", []byte("later"))
	p.followAt(dir, "--read-only", "--state", state)
	p.wantSoon(filepath.Join(dir, "g"), "later")
	if log := readFile(t, filepath.Join(state, logName)); strings.Contains(log, "built anew") {
		t.Errorf("it did not begin from its index:\n%s", log)
	}
	p.mustBinary("umount", dir)
	p.mustBinary("umount", mnt)
}

// What read-only mounts that were killed left goes with the next one: caches at
// once, the rest after a week; what is in use stays.
func TestMount_ReadOnly_SweepsEndedMounts(t *testing.T) {
	base := t.TempDir()
	a := &app{base: base, lookup: os.LookupEnv}
	file := func(parts ...string) string {
		path := filepath.Join(append([]string{base}, parts...)...)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	long := time.Now().Add(-keepEndedState - time.Hour)
	old := file("point-old", logName)
	file("point-old", fixedName, "cache", "x")
	oldFollow := file("follow-old", logName)
	file("follow-old", followName, "index-1", "x")
	for _, f := range []string{old, oldFollow} {
		if err := os.Chtimes(f, long, long); err != nil {
			t.Fatal(err)
		}
	}
	file("follow-new", logName)
	cache, index := file("follow-new", followName, "cache", "x"), file("follow-new", followName, "index-1", "x")
	inUse := file("follow-used", followName, "cache", "x")
	writer := file("0123456789", "journal", "x")
	lock, err := os.Create(filepath.Join(base, "follow-used", "lock"))
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	a.sweepStates(quietLogger())
	for path, want := range map[string]bool{
		filepath.Dir(old): false, filepath.Dir(oldFollow): false, cache: false, index: true, inUse: true, writer: true,
	} {
		if _, err := os.Stat(path); (err == nil) != want {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// The metrics tell how far behind it is.
func TestMount_ReadOnly_Metrics(t *testing.T) {
	p, mnt := mountPlace(t)
	p.mount()
	p.commit("f", []byte("content"))
	dir := p.mountPoint("one")
	addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	p.followAt(dir, "--read-only", "--metrics-addr", addr)
	body := ""
	for _, path := range []string{"/metrics", "/healthz"} {
		r, err := http.Get("http://" + addr + path)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(r.Body)
		if err = errors.Join(err, r.Body.Close()); err != nil || r.StatusCode != http.StatusOK {
			t.Errorf("%s: %s, %v", path, r.Status, err)
		}
		body += string(b)
	}
	for _, want := range []string{"cistern_follow_lag_seconds ", "cistern_follow_lag_commits 0", "cistern_follow_failing 0", "ok\n"} {
		if !strings.Contains(body, want) {
			t.Errorf("%q is not among the answers", want)
		}
	}
	p.mustBinary("umount", dir)
	p.mustBinary("umount", mnt)
}
