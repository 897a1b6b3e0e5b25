package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
)

// smallWriters commit small transactions while the large one is under way.
const smallWriters = 8

// runFragment runs the large transaction once for each size of fragments.
func runFragment(ctx context.Context, c figureConfig, f *figures) error {
	for _, v := range []struct {
		name string
		size int64
	}{{"off", 0}, {"1 MB", 1_000_000}, {"100 KB", 100_000}} {
		if err := c.fragmentOnce(ctx, v.name, v.size, f); err != nil {
			return fmt.Errorf("fragment size %s: %w", v.name, err)
		}
	}
	return nil
}

func (c figureConfig) fragmentOnce(ctx context.Context, name string, size int64, f *figures) (err error) {
	primary, err := c.startDatabase(ctx, "primary", 1, semiSyncArgs...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, primary.close()) }()
	replica, err := c.startDatabase(ctx, "replica", 2, append([]string{semiSyncArgs[2]}, easyReplica...)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, replica.close()) }()
	r, err := c.newRelay(ctx, "relay", primary, "--semi-sync", "--serve-semi-sync", "--fragment-size", strconv.FormatInt(size, 10))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	if err := r.start(ctx); err != nil {
		return err
	}
	if err := primary.semiSyncClients(ctx, 1); err != nil {
		return err
	}
	if err := primary.exec(ctx, "CREATE DATABASE d", "CREATE TABLE d.t (i INT, s LONGBLOB) ENGINE=BLACKHOLE",
		"CREATE TABLE d.small (who INT PRIMARY KEY, n INT, at DATETIME(6)) ENGINE=InnoDB"); err != nil {
		return err
	}
	if err := replica.follow(ctx, r.listen); err != nil {
		return err
	}
	if err := replica.reached(ctx, primary); err != nil {
		return err
	}
	return c.watchSmall(ctx, name, primary, replica, f)
}

// watchSmall measures small transactions before, during and after the large one.
func (c figureConfig) watchSmall(ctx context.Context, name string, primary, replica *databaseServer, f *figures) error {
	small, stop := context.WithCancel(ctx)
	defer stop()
	var g errgroup.Group
	waits, counts := make([]time.Duration, smallWriters), make([]int, smallWriters)
	for who := range smallWriters {
		g.Go(func() error {
			for small.Err() == nil {
				begun := time.Now()
				if err := primary.exec(ctx, fmt.Sprintf("REPLACE INTO d.small VALUES (%d, %d, NOW(6))", who, counts[who])); err != nil {
					return err
				}
				waits[who] = max(waits[who], time.Since(begun))
				counts[who]++
			}
			return nil
		})
	}
	var lag time.Duration
	g.Go(func() error {
		for small.Err() == nil {
			// What is newest at both, asked at the replica first: never less than its lag.
			at, err := replica.value(ctx, "SELECT COALESCE(TIMESTAMPDIFF(MICROSECOND, MAX(at), NOW(6)), 0) AS lag FROM d.small", "lag")
			if err != nil {
				return err
			}
			us, err := strconv.ParseInt(at, 10, 64)
			if err != nil {
				return err
			}
			lag = max(lag, time.Duration(us)*time.Microsecond)
			time.Sleep(50 * time.Millisecond)
		}
		return nil
	})
	time.Sleep(2 * time.Second)
	begun := time.Now()
	err := largeTransaction(ctx, primary, c.LogBytes)
	took := time.Since(begun)
	if err == nil {
		err = replica.reached(ctx, primary)
	}
	stop()
	if err = errors.Join(err, g.Wait()); err != nil {
		return err
	}
	longest, total := time.Duration(0), 0
	for i := range waits {
		longest, total = max(longest, waits[i]), total+counts[i]
	}
	f.add("fragment size "+name+": longest wait of a small commit", "ms", float64(longest.Milliseconds()))
	f.add("fragment size "+name+": replica's lag, greatest", "ms", float64(lag.Milliseconds()))
	f.add("fragment size "+name+": the large transaction took", "s", took.Seconds())
	f.add("fragment size "+name+": small commits", "", float64(total))
	return nil
}
