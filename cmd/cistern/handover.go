package main

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

// handoverEvent is how far a hand-over is.
type handoverEvent struct {
	Dirty  int64           `json:"dirty_bytes,omitempty"` // still to be committed
	Result *handoverResult `json:"result,omitempty"`      // at the end
}

// handoverResult is what a hand-over led to.
type handoverResult struct {
	URL        string            `json:"url"`
	Commit     metadata.CommitID `json:"commit"` // at which the next owner begins
	MountPoint text              `json:"mount_point"`
	Kept       bool              `json:"kept"` // still mounted, read-only
	Seconds    float64           `json:"seconds"`
}

func (a *app) handoverCommand() *cobra.Command {
	var keep, asJSON bool
	c := &cobra.Command{
		Use: "handover <dir>", Short: "Give a mounted volume to its next owner without waiting for open files", Args: cobra.ExactArgs(1),
		Long: `Commits everything while writes go on, holds the writers for the rest, and gives
the lease back: whoever mounts the volume next need not wait. From then on the
mount is read-only: writers get EROFS, fsync and reads go on. It goes out of the
directory tree at once and ends when programs let go of it, after 10 seconds at
the latest. With --keep it stays until it is unmounted; then unmount it within
the volume's retention, after which what it shows may be collected.

A hand-over that fails or is interrupted leaves the mount as it was. Stop the
database first: what it has not written yet is nobody's.`,
	}
	c.Flags().BoolVar(&keep, "keep", false, "stay mounted, read-only")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		t, err := a.resolve(args[0])
		if err != nil {
			return err
		}
		if t.mount == "" || t.fixed || t.point != "" {
			return usage(fmt.Errorf("%s: only a directory on which a volume is mounted for writing can be handed over", args[0]))
		}
		owner, err := a.server(ctx, t)
		if err != nil {
			return err
		}
		if owner == nil {
			return fmt.Errorf("the process that served %s is gone: mount %s again with the same state directory, and hand it over then", t.mount, t.url)
		}
		last, err := committing(ctx, a, owner, "/v1/handover", url.Values{"keep": {flag(keep)}}, func(e *handoverEvent) int64 { return e.Dirty })
		switch {
		case err != nil && ctx.Err() != nil:
			return fmt.Errorf("the hand-over was given up: `cistern status %s` tells whether it came about all the same", t.mount)
		case err != nil:
			return err
		case last.Result == nil:
			return errors.New("the mount did not say how the hand-over ended: see its log")
		case asJSON:
			return a.printJSON(last.Result)
		}
		return a.say("%s was released at commit %s; next: cistern mount %s <dir>", last.Result.URL, last.Result.Commit, last.Result.URL)
	})
}

// handover gives the volume away for `cistern handover`. Unless it is kept, the
// mount goes out of the directory tree before the answer.
func (m *mountProcess) handover(ctx context.Context, keep bool, emit func(handoverEvent) error) error {
	if m.relay != nil {
		return usage(errors.New("a relay writes to the volume: `cistern binlog stop` ends it, and the next one need not wait"))
	}
	v, ok := m.v.(present)
	if !ok {
		return usage(errors.New("a read-only mount owns nothing that could be handed over"))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := time.Now()
	done := make(chan error, 1)
	var id metadata.CommitID
	go func() {
		var err error
		id, err = v.Handover(ctx)
		done <- err
	}()
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case err := <-done:
			if err != nil && !errors.Is(err, gateway.ErrHandedOver) {
				return err
			}
			r := &handoverResult{URL: m.name(), Commit: id, MountPoint: text(m.fs.Dir()), Kept: keep, Seconds: time.Since(begin).Seconds()}
			if !keep {
				m.leaveTree()
			}
			return emit(handoverEvent{Result: r})
		case <-tick.C:
			if emit(handoverEvent{Dirty: v.Status().DirtyBytes}) != nil {
				cancel() // nobody listens
			}
		}
	}
}

// leaveTree asks for the mount's end and waits until it is out of the directory
// tree.
func (m *mountProcess) leaveTree() {
	out := make(chan struct{})
	select {
	case m.leave <- out:
	case <-m.gate.closing.Done():
		return
	}
	select {
	case <-out:
	case <-m.closed:
	}
}
