package binlogfs

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/testenv"
)

// follower is a real server that replicates from a relay.
type follower struct {
	*dbtest.Server
	t    testing.TB
	addr string
}

// words are the statements of a kind of server.
func (f *follower) words() (change, source, start, stop, status string) {
	if f.Kind == dbtest.MySQL97 {
		return "CHANGE REPLICATION SOURCE TO ", "SOURCE_", "START REPLICA", "STOP REPLICA", "SHOW REPLICA STATUS"
	}
	return "CHANGE MASTER TO ", "MASTER_", "START SLAVE", "STOP SLAVE", "SHOW SLAVE STATUS"
}

// change points the server to the relay; more are further options, of which each
// begins with the word MASTER_ or SOURCE_ that fits.
func (f *follower) change(more func(source string) string) {
	change, source, start, _, _ := f.words()
	host, port, err := net.SplitHostPort(f.addr)
	if err != nil {
		f.t.Fatal(err)
	}
	user, password := "repl", "other"
	if f.Kind == dbtest.MySQL97 {
		user, password = "sha", "third"
	}
	sql := fmt.Sprintf("%s%[2]sHOST='%[3]s', %[2]sPORT=%[4]s, %[2]sUSER='%[5]s', %[2]sPASSWORD='%[6]s', %[2]sCONNECT_RETRY=1, %[2]sHEARTBEAT_PERIOD=1, %[7]s",
		change, source, host, port, user, password, more(source))
	switch f.Kind { // the newer ones insist on TLS
	case dbtest.MySQL97:
		sql += ", SOURCE_SSL=1"
	case dbtest.MariaDB118:
		sql += ", MASTER_SSL=1, MASTER_SSL_VERIFY_SERVER_CERT=0"
	}
	f.Exec(f.t, sql, start)
}

// byGTID is the option of a kind of server to go on by GTID.
func (f *follower) byGTID(source string) string {
	if f.Kind.MariaDB() {
		return source + "USE_GTID=slave_pos"
	}
	return source + "AUTO_POSITION=1"
}

// byPosition goes on from where the primary writes.
func (f *follower) byPosition(file string, offset int64) func(string) string {
	off := "AUTO_POSITION=0"
	if f.Kind.MariaDB() {
		off = "USE_GTID=no"
	}
	return func(source string) string {
		return fmt.Sprintf("%[1]s%[2]s, %[1]sLOG_FILE='%[3]s', %[1]sLOG_POS=%[4]d", source, off, file, offset)
	}
}

// caughtUp waits until the server has executed what the primary has logged, and
// compares the tables.
func (f *follower) caughtUp(primary *dbtest.Server) {
	f.t.Helper()
	file, offset := position(f.t, primary)
	f.at(file, offset, primary)
}

// at waits until the server has executed what lies before a place, and compares
// the tables with the primary's.
func (f *follower) at(file string, offset int64, primary *dbtest.Server) {
	f.t.Helper()
	wait := "master_pos_wait"
	if f.Kind == dbtest.MySQL97 {
		wait = "source_pos_wait"
	}
	got := f.Value(f.t, fmt.Sprintf("select %s('%s', %d, 60)", wait, file, offset))
	if _, _, _, _, status := f.words(); got == "" || got == "-1" {
		f.t.Fatalf("%s is not at %s %d: %q\n%v", f.Kind, file, offset, got, f.Rows(f.t, status))
	}
	for _, table := range primary.Rows(f.t, "select concat(table_schema, '.', table_name) from information_schema.tables where table_schema like 'w%' order by 1") {
		sum := "checksum table " + table[0]
		if a, b := fmt.Sprint(primary.Rows(f.t, sum)), fmt.Sprint(f.Rows(f.t, sum)); a != b {
			f.t.Errorf("%s: the primary has %s, the replica %s", table[0], a, b)
		}
	}
}

func TestServer_RealReplicas_TablesEqual(t *testing.T) {
	testenv.Long(t)
	for _, k := range dbtest.Kinds() {
		t.Run(string(k), func(t *testing.T) {
			primary := dbtest.Start(t, k)
			l := newPlace(t).log()
			r := pull(t, l, nil, primary)
			work(t, primary, 0)
			r.caughtUp(t, l, primary)
			o := ServerOptions{Archive: l, Keeper: l}
			if k == dbtest.MariaDB118 || k == dbtest.MySQL97 {
				o.TLS = &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}, MinVersion: tls.VersionTLS12}
			}
			s, addr := serveLog(t, o)
			kind := k
			if k == dbtest.Galera {
				kind = dbtest.MariaDB1011 // a cluster's replica is outside of it
			}
			f := &follower{dbtest.Start(t, kind), t, addr}
			_, _, start, stop, _ := f.words()
			f.change(f.byGTID)
			f.caughtUp(primary)
			if all := s.Replicas(); len(all) != 1 || all[0].ServerID != uint32(f.ID) || !all[0].GTID {
				t.Errorf("replicas: %+v", all)
			}
			f.Exec(t, stop)
			work(t, primary, 1)
			// Its events span packets.
			primary.Exec(t, "create table w1.big (s longtext) engine=myisam", fmt.Sprintf("insert into w1.big values (repeat('b', %d))", 40<<20))
			f.Exec(t, start)
			f.caughtUp(primary)
			f.Exec(t, stop)
			file, offset := position(t, primary)
			f.change(f.byPosition(file, offset))
			work(t, primary, 2)
			f.caughtUp(primary)
			if all := s.Replicas(); len(all) != 1 || all[0].GTID {
				t.Errorf("replicas: %+v", all)
			}
			if k == dbtest.MariaDB1011 { // this system's tool knows no newer one
				sameByTool(t, addr, primary)
			}
			if err := r.stop(); err != nil {
				t.Error(err)
			}
		})
	}
}

// sameByTool copies the files with MariaDB's own tool.
func sameByTool(t *testing.T, addr string, primary *dbtest.Server) {
	t.Helper()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	dir := testenv.TempDir(t) + string(filepath.Separator)
	logs := primary.BinaryLogs(t)
	began := time.Now()
	c := exec.Command("mariadb-binlog", "--no-defaults", "-R", "--raw", "--to-last-log", "-h", host, "-P", port, "-urepl", "-pother", "--result-file="+dir, filepath.Base(logs[0]))
	if out, err := c.CombinedOutput(); err != nil {
		t.Fatalf("mariadb-binlog: %v\n%s", err, out)
	}
	t.Logf("mariadb-binlog copied %d files in %v", len(logs), time.Since(began))
	for _, name := range logs {
		want, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(filepath.Join(dir, filepath.Base(name)))
		if err != nil || !bytes.Equal(unflag(got), unflag(want)) {
			t.Errorf("%s: %d bytes, the primary has %d (%v)", filepath.Base(name), len(got), len(want), err)
		}
	}
}
