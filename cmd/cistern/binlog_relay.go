package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/config"
)

// sourcePasswordVariable is in the environment what --source-password-file is on
// the command line, which everybody on the machine can read.
const sourcePasswordVariable = "CISTERN_SOURCE_PASSWORD"

// relayOptions are what `cistern binlog relay` was told beside what every
// process that serves a volume is told.
type relayOptions struct {
	pull         binlogfs.PullOptions
	dir          string
	ack          choice
	start        string
	compress     choice
	tlsMode      choice
	passwordFile string
	heartbeat    interval
	failover     interval
	unit         choice
	size         int64
	mode         choice
	own          binlogfs.OwnFiles
	most         config.Size // of an own file
	serve        serveOptions
}

func (a *app) binlogRelayCommand() *cobra.Command {
	o := newMountOptions()
	r := &relayOptions{
		ack: choice{"journal", []string{"journal", "bucket", "memory"}}, compress: choice{"off", []string{"off", "zlib", "zstd"}},
		tlsMode:   choice{"off", []string{"off", "required", "verify-ca", "verify-identity"}},
		heartbeat: interval{d: time.Second, min: 100 * time.Millisecond, max: time.Minute}, failover: interval{max: 24 * time.Hour},
		unit: choice{"bytes", []string{"bytes", "rows", "statements"}}, mode: choice{"mirror", []string{"mirror", "own"}}, most: config.Size{Bytes: 1 << 30, Min: 4096},
	}
	o.relay = r
	c := &cobra.Command{
		Use: "relay <url> --source host:port --source-user name --server-id n", Short: "Keep a server's binary log in a volume", Args: cobra.ExactArgs(1),
		Long: `Connects to a MariaDB or MySQL server as a replica does, and keeps its binary log
in the volume, byte for byte, under its own file names; with --mode own in a
sequence of files of the relay's, which goes on over a change of the source. It
returns when the log is being pulled, or after 5 seconds, when it says which
sources it is trying to connect to. With --mount the files are to be seen in a
directory.

The password comes from --source-password-file, or from the environment's
CISTERN_SOURCE_PASSWORD. Other settings come from flags, then from the
environment (CISTERN_CACHE_SIZE for --cache-size), then from the section [relay]
of the file that --config names. SIGTERM and SIGINT end the relay.`,
	}
	f := c.Flags()
	o.flags(f)
	f.StringVar(&o.dir, "mount", "", "show the volume in this directory, read-only")
	f.StringVar(&r.dir, "dir", "", "the archive's directory in the volume; empty: the top")
	f.StringArrayVar(&r.pull.Sources, "source", nil, "server to pull from, host:port or a socket's path; several: in the order to try")
	f.StringVar(&r.pull.User, "source-user", "", "user there, with the privileges REPLICATION SLAVE and REPLICATION CLIENT")
	f.StringVar(&r.passwordFile, "source-password-file", "", "file with the user's password")
	f.Var(&r.tlsMode, "source-tls", "how far the source's certificate is trusted")
	f.StringVar(&r.pull.TLS.CA, "source-ca", "", "file of certificates that sign the source's (default: the system's)")
	f.StringVar(&r.pull.TLS.Cert, "source-cert", "", "file of the relay's own certificate")
	f.StringVar(&r.pull.TLS.Key, "source-key", "", "file of its key")
	f.Var(&r.compress, "source-compress", "compression of the connection")
	f.Uint32Var(&r.pull.ServerID, "server-id", 0, "the relay's server id, which no other replica of the source has")
	f.StringVar(&r.start, "start", "oldest", "where an empty archive begins: oldest, now, file:<name>[:position] or gtid:<set>")
	f.Var(&r.heartbeat, "heartbeat", "how often an idle source says that it lives")
	f.BoolVar(&r.pull.SemiSync, "semi-sync", false, "the source waits for the relay's acknowledgements")
	f.Var(&r.ack, "ack", "when a group counts as received: durable on this disk, in the bucket, or not at all")
	f.Var(&r.mode, "mode", "whose files the archive has: those of the source, or a sequence of its own, which needs GTIDs")
	f.StringVar(&r.own.Name, "binlog-name", "binlog", "name of the files in own mode, without their numbers")
	f.Var(&r.most, "max-binlog-size", "size from which on a file in own mode is followed by the next, up to 1G")
	f.Var(&r.failover, "failover", "how long the source must be lost before another takes its place; 0: never")
	f.BoolVar(&r.pull.Restored, "accept-restored-source", false, "go on in a new epoch when the source's files are others than they were and it has every group that is published")
	r.serve.flags(f)
	f.Var(&r.unit, "fragment-unit", "what the parts of an open group are counted in")
	f.Int64Var(&r.size, "fragment-size", 0, "how many make a part that goes to the bucket before the group ends; 0: parts of up to 1 MiB")
	return a.longCommand(c, func(ctx context.Context, c *cobra.Command, args []string) error {
		return a.serveVolume(ctx, o, a.relaySettings(c, o, args))
	})
}

