package binlogfs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"
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
	defer func() {
		x.mu.Lock()
		x.dumping = false
		x.mu.Unlock()
		if x.s.opt.Keeper != nil {
			x.s.opt.Keeper.Done(x)
		}
	}()
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

// progress tells others how far the replica is.
func (d *dump) progress(f *FileInfo, off int64, waiting bool) {
	d.x.mu.Lock()
	defer d.x.mu.Unlock()
	d.x.rep.Sent, d.x.rep.Waiting = Position{f.Epoch, f.Name, off}, waiting
}
