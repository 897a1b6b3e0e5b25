package main

import (
	"bytes"
	"context"
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

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/objstore/local"
)

// mountPlace is a place with a formatted volume and a mount point.
func mountPlace(t *testing.T) (p *place, mnt string) {
	t.Helper()
	return mountPlaceOf(t, func(*place) []string { return nil })
}

// mountPlaceOf is mountPlace with more flags for format.
func mountPlaceOf(t *testing.T, flags func(p *place) []string) (p *place, mnt string) {
	t.Helper()
	testenv.NeedFUSE(t)
	p = newPlace(t)
	mnt = p.path("mnt")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	p.must(append([]string{"format", p.url(), "--object-size", "1M"}, flags(p)...)...)
	t.Cleanup(func() {
		if t.Failed() {
			log, err := os.ReadFile(p.path("state", logName))
			t.Logf("log of the mount (%v):\n%s", err, log)
		}
		if r, ok := (&app{lookup: os.LookupEnv}).findRecord(mnt); ok {
			p.kill(r.PID)
		}
		if err := syscall.Unmount(mnt, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("clean up: %v", err)
		}
	})
	return p, mnt
}

// mount mounts in the background and returns the serving process's id.
func (p *place) mount(more ...string) int {
	p.t.Helper()
	args := append([]string{"mount", p.url(), p.path("mnt"), "--state", p.path("state")}, more...)
	if out := p.mustBinary(args...); !strings.Contains(out, "is mounted on "+p.path("mnt")) {
		p.t.Errorf("mount says %q", out)
	}
	return decode[mountStatus](p.t, p.must("status", "--json", p.path("mnt"))).PID
}

// kill ends a process of a mount as a crash does, and waits for that.
func (p *place) kill(pid int) {
	p.t.Helper()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		p.t.Fatal(err)
	}
	waitGone(context.Background(), pid)
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func TestMount_Daemon_CommandsGoThroughItsSocket(t *testing.T) {
	p, mnt := mountPlace(t)
	pid := p.mount()
	big := random(3<<20 + 77)
	if err := os.WriteFile(filepath.Join(mnt, "big"), big, 0o644); err != nil {
		t.Fatal(err)
	}
	for _, vol := range []string{mnt, p.url()} {
		if got := p.must("cat", vol, "big"); got != string(big) {
			t.Errorf("cat through %s differs", vol)
		}
		// The kernel believes that there is no such file, then an old one.
		name := "put" + filepath.Base(vol)
		if _, err := os.Stat(filepath.Join(mnt, name)); !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		for _, content := range []string{"one", "two and more", ""} {
			p.stdin = content
			p.must("put", vol, "-", name)
			if got := readFile(t, filepath.Join(mnt, name)); got != content {
				t.Errorf("the mount shows %q after put of %q", got, content)
			}
		}
		p.must("put", "-p", vol, p.write("local", big), "new/dir/big")
		if got := readFile(t, filepath.Join(mnt, "new/dir/big")); got != string(big) {
			t.Error("the mount shows other bytes than were put")
		}
		p.must("get", vol, "new", p.path("got"))
		if got := readFile(t, p.path("got", "dir", "big")); got != string(big) {
			t.Error("get gives other bytes than were put")
		}
		os.RemoveAll(p.path("got"))
		p.must("rm", "-r", vol, "new")
		if _, err := os.Stat(filepath.Join(mnt, "new")); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the mount shows what was removed: %v", err)
		}
		p.must("sync", vol)
		p.must("check", "--data", vol)
		p.must("collect", "--dry-run", vol)
		p.must("du", vol)
		p.must("log", vol)
		p.must("status", vol)
		p.must("ls", "-lR", "--slots", vol)
		if f := decode[topFrame](t, p.must("top", "--once", "--json", "--interval", "100ms", vol)); f.Status.PID != pid {
			t.Errorf("top: %+v", f.Status)
		}
		if out := p.must("top", "--once", "--interval", "100ms", vol); !strings.Contains(out, "uncommitted") {
			t.Errorf("top: %q", out)
		}
		p.fails(1, "/none: no such file", "cat", vol, "none")
		p.fails(1, "not a directory", "put", vol, p.path("local"), "big/x")
	}
	if out := p.must("dump", "journal", mnt); !strings.Contains(out, ".jnl") {
		t.Errorf("dump journal: %q", out)
	}
	if items := decode[[]journalItem](t, p.must("dump", "journal", "--json", "--data", mnt)); len(items) == 0 || items[0].Kind == "" {
		t.Errorf("dump journal --json: %+v", items)
	}
	if got := p.must("ls", mnt+"@1"); got != "" {
		t.Errorf("ls of the first commit through the mount: %q", got)
	}
	out := p.mustBinary("umount", mnt)
	if !strings.Contains(out, "everything is in commit") {
		t.Errorf("umount says %q", out)
	}
	p.unmounted(pid)
	p.must("check", "--data", p.url())
	if got := p.must("cat", p.url(), "big"); got != string(big) {
		t.Error("the bucket alone gives other bytes")
	}
	// The lease was given back: another state directory needs not wait for it.
	p.must("rm", p.url(), "big")
}

