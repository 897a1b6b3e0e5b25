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
	// stageSize is how many bytes are handed to the volume at a time: its memory
	// bound is two of them.
	stageSize = 1 << 20

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
	ack  func(Position) // called when a place became durable, from another goroutine; may be nil
	h    *gateway.Handle
	t    *tracker
	file string // its path in the volume

	buf       []byte // bytes not handed to the volume yet
	staged    int64  // end of the bytes that the volume has
	ready     int64  // boundary up to which everything may be published
	published int64  // end of what is; 0 in a file without any
	saved     int64  // what the stored catalogue covers
	skipping  bool   // an open group that is archived already is passed over
	skip      Groups

	statements int64     // of the open group since a part of it went to the volume
	before     EventType // the event before in the group

	pendingMu sync.Mutex // guards pending
	pending   *Pending

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

// Append begins to add the events of a source, which must be the one of the last
// epoch; newEpoch lets another begin an epoch of its own. ack is told of each
// place that became as durable as the log's Ack asks.
func (l *Log) Append(ctx context.Context, s Source, newEpoch bool, ack func(Position)) (*Appender, error) {
	l.mu.Lock()
	ident := identity{Format: catalogueFormat, UUID: l.ident.UUID, Sources: append([]Source(nil), l.ident.Sources...)}
	l.mu.Unlock()
	if n := len(ident.Sources); n == 0 || newEpoch {
		s.Epoch, s.Began = uint32(n)+1, l.opt.Now().UTC()
		ident.Sources = append(ident.Sources, s)
		if err := l.t.mkdirAll(ctx, path.Join(l.opt.Dir, epochDir(s.Epoch))); err != nil {
			return nil, err
		}
		if err := l.saveIdentity(ctx, &ident); err != nil {
			return nil, err
		}
		l.mu.Lock()
		l.ident = ident
		l.mu.Unlock()
	} else if last := ident.Sources[n-1]; !last.Same(&s) {
		return nil, fmt.Errorf("%w: server %d %s, and this one is server %d %s", ErrOtherSource, last.ServerID, last.UUID, s.ServerID, s.UUID)
	}
	a := &Appender{l: l, ack: ack}
	a.hard.start(ctx, a)
	return a, nil
}

