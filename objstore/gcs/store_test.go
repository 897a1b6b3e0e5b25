package gcs

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cisternfs/cistern/objstore"
)

// server answers requests as one test wants it and remembers them.
type server struct {
	*httptest.Server
	mu       sync.Mutex // guards requests
	requests []*http.Request
}

// serve starts a server that answers with h and returns a store of its bucket "b".
func serve(t testing.TB, h http.HandlerFunc) (*Store, *server) {
	t.Helper()
	s := &server{}
	s.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.mu.Lock()
		s.requests = append(s.requests, r)
		s.mu.Unlock()
		h(w, r)
	}))
	t.Cleanup(s.Close)
	return openAt(t, Options{Bucket: "b", Endpoint: s.URL, Anonymous: true}), s
}

func openAt(t testing.TB, o Options) *Store {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.hc.CloseIdleConnections)
	return s
}

func (s *server) seen() []*http.Request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

// refuse answers with an error in the API's form.
func refuse(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	item := map[string]string{"reason": reason, "message": message}
	_ = json.NewEncoder(w).Encode(map[string]any{"error": map[string]any{"code": code, "message": message, "errors": []any{item}}})
}

// object is an answer about metadata.
func object(name, body string, generation int64) map[string]any {
	return map[string]any{
		"name": name, "bucket": "b", "size": strconv.Itoa(len(body)), "generation": strconv.FormatInt(generation, 10),
		"crc32c": sum64(body), "timeCreated": time.Unix(1700000000, 0).UTC(),
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v)
}

func put(ctx context.Context, s objstore.Store, key, body string, cond objstore.Condition) (objstore.Version, error) {
	return s.Put(ctx, key, strings.NewReader(body), int64(len(body)), cond)
}

// calls are the operations of a store, each with one request.
func calls(s objstore.Store) map[string]func(ctx context.Context) error {
	return map[string]func(ctx context.Context) error{
		"get": func(ctx context.Context) error {
			body, _, err := s.Get(ctx, "k", 0, -1)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, body)
			return errors.Join(err, body.Close())
		},
		"range": func(ctx context.Context) error { return objstore.ReadRange(ctx, s, "k", 5, make([]byte, 5)) },
		"put":   func(ctx context.Context) error { _, err := put(ctx, s, "k", "body", objstore.Condition{}); return err },
		"create": func(ctx context.Context) error {
			_, err := put(ctx, s, "k", "body", objstore.Condition{IfAbsent: true})
			return err
		},
		"swap": func(ctx context.Context) error {
			_, err := put(ctx, s, "k", "body", objstore.Condition{IfVersion: "7"})
			return err
		},
		"head":   func(ctx context.Context) error { _, err := s.Head(ctx, "k"); return err },
		"list":   func(ctx context.Context) error { _, err := s.List(ctx, "k", "", 0); return err },
		"delete": func(ctx context.Context) error { return s.Delete(ctx, "k") },
	}
}

func TestStore_Calls_ErrorClasses(t *testing.T) {
	for _, c := range []struct {
		code   int
		reason string
		class  error // nil: none
	}{
		{400, "invalid", nil}, {400, "userProjectMissing", nil}, {401, "authError", objstore.ErrPermission}, {402, "paymentRequired", objstore.ErrPermission},
		{403, "forbidden", objstore.ErrPermission}, {403, "rateLimitExceeded", objstore.ErrThrottled}, {403, "userRateLimitExceeded", objstore.ErrThrottled},
		{408, "timeout", objstore.ErrUnavailable}, {409, "conflict", objstore.ErrUnavailable}, {412, "conditionNotMet", objstore.ErrConditionFailed},
		{429, "rateLimitExceeded", objstore.ErrThrottled}, {500, "backendError", objstore.ErrUnavailable}, {502, "badGateway", objstore.ErrUnavailable},
		{503, "backendError", objstore.ErrUnavailable}, {504, "gatewayTimeout", objstore.ErrUnavailable},
	} {
		s, srv := serve(t, func(w http.ResponseWriter, _ *http.Request) { refuse(w, c.code, c.reason, "in its own words") })
		for op, call := range calls(s) {
			before := len(srv.seen())
			err := call(t.Context())
			if n := len(srv.seen()) - before; n != 1 {
				t.Errorf("%s, %d %s: %d requests were made", op, c.code, c.reason, n)
			}
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("HTTP %d: in its own words", c.code)) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s, %d %s: %v", op, c.code, c.reason, err)
			}
			if c.class == nil && objstore.Class(err) != "other" || c.class != nil && !errors.Is(err, c.class) {
				t.Errorf("%s, %d %s: %v is of class %s, want %v", op, c.code, c.reason, err, objstore.Class(err), c.class)
			}
			if errors.Is(err, objstore.ErrThrottled) != (c.class == objstore.ErrThrottled) {
				t.Errorf("%s, %d %s: throttled? %v", op, c.code, c.reason, err)
			}
		}
	}
}

