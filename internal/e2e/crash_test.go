package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/testenv"
)

const (
	writers    = 4
	quickStart = 5 * time.Second // a restart past this is noted in the log
	aloneFor   = 2 * time.Second // how long a database may go on without its mount
)

// victim is what a round kills.
type victim string

const (
	killDatabase victim = "MariaDB"
	killMount    victim = "the mount"
	killBoth     victim = "both"
)

func TestCrash_PlainDirectory_LosesNothing(t *testing.T) {
	testenv.Long(t)
	crashRounds(t, plainBackend(t), 2, killDatabase)
}

func TestCrash_Loopback_LosesNothing(t *testing.T) {
	testenv.Long(t)
	crashRounds(t, loopbackBackend(t), 3, killDatabase, killMount, killBoth)
}

func TestCrash_Cistern_LosesNothing(t *testing.T) {
	testenv.Long(t)
	b, _ := cisternBackend(t)
	crashRounds(t, b, rounds(t, 10), killDatabase, killMount, killBoth)
}

// TestCrash_Stores_LosesNothing is the same with the volume on real servers.
func TestCrash_Stores_LosesNothing(t *testing.T) {
	testenv.Long(t)
	for _, kind := range []storeserver.Kind{storeserver.Versitygw, storeserver.FakeGCS} {
		t.Run(kind.String(), func(t *testing.T) {
			server := testenv.StoreServer(t, kind)
			url := "s3://" + server.Bucket + "/ledger"
			t.Setenv("CISTERN_S3_ENDPOINT", server.Endpoint)
			t.Setenv("AWS_REGION", server.Region)
			t.Setenv("AWS_ACCESS_KEY_ID", server.AccessKey)
			t.Setenv("AWS_SECRET_ACCESS_KEY", server.SecretKey)
			if kind == storeserver.FakeGCS {
				url = "gs://" + server.Bucket + "/ledger"
				t.Setenv("STORAGE_EMULATOR_HOST", server.Endpoint)
			}
			crashRounds(t, mountedAt(t, url), rounds(t, 2), killMount, killBoth)
		})
	}
}

// crashRounds puts a database on b and kills one of victims under load, n times
// over: each of them in turn, at a random moment. After every restart the ledger
// must be whole and the tables clean.
func crashRounds(t *testing.T, b *backend, n int, victims ...victim) {
	seed := seed(t)
	random := rand.New(rand.NewPCG(seed, 0))
	server := testenv.MariaDB(t, filepath.Join(b.dir, "data"))
	testenv.StartMariaDB(t, server)
	l := newLedger(t, server, seed)
	for round := range n {
		w := startLoad(t, l, server)
		target := l.Total() + 1 + random.IntN(2000)
		w.waitTotal(t, l, target)
		who := victims[round%len(victims)]
		t.Logf("round %d: kill %s after %d transactions", round, who, l.Total())
		kill(t, b, server, who, w)
		w.stop()
		since := restart(t, b, server)
		verify(t, server, l, OneInFlight, since)
	}
	testenv.StopMariaDB(t, server)
	if b.mount != nil {
		testenv.Umount(t, b.mount)
	}
}

// kill ends who with SIGKILL. When only the mount dies, the database goes on
// for a moment and meets errors on all its files; whatever it makes of them, it
// is killed as well before anything is mounted again.
func kill(t *testing.T, b *backend, server *harness.MariaDB, who victim, w *load) {
	t.Helper()
	var both sync.WaitGroup
	if who == killBoth {
		// At once: the database's last requests are still under way.
		both.Go(func() {
			if err := server.Kill(); err != nil {
				t.Error(err)
			}
		})
	}
	if who != killDatabase {
		b.killMount(t)
	}
	both.Wait()
	if who == killMount {
		select {
		case <-w.done:
		case <-time.After(aloneFor):
		}
	}
	if err := server.Kill(); err != nil {
		t.Fatal(err)
	}
}

// restart brings the mount back, when it is gone, and the database, and notes
// how long that took. It returns where the error log of the new life begins:
// before it stands what the old one said of a mount that died under it.
func restart(t *testing.T, b *backend, server *harness.MariaDB) (logBegin int) {
	t.Helper()
	log, err := server.ErrorLog()
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if b.mount == nil && b.remount != nil {
		b.mount = b.remount(t)
	}
	mounted := time.Since(begin)
	testenv.StartMariaDB(t, server)
	all := time.Since(begin)
	note := ""
	if all > quickStart {
		note = " (slow)"
	}
	t.Logf("back after %v%s, of which the mount %v", all.Round(time.Millisecond), note, mounted.Round(time.Millisecond))
	return len(log)
}