// Resume returns where the source should go on: a file and the offset of its
// published end, or an empty name while the epoch has no file.
func (a *Appender) Resume() (file string, offset int64) {
	_, file, offset = a.l.resumeAt()
	return file, offset
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

// Rotate goes on in a file of the source, from offset on: a new one, or the last.
func (a *Appender) Rotate(ctx context.Context, name string, offset int64) error {
	if a.t != nil && a.t.info.Name == name && offset <= a.t.end {
		return nil // sent again
	}
	if !isLogName(name) {
		return fmt.Errorf("%w: the source goes on in a file called %q", ErrCorrupt, name)
	}
	if err := a.leave(ctx); err != nil {
		return err
	}
	last, end := a.Resume()
	if last == name {
		if offset > end {
			return fmt.Errorf("%w: it sends %s from %d on, and the archive ends at %d", ErrGap, name, offset, end)
		}
		return a.reopen(ctx, name)
	}
	if offset > int64(len(magic)) {
		return fmt.Errorf("%w: it sends %s from %d on, and the archive has nothing of that file", ErrGap, name, offset)
	}
	if last != "" && logNumber(name) != logNumber(last)+1 {
		return fmt.Errorf("%w: %s follows %s", ErrGap, name, last)
	}
	return a.create(ctx, name)
}

// leave ends work on the present file.
func (a *Appender) leave(ctx context.Context) error {
	if a.t == nil {
		return nil
	}
	if err := a.Flush(ctx); err != nil {
		return err
	}
	if err := a.drop(ctx); err != nil {
		return err
	}
	err := a.hard.wait()
	if err == nil && a.published > 0 {
		err = a.save(ctx)
	}
	cerr := a.h.Close()
	a.h, a.t = nil, nil
	if err == nil {
		err = cerr
	}
	return err
}

// create begins a file.
func (a *Appender) create(ctx context.Context, name string) error {
	l := a.l
	give, err := l.takeNames(ctx)
	if err != nil {
		return err
	}
	defer give()
	l.mu.Lock()
	epoch := l.ident.Sources[len(l.ident.Sources)-1].Epoch
	names := append(l.namesLocked(epoch), name)
	l.mu.Unlock()
	a.t = newTracker(epoch, name)
	a.file = path.Join(l.opt.Dir, epochDir(epoch), name)
	err = l.t.create(ctx, a.file, modeFile)
	if errors.Is(err, gateway.ErrExist) {
		// An attempt that failed before the list knew of the file left it empty.
		if size, serr := l.t.size(ctx, a.file); serr == nil && size == 0 {
			err = nil
		}
	}
	if err == nil {
		err = l.saveIndex(ctx, epoch, names)
	}
	if err == nil {
		a.h, err = l.t.handle(ctx, a.file)
	}
	if err != nil {
		a.t = nil
		return err
	}
	a.t.magic()
	a.buf = append(a.buf[:0], magic...)
	a.staged, a.published, a.ready, a.saved = 0, 0, int64(len(magic)), 0
	l.mu.Lock()
	l.files = append(l.files, &FileInfo{Format: catalogueFormat, Epoch: epoch, Name: name})
	l.mu.Unlock()
	return nil
}

// reopen goes on in the last file.
func (a *Appender) reopen(ctx context.Context, name string) error {
	l := a.l
	l.mu.Lock()
	info := l.files[len(l.files)-1]
	l.mu.Unlock()
	a.file = path.Join(l.opt.Dir, info.Path())
	h, err := l.t.handle(ctx, a.file)
	if err != nil {
		return fmt.Errorf("%s: %w", a.file, err)
	}
	a.h = h
	if a.t, err = l.rescan(ctx, info, a.file); err != nil {
		return errors.Join(err, h.Close())
	}
	a.buf = a.buf[:0]
	if a.t.end == 0 { // it was made, and nothing was published
		a.t.magic()
		a.buf = append(a.buf, magic...)
	}
	a.staged = a.t.end - int64(len(a.buf))
	a.ready, a.published, a.saved = a.t.end, a.staged, info.Size
	// What is staged beyond is of a group that the source sends anew.
	return a.h.Publish(ctx, a.staged)
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
		return false, a.rotateEvent(ctx, h, r)
	case h.Type == replication.HEARTBEAT_EVENT, h.Type == replication.HEARTBEAT_LOG_EVENT_V2:
		return false, discard(r, size-headerSize)
	case a.t == nil:
		return false, fmt.Errorf("%w: an event %v before the source said which file it is in", ErrCorrupt, h.Type)
	case h.Type == replication.FORMAT_DESCRIPTION_EVENT:
		return a.formatEvent(ctx, raw[:], h, r)
	}
	whole, err := a.t.bodySize(h)
	if err != nil {
		return false, err
	}
	n, err := needs(h, whole)
	if err != nil {
		return false, err
	}
	body := make([]byte, n)
	if _, err := io.ReadFull(r, body); err != nil {
		return false, unexpected(err)
	}
	store, err := a.judge(h, body, whole)
	if err != nil {
		return false, err
	}
	left := size - headerSize - int64(n)
	if !store {
		return false, discard(r, left)
	}
	return true, a.store(ctx, raw[:], h, body, whole, r)
}

