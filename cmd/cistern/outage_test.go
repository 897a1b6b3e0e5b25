package main

import (
	"cmp"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/faultproxy"
	"github.com/cisternfs/cistern/internal/testenv"
)

// way is the network between a mount and a store server. It can be cut, and
// mended at the same address.
type way struct {
	t    *testing.T
	addr string

	mu    sync.Mutex // guards the fields below
	ln    net.Listener
	to    string // address of the server; empty: nothing answers
	conns map[net.Conn]struct{}
	wg    sync.WaitGroup
}

func newWay(t *testing.T, to string) *way {
	t.Helper()
	w := &way{t: t, addr: "127.0.0.1:0", conns: map[net.Conn]struct{}{}}
	w.lead(to)
	w.addr = w.ln.Addr().String()
	t.Cleanup(func() { w.refuse(); w.wg.Wait() })
	return w
}

// lead makes connections end at an address; the empty one hangs.
func (w *way) lead(to string) {
	w.t.Helper()
	w.cut(to)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ln != nil {
		return
	}
	ln, err := net.Listen("tcp", w.addr)
	if err != nil {
		w.t.Fatal(err)
	}
	w.ln = ln
	w.wg.Go(func() { w.accept(ln) })
}

// refuse makes connections be refused.
func (w *way) refuse() {
	w.cut("")
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ln != nil {
		_ = w.ln.Close() // accept ends by it
		w.ln = nil
	}
}

// cut ends the connections that there are.
func (w *way) cut(to string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.to = to
	for c := range w.conns {
		_ = c.Close() // both ends notice
	}
}

func (w *way) accept(ln net.Listener) {
	for {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		w.wg.Go(func() { w.carry(c) })
	}
}

// carry serves one connection.
func (w *way) carry(c net.Conn) {
	w.mu.Lock()
	w.conns[c] = struct{}{}
	to := w.to
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.conns, c)
		w.mu.Unlock()
		_ = c.Close() // it may be closed
	}()
	if to == "" {
		_, _ = io.Copy(io.Discard, c) // until it is cut
		return
	}
	server, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer server.Close()
	w.wg.Go(func() {
		_, _ = io.Copy(c, server) // the end of either side ends both
		_ = c.Close()
	})
	_, _ = io.Copy(server, c)
}

// outage is one way in which a store goes away.
type outage struct {
	tls      bool
	begin    func(s *s3Server, w *way)
	end      func(s *s3Server, w *way, good string)
	want     string // what happened, in words
	status   int    // of a mount that meets it; 0: exitStore
	endpoint string // for a mount that meets it from the start; empty: the same
}

func lead(_ *s3Server, w *way, good string) { w.lead(good) }

func outages() map[string]outage {
	return map[string]outage{
		"DNS failure": {
			begin: func(s *s3Server, _ *way) { s.moved.Store(true) }, end: func(s *s3Server, _ *way, _ string) { s.moved.Store(false) },
			want: "lookup nowhere.invalid", endpoint: "http://nowhere.invalid",
		},
		"refused connection": {begin: func(_ *s3Server, w *way) { w.refuse() }, end: lead, want: "connection refused"},
		"hung connection":    {begin: func(_ *s3Server, w *way) { w.lead("") }, end: lead, want: "the store took too long"},
		"TLS to a plain port": {
			tls: true, begin: func(s *s3Server, w *way) { w.lead(strings.TrimPrefix(s.url, "http://")) }, end: lead,
			want: "server gave HTTP response to HTTPS client",
		},
		"expired credentials": {
			begin: func(s *s3Server, _ *way) { s.expired.Store(true) }, end: func(s *s3Server, _ *way, _ string) { s.expired.Store(false) },
			want: "have expired", status: exitUsage,
		},
	}
}

// awayPlace is a volume behind a way.
type awayPlace struct {
	*place
	srv  *s3Server
	way  *way
	good string // where the way leads to while all is well
	mnt  string
}

const awayURL = "s3://bucket/v"

// timeoutSetting is given to what meets a server that hangs: with the default of 10
// seconds a request, repeated, nearly all of a test would be waiting.
const timeoutSetting = "CISTERN_OBJECTSTORAGE_REQUEST_TIMEOUT"

