package binlogfs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"
)

// ErrMode: an archive in mirror mode is written in own mode, or the other way.
var ErrMode = errors.New("the archive is kept in another mode")

const (
	ownName        = "binlog"
	leastOwnSize   = 4096
	mostOwnSize    = 1 << 30             // as servers have it: places in events have 32 bits
	createdAt      = headerSize + 2 + 50 // of a format description, behind the version of the format and the server's
	flagIgnorable  = 0x80                // of MySQL's Previous_gtids event
	firstOwnNumber = ".000001"
)

// OwnFiles is the sequence of files that an archive keeps in own mode, instead of
// its source's:
//
//	magic | format description | list of GTIDs | group | group | … | Rotate to the next
//
// A file's format description is that of the source's file from which its groups
// are. Groups are the source's, with their places and checksums made anew; what is
// outside of groups is not kept. A file ends before the first group that begins at
// MaxSize or beyond, where the source's format changes or the source began anew,
// and, with MySQL, where the source's file ends: the numbers by which its replicas
// find what may run in parallel count within a file.
type OwnFiles struct {
	Name     string // of the files, without their numbers; default "binlog"
	MaxSize  int64  // bytes, 4096 to 1 GiB; default 1 GiB
	ServerID uint32 // the relay's own, in the events that it makes
}

// Validate completes the options, or says what is wrong with them.
func (o *OwnFiles) Validate() error {
	if o.Name == "" {
		o.Name = ownName
	}
	if o.MaxSize == 0 {
		o.MaxSize = mostOwnSize
	}
	switch {
	case strings.ContainsAny(o.Name, "/\x00\n") || o.Name[0] == '.' || len(o.Name) > 100:
		return fmt.Errorf("name of binary logs %q: it must be a file's name of up to 100 bytes", o.Name)
	case o.MaxSize < leastOwnSize || o.MaxSize > mostOwnSize:
		return fmt.Errorf("size of binary logs %d: it must be %d to %d bytes", o.MaxSize, leastOwnSize, mostOwnSize)
	case o.ServerID == 0:
		return errors.New("own mode needs the relay's server id")
	}
	return nil
}

// ownState is own mode's part of an Appender.
type ownState struct {
	opt    OwnFiles
	state  *GTIDState // of the groups in the archive's files; nil until the first group of the first file
	latest *GTIDState // what the source's file begins with; nil until it told

	// The source's side.
	file     string
	end      int64  // place in file up to which its events came
	boundary int64  // place of the last group's end
	fde      []byte // its format description
	format   Format
	began    bool // the source began anew since the archive's file was made
	other    bool // another source goes on, and the archive's file is the one's before
	again    bool // the group that is passed over was sent before
	check    checksum
	logPos   uint32 // of the event that is under way, as the source has it
}

// nextName is the name of the file after name.
func nextName(name string) string {
	dot := strings.LastIndexByte(name, '.')
	digits := name[dot+1:]
	return fmt.Sprintf("%s.%0*d", name[:dot], len(digits), logNumber(name)+1)
}

// ownMode returns the options of own mode, or nil in mirror mode; ErrMode when the
// archive is kept otherwise.
func (l *Log) ownMode() (*OwnFiles, error) {
	l.mu.Lock()
	had, used := l.ident.Own, len(l.ident.Sources) > 0
	l.mu.Unlock()
	o := l.opt.Own
	switch {
	case !used || o == nil && had == "" || o != nil && o.Name == had:
		return o, nil
	case o == nil:
		return nil, fmt.Errorf("%w: it has files of its own, %s: write to it in own mode, or choose another directory for it", ErrMode, had+firstOwnNumber)
	case had == "":
		return nil, fmt.Errorf("%w: it has its source's files: write to it in mirror mode, or choose another directory for it", ErrMode)
	}
	return nil, fmt.Errorf("%w: its files are called %s, and not %s", ErrMode, had+firstOwnNumber, o.Name+firstOwnNumber)
}

