package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

// relayWait stops a test that hangs.
const relayWait = 2 * time.Minute

// relayTest is a relay in a process of its own.
type relayTest struct {
	binary, url, state, mount string
	source                    *dbtest.Server
	args                      []string
	global                    []string // flags that every command needs
	proc                      *harness.Process
}

func newRelayTest(t *testing.T, s *dbtest.Server, args ...string) *relayTest {
	t.Helper()
	testenv.NeedFUSE(t)
	dir := testenv.TempDir(t)
	r := &relayTest{binary: testenv.Cistern(t), url: "file://" + dir + "/bucket", state: dir + "/state", mount: dir + "/mnt", source: s}
	for _, d := range []string{"/bucket", "/mnt"} {
		if err := os.Mkdir(dir+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	testenv.Format(t, r.url)
	password := dir + "/password"
	if err := os.WriteFile(password, []byte(dbtest.Password+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.args = append([]string{
		r.binary, "binlog", "relay", r.url, "--state", r.state, "--mount", r.mount, "--dir", "logs", "--foreground",
		"--source", s.Addr(), "--source-user", dbtest.User, "--source-password-file", password, "--server-id", "77",
	}, args...)
	return r
}

func (r *relayTest) start(t *testing.T) {
	t.Helper()
	proc, err := harness.Start(r.args, "")
	if err != nil {
		t.Fatal(err)
	}
	r.proc = proc
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the relay's log:\n%s", proc.LogTail())
		}
		r.kill(t)
	})
	ctx, cancel := context.WithTimeout(t.Context(), relayWait)
	defer cancel()
	if err := proc.WaitLine(ctx, "ready"); err != nil {
		t.Fatal(err)
	}
}

// kill ends the relay with SIGKILL, and takes its dead mount away.
func (r *relayTest) kill(t *testing.T) {
	t.Helper()
	if err := r.proc.Kill(); err != nil {
		t.Error(err)
	}
	_, _ = harness.Run(context.Background(), "", "umount", "-l", r.mount) // nothing may be mounted
}

func (r *relayTest) status(t *testing.T) (s binlogfs.RelayStatus) {
	t.Helper()
	out, err := harness.Run(t.Context(), "", append([]string{r.binary, "binlog", "status", r.url, "--json"}, r.global...)...)
	if err == nil {
		err = json.Unmarshal([]byte(out), &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// caughtUp waits until the relay has published what the source has.
func (r *relayTest) caughtUp(t *testing.T) binlogfs.RelayStatus {
	t.Helper()
	row := r.source.Rows(t, "show master status")[0]
	for deadline := time.Now().Add(relayWait); ; time.Sleep(50 * time.Millisecond) {
		s := r.status(t)
		if s.File == row[0] && strconv.FormatInt(s.Offset, 10) == row[1] {
			return s
		}
		if time.Now().After(deadline) {
			t.Fatalf("the relay is at %+v, the source at %v", s, row)
		}
	}
}

// identical compares what the mount shows with the source's files.
func (r *relayTest) identical(t *testing.T) {
	t.Helper()
	const inUse = 4 + 17 // a flag of the file that is being written, which is not sent
	for _, name := range r.source.BinaryLogs(t) {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		var got []byte
		for deadline := time.Now().Add(relayWait); ; time.Sleep(50 * time.Millisecond) {
			// What the directory shows follows in a moment.
			if got, err = os.ReadFile(filepath.Join(r.mount, "logs", "000001", filepath.Base(name))); err != nil && !os.IsNotExist(err) {
				t.Fatal(err)
			}
			if len(got) == len(want) || time.Now().After(deadline) {
				break
			}
		}
		if len(got) > inUse {
			got[inUse], want[inUse] = 0, 0
		}
		if !bytes.Equal(got, want) {
			t.Errorf("%s has %d bytes in the mount, %d at the source, and they differ", filepath.Base(name), len(got), len(want))
		}
	}
}

// peak is the most memory that the process had resident, in bytes.
func (r *relayTest) peak(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", r.proc.PID()))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "VmHWM:" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n << 10
		}
	}
	t.Fatal("no VmHWM")
	return 0
}

func TestBinlogRelay_SemiSyncKillsAndLargeTransaction_FilesIdentical(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011, "--rpl-semi-sync-master-enabled=1", "--rpl-semi-sync-master-timeout=60000")
	r := newRelayTest(t, s, "--semi-sync", "--fragment-size", "262144")
	r.start(t)
	s.Exec(t, "create database d", "create table d.t (i int primary key auto_increment, s longtext)", "insert into d.t(s) values ('one')")
	if st := r.caughtUp(t); !st.Connected || !st.SemiSync || st.GTIDs == "" {
		t.Errorf("status %+v", st)
	}
	r.identical(t)
	for i := range 3 {
		r.kill(t)
		r.start(t)
		s.Exec(t, fmt.Sprintf("insert into d.t(s) values (repeat('%d',3000000))", i), "flush binary logs", "insert into d.t(s) values ('x')")
	}
	r.caughtUp(t)
	r.identical(t)
	if no := s.Rows(t, "show status like 'Rpl_semi_sync_master_no_tx'")[0][1]; no != "0" {
		t.Errorf("%s transactions were committed without an acknowledgement", no)
	}
	if yes := s.Rows(t, "show status like 'Rpl_semi_sync_master_yes_tx'")[0][1]; yes == "0" {
		t.Error("the source got no acknowledgement")
	}

	before := r.peak(t)
	s.Exec(t, "set session max_statement_time=0", "use d", "begin",
		"insert into t(s) values (repeat('a',20000000))", "insert into t(s) values (repeat('b',20000000))", "insert into t(s) values (repeat('c',20000000))",
		"insert into t(s) values (repeat('d',20000000))", "insert into t(s) values (repeat('e',20000000))", "commit")
	r.caughtUp(t)
	r.identical(t)
	t.Logf("peak memory: %d MiB before a transaction of 100 MB, %d MiB after it", before>>20, r.peak(t)>>20)

	if cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", r.proc.PID())); err != nil || bytes.Contains(cmdline, []byte(dbtest.Password)) {
		t.Errorf("the command line has the password: %v", err)
	}
	if strings.Contains(r.proc.LogTail(), dbtest.Password) {
		t.Error("the log has the password")
	}
	ctx, cancel := context.WithTimeout(t.Context(), relayWait)
	defer cancel()
	if err := r.proc.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if out, err := harness.Run(t.Context(), "", r.binary, "check", r.url, "--data"); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
}

