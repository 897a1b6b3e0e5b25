package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/progress"
	"github.com/cisternfs/cistern/metadata"
)

// restoreFlags are what a user says of a restore.
type restoreFlags struct {
	keep     string
	takeover bool
	json     bool
	until    untilFlags
}

func (a *app) restoreCommand() *cobra.Command {
	var f restoreFlags
	c := &cobra.Command{
		Use: "restore <vol>@<point> [path…]", Short: "Go back to an earlier state, whole or in part", Args: cobra.MinimumNArgs(1),
		Long: `Rolls a volume back to a snapshot, a commit or a time, in place and in one step.
What is replaced stays as a snapshot. The volume must not be mounted meanwhile.

With paths only these come back, as copies that share objects with the past,
also on a mounted volume; what has a path open keeps what it had.

With --to-time or --to-gtid the database directory in the volume goes on from
there: a private server starts on it and replicates from the archive of its
binary log (--binlog) up to that point, and is stopped again.`,
	}
	c.Flags().StringVar(&f.keep, "keep", "", "name of the snapshot of what is replaced (default: before-restore-<time>)")
	c.Flags().BoolVar(&f.takeover, "takeover", false, "take the volume at once from its owner, which is fenced if it lives")
	c.Flags().BoolVar(&f.json, "json", false, "one JSON document")
	f.until.add(c.Flags())
	c.ValidArgsFunction = completeVolume
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		return a.restore(ctx, args[0], args[1:], &f)
	})
}

// restoreLine is what a restore of a whole volume did, for JSON.
type restoreLine struct {
	Commit   uint64       `json:"commit"`             // that holds what was restored
	Restored uint64       `json:"restored_commit"`    // the commit that it went back to
	Time     time.Time    `json:"restored_time"`      // of that one
	Snapshot snapshotLine `json:"replaced"`           // what was the present before
	Revived  int          `json:"revived,omitempty"`  // objects and segments that are in use again
	Died     int          `json:"died,omitempty"`     // and those that only the snapshot needs now
	Paths    []pathLine   `json:"paths,omitempty"`    // instead of the three above
	Reached  *untilLine   `json:"recovery,omitempty"` // with --to-time or --to-gtid
}

// pathLine is what came back of one path.
type pathLine struct {
	Path text `json:"path"`
	gateway.RestoredPath
}

func (a *app) restore(ctx context.Context, arg string, names []string, f *restoreFlags) error {
	t, err := a.resolve(arg)
	if err != nil {
		return err
	}
	if t.point == "" || t.follows {
		return usage(fmt.Errorf("%s: say what to go back to, as in %s@-15m or with a snapshot's name", arg, t.url))
	}
	if err := f.until.check(); err != nil {
		return err
	}
	if len(names) > 0 && f.until.set() {
		return usage(errors.New("--to-time and --to-gtid are for the whole volume: give no paths"))
	}
	if f.keep == "" {
		f.keep = gateway.PresentName(time.Now())
	} else if err := gateway.CheckNewName(f.keep); err != nil {
		return usage(err)
	}
	for i := range names {
		if names[i], err = cleanPath(names[i]); err != nil {
			return err
		}
		if names[i] == "" {
			return usage(errors.New("the top directory is restored as a whole: give no path"))
		}
	}
	if err := a.sweepRestores(ctx); err != nil {
		return err
	}
	s, err := a.openVolume(ctx, t.url)
	if err != nil {
		return err
	}
	if _, err := gateway.ReadVolumeDoc(ctx, s, t.url.String()); err != nil {
		return err
	}
	n, err := resolvePoint(ctx, s, t)
	if err != nil {
		return err
	}
	here := target{url: t.url, mount: t.mount}
	if t.fixed {
		here.mount = "" // the mount shows the past
	}
	var l restoreLine
	if len(names) > 0 {
		l, err = a.restorePaths(ctx, here, n, names, f)
	} else {
		l, err = a.restoreWhole(ctx, s, here, n, f)
	}
	if err != nil {
		return snapshotError(err)
	}
	return a.sayRestored(&l, f)
}

func (a *app) sayRestored(l *restoreLine, f *restoreFlags) error {
	if f.json {
		return a.printJSON(l)
	}
	for i := range l.Paths {
		p := &l.Paths[i]
		err := a.say("/%s is back as of commit %d: %s and %d others; %s shared, %s copied", p.Path.shown(), l.Restored, count(int(p.Files), "file"), p.Others, size(p.Shared), size(p.Copied))
		if err != nil {
			return err
		}
	}
	if l.Paths == nil {
		if err := a.say("commit %d is as commit %d of %s was", l.Commit, l.Restored, snapshotTime(l.Time)); err != nil {
			return err
		}
	}
	if l.Reached != nil {
		if err := l.Reached.say(a); err != nil {
			return err
		}
	}
	return a.say("what was there before is snapshot %s, commit %d", l.Snapshot.Name, l.Snapshot.Commit)
}

