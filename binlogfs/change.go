package binlogfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ErrChange: a change of the source that can't be.
var ErrChange = errors.New("the source can't be changed so")

// sourcePort is where servers listen that were not told otherwise.
const sourcePort = 3306

// SourceChange is what CHANGE MASTER asks for; nil stays as it is.
type SourceChange struct {
	Host, User, Password *string
	Port                 *int
	ConnectRetry         *time.Duration // longest wait between attempts
	Heartbeat            *time.Duration
	File                 *string
	Offset               *int64
	TLS, Verify, UseGTID *bool
	CA, Cert, Key        *string // files
}

// SourceSettings are what a change may set, and what is kept of it over a restart.
type SourceSettings struct {
	Sources   []string      `json:"sources"`
	User      string        `json:"user"`
	Password  *string       `json:"password,omitempty"` // nil: as the options have it
	TLS       TLSOptions    `json:"tls"`
	Heartbeat time.Duration `json:"heartbeat"`
	RetryMax  time.Duration `json:"retry_max"`
	Start     Start         `json:"start"`
	// Only: the first of Sources was chosen by an operator and has not been pulled
	// from since: until it was, no other is.
	Only bool `json:"only,omitempty"`
}

// Settings returns what of the options a change may set, without the password.
func (o *PullOptions) Settings() SourceSettings {
	return SourceSettings{Sources: slices.Clone(o.Sources), User: o.User, TLS: o.TLS, Heartbeat: o.Heartbeat, RetryMax: o.RetryMax, Start: o.Start}
}

// Apply takes settings into the options.
func (o *PullOptions) Apply(s *SourceSettings) {
	o.Sources, o.User, o.TLS, o.Heartbeat, o.RetryMax, o.Start = slices.Clone(s.Sources), s.User, s.TLS, s.Heartbeat, s.RetryMax, s.Start
	if s.Password != nil {
		password := *s.Password
		o.Password = func() (string, error) { return password, nil }
	}
}

// apply makes a change. at is where the archive goes on in a source's file; empty
// when nothing is archived.
func (c *SourceChange) apply(s *SourceSettings, at SourcePlace) error {
	if c.Host != nil || c.Port != nil {
		if err := c.address(s); err != nil {
			return err
		}
	}
	for _, v := range []struct {
		from *string
		to   *string
	}{{c.User, &s.User}, {c.CA, &s.TLS.CA}, {c.Cert, &s.TLS.Cert}, {c.Key, &s.TLS.Key}} {
		if v.from != nil {
			*v.to = *v.from
		}
	}
	if c.Password != nil {
		s.Password = c.Password
	}
	if c.Heartbeat != nil {
		s.Heartbeat = *c.Heartbeat
	}
	if c.ConnectRetry != nil {
		s.RetryMax = *c.ConnectRetry
	}
	c.secure(&s.TLS)
	return c.place(s, at)
}

// address puts the address that was asked for before the others.
func (c *SourceChange) address(s *SourceSettings) error {
	host, port := "", strconv.Itoa(sourcePort)
	if len(s.Sources) > 0 {
		if h, p, err := net.SplitHostPort(s.Sources[0]); err == nil {
			host, port = h, p
		}
	}
	if c.Host != nil {
		if host = *c.Host; c.Port == nil {
			port = strconv.Itoa(sourcePort)
		}
	}
	if c.Port != nil {
		port = strconv.Itoa(*c.Port)
	}
	if host == "" {
		return fmt.Errorf("%w: name the source's host", ErrChange)
	}
	addr := net.JoinHostPort(host, port)
	s.Sources = firstOf(s.Sources, addr)
	return nil
}

// firstOf is a list with an address at its beginning.
func firstOf(list []string, addr string) []string {
	return append([]string{addr}, slices.DeleteFunc(slices.Clone(list), func(a string) bool { return a == addr })...)
}

// secure sets how far the source's certificate is trusted.
func (c *SourceChange) secure(t *TLSOptions) {
	switch {
	case c.TLS != nil && !*c.TLS:
		*t = TLSOptions{Mode: TLSOff}
		return
	case c.TLS != nil && (t.Mode == "" || t.Mode == TLSOff):
		t.Mode = TLSRequired
	}
	if c.Verify == nil {
		return
	}
	switch {
	case *c.Verify:
		t.Mode = TLSVerifyIdentity
	case t.Mode == TLSVerifyIdentity || t.Mode == TLSVerifyCA:
		t.Mode = TLSRequired
	}
}

// place takes a file and position: where an empty archive begins. An archive that
// has something goes on by itself, and agrees to nothing else.
func (c *SourceChange) place(s *SourceSettings, at SourcePlace) error {
	switch {
	case c.File == nil && c.Offset == nil:
		return nil
	case at.File != "":
		if (c.File == nil || path.Base(*c.File) == at.File) && (c.Offset == nil || *c.Offset == at.Offset) {
			return nil
		}
		return fmt.Errorf("%w: the archive goes on at %s:%d; a file and position count while it is empty", ErrChange, at.File, at.Offset)
	case c.File == nil || !isLogName(path.Base(*c.File)):
		return fmt.Errorf("%w: it needs the name of a binary log", ErrChange)
	}
	s.Start = Start{File: path.Base(*c.File)}
	return nil
}

