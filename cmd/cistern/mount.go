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
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cisternfs/cistern/fuse"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/config"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/objstore"
)

// choice is a flag with a few possible values.
type choice struct {
	value string
	of    []string
}

func (c *choice) Set(s string) error {
	for _, v := range c.of {
		if s == v {
			c.value = s
			return nil
		}
	}
	return fmt.Errorf("choose %s", strings.Join(c.of, " or "))
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return strings.Join(c.of, "|") }

// durability is the flag of that name.
type durability struct{ gateway.Durability }

func (d *durability) Set(s string) (err error) {
	d.Durability, err = gateway.ParseDurability(s)
	return err
}

func (d *durability) Type() string { return "local|bucket|lag=time" }

// interval is a flag with a length of time between bounds.
type interval struct {
	d        time.Duration
	min, max time.Duration
}

func (i *interval) Set(s string) error {
	d, err := config.ParseLength(s)
	switch {
	case err != nil:
		return err
	case d < i.min || d > i.max:
		return fmt.Errorf("it must be %v to %v", i.min, i.max)
	}
	i.d = d
	return nil
}

// String is empty for zero, so that the help shows no default that is none.
func (i *interval) String() string {
	if i.d == 0 {
		return ""
	}
	return i.d.String()
}

func (i *interval) Type() string { return "time" }

// leastBandwidth is the least that a mount can be limited to, in bytes per
// second: with less no commit is done in time.
const leastBandwidth = 64 << 10

// mountOptions are what `cistern mount` was told.
type mountOptions struct {
	t           target
	commit      uint64 // of a point
	dir         string
	state       string
	usualState  bool // it was not told
	durability  durability
	interval    interval
	cache       config.Size
	journal     config.Size
	upload      config.Size // bytes per second; 0: no limit
	download    config.Size
	limit       choice
	leaseLost   choice
	wait        interval // for an owner; counts when waitSet
	waitSet     bool
	takeover    bool
	lostJournal bool
	readOnly    bool
	follows     bool // read-only, and without a point
	follow      interval
	metrics     string
	foreground  bool
	logFile     string
	readyFD     int
	kernel      []string // of -o
	fuse        fuse.Options
	onLine      map[string]string // flags that the command line gave
	argv        []string          // for the mount's process; nil: this process's own
	dbroots     []string          // to mount; empty: as the file says
	dbroot      string            // the one of them that this process serves
	objectSize  int64             // that the file expects; 0: any

	relay *relayOptions // of a process with a binary log relay; nil for none
}

func (a *app) mountCommand() *cobra.Command {
	o := newMountOptions()
	c := &cobra.Command{
		Use: "mount <url>[@point] <dir> | --config <storagemanager.cnf> <dir>", Short: "Show a volume as a directory", Args: cobra.RangeArgs(1, 2),
		Long: `Shows a volume as a directory and returns when it is ready to serve.

With a point it shows the volume as it was then, read-only: the number of a
commit, a time like 2026-01-31T12:00:00Z, or a time back like -15m, which mean
the last commit at or before that. It takes neither the lease nor anything from
the volume's writer, and keeps its commit in the bucket by a pin while it lives.

With --read-only, or -o ro, and without a point it follows the volume's writer,
wherever that is: it shows the last commit, looks for the next one every
--follow-interval, and needs nothing but permission to read.

With a directory alone it mounts the DBRoots of ColumnStore that the file named
by --config, a storagemanager.cnf, tells of, each as a volume of its own: on
<dir>/data1, <dir>/data2 and so on, or one of them on <dir>, as the file's
common_prefix_depth says. What can't be mounted is told, and the others stay.
SIGHUP makes a mount read the file anew: the size of the cache, parallel
requests and bandwidth.

Settings come from flags, then from the environment (CISTERN_CACHE_SIZE for
--cache-size), then from the section [mount] of the file that --config names.
SIGTERM and SIGINT unmount; a second one leaves what is not committed in the
journal, from where the next mount with the same state directory goes on.`,
	}
	o.mountFlags(c.Flags())
	return a.longCommand(c, func(ctx context.Context, c *cobra.Command, args []string) error {
		if len(args) == 1 && !strings.Contains(args[0], "://") {
			return a.mountDBRoots(ctx, c, o, args[0])
		}
		if len(args) == 1 {
			return a.tellParent(o, usage(fmt.Errorf("%s: say on which directory to mount it", args[0])))
		}
		return a.mountVolume(ctx, c, o, args)
	})
}

// mountVolume mounts one volume: its URL and the directory.
func (a *app) mountVolume(ctx context.Context, c *cobra.Command, o *mountOptions, args []string) error {
	return a.serveVolume(ctx, o, a.mountSettings(c, o, args))
}

