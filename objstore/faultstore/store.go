package faultstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/cisternfs/cistern/objstore"
)

// Outage is a state of the way to the store.
type Outage int

const (
	// Up lets calls through.
	Up Outage = iota
	// Refusing fails every call at once with objstore.ErrUnavailable.
	Refusing
	// Silent lets every call hang until its context ends, the outage ends
	// (then it fails with objstore.ErrUnavailable) or the client is killed.
	Silent
)

// Store is an objstore.Store that fails on purpose. See New.
type Store struct {
	inner objstore.Store

	killed chan struct{} // closed by Kill
	closed chan struct{} // closed by Close
	late   sync.WaitGroup

	mu      sync.Mutex // guards the fields below; never held during a call
	hook    Hook
	calls   int
	outage  Outage
	changed chan struct{} // closed and replaced when the outage changes
	isDead  bool
	isDone  bool
}

// New wraps inner. hook may be nil: then only the switches make faults. The
// caller calls Close when late PUTs may be under way.
func New(inner objstore.Store, hook Hook) *Store {
	return &Store{
		inner:   inner,
		hook:    hook,
		killed:  make(chan struct{}),
		closed:  make(chan struct{}),
		changed: make(chan struct{}),
	}
}

// SetHook replaces the hook; nil removes it.
func (s *Store) SetHook(hook Hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hook = hook
}

// Calls returns how many calls were made so far.
func (s *Store) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// SetOutage switches the way to the store. Calls that already reached it are
// not affected, bodies being read are.
func (s *Store) SetOutage(o Outage) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.outage = o
	close(s.changed)
	s.changed = make(chan struct{})
}

// Kill ends the client as kill -9 would: calls in flight, bodies being read
// and every later call fail with ErrKilled. A PUT in flight may or may not
// have reached the store; late ones still do.
func (s *Store) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.isDead {
		s.isDead = true
		close(s.killed)
	}
}

// Close drops the late PUTs that are still waiting and waits for those that
// are being made. The Store can be used on; late PUTs are then dropped at once.
func (s *Store) Close() {
	s.mu.Lock()
	if !s.isDone {
		s.isDone = true
		close(s.closed)
	}
	s.mu.Unlock()
	s.late.Wait()
}

// enter counts a call, passes the switches and delays it. A fault of kind
// Before or Hang has been dealt with when it returns.
func (s *Store) enter(ctx context.Context, op Op, key string) (Fault, error) {
	s.mu.Lock()
	n, hook := s.calls, s.hook
	s.calls++
	s.mu.Unlock()
	if err := s.pass(ctx); err != nil {
		return Fault{}, fmt.Errorf("%s %s: %w", op, key, err)
	}
	var f Fault
	if hook != nil {
		f = hook(op, key, n)
	}
	if f.Delay > 0 {
		if err := s.wait(ctx, f.Delay); err != nil {
			return f, fmt.Errorf("%s %s: %w", op, key, err)
		}
	}
	switch {
	case f.Kind == Hang:
		return f, fmt.Errorf("%s %s: %w", op, key, s.hang(ctx))
	case f.Kind == Before, f.Kind == Late && op != Put, f.Kind == Cut && op != Get:
		return f, fmt.Errorf("%s %s: %w", op, key, f.err())
	}
	return f, nil
}

// leave decides what the caller of an operation that the inner store answered
// with err gets to know.
func (s *Store) leave(op Op, key string, f Fault, err error) error {
	if killErr := s.alive(); killErr != nil {
		return fmt.Errorf("%s %s: %w", op, key, killErr)
	}
	if f.Kind == Lost || f.Kind == Duplicate {
		return fmt.Errorf("%s %s: reply lost: %w", op, key, f.err())
	}
	return err
}

func (f Fault) err() error {
	if f.Err != nil {
		return f.Err
	}
	return errInjected
}

// alive returns ErrKilled after Kill.
func (s *Store) alive() error {
	select {
	case <-s.killed:
		return ErrKilled
	default:
		return nil
	}
}

// pass returns nil when the client lives and there is no outage.
func (s *Store) pass(ctx context.Context) error {
	if err := s.alive(); err != nil {
		return err
	}
	s.mu.Lock()
	outage, changed := s.outage, s.changed
	s.mu.Unlock()
	switch outage {
	case Refusing:
		return fmt.Errorf("outage: %w", objstore.ErrUnavailable)
	case Silent:
		select {
		case <-s.killed:
			return ErrKilled
		case <-ctx.Done():
			return fmt.Errorf("outage: %w", ctx.Err())
		case <-changed:
			return fmt.Errorf("outage: %w: connection lost", objstore.ErrUnavailable)
		}
	}
	return nil
}

