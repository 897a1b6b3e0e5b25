package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/internal/config"
)

func (a *app) binlogPurgeCommand() *cobra.Command {
	var p binlogfs.Policy
	var before string
	var dry, asJSON, takeover bool
	keep := config.Size{Min: 1}
	c := &cobra.Command{
		Use: "purge <vol>", Short: "Delete the oldest binary logs of an archive", Args: cobra.ExactArgs(1),
		Long: `Deletes the oldest files, those that any of the flags names. It keeps the last
file, and everything from the first file on that a replica of the relay or a
mark needs, and says for whom. With a relay or mount of the volume on this
machine it is done there, else this command owns the volume while it runs.`,
	}
	dir := dirFlag(c)
	c.Flags().StringVar(&p.To, "to", "", "files before this one; that one stays")
	c.Flags().StringVar(&before, "before", "", "files whose last group is older than a time: \"2026-11-30 18:20:05\" (local), 2026-11-30T18:20:05Z, or -24h")
	var age config.Length
	c.Flags().Var(&age, "keep-age", "files whose last group is older than this, like 36h, 7d or 4w")
	c.Flags().IntVar(&p.KeepFiles, "keep-files", 0, "all but so many of the last files")
	c.Flags().Var(&keep, "keep-size", "the oldest files, until the rest has at most so many bytes")
	c.Flags().BoolVar(&dry, "dry-run", false, "only say what would be deleted")
	c.Flags().BoolVar(&takeover, "takeover", false, "take the volume at once from its owner, which is fenced if it lives")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		at, err := cleanPath(*dir)
		if err != nil {
			return err
		}
		if before != "" {
			if p.Before, err = parseMoment(before, time.Now()); err != nil {
				return usage(fmt.Errorf("--before: %w", err))
			}
		}
		p.KeepSize, p.KeepAge = keep.Bytes, age.D
		if p == (binlogfs.Policy{}) {
			return usage(errors.New("say what to delete with --to, --before, --keep-age, --keep-files or --keep-size"))
		}
		done, err := a.purgeBinlogs(ctx, args[0], at, p, dry, takeover)
		if err != nil {
			return err
		}
		if asJSON {
			return a.printJSON(done)
		}
		return a.showPurged(&done)
	})
}

// purgeBinlogs purges; a dry run needs no lease.
func (a *app) purgeBinlogs(ctx context.Context, vol, dir string, p binlogfs.Policy, dry, takeover bool) (done binlogPurged, err error) {
	if dry {
		t, err := a.resolve(vol)
		if err != nil {
			return done, err
		}
		c, err := a.owner(ctx, t)
		if err != nil {
			return done, err
		}
		if c != nil {
			return (&remote{c: c}).purgeBinlogs(ctx, dir, p, true)
		}
		b, err := a.openBinlog(ctx, vol, dir, false)
		if err != nil {
			return done, err
		}
		plan, err := b.Plan(p, time.Now())
		if err = errors.Join(err, b.v.close()); err != nil {
			return done, err
		}
		return purgedOf(plan, true), nil
	}
	err = a.changesBinlog(ctx, vol, takeover, func(b binlogChanges) error {
		done, err = b.purgeBinlogs(ctx, dir, p, false)
		return err
	})
	return done, err
}

func (a *app) showPurged(p *binlogPurged) error {
	verb := "deleted"
	if p.DryRun {
		verb = "would be deleted"
	}
	return a.writeOut(func(w io.Writer) {
		for _, f := range p.Files {
			fmt.Fprintf(w, "%06d/%s\t%d\t%s\n", f.Epoch, f.Name, f.Size, showTime(f.Last))
		}
		for _, k := range p.Kept {
			fmt.Fprintf(w, "%s kept: %s needs %06d/%s and what follows\n", count(k.Files, "file"), k.Who, k.Epoch, k.File)
		}
		fmt.Fprintf(w, "%s of %s %s, %s left\n", size(p.Deleted), count(len(p.Files), "file"), verb, count(p.Left, "file"))
	})
}
