package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cisternfs/cistern/fuse"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
)

const (
	// followPoint stands for a point in the mount table and in the registry,
	// where a mount follows its writer.
	followPoint = "follow"
	// followName is the directory, in a state directory, of what such a mount
	// keeps there: its index outlives it.
	followName = "follow"
)

// Prefixes of default state directories of read-only mounts.
const (
	pointPrefix  = "point-"
	followPrefix = "follow-"
)

// writerFlag is the first flag on the command line that only a mount that is
// written to has; empty: none. From the environment or a file they may come for
// others.
func (o *mountOptions) writerFlag() string {
	for _, name := range []string{"durability", "commit-interval", "journal-size", "upload-limit", "limit-reached", "takeover", "accept-lost-journal", "on-lease-lost", "wait"} {
		if _, given := o.onLine[name]; given {
			return name
		}
	}
	return ""
}

// refuseFlags fails for flags that don't go with the kind of mount.
func (o *mountOptions) refuseFlags() error {
	writer := o.writerFlag()
	_, interval := o.onLine["follow-interval"]
	switch {
	case writer != "" && o.t.point != "":
		return fmt.Errorf("--%s: a mount of the point %s is read-only and has no journal and no lease", writer, o.t.point)
	case writer != "" && o.follows:
		return fmt.Errorf("--%s: a mount with --read-only follows the volume's writer and has no journal and no lease", writer)
	case interval && !o.follows:
		return errors.New("--follow-interval: only a mount with --read-only, and without a point, follows the volume's writer")
	}
	return nil
}

// readOnlyState is the default state directory of a read-only mount: each mount
// point has its own, so that any number of them go side by side.
func (a *app) readOnlyState(prefix, what string) (string, error) {
	base, err := a.stateBase()
	if err != nil {
		return "", err
	}
	return filepath.Join(base, prefix+shortHash(what)), nil
}

// foreignState refuses a writer's state directory for a read-only mount.
func foreignState(state string) error {
	for _, name := range []string{ownerName, "journal"} {
		if _, err := os.Stat(filepath.Join(state, name)); !errors.Is(err, fs.ErrNotExist) {
			return usage(fmt.Errorf("state directory %s is that of a mount that is written to: choose another with --state", state))
		}
	}
	return nil
}

// preflightFollow finds what would make a mount that follows fail.
func (o *mountOptions) preflightFollow(ctx context.Context, s *store) error {
	if err := foreignState(o.state); err != nil {
		return err
	}
	if _, err := gateway.Summarize(ctx, s, o.t.url.String()); err != nil {
		return err
	}
	return probeLock(o.state)
}

// following is a volume that follows its writer, for the process that mounts it.
type following struct {
	f     *gateway.Follower
	state string
	every time.Duration
	lock  io.Closer
	log   *slog.Logger
}

// openFollowing brings the index that an earlier mount left, or a new one, to
// the writer's last commit.
func openFollowing(ctx context.Context, o *mountOptions, s *store, log *slog.Logger) (_ *following, err error) {
	if err := os.MkdirAll(o.state, 0o700); err != nil {
		return nil, usage(localError(o.state, err))
	}
	f := &following{state: o.state, every: o.follow.d, log: log}
	if f.lock, err = vfs.OS().Lock(filepath.Join(o.state, "lock")); err != nil {
		return nil, fmt.Errorf("state directory %s is in use by another mount or command: choose another with --state: %w", o.state, err)
	}
	f.f, err = gateway.OpenFollower(ctx, gateway.FollowOptions{
		Store: s, Keys: s.keys, URL: o.t.url.String(), FS: vfs.OS(), Dir: filepath.Join(o.state, followName), OpenKV: openKV(log),
		Cache: o.cache.Bytes, KeepFree: keepFree, Fetches: s.requests.downloads, Interval: o.follow.d, Logger: log,
	})
	if err != nil {
		return nil, errors.Join(err, f.lock.Close())
	}
	return f, nil
}

