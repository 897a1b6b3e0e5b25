package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/metadata"
)

// A volume that is handed over while a program has a file open goes to another
// state directory at once, with everything, and comes back.
func TestHandover_OpenFile_NextOwnerNeedNotWait(t *testing.T) {
	p, mnt := mountPlace(t)
	pid := p.mount()
	big := random(3<<20 + 5)
	if err := os.WriteFile(filepath.Join(mnt, "big"), big, 0o644); err != nil {
		t.Fatal(err)
	}
	open, err := os.OpenFile(filepath.Join(mnt, "big"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	r := decode[handoverResult](t, p.must("handover", "--json", mnt))
	if r.Commit.N == 0 || r.URL != p.url() || string(r.MountPoint) != mnt || r.Kept {
		t.Errorf("handover says %+v", r)
	}
	if _, err := open.WriteAt([]byte("late"), 0); !errors.Is(err, syscall.EROFS) {
		t.Errorf("a write after the hand-over: %v", err)
	}
	if err := open.Sync(); err != nil {
		t.Errorf("fsync after the hand-over: %v", err)
	}
	got := make([]byte, 5)
	if _, err := open.ReadAt(got, 3<<20); err != nil || string(got) != string(big[3<<20:]) {
		t.Errorf("a read after the hand-over: %q, %v", got, err)
	}
	// Out of the directory tree already, and free for the next owner, which is
	// told not to wait.
	p.mustBinary("mount", p.url(), mnt, "--state", p.path("other"), "--wait", "0s")
	if got := readFile(t, filepath.Join(mnt, "big")); got != string(big) {
		t.Error("the next owner has other bytes")
	}
	if err := os.WriteFile(filepath.Join(mnt, "b"), []byte("by the next owner"), 0o644); err != nil {
		t.Fatal(err)
	}
	open.Close()
	waitGone(t.Context(), pid)
	if out := p.must("handover", mnt); !strings.Contains(out, "next: cistern mount "+p.url()) {
		t.Errorf("handover says %q", out)
	}
	p.mount("--wait", "0s")
	if got := readFile(t, filepath.Join(mnt, "b")); got != "by the next owner" {
		t.Errorf("back at the first owner: %q", got)
	}
	p.mustBinary("umount", mnt)
}

// With --keep the mount stays and shows what it gave away; commands by URL go to
// the bucket, and to the next owner.
func TestHandover_Keep_StaysReadOnly(t *testing.T) {
	p, mnt := mountPlace(t)
	pid := p.mount()
	if err := os.WriteFile(filepath.Join(mnt, "a"), []byte("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.must("handover", "--keep", mnt)
	if got := readFile(t, filepath.Join(mnt, "a")); got != "a" {
		t.Errorf("read %q", got)
	}
	if err := os.WriteFile(filepath.Join(mnt, "b"), nil, 0o644); !errors.Is(err, syscall.EROFS) {
		t.Errorf("create: %v", err)
	}
	st := decode[mountStatus](t, p.must("status", "--json", mnt))
	if st.Healthy || st.Owns || !strings.Contains(st.ReadOnly, "handed over at commit") {
		t.Errorf("status: %+v", st)
	}
	if out := p.must("status", p.url()); !strings.Contains(out, "not on this machine") || !strings.Contains(out, "none") {
		t.Errorf("status by URL: %q", out)
	}
	if again := decode[handoverResult](t, p.must("handover", "--keep", "--json", mnt)); again.Commit != st.Commit {
		t.Errorf("handing over what was handed over says %+v", again)
	}
	p.stdin = "new"
	p.must("put", p.url(), "-", "a") // a command may own it now
	if got := p.must("cat", p.url(), "a"); got != "new" {
		t.Errorf("cat by URL: %q", got)
	}
	if got := p.must("cat", mnt, "a"); got != "a" {
		t.Errorf("cat by directory: %q", got)
	}
	p.mustBinary("umount", mnt)
	p.unmounted(pid)
}

// A hand-over that can't come about, or is interrupted, leaves a mount that works.
func TestHandover_BucketAway_MountGoesOn(t *testing.T) {
	testenv.Long(t)
	p, mnt := mountPlace(t)
	p.mount()
	if err := os.Rename(p.path("bucket"), p.path("away")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(mnt, "a"), []byte("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	status, _, errs := p.binary("handover", mnt)
	checkFailure(t, []string{"handover"}, 5, "the mount goes on", status, errs)
	if err := os.WriteFile(filepath.Join(mnt, "b"), []byte("b"), 0o644); err != nil {
		t.Errorf("a write after the failed hand-over: %v", err)
	}
	status, _, errs = p.binary("sync", "--timeout", "2500ms", mnt)
	if status != 5 || !strings.Contains(errs, "waiting for the bucket: ") || !strings.Contains(errs, "not everything is in the bucket after 2.5s") {
		t.Errorf("sync: %d %q", status, errs)
	}
	if err := os.Rename(p.path("away"), p.path("bucket")); err != nil {
		t.Fatal(err)
	}
	p.must("handover", mnt)
	for name := range map[string]string{"a": "", "b": ""} {
		if got := p.must("cat", p.url(), name); got != name {
			t.Errorf("%s is %q in the bucket", name, got)
		}
	}
}

func TestHandover_BadTarget_IsRefused(t *testing.T) {
	p, mnt := mountPlace(t)
	p.fails(2, "neither a URL", "handover", mnt)
	p.fails(2, "only a directory", "handover", p.url())
	p.kill(p.mount())
	p.fails(1, "is gone", "handover", mnt)
}

// A second mount of a volume that is mounted here is refused at once with where
// it is; a killed owner is named, and what brings back what it had.
func TestMount_OwnedHere_SaysWhere(t *testing.T) {
	p, mnt := mountPlace(t)
	pid := p.mount()
	other := p.path("other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	for _, state := range []string{"state", "contender"} {
		status, _, errs := p.binary("mount", p.url(), other, "--state", p.path(state))
		checkFailure(t, []string{"mount"}, 3, "mounted on "+mnt, status, errs)
	}
	t.Logf("two refusals took %v", time.Since(begin))
	if _, err := os.Stat(p.path("contender", "owner.json")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the refused mount left a state directory: %v", err)
	}
	status, _, errs := p.binary("mount", p.url(), other, "--state", p.path("contender"), "--wait", "1s")
	checkFailure(t, []string{"mount", "--wait"}, 3, "process "+strconv.Itoa(pid), status, errs)
	p.kill(pid)
	for _, vol := range []string{p.url(), mnt} {
		if vol == mnt {
			out := p.must("status", vol)
			if !strings.Contains(out, "cistern umount "+mnt) || !strings.Contains(out, "--state "+p.path("state")) {
				t.Errorf("status of the dead mount: %q", out)
			}
		}
		st := decode[volumeStatus](t, p.must("status", "--json", vol))
		if !strings.Contains(st.Advice, "process "+strconv.Itoa(pid)) || st.Released {
			t.Errorf("status after a kill: %+v", st)
		}
	}
	status, _, errs = p.binary("mount", p.url(), other, "--state", p.path("contender"), "--wait", "0s")
	checkFailure(t, []string{"mount", "--wait=0s"}, 3, "not given back", status, errs)
	status, _, errs = p.binary("mount", p.url(), other, "--state", p.path("contender"), "--wait", "5s", "--takeover")
	checkFailure(t, []string{"mount", "--wait", "--takeover"}, 2, "choose one", status, errs)
	if err := syscall.Unmount(mnt, syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	p.mount()
	p.mustBinary("umount", mnt)
}

func TestStatus_LeaseOfThisMachine_Advice(t *testing.T) {
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		l    metadata.Lease
		want bool
	}{
		{metadata.Lease{Owner: metadata.Owner{Host: host, PID: 7, StateDir: "/s"}}, true},
		{metadata.Lease{Owner: metadata.Owner{Host: host, PID: 7, StateDir: "/s"}, Released: true}, false},
		{metadata.Lease{Owner: metadata.Owner{Host: host + "x", PID: 7, StateDir: "/s"}}, false},
		{metadata.Lease{Owner: metadata.Owner{Host: host, PID: 7}}, false},
	} {
		if got := ownerAdvice(target{}, &c.l); (got != "") != c.want {
			t.Errorf("%+v: %q", c.l, got)
		}
	}
}

// What owns nothing, or is a relay's, is not handed over, and its owner is told why.
func TestMountProcess_Handover_OfWhatIsNoMountThatIsWrittenTo(t *testing.T) {
	for want, m := range map[string]*mountProcess{
		"`cistern binlog stop`": {v: &relayed{}, relay: &relayed{}},
		"a read-only mount":     {v: &fixed{}},
	} {
		err := m.handover(t.Context(), false, func(handoverEvent) error { return nil })
		if err == nil || exitStatus(err) != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
