package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/spf13/pflag"

	"github.com/cisternfs/cistern/binlogfs"
)

// serveOptions are what a command that serves replicas was told.
type serveOptions struct {
	listen     string
	users      string
	cert, key  string
	ca         string
	requireTLS bool
	semiSync   bool
	most       int
}

func (o *serveOptions) flags(f *pflag.FlagSet) {
	f.StringVar(&o.listen, "listen", "", "address for replicas and clients, host:port; empty: none")
	f.StringVar(&o.users, "users-file", "", "file of those who may connect, one a line: name:native|caching_sha2:read|manage:password")
	f.StringVar(&o.cert, "tls-cert", "", "file of the certificate shown to replicas")
	f.StringVar(&o.key, "tls-key", "", "file of its key")
	f.StringVar(&o.ca, "tls-ca", "", "file of certificates of which one must have signed the replica's own")
	f.BoolVar(&o.requireTLS, "require-tls", false, "replicas must use TLS")
	f.BoolVar(&o.semiSync, "serve-semi-sync", false, "replicas may ask for semi-synchronous replication")
	f.IntVar(&o.most, "max-connections", 200, "replicas and clients at a time")
}

// options turns what was told into a server's options; the archive is missing.
func (o *serveOptions) options() (s binlogfs.ServerOptions, err error) {
	s = binlogfs.ServerOptions{RequireTLS: o.requireTLS, SemiSync: o.semiSync, MaxConnections: o.most}
	if o.users == "" {
		return s, errors.New("--listen needs --users-file, which says who may connect")
	}
	if o.most < 1 {
		return s, errors.New("--max-connections must be at least 1")
	}
	text, err := readSecret("users file", o.users)
	if err != nil {
		return s, err
	}
	if s.Users, err = parseUsers(string(text)); err != nil {
		return s, fmt.Errorf("--users-file %s: %w", o.users, err)
	}
	s.TLS, err = o.tls()
	return s, err
}

// parseUsers reads the lines of a users file. The password is everything after
// the third colon.
func parseUsers(text string) (users []binlogfs.User, err error) {
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if line == "" || line[0] == '#' {
			continue
		}
		parts := strings.SplitN(line, ":", 4)
		bad := fmt.Errorf("line %d is not like name:native:read:password", n)
		if len(parts) != 4 || parts[0] == "" {
			return nil, bad // without the line: it may have a password
		}
		u := binlogfs.User{Name: parts[0], Password: parts[3]}
		switch parts[1] {
		case "native":
			u.Auth = binlogfs.AuthNative
		case "caching_sha2":
			u.Auth = binlogfs.AuthCachingSHA2
		default:
			return nil, bad
		}
		switch parts[2] {
		case "read":
		case "manage":
			u.Manage = true
		default:
			return nil, bad
		}
		users = append(users, u)
	}
	if len(users) == 0 {
		return nil, errors.New("it names nobody")
	}
	return users, nil
}