func TestStore_Calls_NetworkErrors_AreUnavailable(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"reset":              func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"a page of a portal": func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "<html>log in", http.StatusBadGateway) },
		"half an answer": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			w.Header().Set("X-Goog-Generation", "1")
			_, _ = io.WriteString(w, `{"kind": "stora`)
		},
	} {
		s, srv := serve(t, h)
		for op, call := range calls(s) {
			if name == "half an answer" && (op == "delete" || op == "range") {
				continue // has no body, asks for another one
			}
			before := len(srv.seen())
			if err := call(t.Context()); !errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, context.Canceled) {
				t.Errorf("%s, %s: %v", name, op, err)
			}
			if n := len(srv.seen()) - before; n != 1 {
				t.Errorf("%s, %s: %d requests were made", name, op, n)
			}
		}
	}
	s, srv := serve(t, func(http.ResponseWriter, *http.Request) {})
	srv.Close()
	for op, call := range calls(s) {
		if err := call(t.Context()); !errors.Is(err, objstore.ErrUnavailable) || strings.Contains(err.Error(), "http://") {
			t.Errorf("nobody listens, %s: %v", op, err)
		}
	}
}

// hang blocks a request until its client has given up.
func hang(r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // a server sees that only when it has the body
	<-r.Context().Done()
}

func TestStore_Calls_Hang_EndWithTheirContext(t *testing.T) {
	entered := make(chan struct{}, 1)
	s, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		select {
		case entered <- struct{}{}:
		default:
		}
		hang(r)
	})
	for op, call := range calls(s) {
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- call(ctx) }()
		<-entered
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", op, err)
		}
	}
	timed := objstore.WithTimeout(s, objstore.TimeoutOptions{Base: 20 * time.Millisecond})
	for op, call := range calls(timed) {
		if err := call(t.Context()); !errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, context.Canceled) {
			t.Errorf("with a deadline, %s: %v", op, err)
		}
	}
}

func TestStore_Calls_HangInTheBody_EndsWithItsContext(t *testing.T) {
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Length", "10")
		w.Header().Set("X-Goog-Generation", "1")
		_, _ = io.WriteString(w, "half")
		_ = http.NewResponseController(w).Flush()
		hang(r)
	})
	ctx, cancel := context.WithCancel(t.Context())
	body, _, err := s.Get(ctx, "k", 0, -1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(body, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	cancel()
	if n, err := body.Read(make([]byte, 10)); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d bytes, %v", n, err)
	}
	// Only that it may be closed matters: the body's error was seen above.
	_ = body.Close()
}

// TestStore_NotFound_ObjectOrBucket has servers that say what is missing, in
// Google's words, and servers that don't.
func TestStore_NotFound_ObjectOrBucket(t *testing.T) {
	for _, c := range []struct {
		words    string
		listing  int // status of the listing that is asked where words don't tell
		want     error
		requests int
	}{
		{"No such object: b/k", 0, objstore.ErrNotExist, 1},
		{"The specified bucket does not exist.", 0, objstore.ErrNoBucket, 1},
		{"Not Found", 200, objstore.ErrNotExist, 2},
		{"Not Found", 404, objstore.ErrNoBucket, 2},
		{"Not Found", 403, objstore.ErrNotExist, 2},
		{"Not Found", 503, objstore.ErrUnavailable, 2},
	} {
		s, srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/storage/v1/b/b/o" || r.Method != http.MethodGet {
				refuse(w, 404, "notFound", c.words)
			} else if c.listing == 200 {
				answer(w, map[string]any{})
			} else {
				refuse(w, c.listing, "any", "of the listing")
			}
		})
		for _, op := range []string{"get", "head", "delete", "swap"} {
			want := c.want
			if want == objstore.ErrNotExist && op == "delete" {
				want = nil
			}
			if want == objstore.ErrNotExist && op == "swap" {
				want = objstore.ErrConditionFailed
			}
			before := len(srv.seen())
			err := calls(s)[op](t.Context())
			if want == nil && err != nil || !errors.Is(err, want) {
				t.Errorf("%q, listing %d, %s: %v, want %v", c.words, c.listing, op, err, want)
			}
			if n := len(srv.seen()) - before; n != c.requests {
				t.Errorf("%q, listing %d, %s: %d requests", c.words, c.listing, op, n)
			}
		}
		// A PUT without a version and a listing can miss nothing but the bucket.
		for _, op := range []string{"put", "create"} {
			if err := calls(s)[op](t.Context()); !errors.Is(err, objstore.ErrNoBucket) {
				t.Errorf("%q, %s: %v", c.words, op, err)
			}
		}
	}
	s, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { refuse(w, 404, "notFound", "Not Found") })
	if err := calls(s)["list"](t.Context()); !errors.Is(err, objstore.ErrNoBucket) {
		t.Errorf("list: %v", err)
	}
}