// published is the state of GTIDs at the end of all that is published, told of or
// not: from where a source that is asked by GTID is to go on. It is nil in an
// archive without groups.
func (l *Log) published(ctx context.Context) (*GTIDState, error) {
	files := l.Files()
	for i := len(files) - 1; i >= 0; i-- {
		t, err := l.rescan(ctx, files[i], l.path(files[i]))
		if err != nil {
			return nil, err
		}
		if t.info.Server == "" {
			continue // made, and nothing published yet
		}
		state, err := stateAfter(t.catalogue())
		if last := l.State(); err == nil && files[i].Epoch > 1 && last != nil && last.Flavor() == state.Flavor() {
			last.MergeNew(state) // earlier epochs have more
			state = last
		}
		return state, err
	}
	return nil, nil
}

// resumeOwn opens the last file of the sequence.
func (a *Appender) resumeOwn(ctx context.Context) (err error) {
	if a.own.state, err = a.l.published(ctx); err != nil {
		return err
	}
	if last, _ := a.Resume(); last != "" {
		return a.reopen(ctx, last)
	}
	return nil
}

// ownRotate follows the source to a file.
func (a *Appender) ownRotate(ctx context.Context, name string, offset int64) error {
	if !isLogName(name) {
		return errLogName(name)
	}
	if err := a.drop(ctx); err != nil {
		return err
	}
	o := a.own
	a.skipping = false
	if name != o.file {
		a.received(name, offset)
		o.file, o.end, o.boundary = name, offset, offset
	}
	return nil
}

// ownFormat takes the source's format description.
func (a *Appender) ownFormat(ctx context.Context, event []byte, h Header, f Format) error {
	if err := a.drop(ctx); err != nil {
		return err
	}
	o := a.own
	o.fde, o.format, a.skipping = event, f, false
	if binary.LittleEndian.Uint32(event[createdAt:]) != 0 && h.LogPos != 0 && o.end == int64(len(magic)) {
		o.began = true
	}
	if o.end == int64(len(magic)) && h.LogPos != 0 {
		o.end = int64(h.LogPos)
	}
	return nil
}

// ownEvent takes an event that is neither a Rotate for replicas nor a format
// description nor a heartbeat.
func (a *Appender) ownEvent(ctx context.Context, raw []byte, h Header, size int64, r io.Reader) (stored bool, err error) {
	o := a.own
	if o.fde == nil {
		return false, fmt.Errorf("%w: an event %s before the source's format description", ErrCorrupt, EventName(h.Type))
	}
	whole, err := bodySize(&o.format, h)
	if err != nil {
		return false, err
	}
	body, err := a.readPrefix(h, whole, r)
	if err != nil {
		return false, err
	}
	store, err := a.ownJudge(ctx, h, body, whole)
	if err != nil {
		return false, err
	}
	if !store {
		a.received(o.file, o.end)
		return false, discard(r, size-headerSize-int64(len(body)))
	}
	o.check, o.logPos = newChecksum(raw), h.LogPos
	h.LogPos = uint32(a.t.end + int64(h.Size))
	h.put(raw)
	return true, a.store(ctx, raw, h, body, whole, r)
}

// ownJudge decides whether an event is of a group that is to be stored, and makes
// room for one that begins.
func (a *Appender) ownJudge(ctx context.Context, h Header, body []byte, whole int) (store bool, err error) {
	o := a.own
	if h.Artificial() {
		return false, nil
	}
	if a.t != nil && a.t.groups.Open() {
		end := o.end + int64(h.Size)
		if h.LogPos != uint32(end) && h.LogPos != 0 {
			return false, fmt.Errorf("%w: an event %s that ends at %d, where %s is at %d", ErrCorrupt, EventName(h.Type), h.LogPos, o.file, end)
		}
		o.end = end
		return true, nil
	}
	if !a.skipping {
		a.skip.Reset()
	}
	step, err := a.skip.Next(&o.format, h, body, whole)
	if err != nil {
		return false, err
	}
	begins, again := o.place(h)
	switch {
	case a.skipping:
		a.skipping = a.skip.Open()
		o.passed(begins, h)
		return false, nil
	case step == StepHead:
		o.again = again
		o.passed(begins, h)
		return false, a.ownHead(h, body)
	}
	known, err := a.ownKnown(a.skip.GTID(), begins, again)
	if err != nil {
		return false, err
	}
	o.again = again
	o.passed(begins, h)
	if known {
		a.skipping = a.skip.Open()
		return false, nil
	}
	return true, a.ownRoom(ctx)
}

