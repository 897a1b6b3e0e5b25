package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var errFull = errors.New("the disk is full")

// serve starts a server under a directory whose path is longer than a socket's
// may be.
func serve(t *testing.T) *Client {
	t.Helper()
	dir := filepath.Join(t.TempDir(), strings.Repeat("long", 40))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	h := Handlers{Status: func(err error) int {
		if errors.Is(err, errFull) {
			return 7
		}
		return 1
	}}
	mux := http.NewServeMux()
	mux.Handle("POST /echo", h.Call(func(r *http.Request) (any, error) {
		body, err := io.ReadAll(r.Body)
		return map[string]any{"said": string(body), "uid": r.Context().Value(peerKey{}).(peer).uid, "q": r.URL.Query().Get("q")}, err
	}))
	mux.Handle("GET /fail", h.Call(func(*http.Request) (any, error) { return nil, errFull }))
	mux.Handle("GET /three", h.Stream(func(r *http.Request, emit func(any) error) error {
		for i := range 3 {
			if err := emit(i); err != nil {
				return err
			}
		}
		if r.URL.Query().Has("fail") {
			return errFull
		}
		return nil
	}))
	mux.Handle("GET /bytes", h.Body(func(r *http.Request, w io.Writer) error {
		if _, err := io.WriteString(w, r.URL.Query().Get("text")); err != nil {
			return err
		}
		if r.URL.Query().Has("fail") {
			return errFull
		}
		return nil
	}))
	mux.HandleFunc("GET /cut", func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "half")
		http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	path := filepath.Join(dir, "control.sock")
	s, err := Listen(path, mux, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket is left: %v", err)
		}
	})
	st, err := os.Stat(path)
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("mode of the socket: %v, %v", st.Mode(), err)
	}
	return NewClient(path)
}

func wantError(t *testing.T, err error, status int) {
	t.Helper()
	var e *Error
	if !errors.As(err, &e) || e.Status != status || e.Message != errFull.Error() {
		t.Errorf("got %v, want %q with status %d", err, errFull, status)
	}
}

func TestClient_Call_AnswersAndErrors(t *testing.T) {
	c := serve(t)
	var got struct {
		Said, Q string
		UID     int
	}
	if err := c.Call(t.Context(), "POST", "/echo", url.Values{"q": {"a\xff&b"}}, strings.NewReader("hello"), &got); err != nil {
		t.Fatal(err)
	}
	if got.Said != "hello" || got.UID != os.Geteuid() {
		t.Errorf("got %+v", got)
	}
	wantError(t, c.Call(t.Context(), "GET", "/fail", nil, nil, &got), 7)
	if err := c.Call(t.Context(), "GET", "/nothing", nil, nil, &got); err == nil || !strings.Contains(err.Error(), "404") {
		t.Errorf("unknown endpoint: %v", err)
	}
}

func TestClient_Stream_ItemsThenEnd(t *testing.T) {
	c := serve(t)
	for _, fail := range []bool{false, true} {
		q := url.Values{}
		if fail {
			q.Set("fail", "1")
		}
		var got []string
		err := c.Stream(t.Context(), "GET", "/three", q, func(m json.RawMessage) error {
			got = append(got, string(m))
			return nil
		})
		if strings.Join(got, " ") != "0 1 2" {
			t.Errorf("items: %q", got)
		}
		if fail {
			wantError(t, err, 7)
		} else if err != nil {
			t.Error(err)
		}
	}
	if err := c.Stream(t.Context(), "GET", "/cut", nil, func(json.RawMessage) error { return nil }); err == nil {
		t.Error("a stream that broke off was taken for whole")
	}
}

func TestClient_Body_WholeOrError(t *testing.T) {
	c := serve(t)
	for _, text := range []string{"", "short", strings.Repeat("long ", 100000)} {
		var got bytes.Buffer
		q := url.Values{"text": {text[:min(len(text), 4000)]}}
		if err := c.Body(t.Context(), "/bytes", q, &got); err != nil || got.String() != q.Get("text") {
			t.Errorf("%d bytes: %v", got.Len(), err)
		}
		q.Set("fail", "1")
		wantError(t, c.Body(t.Context(), "/bytes", q, io.Discard), 7)
	}
	if err := c.Body(t.Context(), "/cut", nil, io.Discard); err == nil {
		t.Error("a body that broke off was taken for whole")
	}
}

func TestClient_NoServer_Says(t *testing.T) {
	dir := t.TempDir()
	for _, path := range []string{filepath.Join(dir, "none", "control.sock"), filepath.Join(dir, "control.sock")} {
		err := NewClient(path).Call(t.Context(), "GET", "/x", nil, nil, nil)
		if !errors.Is(err, ErrNoServer) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestListen_DeadSocket_IsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "control.sock")
	if err := os.WriteFile(path, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s, err := Listen(path, http.NewServeMux(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestGuard_Stranger_IsRefused(t *testing.T) {
	h := guard(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("a stranger was served") }))
	for _, p := range []any{nil, peer{uid: 54321}, peer{err: errFull}} {
		r, err := http.NewRequestWithContext(context.WithValue(t.Context(), peerKey{}, p), "GET", "/", nil)
		if err != nil {
			t.Fatal(err)
		}
		w := &recorder{header: http.Header{}}
		h.ServeHTTP(w, r)
		if w.status != http.StatusInternalServerError {
			t.Errorf("%v: status %d", p, w.status)
		}
	}
}

type recorder struct {
	header http.Header
	status int
}

func (r *recorder) Header() http.Header         { return r.header }
func (r *recorder) Write(p []byte) (int, error) { return len(p), nil }
func (r *recorder) WriteHeader(s int)           { r.status = s }
