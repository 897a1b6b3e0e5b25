package monitor

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRelax_TheThreadHasTheSlack(t *testing.T) {
	tid, err := thread()
	if err != nil {
		t.Fatal(err)
	}
	if tid == os.Getpid() {
		t.Fatal("the main thread is no monitor")
	}
	if err := Relax(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, slackFile(tid)); strings.TrimSpace(got) != strconv.Itoa(int(Slack)) {
		t.Errorf("slack %q", got)
	}
	if got := read(t, fmt.Sprintf("/proc/%d/timerslack_ns", os.Getpid())); strings.TrimSpace(got) == strconv.Itoa(int(Slack)) {
		t.Errorf("the main thread has it, too")
	}
}

// The thread is the one that wakes most while others come and go from the kernel, and
// with its slack it wakes less.
func TestRelax_TheMonitorWakesLess(t *testing.T) {
	tid, err := thread()
	if err != nil {
		t.Fatal(err)
	}
	before, after := 0, 0
	for range 5 { // in turn, since how long a round takes is up to the machine
		if err := os.WriteFile(slackFile(tid), []byte("1"), 0); err != nil {
			t.Fatal(err)
		}
		before += switchesDuring(t, tid)
		if err := Relax(); err != nil {
			t.Fatal(err)
		}
		after += switchesDuring(t, tid)
	}
	t.Logf("the monitor slept %d times, %d with its slack", before, after)
	if after >= before {
		t.Errorf("the monitor slept %d times, %d with its slack", before, after)
	}
}

// switchesDuring counts how often a thread goes to sleep while others are in the
// kernel for short times.
func switchesDuring(t *testing.T, tid int) int {
	t.Helper()
	first := switches(t, tid)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 500 {
				if err := unix.Nanosleep(&unix.Timespec{Nsec: 100_000}, nil); err != nil && err != unix.EINTR {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	return switches(t, tid) - first
}

func switches(t *testing.T, tid int) int {
	t.Helper()
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/self/task/%d/status", tid))) {
		var n int
		if k, _ := fmt.Sscanf(line, "voluntary_ctxt_switches: %d", &n); k == 1 {
			return n
		}
	}
	t.Fatal("the kernel does not count switches")
	return 0
}

func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
