package gateway

import (
	"context"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// storeClock is what a writer knows of the store's clock, by which alone it judges
// how long something is dead: owners may follow each other whose own clocks are
// hours apart.
type storeClock struct {
	mu   sync.Mutex // guards the fields below
	time time.Time  // at most this was it when the request was sent that wrote the lease
	sent time.Time  // by this machine's monotonic clock
}

// clockGrain is how coarsely stores tell times: HTTP's headers have seconds.
const clockGrain = time.Second

// saw notes that a request sent at that time wrote what the store calls modified then.
func (c *storeClock) saw(modified, sent time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !modified.IsZero() {
		c.time, c.sent = modified.Add(clockGrain), sent
	}
}

// latest is the store's time, in Unix nanoseconds, or a little later: what dies now
// must not look older than it is.
func (c *storeClock) latest() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.time.IsZero() {
		return math.MaxInt64 // a store that tells no times: nothing is ever old enough
	}
	return c.time.Add(time.Since(c.sent)).UnixNano()
}

// storeTime is what the store says about the lease: its Modified is the store's time
// as of the last renewal.
func storeTime(ctx context.Context, s objstore.Store) (objstore.Info, error) {
	i, err := s.Head(ctx, metadata.LeaseKey)
	if err != nil {
		return i, storeErrorAt("look at", metadata.LeaseKey, err)
	}
	if i.Modified.IsZero() {
		return i, fmt.Errorf("%w: %s tells no time of its last change, without which nothing may be deleted", ErrStore, metadata.LeaseKey)
	}
	return i, nil
}

// storeTime is the store's time as of the lease's last renewal. What it costs to
// ask also keeps this writer's idea of that clock.
func (v *Volume) storeTime(ctx context.Context) (int64, error) {
	i, err := storeTime(ctx, v.store)
	if err != nil {
		return 0, err
	}
	v.noteStoreTime(i)
	return i.Modified.UnixNano(), nil
}

// noteStoreTime takes what the store says about the lease, if it is as this mount
// wrote it last.
func (v *Volume) noteStoreTime(i objstore.Info) {
	v.lease.mu.Lock()
	version, sent := v.lease.version, v.lease.renewed
	v.lease.mu.Unlock()
	if i.Version == version {
		v.clocks.saw(i.Modified, sent)
	}
}
