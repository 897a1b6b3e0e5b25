package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

// downstream is a relay that serves replicas, and a replica behind it.
type downstream struct {
	*relayTest
	replica    *dbtest.Server
	host, port string
}

// newDownstream makes both; the relay is not started.
func newDownstream(t *testing.T, s *dbtest.Server, args ...string) *downstream {
	t.Helper()
	d := &downstream{replica: dbtest.Start(t, s.Kind), host: "127.0.0.1", port: strconv.Itoa(testenv.FreePort(t))}
	users := filepath.Join(testenv.TempDir(t), "users")
	if err := os.WriteFile(users, []byte("down:native:read:stream-secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	d.relayTest = newRelayTest(t, s, append([]string{"--listen", net.JoinHostPort(d.host, d.port), "--users-file", users}, args...)...)
	return d
}

// follow makes the replica read from the relay.
func (d *downstream) follow(t *testing.T) {
	t.Helper()
	d.replica.Exec(t, fmt.Sprintf("change master to master_host='%s', master_port=%s, master_user='down', master_password='stream-secret', "+
		"master_connect_retry=1, master_heartbeat_period=1, master_use_gtid=slave_pos", d.host, d.port), "start slave")
}

// reached waits until the replica has what the source has.
func (d *downstream) reached(t *testing.T) {
	t.Helper()
	pos := d.source.Value(t, "select @@gtid_binlog_pos")
	if got := d.replica.Value(t, "select master_gtid_wait('"+pos+"', 120)"); got != "0" {
		t.Fatalf("the replica did not reach %s: %v", pos, d.replica.Rows(t, "show slave status"))
	}
}

// sameTables compares tables by their checksums.
func (d *downstream) sameTables(t *testing.T, tables ...string) {
	t.Helper()
	for _, table := range tables {
		want, got := d.source.Rows(t, "checksum table "+table)[0][1], d.replica.Rows(t, "checksum table "+table)[0][1]
		if want != got || want == "" {
			t.Errorf("%s: %s at the replica, %s at the primary", table, got, want)
		}
	}
}

// The basic story, with sysbench.
func TestBinlogRelay_Sysbench_ReplicaEqual(t *testing.T) {
	testenv.Long(t)
	testenv.NeedPrograms(t, "sysbench")
	s := dbtest.Start(t, dbtest.MariaDB1011)
	d := newDownstream(t, s)
	d.start(t)
	d.follow(t)
	s.Exec(t, "create database sbtest")
	for _, step := range [][]string{{"prepare"}, {"--threads=4", "--time=5", "run"}} {
		argv := append([]string{
			"sysbench", "oltp_write_only", "--db-driver=mysql", "--mysql-socket=" + s.Socket, "--mysql-user=root", "--mysql-db=sbtest", "--tables=2", "--table-size=500",
		}, step...)
		if out, err := harness.Run(t.Context(), "", argv...); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	d.caughtUp(t)
	d.reached(t)
	d.sameTables(t, "sbtest.sbtest1", "sbtest.sbtest2")
	d.identical(t)
	for _, who := range []string{"the replica", "the relay"} {
		query := "show slave status"
		out, err := harness.Run(t.Context(), "", "mariadb", "--no-defaults", "-S", d.replica.Socket, "-uroot", "-E", "-e", query)
		if who == "the relay" {
			out, err = harness.Run(t.Context(), "", "mariadb", "--no-defaults", "-h", d.host, "-P", d.port, "-udown", "-pstream-secret", "-E", "-e", query)
		}
		if err != nil || !strings.Contains(out, "Slave_IO_Running: Yes") || !strings.Contains(out, "Slave_SQL_Running: Yes") {
			t.Errorf("%s: %v\n%s", who, err, out)
		}
	}
}

// A stopped archive is served up to a point, and a fresh replica stops there.
func TestBinlogReplay_UntilEachKind_ReplicaHasThatMuch(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011)
	d := newDownstream(t, s)
	d.start(t)
	s.Exec(t, "create database d", "create table d.t (i int primary key)", "insert into d.t values (1),(2)")
	s.Exec(t, "begin", "insert into d.t values (3)", "insert into d.t values (4)", "commit")
	gtid := s.Value(t, "select @@gtid_binlog_pos")
	row := s.Rows(t, "show master status")[0]
	time.Sleep(1100 * time.Millisecond) // a log's times are whole seconds
	between := time.Now().Truncate(time.Second)
	time.Sleep(1100 * time.Millisecond)
	s.Exec(t, "begin", "insert into d.t values (5)", "insert into d.t values (6)", "commit", "insert into d.t values (7)")
	d.caughtUp(t)
	ctx, cancel := context.WithTimeout(t.Context(), relayWait)
	defer cancel()
	if err := d.proc.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	offset, err := strconv.Atoi(row[1])
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		args []string
		rows string
	}{
		"time":                     {[]string{"--until-time", between.UTC().Format(time.RFC3339)}, "4"},
		"GTID":                     {[]string{"--until-gtid", gtid}, "4"},
		"position":                 {[]string{"--until-position", row[0] + ":" + row[1]}, "4"},
		"position within a group":  {[]string{"--until-position", row[0] + ":" + strconv.Itoa(offset+150)}, "4"},
		"everything there is then": {nil, "7"},
	} {
		t.Run(name, func(t *testing.T) {
			users := d.args[len(d.args)-1]
			argv := append([]string{d.binary, "binlog", "replay", d.url, "--dir", "logs", "--listen", net.JoinHostPort(d.host, d.port), "--users-file", users}, c.args...)
			proc, err := harness.Start(argv, "")
			if err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := proc.Kill(); err != nil {
					t.Error(err)
				}
			}()
			ctx, cancel := context.WithTimeout(t.Context(), relayWait)
			defer cancel()
			if err := proc.WaitLine(ctx, "serving"); err != nil {
				t.Fatal(err)
			}
			d.replica.Exec(t, "stop slave", "reset slave all", "drop database if exists d", "reset master", "set global gtid_slave_pos=''")
			d.follow(t)
			d.atEnd(t)
			if got := d.replica.Value(t, "select count(*) from d.t"); got != c.rows {
				t.Errorf("%s rows, want %s", got, c.rows)
			}
		})
	}
}

// atEnd waits until the replica has applied everything that it is sent.
func (d *downstream) atEnd(t *testing.T) {
	t.Helper()
	last := ""
	for deadline, since := time.Now().Add(relayWait), time.Now(); ; time.Sleep(100 * time.Millisecond) {
		pos := d.replica.Value(t, "select concat(@@gtid_slave_pos, ' ', (select variable_value from information_schema.global_status where variable_name='SLAVE_RUNNING'))")
		if pos != last {
			last, since = pos, time.Now()
		}
		if strings.HasSuffix(pos, " ON") && len(pos) > len(" ON") && time.Since(since) > 3*time.Second {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the replica is at %q: %v", pos, d.replica.Rows(t, "show slave status"))
		}
	}
}
