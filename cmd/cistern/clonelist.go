package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/objstore"
)

// cloneLine is a clone that shares with a volume.
type cloneLine struct {
	Volume string    `json:"volume"`
	URL    string    `json:"url"`
	Commit uint64    `json:"commit"` // of this volume, which it keeps
	Made   time.Time `json:"made"`
	Gone   bool      `json:"gone"` // there is no such volume any more
	Pruned bool      `json:"pruned,omitempty"`
	Error  string    `json:"error,omitempty"` // why it is not known
}

func (a *app) cloneListCommand() *cobra.Command {
	var asJSON, prune bool
	c := &cobra.Command{
		Use: "list <vol>", Short: "List the clones that share with a volume", Args: cobra.ExactArgs(1), ValidArgsFunction: completeVolume,
		Long: `Lists the clones that share with a volume, which is kept for them. A clone that is
gone without its pin, because its bucket was emptied, still keeps it; --prune ends
that.`,
	}
	c.Flags().BoolVar(&prune, "prune", false, "forget clones that are gone")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		s, _, err := a.snapshotsOf(ctx, args[0])
		if err != nil {
			return err
		}
		pins, err := gateway.ClonePins(ctx, s)
		if err != nil {
			return err
		}
		lines := []cloneLine{}
		for _, p := range pins {
			lines = append(lines, a.cloneLine(ctx, s, p, prune))
		}
		if asJSON {
			return a.printJSON(lines)
		}
		return a.tableOfClones(lines)
	})
}

// cloneLine looks whether a clone is there.
func (a *app) cloneLine(ctx context.Context, s *store, p gateway.ClonePin, prune bool) cloneLine {
	l := cloneLine{Volume: p.Volume, URL: p.URL, Commit: p.Commit.N, Made: p.Time}
	u, err := objstore.ParseURL(p.URL)
	var clone objstore.Store
	if err == nil {
		var opened *store
		if opened, err = a.openStore(ctx, u, false, nil); err == nil {
			clone = opened
		} else if errors.Is(err, objstore.ErrNoBucket) {
			err = nil // and the clone with it
		}
	}
	alive := false
	if err == nil {
		alive, err = gateway.CloneAlive(ctx, clone, p)
	}
	if err == nil && !alive {
		l.Gone = true
		if prune {
			err = gateway.PruneClonePin(ctx, s, clone, p)
			l.Pruned = err == nil
		}
	}
	if err != nil {
		l.Error = sentence(err)
	}
	return l
}

func (a *app) tableOfClones(lines []cloneLine) error {
	if len(lines) == 0 {
		return a.say("no clones share with it")
	}
	w := tabwriter.NewWriter(a.stdout, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "CLONE\tCOMMIT\tMADE\tSTATE")
	for i := range lines {
		l := &lines[i]
		state := "there"
		switch {
		case l.Error != "":
			state = l.Error
		case l.Pruned:
			state = "gone, forgotten"
		case l.Gone:
			state = "gone: --prune forgets it"
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\n", text(l.URL).shown(), l.Commit, snapshotTime(l.Made), state)
	}
	if err := w.Flush(); err != nil {
		return fmt.Errorf("write the answer: %w", err)
	}
	return nil
}
