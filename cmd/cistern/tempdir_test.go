package main

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/internal/testenv"
)

// tempEntries are the names in the temporary directory that a place's binaries use.
func (p *place) tempEntries() (names []string) {
	p.t.Helper()
	list, err := os.ReadDir(p.env["TMPDIR"])
	if err != nil {
		p.t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// ownTemp gives the binaries a temporary directory of their own.
func (p *place) ownTemp() string {
	p.t.Helper()
	dir := p.path("tmp")
	if err := os.Mkdir(dir, 0o755); err != nil {
		p.t.Fatal(err)
	}
	p.env["TMPDIR"] = dir
	return dir
}

func TestTempDir_LeftByTheKilled_TheNextCommandSweeps(t *testing.T) {
	dir := testenv.TempDir(t)
	t.Setenv("TMPDIR", dir)
	var all []*tempDir
	for _, prefix := range []string{indexPrefix, salvagePrefix, indexPrefix, restorePrefix} {
		d, err := newTempDir(prefix)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(filepath.Base(d.path), prefix) {
			t.Errorf("%s is called %s", prefix, d.path)
		}
		if err := os.MkdirAll(filepath.Join(d.path, "index", "deep"), 0o700); err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	foreign := filepath.Join(dir, indexPrefix+"foreign") // nobody's lock is in it
	open := filepath.Join(dir, indexPrefix+"open")       // others may write there
	for _, d := range []string{foreign, open} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(open, "lock"), nil, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	here := func(path string) bool {
		_, err := os.Lstat(path)
		return !errors.Is(err, os.ErrNotExist)
	}
	a := &app{stderr: os.Stderr}
	a.sweepTemp()
	for _, d := range all {
		if !here(filepath.Join(d.path, "index", "deep")) {
			t.Errorf("%s of a command that lives is taken away", d.path)
		}
	}
	for _, d := range all[1:] { // as the end of its process does
		if err := d.lock.Close(); err != nil {
			t.Fatal(err)
		}
	}
	a.sweepTemp()
	for i, want := range []bool{true, false, false, true} {
		if here(all[i].path) != want {
			t.Errorf("%s is there: %v", all[i].path, !want)
		}
	}
	if !here(foreign) || !here(open) {
		t.Error("what no command of this user made is taken away")
	}
	if err := all[0].remove(); err != nil || here(all[0].path) {
		t.Errorf("remove: %v", err)
	}
	var none *tempDir
	if err := none.remove(); err != nil {
		t.Error(err)
	}
}

func TestApp_TempDir_AnyCommandSweeps(t *testing.T) {
	p := newPlace(t)
	left := filepath.Join(p.ownTemp(), indexPrefix+"killed")
	p.must("format", p.url())
	for _, args := range [][]string{{"ls", p.url()}, {"status", p.url()}, {"rm", p.url(), "none"}} {
		if err := os.MkdirAll(filepath.Join(left, "index"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(left, "lock"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		p.binary(args...)
		if got := p.tempEntries(); got != nil {
			t.Errorf("after %v there is %v", args, got)
		}
	}
}

// runs says whether a process is there and has not ended.
func runs(pid int) bool {
	_, err := os.Stat("/proc/" + strconv.Itoa(pid) + "/exe")
	return err == nil
}

// A restore that is killed while its private server is at work takes the server with
// it, and its mount when that has committed. What the mount's death leaves, too, the
// next restore takes away before it begins.
func TestRestore_Killed_LeavesNothingRunning(t *testing.T) {
	testenv.NeedFUSE(t)
	p := newPlace(t)
	tmp := p.ownTemp()
	logs := "file://" + p.path("logs")
	p.must("format", logs, "--object-size", "1M")
	p.must("binlog", "adopt", logs, recordedLogs("m1011"))
	p.must("format", p.url(), "--object-size", "1M")
	p.stdin = "no database"
	p.must("put", p.url(), "-", "ibdata1")
	p.must("snapshot", "create", p.url(), "base")
	p.stdin = "more"
	p.must("put", p.url(), "-", "more")
	// It starts, and never answers.
	server := p.write("server", []byte("#!/bin/sh\necho $$ >\""+p.path("pid")+".new\"\nmv \""+p.path("pid")+".new\" \""+p.path("pid")+"\"\nexec sleep 1000\n"))
	if err := os.Chmod(server, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, both := range []bool{false, true} {
		c, errs := p.start("", "restore", p.url()+"@base", "--to-gtid", "3-11-8", "--binlog", logs, "--server", server)
		ended := make(chan error, 1)
		go func() { ended <- c.Wait() }()
		eventually(t, "the private server is started", func() bool {
			select {
			case err := <-ended:
				t.Fatalf("the restore ended: %v, %s", err, errs)
			default:
			}
			_, err := os.Stat(p.path("pid"))
			return err == nil
		})
		if got := p.tempEntries(); len(got) != 1 || !strings.HasPrefix(got[0], restorePrefix) {
			t.Fatalf("temporary directories %v", got)
		}
		mnt := filepath.Join(tmp, p.tempEntries()[0], privateMountPoint)
		r, found := (&app{lookup: os.LookupEnv}).findRecord(mnt)
		if _, there, err := findMount(mnt); !found || !there || err != nil {
			t.Fatalf("no private mount on %s: %v", mnt, err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(readFile(t, p.path("pid"))))
		if err != nil {
			t.Fatal(err)
		}
		if both {
			p.kill(r.PID)
		}
		p.kill(c.Process.Pid)
		<-ended
		eventually(t, "the server and the mount's process are gone", func() bool {
			return !runs(pid) && !runs(r.PID)
		})
		if _, there, err := findMount(mnt); there != both || err != nil {
			t.Errorf("the mount is there: %v, %v", there, err)
		}
		status, out, notes := p.binary("restore", p.url()+"@base")
		if status != 0 || !strings.Contains(out, "what was there before is snapshot") || !strings.Contains(notes, "what a killed restore had left in "+filepath.Dir(mnt)+" was taken away") {
			t.Errorf("the next restore: %d, %q, %s", status, out, notes)
		}
		if _, there, err := findMount(mnt); there || err != nil {
			t.Errorf("after the next restore the mount is there: %v, %v", there, err)
		}
		if got := p.tempEntries(); got != nil {
			t.Errorf("temporary directories %v are left", got)
		}
		p.must("check", "--data", p.url())
		if err := os.Remove(p.path("pid")); err != nil {
			t.Fatal(err)
		}
	}
}
