package objstore

import (
	"context"
	"fmt"
	"io"
	"strings"
)

// WithAdopted returns s with the objects of another bucket in it: their keys
// there follow prefix here. They are read from there and never stored. A Delete
// leaves them, which is no error: they are not this store's. A List shows them
// only to who asks for keys that begin with prefix.
func WithAdopted(s Store, prefix string, from Store) Store {
	return &adopting{s, &prefixAdded{from, prefix}, prefix}
}

type adopting struct {
	Store
	from   *prefixAdded
	prefix string
}

// Unwrap returns the store without the other bucket's objects.
func (a *adopting) Unwrap() Store { return a.Store }

func (a *adopting) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error) {
	if strings.HasPrefix(key, a.prefix) {
		return a.from.Get(ctx, key, off, length)
	}
	return a.Store.Get(ctx, key, off, length)
}

func (a *adopting) Head(ctx context.Context, key string) (Info, error) {
	if strings.HasPrefix(key, a.prefix) {
		return a.from.Head(ctx, key)
	}
	return a.Store.Head(ctx, key)
}

func (a *adopting) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (Version, error) {
	if strings.HasPrefix(key, a.prefix) {
		return "", fmt.Errorf("put %s: objects of another bucket are only read", key)
	}
	return a.Store.Put(ctx, key, body, size, cond)
}

func (a *adopting) List(ctx context.Context, prefix, startAfter string, limit int) ([]Info, error) {
	if strings.HasPrefix(prefix, a.prefix) {
		return a.from.List(ctx, prefix, startAfter, limit)
	}
	return a.Store.List(ctx, prefix, startAfter, limit)
}

func (a *adopting) Delete(ctx context.Context, key string) error {
	if strings.HasPrefix(key, a.prefix) {
		return nil
	}
	return a.Store.Delete(ctx, key)
}

// prefixAdded shows the keys of a store with a prefix before them; it is called
// with keys that have it.
type prefixAdded struct {
	s      Store
	prefix string
}

func (p *prefixAdded) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error) {
	body, info, err := p.s.Get(ctx, strings.TrimPrefix(key, p.prefix), off, length)
	info.Key = p.prefix + info.Key
	return body, info, err
}

func (p *prefixAdded) Head(ctx context.Context, key string) (Info, error) {
	info, err := p.s.Head(ctx, strings.TrimPrefix(key, p.prefix))
	info.Key = p.prefix + info.Key
	return info, err
}

func (p *prefixAdded) List(ctx context.Context, prefix, startAfter string, limit int) ([]Info, error) {
	after, ok := strings.CutPrefix(startAfter, p.prefix)
	if !ok {
		if startAfter > p.prefix {
			return nil, nil // after all keys that have the prefix
		}
		after = ""
	}
	page, err := p.s.List(ctx, strings.TrimPrefix(prefix, p.prefix), after, limit)
	for i := range page {
		page[i].Key = p.prefix + page[i].Key
	}
	return page, err
}
