package binlogfs

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Relay keeps a source's binary log in an archive: a Log, and the Puller that
// adds to it, which can be stopped and started. All methods are safe for
// concurrent use.
type Relay struct {
	l      *Log
	log    *slog.Logger
	keep   func(SourceSettings) error
	failed chan struct{} // closed when pulling has ended by an error for the first time
	once   sync.Once     // closes it

	// changing holds a token of who changes the source or stops: see takeChange.
	changing chan struct{}

	mu       sync.Mutex // guards the fields below; not held while anything waits
	p        *Puller
	password *string // that a change has set
	cancel   context.CancelFunc
	done     chan struct{} // closed when the puller has ended; nil before the first start
	err      error         // that ended it
}

// ErrPulling: it was asked to start pulling while it does.
var ErrPulling = errors.New("the relay pulls already")

// NewRelay returns a relay that does not pull yet. kept are the settings of an
// earlier process's changes, which win over the options; nil when there are none.
// keep stores them durably; nil: changes count for this process.
func NewRelay(l *Log, o PullOptions, kept *SourceSettings, keep func(SourceSettings) error) (*Relay, error) {
	var password *string
	if kept != nil {
		o.Apply(kept)
		password = kept.Password
	}
	p, err := NewPuller(l, o)
	if err != nil {
		return nil, err
	}
	r := &Relay{l: l, p: p, log: p.o.Logger, keep: keep, password: password, failed: make(chan struct{}), changing: make(chan struct{}, 1)}
	switch {
	case kept == nil:
	case kept.Only:
		there := *kept
		there.Only = false
		r.order(p, there)
	default:
		p.ordered = kept.Sources[0] // an operator chose it
	}
	return r, nil
}

func (r *Relay) puller() *Puller {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.p
}

// pulling says whether it pulls, or tries to.
func (r *Relay) pulling() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done == nil {
		return false
	}
	select {
	case <-r.done:
		return false
	default:
		return true
	}
}

// Start begins to pull; it goes on until Stop, or until an error that does not
// heal by itself.
func (r *Relay) Start(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.done != nil {
		select {
		case <-r.done:
		default:
			return ErrPulling
		}
		r.cancel()
	}
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	done, p := make(chan struct{}), r.p
	r.done, r.err = done, nil
	p.begins() // who asks at once sees it
	go func() {
		defer close(done)
		err := p.Run(ctx)
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
		if err != nil {
			r.log.Error("pulling has stopped", "error", err)
			r.once.Do(func() { close(r.failed) })
		}
	}()
	return nil
}

// takeChange waits until nobody else changes the source or stops: a failover holds
// that over the network. The function it returns gives it up.
func (r *Relay) takeChange(ctx context.Context) (give func(), err error) {
	select {
	case r.changing <- struct{}{}:
		return func() { <-r.changing }, nil
	case <-ctx.Done():
		return nil, &lateError{"another change of the source is under way: try again when that has ended", ctx.Err()}
	}
}

// lateError is a context's end in other words than Go's.
type lateError struct {
	text  string
	cause error
}

func (e *lateError) Error() string { return e.text }
func (e *lateError) Unwrap() error { return e.cause }

// Stop ends pulling and waits until it has ended. It returns the error of
// pulling that had ended before, or that of ctx when another change did not end
// in time; it pulls on then.
func (r *Relay) Stop(ctx context.Context) error {
	give, err := r.takeChange(ctx)
	if err != nil {
		return err
	}
	defer give()
	return r.stop()
}

func (r *Relay) stop() error {
	r.mu.Lock()
	cancel, done := r.cancel, r.done
	r.mu.Unlock()
	if done == nil {
		return nil
	}
	cancel()
	<-done
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Done returns a channel that is closed when pulling has ended; nil before the
// first start.
func (r *Relay) Done() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.done
}

// Settings are what the relay was told of its source last, without a password.
func (r *Relay) Settings() SourceSettings { return r.puller().o.Settings() }

// UsesGTID says whether the source is asked by GTID always, as in own mode.
func (r *Relay) UsesGTID() bool {
	own, err := r.l.ownMode()
	return err == nil && own != nil
}

// Failed returns a channel that is closed when pulling has ended by an error that
// does not heal by itself.
func (r *Relay) Failed() <-chan struct{} { return r.failed }

// RelayStatus is how a relay is.
type RelayStatus struct {
	PullStatus
	Pulling bool   `json:"pulling"` // or it tries to; not after it was told to stop, nor after an error that ended it
	Ack     Ack    `json:"ack"`
	Epoch   uint32 `json:"epoch"`
	File    string `json:"file,omitempty"` // published, and as durable as Ack asks, up to here
	// Offset is the end of what is published in File, in bytes.
	Offset  int64           `json:"offset"`
	GTIDs   string          `json:"gtids,omitempty"` // published
	Files   int             `json:"files"`
	Bytes   int64           `json:"bytes"` // of all files
	Pending []PendingStatus `json:"pending"`
	// Replicas are those of the server beside the relay, whoever runs it.
	Replicas []Replica `json:"replicas"`
}

// PendingStatus is a group that is under way: nobody sees it before it is whole.
type PendingStatus struct {
	GTID      string    `json:"gtid,omitempty"`
	Began     time.Time `json:"began"`
	File      string    `json:"file"`
	Offset    int64     `json:"offset"`
	Bytes     int64     `json:"bytes"` // in the volume
	Events    int64     `json:"events"`
	Fragments int64     `json:"fragments"` // parts that the volume has
}

// Status returns how the relay is.
func (r *Relay) Status() RelayStatus {
	p := r.puller()
	s := RelayStatus{PullStatus: p.Status(), Pulling: r.pulling(), Ack: r.l.opt.Ack, Pending: []PendingStatus{}}
	end, _ := r.l.End()
	s.Epoch, s.File, s.Offset = end.Epoch, end.File, end.Offset
	if state := r.l.State(); state != nil {
		s.GTIDs = state.String()
	}
	for _, f := range r.l.Files() {
		s.Files++
		s.Bytes += f.Size
	}
	if p := p.Pending(); p != nil {
		s.Pending = append(s.Pending, PendingStatus{
			GTID: p.GTID.String(), Began: p.Began, File: p.File, Offset: p.Offset, Bytes: p.Bytes, Events: p.Events, Fragments: p.Fragments,
		})
	}
	return s
}