// mount mounts the volume and begins to follow.
func (f *following) mount(ctx context.Context, dir string, o fuse.Options) (*fuse.Server, error) {
	o.CacheTimeout = f.every
	s, err := fuse.MountFollower(ctx, f.f, dir, o)
	if err == nil {
		f.f.Start(s)
	}
	return s, err
}

func (f *following) calls(func(gateway.InodeID, string)) calls {
	return &followService{viewService{reading: reading{followTree{f.f}}}, f.f}
}

func (*following) pinned() *pointStatus { return nil }

// Status is the engine's, with what is the mount's.
func (f *following) Status() gateway.Status {
	s := f.f.Status()
	s.StateDir, s.Durability = f.state, "none: read-only"
	return s
}

func (f *following) ObjectSize() int64 { return f.f.View().Doc().ObjectSize }

// Close ends following. The index stays, for the next mount.
func (f *following) Close(context.Context) error {
	return errors.Join(f.f.Close(), f.lock.Close())
}

// followTree is the last commit that a follower has moved to.
type followTree struct{ f *gateway.Follower }

func (t followTree) inode(ctx context.Context, ino gateway.InodeID) (*gateway.Inode, error) {
	defer t.f.Hold()()
	return viewTree{t.f.View()}.inode(ctx, ino)
}

func (t followTree) child(ctx context.Context, dir gateway.InodeID, name string) (*gateway.Inode, error) {
	defer t.f.Hold()()
	return viewTree{t.f.View()}.child(ctx, dir, name)
}

func (t followTree) names(ctx context.Context, dir gateway.InodeID, fn func(metadata.Dentry) bool) error {
	defer t.f.Hold()()
	return viewTree{t.f.View()}.names(ctx, dir, fn)
}

func (t followTree) open(_ context.Context, n *gateway.Inode) (file, error) {
	defer t.f.Hold()()
	f, err := t.f.View().Open(n.ID)
	if err != nil {
		return nil, err // not f: a nil pointer in an interface is not nil
	}
	return f, nil
}

func (t followTree) index() *metadata.Index { return t.f.View().Index() }

// followService answers commands about a mount that follows.
type followService struct {
	viewService
	f *gateway.Follower
}

func (s *followService) sync(context.Context) (metadata.CommitID, error) {
	return s.f.Head().CommitID, nil
}

func (s *followService) check(context.Context, checkRequest, func(checkEvent) error) (checkResult, error) {
	return checkResult{}, usage(errors.New("a mount that follows its writer moves on while it is checked: give the volume's URL"))
}

func (s *followService) close(context.Context) error { return nil }

// overdue says what is wrong with a mount that is too far behind; empty: nothing.
func overdue(f *gateway.FollowStatus) string {
	if f == nil || !f.Overdue {
		return ""
	}
	why := f.Error
	if why == "" {
		why = "its looks take too long"
	}
	return fmt.Sprintf("not the writer's last commit since %s, which is longer than the retention: what is not in the cache may be deleted: %s",
		time.Duration(f.LagSeconds*float64(time.Second)).Round(time.Second), why)
}

// writeFollowStatus writes the status of a mount that follows.
func writeFollowStatus(w io.Writer, s *mountStatus) {
	row := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	f := s.Follow
	row("volume", "%s", s.Volume)
	row("url", "%s", s.URL)
	row("mounted", "on %s since %s, process %d", s.MountPoint.shown(), s.Started.Format(time.RFC3339), s.PID)
	row("state", "%s", s.StateDir)
	row("health", "%s", healthText(s))
	row("follows", "the writer, every %v, read-only", time.Duration(f.IntervalSeconds*float64(time.Second)))
	row("commit", "%s of %s", s.Commit, s.CommitTime.Format(time.RFC3339))
	row("lag", "%.1f s, %s", f.LagSeconds, count(f.LagCommits, "commit"))
	row("used", "%s in %s", size(s.UsedBytes), count(s.Inodes, "inode"))
	row("cache", "%s of %s, %s, %s", size(s.Cache.Allocated), size(s.Cache.Limit), count(s.Cache.Hits, "hit"), count(s.Cache.Misses, "miss"))
	row("traffic", "%s fetched, state loaded anew %s", size(s.Fetched), count(f.Rebuilds, "time"))
	if f.Error != "" {
		since := ""
		if f.ErrorSince != nil {
			since = " (since " + f.ErrorSince.Format(time.RFC3339) + ")"
		}
		row("follow error", "%s%s", strings.ReplaceAll(f.Error, "\n", "; "), since)
	}
	for _, e := range [][2]string{{"store error", s.StoreError}, {"cache error", s.Cache.Error}} {
		if e[1] != "" {
			row(e[0], "%s", strings.ReplaceAll(e[1], "\n", "; "))
		}
	}
	if s.Damage > 0 {
		row("damage", "seen %s: `cistern check --data` of the volume's URL names it", count(s.Damage, "time"))
	}
}