// relaySettings completes the options from environment and file, and makes all
// paths absolute.
func (a *app) relaySettings(c *cobra.Command, o *mountOptions, args []string) error {
	file, err := a.readConfig()
	if err != nil {
		return err
	}
	if o.t, err = a.resolve(args[0]); err != nil {
		return err
	}
	if o.t.point != "" || o.t.mount != "" {
		return fmt.Errorf("%s: give the URL of a volume, since the relay writes to it", args[0])
	}
	if err := config.Apply(c.Flags(), a.lookup, file.path, file.text, "relay", "config", "encrypt-key-file", "foreground", "help"); err != nil {
		return err
	}
	o.waitSet = c.Flags().Changed("wait")
	r := o.relay
	r.dir = strings.Trim(path.Clean("/"+r.dir), "/")
	r.pull.Heartbeat, r.pull.Failover, r.pull.TLS.Mode = r.heartbeat.d, r.failover.d, binlogfs.TLSMode(r.tlsMode.value)
	if r.compress.value != "off" {
		r.pull.Compress = r.compress.value
	}
	if r.pull.Start, err = binlogfs.ParseStart(r.start); err != nil {
		return fmt.Errorf("--%w", err)
	}
	if err := r.complete(c.Flags().Changed); err != nil {
		return err
	}
	paths := []*string{
		&r.passwordFile, &r.pull.TLS.CA, &r.pull.TLS.Cert, &r.pull.TLS.Key, &o.dir,
		&r.serve.users, &r.serve.cert, &r.serve.key, &r.serve.ca,
	}
	for _, p := range paths {
		if *p == "" {
			continue
		}
		if *p, err = filepath.Abs(*p); err != nil {
			return err
		}
	}
	r.pull.Password = a.sourcePassword(r.passwordFile)
	if _, err := r.pull.Password(); err != nil {
		return err
	}
	if err := r.pull.Validate(); err != nil {
		return err
	}
	if r.serve.listen != "" {
		if _, err := r.serve.options(); err != nil {
			return err
		}
	}
	if err := a.mountPaths(o); err != nil {
		return err
	}
	if o.logFile == "" && !o.foreground {
		o.logFile = filepath.Join(o.state, logName)
	}
	return nil
}

