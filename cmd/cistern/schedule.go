package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/config"
)

// usualSchedule is the name of a schedule where none is given.
const usualSchedule = "auto"

func (a *app) snapshotSchedule() *cobra.Command {
	var name, keep string
	var tags []string
	var off, asJSON bool
	every := config.Length{Min: gateway.LeastEvery, Max: 366 * 24 * time.Hour}
	c := &cobra.Command{
		Use: "schedule <vol> [--every TIME [--keep RULES] | --clear] [--name NAME]", Short: "List, set or clear schedules of snapshots", Args: cobra.ExactArgs(1),
		Long: `Without --every and --clear it lists a volume's schedules. With --every it sets one:
the mount that owns the volume makes a snapshot at every multiple of that time, in
UTC, and deletes those of the schedule that no rule of --keep keeps. A rule keeps
the last snapshot of each of so many hours, days, weeks, months or years that have
one, or simply the last ones: "24 hourly, 7 daily, 4 weekly". Where there is a
schedule of the name, what is not given stays as it was. Other snapshots are never
deleted. What was missed while nobody had the volume mounted is made up once.`,
	}
	f := c.Flags()
	f.Var(&every, "every", "time between snapshots, like 15m, 1h or 1d")
	f.StringVar(&keep, "keep", "", "which of them stay, like \"24 hourly, 7 daily, 4 weekly\", or all (default: as it was, all for a new one)")
	f.StringVar(&name, "name", usualSchedule, "the schedule's name, with which its snapshots' names begin")
	f.StringArrayVar(&tags, "tag", nil, "key=value for its snapshots; several times for several (default: as it was)")
	f.BoolVar(&off, "clear", false, "end the schedule; its snapshots stay")
	f.BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, c *cobra.Command, args []string) error {
		set := every.D != 0
		switch {
		case set && off:
			return usage(errors.New("give one of --every and --clear"))
		case !set && (keep != "" || len(tags) > 0):
			return usage(errors.New("--keep and --tag need --every"))
		}
		x := gateway.Schedule{Name: name, Every: int64(every.D), Created: time.Now().UnixNano(), Holder: gateway.HostOwner("").Host}
		var err error
		if keep != "" {
			x.Keep, err = gateway.ParseKeep(keep)
		}
		if err == nil {
			x.Tags, err = snapshotTags(tags)
		}
		if err != nil {
			return usage(err)
		}
		s, t, err := a.snapshotsOf(ctx, args[0])
		if err != nil {
			return err
		}
		done := ""
		switch {
		case off:
			done = fmt.Sprintf("schedule %s is ended; its snapshots stay", name)
			if err = gateway.ClearSchedule(ctx, s, name); errors.Is(err, gateway.ErrNotExist) {
				err = usage(fmt.Errorf("%s has no schedule %s", t.url, name))
			}
		case set:
			done, err = setSchedule(ctx, s, x, c.Flags().Changed("keep"), len(tags) > 0)
		}
		if err != nil {
			return err
		}
		if done != "" {
			a.tellOwner(ctx, t)
		}
		if done != "" && !asJSON {
			if err := a.say("%s", done); err != nil {
				return err
			}
		}
		return a.listSchedules(ctx, s, asJSON)
	})
}

// setSchedule puts a schedule in the place of the one of its name, from which it takes
// what was not given: a schedule that makes snapshots more often must not keep all of
// them from then on. It returns what that comes to.
func setSchedule(ctx context.Context, s *store, x gateway.Schedule, keep, tags bool) (done string, err error) {
	list, err := gateway.Schedules(ctx, s)
	if err != nil && !oneDocument(err) {
		return "", err
	}
	var old *gateway.Schedule
	if i := slices.IndexFunc(list, func(o gateway.Schedule) bool { return o.Name == x.Name }); i >= 0 {
		old = &list[i]
	}
	if old != nil && !keep {
		x.Keep = old.Keep
	}
	if old != nil && !tags {
		x.Tags = old.Tags
	}
	if err := gateway.SetSchedule(ctx, s, x, rand.Reader); err != nil {
		return "", snapshotError(err)
	}
	every := func(x *gateway.Schedule) string { return config.FormatLength(time.Duration(x.Every)) }
	now, before := gateway.KeepText(x.Keep), ""
	switch {
	case old == nil:
		return fmt.Sprintf("schedule %s is new: a snapshot every %s, kept: %s", x.Name, every(&x), now), nil
	case gateway.KeepText(old.Keep) == now:
		before = ", as before"
	default:
		before = ", before: " + gateway.KeepText(old.Keep)
	}
	return fmt.Sprintf("schedule %s is changed: a snapshot every %s, before every %s; kept: %s%s", x.Name, every(&x), every(old), now, before), nil
}

