package binlogfs

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/go-mysql-org/go-mysql/replication"
)

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
		head = []byte{0, semiSyncMagic, 0}
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
		binary.LittleEndian.PutUint32(event[createdAt:], 0)
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
	body := state.encodeList()
	binary.LittleEndian.PutUint32(body, binary.LittleEndian.Uint32(body)|untilReached)
	event := append(make([]byte, headerSize), body...)
	h := Header{Type: replication.MARIADB_GTID_LIST_EVENT, ServerID: d.x.s.opt.ServerID, LogPos: uint32(off), Flags: flagArtificial}
	if err := d.made(seal(event, h, d.checksum)); err != nil {
		return err
	}
	return errEnd
}
