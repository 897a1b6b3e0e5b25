package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/cisternfs/cistern/internal/control"
)

// gate lets requests at a volume until it is closed, which they must not see
// happen: a volume that closes answers nothing any more.
//
// Its methods may be called from several goroutines; close only once.
type gate struct {
	closing context.Context // ends when the volume begins to close
	end     context.CancelFunc

	mu sync.Mutex     // orders an entry before or after the end of closing
	in sync.WaitGroup // requests under way
}

func newGate() *gate {
	g := &gate{}
	g.closing, g.end = context.WithCancel(context.Background())
	return g
}

// closed says whether the volume closes or has closed.
func (g *gate) closed() bool { return g.closing.Err() != nil }

// shut refuses all further requests, ends those under way and waits for them.
func (g *gate) shut() {
	g.mu.Lock()
	g.end()
	g.mu.Unlock()
	g.in.Wait()
}

func (g *gate) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed() {
		return false
	}
	g.in.Add(1)
	return true
}

// guard is h, whose requests pass the gate. One that waits for its client when the
// gate is shut, for the rest of a file or for room, waits no longer.
func (g *gate) guard(h http.Handler, errs control.Handlers, name string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !g.enter() {
			errs.Call(func(*http.Request) (any, error) {
				return nil, fmt.Errorf("%s is being unmounted by process %d: ask again when that has ended", name, os.Getpid())
			})(w, r)
			return
		}
		defer g.in.Done()
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		conn := http.NewResponseController(w)
		stop := context.AfterFunc(g.closing, func() {
			cancel()
			// Both only fail where the connection has no deadlines; a Unix socket has.
			_ = conn.SetReadDeadline(time.Unix(1, 0))
			_ = conn.SetWriteDeadline(time.Now().Add(replyGrace))
		})
		defer stop()
		h.ServeHTTP(w, r.WithContext(ctx))
	})
}
