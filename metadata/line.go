package metadata

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"math"
)

// lineReader reads the lines of manifests' pages. A mount of a large volume reads
// millions of them: the kinds that there are many of, in the form in which they
// are written, are read without reflection. Whatever looks different is left to
// encoding/json, which decides alone what a line means. Not for concurrent use.
type lineReader struct {
	inode inodeDoc
	name  nameDoc
	base  slotBaseDoc
	patch slotPatchDoc
}

// read returns what a line says, valid until the next one is read.
func (r *lineReader) read(line []byte) (lineDoc, error) {
	if l, ok := r.quick(line); ok {
		return l, nil
	}
	var l lineDoc
	err := json.Unmarshal(line, &l)
	return l, err
}

// quick reads a line of one of the frequent kinds; false when it is anything else.
func (r *lineReader) quick(line []byte) (l lineDoc, ok bool) {
	s := &lineScanner{b: line}
	fields := 0
	s.object(func(kind []byte) {
		if fields++; fields > 1 {
			s.odd = true // encoding/json would merge two of one kind
		}
		switch string(kind) {
		case "i":
			r.inode = inodeDoc{}
			l.Inode = &r.inode
			s.object(func(f []byte) { s.inodeField(f, &r.inode) })
		case "n":
			r.name = nameDoc{}
			l.Name = &r.name
			s.object(func(f []byte) { s.nameField(f, &r.name) })
		case "b":
			r.base = slotBaseDoc{}
			l.Base = &r.base
			s.object(func(f []byte) { s.baseField(f, &r.base) })
		case "p":
			r.patch = slotPatchDoc{}
			l.Patch = &r.patch
			s.object(func(f []byte) { s.patchField(f, &r.patch) })
		default:
			s.odd = true
		}
	})
	return l, !s.odd && len(s.b) == 0
}

// lineScanner takes JSON off b as this package writes it. odd is set by the first
// thing that it does not know; from then on nothing that it returns counts.
type lineScanner struct {
	b   []byte
	odd bool
}

func (s *lineScanner) inodeField(name []byte, d *inodeDoc) {
	switch string(name) {
	case "i":
		d.ID = s.num()
	case "m":
		d.Mode = s.uint32()
	case "u":
		d.UID = s.uint32()
	case "g":
		d.GID = s.uint32()
	case "l":
		d.Nlink = s.uint32()
	case "s":
		d.Size = s.snum()
	case "al":
		d.Alloc = s.snum()
	case "at":
		d.Atime = s.snum()
	case "mt":
		d.Mtime = s.snum()
	case "ct":
		d.Ctime = s.snum()
	case "bt":
		d.Btime = s.snum()
	case "p":
		d.Parent = s.num()
	default:
		s.odd = true
	}
}

func (s *lineScanner) nameField(name []byte, d *nameDoc) {
	switch string(name) {
	case "p":
		d.Parent = s.num()
	case "n":
		d.Name = s.text()
	case "i":
		d.Inode = s.num()
	case "t":
		d.Type = uint8(s.upTo(1<<8 - 1))
	case "c":
		d.Cookie = s.num()
	default:
		s.odd = true
	}
}

func (s *lineScanner) baseField(name []byte, d *slotBaseDoc) {
	switch string(name) {
	case "i":
		d.Inode = s.num()
	case "s":
		d.Slot = s.uint32()
	case "k":
		d.Key = s.text()
	case "l":
		d.Len = s.uint32()
	case "b":
		d.Birth = s.num()
	case "c":
		d.Sums = s.sums()
	case "z":
		d.Stored = s.sums()
	default:
		s.frameField(name, &d.frameDoc)
	}
}

// frameField reads what is not rare of a cipher: all but where a body was born.
func (s *lineScanner) frameField(name []byte, d *frameDoc) {
	if string(name) != "e" {
		s.odd = true
		return
	}
	d.Enc = s.text()
}

func (s *lineScanner) patchField(name []byte, d *slotPatchDoc) {
	switch string(name) {
	case "i":
		d.Inode = s.num()
	case "s":
		d.Slot = s.uint32()
	case "c":
		d.Commit = s.num()
	case "o":
		d.Off = s.uint32()
	case "l":
		d.Len = s.uint32()
	case "k":
		d.Key = s.text()
	case "p":
		d.SegOff = s.uint32()
	case "x":
		d.Sum = s.uint32()
	case "z":
		d.Stored = s.uint32()
	default:
		s.frameField(name, &d.frameDoc)
	}
}

// take takes one byte off.
func (s *lineScanner) take(c byte) bool {
	if len(s.b) == 0 || s.b[0] != c {
		return false
	}
	s.b = s.b[1:]
	return true
}

// object takes an object off: field is called with each name and takes the value.
func (s *lineScanner) object(field func(name []byte)) {
	if !s.take('{') {
		s.odd = true
	}
	for !s.odd {
		name := s.string()
		if !s.take(':') {
			s.odd = true
			return
		}
		field(name)
		if s.take('}') {
			return
		}
		if !s.take(',') {
			s.odd = true
		}
	}
}

// string takes a string of printable ASCII without escapes off.
func (s *lineScanner) string() []byte {
	if !s.take('"') {
		s.odd = true
		return nil
	}
	for i, c := range s.b {
		switch {
		case c == '"':
			v := s.b[:i]
			s.b = s.b[i+1:]
			return v
		case c < 0x20 || c >= 0x7f || c == '\\':
			s.odd = true
			return nil
		}
	}
	s.odd = true
	return nil
}

func (s *lineScanner) text() text { return text(s.string()) }

// num takes a number in quotes off.
func (s *lineScanner) num() num { return num(s.digits(s.string())) }

// snum is num with a sign.
func (s *lineScanner) snum() snum {
	d := s.string()
	minus := len(d) > 0 && d[0] == '-'
	if minus {
		d = d[1:]
	}
	v := s.digits(d)
	if v > math.MaxInt64 {
		s.odd = true
	}
	if minus {
		return -snum(v)
	}
	return snum(v)
}

// maxDigits is how many digits fit into 64 bits whatever they are.
const maxDigits = 19

func (s *lineScanner) digits(d []byte) uint64 {
	if len(d) == 0 || len(d) > maxDigits {
		s.odd = true
	}
	var v uint64
	for _, c := range d {
		if c < '0' || c > '9' {
			s.odd = true
		}
		v = v*10 + uint64(c-'0')
	}
	return v
}

func (s *lineScanner) uint32() uint32 { return uint32(s.upTo(1<<32 - 1)) }

// upTo takes a number without quotes off.
func (s *lineScanner) upTo(limit uint64) uint64 {
	n := 0
	for n < len(s.b) && s.b[n] >= '0' && s.b[n] <= '9' {
		n++
	}
	v := s.digits(s.b[:n])
	if v > limit || n > 1 && s.b[0] == '0' {
		s.odd = true
	}
	s.b = s.b[n:]
	return v
}

// sums takes packed checksums off.
func (s *lineScanner) sums() sums {
	d := s.string()
	raw := make([]byte, base64.RawStdEncoding.DecodedLen(len(d)))
	n, err := base64.RawStdEncoding.Strict().Decode(raw, d)
	if err != nil || n != len(raw) || n%4 != 0 {
		s.odd = true
		return nil
	}
	list := make(sums, n/4)
	for i := range list {
		list[i] = binary.BigEndian.Uint32(raw[4*i:])
	}
	return list
}
