package metadata

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"unique"
)

// The first byte of a key in the index; see the package comment.
const (
	kindLocal    = 'c'
	kindDead     = 'd'
	kindDeadKey  = 'D'
	kindCookie   = 'e'
	kindSegment  = 'g'
	kindHead     = 'h'
	kindInode    = 'i'
	kindApplying = 'm'
	kindName     = 'n'
	kindOrphan   = 'o'
	kindCount    = 'r'
	kindSlot     = 's'
)

// The byte after a slot's number in a key.
const (
	slotBase  = 0
	slotPatch = 1
)

// Bits of a record's flags.
const (
	flagZero   = 1 << 0 // a patch of zeros
	flagVolume = 1 << 1 // a reference into another volume
	flagFrame  = 1 << 2 // the extent is a frame
)

type slotKey struct {
	ino  InodeID
	slot uint32
}

type nameKey struct {
	parent InodeID
	name   string
}

func key8(kind byte, a uint64) []byte {
	return binary.BigEndian.AppendUint64(append(make([]byte, 0, 32), kind), a)
}

func key88(kind byte, a, b uint64) []byte { return binary.BigEndian.AppendUint64(key8(kind, a), b) }

func keyString(kind byte, s string) []byte { return append([]byte{kind}, s...) }

func headKey() []byte             { return []byte{kindHead} }
func applyingKey() []byte         { return []byte{kindApplying} }
func inodeKey(id InodeID) []byte  { return key8(kindInode, uint64(id)) }
func orphanKey(id InodeID) []byte { return key8(kindOrphan, uint64(id)) }

func nameKVKey(parent InodeID, name string) []byte {
	b := binary.BigEndian.AppendUint64(append(make([]byte, 0, 9+len(name)), kindName), uint64(parent))
	return append(b, name...)
}

func cookieKey(parent InodeID, cookie uint64) []byte {
	return key88(kindCookie, uint64(parent), cookie)
}

func localKey(id InodeID, block int64) []byte { return key88(kindLocal, uint64(id), uint64(block)) }

func deadKey(death uint64, key string) []byte { return append(key8(kindDead, death), key...) }

func slotPrefix(k slotKey) []byte {
	return binary.BigEndian.AppendUint32(key8(kindSlot, uint64(k.ino)), k.slot)
}

func baseKey(k slotKey) []byte { return append(slotPrefix(k), slotBase) }

func patchKey(k slotKey, p PatchKey) []byte {
	b := append(slotPrefix(k), slotPatch)
	b = binary.BigEndian.AppendUint64(b, p.Commit)
	return binary.BigEndian.AppendUint32(b, p.Off)
}

// after returns the first key behind all keys that begin with prefix.
func after(prefix []byte) []byte {
	end := append([]byte(nil), prefix...)
	for i := len(end) - 1; i >= 0; i-- {
		end[i]++
		if end[i] != 0 {
			return end[:i+1]
		}
	}
	return nil
}

// encoder builds a value.
type encoder struct{ b []byte }

func (e *encoder) uint(v uint64)   { e.b = binary.AppendUvarint(e.b, v) }
func (e *encoder) int(v int64)     { e.b = binary.AppendVarint(e.b, v) }
func (e *encoder) sum(v uint32)    { e.b = binary.BigEndian.AppendUint32(e.b, v) }
func (e *encoder) string(s string) { e.uint(uint64(len(s))); e.b = append(e.b, s...) }
func (e *encoder) bytes(s []byte)  { e.uint(uint64(len(s))); e.b = append(e.b, s...) }

// value ends the value that belongs to key with its checksum.
func (e *encoder) value(key []byte) []byte {
	return binary.BigEndian.AppendUint32(e.b, recordSum(key, e.b))
}

func recordSum(key, value []byte) uint32 {
	return crc32.Update(crc32.Checksum(key, castagnoli()), castagnoli(), value)
}

// decoder reads a value; after the first mistake it returns zeros and bad is set.
type decoder struct {
	b   []byte
	bad bool
}

// newDecoder verifies the checksum of a value.
func newDecoder(key, value []byte) (*decoder, error) {
	if len(value) < 4 {
		return nil, damaged(recordName(key), "a value of %d bytes", len(value))
	}
	n := len(value) - 4
	if recordSum(key, value[:n]) != binary.BigEndian.Uint32(value[n:]) {
		return nil, damaged(recordName(key), "its checksum does not match")
	}
	return &decoder{b: value[:n]}, nil
}

func (d *decoder) uint() uint64 {
	v, n := binary.Uvarint(d.b)
	return skip(d, v, n)
}

func (d *decoder) int() int64 {
	v, n := binary.Varint(d.b)
	return skip(d, v, n)
}

func (d *decoder) uint32() uint32 {
	v := d.uint()
	if v > 1<<32-1 {
		d.bad = true
	}
	return uint32(v)
}

func (d *decoder) sum() uint32 {
	if len(d.b) < 4 {
		d.bad, d.b = true, nil
		return 0
	}
	v := binary.BigEndian.Uint32(d.b)
	d.b = d.b[4:]
	return v
}

func (d *decoder) view() []byte {
	n := d.uint()
	if n > uint64(len(d.b)) {
		d.bad, d.b = true, nil
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) string() string { return string(d.view()) }

// interned returns a string that all records share: a segment's key stands in
// each of its patches.
func (d *decoder) interned() string { return interned(string(d.view())) }

func interned(s string) string { return unique.Make(s).Value() }

// end returns ErrDamaged when anything was missing or is left.
func (d *decoder) end(key []byte) error {
	if d.bad || len(d.b) > 0 {
		return damaged(recordName(key), "its value has another form")
	}
	return nil
}

func skip[T uint64 | int64](d *decoder, v T, n int) T {
	if n <= 0 {
		d.bad, d.b = true, nil
		return 0
	}
	d.b = d.b[n:]
	return v
}

// recordName tells people which record of the index a key is.
func recordName(key []byte) string {
	if len(key) == 0 {
		return "index record without a key"
	}
	u := func(at int) uint64 {
		if len(key) < at+8 {
			return 0
		}
		return binary.BigEndian.Uint64(key[at:])
	}
	switch key[0] {
	case kindInode:
		return fmt.Sprintf("index record of inode %d", u(1))
	case kindName:
		return fmt.Sprintf("index record of name %q in directory %d", key[min(9, len(key)):], u(1))
	case kindSlot:
		if len(key) >= 13 {
			return fmt.Sprintf("index record of slot %d of inode %d", binary.BigEndian.Uint32(key[9:]), u(1))
		}
	case kindHead:
		return "index record of the head"
	}
	return fmt.Sprintf("index record %q", key)
}
