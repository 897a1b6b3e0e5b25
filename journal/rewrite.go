package journal

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
)

// rewriter writes all records that are not known durable anew, under the same
// LSNs, to fresh files, which take the place of the old ones at recovery.
type rewriter struct {
	j        *Journal
	durable  LSN
	plain    bool // references stay as they are
	newSpare func() (*file, error)
	files    []*file
	prev     uint32
	moved    map[place]Loc
	expanded map[LSN]Loc
}

func newRewriter(j *Journal) *rewriter {
	return &rewriter{j: j, durable: j.Durable(), moved: map[place]Loc{}, expanded: map[LSN]Loc{}}
}

// rewrite mends the journal after a failed write, fdatasync or BeforeSync, or
// breaks it. The caller leads the group commit and holds the output lock and the append lock.
func (j *Journal) rewrite(cause error) {
	j.note("journal file failed, its unsynced records go to a fresh file", cause)
	w := newRewriter(j)
	w.newSpare = j.spareForRewrite
	err := w.run()
	if err != nil {
		err = errors.Join(err, w.abandon())
		j.giveUp(fmt.Errorf("%w; writing to a fresh file failed too: %w", cause, err))
		return
	}
	dead := w.install()
	j.mu.Lock()
	j.stats.Rewrites++
	j.mu.Unlock()
	if err := j.removeDead(dead); err != nil {
		// They are superseded: a later recovery removes them.
		j.note("can't remove superseded journal files", err)
	}
}

// giveUp breaks the journal and returns the error that all calls get from now on.
func (j *Journal) giveUp(cause error) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.broken = fmt.Errorf("%w: %w", ErrBroken, cause)
	j.stats.LastError = j.broken
	j.failWaiters(j.broken)
	return j.broken
}

func (w *rewriter) run() error {
	if w.j.o.BeforeSync != nil && w.j.o.Expand == nil && !w.plain {
		return errors.New("records may hold references, and nothing expands them")
	}
	for _, g := range w.j.pending {
		if err := w.group(g); err != nil {
			return err
		}
	}
	for _, f := range w.files {
		if err := f.f.Sync(); err != nil {
			return fmt.Errorf("sync journal file %s: %w", w.j.path(f.name), err)
		}
	}
	// The last one first: from the moment when a file has its name, older files
	// count only below it, so what follows it must be there.
	for _, f := range slices.Backward(w.files) {
		if err := w.j.giveName(f); err != nil {
			return fmt.Errorf("begin journal file %s: %w", w.j.path(f.name), err)
		}
	}
	if err := w.j.fs.SyncDir(w.j.dir); err != nil {
		return fmt.Errorf("sync journal directory %s: %w", w.j.dir, err)
	}
	return nil
}

// group writes one group, with its references expanded.
func (w *rewriter) group(old *group) error {
	entries, from, err := w.expand(old)
	if err != nil {
		return err
	}
	size := groupSize(entries)
	f, err := w.room(old.first, old.epoch, size)
	if err != nil {
		return err
	}
	buf := make([]byte, size)
	putEntries(buf, entries, func(i, off int, crc uint32) {
		if len(entries[i].Data) == 0 {
			return
		}
		loc := Loc{File: f.head.incarnation, Off: f.end + int64(off), Len: uint32(len(entries[i].Data)), CRC: crc}
		if from[i] >= 0 {
			w.moved[place{old.file.head.incarnation, old.off + from[i]}] = loc
		} else {
			w.expanded[old.first+LSN(i)] = loc
		}
	})
	w.prev = seal(buf, groupHeader{count: old.count, epoch: old.epoch, incarnation: f.head.incarnation, prev: w.prev, durable: w.durable, first: old.first})
	if _, err := f.f.WriteAt(buf, f.end); err != nil {
		return fmt.Errorf("write %d bytes at %d of journal file %s: %w", size, f.end, w.j.path(f.name), err)
	}
	f.end += size
	f.last = old.last()
	return nil
}

