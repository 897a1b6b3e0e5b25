package journal

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/cisternfs/cistern/internal/vfs"
)

const (
	inUse      = ".jnl"
	spareFile  = ".spare"
	nameDigits = 20
)

// state is where a journal is in its life.
type state int

const (
	stateOpen state = iota
	stateReplayed
	stateStarted
	stateClosed
)

// Journal is one directory of journal files. See the package comment for the
// order of calls.
type Journal struct {
	fs       vfs.FS
	dir      string
	o        Options
	maxFiles int
	pools    bufferPools
	durable  atomic.Uint64 // the highest durable LSN; only grows

	// out is held while queued groups are handed to the kernel, over a roll and
	// over a rewrite; it is taken before wr. The field below belongs to its holder.
	out     sync.Mutex
	joined  []byte        // buffer for groups that are written together
	written atomic.Uint64 // the LSN up to which groups were handed over

	// wr is the append lock: held over numbering a group, over a roll and over a
	// rewrite. The fields below belong to its holder.
	wr    sync.Mutex
	queue []*group // numbered and not handed over, in order
	seq   uint64   // of the newest file
	prev  uint32   // checksum of the group before the next one

	mu         sync.Mutex // guards the fields below; never held during I/O
	state      state
	epoch      uint64
	files      []*file // in use, in order of their sequence; the last is current
	spares     []*file
	total      int    // files on the disk, those being made included
	spareName  uint64 // the number of the last spare file
	replay     replayed
	kept       *file // of files, during Start; see takeUseless
	end        LSN
	pending    []*group // appended and not known durable, in order
	unsynced   int64    // bytes of pending
	failed     error    // the current file must not be written any more
	broken     error
	leading    bool          // somebody runs the group commit
	roundDone  chan struct{} // closed when that round ends
	moved      map[place]Loc // where a rewrite put what was elsewhere
	expanded   map[LSN]Loc   // Data that a rewrite gave to records without any
	space      space
	stats      Stats
	stop       chan struct{} // closed by Close
	background sync.WaitGroup

	synced syncedWriter // belongs to Start, and then to the leader of the group commit
}

// file is a journal file, in use or spare.
type file struct {
	f    vfs.File
	name string // without the directory
	size int64
	head fileHeader
	crc  uint32 // the header's
	end  int64  // where the next group goes
	last LSN    // its last record that counts; 0: none
	refs int    // readers
	// freed: out of Journal.files; the last reader gives the file away.
	freed bool
	// failed: a write to it failed; it is removed instead of used again.
	failed bool
	// replaced: its name belongs to another file now.
	replaced bool
}

// place is where an entry's Data was.
type place struct {
	file uint64
	off  int64
}

func (o *Options) setDefaults() error {
	if o.FileSize == 0 {
		o.FileSize = 32 << 20
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 1 << 30
	}
	if o.MaxUnsyncedBytes == 0 {
		o.MaxUnsyncedBytes = 16 << 20
	}
	if o.Rand == nil {
		o.Rand = rand.Reader
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch {
	case o.FileSize < 16<<10 || o.FileSize > 1<<30 || o.FileSize%4096 != 0:
		return fmt.Errorf("journal file size %d is not a multiple of 4096 from 16 KiB to 1 GiB", o.FileSize)
	case o.MaxBytes < 2*o.FileSize:
		return fmt.Errorf("journal limit of %d bytes holds fewer than two files of %d", o.MaxBytes, o.FileSize)
	case o.MaxUnsyncedBytes < 0:
		return fmt.Errorf("limit of unsynced journal bytes %d is negative", o.MaxUnsyncedBytes)
	}
	return nil
}

func (j *Journal) path(name string) string { return filepath.Join(j.dir, name) }

// Start begins a new file after Replay: the next record gets the LSN next, which
// is above everything that was replayed and above the after given to Replay. All
// that was replayed is durable when it returns: what wasn't before is written
// anew, after a call of BeforeSync; Locs stay good. Files without a record above
// after are given back. A journal that Open created is
// started without Replay. An epoch is never below that of an earlier record.
func (j *Journal) Start(epoch uint64, next LSN) error {
	j.wr.Lock()
	defer j.wr.Unlock()
	if err := j.mayStart(epoch, next); err != nil {
		return err
	}
	if err := j.recycle(j.takeUseless()); err != nil {
		return err
	}
	dead, err := j.settleReplayed()
	if err != nil {
		return err
	}
	j.advance(max(j.replay.last, j.replay.after))
	f, _, err := j.newFile(fileHeader{epoch: epoch, first: next, after: max(j.replay.last, j.replay.after), durable: j.Durable()}, j.spareForStart)
	if err != nil {
		return err
	}
	j.advance(next - 1)
	j.beginSynced(next - 1) // as the new file's header says
	j.mu.Lock()
	if j.kept != nil {
		j.files = slices.DeleteFunc(j.files, func(f *file) bool { return f == j.kept })
		dead = append(dead, j.kept)
		j.kept = nil
	}
	j.prev, j.epoch, j.end = f.crc, epoch, next-1
	j.files = append(j.files, f)
	j.state = stateStarted
	j.mu.Unlock()
	if err := j.removeDead(dead); err != nil {
		j.note("can't remove superseded journal files", err) // a later recovery does
	}
	j.background.Go(j.prepare)
	j.kick()
	return nil
}

func (j *Journal) mayStart(epoch uint64, next LSN) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	fresh := j.state == stateOpen && len(j.files) == 0 && len(j.replay.empty) == 0
	last := max(j.replay.last, j.replay.after)
	switch {
	case j.state != stateReplayed && !fresh:
		return fmt.Errorf("%w: Start needs a Replay that succeeded", ErrState)
	case next == 0 || next <= last:
		return fmt.Errorf("%w: journal can't go on with lsn %d after lsn %d", ErrState, next, last)
	case epoch < j.replay.epoch:
		return fmt.Errorf("%w: journal of epoch %d can't go on in epoch %d", ErrState, j.replay.epoch, epoch)
	}
	return nil
}

