package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// churn creates, writes 4 KiB, fsyncs, closes and unlinks one file after the
// other for d and returns how many.
func churn(dir string, d time.Duration) (int, error) {
	name, block := filepath.Join(dir, "churn.dat"), make([]byte, 4096)
	n := 0
	for begin := time.Now(); time.Since(begin) < d; n++ {
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		if err != nil {
			return n, err
		}
		if _, err = f.Write(block); err == nil {
			err = f.Sync()
		}
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err == nil {
			err = os.Remove(name)
		}
		if err != nil {
			return n, err
		}
	}
	return n, nil
}

// churnCommand is the sub-program: a process of its own, as fio is one.
func churnCommand(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: bench churn DIR SECONDS")
	}
	seconds, err := strconv.Atoi(args[1])
	if err != nil {
		return fmt.Errorf("seconds: %w", err)
	}
	n, err := churn(args[0], time.Duration(seconds)*time.Second)
	if err != nil {
		return fmt.Errorf("after %d files: %w", n, err)
	}
	fmt.Println(n)
	return nil
}

// runChurn runs the sub-program and returns files per second.
func runChurn(ctx context.Context, t *Target, seconds int) (map[string]float64, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the benchmark's own program: %w", err)
	}
	out, err := exec.CommandContext(ctx, self, "churn", t.Dir, strconv.Itoa(seconds)).Output()
	if err != nil {
		return nil, fmt.Errorf("create and unlink files in %s: %w", t.Dir, err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(out)))
	if err != nil {
		return nil, fmt.Errorf("create and unlink files in %s: %w", t.Dir, err)
	}
	return map[string]float64{"throughput": float64(n) / float64(seconds)}, nil
}
