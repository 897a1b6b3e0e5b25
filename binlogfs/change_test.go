package binlogfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/testenv"
)

func ptr[T any](v T) *T { return &v }

func TestSourceChange_Apply_Cases(t *testing.T) {
	base := SourceSettings{Sources: []string{"a:1", "b:2"}, User: "u", TLS: TLSOptions{Mode: TLSOff}}
	for _, c := range []struct {
		name   string
		change SourceChange
		at     SourcePlace
		want   string // of sources, user, TLS and start; or of the error
	}{
		{"nothing", SourceChange{}, SourcePlace{}, "[a:1 b:2] u {off   } {false false  }"},
		{"host", SourceChange{Host: ptr("c")}, SourcePlace{}, "[c:3306 a:1 b:2] u {off   } {false false  }"},
		{"port", SourceChange{Port: ptr(9)}, SourcePlace{}, "[a:9 a:1 b:2] u {off   } {false false  }"},
		{"another of the list", SourceChange{Host: ptr("b"), Port: ptr(2)}, SourcePlace{}, "[b:2 a:1] u {off   } {false false  }"},
		{"TLS", SourceChange{TLS: ptr(true), CA: ptr("/ca")}, SourcePlace{}, "[a:1 b:2] u {required /ca  } {false false  }"},
		{"verified", SourceChange{TLS: ptr(true), Verify: ptr(true)}, SourcePlace{}, "[a:1 b:2] u {verify-identity   } {false false  }"},
		{"an empty archive begins", SourceChange{File: ptr("m.000007"), Offset: ptr(int64(9))}, SourcePlace{}, "[a:1 b:2] u {off   } {false false m.000007 }"},
		{"where it is", SourceChange{File: ptr("m.000007"), Offset: ptr(int64(9))}, SourcePlace{"m.000007", 9}, "[a:1 b:2] u {off   } {false false  }"},
		{"elsewhere", SourceChange{File: ptr("m.000008"), Offset: ptr(int64(4))}, SourcePlace{"m.000007", 9}, "goes on at m.000007:9"},
		{"no file", SourceChange{Offset: ptr(int64(4))}, SourcePlace{}, "needs the name"},
	} {
		s := base
		err := c.change.apply(&s, c.at)
		got := fmt.Sprint(s.Sources, " ", s.User, " ", s.TLS, " ", s.Start)
		if err != nil {
			got = err.Error()
		}
		if got != c.want && (err == nil || !strings.Contains(got, c.want) || !errors.Is(err, ErrChange)) {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

// relayTo pulls from a server; kept is what an earlier relay has kept.
func relayTo(t *testing.T, l *Log, kept *SourceSettings, keep func(SourceSettings) error, from ...*dbtest.Server) *Relay {
	t.Helper()
	o := PullOptions{User: dbtest.User, Password: func() (string, error) { return dbtest.Password, nil }, ServerID: 77, Start: Start{Oldest: true}, RetryMax: 200 * time.Millisecond}
	for _, s := range from {
		o.Sources = append(o.Sources, s.Addr())
	}
	r, err := NewRelay(l, o, kept, keep)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Stop(context.Background()); err != nil {
			t.Logf("pulling ended: %v", err)
		}
	})
	return r
}

// has waits until a log has what a server has.
func has(t *testing.T, l *Log, s *dbtest.Server) {
	t.Helper()
	p := &pulling{Puller: &Puller{}, done: make(chan error)}
	p.reached(t, l, s)
}

func hostPort(t *testing.T, s *dbtest.Server) (string, int) {
	t.Helper()
	host, port, err := net.SplitHostPort(s.Addr())
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	return host, n
}

// Two servers with the same groups: an operator moves the relay between them by
// CHANGE and by failover, and a third that lacks groups is refused.
func TestRelay_StopChangeStartFailover_KeptOverARestart(t *testing.T) {
	testenv.Long(t)
	first := dbtest.Start(t, dbtest.MariaDB1011, "--log-slave-updates")
	second := dbtest.Start(t, dbtest.MariaDB1011, "--log-slave-updates")
	empty := dbtest.Start(t, dbtest.MariaDB1011)
	second.Exec(t, fmt.Sprintf("change master to master_host='127.0.0.1', master_port=%d, master_user='%s', master_password='%s', master_use_gtid=slave_pos, master_connect_retry=1", first.Port, dbtest.User, dbtest.Password), "start slave")
	first.Exec(t, "create database d", "create table d.t (i int)")
	follow := func() {
		t.Helper()
		if got := second.Value(t, "select master_gtid_wait('"+first.Value(t, "select @@gtid_binlog_pos")+"', 60)"); got != "0" {
			t.Fatalf("the second server does not follow: %v", second.Rows(t, "show slave status"))
		}
	}
	p := newPlace(t)
	l := p.ownLog(1 << 20)
	var kept *SourceSettings
	keep := func(s SourceSettings) error { kept = &s; return nil }
	r := relayTo(t, l, nil, keep, first)
	has(t, l, first)
	host, port := hostPort(t, second)
	if err := r.Change(t.Context(), SourceChange{Host: &host, Port: &port}); !errors.Is(err, ErrPulling) {
		t.Errorf("changed while it pulls: %v", err)
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := r.Status(); s.Pulling || s.Connected || s.Stopped {
		t.Errorf("stopped: %+v", s)
	}
	first.Exec(t, "insert into d.t values (1)")
	follow()
	if err := r.Change(t.Context(), SourceChange{Host: &host, Port: &port, Password: ptr(dbtest.Password)}); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	has(t, l, second)
	if s := r.Status(); s.Source != second.Addr() || !s.Pulling {
		t.Errorf("after the change: %+v", s)
	}
	// As after a restart, with the options as they were.
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if kept == nil || kept.Sources[0] != second.Addr() || kept.Password == nil {
		t.Fatalf("kept %+v", kept)
	}
	l = p.ownLog(1 << 20)
	r = relayTo(t, l, kept, keep, first)
	first.Exec(t, "insert into d.t values (2)")
	follow()
	has(t, l, first)
	if s := r.Status(); s.Source != second.Addr() {
		t.Errorf("after the restart: %+v", s)
	}
	// Back, by a command.
	if err := r.Failover(t.Context(), empty.Addr()); err == nil || !strings.Contains(err.Error(), "it lacks what the archive has published") {
		t.Errorf("failover to a server that lacks groups: %v", err)
	}
	if s := r.Status(); !s.Pulling || s.Source != second.Addr() {
		t.Errorf("after a failover that was refused: %+v", s)
	}
	if err := r.Failover(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	first.Exec(t, "insert into d.t values (3)")
	has(t, l, first)
	if s := r.Status(); s.Source != first.Addr() {
		t.Errorf("after the failover: %+v", s)
	}
	// The next file, on demand.
	n := len(l.Files())
	ctx, cancel := context.WithTimeout(t.Context(), pullWait)
	defer cancel()
	if err := r.Cut(ctx); err != nil || len(l.Files()) != n+1 {
		t.Errorf("cut: %v, %d files after %d", err, len(l.Files()), n)
	}
	first.Exec(t, "insert into d.t values (4)")
	has(t, l, first)
	if files := l.Files(); files[n].Groups != 1 || !files[n-1].Closed {
		t.Errorf("after the cut: %+v", files[n])
	}
}

func TestRelay_WrongPassword_StopsAndHealsByChange(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011)
	l := newPlace(t).log()
	r := relayTo(t, l, nil, nil, s)
	has(t, l, s)
	if err := r.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Change(t.Context(), SourceChange{Password: ptr("wrong")}); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-r.Failed():
	case <-time.After(pullWait):
		t.Fatalf("it still runs: %+v", r.Status())
	}
	<-r.Done()
	if s := r.Status(); s.Pulling || !s.Stopped || !strings.Contains(s.LastError, "password") {
		t.Errorf("%+v", s)
	}
	if err := r.Cut(t.Context()); !errors.Is(err, ErrMode) {
		t.Errorf("cut in mirror mode: %v", err)
	}
	if err := r.Change(t.Context(), SourceChange{Password: ptr(dbtest.Password)}); err != nil {
		t.Fatal(err)
	}
	if err := r.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.Exec(t, "create database d")
	has(t, l, s)
}

// What holds the change over the network makes nobody wait beyond his context.
func TestRelay_StopAndChange_WaitWithinTheirContext(t *testing.T) {
	r, err := NewRelay(newPlace(t).log(), PullOptions{Sources: []string{"127.0.0.1:1"}, User: "u", ServerID: 77}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	give, err := r.takeChange(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for name, f := range map[string]func() error{
		"stop":     func() error { return r.Stop(ended) },
		"change":   func() error { return r.Change(ended, SourceChange{User: ptr("v")}) },
		"failover": func() error { return r.Failover(ended, "127.0.0.1:2") },
	} {
		if err := f(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	give()
	if err := r.Change(t.Context(), SourceChange{User: ptr("v")}); err != nil || r.puller().o.User != "v" {
		t.Errorf("afterwards: %v, %+v", err, r.puller().o.Settings())
	}
	if err := r.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}
