package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Names of the files that several jobs share on a target.
const (
	mainFile = "main.dat"
	jobFiles = 16 // of the job with one file each
)

// rampSeconds of random reads come before a measurement in the page cache: a
// file system may empty a file's page cache when it is opened.
const rampSeconds = 3

// suiteIO is the comparison that every change must keep up with.
func suiteIO() Suite {
	return Suite{
		Name: "io",
		What: "fio, file churn and sysbench on ext4, a bare FUSE loopback and a mount; bytes written and uploaded per byte",
		Jobs: func(c Config) []Job {
			var jobs []Job
			for _, group := range [][]Job{fsyncJobs(c), cachedReadJobs(c), directJobs(c), sequentialJobs(c), databaseJobs(c), countingJobs(c)} {
				jobs = append(jobs, group...)
			}
			return jobs
		},
		StoreJobs: storeJobs,
	}
}

// prepareMain makes the file that most jobs work on, once a target.
func prepareMain(c Config) func(context.Context, *Target) error {
	return func(_ context.Context, t *Target) error { return fillOnce(filepath.Join(t.Dir, mainFile), c.FileBytes) }
}

func fillOnce(name string, size int64) error {
	if info, err := os.Stat(name); err == nil && info.Size() == size {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("look for %s: %w", name, err)
	}
	return fillFile(name, size)
}

func size(bytes int64) string { return fmt.Sprintf("%d MiB", bytes/mebibyte) }

// fsyncJobs are what a database's log does.
func fsyncJobs(c Config) []Job {
	one := Job{
		Name: "fsync-1", What: "16 KiB random write + fdatasync, 1 job",
		Setting: size(c.FileBytes) + " file laid out, psync",
		Metrics: []Metric{
			{Name: "mean latency", Unit: "µs", Better: Lower, Bar: AgainstExt4(1.3)},
			{Name: "p50 latency", Unit: "µs", Better: Lower, Bar: AgainstExt4(1.3)},
		},
		Prepare: prepareMain(c),
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			job, err := runFio(ctx, t.Dir, timed(c.Seconds, "--filename="+mainFile, "--rw=randwrite", "--bs=16k", "--ioengine=psync", "--fdatasync=1")...)
			if err != nil {
				return nil, err
			}
			// The whole cycle: fio's write latency ends before the fdatasync.
			return map[string]float64{
				"mean latency": 1e6 / job.Write.IOPS,
				"p50 latency":  (job.Write.Clat.p50() + job.Sync.Lat.p50()) / 1e3,
			}, nil
		},
	}
	many := Job{
		Name: "fsync-16", What: "16 KiB random write + fdatasync, 16 jobs on 16 files",
		Setting: fmt.Sprintf("16 files of %s laid out, psync", size(c.FileBytes/jobFiles)),
		Metrics: []Metric{{Name: "throughput", Unit: "writes/s", Bar: AgainstExt4(0.9)}},
		Prepare: func(_ context.Context, t *Target) error {
			for i := range jobFiles {
				if err := fillFile(filepath.Join(t.Dir, fmt.Sprintf("many.%d", i)), c.FileBytes/jobFiles); err != nil {
					return err
				}
			}
			return nil
		},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			job, err := runFio(ctx, t.Dir, timed(c.Seconds, "--filename_format=many.$jobnum", fmt.Sprintf("--numjobs=%d", jobFiles),
				"--rw=randwrite", "--bs=16k", "--ioengine=psync", "--fdatasync=1")...)
			return map[string]float64{"throughput": job.Write.IOPS}, err
		},
	}
	return []Job{one, many}
}

