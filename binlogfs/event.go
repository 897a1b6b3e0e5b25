package binlogfs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/go-mysql-org/go-mysql/replication"
)

// The binary log's format, as servers write it.
const (
	headerSize   = 19
	checksumSize = 4
	magic        = "\xfebin" // a file's first bytes

	flagInUse      = 0x01 // of a format description: the file was not closed
	flagArtificial = 0x20 // made for a replica; in no file

	checksumOff   = 0
	checksumCRC32 = 1
)

// ErrCorrupt marks bytes of a binary log that contradict themselves.
var ErrCorrupt = errors.New("binary log is corrupt")

// EventType is the type byte of an event.
type EventType = replication.EventType

// Header is an event's fixed part.
type Header struct {
	Time     uint32 // seconds since 1970
	Type     EventType
	ServerID uint32
	Size     uint32 // bytes, header and checksum included
	LogPos   uint32 // where it ends in its file, modulo 2^32; 0 where the server doesn't tell
	Flags    uint16
}

// DecodeHeader reads a header from the first bytes of an event.
func DecodeHeader(b []byte) (Header, error) {
	if len(b) < headerSize {
		return Header{}, fmt.Errorf("%w: an event's header of %d bytes", ErrCorrupt, len(b))
	}
	h := Header{
		Time: binary.LittleEndian.Uint32(b), Type: EventType(b[4]), ServerID: binary.LittleEndian.Uint32(b[5:]),
		Size: binary.LittleEndian.Uint32(b[9:]), LogPos: binary.LittleEndian.Uint32(b[13:]), Flags: binary.LittleEndian.Uint16(b[17:]),
	}
	if h.Size < headerSize {
		return Header{}, fmt.Errorf("%w: an event %v of %d bytes", ErrCorrupt, h.Type, h.Size)
	}
	return h, nil
}

// put writes the header into the first bytes of an event.
func (h Header) put(b []byte) {
	binary.LittleEndian.PutUint32(b, h.Time)
	b[4] = byte(h.Type)
	binary.LittleEndian.PutUint32(b[5:], h.ServerID)
	binary.LittleEndian.PutUint32(b[9:], h.Size)
	binary.LittleEndian.PutUint32(b[13:], h.LogPos)
	binary.LittleEndian.PutUint16(b[17:], h.Flags)
}

// Artificial says that the event was made for a replica and is in no file.
func (h Header) Artificial() bool { return h.Flags&flagArtificial != 0 }

// Format is what a format description event says about the events after it.
type Format struct {
	Server   string // version of the server that wrote the file
	Checksum bool   // every event ends with a CRC32
	Flavor   Flavor
	Began    uint32 // when the server began the file, in seconds since 1970, also where it is sent anew; 0: unknown
	lengths  []byte // of post-headers, by type - 1
}

// formatFixed is the size of a format description's body up to the lengths:
// version 2B, server version 50B, time 4B, header length 1B.
const formatFixed = 2 + 50 + 4 + 1

// DecodeFormat reads a format description event and verifies its checksum,
// which it has also where the others have none.
func DecodeFormat(event []byte) (Format, error) {
	h, err := DecodeHeader(event)
	if err != nil {
		return Format{}, err
	}
	if h.Type != replication.FORMAT_DESCRIPTION_EVENT || int(h.Size) != len(event) || len(event) < headerSize+formatFixed+1+checksumSize {
		return Format{}, fmt.Errorf("%w: no format description event", ErrCorrupt)
	}
	body := event[headerSize:]
	if v := binary.LittleEndian.Uint16(body); v != 4 {
		return Format{}, fmt.Errorf("%w: format version %d, where servers since 5.0 write 4", ErrCorrupt, v)
	}
	f := Format{Server: cString(body[2:52]), Began: h.Time}
	f.Flavor = flavorOf(f.Server)
	if body[formatFixed-1] != headerSize {
		return Format{}, fmt.Errorf("%w: event headers of %d bytes", ErrCorrupt, body[formatFixed-1])
	}
	// The last five bytes: the algorithm and the checksum of this event.
	end := len(body) - checksumSize - 1
	switch body[end] {
	case checksumCRC32:
		f.Checksum = true
		if !checksumFits(event) {
			return Format{}, fmt.Errorf("%w: checksum of the format description event", ErrCorrupt)
		}
	case checksumOff:
	default:
		return Format{}, fmt.Errorf("%w: checksum algorithm %d", ErrCorrupt, body[end])
	}
	f.lengths = append([]byte(nil), body[formatFixed:end]...)
	return f, nil
}

