package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
)

const (
	oltpTables  = 4
	oltpThreads = 16
	serverWait  = 2 * time.Minute
)

// withServer runs f with a MariaDB on the target's data directory and shuts the
// server down again, so that it takes no time from other jobs.
func withServer(ctx context.Context, t *Target, f func(*harness.MariaDB) error) (err error) {
	run, err := os.MkdirTemp("", "bench-db-")
	if err != nil {
		return fmt.Errorf("make a directory for the server's socket: %w", err)
	}
	defer os.RemoveAll(run)
	m := &harness.MariaDB{
		DataDir: filepath.Join(t.Dir, "oltp"), RunDir: run,
		Args: []string{"--innodb-buffer-pool-size=256M", "--innodb-log-file-size=256M", "--max-connections=100"},
	}
	ready, cancel := context.WithTimeout(ctx, serverWait)
	defer cancel()
	if _, serr := os.Stat(m.DataDir); errors.Is(serr, os.ErrNotExist) {
		if err := m.Install(ready); err != nil {
			return err
		}
	}
	if err := m.Start(ready); err != nil {
		return err
	}
	defer func() {
		stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), serverWait)
		defer cancel()
		err = errors.Join(err, m.Stop(stop))
	}()
	return f(m)
}

// sysbench runs oltp_write_only.
func sysbench(ctx context.Context, m interface{ Socket() string }, rows int, args ...string) (string, error) {
	return sysbenchAs(ctx, m, "oltp_write_only", rows, args...)
}

func sysbenchAs(ctx context.Context, m interface{ Socket() string }, script string, rows int, args ...string) (string, error) {
	argv := append([]string{
		"sysbench", script, "--db-driver=mysql", "--mysql-socket=" + m.Socket(),
		"--mysql-user=root", "--mysql-db=sbtest",
		fmt.Sprintf("--tables=%d", oltpTables), fmt.Sprintf("--table-size=%d", rows),
	}, args...)
	return harness.Run(ctx, "", argv...)
}

// prepareOLTP makes the data directory and loads the tables.
func prepareOLTP(ctx context.Context, t *Target, rows int) error {
	return withServer(ctx, t, func(m *harness.MariaDB) error {
		db, err := m.Open("")
		if err != nil {
			return err
		}
		_, err = db.ExecContext(ctx, "CREATE DATABASE sbtest")
		if err := errors.Join(err, db.Close()); err != nil {
			return fmt.Errorf("make sysbench's database: %w", err)
		}
		_, err = sysbench(ctx, m, rows, "--threads=2", "prepare")
		return err
	})
}

// runOLTP returns transactions per second of oltp_write_only.
func runOLTP(ctx context.Context, t *Target, rows, seconds int) (map[string]float64, error) {
	return runOLTPAs(ctx, t, "oltp_write_only", oltpThreads, rows, seconds)
}

func runOLTPAs(ctx context.Context, t *Target, script string, threads, rows, seconds int) (map[string]float64, error) {
	var tps float64
	err := withServer(ctx, t, func(m *harness.MariaDB) error {
		out, err := sysbenchAs(ctx, m, script, rows, fmt.Sprintf("--threads=%d", threads), fmt.Sprintf("--time=%d", seconds), "run")
		if err != nil {
			return err
		}
		tps, err = parseTPS(out)
		return err
	})
	return map[string]float64{"throughput": tps}, err
}

var tpsLine = regexp.MustCompile(`transactions:\s+\d+\s+\(([0-9.]+) per sec\.\)`)

func parseTPS(out string) (float64, error) {
	match := tpsLine.FindStringSubmatch(out)
	if match == nil {
		return 0, fmt.Errorf("sysbench printed no transactions per second:\n%s", out)
	}
	return strconv.ParseFloat(match[1], 64)
}
