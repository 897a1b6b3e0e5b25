package binlogfs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cisternfs/cistern/gateway"
)

// PullOptions say where a Puller gets the binary log from.
type PullOptions struct {
	// Sources are the servers, each as host:port or the path of a socket. The
	// first that answers and is the archive's source is used.
	Sources  []string
	User     string
	Password func() (string, error) // asked at each connection; nil: none
	TLS      TLSOptions
	Compress string // "", "zlib" or "zstd"
	ServerID uint32 // unique among the source and its replicas; 1 or more
	Start    Start  // counts while the archive is empty
	// Heartbeat is how often an idle source says that it lives; 0 means one
	// second. A source that is silent for four heartbeats and three seconds is
	// taken for lost.
	Heartbeat time.Duration
	// SemiSync asks the source to wait for this relay's acknowledgements. A source
	// without semi-synchronous replication is pulled from all the same.
	SemiSync bool
	// Failover is how long the archive's source must be lost before another of
	// Sources that has all that is published begins a new epoch; 0: never.
	Failover time.Duration
	// Restored lets the archive's source begin a new epoch when its files are others
	// than they were, as after a restore, and it has all that is published.
	Restored bool
	RetryMin time.Duration // wait after the first failure; 0 means 100 ms
	RetryMax time.Duration // longest wait; 0 means 15 s
	Dial     func(ctx context.Context, network, address string) (net.Conn, error)
	Logger   *slog.Logger
}

// Validate completes the options, or says what is wrong with them.
func (o *PullOptions) Validate() error {
	switch {
	case len(o.Sources) == 0:
		return errors.New("no source to pull from")
	case o.User == "":
		return errors.New("no user for the source")
	case o.ServerID == 0:
		return errors.New("the relay's server id must be 1 or more")
	case o.Compress != "" && o.Compress != "zlib" && o.Compress != "zstd":
		return fmt.Errorf("compression %q: it must be zlib or zstd", o.Compress)
	case o.Heartbeat < 0 || o.Failover < 0 || o.RetryMin < 0 || o.RetryMax < 0:
		return errors.New("times must not be negative")
	}
	for _, source := range o.Sources {
		if err := checkSource(source); err != nil {
			return err
		}
	}
	for _, d := range []struct {
		at    *time.Duration
		usual time.Duration
	}{{&o.Heartbeat, time.Second}, {&o.RetryMin, 100 * time.Millisecond}, {&o.RetryMax, 15 * time.Second}} {
		if *d.at == 0 {
			*d.at = d.usual
		}
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{Timeout: connectWait}).DialContext
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o.TLS.Validate()
}

// checkSource says what is wrong with a server's address: host:port, or the path
// of a socket.
func checkSource(source string) error {
	if strings.HasPrefix(source, "/") {
		return nil
	}
	host, port, err := net.SplitHostPort(source)
	if n, nerr := strconv.ParseUint(port, 10, 16); err != nil || nerr != nil || host == "" || n == 0 {
		return fmt.Errorf("source %q is neither host:port nor a socket's path", source)
	}
	return nil
}

