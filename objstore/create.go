package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"time"
)

const (
	settleTries   = 8                      // PUTs of one Create or CompareAndSwap
	settleMinWait = 100 * time.Millisecond // upper bound of the first pause
	settleMaxWait = 5 * time.Second        // upper bound of any pause

	// conflictBody bounds the foreign body that a ConflictError carries; a
	// larger one is carried only when it is as large as the caller's own.
	conflictBody = 1 << 20
)

// ConflictError says that a key does not hold what Create or CompareAndSwap
// wanted to store, for good: it wraps ErrConditionFailed. Callers get at it
// with errors.As.
type ConflictError struct {
	Key string
	// Found describes the object that is there; Found.Version is empty when
	// there is none.
	Found Info
	// Body is the object's whole body, or nil when it is larger than both
	// 1 MiB and the caller's body, or ErrOpaque.
	Body []byte
}

func (e *ConflictError) Error() string {
	if e.Found.Version == "" {
		return fmt.Sprintf("object %s: %v: it does not exist", e.Key, ErrConditionFailed)
	}
	return fmt.Sprintf("object %s: %v: it holds %d other bytes (version %s)", e.Key, ErrConditionFailed, e.Found.Size, e.Found.Version)
}

// Unwrap makes errors.Is(err, ErrConditionFailed) hold.
func (e *ConflictError) Unwrap() error { return ErrConditionFailed }

// Create stores body under key, which must not exist, and settles an
// ambiguous reply (timeout, 5xx, 409, 412) by reading back: nil means that the
// key holds exactly these bytes, whoever's PUT put them there; a
// *ConflictError, which wraps ErrConditionFailed, means that it holds others.
// Any other error leaves it unknown; calling Create again with the same bytes
// is then always right, also in a later process. It tries a bounded number of
// times, with pauses of up to 5 s, and ends early with ctx.
func Create(ctx context.Context, s Store, key string, body []byte) error {
	_, err := settle(ctx, s, key, body, Condition{IfAbsent: true})
	if err != nil {
		return At("create object", key, err)
	}
	return nil
}

// CompareAndSwap replaces the body of key, which must be at version old, and
// settles an ambiguous reply as Create does. The bytes of body must be unique
// to this call (a nonce), because finding them is what tells that the swap was
// made. A *ConflictError means that the key is at another version or missing.
// An error of another kind leaves it unknown; calling again with the same
// arguments is right as long as nobody else writes the same bytes.
func CompareAndSwap(ctx context.Context, s Store, key string, old Version, body []byte) (Version, error) {
	if old == "" {
		// The empty version would turn the PUT into an unconditional one.
		return "", fmt.Errorf("swap object %s: no version to compare with was given", key)
	}
	v, err := settle(ctx, s, key, body, Condition{IfVersion: old})
	if err != nil {
		return "", At("swap object", key, err)
	}
	return v, nil
}

// settle puts body under cond until it is known whether the key holds it.
func settle(ctx context.Context, s Store, key string, body []byte, cond Condition) (Version, error) {
	var err error
	for try := range settleTries {
		if try > 0 {
			if waitErr := sleep(ctx, settlePause(key, try)); waitErr != nil {
				return "", fmt.Errorf("%w: %w", unknown(err), waitErr)
			}
		}
		var v Version
		v, err = s.Put(ctx, key, bytes.NewReader(body), int64(len(body)), cond)
		if err == nil {
			return v, nil
		}
		if errors.Is(err, ErrPermission) || errors.Is(err, ErrNoBucket) {
			return "", err
		}
		if ctx.Err() != nil {
			return "", fmt.Errorf("%w: %w", unknown(err), ctx.Err())
		}
		refused := errors.Is(err, ErrConditionFailed)
		v, settled, readErr := readBack(ctx, s, key, body, cond, refused)
		if settled {
			return v, readErr
		}
		if readErr != nil {
			err = fmt.Errorf("%w; reading it back: %w", err, readErr)
		}
		if !refused && !mayPass(err) {
			return "", err
		}
	}
	return "", fmt.Errorf("gave up after %d tries: %w", settleTries, unknown(err))
}

// unknown wraps the last error of a PUT whose outcome could not be settled. A
// refusal that nothing explains is no conflict and must not look like one.
func unknown(err error) error {
	if errors.Is(err, ErrConditionFailed) {
		return fmt.Errorf("outcome unknown: %w: %v", ErrUnavailable, err)
	}
	return fmt.Errorf("outcome unknown: %w", err)
}

// readBack looks at what key holds after an ambiguous PUT. settled means that
// the outcome is known: version on success, a *ConflictError otherwise.
// Without it the PUT was not applied so far and may be repeated, or the key
// could not be read, which err says.
func readBack(ctx context.Context, s Store, key string, body []byte, cond Condition, refused bool) (v Version, settled bool, err error) {
	limit := max(int64(len(body)), conflictBody)
	found, info, err := ReadAll(ctx, s, key, limit)
	switch {
	case errors.Is(err, ErrNotExist):
		if cond.IfVersion != "" && refused {
			return "", true, &ConflictError{Key: key}
		}
		return "", false, nil
	case errors.Is(err, ErrTooLarge):
		return "", true, &ConflictError{Key: key, Found: info}
	case errors.Is(err, ErrOpaque):
		if _, _, again := ReadAll(ctx, s, key, limit); !errors.Is(again, ErrOpaque) {
			return "", false, fmt.Errorf("%w: two readings of object %s differ", ErrDamaged, key)
		}
		return "", true, &ConflictError{Key: key, Found: info}
	case err != nil:
		return "", false, err
	}
	if bytes.Equal(found, body) {
		return info.Version, true, nil
	}
	if cond.IfVersion != "" && info.Version == cond.IfVersion {
		return "", false, nil // untouched so far: a busy store refuses what it could do
	}
	// A conflict ends a reign, so one bad reading must not make one.
	again, info2, err := ReadAll(ctx, s, key, limit)
	if err != nil {
		return "", false, err
	}
	if info2.Version != info.Version || !bytes.Equal(found, again) {
		return "", false, fmt.Errorf("%w: two readings of object %s differ", ErrDamaged, key)
	}
	return "", true, &ConflictError{Key: key, Found: info, Body: found}
}

// mayPass says whether another attempt can end otherwise.
func mayPass(err error) bool {
	return errors.Is(err, ErrUnavailable) || errors.Is(err, ErrDamaged)
}

// settlePause returns the pause before the given try (from 1): at least half
// of an exponentially growing bound, spread by key and not at random, so that
// a simulation can be run again.
func settlePause(key string, try int) time.Duration {
	bound := min(settleMinWait<<(try-1), settleMaxWait)
	h := fnv.New32a()
	fmt.Fprintf(h, "%s#%d", key, try)
	return bound/2 + bound/2*time.Duration(h.Sum32()%1024)/1024
}

// sleep waits for d or the end of ctx, whose error it returns.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