// rotateEvent follows the source to the file that an artificial Rotate names. It
// carries a checksum only when the session asked for them, which the next format
// description tells: the name's own shape decides.
func (a *Appender) rotateEvent(ctx context.Context, h Header, r io.Reader) error {
	if h.Size > 4096 {
		return fmt.Errorf("%w: a Rotate event of %d bytes", ErrCorrupt, h.Size)
	}
	body := make([]byte, h.Size-headerSize)
	if _, err := io.ReadFull(r, body); err != nil {
		return unexpected(err)
	}
	name, pos, err := DecodeRotate(body)
	if err != nil {
		return err
	}
	if !isLogName(name) && len(name) > checksumSize && isLogName(name[:len(name)-checksumSize]) {
		name = name[:len(name)-checksumSize]
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
	f, err := DecodeFormat(event)
	if err != nil {
		return false, err
	}
	a.skipping = false
	if a.t.end != int64(len(magic)) {
		if f.Checksum != a.t.format.Checksum {
			return false, fmt.Errorf("%w: %s goes on with other checksums", ErrCorrupt, a.t.info.Name)
		}
		return false, a.drop(ctx)
	}
	if int64(h.LogPos) != a.t.end+int64(h.Size) {
		return false, fmt.Errorf("%w: %s does not begin with its format description", ErrGap, a.t.info.Name)
	}
	a.t.format = f
	whole := len(event) - headerSize - checksumSize
	return true, a.store(ctx, raw, h, event[headerSize:headerSize+whole], whole, &sliceReader{event[headerSize+whole:]})
}

// judge decides whether an event is the next one of the file, one that is
// archived already, or a gap: an event belongs to a file if and only if it ends
// where its log pos says. MariaDB from 11.4 on leaves that out within groups.
func (a *Appender) judge(h Header, body []byte, whole int) (store bool, err error) {
	if a.skipping {
		step, err := a.skip.Next(&a.t.format, h, body, whole)
		a.skipping = err == nil && a.skip.Open()
		_ = step
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
		if !old {
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

// store adds an event to the buffer, and the buffer to the volume as it fills.
func (a *Appender) store(ctx context.Context, raw []byte, h Header, body []byte, whole int, r io.Reader) error {
	if err := a.t.begin(raw, h, body, whole); err != nil {
		return err
	}
	if a.t.step == StepBegin {
		a.setPending(&Pending{GTID: a.t.groups.GTID(), Began: a.l.opt.Now(), File: a.t.info.Name, Offset: a.t.end})
	}
	a.pend(func(p *Pending) { p.Events++ })
	a.t.bytes(raw)
	a.t.bytes(body)
	a.t.crc32.add(body)
	if err := a.put(ctx, raw); err != nil {
		return err
	}
	if err := a.put(ctx, body); err != nil {
		return err
	}
	if err := a.storeRest(ctx, whole-len(body), r); err != nil {
		return err
	}
	if a.t.format.Checksum || h.Type == replication.FORMAT_DESCRIPTION_EVENT {
		var sum [checksumSize]byte
		if _, err := io.ReadFull(r, sum[:]); err != nil {
			return unexpected(err)
		}
		a.t.bytes(sum[:])
		if err := a.t.verify(sum[:]); err != nil {
			return err
		}
		if err := a.put(ctx, sum[:]); err != nil {
			return err
		}
	}
	if a.t.step == StepEnd && h.LogPos != uint32(a.t.end+int64(h.Size)) {
		return fmt.Errorf("%w: the group %v ends at %d of %s, where its last event says %d", ErrCorrupt, a.t.groups.GTID(), a.t.end+int64(h.Size), a.t.info.Name, h.LogPos)
	}
	boundary, err := a.t.finish()
	if err != nil {
		return err
	}
	if boundary {
		a.ready = a.t.end
		a.setPending(nil)
		return nil
	}
	return a.fragment(ctx, h)
}

// storeRest streams what is left of a body.
func (a *Appender) storeRest(ctx context.Context, n int, r io.Reader) error {
	for n > 0 {
		if len(a.buf) >= a.part() {
			if err := a.spill(ctx); err != nil {
				return err
			}
		}
		at := len(a.buf)
		k := min(n, max(a.part()-at, 1))
		a.buf = grow(a.buf, k)
		if _, err := io.ReadFull(r, a.buf[at:]); err != nil {
			return unexpected(err)
		}
		a.t.bytes(a.buf[at:])
		a.t.crc32.add(a.buf[at:])
		n -= k
	}
	return nil
}

func grow(b []byte, n int) []byte {
	if cap(b)-len(b) < n {
		b = append(make([]byte, 0, max(2*cap(b), len(b)+n)), b...)
	}
	return b[:len(b)+n]
}

// put appends to the buffer.
func (a *Appender) put(ctx context.Context, p []byte) error {
	if len(a.buf) >= a.part() {
		if err := a.spill(ctx); err != nil {
			return err
		}
	}
	a.buf = append(a.buf, p...)
	return nil
}

// spill hands the buffer to the volume: complete groups are published, and the
// bytes of the open one stay invisible beyond them.
func (a *Appender) spill(ctx context.Context) error {
	if err := a.Flush(ctx); err != nil {
		return err
	}
	return a.stage(ctx)
}

// Flush publishes all complete groups. The caller calls it when the source has
// nothing more to send at the moment.
func (a *Appender) Flush(ctx context.Context) error {
	if a.t == nil || a.ready <= a.published || a.t.info.Server == "" {
		return nil // a magic alone is no log
	}
	// Publishing drops what is staged beyond: so much is staged and no more.
	if n := a.ready - a.staged; n > 0 {
		rest := a.buf[n:]
		a.buf = a.buf[:n]
		if err := a.stage(ctx); err != nil {
			return err
		}
		a.buf = append(a.buf, rest...)
	}
	if err := a.h.Publish(ctx, a.ready); err != nil {
		return fmt.Errorf("publish groups of %s: %w", a.file, err)
	}
	if err := a.hard.add(&published{info: a.t.catalogue(), added: a.t.take(), prev: a.t.prev, first: a.published == 0}); err != nil {
		return err
	}
	a.published = a.ready
	if a.t.info.Size-a.saved >= catalogueEvery {
		return a.save(ctx)
	}
	return nil
}

// stage hands the buffer to the volume.
func (a *Appender) stage(ctx context.Context) error {
	if len(a.buf) == 0 {
		return nil
	}
	if _, err := a.h.Stage(ctx, a.buf, a.staged); err != nil {
		return fmt.Errorf("store events of %s: %w", a.file, err)
	}
	a.staged += int64(len(a.buf))
	a.buf = a.buf[:0]
	if a.staged > a.ready {
		a.pend(func(p *Pending) { p.Bytes, p.Fragments = a.staged-p.Offset, p.Fragments+1 })
	}
	return nil
}

// save stores the catalogue of what is published.
func (a *Appender) save(ctx context.Context) error {
	info := a.t.catalogue()
	if err := a.l.saveCatalogue(ctx, info); err != nil {
		return err
	}
	a.saved = info.Size
	return nil
}

// drop forgets the open group: its source is gone, or sends it anew.
func (a *Appender) drop(ctx context.Context) error {
	if a.t == nil || a.t.end == a.ready && a.staged <= a.ready {
		return nil
	}
	if err := a.Flush(ctx); err != nil {
		return err
	}
	info := a.t.catalogue()
	t, err := resume(info, a.t.format)
	if err != nil {
		return err
	}
	a.buf, a.skipping = a.buf[:0], false
	a.setPending(nil)
	a.t, a.staged = t, a.ready
	if err := a.h.Publish(ctx, a.ready); err != nil {
		return fmt.Errorf("drop the open group of %s: %w", a.file, err)
	}
	return nil
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

type sliceReader struct{ b []byte }

// Read implements io.Reader.
func (s *sliceReader) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.b)
	s.b = s.b[n:]
	return n, nil
}

func discard(r io.Reader, n int64) error {
	_, err := io.CopyN(io.Discard, r, n)
	return unexpected(err)
}
