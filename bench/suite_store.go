package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
)

// Names of the files of the jobs with an object store.
const (
	coldFile = "cold.dat"
	bulkFile = "bulk.dat"
	lateFile = "late.dat" // dirty at a hand-over
)

const (
	lateBytes = 64 * mebibyte
	storeIOPS = 500 // writes a second: more would measure how the CPUs are shared
)

// storeJobs are the jobs of suite io with an object store.
func storeJobs(c Config) []Job {
	jobs := []Job{localFsyncJob(c), bucketFsyncJob(c), coldReadJob(c), bulkWriteJob(c), handoverJob()}
	for i := range jobs {
		jobs[i] = withCPU(jobs[i])
	}
	return jobs
}

// withCPU adds what the programs behind a job use of the CPUs meanwhile: on a
// machine that serves all of them it explains what the bandwidth does not.
func withCPU(j Job) Job {
	j.Metrics = append(j.Metrics,
		Metric{Name: "CPU of the client", Unit: "s", Better: Lower},
		Metric{Name: "CPU of the server", Unit: "s", Better: Lower},
		Metric{Name: "CPU of the proxy", Unit: "s", Better: Lower})
	run := j.Run
	j.Run = func(ctx context.Context, t *Target) (map[string]float64, error) {
		pid := t.clientPID()
		before, err := t.remote.use(pid)
		if err != nil {
			return nil, err
		}
		values, err := run(ctx, t)
		if err != nil {
			return nil, err
		}
		now := t.clientPID()
		after, err := t.remote.use(now)
		if err != nil {
			return nil, err
		}
		if now != pid {
			before.client = 0 // a mount that the job began itself
		}
		values["CPU of the client"] = (after.client - before.client).Seconds()
		values["CPU of the server"] = (after.server - before.server).Seconds()
		values["CPU of the proxy"] = (after.proxy - before.proxy).Seconds()
		return values, nil
	}
	return j
}

// cpuUse is the CPU time of the programs so far.
type cpuUse struct{ client, server, proxy time.Duration }

func (r *Remote) use(client int) (u cpuUse, err error) {
	if u.server, u.proxy, err = r.CPU(); err != nil {
		return u, err
	}
	u.client, err = procCPU(client)
	return u, err
}

func localFsyncJob(c Config) Job {
	return Job{
		Name: "fsync-local", What: "16 KiB random write + fdatasync in mode local, 1 job",
		Setting: fmt.Sprintf("%s file laid out, psync, at most %d writes/s; the store's mount uploads meanwhile", size(c.FileBytes/4), storeIOPS),
		Targets: []Kind{Mount, Store},
		Metrics: []Metric{{Name: "p50 latency", Unit: "µs", Better: Lower, Bar: AgainstOther(1.2, Mount)}},
		Prepare: func(_ context.Context, t *Target) error {
			return fillOnce(filepath.Join(t.Dir, mainFile), c.FileBytes/4)
		},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			job, err := runFio(ctx, t.Dir, timed(c.Seconds, "--filename="+mainFile, "--rw=randwrite", "--bs=16k", "--ioengine=psync", "--fdatasync=1",
				fmt.Sprintf("--rate_iops=%d", storeIOPS))...)
			return map[string]float64{"p50 latency": (job.Write.Clat.p50() + job.Sync.Lat.p50()) / 1e3}, err
		},
	}
}

func bucketFsyncJob(c Config) Job {
	return Job{
		Name: "fsync-bucket", What: "16 KiB random write + fdatasync in mode bucket, 1 job; a plain request that carries nothing",
		Setting: fmt.Sprintf("%s file laid out, psync; a round trip is the proxy's latency, or that plain request's time without a proxy", size(c.FileBytes/4)),
		Targets: []Kind{Bucket, Raw},
		Metrics: []Metric{
			{Name: "p50 latency", Unit: "ms", Better: Lower},
			{Name: "round trips", Unit: "×", Better: Lower, Bar: AtMost(5)},
			{Name: "requests", Unit: "per call", Better: Lower},
		},
		Prepare: func(_ context.Context, t *Target) error {
			if t.Kind == Raw {
				return nil
			}
			return fillOnce(filepath.Join(t.Dir, mainFile), c.FileBytes/4)
		},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) { return runBucketFsync(ctx, t, c) },
	}
}

func runBucketFsync(ctx context.Context, t *Target, c Config) (map[string]float64, error) {
	plain, err := roundTrip(ctx, t.remote.Raw)
	if err != nil {
		return nil, err
	}
	trip := plain
	if t.remote.proxy != nil {
		trip = c.Latency
	}
	if t.Kind == Raw {
		return map[string]float64{"p50 latency": plain.Seconds() * 1e3, "round trips": float64(plain) / float64(trip), "requests": 1}, nil
	}
	before, err := t.remote.Requests(ctx)
	if err != nil {
		return nil, err
	}
	job, err := runFio(ctx, t.Dir, timed(c.Seconds, "--filename="+mainFile, "--rw=randwrite", "--bs=16k", "--ioengine=psync", "--fdatasync=1")...)
	if err != nil {
		return nil, err
	}
	after, err := t.remote.Requests(ctx)
	if err != nil {
		return nil, err
	}
	p50 := job.Write.Clat.p50() + job.Sync.Lat.p50()
	calls := max(float64(job.Write.Bytes)/(16<<10), 1)
	return map[string]float64{"p50 latency": p50 / 1e6, "round trips": p50 / float64(trip), "requests": float64(after-before) / calls}, nil
}

