package objstore

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Metered is a store that counts what is asked of it, for Prometheus, and
// knows whether the store below answers, for status. See WithMetrics.
type Metered struct {
	s        Store
	requests *prometheus.CounterVec
	errs     *prometheus.CounterVec
	bytes    *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
	inFlight *prometheus.GaugeVec

	mu     sync.Mutex // guards health; never held during a request
	health Health
}

// Health is what the latest replies say about a store.
type Health struct {
	Available   bool      // false once a request was not answered, until one is
	Since       time.Time // when Available became what it is
	LastError   error     // the latest of class unavailable, throttled, permission, no_bucket or damaged
	LastErrorAt time.Time
}

// WithMetrics returns s with its requests counted in reg:
//
//	cistern_objstore_requests_total{op}          requests that ended
//	cistern_objstore_errors_total{op,class}      of them, those that failed, by Class; bodies that broke off included
//	cistern_objstore_bytes_total{direction}      bodies read (down) and stored (up)
//	cistern_objstore_request_seconds{op}         until the reply; for a Get without its body
//	cistern_objstore_in_flight{op}               requests under way; a Get until its body is closed
//
// It fails when reg refuses one of them, as it does for a second store.
func WithMetrics(s Store, reg prometheus.Registerer) (*Metered, error) {
	name := func(n string) string { return "cistern_objstore_" + n }
	m := &Metered{
		s: s,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("requests_total"), Help: "Requests to the object store that ended."}, []string{"op"}),
		errs: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("errors_total"), Help: "Requests to the object store that failed, by class of error."}, []string{"op", "class"}),
		bytes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: name("bytes_total"), Help: "Bytes of object bodies moved."}, []string{"direction"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: name("request_seconds"), Help: "Time until the object store replied.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16)}, []string{"op"}),
		inFlight: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: name("in_flight"), Help: "Requests to the object store under way."}, []string{"op"}),
		health: Health{Available: true, Since: time.Now()},
	}
	for _, c := range []prometheus.Collector{m.requests, m.errs, m.bytes, m.seconds, m.inFlight} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register the object store's metrics: %w", err)
		}
	}
	return m, nil
}

// Health returns what the latest replies say. A store that was not asked yet
// counts as available since WithMetrics.
func (m *Metered) Health() Health {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.health
}

// begin counts a request and returns how to count its end.
func (m *Metered) begin(op string) func(error) {
	start := time.Now()
	m.inFlight.WithLabelValues(op).Inc()
	return func(err error) {
		m.inFlight.WithLabelValues(op).Dec()
		m.replied(op, start, err)
	}
}

func (m *Metered) replied(op string, start time.Time, err error) {
	m.requests.WithLabelValues(op).Inc()
	m.seconds.WithLabelValues(op).Observe(time.Since(start).Seconds())
	m.observe(op, err)
}

// observe counts an error and draws conclusions about the store's health.
func (m *Metered) observe(op string, err error) {
	class := Class(err)
	if err != nil {
		m.errs.WithLabelValues(op, class).Inc()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	switch class {
	case "cancelled", "other":
		return // says nothing about the store
	case "unavailable", "throttled", "permission", "no_bucket", "damaged":
		m.health.LastError, m.health.LastErrorAt = err, now
	}
	// A store that refuses or serves damage does answer.
	if available := class != "unavailable" && class != "throttled"; available != m.health.Available {
		m.health.Available, m.health.Since = available, now
	}
}

// Get implements Store.
func (m *Metered) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error) {
	start := time.Now()
	gauge := m.inFlight.WithLabelValues("get")
	gauge.Inc()
	body, info, err := m.s.Get(ctx, key, off, length)
	m.replied("get", start, err)
	if err != nil {
		gauge.Dec()
		return nil, Info{}, err
	}
	return &meteredBody{ReadCloser: body, m: m, down: m.bytes.WithLabelValues("down"), gauge: gauge}, info, nil
}

// meteredBody counts the bytes of a body and the error that ends it.
type meteredBody struct {
	io.ReadCloser
	m      *Metered
	down   prometheus.Counter
	gauge  prometheus.Gauge
	failed bool
	once   sync.Once
}

func (b *meteredBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.down.Add(float64(n))
	if err != nil && err != io.EOF && !b.failed {
		b.failed = true
		b.m.observe("get", err)
	}
	return n, err
}

func (b *meteredBody) Close() error {
	b.once.Do(b.gauge.Dec)
	return b.ReadCloser.Close()
}

// Put implements Store.
func (m *Metered) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (Version, error) {
	end := m.begin("put")
	v, err := m.s.Put(ctx, key, body, size, cond)
	end(err)
	if err == nil {
		m.bytes.WithLabelValues("up").Add(float64(size))
	}
	return v, err
}

// Head implements Store.
func (m *Metered) Head(ctx context.Context, key string) (Info, error) {
	end := m.begin("head")
	info, err := m.s.Head(ctx, key)
	end(err)
	return info, err
}

// List implements Store.
func (m *Metered) List(ctx context.Context, prefix, startAfter string, limit int) ([]Info, error) {
	end := m.begin("list")
	page, err := m.s.List(ctx, prefix, startAfter, limit)
	end(err)
	return page, err
}

// Delete implements Store.
func (m *Metered) Delete(ctx context.Context, key string) error {
	end := m.begin("delete")
	err := m.s.Delete(ctx, key)
	end(err)
	return err
}