// cachedReadJobs read what the page cache holds.
func cachedReadJobs(c Config) []Job {
	var jobs []Job
	for _, readers := range []int{1, 4} {
		run := func(file string) func(context.Context, *Target) (map[string]float64, error) {
			return func(ctx context.Context, t *Target) (map[string]float64, error) {
				if err := readThrough(filepath.Join(t.Dir, file)); err != nil {
					return nil, err
				}
				job, err := runFio(ctx, t.Dir, timed(c.Seconds, "--filename="+file, fmt.Sprintf("--numjobs=%d", readers),
					"--rw=randread", "--bs=16k", "--ioengine=psync", fmt.Sprintf("--ramp_time=%d", rampSeconds))...)
				return map[string]float64{"throughput": job.Read.IOPS}, err
			}
		}
		setting := fmt.Sprintf("%s file, psync, page cache warm (read once, then %d s of ramp)", size(c.FileBytes), rampSeconds)
		jobs = append(jobs,
			Job{
				Name: fmt.Sprintf("cached-read-%d", readers), What: fmt.Sprintf("16 KiB random read in the page cache, %d job(s)", readers),
				Setting: setting, Metrics: []Metric{{Name: "throughput", Unit: "reads/s", Bar: AgainstExt4(0.5)}},
				Prepare: prepareMain(c), Run: run(mainFile),
			},
			Job{
				Name: fmt.Sprintf("fixed-read-%d", readers), What: fmt.Sprintf("the same on a mount of a fixed commit, %d job(s)", readers),
				Setting: setting, Targets: []Kind{Ext4, Fixed},
				Metrics: []Metric{{Name: "throughput", Unit: "reads/s", Bar: AgainstExt4(0.7)}},
				Prepare: func(_ context.Context, t *Target) error {
					return fillOnce(filepath.Join(t.Dir, fixedFile), c.FileBytes)
				},
				Run: run(fixedFile),
			})
	}
	return jobs
}

// directJobs are what InnoDB does to its data files.
func directJobs(c Config) []Job {
	var jobs []Job
	for _, direction := range []string{"read", "write"} {
		jobs = append(jobs, Job{
			Name: "direct-" + direction, What: "16 KiB random " + direction + ", O_DIRECT",
			Setting: size(c.FileBytes) + " file laid out, libaio, depth 32",
			Metrics: []Metric{{Name: "throughput", Unit: direction + "s/s", Bar: AgainstEither(0.6, 1.0)}},
			Prepare: prepareMain(c),
			Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
				job, err := runFio(ctx, t.Dir, timed(c.Seconds, "--filename="+mainFile, "--rw=rand"+direction, "--bs=16k", "--ioengine=libaio", "--iodepth=32", "--direct=1")...)
				return map[string]float64{"throughput": job.Read.IOPS + job.Write.IOPS}, err
			},
		})
	}
	return jobs
}

// sequentialJobs are bulk load and scan.
func sequentialJobs(c Config) []Job {
	bandwidth := []Metric{{Name: "throughput", Unit: "MiB/s", Bar: AgainstExt4(0.8)}}
	rate := func(s fioSide) map[string]float64 {
		return map[string]float64{"throughput": float64(s.Bytes) / mebibyte / (float64(max(s.RuntimeMs, 1)) / 1e3)}
	}
	write := Job{
		Name: "seq-write", What: "1 MiB sequential write of a new file, fsync at the end",
		Setting: size(c.FileBytes) + ", psync; the fsync is part of the time", Metrics: bandwidth,
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			const name = "seq.dat"
			if err := os.Remove(filepath.Join(t.Dir, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("remove the last round's file: %w", err)
			}
			job, err := runFio(ctx, t.Dir, "--filename="+name, "--rw=write", "--bs=1m", "--ioengine=psync", "--end_fsync=1", fmt.Sprintf("--size=%d", c.FileBytes))
			return rate(job.Write), err
		},
	}
	read := Job{
		Name: "seq-read", What: "1 MiB sequential read from the cache files",
		Setting: size(c.FileBytes) + ", psync, page cache dropped before, everything in the local cache", Metrics: bandwidth,
		Prepare: prepareMain(c),
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			if err := dropPageCache(); err != nil {
				return nil, err
			}
			job, err := runFio(ctx, t.Dir, "--filename="+mainFile, "--rw=read", "--bs=1m", "--ioengine=psync", fmt.Sprintf("--size=%d", c.FileBytes))
			return rate(job.Read), err
		},
	}
	return []Job{write, read}
}