func TestStore_Calls_UserProjectIsInEach(t *testing.T) {
	_, srv := serve(t, func(w http.ResponseWriter, _ *http.Request) { refuse(w, 503, "", "") })
	s := openAt(t, Options{Bucket: "b", Endpoint: srv.URL, Anonymous: true, UserProject: "payer"})
	for op, call := range calls(s) {
		if err := call(t.Context()); !errors.Is(err, objstore.ErrUnavailable) {
			t.Errorf("%s: %v", op, err)
		}
	}
	for _, r := range srv.seen() {
		if r.URL.Query().Get("userProject") != "payer" {
			t.Errorf("%s %s", r.Method, r.URL)
		}
	}
}

func TestStore_Calls_RedirectsAreNotFollowed(t *testing.T) {
	elsewhere, other := serve(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, object("k", "", 1)) })
	s, _ := serve(t, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, elsewhere.base+"b/b/o/k", http.StatusTemporaryRedirect)
	})
	for op, call := range calls(s) {
		if err := call(t.Context()); err == nil || !strings.Contains(err.Error(), "HTTP 307") {
			t.Errorf("%s: %v", op, err)
		}
	}
	if n := len(other.seen()); n != 0 {
		t.Errorf("%d requests went elsewhere", n)
	}
}

func TestStore_Head_OfAnotherObject_IsDamage(t *testing.T) {
	for _, a := range []map[string]any{object("other", "", 1), object("k", "", 0)} {
		s, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, a) })
		if info, err := s.Head(t.Context(), "k"); !errors.Is(err, objstore.ErrDamaged) {
			t.Errorf("%v: %+v, %v", a, info, err)
		}
	}
}

// TestStore_List_StartsAfter: the API's startOffset includes its key, and its
// pages may be shorter than asked for.
func TestStore_List_StartsAfter(t *testing.T) {
	var keys []string
	for i := range 25 {
		keys = append(keys, fmt.Sprintf("k%02d", i))
	}
	const perPage = 4
	s, srv := serve(t, func(w http.ResponseWriter, r *http.Request) {
		q := r.URL.Query()
		from, _ := slices.BinarySearch(keys, q.Get("startOffset"))
		if token := q.Get("pageToken"); token != "" {
			from, _ = strconv.Atoi(token)
		}
		asked, err := strconv.Atoi(q.Get("maxResults"))
		if err != nil || q.Get("projection") != "noAcl" {
			t.Errorf("the listing asks for %q", r.URL.RawQuery)
		}
		to := min(from+min(asked, perPage), len(keys))
		var items []any
		for _, key := range keys[from:to] {
			items = append(items, object(key, "", 1))
		}
		page := map[string]any{"items": items}
		if to < len(keys) {
			page["nextPageToken"] = strconv.Itoa(to)
		}
		answer(w, page)
	})
	for _, after := range []string{"", "a", "k00", "k03", "k03x", "k23", "k24", "z"} {
		for _, limit := range []int{1, 3, 4, 5, 24, 25, 26, 0} {
			i, found := slices.BinarySearch(keys, after)
			if found {
				i++
			}
			want := keys[i:min(i+objstore.PageSize(limit), len(keys))]
			page, err := s.List(t.Context(), "k", after, limit)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, info := range page {
				got = append(got, info.Key)
			}
			if !slices.Equal(got, want) {
				t.Errorf("after %q, limit %d: %q, want %q", after, limit, got, want)
			}
		}
	}
	for _, r := range srv.seen() {
		if n, _ := strconv.Atoi(r.URL.Query().Get("maxResults")); n < 1 || n > objstore.MaxList {
			t.Errorf("a page of %d keys was asked for", n)
		}
	}
}

func TestStore_List_WithoutGeneration_IsDamage(t *testing.T) {
	s, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"items": []any{map[string]any{"name": "k", "size": "1"}}})
	})
	if page, err := s.List(t.Context(), "", "", 0); !errors.Is(err, objstore.ErrDamaged) {
		t.Errorf("%+v, %v", page, err)
	}
}

// TestStore_List_PageThatFails walks the failure of each request of a listing.
func TestStore_List_PageThatFails(t *testing.T) {
	const pages = 4
	for fail := range pages {
		n := 0
		s, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if n == fail {
				refuse(w, 503, "backendError", "later")
				return
			}
			n++
			answer(w, map[string]any{"items": []any{object(fmt.Sprintf("k%d", n), "", 1)}, "nextPageToken": "more"})
		})
		if page, err := s.List(t.Context(), "", "", pages); !errors.Is(err, objstore.ErrUnavailable) || page != nil {
			t.Errorf("request %d failed: %v, %v", fail, page, err)
		}
	}
}

var _ objstore.Store = (*Store)(nil)

// sum64 is a body's CRC32C as the API writes it.
func sum64(body string) string {
	sum, err := checksum(bytes.NewReader([]byte(body)), int64(len(body)))
	if err != nil {
		panic(err)
	}
	return encodeSum(sum)
}
