package gateway

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// mover is the part of a follower that its view's reads need.
type mover struct {
	again func(ctx context.Context) error // waits for a look at the path

	mu     sync.Mutex // guards the fields below; never held during I/O
	state  uint64     // counts moves
	calls  map[*readCall]struct{}
	closed bool
}

// readCall is a read under way.
type readCall struct {
	ino     InodeID
	state   uint64 // before it was planned
	cancel  context.CancelFunc
	givenUp bool
}

// errGivenUp: the file changed while the store let a read of it wait.
var errGivenUp = errors.New("the file has changed meanwhile, and the store did not answer in time")

func newMover(again func(context.Context) error) *mover {
	return &mover{again: again, calls: map[*readCall]struct{}{}}
}

// read reads a file as it is now. What is missing in the bucket may have been
// collected since the commit that is shown: a look at the path settles it.
func (m *mover) read(ctx context.Context, v *View, ino InodeID, p []byte, off int64) (int, error) {
	for try := 1; ; try++ {
		n, err := m.once(ctx, v, ino, p, off)
		missing := errors.Is(err, objstore.ErrNotExist)
		if missing && try == 1 && m.again(ctx) == nil {
			continue
		}
		if missing {
			v.stats.damage.Add(1)
		}
		return n, err
	}
}

func (m *mover) once(ctx context.Context, v *View, ino InodeID, p []byte, off int64) (int, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	c := &readCall{ino: ino, cancel: cancel}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return 0, ErrClosed
	}
	c.state = m.state
	m.calls[c] = struct{}{}
	m.mu.Unlock()
	n, err := v.local.read(ctx, ino, nil, p, off)
	m.mu.Lock()
	delete(m.calls, c)
	givenUp := c.givenUp
	m.mu.Unlock()
	if err != nil && givenUp {
		return 0, fmt.Errorf("%w: read inode %d at %d: %w", ErrStore, ino, off, errGivenUp)
	}
	return n, err
}

// moved begins another state.
func (m *mover) moved() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state++
}

// giveUp ends reads of earlier states of files whose bytes have changed.
func (m *mover) giveUp(d *Delta) {
	changed := make(map[InodeID]bool, len(d.Ranges))
	for _, r := range d.Ranges {
		changed[r.Inode] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for c := range m.calls {
		if c.state < m.state && (d.All || changed[c.ino]) {
			c.givenUp = true
			c.cancel()
		}
	}
}

// close ends all reads.
func (m *mover) close() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	for c := range m.calls {
		c.givenUp = true
		c.cancel()
	}
}

// isGone says whether err means that something is not in the committed state.
func isGone(err error) bool {
	return errors.Is(err, metadata.ErrNotExist) || errors.Is(err, ErrNotExist)
}

// gone gives the error of looking an open file up its class.
func gone(ino InodeID, err error) error {
	if isGone(err) {
		return fmt.Errorf("%w: inode %d was removed", ErrStale, ino)
	}
	return err
}

// forget drops what a move changes. Caller holds View.moving.
func (c *viewCache) forget(d *Delta, removed []InodeID) error {
	if d.All {
		return c.cache.Inodes(func(ino uint64) error {
			f := c.cache.Get(ino)
			defer f.Release()
			return f.Drop(0, math.MaxInt64)
		})
	}
	for _, r := range d.Ranges {
		f := c.cache.Get(uint64(r.Inode))
		err := f.Drop(r.Off, r.End)
		f.Release()
		if err != nil {
			return err
		}
	}
	for _, ino := range removed {
		if err := c.cache.Remove(uint64(ino)); err != nil {
			return err
		}
	}
	return nil
}
