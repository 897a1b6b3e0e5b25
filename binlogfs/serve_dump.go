package binlogfs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
)

const (
	minHeartbeat = 10 * time.Millisecond
	fileTail     = 512     // bytes; more than a Rotate event has
	untilReached = 1 << 28 // MariaDB's flag in the count of a Gtid_list event
)

var (
	// errEnd ends a dump in good order.
	errEnd = errors.New("the end of the log")
	// errDuplicate ends the dump of a replica that came again.
	errDuplicate = fatal("A slave or replica with the same server_uuid/server_id as this one has connected to the binlog relay")
)

// dump is the stream of events to one replica. One goroutine sends; a second
// only reads acknowledgements and sees the client go. Both are waited for before
// the connection's goroutine goes on.
type dump struct {
	x    *session
	a    Archive
	raw  net.Conn
	out  *packetWriter
	req  *dumpRequest
	skip skipper

	byGTID    bool
	semi      bool
	plain     bool          // without Annotate_rows events
	heartbeat time.Duration // 0: none
	checksum  bool          // of the events that are being sent
	sent      *GTIDState    // for a replica with an UNTIL; else nil
	last      time.Time     // when something was sent
	skipping  bool          // the open group
	gone      chan struct{} // closed when the client went
}

// dump serves a replica until one of both goes.
func (x *session) dump(gtid bool, data []byte) {
	d := &dump{
		x: x, a: x.s.opt.Archive, raw: x.raw, gone: make(chan struct{}), last: time.Now(),
		out: newPacketWriter(x.ctx, x.raw, x.conn.Sequence),
	}
	var reading sync.WaitGroup
	err := d.prepare(gtid, data)
	if err == nil {
		err = x.raw.SetReadDeadline(time.Time{})
	}
	if err == nil {
		reading.Go(func() {
			defer close(d.gone)
			err := readAcks(d.raw, x.acked)
			x.s.opt.Logger.Debug("a replica's side of a dump ended", "replica", d.req.serverID, "error", err)
		})
		err = d.run(x.ctx)
	}
	d.finish(err)
	x.raw.Close() // ends the reading; what its error would say was said
	reading.Wait()
	x.mu.Lock()
	x.dumping = false
	x.mu.Unlock()
	if x.s.opt.Keeper != nil {
		x.s.opt.Keeper.Done(x)
	}
}

// acked notes how far the replica has stored the log.
func (x *session) acked(file string, pos int64) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.rep.Acked = Position{x.rep.Sent.Epoch, file, pos}
}

// finish sends the last word: an error, or an EOF.
func (d *dump) finish(err error) {
	var msg []byte
	switch {
	case errors.Is(err, errEnd):
		msg = eofMessage()
	case d.x.ctx.Err() != nil:
		cause := context.Cause(d.x.ctx)
		if errors.Is(cause, errGone) || errors.Is(cause, context.Canceled) {
			return
		}
		msg = errorMessage(asFatal(cause))
	case d.clientGone():
		return
	default:
		d.x.s.opt.Logger.Warn("a replica's dump ended", "client", d.raw.RemoteAddr().String(), "error", err)
		msg = errorMessage(asFatal(err))
	}
	if d.out.left > 0 {
		return // within an event: an error can't be told any more
	}
	err = d.out.begin(len(msg))
	if err == nil {
		_, err = d.out.Write(msg)
	}
	if err == nil {
		err = d.out.flush()
	}
	if err != nil {
		d.x.s.opt.Logger.Debug("a replica was gone", "error", err)
	}
}

func (d *dump) clientGone() bool {
	select {
	case <-d.gone:
		return true
	default:
		return false
	}
}

