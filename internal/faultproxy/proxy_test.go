package faultproxy

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// upstreamServer is a server that keeps bodies by path and counts what it got.
type upstreamServer struct {
	mu       sync.Mutex
	bodies   map[string]string
	hosts    []string
	puts     int
	atOnce   atomic.Int64 // conditional PUTs under way
	most     atomic.Int64
	headerAt chan struct{} // receives when a PUT's header has arrived
}

func (s *upstreamServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodGet {
		s.mu.Lock()
		defer s.mu.Unlock()
		io.WriteString(w, s.bodies[r.URL.Path])
		return
	}
	if r.Header.Get("If-None-Match") != "" {
		s.most.Store(max(s.most.Load(), s.atOnce.Add(1)))
		defer s.atOnce.Add(-1)
	}
	select {
	case s.headerAt <- struct{}{}:
	default:
	}
	body, err := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hosts = append(s.hosts, r.Host)
	if err != nil || int64(len(body)) != r.ContentLength {
		return // cut off: not applied
	}
	s.puts++
	s.bodies[r.URL.Path] = string(body)
}

func (s *upstreamServer) body(path string) (string, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bodies[path], s.puts
}

func start(t *testing.T, o Options) (*Proxy, *upstreamServer) {
	t.Helper()
	s := &upstreamServer{bodies: map[string]string{}, headerAt: make(chan struct{}, 1)}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	p, err := Start(server.URL, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p, s
}

func do(t *testing.T, ctx context.Context, method, url, body string) (string, int, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if method == http.MethodPut {
		req.Header.Set("If-None-Match", "*")
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	return string(text), reply.StatusCode, err
}

const payload = "0123456789abcdefghijklmnopqrstuvwxyz"

func always(f Fault) Chooser { return func(*http.Request) Fault { return f } }

// TestProxy_Faults_OfWrites says for each kind what the client sees and what
// the server has afterwards.
func TestProxy_Faults_OfWrites(t *testing.T) {
	for _, serialise := range []bool{false, true} {
		for _, c := range []struct {
			fault   Fault
			fails   bool
			status  int
			applied bool
		}{
			{Fault{}, false, 200, true},
			{Fault{Kind: Status, Status: 503}, false, 503, false},
			{Fault{Kind: Reset}, true, 0, false},
			{Fault{Kind: HalfRequest}, true, 0, false},
			{Fault{Kind: LostReply}, true, 0, true},
			{Fault{Kind: DelayedBody, Delay: time.Millisecond}, false, 200, true},
		} {
			t.Run(c.fault.Kind.String(), func(t *testing.T) {
				p, s := start(t, Options{Serialise: serialise})
				p.Choose(always(c.fault))
				text, status, err := do(t, t.Context(), http.MethodPut, p.URL()+"/b/k", payload)
				if (err != nil) != c.fails || status != c.status {
					t.Errorf("the client sees %d %q, %v", status, text, err)
				}
				if status == 503 && !strings.Contains(text, "<Code>SlowDown</Code>") {
					t.Errorf("the refusal's body is %q", text)
				}
				if body, _ := s.body("/b/k"); (body == payload) != c.applied {
					t.Errorf("the server has %q", body)
				}
			})
		}
	}
}

func TestProxy_Faults_OfReads(t *testing.T) {
	for _, c := range []struct {
		kind  Kind
		fails bool
		want  func(string) bool
	}{
		{None, false, func(s string) bool { return s == payload }},
		{HalfReply, true, func(s string) bool { return s == payload[:len(payload)/2] }},
		{WrongReply, false, func(s string) bool { return len(s) == len(payload) && s != payload }},
		{LostReply, true, func(s string) bool { return s == "" }},
	} {
		t.Run(c.kind.String(), func(t *testing.T) {
			p, s := start(t, Options{})
			s.bodies["/b/k"] = payload
			p.Choose(always(Fault{Kind: c.kind}))
			text, _, err := do(t, t.Context(), http.MethodGet, p.URL()+"/b/k", "")
			if (err != nil) != c.fails || !c.want(text) {
				t.Errorf("the client reads %q, %v", text, err)
			}
		})
	}
}

func TestProxy_WrongRequest_ReachesTheServerChanged(t *testing.T) {
	p, s := start(t, Options{})
	p.Choose(always(Fault{Kind: WrongRequest}))
	if _, _, err := do(t, t.Context(), http.MethodPut, p.URL()+"/b/k", payload); err != nil {
		t.Fatal(err)
	}
	if body, _ := s.body("/b/k"); body == payload || len(body) != len(payload) {
		t.Errorf("the server has %q", body)
	}
}

func TestProxy_Hang_EndsWithTheClientOrTheProxy(t *testing.T) {
	p, s := start(t, Options{})
	p.Choose(always(Fault{Kind: Hang}))
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, _, err := do(t, ctx, http.MethodPut, p.URL()+"/b/k", payload); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the client sees %v", err)
	}
	hung := make(chan error, 1)
	go func() {
		_, _, err := do(t, context.Background(), http.MethodGet, p.URL()+"/b/k", "")
		hung <- err
	}()
	for p.Counts()[http.MethodGet].Faults == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-hung; err == nil {
		t.Error("a request that hung was answered by the proxy's end")
	}
	if _, puts := s.body(""); puts != 0 {
		t.Errorf("%d hung requests reached the server", puts)
	}
}

func TestProxy_Duplicate_ArrivesTwice(t *testing.T) {
	p, s := start(t, Options{Serialise: true})
	p.Choose(always(Fault{Kind: Duplicate, Delay: time.Millisecond}))
	if _, status, err := do(t, t.Context(), http.MethodPut, p.URL()+"/b/k", payload); err != nil || status != 200 {
		t.Fatal(status, err)
	}
	for {
		if _, puts := s.body("/b/k"); puts == 2 {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

func TestProxy_DelayedBody_HeaderComesFirst(t *testing.T) {
	p, s := start(t, Options{})
	p.Choose(always(Fault{Kind: DelayedBody, Delay: time.Hour}))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, _, err := do(t, ctx, http.MethodPut, p.URL()+"/b/k", payload)
		done <- err
	}()
	<-s.headerAt
	cancel()
	if err := <-done; err == nil {
		t.Error("it was answered though its body never went on")
	}
	if _, puts := s.body("/b/k"); puts != 0 {
		t.Error("a request without its body was applied")
	}
}

func TestProxy_Serialise_OneConditionalPutAtATime(t *testing.T) {
	for _, serialise := range []bool{false, true} {
		p, s := start(t, Options{Serialise: serialise})
		p.Choose(always(Fault{Kind: DelayedBody, Delay: 20 * time.Millisecond}))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if _, _, err := do(t, t.Context(), http.MethodPut, p.URL()+"/b/k", payload); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if most := s.most.Load(); serialise && most != 1 || !serialise && most < 2 {
			t.Errorf("serialise %v: %d conditional PUTs were at the server at once", serialise, most)
		}
		if n := len(p.keys.locks); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	}
}

func TestProxy_HostAndCounts(t *testing.T) {
	p, s := start(t, Options{})
	for range 3 {
		if _, _, err := do(t, t.Context(), http.MethodPut, p.URL()+"/b/k", payload); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := do(t, t.Context(), http.MethodGet, p.URL()+"/b/k", ""); err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimPrefix(p.URL(), "http://"); s.hosts[0] != want {
		t.Errorf("the server sees the host %q, the client named %q", s.hosts[0], want)
	}
	n := int64(len(payload))
	if c := p.Counts(); c[http.MethodPut] != (Count{Requests: 3, In: 3 * n}) || c[http.MethodGet] != (Count{Requests: 1, Out: n}) {
		t.Errorf("it counted %+v", c)
	}
}

// TestProxy_Bandwidth_IsShared makes sure that the limit binds all connections
// together: the second half of the bytes has to wait for tokens.
func TestProxy_Bandwidth_IsShared(t *testing.T) {
	const rate, each, connections = 2 << 20, 128 << 10, 4
	p, _ := start(t, Options{Upload: rate})
	began := time.Now()
	var wg sync.WaitGroup
	for range connections {
		wg.Go(func() {
			if _, _, err := do(t, t.Context(), http.MethodPut, p.URL()+"/b/k", strings.Repeat("x", each)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	// A token bucket never lets more pass than its rate and one burst: a lower
	// bound of the time, which no load of the machine can break.
	least := time.Duration(float64(connections*each-4*chunk) / rate * float64(time.Second))
	if took := time.Since(began); took < least {
		t.Errorf("%d bytes passed in %v; at %d bytes a second it takes %v", connections*each, took, rate, least)
	}
}

func TestRandom_SameSeedSameFaults(t *testing.T) {
	faults := []Fault{{Kind: Reset}, {Kind: LostReply}}
	a, b := Random(7, 3, faults...), Random(7, 3, faults...)
	hits := 0
	for range 300 {
		f := a(nil)
		if g := b(nil); f != g {
			t.Fatalf("%v and %v", f, g)
		}
		if f.Kind != None {
			hits++
		}
	}
	if hits < 50 || hits > 150 {
		t.Errorf("%d of 300 requests have a fault, about 100 are due", hits)
	}
}
