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
	l   *Log
	p   *Puller
	log *slog.Logger

	mu     sync.Mutex // guards the fields below; not held while anything waits
	cancel context.CancelFunc
	done   chan struct{} // closed when the puller has ended; nil before the first start
	err    error         // that ended it
}

// ErrPulling: it was asked to start pulling while it does.
var ErrPulling = errors.New("the relay pulls already")

// NewRelay returns a relay that does not pull yet.
func NewRelay(l *Log, o PullOptions) (*Relay, error) {
	p, err := NewPuller(l, o)
	if err != nil {
		return nil, err
	}
	return &Relay{l: l, p: p, log: p.o.Logger}, nil
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
	done := make(chan struct{})
	r.done, r.err = done, nil
	go func() {
		defer close(done)
		err := r.p.Run(ctx)
		r.mu.Lock()
		r.err = err
		r.mu.Unlock()
		if err != nil {
			r.log.Error("pulling has stopped", "error", err)
		}
	}()
	return nil
}

// Stop ends pulling and waits until it has ended. It returns the error of
// pulling that had ended before.
func (r *Relay) Stop() error {
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

// RelayStatus is how a relay is.
type RelayStatus struct {
	PullStatus
	Ack   Ack    `json:"ack"`
	Epoch uint32 `json:"epoch"`
	File  string `json:"file,omitempty"` // published, and as durable as Ack asks, up to here
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
	s := RelayStatus{PullStatus: r.p.Status(), Ack: r.l.opt.Ack, Pending: []PendingStatus{}}
	end, _ := r.l.End()
	s.Epoch, s.File, s.Offset = end.Epoch, end.File, end.Offset
	if state := r.l.State(); state != nil {
		s.GTIDs = state.String()
	}
	for _, f := range r.l.Files() {
		s.Files++
		s.Bytes += f.Size
	}
	if p := r.p.Pending(); p != nil {
		s.Pending = append(s.Pending, PendingStatus{
			GTID: p.GTID.String(), Began: p.Began, File: p.File, Offset: p.Offset, Bytes: p.Bytes, Events: p.Events, Fragments: p.Fragments,
		})
	}
	return s
}
