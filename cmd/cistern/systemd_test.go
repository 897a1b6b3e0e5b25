package main

import (
	"context"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/coreos/go-systemd/v22/unit"
	"github.com/spf13/pflag"

	"github.com/cisternfs/cistern/internal/testenv"
)

const unitFolder = "../../scripts/systemd"

// unitKeys returns the values of a unit file, by section and key.
func unitKeys(t *testing.T, name string) map[string]string {
	t.Helper()
	f, err := os.Open(filepath.Join(unitFolder, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() // only read
	list, err := unit.DeserializeOptions(f)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	keys := map[string]string{}
	for _, o := range list {
		keys[o.Section+"/"+o.Name] = o.Value
	}
	return keys
}

// The units say what keeps a DBRoot whole: started when it serves, stopped after
// ColumnStore and with time for the last commit; and they call what there is.
func TestUnits_OrderTimeoutsAndCommands(t *testing.T) {
	u := unitKeys(t, "cistern@.service")
	for key, want := range map[string]string{
		"Unit/After": "network-online.target", "Unit/StartLimitIntervalSec": "0",
		"Service/Type": "notify", "Service/TimeoutStopSec": "15min", "Service/KillMode": "mixed", "Service/Restart": "on-failure",
		"Service/RestartPreventExitStatus": "2 3 4", "Install/WantedBy": "multi-user.target",
	} {
		if u[key] != want {
			t.Errorf("%s is %q, want %q", key, u[key], want)
		}
	}
	for _, name := range []string{"mcs-workernode@1", "mcs-writeengineserver", "mcs-primproc"} {
		if !slices.Contains(strings.Fields(u["Unit/Before"]), name+".service") {
			t.Errorf("it does not come before %s", name)
		}
	}
	d := unitKeys(t, "mcs-cistern.conf")
	if d["Unit/Requires"] != "cistern@data1.service" || d["Unit/After"] != d["Unit/Requires"] {
		t.Errorf("ColumnStore's units: %v", d)
	}
	args := strings.Fields(u["Service/ExecStart"])
	if len(args) < 3 || args[1] != "mount" || args[len(args)-1] != "/var/lib/columnstore/%i" {
		t.Fatalf("it starts %q", args)
	}
	f := pflag.NewFlagSet("mount", pflag.ContinueOnError)
	newMountOptions().mountFlags(f)
	f.String("config", "", "")
	if err := f.Parse(args[2:]); err != nil || f.NArg() != 1 || f.Lookup("foreground").Value.String() != "true" {
		t.Errorf("it starts %q: %v", args, err)
	}
}

// What the docs show is what the files have.
func TestUnits_DocsShowThem(t *testing.T) {
	docs := readFile(t, "../../docs/columnstore.md")
	for _, name := range []string{"cistern@.service", "mcs-cistern.conf"} {
		var shown strings.Builder
		for line := range strings.Lines(readFile(t, filepath.Join(unitFolder, name))) {
			if line != "\n" {
				line = "    " + line
			}
			shown.WriteString(line)
		}
		if !strings.Contains(docs, shown.String()) {
			t.Errorf("docs/columnstore.md does not show %s as it is", name)
		}
	}
}

// systemd itself finds nothing wrong.
func TestUnits_SystemdVerifies(t *testing.T) {
	testenv.NeedPrograms(t, "systemd-analyze")
	text := strings.ReplaceAll(readFile(t, filepath.Join(unitFolder, "cistern@.service")), "/usr/local/bin/cistern", testenv.Cistern(t))
	name := filepath.Join(t.TempDir(), "cistern@data1.service")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "systemd-analyze", "verify", "--man=no", name).CombinedOutput()
	if err != nil || strings.Contains(string(out), filepath.Base(name)) {
		t.Errorf("%v\n%s", err, out)
	}
}

// A service manager that waits hears that the mount serves when it does.
func TestMount_ServiceManager_HearsWhenItServes(t *testing.T) {
	p, mnt := mountPlace(t)
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: p.path("notify"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // only read
	p.env["NOTIFY_SOCKET"] = p.path("notify")
	c, errs := p.start("", "mount", p.url(), mnt, "--state", p.path("state"), "--foreground")
	if err := l.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 100)
	n, err := l.Read(said)
	if err != nil || string(said[:n]) != "READY=1" {
		t.Errorf("said %q, %v\n%s", said[:n], err, errs)
	}
	if _, mounted, err := findMount(mnt); err != nil || !mounted {
		t.Errorf("ready, and not mounted: %v", err)
	}
	if err := os.WriteFile(filepath.Join(mnt, "a"), []byte("x"), 0o644); err != nil {
		t.Error(err)
	}
	if err := errors.Join(c.Process.Signal(syscall.SIGTERM), c.Wait()); err != nil {
		t.Errorf("%v\n%s", err, errs)
	}
}