// checksumFits verifies the CRC32 at the end of an event. A format description
// is summed without the mark of a file in use.
func checksumFits(event []byte) bool {
	if len(event) < headerSize+checksumSize {
		return false
	}
	sum := newChecksum(event[:headerSize])
	n := len(event) - checksumSize
	sum.add(event[headerSize:n])
	return sum.value == binary.LittleEndian.Uint32(event[n:])
}

// checksum is the running CRC32 of an event that comes in pieces.
type checksum struct{ value uint32 }

// newChecksum begins with an event's header.
func newChecksum(head []byte) checksum {
	b := [headerSize]byte(head)
	if EventType(b[4]) == replication.FORMAT_DESCRIPTION_EVENT {
		b[17] &^= flagInUse
	}
	return checksum{crc32.ChecksumIEEE(b[:])}
}

func (c *checksum) add(p []byte) { c.value = crc32.Update(c.value, crc32.IEEETable, p) }

// seal writes size, and the checksum where the format has one, into an event
// that was built with room for it.
func seal(event []byte, h Header, withChecksum bool) []byte {
	if withChecksum {
		event = append(event, 0, 0, 0, 0)
	}
	h.Size = uint32(len(event))
	h.put(event)
	if withChecksum {
		n := len(event) - checksumSize
		sum := newChecksum(event[:headerSize])
		sum.add(event[headerSize:n])
		binary.LittleEndian.PutUint32(event[n:], sum.value)
	}
	return event
}

// RotateEvent makes the event that sends a replica to a file. An artificial one
// begins every stream and is in no file.
func RotateEvent(h Header, file string, pos uint64, withChecksum bool) []byte {
	h.Type = replication.ROTATE_EVENT
	event := make([]byte, headerSize, headerSize+8+len(file)+checksumSize)
	event = binary.LittleEndian.AppendUint64(event, pos)
	return seal(append(event, file...), h, withChecksum)
}

// DecodeRotate reads the file and position that a Rotate event leads to. A
// checksum must have been cut off.
func DecodeRotate(body []byte) (file string, pos uint64, err error) {
	if len(body) < 9 {
		return "", 0, fmt.Errorf("%w: a Rotate event of %d bytes", ErrCorrupt, len(body))
	}
	return string(body[8:]), binary.LittleEndian.Uint64(body), nil
}

// decodeSentRotate reads an artificial Rotate as a source sends it. It carries a
// checksum when the session asked for them, which only the next format description
// tells: one that fits is a checksum, and so is what keeps the name from being one.
// By its shape alone one of four digits would be taken for the file's number.
func decodeSentRotate(event []byte) (file string, pos uint64, err error) {
	if file, pos, err = DecodeRotate(event[headerSize:]); err != nil {
		return "", 0, err
	}
	if n := len(file) - checksumSize; n > 0 && (checksumFits(event) || !isLogName(file) && isLogName(file[:n])) {
		file = file[:n]
	}
	return file, pos, nil
}

// HeartbeatEvent makes the event that tells an idle replica that its source
// lives, at pos of file.
func HeartbeatEvent(serverID uint32, file string, pos int64, withChecksum bool) []byte {
	event := make([]byte, headerSize, headerSize+len(file)+checksumSize)
	h := Header{Type: replication.HEARTBEAT_EVENT, ServerID: serverID, LogPos: uint32(pos)}
	return seal(append(event, file...), h, withChecksum)
}

func cString(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}
