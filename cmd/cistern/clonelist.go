package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
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
	Lost   bool      `json:"not_found"` // there is no such volume at its URL, as this machine sees it
	Pruned bool      `json:"pruned,omitempty"`
	Error  string    `json:"error,omitempty"` // why it is not known
}

func (a *app) cloneListCommand() *cobra.Command {
	var asJSON bool
	var prune string
	c := &cobra.Command{
		Use: "list <vol>", Short: "List the clones that share with a volume", Args: cobra.ExactArgs(1), ValidArgsFunction: completeVolume,
		Long: `Lists the clones that share with a volume, which is kept for them. A clone that was
deleted without its pin, because its bucket was emptied, still keeps it; --prune
with the clone's id ends that. Make sure first that it is gone for good: a clone
whose bucket this machine can't see, or whose disk is not mounted, is not found
either, and loses what it shares.`,
	}
	c.Flags().StringVar(&prune, "prune", "", "id of a clone that is gone for good, to forget it")
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
		if prune != "" && !slices.ContainsFunc(pins, func(p gateway.ClonePin) bool { return p.Volume == prune }) {
			return usage(fmt.Errorf("--prune %s: no clone with this id shares with %s", prune, args[0]))
		}
		lines := []cloneLine{}
		for _, p := range pins {
			lines = append(lines, a.cloneLine(ctx, s, p, p.Volume == prune))
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
			err = nil // nor the clone in it
		}
	}
	alive := false
	if err == nil {
		alive, err = gateway.CloneAlive(ctx, clone, p)
	}
	if err == nil && !alive {
		l.Lost = true
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
	return a.writeOut(func(w io.Writer) {
		fmt.Fprintln(w, "CLONE\tID\tCOMMIT\tMADE\tSTATE")
		for i := range lines {
			l := &lines[i]
			state := "there"
			switch {
			case l.Error != "":
				state = l.Error
			case l.Pruned:
				state = "forgotten"
			case l.Lost:
				state = "not found: once it is gone for good, --prune with its id forgets it"
			}
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", text(l.URL).shown(), l.Volume, l.Commit, snapshotTime(l.Made), state)
		}
	})
}