func databaseJobs(c Config) []Job {
	files := Job{
		Name: "churn", What: "create + 4 KiB + fsync + close + unlink",
		Setting: "one file at a time, own loop in a process of its own",
		Metrics: []Metric{{Name: "throughput", Unit: "files/s", Bar: AgainstExt4(0.7)}},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			return runChurn(ctx, t, c.Seconds)
		},
	}
	oltp := Job{
		Name: "oltp", What: "sysbench oltp_write_only on MariaDB",
		Setting: fmt.Sprintf("InnoDB, %d × %d rows, %d threads, sync_binlog=1, innodb_flush_log_at_trx_commit=1, buffer pool 256 MiB, server started for the run", oltpTables, c.Rows, oltpThreads),
		Metrics: []Metric{{Name: "throughput", Unit: "transactions/s", Bar: AgainstEither(0.75, 1.3)}},
		Prepare: func(ctx context.Context, t *Target) error { return prepareOLTP(ctx, t, c.Rows) },
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			return runOLTP(ctx, t, c.Rows, 2*c.Seconds)
		},
	}
	return []Job{files, oltp}
}

// countingJobs count bytes on the mount; time means nothing to them.
func countingJobs(c Config) []Job {
	onMount := []Kind{Mount}
	return []Job{
		{
			Name: "local-bytes", What: "local bytes written per byte of a sequential load", Once: true, Quiet: true, Targets: onMount,
			Setting: size(c.FileBytes) + " in one file; write_bytes of the mount's process less what it put into the store, and growth of the state directory",
			Metrics: []Metric{{Name: "written", Unit: "B/B", Better: Lower, Bar: AtMost(1.2)}, {Name: "occupied", Unit: "B/B", Better: Lower}},
			Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
				return runLoad(ctx, t, c.FileBytes, c.Quiet)
			},
		},
		{
			Name: "upload-overwrite", What: "uploaded bytes per byte of 16 KiB random overwrites with fdatasync", Once: true, Quiet: true, Targets: onMount,
			Setting: fmt.Sprintf("%s file, at most 500 writes/s for %d s, counted at the store until nothing more arrives (for %v)", size(c.FileBytes), 3*c.Seconds, c.Quiet),
			Metrics: []Metric{{Name: "segments and commits", Unit: "B/B", Better: Lower, Bar: AtMost(1.3)}, {Name: "all with folding", Unit: "B/B", Better: Lower, Bar: AtMost(3.5)}},
			Prepare: prepareMain(c),
			Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
				return runOverwrites(ctx, t, mainFile, 3*c.Seconds, c.Quiet)
			},
		},
		{
			Name: "upload-growth", What: "uploaded bytes per byte of a file that grows by 1 KiB a second with fsync", Once: true, Quiet: true, Targets: onMount,
			Setting: fmt.Sprintf("%d s, 2 KiB per commit taken off, counted at the store until nothing more arrives (for %v)", 6*c.Seconds, c.Quiet),
			Metrics: []Metric{{Name: "less 2 KiB a commit", Unit: "B/B", Better: Lower, Bar: AtMost(2.5)}, {Name: "per commit", Unit: "B", Better: Lower}},
			Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
				return runGrowth(ctx, t, 6*c.Seconds, c.Quiet)
			},
		},
		{
			Name: "idle", What: "uploaded bytes while nothing is written, the lease apart", Once: true, Quiet: true, Targets: onMount,
			Setting: fmt.Sprintf("%d s", 2*c.Seconds),
			Metrics: []Metric{{Name: "uploaded", Unit: "B", Better: Lower, Bar: AtMost(0)}},
			Run:     func(ctx context.Context, t *Target) (map[string]float64, error) { return runIdle(ctx, t, 2*c.Seconds) },
		},
	}
}
