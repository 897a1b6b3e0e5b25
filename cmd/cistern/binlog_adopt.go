package main

import (
	"context"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/progress"
)

// binlogAdopted is what `cistern binlog adopt` did.
type binlogAdopted struct {
	Files   int   `json:"files"`
	Had     int   `json:"files_had"`
	Bytes   int64 `json:"added_bytes"`
	Groups  int64 `json:"groups"`
	Ripple  bool  `json:"ripple"`
	Dropped int64 `json:"dropped_bytes"`
}

func (a *app) binlogAdoptCommand() *cobra.Command {
	var o binlogfs.AdoptOptions
	var takeover, asJSON bool
	c := &cobra.Command{
		Use: "adopt <vol> <dir>", Short: "Take a directory of binary logs into an archive", Args: cobra.ExactArgs(2),
		Long: `Copies the binary logs of a MariaDB or MySQL server, or of Ripple, out of a local
directory into an archive, verifying every checksum, place and GTID. Files must
follow each other and what is archived. What was interrupted goes on when it is
called again. Ripple's files, which only Ripple reads, become a server's.
Encrypted files are refused.`,
	}
	dir := dirFlag(c)
	c.Flags().StringVar(&o.UUID, "uuid", "", "the MySQL server's server_uuid; by default that of auto.cnf beside the logs")
	c.Flags().BoolVar(&o.NewEpoch, "new-epoch", false, "begin an epoch: the archive holds another server's log")
	c.Flags().BoolVar(&takeover, "takeover", false, "take the volume at once from its owner, which is fenced if it lives")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		at, err := cleanPath(*dir)
		if err != nil {
			return err
		}
		if st, err := os.Stat(args[1]); err != nil {
			return usage(localError(args[1], err))
		} else if !st.IsDir() {
			return usage(fmt.Errorf("%s is not a directory", args[1]))
		}
		s, t, err := a.writer(ctx, args[0], takeover)
		if err != nil {
			return err
		}
		own, ok := s.(*ownService)
		if !ok {
			return finish(ctx, s, fmt.Errorf("%w: %s is in use by a relay or mount on this machine: end that first", gateway.ErrOwned, t.url))
		}
		done, err := a.adoptBinlogs(ctx, own, at, args[1], o)
		if err = finish(ctx, s, err); err != nil {
			return err
		}
		if asJSON {
			return a.printJSON(done)
		}
		return a.showAdopted(args[1], &done)
	})
}

func (a *app) adoptBinlogs(ctx context.Context, s *ownService, dir, local string, o binlogfs.AdoptOptions) (binlogAdopted, error) {
	log, err := binlogfs.OpenLog(ctx, s.v, binlogfs.LogOptions{Dir: dir, Ack: binlogfs.AckMemory})
	if err != nil {
		return binlogAdopted{}, err
	}
	bar := progress.Start(a.stderr, a.terminal, local, 0)
	o.Progress = bar.Set
	done, err := binlogfs.Adopt(ctx, log, os.DirFS(local), o)
	bar.Done(err == nil)
	if err != nil {
		return binlogAdopted{}, fmt.Errorf("%s: %w", local, err)
	}
	return binlogAdopted(*done), nil
}

func (a *app) showAdopted(local string, d *binlogAdopted) error {
	if d.Dropped > 0 {
		a.note("the last file ends with %d bytes of a group that has not ended, which are left out", d.Dropped)
	}
	how := ""
	if d.Ripple {
		how = ", written anew from Ripple's format"
	}
	return a.say("%s: %s with %s%s: %s added, %s archived before", local, count(d.Files, "file"), count(d.Groups, "group"), how, size(d.Bytes), count(d.Had, "file"))
}
