package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/metadata"
)

// binlogList is what `cistern binlog list` shows.
type binlogList struct {
	Commit  metadata.CommitID   `json:"commit"`
	End     binlogPlace         `json:"end"`
	GTIDs   string              `json:"gtid_state"`
	Bytes   int64               `json:"bytes"`
	Sources []binlogfs.Source   `json:"sources"`
	Files   []binlogFile        `json:"files"`
	Marks   []binlogfs.KeepMark `json:"marks"`
}

// binlogPlace is a place in an archive.
type binlogPlace struct {
	Epoch  uint32 `json:"epoch"`
	File   string `json:"file"`
	Offset int64  `json:"offset"`
}

func placeOf(p binlogfs.Position) binlogPlace { return binlogPlace{p.Epoch, p.File, p.Offset} }

// binlogFile is a file of the list.
type binlogFile struct {
	Epoch  uint32    `json:"epoch"`
	Name   string    `json:"name"`
	Size   int64     `json:"size"`
	Closed bool      `json:"closed"`
	First  time.Time `json:"first_time,omitzero"`
	Last   time.Time `json:"last_time,omitzero"`
	Groups int64     `json:"groups"`
	Events int64     `json:"events"`
	Server string    `json:"server"`
	Before string    `json:"previous_gtids"`
	Added  string    `json:"added_gtids"`
}

func fileOf(f *binlogfs.FileInfo) binlogFile {
	return binlogFile{
		Epoch: f.Epoch, Name: f.Name, Size: f.Size, Closed: f.Closed, First: f.FirstTime, Last: f.LastTime, Groups: f.Groups, Events: f.Events,
		Server: f.Server, Before: f.Previous, Added: f.Added,
	}
}

func (a *app) binlogListCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "list <vol>[@point]", Short: "List the binary logs of an archive", Args: cobra.ExactArgs(1),
		Long: `Lists the files, the oldest first, with their sizes, times, groups and the GTIDs
that each added, as of the volume's last commit or the point that is named.`,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.readsBinlog(c, false, func(_ context.Context, b *binlogArchive, _ []string) error {
		end, _ := b.End()
		l := binlogList{Commit: b.v.Head().CommitID, End: placeOf(end), GTIDs: b.State().String(), Sources: b.Sources(), Marks: b.Marks(), Files: []binlogFile{}}
		for _, f := range b.Files() {
			l.Files = append(l.Files, fileOf(f))
			l.Bytes += f.Size
		}
		if asJSON {
			return a.printJSON(l)
		}
		return a.writeOut(func(w io.Writer) {
			fmt.Fprintln(w, "EPOCH\tFILE\tSIZE\tFIRST\tLAST\tGROUPS\tGTIDS")
			for _, f := range l.Files {
				fmt.Fprintf(w, "%d\t%s\t%d\t%s\t%s\t%d\t%s\n", f.Epoch, f.Name, f.Size, showTime(f.First), showTime(f.Last), f.Groups, orDash(f.Added))
			}
			fmt.Fprintf(w, "%s of %s, up to %s:%d of epoch %d, GTIDs %s\n", size(l.Bytes), count(len(l.Files), "file"), l.End.File, l.End.Offset, l.End.Epoch, orDash(l.GTIDs))
		})
	})
}

func (a *app) binlogShowCommand() *cobra.Command {
	var asJSON, index bool
	c := &cobra.Command{
		Use: "show <vol>[@point] <file>", Short: "Show the catalogue of a binary log", Args: cobra.ExactArgs(2),
		Long: `Shows what the archive knows of a file without reading it. The file of an earlier
epoch is <epoch>/<file>.`,
	}
	c.Flags().BoolVar(&index, "index", false, "the index of groups, too")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.readsBinlog(c, true, func(ctx context.Context, b *binlogArchive, args []string) error {
		f, err := b.named(ctx, args[0])
		if err != nil {
			return err
		}
		if asJSON {
			shown := *f
			if !index {
				shown.Index = nil
			}
			return a.printJSON(shown)
		}
		return a.writeOut(func(w io.Writer) { writeCatalogue(w, f, index) })
	})
}

func writeCatalogue(w io.Writer, f *binlogfs.FileInfo, index bool) {
	row := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	row("file", "%s", f.Path())
	row("size", "%d (%s)", f.Size, size(f.Size))
	state := "open"
	if f.Closed {
		state = "closed"
	}
	row("state", "%s", state)
	row("crc32c", "%08x", f.CRC32C)
	row("server", "%s, id %d, %s", f.Server, f.ServerID, f.Flavor)
	row("checksums", "%v", f.Checksum)
	row("times", "%s to %s", showTime(f.FirstTime), showTime(f.LastTime))
	row("groups", "%d in %s", f.Groups, count(f.Events, "event"))
	row("gtids before", "%s", orDash(f.Previous))
	row("gtids added", "%s", orDash(f.Added))
	row("index", "%d entries", len(f.Index))
	if !index {
		return
	}
	for _, m := range f.Index {
		row("", "%d\t%s\t%s", m.Offset, showTime(m.Time), orDash(m.GTID))
	}
}
