package faultproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

const (
	// maxBody bounds a body that is kept whole, in bytes: more than the largest
	// object of a volume.
	maxBody = 80 << 20
	// maxDuplicates bounds how many late duplicates may wait at a time.
	maxDuplicates = 16
	// chunk is the unit of bandwidth, in bytes: small enough that connections
	// share the limit evenly.
	chunk = 16 << 10
)

// Options are what the network is like for every request.
type Options struct {
	Latency   time.Duration // added to each request before the server sees it
	Upload    int64         // bytes per second of all requests' bodies; 0 without limit
	Download  int64         // bytes per second of all replies' bodies; 0 without limit
	Serialise bool          // conditional PUTs to one key reach the server one after another, whole
	// JudgeFirst answers create-only PUTs as a gateway does that looks whether
	// the key exists as soon as it has the header: by what has been stored
	// through the proxy. The PUT then goes on without its condition, so the
	// server must be one that checks no signature.
	JudgeFirst bool
}

// Count is what passed of one method.
type Count struct {
	Requests int64
	In       int64 // bytes of requests' bodies
	Out      int64 // bytes of replies' bodies
	Faults   int64 // requests with a fault
}

// Proxy is a running proxy.
type Proxy struct {
	options  Options
	upstream *url.URL
	listener net.Listener
	server   *http.Server
	client   *http.Transport
	up, down *rate.Limiter // nil without limit
	keys     keyLocks
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	group    sync.WaitGroup // the server's loop and the duplicates
	waiting  atomic.Int64   // duplicates
	chooser  atomic.Pointer[Chooser]
	stored   sync.Map // paths that a PUT made under JudgeFirst

	mu     sync.Mutex // guards counts; never held during I/O
	counts map[string]Count
}

// Start runs a proxy in front of upstream, a URL such as
// http://127.0.0.1:9000. The caller calls Close.
func Start(upstream string, o Options) (*Proxy, error) {
	target, err := url.Parse(upstream)
	if err != nil || target.Scheme != "http" || target.Host == "" {
		return nil, fmt.Errorf("start a proxy: the server's URL is %q, not http://host:port (%v)", upstream, err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("start a proxy: %w", err)
	}
	p := &Proxy{
		options: o, upstream: target, listener: listener,
		client: &http.Transport{DisableCompression: true, MaxIdleConnsPerHost: 64},
		up:     limiter(o.Upload), down: limiter(o.Download),
		counts: map[string]Count{},
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.server = &http.Server{Handler: http.HandlerFunc(p.serve)}
	p.group.Go(func() { _ = p.server.Serve(listener) }) // returns ErrServerClosed after Close
	return p, nil
}

// URL is what the client is given as its endpoint.
func (p *Proxy) URL() string { return "http://" + p.listener.Addr().String() }

// Choose makes c decide about the requests that arrive from now on; nil lets
// them pass.
func (p *Proxy) Choose(c Chooser) { p.chooser.Store(&c) }

// Counts returns what has passed so far by HTTP method.
func (p *Proxy) Counts() map[string]Count {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts)
}

// Total is the sum of Counts.
func (p *Proxy) Total() Count {
	var t Count
	for _, c := range p.Counts() {
		t.Requests += c.Requests
		t.In += c.In
		t.Out += c.Out
		t.Faults += c.Faults
	}
	return t
}

// Close ends every request and duplicate and waits for them.
func (p *Proxy) Close() error {
	p.cancel()
	err := p.server.Close()
	p.group.Wait()
	p.client.CloseIdleConnections()
	return err
}

func limiter(bytesPerSecond int64) *rate.Limiter {
	if bytesPerSecond <= 0 {
		return nil
	}
	return rate.NewLimiter(rate.Limit(bytesPerSecond), 4*chunk)
}

func (p *Proxy) count(method string, f func(*Count)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.counts[method]
	f(&c)
	p.counts[method] = c
}

// serve is one request of a client.
func (p *Proxy) serve(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(p.ctx, cancel)()
	var fault Fault
	if c := p.chooser.Load(); c != nil && *c != nil {
		fault = (*c)(r)
	}
	p.count(r.Method, func(c *Count) {
		c.Requests++
		if fault.Kind != None {
			c.Faults++
		}
	})
	if err := sleep(ctx, p.options.Latency); err != nil {
		reset(w)
		return
	}
	switch fault.Kind {
	case Status:
		refuse(w, r, fault)
	case Reset:
		reset(w)
	case Hang:
		// The server notices a client that went away only once the body is read.
		_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, maxBody))
		<-ctx.Done()
		reset(w)
	default:
		p.pass(ctx, w, r, fault)
	}
}

// pass forwards a request and its reply, with the fault done to either.
func (p *Proxy) pass(ctx context.Context, w http.ResponseWriter, r *http.Request, fault Fault) {
	var body io.Reader = &limited{ctx: ctx, Reader: r.Body, l: p.up, count: func(n int) {
		p.count(r.Method, func(c *Count) { c.In += int64(n) })
	}}
	switch fault.Kind {
	case HalfRequest:
		body = &cut{body, middle(r)}
	case WrongRequest:
		body = &flip{body, middle(r)}
	}
	serialised := p.options.Serialise && conditional(r)
	if serialised || fault.Kind == Duplicate {
		whole, err := io.ReadAll(io.LimitReader(body, maxBody))
		if err != nil || r.ContentLength >= 0 && int64(len(whole)) != r.ContentLength {
			reset(w) // the server never saw it
			return
		}
		if fault.Kind == Duplicate {
			p.duplicate(r, whole, fault.Delay, serialised)
		}
		body = bytes.NewReader(whole)
	}
	judged := p.options.JudgeFirst && r.Header.Get("If-None-Match") == "*"
	if judged {
		if _, exists := p.stored.Load(r.URL.Path); exists {
			refuse(w, r, Fault{Status: http.StatusPreconditionFailed, Code: "PreconditionFailed"})
			return
		}
		r.Header.Del("If-None-Match")
	}
	reply, unlock, err := p.forward(ctx, r, body, fault, serialised)
	if err != nil {
		reset(w)
		return
	}
	defer unlock()
	defer reply.Body.Close()
	if judged && reply.StatusCode == http.StatusOK {
		p.stored.Store(r.URL.Path, true)
	}
	p.answer(ctx, w, r, reply, fault)
}

