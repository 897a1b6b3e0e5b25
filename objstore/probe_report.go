package objstore

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"
)

// ProbeOptions say how much ProbeStore looks at.
type ProbeOptions struct {
	Short bool // only what Probe does, each thing told apart, and the permissions
	// CellTime is how long each pair of size and parallelism is measured, for PUT
	// and for GET; 0: speed is not measured.
	CellTime time.Duration
	// Progress is told how many of all parts are done; may be nil.
	Progress func(done, total int)
}

// The results of a check.
const (
	ProbeOK      = "ok"
	ProbeFailed  = "failed"  // the store lacks the guarantee
	ProbeDenied  = "denied"  // the store does not let this user do that
	ProbeUnknown = "unknown" // it could not be found out
	ProbeNote    = "note"    // no guarantee is needed; said all the same
)

// ProbeCheck is what came of one check.
type ProbeCheck struct {
	Name   string `json:"name"`
	Result string `json:"result"`
	Detail string `json:"detail,omitempty"`
}

// ProbeReport is what ProbeStore found.
type ProbeReport struct {
	Checks []ProbeCheck `json:"checks"`
	Speed  []ProbeSpeed `json:"speed,omitempty"`
	// Left says what could not be removed; empty: nothing was left behind.
	Left string `json:"left,omitempty"`
}

// Fit says whether a volume is safe on the store, as far as could be seen.
func (r *ProbeReport) Fit() bool { return r.unfit(ProbeFailed, ProbeDenied, ProbeUnknown) == "" }

// Reason says why the store is not fit, worst first; empty when it is.
func (r *ProbeReport) Reason() string {
	for _, result := range []string{ProbeFailed, ProbeDenied, ProbeUnknown} {
		if why := r.unfit(result); why != "" {
			return why
		}
	}
	return ""
}

func (r *ProbeReport) unfit(results ...string) string {
	for _, c := range r.Checks {
		for _, result := range results {
			if c.Result == result {
				return c.Name + ": " + c.Detail
			}
		}
	}
	return ""
}

// Rounds and sizes of the long form.
const (
	longRaceRounds = 4
	longSwapRounds = 8
	shortSwaps     = 2 // on each key
)

// ProbeStore finds out what Probe does and more, tells every part of it apart,
// and measures the store. Its error says that the store could not be reached, or
// that ctx ended; what is wrong with the store is in the report. Like Probe it
// works under a random key probe/… and removes what it wrote, also when ctx ends.
// It takes up to 64 MiB of the network at a time, and bounded memory: bodies are
// made while they are sent.
func ProbeStore(ctx context.Context, s Store, o ProbeOptions) (r *ProbeReport, err error) {
	p := newProbe(s)
	r = &ProbeReport{}
	defer func() {
		if cleanErr := p.clean(ctx); cleanErr != nil && r.Left == "" {
			r.Left = cleanErr.Error()
		}
	}()
	size := shortRace()
	if !o.Short {
		size = longRace()
	}
	steps := p.steps(size)
	cells := speedCells(o)
	total := 1 + len(steps) + 1 + len(cells)
	done := 0
	advance := func() {
		if done++; o.Progress != nil {
			o.Progress(done, total)
		}
	}
	usable, err := p.permissions(ctx, r)
	advance()
	if err != nil || !usable {
		return r, err
	}
	for _, step := range steps {
		if err := r.add(ctx, step.name, step.run(ctx)); err != nil {
			return r, err
		}
		advance()
	}
	p.damagedUpload(ctx, r)
	if err := ctx.Err(); err != nil {
		return r, fmt.Errorf("probe of the object store: %w", err)
	}
	advance()
	return r, p.measure(ctx, r, o.CellTime, cells, advance)
}

