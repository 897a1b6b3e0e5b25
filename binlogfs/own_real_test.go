package binlogfs

import (
	"crypto/tls"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/testenv"
)

// reached waits until a log has all GTIDs of a server.
func (r *pulling) reached(t testing.TB, l *Log, s *dbtest.Server) {
	t.Helper()
	flavor, q := MySQL, "select @@global.gtid_executed"
	if s.Kind.MariaDB() {
		flavor, q = MariaDB, "select @@global.gtid_binlog_state"
	}
	want, err := ParseGTIDState(flavor, s.Value(t, q))
	if err != nil {
		t.Fatal(err)
	}
	late := time.After(pullWait)
	for {
		_, moved := l.End()
		state := l.State()
		if state != nil && state.Contains(want) {
			return
		}
		select {
		case <-moved:
		case err := <-r.done:
			t.Fatalf("pulling ended at %v, before %v: %v", state, want, err)
		case <-late:
			t.Fatalf("the archive is at %v and the server at %v: %+v", state, want, r.Status())
		}
	}
}

// sameGroups compares the groups of an archive in own mode with those of the
// server's files.
func sameGroups(t testing.TB, l *Log, s *dbtest.Server) {
	t.Helper()
	var names []string
	var bodies [][]byte
	for _, name := range s.BinaryLogs(t) {
		body, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		names, bodies = append(names, filepath.Base(name)), append(bodies, body)
	}
	want := groupsOf(t, names, bodies, true)
	names, bodies = ownFiles(t, l)
	got := groupsOf(t, names, bodies, false)
	if len(got) != len(want) {
		t.Fatalf("%d events, of the server's %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			t.Fatalf("event %d is\n%.300s\nand the server's\n%.300s", i, got[i], want[i])
		}
	}
}

// verifyOwn lets the server's own tool read the archive's files.
func verifyOwn(t testing.TB, l *Log, s *dbtest.Server) {
	t.Helper()
	if s.Kind.MariaDB() {
		verifyByClient(t, l, s)
		return
	}
	names, bodies := ownFiles(t, l)
	dir := testenv.TempDir(t)
	for i, name := range names {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, bodies[i], 0o600); err != nil {
			t.Fatal(err)
		}
		argv := append(s.Tool(t, "mysqlbinlog"), "--verify-binlog-checksum", file)
		if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
			t.Errorf("mysqlbinlog on %s: %v\n%.2000s", name, err, out)
		}
	}
}

func TestOwn_RealServers_ReplicasByGTIDAndPosition(t *testing.T) {
	testenv.Long(t)
	for _, k := range []dbtest.Kind{dbtest.MariaDB1011, dbtest.MariaDB118, dbtest.MySQL97} {
		t.Run(string(k), func(t *testing.T) {
			primary := dbtest.Start(t, k)
			p := newPlace(t)
			l := p.ownLog(256 << 10)
			work(t, primary, 0)
			r := pull(t, l, nil, primary)
			r.reached(t, l, primary)
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			work(t, primary, 1)
			primary.Exec(t, "create table w1.big (s longtext) engine=myisam", fmt.Sprintf("insert into w1.big values (repeat('b',%d))", 20<<20))
			l = p.ownLog(256 << 10) // as after a restart
			r = pull(t, l, nil, primary)
			r.reached(t, l, primary)
			sameGroups(t, l, primary)
			if n := len(l.Files()); n < 3 {
				t.Errorf("%d files", n)
			}
			o := ServerOptions{Archive: l, Keeper: l}
			if k != dbtest.MariaDB1011 {
				o.TLS = &tls.Config{Certificates: []tls.Certificate{selfSigned(t)}, MinVersion: tls.VersionTLS12}
			}
			_, addr := serveLog(t, o)
			f := &follower{dbtest.Start(t, k, "--log-slave-updates"), t, addr}
			if !k.MariaDB() {
				f.Exec(t, "set global replica_parallel_workers=4")
			}
			f.change(f.byGTID)
			f.follows(l, primary)
			_, _, _, stop, _ := f.words()
			f.Exec(t, stop)
			end, _ := l.End()
			f.change(f.byPosition(end.File, end.Offset))
			primary.Stop(t)
			primary.Restart(t)
			work(t, primary, 2)
			r.reached(t, l, primary)
			f.follows(l, primary)
			sameGroups(t, l, primary)
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			verifyOwn(t, l, primary)
		})
	}
}

// follows waits until the server has executed what the archive has, and compares
// its tables with the primary's.
func (f *follower) follows(l *Log, primary *dbtest.Server) {
	f.t.Helper()
	end, _ := l.End()
	f.at(end.File, end.Offset, primary)
}

// A second server takes the place of the first, and the sequence goes on.
func TestOwn_RealFailover_SequenceGoesOn(t *testing.T) {
	testenv.Long(t)
	first := dbtest.Start(t, dbtest.MariaDB1011, "--log-slave-updates")
	second := dbtest.Start(t, dbtest.MariaDB1011, "--log-slave-updates")
	second.Exec(t, fmt.Sprintf("change master to master_host='127.0.0.1', master_port=%d, master_user='%s', master_password='%s', master_use_gtid=slave_pos, master_connect_retry=1", first.Port, dbtest.User, dbtest.Password), "start slave")
	l := newPlace(t).ownLog(1 << 20)
	r := pull(t, l, func(o *PullOptions) { o.Failover = time.Millisecond }, first, second)
	work(t, first, 0)
	r.reached(t, l, first)
	_, addr := serveLog(t, ServerOptions{Archive: l, Keeper: l})
	f := &follower{dbtest.Start(t, dbtest.MariaDB1011), t, addr}
	f.change(f.byGTID)
	f.follows(l, first)
	_, _, start, stop, _ := f.words()
	f.Exec(t, stop)
	end, _ := l.End()
	if got := second.Value(t, "select master_gtid_wait('"+l.State().Position()+"', 60)"); got != "0" {
		t.Fatalf("the second server does not follow: %v", second.Rows(t, "show slave status"))
	}
	first.Kill(t)
	second.Exec(t, "stop slave", "reset slave all")
	work(t, second, 1)
	r.reached(t, l, second)
	f.change(f.byPosition(end.File, end.Offset)) // a place of the first server's time
	f.follows(l, second)
	if all := l.Sources(); len(all) != 2 || all[1].Epoch != 1 {
		t.Errorf("sources %+v", all)
	}
	f.Exec(t, stop, start)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	verifyByClient(t, l, second)
}