// prepare reads the request and the session's variables, and sends an older
// dump of the same replica away.
func (d *dump) prepare(gtid bool, data []byte) (err error) {
	if d.req, err = parseDump(gtid, data); err != nil {
		return err
	}
	x, vars := d.x, d.x.vars
	d.semi = x.s.opt.SemiSync && vars["rpl_semi_sync_slave"] == "1"
	d.checksum = strings.EqualFold(vars["master_binlog_checksum"], "CRC32")
	if n, err := strconv.ParseInt(vars["master_heartbeat_period"], 10, 64); err == nil && n > 0 {
		d.heartbeat = max(time.Duration(n), minHeartbeat)
	}
	_, connectState := vars["slave_connect_state"]
	mariadb := x.s.flavor() == MariaDB
	d.byGTID = mariadb && connectState || d.req.set != nil
	capability, err := strconv.Atoi(vars["mariadb_slave_capability"])
	d.plain = mariadb && err == nil && capability >= 2 && d.req.flags&dumpAnnotate == 0
	x.mu.Lock()
	x.rep = Replica{
		ConnectionID: x.id, User: x.user, Address: d.raw.RemoteAddr().String(), ServerID: d.req.serverID, UUID: vars["slave_uuid"],
		ReportHost: x.rep.ReportHost, ReportPort: x.rep.ReportPort, Since: time.Now(), GTID: d.byGTID, SemiSync: d.semi,
	}
	x.dumping = true
	rep := x.rep
	x.mu.Unlock()
	for _, o := range x.s.list() {
		if o != x && o.sameReplica(&rep) {
			o.kill(errDuplicate)
		}
	}
	return nil
}

// sameReplica says whether a session dumps to that replica: MySQL's are told
// apart by their UUIDs, MariaDB's by their server ids, and tools have none.
func (x *session) sameReplica(r *Replica) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if !x.dumping {
		return false
	}
	if r.UUID != "" || x.rep.UUID != "" {
		return r.UUID == x.rep.UUID
	}
	return r.ServerID != 0 && r.ServerID == x.rep.ServerID
}

// run sends the log from where the replica asked.
func (d *dump) run(ctx context.Context) error {
	if files, _ := usable(d.a); len(files) > 0 {
		d.need(files[0], 0) // nothing goes until it is known what is needed
	}
	f, offset, err := d.start()
	if err != nil {
		return err
	}
	for first := true; ; first = false {
		next, err := d.stream(ctx, f, offset, first)
		if err != nil {
			return err
		}
		if next.Epoch != f.Epoch {
			if !d.byGTID {
				return errNoFile()
			}
			end, err := stateAfter(d.current(f))
			if err != nil {
				return err
			}
			d.skip.newEpoch(end)
		}
		f, offset = next, int64(len(magic))
	}
}

// current is a file's catalogue as it is now.
func (d *dump) current(f *FileInfo) *FileInfo {
	for _, g := range d.a.Files() {
		if g.Epoch == f.Epoch && g.Name == f.Name {
			return g
		}
	}
	return f
}

// start decides where the stream begins.
func (d *dump) start() (f *FileInfo, offset int64, err error) {
	s, vars := d.x.s, d.x.vars
	switch {
	case !d.byGTID:
		return s.startByPosition(d.req)
	case d.req.set != nil && d.req.file != "":
		// A tool that names a file, and GTIDs that it does not want.
		d.skip.have = d.req.set
		return s.startByPosition(d.req)
	case d.req.set != nil:
		if s.flavor() != MySQL {
			return nil, 0, fatal("The binlog relay has the log of a MariaDB server, which has no GTIDs of MySQL's kind")
		}
		if f, err = s.startMySQL(d.req.set); err != nil {
			return nil, 0, err
		}
		d.skip.have = d.req.set
		return f, d.skip.jump(f), nil
	}
	want, err := parsePositions(vars["slave_connect_state"])
	if err != nil {
		return nil, 0, err
	}
	if f, d.skip.wait, err = s.startMariaDB(want); err != nil {
		return nil, 0, err
	}
	d.skip.strict = vars["slave_gtid_strict_mode"] == "1"
	if until, ok := vars["slave_until_gtid"]; ok {
		if d.skip.until, err = parsePositions(until); err != nil {
			return nil, 0, err
		}
		d.skip.limited = true
		for domain, g := range d.skip.until {
			if at := want[domain]; at.ServerID == g.ServerID && at.Number >= g.Number {
				delete(d.skip.until, domain)
			}
		}
		d.sent = NewGTIDState(MariaDB)
	}
	return f, d.skip.jump(f), nil
}

