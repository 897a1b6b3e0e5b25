package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

// Limits bound how many requests of one store are under way at a time. They are
// lowered while the store asks for fewer (ErrThrottled): halved, at most once a
// second and never below 1, and raised by one for every two seconds without
// another such reply, up to what was set.
type Limits struct {
	up, down *gate
}

// LimitStatus is how the limits stand.
type LimitStatus struct {
	Uploads   GateStatus `json:"uploads"`
	Downloads GateStatus `json:"downloads"`
}

// NewLimits returns limits of uploads and downloads, each at least 1, shown in
// reg, which may be nil:
//
//	cistern_objstore_limit{direction}    requests that may be under way at a time, now
//	cistern_objstore_waiting{direction}  requests that wait for one of them to end
func NewLimits(uploads, downloads int, reg prometheus.Registerer) (*Limits, error) {
	if uploads < 1 || downloads < 1 {
		return nil, fmt.Errorf("limits of concurrent uploads (%d) and downloads (%d) must be at least 1", uploads, downloads)
	}
	l := &Limits{up: newGate(uploads), down: newGate(downloads)}
	if reg == nil {
		return l, nil
	}
	for direction, g := range map[string]*gate{"up": l.up, "down": l.down} {
		labels := prometheus.Labels{"direction": direction}
		for _, c := range []prometheus.Collector{
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "cistern_objstore_limit", Help: "Requests to the object store that may be under way at a time.", ConstLabels: labels,
			}, func() float64 { return float64(g.status().Limit) }),
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Name: "cistern_objstore_waiting", Help: "Requests to the object store that wait for their turn.", ConstLabels: labels,
			}, func() float64 { return float64(g.status().Waiting) }),
		} {
			if err := reg.Register(c); err != nil {
				return nil, fmt.Errorf("register the object store's limits: %w", err)
			}
		}
	}
	return l, nil
}

// Set changes what is never exceeded, each at least 1. Requests under way go on.
func (l *Limits) Set(uploads, downloads int) error {
	if uploads < 1 || downloads < 1 {
		return fmt.Errorf("limits of concurrent uploads (%d) and downloads (%d) must be at least 1", uploads, downloads)
	}
	l.up.setMost(uploads)
	l.down.setMost(downloads)
	return nil
}

// Status returns how the limits stand.
func (l *Limits) Status() LimitStatus {
	return LimitStatus{Uploads: l.up.status(), Downloads: l.down.status()}
}

// TrySpare takes the place of one more download, if one is free and nobody waits
// for it, and returns how to give it back, which is called once. See WithHedge.
func (l *Limits) TrySpare() (giveBack func(), ok bool) {
	if !l.down.tryEnter() {
		return nil, false
	}
	return l.down.leave, true
}

// WithLimit returns a store on which no more Puts and Gets are under way at a
// time than l allows; the others wait, in the order in which they came and within
// their context. A Get is under way until its body is closed: who holds one and
// waits for another can wait for ever. Heads, Lists and Deletes pass, but a reply
// that asks for fewer requests counts whatever it answers.
//
// What must not wait behind bulk traffic, such as the renewal of a lease, goes
// to the store below.
func WithLimit(s Store, l *Limits) Store { return &limiter{s: s, l: l} }

type limiter struct {
	s Store
	l *Limits
}

// observe lowers a limit when err asks for that, and returns err.
func observe(g *gate, err error) error {
	if errors.Is(err, ErrThrottled) {
		g.slowDown()
	}
	return err
}

func (l *limiter) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (Version, error) {
	g := l.l.up
	if err := g.enter(ctx); err != nil {
		return "", fmt.Errorf("put %s: wait for a free upload: %w", key, err)
	}
	defer g.leave()
	v, err := l.s.Put(ctx, key, body, size, cond)
	return v, observe(g, err)
}

func (l *limiter) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error) {
	g := l.l.down
	if err := g.enter(ctx); err != nil {
		return nil, Info{}, fmt.Errorf("get %s: wait for a free download: %w", key, err)
	}
	body, info, err := l.s.Get(ctx, key, off, length)
	if observe(g, err) != nil {
		g.leave()
		return nil, Info{}, err
	}
	return &limitedBody{ReadCloser: body, gate: g}, info, nil
}

func (l *limiter) Head(ctx context.Context, key string) (Info, error) {
	info, err := l.s.Head(ctx, key)
	return info, observe(l.l.down, err)
}

func (l *limiter) List(ctx context.Context, prefix, startAfter string, limit int) ([]Info, error) {
	page, err := l.s.List(ctx, prefix, startAfter, limit)
	return page, observe(l.l.down, err)
}

func (l *limiter) Delete(ctx context.Context, key string) error {
	return observe(l.l.up, l.s.Delete(ctx, key))
}

// limitedBody gives its place back when it is closed.
type limitedBody struct {
	io.ReadCloser
	gate *gate
	once sync.Once
}

func (b *limitedBody) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(b.gate.leave)
	return err
}
