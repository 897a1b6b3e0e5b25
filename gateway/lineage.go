package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// Opener opens the store of a volume by its URL, as it is in the bucket.
type Opener func(ctx context.Context, url string) (objstore.Store, error)

// OpenStore returns the store through which the volume in s is used: it decrypts
// commits and manifests if the volume encrypts them, and finds what a clone
// shares with its ancestors where it lies. It is s itself if neither is so, or if
// s holds no volume. open opens ancestors, each when it is needed first. ErrKey
// when the volume is encrypted and keys has none; whether they are the right ones
// shows at the first document. It costs one request, of a clone two, for the
// volume's identity, which is nil when s holds no volume.
func OpenStore(ctx context.Context, s objstore.Store, url string, keys *Keys, open Opener) (objstore.Store, *metadata.VolumeDoc, error) {
	doc, err := ReadVolumeDoc(ctx, s, url)
	if errors.Is(err, ErrNoVolume) {
		return s, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	if err := needKey(doc, url, keys); err != nil {
		return nil, nil, err
	}
	if len(doc.Ancestors) == 0 {
		return unlock(s, doc, keys), doc, nil
	}
	l := newLineage(s, url, doc, keys, open)
	if err := l.lookDetached(ctx); err != nil {
		return nil, nil, err
	}
	return l, doc, nil
}

// lineage is the store of a clone. What the clone has made itself is in its own
// prefix; keys of its ancestors are read where these bodies lie, and never
// written or deleted there. A list shows its own keys only. Safe for concurrent use.
type lineage struct {
	url     string
	doc     *metadata.VolumeDoc
	raw     objstore.Store   // the clone's prefix as it is
	own     objstore.Store   // documents decrypted
	here    []objstore.Store // by ancestor: copies in the clone's prefix
	there   []objstore.Store // by ancestor: where the bodies lie while they are shared
	held    []*holder        // by ancestor: the volume that holds these
	holders []*holder        // the same, each once

	detached atomic.Bool // the copies count
}

func newLineage(s objstore.Store, url string, doc *metadata.VolumeDoc, keys *Keys, open Opener) *lineage {
	l := &lineage{url: url, doc: doc, raw: s, own: unlock(s, doc, keys)}
	found := map[string]*holder{}
	for i := range doc.Ancestors {
		a := &doc.Ancestors[i]
		p := found[a.Place+" "+a.URL]
		if p == nil {
			p = &holder{of: url, a: *a, open: open, turn: make(chan struct{}, 1)}
			found[a.Place+" "+a.URL] = p
			l.holders = append(l.holders, p)
		}
		p.a.Through = a.Through // ascending: the last is what keeps all
		born := *doc
		born.ID = a.Volume
		l.here = append(l.here, unlock(s, &born, keys))
		l.there = append(l.there, unlock(p, &born, keys))
		l.held = append(l.held, p)
	}
	return l
}

// lookDetached finds out whether the clone has copies of everything by now.
func (l *lineage) lookDetached(ctx context.Context) error {
	err := readDocument(ctx, l.raw, metadata.DetachedKey, 1<<20, func(body []byte, _ objstore.Info) error {
		d, err := metadata.DecodeDetached(body)
		if err == nil && d.Volume != l.doc.ID {
			err = fmt.Errorf("%w: %s is of volume %s", metadata.ErrDamaged, metadata.DetachedKey, d.Volume)
		}
		return err
	})
	if errors.Is(err, objstore.ErrNotExist) {
		return nil
	}
	if err == nil {
		l.detached.Store(true)
	}
	return err
}

// lineageOf returns the lineage of a clone's store, or nil when it is no clone's.
func lineageOf(s objstore.Store) *lineage {
	for {
		switch x := s.(type) {
		case *lineage:
			return x
		case interface{ Unwrap() objstore.Store }:
			s = x.Unwrap()
		default:
			return nil
		}
	}
}

// rawStore returns where the body of a key lies, as it is in the bucket.
func rawStore(s objstore.Store, key string) objstore.Store {
	if l := lineageOf(s); l != nil {
		i := l.doc.AncestorOf(key)
		if i < 0 || l.detached.Load() {
			return l.raw
		}
		return stripped(l.there[i])
	}
	return stripped(s)
}

// stripped is the store under what decrypts documents.
func stripped(s objstore.Store) objstore.Store {
	for {
		switch x := s.(type) {
		case *secretStore:
			return x.Store
		case interface{ Unwrap() objstore.Store }:
			s = x.Unwrap()
		default:
			return s
		}
	}
}

// shared runs a read of an ancestor's key where the body lies. The clone may have
// been detached since it was opened: then what it shared may be gone.
func (l *lineage) shared(ctx context.Context, i int, read func(objstore.Store) error) error {
	if !l.detached.Load() {
		err := read(l.there[i])
		if !errors.Is(err, objstore.ErrNotExist) && !errors.Is(err, ErrParentGone) {
			return err
		}
		if lerr := l.lookDetached(ctx); lerr != nil || !l.detached.Load() {
			if gone := l.held[i].look(ctx); errors.Is(gone, ErrParentGone) {
				return gone // since it was opened
			}
			return errors.Join(err, lerr)
		}
	}
	return read(l.here[i])
}

// Get implements objstore.Store.
func (l *lineage) Get(ctx context.Context, key string, off, length int64) (body io.ReadCloser, info objstore.Info, err error) {
	i := l.doc.AncestorOf(key)
	if i < 0 {
		return l.own.Get(ctx, key, off, length)
	}
	err = l.shared(ctx, i, func(s objstore.Store) (err error) {
		body, info, err = s.Get(ctx, key, off, length)
		return err
	})
	return body, info, err
}

// Head implements objstore.Store.
func (l *lineage) Head(ctx context.Context, key string) (info objstore.Info, err error) {
	i := l.doc.AncestorOf(key)
	if i < 0 {
		return l.own.Head(ctx, key)
	}
	err = l.shared(ctx, i, func(s objstore.Store) (err error) {
		info, err = s.Head(ctx, key)
		return err
	})
	return info, err
}

// Put implements objstore.Store. The past of others is not written to.
func (l *lineage) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	if l.doc.AncestorOf(key) >= 0 {
		return "", fmt.Errorf("%w: put %s: %s shares it with volume %s", objstore.ErrPermission, key, l.url, l.doc.BornIn(key))
	}
	return l.own.Put(ctx, key, body, size, cond)
}

