package binlogfs

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"slices"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// scanBuffer is how many bytes a scan reads at a time.
const scanBuffer = 256 << 10

// maxHead bounds a head event that is read whole.
const maxHead = 64 << 20

// tracker follows the events of one file, in order and without gaps, and keeps
// its catalogue: what lies before the last boundary, which is where no group is
// under way. It is not safe for concurrent use.
type tracker struct {
	info   FileInfo
	format Format
	groups Groups
	prev   *GTIDState // at the beginning of the file
	added  *GTIDState

	end    int64 // of the events so far
	events int64
	crc    uint32 // CRC32C of the bytes so far
	began  int64  // where the open group begins
	at     time.Time

	// The event that is under way.
	header Header
	step   Step
	crc32  checksum
	body   []byte // of an event whose content counts

	fresh *GTIDState // of groups that ended since take: a set, which stays small however many they are
}

// newTracker stands at the beginning of a file, before its magic.
func newTracker(epoch uint32, name string) *tracker {
	return &tracker{info: FileInfo{Format: catalogueFormat, Epoch: epoch, Name: name}}
}

// noGTIDs says that nothing was logged before, and nothing since.
func (t *tracker) noGTIDs(f Flavor) {
	t.prev, t.added, t.fresh = NewGTIDState(f), NewGTIDState(f), NewGTIDState(f)
}

// resume stands where a catalogue ends. The format comes from the file itself.
func resume(info *FileInfo, f Format) (*tracker, error) {
	t := &tracker{info: *info, format: f, end: info.Size, crc: info.CRC32C, events: info.Events}
	t.info.Index = append([]Mark(nil), info.Index...)
	t.fresh = NewGTIDState(info.Flavor)
	var err error
	if t.prev, err = ParseGTIDState(info.Flavor, info.Previous); err == nil {
		t.added, err = ParseGTIDState(info.Flavor, info.Added)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: catalogue of %s: %v", ErrCorrupt, info.Name, err)
	}
	return t, nil
}

// needs is how many bytes of the event's body begin wants to see.
func needs(h Header, whole int) (int, error) {
	if !isHead(h.Type) {
		return min(whole, MaxPrefix), nil
	}
	if whole > maxHead {
		return 0, fmt.Errorf("%w: an event %v of %d bytes", ErrCorrupt, h.Type, whole)
	}
	return whole, nil
}

// isHead says whether an event is one of those that tell what a file begins with,
// which are read whole.
func isHead(t EventType) bool {
	switch t {
	case replication.FORMAT_DESCRIPTION_EVENT, replication.PREVIOUS_GTIDS_EVENT, replication.MARIADB_GTID_LIST_EVENT:
		return true
	}
	return false
}

// bodySize is how long an event's body is without the checksum.
func (t *tracker) bodySize(h Header) (int, error) { return bodySize(&t.format, h) }

func bodySize(f *Format, h Header) (int, error) {
	n := int(h.Size) - headerSize
	if f.Checksum || h.Type == replication.FORMAT_DESCRIPTION_EVENT {
		n -= checksumSize
	}
	if n < 0 {
		return 0, fmt.Errorf("%w: an event %v of %d bytes", ErrCorrupt, h.Type, h.Size)
	}
	return n, nil
}

// magic takes the first bytes of the file.
func (t *tracker) magic() {
	t.end = int64(len(magic))
	t.crc = crc32.Checksum([]byte(magic), castagnoli)
	t.info.Size, t.info.CRC32C = t.end, t.crc
}