// need keeps a file and what follows it.
func (d *dump) need(f *FileInfo, offset int64) {
	pos := Position{f.Epoch, f.Name, offset}
	if d.x.s.opt.Keeper != nil {
		d.x.s.opt.Keeper.Need(d.x, pos)
	}
}

// stream sends a file from offset to its end, and returns the one after it.
func (d *dump) stream(ctx context.Context, f *FileInfo, offset int64, first bool) (next *FileInfo, err error) {
	d.need(f, offset)
	if err := d.rotate(f, offset); err != nil {
		return nil, err
	}
	// A file may be there before anything of it is published.
	for publishedEnd(d.a, f) <= int64(len(magic)) {
		if next, err := d.wait(ctx, f, offset); err != nil || next != nil {
			return next, err
		}
		f = d.current(f)
	}
	w, err := openWalker(ctx, d.a, f)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	if err := d.format(ctx, w, offset, first); err != nil {
		return nil, err
	}
	if offset == int64(len(magic)) {
		err = w.goTo(f, offset, publishedEnd(d.a, f))
		if err == nil {
			err = w.next(publishedEnd(d.a, f))
		}
		if err == nil {
			err = w.skip() // the format description was sent
		}
	} else if err = w.goTo(f, offset, publishedEnd(d.a, f)); errors.Is(err, errNoEvent) {
		err = fatal("Client requested master to start replication from position %d of %s, where no event begins", offset, f.Name)
	}
	if err != nil {
		return nil, err
	}
	if d.skip.reached() {
		return nil, d.reachedUntil(f, w.off)
	}
	for {
		if next, err := d.events(ctx, f, w); err != nil || next != nil {
			return next, err
		}
		if next, err := d.wait(ctx, f, w.off); err != nil || next != nil {
			return next, err
		}
	}
}

// limit is how far the file may be read, and the file after it when it is
// finished.
func (d *dump) limit(f *FileInfo) (limit int64, next *FileInfo, changed <-chan struct{}, err error) {
	end, changed := d.a.End()
	if end.Epoch == f.Epoch && end.File == f.Name {
		return end.Offset, nil, changed, nil
	}
	files := d.a.Files()
	for i, g := range files {
		if g.Epoch == f.Epoch && g.Name == f.Name && i+1 < len(files) {
			return g.Size, files[i+1], changed, nil
		}
	}
	return 0, nil, nil, fmt.Errorf("%w: the archive has lost %s while it was being sent", ErrCorrupt, f.Path())
}

// events sends what is published of the file.
func (d *dump) events(ctx context.Context, f *FileInfo, w *walker) (next *FileInfo, err error) {
	limit, next, _, err := d.limit(f)
	if err != nil {
		return nil, err
	}
	for w.off < limit {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if err := w.next(limit); err != nil {
			return nil, err
		}
		if err := d.event(f, w, limit); err != nil {
			return nil, err
		}
	}
	d.progress(f, w.off, false)
	return next, nil
}

// event sends an event, or passes over it.
func (d *dump) event(f *FileInfo, w *walker, limit int64) error {
	if (w.step == StepBegin || w.step == StepWhole) && d.skip.active() {
		skip, err := d.skip.group(w.groups.GTID())
		if err != nil {
			return err
		}
		d.skipping = skip
		if d.sent != nil {
			d.sent.Add(w.groups.GTID())
		}
	}
	skip := d.skipping
	if !w.groups.Open() {
		d.skipping = false
		if w.step != StepHead && d.skip.reached() {
			if err := d.pass(f, w, skip, limit); err != nil {
				return err
			}
			return d.reachedUntil(f, w.off)
		}
	}
	return d.pass(f, w, skip, limit)
}