func coldReadJob(c Config) Job {
	return Job{
		Name: "cold-read", What: "sequential read of a file that is only in the store; plain GETs by range",
		Setting: fmt.Sprintf("%s, 1 MiB at a time, state directory fresh, page cache dropped; %d GETs of %s at a time", size(c.FileBytes), rawDownloads, size(rawBody)),
		Targets: []Kind{Store, Raw},
		Metrics: []Metric{{Name: "throughput", Unit: "MiB/s", Bar: AgainstOther(0.8, Raw)}},
		Prepare: func(ctx context.Context, t *Target) error {
			if t.Kind == Raw {
				_, err := newRawSet(t.remote.Raw, "cold", c.FileBytes).put(ctx)
				return err
			}
			return fillFile(filepath.Join(t.Dir, coldFile), c.FileBytes)
		},
		Before: func(ctx context.Context, t *Target) error {
			if t.Kind == Store {
				if err := t.moveFresh(ctx); err != nil {
					return err
				}
			}
			return dropPageCache() // the server's, too
		},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			if t.Kind == Raw {
				took, err := newRawSet(t.remote.Raw, "cold", c.FileBytes).get(ctx)
				return rate(c.FileBytes, took), err
			}
			begun := time.Now()
			err := readThrough(filepath.Join(t.Dir, coldFile))
			return rate(c.FileBytes, time.Since(begun)), err
		},
	}
}

func bulkWriteJob(c Config) Job {
	return Job{
		Name: "bulk-write", What: "sequential write of a new file until the store has all of it; plain create-only PUTs",
		Setting: fmt.Sprintf("%s, 1 MiB at a time, until `cistern sync` returns; %d PUTs of %s at a time", size(c.FileBytes), rawUploads, size(rawBody)),
		Targets: []Kind{Store, Raw},
		Metrics: []Metric{{Name: "throughput", Unit: "MiB/s", Bar: AgainstOther(0.8, Raw)}},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			if t.Kind == Raw {
				set := newRawSet(t.remote.Raw, "bulk", c.FileBytes)
				took, err := set.put(ctx)
				return rate(c.FileBytes, took), errors.Join(err, set.delete(ctx))
			}
			name := filepath.Join(t.Dir, bulkFile)
			begun := time.Now()
			if err := fillFile(name, c.FileBytes); err != nil {
				return nil, err
			}
			if _, err := t.sync(ctx); err != nil {
				return nil, err
			}
			took := time.Since(begun)
			if err := t.mustBeClean(ctx); err != nil {
				return nil, err
			}
			return rate(c.FileBytes, took), os.Remove(name)
		},
	}
}

func handoverJob() Job {
	return Job{
		Name: "hand-over", What: "`cistern umount`, then `cistern mount` on a fresh state directory until it serves",
		Setting: fmt.Sprintf("everything committed before, and with %s just written; the upload is taken off as plain PUTs of as much, made in the same round", size(lateBytes)),
		Targets: []Kind{Store},
		Metrics: []Metric{
			{Name: "clean", Unit: "s", Better: Lower, Bar: AtMost(1)},
			{Name: "dirty", Unit: "s", Better: Lower},
			{Name: "dirty less upload", Unit: "s", Better: Lower, Bar: AtMost(1)},
		},
		Run: runHandover,
	}
}

func runHandover(ctx context.Context, t *Target) (map[string]float64, error) {
	timed := func() (float64, error) {
		begun := time.Now()
		err := t.moveFresh(ctx)
		return time.Since(begun).Seconds(), err
	}
	set := newRawSet(t.remote.Raw, "late", lateBytes)
	upload, err := set.put(ctx)
	if err = errors.Join(err, set.delete(ctx)); err != nil {
		return nil, err
	}
	clean, err := timed()
	if err != nil {
		return nil, err
	}
	if err := fillFile(filepath.Join(t.Dir, lateFile), lateBytes); err != nil {
		return nil, err
	}
	dirty, err := timed()
	return map[string]float64{"clean": clean, "dirty": dirty, "dirty less upload": max(0, dirty-upload.Seconds())}, err
}

func rate(bytes int64, took time.Duration) map[string]float64 {
	return map[string]float64{"throughput": float64(bytes) / mebibyte / took.Seconds()}
}

// clientPID is the process that makes a target's requests.
func (t *Target) clientPID() int {
	if t.Kind == Raw {
		return os.Getpid()
	}
	return t.PID()
}

// moveFresh unmounts the target and mounts it again on a state directory that
// has nothing, as another machine would.
func (t *Target) moveFresh(ctx context.Context) error {
	umountCtx, cancel := context.WithTimeout(ctx, umountWait)
	defer cancel()
	if err := t.mount.Umount(umountCtx); err != nil {
		return err
	}
	t.mount = nil
	old := t.State
	t.moves++
	t.State = fmt.Sprintf("%s-%d", t.firstState, t.moves)
	if t.Kind.isPeer() {
		if err := t.startPeer(ctx); err != nil {
			return err
		}
	} else if err := t.start(ctx, t.mountConfig()); err != nil {
		return err
	}
	t.stale = append(t.stale, old) // deleting it takes time that is not the mount's
	return nil
}

// clearStale removes the state directories that moves have left.
func (t *Target) clearStale() error {
	for _, dir := range t.stale {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("remove a state directory: %w", err)
		}
	}
	t.stale = nil
	return nil
}

// mustBeClean fails when status shows something that is not committed.
func (t *Target) mustBeClean(ctx context.Context) error {
	out, err := harness.Run(ctx, "", t.cistern, "status", "--json", t.Dir)
	if err != nil {
		return err
	}
	var status struct {
		Dirty int64 `json:"dirty_bytes"`
	}
	if err := json.Unmarshal([]byte(out), &status); err != nil {
		return fmt.Errorf("read the status of %s: %w", t.Dir, err)
	}
	if status.Dirty != 0 {
		return fmt.Errorf("%d bytes are not committed after a sync", status.Dirty)
	}
	return nil
}
