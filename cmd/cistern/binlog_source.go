package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cisternfs/cistern/binlogfs"
	"github.com/cisternfs/cistern/internal/control"
)

// keptSourceName is the file in a relay's state directory that has what CHANGE
// MASTER and a failover have changed:
//
//	{"format": 1, "options": settings of the command line then, "settings": what counts instead}
//
// It has the password that was changed, and nobody else may read it.
const (
	keptSourceName   = "relay-source.json"
	keptSourceFormat = 1
)

// keptSource keeps changes of a relay's source over a restart. They count for as
// long as the relay is started with the options that they changed.
type keptSource struct {
	file    string
	options binlogfs.SourceSettings
}

type keptSourceDoc struct {
	Format   int                     `json:"format"`
	Options  binlogfs.SourceSettings `json:"options"`
	Settings binlogfs.SourceSettings `json:"settings"`
}

// load returns the changes; nil when there are none, or none that count.
func (k *keptSource) load(log *slog.Logger) (*binlogfs.SourceSettings, error) {
	if _, err := os.Lstat(k.file); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	body, err := readSecret("the relay's changed source", k.file)
	if err != nil {
		return nil, err
	}
	var d keptSourceDoc
	if err := json.Unmarshal(body, &d); err != nil || d.Format != keptSourceFormat || len(d.Settings.Sources) == 0 {
		return nil, fmt.Errorf("%s is not what a relay has written (%v): remove it, and change the source again", k.file, err)
	}
	// A time that was given otherwise since is no other source.
	was, s := d.Options, d.Settings
	for _, t := range []struct{ was, now, kept *time.Duration }{
		{&was.Heartbeat, &k.options.Heartbeat, &s.Heartbeat}, {&was.RetryMax, &k.options.RetryMax, &s.RetryMax},
	} {
		if *t.was != *t.now {
			*t.was, *t.kept = *t.now, *t.now
		}
	}
	if !reflect.DeepEqual(was, k.options) {
		log.Warn("the source was changed by a command, and the relay's options have changed since: the options count", "changed", d.Settings.Sources, "options", k.options.Sources)
		return nil, nil
	}
	log.Info("the source is the one that a command has changed it to", "sources", s.Sources, "file", k.file)
	return &s, nil
}

// save stores changes durably.
func (k *keptSource) save(s binlogfs.SourceSettings) error {
	body, err := json.MarshalIndent(keptSourceDoc{keptSourceFormat, k.options, s}, "", " ")
	if err != nil {
		return err
	}
	dir := filepath.Dir(k.file)
	f, err := os.CreateTemp(dir, keptSourceName+"-") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(append(body, '\n'))
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), k.file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close() // it was synced
	return d.Sync()
}

// relayAPI serves the control of a relay over its control socket.
func relayAPI(mux *http.ServeMux, h control.Handlers, c relayControl) {
	do := func(path string, f func(r *http.Request) error) {
		mux.Handle("POST /v1/binlog/"+path, h.Call(func(r *http.Request) (any, error) {
			if err := f(r); err != nil {
				return nil, err
			}
			return c.r.status(), nil
		}))
	}
	do("source/start", func(r *http.Request) error { return c.Start(r.Context()) })
	do("source/stop", func(r *http.Request) error { return c.Stop(r.Context()) })
	do("source/failover", func(r *http.Request) error { return c.r.relay.Failover(r.Context(), r.URL.Query().Get("to")) })
	do("source/change", func(r *http.Request) error {
		var change binlogfs.SourceChange
		if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&change); err != nil {
			return usage(fmt.Errorf("the change is not understood: %w", err))
		}
		return c.Change(r.Context(), change)
	})
	do("flush", func(r *http.Request) error {
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		return c.Cut(ctx)
	})
}

