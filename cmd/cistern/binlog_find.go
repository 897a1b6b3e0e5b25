package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/binlogfs"
)

// binlogFound is what `cistern binlog find` shows.
type binlogFound struct {
	binlogPlace
	GTID string    `json:"gtid,omitempty"`
	Time time.Time `json:"time"`
	Read int64     `json:"read_bytes"` // of the file
}

func (a *app) binlogFindCommand() *cobra.Command {
	var gtid, at, position string
	var asJSON bool
	c := &cobra.Command{
		Use: "find <vol>[@point] --gtid GTID | --time TIME | --position FILE:OFFSET", Short: "Find a group of an archive", Args: cobra.ExactArgs(1),
		Long: `Finds a group by its GTID; the first at or after a time; or that which has the
byte at an offset of a file, or the next one. It reads a few catalogues and at
most about 1 MiB of one file.`,
	}
	c.Flags().StringVar(&gtid, "gtid", "", "0-1-100, <uuid>:23 or <uuid>:<tag>:23")
	c.Flags().StringVar(&at, "time", "", "\"2026-11-30 18:20:05\" (local), 2026-11-30T18:20:05Z, or -2h")
	c.Flags().StringVar(&position, "position", "", "<file>:<offset>, or <epoch>/<file>:<offset>")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.readsBinlog(c, true, func(ctx context.Context, b *binlogArchive, _ []string) error {
		given := 0
		for _, s := range []string{gtid, at, position} {
			if s != "" {
				given++
			}
		}
		if given != 1 {
			return usage(errors.New("say what to find with one of --gtid, --time and --position"))
		}
		var f *binlogfs.Found
		var err error
		switch {
		case gtid != "":
			f, err = b.findGTID(ctx, gtid)
		case at != "":
			f, err = b.findTime(ctx, at)
		default:
			f, err = b.findPosition(ctx, position)
		}
		if err != nil {
			return err
		}
		if asJSON {
			return a.printJSON(binlogFound{placeOf(f.Position), f.GTID.String(), f.Time, f.Read})
		}
		return a.say("%06d/%s:%d\t%s\t%s", f.Epoch, f.File, f.Offset, orDash(f.GTID.String()), showTime(f.Time))
	})
}

func (b *binlogArchive) findGTID(ctx context.Context, text string) (*binlogfs.Found, error) {
	g, err := binlogfs.ParseGTID(b.State().Flavor(), text)
	if err != nil {
		return nil, usage(err)
	}
	return binlogfs.FindGTID(ctx, b, g)
}

func (b *binlogArchive) findTime(ctx context.Context, text string) (*binlogfs.Found, error) {
	t, err := parseMoment(text, time.Now())
	if err != nil {
		return nil, usage(fmt.Errorf("--time: %w", err))
	}
	return binlogfs.FindTime(ctx, b, t)
}

func (b *binlogArchive) findPosition(ctx context.Context, text string) (*binlogfs.Found, error) {
	file, offset, ok := binlogfs.ParsePlace(text)
	if !ok {
		return nil, usage(fmt.Errorf("--position %q is not like mysql-bin.000001:4", text))
	}
	f, err := b.named(ctx, file)
	if err != nil {
		return nil, err
	}
	return binlogfs.FindPosition(ctx, b, f, offset)
}
