package binlogfs

import (
	"context"
	"crypto/tls"
	"net"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/testenv"
)

// as pulls as another user of the source.
func as(user string, more func(o *PullOptions)) func(o *PullOptions) {
	return func(o *PullOptions) {
		o.User = user
		if more != nil {
			more(o)
		}
	}
}

func TestPuller_EveryAuthentication_FilesIdentical(t *testing.T) {
	testenv.Long(t)
	requireTLS := func(o *PullOptions) { o.TLS.Mode = TLSRequired }
	servers := map[dbtest.Kind]*dbtest.Server{dbtest.MariaDB1011: dbtest.Start(t, dbtest.MariaDB1011), dbtest.MySQL97: dbtest.Start(t, dbtest.MySQL97)}
	for _, c := range []struct {
		kind   dbtest.Kind
		plugin string // loaded first
		user   string
		with   string
		change func(dir string) func(o *PullOptions)
	}{
		{dbtest.MariaDB1011, "", "native", "identified via mysql_native_password using password('" + dbtest.Password + "')", nil},
		{dbtest.MariaDB1011, "install soname 'auth_ed25519'", "ed", "identified via ed25519 using password('" + dbtest.Password + "')", nil},
		{dbtest.MySQL97, "", "caching", "identified with caching_sha2_password by '" + dbtest.Password + "'", nil},
		{dbtest.MySQL97, "", "caching_tls", "identified with caching_sha2_password by '" + dbtest.Password + "'", func(string) func(*PullOptions) { return requireTLS }},
		{dbtest.MySQL97, "", "sha", "identified with sha256_password by '" + dbtest.Password + "'", nil},
		{dbtest.MySQL97, "", "cert", "identified by '" + dbtest.Password + "' require x509", func(dir string) func(*PullOptions) {
			file := func(name string) string { return filepath.Join(dir, name) }
			return func(o *PullOptions) {
				o.TLS = TLSOptions{Mode: TLSVerifyCA, CA: file("ca.pem"), Cert: file("client-cert.pem"), Key: file("client-key.pem")}
			}
		}},
	} {
		t.Run(string(c.kind)+" "+c.user, func(t *testing.T) {
			s := servers[c.kind]
			if c.plugin != "" {
				s.Exec(t, c.plugin)
			}
			s.Exec(t, "create user "+c.user+"@'%' "+c.with, "grant replication slave, replication client on *.* to "+c.user+"@'%'", "create database d_"+c.user)
			change := as(c.user, nil)
			if c.change != nil {
				change = as(c.user, c.change(s.DataDir))
			}
			l := newPlace(t).log()
			r := pull(t, l, change, s)
			r.caughtUp(t, l, s)
			identical(t, l, 1, s)
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			if c.user != "cert" {
				return
			}
			r = pull(t, newPlace(t).log(), as(c.user, requireTLS), s)
			if err := r.ended(t); err == nil || !strings.Contains(err.Error(), "does not accept the user") {
				t.Errorf("without a certificate: %v", err)
			}
		})
	}
}

func TestPuller_SemiSyncMySQL_SourceWaitsForTheRelay(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MySQL97, "--plugin-load-add=semisync_source.so", "--rpl-semi-sync-source-enabled=1", "--rpl-semi-sync-source-timeout=600000")
	l := newPlace(t).log()
	r := pull(t, l, func(o *PullOptions) { o.SemiSync = true }, s)
	status := func(name string) string { return s.Rows(t, "show status like 'Rpl_semi_sync_source_"+name+"'")[0][1] }
	for deadline := time.Now().Add(pullWait); status("clients") != "1"; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the source has no semi-synchronous replica: %+v", r.Status())
		}
	}
	yes, no := status("yes_tx"), status("no_tx")
	s.Exec(t, "create database d", "create table d.a (i int primary key)", "insert into d.a values (1)", "insert into d.a values (2)")
	// Each was acknowledged, so the archive has it at once.
	file, offset := position(t, s)
	if end, _ := l.End(); end.File != file || end.Offset != offset {
		t.Errorf("acknowledged up to %s %d, and the archive ends at %v", file, offset, end)
	}
	if !r.Status().SemiSync || status("yes_tx") == yes || status("no_tx") != no {
		t.Errorf("status %+v; %s with and %s without an acknowledgement", r.Status(), status("yes_tx"), status("no_tx"))
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	identical(t, l, 1, s)
}

