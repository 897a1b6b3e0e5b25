package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

// TestDecorate_Lease_PassesBulkTraffic fills the only upload and the bandwidth for
// minutes: the lease is renewed all the same.
func TestDecorate_Lease_PassesBulkTraffic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := requestOptions{uploads: 1, downloads: 1, bandwidth: objstore.BandwidthOptions{Upload: leastBandwidth, Download: leastBandwidth}}
		s, err := decorate(mem.New(), objstore.URL{Scheme: objstore.SchemeS3}, prometheus.NewRegistry(), o)
		if err != nil {
			t.Fatal(err)
		}
		put := func(key string, size int) {
			if _, err := s.Put(t.Context(), key, bytes.NewReader(make([]byte, size)), int64(size), objstore.Condition{}); err != nil {
				t.Errorf("put %s: %v", key, err)
			}
		}
		start := time.Now()
		var ended time.Duration
		done := make(chan struct{})
		go func() {
			defer close(done)
			put("objects/o", 10<<20)
			ended = time.Since(start)
		}()
		synctest.Wait()
		put(metadata.LeaseKey, 500)
		if _, _, err := objstore.ReadAll(t.Context(), s, metadata.LeaseKey, 1000); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took != 0 {
			t.Errorf("the lease waited for %v", took)
		}
		<-done
		if ended < 2*time.Minute {
			t.Errorf("the bulk took %v only", ended)
		}
	})
}

// TestDecorate_SlowRead_IsHedged: of a remote store, and not of a directory.
func TestDecorate_SlowRead_IsHedged(t *testing.T) {
	for scheme, want := range map[string]time.Duration{objstore.SchemeS3: 20 * time.Millisecond, objstore.SchemeFile: time.Second} {
		synctest.Test(t, func(t *testing.T) {
			f := faultstore.New(mem.New(), nil)
			s, err := decorate(f, objstore.URL{Scheme: scheme}, prometheus.NewRegistry(), requestOptions{uploads: 4, downloads: 4})
			if err != nil {
				t.Fatal(err)
			}
			if err := objstore.Create(t.Context(), s, "k", make([]byte, 100)); err != nil {
				t.Fatal(err)
			}
			read := func() time.Duration {
				start := time.Now()
				if err := objstore.ReadRange(t.Context(), s, "k", 10, make([]byte, 50)); err != nil {
					t.Error(err)
				}
				return time.Since(start)
			}
			f.SetHook(func(faultstore.Op, string, int) faultstore.Fault {
				return faultstore.Fault{Delay: 20 * time.Millisecond}
			})
			for range 20 {
				read()
			}
			slow := f.Calls()
			f.SetHook(func(_ faultstore.Op, _ string, n int) faultstore.Fault {
				if n == slow {
					return faultstore.Fault{Delay: time.Second}
				}
				return faultstore.Fault{}
			})
			if took := read(); took != want {
				t.Errorf("%s: a slow read took %v, want %v", scheme, took, want)
			}
		})
	}
}

func TestRequests_Settings(t *testing.T) {
	for _, c := range []struct {
		file, env string
		want      requestOptions
		err       string
	}{
		{"", "", requestOptions{uploads: 16, downloads: 32}, ""},
		{"max_concurrent_uploads = 3", "", requestOptions{uploads: 3, downloads: 32, engine: 3}, ""},
		{"max_concurrent_uploads = 21\nmax_concurrent_downloads = 40", "", requestOptions{uploads: 21, downloads: 40, engine: 40}, ""},
		{"max_concurrent_uploads = 3", "5", requestOptions{uploads: 5, downloads: 32, engine: 5}, ""},
		{"max_concurrent_downloads = 0", "", requestOptions{}, "must be a number from 1 to 1024"},
		{"max_concurrent_downloads = 1025", "", requestOptions{}, "must be a number from 1 to 1024"},
		{"request_timeout = 30", "", requestOptions{uploads: 16, downloads: 32, timeout: 30 * time.Second}, ""},
		{"request_timeout = 601", "", requestOptions{}, "c.ini: [ObjectStorage] request_timeout = \"601\": must be a number from 1 to 600"},
		{"max_concurrent_uploads = 3", "0", requestOptions{}, "CISTERN_OBJECTSTORAGE_MAX_CONCURRENT_UPLOADS, as [ObjectStorage] max_concurrent_uploads"},
		{"max_concurrent_loads = 7", "", requestOptions{}, "there is no such setting"},
	} {
		a := &app{config: &configFile{path: "c.ini", text: []byte("[ObjectStorage]\n" + c.file)}, lookup: func(name string) (string, bool) {
			return c.env, name == "CISTERN_OBJECTSTORAGE_MAX_CONCURRENT_UPLOADS" && c.env != ""
		}}
		got, err := a.requests()
		if c.err == "" && (err != nil || got != c.want) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || exitStatus(err) != exitUsage) {
			t.Errorf("%q, %q: %+v, %v", c.file, c.env, got, err)
		}
		// What reads the whole section says the same.
		sm, err := a.readStorageManager()
		if c.err == "" && (err != nil || sm.requests != c.want) || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err) || exitStatus(err) != exitUsage) {
			t.Errorf("%q, %q, whole: %+v, %v", c.file, c.env, sm, err)
		}
	}
}

