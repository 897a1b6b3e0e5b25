package journal

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// The constants below are the wire format.
const (
	formatVersion   = 1 // the bytes in testdata/v1 must open for ever
	headerSize      = 4096
	groupHeaderSize = 56
	entryHeaderSize = 16
	fileMagic       = "CISTJNL1"
	groupMagic      = "CJG1"
)

var le = binary.LittleEndian

// castagnoli is read-only.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli) }

// fileHeader is the head of a file in use.
type fileHeader struct {
	identity    [16]byte
	incarnation uint64
	seq         uint64
	epoch       uint64
	first       LSN   // of the file's first record
	after       LSN   // up to here the files before it count
	durable     LSN   // known durable when the file was begun
	size        int64 // of the file in bytes
}

// encode returns the header's bytes and their checksum, with which the chain of
// groups begins.
func (h *fileHeader) encode() ([]byte, uint32) {
	b := make([]byte, headerSize)
	copy(b, fileMagic)
	le.PutUint32(b[12:], formatVersion)
	copy(b[16:], h.identity[:])
	le.PutUint64(b[32:], h.incarnation)
	le.PutUint64(b[40:], h.seq)
	le.PutUint64(b[48:], h.epoch)
	le.PutUint64(b[56:], uint64(h.first))
	le.PutUint64(b[64:], uint64(h.after))
	le.PutUint64(b[72:], uint64(h.durable))
	le.PutUint64(b[80:], uint64(h.size))
	crc := checksum(b[12:])
	le.PutUint32(b[8:], crc)
	return b, crc
}

func decodeHeader(b []byte) (h fileHeader, crc uint32, err error) {
	if len(b) < headerSize {
		return h, 0, fmt.Errorf("header is cut to %d bytes", len(b))
	}
	b = b[:headerSize]
	crc = le.Uint32(b[8:])
	if string(b[:8]) != fileMagic {
		return h, 0, errors.New("not the header of a journal file")
	}
	if got := checksum(b[12:]); got != crc {
		return h, 0, fmt.Errorf("header has checksum %08x, its bytes give %08x", crc, got)
	}
	if v := le.Uint32(b[12:]); v != formatVersion {
		return h, 0, fmt.Errorf("header has format version %d, this program reads %d", v, formatVersion)
	}
	copy(h.identity[:], b[16:])
	h.incarnation = le.Uint64(b[32:])
	h.seq = le.Uint64(b[40:])
	h.epoch = le.Uint64(b[48:])
	h.first = LSN(le.Uint64(b[56:]))
	h.after = LSN(le.Uint64(b[64:]))
	h.durable = LSN(le.Uint64(b[72:]))
	h.size = int64(le.Uint64(b[80:]))
	if h.first == 0 || h.after >= h.first || h.size < headerSize {
		return h, 0, fmt.Errorf("header has impossible values: first lsn %d, after lsn %d, size %d", h.first, h.after, h.size)
	}
	return h, crc, nil
}

// groupHeader is the head of a group.
type groupHeader struct {
	crc         uint32
	length      uint32
	count       uint32
	epoch       uint64
	incarnation uint64
	prev        uint32
	durable     LSN
	first       LSN
}

// last is the LSN of the group's last record; first-1 in a group of none.
func (g *groupHeader) last() LSN { return g.first + LSN(g.count) - 1 }

func align(n int64) int64 { return (n + 7) &^ 7 }

// groupSize returns the bytes that the entries take as a group.
func groupSize(entries []Entry) int64 {
	n := int64(groupHeaderSize)
	for i := range entries {
		n += entryHeaderSize + int64(len(entries[i].Body)) + int64(len(entries[i].Data))
	}
	return align(n)
}

// putEntries writes the entries into a group's bytes, which are groupSize long.
// It calls placed with each entry's offset of Data and checksum.
func putEntries(b []byte, entries []Entry, placed func(i, off int, crc uint32)) {
	off := groupHeaderSize
	for i := range entries {
		e := &entries[i]
		head := b[off : off+entryHeaderSize]
		clear(head)
		head[0] = byte(e.Op)
		le.PutUint32(head[4:], uint32(len(e.Body)))
		le.PutUint32(head[8:], uint32(len(e.Data)))
		crc := checksum(e.Data)
		le.PutUint32(head[12:], crc)
		off += entryHeaderSize
		off += copy(b[off:], e.Body)
		placed(i, off, crc)
		off += copy(b[off:], e.Data)
	}
	clear(b[off:])
}

