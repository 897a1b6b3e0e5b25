package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/internal/harness"
)

// What the volume of suite memory holds.
const (
	manyFiles  = 200_000
	perFolder  = 1000
	wideFiles  = 20 // of wideBytes each: copies that share their objects
	wideBytes  = 1 << 30
	cacheBlock = 128 << 10 // one random read brings in about so much
	cacheBytes = 2 << 30
	memoryMiB  = 512
)

// suiteMemory is a large volume in little memory.
func suiteMemory() Suite {
	return Suite{
		Name: "memory",
		What: "a fresh mount of a large volume in a control group of 512 MiB: time to the first read, memory during fio jobs",
		Jobs: func(c Config) []Job {
			return []Job{{
				Name: "large-volume", What: "mount on a fresh state directory, first read, 2 GiB read in random blocks, fio jobs", Once: true, Targets: []Kind{Mount},
				Setting: fmt.Sprintf("%d files of 4 KiB and %d of 1 GiB that share objects; memory limit %d MiB, page cache included; an out-of-memory kill fails the job", manyFiles, wideFiles, memoryMiB),
				Metrics: []Metric{
					{Name: "mount and first read", Unit: "s", Better: Lower, Bar: AtMost(2)},
					{Name: "CPU until then", Unit: "s", Better: Lower},
					{Name: "anonymous memory, peak", Unit: "MiB", Better: Lower, Bar: AtMost(memoryMiB)},
				},
				Prepare: func(_ context.Context, t *Target) error { return makeLargeVolume(t.Dir) },
				Run:     func(ctx context.Context, t *Target) (map[string]float64, error) { return runLargeVolume(ctx, t, c) },
			}}
		},
	}
}

// makeLargeVolume makes the files, the small ones in several folders at a time.
func makeLargeVolume(dir string) error {
	var g errgroup.Group
	g.SetLimit(16)
	for folder := range manyFiles / perFolder {
		g.Go(func() error { return makeFolder(filepath.Join(dir, fmt.Sprintf("d%03d", folder)), folder*perFolder) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	first := filepath.Join(dir, wideFile(0))
	if err := fillFile(first, wideBytes); err != nil {
		return err
	}
	for i := 1; i < wideFiles; i++ {
		if err := copyRange(first, filepath.Join(dir, wideFile(i)), wideBytes); err != nil {
			return err
		}
	}
	return nil
}

func makeFolder(folder string, first int) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	page := make([]byte, 4<<10)
	for i := first; i < first+perFolder; i++ {
		page[i%len(page)]++
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprintf("table%06d.ibd", i)), page, 0o644); err != nil {
			return err
		}
	}
	return nil
}

func wideFile(i int) string { return fmt.Sprintf("wide%02d.dat", i) }

// copyRange copies a file with copy_file_range alone.
func copyRange(from, to string, size int64) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, src.Close()) }()
	dst, err := os.Create(to)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	for left := size; left > 0; {
		n, err := unix.CopyFileRange(int(src.Fd()), nil, int(dst.Fd()), nil, int(left), 0)
		if err != nil {
			return fmt.Errorf("copy %s to %s: %w", from, to, err)
		}
		if n == 0 {
			return fmt.Errorf("copy %s to %s: it ended %d bytes early", from, to, left)
		}
		left -= int64(n)
	}
	return nil
}

func runLargeVolume(ctx context.Context, t *Target, c Config) (_ map[string]float64, err error) {
	if _, err := t.sync(ctx); err != nil {
		return nil, err
	}
	if err := t.mount.Umount(ctx); err != nil {
		return nil, err
	}
	t.mount = nil
	t.State += "-fresh"
	if err := dropPageCache(); err != nil {
		return nil, err
	}
	g, err := newMemoryGroup(memoryMiB << 20)
	if err != nil {
		return nil, err
	}
	// The group can go when the mount has left it.
	defer func() { err = errors.Join(err, t.Close(), g.remove()); t.mount = nil }()
	config := harness.CisternMount(t.cistern, t.url(), t.Dir, t.State)
	config.Argv = g.inside(config.Argv)
	begin := time.Now()
	if err := t.start(ctx, config); err != nil {
		return nil, err
	}
	if _, err := os.ReadFile(filepath.Join(t.Dir, "d123", "table123456.ibd")); err != nil {
		return nil, err
	}
	took := time.Since(begin)
	cpu, err := procCPU(t.PID())
	if err != nil {
		return nil, err
	}
	watch := watchAnonymous(t.PID())
	err = errors.Join(readScattered(t.Dir), largeVolumeFio(ctx, t.Dir, c.Seconds))
	peak, werr := watch.end()
	if err = errors.Join(err, werr); err != nil {
		return nil, err
	}
	if !t.mount.Alive() {
		return nil, errors.New("the mount's process has ended: out of memory?")
	}
	return map[string]float64{
		"mount and first read": took.Seconds(), "CPU until then": cpu.Seconds(), "anonymous memory, peak": float64(peak) / mebibyte,
	}, nil
}

// readScattered reads one page of random blocks, as many as fill the cache.
func readScattered(dir string) error {
	rng := rand.New(rand.NewPCG(1, 1))
	files := make([]*os.File, wideFiles)
	for i := range files {
		f, err := os.Open(filepath.Join(dir, wideFile(i)))
		if err != nil {
			return err
		}
		defer f.Close() // only read
		files[i] = f
	}
	p := make([]byte, 4<<10)
	for range cacheBytes / cacheBlock {
		if _, err := files[rng.IntN(wideFiles)].ReadAt(p, rng.Int64N(wideBytes/cacheBlock)*cacheBlock); err != nil {
			return err
		}
	}
	return nil
}

// largeVolumeFio runs what a database does on some of the files.
func largeVolumeFio(ctx context.Context, dir string, seconds int) error {
	for _, args := range [][]string{
		{"--filename=" + wideFile(1), "--rw=randwrite", "--bs=16k", "--ioengine=psync", "--fdatasync=1"},
		{"--filename=" + wideFile(2), "--rw=randwrite", "--bs=16k", "--ioengine=psync", "--fdatasync=1", "--numjobs=16"},
		{"--filename=" + wideFile(3), "--rw=randrw", "--bs=16k", "--ioengine=libaio", "--direct=1", "--iodepth=32"},
		{"--filename=" + wideFile(4), "--rw=write", "--bs=1m", "--ioengine=psync", "--fsync=16"},
		{"--filename=" + wideFile(5), "--rw=read", "--bs=1m", "--ioengine=psync"},
	} {
		if _, err := runFio(ctx, dir, timed(seconds, args...)...); err != nil {
			return err
		}
	}
	return nil
}