// complete says which flag is missing, or contradicts another one. given says of a flag
// whether it, or the setting of its name, was given.
func (r *relayOptions) complete(given func(flag string) bool) error {
	tls, p := &r.pull.TLS, &r.pull
	switch {
	case len(p.Sources) == 0:
		return errors.New("--source is missing: the server to pull from, as host:port or a socket's path")
	case p.User == "":
		return errors.New("--source-user is missing: the source's user for replication")
	case p.ServerID == 0:
		return errors.New("--server-id is missing: a number from 1 on that no other replica of the source has")
	case (tls.Cert == "") != (tls.Key == ""):
		return errors.New("--source-cert and --source-key belong together: give both, or neither")
	case tls.Mode == binlogfs.TLSOff && (tls.CA != "" || tls.Cert != ""):
		return errors.New("--source-ca and --source-cert need --source-tls, which is off")
	}
	if err := (binlogfs.Fragment{Unit: binlogfs.FragmentUnit(r.unit.value), Size: r.size}).Validate(); err != nil {
		return fmt.Errorf("--fragment-size %d with --fragment-unit %s: %w", r.size, r.unit.value, err)
	}
	if own := r.ownFiles(); own != nil {
		if err := own.Validate(); err != nil {
			return fmt.Errorf("--binlog-name and --max-binlog-size: %w", err)
		}
	} else if given("max-binlog-size") || given("binlog-name") {
		return errors.New("--max-binlog-size and --binlog-name need --mode own: in mirror mode files are called and end as the source's do")
	}
	if r.serve.listen != "" {
		return nil
	}
	for _, flag := range []string{"users-file", "tls-cert", "tls-key", "tls-ca", "require-tls", "serve-semi-sync", "max-connections"} {
		if given(flag) {
			return fmt.Errorf("--%s needs --listen, without which nothing is served", flag)
		}
	}
	return nil
}

// ownFiles is the sequence of own mode; nil in mirror mode.
func (r *relayOptions) ownFiles() *binlogfs.OwnFiles {
	if r.mode.value != "own" {
		return nil
	}
	return &binlogfs.OwnFiles{Name: r.own.Name, MaxSize: r.most.Bytes, ServerID: r.pull.ServerID}
}

// sourcePassword reads the password when it is needed, so that it can change.
func (a *app) sourcePassword(file string) func() (string, error) {
	return func() (string, error) {
		if file == "" {
			password, _ := a.lookup(sourcePasswordVariable)
			return password, nil
		}
		text, err := readSecret("password file", file)
		return strings.TrimRight(string(text), "\r\n"), err
	}
}

// relayed is a volume with a binary log relay, for the process that serves it.
type relayed struct {
	present
	dir   string
	log   *binlogfs.Log
	relay *binlogfs.Relay
	out   *slog.Logger

	serving *serving           // replicas; nil without --listen
	quit    context.CancelFunc // ends what begin began; nil before
	work    sync.WaitGroup     // of that
	over    chan struct{}      // closed when the relay is of no use any more
	told    bool               // why pulling ended is begin's error already
}

// open opens the archive in a volume, and its relay.
func (r *relayOptions) open(ctx context.Context, v *gateway.Volume, state string, log *slog.Logger) (*relayed, error) {
	l, err := binlogfs.OpenLog(ctx, v, binlogfs.LogOptions{
		Dir: r.dir, Ack: binlogfs.Ack(r.ack.value), Logger: log,
		Fragment: binlogfs.Fragment{Unit: binlogfs.FragmentUnit(r.unit.value), Size: r.size}, Own: r.ownFiles(),
	})
	if err != nil {
		return nil, err
	}
	pull := r.pull
	pull.Logger = log
	kept := &keptSource{file: filepath.Join(state, keptSourceName), options: pull.Settings()}
	settings, err := kept.load(log)
	if err != nil {
		return nil, err
	}
	relay, err := binlogfs.NewRelay(l, pull, settings, kept.save)
	if err != nil {
		return nil, err
	}
	rd := &relayed{present: present{v}, dir: r.dir, log: l, relay: relay, out: log, over: make(chan struct{})}
	if rd.serving, err = r.serveLog(ctx, rd); err != nil {
		return nil, err
	}
	return rd, nil
}

func (r *relayed) calls(changed func(gateway.InodeID, string)) calls {
	l := newLive(r.Volume, changed)
	l.relayed = func() (*binlogfs.Log, string) { return r.log, r.dir }
	return l
}

// status is how the relay is, with the replicas that it serves.
func (r *relayed) status() binlogfs.RelayStatus {
	s := r.relay.Status()
	s.Replicas = []binlogfs.Replica{}
	if r.serving != nil {
		s.Replicas = append(s.Replicas, r.serving.Replicas()...)
	}
	return s
}

