package mem

import (
	"fmt"
	"slices"
	"time"

	"github.com/tidwall/btree"
)

// Len returns how many mutations were recorded.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.history)
}

// History returns the recorded mutations in the order in which they took
// effect. The bodies are shared.
func (s *Store) History() []Mutation {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.history)
}

// At returns a store that holds the state after the first n recorded
// mutations. It can be written to without any effect on s, records nothing and
// counts from zero. At panics unless 0 <= n <= s.Len(), as an index does.
func (s *Store) At(n int) *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n < 0 || n > len(s.history) {
		panic(fmt.Sprintf("mem: At(%d) of a store that recorded %d mutations", n, len(s.history)))
	}
	t := New()
	if n > 0 {
		first := (n - 1) / checkpointEvery
		t.objects = s.checkpoints[first].Copy()
		apply(t.objects, s.history[first*checkpointEvery:n], s.made[first*checkpointEvery:n])
	}
	t.seq = s.seq // so that no new body gets the version of an old one
	return t
}

func apply(objects *btree.Map[string, *object], history []Mutation, made []*object) {
	for i, m := range history {
		if m.Delete {
			objects.Delete(m.Key)
		} else {
			objects.Set(m.Key, made[i])
		}
	}
}

// Snapshot returns a store that holds what s holds now, as At does, whether or
// not s records.
func (s *Store) Snapshot() *Store {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Store{objects: s.objects.Copy(), seq: s.seq}
}

// SetModified sets the store's time of a key, for tests of what depends on an
// object's age. It reports whether the key exists, and is no mutation.
func (s *Store) SetModified(key string, t time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.objects.Get(key)
	if !ok {
		return false
	}
	aged := *o
	aged.modified = t
	s.objects.Set(key, &aged)
	return true
}

// Count is what was asked of a store in one kind of request.
type Count struct {
	Requests int64 // those that failed included
	Failed   int64
	Bytes    int64 // of bodies, in requests that succeeded
}

func (c *Count) add(bytes int64, err error) {
	c.Requests++
	if err != nil {
		c.Failed++
		return
	}
	c.Bytes += bytes
}

// Stats counts requests and bytes by kind.
type Stats struct {
	Get, Put, Head, List, Delete Count
}

// Stats returns the counts since the store was made or ResetStats was called.
func (s *Store) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// ResetStats sets all counts to zero.
func (s *Store) ResetStats() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats = Stats{}
}

// Bytes returns the total size of the bodies that the store holds now.
func (s *Store) Bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	var total int64
	s.objects.Scan(func(_ string, o *object) bool {
		total += int64(len(o.body))
		return true
	})
	return total
}