// begin takes an event's header and as much of its body as needs says.
func (t *tracker) begin(raw []byte, h Header, body []byte, whole int) error {
	if t.info.Server == "" && h.Type != replication.FORMAT_DESCRIPTION_EVENT {
		return fmt.Errorf("%w: %s begins with an event %v instead of a format description", ErrCorrupt, t.info.Name, h.Type)
	}
	open := t.groups.Open()
	step, err := t.groups.Next(&t.format, h, body, whole)
	if err != nil {
		return fmt.Errorf("%s at %d: %w", t.info.Name, t.end, err)
	}
	if !open && (step == StepBegin || step == StepWhole) {
		t.began, t.at = t.end, time.Unix(int64(h.Time), 0).UTC()
	}
	t.header, t.step, t.body = h, step, body
	t.crc32 = newChecksum(raw)
	return nil
}

// bytes takes the event's bytes, header included.
func (t *tracker) bytes(p []byte) { t.crc = crc32.Update(t.crc, castagnoli, p) }

// finish ends the event. boundary says that no group is under way after it: all
// bytes so far may be published.
func (t *tracker) finish() (boundary bool, err error) {
	h := t.header
	t.end += int64(h.Size)
	t.events++
	switch h.Type {
	case replication.FORMAT_DESCRIPTION_EVENT:
		t.info.Server, t.info.Flavor, t.info.Checksum, t.info.ServerID = t.format.Server, t.format.Flavor, t.format.Checksum, h.ServerID
		t.noGTIDs(t.format.Flavor)
		t.info.Ordered = true
	case replication.PREVIOUS_GTIDS_EVENT, replication.MARIADB_GTID_LIST_EVENT:
		if t.prev, err = DecodePreviousGTIDs(t.format.Flavor, t.body); err != nil {
			return false, fmt.Errorf("%s at %d: %w", t.info.Name, t.end, err)
		}
		t.info.Previous = t.prev.String()
	case replication.ROTATE_EVENT, replication.STOP_EVENT:
		t.info.Closed = true
	}
	t.body = nil
	if t.step == StepEnd || t.step == StepWhole {
		t.endGroup()
	}
	if t.groups.Open() {
		return false, nil
	}
	t.info.Size, t.info.CRC32C, t.info.Events = t.end, t.crc, t.events
	return true, nil
}

// endGroup counts the group that has just ended.
func (t *tracker) endGroup() {
	g := t.groups.GTID()
	before := t.added
	if !t.info.Ordered {
		before = nil
	}
	t.info.mark(t.began, t.at, g, before)
	t.info.Ordered = t.info.Ordered && t.added.follows(g)
	t.info.Groups++
	if t.info.FirstTime.IsZero() || t.at.Before(t.info.FirstTime) {
		t.info.FirstTime = t.at
	}
	if t.at.After(t.info.LastTime) {
		t.info.LastTime = t.at
	}
	t.added.Add(g)
	t.fresh.Add(g)
}

// take returns the GTIDs of the groups that ended since the last call.
func (t *tracker) take() *GTIDState {
	g := t.fresh
	t.fresh = NewGTIDState(t.format.Flavor)
	return g
}

// catalogue is a copy of what is known up to the last boundary.
func (t *tracker) catalogue() *FileInfo {
	c := t.info
	if t.added != nil {
		c.Added = t.added.String()
	}
	c.Index = slices.Clip(t.info.Index) // entries never change
	return &c
}

// Event is one event of a file, as a scan finds it.
type Event struct {
	Header
	Offset int64
	Step   Step
	GTID   GTID   // of the group that it belongs to
	Body   []byte // its first bytes, without the checksum; valid until the next event
	Whole  int    // bytes of the whole body
}

