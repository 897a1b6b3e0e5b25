package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/binlogfs"
)

// replayUntil says where a replay ends.
type replayUntil struct{ time, gtid, position string }

func (a *app) binlogReplayCommand() *cobra.Command {
	var o serveOptions
	var until replayUntil
	var serverID uint32
	var dir string
	c := &cobra.Command{
		Use: "replay <vol>[@point] --listen host:port --users-file file", Short: "Serve an archive to replicas, up to a point", Args: cobra.ExactArgs(1),
		Long: `Serves an archive of binary logs over the replication protocol, for recovery to a
point in time: restore a backup, then let the server replicate from here by GTID
or by file and position. The log ends before the first group that is at or after
--until-time, behind the group of --until-gtid, or before the group that goes on
beyond --until-position. The archive is as its last commit has it, or the one
that is named; nothing of it is changed. SIGTERM and SIGINT end the command.`,
	}
	f := c.Flags()
	o.flags(f)
	f.StringVar(&dir, "dir", "", "the archive's directory in the volume; empty: the top")
	f.StringVar(&until.time, "until-time", "", "\"2026-11-30 18:20:05\" (local), 2026-11-30T18:20:05Z, or -2h")
	f.StringVar(&until.gtid, "until-gtid", "", "0-1-100, <uuid>:23 or <uuid>:<tag>:23")
	f.StringVar(&until.position, "until-position", "", "<file>:<offset>, or <epoch>/<file>:<offset>")
	f.Uint32Var(&serverID, "server-id", 4294967295, "the server id towards replicas, which must not be theirs")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		given := 0
		for _, s := range []string{until.time, until.gtid, until.position} {
			if s != "" {
				given++
			}
		}
		if given > 1 {
			return usage(errors.New("give one of --until-time, --until-gtid and --until-position"))
		}
		if o.listen == "" {
			return usage(errors.New("say where to listen with --listen host:port"))
		}
		so, err := o.options()
		if err != nil {
			return usage(err)
		}
		so.ServerID, so.UUID = serverID, uuid.NewString()
		so.Logger = slog.New(slog.NewTextHandler(a.stderr, nil))
		b, err := a.openBinlog(ctx, args[0], dir, false)
		if err != nil {
			return err
		}
		return errors.Join(a.replay(ctx, b, so, &o, until), b.v.close())
	})
}

// replay serves until the command is told to end.
func (a *app) replay(ctx context.Context, b *binlogArchive, so binlogfs.ServerOptions, o *serveOptions, until replayUntil) error {
	end, err := b.until(ctx, until)
	if err != nil {
		return err
	}
	if so.Archive, err = binlogfs.Cut(ctx, b, end); err != nil {
		return err
	}
	s, err := startServing(o.listen, so)
	if err != nil {
		return err
	}
	if until.time != "" {
		a.noteShort(b, end, "--until-time", "all of it is served")
	}
	err = a.say("serving the log up to %06d/%s:%d on %v", end.Epoch, end.File, end.Offset, s.addr)
	if err == nil {
		select {
		case <-ctx.Done():
		case <-s.ended:
		}
	}
	return errors.Join(err, s.close())
}

// noteShort says that an archive may lack what a time asks for, when it is found at
// its end; so is done what done says.
func (a *app) noteShort(b *binlogArchive, end binlogfs.Position, flag, done string) {
	if last, _ := b.End(); end != last {
		return
	}
	for _, f := range slices.Backward(b.Files()) {
		if !f.LastTime.IsZero() {
			a.note("the archive ends before %s, with a group of %s: %s", flag, showTime(f.LastTime), done)
			return
		}
	}
}

// untilTime is the end of the last group before a time.
func (b *binlogArchive) untilTime(ctx context.Context, t time.Time, last binlogfs.Position) (binlogfs.Position, error) {
	found, err := binlogfs.FindTime(ctx, b, t)
	if errors.Is(err, binlogfs.ErrNotFound) {
		return last, nil // it ends before
	}
	if err != nil {
		return last, err
	}
	first, err := binlogfs.FindTime(ctx, b, time.Unix(0, 0))
	if err != nil {
		return last, err
	}
	if found.Position == first.Position {
		return last, fmt.Errorf("%w: the first group of the archive, in %06d/%s, is of %s, and nothing lies before %s", binlogfs.ErrNotFound,
			first.Epoch, first.File, showTime(found.Time), showTime(t))
	}
	return found.Position, nil
}

// until finds the end of a replay.
func (b *binlogArchive) until(ctx context.Context, u replayUntil) (binlogfs.Position, error) {
	last, _ := b.End()
	switch {
	case u.gtid != "":
		found, err := b.findGTID(ctx, u.gtid)
		if err != nil {
			return last, err
		}
		return binlogfs.GroupEnd(ctx, b, found.Position)
	case u.time != "":
		t, err := parseMoment(u.time, time.Now())
		if err != nil {
			return last, usage(fmt.Errorf("the time to go to: %w", err))
		}
		return b.untilTime(ctx, t, last)
	case u.position != "":
		file, offset, ok := binlogfs.ParsePlace(u.position)
		if !ok {
			return last, usage(fmt.Errorf("--until-position %q is not like mysql-bin.000001:4", u.position))
		}
		f, err := b.named(ctx, file)
		if err != nil {
			return last, err
		}
		if offset == f.Size {
			return binlogfs.Position{Epoch: f.Epoch, File: f.Name, Offset: offset}, nil
		}
		found, err := binlogfs.FindPosition(ctx, b, f, offset)
		if err != nil {
			return last, err
		}
		return found.Position, nil
	}
	return last, nil
}