// The basic story: a primary, the relay, and a replica that knows only the relay.
func TestBinlogRelay_ReplicaBehindIt_TablesEqual(t *testing.T) {
	testenv.Long(t)
	s, replica := dbtest.Start(t, dbtest.MariaDB1011), dbtest.Start(t, dbtest.MariaDB1011)
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(free.Addr().String())
	if err == nil {
		err = free.Close()
	}
	users := filepath.Join(testenv.TempDir(t), "users")
	if err == nil {
		err = os.WriteFile(users, []byte("down:native:read:stream-secret\n"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	r := newRelayTest(t, s, "--listen", net.JoinHostPort(host, port), "--users-file", users)
	r.start(t)
	replica.Exec(t, fmt.Sprintf("change master to master_host='%s', master_port=%s, master_user='down', master_password='stream-secret', "+
		"master_connect_retry=1, master_use_gtid=slave_pos", host, port), "start slave")
	s.Exec(t, "create database d", "create table d.t (i int primary key auto_increment, s varchar(100))", "insert into d.t(s) values ('one'),('two')",
		"insert into d.t(s) select s from d.t", "create table d.u as select * from d.t", "flush binary logs", "update d.t set s='changed' where i=1")
	pos := s.Rows(t, "select @@gtid_binlog_pos")[0][0]
	if got := replica.Rows(t, "select master_gtid_wait('"+pos+"', 120)")[0][0]; got != "0" {
		t.Fatalf("the replica did not reach %s: %v", pos, replica.Rows(t, "show slave status"))
	}
	for _, table := range []string{"d.t", "d.u"} {
		if want, got := s.Rows(t, "checksum table "+table), replica.Rows(t, "checksum table "+table); want[0][1] != got[0][1] {
			t.Errorf("%s: %v at the replica, %v at the primary", table, got, want)
		}
	}
	st := r.caughtUp(t)
	if len(st.Replicas) != 1 || st.Replicas[0].ServerID != uint32(replica.ID) || !st.Replicas[0].GTID || st.Replicas[0].User != "down" {
		t.Errorf("replicas: %+v", st.Replicas)
	}
	out, err := harness.Run(t.Context(), "", r.binary, "binlog", "status", r.url)
	if err != nil || !strings.Contains(out, fmt.Sprintf("server id %d at ", replica.ID)) {
		t.Errorf("%s: %v", out, err)
	}
}

func TestBinlogRelay_WrongPassword_EndsWithASentence(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011)
	r := newRelayTest(t, s)
	r.args = append(r.args, "--source-user", "nobody")
	out, err := harness.Run(t.Context(), "", r.args...)
	if err == nil || !strings.Contains(err.Error(), "does not accept the user or the password") {
		t.Errorf("%s: %v", out, err)
	}
	out, err = harness.Run(t.Context(), "", append(r.args, "--fragment-size", "10")...)
	if err == nil || !strings.Contains(err.Error(), "exit status 2") {
		t.Errorf("%s: %v", out, err)
	}
}

// A relay whose source doesn't answer says so: to which it is trying to connect, since
// when and why it can't, in the lines with which it starts, in the background and in
// the foreground, in its status and its log; and it pulls when the source is there.
func TestBinlogRelay_SourceAway_SaysThatItIsTrying(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011)
	s.Exec(t, "create database d")
	for _, foreground := range []bool{true, false} {
		s.Kill(t)
		r := newRelayTest(t, s, "--source", "127.0.0.1:1")
		trying := "trying to connect to " + s.Addr() + " and 127.0.0.1:1 since 20"
		var out string
		if foreground {
			r.start(t)
			ctx, cancel := context.WithTimeout(t.Context(), relayWait)
			if err := r.proc.WaitLine(ctx, "trying to connect"); err != nil {
				t.Error(err)
			}
			cancel()
			out = r.proc.LogTail()
		} else {
			r.args = slices.DeleteFunc(r.args, func(a string) bool { return a == "--foreground" })
			var err error
			if out, err = harness.Run(t.Context(), "", r.args...); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _, _ = harness.Run(context.Background(), "", r.binary, "binlog", "stop", r.url) }) // it may have ended
		}
		for _, part := range []string{"is not connected to its source yet", trying, "connection refused"} {
			if !strings.Contains(out, part) {
				t.Errorf("foreground %v: it begins without %q:\n%s", foreground, part, out)
			}
		}
		st := r.status(t)
		if want := []string{s.Addr(), "127.0.0.1:1"}; !st.Pulling || st.Connected || !slices.Equal(st.Trying, want) || st.Since.IsZero() || st.Source != want[0] || st.LastError == "" {
			t.Errorf("foreground %v: status %+v", foreground, st)
		}
		if text := r.cistern(t, "status", r.url); !strings.Contains(text, trying) || !strings.Contains(text, "connection refused") {
			t.Errorf("foreground %v: status says\n%s", foreground, text)
		}
		if text := r.cistern(t, "source", "stop", r.url); !strings.Contains(text, "pulls no more") {
			t.Error(text)
		}
		if text := r.cistern(t, "source", "start", r.url); !strings.Contains(text, "trying to connect to "+s.Addr()) {
			t.Errorf("source start says %q", text)
		}
		s.Restart(t)
		r.caughtUp(t)
		if st := r.status(t); !st.Connected || len(st.Trying) != 0 || st.LastError != "" {
			t.Errorf("foreground %v: connected: %+v", foreground, st)
		}
		if text := r.cistern(t, "stop", r.url); !strings.Contains(text, "has ended") {
			t.Error(text)
		}
	}
}

