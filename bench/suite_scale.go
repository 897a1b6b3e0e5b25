package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
)

// What the bars of suite scale are about.
const (
	appendRounds  = 20
	appendsARound = 25
	appendBytes   = 100
	smallFile     = 1_000_000
	largeFile     = 100_000_000_000
	changeBytes   = 16 << 10
	renamedFiles  = 10_000
	barFiles      = 1_000_000 // the number of files whose mount has a bar
	sampledFiles  = 2000      // looked up and read after a mount
)

// suiteScale shows how the cost of an operation grows with the work.
func suiteScale() Suite {
	maxFiles := 100_000
	return Suite{
		Name: "scale",
		What: "cost of an operation, memory and mount time with 1,000 to 1,000,000 files, 1 to 100 GiB in one file, 1 to 64 files at a time",
		Dirs: []Kind{Ext4, Loopback, Mount, Store},
		Flags: func(f *flag.FlagSet) {
			f.IntVar(&maxFiles, "max-files", maxFiles, "the most files of the jobs files-N, up to 1000000; those take minutes to make")
		},
		Jobs: func(c Config) []Job {
			jobs := []Job{appendJob(), changeJob(), renameJob()}
			for _, gib := range []int64{1, 10, 100} {
				jobs = append(jobs, sizeJob(gib))
			}
			for _, n := range []int{1, 4, 16, 64} {
				jobs = append(jobs, writersJob(c, n))
			}
			for n := 1000; n <= min(maxFiles, barFiles); n *= 10 {
				jobs = append(jobs, filesJob(n))
			}
			return jobs
		},
	}
}

// appendJob compares appends to a large file with those to a small one.
func appendJob() Job {
	return Job{
		Name: "append", What: "append 100 bytes + fsync, to a file of 100 GB and to one of 1 MB", Once: true,
		Setting: fmt.Sprintf("sparse files; %d rounds of %d appends to the one, then to the other; the ratio is the median of the rounds'", appendRounds, appendsARound),
		Metrics: []Metric{
			{Name: "to 1 MB", Unit: "µs", Better: Lower},
			{Name: "to 100 GB", Unit: "µs", Better: Lower},
			{Name: "100 GB / 1 MB", Unit: "×", Better: Lower, Bar: AtMost(1.1)},
		},
		Run: func(_ context.Context, t *Target) (map[string]float64, error) { return runAppends(t.Dir) },
	}
}

func runAppends(dir string) (_ map[string]float64, err error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.Close(), os.Remove(f.Name()))
		}
	}()
	for name, size := range map[string]int64{"append-small.dat": smallFile, "append-large.dat": largeFile} {
		f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
		if err := f.Truncate(size); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(files, func(a, b *os.File) int { return strings.Compare(b.Name(), a.Name()) }) // the small one first
	var times [2][]float64
	var ratios []float64
	for round := range appendRounds + 1 {
		var now [2]float64
		for i := range files {
			at := (i + round) % 2 // the other one first every round
			if now[at], err = appendTo(files[at]); err != nil {
				return nil, err
			}
		}
		if round == 0 {
			continue // the first writes to a file
		}
		times[0], times[1] = append(times[0], now[0]), append(times[1], now[1])
		ratios = append(ratios, now[1]/now[0])
	}
	return map[string]float64{"to 1 MB": medianOf(times[0]), "to 100 GB": medianOf(times[1]), "100 GB / 1 MB": medianOf(ratios)}, nil
}

// appendTo returns the median time of an append in µs.
func appendTo(f *os.File) (float64, error) {
	p := make([]byte, appendBytes)
	var times []float64
	for range appendsARound {
		begun := time.Now()
		if _, err := f.Write(p); err != nil {
			return 0, err
		}
		if err := f.Sync(); err != nil {
			return 0, err
		}
		times = append(times, float64(time.Since(begun))/1e3)
	}
	return medianOf(times), nil
}

