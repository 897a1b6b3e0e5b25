package objstore

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// WithPrefix returns a store of the keys of s that begin with prefix, which
// are seen without it. An empty prefix returns s itself.
func WithPrefix(s Store, prefix string) Store {
	if prefix == "" {
		return s
	}
	return &prefixed{s: s, prefix: prefix}
}

type prefixed struct {
	s      Store
	prefix string
}

// key returns the key in the inner store. An empty key must not become the
// prefix itself.
func (p *prefixed) key(key string) (string, error) {
	if err := CheckKey(key); err != nil {
		return "", err
	}
	return p.prefix + key, nil
}

func (p *prefixed) info(info Info, err error) (Info, error) {
	if err != nil {
		return Info{}, err
	}
	key, ok := strings.CutPrefix(info.Key, p.prefix)
	if !ok {
		return Info{}, fmt.Errorf("%w: the store answered with key %q, outside the prefix %q", ErrDamaged, info.Key, p.prefix)
	}
	info.Key = key
	return info, nil
}

func (p *prefixed) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error) {
	key, err := p.key(key)
	if err != nil {
		return nil, Info{}, err
	}
	body, info, err := p.s.Get(ctx, key, off, length)
	if err != nil {
		return nil, Info{}, err
	}
	if info, err = p.info(info, nil); err != nil {
		// The body is of another key: how it closes is of no interest.
		_ = body.Close()
		return nil, Info{}, err
	}
	return body, info, nil
}

func (p *prefixed) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (Version, error) {
	key, err := p.key(key)
	if err != nil {
		return "", err
	}
	return p.s.Put(ctx, key, body, size, cond)
}

func (p *prefixed) Head(ctx context.Context, key string) (Info, error) {
	key, err := p.key(key)
	if err != nil {
		return Info{}, err
	}
	return p.info(p.s.Head(ctx, key))
}

func (p *prefixed) List(ctx context.Context, prefix, startAfter string, limit int) ([]Info, error) {
	// Always after the prefix itself: an object of just that key, which some
	// tools make to show a directory, has no key here.
	inner, err := p.s.List(ctx, p.prefix+prefix, p.prefix+startAfter, limit)
	if err != nil {
		return nil, err
	}
	page := make([]Info, 0, len(inner))
	for _, info := range inner {
		if info, err = p.info(info, nil); err != nil {
			return nil, err
		}
		page = append(page, info)
	}
	return page, nil
}

func (p *prefixed) Delete(ctx context.Context, key string) error {
	key, err := p.key(key)
	if err != nil {
		return err
	}
	return p.s.Delete(ctx, key)
}
