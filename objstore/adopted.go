package objstore

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
)

// Adopting is a store that may have objects of another bucket in it: their keys
// there follow a prefix here. They are read from there and never stored. A Delete
// leaves them, which is no error: they are not this store's. A List shows them
// only to who asks for keys that begin with the prefix. Safe for concurrent use.
type Adopting struct {
	Store
	prefix string
	from   atomic.Pointer[prefixAdded]
}

// NewAdopting returns s without another bucket's objects yet: decorators around it
// are then those of both.
func NewAdopting(s Store, prefix string) *Adopting { return &Adopting{Store: s, prefix: prefix} }

// WithAdopted returns s with the objects of another bucket in it.
func WithAdopted(s Store, prefix string, from Store) Store {
	a := NewAdopting(s, prefix)
	a.Adopt(from)
	return a
}

// Adopt puts the objects of a bucket into the store.
func (a *Adopting) Adopt(from Store) { a.from.Store(&prefixAdded{from, a.prefix}) }

// Unwrap returns the store without the other bucket's objects.
func (a *Adopting) Unwrap() Store { return a.Store }

// adopted returns the other bucket, if a key or a List's prefix is one of it.
func (a *Adopting) adopted(key string) *prefixAdded {
	if !strings.HasPrefix(key, a.prefix) {
		return nil
	}
	return a.from.Load()
}

// Get implements Store.
func (a *Adopting) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error) {
	if from := a.adopted(key); from != nil {
		return from.Get(ctx, key, off, length)
	}
	return a.Store.Get(ctx, key, off, length)
}

// Head implements Store.
func (a *Adopting) Head(ctx context.Context, key string) (Info, error) {
	if from := a.adopted(key); from != nil {
		return from.Head(ctx, key)
	}
	return a.Store.Head(ctx, key)
}

// Put implements Store.
func (a *Adopting) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (Version, error) {
	if a.adopted(key) != nil {
		return "", fmt.Errorf("put %s: objects of another bucket are only read", key)
	}
	return a.Store.Put(ctx, key, body, size, cond)
}

// List implements Store.
func (a *Adopting) List(ctx context.Context, prefix, startAfter string, limit int) ([]Info, error) {
	if from := a.adopted(prefix); from != nil {
		return from.List(ctx, prefix, startAfter, limit)
	}
	return a.Store.List(ctx, prefix, startAfter, limit)
}

// Delete implements Store.
func (a *Adopting) Delete(ctx context.Context, key string) error {
	if a.adopted(key) != nil {
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
