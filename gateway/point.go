package gateway

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/cisternfs/cistern/internal/config"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// ErrPoint: a point that is no commit's number, no time and no snapshot.
var ErrPoint = errors.New("no such point")

// noCommit is the error of a point that is a number which no commit has: ErrPoint, and
// ErrNotExist.
type noCommit struct{}

func (noCommit) Error() string        { return ErrPoint.Error() }
func (noCommit) Is(target error) bool { return target == ErrPoint || target == ErrNotExist }

// ResolvePoint returns the number of the commit that a point names: a commit's
// number; a time as RFC 3339 has it, or a time back from now like -15m, -36h, -2d
// or -1w, which mean the last commit at or before that time; a snapshot's name;
// empty, which means the last commit. Errors: ErrPoint when it is none of these,
// ErrNotExist, ErrCollected, ErrDamaged, ErrStore. It takes a handful of requests
// for a recent time or a snapshot and some dozens for any other time.
func ResolvePoint(ctx context.Context, s objstore.Store, url, point string) (uint64, error) {
	n, at, err := parsePoint(point, time.Now())
	if err != nil && CheckSnapshotName(point) == nil {
		x, ferr := FindSnapshot(ctx, s, url, point)
		if errors.Is(ferr, ErrPoint) && looksLikePoint(point) {
			ferr = fmt.Errorf("%w: %s@%s: %w", ErrPoint, url, point, err) // a time was meant
		}
		return x.Commit.N, ferr
	}
	if err != nil {
		return 0, fmt.Errorf("%w: %s@%s: %w", ErrPoint, url, point, err)
	}
	head, err := headOf(ctx, s)
	switch {
	case err != nil:
		return 0, err
	case point == "":
		return head.id.N, nil
	case n != 0:
		e, err := commitAt(ctx, s, head, n, url)
		if err != nil {
			return 0, err
		}
		return e.id.N, nil
	}
	e, err := pathReader{s}.asOf(ctx, head, at.UnixNano(), url)
	if err != nil {
		return 0, err
	}
	if l := lineageOf(s); l != nil && e.id.N <= l.doc.Base().N {
		return 0, beforeBirth(l.doc, url, e.id.N)
	}
	return e.id.N, nil
}

// parsePoint reads a point: n is not 0 for a commit's number.
func parsePoint(point string, now time.Time) (n uint64, at time.Time, err error) {
	if point == "" {
		return 0, now, nil
	}
	if n, err := strconv.ParseUint(point, 10, 64); err == nil {
		if n == 0 {
			return 0, now, errors.New("commits are numbered from 1")
		}
		return n, now, nil
	}
	if back, ok := strings.CutPrefix(point, "-"); ok {
		d, err := parseBack(back)
		return 0, now.Add(-d), err
	}
	at, err = time.Parse(time.RFC3339, point)
	if err != nil {
		return 0, now, fmt.Errorf("%q is neither a commit's number, nor a time like 2026-01-31T12:00:00Z, nor a time back like -15m, nor the name of a snapshot", point)
	}
	if at.Year() < 1970 || at.Year() > 2200 {
		return 0, now, fmt.Errorf("the year %d is out of range", at.Year())
	}
	return 0, at, nil
}

// parseBack reads a length of time before now.
func parseBack(s string) (time.Duration, error) {
	d, err := config.ParseLength(s)
	if err != nil {
		return 0, fmt.Errorf("%q is no time back like -15m, -36h, -2d or -1w", "-"+s)
	}
	return d, nil
}

// asOf returns the last commit at or before a time, nanoseconds since 1970. It
// goes back from the head in growing steps, and halves what is between then:
// times never go back from commit to commit.
func (r pathReader) asOf(ctx context.Context, head *entry, at int64, url string) (*entry, error) {
	if head.commit.Time <= at {
		return head, nil
	}
	late := head       // its time is after at
	upper := late.id.N // no commit from here to late is at or before at
	early, lower := (*entry)(nil), uint64(0)
	look := func(n uint64) error {
		e, gone, err := r.upTo(ctx, n, lower, late.id.Epoch)
		switch {
		case err != nil:
			return err
		case gone:
			early, lower = nil, n
			return nil
		case e == nil:
			lower = n
			return nil
		case e.commit.Time <= at:
			early, lower = e, n
			return nil
		}
		late, upper = e, e.id.N
		return nil
	}
	for step := uint64(1); lower == 0 && upper > 1; step *= 2 {
		if err := look(max(1, upper-min(step, upper-1))); err != nil {
			return nil, err
		}
	}
	for upper-lower > 1 {
		if err := look(lower + (upper-lower)/2); err != nil {
			return nil, err
		}
	}
	if early == nil {
		return nil, fmt.Errorf("%w: %s has nothing of %s: the oldest commit after that, %d, is of %s", ErrCollected, url,
			time.Unix(0, at).UTC().Format(time.RFC3339), late.id.N, time.Unix(0, late.commit.Time).UTC().Format(time.RFC3339Nano))
	}
	return early, nil
}

// upTo returns the commit with the number n, or the one that a seal with that
// number follows; nil when there is none above lower. gone: it was collected.
func (r pathReader) upTo(ctx context.Context, n, lower, epoch uint64) (found *entry, gone bool, err error) {
	for ; n > lower; n-- {
		var x *entry
		for e := epoch; e > 0 && x == nil; e-- {
			if x, err = r.read(ctx, metadata.CommitID{Epoch: e, N: n}); err != nil {
				return nil, false, err
			}
		}
		if x == nil {
			return nil, true, nil
		}
		if x.commit != nil {
			return x, false, nil
		}
		epoch = x.id.Epoch
	}
	return nil, false, nil
}