// tellRelay calls a function of the relay that runs on this machine.
func (a *app) tellRelay(ctx context.Context, vol, path string, q url.Values, body any) (s binlogfs.RelayStatus, err error) {
	owner, _, err := a.relayOf(ctx, vol)
	if err != nil {
		return s, err
	}
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return s, fmt.Errorf("tell the relay: %w", err)
		}
		in = bytes.NewReader(text)
	}
	return s, owner.Call(ctx, http.MethodPost, "/v1/binlog/"+path, q, in, &s)
}

// relayOf finds the relay of a volume, and how it is.
func (a *app) relayOf(ctx context.Context, vol string) (owner *control.Client, s binlogfs.RelayStatus, err error) {
	t, err := a.resolve(vol)
	if err != nil {
		return nil, s, err
	}
	if owner, err = a.owner(ctx, t); err != nil {
		return nil, s, err
	}
	if owner == nil {
		return nil, s, fmt.Errorf("no relay of %s runs on this machine: `cistern binlog relay` starts one", vol)
	}
	err = owner.Call(ctx, http.MethodGet, "/v1/binlog/relay", nil, nil, &s)
	return owner, s, err
}

// noRelay answers for a process in which none runs.
func (m *mountProcess) noRelay(*http.Request) (any, error) {
	at := m.name()
	if dir := m.fs.Dir(); dir != "" {
		at += " on " + text(dir).shown()
	}
	return nil, fmt.Errorf("process %d serves %s, and no relay runs in it: end it, and start `cistern binlog relay`", os.Getpid(), at)
}

func (a *app) binlogSourceCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "source", Short: "Stop, start and change what a running relay pulls from",
		Long: `Controls the pulling of a relay on this machine, as STOP REPLICA, START REPLICA
and CHANGE REPLICATION SOURCE TO from a client of the relay do. Changes are kept
over a restart, in the relay's state directory, until its options change.`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	simple := func(use, path, short, long, done string) {
		sub := &cobra.Command{Use: use + " <vol>", Short: short, Long: long, Args: cobra.ExactArgs(1)}
		c.AddCommand(a.command(sub, func(ctx context.Context, _ *cobra.Command, args []string) error {
			s, err := a.tellRelay(ctx, args[0], path, nil, nil)
			if err != nil {
				return err
			}
			does := done
			if trying := tryingText(&s); s.Pulling && trying != "" {
				does = "the relay is " + trying
			}
			return a.say("%s: %s, the log ends at %06d/%s:%d", args[0], does, s.Epoch, orDash(s.File), s.Offset)
		}))
	}
	simple("start", "source/start", "Pull from the source", "Begins to pull, after `source stop` or an error.", "the relay pulls")
	simple("stop", "source/stop", "Pull no more", "Ends pulling. The relay goes on serving its replicas, until it is started again; a restart of\nthe relay pulls, too.", "the relay pulls no more")
	c.AddCommand(a.sourceChangeCommand(), a.sourceFailoverCommand())
	return c
}

func (a *app) sourceFailoverCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "failover <vol> [host:port]", Short: "Go over to another source at once", Args: cobra.RangeArgs(1, 2),
		Long: `Goes over to the server that is named, or to the next one of the relay's
sources. It must have every group that is published: what it lacks is named, and
the relay stays with its source. Replicas stay connected.`,
	}
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		q := url.Values{}
		if len(args) > 1 {
			q.Set("to", args[1])
		}
		s, err := a.tellRelay(ctx, args[0], "source/failover", q, nil)
		if err != nil {
			return err
		}
		return a.say("%s: the relay goes over to %s", args[0], s.Source)
	})
}

