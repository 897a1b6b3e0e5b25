package binlogfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"sync"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"

	"github.com/cisternfs/cistern/gateway"
)

const (
	// stageSize is how many bytes are handed to the volume at a time, at most: its memory
	// bound is two of them. The journal's record of them fits into a buffer of 1 MiB.
	stageSize = 1<<20 - 4<<10
	// stageBlock is what the volume counts checksums in: where parts end at its
	// multiples, those of parts are also those of the objects that they become.
	stageBlock = 128 << 10

	// The catalogue of the file that is being written is stored so often; what
	// is newer is read again after a crash.
	catalogueEvery = 64 << 20
)

// Errors of an Appender that the caller tells apart.
var (
	// ErrGap: the source sends a group that does not follow what is archived.
	ErrGap = errors.New("the source's log does not go on where the archive ends")
	// ErrOtherSource: the source is not the server whose log the archive holds.
	ErrOtherSource = errors.New("the archive holds the log of another server")
)

// Appender adds a source's events to a Log. There is one at a time, used by one
// goroutine. After an error it must be closed; what it published stays, and an
// open group is dropped.
type Appender struct {
	l    *Log
	ack  func(SourcePlace) // called when a place became durable, from another goroutine; may be nil
	h    *gateway.Handle
	t    *tracker
	file string // its path in the volume

	prefix    []byte // of the present event's body
	buf       []byte // bytes not handed to the volume yet
	staged    int64  // end of the bytes that the volume has
	ready     int64  // boundary up to which everything may be published
	published int64  // end of what is; 0 in a file without any
	saved     int64  // what the stored catalogue covers
	skipping  bool   // an open group that is archived already is passed over
	skip      Groups

	units  int64     // of the open group since a part of it went to the volume: rows or statements
	before EventType // the event before in the group
	rows   rowCounter

	pendingMu sync.Mutex // guards the fields below
	pending   *Pending
	came      SourcePlace

	own *ownState // nil in mirror mode

	hard hardener
}

// Pending describes the group that is under way.
type Pending struct {
	GTID      GTID
	Began     time.Time
	File      string
	Offset    int64
	Bytes     int64 // received so far
	Events    int64
	Fragments int64 // parts handed to the volume so far
}

// SourcePlace is a place in a file of the source.
type SourcePlace struct {
	File   string
	Offset int64
}

// Append begins to add the events of a source, which must be the one of the last
// epoch; newEpoch lets another begin an epoch of its own or, in own mode, go on with
// the sequence. ack is told of each place of the source's log that became as
// durable as the log's Ack asks. It returns ErrOtherSource and ErrMode.
func (l *Log) Append(ctx context.Context, s Source, newEpoch bool, ack func(SourcePlace)) (*Appender, error) {
	own, err := l.ownMode()
	if err != nil {
		return nil, err
	}
	if err := l.bind(ctx, s, newEpoch, own); err != nil {
		return nil, err
	}
	a := &Appender{l: l, ack: ack}
	a.hard.start(ctx, a)
	if own != nil {
		a.own = &ownState{opt: *own, other: newEpoch}
		if err := a.resumeOwn(ctx); err != nil {
			return nil, errors.Join(err, a.Close(ctx))
		}
	}
	return a, nil
}

// bind notes the source of a new epoch, or makes sure that it is the last one's.
func (l *Log) bind(ctx context.Context, s Source, newEpoch bool, own *OwnFiles) error {
	l.identifying.Lock()
	defer l.identifying.Unlock()
	l.mu.Lock()
	ident := identity{Format: catalogueFormat, UUID: l.ident.UUID, Own: l.ident.Own, Sources: append([]Source(nil), l.ident.Sources...)}
	l.mu.Unlock()
	if n := len(ident.Sources); n == 0 || newEpoch {
		s.Epoch, s.Began = 1, l.opt.Now().UTC()
		switch {
		case own != nil:
			ident.Own = own.Name
		case n > 0:
			s.Epoch = ident.Sources[n-1].Epoch + 1
		}
		ident.Sources = append(ident.Sources, s)
		if err := l.t.mkdirAll(ctx, path.Join(l.opt.Dir, epochDir(s.Epoch))); err != nil {
			return err
		}
		if err := l.saveIdentity(ctx, &ident); err != nil {
			return err
		}
		l.mu.Lock()
		l.ident = ident
		l.mu.Unlock()
	} else if last := ident.Sources[n-1]; !last.Same(&s) {
		return fmt.Errorf("%w: server %d %s, and this one is server %d %s", ErrOtherSource, last.ServerID, last.UUID, s.ServerID, s.UUID)
	}
	return nil
}

