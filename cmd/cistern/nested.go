package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// maxAbove is how many prefixes above a new volume's are looked at, the nearest first,
// with one request each.
const maxAbove = 32

// refuseNested fails when a new volume would lie in the prefix of another: what is
// deleted there as a whole, or has its own life cycle in the bucket, would be its, too.
// A prefix that this user may not read, or that holds a document of something else,
// is none that is known to be a volume's.
func (a *app) refuseNested(ctx context.Context, u objstore.URL) error {
	above, ok := u.Parent()
	if !ok {
		return nil
	}
	s, err := a.openAbove(ctx, u)
	for n := 0; ok && err == nil && n < maxAbove; n++ {
		var is bool
		if is, err = isVolume(ctx, s, above); is {
			return usage(fmt.Errorf("%s lies within the volume %s: choose a prefix outside of it", u, above))
		}
		above, ok = above.Parent()
	}
	return err
}

// openAbove opens the bucket in which prefixes above u lie; nil for a directory, whose
// parents are buckets of their own.
func (a *app) openAbove(ctx context.Context, u objstore.URL) (objstore.Store, error) {
	if u.Scheme == objstore.SchemeFile {
		return nil, nil
	}
	o, err := a.requests()
	if err != nil {
		return nil, err
	}
	p, ok := a.providers()[u.Scheme]
	if !ok {
		return nil, fmt.Errorf("%s: %w", u, errors.ErrUnsupported)
	}
	s, err := p.open(ctx, u) // the whole bucket, as the settings for u allow
	if err != nil {
		return nil, err
	}
	return objstore.WithRetry(objstore.WithTimeout(s, objstore.TimeoutOptions{Base: o.timeout}), objstore.RetryOptions{}), nil
}

// isVolume says whether there is a volume at a URL, in the bucket s.
func isVolume(ctx context.Context, s objstore.Store, u objstore.URL) (bool, error) {
	if s == nil {
		// A directory that is no bucket is left alone: to open one tidies it up.
		if _, err := os.Lstat(filepath.Join(u.Path, metadata.VolumeKey)); err != nil {
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, fs.ErrPermission) {
				err = nil
			}
			return false, err
		}
		local, err := openLocal(ctx, u)
		if err != nil {
			return false, err
		}
		s = local
	}
	_, err := gateway.ReadVolumeDoc(ctx, objstore.WithPrefix(s, u.Prefix()), u.String())
	switch {
	case err == nil, errors.Is(err, gateway.ErrNewerFormat):
		return true, nil
	case errors.Is(err, gateway.ErrNoVolume), errors.Is(err, gateway.ErrDamaged), errors.Is(err, objstore.ErrPermission), errors.Is(err, objstore.ErrNoBucket):
		return false, nil
	}
	return false, err
}

// holds says what a prefix that is not empty holds: one of its keys, and whose it is
// where it is another volume's.
func holds(ctx context.Context, s objstore.Store, u objstore.URL, key string) string {
	if inner := gateway.InnerVolume(ctx, s, key); inner != "" {
		return fmt.Sprintf("%s, of the volume %s", key, u.Child(inner))
	}
	return key
}