func newAwayPlace(t *testing.T, o outage) *awayPlace {
	t.Helper()
	testenv.NeedFUSE(t)
	a := &awayPlace{place: newPlace(t), srv: newS3Server(t)}
	a.env[timeoutSetting] = "2"
	a.good = strings.TrimPrefix(a.srv.url, "http://")
	endpoint, more := "http://", []string{}
	if o.tls {
		secure := httptest.NewTLSServer(a.srv.handler)
		t.Cleanup(secure.Close)
		a.good, endpoint = strings.TrimPrefix(secure.URL, "https://"), "https://"
		ca := a.write("ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
		more = append(more, "ca_file = "+ca)
	}
	a.way = newWay(t, a.good)
	a.configure(endpoint+a.way.addr, more...)
	a.mnt = a.path("mnt")
	if err := os.Mkdir(a.mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	a.must("format", awayURL)
	return a
}

func (a *awayPlace) configure(endpoint string, more ...string) {
	plain := a.srv.url
	a.srv.url = endpoint
	a.env["CISTERN_CONFIG"] = a.srv.config(a.place, more...)
	a.srv.url = plain
}

func (a *awayPlace) mounted() {
	a.t.Helper()
	a.mustBinary("mount", awayURL, a.mnt, "--state", a.path("state"), "--commit-interval", "50ms")
	a.t.Cleanup(func() {
		if r, ok := (&app{lookup: os.LookupEnv}).findRecord(a.mnt); ok {
			a.kill(r.PID)
			if err := syscall.Unmount(a.mnt, syscall.MNT_DETACH); err != nil && !errors.Is(err, syscall.EINVAL) {
				a.t.Errorf("clean up: %v", err)
			}
		}
	})
}

// answers fails the test where f does not come back: the bound is far above what
// it takes, and only tells a hang.
func (a *awayPlace) answers(what string, f func()) {
	a.t.Helper()
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	select {
	case <-done:
	case <-time.After(3 * time.Minute):
		a.t.Fatalf("%s hangs", what)
	}
}

// TestS3_Outage_LiveMount takes the store away from a mount in every way that
// networks know: the mount says what happened, answers, takes writes, unmounts
// with what is left in its journal, and brings that to the bucket at last.
func TestS3_Outage_LiveMount(t *testing.T) {
	for name, o := range outages() {
		t.Run(name, func(t *testing.T) {
			a := newAwayPlace(t, o)
			a.mounted()
			before := random(200 << 10)
			file := filepath.Join(a.mnt, "before")
			if err := os.WriteFile(file, before, 0o644); err != nil {
				t.Fatal(err)
			}
			a.must("sync", a.mnt)
			f, err := os.Create(filepath.Join(a.mnt, "during"))
			if err != nil {
				t.Fatal(err)
			}
			o.begin(a.srv, a.way)
			during := random(300 << 10)
			a.answers("a write", func() {
				if _, err := f.Write(during); err != nil {
					t.Error(err)
				}
				if err := errors.Join(f.Sync(), f.Close()); err != nil {
					t.Errorf("fsync: %v", err)
				}
			})
			a.wantTold(o.want)
			a.answers("df", func() {
				var st syscall.Statfs_t
				if err := syscall.Statfs(a.mnt, &st); err != nil {
					t.Errorf("df: %v", err)
				}
			})
			a.answers("ls", func() {
				if list, err := os.ReadDir(a.mnt); err != nil || len(list) != 2 {
					t.Errorf("ls: %d names, %v", len(list), err)
				}
				if got := readFile(t, file); got != string(before) {
					t.Error("a file that is here reads otherwise")
				}
				a.must("ls", a.mnt)
			})
			a.answers("umount", func() { a.fails(exitStore, "changes are only in the local journal: 307200 bytes", "umount", a.mnt) })
			if m, ok, err := findMount(a.mnt); ok || err != nil {
				t.Fatalf("%v is still mounted, %v", m, err)
			}
			o.end(a.srv, a.way, a.good)
			a.mounted()
			a.must("sync", a.mnt)
			a.endMount(a.mnt)
			for name, want := range map[string][]byte{"before": before, "during": during} {
				if got := a.must("cat", awayURL, name); got != string(want) {
					first := 0
					for first < min(len(got), len(want)) && got[first] == want[first] {
						first++
					}
					t.Errorf("%s in the bucket has other bytes than were written: %d of %d bytes, and others from %d on: %.32x", name, len(got), len(want), first, got[first:])
				}
			}
		})
	}
}

// wantTold waits until status says what happened and how much it holds up.
func (a *awayPlace) wantTold(want string) {
	a.t.Helper()
	for try := 0; ; try++ {
		var s mountStatus
		a.answers("status", func() { s = decode[mountStatus](a.t, a.must("status", "--json", a.mnt)) })
		if !s.Healthy {
			a.t.Errorf("the mount takes no writes: %s", s.Unhealthy)
		}
		if strings.Contains(s.StoreError, want) && s.StoreSince != nil && s.DirtyBytes > 0 && s.DirtySeconds > 0 {
			break
		}
		if try == 3000 {
			a.t.Fatalf("status does not say %q: %+v", want, s)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if out := a.must("status", a.mnt); !strings.Contains(out, "the object store is away since") || !strings.Contains(out, want) {
		a.t.Errorf("status says\n%s", out)
	}
}

// TestS3_Outage_AtMount meets each outage when a volume is to be mounted: one
// sentence says what happened, nothing is mounted, and nothing changed.
func TestS3_Outage_AtMount(t *testing.T) {
	for name, o := range outages() {
		t.Run(name, func(t *testing.T) {
			a := newAwayPlace(t, o)
			if o.endpoint != "" {
				a.configure(o.endpoint)
			} else {
				o.begin(a.srv, a.way)
			}
			for _, args := range [][]string{{"mount", awayURL, a.mnt, "--state", a.path("state")}, {"status", awayURL}} {
				a.answers(args[0], func() {
					status, _, errs := a.binary(args...)
					checkFailure(t, args, cmp.Or(o.status, exitStore), o.want, status, errs)
					a.saidOnce(errs, "volume.json")
				})
			}
			if m, ok, err := findMount(a.mnt); ok || err != nil {
				t.Errorf("%v is mounted, %v", m, err)
			}
			if list, err := filepath.Glob(a.path("state", "journal", "*")); err != nil || len(list) != 0 {
				t.Errorf("a mount that failed left %v, %v", list, err)
			}
			a.configureGood(o)
			a.mounted()
			a.endMount(a.mnt)
		})
	}
}

// saidOnce: several layers know the object, the endpoint and how often it was tried, and
// one of them says it.
func (a *awayPlace) saidOnce(errs string, more ...string) {
	a.t.Helper()
	for _, word := range append(more, a.way.addr, "127.0.0.1", "gave up after") {
		if n := strings.Count(errs, word); n > 1 {
			a.t.Errorf("%q is said %d times: %s", word, n, errs)
		}
	}
}

// configureGood ends an outage that was there from the start.
func (a *awayPlace) configureGood(o outage) {
	if o.endpoint != "" {
		a.configure("http://" + a.way.addr)
		return
	}
	o.end(a.srv, a.way, a.good)
}

// faulty is a volume's configuration behind a proxy.
func faulty(t *testing.T) (*place, *s3Server, *faultproxy.Proxy) {
	t.Helper()
	p, srv := newPlace(t), newS3Server(t)
	proxy, err := faultproxy.Start(srv.url, faultproxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Errorf("end the proxy: %v", err)
		}
	})
	srv.url = proxy.URL()
	p.env["CISTERN_CONFIG"], p.env[timeoutSetting] = srv.config(p), "2"
	return p, srv, proxy
}

// firstTimes gives the first n requests of each method for each key a fault.
func firstTimes(n int, fault faultproxy.Fault) faultproxy.Chooser {
	var mu sync.Mutex // guards seen
	seen := map[string]int{}
	return func(r *http.Request) faultproxy.Fault {
		if fault.Kind == faultproxy.WrongReply && (r.Method != http.MethodGet || r.URL.Query().Has("list-type")) {
			return faultproxy.Fault{} // bodies of objects are what a reply can damage unseen
		}
		mu.Lock()
		defer mu.Unlock()
		id := r.Method + " " + r.URL.Path
		seen[id]++
		if seen[id] > n {
			return faultproxy.Fault{}
		}
		return fault
	}
}

// TestS3_Faults_FewTimes_Succeed is Storage Manager's case 14, what passes: every
// request fails twice in each way, and all is right in the end.
func TestS3_Faults_FewTimes_Succeed(t *testing.T) {
	for _, fault := range []faultproxy.Fault{
		{Kind: faultproxy.Status, Status: 500}, {Kind: faultproxy.Status, Status: 503}, {Kind: faultproxy.Status, Status: 429},
		{Kind: faultproxy.Reset}, {Kind: faultproxy.HalfRequest}, {Kind: faultproxy.HalfReply}, {Kind: faultproxy.LostReply},
		{Kind: faultproxy.WrongRequest}, {Kind: faultproxy.WrongReply},
	} {
		t.Run(fmt.Sprintf("%v %d", fault.Kind, fault.Status), func(t *testing.T) {
			p, _, proxy := faulty(t)
			p.must("format", awayURL, "--object-size", "1M")
			body := random(2<<20 + 12345)
			local := p.write("local", body)
			proxy.Choose(firstTimes(2, fault))
			p.must("put", awayURL, local, "file")
			proxy.Choose(firstTimes(2, fault))
			if got := p.must("cat", awayURL, "file"); got != string(body) {
				t.Error("other bytes than were put")
			}
			if n := proxy.Total(); n.Faults < 4 {
				t.Errorf("only %d of %d requests met the fault", n.Faults, n.Requests)
			}
			proxy.Choose(nil)
			p.must("check", "--data", awayURL)
		})
	}
}

// TestS3_Faults_ForGood_AreNamed is case 14's rest: what does not pass is told
// in one sentence, and ends.
func TestS3_Faults_ForGood_AreNamed(t *testing.T) {
	for name, c := range map[string]struct {
		fault  faultproxy.Fault
		status int
		want   string
	}{
		"403":         {faultproxy.Fault{Kind: faultproxy.Status, Status: 403, Code: "AccessDenied"}, exitUsage, "the credentials must be allowed s3:GetObject"},
		"301":         {faultproxy.Fault{Kind: faultproxy.Status, Status: 301, Code: "PermanentRedirect"}, exitUsage, "bucket bucket is in another region"},
		"no bucket":   {faultproxy.Fault{Kind: faultproxy.Status, Status: 404, Code: "NoSuchBucket"}, exitUsage, "bucket does not exist"},
		"500":         {faultproxy.Fault{Kind: faultproxy.Status, Status: 500}, exitStore, "gave up after"},
		"hung server": {faultproxy.Fault{Kind: faultproxy.Hang}, exitStore, "the store took too long"},
	} {
		t.Run(name, func(t *testing.T) {
			p, _, proxy := faulty(t)
			p.must("format", awayURL)
			proxy.Choose(func(*http.Request) faultproxy.Fault { return c.fault })
			p.fails(c.status, c.want, "ls", awayURL)
			proxy.Choose(nil)
			p.must("ls", awayURL)
		})
	}
}

// TestS3_Outage_UnderLoad_DrainsWithoutRestart is Storage Manager's case 15 on a
// real mount: writers go on through an outage on descriptors that they keep,
// status tells how much waits and for how long, and all of it gets to the bucket
// when the way is back.
func TestS3_Outage_UnderLoad_DrainsWithoutRestart(t *testing.T) {
	const writers, blocks, block = 4, 60, 20 << 10
	a := newAwayPlace(t, outage{})
	a.mounted()
	var want [writers][]byte
	var wg sync.WaitGroup
	half, back := make(chan struct{}, writers), make(chan struct{})
	for i := range writers {
		want[i] = random(blocks * block)
		wg.Go(func() {
			f, err := os.Create(filepath.Join(a.mnt, fmt.Sprint(i)))
			if err != nil {
				t.Error(err)
				half <- struct{}{}
				return
			}
			for b := range blocks {
				if b == blocks/3 {
					half <- struct{}{}
				}
				if b == blocks*2/3 {
					<-back
				}
				if _, err := f.Write(want[i][b*block : (b+1)*block]); err != nil {
					t.Errorf("writer %d: %v", i, err)
				}
				if err := f.Sync(); err != nil {
					t.Errorf("writer %d: fsync: %v", i, err)
				}
				if b == blocks/3 {
					a.way.refuse()
				}
			}
			if err := f.Close(); err != nil {
				t.Errorf("writer %d: close: %v", i, err)
			}
		})
	}
	for range writers {
		<-half
	}
	a.wantTold("connection refused")
	first := decode[mountStatus](t, a.must("status", "--json", a.mnt)).DirtySeconds
	for decode[mountStatus](t, a.must("status", "--json", a.mnt)).DirtySeconds <= first {
		time.Sleep(20 * time.Millisecond)
	}
	a.way.lead(a.good)
	close(back)
	wg.Wait()
	a.must("sync", a.mnt)
	if s := decode[mountStatus](t, a.must("status", "--json", a.mnt)); s.StoreError != "" {
		t.Errorf("status still says %q", s.StoreError)
	}
	a.endMount(a.mnt)
	for i := range want {
		if got := a.must("cat", awayURL, fmt.Sprint(i)); got != string(want[i]) {
			t.Errorf("file %d has other bytes in the bucket than were written", i)
		}
	}
}

// TestS3_Probe_ManyAtOnce is Storage Manager's case 22: nodes that look at the
// store at the same time do not disturb each other, and leave nothing.
func TestS3_Probe_ManyAtOnce(t *testing.T) {
	p := newPlace(t)
	srv := newS3Server(t)
	p.env["CISTERN_CONFIG"] = srv.config(p)
	p.must("format", awayURL)
	before := srv.keys(t)
	var wg sync.WaitGroup
	for range 5 {
		wg.Go(func() {
			node := &place{t: t, dir: p.dir, env: p.env}
			if status, out, errs := node.run("probe", "--short", awayURL); status != exitDone {
				t.Errorf("status %d: %s%s", status, out, errs)
			}
		})
	}
	wg.Wait()
	if after := srv.keys(t); after != before {
		t.Errorf("left in the bucket: %s; before: %s", after, before)
	}
}