// tls reads the certificates; nil without.
func (o *serveOptions) tls() (*tls.Config, error) {
	if o.cert == "" && o.key == "" && o.ca == "" && !o.requireTLS {
		return nil, nil
	}
	if o.cert == "" || o.key == "" {
		return nil, errors.New("TLS for replicas needs --tls-cert and --tls-key")
	}
	cert, err := tls.LoadX509KeyPair(o.cert, o.key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert %s: %w", o.cert, err)
	}
	c := &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	if o.ca == "" {
		return c, nil
	}
	text, err := readSmall(o.ca)
	if err != nil {
		return nil, err
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("--tls-ca %s: it has no certificate", o.ca)
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	return c, nil
}

// serving is a server for replicas that runs.
type serving struct {
	*binlogfs.Server
	addr   net.Addr
	cancel context.CancelFunc
	ended  chan struct{} // closed when nothing is served any more
	err    error         // why; read after ended
}

// startServing listens, and serves beside what the caller does until close.
func startServing(listen string, o binlogfs.ServerOptions) (*serving, error) {
	s, err := binlogfs.NewServer(o)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", listen, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	v := &serving{Server: s, addr: l.Addr(), cancel: cancel, ended: make(chan struct{})}
	go func() {
		defer close(v.ended)
		v.err = s.Serve(ctx, l)
	}()
	return v, nil
}

// end sends all replicas away, and does not wait. Nothing happens for nil.
func (v *serving) end() {
	if v != nil {
		v.cancel()
	}
}

// close sends all replicas away and waits. Nothing happens for nil.
func (v *serving) close() error {
	if v == nil {
		return nil
	}
	v.cancel()
	<-v.ended
	return v.err
}

// serveLog serves a relay's log to replicas; nil when it has no address for them.
func (r *relayOptions) serveLog(ctx context.Context, rd *relayed) (*serving, error) {
	if r.serve.listen == "" {
		return nil, nil
	}
	o, err := r.serve.options()
	if err != nil {
		return nil, err
	}
	o.Archive, o.Keeper, o.Control, o.Logger, o.ServerID = rd.log, rd.log, relayControl{rd}, rd.out, r.pull.ServerID
	if o.UUID, err = rd.log.UUID(ctx); err != nil {
		return nil, err
	}
	o.Version = func() string { return rd.relay.Status().Server }
	return startServing(r.serve.listen, o)
}

// errNoConnection is CR_CONN_HOST_ERROR, which servers show while their source is away.
const errNoConnection = 2003

// relayControl is what clients of a relay's server see of the pulling.
type relayControl struct{ r *relayed }

// Status implements binlogfs.Control.
func (c relayControl) Status() binlogfs.SourceStatus {
	s, told := c.r.relay.Status(), c.r.relay.Settings()
	out := binlogfs.SourceStatus{
		User: told.User, ConnectRetry: told.RetryMax, TLS: told.TLS.Mode != "" && told.TLS.Mode != binlogfs.TLSOff, UseGTID: c.r.relay.UsesGTID(),
		Started: s.Pulling, Connected: s.Connected, ServerID: s.ServerID, UUID: s.UUID, Error: s.LastError,
		Read: binlogfs.Position{Epoch: s.Epoch, File: s.File, Offset: s.Offset},
		Lag:  time.Duration(s.LagSeconds * float64(time.Second)), LagKnown: s.Connected, State: "Waiting for the source to send events",
	}
	switch {
	case s.LastError == "":
	case s.Stopped:
		out.ErrorCode = mysql.ER_SLAVE_FATAL_ERROR
	default:
		out.ErrorCode = errNoConnection
	}
	switch {
	case !s.Pulling:
		out.State = ""
	case !s.Connected:
		out.State = "Connecting to the source"
	}
	out.Host = s.Source
	if host, port, err := net.SplitHostPort(s.Source); err == nil {
		if n, err := strconv.Atoi(port); err == nil {
			out.Host, out.Port = host, n
		}
	}
	return out
}

// Start implements binlogfs.Control. What runs already is left alone, as servers do.
func (c relayControl) Start(ctx context.Context) error {
	if err := c.r.relay.Start(ctx); !errors.Is(err, binlogfs.ErrPulling) {
		return err
	}
	return nil
}

// Stop implements binlogfs.Control. Why pulling had ended before is in the status.
func (c relayControl) Stop(ctx context.Context) error {
	if err := c.r.relay.Stop(ctx); err != nil {
		if ctx.Err() != nil {
			return err
		}
		c.r.out.Info("pulling had ended before it was told to", "error", err)
	}
	return nil
}

// Change implements binlogfs.Control.
func (c relayControl) Change(ctx context.Context, change binlogfs.SourceChange) error {
	return c.r.relay.Change(ctx, change)
}

// Cut implements binlogfs.Control.
func (c relayControl) Cut(ctx context.Context) error { return c.r.relay.Cut(ctx) }
