package journal

import (
	"errors"
	"fmt"
	"io"
	"strings"
)

// replayed is what Open and Replay leave for Start.
type replayed struct {
	after LSN    // the caller's
	last  LSN    // the last record that counts
	epoch uint64 // of the newest record or file
	empty []*file
}

// Replay delivers the records above after, in order, and verifies all groups of
// the files that hold any. Verify and fn may return ErrTorn (also wrapped): the
// record's group then begins the torn tail when it is above every durable LSN,
// and is damage otherwise. When fn returns it for a record that isn't the first
// of its group, it has seen the ones before. Any other error ends Replay and is
// returned. It may be called once; on damage the error is a *DamageError.
func (j *Journal) Replay(after, knownDurable LSN, fn func(Record) error) (ReplayInfo, error) {
	j.mu.Lock()
	if j.state != stateOpen {
		j.mu.Unlock()
		return ReplayInfo{}, fmt.Errorf("%w: Replay comes once, after Open", ErrState)
	}
	j.mu.Unlock()
	r := replayer{j: j, after: after, fn: fn}
	r.info.Durable = max(knownDurable, j.knownSynced())
	if err := r.run(); err != nil {
		return r.info, err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.replay.after, j.replay.last, j.replay.epoch = after, r.last, r.info.Epoch
	j.advance(max(r.info.Durable, after))
	j.state = stateReplayed
	return r.info, nil
}

type replayer struct {
	j     *Journal
	after LSN
	fn    func(Record) error
	info  ReplayInfo
	last  LSN    // the last record that counts
	begun bool   // a file was entered
	end   tornAt // where the records of the last file end
	buf   []byte // the file's bytes, reused
}

// limits returns up to which LSN each file counts.
func limits(files []*file) []LSN {
	until := make([]LSN, len(files))
	least := ^LSN(0)
	for i := len(files) - 1; i >= 0; i-- {
		until[i] = least
		least = min(least, files[i].head.after)
	}
	return until
}

func (r *replayer) run() error {
	files := r.j.files
	until := limits(files)
	for _, f := range files {
		r.info.Durable = max(r.info.Durable, f.head.durable)
		r.info.Epoch = max(r.info.Epoch, f.head.epoch)
	}
	for i, f := range files {
		newest := i == len(files)-1
		if !newest && (until[i] <= r.after || until[i] < f.head.first) {
			continue // committed, or dead
		}
		torn, err := r.file(f, until[i])
		if err != nil {
			return err
		}
		if torn != nil {
			return r.tear(torn, files[i:])
		}
	}
	return r.checkEnd()
}

// checkEnd looks for the loss of whole files at the end.
func (r *replayer) checkEnd() error {
	at := r.end
	for _, f := range r.j.replay.empty {
		at = tornAt{file: f, reason: "file is empty"}
	}
	if r.lost() {
		return r.damage(&at)
	}
	if len(r.j.replay.empty) > 0 {
		r.info.Torn, r.info.TornReason = true, r.j.path(at.file.name)+": "+at.reason
	}
	return nil
}

// lost tells whether records are missing that were durable.
func (r *replayer) lost() bool { return r.info.Durable > max(r.last, r.after) }

func (r *replayer) damage(at *tornAt) error {
	name := r.j.dir
	if at.file != nil {
		name = r.j.path(at.file.name)
	}
	return &DamageError{File: name, Off: at.off, Reason: at.reason, First: max(r.last, r.after) + 1, Last: r.info.Durable}
}

// tornAt is where good records end before the file does.
type tornAt struct {
	file   *file
	off    int64
	lsn    LSN // the first one that is not good
	reason string
}

// file replays one file, up to an LSN.
func (r *replayer) file(f *file, until LSN) (*tornAt, error) {
	if r.begun && f.head.after > r.last {
		return &tornAt{f, 0, r.last + 1, fmt.Sprintf("records %d to %d before it are missing", r.last+1, f.head.after)}, nil
	}
	if !r.begun && f.head.after > r.after {
		r.info.GapFirst, r.info.GapLast = r.after+1, f.head.after
	}
	r.begun = true
	r.last = f.head.first - 1
	if err := r.load(f); err != nil {
		return nil, err
	}
	g := walker{buf: r.buf, head: f.head, prev: f.crc, off: headerSize, next: f.head.first}
	for {
		h, b, err := g.group()
		if h.first > until {
			break
		}
		if err == nil && b != nil {
			r.info.Durable = max(r.info.Durable, h.durable)
			err = r.records(f, g.off, h, b)
		}
		if reason, torn := tornReason(err); torn {
			return &tornAt{f, g.off, g.next, reason}, nil
		}
		if err != nil {
			return nil, err
		}
		if b == nil {
			break
		}
		g.skip(h)
		r.last, f.last, f.end = g.next-1, g.next-1, g.off
		if h.count == 0 && f.last < f.head.first {
			f.last = 0
		}
	}
	if f.size < f.head.size && r.last < until {
		return &tornAt{f, f.size, r.last + 1, fmt.Sprintf("file was cut from %d to %d bytes", f.head.size, f.size)}, nil
	}
	r.end = tornAt{file: f, off: g.off, reason: "its records end here"}
	return nil, nil
}

// load reads the file into the buffer.
func (r *replayer) load(f *file) error {
	n := min(f.size, f.head.size)
	if int64(cap(r.buf)) < n {
		r.buf = make([]byte, n)
	}
	r.buf = r.buf[:n]
	got, err := f.f.ReadAt(r.buf, 0)
	if err != nil && err != io.EOF {
		return fmt.Errorf("read journal file %s: %w", r.j.path(f.name), err)
	}
	r.buf = r.buf[:got]
	return nil
}

// badGroup is a group that was written in this use of the file, but isn't whole.
type badGroup struct{ reason string }

func (e *badGroup) Error() string { return e.reason }

func tornReason(err error) (string, bool) {
	var bad *badGroup
	switch {
	case errors.As(err, &bad):
		return bad.reason, true
	case errors.Is(err, ErrTorn):
		return strings.TrimPrefix(err.Error(), ErrTorn.Error()+": "), true
	}
	return "", false
}

// walker goes from group to group of one file.
type walker struct {
	buf  []byte
	head fileHeader
	prev uint32
	off  int64
	next LSN
}

// group returns the group at hand and its bytes; nil bytes at the end of what
// was written, a *badGroup when one should be there.
func (w *walker) group() (groupHeader, []byte, error) {
	b := w.buf[min(w.off, int64(len(w.buf))):]
	h, err := parseGroup(b)
	if err != nil {
		if w.traces(b, h) {
			return groupHeader{first: w.next}, nil, &badGroup{err.Error()}
		}
		if w.later() {
			return groupHeader{first: w.next}, nil, &badGroup{"groups follow, but here is none"}
		}
		return groupHeader{first: w.next}, nil, nil
	}
	switch {
	case h.incarnation != w.head.incarnation: // stale
		if w.later() {
			return groupHeader{first: w.next}, nil, &badGroup{"groups follow, but here is a stale one"}
		}
		return groupHeader{first: w.next}, nil, nil
	case h.prev != w.prev:
		err = fmt.Errorf("group follows one with checksum %08x, but the one before has %08x", h.prev, w.prev)
	case h.first != w.next:
		err = fmt.Errorf("group begins with lsn %d instead of %d", h.first, w.next)
	case h.epoch != w.head.epoch:
		err = fmt.Errorf("group has epoch %d in a file of epoch %d", h.epoch, w.head.epoch)
	}
	if err != nil {
		return groupHeader{first: w.next}, nil, &badGroup{err.Error()}
	}
	return h, b[:h.length], nil
}

// traces tells whether what doesn't parse was once a group of this use of the
// file: with one field destroyed the others still say so.
func (w *walker) traces(b []byte, h groupHeader) bool {
	if len(b) < groupHeaderSize {
		return false
	}
	magic := string(b[:4]) == groupMagic
	incarnation := le.Uint64(b[24:]) == w.head.incarnation
	return incarnation || magic && LSN(le.Uint64(b[48:])) == w.next
}

// later tells whether whole groups of this use of the file follow.
func (w *walker) later() bool {
	found := false
	findGroups(w.buf, w.off, w.head.incarnation, w.next-1, func(int64, groupHeader) { found = true })
	return found
}

func (w *walker) skip(h groupHeader) {
	w.off += int64(h.length)
	w.prev, w.next = h.crc, h.last()+1
}

// records hands a group's records over, all of them to Verify first.
func (r *replayer) records(f *file, off int64, h groupHeader, b []byte) error {
	if h.last() <= r.after {
		return nil
	}
	for _, fn := range []func(Record) error{r.j.o.Verify, r.fn} {
		if fn == nil {
			continue
		}
		lsn := h.first
		_, err := eachEntry(b, h.count, func(e Entry, dataOff int, crc uint32) error {
			rec := Record{LSN: lsn, Epoch: h.epoch, Op: e.Op, Body: e.Body, Data: e.Data}
			lsn++
			if len(e.Data) > 0 {
				rec.Loc = Loc{File: h.incarnation, Off: off + int64(dataOff), Len: uint32(len(e.Data)), CRC: crc}
			}
			if rec.LSN <= r.after {
				return nil
			}
			return fn(rec)
		})
		if err != nil {
			return err
		}
	}
	if r.info.First == 0 {
		r.info.First = max(h.first, r.after+1)
	}
	r.info.Last, r.info.Epoch = h.last(), h.epoch
	return nil
}

// tear decides whether good records end with a torn tail or with damage; files
// begins with the one where they end.
func (r *replayer) tear(t *tornAt, files []*file) error {
	for i, f := range files {
		from := int64(headerSize)
		if i == 0 && t.off > from {
			from = t.off
		}
		if err := r.load(f); err != nil {
			return err
		}
		end := from
		if i == 0 {
			end += r.claimed(from, f)
		}
		findGroups(r.buf, from, f.head.incarnation, t.lsn-1, func(off int64, h groupHeader) {
			r.info.Durable = max(r.info.Durable, h.durable)
			end = max(end, off+int64(h.length))
		})
		r.info.TornBytes += end - from
		if i > 0 || t.off == 0 {
			f.last = 0
		}
	}
	if r.lost() {
		return r.damage(t)
	}
	r.info.Torn = true
	r.info.TornReason = fmt.Sprintf("%s at byte %d, lsn %d: %s", r.j.path(t.file.name), t.off, t.lsn, t.reason)
	return nil
}

// claimed is the length that a bad group says it has, as far as it can be.
func (r *replayer) claimed(off int64, f *file) int64 {
	b := r.buf[min(off, int64(len(r.buf))):]
	if len(b) < groupHeaderSize || le.Uint64(b[24:]) != f.head.incarnation {
		return 0
	}
	return min(int64(le.Uint32(b[8:])), int64(len(b)))
}
