package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/internal/control"
	"github.com/cisternfs/cistern/internal/progress"
)

func (a *app) umountCommand() *cobra.Command {
	var noWait bool
	c := &cobra.Command{
		Use: "umount <dir>", Short: "Unmount a volume and wait for its last commit", Args: cobra.ExactArgs(1),
		Long: `Unmounts a volume, waits until everything is committed and gives the lease
back. When commits make no progress for 10 seconds, it leaves the rest in the
journal, says how much that is and in which state directory, and exits with 5:
the next mount with that state directory goes on from there. While programs use the mount it fails and
the mount stays.`,
	}
	c.Flags().BoolVar(&noWait, "no-wait", false, "leave what is not committed in the journal")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		m, ok, err := findMount(args[0])
		if err != nil {
			return err
		}
		if !ok {
			return usage(fmt.Errorf("no volume is mounted on %s", args[0]))
		}
		t, err := a.resolve(args[0])
		if err != nil {
			return err
		}
		r, found := a.findRecord(m.dir)
		owner, err := a.process(ctx, t)
		if err != nil && !found {
			return err
		}
		if owner == nil {
			return a.dropDead(t, m, r)
		}
		var s binlogfs.RelayStatus
		if owner.Call(ctx, http.MethodGet, "/v1/binlog/relay", nil, nil, &s) == nil {
			return usage(fmt.Errorf("a relay shows its volume on %s: `umount %s` takes the directory away and the relay goes on, `cistern binlog stop %s` ends both", m.dir, m.dir, t.url))
		}
		last, err := a.shutdown(ctx, owner, noWait)
		// It stays while programs use it; otherwise what it used is free from here on.
		_, stays, merr := findMount(m.dir)
		if found && merr == nil && !stays {
			waitGone(ctx, r.PID)
		}
		switch {
		case err != nil && ctx.Err() != nil && stays:
			return fmt.Errorf("interrupted: %s is still mounted", m.dir)
		case err != nil && ctx.Err() != nil:
			return interruptedUmount(t, m, r)
		case err != nil:
			return err
		}
		if t.fixed {
			return a.say("%s is unmounted; it showed commit %d", m.dir, last.Commit)
		}
		if last.Left != "" {
			return a.say("%s is unmounted; left in the journal: %s", m.dir, last.Left)
		}
		return a.say("%s is unmounted; everything is in commit %d", m.dir, last.Commit)
	})
}

// interruptedUmount is what who ended the wait for an unmount needs to know.
func interruptedUmount(t target, m mounted, r record) error {
	if t.fixed {
		return fmt.Errorf("interrupted: %s is unmounted", m.dir)
	}
	where := "its state directory"
	if r.StateDir != "" {
		where = string(r.StateDir)
	}
	return fmt.Errorf("interrupted: %s is unmounted, and its process goes on to commit what is left; what it can't bring to the bucket stays in the journal in %s, for the next mount with that state directory", m.dir, where)
}

// shutdown tells a process to end and waits until everything is committed.
func (a *app) shutdown(ctx context.Context, owner *control.Client, noWait bool) (umountEvent, error) {
	return committing(ctx, a, owner, "/v1/shutdown", url.Values{"no_wait": {flag(noWait)}}, func(e *umountEvent) int64 { return e.Dirty })
}

// committing follows what a process tells until everything is committed, and returns
// the last of it. dirty says how much is left.
func committing[Event any](ctx context.Context, a *app, owner *control.Client, path string, q url.Values, dirty func(*Event) int64) (last Event, err error) {
	bar := progress.Start(a.stderr, a.terminal, "committing", 0)
	most := int64(0)
	err = owner.Stream(ctx, http.MethodPost, path, q, func(item json.RawMessage) error {
		var e Event
		if err := json.Unmarshal(item, &e); err != nil {
			return fmt.Errorf("the mount's answer is not understood: %w", err)
		}
		last, most = e, max(most, dirty(&e))
		bar.Set(most-dirty(&e), most)
		return nil
	})
	bar.Done(err == nil)
	return last, err
}

// dropDead takes a mount whose process is gone out of the directory tree.
func (a *app) dropDead(t target, m mounted, r record) error {
	err := unix.Unmount(m.dir, unix.MNT_DETACH)
	if errors.Is(err, unix.EPERM) {
		err = exec.Command("fusermount3", "-u", "-z", "--", m.dir).Run()
	}
	if err != nil {
		return fmt.Errorf("the process that served %s is gone, and the mount can't be taken away: %w", m.dir, err)
	}
	if t.fixed {
		if err := dropPointState(string(r.StateDir)); err != nil {
			return err
		}
		if t.follows {
			return a.say("the process that served %s was gone; the mount, which followed the volume's writer, is taken away", m.dir)
		}
		return a.say("the process that served %s was gone; the mount of commit %s, which nothing was written to, is taken away", m.dir, t.point)
	}
	state := string(r.StateDir)
	if state == "" {
		state = "its state directory"
	}
	return fmt.Errorf("the process that served %s was gone; the mount is taken away, and what was not committed is in the journal in %s: mount again with that state directory to bring it to the bucket", m.dir, state)
}

// goneWait is how long the end of a process may take after its last answer.
const goneWait = 5 * time.Second

// waitGone waits until a process has ended, so that what it used is free.
func waitGone(ctx context.Context, pid int) {
	deadline := time.Now().Add(goneWait)
	for time.Now().Before(deadline) && ctx.Err() == nil {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if err != nil || syscall.Kill(pid, 0) != nil {
			return
		}
		// pid (name) state …; a zombie whose last thread ended has let go of everything.
		threads, err := os.ReadDir("/proc/" + strconv.Itoa(pid) + "/task")
		if i := strings.LastIndexByte(string(stat), ')'); err == nil && len(threads) == 1 && i > 0 && strings.HasPrefix(string(stat[i:]), ") Z") {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}
