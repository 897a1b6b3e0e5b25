package main

import (
	"os"
	"strings"
	"testing"
	"time"
)

func TestApp_SnapshotSchedule_SetListClear(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u)
	if got := p.must("snapshot", "schedule", u); got != "no schedules\n" {
		t.Errorf("list: %q", got)
	}
	got := p.must("snapshot", "schedule", u, "--every", "1d", "--keep", "24 hourly, 7 daily", "--tag", "why=habit")
	if lines := strings.Split(got, "\n"); len(lines) != 4 || lines[0] != "schedule auto is new: a snapshot every 1d, kept: 24 hourly, 7 daily" || !strings.HasPrefix(lines[2], "auto  1d     24 hourly, 7 daily  0          -") {
		t.Errorf("set: %q", got)
	}
	list := decode[[]scheduleLine](t, p.must("snapshot", "schedule", "--json", u, "--every", "15m", "--name", "often"))
	if len(list) != 2 || list[1].Name != "often" || list[1].Every != 900 || list[1].Keep != "all" || list[0].Tags["why"] != "habit" {
		t.Errorf("%+v", list)
	}
	p.fails(2, "it must be 1m to 366d", "snapshot", "schedule", u, "--every", "1s")
	p.fails(2, "need --every", "snapshot", "schedule", u, "--keep", "1 daily")
	p.fails(2, "one of --every and --clear", "snapshot", "schedule", u, "--every", "1h", "--clear")
	p.fails(2, "as in \"24 hourly, 7 daily, 4 weekly\"", "snapshot", "schedule", u, "--every", "1h", "--keep", "7")
	p.fails(2, "has no schedule none", "snapshot", "schedule", u, "--clear", "--name", "none")
	// What is not given stays, and what was done is said.
	for _, c := range []struct {
		want, tag string
		args      []string
	}{
		{"schedule auto is changed: a snapshot every 1h, before every 1d; kept: 24 hourly, 7 daily, as before\n", "habit", []string{"--every", "1h"}},
		{"schedule auto is changed: a snapshot every 1h, before every 1h; kept: 2 last, before: 24 hourly, 7 daily\n", "else", []string{"--every", "1h", "--keep", "2 last", "--tag", "why=else"}},
		{"schedule auto is changed: a snapshot every 30m, before every 1h; kept: all, before: 2 last\n", "else", []string{"--every", "30m", "--keep", "all"}},
	} {
		if got := p.must(append([]string{"snapshot", "schedule", u}, c.args...)...); !strings.HasPrefix(got, c.want) {
			t.Errorf("%v: %q", c.args, got)
		}
		if list := decode[[]scheduleLine](t, p.must("snapshot", "schedule", "--json", u)); list[0].Tags["why"] != c.tag {
			t.Errorf("%v: tags %v", c.args, list[0].Tags)
		}
	}
	if got := p.must("snapshot", "schedule", u, "--clear", "--name", "often"); !strings.HasPrefix(got, "schedule often is ended; its snapshots stay\n") {
		t.Errorf("clear: %q", got)
	}
	if list := decode[[]scheduleLine](t, p.must("snapshot", "schedule", "--json", u)); len(list) != 1 {
		t.Errorf("%+v", list)
	}
	p.must("check", u)
	p.must("destroy", u, "--yes")
	if left := p.bucketFiles(); len(left) != 0 {
		t.Errorf("destroy left %v", left)
	}
}

func TestMount_SnapshotSchedule_IsKept(t *testing.T) {
	p, mnt := mountPlace(t)
	pid := p.mount()
	p.must("snapshot", "schedule", mnt, "--every", "1h", "--keep", "2 last")
	for deadline := time.Now().Add(time.Minute); len(p.snapshots()) == 0; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("no snapshot was made")
		}
	}
	if s := p.snapshots(); !strings.HasPrefix(s[0].Name, "auto-2") || s[0].Tags["schedule"] != "auto" {
		t.Errorf("%+v", s)
	}
	p.must("umount", mnt)
	p.unmounted(pid)
}

// A document that can't be read is told beside those that can, and hides none.
func TestApp_Snapshot_OneDamagedDocument_OthersAreShown(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u)
	p.must("snapshot", "create", u, "whole")
	p.must("snapshot", "create", u, "torn")
	p.must("snapshot", "schedule", u, "--every", "1d", "--name", "torn")
	for _, prefix := range []string{"pins/torn~", "schedules/torn~"} {
		name := p.find(prefix)
		if err := os.WriteFile(name, []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{{"snapshot", "list", u}, {"snapshot", "schedule", u, "--every", "1h", "--name", "whole"}, {"snapshot", "schedule", u}} {
		status, out, errs := p.run(args...)
		if status != 4 || !strings.Contains(out, "\nwhole ") || !strings.Contains(errs, "torn~") {
			t.Errorf("%v: status %d\n%s%s", args, status, out, errs)
		}
	}
}
