package monitor

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"
)

// Slack is how much longer than asked for the monitor's sleeps may be.
const Slack = time.Millisecond

// Relax gives this process's monitor thread its slack. It needs CAP_SYS_NICE
// (fs.ErrPermission). The thread is the one that was started first after the
// main one, as the runtime does before it runs any init function; were it another
// one, the runtime's own short waits on that thread would be longer.
func Relax() error {
	tid, err := thread()
	if err != nil {
		return fmt.Errorf("find the scheduler's monitor thread: %w", err)
	}
	if err := os.WriteFile(slackFile(tid), strconv.AppendInt(nil, int64(Slack), 10), 0); err != nil {
		return fmt.Errorf("set the timer slack of the scheduler's monitor thread: %w", err)
	}
	return nil
}

func slackFile(tid int) string { return fmt.Sprintf("/proc/%d/timerslack_ns", tid) }

// thread returns the id of the monitor thread.
func thread() (int, error) {
	list, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return 0, err
	}
	var tids []int
	for _, e := range list {
		if tid, err := strconv.Atoi(e.Name()); err == nil && tid != os.Getpid() {
			tids = append(tids, tid)
		}
	}
	if len(tids) == 0 {
		return 0, fmt.Errorf("the process has one thread: %w", os.ErrNotExist)
	}
	return slices.Min(tids), nil
}