// List implements objstore.Store: the clone's own keys. Copies of shared ones are
// among them once they were made.
func (l *lineage) List(ctx context.Context, prefix, startAfter string, limit int) ([]objstore.Info, error) {
	return l.own.List(ctx, prefix, startAfter, limit)
}

// Delete implements objstore.Store. What others hold is left to them; of a copy
// that a process deletes before it knows that there is one, the scan for orphans
// takes care.
func (l *lineage) Delete(ctx context.Context, key string) error {
	if l.doc.AncestorOf(key) >= 0 && !l.detached.Load() {
		return nil
	}
	return l.raw.Delete(ctx, key)
}

// listShared calls fn for what the volumes that hold an ancestor's things have
// under a prefix, keys of others among them left out.
func (l *lineage) listShared(ctx context.Context, prefix string, fn func(objstore.Info) error) error {
	if l.detached.Load() {
		return nil // in the clone's own list
	}
	for i, s := range l.there {
		err := objstore.ListAll(ctx, s, prefix, "", func(x objstore.Info) error {
			if l.doc.AncestorOf(x.Key) != i {
				return nil
			}
			return fn(x)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// goneError is ErrParentGone, and damage where nothing else explains it.
type goneError struct {
	clone string // its URL
	a     metadata.Ancestor
	why   string
}

func (e *goneError) Error() string {
	return fmt.Sprintf("the parent of clone %s is gone: it shares with volume %s at %s, and %s; bring that volume back there (mount its disk, or copy its bucket back), since what the two share is nowhere else; if it is gone for good, `cistern destroy %s` deletes the clone",
		e.clone, e.a.Place, e.a.URL, e.why, e.clone)
}

// asGone is the goneError in an error, without the name of whatever was to be read;
// nil when there is none.
func asGone(err error) error {
	var g *goneError
	if errors.As(err, &g) {
		return g
	}
	return nil
}

func (e *goneError) Is(target error) bool {
	return target == ErrParentGone || target == ErrDamaged || target == objstore.ErrDamaged
}

// holder is the prefix of another volume that holds bodies of a clone, opened when
// it is needed first, and for reading only. Safe for concurrent use.
type holder struct {
	of   string // the clone's URL
	a    metadata.Ancestor
	open Opener
	turn chan struct{} // holds a token while somebody opens it
	s    atomic.Pointer[objstore.Store]
}

// store opens the volume and makes sure that it is the one that the clone means.
func (p *holder) store(ctx context.Context) (objstore.Store, error) {
	if s := p.s.Load(); s != nil {
		return *s, nil
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return nil, fmt.Errorf("open %s: %w", p.a.URL, ctx.Err())
	}
	if s := p.s.Load(); s != nil {
		return *s, nil
	}
	if p.open == nil {
		return nil, fmt.Errorf("%s is a clone and shares with %s, which can't be opened from here", p.of, p.a.URL)
	}
	s, err := p.open(ctx, p.a.URL)
	if errors.Is(err, objstore.ErrNoBucket) {
		return nil, p.gone("that bucket or directory does not exist")
	}
	if err != nil {
		return nil, fmt.Errorf("open %s, with which %s shares: %w", p.a.URL, p.of, err)
	}
	if err := p.identify(ctx, s); err != nil {
		return nil, err
	}
	p.s.Store(&s)
	return s, nil
}

func (p *holder) gone(why string) error { return &goneError{clone: p.of, a: p.a, why: why} }

// identify makes sure that a store has the volume that the clone means.
func (p *holder) identify(ctx context.Context, s objstore.Store) error {
	doc, err := ReadVolumeDoc(ctx, s, p.a.URL)
	switch {
	case errors.Is(err, ErrNoVolume), errors.Is(err, objstore.ErrNoBucket):
		return p.gone("there is no volume there any more")
	case err == nil && doc.ID != p.a.Place:
		return p.gone("volume " + doc.ID + " is there now")
	}
	return err
}

// look says whether the volume is still there, for who misses something in it.
func (p *holder) look(ctx context.Context) error {
	s, err := p.store(ctx)
	if err != nil {
		return err
	}
	return p.identify(ctx, s)
}

// Get implements objstore.Store.
func (p *holder) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	s, err := p.store(ctx)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	return s.Get(ctx, key, off, length)
}

// Head implements objstore.Store.
func (p *holder) Head(ctx context.Context, key string) (objstore.Info, error) {
	s, err := p.store(ctx)
	if err != nil {
		return objstore.Info{}, err
	}
	return s.Head(ctx, key)
}

// List implements objstore.Store.
func (p *holder) List(ctx context.Context, prefix, startAfter string, limit int) ([]objstore.Info, error) {
	s, err := p.store(ctx)
	if err != nil {
		return nil, err
	}
	return s.List(ctx, prefix, startAfter, limit)
}

// Put implements objstore.Store: never.
func (p *holder) Put(_ context.Context, key string, _ io.ReadSeeker, _ int64, _ objstore.Condition) (objstore.Version, error) {
	return "", fmt.Errorf("%w: put %s: %s is another volume's", objstore.ErrPermission, key, p.a.URL)
}

// Delete implements objstore.Store: never.
func (p *holder) Delete(_ context.Context, key string) error {
	return fmt.Errorf("%w: delete %s: %s is another volume's", objstore.ErrPermission, key, p.a.URL)
}