// Change points the relay elsewhere, while it does not pull: ErrPulling. What it
// was told is kept over a restart. A server that is not the archive's source must
// have all that is published. The error is that of ctx when another change did not
// end in time.
func (r *Relay) Change(ctx context.Context, c SourceChange) error {
	give, err := r.takeChange(ctx)
	if err != nil {
		return err
	}
	defer give()
	if r.pulling() {
		return ErrPulling
	}
	return r.change(func(s *SourceSettings) error {
		_, file, offset := r.l.resumeAt()
		at := SourcePlace{file, offset}
		if own, err := r.l.ownMode(); err != nil || own != nil {
			if file != "" && (c.File != nil || c.Offset != nil) {
				return errors.Join(fmt.Errorf("%w: in own mode the source is asked by GTID", ErrChange), err)
			}
		}
		return c.apply(s, at)
	}, c.Host != nil || c.Port != nil)
}

// Failover goes over to another source at once: addr, or the next of the list when
// it is empty. That one must have all that is published. It begins a new epoch, also
// when it is the archive's source, whose files may be others than they were: it was
// restored.
func (r *Relay) Failover(ctx context.Context, addr string) error {
	give, err := r.takeChange(ctx)
	if err != nil {
		return err
	}
	defer give()
	was := r.puller()
	if addr == "" {
		i := slices.Index(was.o.Sources, was.Status().Source)
		if len(was.o.Sources) < 2 {
			return fmt.Errorf("%w: the relay knows one source only: name another as host:port", ErrChange)
		}
		addr = was.o.Sources[(i+1)%len(was.o.Sources)]
	} else if _, _, err := net.SplitHostPort(addr); err != nil && !strings.HasPrefix(addr, "/") {
		return fmt.Errorf("%w: %q is neither host:port nor a socket's path", ErrChange, addr)
	}
	if err := r.fits(ctx, addr); err != nil {
		return err
	}
	if err := r.stop(); err != nil {
		r.log.Info("pulling had stopped before the failover", "error", err)
	}
	err = r.change(func(s *SourceSettings) error {
		s.Sources = firstOf(s.Sources, addr)
		return nil
	}, true)
	if err == nil {
		r.puller().anew = true // the archive's own source, too, may have other files now
	}
	return errors.Join(err, r.Start(ctx))
}

// fits connects to a server, to see that it may be the source.
func (r *Relay) fits(ctx context.Context, addr string) error {
	p, err := NewPuller(r.l, r.puller().o)
	if err != nil {
		return err
	}
	p.ordered = addr
	s, err := p.connect(ctx, addr, false)
	if err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	defer s.close()
	if last, _, _ := r.l.resumeAt(); last != nil {
		if err := p.admit(ctx, s, last); err != nil {
			return fmt.Errorf("%s: %w", addr, err)
		}
	}
	return nil
}

// change sets other options for the next start. Caller holds the
// change's token, and nothing is pulled.
func (r *Relay) change(f func(s *SourceSettings) error, ordered bool) error {
	o := r.puller().o
	settings := o.Settings()
	settings.Password = r.password
	ordered = ordered || r.puller().only // it was chosen, and not reached yet
	if err := f(&settings); err != nil {
		return err
	}
	o.Apply(&settings)
	p, err := NewPuller(r.l, o)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrChange, err)
	}
	if ordered {
		r.order(p, settings)
		settings.Only = true
	}
	if r.keep != nil {
		if err := r.keep(settings); err != nil {
			return fmt.Errorf("keep the change over a restart: %w", err)
		}
	}
	was := r.puller().Status()
	was.Source, was.Connected, was.LastError, was.Stopped, was.LagBytes = settings.Sources[0], false, "", false, lagUnknown
	p.status = was
	r.mu.Lock()
	r.p, r.password = p, settings.Password
	r.mu.Unlock()
	r.log.Info("the source was changed", "sources", settings.Sources, "user", settings.User)
	return nil
}

// order makes a puller go to the first of its sources and to no other before it was
// there; that it was there is kept, too.
func (r *Relay) order(p *Puller, settings SourceSettings) {
	p.ordered, p.only = settings.Sources[0], true
	p.arrived = func() {
		if r.keep == nil {
			return
		}
		if err := r.keep(settings); err != nil {
			r.log.Warn("after a restart the relay waits for this source again, whatever other sources it has", "source", settings.Sources[0], "error", err)
		}
	}
}

// Cut ends the file of an archive in own mode and begins the next, at the end of
// the group that is under way.
func (r *Relay) Cut(ctx context.Context) error {
	own, err := r.l.ownMode()
	if err != nil {
		return err
	}
	if own == nil {
		return fmt.Errorf("%w: the binary logs are those of the relay's source, and begin anew when its do: run FLUSH BINARY LOGS there", ErrMode)
	}
	return r.puller().cutFile(ctx)
}

// cutFile asks the goroutine that pulls to cut, and waits.
func (p *Puller) cutFile(ctx context.Context) error {
	if !p.Status().Connected {
		return errors.New("the relay is not connected to its source, by whose format a file begins: try again when it is")
	}
	done := make(chan error, 1)
	select {
	case p.cut <- done:
	case <-ctx.Done():
		return &lateError{"the file could not be ended in time: try again when the source is less busy", ctx.Err()}
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return &lateError{"the file could not be ended in time, as a group is under way: try again when that has ended", ctx.Err()}
	}
}

// cutAsked cuts when that was asked for and no group is under way.
func (p *Puller) cutAsked(ctx context.Context, a *Appender) error {
	if a.Open() {
		return nil
	}
	select {
	case done := <-p.cut:
		err := a.Cut(ctx)
		if err == nil {
			err = a.Flush(ctx)
		}
		if err == nil {
			err = a.hard.wait(ctx) // it is to be seen by who asked
		}
		done <- err
		return err
	default:
		return nil
	}
}
