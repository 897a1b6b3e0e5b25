package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Bars of the clones: what one may take, how much longer one of the largest volume
// may take than one of the smallest, how much longer a server on a clone may take
// to start than on a local copy, and how much of its throughput a server keeps.
const (
	cloneSecondsBar = 2
	cloneSizesBar   = 1.3
	cloneStartBar   = 1.5
	cloneLossBar    = 0.9
)

func backupSuite() figureSuite {
	return figureSuite{
		"backup", "a copy of a database to work with: by snapshot and clone, and by the ways that databases have; what clones cost", []figureJob{
			{"ways", "sysbench's tables of --data-mib in a MariaDB, and as many in a MySQL, on a mount: each way to a second server that answers, by way of a local directory and by way of another volume's mount", runBackupWays},
			{"loss", "sysbench oltp_write_only on a mount, with a clone of it every 5 s and without, in turn", runCloneLoss},
			{"sizes", "clones of mounted volumes at rest, of the sizes that --sizes-mib says, in turn", runCloneSizes},
			{"start", "under sysbench: a clone, its mount and the start of a server there, against the server's start on a local copy of the same commit; nothing in the page cache", runCloneStart},
		},
		figureConfig{Rounds: 10, Seconds: 30, Threads: 16, Rows: 10_000}, backupFlags,
		func(c figureConfig) string { return "databases of " + size(c.DataBytes) },
	}
}

func backupFlags(flags *flag.FlagSet, c *figureConfig) func(quick bool, given map[string]bool) error {
	mib := flags.Int64("data-mib", 2048, "size in MiB of the tables that are backed up, without their indexes; 16 with --quick")
	sizes := flags.String("sizes-mib", "512,2048,8192", "sizes in MiB of the volumes that are cloned, by comma; 16,32 with --quick")
	return func(quick bool, given map[string]bool) error {
		if quick && !given["data-mib"] {
			*mib = 16
		}
		if quick && !given["sizes-mib"] {
			*sizes = "16,32"
		}
		c.DataBytes, c.Sizes = *mib*mebibyte, nil
		for field := range strings.SplitSeq(*sizes, ",") {
			n, err := strconv.ParseInt(field, 10, 64)
			if err != nil || n < 1 {
				return fmt.Errorf("--sizes-mib %s: %q is no number of MiB", *sizes, field)
			}
			c.Sizes = append(c.Sizes, n*mebibyte)
		}
		if *mib < 1 {
			return errors.New("data-mib must be at least 1")
		}
		return nil
	}
}

// cloneEvery is how long passes from one clone to the next.
const cloneEvery = 5 * time.Second

// runCloneLoss compares, in turn, and beginning with the other every round.
func runCloneLoss(ctx context.Context, c figureConfig, f *figures) (err error) {
	v, db, err := c.loadedVolume(ctx, "loss")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close(), v.close(ctx)) }()
	for round := range c.Rounds {
		var with, without float64
		for turn := range 2 {
			if err := v.rest(ctx); err != nil {
				return err
			}
			if (round+turn)%2 == 0 {
				without, err = c.oltp(ctx, db)
			} else {
				with, err = c.oltpCloned(ctx, v, db, f)
			}
			if err != nil {
				return err
			}
		}
		f.add("without clones", "tps", without)
		f.add("with a clone every 5 s", "tps", with)
		f.add("ratio", "", with/without)
	}
	f.bar("ratio", Higher, cloneLossBar)
	f.bar("clone under load", Lower, cloneSecondsBar)
	return nil
}

func (c figureConfig) oltp(ctx context.Context, db *databaseServer) (float64, error) {
	out, err := sysbench(ctx, db.MariaDB, c.Rows, fmt.Sprintf("--threads=%d", c.Threads), fmt.Sprintf("--time=%d", c.Seconds), "run")
	if err != nil {
		return 0, err
	}
	return parseTPS(out)
}

// oltpCloned is oltp with clones of the volume meanwhile, the first at once. They
// are destroyed afterwards.
func (c figureConfig) oltpCloned(ctx context.Context, v *volume, db *databaseServer, f *figures) (float64, error) {
	run, stop := context.WithCancel(ctx)
	defer stop()
	type made struct {
		took []float64
		urls []string
		err  error
	}
	cloned := make(chan made, 1)
	go func() {
		var m made
		tick := time.NewTicker(cloneEvery)
		defer tick.Stop()
		for run.Err() == nil && m.err == nil {
			url, took, err := v.clone(ctx, v.dir) // not run: one that has begun is done
			if m.err = err; err == nil {
				m.took, m.urls = append(m.took, took), append(m.urls, url)
			}
			select {
			case <-run.Done():
			case <-tick.C:
			}
		}
		cloned <- m
	}()
	tps, err := c.oltp(ctx, db)
	stop()
	m := <-cloned
	for _, took := range m.took {
		f.add("clone under load", "s", took)
	}
	for _, url := range m.urls {
		_, derr := v.cistern(ctx, "destroy", "--yes", url)
		err = errors.Join(err, derr)
	}
	return tps, errors.Join(err, m.err)
}

