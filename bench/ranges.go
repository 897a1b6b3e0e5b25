package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/cisternfs/cistern/bench/trace"
	"github.com/cisternfs/cistern/objstore"
)

// ranges are those that Query 1 reads, and how many at a time.
func (s *importSuite) ranges() ([]trace.Range, int, error) {
	t, err := s.recording()
	if err != nil {
		return nil, 0, err
	}
	ranges, width := t.Ranges(phaseQuery)
	return ranges, width, nil
}

func rangeStore(t *Target) objstore.Store { return objstore.WithPrefix(t.remote.Raw, "raw/query/") }

// putRanges stores an object for each file that Query 1 reads.
func (s *importSuite) putRanges(ctx context.Context, t *Target) error {
	ranges, _, err := s.ranges()
	if err != nil {
		return err
	}
	sizes := map[string]int64{}
	for _, x := range ranges {
		sizes[x.Path] = max(sizes[x.Path], x.Offset+x.Length)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(rawUploads)
	for root := range queryRoots {
		for path, size := range sizes {
			g.Go(func() error {
				body := make([]byte, size)
				_, _ = rand.Read(body) // never fails
				_, err := rangeStore(t).Put(ctx, rangeKey(root, path), bytes.NewReader(body), size, objstore.Condition{})
				return err
			})
		}
	}
	return g.Wait()
}

func rangeKey(root int, path string) string { return fmt.Sprintf("%d/%s", root, path) }

// getRanges reads all ranges, some at a time, and returns how long it took.
func (s *importSuite) getRanges(ctx context.Context, t *Target, parallel int) (time.Duration, error) {
	ranges, _, err := s.ranges()
	if err != nil {
		return 0, err
	}
	begun := time.Now()
	for root := range queryRoots {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(parallel)
		for _, x := range ranges {
			g.Go(func() error {
				body, _, err := rangeStore(t).Get(ctx, rangeKey(root, x.Path), x.Offset, x.Length)
				if err != nil {
					return err
				}
				n, err := io.Copy(io.Discard, body)
				if err == nil && n != x.Length {
					err = fmt.Errorf("object %s: %d of %d bytes", x.Path, n, x.Length)
				}
				return errors.Join(err, body.Close())
			})
		}
		if err := g.Wait(); err != nil {
			return 0, err
		}
	}
	return time.Since(begun), nil
}