// PullStatus is how a Puller is.
type PullStatus struct {
	Source    string    `json:"source,omitempty"` // the address in use, or the last one; before there was any the first to try
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`   // connected, or not: lost, or tried
	Trying    []string  `json:"trying,omitempty"` // while it is not connected: the addresses that are tried, in order
	Server    string    `json:"server,omitempty"`
	ServerID  uint32    `json:"server_id,omitempty"`
	UUID      string    `json:"uuid,omitempty"`
	SemiSync  bool      `json:"semi_sync"`
	// LagSeconds is how old the last event was when it came; 0 when the source had
	// nothing more to send.
	LagSeconds float64 `json:"lag_seconds"`
	// LagBytes is how much the source has logged that did not come, as it told in the
	// last seconds; -1 when it did not tell.
	LagBytes   int64     `json:"lag_bytes"`
	Received   int64     `json:"received_bytes"` // since the start
	LastEvent  time.Time `json:"last_event,omitzero"`
	Reconnects int64     `json:"reconnects"`           // attempts after the first
	LastError  string    `json:"last_error,omitempty"` // empty while all is well
	Stopped    bool      `json:"stopped"`              // by an error that does not heal by itself
}

// Puller adds the binary log of a source to a Log. Status and Pending are safe
// for concurrent use; Run is called once at a time.
type Puller struct {
	l *Log
	o PullOptions

	current int       // index of the source in use
	lost    time.Time // when it was lost; zero while it is not
	corrupt *Position // where corrupt bytes made the connection end last; nil: nowhere yet

	cut      chan chan error // asks for a new file, see Relay.Cut
	ordered  string          // a source that an operator chose: it need not wait until the other is lost
	only     bool            // until it was connected to, no other is tried
	arrived  func()          // called then; may be nil
	anew     bool            // the next stream begins an epoch, though the source is the archive's
	farthest int64           // the greatest position that is asked for; 0: what the protocol has room for

	mu       sync.Mutex // guards the fields below; never held during I/O
	status   PullStatus
	appender *Appender
}

// NewPuller returns a puller for an open log.
func NewPuller(l *Log, o PullOptions) (*Puller, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	return &Puller{l: l, o: o, cut: make(chan chan error), status: PullStatus{LagBytes: lagUnknown}}, nil
}

// Status returns how the puller is.
func (p *Puller) Status() PullStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.status
}

// Pending returns the group that is under way, or nil.
func (p *Puller) Pending() *Pending {
	p.mu.Lock()
	a := p.appender
	p.mu.Unlock()
	if a == nil {
		return nil
	}
	return a.Pending()
}

// update changes the status.
func (p *Puller) update(change func(s *PullStatus)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.status)
}

// Run pulls until ctx ends, over all losses of the source that may heal. It
// returns an error for what does not: that has to be mended first. It ends also when
// the volume takes no more writes, though the source sends nothing: gateway.ErrFenced.
func (p *Puller) Run(ctx context.Context) error {
	writable, end := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() {
		select {
		case <-p.l.t.V.Ended():
			end()
		case <-writable.Done():
		}
	})
	err := p.run(writable)
	end()
	watch.Wait()
	if cause := p.l.t.V.Stopped(); cause != nil && ctx.Err() == nil {
		// Whatever failed then failed by it.
		err = cause
		p.update(func(s *PullStatus) { s.Stopped, s.LastError = true, cause.Error() })
	}
	return err
}

// begins notes that sources are tried from now on.
func (p *Puller) begins() {
	p.lost = time.Now()
	p.update(func(s *PullStatus) {
		s.Stopped, s.LastError, s.Since, s.Trying = false, "", p.lost, p.candidates()
		if s.Source == "" {
			s.Source = s.Trying[0]
		}
	})
}

func (p *Puller) run(ctx context.Context) error {
	p.begins()
	defer p.update(func(s *PullStatus) { s.Trying = nil })
	wait := p.o.RetryMin
	told := ""
	for {
		streamed, err := p.round(ctx)
		p.update(func(s *PullStatus) {
			if s.Connected {
				s.Connected, s.Since, s.Trying = false, time.Now(), p.candidates()
			}
			if ctx.Err() == nil {
				s.LastError = strings.ReplaceAll(err.Error(), "\n", "; ")
			}
		})
		if ctx.Err() != nil {
			return nil
		}
		if hopeless(err) {
			p.update(func(s *PullStatus) { s.Stopped = true })
			return err
		}
		if streamed {
			wait, told = p.o.RetryMin, ""
		}
		if told == "" {
			told = err.Error()
			what := "the source is lost; trying again"
			if !streamed {
				what = "no connection to the source; trying again"
			}
			if errors.Is(err, gateway.ErrNoSpace) || errors.Is(err, gateway.ErrQuota) {
				what = "there is no room for what the source sends; trying again"
			}
			p.o.Logger.Warn(what, "error", err)
		}
		p.update(func(s *PullStatus) { s.Reconnects++ })
		t := time.NewTimer(wait/2 + rand.N(wait/2+1))
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
		wait = min(2*wait, p.o.RetryMax)
	}
}

// round tries the sources once, the one in use first, and pulls from the first
// that takes part. Its error is fatal when none of the failures heals.
func (p *Puller) round(ctx context.Context) (streamed bool, err error) {
	var errs []error
	heals := false
	for _, addr := range p.candidates() {
		if ctx.Err() != nil {
			break
		}
		streamed, err := p.pull(ctx, addr)
		if err == nil {
			err = errors.New("the source ended the connection")
		}
		err = fmt.Errorf("%s: %w", addr, err)
		if streamed {
			p.current, p.lost = slices.Index(p.o.Sources, addr), time.Now()
			return true, err
		}
		errs = append(errs, err)
		heals = heals || !hopeless(err)
	}
	err = errors.Join(errs...)
	if heals {
		return false, &transientError{err}
	}
	return false, err
}

// candidates are the sources to try: the one in use, then the others in order, or the
// one that an operator has chosen.
func (p *Puller) candidates() []string {
	if p.only {
		return []string{p.ordered}
	}
	return firstOf(p.o.Sources, p.o.Sources[p.current])
}

// pull connects to a source and adds what it sends until the connection ends.
func (p *Puller) pull(ctx context.Context, addr string) (streamed bool, err error) {
	s, err := p.connect(ctx, addr, p.o.SemiSync)
	if err != nil {
		return false, err
	}
	defer s.close()
	last, file, offset := p.l.resumeAt()
	newEpoch := last != nil && (p.anew || !last.Same(&s.source))
	if newEpoch {
		if err := p.admit(ctx, s, last); err != nil {
			return false, err
		}
		file, offset = "", 0
	}
	if err := p.ask(ctx, s, file, offset, newEpoch); err != nil {
		if last == nil {
			err = beginning(err)
		}
		return false, p.restored(err, newEpoch)
	}
	a, err := p.l.Append(ctx, s.source, newEpoch, s.ack)
	if err != nil {
		return false, err
	}
	p.connected(s, a, addr)
	watching, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { p.watchLag(watching, addr, a) })
	err = p.stream(ctx, s, a)
	stop()
	watch.Wait()
	p.mu.Lock()
	p.appender = nil
	p.mu.Unlock()
	end, _ := p.l.End()
	late, done := closing(ctx)
	defer done()
	if cerr := a.Close(late); cerr != nil && ctx.Err() == nil {
		err = errors.Join(err, &fatalError{fmt.Errorf("the archive can't be written to: %w", cerr)})
	}
	if errors.Is(err, ErrCorrupt) && (p.corrupt == nil || *p.corrupt != end) {
		// A connection may garble; the same twice is the source's.
		p.corrupt = &end
		err = &transientError{err}
	}
	return true, p.restored(err, newEpoch)
}

// restored lets a source whose log does not go on where the archive ends begin a new
// epoch at the next attempt, if that was allowed.
func (p *Puller) restored(err error, newEpoch bool) error {
	if !p.o.Restored || newEpoch || !errors.Is(err, ErrGap) {
		return err
	}
	p.anew = true
	return &transientError{err}
}

// ask asks for the stream from where the archive goes on: by the source's file and
// position, and by GTID in own mode and where a position is too large to be asked for.
func (p *Puller) ask(ctx context.Context, s *sourceConn, file string, offset int64, newEpoch bool) (err error) {
	own, err := p.l.ownMode()
	if err != nil {
		return &fatalError{err}
	}
	if own != nil {
		if err := s.needGTIDs(); err != nil {
			return err
		}
	}
	if own != nil || offset > s.farthest() {
		state, err := p.l.published(ctx)
		if err != nil {
			return &fatalError{err}
		}
		switch {
		case state == nil:
		case state.Empty() && own == nil:
			return &fatalError{fmt.Errorf("%s is longer than 4 GiB, which can't be asked for by position, and the source has no GTIDs: flush its binary logs", file)}
		default:
			return s.dumpAfter(state)
		}
		file = ""
	}
	if file == "" {
		if file, err = s.begin(ctx, p.o.Start, newEpoch, p.l.State()); err != nil {
			return err
		}
		offset = int64(len(magic))
	}
	return s.dump(file, offset)
}

// connected notes that the stream has begun.
func (p *Puller) connected(s *sourceConn, a *Appender, addr string) {
	if p.only && p.arrived != nil {
		p.arrived()
	}
	p.ordered, p.only, p.anew = "", false, false // it is the archive's source now
	p.mu.Lock()
	defer p.mu.Unlock()
	p.appender = a
	p.status.LagSeconds, p.status.LagBytes = 0, lagUnknown
	p.status.Source, p.status.Connected, p.status.Since, p.status.Trying, p.status.LastError = addr, true, time.Now(), nil, ""
	p.status.Server, p.status.ServerID, p.status.UUID, p.status.SemiSync = s.version, s.source.ServerID, s.source.UUID, s.semiSync
	p.o.Logger.Info("pulling", "source", addr, "server", s.version, "server_id", s.source.ServerID, "semi_sync", s.semiSync)
}

// stream adds events until the connection ends.
func (p *Puller) stream(ctx context.Context, s *sourceConn, a *Appender) error {
	var told time.Time
	for {
		if !s.in.ready() {
			// The source has nothing more at the moment, or a part of an event.
			if err := a.Flush(ctx); err != nil {
				return &fatalError{err}
			}
		}
		h, err := s.in.next()
		if err != nil {
			return err
		}
		if _, err := a.Event(ctx, int64(h.Size), s.in); err != nil {
			return err
		}
		if err := s.in.end(); err != nil {
			return err
		}
		if err := p.cutAsked(ctx, a); err != nil {
			return &fatalError{err}
		}
		if now := time.Now(); now.Sub(told) > 100*time.Millisecond || !s.in.ready() {
			told = now
			p.update(func(st *PullStatus) {
				st.Received += s.in.taken()
				st.took(h, now)
			})
		}
	}
}

// admit decides whether a server that is not the archive's source, or has other files
// than that had, may go on with it: it must have everything that is published.
func (p *Puller) admit(ctx context.Context, s *sourceConn, last *Source) error {
	other := fmt.Errorf("%w: of server %d %s, and this is server %d %s", ErrOtherSource, last.ServerID, last.UUID, s.source.ServerID, s.source.UUID)
	lacks := fmt.Errorf("%w: it lacks what the archive has published", ErrOtherSource)
	if last.Same(&s.source) {
		other = fmt.Errorf("%w: it was restored, or its logs were reset", ErrGap)
		lacks = errors.New("the source lacks what it had logged and the archive has published; let it replicate that from this relay, or begin another archive with --dir")
	}
	ordered := p.ordered == s.addr || last.Same(&s.source)
	if p.o.Failover == 0 && !ordered {
		return other
	}
	if left := p.o.Failover - time.Since(p.lost); left > 0 && !ordered {
		return &transientError{fmt.Errorf("%w; it may follow in %v", other, left.Round(time.Second))}
	}
	if s.source.Flavor != last.Flavor {
		return &fatalError{fmt.Errorf("%w: it is a %s, and the archive holds the log of a %s", ErrOtherSource, s.source.Flavor, last.Flavor)}
	}
	state := p.l.State()
	if state == nil || state.String() == "" {
		return &fatalError{fmt.Errorf("%w: without GTIDs nobody can tell where it goes on", other)}
	}
	has, err := s.executed()
	if err != nil {
		return err
	}
	if missing := has.Missing(state); missing != "" {
		return &fatalError{fmt.Errorf("%w: %s", lacks, missing)}
	}
	p.o.Logger.Warn("another source goes on", "server_id", s.source.ServerID, "uuid", s.source.UUID, "published", state.Position())
	return nil
}

// closing is a context for what ends with a connection: it gives the volume a
// moment more when ctx ends.
func closing(ctx context.Context) (late context.Context, done func()) {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { time.AfterFunc(closeWait, cancel) })
	return late, func() {
		stop()
		cancel()
	}
}

// fatalError is one that no retry heals; transientError one that a retry may.
type (
	fatalError     struct{ error }
	transientError struct{ error }
)

func (e *fatalError) Unwrap() error     { return e.error }
func (e *transientError) Unwrap() error { return e.error }

// hopeless says whether pulling must stop: something has to be mended first.
func hopeless(err error) bool {
	var f *fatalError
	var t *transientError
	switch {
	case errors.As(err, &t), errors.Is(err, gateway.ErrNoSpace), errors.Is(err, gateway.ErrQuota):
		return false // room comes without a restart
	case errors.As(err, &f):
		return true
	}
	return errors.Is(err, gateway.ErrFenced) || errors.Is(err, ErrGap) || errors.Is(err, ErrOtherSource) || errors.Is(err, ErrCorrupt)
}

// Start is where an empty archive begins: at the beginning of a file in any case,
// since it holds whole files.
type Start struct {
	Oldest bool
	Now    bool   // the file that the source writes
	File   string // this file
	GTID   string // the file that a replica with these GTIDs needs
}

// ParseStart reads "oldest", "now", "file:<name>[:position]" or "gtid:<set>". A
// position is taken, and the archive begins with its file.
func ParseStart(text string) (Start, error) {
	kind, rest, _ := strings.Cut(text, ":")
	switch {
	case text == "oldest":
		return Start{Oldest: true}, nil
	case text == "now":
		return Start{Now: true}, nil
	case kind == "gtid":
		return Start{GTID: rest}, nil
	case kind == "file":
		name, pos, _ := strings.Cut(rest, ":")
		if isLogName(name) && strings.Trim(pos, "0123456789") == "" {
			return Start{File: name}, nil
		}
	}
	return Start{}, fmt.Errorf("start %q: it must be oldest, now, file:<name>[:position] or gtid:<set>", text)
}
