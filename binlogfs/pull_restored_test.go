package binlogfs

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/testenv"
)

// A source that was restored, or whose logs were reset, writes other files under the
// old names. The relay stops with what can be done; nothing of the archive changes.
// When the source has all that is published the relay goes on in a new epoch, if
// that was allowed, or when it is told to go over to it.
func TestPuller_SourceRestored_StopsOrBeginsAnEpoch(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011)
	s.Exec(t, "create database d", "create table d.t (i int primary key auto_increment, s text)", "insert into d.t(s) values (repeat('x', 20000))")
	p := newPlace(t)
	l := p.log()
	r := pull(t, l, nil, s)
	r.caughtUp(t, l, s)
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	published, _ := l.End()
	state := s.Value(t, "select @@gtid_binlog_state")
	time.Sleep(1100 * time.Millisecond) // a file's time is in whole seconds
	restored := func(o *PullOptions) { o.Restored = true }
	for _, c := range []struct {
		name   string
		change func(o *PullOptions)
		more   []string
		want   []string
	}{
		{"its log is shorter", nil, []string{"reset master"}, []string{"the source's log ends before the archive's", restoredWay}},
		{"its log is longer", nil, []string{"insert into d.t(s) values (repeat('y', 20000))", "insert into d.t(s) values (repeat('z', 20000))"}, []string{"it began its mysql-bin.000001 at ", "other bytes"}},
		{"it lacks what is published", restored, []string{"reset master"}, []string{"the source lacks what it had logged", "--dir"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.Exec(t, c.more...)
			r := pull(t, l, c.change, s)
			err := r.ended(t)
			told := false
			for _, w := range c.want {
				told = told || err != nil && strings.Contains(err.Error(), w)
			}
			if !told || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, c.want)
			}
			if end, _ := l.End(); end != published {
				t.Errorf("the archive ends at %v, before at %v", end, published)
			}
		})
	}
	// As after a restore that took the GTIDs along.
	s.Exec(t, "reset master", "set global gtid_binlog_state='"+state+"'", "insert into d.t(s) values ('after')")
	r = pull(t, l, restored, s)
	r.reached(t, l, s)
	identical(t, l, 2, s)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	// And by a command, without the option.
	state = s.Value(t, "select @@gtid_binlog_state")
	s.Exec(t, "reset master", "set global gtid_binlog_state='"+state+"'", "insert into d.t(s) values ('again')")
	relay := relayTo(t, l, nil, nil, s)
	<-relay.Done()
	if st := relay.Status(); !st.Stopped || !strings.Contains(st.LastError, ErrGap.Error()) {
		t.Errorf("without the option: %+v", st)
	}
	if err := relay.Failover(t.Context(), s.Addr()); err != nil {
		t.Fatal(err)
	}
	has(t, l, s)
	identical(t, l, 3, s)
	if got, want := l.State().String(), s.Value(t, "select @@gtid_binlog_state"); got != want {
		t.Errorf("the archive has %s, the source %s", got, want)
	}
}

// A change to a server that can't be reached stays: the relay does not go back to its
// old source, which is in the list, neither then nor after a restart.
func TestRelay_Change_ServerAway_NotBackToTheOldOne(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011)
	p := newPlace(t)
	l := p.log()
	var kept atomic.Pointer[SourceSettings]
	keep := func(s SourceSettings) error { kept.Store(&s); return nil }
	r := relayTo(t, l, nil, keep, s)
	has(t, l, s)
	stop := func() {
		t.Helper()
		if err := r.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	host, port := "127.0.0.1", testenv.FreePort(t)
	if err := r.Change(t.Context(), SourceChange{Host: &host, Port: &port}); err != nil {
		t.Fatal(err)
	}
	if err := r.Change(t.Context(), SourceChange{Heartbeat: ptr(time.Second)}); err != nil { // which does not take the first one back
		t.Fatal(err)
	}
	s.Exec(t, "create database d")
	before, _ := l.End()
	waits := func(when string) {
		t.Helper()
		for deadline := time.Now().Add(pullWait); r.Status().Reconnects < 4; time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: %+v", when, r.Status())
			}
		}
		if st := r.Status(); st.Connected || !strings.Contains(st.LastError, fmt.Sprint(host, ":", port)) || strings.Contains(st.LastError, s.Addr()) {
			t.Errorf("%s: %+v", when, st)
		}
		if end, _ := l.End(); end != before {
			t.Errorf("%s it pulled from the old source: %v", when, end)
		}
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	waits("after the change")
	stop()
	if k := kept.Load(); k == nil || !k.Only {
		t.Fatalf("kept %+v", k)
	}
	r = relayTo(t, l, kept.Load(), keep, s)
	waits("after a restart")
	stop()
	host, port = "localhost", s.Port // the same server by another name, which is there
	if err := r.Change(t.Context(), SourceChange{Host: &host, Port: &port}); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	has(t, l, s)
	stop()
	if k := kept.Load(); k.Only || k.Sources[0] != fmt.Sprint(host, ":", port) {
		t.Errorf("kept after it was there: %+v", k)
	}
	if err := r.Start(t.Context()); err != nil && !errors.Is(err, ErrPulling) {
		t.Fatal(err)
	}
}
