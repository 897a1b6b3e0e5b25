package main

import (
	"context"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

// rival is a second relay of the same archive, with a state directory, a mount point
// and a server id of its own. It serves no replicas.
func (d *downstream) rival(t *testing.T) *relayTest {
	t.Helper()
	r := d.elsewhere(t)
	for _, flag := range []string{"--listen", "--users-file"} {
		i := slices.Index(r.args, flag)
		r.args = slices.Delete(r.args, i, i+2)
	}
	r.args[slices.Index(r.args, "77")] = "78"
	return r
}

// A second relay does not get at the volume while the first one has it. Told to take
// it over it does: the first, though its source sends nothing, ends by itself with
// one sentence, and its replicas are sent away.
func TestBinlogRelay_TwoOnOneVolume_TheFencedOneEnds(t *testing.T) {
	testenv.Long(t)
	for name, write := range map[string]bool{"the source is idle": false, "the source writes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := dbtest.Start(t, dbtest.MariaDB1011)
			first := newDownstream(t, s)
			first.start(t)
			s.Exec(t, "create database d", "create table d.t (i int)")
			first.caughtUp(t)
			client, err := net.Dial("tcp", net.JoinHostPort(first.host, first.port))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			second := first.rival(t)
			out, err := harness.Run(t.Context(), "", append(second.args, "--wait", "0s")...)
			if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "owned by another writer") {
				t.Fatalf("a second relay: %s %v", out, err)
			}
			second.args = append(second.args, "--takeover")
			second.start(t)
			if write {
				s.Exec(t, "insert into d.t values (1)", "insert into d.t values (2)")
			}
			first.endsFenced(t)
			if _, err := net.Dial("tcp", net.JoinHostPort(first.host, first.port)); err == nil {
				t.Error("the first relay's port is still served")
			}
			s.Exec(t, "insert into d.t values (3)")
			second.caughtUp(t)
			second.identical(t)
			second.ends(t)
			if out, err := harness.Run(t.Context(), "", second.binary, "check", second.url, "--data"); err != nil {
				t.Errorf("check: %v\n%s", err, out)
			}
		})
	}
}

// endsFenced waits until a relay whose volume was taken has ended by itself, with one
// sentence.
func (r *relayTest) endsFenced(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), relayWait)
	defer cancel()
	err := r.proc.Wait(ctx)
	if err == nil || !strings.Contains(err.Error(), "exit status 3") {
		t.Fatalf("the fenced relay: %v", err)
	}
	told := ""
	for line := range strings.Lines(r.proc.LogTail()) {
		if strings.HasPrefix(line, "cistern: ") {
			told += line
		}
	}
	if strings.Count(told, "\n") != 1 || strings.Count(told, "another writer owns the volume") != 1 {
		t.Errorf("the fenced relay said %q", told)
	}
}

// ends stops a relay in good order.
func (r *relayTest) ends(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), relayWait)
	defer cancel()
	if err := r.proc.Stop(ctx); err != nil {
		t.Error(err)
	}
}