func (a *app) sourceChangeCommand() *cobra.Command {
	var source, user, passwordFile, ca, cert, key string
	tlsMode := choice{"", []string{"off", "required", "verify-identity"}}
	c := &cobra.Command{
		Use: "change <vol>", Short: "Change the source of a relay that does not pull", Args: cobra.ExactArgs(1),
		Long: `Changes where a relay pulls from, after ` + "`source stop`" + `. What is not given stays as
it is. A server that is not the archive's source must have every group that is
published.`,
	}
	f := c.Flags()
	f.StringVar(&source, "source", "", "server to pull from, host:port; the others are kept for a failover")
	f.StringVar(&user, "source-user", "", "user there")
	f.StringVar(&passwordFile, "source-password-file", "", "file with the user's password, which is read now")
	f.Var(&tlsMode, "source-tls", "how far the source's certificate is trusted")
	f.StringVar(&ca, "source-ca", "", "file of certificates that sign the source's")
	f.StringVar(&cert, "source-cert", "", "file of the relay's own certificate")
	f.StringVar(&key, "source-key", "", "file of its key")
	return a.command(c, func(ctx context.Context, c *cobra.Command, args []string) error {
		given := false
		c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) { given = given || f.Changed })
		if !given {
			return usage(errors.New("nothing to change: say at least one of --source, --source-user, --source-password-file, --source-tls, --source-ca, --source-cert, --source-key"))
		}
		var change binlogfs.SourceChange
		take := func(name string, from string, to **string) {
			if c.Flags().Changed(name) {
				*to = &from
			}
		}
		take("source-user", user, &change.User)
		take("source-ca", ca, &change.CA)
		take("source-cert", cert, &change.Cert)
		take("source-key", key, &change.Key)
		if source != "" {
			host, port, err := net.SplitHostPort(source)
			n, nerr := strconv.Atoi(port)
			if err != nil || nerr != nil || n < 1 || n > 65535 {
				return usage(fmt.Errorf("--source %q is not host:port", source))
			}
			change.Host, change.Port = &host, &n
		}
		if tlsMode.value != "" {
			on, verify := tlsMode.value != "off", tlsMode.value == "verify-identity"
			change.TLS, change.Verify = &on, &verify
		}
		if passwordFile != "" {
			text, err := readSecret("password file", passwordFile)
			if err != nil {
				return err
			}
			password := strings.TrimRight(string(text), "\r\n")
			change.Password = &password
		}
		if _, err := a.tellRelay(ctx, args[0], "source/change", nil, change); err != nil {
			return err
		}
		return a.say("%s: the source is changed; `cistern binlog source start` pulls from it", args[0])
	})
}

func (a *app) binlogFlushCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "flush <vol>", Short: "Begin the next file of a relay in own mode", Args: cobra.ExactArgs(1),
		Long: `Ends the binary log that a relay in own mode writes, at the end of the group that
is under way, and begins the next one. In mirror mode files end where the
source's do: run FLUSH BINARY LOGS there.`,
	}
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		s, err := a.tellRelay(ctx, args[0], "flush", nil, nil)
		if err != nil {
			return err
		}
		return a.say("%s: the log goes on in %06d/%s", args[0], s.Epoch, s.File)
	})
}

func (a *app) binlogStopCommand() *cobra.Command {
	var noWait bool
	c := &cobra.Command{
		Use: "stop <vol>", Short: "End a relay and wait for its last commit", Args: cobra.ExactArgs(1),
		Long: `Ends the relay of a volume on this machine: it pulls no more, sends its replicas
away, commits everything and gives the lease back. When commits make no progress
for 10 seconds, it leaves the rest in the journal and exits with 5.`,
	}
	c.Flags().BoolVar(&noWait, "no-wait", false, "leave what is not committed in the journal")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		owner, _, err := a.relayOf(ctx, args[0])
		if err != nil {
			return err
		}
		var p ping
		if err := owner.Call(ctx, http.MethodGet, "/v1/ping", nil, nil, &p); err != nil {
			return err
		}
		last, err := a.shutdown(ctx, owner, noWait)
		if err != nil && ctx.Err() != nil {
			return fmt.Errorf("interrupted: the relay of %s goes on to end, and commits what is left", args[0])
		}
		if err != nil {
			return err
		}
		waitGone(ctx, p.PID)
		if last.Left != "" {
			return a.say("%s: the relay has ended; left in the journal: %s", args[0], last.Left)
		}
		return a.say("%s: the relay has ended; everything is in commit %d", args[0], last.Commit)
	})
}
