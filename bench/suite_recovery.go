package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
)

// suiteRecovery kills what serves, and takes the time until it serves again.
func suiteRecovery() Suite {
	files := 10_000
	return Suite{
		Name: "recovery",
		What: "kill -9 under load: time until the mount, and a database on it, serve again, with local state and from the bucket alone; what is lost",
		Dirs: []Kind{Mount, Store}, Store: "s3",
		Flags: func(f *flag.FlagSet) {
			f.IntVar(&files, "files", files, "files whose mount is timed, a multiple of 1000 up to 1000000")
		},
		Jobs: func(c Config) []Job {
			return []Job{killJob(c, false), killJob(c, true), killDatabaseJob(c), filesJob(max(1, files/perFolder) * perFolder)}
		},
	}
}

// killJob kills the mount under writes with fsync; with lost the machine and its disk
// go with it.
func killJob(c Config, lost bool) Job {
	j := Job{
		Name: "kill", What: "kill -9 of a mount under 16 KiB writes with fsync, mounted again with its local state",
		Setting: fmt.Sprintf("%d writers on files of 32 MiB, %d s; then mounted and all blocks read and compared", crashWriters, c.Seconds),
		Targets: []Kind{Mount, Store, StoreGS, Bucket},
		Metrics: []Metric{
			{Name: "until it serves", Unit: "s", Better: Lower},
			{Name: "until all is read", Unit: "s", Better: Lower},
			{Name: "acknowledged and lost", Unit: "blocks", Better: Lower, Bar: AtMost(0)},
		},
	}
	if lost {
		j.Name, j.What = "kill-and-lose", "the same, and the local state is gone: mounted from the bucket alone by another node with --takeover"
		j.Metrics[2].Bar = Bar{}
		j.Metrics = append(j.Metrics, Metric{Name: "behind", Unit: "s", Better: Lower})
	}
	ledgers := map[*Target]*crashLedger{}
	j.Prepare = func(_ context.Context, t *Target) error {
		ledgers[t] = &crashLedger{dir: filepath.Join(t.Dir, j.Name)}
		return os.MkdirAll(ledgers[t].dir, 0o755)
	}
	j.Run = func(ctx context.Context, t *Target) (map[string]float64, error) {
		return runKill(ctx, t, ledgers[t], time.Duration(c.Seconds)*time.Second, lost)
	}
	return j
}

func runKill(ctx context.Context, t *Target, l *crashLedger, load time.Duration, lost bool) (map[string]float64, error) {
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() { defer close(ended); l.write(stop) }()
	select {
	case <-time.After(load):
	case <-ctx.Done():
	}
	err := t.mount.Kill()
	killed := time.Now()
	close(stop)
	<-ended
	if err != nil {
		return nil, err
	}
	t.mount = nil
	var more []string
	if lost {
		t.freshState()
		more = append(more, "--takeover")
	}
	begun := time.Now()
	if err := t.start(ctx, t.mountConfig(more...)); err != nil {
		return nil, err
	}
	if _, err := os.Stat(l.name(0)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	serves := time.Since(begun)
	n, newest, err := l.verify()
	return map[string]float64{
		"until it serves": serves.Seconds(), "until all is read": time.Since(begun).Seconds(),
		"acknowledged and lost": float64(n), "behind": max(0, killed.Sub(newest).Seconds()),
	}, err
}

// freshState leaves the local state behind, as a node's that is lost.
func (t *Target) freshState() {
	t.stale = append(t.stale, t.State)
	t.moves++
	t.State = fmt.Sprintf("%s-%d", t.firstState, t.moves)
}

// killDatabaseJob kills a MariaDB under sysbench together with the mount below it.
func killDatabaseJob(c Config) Job {
	return Job{
		Name: "kill-database", What: "kill -9 of the mount and of MariaDB on it, under sysbench oltp_write_only",
		Setting: fmt.Sprintf("InnoDB, %d × %d rows, %d threads, %d s of load, then both started again", oltpTables, c.Rows, oltpThreads, 2*c.Seconds),
		Targets: []Kind{Mount, Store, StoreGS, Bucket},
		Metrics: []Metric{
			{Name: "until the mount serves", Unit: "s", Better: Lower},
			{Name: "until the database answers", Unit: "s", Better: Lower},
		},
		Prepare: func(ctx context.Context, t *Target) error { return prepareOLTP(ctx, t, c.Rows) },
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			return runKillDatabase(ctx, t, c)
		},
	}
}

func runKillDatabase(ctx context.Context, t *Target, c Config) (map[string]float64, error) {
	var serves, answers float64
	err := withServer(ctx, t, func(m *harness.MariaDB) error {
		load, cancel := context.WithTimeout(ctx, time.Duration(2*c.Seconds)*time.Second)
		// It is ended in its midst; what it says of that is of no interest.
		_, _ = sysbench(load, m, c.Rows, fmt.Sprintf("--threads=%d", oltpThreads), "--time=3600", "run")
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		err := errors.Join(m.Kill(), t.mount.Kill())
		if err != nil {
			return err
		}
		t.mount = nil
		begun := time.Now()
		if err := t.start(ctx, t.mountConfig()); err != nil {
			return err
		}
		serves = time.Since(begun).Seconds()
		err = m.Start(ctx)
		answers = time.Since(begun).Seconds()
		return err
	})
	return map[string]float64{"until the mount serves": serves, "until the database answers": answers}, err
}