func newLedger(t *testing.T, server *harness.MariaDB, seed uint64) *Ledger {
	t.Helper()
	db, err := server.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	l, err := NewLedger(t.Context(), db, writers, seed)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// verify checks ledger, tables and the error log from logBegin on, and adopts what took effect
// without an answer.
func verify(t *testing.T, server *harness.MariaDB, l *Ledger, allowed Beyond, logBegin int) {
	t.Helper()
	db, err := server.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := l.Verify(ctx, db, allowed); err != nil {
		t.Errorf("the ledger: %v", err)
	}
	out, err := harness.Run(ctx, "", "mariadb-check", "--no-defaults", "--user=root", "--socket="+server.Socket(), "--extended", "--all-databases")
	if err != nil {
		t.Errorf("mariadb-check: %v", err)
	}
	for line := range strings.Lines(out) {
		if fields := strings.Fields(line); len(fields) != 2 || fields[1] != "OK" {
			t.Errorf("mariadb-check: %s", line)
		}
	}
	log, err := server.ErrorLog()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range corruption(log[logBegin:]) {
		t.Errorf("MariaDB's error log: %s", line)
	}
	if t.Failed() {
		t.FailNow()
	}
	if err := l.Adopt(ctx, db); err != nil {
		t.Fatal(err)
	}
}

// corruption returns the lines of an error log that speak of damage.
func corruption(log string) []string {
	var found []string
	for line := range strings.Lines(log) {
		low := strings.ToLower(line)
		if strings.Contains(low, "[note]") {
			continue
		}
		for _, word := range []string{"corrupt", "checksum mismatch", "is in the future", "marked as crashed", "missing redo"} {
			if strings.Contains(low, word) {
				found = append(found, strings.TrimSpace(line))
				break
			}
		}
	}
	return found
}

func TestCorruption_Lines(t *testing.T) {
	log := `2026-01-01 [Note] InnoDB: log sequence number 47391 (memory-mapped); transaction id 14
2026-01-01 [ERROR] InnoDB: Database page corruption on disk or a failed file read of tablespace ledger/parts
2026-01-01 [ERROR] InnoDB: Page [page id: space=0] log sequence number 9 is in the future!
2026-01-01 [Note] InnoDB: Starting crash recovery from checkpoint LSN=47391`
	if got := corruption(log); len(got) != 2 {
		t.Errorf("found %d lines: %q", len(got), got)
	}
}

// TestBucketAlone_AfterSync_HoldsTheLedger deletes the local state after a
// sync: what was acknowledged before the sync began is in the bucket.
func TestBucketAlone_AfterSync_HoldsTheLedger(t *testing.T) {
	testenv.Long(t)
	seed := seed(t)
	b, url := cisternBackend(t)
	server := testenv.MariaDB(t, filepath.Join(b.dir, "data"))
	testenv.StartMariaDB(t, server)
	l := newLedger(t, server, seed)
	w := startLoad(t, l, server)
	w.waitTotal(t, l, 500)
	before := l.Snapshot()
	out, err := harness.Run(t.Context(), "", testenv.Cistern(t), "sync", b.dir)
	if err != nil {
		t.Fatal(err)
	}
	commit, err := harness.CommitNumber(out)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("commit %s holds at least %d transactions", commit, before.Total())
	w.waitTotal(t, l, l.Total()+200)
	state := b.mount.StateDir
	kill(t, b, server, killBoth, w)
	w.stop()
	if err := os.RemoveAll(state); err != nil {
		t.Fatal(err)
	}
	fresh := filepath.Join(testenv.TempDir(t), "state")
	b.mount = testenv.Mount(t, url, testenv.MountOptions{Dir: b.dir, StateDir: fresh, Args: []string{"--takeover"}})
	since := restart(t, b, server)
	verify(t, server, before, Anything, since)
	testenv.StopMariaDB(t, server)
	testenv.Umount(t, b.mount)
}

// seed returns the run's random seed and prints it.
func seed(t *testing.T) uint64 {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("CISTERN_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("CISTERN_SEED: %v", err)
		}
		seed = n
	}
	fmt.Printf("%s: CISTERN_SEED=%d\n", t.Name(), seed)
	return seed
}

// rounds returns how many rounds to run: CISTERN_ROUNDS or standard.
func rounds(t *testing.T, standard int) int {
	t.Helper()
	text := os.Getenv("CISTERN_ROUNDS")
	if text == "" {
		return standard
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("CISTERN_ROUNDS must be a number of at least 1, not %q", text)
	}
	return n
}
