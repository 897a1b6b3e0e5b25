package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/dbtest"
	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

// writers commit rows to the source until stop, and note what was acknowledged.
type writers struct {
	source *dbtest.Server
	wg     sync.WaitGroup
	quit   chan struct{}
	acked  [4]atomic.Int64 // rows of each writer
	large  error           // of the last large transaction
}

func (w *writers) start() {
	w.quit = make(chan struct{})
	for who := range w.acked {
		w.wg.Go(func() {
			n := w.acked[who].Load() + 1
			for {
				select {
				case <-w.quit:
					return
				default:
				}
				if err := w.exec(fmt.Sprintf("replace into d.ledger values (%d, %d, repeat('x', %d))", who, n, rand.N(2000))); err != nil {
					time.Sleep(20 * time.Millisecond) // the server is away; it may have the row, which counts as not acknowledged
					continue
				}
				w.acked[who].Store(n)
				n++
			}
		})
	}
}

// commitLarge begins a large transaction, which stop waits for.
func (w *writers) commitLarge() {
	w.wg.Go(func() {
		w.large = w.exec("begin; insert into d.big(s) select repeat(char(65 + rand() * 26), 1500000) from d.four; commit")
	})
}

func (w *writers) exec(statements string) error {
	ctx, cancel := context.WithTimeout(context.Background(), relayWait)
	defer cancel()
	_, err := w.source.DB().ExecContext(ctx, statements)
	return err
}

func (w *writers) stop() {
	close(w.quit)
	w.wg.Wait()
}

// lost says which acknowledged rows a server lacks.
func (w *writers) lost(t *testing.T, s *dbtest.Server) {
	t.Helper()
	for who := range w.acked {
		want := w.acked[who].Load()
		if got := s.Value(t, fmt.Sprintf("select count(*) from d.ledger where who=%d and n<=%d", who, want)); got != strconv.FormatInt(want, 10) {
			t.Errorf("server %d has %s of the %d acknowledged rows of writer %d", s.ID, got, want, who)
		}
	}
}

// published remembers what the archive's files held, and holds them against it.
type published map[string][]byte

// archived reads the binary logs that a directory shows.
func archived(t *testing.T, mnt string) published {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(mnt, "logs", "000001", "mysql-bin.??????"))
	if err != nil {
		t.Fatal(err)
	}
	p := published{}
	for _, name := range files {
		if p[filepath.Base(name)], err = os.ReadFile(name); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// goesOn fails the test where now lacks or changes what was published.
func (p published) goesOn(t *testing.T, now published) {
	t.Helper()
	for name, old := range p {
		if !bytes.HasPrefix(now[name], old) {
			t.Fatalf("%s had %d published bytes and has %d now, or others", name, len(old), len(now[name]))
		}
	}
}

// killRounds is how many rounds of killing there are: CISTERN_ROUNDS, or one of each
// kind; and where their random numbers begin.
func killRounds(t *testing.T, kinds int) (rounds int, rnd *rand.Rand) {
	t.Helper()
	number := func(name string, usual uint64) uint64 {
		text := os.Getenv(name)
		if text == "" {
			return usual
		}
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n < 1 {
			t.Fatalf("%s must be a number of at least 1, not %q", name, text)
		}
		return n
	}
	seed := number("CISTERN_SEED", uint64(rand.Uint32())+1)
	t.Logf("CISTERN_SEED=%d", seed)
	return int(number("CISTERN_ROUNDS", uint64(kinds))), rand.New(rand.NewPCG(seed, 0))
}

// Relay, primary, replica, a mount of the archive, or all of them are killed under
// load, also within a large transaction. What is published never changes, nor is
// it other than the primary's, and what was acknowledged reaches the replica.
func TestBinlogRelay_Killed_NothingAcknowledgedIsLost(t *testing.T) {
	testenv.Long(t)
	s := dbtest.Start(t, dbtest.MariaDB1011, "--rpl-semi-sync-master-enabled=1", "--rpl-semi-sync-master-timeout=600000", "--rpl-semi-sync-master-wait-point=AFTER_SYNC")
	d := newDownstream(t, s, "--semi-sync", "--fragment-size", "65536")
	d.start(t)
	d.follow(t)
	s.Exec(t, "create database d", "create table d.ledger (who int, n int, s text, primary key (who, n))",
		"create table d.big (i int primary key auto_increment, s longtext)", "create table d.four (i int)", "insert into d.four values (1),(2),(3),(4)")
	elsewhere := testenv.MountOptions{Dir: filepath.Join(testenv.TempDir(t), "mnt"), StateDir: filepath.Join(testenv.TempDir(t), "state"), Args: []string{"--read-only"}}
	reader := testenv.Mount(t, d.url, elsewhere)
	kinds := [][]string{{"relay"}, {"primary"}, {"mount"}, {"relay", "primary", "replica", "mount"}, {"replica"}}
	rounds, rnd := killRounds(t, len(kinds))
	before, w := published{}, &writers{source: s}
	for round := range rounds {
		victims := kinds[round%len(kinds)]
		w.start()
		time.Sleep(time.Duration(100+rnd.IntN(500)) * time.Millisecond)
		w.commitLarge()
		time.Sleep(time.Duration(rnd.IntN(250)) * time.Millisecond)
		for _, v := range victims {
			switch v {
			case "relay":
				d.kill(t)
			case "primary":
				s.Kill(t)
			case "replica":
				d.replica.Kill(t)
			case "mount":
				if err := reader.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		for _, v := range victims {
			switch v {
			case "relay":
				d.start(t)
			case "primary":
				s.Restart(t)
			case "replica":
				d.replica.Restart(t)
			case "mount":
				reader = testenv.Mount(t, d.url, elsewhere)
			}
		}
		time.Sleep(200 * time.Millisecond)
		w.stop()
		d.caughtUp(t)
		d.reached(t)
		d.identical(t)
		now := archived(t, d.mount)
		before.goesOn(t, now)
		archived(t, reader.Dir).goesOn(t, now)
		before = now
		w.lost(t, s)
		w.lost(t, d.replica)
		d.sameTables(t, "d.ledger", "d.big")
		t.Logf("round %d: killed %s; the large transaction: %v", round, strings.Join(victims, ", "), w.large)
		if t.Failed() {
			return
		}
	}
	for who := range w.acked {
		if w.acked[who].Load() == 0 {
			t.Errorf("writer %d committed nothing", who)
		}
	}
	d.ends(t)
	if out, err := harness.Run(t.Context(), "", d.binary, "check", d.url, "--data"); err != nil {
		t.Errorf("check: %v\n%s", err, out)
	}
}