// Flags that lack another one, or contradict it, are named; nothing begins.
func TestBinlogRelay_Flags_ErrorsNameThem(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u)
	file := p.write("secret", []byte("x"))
	whole := []string{"binlog", "relay", u, "--source", "127.0.0.1:1", "--source-user", "u", "--server-id", "7"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"binlog", "relay", u}, "--source is missing"},
		{[]string{"binlog", "relay", u, "--source", "127.0.0.1:1"}, "--source-user is missing"},
		{[]string{"binlog", "relay", u, "--source", "127.0.0.1:1", "--source-user", "u"}, "--server-id is missing"},
		{append(whole, "--source-tls", "required", "--source-cert", file), "--source-cert and --source-key"},
		{append(whole, "--source-ca", file), "need --source-tls"},
		{append(whole, "--fragment-size", "10"), "--fragment-size 10 with --fragment-unit bytes"},
		{append(whole, "--binlog-name", "x"), "need --mode own"},
		{append(whole, "--mode", "own", "--binlog-name", "a/b"), "--binlog-name and --max-binlog-size"},
		{append(whole, "--start", "yesterday"), "--start \"yesterday\""},
		{append(whole, "--users-file", file), "--users-file needs --listen"},
		{append(whole, "--require-tls"), "--require-tls needs --listen"},
		{append(whole, "--listen", "127.0.0.1:0"), "--listen needs --users-file"},
	} {
		p.fails(2, c.want, c.args...)
	}
	users := p.write("users", []byte("a:native:read:b\n"))
	if err := os.Chmod(users, 0o600); err != nil {
		t.Fatal(err)
	}
	p.fails(2, "needs --tls-cert and --tls-key", append(whole, "--listen", "127.0.0.1:0", "--users-file", users, "--require-tls")...)
}

