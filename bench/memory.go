package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// memoryGroup is a control group with a limit of memory, which counts the page
// cache that its processes fill.
type memoryGroup struct{ dir string }

// newMemoryGroup makes one, of version 2 or 1, whichever the machine has.
func newMemoryGroup(limit int64) (*memoryGroup, error) {
	var errs []error
	for _, try := range []struct{ root, limit string }{
		{"/sys/fs/cgroup", "memory.max"},
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
	} {
		dir, err := os.MkdirTemp(try.root, "bench-")
		if err != nil {
			errs = append(errs, err)
			continue
		}
		// Not O_CREATE: where the root is no hierarchy of groups the file is missing.
		f, err := os.OpenFile(filepath.Join(dir, try.limit), os.O_WRONLY, 0)
		if err == nil {
			_, err = f.WriteString(strconv.FormatInt(limit, 10))
			err = errors.Join(err, f.Close())
		}
		if err == nil {
			return &memoryGroup{dir}, nil
		}
		errs = append(errs, err, os.Remove(dir))
	}
	return nil, fmt.Errorf("make a control group with a limit of memory (needs root): %w", errors.Join(errs...))
}

// inside makes a command begin its life in the group.
func (g *memoryGroup) inside(argv []string) []string {
	return append([]string{"sh", "-c", `echo $$ > "$0" && exec "$@"`, filepath.Join(g.dir, "cgroup.procs")}, argv...)
}

// remove ends the group, which must be empty.
func (g *memoryGroup) remove() error {
	var err error
	for range 50 { // the kernel notices a process's end a little later
		if err = os.Remove(g.dir); err == nil {
			return nil
		}
		time.Sleep(100 * time.Millisecond)
	}
	return err
}

// anonymousWatch looks at a process's anonymous memory again and again.
type anonymousWatch struct {
	quit chan struct{}
	wg   sync.WaitGroup
	peak int64 // bytes
	err  error
}

func watchAnonymous(pid int) *anonymousWatch {
	w := &anonymousWatch{quit: make(chan struct{})}
	w.wg.Add(1)
	go func() {
		defer w.wg.Done()
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for w.err == nil {
			var n int64
			n, w.err = procAnonymous(pid)
			w.peak = max(w.peak, n)
			select {
			case <-tick.C:
			case <-w.quit:
				return
			}
		}
	}()
	return w
}

// end returns the peak in bytes.
func (w *anonymousWatch) end() (int64, error) {
	close(w.quit)
	w.wg.Wait()
	return w.peak, w.err
}

// procAnonymous is a process's memory that no file stands behind, in bytes.
func procAnonymous(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("look at the memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		var kib int64
		if n, _ := fmt.Sscanf(line, "RssAnon: %d kB", &kib); n == 1 {
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("process %d has no RssAnon in its status", pid)
}

// procCPU is the CPU time of a process so far.
func procCPU(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("look at the CPU time of process %d: %w", pid, err)
	}
	// The name, in brackets, may hold spaces; utime and stime are the 12th and 13th field after it.
	_, rest, _ := strings.Cut(string(text), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc/%d/stat: %w", pid, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / 100, nil
}
