package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cisternfs/cistern/objstore"
)

// Plain requests are made as many at a time as a mount makes by default, with
// bodies of a volume's default size of objects.
const (
	rawUploads   = 16
	rawDownloads = 32
	rawBody      = 5 * mebibyte
	pings        = 21
)

// rawSet is a set of objects below one prefix.
type rawSet struct {
	store objstore.Store
	sizes []int64
}

func newRawSet(s objstore.Store, prefix string, total int64) *rawSet {
	set := &rawSet{store: objstore.WithPrefix(s, "raw/"+prefix+"/")}
	for ; total > 0; total -= rawBody {
		set.sizes = append(set.sizes, min(total, rawBody))
	}
	return set
}

func rawKey(i int) string { return fmt.Sprintf("%06d", i) }

// each does something for each object, some at a time.
func (s *rawSet) each(ctx context.Context, parallel int, do func(ctx context.Context, key string, size int64) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for i, size := range s.sizes {
		g.Go(func() error { return do(ctx, rawKey(i), size) })
	}
	return g.Wait()
}

// put stores all objects, create-only, and returns how long it took.
func (s *rawSet) put(ctx context.Context) (time.Duration, error) {
	body := make([]byte, rawBody)
	_, _ = rand.Read(body) // never fails
	begun := time.Now()
	err := s.each(ctx, rawUploads, func(ctx context.Context, key string, size int64) error {
		_, err := s.store.Put(ctx, key, bytes.NewReader(body[:size]), size, objstore.Condition{IfAbsent: true})
		return err
	})
	return time.Since(begun), err
}

// get reads all objects by range and returns how long it took.
func (s *rawSet) get(ctx context.Context) (time.Duration, error) {
	begun := time.Now()
	err := s.each(ctx, rawDownloads, func(ctx context.Context, key string, size int64) error {
		body, _, err := s.store.Get(ctx, key, 0, size)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.Discard, body)
		if err == nil && n != size {
			err = fmt.Errorf("object %s: %d of %d bytes", key, n, size)
		}
		return errors.Join(err, body.Close())
	})
	return time.Since(begun), err
}

func (s *rawSet) delete(ctx context.Context) error {
	return s.each(ctx, rawUploads, func(ctx context.Context, key string, _ int64) error { return s.store.Delete(ctx, key) })
}

// roundTrip is the median time of a request that carries nothing.
func roundTrip(ctx context.Context, s objstore.Store) (time.Duration, error) {
	var times []time.Duration
	for range pings {
		begun := time.Now()
		if _, err := s.Head(ctx, "raw/nothing"); err != nil && !errors.Is(err, objstore.ErrNotExist) {
			return 0, fmt.Errorf("measure a round trip: %w", err)
		}
		times = append(times, time.Since(begun))
	}
	slices.Sort(times)
	return times[pings/2], nil
}
