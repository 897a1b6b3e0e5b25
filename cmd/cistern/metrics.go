package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/cisternfs/cistern/gateway"
)

// unhealthy says why a mount can't take writes, or can't bring them to the bucket;
// empty when it can. A bucket that is away is no reason: writes go on locally, and it
// gets them when it is back.
func unhealthy(s *gateway.Status) string {
	switch {
	case s.ReadOnly != "":
		return "read-only: " + s.ReadOnly
	case s.Stuck() != "":
		return "nothing can be committed: " + s.Stuck()
	}
	return ""
}

// serveMetrics serves /metrics and /healthz on l and returns what ends that.
func (m *mountProcess) serveMetrics(l net.Listener, reg *prometheus.Registry) (func() error, error) {
	all := []prometheus.Collector{
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), newStatusCollector(m.v.Status),
	}
	if m.relay != nil {
		all = append(all, newRelayCollector(m.relay.status))
	}
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register metrics: %w", err)
		}
	}
	log := slog.NewLogLogger(m.log.Handler(), slog.LevelWarn)
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(reg, promhttp.HandlerOpts{ErrorLog: log, Registry: reg}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		s := m.status()
		answer := "ok\n"
		switch {
		case !s.Healthy:
			w.WriteHeader(http.StatusServiceUnavailable)
			answer = s.Unhealthy + "\n"
		case !s.StoreAvailable || s.StoreError != "":
			answer = "ok; the object store is away: " + s.StoreError + "\n"
		}
		// Who asked may be gone.
		_, _ = io.WriteString(w, answer)
	})
	// Where the time goes, for whoever asks why: only on the address that was given.
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	s := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, WriteTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10, ErrorLog: log}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	return func() error {
		ctx, cancel := context.WithTimeout(context.Background(), metricsGrace)
		defer cancel()
		err := s.Shutdown(ctx)
		if err != nil {
			err = s.Close()
		}
		if serr := <-done; !errors.Is(serr, http.ErrServerClosed) {
			err = errors.Join(err, serr)
		}
		return err
	}, nil
}

// metric is one number of a status.
type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(s *gateway.Status) float64
}

// statusCollector shows a status as metrics, as of the moment when it is asked.
type statusCollector struct {
	status  func() gateway.Status
	metrics []metric
	info    *prometheus.Desc
}

