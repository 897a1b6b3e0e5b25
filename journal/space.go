package journal

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"
)

// retryNoSpace is how long the preparer waits before it tries again to make a
// file on a full disk, as long as somebody waits for one.
const retryNoSpace = time.Second

// space is who was granted room and who waits for it; Journal.mu guards it.
//
// A reservation is granted only against files that exist, and so that all that
// is granted fits in any order, although a group never spans files: see room.
type space struct {
	reserved int64 // bytes granted and not appended
	largest  int64 // reservation since reserved was 0
	engine   []*waiter
	ordinary []*waiter
	full     bool          // the last attempt to make a file found no disk space
	pressure chan struct{} // holds a token when somebody waits for Free
	wake     chan struct{} // holds a token when the preparer should look
}

type waiter struct {
	need   int64
	engine bool
	done   chan error // gets one value, when granted or failed
}

func (s *space) init() {
	s.pressure = make(chan struct{}, 1)
	s.wake = make(chan struct{}, 1)
}

// Reservation is room in the journal for one Append, or for several of which
// each takes its own group header from it.
type Reservation struct {
	j    *Journal
	left int64
}

// Reserve waits until the journal has room for n bytes of Body and Data in one
// group of up to FreeEntries entries; for more entries add EntryOverhead each.
// Only engine reservations get the last tenth of MaxBytes, and they go first.
// Errors: ErrTooLarge, ErrNoSpace, ErrBroken, ErrClosed, the context's.
func (j *Journal) Reserve(ctx context.Context, n int64, engine bool) (*Reservation, error) {
	need := align(groupHeaderSize + FreeEntries*entryHeaderSize + n)
	if n < 0 || need > j.o.FileSize-headerSize {
		return nil, fmt.Errorf("%w: %d bytes, a file holds %d", ErrTooLarge, n, j.o.FileSize-headerSize-groupHeaderSize-FreeEntries*entryHeaderSize)
	}
	w := &waiter{need: need, engine: engine, done: make(chan error, 1)}
	j.mu.Lock()
	if err := j.usable(); err != nil {
		j.mu.Unlock()
		return nil, err
	}
	queue := j.queueOf(w)
	*queue = append(*queue, w)
	j.admit(nil)
	j.mu.Unlock()
	select {
	case err := <-w.done:
		return j.granted(w, err)
	case <-ctx.Done():
	}
	j.mu.Lock()
	i := slices.Index(*queue, w)
	if i >= 0 {
		*queue = slices.Delete(*queue, i, i+1)
		j.admit(nil)
	}
	j.mu.Unlock()
	if i >= 0 {
		return nil, fmt.Errorf("wait for room in the journal: %w", ctx.Err())
	}
	return j.granted(w, <-w.done)
}

func (j *Journal) granted(w *waiter, err error) (*Reservation, error) {
	if err != nil {
		return nil, err
	}
	return &Reservation{j: j, left: w.need}, nil
}

func (j *Journal) queueOf(w *waiter) *[]*waiter {
	if w.engine {
		return &j.space.engine
	}
	return &j.space.ordinary
}

// Pressure tells that a reservation waits for Free: the channel then holds one
// value, for one reader.
func (j *Journal) Pressure() <-chan struct{} { return j.space.pressure }

// Release gives back what was not appended; it may be called more than once.
func (r *Reservation) Release() {
	r.j.mu.Lock()
	defer r.j.mu.Unlock()
	r.j.consume(r, r.left)
	r.j.admit(nil)
}

// consume takes bytes out of a reservation; mu is held.
func (j *Journal) consume(r *Reservation, n int64) {
	r.left -= n
	j.space.reserved -= n
	if j.space.reserved == 0 {
		j.space.largest = 0
	}
}

// room returns the bytes that the current file and so many more hold, less what
// appending the wanted bytes may waste: at the end of each file but the last no
// more than the largest group, and by each group no more than its own size. mu
// is held.
func (j *Journal) room(more int, largest, wanted int64) int64 {
	cur := j.current()
	left, whole := cur.size-cur.end, j.o.FileSize-headerSize
	if more <= 0 {
		return left
	}
	waste := min(left, largest) + int64(more-1)*min(whole, largest)
	return left + int64(more)*whole - min(waste, wanted)
}

// freeBytes returns what ordinary reservations still get when every file is
// made; mu is held.
func (j *Journal) freeBytes() int64 {
	more := len(j.spares) + max(0, j.maxFiles-j.total)
	return max(0, j.room(more, j.space.largest, j.space.reserved)-j.o.MaxBytes/10-j.space.reserved)
}

