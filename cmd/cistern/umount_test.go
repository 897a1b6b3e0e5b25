package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/cisternfs/cistern/internal/testenv"
)

// hungPlace is a mount with a file that is not committed, whose store has just begun
// to hang: no request has failed yet that could say so.
func hungPlace(t *testing.T) (*awayPlace, []byte) {
	t.Helper()
	a := newAwayPlace(t, outage{})
	a.env[timeoutSetting] = "60"
	a.mustBinary("mount", awayURL, a.mnt, "--state", a.path("state"), "--commit-interval", "1h")
	t.Cleanup(func() {
		if r, ok := (&app{lookup: os.LookupEnv}).findRecord(a.mnt); ok {
			a.kill(r.PID)
			_ = syscall.Unmount(a.mnt, syscall.MNT_DETACH) // it may be gone
		}
	})
	body := random(300 << 10)
	if err := os.WriteFile(filepath.Join(a.mnt, "file"), body, 0o644); err != nil {
		t.Fatal(err)
	}
	a.way.lead("")
	return a, body
}

// An unmount that the store keeps from its last commit says what is only here, why,
// where, and what to do, and what it says to do works.
func TestUmount_StoreHangs_SaysWhatIsLeftAndWhere(t *testing.T) {
	testenv.Long(t)
	a, body := hungPlace(t)
	state := a.path("state")
	status, _, errs := a.binary("umount", a.mnt)
	checkFailure(t, []string{"umount"}, exitStore, "changes are only in the local journal: 307200 bytes: object store failed: nothing has reached the bucket for 10s", status, errs)
	again := []string{"mount", awayURL, a.mnt, "--state", state}
	if !strings.Contains(errs, "kept in the state directory "+state+": `cistern "+strings.Join(again, " ")+"`") || strings.Contains(errs, "interrupted") {
		t.Errorf("umount says %s", errs)
	}
	a.way.lead(a.good)
	a.mustBinary(again...)
	a.endMount(a.mnt)
	if got := a.must("cat", awayURL, "file"); got != string(body) {
		t.Error("the bucket has not what was left in the journal")
	}
}

// Who interrupts the wait of an unmount hears what goes on without him.
func TestUmount_Interrupted_SaysWhatGoesOn(t *testing.T) {
	a, _ := hungPlace(t)
	c, errs := a.start("", "umount", a.mnt)
	eventually(t, "the mount is out of the tree", func() bool { _, there, err := findMount(a.mnt); return err == nil && !there })
	if err := c.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait() // its status is looked at below
	checkFailure(t, c.Args, exitFailed, "interrupted: "+a.mnt+" is unmounted, and its process goes on", c.ProcessState.ExitCode(), errs.String())
	if !strings.Contains(errs.String(), "in the journal in "+a.path("state")+",") {
		t.Errorf("umount says %s", errs)
	}
}

// A mount that lost its volume when it had committed everything says that nothing is
// to be salvaged.
func TestUmount_FencedWithEverythingCommitted_SaysSo(t *testing.T) {
	p, mnt := mountPlace(t)
	pid := p.mount("--commit-interval", "1h")
	p.write("mnt/a", random(1000))
	p.must("sync", mnt)
	other := p.path("other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	p.mustBinary("mount", p.url(), other, "--state", p.path("other state"), "--takeover")
	p.mustBinary("umount", other)
	eventually(t, "the mount is fenced", func() bool { return !decode[mountStatus](t, p.must("status", "--json", mnt)).Owns })
	status, _, errs := p.binary("umount", mnt)
	checkFailure(t, []string{"umount"}, exitOwned, "there is nothing of that: everything was committed before", status, errs)
	p.unmounted(pid)
	if found, err := filepath.Glob(p.path("state", "quarantine", "*")); err != nil || len(found) > 0 {
		t.Errorf("set aside: %v, %v", found, err)
	}
}