// expand returns a group's entries with references replaced, and where in the
// old group the Data of each began; -1 for one without Data.
func (w *rewriter) expand(old *group) (entries []Entry, from []int64, err error) {
	_, err = eachEntry(old.buf, old.count, func(e Entry, dataOff int, crc uint32) error {
		at := int64(dataOff)
		if len(e.Data) == 0 {
			at = -1
		}
		if w.j.o.Expand != nil && !w.plain {
			lsn := old.first + LSN(len(entries))
			expanded, err := w.j.o.Expand(lsn, e)
			if err != nil {
				return fmt.Errorf("expand the references of lsn %d: %w", lsn, err)
			}
			e = Entry{Op: expanded.Op, Body: bytes.Clone(expanded.Body), Data: bytes.Clone(expanded.Data)}
			if at >= 0 && checksum(e.Data) != crc {
				return fmt.Errorf("expand the references of lsn %d: its data was changed", lsn)
			}
		}
		entries, from = append(entries, e), append(from, at)
		return nil
	})
	return entries, from, err
}

// room returns the file for a group of so many bytes, a new one when needed.
func (w *rewriter) room(first LSN, epoch uint64, size int64) (*file, error) {
	if n := len(w.files); n > 0 {
		if f := w.files[n-1]; f.end+size <= f.size && f.head.epoch == epoch {
			return f, nil
		}
	}
	if size > w.j.o.FileSize-headerSize {
		return nil, fmt.Errorf("%w: lsn %d takes %d bytes with its references expanded", ErrTooLarge, first, size)
	}
	f, err := w.newSpare()
	if err != nil {
		return nil, err
	}
	w.files = append(w.files, f)
	if err := w.j.writeHeader(f, fileHeader{epoch: epoch, first: first, after: first - 1, durable: w.durable}); err != nil {
		return nil, fmt.Errorf("begin journal file %s: %w", w.j.path(f.name), err)
	}
	w.prev = f.crc
	return f, nil
}

// spareForRewrite makes a file on top of MaxBytes, because the spare ones are
// promised to reservations; those are used only when the disk has no more.
func (j *Journal) spareForRewrite() (*file, error) {
	f, err := j.createSpare(true)
	if !errors.Is(err, ErrNoSpace) {
		return f, err
	}
	f, second := j.takeSpare()
	if second != nil {
		return nil, errors.Join(err, second)
	}
	return f, nil
}

// spareForStart takes a spare file, which nobody has reserved yet, before it
// makes one, on top of MaxBytes when it must: a journal that was killed while it
// was full has no other way on, and Free brings it back below.
func (j *Journal) spareForStart() (*file, error) {
	f, err := j.takeSpare()
	if !errors.Is(err, ErrNoSpace) {
		return f, err
	}
	return j.createSpare(true)
}

// abandon removes the files that have no name in use yet. The others hold what
// the files that they replaced held, and stay for the next recovery.
func (w *rewriter) abandon() error {
	var err error
	for _, f := range w.files {
		if _, spare := fileNumber(f.name, spareFile); spare {
			err = errors.Join(err, w.j.discard(f))
		} else {
			err = errors.Join(err, f.f.Close())
		}
	}
	return err
}

// install puts the new files in the place of what they replace, and returns the
// files in which nothing counts any more.
func (w *rewriter) install() []*file {
	j := w.j
	j.mu.Lock()
	var live, dead []*file
	for _, f := range j.files {
		switch {
		case f.last <= w.durable:
			live = append(live, f)
		case f.head.first <= w.durable:
			f.failed, f.last = true, w.durable
			live = append(live, f)
		default:
			f.failed = true
			dead = append(dead, f)
		}
	}
	j.files = append(live, w.files...)
	j.prev = w.prev
	maps.Copy(j.moved, w.moved)
	maps.Copy(j.expanded, w.expanded)
	j.failed = nil
	end := j.end
	j.mu.Unlock()
	j.queue = nil // the fresh file has them
	j.written.Store(uint64(end))
	j.settle(end)
	return dead
}

// removeDead gives superseded files away.
func (j *Journal) removeDead(dead []*file) error {
	var idle []*file
	j.mu.Lock()
	for _, f := range dead {
		if j.forget(f) {
			idle = append(idle, f)
		}
	}
	j.mu.Unlock()
	return j.recycle(idle)
}
