package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

func (a *app) syncCommand() *cobra.Command {
	var asJSON bool
	timeout := interval{min: time.Millisecond, max: 7 * 24 * time.Hour}
	c := &cobra.Command{
		Use: "sync <vol>", Short: "Commit what a mount has, and print the commit's number", Args: cobra.ExactArgs(1),
		Long: `Waits until everything that was written before is in the bucket, and prints the
number of the commit that has it. While that takes long it tells on standard
error what it waits for; with --timeout it gives up then, with exit 5. Of a
volume that nobody on this machine has mounted it prints the last commit's number.`,
	}
	c.Flags().Var(&timeout, "timeout", "how long to wait (default: without limit)")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		id, err := a.syncOf(ctx, args[0], timeout.d)
		if err != nil {
			return err
		}
		if asJSON {
			return a.printJSON(id)
		}
		return a.say("%d", id.N)
	})
}

func (a *app) syncOf(ctx context.Context, arg string, timeout time.Duration) (metadata.CommitID, error) {
	t, err := a.resolve(arg)
	if err != nil {
		return metadata.CommitID{}, err
	}
	if t.follows {
		return metadata.CommitID{}, usage(fmt.Errorf("%s follows the volume's writer and has nothing to sync: `cistern sync %s` asks the writer", t.mount, t.url))
	}
	if t.point != "" {
		return metadata.CommitID{}, usage(fmt.Errorf("%s@%s: there is nothing to sync in the past", t.url, t.point))
	}
	owner, err := a.owner(ctx, t)
	if err != nil {
		return metadata.CommitID{}, err
	}
	if owner != nil {
		return a.syncMount(ctx, &remote{c: owner}, t, timeout)
	}
	if t.mount != "" {
		return metadata.CommitID{}, fmt.Errorf("the process that served %s is gone: mount %s again with the same state directory to commit what it had", t.mount, t.url)
	}
	s, err := a.openVolume(ctx, t.url)
	if err != nil {
		return metadata.CommitID{}, err
	}
	if _, err := gateway.ReadVolumeDoc(ctx, s, t.url.String()); err != nil {
		return metadata.CommitID{}, err
	}
	head, err := gateway.FindCommit(ctx, s, 0, t.url.String())
	return head.ID, err
}

// When a sync that takes long first tells what it waits for, and how often then.
const (
	syncTellFirst = 2 * time.Second
	syncTellAgain = 30 * time.Second
	syncLastWord  = 2 * time.Second // for the status that says how far it came
)

// syncMount waits for a mount's commit and tells what it waits for.
func (a *app) syncMount(ctx context.Context, r *remote, t target, timeout time.Duration) (metadata.CommitID, error) {
	wait := ctx
	if timeout > 0 {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, timeout)
		defer cancel()
	}
	type answer struct {
		id  metadata.CommitID
		err error
	}
	done := make(chan answer, 1)
	go func() {
		id, err := r.sync(wait)
		done <- answer{id, err}
	}()
	tell := time.NewTimer(syncTellFirst)
	defer tell.Stop()
	for {
		select {
		case <-tell.C:
			if s, err := r.status(wait); err == nil {
				a.note("waiting for the bucket: %s", syncProgress(&s))
			}
			tell.Reset(syncTellAgain)
		case got := <-done:
			if got.err == nil || wait.Err() == nil {
				return got.id, got.err
			}
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), syncLastWord)
			defer cancel()
			how := "the mount does not answer"
			if s, err := r.status(last); err == nil {
				how = syncProgress(&s)
			}
			if ctx.Err() != nil {
				return metadata.CommitID{}, fmt.Errorf("the sync was given up, and %s goes on committing: %s", t.url, how)
			}
			return metadata.CommitID{}, &statusError{fmt.Errorf("not everything is in the bucket after %v, and %s goes on committing: %s", timeout, t.url, how), exitStore}
		}
	}
}

// syncProgress says what a mount has still to commit and what keeps it.
func syncProgress(s *mountStatus) string {
	text := fmt.Sprintf("%s uncommitted, the oldest change %.0f s old, last commit %s", size(s.DirtyBytes), s.DirtySeconds, s.Commit)
	switch {
	case s.StoreError != "" && s.StoreSince != nil:
		text += fmt.Sprintf("; the object store fails since %s: %s", s.StoreSince.UTC().Format(time.RFC3339), s.StoreError)
	case s.CommitError != "":
		text += "; " + s.CommitError
	}
	return text
}

