package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// HedgeOptions say which reads are asked for twice, and when. Zero fields take
// the defaults.
type HedgeOptions struct {
	MaxBytes int64         // of a range that is hedged; default 8 MiB
	MinWait  time.Duration // before a second request; default 10 ms
	// Share bounds the second requests as a part of all reads that may have
	// one, 0 to 1; default 0.05. A few may come together.
	Share float64
	// Spare asks for one more place among the requests under way and returns
	// how to give it back, or false when there is none; nil: there always is.
	// See Limits.TrySpare. It must not wait.
	Spare func() (giveBack func(), ok bool)
}

const (
	hedgeSamples = 128 // recent answers that are remembered, by class of size
	hedgeLearn   = 20  // answers before the first second request
	hedgeRefresh = 16  // answers between two looks at the percentile
	hedgeSaved   = 4   // second requests that may come together
)

// hedgeClasses are the upper bounds of the classes of sizes, in bytes; the last
// class is what is larger.
var hedgeClasses = [...]int64{16 << 10, 128 << 10, 1 << 20}

// WithHedge returns a store that sends a Get of a range for the second time when
// it has not answered within the 95th percentile of what such reads took of late.
// The first answer counts, whole, and the other request is cancelled before Get
// returns. A failure of one that may pass waits for the other. Everything else
// passes: a Put is never made twice.
//
// It counts in reg, which may be nil, cistern_objstore_hedges_total{won}: second
// requests, and whether theirs was the answer.
func WithHedge(s Store, o HedgeOptions, reg prometheus.Registerer) (Store, error) {
	if o.MaxBytes <= 0 {
		o.MaxBytes = 8 << 20
	}
	if o.MinWait <= 0 {
		o.MinWait = 10 * time.Millisecond
	}
	if o.Share <= 0 || o.Share > 1 {
		o.Share = 0.05
	}
	if o.Spare == nil {
		o.Spare = func() (func(), bool) { return func() {}, true }
	}
	h := &hedger{Store: s, o: o, sent: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "cistern_objstore_hedges_total", Help: "Reads that were asked for a second time, by whether that was answered first.",
	}, []string{"won"})}
	if reg != nil {
		if err := reg.Register(h.sent); err != nil {
			return nil, fmt.Errorf("register the object store's hedged reads: %w", err)
		}
	}
	return h, nil
}

type hedger struct {
	Store
	o    HedgeOptions
	sent *prometheus.CounterVec

	mu      sync.Mutex // guards the fields below; never held during a request
	answers [len(hedgeClasses) + 1]answerTimes
	saved   float64 // second requests that may be sent
}

// answerTimes are the recent answers of one class of sizes.
type answerTimes struct {
	ring  [hedgeSamples]time.Duration
	count int // of all answers
	p95   time.Duration
}

func (a *answerTimes) add(d time.Duration) {
	a.ring[a.count%hedgeSamples] = d
	a.count++
	if a.count >= hedgeLearn && (a.p95 == 0 || a.count%hedgeRefresh == 0) {
		sorted := slices.Clone(a.ring[:min(a.count, hedgeSamples)])
		slices.Sort(sorted)
		a.p95 = sorted[len(sorted)*95/100]
	}
}

func hedgeClass(length int64) int {
	for i, most := range hedgeClasses {
		if length <= most {
			return i
		}
	}
	return len(hedgeClasses)
}

// patience returns how long an answer is waited for before the second request;
// 0: for ever, since too little is known.
func (h *hedger) patience(class int) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.saved = min(h.saved+h.o.Share, hedgeSaved)
	if h.answers[class].count < hedgeLearn {
		return 0
	}
	return max(h.answers[class].p95, h.o.MinWait)
}

// answered notes how long a first request took. One that was called off counts
// with the time until then: leaving it out would make the store look faster.
func (h *hedger) answered(class int, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.answers[class].add(d)
}

// pay takes a second request out of the budget.
func (h *hedger) pay() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.saved < 1 {
		return false
	}
	h.saved--
	return true
}

