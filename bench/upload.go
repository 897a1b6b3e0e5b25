package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// How a store is watched until nothing more arrives.
const (
	meterInterval = 500 * time.Millisecond
	quietLimit    = 10 * time.Minute
)

// storeMeter counts what arrives in a file:// store by looking at it again and
// again. Every key is used for one body ever, so the sum over the keys ever seen
// is what was uploaded; lease.json, the one exception, is counted apart.
type storeMeter struct {
	dir  string
	seen map[string]int64 // size by key
	base map[string]bool  // keys that were there before
}

// storeKinds are the folders of a volume that hold uploaded things.
var storeKinds = []string{"commits", "manifests", "segments", "objects", "pins"}

func newStoreMeter(dir string) (*storeMeter, error) {
	m := &storeMeter{dir: dir, seen: map[string]int64{}, base: map[string]bool{}}
	if _, err := m.look(); err != nil {
		return nil, err
	}
	for key := range m.seen {
		m.base[key] = true
	}
	return m, nil
}

// look enters new keys and says whether there were any.
func (m *storeMeter) look() (bool, error) {
	found := false
	for _, kind := range storeKinds {
		err := filepath.WalkDir(filepath.Join(m.dir, kind), func(name string, d fs.DirEntry, err error) error {
			if err != nil {
				return ignoreGone(err)
			}
			// A provider's unfinished uploads are hidden files.
			if !d.Type().IsRegular() || strings.HasPrefix(d.Name(), ".") {
				return nil
			}
			info, err := d.Info()
			if err != nil {
				return ignoreGone(err)
			}
			key, err := filepath.Rel(m.dir, name)
			if _, known := m.seen[key]; err == nil && !known {
				m.seen[key], found = info.Size(), true
			}
			return err
		})
		if err != nil {
			return false, fmt.Errorf("look at the store %s: %w", m.dir, err)
		}
	}
	return found, nil
}

// bytes is what has arrived since the meter was made, under the given kinds; all
// kinds when none is given. n is the number of things.
func (m *storeMeter) bytes(kinds ...string) (total int64, n int) {
	for key, size := range m.seen {
		kind, _, _ := strings.Cut(key, "/")
		if m.base[key] || len(kinds) > 0 && !strings.Contains(" "+strings.Join(kinds, " ")+" ", " "+kind+" ") {
			continue
		}
		total += size
		n++
	}
	return total, n
}

// during looks while f runs, and once more afterwards.
func (m *storeMeter) during(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- f() }()
	tick := time.NewTicker(meterInterval)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if err != nil {
				return err
			}
			_, err = m.look()
			return err
		case <-tick.C:
			if _, err := m.look(); err != nil {
				<-done
				return err
			}
		}
	}
}

// settle looks until nothing has arrived for so long.
func (m *storeMeter) settle(ctx context.Context, quiet time.Duration) error {
	limit := time.Now().Add(quietLimit)
	for last := time.Now(); time.Since(last) < quiet; {
		found, err := m.look()
		if err != nil {
			return err
		}
		if found {
			last = time.Now()
		}
		if time.Now().After(limit) {
			return fmt.Errorf("the mount still uploads after %v without a write", quietLimit)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(meterInterval):
		}
	}
	return nil
}

// runOverwrites counts what random overwrites upload, per byte written.
func runOverwrites(ctx context.Context, t *Target, file string, seconds int, quiet time.Duration) (map[string]float64, error) {
	m, err := newStoreMeter(t.Bucket)
	if err != nil {
		return nil, err
	}
	var job fioJob
	err = m.during(func() error {
		var err error
		job, err = runFio(ctx, t.Dir, timed(seconds, "--filename="+file, "--rw=randwrite", "--bs=16k", "--fdatasync=1", "--ioengine=psync", "--rate_iops=500")...)
		if err != nil {
			return err
		}
		_, err = t.sync(ctx)
		return err
	})
	if err == nil {
		err = m.settle(ctx, quiet)
	}
	if err != nil {
		return nil, err
	}
	user := float64(job.Write.Bytes)
	shipped, _ := m.bytes("segments", "commits")
	all, _ := m.bytes()
	return map[string]float64{"segments and commits": float64(shipped) / user, "all with folding": float64(all) / user}, nil
}

// runGrowth counts what a file uploads that grows by 1 KiB a second. Each commit
// has 2 KiB free.
func runGrowth(ctx context.Context, t *Target, seconds int, quiet time.Duration) (map[string]float64, error) {
	m, err := newStoreMeter(t.Bucket)
	if err != nil {
		return nil, err
	}
	err = m.during(func() error { return grow(ctx, filepath.Join(t.Dir, "grows.dat"), seconds) })
	if err == nil {
		err = m.settle(ctx, quiet)
	}
	if err != nil {
		return nil, err
	}
	all, _ := m.bytes()
	perCommit, commits := m.bytes("commits")
	free := float64(2048 * commits)
	return map[string]float64{
		"less 2 KiB a commit": max(0, float64(all)-free) / float64(1024*seconds),
		"per commit":          float64(perCommit) / float64(max(commits, 1)),
	}, nil
}

func grow(ctx context.Context, name string, seconds int) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("make the growing file: %w", err)
	}
	defer f.Close()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	block := make([]byte, 1024)
	for i := range seconds {
		for j := range block {
			block[j] = byte(i*31 + j*j>>3)
		}
		if _, err := f.Write(block); err != nil {
			return fmt.Errorf("grow the file: %w", err)
		}
		if err := f.Sync(); err != nil {
			return fmt.Errorf("grow the file: %w", err)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
	return nil
}

// runIdle counts what a mount uploads while nothing is written, the lease apart.
func runIdle(ctx context.Context, t *Target, seconds int) (map[string]float64, error) {
	m, err := newStoreMeter(t.Bucket)
	if err != nil {
		return nil, err
	}
	err = m.during(func() error {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Duration(seconds) * time.Second):
			return nil
		}
	})
	all, _ := m.bytes()
	return map[string]float64{"uploaded": float64(all)}, err
}

// runLoad writes one file sequentially and counts what the mount's process
// writes to the local disk for it. The store is a directory on the same disk and
// written by the same process, so what arrived there is taken off.
func runLoad(ctx context.Context, t *Target, size int64, quiet time.Duration) (map[string]float64, error) {
	m, err := newStoreMeter(t.Bucket)
	if err != nil {
		return nil, err
	}
	before, err := procWriteBytes(t.PID())
	if err != nil {
		return nil, err
	}
	stateBefore, err := allocated(t.State)
	if err != nil {
		return nil, err
	}
	name := filepath.Join(t.Dir, "load.dat")
	err = m.during(func() error {
		if err := fillFile(name, size); err != nil {
			return err
		}
		_, err := t.sync(ctx)
		return err
	})
	if err == nil {
		err = m.settle(ctx, quiet)
	}
	if err != nil {
		return nil, err
	}
	after, err := procWriteBytes(t.PID())
	if err != nil {
		return nil, err
	}
	stateAfter, err := allocated(t.State)
	if err != nil {
		return nil, err
	}
	uploaded, _ := m.bytes()
	return map[string]float64{
		"written":  float64(after-before-uploaded) / float64(size),
		"occupied": float64(stateAfter-stateBefore) / float64(size),
	}, os.Remove(name)
}
