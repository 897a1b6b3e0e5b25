package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// RetryOptions bound what WithRetry does. Zero fields take the defaults.
type RetryOptions struct {
	Attempts int           // of one request, the first included; default 6
	MinWait  time.Duration // bound of the first pause, doubled each time; default 100 ms
	MaxWait  time.Duration // bound of any pause; default 5 s
	Total    time.Duration // no attempt begins later than this after the first; default 1 min
	// Jitter returns a number in [0, 1) and is called concurrently; default
	// math/rand/v2.Float64.
	Jitter func() float64
}

func (o RetryOptions) withDefaults() RetryOptions {
	if o.Attempts <= 0 {
		o.Attempts = 6
	}
	if o.MinWait <= 0 {
		o.MinWait = 100 * time.Millisecond
	}
	if o.MaxWait <= 0 {
		o.MaxWait = 5 * time.Second
	}
	if o.Total <= 0 {
		o.Total = time.Minute
	}
	if o.Jitter == nil {
		o.Jitter = rand.Float64
	}
	return o
}

// WithRetry returns a store that repeats what failed with ErrUnavailable or
// ErrDamaged, after a pause of random length under a bound that doubles each
// time. A body that breaks off is continued where it ended, as long as the key
// still holds the same version.
//
// A conditional Put is made once and never repeated: only Create and
// CompareAndSwap know what an error of it means. An unconditional one is, so
// that a key that is written without a condition must have one writer.
func WithRetry(s Store, o RetryOptions) Store {
	return &retrier{s: s, o: o.withDefaults()}
}

type retrier struct {
	s Store
	o RetryOptions
}

// do calls f until it succeeds, fails for good, or the bounds are reached.
func (r *retrier) do(ctx context.Context, f func() error) error {
	deadline := time.Now().Add(r.o.Total)
	for attempt := 1; ; attempt++ {
		err := f()
		if err == nil || !mayPass(err) || ctx.Err() != nil {
			return err
		}
		pause := r.pause(attempt)
		if attempt == r.o.Attempts || time.Now().Add(pause).After(deadline) {
			return fmt.Errorf("gave up after %d attempts: %w", attempt, err)
		}
		if waitErr := sleep(ctx, pause); waitErr != nil {
			return fmt.Errorf("gave up after %d attempts: %w: %w", attempt, waitErr, err)
		}
	}
}

// pause returns the pause after the given attempt, from 1.
func (r *retrier) pause(attempt int) time.Duration {
	bound := r.o.MaxWait
	if shift := attempt - 1; shift < 32 && r.o.MinWait<<shift < bound && r.o.MinWait<<shift > 0 {
		bound = r.o.MinWait << shift
	}
	return time.Duration(r.o.Jitter() * float64(bound))
}

func (r *retrier) Get(ctx context.Context, key string, off, length int64) (body io.ReadCloser, info Info, err error) {
	err = r.do(ctx, func() error {
		body, info, err = r.s.Get(ctx, key, off, length)
		return err
	})
	if err != nil {
		return nil, Info{}, err
	}
	left := max(info.Size-off, 0)
	if length >= 0 {
		left = min(left, length)
	}
	return &resumer{r: r, ctx: ctx, body: body, info: info, off: off, left: left, attempts: r.o.Attempts}, info, nil
}

func (r *retrier) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (v Version, err error) {
	if cond != (Condition{}) {
		return r.s.Put(ctx, key, body, size, cond)
	}
	start, err := body.Seek(0, io.SeekCurrent)
	if err != nil {
		return "", fmt.Errorf("put %s: find the start of the body: %w", key, err)
	}
	err = r.do(ctx, func() error {
		if _, err := body.Seek(start, io.SeekStart); err != nil {
			return fmt.Errorf("put %s: go back to the start of the body: %w", key, err)
		}
		v, err = r.s.Put(ctx, key, body, size, cond)
		return err
	})
	if err != nil {
		return "", err
	}
	return v, nil
}

func (r *retrier) Head(ctx context.Context, key string) (info Info, err error) {
	err = r.do(ctx, func() error {
		info, err = r.s.Head(ctx, key)
		return err
	})
	return info, err
}

func (r *retrier) List(ctx context.Context, prefix, startAfter string, limit int) (page []Info, err error) {
	err = r.do(ctx, func() error {
		page, err = r.s.List(ctx, prefix, startAfter, limit)
		return err
	})
	return page, err
}

func (r *retrier) Delete(ctx context.Context, key string) error {
	return r.do(ctx, func() error { return r.s.Delete(ctx, key) })
}

// resumer is a body that goes on after a broken connection. It belongs to one
// goroutine, as readers do.
type resumer struct {
	r        *retrier
	ctx      context.Context
	body     io.ReadCloser // nil after a failure to resume
	info     Info
	off      int64 // of the next byte
	left     int64 // bytes still to come
	attempts int   // requests that may still be made for this body
	broken   error // why the body can't be read on as it is
}

func (b *resumer) Read(p []byte) (int, error) {
	for {
		if b.broken != nil {
			if err := b.resume(); err != nil {
				return 0, err
			}
		}
		n, err := b.body.Read(p)
		b.off += int64(n)
		b.left -= int64(n)
		if err == nil || err == io.EOF && b.left <= 0 {
			return n, err
		}
		early := bodyEnded(err)
		// Bytes that were found damaged may have been handed on already, so
		// only what came too short can be made good.
		if !early && !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrDamaged) || b.left <= 0 || b.ctx.Err() != nil {
			return n, err
		}
		b.broken = err
		if early {
			b.broken = fmt.Errorf("%w: the body ended %d bytes early", ErrUnavailable, b.left)
		}
		if n > 0 {
			return n, nil
		}
	}
}

// resume asks for the rest of the body.
func (b *resumer) resume() error {
	if b.body != nil {
		// The connection is known to be broken.
		_ = b.body.Close()
		b.body = nil
	}
	for {
		b.attempts--
		if b.attempts <= 0 {
			return fmt.Errorf("body of object %s broke off %d bytes before its end: %w", b.info.Key, b.left, b.broken)
		}
		if err := sleep(b.ctx, b.r.pause(b.r.o.Attempts-b.attempts)); err != nil {
			return fmt.Errorf("read object %s: %w: %w", b.info.Key, err, b.broken)
		}
		body, info, err := b.r.s.Get(b.ctx, b.info.Key, b.off, b.left)
		if err != nil {
			if mayPass(err) && b.ctx.Err() == nil {
				b.broken = err
				continue
			}
			return err
		}
		b.body = body
		if info.Version != b.info.Version {
			return fmt.Errorf("read object %s: %w: it was replaced while it was being read", b.info.Key, ErrUnavailable)
		}
		b.broken = nil
		return nil
	}
}

func (b *resumer) Close() error {
	if b.body == nil {
		return nil
	}
	return b.body.Close()
}