// serveVolume serves what the options tell of, here or in a process of its own; err is
// what is wrong with them.
func (a *app) serveVolume(ctx context.Context, o *mountOptions, err error) error {
	if err != nil {
		return a.tellParent(o, usage(err))
	}
	if err := a.preflight(ctx, o); err != nil {
		return a.tellParent(o, err)
	}
	if !o.foreground {
		return a.mountDaemon(o)
	}
	return a.mountForeground(ctx, o)
}

// newMountOptions returns the defaults.
func newMountOptions() *mountOptions {
	return &mountOptions{
		wait:     interval{max: 7 * 24 * time.Hour},
		interval: interval{d: time.Second, min: 10 * time.Millisecond, max: time.Hour},
		follow:   interval{d: time.Second, min: 10 * time.Millisecond, max: time.Hour},
		cache:    config.Size{Bytes: 2 << 30, Min: 16 << 20}, journal: config.Size{Bytes: 1 << 30, Min: 4 << 20},
		upload: config.Size{Min: leastBandwidth}, download: config.Size{Min: leastBandwidth},
		limit: choice{"wait", []string{"wait", "enospc"}}, leaseLost: choice{"continue", []string{"continue", "stop"}},
	}
}

// mountFlags adds those of `cistern mount`.
func (o *mountOptions) mountFlags(f *pflag.FlagSet) {
	o.flags(f)
	f.BoolVar(&o.readOnly, "read-only", false, "follow the volume's writer instead of being it")
	f.Var(&o.follow, "follow-interval", "time between looks for the writer's next commit")
	f.StringArrayVar(&o.dbroots, "dbroot", nil, "without a URL: mount this DBRoot (data1, …), several times for several (default: those of the file, else all that there are)")
	f.StringVar(&o.dbroot, "one-dbroot", "", "")
	f.Lookup("one-dbroot").Hidden = true
}

// flags adds those of every process that serves a volume.
func (o *mountOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.state, "state", "", "state directory: journal, cache, index (default: one of the volume's own)")
	f.Var(&o.durability, "durability", "what fsync waits for: the local journal, the bucket, or the bucket when it is too far behind")
	f.Var(&o.interval, "commit-interval", "time between commits while something changes")
	f.Var(&o.cache, "cache-size", "limit of the local cache")
	f.Var(&o.journal, "journal-size", "limit of the local journal")
	f.Var(&o.upload, "upload-limit", "bytes of bodies stored in a second (default: no limit)")
	f.Var(&o.download, "download-limit", "bytes of bodies read in a second (default: no limit)")
	f.Var(&o.limit, "limit-reached", "what writers get when journal or memory is full")
	f.Var(&o.wait, "wait", "how long to wait for an owner, also one that renews its lease; 0: fail at once (default: 15s of an owner that is silent)")
	f.BoolVar(&o.takeover, "takeover", false, "take the volume at once from its owner, which is fenced if it lives")
	f.BoolVar(&o.lostJournal, "accept-lost-journal", false, "mount although the journal is lost, and what only it had")
	f.Var(&o.leaseLost, "on-lease-lost", "what writers do while the lease can't be renewed")
	f.StringVar(&o.metrics, "metrics-addr", "", "serve /metrics and /healthz on this host:port")
	f.BoolVar(&o.foreground, "foreground", false, "stay in the foreground and log to standard error")
	f.StringVar(&o.logFile, "log-file", "", "log of the mount (default: mount.log in the state directory)")
	if o.relay == nil { // a relay's directory has none
		f.StringArrayVarP(&o.kernel, "options", "o", nil, "mount options, as mount(8) takes them")
	}
	f.IntVar(&o.readyFD, "ready-fd", -1, "")
	f.Lookup("ready-fd").Hidden = true
}

// mountSettings completes the options from environment and file and makes all
// paths absolute.
func (a *app) mountSettings(c *cobra.Command, o *mountOptions, args []string) error {
	file, err := a.readConfig()
	if err != nil {
		return err
	}
	given, err := a.resolve(args[0])
	if err != nil {
		return err
	}
	o.t = given
	if err := a.applyMountFile(o, c.Flags(), file); err != nil {
		return err
	}
	o.waitSet = c.Flags().Changed("wait")
	if o.waitSet && o.takeover {
		return errors.New("--wait and --takeover: choose one, to wait for the owner or to take the volume from it")
	}
	if o.t.mount != "" {
		return fmt.Errorf("%s is a mounted directory: give the volume's URL", args[0])
	}
	for _, list := range o.kernel {
		if err := o.fuse.Parse(list); err != nil {
			return err
		}
	}
	o.follows = o.t.point == "" && (o.readOnly || o.fuse.ReadOnly)
	if err := o.refuseFlags(); err != nil {
		return err
	}
	if o.dir, err = filepath.Abs(args[1]); err != nil {
		return err
	}
	if err := a.mountPaths(o); err != nil {
		return err
	}
	if o.logFile == "" && !o.foreground {
		o.logFile = filepath.Join(o.state, logName)
	}
	return nil
}

