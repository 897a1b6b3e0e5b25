package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/faultproxy"
	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/gcs"
	"github.com/cisternfs/cistern/objstore/s3"
)

// badNetwork is every fault that a request may meet. A hang lasts until the
// client's own deadline.
func badNetwork() []faultproxy.Fault {
	return []faultproxy.Fault{
		{Kind: faultproxy.Status, Status: 500}, {Kind: faultproxy.Status, Status: 503}, {Kind: faultproxy.Status, Status: 429},
		{Kind: faultproxy.Reset}, {Kind: faultproxy.Hang}, {Kind: faultproxy.HalfRequest}, {Kind: faultproxy.HalfReply},
		{Kind: faultproxy.LostReply}, {Kind: faultproxy.WrongRequest}, {Kind: faultproxy.WrongReply},
		{Kind: faultproxy.Duplicate, Delay: 50 * time.Millisecond}, {Kind: faultproxy.DelayedBody, Delay: 10 * time.Millisecond},
	}
}

// remote is a real store server behind a bad network.
type remote struct {
	proxy *faultproxy.Proxy
	bare  objstore.Store // the whole bucket
	store objstore.Store // of a volume, with every decorator, as the command puts them
}

func newRemote(t *testing.T, kind storeserver.Kind) *remote {
	t.Helper()
	return remoteOf(t, testenv.StoreServer(t, kind))
}