// pass sends the walker's event unless it is skipped, and goes to the next.
func (d *dump) pass(f *FileInfo, w *walker, skip bool, limit int64) error {
	if skip || d.plain && w.head.Type == replication.MARIADB_ANNOTATE_ROWS_EVENT {
		if err := w.skip(); err != nil {
			return err
		}
		// Passing over much takes long: the replica must not think that it is alone.
		if d.heartbeat > 0 && time.Since(d.last) >= d.heartbeat {
			return d.beat(f, w.off)
		}
		return nil
	}
	// One acknowledgement stands for all before it: it is asked for at the end of
	// what there is, behind which a file may still have a Rotate or Stop event.
	needAck := w.step != StepHead && !w.groups.Open() && w.off+int64(w.head.Size)+fileTail >= limit
	if err := d.begin(int(w.head.Size), needAck); err != nil {
		return err
	}
	return w.copyTo(d.out)
}

// begin starts the message of an event of n bytes.
func (d *dump) begin(n int, needAck bool) error {
	head := []byte{0}
	if d.semi {
		head = []byte{0, semiSyncMark, 0}
		if needAck {
			head[2] = 1
		}
	}
	if err := d.out.begin(len(head) + n); err != nil {
		return err
	}
	_, err := d.out.Write(head)
	return err
}

// made sends an event that is in no file.
func (d *dump) made(event []byte) error {
	if err := d.begin(len(event), false); err != nil {
		return err
	}
	_, err := d.out.Write(event)
	return err
}

// rotate tells the replica where what follows lies.
func (d *dump) rotate(f *FileInfo, offset int64) error {
	h := Header{Flags: flagArtificial, ServerID: d.x.s.opt.ServerID}
	return d.made(RotateEvent(h, f.Name, uint64(offset), d.checksum))
}

// format sends the file's format description. Where the stream does not begin
// at the file's beginning, it must not count as an event at its place; and where
// it is not the file's first reading, replicas must not drop temporary tables.
func (d *dump) format(ctx context.Context, w *walker, offset int64, first bool) error {
	event, err := readFDE(ctx, w)
	if err != nil {
		return err
	}
	if _, asked := d.x.vars["master_binlog_checksum"]; w.format.Checksum && !asked {
		return fatal("Slave can not handle replication events with the checksum that master is configured to log; set @master_binlog_checksum first")
	}
	d.checksum = w.format.Checksum
	h, err := DecodeHeader(event)
	if err != nil {
		return err
	}
	h.Flags &^= flagInUse
	h.put(event)
	if first && (offset > int64(len(magic)) || d.byGTID) {
		const created = headerSize + 2 + 50
		binary.LittleEndian.PutUint32(event[created:], 0)
		if offset > int64(len(magic)) {
			h.LogPos = 0
		}
		// A format description has a checksum also where the others have none.
		event = seal(event[:len(event)-checksumSize], h, true)
	}
	return d.made(event)
}

// readFDE reads the format description at the beginning of a file.
func readFDE(ctx context.Context, w *walker) ([]byte, error) {
	event := make([]byte, 4096)
	n, err := w.file.Read(ctx, event, int64(len(magic)))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.name, err)
	}
	h, err := DecodeHeader(event[:n])
	if err == nil && int64(h.Size) > int64(n) {
		err = fmt.Errorf("%w: it ends within its format description", ErrCorrupt)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.name, err)
	}
	return event[:h.Size], nil
}

// wait sends what is buffered and waits for more of the file, or for the next.
func (d *dump) wait(ctx context.Context, f *FileInfo, off int64) (next *FileInfo, err error) {
	if err := d.out.flush(); err != nil {
		return nil, err
	}
	d.last = time.Now()
	for {
		limit, next, changed, err := d.limit(f)
		if err != nil {
			return nil, err
		}
		if limit > off || next != nil {
			if limit > off {
				next = nil
			}
			return next, nil
		}
		if d.req.flags&dumpNonBlock != 0 {
			return nil, errEnd
		}
		d.progress(f, off, true)
		var beat <-chan time.Time
		stop := func() {}
		if d.heartbeat > 0 {
			t := time.NewTimer(d.heartbeat)
			beat, stop = t.C, func() { t.Stop() }
		}
		select {
		case <-changed:
		case <-beat:
			err = d.beat(f, off)
		case <-d.gone:
			err = errGone
		case <-ctx.Done():
			err = ctx.Err()
		}
		stop()
		if err != nil {
			return nil, err
		}
	}
}