// Resume returns where the source should go on: a file and the offset of its
// published end, or an empty name while the epoch has no file.
func (a *Appender) Resume() (file string, offset int64) {
	_, file, offset = a.l.resumeAt()
	return file, offset
}

// Received returns the place in the source's log up to which events came. It is
// safe for concurrent use.
func (a *Appender) Received() SourcePlace {
	a.pendingMu.Lock()
	defer a.pendingMu.Unlock()
	return a.came
}

func (a *Appender) received(file string, offset int64) {
	a.pendingMu.Lock()
	defer a.pendingMu.Unlock()
	a.came = SourcePlace{file, offset}
}

// Pending returns the group that is under way, or nil. It is safe for concurrent
// use.
func (a *Appender) Pending() *Pending {
	a.pendingMu.Lock()
	defer a.pendingMu.Unlock()
	if a.pending == nil {
		return nil
	}
	p := *a.pending
	return &p
}

// pend changes what Pending returns.
func (a *Appender) pend(change func(p *Pending)) {
	a.pendingMu.Lock()
	defer a.pendingMu.Unlock()
	if a.pending != nil {
		change(a.pending)
	}
}

func (a *Appender) setPending(p *Pending) {
	a.pendingMu.Lock()
	defer a.pendingMu.Unlock()
	a.pending = p
}

// Event takes an event of size bytes, header included, from r. It says whether
// the event was stored; what is archived already, and what is in no file, is not.
func (a *Appender) Event(ctx context.Context, size int64, r io.Reader) (stored bool, err error) {
	var raw [headerSize]byte
	if size < headerSize || size > 1<<32-1 {
		return false, fmt.Errorf("%w: an event of %d bytes", ErrCorrupt, size)
	}
	if _, err := io.ReadFull(r, raw[:]); err != nil {
		return false, unexpected(err)
	}
	h, err := DecodeHeader(raw[:])
	if err != nil {
		return false, err
	}
	if int64(h.Size) != size {
		return false, fmt.Errorf("%w: an event %v of %d bytes says that it has %d", ErrCorrupt, h.Type, size, h.Size)
	}
	switch {
	case h.Type == replication.ROTATE_EVENT && h.Artificial():
		return false, a.rotateEvent(ctx, raw[:], h, r)
	case h.Type == replication.HEARTBEAT_EVENT, h.Type == replication.HEARTBEAT_LOG_EVENT_V2:
		return false, discard(r, size-headerSize)
	case a.t == nil && a.own == nil, a.own != nil && a.own.file == "":
		return false, fmt.Errorf("%w: an event %v before the source said which file it is in", ErrCorrupt, h.Type)
	case h.Type == replication.FORMAT_DESCRIPTION_EVENT:
		return a.formatEvent(ctx, raw[:], h, r)
	case a.own != nil:
		return a.ownEvent(ctx, raw[:], h, size, r)
	}
	whole, err := a.t.bodySize(h)
	if err != nil {
		return false, err
	}
	body, err := a.readPrefix(h, whole, r)
	if err != nil {
		return false, err
	}
	store, err := a.judge(h, body, whole)
	if err != nil {
		return false, err
	}
	if !store {
		return false, discard(r, size-headerSize-int64(len(body)))
	}
	return true, a.store(ctx, raw[:], h, body, whole, r)
}

// readPrefix reads as much of an event's body as judging it needs: nothing of most
// events, which are rows. It is valid until the next event.
func (a *Appender) readPrefix(h Header, whole int, r io.Reader) ([]byte, error) {
	n, err := needs(h, whole)
	switch {
	case err != nil:
		return nil, err
	case a.rows.wants(h):
		n = whole
	case !isHead(h.Type) && !countsForGroups(h.Type):
		return nil, nil
	}
	if cap(a.prefix) < n {
		a.prefix = make([]byte, n)
	}
	body := a.prefix[:n]
	if _, err := io.ReadFull(r, body); err != nil {
		return nil, unexpected(err)
	}
	return body, nil
}

// rotateEvent follows the source to the file that an artificial Rotate names.
func (a *Appender) rotateEvent(ctx context.Context, raw []byte, h Header, r io.Reader) error {
	if h.Size > 4096 {
		return fmt.Errorf("%w: a Rotate event of %d bytes", ErrCorrupt, h.Size)
	}
	event := make([]byte, h.Size)
	copy(event, raw)
	if _, err := io.ReadFull(r, event[headerSize:]); err != nil {
		return unexpected(err)
	}
	name, pos, err := decodeSentRotate(event)
	if err != nil {
		return err
	}
	if a.own != nil {
		return a.ownRotate(ctx, name, int64(pos))
	}
	return a.Rotate(ctx, name, int64(pos))
}