// place is where an event begins in the source's file; again says that it lies
// before what came already. Events tell the lower 32 bits of where they end.
func (o *ownState) place(h Header) (begins int64, again bool) {
	if h.LogPos == 0 {
		return o.end, false
	}
	ahead := int32(h.LogPos - h.Size - uint32(o.end))
	return o.end + int64(ahead), ahead < 0
}

// passed goes on behind an event, unless it was sent again.
func (o *ownState) passed(begins int64, h Header) {
	if !o.again {
		o.end = begins + int64(h.Size)
	}
}

// ownHead takes an event outside of groups: of these only the lists of GTIDs
// count. The source must not have logged more than came.
func (a *Appender) ownHead(h Header, body []byte) (err error) {
	o := a.own
	if h.Type != replication.PREVIOUS_GTIDS_EVENT && h.Type != replication.MARIADB_GTID_LIST_EVENT {
		return nil
	}
	if o.latest, err = DecodePreviousGTIDs(o.format.Flavor, body); err != nil {
		return fmt.Errorf("%s of the source: %w", o.file, err)
	}
	if o.state == nil {
		return nil
	}
	if more := o.state.Missing(o.latest); more != "" {
		return fmt.Errorf("%w: the source's %s begins after groups that it did not send: %s", ErrGap, o.file, more)
	}
	return nil
}

// ownKnown says whether the archive has a group. MySQL's sets tell exactly. With
// MariaDB a later number stands for all before it, so the place counts, too.
func (a *Appender) ownKnown(g GTID, begins int64, again bool) (bool, error) {
	o := a.own
	switch {
	case g.Zero():
		return false, &fatalError{fmt.Errorf("%w: a group at %d of the source's %s has no GTID, and own mode needs them: set gtid_mode=ON there, or use mirror mode", ErrMode, begins, o.file)}
	case o.state == nil:
		return false, nil
	}
	has := o.state.Has(g)
	switch {
	case again && !has:
		return false, fmt.Errorf("%w: the group %s lies at %d of the source's %s, before what came already", ErrGap, g, begins, o.file)
	case !has || g.Flavor == MySQL || again:
		return has, nil
	case begins == o.end:
		return false, nil // it follows what came; its number does not ascend
	case o.state.Last(g.Domain) == g:
		return true, nil
	}
	return false, fmt.Errorf("%w: by its number the group %s is archived already, and the source sends it at %d of %s: own mode needs numbers that ascend, as with gtid_strict_mode=1", ErrGap, g, begins, o.file)
}

// ownRoom sees to it that the file may take a group of the source's present file.
func (a *Appender) ownRoom(ctx context.Context) error {
	o := a.own
	a.l.mu.Lock()
	from := a.l.ownFrom
	a.l.mu.Unlock()
	switch {
	case a.t == nil, a.t.info.Server == "", a.t.info.Closed, o.began, o.other, a.t.end >= o.opt.MaxSize, !a.t.format.same(&o.format),
		o.format.Flavor == MySQL && from != o.file:
		// A cut that fails is due to the next attempt as well.
		if err := a.Cut(ctx); err != nil {
			return err
		}
	}
	a.l.mu.Lock()
	a.l.ownFrom = o.file
	a.l.mu.Unlock()
	return nil
}

// same says whether events of both are written alike, by the same server.
func (f *Format) same(o *Format) bool {
	return f.Server == o.Server && f.Checksum == o.Checksum && string(f.lengths) == string(o.lengths)
}

