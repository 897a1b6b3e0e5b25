package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/config"
)

func (a *app) snapshotCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "snapshot", Short: "Keep the state of a volume under a name",
		Long: `A snapshot keeps a commit of a volume, and all that it needs, under a name. It
copies nothing and holds no writer up. Wherever a point can be given, as in
` + "`cistern mount <url>@<name> <dir>`, `cistern ls <url>@<name>`" + ` or ` + "`cistern get`" + `,
its name can.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(a.snapshotCreate(), a.snapshotList(), a.snapshotShow(), a.snapshotDelete(), a.snapshotDiff(), a.snapshotSchedule())
	for _, sub := range c.Commands() {
		sub.ValidArgsFunction = completeVolume
	}
	return c
}

// snapshotLine is a snapshot as commands show it.
type snapshotLine struct {
	Name      string            `json:"name"`
	Epoch     uint64            `json:"epoch"`
	Commit    uint64            `json:"commit"`
	Time      time.Time         `json:"time"` // of the commit
	Created   time.Time         `json:"created"`
	Expiry    *time.Time        `json:"expiry,omitempty"` // absent: it does not expire
	Expired   bool              `json:"expired,omitempty"`
	UsedBytes int64             `json:"used_bytes"`
	Inodes    uint64            `json:"inodes"`
	Tags      map[string]string `json:"tags,omitempty"`
	Holder    text              `json:"holder"`
	Key       string            `json:"key"`
	// Database is where the database in it goes on from; absent where there is none, or
	// it was not found out when the snapshot was made.
	Database *database `json:"database,omitempty"`
}

func snapshotLineOf(s *gateway.SnapshotInfo) snapshotLine {
	l := snapshotLine{
		Name: s.Name, Epoch: s.Commit.Epoch, Commit: s.Commit.N, Time: s.Time, Created: s.Created, Expired: s.Expired,
		UsedBytes: s.Totals.UsedBytes, Inodes: s.Totals.Inodes, Tags: s.Tags, Holder: text(s.Holder), Key: s.Key,
	}
	if !s.Expiry.IsZero() {
		l.Expiry = &s.Expiry
	}
	if d := s.Database; d != nil {
		l.Database = &database{Dir: text(d.Dir), Server: d.Server, File: d.File, Offset: d.Offset, GTID: d.GTID}
	}
	return l
}

// timeLayout is how times are shown to people, in their own zone, which is told.
const timeLayout = "2006-01-02 15:04:05 MST"

// snapshotTime is a time for people.
func snapshotTime(t time.Time) string {
	if t.IsZero() {
		return "unknown"
	}
	return t.Local().Format(timeLayout)
}

func (l *snapshotLine) expires() string {
	switch {
	case l.Expiry == nil:
		return "never"
	case l.Expired:
		return "expired " + snapshotTime(*l.Expiry)
	}
	return snapshotTime(*l.Expiry)
}

func (l *snapshotLine) tags() string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(l.Tags)) {
		list = append(list, text(k+"="+l.Tags[k]).shown())
	}
	return strings.Join(list, " ")
}

// snapshotError makes what the user can mend one of usage.
func snapshotError(err error) error {
	if errors.Is(err, gateway.ErrPoint) || errors.Is(err, gateway.ErrNameTaken) || errors.Is(err, gateway.ErrInvalid) {
		return usage(err)
	}
	return err
}

// snapshotTags reads tags as they are given, k=v.
func snapshotTags(list []string) (map[string]string, error) {
	tags := map[string]string{}
	for _, t := range list {
		k, v, ok := strings.Cut(t, "=")
		if _, twice := tags[k]; !ok || twice {
			return nil, usage(fmt.Errorf("--tag %s: give it as key=value, each key once", t))
		}
		if err := gateway.CheckTag(k, v); err != nil {
			return nil, usage(err)
		}
		tags[k] = v
	}
	return tags, nil
}

// snapshotLifetime reads an expiry: a time, or how long from now.
func snapshotLifetime(s string, now time.Time) (time.Duration, error) {
	if s == "" {
		return 0, nil
	}
	at, err := time.Parse(time.RFC3339, s)
	d := at.Sub(now)
	if err != nil {
		d, err = config.ParseLength(s)
	}
	if err != nil || d <= 0 {
		return 0, usage(fmt.Errorf("--expiry %s: give a time to come like 2026-12-31T00:00:00Z, or how long from now like 36h, 7d or 4w", s))
	}
	return d, nil
}

func (a *app) snapshotCreate() *cobra.Command {
	var asJSON, last bool
	var tags []string
	var expiry string
	timeout := interval{min: time.Millisecond, max: 7 * 24 * time.Hour}
	c := &cobra.Command{
		Use: "create <vol>[@point] <name>", Short: "Keep the present, or a point, under a name", Args: cobra.ExactArgs(2),
		Long: `Keeps a volume's state under a name. A mount on this machine first commits what it