// scan reads events from r, which stands at t's end, verifies them, and calls fn
// for each. It ends without an error where r ends between two events, and with
// io.ErrUnexpectedEOF where it ends within one.
func scan(ctx context.Context, r io.Reader, t *tracker, fn func(*Event) error) error {
	in := bufio.NewReaderSize(r, scanBuffer)
	if t.end == 0 {
		var m [len(magic)]byte
		_, err := io.ReadFull(in, m[:])
		if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		if err != nil || string(m[:]) != magic {
			return fmt.Errorf("%w: %s is no binary log (it is encrypted, or another kind of file)", ErrCorrupt, t.info.Name)
		}
		t.magic()
	}
	var buf []byte
	for ctx.Err() == nil {
		e := Event{Offset: t.end}
		more, err := scanEvent(in, t, &e, &buf)
		if err != nil || !more {
			return err
		}
		if fn != nil {
			if err := fn(&e); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

// scanEvent reads one event.
func scanEvent(in *bufio.Reader, t *tracker, e *Event, buf *[]byte) (more bool, err error) {
	var raw [headerSize]byte
	if _, err := io.ReadFull(in, raw[:]); errors.Is(err, io.EOF) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	if e.Header, err = DecodeHeader(raw[:]); err != nil {
		return false, fmt.Errorf("%s at %d: %w", t.info.Name, t.end, err)
	}
	if err := readFormat(in, t, e.Header, raw[:]); err != nil {
		return false, err
	}
	if e.Whole, err = t.bodySize(e.Header); err != nil {
		return false, fmt.Errorf("%s at %d: %w", t.info.Name, t.end, err)
	}
	n, err := needs(e.Header, e.Whole)
	if err != nil {
		return false, err
	}
	if cap(*buf) < n {
		*buf = make([]byte, n)
	}
	e.Body = (*buf)[:n]
	if _, err := io.ReadFull(in, e.Body); err != nil {
		return false, unexpected(err)
	}
	if err := t.begin(raw[:], e.Header, e.Body, e.Whole); err != nil {
		return false, err
	}
	e.Step, e.GTID = t.step, t.groups.GTID()
	t.bytes(raw[:])
	t.bytes(e.Body)
	t.crc32.add(e.Body)
	if err := rest(in, t, e.Whole-n); err != nil {
		return false, err
	}
	_, err = t.finish()
	return true, err
}

// readFormat decodes a format description without taking it from in: the sizes
// of all bodies, its own included, depend on it.
func readFormat(in *bufio.Reader, t *tracker, h Header, raw []byte) error {
	if h.Type != replication.FORMAT_DESCRIPTION_EVENT {
		return nil
	}
	if h.Size > 4096 {
		return fmt.Errorf("%w: %s has a format description of %d bytes", ErrCorrupt, t.info.Name, h.Size)
	}
	body, err := in.Peek(int(h.Size) - headerSize)
	if err != nil {
		return unexpected(err)
	}
	f, err := DecodeFormat(append(append([]byte(nil), raw...), body...))
	if err != nil {
		return fmt.Errorf("%s: %w", t.info.Name, err)
	}
	t.format = f
	return nil
}

// rest reads what is left of an event's body, and verifies its checksum. It looks
// at the bytes where in has them: most events are small and many.
func rest(in *bufio.Reader, t *tracker, n int) error {
	for n > 0 {
		p, err := in.Peek(min(n, max(1, in.Buffered())))
		if err != nil {
			return unexpected(err)
		}
		t.bytes(p)
		t.crc32.add(p)
		n -= len(p)
		_, _ = in.Discard(len(p)) // they are there
	}
	if !t.format.Checksum && t.header.Type != replication.FORMAT_DESCRIPTION_EVENT {
		return nil
	}
	sum, err := in.Peek(checksumSize)
	if err != nil {
		return unexpected(err)
	}
	t.bytes(sum)
	err = t.verify(sum)
	_, _ = in.Discard(checksumSize)
	return err
}

// verify compares the event's checksum.
func (t *tracker) verify(sum []byte) error {
	if !t.format.Checksum {
		return nil // a format description has room for one that is not used
	}
	if got := uint32(sum[0]) | uint32(sum[1])<<8 | uint32(sum[2])<<16 | uint32(sum[3])<<24; got != t.crc32.value {
		return fmt.Errorf("%w: checksum of the event %v at %d of %s", ErrCorrupt, t.header.Type, t.end, t.info.Name)
	}
	return nil
}

func unexpected(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
