package objstore

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// ReadRange fills p with the bytes of key from off on. It returns nil only
// when every byte of p was read; an object or body that is too short gives
// ErrDamaged, because whoever names a range knows that it exists.
func ReadRange(ctx context.Context, s Store, key string, off int64, p []byte) error {
	if off < 0 {
		return fmt.Errorf("read object %s: offset %d is negative", key, off)
	}
	if len(p) == 0 {
		return nil
	}
	body, info, err := s.Get(ctx, key, off, int64(len(p)))
	if err != nil {
		return fmt.Errorf("bytes %d+%d: %w", off, len(p), At("read object", key, err))
	}
	n, err := io.ReadFull(body, p)
	closeErr := body.Close()
	if err != nil {
		return fmt.Errorf("bytes %d+%d: %w", off, len(p), At("read object", key, shortBody(err, n, len(p), info.Size)))
	}
	if closeErr != nil {
		return fmt.Errorf("bytes %d+%d: %w", off, len(p), At("read object", key, closeErr))
	}
	return nil
}

// bodyEnded says whether err is the plain end of a body. An error that merely
// wraps one keeps the class that its maker gave it.
func bodyEnded(err error) bool { return err == io.EOF || err == io.ErrUnexpectedEOF }

// shortBody turns the end of a body that came too early into ErrDamaged and
// leaves every other error as it is.
func shortBody(err error, got, want int, size int64) error {
	if bodyEnded(err) {
		return fmt.Errorf("%w: got %d of %d bytes of an object of %d", ErrDamaged, got, want, size)
	}
	return err
}

// ReadAll returns the whole body of key and what the store says about it. An
// object of more than maxBytes gives ErrTooLarge (with its Info) and is not
// read; a body that is not as long as the store declared gives ErrDamaged.
func ReadAll(ctx context.Context, s Store, key string, maxBytes int64) ([]byte, Info, error) {
	body, info, err := s.Get(ctx, key, 0, -1)
	if err != nil {
		return nil, info, At("read object", key, err)
	}
	if info.Size > maxBytes {
		// The error of a reader whose bytes nobody wants says nothing.
		_ = body.Close()
		return nil, info, fmt.Errorf("read object %s: %w: %d bytes, at most %d expected", key, ErrTooLarge, info.Size, maxBytes)
	}
	// One byte more than declared is asked for, so that an overlong body is
	// noticed too.
	p := make([]byte, info.Size+1)
	n, err := io.ReadFull(body, p)
	closeErr := body.Close()
	switch {
	case err == nil:
		err = fmt.Errorf("%w: the body goes on past the declared %d bytes", ErrDamaged, info.Size)
	case int64(n) == info.Size && bodyEnded(err):
		err = closeErr
	default:
		err = shortBody(err, n, int(info.Size), info.Size)
	}
	if err != nil {
		return nil, Info{}, At("read object", key, err)
	}
	return p[:n:n], info, nil
}

// listError says what was listed, unless err does.
func listError(prefix string, err error) error {
	if strings.Contains(err.Error(), "list ") || Names(err, prefix) {
		return err
	}
	return fmt.Errorf("list %q: %w", prefix, err)
}

// ListAll calls fn for every key that begins with prefix and sorts after
// startAfter, in ascending byte order, page by page. It stops at the first
// error of the store or of fn and returns it. A store that lists out of order
// or outside the prefix gives ErrDamaged.
func ListAll(ctx context.Context, s Store, prefix, startAfter string, fn func(Info) error) error {
	for {
		page, err := s.List(ctx, prefix, startAfter, MaxList)
		if err != nil {
			return listError(prefix, err)
		}
		for _, info := range page {
			if info.Key <= startAfter || !strings.HasPrefix(info.Key, prefix) {
				return fmt.Errorf("list %q after %q: %w: the store returned key %q", prefix, startAfter, ErrDamaged, info.Key)
			}
			startAfter = info.Key
			if err := fn(info); err != nil {
				return err
			}
		}
		if len(page) < MaxList {
			return nil
		}
	}
}