has, unless told --last-commit; writers go on meanwhile. A volume that is mounted
elsewhere, or nowhere, is kept as of its last commit, which needs no lease. With a
point it is kept as of then, if collection has not passed it.`,
	}
	c.Flags().StringArrayVar(&tags, "tag", nil, "key=value to show with it; several times for several")
	c.Flags().StringVar(&expiry, "expiry", "", "when it ends: a time like 2026-12-31T00:00:00Z, or how long from now like 36h, 7d or 4w, at least 4h (default: never)")
	c.Flags().BoolVar(&last, "last-commit", false, "keep the last commit as it is")
	c.Flags().Var(&timeout, "timeout", "how long to wait for the commit (default: without limit)")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		o := gateway.SnapshotOptions{Name: args[1], Holder: fmt.Sprintf("%s, process %d", gateway.HostOwner("").Host, os.Getpid())}
		err := gateway.CheckNewName(o.Name)
		if err == nil {
			o.Tags, err = snapshotTags(tags)
		}
		if err == nil {
			o.Lifetime, err = snapshotLifetime(expiry, time.Now())
		}
		if err != nil {
			return usage(err)
		}
		l, err := a.makeSnapshot(ctx, args[0], o, last, timeout.d)
		if err != nil {
			return err
		}
		if asJSON {
			return a.printJSON(l)
		}
		return a.say("snapshot %s: commit %d of %s, %s in %s", l.Name, l.Commit, snapshotTime(l.Time), size(l.UsedBytes), count(l.Inodes, "inode"))
	})
}

// makeSnapshot makes a snapshot over the volume's owner on this machine, else in
// its bucket.
func (a *app) makeSnapshot(ctx context.Context, arg string, o gateway.SnapshotOptions, last bool, timeout time.Duration) (l snapshotLine, err error) {
	t, err := a.resolve(arg)
	if err != nil {
		return l, err
	}
	if t.follows { // what is meant is the writer's present
		t = target{url: t.url}
	}
	if t.point == "" {
		c, err := a.owner(ctx, t)
		if err != nil {
			return l, err
		}
		if c != nil {
			r := &remote{c: c}
			if !last {
				id, err := a.syncMount(ctx, r, t, timeout)
				if err != nil {
					return l, err
				}
				o.Commit = id.N
			}
			return r.snapshot(ctx, o)
		}
		if t.mount != "" {
			a.note("the process that served %s is gone: this is the last commit in %s", t.mount, t.url)
		}
	}
	s, err := a.openVolume(ctx, t.url)
	if err != nil {
		return l, err
	}
	if o.URL = t.url.String(); t.point != "" {
		o.Commit, err = resolvePoint(ctx, s, t)
	} else {
		err = a.noteOwner(ctx, s, o.URL)
	}
	if err != nil {
		return l, err
	}
	o.Store, o.Database = s, bucketDatabase(s, o.URL)
	info, err := gateway.CreateSnapshot(ctx, o)
	return snapshotLineOf(&info), snapshotError(err)
}

// noteOwner tells that a mount elsewhere may have more than its last commit.
func (a *app) noteOwner(ctx context.Context, s *store, url string) error {
	if _, err := gateway.ReadVolumeDoc(ctx, s, url); err != nil {
		return err
	}
	l, err := gateway.ReadLease(ctx, s)
	if err == nil && !l.Released {
		a.note("%s is owned by process %d on %s: what it has not committed is left out", url, l.Owner.PID, l.Owner.Host)
	}
	return err
}

// snapshot makes a snapshot in the mount's process, whose connections are there.
func (m *mountProcess) snapshot(ctx context.Context, o gateway.SnapshotOptions) (snapshotLine, error) {
	o.Store, o.URL = m.store, m.o.t.url.String()
	if v, ok := m.v.(present); ok {
		o.Database = volumeDatabase(v.Volume)
	}
	info, err := gateway.CreateSnapshot(ctx, o)
	return snapshotLineOf(&info), snapshotError(err)
}

// snapshotsOf opens the store of a volume whose snapshots are meant. They need no key.
func (a *app) snapshotsOf(ctx context.Context, arg string) (*store, target, error) {
	t, err := a.resolve(arg)
	if err != nil {
		return nil, t, err
	}
	if t.point != "" && !t.fixed {
		return nil, t, usage(fmt.Errorf("%s@%s: give the volume without a point", t.url, t.point))
	}
	s, err := a.openStore(ctx, t.url, false, nil)
	if err == nil {
		_, err = gateway.ReadVolumeDoc(ctx, s, t.url.String())
	}
	return s, t, err
}

func (a *app) snapshotList() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{Use: "list <vol>", Short: "List the snapshots of a volume, the oldest first", Args: cobra.ExactArgs(1)}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		s, _, err := a.snapshotsOf(ctx, args[0])
		if err != nil {
			return err
		}
		list, bad := gateway.Snapshots(ctx, s)
		if bad != nil && !oneDocument(bad) {
			return bad
		}
		lines := []snapshotLine{}
		for i := range list {
			lines = append(lines, snapshotLineOf(&list[i]))
		}
		if asJSON {
			err = a.printJSON(lines)
		} else {
			err = a.tableOfSnapshots(lines)
		}
		return errors.Join(err, bad)
	})
}

func (a *app) tableOfSnapshots(lines []snapshotLine) error {
	if len(lines) == 0 {
		return a.say("no snapshots")
	}
	return a.writeOut(func(w io.Writer) {
		fmt.Fprintln(w, "NAME\tCOMMIT\tTIME\tUSED\tEXPIRES\tTAGS")
		for i := range lines {
			l := &lines[i]
			fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%s\n", text(l.Name).shown(), l.Commit, snapshotTime(l.Time), size(l.UsedBytes), l.expires(), l.tags())
		}
	})
}

func (a *app) snapshotDelete() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "delete <vol> <name>", Short: "Delete a snapshot", Args: cobra.ExactArgs(2),
		Long: `Deletes a snapshot. What only it kept goes with one of the next collections; other
snapshots and mounts of the same commit keep it all the same.`,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		s, t, err := a.snapshotsOf(ctx, args[0])
		if err != nil {
			return err
		}
		info, err := gateway.DeleteSnapshot(ctx, s, t.url.String(), args[1])
		if err != nil {
			return snapshotError(err)
		}
		if asJSON {
			return a.printJSON(snapshotLineOf(&info))
		}
		return a.say("snapshot %s of commit %d is deleted", info.Name, info.Commit.N)
	})
}