// settleReplayed makes durable what Replay delivered. After kill -9 it may be
// nowhere but in the kernel's memory, and an fdatasync of the old file wouldn't
// do: when one failed in the last process, the kernel calls those bytes clean. So
// they are written anew. It returns the files in which nothing counts any more.
func (j *Journal) settleReplayed() ([]*file, error) {
	groups, size, err := j.undurable()
	if err != nil || len(groups) == 0 {
		return nil, err
	}
	if j.o.BeforeSync != nil {
		if err := j.o.BeforeSync(); err != nil {
			return nil, fmt.Errorf("make durable what replayed records refer to: %w", err)
		}
	}
	j.mu.Lock()
	j.pending, j.unsynced, j.end = groups, size, groups[len(groups)-1].last()
	j.mu.Unlock()
	w := newRewriter(j)
	w.plain, w.newSpare = true, j.spareForStart
	if err := w.run(); err != nil {
		j.mu.Lock()
		j.pending, j.unsynced, j.end = nil, 0, 0
		j.mu.Unlock()
		return nil, errors.Join(fmt.Errorf("make replayed records durable: %w", err), w.abandon())
	}
	return w.install(), nil
}

// undurable returns the replayed groups that are not known durable, and the sum
// of their bytes.
func (j *Journal) undurable() (groups []*group, size int64, err error) {
	durable := j.Durable()
	r := replayer{j: j}
	for _, f := range j.files {
		if f.last <= durable {
			continue
		}
		if err := r.load(f); err != nil {
			return nil, 0, err
		}
		w := walker{buf: r.buf, head: f.head, prev: f.crc, off: headerSize, next: f.head.first}
		for w.next <= f.last {
			h, b, err := w.group()
			if err == nil && b == nil {
				err = errors.New("it ends here")
			}
			if err != nil {
				return nil, 0, fmt.Errorf("journal file %s changed at byte %d since it was replayed: %w", j.path(f.name), w.off, err)
			}
			if h.count > 0 && h.last() > durable {
				g := j.pools.get(int64(len(b)))
				copy(g.buf, b)
				g.first, g.count, g.epoch, g.file, g.off = h.first, h.count, h.epoch, f, w.off
				groups, size = append(groups, g), size+int64(len(b))
			}
			w.skip(h)
		}
	}
	return groups, size, nil
}

// takeUseless takes out the files without a record that is still needed. The
// newest of them stays in place until the first new file is there: a crash in
// between must not leave a journal without any.
func (j *Journal) takeUseless() []*file {
	var useless []*file
	for _, f := range j.files {
		if f.last <= j.replay.after {
			j.kept = f
		}
	}
	j.files = slices.DeleteFunc(j.files, func(f *file) bool {
		f.freed = f.last <= j.replay.after && f != j.kept
		if f.freed {
			useless = append(useless, f)
		}
		return f.freed
	})
	for _, f := range j.replay.empty {
		f.freed = true
		useless = append(useless, f)
	}
	j.replay.empty = nil
	return useless
}

// advance raises the durable LSN.
func (j *Journal) advance(lsn LSN) {
	for {
		old := j.durable.Load()
		if uint64(lsn) <= old || j.durable.CompareAndSwap(old, uint64(lsn)) {
			return
		}
	}
}

