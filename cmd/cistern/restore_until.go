package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/pflag"

	"github.com/cisternfs/cistern/binlogfs"
)

// untilFlags say up to where a restored database goes on.
type untilFlags struct {
	time, gtid string
	binlog     string // the archive's volume
	binlogDir  string
	datadir    string // in the volume
	server     string // the program
	defaults   string // its option file
}

func (u *untilFlags) add(f *pflag.FlagSet) {
	f.StringVar(&u.time, "to-time", "", "go on with the binary log up to this time: \"2026-11-30 18:20:05\" (local), 2026-11-30T18:20:05Z, or -2h")
	f.StringVar(&u.gtid, "to-gtid", "", "go on with the binary log up to and with this transaction")
	f.StringVar(&u.binlog, "binlog", "", "the volume with the archive of the binary log, perhaps @point")
	f.StringVar(&u.binlogDir, "binlog-dir", "", "the archive's directory in its volume; empty: the top")
	f.StringVar(&u.datadir, "datadir", "", "the database directory in the volume (default: the only one)")
	f.StringVar(&u.server, "server", "mariadbd", "the database server's program, of the version that wrote the directory")
	f.StringVar(&u.defaults, "server-defaults", "", "option file for the server (default: none)")
}

func (u *untilFlags) set() bool { return u.time != "" || u.gtid != "" }

// check refuses flags that do not go together.
func (u *untilFlags) check() error {
	switch {
	case !u.set() && u.binlog == "":
		return nil
	case u.time != "" && u.gtid != "":
		return usage(errors.New("give one of --to-time and --to-gtid"))
	case !u.set():
		return usage(errors.New("--binlog needs --to-time or --to-gtid"))
	case u.binlog == "":
		return usage(errors.New("--to-time and --to-gtid need --binlog, the volume with the archive of the binary log"))
	}
	if _, err := exec.LookPath(u.server); err != nil {
		return usage(fmt.Errorf("--server %s: %w", u.server, errors.Unwrap(err)))
	}
	return nil
}

// untilPlan is a recovery of which all is known before anything is changed.
type untilPlan struct {
	db      *database
	log     *binlogArchive
	archive binlogfs.Archive // up to the point
	end     binlogfs.Position
	target  *binlogfs.GTIDState
}

// close gives the archive back. Nothing happens for nil.
func (p *untilPlan) close() error {
	if p == nil {
		return nil
	}
	return p.log.v.close()
}

// planUntil finds the database and the point, and makes sure that the log leads from
// one to the other.
func (a *app) planUntil(ctx context.Context, t target, n uint64, u *untilFlags) (_ *untilPlan, err error) {
	dir, err := cleanPath(u.datadir)
	if err != nil {
		return nil, err
	}
	v, err := a.openView(ctx, target{url: t.url, point: strconv.FormatUint(n, 10)})
	if err != nil {
		return nil, err
	}
	p := &untilPlan{}
	p.db, err = findDatabase(ctx, reading{viewTree{v.View}}, dir, math.MaxInt64)
	if err = errors.Join(err, v.close()); err != nil {
		return nil, fmt.Errorf("%s@%d: %w; name it with --datadir", t.url, n, err)
	}
	if p.log, err = a.openBinlog(ctx, u.binlog, u.binlogDir, false); err != nil {
		return nil, err
	}
	if err := p.find(ctx, u); err != nil {
		return nil, errors.Join(err, p.close())
	}
	if u.time != "" {
		a.noteShort(p.log, p.end, "--to-time", "what the source wrote after that is not brought back")
	}
	return p, nil
}