// changeJob counts what a small change of a large file uploads.
func changeJob() Job {
	const name = "change.dat"
	return Job{
		Name: "change-16k", What: "bytes uploaded for a change of 16 KiB in a file of 1 GB, before folding", Once: true, Quiet: true, Targets: []Kind{Mount},
		Setting: "the file at rest in the store; one write in its middle, `cistern sync`, counted at the store",
		Metrics: []Metric{
			{Name: "without the commit", Unit: "B", Better: Lower, Bar: AtMost(64 << 10)},
			{Name: "the commit", Unit: "B", Better: Lower},
			{Name: "commits", Unit: "", Better: Lower, Bar: AtMost(1)},
		},
		Prepare: func(_ context.Context, t *Target) error {
			return fillOnce(filepath.Join(t.Dir, name), 1_000_000_000/mebibyte*mebibyte)
		},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			m, err := newStoreMeter(t.Bucket)
			if err != nil {
				return nil, err
			}
			err = m.during(func() error {
				f, err := os.OpenFile(filepath.Join(t.Dir, name), os.O_WRONLY, 0)
				if err != nil {
					return err
				}
				_, err = f.WriteAt(noise(changeBytes), 500_000_000)
				if err = errors.Join(err, f.Close()); err != nil {
					return err
				}
				_, err = t.sync(ctx)
				return err
			})
			commit, commits := m.bytes("commits")
			all, _ := m.bytes()
			return map[string]float64{"without the commit": float64(all - commit), "the commit": float64(commit), "commits": float64(commits)}, err
		},
	}
}

// renameJob moves a full folder.
func renameJob() Job {
	const name = "renamed"
	return Job{
		Name: "rename", What: "rename of a folder with 10,000 files, and back",
		Setting: "the files of 4 KiB each committed",
		Metrics: []Metric{{Name: "time", Unit: "ms", Better: Lower, Bar: AtMost(100)}},
		Prepare: func(ctx context.Context, t *Target) error {
			for i := range renamedFiles / perFolder {
				if err := makeFolder(filepath.Join(t.Dir, name, fmt.Sprint(i)), i*perFolder); err != nil {
					return err
				}
			}
			return t.Quiesce(ctx)
		},
		Run: func(_ context.Context, t *Target) (map[string]float64, error) {
			begun := time.Now()
			err := os.Rename(filepath.Join(t.Dir, name), filepath.Join(t.Dir, name+"-moved"))
			took := time.Since(begun)
			return map[string]float64{"time": took.Seconds() * 1e3}, errors.Join(err, os.Rename(filepath.Join(t.Dir, name+"-moved"), filepath.Join(t.Dir, name)))
		},
	}
}

// sizeJob works at random places of a sparse file.
func sizeJob(gib int64) Job {
	name := fmt.Sprintf("sparse-%d.dat", gib)
	return Job{
		Name: fmt.Sprintf("size-%d", gib), What: fmt.Sprintf("16 KiB at random places of a sparse file of %d GiB", gib),
		Setting: "psync, 500 writes + fdatasync, then 500 reads elsewhere, which are of holes; the memory is the serving process's, without the page cache",
		Metrics: []Metric{
			{Name: "write + fdatasync", Unit: "µs", Better: Lower}, {Name: "read", Unit: "µs", Better: Lower},
			{Name: "memory", Unit: "MiB", Better: Lower, On: servedKinds()},
		},
		Prepare: func(_ context.Context, t *Target) error {
			f, err := os.Create(filepath.Join(t.Dir, name))
			if err != nil {
				return err
			}
			return errors.Join(f.Truncate(gib<<30), f.Close())
		},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			common := []string{"--filename=" + name, "--bs=16k", "--ioengine=psync", "--number_ios=500", fmt.Sprintf("--size=%d", gib<<30)}
			write, err := runFio(ctx, t.Dir, append(slices.Clone(common), "--rw=randwrite", "--fdatasync=1")...)
			if err != nil {
				return nil, err
			}
			read, err := runFio(ctx, t.Dir, append(slices.Clone(common), "--rw=randread", "--randseed=2")...)
			if err != nil {
				return nil, err
			}
			values := map[string]float64{"write + fdatasync": (write.Write.Clat.p50() + write.Sync.Lat.p50()) / 1e3, "read": read.Read.Clat.p50() / 1e3}
			return values, t.addMemory(values)
		},
	}
}

func servedKinds() []Kind { return []Kind{Loopback, Mount, Store, StoreGS} }

// addMemory adds the memory of the process that serves the target.
func (t *Target) addMemory(values map[string]float64) error {
	if t.PID() == 0 {
		return nil
	}
	n, err := procAnonymous(t.PID())
	values["memory"] = float64(n) / mebibyte
	return err
}