// incarnation draws a file's incarnation; the append lock is held.
func (j *Journal) incarnation() (uint64, error) {
	var b [8]byte
	if _, err := io.ReadFull(j.o.Rand, b[:]); err != nil {
		return 0, fmt.Errorf("draw a journal file's incarnation: %w", err)
	}
	return max(1, le.Uint64(b[:])), nil // zeros on the disk must match none
}

// usable returns why the journal takes no calls; mu is held.
func (j *Journal) usable() error {
	switch {
	case j.state == stateClosed:
		return ErrClosed
	case j.broken != nil:
		return j.broken
	case j.state != stateStarted:
		return fmt.Errorf("%w: it is not started", ErrState)
	}
	return nil
}

func (j *Journal) current() *file { return j.files[len(j.files)-1] }

// End returns the LSN of the last record appended; before Start, 0.
func (j *Journal) End() LSN {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.end
}

// Durable returns the LSN up to which records are known durable.
func (j *Journal) Durable() LSN { return LSN(j.durable.Load()) }

// Stats returns the journal's counters.
func (j *Journal) Stats() Stats {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.stats
	s.Files, s.Spares = len(j.files), len(j.spares)
	for _, f := range j.files {
		s.LiveBytes += max(0, f.end-headerSize)
	}
	s.ReservedBytes = j.space.reserved
	if j.state == stateStarted {
		s.FreeBytes = j.freeBytes()
	}
	s.UnsyncedBytes = j.unsynced
	s.Waiting = len(j.space.engine) + len(j.space.ordinary)
	s.End, s.Durable = j.end, j.Durable()
	return s
}

// note keeps and logs a failure that the caller doesn't return.
func (j *Journal) note(msg string, err error) {
	j.o.Logger.Warn(msg, "error", err)
	j.mu.Lock()
	j.stats.LastError = err
	j.mu.Unlock()
}

// Close syncs what was appended, notes that it is durable, and closes the files.
// Waiting reservations get ErrClosed. No other call may be under way but
// ReadData, Free and Reserve. A second Close returns ErrClosed.
func (j *Journal) Close() error {
	j.mu.Lock()
	if j.state == stateClosed {
		j.mu.Unlock()
		return ErrClosed
	}
	started, broken, end := j.state == stateStarted, j.broken, j.end
	j.mu.Unlock()
	err := broken
	if started && broken == nil {
		err = j.Sync(context.Background(), end)
		if err == nil {
			err = j.writeMark()
		}
	}
	j.mu.Lock()
	j.state = stateClosed
	j.failWaiters(ErrClosed)
	j.mu.Unlock()
	close(j.stop)
	j.background.Wait()
	return errors.Join(err, j.closeFiles())
}

// writeMark appends a group of no entries, so that the next recovery knows that
// everything before it was durable.
func (j *Journal) writeMark() error {
	j.wr.Lock()
	defer j.wr.Unlock()
	f := j.current()
	if f.end == headerSize || f.end+groupHeaderSize > f.size {
		return nil // nothing to tell, or no room; a mark is a help, no duty
	}
	b := make([]byte, groupHeaderSize)
	seal(b, groupHeader{epoch: j.epoch, incarnation: f.head.incarnation, prev: j.prev, durable: j.Durable(), first: j.end + 1})
	if _, err := f.f.WriteAt(b, f.end); err != nil {
		return fmt.Errorf("write the last mark to journal file %s: %w", j.path(f.name), err)
	}
	if err := f.f.Sync(); err != nil {
		return fmt.Errorf("sync the last mark of journal file %s: %w", j.path(f.name), err)
	}
	return nil
}

// closeFiles closes what no reader uses; readers close the rest.
func (j *Journal) closeFiles() error {
	j.mu.Lock()
	j.state = stateClosed
	var idle []*file
	for _, list := range [][]*file{j.files, j.spares, j.replay.empty} {
		for _, f := range list {
			f.freed = true
			if f.refs == 0 {
				idle = append(idle, f)
			}
		}
	}
	j.files, j.spares, j.replay.empty = nil, nil, nil
	j.mu.Unlock()
	var err error
	if f := j.synced.f; f != nil {
		if e := f.Close(); e != nil {
			err = fmt.Errorf("close %s: %w", j.path(syncedName), e)
		}
		j.synced.f = nil
	}
	for _, f := range idle {
		if e := f.f.Close(); e != nil {
			err = errors.Join(err, fmt.Errorf("close journal file %s: %w", j.path(f.name), e))
		}
	}
	return err
}
