package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/binlogfs"
)

// binlogEvent is an event as `cistern binlog events` shows it.
type binlogEvent struct {
	Offset   int64     `json:"offset"`
	Type     string    `json:"type"`
	Time     time.Time `json:"time"`
	ServerID uint32    `json:"server_id"`
	Size     uint32    `json:"size"`
	GTID     string    `json:"gtid,omitempty"`
	Info     string    `json:"info,omitempty"`
}

// errEnough ends a walk that has shown what was asked for.
var errEnough = errors.New("enough")

func (a *app) binlogEventsCommand() *cobra.Command {
	var asJSON bool
	var from, to int64
	var limit int
	c := &cobra.Command{
		Use: "events <vol>[@point] <file>", Short: "List the events of a binary log", Args: cobra.ExactArgs(2),
		Long: `Lists events as SHOW BINLOG EVENTS does, with the GTID of the group that each
belongs to and the beginnings of statements. Checksums are verified.`,
	}
	c.Flags().Int64Var(&from, "from", 0, "where to begin: the offset of an event")
	c.Flags().Int64Var(&to, "to", 0, "where to end: events that begin before it; 0: the end")
	c.Flags().IntVarP(&limit, "limit", "n", 0, "how many events; 0: all")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.readsBinlog(c, true, func(ctx context.Context, b *binlogArchive, args []string) error {
		switch {
		case from < 0 || to < 0 || limit < 0:
			return usage(errors.New("--from, --to and --limit must not be negative"))
		case to > 0 && to <= from:
			return usage(fmt.Errorf("--to %d is not after --from %d", to, from))
		}
		f, err := b.named(ctx, args[0])
		if err != nil {
			return err
		}
		e := &eventLister{f: f, from: from, to: to, limit: limit}
		if asJSON {
			all := []binlogEvent{}
			e.show = func(e *binlogEvent) error { all = append(all, *e); return nil }
			if err := e.run(ctx, b); err != nil {
				return err
			}
			return a.printJSON(all)
		}
		return a.showEvents(ctx, b, e)
	})
}

// showEvents writes events in columns as they come.
func (a *app) showEvents(ctx context.Context, b *binlogArchive, e *eventLister) error {
	line := func(offset, kind, server, size, gtid, info string) error {
		_, err := io.WriteString(a.stdout, fmt.Sprintf("%-12s %-26s %-10s %-10s %-24s %s", offset, kind, server, size, gtid, info)+"\n")
		if err != nil {
			return fmt.Errorf("write the answer: %w", err)
		}
		return nil
	}
	if err := line("OFFSET", "TYPE", "SERVER", "SIZE", "GTID", "INFO"); err != nil {
		return err
	}
	e.show = func(e *binlogEvent) error {
		return line(fmt.Sprint(e.Offset), e.Type, fmt.Sprint(e.ServerID), fmt.Sprint(e.Size), orDash(e.GTID), text(e.Info).shown())
	}
	return e.run(ctx, b)
}

// eventLister lists a part of a file's events.
type eventLister struct {
	f        *binlogfs.FileInfo
	from, to int64
	limit    int
	show     func(*binlogEvent) error
}

func (l *eventLister) run(ctx context.Context, b *binlogArchive) error {
	if l.from >= l.f.Size {
		return usage(fmt.Errorf("--from %d: %s has %d bytes", l.from, l.f.Path(), l.f.Size))
	}
	if l.to == 0 {
		l.to = math.MaxInt64
	}
	begin := int64(0)
	for _, m := range l.f.Index {
		if m.Offset <= l.from {
			begin = m.Offset
		}
	}
	shown := 0
	err := binlogfs.Walk(ctx, b, l.f, begin, func(e *binlogfs.Event) error {
		switch {
		case e.Offset >= l.to:
			return errEnough
		case e.Offset+int64(e.Size) <= l.from:
			return nil
		case e.Offset < l.from:
			return usage(fmt.Errorf("--from %d: no event of %s begins there; one begins at %d and one at %d", l.from, l.f.Path(), e.Offset, e.Offset+int64(e.Size)))
		}
		gtid := ""
		if e.Step != binlogfs.StepHead {
			gtid = e.GTID.String()
		}
		err := l.show(&binlogEvent{
			Offset: e.Offset, Type: binlogfs.EventName(e.Type), Time: time.Unix(int64(e.Time), 0).UTC(), ServerID: e.ServerID, Size: e.Size, GTID: gtid, Info: e.Describe(&binlogfs.Format{Server: l.f.Server, Flavor: l.f.Flavor}),
		})
		if shown++; err == nil && shown == l.limit {
			err = errEnough
		}
		return err
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}
