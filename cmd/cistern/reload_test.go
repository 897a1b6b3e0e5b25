package main

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

// resized is a cache that takes sizes, or refuses them.
type resized struct {
	err error
	is  int64
}

func (c *resized) SetCacheBytes(n int64) error {
	if c.err == nil {
		c.is = n
	}
	return c.err
}

// Whatever a reload can't set, nothing of it counts.
func TestMountProcess_Apply_AllOrNothing(t *testing.T) {
	refused := errors.New("refused")
	for _, c := range []struct {
		name      string
		cache     error
		downloads int
		applied   bool
	}{
		{"all", nil, 30, true},
		{"the cache refuses", refused, 30, false},
		{"the limits refuse", nil, 0, false},
	} {
		limits, err := objstore.NewLimits(3, 4, nil)
		if err != nil {
			t.Fatal(err)
		}
		m := &mountProcess{log: quietLogger(), store: &store{limits: limits, speed: objstore.NewBandwidth(objstore.BandwidthOptions{})}}
		cache := &resized{c.cache, 100}
		err = m.apply(cache, &tunables{cache: 200, uploads: 20, downloads: c.downloads})
		s := limits.Status()
		if c.applied && (err != nil || cache.is != 200 || s.Uploads.Most != 20 || s.Downloads.Most != 30) {
			t.Errorf("%s: %v, %d, %+v", c.name, err, cache.is, s)
		}
		if !c.applied && (err == nil || c.cache != nil && !errors.Is(err, refused) || cache.is != 100 || s.Uploads.Most != 3 || s.Downloads.Most != 4) {
			t.Errorf("%s: %v, %d, %+v", c.name, err, cache.is, s)
		}
	}
}

// A new bandwidth is that of every request from then on, also of one that is under
// way.
func TestMountProcess_Apply_BandwidthOfTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 1 << 20
		s, err := decorate(mem.New(), objstore.URL{Scheme: objstore.SchemeS3}, prometheus.NewRegistry(), defaultRequests())
		if err != nil {
			t.Fatal(err)
		}
		m := &mountProcess{log: quietLogger(), store: s}
		body := bytes.Repeat([]byte("x"), size)
		set := func(up, down int64) {
			t.Helper()
			to := &tunables{cache: 1, uploads: 4, downloads: 4, bandwidth: objstore.BandwidthOptions{Upload: up, Download: down}}
			if err := m.apply(&resized{}, to); err != nil {
				t.Fatal(err)
			}
		}
		put := func() {
			if _, err := s.Put(context.Background(), "k", bytes.NewReader(body), size, objstore.Condition{}); err != nil {
				t.Error(err)
			}
		}
		get := func() {
			if got, _, err := objstore.ReadAll(context.Background(), s, "k", size); err != nil || !bytes.Equal(got, body) {
				t.Errorf("%d bytes, %v", len(got), err)
			}
		}
		took := func(do func()) time.Duration {
			begun := time.Now()
			do()
			return time.Since(begun).Round(100 * time.Millisecond)
		}
		// A tenth of a second's bytes may go at once.
		for _, c := range []struct {
			up, down         int64
			putTime, getTime time.Duration
		}{
			{0, 0, 0, 0},
			{size / 4, size / 2, 3900 * time.Millisecond, 1900 * time.Millisecond},
			{size, size / 8, 900 * time.Millisecond, 7900 * time.Millisecond},
			{0, 0, 0, 0},
		} {
			set(c.up, c.down)
			if p, g := took(put), took(get); p != c.putTime || g != c.getTime {
				t.Errorf("limits of %d and %d bytes a second: %d bytes went up in %v and down in %v, want %v and %v", c.up, c.down, size, p, g, c.putTime, c.getTime)
			}
		}
		set(0, size/100)
		time.AfterFunc(10*time.Second, func() { set(0, size) })
		if d := took(get); d < 10*time.Second || d > 12*time.Second {
			t.Errorf("a read under way when its limit was raised after 10 s took %v, of 100 s at the old one", d)
		}
	})
}