// verdict is what can be done for a waiter.
type verdict int

const (
	grant    verdict = iota
	makeFile         // it fits when the preparer has made another file
	waitFree         // it fits when records are freed
)

func (j *Journal) judge(w *waiter) verdict {
	s := &j.space
	largest := max(s.largest, w.need)
	wanted, kept := s.reserved+w.need, j.o.MaxBytes/10
	if w.engine || s.reserved == 0 && !j.freeable() {
		kept = 0 // the latter waits in vain: nothing can be freed
	}
	creatable := max(0, j.maxFiles-j.total)
	now := j.room(len(j.spares), largest, wanted)
	fitsNow := wanted <= now
	if s.full { // what the engine keeps must exist: a tenth of what there is
		fitsNow = wanted+min(kept, int64(j.total)*j.o.FileSize/10) <= now
	}
	fitsAtAll := wanted+kept <= j.room(len(j.spares)+creatable, largest, wanted)
	switch {
	case fitsAtAll && fitsNow:
		return grant
	case fitsAtAll:
		return makeFile
	}
	return waitFree
}

// freeable tells whether Free could give a file back.
func (j *Journal) freeable() bool { return len(j.files) > 1 || j.total > len(j.files)+len(j.spares) }

// admit grants what can be granted, in order, and sees to what the first waiter
// needs. noFile is the ErrNoSpace with which an attempt to make a file just
// failed. mu is held.
func (j *Journal) admit(noFile error) {
	if j.state != stateStarted || j.broken != nil {
		return
	}
	s := &j.space
	for _, queue := range []*[]*waiter{&s.engine, &s.ordinary} {
		for len(*queue) > 0 {
			w := (*queue)[0]
			switch v := j.judge(w); {
			case v == grant:
				s.reserved += w.need
				s.largest = max(s.largest, w.need)
				w.done <- nil
			case v == makeFile && noFile != nil && (j.o.NoSpaceFails || !j.freeable()):
				w.done <- noFile
			case v == makeFile && noFile == nil:
				j.kick()
				return
			default:
				signal(s.pressure)
				return
			}
			*queue = slices.Delete(*queue, 0, 1)
		}
	}
}

// failWaiters ends all waits; mu is held.
func (j *Journal) failWaiters(err error) {
	for _, queue := range []*[]*waiter{&j.space.engine, &j.space.ordinary} {
		for _, w := range *queue {
			w.done <- err
		}
		*queue = nil
	}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default: // a token is there already
	}
}

func (j *Journal) kick() { signal(j.space.wake) }

// prepare makes files ahead of need, until Close.
func (j *Journal) prepare() {
	retry := time.NewTimer(retryNoSpace)
	defer retry.Stop()
	for {
		select {
		case <-j.stop:
			return
		case <-j.space.wake:
		case <-retry.C:
		}
		if j.prepareAll() {
			retry.Reset(retryNoSpace)
		}
	}
}

// prepareAll makes the files that are wanted; true when it should try again
// later.
func (j *Journal) prepareAll() bool {
	for j.wantSpare() {
		f, err := j.createSpare(false)
		if err != nil {
			return j.prepareFailed(err)
		}
		j.mu.Lock()
		j.space.full = false
		j.addSpare(f)
		j.mu.Unlock()
	}
	return false
}

// prepareFailed tells the waiters; true when some stay.
func (j *Journal) prepareFailed(err error) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.stats.LastError = err
	if !j.space.full { // a full disk is told once: everyone who needs room tries again
		j.o.Logger.Warn("can't prepare a journal file", "error", err)
	}
	if !errors.Is(err, ErrNoSpace) {
		j.failWaiters(err)
		return false
	}
	j.space.full = true
	j.admit(err)
	return len(j.space.engine)+len(j.space.ordinary) > 0
}

// wantSpare tells whether another file should be made now: somebody waits for
// it, or the current one is half full and there is none to follow.
func (j *Journal) wantSpare() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state != stateStarted || j.broken != nil || j.total >= j.maxFiles {
		return false
	}
	for _, queue := range [][]*waiter{j.space.engine, j.space.ordinary} {
		if len(queue) > 0 && j.judge(queue[0]) == makeFile {
			return true
		}
	}
	cur := j.current()
	return len(j.spares) == 0 && cur.end >= cur.size/2
}

// addSpare puts a file in stock; mu is held.
func (j *Journal) addSpare(f *file) {
	if j.state == stateClosed {
		f.f.Close() // nothing in it counts
		return
	}
	j.spares = append(j.spares, f)
	j.admit(nil)
}

// diskError adds ErrNoSpace where that is what it is.
func diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}
