package gcs_test

import (
	"crypto/rand"
	"net/http"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cisternfs/cistern/internal/faultproxy"
	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/gcs"
	"github.com/cisternfs/cistern/objstore/objstoretest"
)

// fresh is an empty prefix of a bucket.
func fresh(s objstore.Store) objstore.Store {
	return objstore.WithPrefix(s, "t/"+rand.Text()+"/")
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

// TestServers_Conformance runs the suite on fake-gcs-server behind a proxy that
// passes everything on.
func TestServers_Conformance(t *testing.T) {
	testenv.Long(t)
	server := testenv.StoreServer(t, storeserver.FakeGCS)
	proxy, err := faultproxy.Start(server.Endpoint, faultproxy.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := proxy.Close(); err != nil {
			t.Errorf("end the proxy: %v", err)
		}
	})
	bare, err := gcs.Open(t.Context(), gcs.Options{Bucket: server.Bucket, Endpoint: proxy.URL(), Anonymous: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("bare", func(t *testing.T) {
		objstoretest.Run(t, func(*testing.T) objstore.Store { return fresh(bare) })
	})
	t.Run("decorated", func(t *testing.T) {
		objstoretest.Run(t, func(t *testing.T) objstore.Store { return decorated(t, fresh(bare)) })
	})
	t.Run("probe with late bodies", func(t *testing.T) {
		proxy.Choose(func(r *http.Request) faultproxy.Fault {
			if r.Method != http.MethodPost {
				return faultproxy.Fault{}
			}
			return faultproxy.Fault{Kind: faultproxy.DelayedBody, Delay: 20 * time.Millisecond}
		})
		if err := objstore.Probe(t.Context(), fresh(bare)); err != nil {
			t.Error(err)
		}
	})
}
