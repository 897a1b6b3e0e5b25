package main

import (
	"context"
	"encoding/json"
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

func TestKeptSource_SavedAndLoaded_UntilTheOptionsChange(t *testing.T) {
	k := &keptSource{file: filepath.Join(t.TempDir(), keptSourceName), options: binlogfs.SourceSettings{Sources: []string{"a:1"}, User: "u", Heartbeat: time.Second}}
	if s, err := k.load(quietLogger()); s != nil || err != nil {
		t.Errorf("nothing kept: %+v, %v", s, err)
	}
	password := "p"
	want := binlogfs.SourceSettings{Sources: []string{"b:2", "a:1"}, User: "u", Password: &password, Heartbeat: time.Second}
	if err := k.save(want); err != nil {
		t.Fatal(err)
	}
	s, err := k.load(quietLogger())
	if err != nil || s == nil || s.Sources[0] != "b:2" || *s.Password != "p" {
		t.Errorf("loaded %+v, %v", s, err)
	}
	if st, err := os.Stat(k.file); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	k.options.Heartbeat = 3 * time.Second
	if s, err := k.load(quietLogger()); err != nil || s == nil || s.Sources[0] != "b:2" || s.Heartbeat != 3*time.Second {
		t.Errorf("with another heartbeat: %+v, %v", s, err)
	}
	k.options.Sources = []string{"c:3"}
	if s, err := k.load(quietLogger()); s != nil || err != nil {
		t.Errorf("with other options: %+v, %v", s, err)
	}
	if err := os.WriteFile(k.file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := k.load(quietLogger()); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("damaged: %v", err)
	}
}

// unmounted is a relay that shows its volume nowhere, with an address for clients.
func unmounted(t *testing.T, s *dbtest.Server, args ...string) (r *relayTest, client func(sql string) string) {
	t.Helper()
	port := strconv.Itoa(testenv.FreePort(t))
	users := filepath.Join(testenv.TempDir(t), "users")
	if err := os.WriteFile(users, []byte("boss:native:manage:boss-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r = newRelayTest(t, s, append([]string{"--listen", net.JoinHostPort("127.0.0.1", port), "--users-file", users}, args...)...)
	i := slices.Index(r.args, "--mount")
	r.args = slices.Delete(r.args, i, i+2)
	return r, func(sql string) string {
		t.Helper()
		out, err := harness.Run(t.Context(), "", "mariadb", "--no-defaults", "--skip-ssl", "-h127.0.0.1", "-P"+port, "-uboss", "-pboss-secret", "--batch", "--skip-column-names", "-e", sql)
		if err != nil {
			return err.Error()
		}
		return out
	}
}

func (r *relayTest) cistern(t *testing.T, args ...string) string {
	t.Helper()
	out, err := harness.Run(t.Context(), "", append([]string{r.binary, "binlog"}, args...)...)
	if err != nil {
		return err.Error()
	}
	return out
}

// upTo waits until the relay has published a server's GTIDs.
func (r *relayTest) upTo(t *testing.T, s *dbtest.Server) binlogfs.RelayStatus {
	t.Helper()
	want := s.Value(t, "select @@gtid_binlog_state")
	for deadline := time.Now().Add(relayWait); ; time.Sleep(50 * time.Millisecond) {
		st := r.status(t)
		if st.GTIDs == want {
			return st
		}
		if time.Now().After(deadline) {
			t.Fatalf("the relay is at %+v, the source at %s", st, want)
		}
	}
}

func TestBinlogRelay_ControlledByClientAndCommands(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011)
	s.Exec(t, "create database d", "create table d.t (i int)")
	r, client := unmounted(t, s, "--mode", "own", "--max-binlog-size", "64K")
	r.start(t)
	r.upTo(t, s)
	want := func(got string, parts ...string) {
		t.Helper()
		for _, p := range parts {
			if !strings.Contains(got, p) {
				t.Errorf("no %q in %q", p, got)
			}
		}
	}
	want(client("SHOW BINARY LOGS"), "binlog.000001\t")
	want(client("FLUSH BINARY LOGS; SHOW BINARY LOGS"), "binlog.000002\t")
	want(r.cistern(t, "flush", r.url), "goes on in 000001/binlog.000003")
	want(client("CHANGE MASTER TO MASTER_HOST='127.0.0.1'"), "ERROR 1198", "STOP SLAVE")
	want(client("STOP SLAVE; SHOW SLAVE STATUS"), "\tNo\t")
	if st := r.statusAnyway(t); st.Pulling || st.Connected {
		t.Errorf("after STOP SLAVE: %+v", st)
	}
	want(client("CHANGE MASTER TO MASTER_LOG_FILE='mysql-bin.000001', MASTER_LOG_POS=4"), "in own mode the source is asked by GTID")
	// A name that this machine has, too: it shows that the change is kept.
	want(client("CHANGE MASTER TO MASTER_HOST='localhost', MASTER_PORT="+strconv.Itoa(s.Port)+", MASTER_USER='"+dbtest.User+"', MASTER_USE_GTID=slave_pos; START SLAVE; SHOW SLAVE STATUS"), "\tlocalhost\t")
	s.Exec(t, "insert into d.t values (1)")
	if st := r.upTo(t, s); st.Source != net.JoinHostPort("localhost", strconv.Itoa(s.Port)) {
		t.Errorf("after the change: %+v", st)
	}
	want(r.cistern(t, "source", "stop", r.url), "pulls no more")
	want(r.cistern(t, "source", "change", r.url, "--source-user", "nobody"), "is changed")
	want(r.cistern(t, "source", "start", r.url), "the relay ", "the log ends at ")
	for deadline := time.Now().Add(relayWait); !r.statusAnyway(t).Stopped; time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it pulls as nobody: %+v", r.statusAnyway(t))
		}
	}
	// It serves its clients, and is put right.
	want(client("SHOW SLAVE STATUS"), "\tnobody\t", "\t1593\t", "does not accept the user or the password", "\tSlave_Pos\t")
	want(r.cistern(t, "source", "change", r.url, "--source-user", dbtest.User), "is changed")
	want(client("START REPLICA"), "")
	s.Exec(t, "insert into d.t values (2)")
	r.upTo(t, s)
	want(r.cistern(t, "source", "failover", r.url, "127.0.0.1:1"), "127.0.0.1:1: connect")
	want(r.cistern(t, "stop", r.url), "has ended; everything is in commit")
	select {
	case <-r.proc.Done():
	case <-time.After(relayWait):
		t.Fatal("the process runs still")
	}
	r.start(t)
	s.Exec(t, "insert into d.t values (3)")
	if st := r.upTo(t, s); st.Source != net.JoinHostPort("localhost", strconv.Itoa(s.Port)) {
		t.Errorf("after the restart: %+v", st)
	}
	want(r.cistern(t, "stop", r.url), "has ended")
	want(r.cistern(t, "verify", r.url, "--dir", "logs"), "0 problems")
	want(r.cistern(t, "list", r.url, "--dir", "logs"), "binlog.000001", "binlog.000003")
	want(r.cistern(t, "stop", r.url), "no relay of")
}

// statusAnyway is status, also of a relay that has stopped.
func (r *relayTest) statusAnyway(t *testing.T) (s binlogfs.RelayStatus) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), relayWait)
	defer cancel()
	out, err := harness.Run(ctx, "", "sh", "-c", `"$0" binlog status "$1" --json || true`, r.binary, r.url)
	if err == nil {
		err = json.Unmarshal([]byte(out), &s)
	}
	if err != nil {
		t.Fatalf("%s: %v", out, err)
	}
	return s
}
