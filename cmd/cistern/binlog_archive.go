package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/internal/config"
)

// binlogArchive is an archive of binary logs as the last commit of its volume,
// or the commit that was named, has it.
type binlogArchive struct {
	*binlogfs.FixedLog
	v    *view
	tree binlogfs.ViewTree
	dir  string
}

// dirFlag adds the flag that every command of an archive has.
func dirFlag(c *cobra.Command) *string {
	return c.Flags().String("dir", "", "the archive's directory in the volume; empty: the top")
}

// readsBinlog runs a command that reads an archive. A search reads catalogues as
// it needs them; everything else wants them all.
func (a *app) readsBinlog(c *cobra.Command, search bool, f func(ctx context.Context, b *binlogArchive, args []string) error) *cobra.Command {
	dir := dirFlag(c)
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		b, err := a.openBinlog(ctx, args[0], *dir, search)
		if err != nil {
			return err
		}
		err = f(ctx, b, args[1:])
		return errors.Join(err, b.v.close())
	})
}

// openBinlog opens the archive in a directory of a volume for reading.
func (a *app) openBinlog(ctx context.Context, vol, dir string, search bool) (*binlogArchive, error) {
	dir, err := cleanPath(dir)
	if err != nil {
		return nil, err
	}
	t, err := a.resolve(vol)
	if err != nil {
		return nil, err
	}
	v, err := a.openView(ctx, t)
	if err != nil {
		return nil, err
	}
	b := &binlogArchive{v: v, tree: binlogfs.ViewTree{V: v.View}, dir: dir}
	open := binlogfs.OpenArchive
	if search {
		open = binlogfs.OpenForSearch
	}
	if b.FixedLog, err = open(ctx, b.tree, dir); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", t.given(), err), v.close())
	}
	return b, nil
}

// named returns the catalogue of a file that an argument names: name, or
// epoch/name.
func (b *binlogArchive) named(ctx context.Context, arg string) (*binlogfs.FileInfo, error) {
	return binlogfs.FileNamed(ctx, b, arg)
}

// chosen returns the files that arguments name, or those of a range, or all.
func (b *binlogArchive) chosen(ctx context.Context, args []string, from, to string) ([]*binlogfs.FileInfo, error) {
	if len(args) > 0 && (from != "" || to != "") {
		return nil, usage(errors.New("name files, or a range with --from and --to, not both"))
	}
	var files []*binlogfs.FileInfo
	for _, arg := range args {
		f, err := b.named(ctx, arg)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	if len(args) > 0 {
		return files, nil
	}
	files = b.Files()
	cut := func(name string) (int, error) {
		f, err := b.named(ctx, name)
		if err != nil {
			return 0, err
		}
		for i := range files {
			if files[i] == f {
				return i, nil
			}
		}
		return 0, fmt.Errorf("%s is not among the archive's files", name)
	}
	first, last := 0, len(files)-1
	var err error
	if from != "" {
		if first, err = cut(from); err != nil {
			return nil, err
		}
	}
	if to != "" {
		if last, err = cut(to); err != nil {
			return nil, err
		}
	}
	if first > last {
		return nil, usage(fmt.Errorf("--from %s comes after --to %s", from, to))
	}
	return files[first : last+1], nil
}

// parseMoment reads a time as operators write it: local unless it says
// otherwise, or how long ago.
func parseMoment(text string, now time.Time) (time.Time, error) {
	if ago, ok := strings.CutPrefix(text, "-"); ok {
		d, err := config.ParseLength(ago)
		if err != nil {
			return time.Time{}, fmt.Errorf("%q is no time before now, as -24h or -7d is", text)
		}
		return now.Add(-d), nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	for _, layout := range []string{"2006-01-02 15:04:05", "2006-01-02T15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if t, err := time.ParseInLocation(layout, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%q is not a time, as \"2026-11-30 18:20:05\", 2026-11-30T18:20:05Z or -24h is", text)
}

// showTime is a time for people; a dash when there is none.
func showTime(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format(timeLayout)
}

// orDash shows an empty text as a dash.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