func remoteOf(t *testing.T, server *storeserver.Server) *remote {
	t.Helper()
	proxy, err := faultproxy.Start(server.Endpoint, faultproxy.Options{Serialise: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Errorf("end the proxy: %v", err)
		}
	})
	var s objstore.Store
	if server.Kind == storeserver.FakeGCS {
		s, err = gcs.Open(t.Context(), gcs.Options{Bucket: server.Bucket, Endpoint: proxy.URL(), Anonymous: true})
	} else {
		s, err = s3.Open(t.Context(), s3.Options{
			Bucket: server.Bucket, Endpoint: proxy.URL(), Region: server.Region,
			AccessKeyID: server.AccessKey, SecretAccessKey: server.SecretKey,
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return &remote{proxy: proxy, bare: s, store: decorated(t, objstore.WithPrefix(s, "volume/"))}
}

// decorated has the decorators of the command around it; requests are given up
// sooner.
func decorated(t *testing.T, s objstore.Store) objstore.Store {
	t.Helper()
	reg := prometheus.NewRegistry()
	metered, err := objstore.WithMetrics(objstore.WithTimeout(s, objstore.TimeoutOptions{Base: 300 * time.Millisecond}), reg)
	if err != nil {
		t.Fatal(err)
	}
	limits, err := objstore.NewLimits(16, 32, reg)
	if err != nil {
		t.Fatal(err)
	}
	hedged, err := objstore.WithHedge(metered, objstore.HedgeOptions{Spare: limits.TrySpare}, reg)
	if err != nil {
		t.Fatal(err)
	}
	wide := objstore.BandwidthOptions{Upload: 1 << 30, Download: 1 << 30}
	return objstore.WithRetry(objstore.WithLimit(objstore.WithBandwidth(hedged, wide), limits), objstore.RetryOptions{})
}

// model is a volume's files as its one client knows them: all in the top
// directory.
type model map[string][]byte

func (m model) names() []string { return slices.Sorted(maps.Keys(m)) }

// engine is a volume on a remote store, and what must be in it.
type engine struct {
	*testing.T
	*remote
	rng   *rand.Rand
	seed  uint64
	state string // state directory
	v     *gateway.Volume
	model model
}

// faults turns the bad network on, at one request in every, or off with 0.
func (e *engine) faults(every int) {
	if every == 0 {
		e.proxy.Choose(nil)
		return
	}
	e.proxy.Choose(faultproxy.Random(e.rng.Uint64(), every, badNetwork()...))
}

// open mounts the volume; the faults may make it fail, but never for damage
// that is really there: without faults it succeeds.
func (e *engine) open(change func(*gateway.Options)) {
	e.Helper()
	o := gateway.Options{
		Store: e.store, URL: "test://volume", FS: vfs.OS(), StateDir: e.state,
		OpenKV:         func(string) (metadata.KV, error) { return metadata.NewMemKV(), nil },
		CommitInterval: 50 * time.Millisecond, CacheBytes: 4 << 20, JournalBytes: 64 << 20, ReferenceBytes: 8 << 10,
		LeaseDuration: 2 * time.Second, Owner: metadata.Owner{Host: "test", PID: 1, StateDir: e.state},
	}
	if change != nil {
		change(&o)
	}
	for try := 0; ; try++ {
		v, err := gateway.Open(e.Context(), o)
		if err == nil {
			e.v = v
			return
		}
		if try == 10 {
			e.Fatalf("seed %d: open without faults: %v", e.seed, err)
		}
		if try == 9 {
			e.faults(0)
		}
	}
}

// step does one random operation on the volume and the model. Writing needs no
// store, so none may fail.
func (e *engine) step() {
	e.Helper()
	ctx := e.Context()
	name := "f" + strconv.Itoa(e.rng.IntN(6))
	body, exists := e.model[name]
	must := func(err error) {
		e.Helper()
		if err != nil {
			e.Fatalf("seed %d: %s: %v", e.seed, name, err)
		}
	}
	switch op := e.rng.IntN(20); {
	case !exists:
		_, err := e.v.Create(ctx, metadata.RootInode, name, 0o100644, 0, gateway.Owner{}, nil)
		must(err)
		e.model[name] = []byte{}
	case op == 0:
		must(e.v.Unlink(ctx, metadata.RootInode, name))
		delete(e.model, name)
	case op == 1:
		to := "f" + strconv.Itoa(e.rng.IntN(6))
		must(e.v.Rename(ctx, metadata.RootInode, name, metadata.RootInode, to, 0))
		if to != name {
			e.model[to] = body
			delete(e.model, name)
		}
	case op == 2:
		n, err := e.v.Lookup(ctx, metadata.RootInode, name)
		must(err)
		size := int64(e.rng.IntN(200 << 10))
		_, err = e.v.SetAttr(ctx, n.ID, gateway.SetAttr{Size: &size})
		must(err)
		e.model[name] = append(body[:min(int64(len(body)), size):min(int64(len(body)), size)], make([]byte, max(0, size-int64(len(body))))...)
	case op < 5:
		n, err := e.v.Lookup(ctx, metadata.RootInode, name)
		must(err)
		must(e.v.Fsync(ctx, n.ID))
	default:
		e.write(name, body)
	}
}

func (e *engine) write(name string, body []byte) {
	e.Helper()
	n, err := e.v.Lookup(e.Context(), metadata.RootInode, name)
	if err != nil {
		e.Fatalf("seed %d: look up %s: %v", e.seed, name, err)
	}
	h, err := e.v.Open(e.Context(), n.ID)
	if err != nil {
		e.Fatalf("seed %d: open %s: %v", e.seed, name, err)
	}
	defer h.Close()
	off := e.rng.IntN(160 << 10)
	p := make([]byte, 1+e.rng.IntN(40<<10))
	fill := byte(e.rng.Uint32())
	for i := range p {
		p[i] = fill + byte(i/97)
	}
	if _, err := h.Write(e.Context(), p, int64(off), gateway.WriteFlags{}); err != nil {
		e.Fatalf("seed %d: write %s: %v", e.seed, name, err)
	}
	grown := slices.Clone(body)
	if need := off + len(p); need > len(grown) {
		grown = append(grown, make([]byte, need-len(grown))...)
	}
	copy(grown[off:], p)
	e.model[name] = grown
}

// compare reads every file. With faults a read may fail; it never returns a
// wrong byte.
func (e *engine) compare(faults bool) {
	e.Helper()
	seen := map[string]gateway.InodeID{}
	if err := e.v.ReadDir(e.Context(), metadata.RootInode, 0, func(d metadata.Dentry) bool { seen[d.Name] = d.Inode; return true }); err != nil {
		e.Fatalf("seed %d: list: %v", e.seed, err)
	}
	if names := slices.Sorted(maps.Keys(seen)); !slices.Equal(names, e.model.names()) {
		e.Fatalf("seed %d: the volume has %q, the model %q", e.seed, names, e.model.names())
	}
	for name, body := range e.model {
		h, err := e.v.Open(e.Context(), seen[name])
		if err != nil {
			e.Fatalf("seed %d: open %s: %v", e.seed, name, err)
		}
		p := make([]byte, len(body)+10)
		n, err := h.Read(e.Context(), p, 0)
		if err == nil && !bytes.Equal(p[:n], body) {
			e.Fatalf("seed %d: %s holds wrong bytes: %d where %d are due", e.seed, name, n, len(body))
		}
		if err != nil && !faults {
			e.Fatalf("seed %d: read %s: %v", e.seed, name, err)
		}
		if err := h.Close(); err != nil {
			e.Fatal(err)
		}
	}
}

// background makes the engine do its slow work while faults are on: it may
// fail, and what it left is judged later.
func (e *engine) background() {
	ctx, cancel := context.WithTimeout(e.Context(), 3*time.Second)
	defer cancel()
	var err error
	switch e.rng.IntN(4) {
	case 0:
		_, err = e.v.Commit(ctx)
	case 1:
		_, err = e.v.Fold(ctx, true)
	case 2:
		_, err = e.v.Collect(ctx, false)
	case 3:
		err = e.v.WriteManifest(ctx)
	}
	if errors.Is(err, gateway.ErrFenced) || e.v.Stopped() != nil {
		e.Fatalf("seed %d: the only writer was stopped: %v, %v", e.seed, err, e.v.Stopped())
	}
}

// settle ends the faults: everything drains, the check finds nothing, and the
// bucket alone shows the model.
func (e *engine) settle() {
	e.Helper()
	e.faults(0)
	if _, err := e.v.Sync(e.Context()); err != nil {
		e.Fatalf("seed %d: sync after the faults: %v", e.seed, err)
	}
	e.compare(false)
	var problems []string
	report, err := e.v.Check(e.Context(), gateway.CheckOptions{Data: true, Problem: func(p gateway.Problem) { problems = append(problems, fmt.Sprintf("%+v", p)) }})
	if err != nil || report.Problems != 0 {
		e.Fatalf("seed %d: check: %v, %q", e.seed, err, problems)
	}
	view, err := gateway.OpenView(e.Context(), gateway.ViewOptions{Store: e.store, URL: "test://volume", KV: metadata.NewMemKV()})
	if err != nil {
		e.Fatalf("seed %d: view of the bucket: %v", e.seed, err)
	}
	defer view.Close()
	for name, body := range e.model {
		n, err := view.Lookup(name)
		if err != nil {
			e.Fatalf("seed %d: the bucket lacks %s: %v", e.seed, name, err)
		}
		p := make([]byte, len(body)+10)
		if k, err := view.Read(e.Context(), n, p, 0); err != nil || !bytes.Equal(p[:k], body) {
			e.Fatalf("seed %d: the bucket's %s differs: %d bytes, %v", e.seed, name, k, err)
		}
	}
}

// turn ends one mount and begins the next: in good order, by a crash of the
// process, or by a take-over from another state directory.
func (e *engine) turn() {
	e.Helper()
	switch e.rng.IntN(3) {
	case 0:
		e.settle()
		if err := e.v.Close(e.Context()); err != nil {
			e.Fatalf("seed %d: close: %v", e.seed, err)
		}
		e.faults(6)
		e.open(nil)
	case 1:
		if err := e.v.Abandon(); err != nil {
			e.Fatalf("seed %d: crash: %v", e.seed, err)
		}
		e.open(nil)
	case 2:
		e.settle()
		old := e.v
		e.faults(6)
		e.state = filepath.Join(e.TempDir(), "other")
		e.open(func(o *gateway.Options) { o.Takeover = true })
		e.faults(0)
		_, err := old.Create(e.Context(), metadata.RootInode, "late", 0o100644, 0, gateway.Owner{}, nil)
		if err == nil {
			_, err = old.Sync(e.Context())
		}
		if !errors.Is(err, gateway.ErrFenced) && !errors.Is(err, gateway.ErrReadOnly) {
			e.Fatalf("seed %d: the replaced writer changes the volume and is told %v", e.seed, err)
		}
		if err = old.Abandon(); err != nil {
			e.Fatalf("seed %d: end the replaced writer: %v", e.seed, err)
		}
	}
}

// TestStores_Engine_RandomUnderFaults runs the engine against a model on real
// servers, while the network does to requests all that it can: commits,
// recovery, take-over and collection. Nothing acknowledged is lost, no wrong
// byte is read, and when the faults end everything drains.
func TestStores_Engine_RandomUnderFaults(t *testing.T) {
	testenv.Long(t)
	for _, kind := range []storeserver.Kind{storeserver.Versitygw, storeserver.FakeGCS} {
		t.Run(kind.String(), func(t *testing.T) {
			seed := seed(t)
			r := newRemote(t, kind)
			e := &engine{T: t, remote: r, rng: rand.New(rand.NewPCG(seed, 1)), seed: seed, state: filepath.Join(t.TempDir(), "state"), model: model{}}
			if _, err := gateway.Format(t.Context(), gateway.FormatOptions{Store: r.store, URL: "test://volume", ObjectSize: 64 << 10}); err != nil {
				t.Fatal(err)
			}
			e.open(nil)
			for until := time.Now().Add(soak(t, 15*time.Second)); time.Now().Before(until); {
				e.faults(3 + e.rng.IntN(8))
				for range 60 {
					e.step()
				}
				e.background()
				e.compare(true)
				e.turn()
			}
			e.settle()
			if n := r.proxy.Total(); n.Faults < 20 {
				t.Errorf("only %d of %d requests met a fault", n.Faults, n.Requests)
			} else {
				t.Logf("%d of %d requests met a fault", n.Faults, n.Requests)
			}
			if err := e.v.Close(t.Context()); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

// soak returns how long a test of random work goes on: SOAK_SECONDS or standard.
func soak(t *testing.T, standard time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv("SOAK_SECONDS")
	if text == "" {
		return standard
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("SOAK_SECONDS must be a number of at least 1, not %q", text)
	}
	return time.Duration(n) * time.Second
}