// Get implements Store.
func (h *hedger) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error) {
	if length <= 0 || length > h.o.MaxBytes {
		return h.Store.Get(ctx, key, off, length)
	}
	class := hedgeClass(length)
	r := &hedgedRead{h: h, ctx: ctx, key: key, off: off, length: length, ended: make(chan struct{})}
	firstCtx, cancelFirst := context.WithCancel(ctx)
	r.cancelFirst = cancelFirst
	start := time.Now()
	var timer *time.Timer
	if patience := h.patience(class); patience > 0 {
		timer = time.AfterFunc(patience, r.sendSecond)
	}
	first := r.ask(firstCtx, cancelFirst)
	took := time.Since(start)
	lost := r.firstEnded(first)
	if timer != nil && !timer.Stop() {
		<-r.ended
	}
	if first.err == nil || lost {
		h.answered(class, took)
	}
	if !lost {
		r.second.drop()
		return first.body, first.info, first.err
	}
	first.drop()
	return r.second.body, r.second.info, r.second.err
}

// answer is what one request came to.
type answer struct {
	body io.ReadCloser // nil on failure
	info Info
	err  error
}

// final says whether another request could not know better.
func (a *answer) final() bool { return a.err == nil || errors.Is(a.err, ErrNotExist) }

// drop closes a body that nobody will read.
func (a *answer) drop() {
	if a.body != nil {
		// Its error says nothing about the bytes that were chosen.
		_ = a.body.Close()
	}
}

// chosenAnswer says whose answer a Get returns.
type chosenAnswer int

const (
	noneYet chosenAnswer = iota
	theFirst
	theSecond
)

// hedgedRead is one Get. The first request runs in the caller's goroutine, the
// second in that of the timer, which the caller waits for.
type hedgedRead struct {
	h           *hedger
	ctx         context.Context
	key         string
	off, length int64
	cancelFirst context.CancelFunc
	ended       chan struct{} // closed when the second request is done with
	second      answer        // valid then

	mu           sync.Mutex         // guards the fields below; never held during a request
	over         bool               // the first request ended
	chosen       chosenAnswer       // once one of them is final
	cancelSecond context.CancelFunc // nil while there is no second request
}

// ask makes a request whose context ends with its body.
func (r *hedgedRead) ask(ctx context.Context, cancel context.CancelFunc) answer {
	body, info, err := r.h.Store.Get(ctx, r.key, r.off, r.length)
	if err != nil {
		cancel()
		return answer{err: err}
	}
	return answer{body: &hedgedBody{ReadCloser: body, cancel: cancel}, info: info}
}

// firstEnded says whether the second request's answer counts, after waiting for
// it where the first one's is not final.
func (r *hedgedRead) firstEnded(first answer) (lost bool) {
	r.mu.Lock()
	r.over = true
	if r.chosen == noneYet && first.final() {
		r.chosen = theFirst
		if r.cancelSecond != nil {
			r.cancelSecond()
		}
	}
	pending := r.chosen == noneYet && r.cancelSecond != nil
	r.mu.Unlock()
	if pending {
		<-r.ended
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.chosen == theSecond
}

// sendSecond makes the second request, and calls the first one off when it has
// an answer.
func (r *hedgedRead) sendSecond() {
	defer close(r.ended)
	giveBack, ok := r.h.o.Spare()
	if !ok {
		return
	}
	defer giveBack()
	ctx, cancel := context.WithCancel(r.ctx)
	r.mu.Lock()
	if r.over || !r.h.pay() {
		r.mu.Unlock()
		cancel()
		return
	}
	r.cancelSecond = cancel
	r.mu.Unlock()
	r.second = r.ask(ctx, cancel)
	r.mu.Lock()
	if r.chosen == noneYet && r.second.final() {
		r.chosen = theSecond
		r.cancelFirst()
	}
	won := r.chosen == theSecond
	r.mu.Unlock()
	r.h.sent.WithLabelValues(strconv.FormatBool(won)).Inc()
}

// hedgedBody ends its request's context when it is closed.
type hedgedBody struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (b *hedgedBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel()
	return err
}