// tellOwner lets a mount on this machine look at the schedules now. One that can't
// be told, or is elsewhere, looks within an hour.
func (a *app) tellOwner(ctx context.Context, t target) {
	c, err := a.owner(ctx, target{url: t.url})
	if err == nil && c != nil {
		var ok bool
		err = c.Call(ctx, http.MethodPost, "/v1/schedules", nil, nil, &ok)
	}
	if err != nil {
		a.note("the mount could not be told, and looks at its schedules within an hour: %v", err)
	}
}

// scheduleLine is a schedule as commands show it.
type scheduleLine struct {
	Name      string            `json:"name"`
	Every     float64           `json:"every_seconds"`
	Keep      string            `json:"keep"`
	Tags      map[string]string `json:"tags,omitempty"`
	Created   time.Time         `json:"created"`
	Holder    text              `json:"set_by"`
	Snapshots int               `json:"snapshots"`
	Last      *time.Time        `json:"last,omitempty"`
	Next      time.Time         `json:"next"` // when the volume's owner makes the next one
}

func (a *app) listSchedules(ctx context.Context, s *store, asJSON bool) error {
	list, bad := gateway.Schedules(ctx, s)
	if bad != nil && !oneDocument(bad) {
		return bad
	}
	all, badPin := gateway.Snapshots(ctx, s)
	if badPin != nil && !oneDocument(badPin) {
		return badPin
	}
	return errors.Join(a.tableOfSchedules(list, all, asJSON), bad, badPin)
}

// oneDocument says whether an error is that of single documents, beside which others
// can be shown.
func oneDocument(err error) bool {
	return errors.Is(err, gateway.ErrDamaged) || errors.Is(err, gateway.ErrNewerFormat)
}

func (a *app) tableOfSchedules(list []gateway.Schedule, all []gateway.SnapshotInfo, asJSON bool) error {
	lines := []scheduleLine{}
	for i := range list {
		x := &list[i]
		l := scheduleLine{
			Name: x.Name, Every: time.Duration(x.Every).Seconds(), Keep: gateway.KeepText(x.Keep), Tags: x.Tags,
			Created: time.Unix(0, x.Created).UTC(), Holder: text(x.Holder), Next: gateway.NextSnapshot(x, all, time.Now()).UTC(),
		}
		for j := range all {
			if all[j].Tags[gateway.ScheduleTag] == x.Name && !all[j].Expired {
				l.Snapshots++
				l.Last = &all[j].Created // they are sorted by it
			}
		}
		lines = append(lines, l)
	}
	if asJSON {
		return a.printJSON(lines)
	}
	if len(lines) == 0 {
		return a.say("no schedules")
	}
	return a.writeOut(func(w io.Writer) {
		fmt.Fprintln(w, "NAME\tEVERY\tKEEP\tSNAPSHOTS\tLAST\tNEXT")
		for i := range lines {
			l := &lines[i]
			last := "-"
			if l.Last != nil {
				last = snapshotTime(*l.Last)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%s\t%s\n", text(l.Name).shown(), config.FormatLength(time.Duration(l.Every*float64(time.Second))), l.Keep, l.Snapshots, last, snapshotTime(l.Next))
		}
	})
}

// lookAtSchedules makes the volume in this process look at its schedules.
func lookAtSchedules(s calls) (bool, error) {
	l, ok := s.(*live)
	if !ok {
		return false, errReadsOnly
	}
	l.v.ReloadSchedules()
	return true, nil
}
