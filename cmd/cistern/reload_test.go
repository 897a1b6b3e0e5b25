package main

import (
	"errors"
	"testing"

	"github.com/cisternfs/cistern/objstore"
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
