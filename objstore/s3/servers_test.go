package s3_test

import (
	"crypto/rand"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cisternfs/cistern/internal/faultproxy"
	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/objstoretest"
	"github.com/cisternfs/cistern/objstore/s3"
)

// behind starts a proxy in front of a server.
func behind(t *testing.T, endpoint string, o faultproxy.Options) *faultproxy.Proxy {
	t.Helper()
	p, err := faultproxy.Start(endpoint, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Errorf("end the proxy: %v", err)
		}
	})
	return p
}

// bucketAt opens the server's bucket by way of endpoint.
func bucketAt(t *testing.T, server *storeserver.Server, endpoint string) *s3.Store {
	t.Helper()
	s, err := s3.Open(t.Context(), s3.Options{
		Bucket: server.Bucket, Endpoint: endpoint, Region: server.Region,
		AccessKeyID: server.AccessKey, SecretAccessKey: server.SecretKey,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fresh is an empty prefix of the bucket.
func fresh(s objstore.Store) objstore.Store {
	return objstore.WithPrefix(s, "t/"+strings.ToLower(rand.Text())+"/")
}

// decorated has every decorator around it, as the command puts them.
func decorated(t *testing.T, s objstore.Store) objstore.Store {
	t.Helper()
	reg := prometheus.NewRegistry()
	metered, err := objstore.WithMetrics(objstore.WithTimeout(s, objstore.TimeoutOptions{}), reg)
	if err != nil {
		t.Fatal(err)
	}
	limits, err := objstore.NewLimits(8, 8, reg)
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

// TestServers_Conformance runs the suite on real servers. versitygw stands
// behind a proxy that serialises conditional PUTs.
func TestServers_Conformance(t *testing.T) {
	testenv.Long(t)
	for kind, limits := range map[storeserver.Kind]objstoretest.Limits{
		storeserver.Versitygw: {Tree: true},
		storeserver.Rclone:    {Tree: true, TornOverwrites: true, UnclearRaces: true},
	} {
		t.Run(kind.String(), func(t *testing.T) {
			server := testenv.StoreServer(t, kind)
			proxy := behind(t, server.Endpoint, faultproxy.Options{Serialise: kind == storeserver.Versitygw})
			bare := bucketAt(t, server, proxy.URL())
			t.Run("bare", func(t *testing.T) {
				objstoretest.RunWithin(t, limits, func(*testing.T) objstore.Store { return fresh(bare) })
			})
			t.Run("decorated", func(t *testing.T) {
				objstoretest.RunWithin(t, limits, func(t *testing.T) objstore.Store { return decorated(t, fresh(bare)) })
			})
			t.Run("probe", func(t *testing.T) {
				if err := objstore.Probe(t.Context(), fresh(bare)); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// delayBodies makes the server wait for the body of each PUT after its header.
func delayBodies(p *faultproxy.Proxy) {
	p.Choose(func(r *http.Request) faultproxy.Fault {
		if r.Method != http.MethodPut {
			return faultproxy.Fault{}
		}
		return faultproxy.Fault{Kind: faultproxy.DelayedBody, Delay: 20 * time.Millisecond}
	})
}

// TestServers_Probe_ConditionJudgedBeforeTheBody is the mistake of a gateway
// that looks whether a key exists before it has the body: several creators win,
// and the store must be refused, whether the body comes late or not.
func TestServers_Probe_ConditionJudgedBeforeTheBody(t *testing.T) {
	for _, late := range []bool{false, true} {
		proxy := behind(t, fake(t).Endpoint, faultproxy.Options{JudgeFirst: true})
		if late {
			delayBodies(proxy)
		}
		err := objstore.Probe(t.Context(), open(t, at(proxy.URL())))
		if !errors.Is(err, objstore.ErrGuarantee) {
			t.Errorf("bodies late %v: the probe says %v, a missing guarantee is due", late, err)
		}
	}
}

// TestServers_Probe_LateBodies delays bodies between the condition and the
// write. versitygw 1.8.0 judges the condition a second time when it has the
// body, so it passes by itself too; behind a proxy that serialises conditional
// PUTs any version must.
func TestServers_Probe_LateBodies(t *testing.T) {
	testenv.Long(t)
	for _, c := range []struct {
		kind      storeserver.Kind
		serialise bool
	}{{storeserver.Versitygw, false}, {storeserver.Versitygw, true}, {storeserver.Rclone, false}} {
		server := testenv.StoreServer(t, c.kind)
		proxy := behind(t, server.Endpoint, faultproxy.Options{Serialise: c.serialise})
		delayBodies(proxy)
		if err := objstore.Probe(t.Context(), fresh(bucketAt(t, server, proxy.URL()))); err != nil {
			t.Errorf("%v, serialised %v: %v", c.kind, c.serialise, err)
		}
		if n := proxy.Counts()[http.MethodPut].Faults; n < 64 {
			t.Errorf("%v: only %d PUTs were delayed", c.kind, n)
		}
	}
}
