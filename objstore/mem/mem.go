package mem

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/tidwall/btree"

	"github.com/cisternfs/cistern/objstore"
)

const checkpointEvery = 64 // mutations between two checkpoints of the history

// object is one stored body. It is immutable.
type object struct {
	body     []byte
	version  objstore.Version
	modified time.Time
}

func (o *object) info(key string) objstore.Info {
	return objstore.Info{Key: key, Size: int64(len(o.body)), Version: o.version, Modified: o.modified}
}

// Mutation is one entry of the write history.
type Mutation struct {
	Key     string
	Delete  bool
	Body    []byte // shared with the store: not to be modified; nil for a delete
	Version objstore.Version
}

// Store is an objstore.Store in memory. The zero value is not usable: see New.
type Store struct {
	mu          sync.Mutex // guards the fields below; never held while a body is read
	objects     *btree.Map[string, *object]
	seq         uint64 // successful mutations since the origin; makes versions
	stats       Stats
	recording   bool
	history     []Mutation
	made        []*object                     // what history[i] stored; nil for a delete
	checkpoints []*btree.Map[string, *object] // state before history[i*checkpointEvery]
}

// New returns an empty store without history.
func New() *Store {
	return &Store{objects: new(btree.Map[string, *object])}
}

// NewRecording returns an empty store that keeps its write history, and so
// every body ever stored.
func NewRecording() *Store {
	s := New()
	s.recording = true
	return s
}

// Get implements objstore.Store.
func (s *Store) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	body, info, err := s.get(ctx, key, off, length)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Get.add(int64(len(body)), err)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	return &reader{ctx: ctx, Reader: bytes.NewReader(body)}, info, nil
}

func (s *Store) get(ctx context.Context, key string, off, length int64) ([]byte, objstore.Info, error) {
	if off < 0 {
		return nil, objstore.Info{}, fmt.Errorf("get %s: offset %d is negative", key, off)
	}
	o, err := s.find(ctx, "get", key)
	if err != nil {
		return nil, objstore.Info{}, err
	}
	body := o.body[min(off, int64(len(o.body))):]
	if length >= 0 {
		body = body[:min(length, int64(len(body)))]
	}
	return body, o.info(key), nil
}

// find returns the object at key.
func (s *Store) find(ctx context.Context, op, key string) (*object, error) {
	if err := objstore.CheckKey(key); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%s %s: %w", op, key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects.Get(key)
	if !ok {
		return nil, fmt.Errorf("%s %s: %w", op, key, objstore.ErrNotExist)
	}
	return o, nil
}

// Put implements objstore.Store. The condition is judged after the body was
// read, in one step with storing it.
func (s *Store) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	v, err := s.put(ctx, key, body, size, cond)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Put.add(size, err)
	return v, err
}

func (s *Store) put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	if err := objstore.CheckPut(key, size, cond); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("put %s: %w", key, err)
	}
	p, err := readBody(body, size)
	if err != nil {
		return "", fmt.Errorf("put %s: %w", key, err)
	}
	if err := ctx.Err(); err != nil {
		return "", fmt.Errorf("put %s: %w", key, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, exists := s.objects.Get(key)
	if cond.IfAbsent && exists {
		return "", fmt.Errorf("put %s: %w: it exists", key, objstore.ErrConditionFailed)
	}
	if cond.IfVersion != "" && (!exists || old.version != cond.IfVersion) {
		return "", fmt.Errorf("put %s: %w: it is not at version %s", key, objstore.ErrConditionFailed, cond.IfVersion)
	}
	o := &object{body: p, version: objstore.Version(fmt.Sprintf("v%d", s.seq+1)), modified: time.Now()}
	s.record(Mutation{Key: key, Body: p, Version: o.version}, o)
	s.objects.Set(key, o)
	return o.version, nil
}

// readBody reads exactly size bytes and makes sure that no more follow.
func readBody(r io.Reader, size int64) ([]byte, error) {
	p := make([]byte, size)
	if n, err := io.ReadFull(r, p); err != nil {
		return nil, fmt.Errorf("body ended after %d of %d bytes: %w", n, size, err)
	}
	if n, err := io.ReadFull(r, make([]byte, 1)); n != 0 {
		return nil, fmt.Errorf("body is longer than the declared %d bytes", size)
	} else if err != io.EOF {
		return nil, fmt.Errorf("read body: %w", err)
	}
	return p, nil
}

// record appends to the history, before the mutation is made. It is called
// with mu held.
func (s *Store) record(m Mutation, o *object) {
	s.seq++
	if !s.recording {
		return
	}
	if len(s.history)%checkpointEvery == 0 {
		s.checkpoints = append(s.checkpoints, s.objects.Copy())
	}
	s.history = append(s.history, m)
	s.made = append(s.made, o)
}

// Head implements objstore.Store.
func (s *Store) Head(ctx context.Context, key string) (objstore.Info, error) {
	o, err := s.find(ctx, "head", key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Head.add(0, err)
	if err != nil {
		return objstore.Info{}, err
	}
	return o.info(key), nil
}

// List implements objstore.Store.
func (s *Store) List(ctx context.Context, prefix, startAfter string, limit int) ([]objstore.Info, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		err = fmt.Errorf("list %q: %w", prefix, err)
		s.stats.List.add(0, err)
		return nil, err
	}
	limit = objstore.PageSize(limit)
	var page []objstore.Info
	s.objects.Ascend(max(prefix, startAfter), func(key string, o *object) bool {
		if key <= startAfter {
			return true
		}
		if !strings.HasPrefix(key, prefix) || len(page) == limit {
			return false
		}
		page = append(page, o.info(key))
		return true
	})
	s.stats.List.add(0, nil)
	return page, nil
}

// Delete implements objstore.Store. Deleting a missing key is no mutation.
func (s *Store) Delete(ctx context.Context, key string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := objstore.CheckKey(key)
	if err == nil && ctx.Err() != nil {
		err = fmt.Errorf("delete %s: %w", key, ctx.Err())
	}
	s.stats.Delete.add(0, err)
	if err != nil {
		return err
	}
	if _, exists := s.objects.Get(key); exists {
		s.record(Mutation{Key: key, Delete: true}, nil)
		s.objects.Delete(key)
	}
	return nil
}

// reader is a body that ends with its request's context.
type reader struct {
	*bytes.Reader
	ctx context.Context
}

func (r *reader) Read(p []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, fmt.Errorf("read body: %w", err)
	}
	return r.Reader.Read(p)
}

// WriteTo spares io.Copy its buffer.
func (r *reader) WriteTo(w io.Writer) (int64, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, fmt.Errorf("read body: %w", err)
	}
	return r.Reader.WriteTo(w)
}

func (r *reader) Close() error { return nil }