// firstTry is how long a relay that begins waits for its source.
const firstTry = 5 * time.Second

// begin begins to pull. What does not heal is its error; a source that is only
// away is waited for beside the serving. Nothing happens for nil.
func (r *relayed) begin(ctx context.Context, fs shown) error {
	if r == nil {
		return nil
	}
	beside, cancel := context.WithCancel(ctx)
	r.quit = cancel
	r.work.Go(func() { r.show(beside, fs) })
	r.work.Go(func() { r.watch(beside) })
	if err := r.relay.Start(ctx); err != nil {
		return err
	}
	late := time.NewTimer(firstTry)
	defer late.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !r.relay.Status().Connected {
		select {
		case <-r.relay.Done():
			r.told = true
			return r.relay.Stop(ctx)
		case <-late.C:
			return nil
		case <-tick.C:
		}
	}
	return nil
}

// waiting says what a relay that is not connected does about it; empty for one that is.
func (r *relayed) waiting() string {
	s := r.relay.Status()
	text := tryingText(&s)
	if text != "" && s.LastError != "" {
		text += "; the last error: " + s.LastError
	}
	return text
}

// watch waits until the relay is of no use any more. When pulling has ended by an
// error, one that serves replicas goes on. When another has the volume it ends in
// any case: replicas must get nothing that the successor lacks, and have to find it.
func (r *relayed) watch(ctx context.Context) {
	failed := r.relay.Failed()
	if r.serving != nil {
		failed = nil
	}
	select {
	case <-ctx.Done():
		return
	case <-failed:
	case <-r.Volume.Ended():
		r.serving.end()
	}
	close(r.over)
}

// stopped returns a channel that is closed when the relay is of no use any more.
func (r *relayed) stopped() <-chan struct{} {
	if r == nil {
		return nil
	}
	return r.over
}

// Close ends the relay, and then the volume.
func (r *relayed) Close(ctx context.Context) error {
	// The volume is closed below, whatever ctx says: pulling must have ended.
	err := r.relay.Stop(context.WithoutCancel(ctx))
	if r.told || r.Volume.Stopped() != nil {
		err = nil // it is known, or what closing the volume says
	}
	err = errors.Join(err, r.serving.close())
	if r.quit != nil {
		r.quit()
		r.work.Wait()
	}
	return errors.Join(err, r.Volume.Close(ctx))
}

// showEvery bounds how often the kernel is told of new bytes.
const showEvery = 100 * time.Millisecond

// show tells the kernel of what the relay adds behind its back.
func (r *relayed) show(ctx context.Context, fs shown) {
	var last binlogfs.Position
	for {
		end, moved := r.log.End()
		if end != last {
			if err := r.showTo(ctx, fs, end, end.File != last.File); err != nil && ctx.Err() == nil {
				r.out.Warn("the kernel may show an old end", "file", end.File, "error", err)
			}
			last = end
		}
		select {
		case <-ctx.Done():
			return
		case <-moved:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(showEvery):
		}
	}
}

// showTo shows the file that grew, and the names around it when it is new.
func (r *relayed) showTo(ctx context.Context, fs shown, end binlogfs.Position, fresh bool) error {
	l := newLive(r.Volume, nil)
	name := path.Join(r.dir, fmt.Sprintf("%06d", end.Epoch), end.File)
	n, err := l.lookup(ctx, name)
	if err != nil {
		return err
	}
	err = fs.Invalidate(n.ID)
	if !fresh {
		return err
	}
	// A file's catalogue and the index change with it.
	for _, changed := range []string{name, name + ".json", path.Join(path.Dir(name), "binlog.index"), path.Dir(name)} {
		dir, base, perr := l.parent(ctx, changed)
		if perr != nil {
			continue // the archive's top is the volume's: nothing shows it by a name
		}
		err = errors.Join(err, fs.InvalidateEntry(dir.ID, base))
	}
	return err
}
