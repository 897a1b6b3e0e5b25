package mem_test

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/mem"
	"github.com/cisternfs/cistern/objstore/objstoretest"
)

func TestStore_Conformance(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Store { return mem.New() })
}

func TestStore_Conformance_Recording(t *testing.T) {
	objstoretest.Run(t, func(*testing.T) objstore.Store { return mem.NewRecording() })
}

// contents returns all bodies by key.
func contents(t *testing.T, s *mem.Store) map[string]string {
	t.Helper()
	m := make(map[string]string)
	err := objstore.ListAll(t.Context(), s, "", "", func(info objstore.Info) error {
		p, _, err := objstore.ReadAll(t.Context(), s, info.Key, 1<<20)
		m[info.Key] = string(p)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func put(t *testing.T, s *mem.Store, key, body string) {
	t.Helper()
	if _, err := s.Put(t.Context(), key, bytes.NewReader([]byte(body)), int64(len(body)), objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
}

func TestStore_At_EveryPrefix(t *testing.T) {
	s := mem.NewRecording()
	rng := rand.New(rand.NewPCG(1, 1))
	want := []map[string]string{{}}
	for i := range 300 {
		state := maps.Clone(want[len(want)-1])
		key := fmt.Sprintf("k%d", rng.IntN(20))
		if _, exists := state[key]; rng.IntN(3) == 0 {
			if err := s.Delete(t.Context(), key); err != nil {
				t.Fatal(err)
			}
			if !exists {
				continue
			}
			delete(state, key)
		} else {
			state[key] = fmt.Sprint(i)
			put(t, s, key, state[key])
		}
		want = append(want, state)
	}
	if s.Len() != len(want)-1 || len(s.History()) != s.Len() {
		t.Fatalf("recorded %d mutations, made %d", s.Len(), len(want)-1)
	}
	for n := range want {
		at := s.At(n)
		if got := contents(t, at); !maps.Equal(got, want[n]) {
			t.Fatalf("after %d mutations: %v, want %v", n, got, want[n])
		}
		put(t, at, "mine", "x") // must not show up anywhere else
	}
	if got := contents(t, s); !maps.Equal(got, want[len(want)-1]) {
		t.Fatalf("writing to a past state changed the store: %v", got)
	}
}

func TestStore_At_SharesBodies(t *testing.T) {
	s := mem.NewRecording()
	big := string(make([]byte, 1<<20))
	for i := range 10000 {
		if i%1000 == 0 {
			put(t, s, fmt.Sprintf("big/%d", i), big)
		}
		put(t, s, fmt.Sprintf("k/%d", i), "x")
	}
	allocated := testing.AllocsPerRun(10, func() {
		for n := 0; n <= s.Len(); n += 100 {
			s.At(n)
		}
	})
	// About 32 mutations on a copy-on-write tree each, not 10,000.
	if perState := allocated / float64(s.Len()/100); perState > 500 {
		t.Errorf("a past state costs %.0f allocations", perState)
	}
	if got, want := s.At(s.Len()).Bytes(), s.Bytes(); got != want {
		t.Errorf("the last state holds %d bytes, the store %d", got, want)
	}
}

func TestStore_Snapshot_IsIndependent(t *testing.T) {
	s := mem.New()
	put(t, s, "a", "1")
	snap := s.Snapshot()
	put(t, s, "a", "2")
	put(t, snap, "b", "3")
	if got := contents(t, s); !maps.Equal(got, map[string]string{"a": "2"}) {
		t.Errorf("store: %v", got)
	}
	if got := contents(t, snap); !maps.Equal(got, map[string]string{"a": "1", "b": "3"}) {
		t.Errorf("snapshot: %v", got)
	}
}

func TestStore_Stats_CountsRequestsAndBytes(t *testing.T) {
	s := mem.New()
	put(t, s, "a", "12345")
	if _, err := s.Put(t.Context(), "a", bytes.NewReader(nil), 0, objstore.Condition{IfAbsent: true}); err == nil {
		t.Fatal("second create succeeded")
	}
	if err := objstore.ReadRange(t.Context(), s, "a", 1, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Head(t.Context(), "b"); err == nil {
		t.Fatal("head of a missing key succeeded")
	}
	contents(t, s)
	want := mem.Stats{
		Get:  mem.Count{Requests: 2, Bytes: 8},
		Put:  mem.Count{Requests: 2, Failed: 1, Bytes: 5},
		Head: mem.Count{Requests: 1, Failed: 1},
		List: mem.Count{Requests: 1},
	}
	if got := s.Stats(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	s.ResetStats()
	if got := s.Stats(); got != (mem.Stats{}) {
		t.Errorf("after the reset: %+v", got)
	}
}

func TestStore_SetModified_ChangesAgeOnly(t *testing.T) {
	s := mem.New()
	put(t, s, "a", "1")
	before, err := s.Head(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	old := time.Unix(1000, 0)
	if !s.SetModified("a", old) || s.SetModified("b", old) {
		t.Error("wrong report of existence")
	}
	after, err := s.Head(t.Context(), "a")
	if err != nil || !after.Modified.Equal(old) || after.Version != before.Version {
		t.Errorf("before %+v, after %+v, %v", before, after, err)
	}
}