// hang waits for the end of ctx or Kill.
func (s *Store) hang(ctx context.Context) error {
	select {
	case <-s.killed:
		return ErrKilled
	case <-ctx.Done():
		return fmt.Errorf("no reply: %w", ctx.Err())
	}
}

// wait lets d pass.
func (s *Store) wait(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-s.killed:
		return ErrKilled
	case <-ctx.Done():
		return fmt.Errorf("no reply yet: %w", ctx.Err())
	}
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	f, err := s.enter(ctx, Get, key)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	body, info, err := s.inner.Get(ctx, key, off, length)
	if err := s.leave(Get, key, f, err); err != nil {
		if body != nil {
			err = errors.Join(err, body.Close())
		}
		return nil, objstore.Info{}, err
	}
	r := &reader{s: s, ctx: ctx, body: body, fault: f}
	if f.Kind == Flip {
		r.fault.At = flipAt(f.At, off, length, info.Size)
	}
	return r, info, nil
}

// flipAt brings a position into the range that a Get returns.
func flipAt(at, off, length, size int64) int64 {
	n := max(size-off, 0)
	if length >= 0 {
		n = min(n, length)
	}
	if n == 0 {
		return 0
	}
	return at % n
}

// Put implements objstore.Store.
func (s *Store) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	f, err := s.enter(ctx, Put, key)
	if err != nil {
		return "", err
	}
	if f.Kind == Late || f.Kind == Duplicate {
		p := make([]byte, size)
		if _, err := io.ReadFull(body, p); err != nil {
			return "", fmt.Errorf("put %s: read body: %w", key, err)
		}
		body = bytes.NewReader(p)
		defer s.putLater(context.WithoutCancel(ctx), key, p, cond, f.Late)
		if f.Kind == Late {
			return "", fmt.Errorf("put %s: %w", key, f.err())
		}
	}
	v, err := s.inner.Put(ctx, key, body, size, cond)
	if err := s.leave(Put, key, f, err); err != nil {
		return "", err
	}
	return v, nil
}

// putLater applies a PUT once d has passed.
func (s *Store) putLater(ctx context.Context, key string, p []byte, cond objstore.Condition, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.isDone {
		return
	}
	s.late.Go(func() {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-s.closed:
		case <-t.C:
			// Nobody waits for this reply any more, whatever it is.
			_, _ = s.inner.Put(ctx, key, bytes.NewReader(p), int64(len(p)), cond)
		}
	})
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	f, err := s.enter(ctx, Head, key)
	if err != nil {
		return objstore.Info{}, err
	}
	info, err := s.inner.Head(ctx, key)
	if err := s.leave(Head, key, f, err); err != nil {
		return objstore.Info{}, err
	}
	return info, nil
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) ([]objstore.Info, error) {
	f, err := s.enter(ctx, List, prefix)
	if err != nil {
		return nil, err
	}
	page, err := s.inner.List(ctx, prefix, startAfter, limit)
	if err := s.leave(List, prefix, f, err); err != nil {
		return nil, err
	}
	return page, nil
}

// Delete implements objstore.Store.
func (s *Store) Delete(ctx context.Context, key string) error {
	f, err := s.enter(ctx, Delete, key)
	if err != nil {
		return err
	}
	return s.leave(Delete, key, f, s.inner.Delete(ctx, key))
}

// reader is the body of a Get, cut or with a bit flipped when its fault says so.
type reader struct {
	s     *Store
	ctx   context.Context
	body  io.ReadCloser
	fault Fault
	pos   int64
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.s.pass(r.ctx); err != nil {
		return 0, fmt.Errorf("read body: %w", err)
	}
	if r.fault.Kind == Cut {
		left := r.fault.At - r.pos
		if left <= 0 {
			if r.fault.Err != nil {
				return 0, r.fault.Err
			}
			return 0, io.EOF
		}
		p = p[:min(left, int64(len(p)))]
	}
	n, err := r.body.Read(p)
	if i := r.fault.At - r.pos; r.fault.Kind == Flip && i >= 0 && i < int64(n) {
		p[i] ^= 0x10
	}
	r.pos += int64(n)
	return n, err
}

func (r *reader) Close() error { return r.body.Close() }