// mountPaths completes the paths of a mount and makes them absolute.
func (a *app) mountPaths(o *mountOptions) (err error) {
	switch {
	case o.state != "":
	case o.follows:
		o.state, err = a.readOnlyState(followPrefix, o.t.url.String()+" "+o.dir)
	case o.t.point == "":
		o.usualState = true
		o.state, err = a.stateDir(o.t.url)
	default:
		o.state, err = a.readOnlyState(pointPrefix, o.t.given()+" "+o.dir)
	}
	for _, p := range []*string{&o.state, &o.logFile} {
		if err == nil && *p != "" {
			*p, err = filepath.Abs(*p)
		}
	}
	return err
}

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, localError(path, err)
	}
	defer f.Close() // only read
	text, err := io.ReadAll(io.LimitReader(f, 2<<20))
	if err != nil {
		return nil, localError(path, err)
	}
	return text, nil
}

// preflight finds what would make the mount fail before anything is changed, as
// far as that is quick: what else the bucket says, opening the volume finds before
// it changes anything.
func (a *app) preflight(ctx context.Context, o *mountOptions) error {
	if o.checked() {
		return nil
	}
	if o.dir != "" {
		if err := checkMountPoint(o.dir, o.fuse.NonEmpty); err != nil {
			return usage(err)
		}
	}
	if o.dir != "" && within(o.state, o.dir) {
		return usage(fmt.Errorf("state directory %s lies under the mount point %s: choose another with --state", o.state, o.dir))
	}
	if st, err := os.Stat(o.state); err == nil && !st.IsDir() {
		return usage(fmt.Errorf("state directory %s is not a directory", o.state))
	}
	s, err := a.openVolume(ctx, o.t.url)
	if err != nil {
		return err
	}
	if o.follows {
		return o.preflightFollow(ctx, s)
	}
	if o.t.point != "" {
		return o.preflightPoint(ctx, s)
	}
	doc := s.doc
	if doc == nil {
		_, err := gateway.ReadVolumeDoc(ctx, s, o.t.url.String())
		return err
	}
	if o.objectSize != 0 && o.objectSize != doc.ObjectSize {
		return usage(fmt.Errorf("[%s] object_size is %s, and %s was made with %s, which can't change: set it to that, or leave the line out", sectionStorage, size(o.objectSize), o.t.url, size(doc.ObjectSize)))
	}
	if err := doc.Writable(); err != nil {
		return fmt.Errorf("%s: %w", o.t.url, err)
	}
	of, err := stateVolume(o.state)
	if err != nil {
		return err
	}
	if of != "" && of != doc.ID && o.usualState {
		if of, err = o.ownState(a, doc.ID); err != nil {
			return err
		}
	}
	if of != "" && of != doc.ID {
		return usage(fmt.Errorf("state directory %s belongs to volume %s, and %s is volume %s: choose another with --state, or delete it if that volume is gone", o.state, of, o.t.url, doc.ID))
	}
	if err := a.refuseServed(ctx, o, s); err != nil {
		return err
	}
	return probeLock(o.state)
}

// writes says whether the mount is the volume's writer.
func (o *mountOptions) writes() bool { return !o.follows && o.t.point == "" }

// checked says whether the process that started this one has done the preflight
// of a mount that writes, and told it what that decided.
func (o *mountOptions) checked() bool {
	return o.readyFD >= 0 && o.writes()
}

// ownState moves a mount without --state to a state directory of the volume's
// own, because the usual one holds what an earlier volume at this URL left. It
// returns whose state is there.
func (o *mountOptions) ownState(a *app, id string) (string, error) {
	usual := o.state
	state, err := a.volumeState(o.t.url, id)
	if err != nil {
		return "", err
	}
	if o.logFile == filepath.Join(usual, logName) {
		o.logFile = filepath.Join(state, logName)
	}
	o.state = state
	if !o.foreground {
		a.note("%s holds the local state of another volume that was at %s: this one's is in %s; delete the other if that volume is gone", usual, o.t.url, state)
	}
	return stateVolume(state)
}