// seal writes the group's header and returns its checksum.
func seal(b []byte, h groupHeader) uint32 {
	copy(b, groupMagic)
	le.PutUint32(b[8:], uint32(len(b)))
	le.PutUint32(b[12:], h.count)
	le.PutUint64(b[16:], h.epoch)
	le.PutUint64(b[24:], h.incarnation)
	le.PutUint32(b[32:], h.prev)
	le.PutUint32(b[36:], 0)
	le.PutUint64(b[40:], uint64(h.durable))
	le.PutUint64(b[48:], uint64(h.first))
	crc := checksum(b[8:])
	le.PutUint32(b[4:], crc)
	return crc
}

// parseGroup reads the group at the start of b, which may go on behind it, and
// verifies its checksum and that its entries fill it exactly.
func parseGroup(b []byte) (groupHeader, error) {
	var h groupHeader
	if len(b) < groupHeaderSize || string(b[:4]) != groupMagic {
		return h, errors.New("no group begins here")
	}
	h.crc = le.Uint32(b[4:])
	h.length = le.Uint32(b[8:])
	h.count = le.Uint32(b[12:])
	h.epoch = le.Uint64(b[16:])
	h.incarnation = le.Uint64(b[24:])
	h.prev = le.Uint32(b[32:])
	h.durable = LSN(le.Uint64(b[40:]))
	h.first = LSN(le.Uint64(b[48:]))
	if h.length < groupHeaderSize || h.length%8 != 0 || int64(h.length) > int64(len(b)) {
		return h, fmt.Errorf("group has the impossible length %d", h.length)
	}
	if got := checksum(b[8:h.length]); got != h.crc {
		return h, fmt.Errorf("group has checksum %08x, its bytes give %08x", h.crc, got)
	}
	return h, checkEntries(b[:h.length], h.count)
}

func checkEntries(b []byte, count uint32) error {
	var n uint32
	end, err := eachEntry(b, count, func(Entry, int, uint32) error { n++; return nil })
	switch {
	case err != nil:
		return err
	case n != count || align(int64(end)) != int64(len(b)):
		return fmt.Errorf("group of %d bytes ends at byte %d after %d of %d entries", len(b), end, n, count)
	}
	return nil
}

// eachEntry calls fn with each entry of a group, where its Data begins in the
// group, and the checksum of that. It returns where the last one ends.
func eachEntry(b []byte, count uint32, fn func(e Entry, dataOff int, crc uint32) error) (int, error) {
	off := groupHeaderSize
	for i := uint32(0); i < count; i++ {
		if len(b)-off < entryHeaderSize {
			return off, fmt.Errorf("entry %d of %d is cut", i, count)
		}
		head := b[off : off+entryHeaderSize]
		off += entryHeaderSize
		body, data := int64(le.Uint32(head[4:])), int64(le.Uint32(head[8:]))
		if body+data > int64(len(b)-off) {
			return off, fmt.Errorf("entry %d of %d has the impossible lengths %d and %d", i, count, body, data)
		}
		dataOff := off + int(body)
		e := Entry{Op: Op(head[0]), Body: b[off:dataOff:dataOff]}
		off = dataOff + int(data)
		if data > 0 {
			e.Data = b[dataOff:off:off]
		}
		if err := fn(e, dataOff, le.Uint32(head[12:])); err != nil {
			return off, err
		}
	}
	return off, nil
}

// findGroups calls fn with every whole group of an incarnation at or behind
// from, and above an LSN, however broken the bytes between them are.
func findGroups(b []byte, from int64, incarnation uint64, above LSN, fn func(off int64, h groupHeader)) {
	for off := align(from); off+groupHeaderSize <= int64(len(b)); {
		i := bytes.Index(b[off:], []byte(groupMagic))
		if i < 0 {
			return
		}
		at := off + int64(i)
		off = at + 8
		if at%8 != 0 {
			off = align(at)
			continue
		}
		if at+groupHeaderSize > int64(len(b)) || le.Uint64(b[at+24:]) != incarnation || LSN(le.Uint64(b[at+48:])) <= above {
			continue
		}
		if h, err := parseGroup(b[at:]); err == nil {
			fn(at, h)
			off = at + int64(h.length)
		}
	}
}