// smallCache keeps little of a volume on the local disk twice.
var smallCache = []string{"--cache-size", "256M"}

// runCloneSizes clones volumes of several sizes in turn.
func runCloneSizes(ctx context.Context, c figureConfig, f *figures) (err error) {
	var all []*volume
	defer func() {
		for _, v := range all {
			err = errors.Join(err, v.close(ctx))
		}
	}()
	for _, n := range c.Sizes {
		v, err := c.newVolume(ctx, fmt.Sprintf("sizes-%d", n), smallCache...)
		if err != nil {
			return err
		}
		all = append(all, v)
		const piece = 64 * mebibyte
		for off := int64(0); off < n; off += piece {
			if err := fillFile(filepath.Join(v.dir, fmt.Sprintf("table%04d.ibd", off/piece)), min(piece, n-off)); err != nil {
				return err
			}
		}
		if err := v.rest(ctx); err != nil {
			return err
		}
	}
	for round := range c.Rounds {
		took := make([]float64, len(all))
		for i := range all {
			k := (i + round) % len(all)
			url, seconds, err := all[k].clone(ctx, all[k].dir)
			if err != nil {
				return err
			}
			if _, err := all[k].cistern(ctx, "destroy", "--yes", url); err != nil {
				return err
			}
			took[k] = seconds
		}
		for k, n := range c.Sizes {
			f.add("clone of "+size(n), "s", took[k])
		}
	}
	for _, n := range c.Sizes {
		f.bar("clone of "+size(n), Lower, cloneSecondsBar)
	}
	first, last := f.median("clone of "+size(c.Sizes[0])), f.median("clone of "+size(c.Sizes[len(c.Sizes)-1]))
	f.add("the last size against the first", "×", last/first)
	f.bar("the last size against the first", Lower, cloneSizesBar)
	return nil
}

// runCloneStart compares the ways to a second server, from the same commit each
// round.
func runCloneStart(ctx context.Context, c figureConfig, f *figures) (err error) {
	v, db, err := c.loadedVolume(ctx, "start")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.close(), v.close(ctx)) }()
	for round := range min(c.Rounds, 5) {
		point, err := c.pointUnderLoad(ctx, v, db)
		if err != nil {
			return err
		}
		var local, cloned float64
		for turn := range 2 {
			if (round+turn)%2 == 0 {
				local, err = c.startOnCopy(ctx, v, point)
			} else {
				cloned, err = c.startOnClone(ctx, v, point, f)
			}
			if err != nil {
				return err
			}
		}
		f.add("server on a local copy", "s", local)
		f.add("clone, mount and server", "s", cloned)
		f.add("ratio", "", cloned/local)
	}
	f.bar("ratio", Lower, cloneStartBar)
	return nil
}

// pointUnderLoad runs sysbench and names a commit that was made near its end, so
// that a server which starts there has something to recover.
func (c figureConfig) pointUnderLoad(ctx context.Context, v *volume, db *databaseServer) (string, error) {
	done := make(chan error, 1)
	go func() {
		_, err := c.oltp(ctx, db)
		done <- err
	}()
	time.Sleep(time.Duration(c.Seconds) * time.Second * 3 / 4)
	n, err := v.sync(ctx)
	return v.url + "@" + n, errors.Join(err, <-done)
}

func (c figureConfig) startOnCopy(ctx context.Context, v *volume, point string) (took float64, err error) {
	dir := filepath.Join(c.base, "crash-copy")
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if _, err := v.cistern(ctx, "clone", point, "--to", dir); err != nil {
		return 0, err
	}
	if err := dropPageCache(); err != nil {
		return 0, err
	}
	begun := time.Now()
	db, err := c.startOn(ctx, filepath.Join(dir, "db"), 7)
	if err != nil {
		return 0, err
	}
	return time.Since(begun).Seconds(), db.end()
}

func (c figureConfig) startOnClone(ctx context.Context, v *volume, point string, f *figures) (took float64, err error) {
	if err := dropPageCache(); err != nil {
		return 0, err
	}
	begun := time.Now()
	url, seconds, err := v.clone(ctx, point)
	if err != nil {
		return 0, err
	}
	f.add("of it the clone", "s", seconds)
	w, err := c.mountVolume(ctx, "clone", url)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, w.close(ctx)) }()
	f.add("of it its mount", "s", time.Since(begun).Seconds()-seconds)
	db, err := c.startOn(ctx, filepath.Join(w.dir, "db"), 7)
	if err != nil {
		return 0, err
	}
	return time.Since(begun).Seconds(), db.end()
}
