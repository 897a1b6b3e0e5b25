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
	end    uint64            // no later number is asked for ahead
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup
	bytes  int64                        // of all entries so far
	large  int64                        // of the largest
	listed map[uint64]metadata.CommitID // the entry of a number, as far as that is known
	queue  []aheadEntry                 // what at and its successors gave, as it seems
}

type aheadEntry struct {
	id  metadata.CommitID
	got chan aheadResult // holds one
}

type aheadResult struct {
	e   *entry
	err error
}

// newPathAhead begins at an entry of the path and reads ahead up to a number.
func newPathAhead(ctx context.Context, r pathReader, at metadata.CommitID, end uint64) *pathAhead {
	a := &pathAhead{r: r, at: at, end: end}
	a.ctx, a.cancel = context.WithCancel(ctx)
	return a
}

// list finds out where the path leaves an epoch, by one listing: else each seal
// would be waited for before what follows it is asked for. It is of use only
// where it succeeds, and what it says is a guess like any other.
func (a *pathAhead) list() {
	ids, err := a.r.listed(a.ctx, a.at)
	if err != nil {
		return // who reads the entries hears of it
	}
	a.listed = make(map[uint64]metadata.CommitID, len(ids))
	for _, id := range ids {
		a.listed[id.N] = id
	}
}

// guess returns where the entry of a number lies, if it is not where at is. A
// seal leads to another epoch: until it is met, or listed, the path is taken to go
// on in this one.
func (a *pathAhead) guess(n uint64) metadata.CommitID {
	if id, ok := a.listed[n]; ok && n != a.at.N {
		return id
	}
	return metadata.CommitID{Epoch: a.at.Epoch, N: n}
}

// next returns the entry at a.at, or nil when there is none. After an entry a.at
// is where the path goes on.
func (a *pathAhead) next() (*entry, error) {
	if len(a.queue) > 0 && a.queue[0].id != a.at {
		a.queue = nil // a wrong guess; the answers stay in their channels
	}
	for n := uint64(len(a.queue)); n < a.window() && (n == 0 || a.at.N+n <= a.end); n++ {
		q := aheadEntry{a.guess(a.at.N + n), make(chan aheadResult, 1)}
		a.queue = append(a.queue, q)
		a.wg.Go(func() {
			e, err := a.r.read(a.ctx, q.id)
			q.got <- aheadResult{e, err}
		})
	}
	got := <-a.queue[0].got
	a.queue = a.queue[1:]
	if got.err != nil || got.e == nil {
		return nil, got.err
	}
	a.at = got.e.next()
	a.bytes += got.e.size
	a.large = max(a.large, got.e.size)
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
