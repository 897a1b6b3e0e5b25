package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/internal/progress"
)

// binlogVerified is what `cistern binlog verify` found.
type binlogVerified struct {
	Files    int      `json:"files"`
	Bytes    int64    `json:"bytes"`
	Groups   int64    `json:"groups"`
	Problems []string `json:"problems"`
}

func (a *app) binlogVerifyCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "verify <vol>[@point] [file…]", Short: "Read binary logs and compare them with their catalogues", Args: cobra.MinimumNArgs(1),
		Long: `Reads every byte of the files, of all unless some are named: events' checksums,
places and groups, the files' checksums and GTIDs, and that each file begins
where the one before it ended. Exit status 4 when something is damaged.`,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.readsBinlog(c, false, func(ctx context.Context, b *binlogArchive, args []string) error {
		files, err := b.chosen(ctx, args, "", "")
		if err != nil {
			return err
		}
		out := binlogVerified{Problems: []string{}}
		problem := func(err error) error {
			if exitStatus(err) != exitDamaged {
				return err
			}
			out.Problems = append(out.Problems, sentence(err))
			a.note("%s", sentence(err))
			return nil
		}
		for i, f := range files {
			out.Files, out.Bytes, out.Groups = out.Files+1, out.Bytes+f.Size, out.Groups+f.Groups
			if err := problem(a.verifyBinlog(ctx, b, f)); err != nil {
				return err
			}
			if i > 0 && len(args) == 0 {
				if err := problem(binlogfs.Follows(files[i-1], f)); err != nil {
					return err
				}
			}
		}
		if asJSON {
			err = a.printJSON(out)
		} else {
			err = a.say("%s of %s, %s: %s", size(out.Bytes), count(out.Files, "file"), count(out.Groups, "group"), count(len(out.Problems), "problem"))
		}
		if err == nil && len(out.Problems) > 0 {
			err = said(exitDamaged)
		}
		return err
	})
}

func (a *app) verifyBinlog(ctx context.Context, b *binlogArchive, f *binlogfs.FileInfo) error {
	bar := progress.Start(a.stderr, a.terminal, f.Name, f.Size)
	err := binlogfs.Verify(ctx, barTree{b.tree, bar}, b.dir, f)
	bar.Done(err == nil)
	return err
}

// barTree adds what is read of a tree's files to a progress bar.
type barTree struct {
	binlogfs.Tree
	bar *progress.Bar
}

// Open implements binlogfs.Tree.
func (t barTree) Open(ctx context.Context, name string) (binlogfs.File, error) {
	f, err := t.Tree.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	return barFile{f, t.bar}, nil
}

type barFile struct {
	binlogfs.File
	bar *progress.Bar
}

// Read implements binlogfs.File.
func (f barFile) Read(ctx context.Context, p []byte, off int64) (int, error) {
	n, err := f.File.Read(ctx, p, off)
	f.bar.Add(int64(n))
	return n, err
}