// The first server dies; the relay goes on with its replica, and the replica
// behind the relay notices nothing.
func TestPuller_FailoverMySQL_ReplicaStaysByAutoPosition(t *testing.T) {
	testenv.Long(t)
	first, second, third := dbtest.Start(t, dbtest.MySQL97), dbtest.Start(t, dbtest.MySQL97), dbtest.Start(t, dbtest.MySQL97)
	first.Exec(t, "create database w0", "create table w0.a (i int primary key)", "insert into w0.a values (1)")
	second.Exec(t, "change replication source to source_host='127.0.0.1', source_port="+first.Addr()[len("127.0.0.1:"):]+", source_user='"+dbtest.User+
		"', source_password='"+dbtest.Password+"', source_ssl=1, source_auto_position=1", "start replica")
	l := newPlace(t).log()
	r := pull(t, l, func(o *PullOptions) { o.Failover = time.Millisecond }, first, second)
	r.caughtUp(t, l, first)
	s, addr := serveLog(t, ServerOptions{Archive: l, Keeper: l, TLS: serverTLS(t)})
	f := &follower{third, t, addr}
	f.change(f.byGTID)
	has := func(who, whose *dbtest.Server) {
		t.Helper()
		if got := who.Value(t, "select wait_for_executed_gtid_set('"+whose.Value(t, "select @@global.gtid_executed")+"', 60)"); got != "0" {
			t.Fatalf("server %d has not what server %d has: %v", who.ID, whose.ID, who.Rows(t, "show replica status"))
		}
	}
	has(second, first)
	has(third, first)
	since := s.Replicas()[0].Since
	first.Kill(t)
	second.Exec(t, "stop replica", "insert into w0.a values (2)", "flush binary logs", "insert into w0.a values (3)")
	r.caughtUp(t, l, second)
	has(third, second)
	if a, b := second.Value(t, "select group_concat(i) from w0.a"), third.Value(t, "select group_concat(i) from w0.a"); a != "1,2,3" || a != b {
		t.Errorf("rows %s at the new primary, %s at the replica", a, b)
	}
	if all := s.Replicas(); len(all) != 1 || !all[0].Since.Equal(since) {
		t.Errorf("the replica did not stay: %+v", all)
	}
	if n := len(l.Sources()); n != 2 {
		t.Errorf("%d sources", n)
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	wantState(t, l, second)
}

// flipper is a network that changes one byte of each connection, far behind its
// beginning.
type flipper struct{ dials atomic.Int64 }

func (f *flipper) dial(ctx context.Context, network, address string) (net.Conn, error) {
	f.dials.Add(1)
	conn, err := (&net.Dialer{}).DialContext(ctx, network, address)
	return &flipConn{Conn: conn, left: 100_000}, err
}

type flipConn struct {
	net.Conn
	left int // bytes until the one to change
}

// Read implements net.Conn.
func (c *flipConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.left >= 0 && c.left < n {
		p[c.left] ^= 1
	}
	c.left -= n
	return n, err
}

// What is wrong with a source or with what was asked for ends the pulling with a
// sentence, after few connections, and with nothing lost of what was published.
func TestPuller_BadSources_StopWithASentence(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011)
	s.Exec(t, "create database d", "create table d.a (s longtext) engine=myisam", "insert into d.a values (repeat('x', 1000000))")
	silent := dbtest.Start(t, dbtest.MariaDB1011, "--skip-log-bin")
	for _, c := range []struct {
		name   string
		from   *dbtest.Server
		before func(t *testing.T, l *Log) // fills the archive
		change func(o *PullOptions)
		want   string
	}{
		{"binary log off", silent, nil, nil, "writes no binary log: set log_bin"},
		{"unknown GTID", s, nil, func(o *PullOptions) { o.Start = Start{GTID: "0-77-1000"} }, "does not have the last group that it is asked to go on from"},
		{"no GTID", s, nil, func(o *PullOptions) { o.Start = Start{GTID: "nonsense"} }, "nonsense"},
		{"another cluster's archive", s, func(t *testing.T, l *Log) {
			other := dbtest.Start(t, dbtest.MariaDB1011)
			other.Exec(t, "create database other")
			r := pull(t, l, nil, other)
			r.caughtUp(t, l, other)
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
		}, nil, "the archive holds the log of another server"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newPlace(t).log()
			if c.before != nil {
				c.before(t, l)
			}
			before, _ := l.End()
			var dials atomic.Int64
			r := pull(t, l, func(o *PullOptions) {
				if c.change != nil {
					c.change(o)
				}
				o.Dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					dials.Add(1)
					return (&net.Dialer{}).DialContext(ctx, network, address)
				}
			}, c.from)
			err := r.ended(t)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v, want %q", err, c.want)
			}
			if end, _ := l.End(); end != before || dials.Load() > 3 {
				t.Errorf("the archive ends at %v, before at %v; %d connections", end, before, dials.Load())
			}
		})
	}
	t.Run("corrupt events", func(t *testing.T) {
		l := newPlace(t).log()
		bad := &flipper{}
		r := pull(t, l, func(o *PullOptions) { o.Dial = bad.dial }, s)
		if err := r.ended(t); err == nil || !strings.Contains(err.Error(), "checksum of the event") {
			t.Errorf("%v", err)
		}
		if n := bad.dials.Load(); n < 2 || n > 4 {
			t.Errorf("%d connections: a connection may garble once, a source always", n)
		}
		r = pull(t, l, nil, s) // without the garbling it goes on
		r.caughtUp(t, l, s)
		identical(t, l, 1, s)
		if err := r.stop(); err != nil {
			t.Error(err)
		}
	})
	t.Run("another replica's server id", func(t *testing.T) {
		l := newPlace(t).log()
		r := pull(t, l, nil, s)
		r.caughtUp(t, l, s)
		usurper := newPlace(t).log()
		second := pull(t, usurper, nil, s)
		second.caughtUp(t, usurper, s)
		if err := r.ended(t); err == nil || !strings.Contains(err.Error(), "give the relay another") {
			t.Errorf("%v", err)
		}
		if err := second.stop(); err != nil {
			t.Error(err)
		}
	})
}

func serverTLS(t testing.TB) *tls.Config {
	t.Helper()
	return &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}, MinVersion: tls.VersionTLS12}
}
