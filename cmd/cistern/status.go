package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// volumeStatus is what `cistern status` shows of a volume that no process of
// this machine serves.
type volumeStatus struct {
	Volume     string            `json:"volume"`
	URL        string            `json:"url"`
	Mounted    bool              `json:"mounted"` // false: not on this machine
	ObjectSize int64             `json:"object_size"`
	Created    time.Time         `json:"created"`
	Commit     metadata.CommitID `json:"commit"`
	CommitTime time.Time         `json:"commit_time"`
	Writer     string            `json:"writer"`
	Inodes     uint64            `json:"inodes"`
	UsedBytes  int64             `json:"used_bytes"`
	Released   bool              `json:"released"`
	Compress   string            `json:"compress,omitempty"`
	Keys       []string          `json:"encryption_keys,omitempty"` // names of those that the volume needs, the one for writing first
	Owner      metadata.Owner    `json:"owner"`
	Epoch      uint64            `json:"epoch"`
	Advice     string            `json:"advice,omitempty"` // when the owner is a process of this machine that is gone
}

func (a *app) statusCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{Use: "status <vol>", Short: "Show how a volume and its mount are", Args: cobra.ExactArgs(1)}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		t, err := a.resolve(args[0])
		if err != nil {
			return err
		}
		owner, err := a.process(ctx, t)
		if err != nil {
			return err
		}
		if owner == nil && t.fixed {
			return fmt.Errorf("the process that served %s is gone: `cistern umount %s` takes the mount away", t.mount, t.mount)
		}
		if owner != nil {
			s, err := (&remote{c: owner}).status(ctx)
			if err != nil {
				return err
			}
			if asJSON {
				return a.printJSON(s)
			}
			return a.writeOut(func(w io.Writer) { writeMountStatus(w, &s) })
		}
		s, err := a.bucketStatus(ctx, t)
		if err != nil {
			return err
		}
		if asJSON {
			return a.printJSON(s)
		}
		return a.writeOut(func(w io.Writer) { writeVolumeStatus(w, s) })
	})
}

// writeOut writes columns.
func (a *app) writeOut(f func(w io.Writer)) error {
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	f(w)
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}

func (a *app) bucketStatus(ctx context.Context, t target) (*volumeStatus, error) {
	s, err := a.openVolume(ctx, t.url)
	if err != nil {
		return nil, err
	}
	sum, err := gateway.Summarize(ctx, s, t.url.String())
	if err != nil {
		return nil, err
	}
	return &volumeStatus{
		Advice: ownerAdvice(t, &sum.Lease),
		Volume: sum.Doc.ID, URL: t.url.String(), ObjectSize: sum.Doc.ObjectSize, Created: time.Unix(0, sum.Doc.Created).UTC(),
		Commit: sum.Head.ID, CommitTime: time.Unix(0, sum.Head.Time).UTC(), Writer: sum.Head.Writer,
		Inodes: sum.Head.Totals.Inodes, UsedBytes: sum.Head.Totals.UsedBytes,
		Compress: sum.Doc.Compress, Keys: sum.Head.Keys,
		Released: sum.Lease.Released, Owner: sum.Lease.Owner, Epoch: sum.Lease.Epoch,
	}, nil
}

// ownerAdvice says what to do about an owner of this machine that does not answer.
func ownerAdvice(t target, l *metadata.Lease) string {
	host, err := os.Hostname()
	if err != nil || l.Released || l.Owner.Host != host || l.Owner.StateDir == "" {
		return ""
	}
	var umount string
	if t.mount != "" {
		umount = fmt.Sprintf("`cistern umount %s`, then ", t.mount)
	}
	return fmt.Sprintf("process %d of this machine owned the volume, does not answer and has not given it back: %s`cistern mount %s <dir> --state %s` takes it back at once, with what only its journal has",
		l.Owner.PID, umount, t.url, l.Owner.StateDir)
}

func writeVolumeStatus(w io.Writer, s *volumeStatus) {
	row := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	row("volume", "%s", s.Volume)
	row("url", "%s", s.URL)
	if s.Advice == "" {
		row("mounted", "not on this machine")
	} else {
		row("mounted", "not any more: %s", s.Advice)
	}
	if s.Released {
		row("owner", "none")
	} else {
		row("owner", "%s, process %d, epoch %d, not released", s.Owner.Host, s.Owner.PID, s.Epoch)
	}
	row("commit", "%d of %s", s.Commit.N, s.CommitTime.Format(time.RFC3339))
	row("used", "%s in %s", size(s.UsedBytes), count(s.Inodes, "inode"))
	row("object size", "%s", size(s.ObjectSize))
	formRows(row, s.Compress, s.Keys)
}

