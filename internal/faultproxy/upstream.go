package faultproxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// conditional says whether a request writes under a condition, in S3's way or
// in Google's.
func conditional(r *http.Request) bool {
	switch r.Method {
	case http.MethodPut:
		return r.Header.Get("If-None-Match") != "" || r.Header.Get("If-Match") != ""
	case http.MethodPost:
		return r.URL.Query().Has("ifGenerationMatch")
	}
	return false
}

// objectName is the object that a request to Google's upload path names in its
// query. An upload that names it in its body has none: all of those take turns.
func objectName(r *http.Request) string {
	if name := r.URL.Query().Get("name"); name != "" {
		return "?" + name
	}
	return ""
}

// delayed sends a request whose header reaches the server before its body. The
// transport would keep the header back until it has some of the body.
func (p *Proxy) delayed(ctx context.Context, r *http.Request, delay time.Duration) (*http.Response, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", p.upstream.Host)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	abandon := func(err error) (*http.Response, error) {
		stop()
		return nil, errors.Join(err, conn.Close())
	}
	r.Header.Set("Connection", "close")
	paused := &pausing{ctx: ctx, Reader: r.Body, delay: delay}
	r.Body = io.NopCloser(paused)
	// An unbuffered connection makes Write send the header by itself.
	if err := r.Write(eager{conn}); err != nil {
		return abandon(err)
	}
	reply, err := http.ReadResponse(bufio.NewReader(conn), r)
	if err != nil {
		return abandon(err)
	}
	reply.Body = &closing{reply.Body, func() error { stop(); return conn.Close() }}
	return reply, nil
}

// eager is a writer that http.Request.Write does not put a buffer around.
type eager struct{ io.Writer }

func (e eager) WriteByte(c byte) error {
	_, err := e.Write([]byte{c})
	return err
}

// pausing is a body that begins after a delay.
type pausing struct {
	io.Reader
	ctx   context.Context
	delay time.Duration
	once  sync.Once
}

func (b *pausing) Read(p []byte) (int, error) {
	var err error
	b.once.Do(func() { err = sleep(b.ctx, b.delay) })
	if err != nil {
		return 0, err
	}
	return b.Reader.Read(p)
}

// closing is a body with an own way to end.
type closing struct {
	io.ReadCloser
	then func() error
}

func (c *closing) Close() error { return errors.Join(c.ReadCloser.Close(), c.then()) }

// keyLocks are one lock for each key in use.
type keyLocks struct {
	mu    sync.Mutex // guards locks
	locks map[string]*keyLock
}

type keyLock struct {
	held  chan struct{} // holds one token while the key is locked
	users int           // guarded by keyLocks.mu
}

// lock waits for the key and returns what unlocks it.
func (k *keyLocks) lock(ctx context.Context, key string) (unlock func(), err error) {
	k.mu.Lock()
	if k.locks == nil {
		k.locks = map[string]*keyLock{}
	}
	l := k.locks[key]
	if l == nil {
		l = &keyLock{held: make(chan struct{}, 1)}
		k.locks[key] = l
	}
	l.users++
	k.mu.Unlock()
	leave := func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if l.users--; l.users == 0 {
			delete(k.locks, key)
		}
	}
	select {
	case l.held <- struct{}{}:
		return func() { <-l.held; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, ctx.Err()
	}
}