// middle is the offset at which a body breaks or is wrong. One of unknown length
// begins with a description of the object, which is to stay whole.
func middle(r *http.Request) int64 {
	if r.ContentLength < 0 {
		return 600
	}
	return r.ContentLength / 2
}

// forward sends the request to the server. The caller calls unlock after it is
// done with the reply.
func (p *Proxy) forward(ctx context.Context, r *http.Request, body io.Reader, fault Fault, serialised bool) (reply *http.Response, unlock func(), err error) {
	out := &http.Request{
		Method: r.Method, URL: p.target(r), Host: r.Host, Header: r.Header.Clone(),
		Body: io.NopCloser(body), ContentLength: r.ContentLength,
		Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	}
	out.Header.Del("Connection")
	out.Header.Del("Expect") // the body follows at once
	if r.ContentLength == 0 {
		out.Body = http.NoBody
	}
	unlock = func() {}
	if serialised {
		if unlock, err = p.keys.lock(ctx, r.URL.Path+objectName(r)); err != nil {
			return nil, nil, err
		}
		// A client that goes away must not release the key while the server works.
		ctx = p.ctx
	}
	out = out.WithContext(ctx)
	if fault.Kind == DelayedBody && r.ContentLength != 0 {
		reply, err = p.delayed(ctx, out, fault.Delay)
	} else {
		reply, err = p.client.RoundTrip(out)
	}
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return reply, unlock, nil
}

func (p *Proxy) target(r *http.Request) *url.URL {
	u := *r.URL
	u.Scheme, u.Host = p.upstream.Scheme, p.upstream.Host
	return &u
}

// answer sends the server's reply to the client.
func (p *Proxy) answer(ctx context.Context, w http.ResponseWriter, r *http.Request, reply *http.Response, fault Fault) {
	var body io.Reader = reply.Body
	size := reply.ContentLength
	switch fault.Kind {
	case LostReply:
		// Read to the end, so that the server has done all it was asked.
		_, _ = io.Copy(io.Discard, body)
		reset(w)
		return
	case HalfReply:
		if r.Method == http.MethodHead || size == 0 {
			reset(w) // no body to cut
			return
		}
		body = &cut{body, max(size/2, 1)}
	case WrongReply:
		body = &flip{body, max(size/2, 0)}
	}
	header := w.Header()
	for name, values := range reply.Header {
		if name != "Connection" {
			header[name] = values
		}
	}
	w.WriteHeader(reply.StatusCode)
	_, err := io.Copy(w, &limited{ctx: ctx, Reader: body, l: p.down, count: func(n int) {
		p.count(r.Method, func(c *Count) { c.Out += int64(n) })
	}})
	switch {
	case err != nil && fault.Kind == HalfReply:
		breakOff(w)
	case err != nil:
		reset(w)
	}
}

// duplicate sends the request once more later. The copy lives longer than the
// client's request.
func (p *Proxy) duplicate(r *http.Request, body []byte, delay time.Duration, serialised bool) {
	if p.waiting.Add(1) > maxDuplicates {
		p.waiting.Add(-1)
		return
	}
	again := r.Clone(p.ctx)
	p.group.Go(func() {
		defer p.waiting.Add(-1)
		if sleep(p.ctx, delay) != nil {
			return
		}
		reply, unlock, err := p.forward(p.ctx, again, bytes.NewReader(body), Fault{}, serialised)
		if err != nil {
			return // nobody waits for it
		}
		defer unlock()
		_, _ = io.Copy(io.Discard, reply.Body)
		reply.Body.Close()
	})
}

// limited is a body that passes at a limited rate and is counted.
type limited struct {
	io.Reader
	ctx   context.Context
	l     *rate.Limiter // nil without limit
	count func(n int)
}

func (b *limited) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p[:min(len(p), chunk)])
	b.count(n)
	if b.l != nil && n > 0 {
		if werr := b.l.WaitN(b.ctx, n); werr != nil {
			return n, errors.Join(err, werr)
		}
	}
	return n, err
}

// refuse answers a request with an error of S3's form.
func refuse(w http.ResponseWriter, r *http.Request, fault Fault) {
	// Without reading the body the client could see a reset instead.
	_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, maxBody))
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(fault.Status)
	fmt.Fprintf(w, errorBody, fault.code(), r.URL.Path)
}

// reset ends the client's connection by a reset, whatever was sent before.
func reset(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler) // which also breaks the connection
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // a connection that is gone already is as good
	}
	_ = conn.Close()
}

// breakOff ends the client's connection after what was sent before.
func breakOff(w http.ResponseWriter) {
	control := http.NewResponseController(w)
	_ = control.Flush() // a connection that is gone already is as good
	conn, _, err := control.Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_ = conn.Close()
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