// formatEvent takes a format description: the file's own at its beginning, one
// that is sent again anywhere else.
func (a *Appender) formatEvent(ctx context.Context, raw []byte, h Header, r io.Reader) (bool, error) {
	if h.Size > 4096 {
		return false, fmt.Errorf("%w: a format description of %d bytes", ErrCorrupt, h.Size)
	}
	event := make([]byte, h.Size)
	copy(event, raw)
	if _, err := io.ReadFull(r, event[headerSize:]); err != nil {
		return false, unexpected(err)
	}
	format, err := DecodeFormat(event)
	if err != nil {
		return false, err
	}
	a.skipping = false
	if f := a.l.opt.Fragment; f.Unit == FragmentRows && f.Size > 0 {
		a.rows.format(event, &format)
	}
	if a.own != nil {
		return false, a.ownFormat(ctx, event, h, format)
	}
	if a.t.end != int64(len(magic)) {
		if format.Checksum != a.t.format.Checksum {
			return false, fmt.Errorf("%w: %s goes on with other checksums", ErrCorrupt, a.t.info.Name)
		}
		if was := a.t.format.Began; was != 0 && format.Began != 0 && was != format.Began {
			return false, fmt.Errorf("%w: it began its %s at %s, and the archive's was begun at %s; %s", ErrGap, a.t.info.Name, seconds(format.Began), seconds(was), restoredWay)
		}
		return false, a.drop(ctx)
	}
	if int64(h.LogPos) != a.t.end+int64(h.Size) {
		return false, fmt.Errorf("%w: %s does not begin with its format description", ErrGap, a.t.info.Name)
	}
	a.t.format = format
	whole := len(event) - headerSize - checksumSize
	return true, a.store(ctx, raw, h, event[headerSize:headerSize+whole], whole, &sliceReader{event[headerSize+whole:]})
}

// judge decides whether an event is the next one of the file, one that is
// archived already, or a gap: an event belongs to a file if and only if it ends
// where its log pos says. MariaDB from 11.4 on leaves that out within groups.
func (a *Appender) judge(h Header, body []byte, whole int) (store bool, err error) {
	if a.skipping {
		_, err := a.skip.Next(&a.t.format, h, body, whole)
		a.skipping = err == nil && a.skip.Open()
		return false, err
	}
	end := a.t.end + int64(h.Size)
	open := a.t.groups.Open()
	switch {
	case h.Artificial():
		return false, nil
	case h.LogPos == uint32(end), h.LogPos == 0 && open:
		return true, nil
	case open:
		return false, fmt.Errorf("%w: an event %v that ends at %d, where %s is at %d", ErrCorrupt, h.Type, h.LogPos, a.t.info.Name, end)
	}
	a.skip.Reset()
	step, err := a.skip.Next(&a.t.format, h, body, whole)
	if err != nil {
		return false, err
	}
	old := h.LogPos == 0 || int64(h.LogPos) <= a.t.end && a.t.end < 1<<32
	if step == StepHead {
		if !old && a.t.end < 1<<32 {
			return false, fmt.Errorf("%w: an event %v ends at %d, and %s has %d bytes", ErrGap, h.Type, h.LogPos, a.t.info.Name, a.t.end)
		}
		return false, nil
	}
	a.skipping = a.skip.Open()
	g := a.skip.GTID()
	known := old
	if !g.Zero() {
		a.l.mu.Lock()
		known = a.l.last != nil && a.l.last.Has(g)
		a.l.mu.Unlock()
	}
	if !known {
		return false, fmt.Errorf("%w: the group %v ends its first event at %d, and %s has %d bytes", ErrGap, g, h.LogPos, a.t.info.Name, a.t.end)
	}
	return false, nil
}

// Close ends the appending: complete groups are published and made durable, and
// the open one is dropped. When ctx ends, what is not durable by then stays
// published without having been told of.
func (a *Appender) Close(ctx context.Context) error {
	defer context.AfterFunc(ctx, a.hard.cancel)()
	err := a.leave(ctx)
	if a.h != nil {
		err = errors.Join(err, a.h.Close())
		a.h, a.t = nil, nil
	}
	return errors.Join(err, a.hard.stop())
}