// beat tells the replica that the relay lives.
func (d *dump) beat(f *FileInfo, off int64) error {
	id := d.x.s.opt.ServerID
	var event []byte
	switch {
	case f.Flavor == MySQL && d.req.flags&dumpHeartbeatV2 != 0:
		event = heartbeatV2(id, f.Name, off, d.checksum)
	case off >= 1<<32:
		// The older heartbeat has no room for the position; a Rotate to where the
		// replica is tells the same.
		event = RotateEvent(Header{Flags: flagArtificial, ServerID: id}, f.Name, uint64(off), d.checksum)
	default:
		event = HeartbeatEvent(id, f.Name, off, d.checksum)
	}
	if err := d.made(event); err != nil {
		return err
	}
	d.last = time.Now()
	return d.out.flush()
}

// heartbeatV2 is MySQL's heartbeat since 8.0.26: fields of number, length and
// value, of which 1 is the file, 2 the position, and 0 the end (MySQL's
// libbinlogevents, codecs/binary.cpp).
func heartbeatV2(serverID uint32, file string, pos int64, withChecksum bool) []byte {
	event := make([]byte, headerSize, headerSize+32+len(file))
	event = append(event, 1)
	event = appendPacked(event, uint64(len(file)))
	event = append(event, file...)
	value := appendPacked(nil, uint64(pos))
	event = append(event, 2)
	event = appendPacked(event, uint64(len(value)))
	event = append(append(event, value...), 0)
	h := Header{Type: replication.HEARTBEAT_LOG_EVENT_V2, ServerID: serverID}
	return seal(event, h, withChecksum)
}

// appendPacked appends a number as the protocol packs it.
func appendPacked(b []byte, n uint64) []byte {
	switch {
	case n < 251:
		return append(b, byte(n))
	case n < 1<<16:
		return append(b, 252, byte(n), byte(n>>8))
	case n < 1<<24:
		return append(b, 253, byte(n), byte(n>>8), byte(n>>16))
	}
	return binary.LittleEndian.AppendUint64(append(b, 254), n)
}

// reachedUntil tells a replica of MariaDB's that its UNTIL is reached, and ends
// the stream.
func (d *dump) reachedUntil(f *FileInfo, off int64) error {
	state := d.sent
	if p, err := ParseGTIDState(f.Flavor, f.Previous); err == nil {
		p.Merge(state)
		state = p
	}
	list := state.list()
	event := make([]byte, headerSize, headerSize+4+16*len(list)+8)
	event = binary.LittleEndian.AppendUint32(event, uint32(len(list))|untilReached)
	for _, g := range list {
		event = binary.LittleEndian.AppendUint32(event, g.Domain)
		event = binary.LittleEndian.AppendUint32(event, g.ServerID)
		event = binary.LittleEndian.AppendUint64(event, g.Number)
	}
	if len(list) == 0 {
		event = append(event, 0, 0) // an empty list has room for nothing, as servers write it
	}
	h := Header{Type: replication.MARIADB_GTID_LIST_EVENT, ServerID: d.x.s.opt.ServerID, LogPos: uint32(off), Flags: flagArtificial}
	if err := d.made(seal(event, h, d.checksum)); err != nil {
		return err
	}
	return errEnd
}

// progress tells others how far the replica is.
func (d *dump) progress(f *FileInfo, off int64, waiting bool) {
	d.x.mu.Lock()
	defer d.x.mu.Unlock()
	d.x.rep.Sent, d.x.rep.Waiting = Position{f.Epoch, f.Name, off}, waiting
}