// writeFollowTop writes a picture of `cistern top` of such a mount.
func writeFollowTop(w io.Writer, f *topFrame) {
	s, r := &f.Status, &f.Rates
	fmt.Fprintf(w, "%s\ton %s\t%s\n", s.URL, s.MountPoint.shown(), healthText(s))
	fmt.Fprintf(w, "follows\tcommit %s\tlag %.1f s\t%s\tread-only\n", s.Commit, s.Follow.LagSeconds, count(s.Follow.LagCommits, "commit"))
	fmt.Fprintf(w, "fetched\t%s/s\t%.1f GET/s\tcache %s of %s, %.0f %% hits\n", size(int64(r.Fetched)), r.Fetches, size(s.Cache.Allocated), size(s.Cache.Limit), 100*r.Hits)
	fmt.Fprintf(w, "used\t%s\t%s\n", size(s.UsedBytes), count(s.Inodes, "inode"))
}

// keepEndedState is how long the log, and the index, of a read-only mount that
// has ended stay in its default state directory.
const keepEndedState = 7 * 24 * time.Hour

// sweepStates removes what read-only mounts that have ended left in their
// default state directories: caches at once, the rest after a while. One that
// can't be swept is left to the next mount.
func (a *app) sweepStates(log *slog.Logger) {
	base, err := a.stateBase()
	if err != nil {
		return // there are no default ones
	}
	list, err := os.ReadDir(base)
	if err != nil {
		return // nobody has mounted anything
	}
	for _, e := range list {
		if !strings.HasPrefix(e.Name(), pointPrefix) && !strings.HasPrefix(e.Name(), followPrefix) {
			continue
		}
		if err := sweepState(filepath.Join(base, e.Name()), time.Now()); err != nil && !errors.Is(err, vfs.ErrLocked) {
			log.Warn("what an ended mount left stays", "state", e.Name(), "error", err)
		}
	}
}

// sweepState sweeps the state directory of a read-only mount; ErrLocked when it
// is in use.
func sweepState(dir string, now time.Time) error {
	lock := filepath.Join(dir, "lock")
	st, err := os.Stat(filepath.Join(dir, logName))
	if errors.Is(err, fs.ErrNotExist) {
		st, err = os.Stat(dir)
	}
	if err != nil {
		return localError(dir, err)
	}
	var paths []string
	for _, name := range []string{fixedName, filepath.Join(followName, "cache"), followName, logName, socketName} {
		paths = append(paths, filepath.Join(dir, name))
	}
	old := now.Sub(st.ModTime()) > keepEndedState
	if !old {
		paths = slices.DeleteFunc(paths[:2], func(path string) bool {
			_, err := os.Lstat(path)
			return errors.Is(err, fs.ErrNotExist)
		})
	}
	if len(paths) == 0 {
		return nil // and no lock is taken, which a mount that begins would meet
	}
	l, err := vfs.OS().Lock(lock)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range paths {
		errs = append(errs, os.RemoveAll(path))
	}
	if old {
		errs = append(errs, os.Remove(lock), os.Remove(dir))
	}
	return errors.Join(append(errs, l.Close())...)
}