// Cut ends the file of an own sequence, between two groups, and begins the next.
// Without a file, and before the source told its format, it does nothing.
func (a *Appender) Cut(ctx context.Context) error {
	o := a.own
	if o == nil || o.fde == nil {
		return nil
	}
	headless := a.t != nil && a.t.info.Server == ""
	if !headless {
		name := o.opt.Name + firstOwnNumber
		if last, _ := a.Resume(); last != "" {
			name = nextName(last)
		}
		if err := a.ownEnd(ctx, name); err != nil {
			return err
		}
		if err := a.create(ctx, name); err != nil {
			return err
		}
	}
	return a.ownBegin()
}

// Open says whether a group is under way.
func (a *Appender) Open() bool { return a.t != nil && a.t.groups.Open() }

// ownEnd closes the present file with a Rotate to the next.
func (a *Appender) ownEnd(ctx context.Context, next string) error {
	if a.t == nil {
		return nil
	}
	if !a.t.info.Closed {
		h := Header{Time: uint32(a.l.opt.Now().Unix()), ServerID: a.own.opt.ServerID}
		size := headerSize + 8 + len(next)
		if a.t.format.Checksum {
			size += checksumSize
		}
		h.LogPos = uint32(a.t.end + int64(size))
		if err := a.made(RotateEvent(h, next, uint64(len(magic)), a.t.format.Checksum)); err != nil {
			return err
		}
		a.ready = a.t.end
	}
	return a.leave(ctx)
}

// ownBegin gives the file that was made its head, which is published as one.
func (a *Appender) ownBegin() error {
	o := a.own
	if o.state == nil {
		o.state = NewGTIDState(o.format.Flavor)
		if o.latest != nil {
			o.state = o.latest.Clone()
		}
	}
	now := uint32(a.l.opt.Now().Unix())
	fde := append([]byte(nil), o.fde[:len(o.fde)-checksumSize]...)
	if !o.began {
		binary.LittleEndian.PutUint32(fde[createdAt:], 0)
	}
	h := Header{Time: now, Type: replication.FORMAT_DESCRIPTION_EVENT, ServerID: o.opt.ServerID, LogPos: uint32(a.t.end + int64(len(o.fde)))}
	a.t.format = o.format
	if err := a.made(seal(fde, h, true)); err != nil {
		return err
	}
	kind, flags, body := replication.MARIADB_GTID_LIST_EVENT, uint16(0), []byte(nil)
	if o.format.Flavor == MySQL {
		kind, flags, body = replication.PREVIOUS_GTIDS_EVENT, flagIgnorable, o.state.Encode()
	} else {
		body = o.state.encodeList()
	}
	size := headerSize + len(body)
	if o.format.Checksum {
		size += checksumSize
	}
	h = Header{Time: now, Type: kind, ServerID: o.opt.ServerID, LogPos: uint32(a.t.end + int64(size)), Flags: flags}
	if err := a.made(seal(append(make([]byte, headerSize), body...), h, o.format.Checksum)); err != nil {
		return err
	}
	a.ready, o.began, o.other = a.t.end, false, false
	return nil
}

// made adds an event of the relay's own to the buffer.
func (a *Appender) made(event []byte) error {
	h, err := DecodeHeader(event)
	if err != nil {
		return err
	}
	whole, err := a.t.bodySize(h)
	if err != nil {
		return err
	}
	if err := a.t.begin(event[:headerSize], h, event[headerSize:headerSize+whole], whole); err != nil {
		return err
	}
	a.t.bytes(event)
	a.buf = append(a.buf, event...)
	_, err = a.t.finish()
	return err
}

// ownSum turns the source's checksum of an event, which must be right, into that
// of the event as it is stored.
func (a *Appender) ownSum(sum []byte) error {
	o := a.own
	if got := binary.LittleEndian.Uint32(sum); got != o.check.value {
		return fmt.Errorf("%w: checksum of the event %s before %d of the source's %s", ErrCorrupt, EventName(a.t.header.Type), o.end, o.file)
	}
	binary.LittleEndian.PutUint32(sum, a.t.crc32.value)
	return nil
}

// ownGroup notes that a group has ended.
func (a *Appender) ownGroup() {
	o := a.own
	o.boundary = o.end
	if a.t.step == StepEnd || a.t.step == StepWhole {
		o.state.Add(a.t.groups.GTID())
	}
}
