package binlogfs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/go-mysql-org/go-mysql/replication"
)

// walkBuffer is how many bytes of a file are read at a time: enough for the
// gateway to see a sequential reader.
const walkBuffer = 512 << 10

// walker reads a file event by event without verifying them: the Appender has.
// It is used by one goroutine.
type walker struct {
	ctx    context.Context
	file   File
	name   string
	in     *bufio.Reader
	off    int64 // of the next event
	format Format
	groups Groups

	// The event at off.
	head   Header
	step   Step
	prefix []byte // of its body, when its type matters to groups; valid until the next read
	whole  int    // bytes of its body, without the checksum
}

// openWalker opens a file at its first event. Its format must be published.
func openWalker(ctx context.Context, a Archive, f *FileInfo) (*walker, error) {
	h, err := a.Open(ctx, f.Epoch, f.Name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", f.Path(), err)
	}
	format, err := formatOf(ctx, h, f.Path())
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	w := &walker{ctx: ctx, file: h, name: f.Path(), format: format, in: bufio.NewReaderSize(nil, walkBuffer)}
	w.seek(int64(len(magic)))
	return w, nil
}

func (w *walker) close() error { return w.file.Close() }

// seek goes to the event at off, outside of any group.
func (w *walker) seek(off int64) {
	w.off = off
	w.groups.Reset()
	w.in.Reset(&reader{ctx: w.ctx, f: w.file, off: off})
}

// next reads the header of the event at off, which must end at or before limit,
// and what it means for its group.
func (w *walker) next(limit int64) error {
	raw, err := w.in.Peek(headerSize)
	if err != nil {
		return fmt.Errorf("%s at %d: %w", w.name, w.off, unexpected(err))
	}
	if w.head, err = DecodeHeader(raw); err != nil {
		return fmt.Errorf("%s at %d: %w", w.name, w.off, err)
	}
	if w.off+int64(w.head.Size) > limit {
		return fmt.Errorf("%w: %s has an event of %d bytes at %d that ends beyond what is published", ErrCorrupt, w.name, w.head.Size, w.off)
	}
	w.whole = int(w.head.Size) - headerSize
	if w.format.Checksum || w.head.Type == replication.FORMAT_DESCRIPTION_EVENT {
		w.whole -= checksumSize
	}
	if w.whole < 0 {
		return fmt.Errorf("%w: %s has an event of %d bytes at %d", ErrCorrupt, w.name, w.head.Size, w.off)
	}
	w.prefix = nil
	if countsForGroups(w.head.Type) {
		n := headerSize + min(w.whole, MaxPrefix)
		if raw, err = w.in.Peek(n); err != nil {
			return fmt.Errorf("%s at %d: %w", w.name, w.off, unexpected(err))
		}
		w.prefix = raw[headerSize:]
	}
	if w.step, err = w.groups.Next(&w.format, w.head, w.prefix, w.whole); err != nil {
		return fmt.Errorf("%s at %d: %w", w.name, w.off, err)
	}
	return nil
}

// countsForGroups says whether Groups.Next reads the body of such an event.
func countsForGroups(t EventType) bool {
	switch t {
	case replication.QUERY_EVENT, replication.MARIADB_QUERY_COMPRESSED_EVENT, replication.MARIADB_GTID_EVENT,
		replication.GTID_EVENT, replication.ANONYMOUS_GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT:
		return true
	}
	return false
}

// body returns at most n of the first bytes of the event's body; valid until the
// next read.
func (w *walker) body(n int) ([]byte, error) {
	raw, err := w.in.Peek(headerSize + min(n, w.whole, walkBuffer-headerSize))
	if err != nil {
		return nil, fmt.Errorf("%s at %d: %w", w.name, w.off, unexpected(err))
	}
	return raw[headerSize:], nil
}

// skip goes to the event after this one. What was not read yet of a large one is
// not read at all.
func (w *walker) skip() error {
	n := int(w.head.Size)
	w.off += int64(n)
	if n > w.in.Buffered()+walkBuffer {
		w.in.Reset(&reader{ctx: w.ctx, f: w.file, off: w.off})
		return nil
	}
	if _, err := w.in.Discard(n); err != nil {
		return fmt.Errorf("%s at %d: %w", w.name, w.off, unexpected(err))
	}
	return nil
}

// copyTo writes the event as it is, and goes to the one after it.
func (w *walker) copyTo(out io.Writer) error {
	for left := int(w.head.Size); left > 0; {
		p, err := w.in.Peek(min(left, max(1, w.in.Buffered())))
		if err != nil {
			return fmt.Errorf("%s at %d: %w", w.name, w.off, unexpected(err))
		}
		if _, err := out.Write(p); err != nil {
			return err
		}
		if _, err := w.in.Discard(len(p)); err != nil {
			return err
		}
		left -= len(p)
	}
	w.off += int64(w.head.Size)
	return nil
}

// goTo goes to the event at pos. Groups before it count, so that it may lie
// within one. errNoEvent says that none begins there.
func (w *walker) goTo(f *FileInfo, pos, limit int64) error {
	from := f.before(func(m Mark) bool { return m.Offset > pos })
	if from > pos {
		from = int64(len(magic)) // among the head events
	}
	w.seek(from)
	for w.off < pos {
		if err := w.next(limit); err != nil {
			return err
		}
		if err := w.skip(); err != nil {
			return err
		}
	}
	if w.off != pos {
		return errNoEvent
	}
	return nil
}

var (
	// errNoEvent: no event begins at a place.
	errNoEvent = errors.New("no event begins at this position")
	// errWithin: a place is between two events of a group.
	errWithin = errors.New("lies within a group")
)

// walk calls fn for each event of a file from pos to limit; errStop ends it.
func walk(ctx context.Context, a Archive, f *FileInfo, pos, limit int64, fn func(*walker) error) (err error) {
	w, err := openWalker(ctx, a, f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := w.goTo(f, pos, limit); err != nil {
		return err
	}
	for w.off < limit {
		if err := w.next(limit); err != nil {
			return err
		}
		if err := fn(w); errors.Is(err, errStop) {
			return nil
		} else if err != nil {
			return err
		}
		if err := w.skip(); err != nil {
			return err
		}
	}
	return nil
}

// stateAt is the state of GTIDs at a place of a file that is no group's inside.
func stateAt(ctx context.Context, a Archive, f *FileInfo, pos int64) (*GTIDState, error) {
	if pos < int64(len(magic)) || pos > publishedEnd(a, f) {
		return nil, errNoEvent
	}
	state, err := ParseGTIDState(f.Flavor, f.Previous)
	if err != nil {
		return nil, fmt.Errorf("%w: catalogue of %s: %v", ErrCorrupt, f.Name, err)
	}
	ended := true
	last := int64(len(magic))
	err = walk(ctx, a, f, last, publishedEnd(a, f), func(w *walker) error {
		if w.off >= pos {
			return errStop
		}
		last = w.off + int64(w.head.Size)
		if w.step == StepEnd || w.step == StepWhole {
			state.Add(w.groups.GTID())
		}
		ended = !w.groups.Open()
		return nil
	})
	if err == nil && last != pos {
		err = errNoEvent
	}
	if err == nil && !ended {
		err = fmt.Errorf("%d of %s %w", pos, f.Path(), errWithin)
	}
	return state, err
}

// publishedEnd is how far a file may be read.
func publishedEnd(a Archive, f *FileInfo) int64 {
	if end, _ := a.End(); end.Epoch == f.Epoch && end.File == f.Name {
		return end.Offset
	}
	return f.Size
}
