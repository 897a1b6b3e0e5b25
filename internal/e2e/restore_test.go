package e2e

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

// replicated is a database on a mount whose binary log a relay pulls into a
// volume of its own.
type replicated struct {
	*backend
	url, logs string
	server    *harness.MariaDB
	relay     *harness.Process
}

const replPassword = "repl-secret"

func startReplicated(t *testing.T) *replicated {
	t.Helper()
	r := &replicated{}
	r.backend, r.url = cisternBackend(t)
	port := testenv.FreePort(t)
	r.server = testenv.MariaDB(t, filepath.Join(r.dir, "data"))
	r.server.Args = append(r.server.Args, "--skip-networking=0", "--bind-address=127.0.0.1", "--port="+strconv.Itoa(port), "--binlog-format=row")
	testenv.StartMariaDB(t, r.server)
	db := r.open(t)
	for _, q := range []string{"CREATE USER 'repl'@'%' IDENTIFIED BY '" + replPassword + "'", "GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO 'repl'@'%'"} {
		if _, err := db.Exec(q); err != nil {
			t.Fatal(err)
		}
	}
	dir := testenv.TempDir(t)
	r.logs = "file://" + filepath.Join(dir, "logs")
	if err := os.MkdirAll(filepath.Join(dir, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	testenv.Format(t, r.logs)
	password := filepath.Join(dir, "password")
	if err := os.WriteFile(password, []byte(replPassword+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	relay, err := harness.Start([]string{
		testenv.Cistern(t), "binlog", "relay", r.logs, "--state", filepath.Join(dir, "relay"), "--foreground",
		"--source", "127.0.0.1:" + strconv.Itoa(port), "--source-user", "repl", "--source-password-file", password, "--server-id", "77",
	}, "")
	if err != nil {
		t.Fatal(err)
	}
	r.relay = relay
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the relay's log:\n%s", relay.LogTail())
		}
		if err := relay.Kill(); err != nil {
			t.Error(err)
		}
	})
	if err := relay.WaitLine(t.Context(), "ready"); err != nil {
		t.Fatal(err)
	}
	return r
}

func (r *replicated) open(t *testing.T) *sql.DB {
	t.Helper()
	db, err := r.server.Open("")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

// end waits until the relay has everything, and ends server, relay and mount.
func (r *replicated) end(t *testing.T) {
	t.Helper()
	var file, offset string
	var rest [2]sql.NullString
	if err := r.open(t).QueryRow("SHOW MASTER STATUS").Scan(&file, &offset, &rest[0], &rest[1]); err != nil {
		t.Fatal(err)
	}
	for {
		var s struct {
			File   string `json:"file"`
			Offset int64  `json:"offset"`
		}
		if err := json.Unmarshal([]byte(r.cistern(t, "binlog", "status", r.logs, "--json")), &s); err != nil {
			t.Fatal(err)
		}
		if s.File == file && strconv.FormatInt(s.Offset, 10) == offset {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	testenv.StopMariaDB(t, r.server)
	if err := syscall.Kill(r.relay.PID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := r.relay.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	testenv.Umount(t, r.mount)
}

func (r *replicated) cistern(t *testing.T, args ...string) string {
	t.Helper()
	out, err := harness.Run(t.Context(), "", append([]string{testenv.Cistern(t)}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// gtid is the sequence number of the server's last transaction.
func (r *replicated) gtid(t *testing.T) int64 {
	t.Helper()
	var text string
	if err := r.open(t).QueryRow("SELECT @@gtid_binlog_pos").Scan(&text); err != nil {
		t.Fatal(err)
	}
	return sequence(t, text)
}

func sequence(t *testing.T, gtid string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(gtid[strings.LastIndexByte(gtid, '-')+1:], 10, 64)
	if err != nil {
		t.Fatalf("GTID %q: %v", gtid, err)
	}
	return n
}

// recovered is what `cistern restore --json` says.
type recovered struct {
	Recovery struct {
		From   string `json:"from_gtid"`
		GTID   string `json:"gtid"`
		Commit uint64 `json:"commit"`
	} `json:"recovery"`
	Commit   uint64 `json:"commit"`
	Replaced struct{ Name string }
}

// A database under load goes back to a snapshot and from there on to a moment and
// to a transaction: what is there then is the ledger at that point, nothing missing,
// nothing half, nothing beyond.
func TestRestore_ToAPointUnderLoad_EqualsTheLedger(t *testing.T) {
	testenv.Long(t)
	seed := seed(t)
	random := rand.New(rand.NewPCG(seed, 1))
	r := startReplicated(t)
	l := newLedger(t, r.server, seed)
	first := r.gtid(t) // the ledger has nothing yet
	w := startLoad(t, l, r.server)
	w.waitTotal(t, l, 200)
	r.cistern(t, "snapshot", "create", r.dir, "base")
	atBase := l.Snapshot()

	// The ledger at the turn of every second, for a while.
	type turn struct {
		at time.Time
		l  *Ledger
	}
	var turns []turn
	for range 9 {
		at := time.Now().Truncate(time.Second).Add(time.Second)
		time.Sleep(time.Until(at))
		turns = append(turns, turn{at, l.Snapshot()})
	}
	w.waitTotal(t, l, l.Total()+200)
	if reasons := w.stop(); !allNil(reasons) {
		t.Fatalf("the load ended: %v", reasons)
	}
	last := r.gtid(t)
	r.end(t)

	when := 3 + random.IntN(len(turns)-4)
	to := turns[when]
	got := r.restore(t, "base", "--to-time", to.at.UTC().Format(time.RFC3339))
	if got.Commit == 0 || got.Recovery.Commit <= got.Commit {
		t.Errorf("restored by commit %d, and recovered by commit %d", got.Commit, got.Recovery.Commit)
	}
	if n := sequence(t, got.Recovery.From); n <= first || n >= sequence(t, got.Recovery.GTID) {
		t.Errorf("from %s to %s", got.Recovery.From, got.Recovery.GTID)
	}
	// A log's times are whole seconds of when a transaction's last statement began.
	r.check(t, turns[when-1].l, sequence(t, got.Recovery.GTID)-first)
	if next := turns[when+1].l.Total() + writers; sequence(t, got.Recovery.GTID)-first > int64(next) {
		t.Errorf("%s is more than was there a second later", got.Recovery.GTID)
	}

	// And to a transaction, from the same snapshot.
	seq := first + int64(atBase.Total()) + random.Int64N(last-first-int64(atBase.Total())-10) + 5
	got = r.restore(t, "base", "--to-gtid", fmt.Sprintf("0-1-%d", seq))
	if sequence(t, got.Recovery.GTID) != seq {
		t.Errorf("reached %s, want 0-1-%d", got.Recovery.GTID, seq)
	}
	r.check(t, atBase, seq-first)

	out, err := harness.Run(t.Context(), "", testenv.Cistern(t), "restore", r.url+"@base", "--to-gtid", "0-1-3", "--binlog", r.logs)
	if err == nil || !strings.Contains(err.Error(), "choose an earlier snapshot") {
		t.Errorf("a point before the snapshot: %v, %s", err, out)
	}
}

func allNil(errs []error) bool {
	for _, err := range errs {
		if err != nil {
			return false
		}
	}
	return true
}

func (r *replicated) restore(t *testing.T, point string, args ...string) (out recovered) {
	t.Helper()
	text := r.cistern(t, append([]string{"restore", r.url + "@" + point, "--binlog", r.logs, "--json"}, args...)...)
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	t.Logf("%s", text)
	return out
}

// check starts the server on what was restored, compares it with the ledger, which
// is a lower bound, and with the number of transactions that it must have.
func (r *replicated) check(t *testing.T, l *Ledger, transactions int64) {
	t.Helper()
	r.mount = r.remount(t)
	testenv.StartMariaDB(t, r.server)
	verify(t, r.server, l, Anything, 0)
	var n int64
	if err := r.open(t).QueryRowContext(context.Background(), "SELECT SUM(seq) FROM ledger.heads").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != transactions {
		t.Errorf("%d transactions are there, want %d", n, transactions)
	}
	testenv.StopMariaDB(t, r.server)
	testenv.Umount(t, r.mount)
}
