package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

// busyShown is a directory that programs use until it is detached.
type busyShown struct {
	*unshown
	busy error
}

func (b *busyShown) Dir() string { return "/mnt" }

func (b *busyShown) Unmount() error {
	if b.busy != nil {
		return b.busy
	}
	return b.unshown.Unmount()
}

func TestRelayShown_EndsByItsOwnCallsOnly(t *testing.T) {
	open := func(s *relayShown) bool {
		select {
		case <-s.Done():
			return false
		default:
			return true
		}
	}
	in := &busyShown{newUnshown(), syscall.EBUSY}
	s := showRelay(in, quietLogger())
	if err := s.Unmount(); !errors.Is(err, syscall.EBUSY) || !open(s) || s.Dir() != "/mnt" {
		t.Errorf("busy: %v", err)
	}
	if err := in.unshown.Unmount(); err != nil { // as umount(8) does
		t.Fatal(err)
	}
	for s.Dir() != "" {
		time.Sleep(time.Millisecond)
	}
	if !open(s) || s.Invalidate(1) != nil {
		t.Error("it ended with the directory")
	}
	if err := s.Unmount(); err != nil || open(s) {
		t.Errorf("without a directory: %v", err)
	}
	for name, f := range map[string]func(*relayShown) error{"unmount": (*relayShown).Unmount, "detach": (*relayShown).Detach} {
		s := showRelay(&busyShown{newUnshown(), nil}, quietLogger())
		if err := f(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		<-s.Done()
	}
}

// Who takes a relay's directory away ends nothing else; cistern umount, which would
// end the relay, is refused.
func TestBinlogRelay_DirectoryUnmounted_GoesOn(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011)
	r := newRelayTest(t, s)
	r.start(t)
	s.Exec(t, "create database d")
	r.caughtUp(t)
	_, err := harness.Run(t.Context(), "", r.binary, "umount", r.mount)
	if err == nil || !strings.Contains(err.Error(), "exit status 2") || !strings.Contains(err.Error(), "cistern binlog stop "+r.url) {
		t.Errorf("cistern umount: %v", err)
	}
	if _, err := os.Stat(r.mount + "/logs"); err != nil {
		t.Error(err)
	}
	if _, err := harness.Run(t.Context(), "", "umount", r.mount); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, "create table d.t (i int)")
	r.caughtUp(t)
	if got := r.cistern(t, "stop", r.url); !strings.Contains(got, "the relay has ended; everything is in commit") {
		t.Errorf("stop: %s", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), relayWait)
	defer cancel()
	if err := r.proc.Wait(ctx); err != nil {
		t.Error(err)
	}
	if log := r.proc.LogTail(); !strings.Contains(log, "the relay goes on without it") || !strings.Contains(log, "the relay has ended; everything is in the bucket") {
		t.Errorf("log:\n%s", log)
	}
}

// A mount without a relay says so.
func TestBinlogRelay_AMountServesTheVolume_IsTold(t *testing.T) {
	p := newPlace(t)
	testenv.NeedFUSE(t)
	url := p.url()
	testenv.Format(t, url)
	m := testenv.Mount(t, url, testenv.MountOptions{})
	for _, args := range [][]string{{"status"}, {"stop"}, {"source", "stop"}, {"flush"}} {
		_, err := harness.Run(t.Context(), "", append(append([]string{testenv.Cistern(t), "binlog"}, args...), url)...)
		if err == nil || !strings.Contains(err.Error(), " on "+m.Dir+", and no relay runs in it") || strings.Contains(err.Error(), "404") {
			t.Errorf("%v: %v", args, err)
		}
	}
}
