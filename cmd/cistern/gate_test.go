package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/control"
	"github.com/cisternfs/cistern/internal/testenv"
)

// No request is at work on a volume when it begins to close, and none comes later:
// also one whose client sends nothing, and one that waits for its context.
func TestGate_Shut_EndsWhatIsUnderWayAndRefusesTheRest(t *testing.T) {
	g, h := newGate(), control.Handlers{Status: exitStatus}
	entered, left := make(chan string, 2), make(chan string, 2)
	mux := http.NewServeMux()
	mux.Handle("PUT /v1/file", h.Call(func(r *http.Request) (any, error) {
		entered <- "put"
		_, err := io.Copy(io.Discard, r.Body)
		left <- "put"
		return nil, err
	}))
	mux.Handle("POST /v1/sync", h.Call(func(r *http.Request) (any, error) {
		entered <- "sync"
		<-r.Context().Done()
		left <- "sync"
		return nil, r.Context().Err()
	}))
	mux.Handle("GET /v1/stat", h.Call(func(*http.Request) (any, error) { return 1, nil }))
	socket := filepath.Join(testenv.TempDir(t), socketName)
	s, err := control.Listen(socket, g.guard(mux, h, "file:///x"), quietLogger())
	if err != nil {
		t.Fatal(err)
	}
	c := control.NewClient(socket)
	if err := c.Call(t.Context(), "GET", "/v1/stat", nil, nil, new(int)); err != nil {
		t.Fatal(err)
	}
	body, silent := io.Pipe()
	defer silent.Close()
	ends := make(chan error, 2)
	go func() { ends <- c.Call(t.Context(), "PUT", "/v1/file", nil, body, new(int)) }()
	go func() { ends <- c.Call(t.Context(), "POST", "/v1/sync", nil, nil, new(int)) }()
	<-entered
	<-entered
	g.shut()
	if !g.closed() || len(left) != 2 {
		t.Errorf("closed %v, %d of 2 requests have ended", g.closed(), len(left))
	}
	for range 2 {
		if err := <-ends; err == nil {
			t.Error("a request that was ended succeeded")
		}
	}
	var refused *control.Error
	if err := c.Call(t.Context(), "GET", "/v1/stat", nil, nil, new(int)); !errors.As(err, &refused) || !strings.Contains(refused.Message, "file:///x is being unmounted by process") {
		t.Errorf("after the end: %v", err)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestApp_UnlessClosing_WaitsForTheEnd(t *testing.T) {
	calls := 0
	find := func(context.Context, target) (*control.Client, ping, error) {
		if calls++; calls > 3 {
			return nil, ping{}, nil
		}
		return control.NewClient("x"), ping{PID: 1, Closing: true}, nil
	}
	a := &app{}
	if c, _, err := a.unlessClosing(t.Context(), target{}, find); c != nil || err != nil || calls != 4 {
		t.Errorf("%v, %v after %d calls", c, err, calls)
	}
	calls = -1 << 30
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, err := a.unlessClosing(ctx, target{}, find); !errors.Is(err, gateway.ErrInterrupted) {
		t.Errorf("interrupted: %v", err)
	}
}