// restoreHolder says in a pin who holds it.
func restoreHolder(what string) string {
	return fmt.Sprintf("%s, process %d: %s", gateway.HostOwner("").Host, os.Getpid(), what)
}

// pinned keeps a commit alive while f runs. A pin that can't be deleted afterwards is
// no failure of f and ends by itself: stays is told of it.
func pinned(ctx context.Context, s *store, url string, n uint64, stays func(error), f func(ctx context.Context) error) error {
	p, err := gateway.PinCommit(ctx, gateway.PinOptions{
		Store: s, URL: url, Kind: gateway.PinMount, Name: "restore", Commit: n, Lifetime: pinLifetime, Holder: restoreHolder("restore"),
	})
	if err != nil {
		return err
	}
	kctx, stop := context.WithCancel(ctx)
	kept := make(chan struct{})
	go func() {
		defer close(kept)
		p.Keep(kctx, quietLogger())
	}()
	err = f(ctx)
	stop()
	<-kept
	rctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unpinWait)
	defer cancel()
	if rerr := p.Release(rctx); rerr != nil {
		stays(rerr)
	}
	return err
}

// pinStays tells of a pin that could not be deleted.
func (a *app) pinStays(err error) {
	a.note("the pin that the restore had stays and ends by itself within %v: %v", pinLifetime, err)
}

// restoreWhole rolls the volume back as its owner for the moment.
func (a *app) restoreWhole(ctx context.Context, s *store, t target, n uint64, f *restoreFlags) (l restoreLine, err error) {
	c, p, err := a.findOwner(ctx, t)
	if err != nil {
		return l, err
	}
	if c != nil {
		return l, fmt.Errorf("%w: %s is mounted at %s by process %d, and is restored as a whole only when it is not: stop what uses it, `cistern umount %s`, restore and mount it again; or give the paths that are to come back",
			gateway.ErrOwned, t.url, p.MountPoint.shown(), p.PID, p.MountPoint.shown())
	}
	var plan *untilPlan
	if f.until.set() {
		if plan, err = a.planUntil(ctx, t, n, &f.until); err != nil {
			return l, err
		}
		defer func() { err = errors.Join(err, plan.close()) }()
	}
	err = pinned(ctx, s, t.url.String(), n, a.pinStays, func(ctx context.Context) error {
		o, err := a.openOwn(ctx, t, f.takeover)
		if err != nil {
			return err
		}
		l, err = a.rollBack(ctx, s, o.(*ownService), n, f)
		return finish(ctx, o, err)
	})
	if err != nil && l.Commit != 0 {
		err = fmt.Errorf("commit %d is as commit %d was, and what was there before is snapshot %s: %w", l.Commit, l.Restored, l.Snapshot.Name, err)
	}
	if err != nil || plan == nil {
		return l, err
	}
	l.Reached, err = a.recoverUntil(ctx, t, &f.until, plan)
	if err == nil {
		var now *gateway.Summary
		if now, err = gateway.Summarize(ctx, s, t.url.String()); err == nil {
			l.Reached.Commit = now.Head.ID.N
		}
	}
	if err != nil {
		err = fmt.Errorf("commit %d is as commit %d was, but the database did not get to the point that was asked for; what was there before is snapshot %s: %w",
			l.Commit, l.Restored, l.Snapshot.Name, err)
	}
	return l, err
}

func (a *app) rollBack(ctx context.Context, s *store, o *ownService, n uint64, f *restoreFlags) (l restoreLine, err error) {
	info, err := gateway.FindCommit(ctx, s, n, o.url)
	if err != nil {
		return l, err
	}
	kv, dir, err := viewKV(&info)
	if err != nil {
		return l, err
	}
	r, err := o.v.Restore(ctx, gateway.RestoreOptions{
		Commit: n, KV: kv, Keep: gateway.SnapshotOptions{Name: f.keep, Holder: restoreHolder("before a restore"), Database: volumeDatabase(o.v)},
	})
	if derr := dir.remove(); derr != nil { // what was restored is restored
		a.note("a temporary index stays: %v", derr)
	}
	if err != nil {
		return l, err
	}
	return restoreLine{
		Commit: r.Commit.N, Restored: n, Time: time.Unix(0, r.Then.Time).UTC(), Snapshot: snapshotLineOf(&r.Replaced), Revived: r.Revived, Died: r.Died,
	}, nil
}

// restoreEvent is one thing that happens while paths come back.
type restoreEvent struct {
	Done  int64     `json:"done,omitempty"`
	Total int64     `json:"total,omitempty"`
	Path  *pathLine `json:"path,omitempty"`
}