// add notes what came of a check. It returns an error when going on is no use.
func (r *ProbeReport) add(ctx context.Context, name string, err error) error {
	c := ProbeCheck{Name: name, Result: ProbeOK}
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return fmt.Errorf("probe of the object store: %w", ctx.Err())
	case errors.Is(err, ErrGuarantee):
		c.Result = ProbeFailed
	case errors.Is(err, ErrPermission):
		c.Result = ProbeDenied
	default:
		c.Result = ProbeUnknown
	}
	if err != nil {
		c.Detail = err.Error()
	}
	r.Checks = append(r.Checks, c)
	if errors.Is(err, ErrNoBucket) || c.Result == ProbeUnknown && errors.Is(err, ErrUnavailable) && !errors.Is(err, ErrThrottled) {
		return fmt.Errorf("probe of the object store: %s: %w", name, err)
	}
	return nil
}

// permissions tries each operation once and says whether the rest can be found
// out.
func (p *probe) permissions(ctx context.Context, r *ProbeReport) (usable bool, err error) {
	body := []byte("permission " + rand.Text())
	key := p.key("permission")
	present := func(err error) error {
		if errors.Is(err, ErrNotExist) {
			return nil // it was asked, and another check is about the answer
		}
		return err
	}
	usable = true
	for _, op := range []probeStep{
		{"may PUT", func(ctx context.Context) error {
			_, err := p.put(ctx, "permission", body, Condition{})
			return err
		}},
		{"may GET", func(ctx context.Context) error {
			_, _, err := ReadAll(ctx, p.s, key, 1<<10)
			return present(err)
		}},
		{"may HEAD", func(ctx context.Context) error {
			_, err := p.s.Head(ctx, key)
			return present(err)
		}},
		{"may LIST", func(ctx context.Context) error {
			_, err := p.s.List(ctx, p.base, "", 1)
			return err
		}},
		{"may DELETE", func(ctx context.Context) error { return p.s.Delete(ctx, key) }},
	} {
		err := again(ctx, func() error { return op.run(ctx) })
		if err := r.add(ctx, op.name, err); err != nil {
			return false, err
		}
		usable = usable && err == nil
	}
	return usable, nil
}

// damagedUpload sends a body that changes after the client has computed its
// checksum, where the client reads bodies twice. No guarantee: what is read is
// verified by the engine's own checksums.
func (p *probe) damagedUpload(ctx context.Context, r *ProbeReport) {
	const size = 64 << 10
	c := ProbeCheck{Name: "damaged uploads", Result: ProbeNote}
	key := p.key("damaged")
	body := &changingBody{Reader: bytes.NewReader(make([]byte, size))}
	_, err := p.s.Put(ctx, key, body, size, Condition{})
	stored, _, readErr := ReadAll(ctx, p.s, key, size)
	switch {
	case body.passes < 2:
		c.Detail = "not tested: this kind of store is sent its bodies without a checksum of the whole"
	case errors.Is(readErr, ErrNotExist) && err != nil:
		c.Result, c.Detail = ProbeOK, "refused by the store"
	case readErr != nil:
		c.Detail = fmt.Sprintf("not known: %v", readErr)
	case bytes.IndexByte(stored, 1) >= 0:
		c.Detail = "stored as they came: this store does not verify what it is sent; damage is found when it is read"
	default:
		c.Detail = "not tested: the client sent the body as it was when its checksum was computed"
	}
	r.Checks = append(r.Checks, c)
}

// changingBody has other bytes in every pass after the first.
type changingBody struct {
	*bytes.Reader
	passes int
}

// Read implements io.Reader.
func (b *changingBody) Read(p []byte) (int, error) {
	if b.Len() == int(b.Size()) && len(p) > 0 {
		b.passes++
	}
	n, err := b.Reader.Read(p)
	if b.passes > 1 && n > 0 {
		p[n/2] = 1
	}
	return n, err
}

// WriteTo hides that of bytes.Reader, which would not change anything.
func (b *changingBody) WriteTo(w io.Writer) (int64, error) {
	return io.Copy(w, struct{ io.Reader }{b})
}