func (p *untilPlan) find(ctx context.Context, u *untilFlags) (err error) {
	if p.log.State() == nil {
		return fmt.Errorf("%s has no binary log yet", u.binlog)
	}
	if p.end, err = p.log.until(ctx, replayUntil{time: u.time, gtid: u.gtid}); err != nil {
		return err
	}
	if p.archive, err = binlogfs.Cut(ctx, p.log, p.end); err != nil {
		return err
	}
	p.target = p.archive.State()
	if p.target.Flavor() != binlogfs.MariaDB {
		return usage(fmt.Errorf("%s has the log of a MySQL server: restore without --to-time, start the server and let it replicate from `cistern binlog replay`", u.binlog))
	}
	if p.db.state == nil {
		return nil // the server knows where it is
	}
	return p.reachable(p.db.state)
}

// reachable refuses a point that lies before the state to begin with.
func (p *untilPlan) reachable(from *binlogfs.GTIDState) error {
	for _, d := range from.Domains() {
		if have, want := from.Last(d), p.target.Last(d); have.Number > want.Number {
			return usage(fmt.Errorf("the state to begin with has %s, and the log has %s at the point to go to: choose an earlier snapshot or commit", have, orDash(want.String())))
		}
	}
	return nil
}

// errNowhere: it is not known where in the log a restored database is.
var errNowhere = errors.New("the place of the restored database in the log is not known")

// located refuses a server that knows nothing of where it is: its binary log lies
// elsewhere, and with the whole log replayed it would have everything twice.
func (p *untilPlan) located(at *binlogfs.GTIDState) error {
	if p.db.state != nil || !at.Empty() {
		return nil
	}
	return fmt.Errorf("%w, and nothing was replayed: it has no binary log beside its data and has replicated nothing; start its server, set gtid_slave_pos to where it was, and let it replicate from `cistern binlog replay`", errNowhere)
}

// untilLine is how far a recovery got, for JSON.
type untilLine struct {
	From string `json:"from_gtid"` // where the restored state was
	GTID string `json:"gtid"`      // where it is now
	File string `json:"file"`      // of the archive
	End  int64  `json:"offset"`    // in it
	// Commit is the volume's last: the database as it was stopped.
	Commit uint64 `json:"commit"`
}

func (l *untilLine) say(a *app) error {
	return a.say("the database went on from %s to %s, which is %s:%d of the log, and was stopped: commit %d", orDash(l.From), orDash(l.GTID), l.File, l.End, l.Commit)
}

// recoverUntil starts a private server on the restored directory and lets it
// replicate up to the point.
func (a *app) recoverUntil(ctx context.Context, t target, u *untilFlags, p *untilPlan) (*untilLine, error) {
	m, err := a.mountPrivately(ctx, t.url.String())
	if err != nil {
		return nil, err
	}
	l, err := a.replicate(ctx, m.dir.path, filepath.Join(m.mnt, filepath.FromSlash(string(p.db.Dir))), u, p)
	return l, errors.Join(err, m.end(ctx))
}

// replicate serves the archive up to the point and drives the server.
func (a *app) replicate(ctx context.Context, dir, data string, u *untilFlags, p *untilPlan) (_ *untilLine, err error) {
	user := binlogfs.User{Name: "cistern-restore", Password: rand.Text(), Auth: binlogfs.AuthNative}
	s, err := startServing("127.0.0.1:0", binlogfs.ServerOptions{
		Archive: p.archive, Users: []binlogfs.User{user}, ServerID: replayServerID, UUID: uuid.NewString(),
		MaxConnections: 8, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	m, err := startPrivate(ctx, privateOptions{
		dir: filepath.Join(dir, privateServerDir), data: data, program: u.server, defaults: u.defaults, log: p.db.Log, owner: p.db.owner,
	})
	if err != nil {
		return nil, err
	}
	from, at, err := m.recover(ctx, s.addr.String(), user, p, a)
	if serr := m.stop(ctx, err == nil); serr != nil {
		err = errors.Join(err, serr)
	}
	if err != nil {
		return nil, err
	}
	return &untilLine{From: from, GTID: at, File: p.end.File, End: p.end.Offset}, nil
}

// replayServerID is the server id of a replay towards the private server.
const replayServerID = 4294967295

// recoverTick is how often the server is asked how far it is.
const recoverTick = 100 * time.Millisecond
