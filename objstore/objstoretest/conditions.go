package objstoretest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"sync"

	"github.com/cisternfs/cistern/objstore"
)

func (t *suite) ifAbsent() {
	v, err := t.put("k", []byte("first"), objstore.Condition{IfAbsent: true})
	if err != nil || v == "" {
		t.Fatalf("create: version %q, %v", v, err)
	}
	_, err = t.put("k", []byte("other"), objstore.Condition{IfAbsent: true})
	t.wantErr("second create", err, objstore.ErrConditionFailed)
	_, err = t.put("k", []byte("first"), objstore.Condition{IfAbsent: true})
	t.wantErr("second create with the same bytes", err, objstore.ErrConditionFailed)
	t.wantBody("k", "first")
	if info, err := t.s.Head(t.Context(), "k"); err != nil || info.Version != v {
		t.Fatalf("head: %+v, %v; want version %s", info, err, v)
	}
	if err := t.s.Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	v2, err := t.put("k", []byte("third"), objstore.Condition{IfAbsent: true})
	if err != nil || v2 == v {
		t.Fatalf("create after delete: version %q (the first was %q), %v", v2, v, err)
	}
}

// creators lets 64 writers race for each of several keys.
func (t *suite) creators() {
	const writers = 64
	body := func(w int) string { return fmt.Sprintf("writer %d", w) }
	for round := range 5 {
		key := fmt.Sprintf("race/%d", round)
		var errs [writers]error
		start := make(chan struct{})
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				<-start
				_, errs[w] = t.put(key, []byte(body(w)), objstore.Condition{IfAbsent: true})
			})
		}
		close(start)
		wg.Wait()
		var won, unclear []string
		for w, err := range errs {
			switch {
			case err == nil:
				won = append(won, body(w))
			case t.limits.UnclearRaces && errors.Is(err, objstore.ErrUnavailable):
				unclear = append(unclear, body(w))
			case !errors.Is(err, objstore.ErrConditionFailed):
				t.Errorf("writer %d: %v", w, err)
			}
		}
		switch {
		case len(won) == 1:
			t.wantBody(key, won[0])
		case len(won) > 1 || len(unclear) == 0:
			t.Fatalf("%d of %d creators won", len(won), writers)
		default:
			if p, _ := t.get(key, 0, -1); !slices.Contains(unclear, string(p)) {
				t.Fatalf("object %q holds %.60q, want what one of %q sent", key, p, unclear)
			}
		}
	}
}

func (t *suite) ifVersion() {
	_, err := t.put("k", []byte("x"), objstore.Condition{IfVersion: "1"})
	t.wantErr("swap of a missing key", err, objstore.ErrConditionFailed)
	t.wantAbsent("k")
	v1 := t.mustPut("k", "one")
	v2, err := t.put("k", []byte("two"), objstore.Condition{IfVersion: v1})
	if err != nil || v2 == "" || v2 == v1 {
		t.Fatalf("swap from %q: version %q, %v", v1, v2, err)
	}
	_, err = t.put("k", []byte("three"), objstore.Condition{IfVersion: v1})
	t.wantErr("swap from an old version", err, objstore.ErrConditionFailed)
	_, err = t.put("k", []byte("three"), objstore.Condition{IfVersion: v2 + "0"})
	t.wantErr("swap from an unknown version", err, objstore.ErrConditionFailed)
	t.wantBody("k", "two")
	if err := t.s.Delete(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	_, err = t.put("k", []byte("four"), objstore.Condition{IfVersion: v2})
	t.wantErr("swap of a deleted key", err, objstore.ErrConditionFailed)
	t.wantAbsent("k")
}

// incrementers count up one object from many goroutines: no increment that was
// acknowledged may be missing from the sum.
func (t *suite) incrementers() {
	const workers, each = 8, 20
	t.mustPut("counter", "0")
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for done := 0; done < each; {
				p, info, err := objstore.ReadAll(t.Context(), t.s, "counter", 100)
				if err != nil {
					t.Errorf("worker %d: %v", w, err)
					return
				}
				n, err := strconv.Atoi(string(p))
				if err != nil {
					t.Errorf("worker %d: %v", w, err)
					return
				}
				_, err = t.put("counter", []byte(strconv.Itoa(n+1)), objstore.Condition{IfVersion: info.Version})
				if err == nil {
					done++
				} else if !errors.Is(err, objstore.ErrConditionFailed) {
					t.Errorf("worker %d: %v", w, err)
					return
				}
			}
		})
	}
	wg.Wait()
	t.wantBody("counter", strconv.Itoa(workers*each))
}

// readWhileOverwritten makes sure that a reader gets one body whole, and the
// version that belongs to it.
func (t *suite) readWhileOverwritten() {
	const size, writes = 1 << 20, 20
	fill := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, size+i) }
	if _, err := t.put("k", fill(0), objstore.Condition{}); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := make(map[objstore.Version]byte)
	for range 2 {
		wg.Go(func() {
			for {
				r, info, err := t.s.Get(t.Context(), "k", 0, -1)
				if err != nil {
					t.Errorf("get: %v", err)
					return
				}
				p, err := io.ReadAll(r)
				if err := errors.Join(err, r.Close()); err != nil {
					t.Errorf("read: %v", err)
					return
				}
				if len(p) != size+int(p[0]-'a') || int64(len(p)) != info.Size || len(bytes.Trim(p, string(p[:1]))) != 0 {
					t.Errorf("got a mix of two bodies: %d bytes, %q…%q", len(p), p[0], p[len(p)-1])
					return
				}
				mu.Lock()
				if c, ok := seen[info.Version]; ok && c != p[0] {
					t.Errorf("version %s was body %q and is body %q", info.Version, c, p[0])
				}
				seen[info.Version] = p[0]
				mu.Unlock()
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := 1; i <= writes; i++ {
		if _, err := t.put("k", fill(i), objstore.Condition{}); err != nil {
			t.Errorf("put: %v", err)
		}
	}
	close(done)
	wg.Wait()
}
