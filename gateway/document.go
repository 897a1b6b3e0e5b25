package gateway

import (
	"context"
	"errors"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// A body that does not match its checksum may have been hurt on the way: it is
// read again this many times in all before it counts as damage.
const (
	damageTries = 4
	damagePause = 50 * time.Millisecond
)

// retryDamage calls read until it returns anything but damage, a bounded
// number of times.
func retryDamage(ctx context.Context, read func() error) error {
	pause := damagePause
	for try := 1; ; try++ {
		err := read()
		if try == damageTries || !isDamage(err) {
			return err
		}
		t := time.NewTimer(pause)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return err
		}
		pause *= 2
	}
}

// isDamage says whether err may be a body that was hurt on the way. A missing
// object is not.
func isDamage(err error) bool {
	if errors.Is(err, objstore.ErrNotExist) {
		return false
	}
	return errors.Is(err, ErrDamaged) || errors.Is(err, metadata.ErrDamaged) || errors.Is(err, objstore.ErrDamaged)
}

// readDocument reads an object whole and decodes it; decode verifies. A
// missing object is objstore.ErrNotExist, whose class the caller knows.
func readDocument(ctx context.Context, s objstore.Store, key string, limit int64, decode func(body []byte, i objstore.Info) error) error {
	err := retryDamage(ctx, func() error {
		body, info, err := objstore.ReadAll(ctx, s, key, limit)
		if err != nil {
			return err
		}
		return decode(body, info)
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, objstore.ErrNotExist), errors.Is(err, ErrKey):
		return objstore.At("read", key, err)
	case errors.Is(err, metadata.ErrDamaged), errors.Is(err, metadata.ErrNewerFormat):
		return documentError(key, err)
	}
	return storeErrorAt("read", key, err)
}