// A relay that gave its volume to another and gets it back goes on with its old state
// directory, whose journal and cache are of its own last reign, and so does the other.
func TestBinlogRelay_HandedOverTwice_GoesOn(t *testing.T) {
	testenv.Long(t)
	for name, killed := range map[string]bool{"stopped": false, "killed": true} {
		t.Run(name, func(t *testing.T) {
			s := dbtest.Start(t, dbtest.MariaDB1011)
			s.Exec(t, "create database d", "create table d.t (i int, s longtext)")
			one := newRelayTest(t, s)
			two := one.elsewhere(t)
			for round, r := range []*relayTest{one, two, one, two} {
				if killed && round > 0 {
					r.args = append(r.args, "--takeover")
				}
				r.start(t)
				s.Exec(t, fmt.Sprintf("insert into d.t values (%d, repeat('x', 3000000))", round), fmt.Sprintf("insert into d.t values (%d, 'end')", round))
				r.caughtUp(t)
				r.identical(t)
				if killed {
					r.commits(t)
					r.kill(t)
				} else {
					r.ends(t)
				}
			}
			one.args = append(one.args, "--takeover")
			one.start(t)
			one.caughtUp(t)
			one.identical(t)
			one.ends(t)
			for _, args := range [][]string{{"check", one.url, "--data"}, {"binlog", "verify", one.url, "--dir", "logs"}} {
				if out, err := harness.Run(t.Context(), "", append([]string{one.binary}, args...)...); err != nil {
					t.Errorf("%v: %v\n%s", args, err, out)
				}
			}
		})
	}
}

// elsewhere is a relay of the same volume on what could be another machine.
func (r *relayTest) elsewhere(t *testing.T) *relayTest {
	t.Helper()
	dir := testenv.TempDir(t)
	o := *r
	o.state, o.mount = dir+"/state", dir+"/mnt"
	if err := os.Mkdir(o.mount, 0o755); err != nil {
		t.Fatal(err)
	}
	o.args = slices.Clone(r.args)
	o.args[slices.Index(o.args, r.state)], o.args[slices.Index(o.args, r.mount)] = o.state, o.mount
	return &o
}

// commits waits until everything is in the bucket.
func (r *relayTest) commits(t *testing.T) {
	t.Helper()
	if out, err := harness.Run(t.Context(), "", r.binary, "sync", r.mount); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