func writeMountStatus(w io.Writer, s *mountStatus) {
	switch {
	case s.Point != nil:
		writePointStatus(w, s)
		return
	case s.Follow != nil:
		writeFollowStatus(w, s)
		return
	}
	row := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	row("volume", "%s", s.Volume)
	row("url", "%s", s.URL)
	on := "on " + s.MountPoint.shown()
	if s.MountPoint == "" {
		on = "on no directory: served"
	}
	row("mounted", "%s since %s, process %d", on, s.Started.Format(time.RFC3339), s.PID)
	row("state", "%s", s.StateDir)
	row("health", "%s", healthText(s))
	row("durability", "%s", s.Durability)
	row("commit", "%d of %s", s.Commit.N, s.CommitTime.Format(time.RFC3339))
	row("uncommitted", "%s, oldest %.1f s", size(s.DirtyBytes), s.DirtySeconds)
	quota := "no quota"
	if s.QuotaBytes > 0 {
		quota = "quota " + size(s.QuotaBytes)
	}
	row("used", "%s in %s, %s", size(s.UsedBytes), count(s.Inodes, "inode"), quota)
	row("journal", "%s of %s, %s not synced", size(s.Journal.Live), size(s.Journal.Limit), size(s.Journal.Unsynced))
	row("cache", "%s of %s, %s pinned, %s, %s", size(s.Cache.Allocated), size(s.Cache.Limit), size(s.Cache.Pinned), count(s.Cache.Hits, "hit"), count(s.Cache.Misses, "miss"))
	formRows(row, s.Compress, s.Keys)
	row("traffic", "%s written, %s uploaded, %s fetched", size(s.Written), size(s.Uploaded), size(s.Fetched))
	row("work", "%s, %s, %d collected, %s", count(s.Commits, "commit"), count(s.Folds, "fold"), s.Collected, count(s.Throttled, "wait"))
	row("requests", "%s, %s", limitText(&s.Requests.Uploads, "upload"), limitText(&s.Requests.Downloads, "download"))
	row("patches", "%d in %s", s.Patches, count(s.PatchedSlots, "slot"))
	lease := fmt.Sprintf("epoch %d, renewed %.0f s ago", s.Epoch, s.LeaseRenewed)
	switch {
	case !s.Owns:
		lease = fmt.Sprintf("none: the volume is not this mount's any more; it was epoch %d", s.Epoch)
	case s.LeaseLost > 0:
		lease += fmt.Sprintf(", ran out %.0f s ago: another mount may take the volume over", s.LeaseLost)
	}
	row("lease", "%s", lease)
	if s.WritersHeld != "" {
		row("writers", "wait: %s", s.WritersHeld)
	}
	for _, e := range [][2]string{
		{"store error", s.StoreError}, {"lease error", s.LeaseError}, {"commit error", s.CommitError},
		{"journal error", s.Journal.Error}, {"cache error", s.Cache.Error},
	} {
		if e[1] != "" {
			row(e[0], "%s", strings.ReplaceAll(e[1], "\n", "; "))
		}
	}
	for _, f := range s.Failing {
		row("failing", "%s, since %s: %s", f.Work, f.Since.Format(time.RFC3339), strings.ReplaceAll(f.Error, "\n", "; "))
	}
	if s.Damage > 0 {
		row("damage", "seen %s: `cistern check --data` names it", count(s.Damage, "time"))
	}
}

// limitText is how a limit of parallel requests stands.
func limitText(g *objstore.GateStatus, noun string) string {
	s := fmt.Sprintf("%d of %s", g.Busy, count(g.Limit, noun))
	if g.Waiting > 0 {
		s += fmt.Sprintf(", %d waiting", g.Waiting)
	}
	if g.Limit < g.Most {
		s += fmt.Sprintf(" (%d when the store does not ask for fewer)", g.Most)
	}
	return s
}

// formRows tell how blocks are stored, where that is not as they are.
func formRows(row func(name, format string, args ...any), compress string, keys []string) {
	if compress != "" {
		row("compressed", "by %s", compress)
	}
	if len(keys) > 0 {
		row("encrypted", "with key %s", strings.Join(keys, ", before with "))
	}
}

func healthText(s *mountStatus) string {
	switch {
	case !s.Healthy:
		return s.Unhealthy
	case s.StoreError != "" && s.StoreSince != nil:
		return "serving; the object store is away since " + s.StoreSince.UTC().Format(time.RFC3339)
	case !s.StoreAvailable:
		return "serving; the object store is away"
	}
	return "serving"
}

