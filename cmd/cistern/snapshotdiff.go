package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
)

// changeLine is a difference between two points as commands show it.
type changeLine struct {
	Kind   gateway.ChangeKind `json:"change"`
	Path   text               `json:"path"`
	From   text               `json:"from,omitempty"` // of what was renamed
	Inode  uint64             `json:"inode"`
	Dir    bool               `json:"directory,omitempty"`
	Before *int64             `json:"size_before,omitempty"` // bytes; absent: it was not there
	After  *int64             `json:"size_after,omitempty"`
	What   []string           `json:"what,omitempty"` // content, attributes, times
}

func changeLineOf(c *gateway.Change) changeLine {
	l := changeLine{Kind: c.Kind, Path: text(c.Path), From: text(c.From)}
	for _, side := range []struct {
		n    *gateway.Inode
		size **int64
	}{{c.Before, &l.Before}, {c.After, &l.After}} {
		if side.n != nil {
			l.Inode, l.Dir = uint64(side.n.ID), side.n.Mode&typeMask == typeDir
			*side.size = &side.n.Size
		}
	}
	for _, w := range []struct {
		on   bool
		name string
	}{{c.Content, "content"}, {c.Attributes, "attributes"}, {c.Times, "times"}} {
		if w.on {
			l.What = append(l.What, w.name)
		}
	}
	return l
}

func (l *changeLine) String() string {
	path := func(p text) string {
		if l.Dir {
			return ("/" + p + "/").shown()
		}
		return ("/" + p).shown()
	}
	if l.Path == "" {
		path = func(text) string { return "/" } // the top directory
	}
	what := ""
	if len(l.What) > 0 {
		what = "  (" + strings.Join(l.What, ", ") + ")"
	}
	switch l.Kind {
	case gateway.ChangeAdded:
		return "+ " + path(l.Path)
	case gateway.ChangeRemoved:
		return "- " + path(l.Path)
	case gateway.ChangeRenamed:
		return "R " + path(l.From) + " -> " + path(l.Path) + what
	}
	return "M " + path(l.Path) + what
}

// diffPoints calls fn for what differs between two points of a volume; to is
// empty for the present.
func (a *app) diffPoints(ctx context.Context, url target, from, to string, fn func(*gateway.Change) error) (err error) {
	before, err := a.openView(ctx, target{url: url.url, point: from})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, before.close()) }()
	if to == "" {
		if to, err = a.presentOf(ctx, url); err != nil {
			return err
		}
	}
	after, err := a.openView(ctx, target{url: url.url, point: to})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, after.close()) }()
	return gateway.Diff(ctx, before.View, after.View, func(c gateway.Change) error { return fn(&c) })
}

// presentOf returns the point of a volume's present, which its mount on this
// machine commits first; empty: what the bucket has last.
func (a *app) presentOf(ctx context.Context, t target) (string, error) {
	if t.fixed || t.follows {
		t = target{url: t.url}
	}
	c, err := a.owner(ctx, t)
	if err != nil || c == nil {
		return "", err
	}
	id, err := a.syncMount(ctx, &remote{c: c}, t, 0)
	return strconv.FormatUint(id.N, 10), err
}

func (a *app) snapshotDiff() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "diff <vol> <point> [point]", Short: "Show what differs between two points, or a point and the present", Args: cobra.RangeArgs(2, 3),
		Long: `Lists the paths that were added (+), removed (-), changed (M) and renamed (R) from
the first point to the second, or to the present. No content is read: a file's
references and checksums tell whether its bytes changed. A point is a snapshot's
name, a commit's number, a time, or a time back; an @ may stand before it, so that
@-15m is not taken for a flag.`,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		_, t, err := a.snapshotsOf(ctx, args[0])
		if err != nil {
			return err
		}
		points := []string{"", ""} // the second one stays empty for the present
		for i, point := range args[1:] {
			if points[i] = strings.TrimPrefix(point, "@"); points[i] == "" {
				return usage(errors.New("a point is empty: give a snapshot's name, a commit's number or a time"))
			}
		}
		if !asJSON {
			return a.diffPoints(ctx, t, points[0], points[1], func(c *gateway.Change) error {
				l := changeLineOf(c)
				return a.say("%s", l.String())
			})
		}
		// One document, which is never held whole.
		list := jsonList{a: a}
		err = a.diffPoints(ctx, t, points[0], points[1], func(c *gateway.Change) error { return list.add(changeLineOf(c)) })
		if err != nil {
			return err
		}
		return list.end()
	})
}

// snapshotShown is what `cistern snapshot show` tells.
type snapshotShown struct {
	snapshotLine
	Differs map[gateway.ChangeKind]int `json:"differs"` // paths, from the snapshot to the present
}

func (a *app) snapshotShow() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "show <vol> <name>", Short: "Show a snapshot, and how many paths differ from the present", Args: cobra.ExactArgs(2),
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		s, t, err := a.snapshotsOf(ctx, args[0])
		if err != nil {
			return err
		}
		info, err := gateway.FindSnapshot(ctx, s, t.url.String(), args[1])
		if err != nil {
			return snapshotError(err)
		}
		x := snapshotShown{snapshotLine: snapshotLineOf(&info), Differs: map[gateway.ChangeKind]int{
			gateway.ChangeAdded: 0, gateway.ChangeRemoved: 0, gateway.ChangeChanged: 0, gateway.ChangeRenamed: 0,
		}}
		err = a.diffPoints(ctx, t, args[1], "", func(c *gateway.Change) error { x.Differs[c.Kind]++; return nil })
		if err != nil {
			return err
		}
		if x.Database == nil {
			if x.Database, err = a.databaseAt(ctx, target{url: t.url, point: args[1]}); err != nil {
				return err
			}
		}
		if asJSON {
			return a.printJSON(x)
		}
		return a.showSnapshot(&x)
	})
}

func (a *app) showSnapshot(x *snapshotShown) error {
	return a.writeOut(func(w io.Writer) {
		for _, row := range [][2]string{
			{"name", x.Name},
			{"commit", fmt.Sprintf("%d/%d of %s", x.Epoch, x.Commit, snapshotTime(x.Time))},
			{"created", snapshotTime(x.Created) + " by " + x.Holder.shown()},
			{"expires", x.expires()},
			{"used", fmt.Sprintf("%s in %s", size(x.UsedBytes), count(x.Inodes, "inode"))},
			{"tags", x.tags()},
			{"pin", x.Key},
			{"since then", fmt.Sprintf("%s added, %d removed, %d changed, %d renamed", count(x.Differs[gateway.ChangeAdded], "path"),
				x.Differs[gateway.ChangeRemoved], x.Differs[gateway.ChangeChanged], x.Differs[gateway.ChangeRenamed])},
			{"database", x.Database.String()},
		} {
			fmt.Fprintf(w, "%s\t%s\n", row[0], row[1])
		}
	})
}
