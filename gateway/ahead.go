package gateway

import (
	"context"
	"sync"

	"github.com/cisternfs/cistern/metadata"
)

// Bounds of what is read ahead: entries, and bytes of documents if they are as
// large as the largest so far.
const (
	pathAheadEntries = 16
	pathAheadBytes   = 8 << 20
)

// pathAhead reads a stretch of the path of commits entry by entry, and those that
// will probably follow at the same time: a mount far from the bucket would else
// wait once for each. Not for concurrent use; close waits for what runs.
type pathAhead struct {
	r      pathReader
	at     metadata.CommitID // the next entry to be returned
	end    metadata.CommitID // none after it is asked for
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	bytes  int64             // of all entries so far
	large  int64             // of the largest
	queue  []chan aheadEntry // what at and its successors in the same epoch gave
}

type aheadEntry struct {
	e   *entry
	err error
}

// newPathAhead begins at an entry of the path; end is its last commit.
func newPathAhead(ctx context.Context, r pathReader, at, end metadata.CommitID) *pathAhead {
	a := &pathAhead{r: r, at: at, end: end}
	a.ctx, a.cancel = context.WithCancel(ctx)
	return a
}

// next returns the entry at a.at, or nil when there is none. After an entry a.at
// is where the path goes on.
func (a *pathAhead) next() (*entry, error) {
	// A seal leads to another epoch: until it is met, the path is taken to go on
	// in this one, and no further than its end's number.
	for n := uint64(len(a.queue)); n < a.window() && (n == 0 || a.at.N+n <= a.end.N); n++ {
		id := metadata.CommitID{Epoch: a.at.Epoch, N: a.at.N + n}
		ch := make(chan aheadEntry, 1)
		a.queue = append(a.queue, ch)
		a.wg.Add(1)
		go func() {
			defer a.wg.Done()
			e, err := a.r.read(a.ctx, id)
			ch <- aheadEntry{e, err}
		}()
	}
	got := <-a.queue[0]
	a.queue = a.queue[1:]
	if got.err != nil || got.e == nil {
		return nil, got.err
	}
	a.at = got.e.next()
	a.bytes += got.e.size
	a.large = max(a.large, got.e.size)
	if got.e.seal != nil {
		a.queue = nil // their answers stay in their channels
	}
	return got.e, nil
}

// window is how many entries may be read at the same time.
func (a *pathAhead) window() uint64 {
	if a.large == 0 {
		return 2 // nothing is known of their size
	}
	return uint64(min(max(pathAheadBytes/a.large, 1), pathAheadEntries))
}

func (a *pathAhead) close() {
	a.cancel()
	a.wg.Wait()
}