func newStatusCollector(status func() gateway.Status) *statusCollector {
	c := &statusCollector{
		status: status,
		info:   prometheus.NewDesc("cistern_volume_info", "The volume that is mounted; always 1.", []string{"volume", "url", "durability"}, nil),
	}
	add := func(kind prometheus.ValueType, name, help string, value func(s *gateway.Status) float64) {
		c.metrics = append(c.metrics, metric{prometheus.NewDesc("cistern_"+name, help, nil, nil), kind, value})
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	flag := func(on bool) float64 {
		if on {
			return 1
		}
		return 0
	}
	add(gauge, "read_only", "1 when the volume takes no writes.", func(s *gateway.Status) float64 { return flag(s.ReadOnly != "") })
	add(gauge, "epoch", "The mount's epoch.", func(s *gateway.Status) float64 { return float64(s.Epoch) })
	add(gauge, "commit_number", "Number of the last commit.", func(s *gateway.Status) float64 { return float64(s.Commit.N) })
	add(gauge, "commit_timestamp_seconds", "When the last commit was made.", func(s *gateway.Status) float64 { return float64(s.CommitTime.UnixNano()) / 1e9 })
	add(gauge, "dirty_bytes", "Bytes that are not in the bucket yet.", func(s *gateway.Status) float64 { return float64(s.DirtyBytes) })
	add(gauge, "dirty_seconds", "Age of the oldest change that is not in the bucket yet.", func(s *gateway.Status) float64 { return s.DirtySeconds })
	add(gauge, "inodes", "Inodes of the volume.", func(s *gateway.Status) float64 { return float64(s.Inodes) })
	add(gauge, "used_bytes", "Bytes of the volume that are data.", func(s *gateway.Status) float64 { return float64(s.UsedBytes) })
	add(gauge, "quota_bytes", "The volume's quota; 0 means none.", func(s *gateway.Status) float64 { return float64(s.QuotaBytes) })
	add(gauge, "reference_bytes", "Uncommitted bytes that are only in the cache files.", func(s *gateway.Status) float64 { return float64(s.ReferenceBytes) })
	add(gauge, "uncommitted_memory_bytes", "Memory of uncommitted changes.", func(s *gateway.Status) float64 { return float64(s.MemoryBytes) })
	add(gauge, "open_inodes", "Inodes that the kernel or a command holds.", func(s *gateway.Status) float64 { return float64(s.OpenInodes) })
	add(gauge, "journal_live_bytes", "Journal bytes that are not free yet.", func(s *gateway.Status) float64 { return float64(s.Journal.Live) })
	add(gauge, "journal_limit_bytes", "Limit of the journal.", func(s *gateway.Status) float64 { return float64(s.Journal.Limit) })
	add(gauge, "journal_unsynced_bytes", "Journal bytes that are not durable yet.", func(s *gateway.Status) float64 { return float64(s.Journal.Unsynced) })
	add(gauge, "journal_broken", "1 when the journal can't be written.", func(s *gateway.Status) float64 { return flag(s.Journal.Error != "") })
	add(counter, "journal_syncs_total", "Syncs of the journal.", func(s *gateway.Status) float64 { return float64(s.Journal.Syncs) })
	add(gauge, "cache_limit_bytes", "Limit of the cache.", func(s *gateway.Status) float64 { return float64(s.Cache.Limit) })
	add(gauge, "cache_allocated_bytes", "Bytes that cache files take.", func(s *gateway.Status) float64 { return float64(s.Cache.Allocated) })
	add(gauge, "cache_pinned_bytes", "Bytes of the cache that must not be evicted.", func(s *gateway.Status) float64 { return float64(s.Cache.Pinned) })
	add(counter, "cache_hits_total", "Reads that the cache answered.", func(s *gateway.Status) float64 { return float64(s.Cache.Hits) })
	add(counter, "cache_misses_total", "Reads that it did not.", func(s *gateway.Status) float64 { return float64(s.Cache.Misses) })
	add(counter, "cache_evictions_total", "Evictions.", func(s *gateway.Status) float64 { return float64(s.Cache.Evictions) })
	add(counter, "cache_errors_total", "Cache writes that failed; the journal has the bytes.", func(s *gateway.Status) float64 { return float64(s.CacheErrors) })
	add(counter, "written_bytes_total", "Bytes that were written.", func(s *gateway.Status) float64 { return float64(s.Written) })
	add(counter, "uploaded_bytes_total", "Bytes that were stored in the bucket.", func(s *gateway.Status) float64 { return float64(s.Uploaded) })
	add(counter, "fetched_bytes_total", "Bytes of data that were read from the bucket.", func(s *gateway.Status) float64 { return float64(s.Fetched) })
	add(counter, "commits_total", "Commits.", func(s *gateway.Status) float64 { return float64(s.Commits) })
	add(gauge, "commits_stuck", "1 while nothing can be committed for a reason that is not the object store.", func(s *gateway.Status) float64 { return flag(s.Stuck() != "") })
	add(counter, "folds_total", "Slots folded.", func(s *gateway.Status) float64 { return float64(s.Folds) })
	add(counter, "collected_total", "Dead things deleted from the bucket.", func(s *gateway.Status) float64 { return float64(s.Collected) })
	add(counter, "throttled_total", "Times that a writer waited for a commit.", func(s *gateway.Status) float64 { return float64(s.Throttled) })
	add(counter, "damage_total", "Checksum mismatches and missing objects seen.", func(s *gateway.Status) float64 { return float64(s.Damage) })
	add(gauge, "store_failing", "1 while requests to the object store fail.", func(s *gateway.Status) float64 { return flag(s.StoreError != "") })
	add(gauge, "lease_age_seconds", "Time since the lease was renewed.", func(s *gateway.Status) float64 { return s.LeaseRenewed })
	add(gauge, "follow_lag_seconds", "Time since what a following mount shows was known to be the last commit; 0 for other mounts.", func(s *gateway.Status) float64 {
		if s.Follow == nil {
			return 0
		}
		return s.Follow.LagSeconds
	})
	add(gauge, "follow_lag_commits", "Commits that a following mount is known to be behind.", func(s *gateway.Status) float64 {
		if s.Follow == nil {
			return 0
		}
		return float64(s.Follow.LagCommits)
	})
	add(gauge, "follow_failing", "1 while a following mount can't look for the next commit.", func(s *gateway.Status) float64 {
		return flag(s.Follow != nil && s.Follow.Error != "")
	})
	add(gauge, "patched_slots", "Slots that have patches.", func(s *gateway.Status) float64 { return float64(s.PatchedSlots) })
	add(gauge, "patches", "Patches that are not folded.", func(s *gateway.Status) float64 { return float64(s.Patches) })
	return c
}

// Describe implements prometheus.Collector.
func (c *statusCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.info
	for _, m := range c.metrics {
		ch <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *statusCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.status()
	ch <- prometheus.MustNewConstMetric(c.info, prometheus.GaugeValue, 1, s.Volume, s.URL, s.Durability)
	for _, m := range c.metrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&s))
	}
}