// writersJob has many files written at the same time.
func writersJob(c Config, n int) Job {
	return Job{
		Name: fmt.Sprintf("writers-%d", n), What: fmt.Sprintf("16 KiB random write + fdatasync on %d files at a time", n),
		Setting: "a file of 16 MiB each, psync",
		Metrics: []Metric{{Name: "throughput", Unit: "writes/s"}, {Name: "p50 latency", Unit: "µs", Better: Lower}},
		Prepare: func(_ context.Context, t *Target) error {
			for i := range n {
				if err := fillOnce(filepath.Join(t.Dir, fmt.Sprintf("writers.%d", i)), 16*mebibyte); err != nil {
					return err
				}
			}
			return nil
		},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			job, err := runFio(ctx, t.Dir, timed(c.Seconds, "--filename_format=writers.$jobnum", fmt.Sprintf("--numjobs=%d", n),
				"--rw=randwrite", "--bs=16k", "--ioengine=psync", "--fdatasync=1")...)
			return map[string]float64{"throughput": job.Write.IOPS, "p50 latency": (job.Write.Clat.p50() + job.Sync.Lat.p50()) / 1e3}, err
		},
	}
}

// filesJob makes many files and mounts them again.
func filesJob(n int) Job {
	bar := func(limit float64) Bar {
		if n < barFiles {
			return Bar{}
		}
		return AtMost(limit)
	}
	mounted := []Kind{Mount, Store, StoreGS}
	folder := fmt.Sprintf("files-%d", n)
	return Job{
		Name: folder, What: fmt.Sprintf("%d files of 4 KiB: make them, look at some, mount them again", n), Once: true,
		Setting: fmt.Sprintf("%d in a folder, 8 folders at a time, without fsync; then %d of them are read; a mount counts until it serves", perFolder, sampledFiles),
		Metrics: []Metric{
			{Name: "create", Unit: "µs/file", Better: Lower},
			{Name: "look up and read", Unit: "µs/file", Better: Lower},
			{Name: "mount with local state", Unit: "s", Better: Lower, Bar: bar(2), On: mounted},
			{Name: "mount from the bucket alone", Unit: "s", Better: Lower, Bar: bar(15), On: mounted},
			{Name: "memory", Unit: "MiB", Better: Lower, On: servedKinds()},
		},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			dir := filepath.Join(t.Dir, folder)
			begun := time.Now()
			if err := makeFolders(dir, n); err != nil {
				return nil, err
			}
			values := map[string]float64{"create": float64(time.Since(begun)) / 1e3 / float64(n)}
			if err := t.Quiesce(ctx); err != nil {
				return nil, err
			}
			if t.Kind.ofCistern() {
				if err := t.timeMounts(ctx, values); err != nil {
					return nil, err
				}
			}
			if err := dropPageCache(); err != nil {
				return nil, err
			}
			begun = time.Now()
			if err := readSample(dir, n); err != nil {
				return nil, err
			}
			values["look up and read"] = float64(time.Since(begun)) / 1e3 / float64(min(n, sampledFiles))
			return values, t.addMemory(values)
		},
	}
}

// makeFolders makes n files in folders of perFolder.
func makeFolders(dir string, n int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var g errgroup.Group
	g.SetLimit(8)
	for i := range n / perFolder {
		g.Go(func() error { return makeFolder(filepath.Join(dir, fmt.Sprintf("d%04d", i)), i*perFolder) })
	}
	return g.Wait()
}

// readSample reads files that lie evenly among n.
func readSample(dir string, n int) error {
	step := max(1, n/sampledFiles)
	for i := 0; i < n; i += step {
		if _, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("d%04d", i/perFolder), fmt.Sprintf("table%06d.ibd", i))); err != nil {
			return err
		}
	}
	return nil
}

// timeMounts mounts with the state directory as it was left, then on an empty
// one.
func (t *Target) timeMounts(ctx context.Context, values map[string]float64) error {
	for _, m := range []struct {
		name  string
		fresh bool
	}{{"mount with local state", false}, {"mount from the bucket alone", true}} {
		umountCtx, cancel := context.WithTimeout(ctx, umountWait)
		err := t.mount.Umount(umountCtx)
		cancel()
		if err != nil {
			return err
		}
		t.mount = nil
		if m.fresh {
			t.freshState()
		}
		if err := dropPageCache(); err != nil {
			return err
		}
		begun := time.Now()
		if err := t.start(ctx, t.mountConfig()); err != nil {
			return err
		}
		values[m.name] = time.Since(begun).Seconds()
	}
	return nil
}
