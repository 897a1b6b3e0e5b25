package binlogfs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"regexp"
	"strings"

	"github.com/go-mysql-org/go-mysql/replication"
)

// Ripple, an older relay, keeps binary logs in a format of its own:
//
//	binlog.index   # this is a binlog index for ripple
//	               filename=binlog.000000 start_pos='0-1-5' … end_pos='0-1-9' …
//	binlog.000000  magic | Ripple's format description | the source's | [Start_encryption] | events
//
// Its format descriptions end with the checksum algorithm, without a checksum;
// events have none either. Lists of GTIDs, checkpoints and Stop events are left
// out, and Rotate events name the source's files. A file in the archive is what
// a server would have written: one format description, the list of GTIDs from
// the index, the events with their places, and a Rotate to the next file.
const rippleIndex = "# this is a binlog index for ripple"

// readRippleIndex returns the files that are not purged, and the GTIDs that each
// begins with.
func readRippleIndex(name, body string) (names []string, starts map[string]string, err error) {
	starts = map[string]string{}
	for line := range strings.Lines(body) {
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		file, start, purged := "", "", false
		for field := range strings.FieldsSeq(line) {
			key, value, _ := strings.Cut(field, "=")
			switch key {
			case "filename":
				file = value
			case "start_pos":
				start = strings.Trim(value, "'")
			case "purged":
				purged = value == "1"
			}
		}
		if !isLogName(file) {
			return nil, nil, fmt.Errorf("%w: %s has a line that names no binary log: %.60q", ErrCorrupt, name, line)
		}
		if !purged {
			names, starts[file] = append(names, file), start
		}
	}
	return names, starts, nil
}

// rippleGTID is one sequence in Ripple's index: `[uuid:]domain-server-5`, or with
// intervals, `[1-5][7-9]`, in place of the number.
var rippleGTID = regexp.MustCompile(`^(?:([0-9a-fA-F-]{36}):)?(\d+)-(\d+)-(?:(\d+)|((?:\[\d+-\d+\])+))$`)

// parseRippleState reads the GTIDs of Ripple's index.
func parseRippleState(f Flavor, text string) (*GTIDState, error) {
	var parts []string
	for part := range strings.SplitSeq(text, ",") {
		if part == "" {
			continue
		}
		m := rippleGTID.FindStringSubmatch(part)
		switch {
		case m == nil, f == MySQL && m[1] == "", f == MariaDB && m[4] == "":
			return nil, fmt.Errorf("%w: Ripple's index has the GTID %q", ErrCorrupt, part)
		case f == MariaDB:
			parts = append(parts, m[2]+"-"+m[3]+"-"+m[4])
		case m[4] != "":
			parts = append(parts, m[1]+":1-"+m[4])
		default:
			parts = append(parts, m[1]+":"+strings.ReplaceAll(strings.Trim(m[5], "[]"), "][", ":"))
		}
	}
	return ParseGTIDState(f, strings.Join(parts, ","))
}

// rippleReader makes a server's file out of one of Ripple's.
type rippleReader struct {
	name, start, next string
	f                 io.Closer
	in                *bufio.Reader
	ready             bytes.Buffer // made and not read yet
	body              int64        // bytes of in that follow as they are
	out               int64        // place in the file that is made
	last              Header       // of the last event
	headed, ended     bool
}

func openRipple(dir fs.FS, name, start, next string) (io.ReadCloser, error) {
	f, err := dir.Open(name)
	if err != nil {
		return nil, err
	}
	r := &rippleReader{name: name, start: start, next: next, f: f, in: bufio.NewReaderSize(f, scanBuffer)}
	m, err := r.in.Peek(len(magic))
	if err != nil || string(m) != magic {
		return nil, errors.Join(fmt.Errorf("%w: %s is no binary log", ErrCorrupt, name), f.Close())
	}
	return r, nil
}

// Close implements io.Closer.
func (r *rippleReader) Close() error { return r.f.Close() }

// Read implements io.Reader.
func (r *rippleReader) Read(p []byte) (int, error) {
	for r.ready.Len() == 0 && r.body == 0 {
		if r.ended {
			return 0, io.EOF
		}
		if err := r.event(); err != nil {
			return 0, err
		}
	}
	if r.ready.Len() > 0 {
		return r.ready.Read(p)
	}
	n, err := r.in.Read(p[:min(int64(len(p)), r.body)])
	r.body -= int64(n)
	return n, unexpected(err)
}

