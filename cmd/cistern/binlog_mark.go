package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/binlogfs"
)

func (a *app) binlogMarkCommand() *cobra.Command {
	var list, remove, asJSON, takeover bool
	c := &cobra.Command{
		Use: "mark <vol> <name> <gtids|file:offset> | --list | --delete <name>", Short: "Keep an archive from a place on, for a backup", Args: cobra.RangeArgs(1, 3),
		Long: `Marks the place from which on a backup needs the archive: purging keeps that
file and what follows, until the mark is moved or deleted. The place is a GTID
position (0-1-100,1-2-7) or set (<uuid>:1-100), as the backup's tool tells it,
or <file>:<offset>.`,
	}
	dir := dirFlag(c)
	c.Flags().BoolVarP(&list, "list", "l", false, "list the marks")
	c.Flags().BoolVar(&remove, "delete", false, "delete the mark")
	c.Flags().BoolVar(&takeover, "takeover", false, "take the volume at once from its owner, which is fenced if it lives")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		at, err := cleanPath(*dir)
		if err != nil {
			return err
		}
		switch {
		case list && remove, list && len(args) != 1, remove && len(args) != 2, !list && !remove && len(args) != 3:
			return usage(errors.New("give a name and a place, or --list, or --delete and a name"))
		case list:
			return a.listMarks(ctx, args[0], at, asJSON)
		case remove:
			return a.changesBinlog(ctx, args[0], takeover, func(b binlogChanges) error { return b.unmarkBinlogs(ctx, at, args[1]) })
		}
		var m binlogfs.KeepMark
		err = a.changesBinlog(ctx, args[0], takeover, func(b binlogChanges) error {
			m, err = b.markBinlogs(ctx, at, args[1], args[2])
			return err
		})
		if err != nil {
			return err
		}
		if asJSON {
			return a.printJSON(m)
		}
		return a.say("%s: everything from %06d/%s:%d on is kept", m.Name, m.Epoch, m.File, m.Offset)
	})
}

func (a *app) listMarks(ctx context.Context, vol, dir string, asJSON bool) error {
	marks, err := a.marks(ctx, vol, dir)
	if err != nil {
		return err
	}
	if asJSON {
		return a.printJSON(marks)
	}
	return a.writeOut(func(w io.Writer) {
		fmt.Fprintln(w, "NAME\tFROM\tGTIDS\tMARKED")
		for _, m := range marks {
			fmt.Fprintf(w, "%s\t%06d/%s:%d\t%s\t%s\n", m.Name, m.Epoch, m.File, m.Offset, orDash(m.GTID), showTime(m.Created))
		}
	})
}

// marks are those that the volume's writer on this machine has, or its bucket.
func (a *app) marks(ctx context.Context, vol, dir string) ([]binlogfs.KeepMark, error) {
	t, err := a.resolve(vol)
	if err != nil {
		return nil, err
	}
	if t.point == "" {
		owner, err := a.owner(ctx, t)
		if err != nil {
			return nil, err
		}
		if owner != nil {
			return (&remote{c: owner}).marksOfBinlogs(ctx, dir)
		}
	}
	b, err := a.openBinlog(ctx, vol, dir, true)
	if err != nil {
		return nil, err
	}
	return append([]binlogfs.KeepMark{}, b.Marks()...), b.v.close()
}

// binlogPending is what of an open group the volume has.
type binlogPending struct {
	binlogPlace           // where the group begins
	Bytes       int64     `json:"bytes"`
	GTID        string    `json:"gtid,omitempty"` // this and what follows is known to the running relay
	Began       time.Time `json:"began,omitzero"`
	Events      int64     `json:"events,omitempty"`
	Fragments   int64     `json:"fragments,omitempty"`
}

func (a *app) binlogPendingCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "pending <vol>", Short: "Show the open group that an archive has a part of", Args: cobra.ExactArgs(1),
		Long: `Shows the group that has not ended and of which the volume has fragments: nobody
sees them before the group is whole, and they are dropped when its source goes
away. Where the relay runs on this machine it tells; else what the bucket has is
shown.`,
	}
	dir := dirFlag(c)
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		pending, err := a.pendingGroups(ctx, args[0], *dir)
		if err != nil {
			return err
		}
		if asJSON {
			return a.printJSON(pending)
		}
		return a.writeOut(func(w io.Writer) {
			for _, p := range pending {
				fmt.Fprintf(w, "%06d/%s:%d\t%d bytes", p.Epoch, p.File, p.Offset, p.Bytes)
				if p.Fragments > 0 {
					fmt.Fprintf(w, "\t%s, %s\t%s\tsince %s", count(p.Fragments, "fragment"), count(p.Events, "event"), orDash(p.GTID), showTime(p.Began))
				}
				fmt.Fprintln(w)
			}
			fmt.Fprintf(w, "%s pending\n", count(len(pending), "group"))
		})
	})
}

// pendingGroups asks the relay of this machine, or looks into the bucket.
func (a *app) pendingGroups(ctx context.Context, vol, dir string) ([]binlogPending, error) {
	pending := []binlogPending{}
	t, err := a.resolve(vol)
	if err != nil {
		return nil, err
	}
	if t.point == "" {
		owner, err := a.owner(ctx, t)
		if err != nil {
			return nil, err
		}
		var s binlogfs.RelayStatus
		if owner != nil && owner.Call(ctx, http.MethodGet, "/v1/binlog/relay", nil, nil, &s) == nil {
			for _, p := range s.Pending {
				if p.Fragments == 0 {
					continue // nothing of it is in the volume
				}
				pending = append(pending, binlogPending{binlogPlace{s.Epoch, p.File, p.Offset}, p.Bytes, p.GTID, p.Began, p.Events, p.Fragments})
			}
			return pending, nil
		}
	}
	b, err := a.openBinlog(ctx, vol, dir, true)
	if err != nil {
		return nil, err
	}
	end, _ := b.End()
	n, err := b.v.Lookup("/" + path.Join(b.dir, fmt.Sprintf("%06d", end.Epoch), end.File))
	if err == nil && n.Staged > n.Size {
		pending = append(pending, binlogPending{binlogPlace: placeOf(end), Bytes: n.Staged - n.Size})
	}
	return pending, errors.Join(err, b.v.close())
}
