package objstore

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// Bounds of a measurement.
const (
	speedObjects = 4096    // that one cell may write
	speedBytes   = 1 << 30 // that one cell may write
	speedSamples = 16384   // latencies kept of one cell; later ones replace the first
	speedGrace   = 30 * time.Second
	speedErrors  = 20 // in a row, after which a worker gives up
)

// ProbeSpeed is how fast a store was with one kind of request. Latencies are of
// whole requests, bodies included, in seconds.
type ProbeSpeed struct {
	Op       string  `json:"op"`         // PUT or GET
	Size     int64   `json:"size_bytes"` // of each body
	Parallel int     `json:"parallel"`   // requests under way at a time
	Requests int     `json:"requests"`   // that succeeded
	Errors   int     `json:"errors"`     // those that did not
	Error    string  `json:"error,omitempty"`
	Seconds  float64 `json:"seconds"`
	Min      float64 `json:"min_seconds"`
	Median   float64 `json:"median_seconds"`
	P95      float64 `json:"p95_seconds"`
	P99      float64 `json:"p99_seconds"`
	// BytesPerSecond is of bodies, over all requests.
	BytesPerSecond float64 `json:"bytes_per_second"`
}

// speedCell is a pair of size and parallelism.
type speedCell struct {
	size     int64
	parallel int
}

func speedCells(o ProbeOptions) []speedCell {
	if o.Short || o.CellTime <= 0 {
		return nil
	}
	var cells []speedCell
	for _, size := range []int64{4 << 10, 1 << 20, 5 << 20} {
		for _, parallel := range []int{1, 16} {
			cells = append(cells, speedCell{size, parallel})
		}
	}
	return cells
}

// measure measures every cell: PUTs first, and GETs of what they stored.
func (p *probe) measure(ctx context.Context, r *ProbeReport, d time.Duration, cells []speedCell, advance func()) error {
	src := newNoise()
	for i, c := range cells {
		m := &measured{p: p, cell: c, src: src, base: fmt.Sprintf("%sspeed-%d/", p.base, i), written: make([]int, c.parallel)}
		err := m.run(ctx, r, d)
		if left := m.clean(ctx); left != nil && r.Left == "" {
			r.Left = left.Error()
		}
		if err != nil {
			return err
		}
		advance()
	}
	return nil
}

// measured is one cell while it is measured.
type measured struct {
	p       *probe
	cell    speedCell
	src     *noise
	base    string
	written []int // keys that each worker may have written; the last one perhaps not
	stored  []int // of them, those that it has
}

func (m *measured) key(worker, i int) string { return fmt.Sprintf("%s%d-%d", m.base, worker, i) }

// most is how many objects each worker may write.
func (m *measured) most() int {
	return max(1, int(min(speedObjects, speedBytes/m.cell.size))/m.cell.parallel)
}

func (m *measured) run(ctx context.Context, r *ProbeReport, d time.Duration) error {
	m.stored = make([]int, m.cell.parallel)
	put := m.load("PUT", d).run(ctx, func(ctx context.Context, w int) (bool, error) {
		i := m.stored[w]
		if i == m.most() {
			return false, nil
		}
		m.written[w] = i + 1
		body := &noisyBody{n: m.src, id: uint64(w)<<32 | uint64(i), size: m.cell.size}
		_, err := m.p.s.Put(ctx, m.key(w, i), body, m.cell.size, Condition{})
		if err == nil {
			m.stored[w]++
		}
		return true, err
	})
	r.Speed = append(r.Speed, put)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("probe of the object store: %w", err)
	}
	next := make([]int, m.cell.parallel)
	get := m.load("GET", d).run(ctx, func(ctx context.Context, w int) (bool, error) {
		if m.stored[w] == 0 {
			return false, nil
		}
		i := next[w] % m.stored[w]
		next[w]++
		return true, m.get(ctx, m.key(w, i))
	})
	r.Speed = append(r.Speed, get)
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("probe of the object store: %w", err)
	}
	return nil
}

// get reads a whole body and drops it.
func (m *measured) get(ctx context.Context, key string) error {
	body, _, err := m.p.s.Get(ctx, key, 0, m.cell.size)
	if err != nil {
		return err
	}
	n, err := io.Copy(io.Discard, body)
	if closeErr := body.Close(); err == nil {
		err = closeErr
	}
	if err == nil && n != m.cell.size {
		err = fmt.Errorf("get %s: %w: %d of %d bytes came", key, ErrDamaged, n, m.cell.size)
	}
	return err
}

// clean deletes what the workers wrote.
func (m *measured) clean(ctx context.Context) error {
	var keys []string
	for w, n := range m.written {
		for i := range n {
			keys = append(keys, m.key(w, i))
		}
	}
	return deleteAll(ctx, m.p.s, len(keys), func(i int) string { return keys[i] })
}

// load is one measurement.
type load struct {
	op   string
	cell speedCell
	d    time.Duration

	mu      sync.Mutex // guards the fields below; never held during a request
	took    []time.Duration
	count   int
	errors  int
	lastErr error
}

func (m *measured) load(op string, d time.Duration) *load { return &load{op: op, cell: m.cell, d: d} }

// run makes requests until the time is over or there are no more. What is under
// way then may end.
func (l *load) run(ctx context.Context, request func(ctx context.Context, worker int) (more bool, err error)) ProbeSpeed {
	ctx, cancel := context.WithTimeout(ctx, l.d+speedGrace)
	defer cancel()
	start := time.Now()
	var wg sync.WaitGroup
	for w := range l.cell.parallel {
		wg.Go(func() {
			for failed := 0; failed < speedErrors && time.Since(start) < l.d && ctx.Err() == nil; {
				began := time.Now()
				more, err := request(ctx, w)
				if !more {
					return
				}
				l.note(time.Since(began), err)
				failed++
				if err == nil {
					failed = 0
				} else if sleep(ctx, probePause) != nil {
					return
				}
			}
		})
	}
	wg.Wait()
	return l.result(time.Since(start))
}

func (l *load) note(took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.errors++
		l.lastErr = err
		return
	}
	if len(l.took) < speedSamples {
		l.took = append(l.took, took)
	} else {
		l.took[l.count%speedSamples] = took
	}
	l.count++
}

func (l *load) result(took time.Duration) ProbeSpeed {
	s := ProbeSpeed{Op: l.op, Size: l.cell.size, Parallel: l.cell.parallel, Requests: l.count, Errors: l.errors, Seconds: took.Seconds()}
	if l.lastErr != nil {
		s.Error = l.lastErr.Error()
	}
	if l.count == 0 {
		return s
	}
	slices.Sort(l.took)
	at := func(percent int) float64 {
		return l.took[min(len(l.took)*percent/100, len(l.took)-1)].Seconds()
	}
	s.Min, s.Median, s.P95, s.P99 = at(0), at(50), at(95), at(99)
	if took > 0 {
		s.BytesPerSecond = float64(l.count) * float64(l.cell.size) / took.Seconds()
	}
	return s
}
