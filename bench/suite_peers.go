package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// peerWait bounds one run of a job: some file systems upload a whole file at each
// fsync.
const peerWait = 10 * time.Minute

// suitePeers runs the same jobs on all file systems over an object store.
func suitePeers() Suite {
	return Suite{
		Name:  "peers",
		What:  "the same jobs on a mount, s3fs, rclone mount, JuiceFS and gcsfuse over the same stores",
		Store: "s3", Dirs: []Kind{Ext4, Store, StoreGS, S3FS, Rclone, JuiceFS, GCSFuse},
		Jobs: func(c Config) []Job {
			jobs := []Job{peerWrite(c), peerColdRead(c), peerRandomRead(c), peerRandomWrite(c), peerSmallFiles(c), peerOLTP(c)}
			for i := range jobs {
				jobs[i] = limited(jobs[i])
			}
			return jobs
		},
	}
}

// limited bounds a job's parts by peerWait.
func limited(j Job) Job {
	bound := func(f func(context.Context, *Target) error) func(context.Context, *Target) error {
		if f == nil {
			return nil
		}
		return func(ctx context.Context, t *Target) error {
			ctx, cancel := context.WithTimeout(ctx, peerWait)
			defer cancel()
			return f(ctx, t)
		}
	}
	run := j.Run
	j.Prepare, j.Before = bound(j.Prepare), bound(j.Before)
	j.Run = func(ctx context.Context, t *Target) (map[string]float64, error) {
		ctx, cancel := context.WithTimeout(ctx, peerWait)
		defer cancel()
		return run(ctx, t)
	}
	return j
}

func peerMetric(name, unit string, better Direction) []Metric {
	return []Metric{{Name: name, Unit: unit, Better: better, Bar: FirstOfDurable()}}
}

func peerWrite(c Config) Job {
	const name = "seq.dat"
	return Job{
		Name: "seq-write", What: "1 MiB sequential write of a new file, fsync at the end",
		Setting: size(c.FileBytes) + ", psync; the fsync is part of the time",
		Metrics: peerMetric("throughput", "MiB/s", Higher),
		Before:  func(_ context.Context, t *Target) error { return ignoreGone(os.Remove(filepath.Join(t.Dir, name))) },
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			begun := time.Now()
			_, err := runFio(ctx, t.Dir, "--filename="+name, "--rw=write", "--bs=1m", "--ioengine=psync", "--end_fsync=1", fmt.Sprintf("--size=%d", c.FileBytes))
			return rate(c.FileBytes, time.Since(begun)), err
		},
	}
}

// goCold makes a target forget what it has locally.
func goCold(ctx context.Context, t *Target) error {
	if t.mount != nil {
		if err := errors.Join(t.Quiesce(ctx), t.moveFresh(ctx)); err != nil {
			return err
		}
	}
	return dropPageCache()
}

func prepareCold(c Config) func(context.Context, *Target) error {
	return func(_ context.Context, t *Target) error { return fillOnce(filepath.Join(t.Dir, coldFile), c.FileBytes) }
}

func peerColdRead(c Config) Job {
	return Job{
		Name: "cold-read", What: "1 MiB sequential read of a file that is only in the store",
		Setting: size(c.FileBytes) + ", psync, mounted anew with an empty cache, page cache dropped",
		Metrics: peerMetric("throughput", "MiB/s", Higher),
		Prepare: prepareCold(c), Before: goCold,
		Run: func(_ context.Context, t *Target) (map[string]float64, error) {
			begun := time.Now()
			err := readThrough(filepath.Join(t.Dir, coldFile))
			return rate(c.FileBytes, time.Since(begun)), err
		},
	}
}

func peerRandomRead(c Config) Job {
	return Job{
		Name: "random-read", What: "16 KiB random read, 4 jobs, beginning with an empty cache",
		Setting: size(c.FileBytes) + fmt.Sprintf(" file, psync, %d s from a mount with an empty cache on", c.Seconds),
		Metrics: peerMetric("throughput", "reads/s", Higher),
		Prepare: prepareCold(c), Before: goCold,
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			job, err := runFio(ctx, t.Dir, timed(c.Seconds, "--filename="+coldFile, "--numjobs=4", "--rw=randread", "--bs=16k", "--ioengine=psync", fmt.Sprintf("--size=%d", c.FileBytes))...)
			return map[string]float64{"throughput": job.Read.IOPS}, err
		},
	}
}

func peerRandomWrite(c Config) Job {
	const name = "random.dat"
	return Job{
		Name: "random-write", What: "16 KiB random write + fdatasync, 1 job",
		Setting: fmt.Sprintf("%s file laid out, psync, %d s", size(c.FileBytes/4), c.Seconds),
		Metrics: peerMetric("throughput", "writes/s", Higher),
		Prepare: func(_ context.Context, t *Target) error { return fillOnce(filepath.Join(t.Dir, name), c.FileBytes/4) },
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			job, err := runFio(ctx, t.Dir, timed(c.Seconds, "--filename="+name, "--rw=randwrite", "--bs=16k", "--ioengine=psync", "--fdatasync=1", fmt.Sprintf("--size=%d", c.FileBytes/4))...)
			return map[string]float64{"throughput": job.Write.IOPS}, err
		},
	}
}

func peerSmallFiles(c Config) Job {
	return Job{
		Name: "small-files", What: "create + 4 KiB + fsync + close + unlink",
		Setting: "one file at a time, own loop in a process of its own",
		Metrics: peerMetric("throughput", "files/s", Higher),
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			return runChurn(ctx, t, c.Seconds)
		},
	}
}

func peerOLTP(c Config) Job {
	rows := min(c.Rows, 10_000)
	return Job{
		Name: "oltp", What: "sysbench oltp_write_only on MariaDB",
		Setting: fmt.Sprintf("InnoDB, %d × %d rows, %d threads, sync_binlog=1, innodb_flush_log_at_trx_commit=1, buffer pool 256 MiB, server started for the run; given up after %v", oltpTables, rows, oltpThreads, peerWait),
		Metrics: peerMetric("throughput", "transactions/s", Higher),
		Prepare: func(ctx context.Context, t *Target) error { return prepareOLTP(ctx, t, rows) },
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			return runOLTP(ctx, t, rows, 2*c.Seconds)
		},
	}
}