// unmounted checks that nothing of a mount is left but its state.
func (p *place) unmounted(pid int) {
	p.t.Helper()
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/exe", pid)); err == nil {
		p.t.Error("the mount's process runs on")
	}
	if _, err := os.Stat(p.path("state", socketName)); err == nil {
		p.t.Error("the control socket is left")
	}
	if _, ok := (&app{lookup: os.LookupEnv}).findRecord(p.path("mnt")); ok {
		p.t.Error("the mount's record is left")
	}
	if m, ok, err := findMount(p.path("mnt")); ok || err != nil {
		p.t.Errorf("%v is mounted, %v", m, err)
	}
}

func TestMount_SecondMount_IsRefused(t *testing.T) {
	p, mnt := mountPlace(t)
	p.mount()
	other := p.path("other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{3, "mounted on", []string{"mount", p.url(), other, "--state", p.path("state")}},
		{2, "is mounted on " + mnt + " already", []string{"mount", p.url(), mnt, "--state", p.path("state2")}},
		{3, "has " + p.url() + " mounted on", []string{"mount", p.url(), other, "--state", p.path("state2")}},
		{3, "is mounted on", []string{"destroy", "--yes", mnt}},
		{3, "is mounted on this machine", []string{"destroy", "--yes", p.url()}},
		{2, "give the volume's URL", []string{"mount", mnt, other}},
	} {
		status, _, errs := p.binary(c.args...)
		checkFailure(t, c.args, c.status, c.want, status, errs)
	}
	// Another volume must not get this state directory.
	second := "file://" + p.path("bucket2")
	p.must("format", second)
	p.mustBinary("umount", mnt)
	status, _, errs := p.binary("mount", second, other, "--state", p.path("state"))
	checkFailure(t, nil, 2, "belongs to volume", status, errs)
}