// logLine is a commit as `cistern log` shows it.
type logLine struct {
	Epoch     uint64    `json:"epoch"`
	Commit    uint64    `json:"commit"`
	Time      time.Time `json:"time"`
	Writer    string    `json:"writer"`
	Document  int64     `json:"document_bytes"`
	Uploaded  int64     `json:"uploaded_bytes"`
	Objects   int       `json:"objects"`
	Segments  int       `json:"segments"`
	Inodes    int       `json:"inodes"`
	Gone      int       `json:"inodes_freed"`
	Names     int       `json:"names"`
	Slots     int       `json:"slots"`
	UsedBytes int64     `json:"used_bytes"`
	LastLSN   uint64    `json:"last_lsn"`
}

func logLineOf(c *gateway.CommitInfo) logLine {
	return logLine{
		Epoch: c.ID.Epoch, Commit: c.ID.N, Time: time.Unix(0, c.Time).UTC(), Writer: c.Writer, Document: c.Document, Uploaded: c.Uploaded,
		Objects: c.Objects, Segments: c.Segments, Inodes: c.Inodes, Gone: c.Gone, Names: c.Names, Slots: c.Slots,
		UsedBytes: c.Totals.UsedBytes, LastLSN: c.LastLSN,
	}
}

func (a *app) logCommand() *cobra.Command {
	var asJSON bool
	var limit int
	c := &cobra.Command{Use: "log <vol>", Short: "List the commits of a volume, the last first", Args: cobra.ExactArgs(1)}
	c.Flags().IntVarP(&limit, "number", "n", 20, "how many; 0 means all that were not collected")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		if limit < 0 {
			return usage(fmt.Errorf("--number %d: must not be negative", limit))
		}
		t, err := a.resolve(args[0])
		if err != nil {
			return err
		}
		if t.point != "" && !t.follows {
			return usage(fmt.Errorf("%s@%s: the log begins at the last commit", t.url, t.point))
		}
		s, err := a.openVolume(ctx, t.url)
		if err != nil {
			return err
		}
		if _, err := gateway.ReadVolumeDoc(ctx, s, t.url.String()); err != nil {
			return err
		}
		lines := []logLine{}
		var told error
		err = gateway.Log(ctx, s, func(i gateway.CommitInfo) bool {
			l := logLineOf(&i)
			if asJSON {
				lines = append(lines, l)
			} else {
				told = a.showCommit(&l)
			}
			limit--
			return told == nil && limit != 0
		})
		if err == nil {
			err = told
		}
		if err != nil {
			return err
		}
		if asJSON {
			return a.printJSON(lines)
		}
		return nil
	})
}

func (a *app) showCommit(l *logLine) error {
	return a.say("%8d  %s  epoch %d  %10s up  %s, %d freed, %s, %s; %s, %s; %s used",
		l.Commit, l.Time.Local().Format(timeLayout), l.Epoch, size(l.Uploaded+l.Document),
		count(l.Inodes, "inode"), l.Gone, count(l.Names, "name"), count(l.Slots, "slot"), count(l.Objects, "object"), count(l.Segments, "segment"), size(l.UsedBytes))
}

func (a *app) collectCommand() *cobra.Command {
	var dry, asJSON, takeover bool
	c := &cobra.Command{
		Use: "collect <vol>", Short: "Delete from the bucket what nothing needs any more", Args: cobra.ExactArgs(1),
		Long: `Deletes what neither the present, nor a pin, nor a commit within the retention
needs, and uploads that no commit names. A mount does the first by itself every
few minutes. Of a volume that is not mounted on this machine the command takes
the lease while it runs, for --dry-run too.`,
	}
	c.Flags().BoolVar(&dry, "dry-run", false, "only say what would be deleted")
	c.Flags().BoolVar(&takeover, "takeover", false, "take the volume at once from its owner, which is fenced if it lives")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		s, _, err := a.writer(ctx, args[0], takeover)
		if err != nil {
			return err
		}
		out, err := s.collect(ctx, dry)
		if err = finish(ctx, s, err); err != nil {
			return err
		}
		if asJSON {
			return a.printJSON(out)
		}
		verb := "deleted"
		if dry {
			verb = "to delete"
			for _, key := range append(out.Dead.Keys, out.Orphans.Keys...) {
				if err := a.say("%s", key); err != nil {
					return err
				}
			}
		}
		return a.say("%s: %s of %s, %s of %s; kept: %d", verb,
			count(out.Dead.Things, "dead thing"), size(out.Dead.Bytes), count(out.Orphans.Orphans, "orphan"), size(out.Orphans.Bytes), out.Dead.Kept)
	})
}