// rates are what a mount does in a second.
type rates struct {
	Seconds  float64 `json:"seconds"` // that they are the mean of; 0: since the mount
	Written  float64 `json:"written_bytes_per_second"`
	Uploaded float64 `json:"uploaded_bytes_per_second"`
	Fetched  float64 `json:"fetched_bytes_per_second"`
	Uploads  float64 `json:"uploads_per_second"`
	Fetches  float64 `json:"fetches_per_second"`
	Commits  float64 `json:"commits_per_second"`
	Syncs    float64 `json:"journal_syncs_per_second"`
	Hits     float64 `json:"cache_hit_ratio"`
}

func ratesOf(before, now *mountStatus, seconds float64) rates {
	if seconds <= 0 {
		seconds = 1
	}
	per := func(a, b int64) float64 { return float64(b-a) / seconds }
	r := rates{
		Seconds: seconds, Written: per(before.Written, now.Written), Uploaded: per(before.Uploaded, now.Uploaded),
		Fetched: per(before.Fetched, now.Fetched), Uploads: per(before.Uploads, now.Uploads), Fetches: per(before.Fetches, now.Fetches),
		Commits: per(before.Commits, now.Commits), Syncs: per(int64(before.Journal.Syncs), int64(now.Journal.Syncs)),
	}
	if hits, misses := now.Cache.Hits-before.Cache.Hits, now.Cache.Misses-before.Cache.Misses; hits+misses > 0 {
		r.Hits = float64(hits) / float64(hits+misses)
	}
	return r
}

// topFrame is one picture of `cistern top`.
type topFrame struct {
	Status mountStatus `json:"status"`
	Rates  rates       `json:"rates"`
}

func (a *app) topCommand() *cobra.Command {
	var asJSON, once bool
	every := interval{d: 2 * time.Second, min: 100 * time.Millisecond, max: time.Hour}
	c := &cobra.Command{Use: "top <vol>", Short: "Watch what a mount does", Args: cobra.ExactArgs(1)}
	c.Flags().BoolVar(&asJSON, "json", false, "a JSON document for each picture")
	c.Flags().BoolVar(&once, "once", false, "one picture, of one interval")
	c.Flags().Var(&every, "interval", "time between pictures")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		t, err := a.resolve(args[0])
		if err != nil {
			return err
		}
		owner, err := a.process(ctx, t)
		if err != nil {
			return err
		}
		if owner == nil {
			return usage(fmt.Errorf("%s is not mounted on this machine; `cistern status` shows what its bucket tells", t.url))
		}
		r := &remote{c: owner}
		before, err := r.status(ctx)
		if err != nil {
			return err
		}
		start := time.Now()
		tick := time.NewTicker(every.d)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil // how one leaves it
			case <-tick.C:
			}
			now, err := r.status(ctx)
			if err != nil {
				return err
			}
			f := topFrame{Status: now, Rates: ratesOf(&before, &now, time.Since(start).Seconds())}
			if err := a.showTop(&f, asJSON, once); err != nil || once {
				return err
			}
			before, start = now, time.Now()
		}
	})
}

func (a *app) showTop(f *topFrame, asJSON, once bool) error {
	if asJSON {
		return a.printJSON(f)
	}
	if a.screen && !once {
		if _, err := io.WriteString(a.stdout, "\x1b[H\x1b[2J"); err != nil {
			return fmt.Errorf("write the answer: %w", err)
		}
	}
	s, r := &f.Status, &f.Rates
	return a.writeOut(func(w io.Writer) {
		switch {
		case s.Point != nil:
			writePointTop(w, f)
			return
		case s.Follow != nil:
			writeFollowTop(w, f)
			return
		}
		fmt.Fprintf(w, "%s\ton %s\t%s\n", s.URL, s.MountPoint.shown(), healthText(s))
		fmt.Fprintf(w, "written\t%s/s\tjournal %s of %s\t%.0f syncs/s\n", size(int64(r.Written)), size(s.Journal.Live), size(s.Journal.Limit), r.Syncs)
		fmt.Fprintf(w, "uploaded\t%s/s\t%.1f PUT/s\t%.1f commits/s\n", size(int64(r.Uploaded)), r.Uploads, r.Commits)
		fmt.Fprintf(w, "fetched\t%s/s\t%.1f GET/s\tcache %s of %s, %.0f %% hits\n", size(int64(r.Fetched)), r.Fetches, size(s.Cache.Allocated), size(s.Cache.Limit), 100*r.Hits)
		fmt.Fprintf(w, "uncommitted\t%s\toldest %.1f s\tcommit %d\n", size(s.DirtyBytes), s.DirtySeconds, s.Commit.N)
		fmt.Fprintf(w, "used\t%s\t%s\t%s in %s\n", size(s.UsedBytes), count(s.Inodes, "inode"), count(s.Patches, "patch"), count(s.PatchedSlots, "slot"))
	})
}