// refuseServed fails when a process of this machine answers that it owns the
// volume: there is no need to watch its lease to know that it lives.
func (a *app) refuseServed(ctx context.Context, o *mountOptions, s *store) error {
	if o.takeover || o.wait.d > 0 {
		return nil
	}
	t := target{url: o.t.url}
	c, p, err := a.findRecorded(ctx, t)
	if c == nil && err == nil {
		c, p, err = findLeased(ctx, t, s)
	}
	if c == nil || err != nil || p.Volume != s.doc.ID {
		return nil // who does not answer is judged by its lease
	}
	if p.MountPoint == "" {
		return fmt.Errorf("%w: process %d of this machine relays a binary log into %s: use that, or end it with `cistern binlog stop %s`, or say --wait=<time>",
			gateway.ErrOwned, p.PID, o.t.url, o.t.url)
	}
	return fmt.Errorf("%w: process %d of this machine has %s mounted on %s: use that, or `cistern umount` or `cistern handover` it, or say --wait=<time>",
		gateway.ErrOwned, p.PID, o.t.url, p.MountPoint.shown())
}

// probeLock fails when somebody uses a state directory.
func probeLock(dir string) error {
	path := filepath.Join(dir, "lock")
	if _, err := os.Stat(path); err != nil {
		return nil // there is none yet; opening the volume judges the rest
	}
	l, err := vfs.OS().Lock(path)
	if errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("state directory %s is in use by another mount or command: choose another with --state: %w", dir, vfs.ErrLocked)
	}
	if err != nil {
		return localError(path, err)
	}
	return l.Close()
}

func within(path, dir string) bool {
	rel, err := filepath.Rel(dir, path)
	return err == nil && rel != ".." && !strings.HasPrefix(rel, "../")
}

// checkMountPoint refuses a mount point that is missing, in use or not empty.
// The mount table is asked before the directory: what is mounted may be dead.
func checkMountPoint(dir string, nonEmpty bool) error {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return fmt.Errorf("read the mount table: %w", err)
	}
	real := dir
	if parent, err := filepath.EvalSymlinks(filepath.Dir(dir)); err == nil {
		real = filepath.Join(parent, filepath.Base(dir))
	}
	if m, ok := lookUpMount(string(table), real); ok && (m.source != "" || !nonEmpty) {
		if m.source != "" {
			return fmt.Errorf("%s is mounted on %s already: `cistern umount %s` ends that, also when its process is gone", m.source, dir, dir)
		}
		return fmt.Errorf("something is mounted on %s already: unmount it, or choose another directory", dir)
	}
	list, err := os.ReadDir(real)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("mount point %s does not exist: make the directory first", dir)
	case err != nil:
		return fmt.Errorf("mount point %w", localError(dir, err))
	case len(list) > 0 && !nonEmpty:
		return fmt.Errorf("mount point %s is not empty, it holds %q: choose an empty directory, or say -o nonempty", dir, list[0].Name())
	}
	return nil
}

// relayUploadBytes bounds the memory that a relay's uploads take, in bytes. A log
// comes as one stream: few objects at a time keep up with it.
const relayUploadBytes = 16 << 20

// relayReferenceBytes is from how many bytes on a relay leaves what it was sent in the
// cache file, in bytes: making a reference durable takes a sync more, which groups
// that are acknowledged one by one would wait for.
const relayReferenceBytes = 512 << 10

// networkBulk is how many bytes of a load there are, where the store is behind a
// network, when their way there begins: it takes longer than the load, so that every
// moment counts in which nothing goes. In a directory a load is left alone for longer:
// both would want the same disk.
const networkBulk = 64 << 20

// keepFree is what cache and journal leave free of their disk for the index, in
// bytes: it takes no commit with less than 32 MiB, and only commits let both shrink.
const keepFree = 48 << 20

// engineOptions are the options for the engine.
func (o *mountOptions) engineOptions(s *store, log *slog.Logger) gateway.Options {
	g := gateway.Options{
		Store: s, Keys: s.keys, URL: o.t.url.String(), FS: vfs.OS(), StateDir: o.state, OpenKV: openKV(log),
		Durability: o.durability.Durability, CommitInterval: o.interval.d, CacheBytes: o.cache.Bytes, KeepFree: keepFree,
		Fetches: s.requests.engine, JournalBytes: o.journal.Bytes, LimitENOSPC: o.limit.value == "enospc",
		Wait: o.wait.d, RequireReleased: o.waitSet && o.wait.d == 0,
		Fit: func(ctx context.Context) error {
			if err := objstore.ProbeAgain(ctx, s.bare()); err != nil {
				return fmt.Errorf("%s can't be mounted: %w", o.t.url, err)
			}
			return nil
		},
		Takeover: o.takeover, AcceptLostJournal: o.lostJournal, StopOnLeaseLost: o.leaseLost.value == "stop",
		Owner: gateway.HostOwner(o.state), Logger: log, Schedules: true, Database: volumeDatabase,
	}
	if o.relay != nil {
		g.UploadBytes, g.ReferenceBytes = relayUploadBytes, relayReferenceBytes
	}
	if o.t.url.Scheme != objstore.SchemeFile {
		g.BulkBytes = networkBulk
	}
	return g
}