// TestMount_RequestLimits_ReachTheStore mounts with limits and looks for them in
// the status.
func TestMount_RequestLimits_ReachTheStore(t *testing.T) {
	p, mnt := mountPlace(t)
	config := p.write("c.ini", []byte("[ObjectStorage]\nmax_concurrent_uploads = 3\nmax_concurrent_downloads = 7\n[mount]\nupload_limit = 10M\n"))
	pid := p.mount("--config", config, "--download-limit", "20M")
	s := decode[mountStatus](t, p.must("status", "--json", mnt))
	if u, d := s.Requests.Uploads, s.Requests.Downloads; u.Most != 3 || u.Limit != 3 || d.Most != 7 || d.Limit != 7 {
		t.Errorf("%+v", s.Requests)
	}
	if out := p.must("status", mnt); !strings.Contains(out, "of 3 uploads, ") || !strings.Contains(out, "of 7 downloads") {
		t.Errorf("status says\n%s", out)
	}
	p.must("sync", mnt)
	if status, _, errs := p.binary("umount", mnt); status != 0 {
		t.Errorf("umount: %d, %s", status, errs)
	}
	p.unmounted(pid)
}

func TestLimitText_SaysWhenItIsLowered(t *testing.T) {
	if got, want := limitText(&objstore.GateStatus{Limit: 4, Most: 16, Busy: 4, Waiting: 2}, "upload"), "4 of 4 uploads, 2 waiting (16 when the store does not ask for fewer)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestOpenMount_UnfitStore_Refused: a mount asks the store before it writes.
func TestOpenMount_UnfitStore_Refused(t *testing.T) {
	m := mem.New()
	if _, err := gateway.Format(t.Context(), gateway.FormatOptions{Store: m, URL: "file:///x"}); err != nil {
		t.Fatal(err)
	}
	before := keysOf(t, m)
	s, err := decorate(&anyCondition{m}, objstore.URL{Scheme: objstore.SchemeFile, Path: "/x"}, prometheus.NewRegistry(), requestOptions{uploads: 1, downloads: 1})
	if err != nil {
		t.Fatal(err)
	}
	o := newMountOptions()
	o.t, o.state = target{url: objstore.URL{Scheme: objstore.SchemeFile, Path: "/x"}}, t.TempDir()
	p := &mountProcess{a: &app{}, o: o, store: s, log: slog.New(slog.DiscardHandler)}
	_, err = p.open(t.Context())
	if exitStatus(err) != exitUsage || !strings.Contains(err.Error(), "file:///x can't be mounted") || !strings.Contains(err.Error(), "was accepted") {
		t.Errorf("open: %v", err)
	}
	if after := keysOf(t, m); !slices.Equal(after, before) {
		t.Errorf("there were %v, and now there are %v", before, after)
	}
}

func keysOf(t *testing.T, s objstore.Store) []string {
	t.Helper()
	var keys []string
	err := objstore.ListAll(t.Context(), s, "", "", func(i objstore.Info) error {
		keys = append(keys, i.Key+" "+string(i.Version))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// anyCondition is a store that ignores conditions.
type anyCondition struct{ *mem.Store }

func (s *anyCondition) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, _ objstore.Condition) (objstore.Version, error) {
	return s.Store.Put(ctx, key, body, size, objstore.Condition{})
}
