package e2e

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

// A database is cloned while it runs: without load, with 4 and 8 writers, and with
// 16 threads of sysbench beside them. A second server that starts on the clone, on
// a mount or in a local directory, has all that was acknowledged before, nothing by
// half, and clean tables; the first one goes on.
func TestClone_RunningDatabase_SecondServerHasTheLedger(t *testing.T) {
	testenv.Long(t)
	testenv.NeedPrograms(t, "sysbench")
	b, url := cisternBackend(t)
	first := testenv.MariaDB(t, filepath.Join(b.dir, "data"))
	testenv.StartMariaDB(t, first)
	prepareSysbench(t, first)
	for _, c := range []struct {
		name     string
		writers  int
		sysbench int
		to       bool // a local directory
	}{
		{"no load", 0, 0, false}, {"4 writers", 4, 0, true}, {"8 writers", 8, 0, false}, {"16 threads", 4, 16, false},
	} {
		ok := t.Run(c.name, func(t *testing.T) {
			l := ledgerOf(t, first, max(c.writers, 1), seed(t))
			w := startLoad(t, l, first)
			w.waitTotal(t, l, 100)
			if c.writers == 0 {
				w.stop()
			}
			stop := startSysbench(t, first, c.sysbench)
			before := l.Snapshot()
			begun := time.Now()
			dir := cloneOf(t, b.dir, fmt.Sprintf("%s-%d-%d", url, c.writers, c.sysbench), c.to)
			took := time.Since(begun)
			after := l.Total()
			if c.writers > 0 {
				w.waitTotal(t, l, after+100) // the first one goes on
				w.stop()
			}
			stop()
			second := testenv.MariaDB(t, filepath.Join(dir, "data"))
			testenv.StartMariaDB(t, second)
			verify(t, second, before, Anything, 0)
			if n := committed(t, second); n > after+max(c.writers, 1) {
				t.Errorf("the clone has %d transactions, and %d were acknowledged when it was made", n, after)
			}
			t.Logf("cloned in %v after %d to %d transactions", took.Round(time.Millisecond), before.Total(), after)
			testenv.StopMariaDB(t, second)
			verify(t, first, l, OneInFlight, 0)
		})
		if !ok {
			break
		}
	}
	testenv.StopMariaDB(t, first)
	testenv.Umount(t, b.mount)
}

// cloneOf clones what is mounted on a directory and returns where the clone shows.
func cloneOf(t *testing.T, mounted, url string, local bool) string {
	t.Helper()
	if local {
		dir := filepath.Join(testenv.TempDir(t), "copy")
		if _, err := harness.Run(t.Context(), "", testenv.Cistern(t), "clone", mounted, "--to", dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	if _, err := harness.Run(t.Context(), "", testenv.Cistern(t), "clone", mounted, url); err != nil {
		t.Fatal(err)
	}
	m := testenv.Mount(t, url, testenv.MountOptions{})
	t.Cleanup(func() {
		if !t.Failed() {
			testenv.Umount(t, m)
		}
	})
	return m.Dir
}

// ledgerOf begins a ledger anew.
func ledgerOf(t *testing.T, server *harness.MariaDB, writers int, seed uint64) *Ledger {
	t.Helper()
	db, err := server.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "DROP DATABASE IF EXISTS ledger"); err != nil {
		t.Fatal(err)
	}
	l, err := NewLedger(t.Context(), db, writers, seed)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// committed counts a ledger's transactions in the database.
func committed(t *testing.T, server *harness.MariaDB) (n int) {
	t.Helper()
	db, err := server.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if err := db.QueryRowContext(t.Context(), "SELECT SUM(seq) FROM ledger.heads").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

func sysbench(m *harness.MariaDB, args ...string) []string {
	return append([]string{
		"sysbench", "oltp_read_write", "--db-driver=mysql", "--mysql-socket=" + m.Socket(), "--mysql-user=root", "--mysql-db=sbtest",
		"--tables=4", "--table-size=5000",
	}, args...)
}

func prepareSysbench(t *testing.T, m *harness.MariaDB) {
	t.Helper()
	db, err := m.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(t.Context(), "CREATE DATABASE sbtest"); err != nil {
		t.Fatal(err)
	}
	if _, err := harness.Run(t.Context(), "", sysbench(m, "--threads=2", "prepare")...); err != nil {
		t.Fatal(err)
	}
}

// startSysbench lets threads read and write until stop; with none it does nothing.
func startSysbench(t *testing.T, m *harness.MariaDB, threads int) (stop func()) {
	t.Helper()
	if threads == 0 {
		return func() {}
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := harness.Run(ctx, "", sysbench(m, fmt.Sprint("--threads=", threads), "--time=0", "run")...)
		done <- err
	}()
	t.Cleanup(cancel)
	time.Sleep(time.Second) // it has connected, or has failed
	select {
	case err := <-done:
		cancel()
		t.Fatalf("sysbench ended: %v", err)
	default:
	}
	return func() {
		cancel()
		<-done
	}
}