// event makes the next event.
func (r *rippleReader) event() error {
	if r.out == 0 {
		if _, err := r.in.Discard(len(magic)); err != nil {
			return unexpected(err)
		}
		r.put([]byte(magic))
		return nil
	}
	raw, err := r.in.Peek(headerSize)
	if len(raw) == 0 && errors.Is(err, io.EOF) {
		return r.end()
	}
	if err != nil {
		return unexpected(err)
	}
	h, err := DecodeHeader(raw)
	if err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	switch h.Type {
	case replication.FORMAT_DESCRIPTION_EVENT:
		return r.format(h)
	case replication.MARIADB_START_ENCRYPTION_EVENT:
		return encrypted(r.name)
	case replication.ROTATE_EVENT:
		_, err := r.in.Discard(int(h.Size))
		return unexpected(err)
	}
	if !r.headed {
		return fmt.Errorf("%w: %s has an event %s before its source's format description", ErrCorrupt, r.name, EventName(h.Type))
	}
	if _, err := r.in.Discard(headerSize); err != nil {
		return unexpected(err)
	}
	r.last = h
	h.LogPos = uint32(r.out + int64(h.Size))
	head := make([]byte, headerSize)
	h.put(head)
	r.put(head)
	r.body = int64(h.Size) - headerSize
	r.out += r.body
	return nil
}

// format passes over Ripple's own format description, the first, and makes the
// source's and the list of GTIDs out of the second.
func (r *rippleReader) format(h Header) error {
	if h.Size < headerSize+formatFixed+1 || h.Size > 4096 {
		return fmt.Errorf("%w: %s has a format description of %d bytes", ErrCorrupt, r.name, h.Size)
	}
	event := make([]byte, h.Size)
	if _, err := io.ReadFull(r.in, event); err != nil {
		return unexpected(err)
	}
	if r.last.Type == 0 {
		r.last = h
		return nil
	}
	if r.headed {
		return fmt.Errorf("%w: %s has a third format description", ErrCorrupt, r.name)
	}
	r.headed, r.last = true, h
	h.LogPos = uint32(r.out + int64(len(event)) + checksumSize)
	event[len(event)-1] = checksumOff
	event = seal(append(event, 0, 0, 0, 0), h, false)
	f, err := DecodeFormat(event)
	if err != nil {
		return fmt.Errorf("%s: %w", r.name, err)
	}
	r.put(event)
	state, err := parseRippleState(f.Flavor, r.start)
	if err != nil {
		return err
	}
	if f.Flavor == MySQL && state.Empty() {
		return nil // a server without GTIDs writes no list
	}
	body, kind := state.Encode(), EventType(replication.PREVIOUS_GTIDS_EVENT)
	if f.Flavor == MariaDB {
		body, kind = state.encodeList(), replication.MARIADB_GTID_LIST_EVENT
	}
	h.Type, h.LogPos = kind, uint32(r.out+int64(headerSize+len(body)))
	r.put(seal(append(make([]byte, headerSize), body...), h, false))
	return nil
}

// end leads to the next file.
func (r *rippleReader) end() error {
	r.ended = true
	if r.next == "" {
		return nil
	}
	h := Header{Time: r.last.Time, ServerID: r.last.ServerID, LogPos: uint32(r.out + int64(headerSize+8+len(r.next)))}
	r.put(RotateEvent(h, r.next, uint64(len(magic)), false))
	return nil
}

func (r *rippleReader) put(b []byte) {
	r.ready.Write(b)
	r.out += int64(len(b))
}

// encodeList returns MariaDB's state as the body of a Gtid_list event.
func (s *GTIDState) encodeList() []byte {
	all := s.list()
	b := binary.LittleEndian.AppendUint32(nil, uint32(len(all)))
	for _, g := range all {
		b = binary.LittleEndian.AppendUint32(b, g.Domain)
		b = binary.LittleEndian.AppendUint32(b, g.ServerID)
		b = binary.LittleEndian.AppendUint64(b, g.Number)
	}
	if len(all) == 0 {
		b = append(b, 0, 0) // as servers write it
	}
	return b
}