func TestMount_UmountWhileBusy_MountStays(t *testing.T) {
	p, mnt := mountPlace(t)
	pid := p.mount()
	f, err := os.Create(filepath.Join(mnt, "open"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	status, _, errs := p.binary("umount", mnt)
	checkFailure(t, []string{"umount"}, 1, "programs still use it", status, errs)
	if _, err := f.Write([]byte("still there")); err != nil {
		t.Error(err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	p.mustBinary("umount", mnt)
	p.unmounted(pid)
	if got := p.must("cat", p.url(), "open"); got != "still there" {
		t.Errorf("%q", got)
	}
}

func TestMount_KilledAndMountedAgain_HasEverythingAcknowledged(t *testing.T) {
	p, mnt := mountPlace(t)
	for round := range 3 {
		pid := p.mount("--commit-interval", "1h")
		if err := os.WriteFile(filepath.Join(mnt, fmt.Sprint("file", round)), random(100000), 0o644); err != nil {
			t.Fatal(err)
		}
		p.kill(pid)
		// Who asks meanwhile gets the last commit, and hears of it.
		status, _, errs := p.run("ls", mnt)
		if status != 0 || !strings.Contains(errs, "is gone: this is the last commit") {
			t.Errorf("ls of a dead mount: %d %q", status, errs)
		}
		p.fails(3, "not given back", "rm", p.url(), "file0")
		// Nor does taking over lose what the killed mount acknowledged.
		p.fails(3, "may hold what", "rm", p.url(), "file0", "--takeover")
		p.fails(3, "may hold what", "collect", p.url(), "--dry-run", "--takeover")
		p.fails(1, "is gone", "sync", mnt)
		status, _, errs = p.binary("umount", mnt)
		checkFailure(t, []string{"umount"}, 1, p.path("state"), status, errs)
	}
	p.mount()
	for round := range 3 {
		if got := readFile(t, filepath.Join(mnt, fmt.Sprint("file", round))); got != string(random(100000)) {
			t.Errorf("file%d lost what was acknowledged", round)
		}
	}
	p.mustBinary("umount", mnt)
	p.must("check", "--data", p.url())
}

func TestMount_Signal_Unmounts(t *testing.T) {
	p, mnt := mountPlace(t)
	c := exec.Command(testenv.Cistern(t), "mount", p.url(), mnt, "--state", p.path("state"), "--foreground")
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	c.Stderr = &errs
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 4096)
	if n, err := out.Read(buf); err != nil || !strings.Contains(string(buf[:n]), "ready") {
		t.Fatalf("%q, %v, %s", buf[:n], err, errs.String())
	}
	if err := os.WriteFile(filepath.Join(mnt, "a"), []byte("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, out)
	if err := c.Wait(); err != nil {
		t.Errorf("%v: %s", err, errs.String())
	}
	if got := p.must("cat", p.url(), "a"); got != "a" {
		t.Errorf("%q", got)
	}
	p.unmounted(c.Process.Pid)
}

func TestMount_BucketAway_UmountLeavesTheRestInTheJournal(t *testing.T) {
	for _, noWait := range []bool{true, false} {
		t.Run(fmt.Sprintf("no-wait=%v", noWait), func(t *testing.T) {
			if !noWait {
				testenv.Long(t)
			}
			p, mnt := mountPlace(t)
			pid := p.mount("--commit-interval", "1h")
			if err := os.Rename(p.path("bucket"), p.path("away")); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(mnt, "a"), random(1<<20), 0o644); err != nil {
				t.Fatal(err)
			}
			args := []string{"umount", mnt}
			if noWait {
				args = append(args, "--no-wait")
			}
			status, out, errs := p.binary(args...)
			where := "; they are kept in the state directory " + p.path("state") + ": `cistern mount " + p.url() + " " + mnt + " --state " + p.path("state") + "` goes on from there"
			if noWait && (status != 0 || !strings.Contains(out, "left in the journal: changes are only in the local journal: 1048576 bytes") || !strings.Contains(out, where)) {
				t.Errorf("%d %q %q", status, out, errs)
			}
			if !noWait {
				checkFailure(t, args, 5, "only in the local journal: 1048576 bytes", status, errs)
				checkFailure(t, args, 5, where, status, errs)
			}
			p.unmounted(pid)
			if err := os.Rename(p.path("away"), p.path("bucket")); err != nil {
				t.Fatal(err)
			}
			p.fails(1, "/a: no such file", "cat", p.url(), "a")
			p.mount()
			if got := readFile(t, filepath.Join(mnt, "a")); got != string(random(1<<20)) {
				t.Error("what was left in the journal is lost")
			}
			p.mustBinary("umount", mnt)
			if got := p.must("cat", p.url(), "a"); got != string(random(1<<20)) {
				t.Error("the bucket has not what was left in the journal")
			}
		})
	}
}

func TestMount_TakenOver_StaysReadOnlyAndSaysWhy(t *testing.T) {
	p, mnt := mountPlace(t)
	addr := fmt.Sprintf("127.0.0.1:%d", testenv.FreePort(t))
	p.mount("--metrics-addr", addr)
	if code, text := fetch(t, addr, "/healthz"); code != 200 || text != "ok\n" {
		t.Errorf("healthz: %d %q", code, text)
	}
	if code, text := fetch(t, addr, "/metrics"); code != 200 || !strings.Contains(text, "cistern_dirty_bytes") || !strings.Contains(text, "cistern_objstore_requests_total") || !strings.Contains(text, "go_goroutines") {
		t.Errorf("metrics: %d %q", code, text)
	}
	s, err := local.Open(p.path("bucket"))
	if err != nil {
		t.Fatal(err)
	}
	v, err := gateway.Open(t.Context(), gateway.Options{
		Store: s, URL: p.url(), FS: vfs.OS(), StateDir: p.path("contender"), OpenKV: openKV(quietLogger()), Takeover: true,
		Owner: gateway.HostOwner(p.path("contender")),
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := v.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if err := os.WriteFile(filepath.Join(mnt, "a"), []byte("a"), 0o644); err != nil && !errors.Is(err, syscall.EROFS) {
		t.Error(err)
	}
	p.fails(3, "another writer owns the volume", "sync", mnt)
	if err := os.WriteFile(filepath.Join(mnt, "b"), []byte("b"), 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("write after the take-over: %v", err)
	}
	if st := decode[mountStatus](t, p.must("status", "--json", mnt)); st.Healthy || !strings.Contains(st.ReadOnly, "another writer") {
		t.Errorf("status: %+v", st)
	}
	if code, text := fetch(t, addr, "/healthz"); code != 503 || !strings.Contains(text, "another writer") {
		t.Errorf("healthz: %d %q", code, text)
	}
	status, _, errs := p.binary("umount", mnt)
	checkFailure(t, []string{"umount"}, 3, "another writer owns the volume", status, errs)
}

func fetch(t *testing.T, addr, path string) (int, string) {
	t.Helper()
	r, err := http.Get("http://" + addr + path)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestMount_LostJournal_NeedsConsent(t *testing.T) {
	p, mnt := mountPlace(t)
	p.kill(p.mount())
	if err := syscall.Unmount(mnt, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(p.path("state", "journal")); err != nil {
		t.Fatal(err)
	}
	args := []string{"mount", p.url(), mnt, "--state", p.path("state")}
	status, _, errs := p.binary(args...)
	checkFailure(t, args, 4, "--accept-lost-journal", status, errs)
	p.mount("--accept-lost-journal")
	p.mustBinary("umount", mnt)
}

func TestMount_PlainUmount_CommitsEverything(t *testing.T) {
	p, mnt := mountPlace(t)
	pid := p.mount("--commit-interval", "1h")
	if err := os.WriteFile(filepath.Join(mnt, "a"), []byte("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Unmount(mnt, 0); err != nil {
		t.Fatal(err)
	}
	waitGone(t.Context(), pid)
	p.unmounted(pid)
	if got := p.must("cat", p.url(), "a"); got != "a" {
		t.Errorf("%q", got)
	}
}

func TestMount_BusySignal_EndsInBoundedTime(t *testing.T) {
	testenv.Long(t)
	p, mnt := mountPlace(t)
	pid := p.mount("--commit-interval", "1h")
	f, err := os.Create(filepath.Join(mnt, "open"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write([]byte("acknowledged")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		waitGone(t.Context(), pid)
	}
	p.unmounted(pid)
	if got := p.must("cat", p.url(), "open"); got != "acknowledged" {
		t.Errorf("%q", got)
	}
}

func TestMount_BucketAway_StatusAnswersByURL(t *testing.T) {
	p, mnt := mountPlace(t)
	p.mount()
	if err := os.Rename(p.path("bucket"), p.path("away")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mnt, "a"), []byte("a"), 0o644); err != nil {
		t.Error(err)
	}
	for _, vol := range []string{mnt, p.url()} {
		if st := decode[mountStatus](t, p.must("status", "--json", vol)); !st.Healthy {
			t.Errorf("a bucket that is away makes the mount unhealthy: %+v", st)
		}
		if got := p.must("cat", vol, "a"); got != "a" {
			t.Errorf("cat: %q", got)
		}
	}
	if err := os.Rename(p.path("away"), p.path("bucket")); err != nil {
		t.Fatal(err)
	}
	p.must("sync", mnt)
	p.mustBinary("umount", mnt)
	if got := p.must("cat", p.url(), "a"); got != "a" {
		t.Errorf("%q", got)
	}
}

func TestMount_ConfigFile_GivesSettings(t *testing.T) {
	p, mnt := mountPlace(t)
	file := p.write("c.ini", []byte("[mount]\ncache-size = 32M\njournal_size = 8M\n"))
	p.env["CISTERN_JOURNAL_SIZE"] = "16M"
	p.mount("--config", file)
	st := decode[mountStatus](t, p.must("status", "--json", mnt))
	if st.Cache.Limit != 32<<20 || st.Journal.Limit != 16<<20 {
		t.Errorf("cache %d, journal %d", st.Cache.Limit, st.Journal.Limit)
	}
	p.mustBinary("umount", mnt)
}