// restorePaths brings single paths back, over the volume's owner on this machine
// or as its owner for the moment.
func (a *app) restorePaths(ctx context.Context, t target, n uint64, names []string, f *restoreFlags) (l restoreLine, err error) {
	where := t.url.String()
	if t.mount != "" {
		where = t.mount
	}
	l.Restored = n
	if err := a.wereThere(ctx, t, n, names); err != nil {
		return l, err
	}
	l.Snapshot, err = a.makeSnapshot(ctx, where, gateway.SnapshotOptions{Name: f.keep, Holder: restoreHolder("before a restore")}, false, 0)
	if err != nil {
		return l, err
	}
	s, _, err := a.writer(ctx, where, f.takeover)
	if err != nil {
		return l, fmt.Errorf("%w; nothing was restored, and snapshot %s of what is there was made", err, l.Snapshot.Name)
	}
	bar := progress.Start(a.stderr, a.terminal, "restore", 0)
	emit := func(e restoreEvent) error {
		if e.Path != nil {
			l.Paths = append(l.Paths, *e.Path)
		} else {
			bar.Set(e.Done, e.Total)
		}
		return nil
	}
	if o, ok := s.(*ownService); ok {
		var st *store
		if st, err = a.openVolume(ctx, t.url); err == nil {
			err = o.live.restorePaths(ctx, st, o.url, n, names, a.pinStays, emit)
		}
	} else {
		err = s.(*remote).restorePaths(ctx, n, names, emit)
	}
	bar.Done(err == nil)
	if err == nil {
		var head metadata.CommitID
		head, err = s.sync(ctx)
		l.Commit = head.N
	}
	if err = finish(ctx, s, err); err != nil {
		err = fmt.Errorf("%w; what was there before is snapshot %s", err, l.Snapshot.Name)
	}
	return l, err
}

// wereThere fails when one of the paths was not there at a commit, before anything
// is changed.
func (a *app) wereThere(ctx context.Context, t target, n uint64, names []string) error {
	v, err := a.openView(ctx, target{url: t.url, point: strconv.FormatUint(n, 10)})
	if err != nil {
		return err
	}
	for _, name := range names {
		if _, serr := v.Lookup(name); serr != nil && err == nil {
			err = pathError(name, fmt.Errorf("%w at commit %d", serr, n))
		}
	}
	return errors.Join(err, v.close())
}

// restorePaths brings paths of the volume in this process back.
func (l *live) restorePaths(ctx context.Context, s *store, url string, n uint64, names []string, stays func(error), emit func(restoreEvent) error) error {
	return pinned(ctx, s, url, n, stays, func(ctx context.Context) (err error) {
		info, err := gateway.FindCommit(ctx, s, n, url)
		if err != nil {
			return err
		}
		kv, dir, err := viewKV(&info)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, dir.remove()) }()
		v, err := gateway.OpenView(ctx, gateway.ViewOptions{Store: s, Keys: s.keys, URL: url, KV: kv, Commit: n})
		if err != nil {
			return errors.Join(err, kv.Close())
		}
		defer func() { err = errors.Join(err, v.Close()) }()
		for _, name := range names {
			var told time.Time
			var gone error // nobody listens any more
			r, err := l.v.RestorePath(ctx, gateway.RestorePathOptions{View: v, Path: name, Changed: l.changed, Progress: func(done, total int64) {
				if time.Since(told) > time.Second/5 && gone == nil {
					told = time.Now()
					gone = emit(restoreEvent{Done: done, Total: total})
				}
			}})
			if err != nil {
				return err
			}
			if err := emit(restoreEvent{Path: &pathLine{Path: text(name), RestoredPath: r}}); err != nil {
				return err
			}
		}
		// What is shared with the past needs the pin until it is committed.
		_, err = l.v.Sync(ctx)
		return err
	})
}

func (r *remote) restorePaths(ctx context.Context, n uint64, names []string, emit func(restoreEvent) error) error {
	q := url.Values{"commit": {strconv.FormatUint(n, 10)}, "path": names}
	return r.c.Stream(ctx, http.MethodPost, "/v1/restore", q, func(item json.RawMessage) error {
		var e restoreEvent
		if err := json.Unmarshal(item, &e); err != nil {
			return fmt.Errorf("the mount's answer is not understood: %w", err)
		}
		return emit(e)
	})
}

// restorePaths serves the same to a command.
func (m *mountProcess) restorePaths(ctx context.Context, s calls, n uint64, names []string, emit func(restoreEvent) error) error {
	l, ok := s.(*live)
	if !ok {
		return errReadsOnly
	}
	for i := range names {
		var err error
		if names[i], err = cleanPath(names[i]); err != nil {
			return err
		}
	}
	stays := func(err error) {
		m.log.Warn("a restore's pin stays and counts until it ends by itself", "within", pinLifetime, "error", err)
	}
	return l.restorePaths(ctx, m.store, m.o.t.url.String(), n, names, stays, emit)
}
