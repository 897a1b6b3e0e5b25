package gateway

import (
	"encoding/binary"
	"fmt"

	"github.com/cisternfs/cistern/journal"
)

// The kinds of journal records: part of the format, never renumbered.
//
//	a record's body is the fields of its operation in the order of its codec
//	method: unsigned varints; strings and lists with their length before them;
//	times as zig-zag varints of nanoseconds
const (
	opWrite   journal.Op = 1  // bytes in the record's data
	opRef     journal.Op = 2  // bytes in the cache file
	opSetAttr journal.Op = 3  // attributes, size among them
	opCreate  journal.Op = 4  // a node, with or without a name
	opLink    journal.Op = 5  // a further name
	opUnlink  journal.Op = 6  // a name goes; rmdir too
	opRename  journal.Op = 7  // a name moves, or two swap
	opXattr   journal.Op = 8  // an extended attribute is set or removed
	opZero    journal.Op = 9  // a range becomes a hole
	opReap    journal.Op = 10 // an inode without names is freed
	opPublish journal.Op = 11 // staged bytes become visible, or are dropped
	opSet     journal.Op = 12 // the volume's settings
	opShare   journal.Op = 13 // a slot takes another one's object as its base

	opShareFrames journal.Op = 14 // the same with an object that has frames
	opAdopt       journal.Op = 15 // a slot takes an object from outside the volume as its base
	opStagedRef   journal.Op = 16 // staged bytes in the cache file

	opLast = opStagedRef
)

// operation is one change of the state. plan checks it against the state and
// returns what applies it, which can't fail; both run under v.mu.
type operation interface {
	kind() journal.Op
	codec(c *codec)
	plan(v *Volume) (apply func(lsn journal.LSN, loc journal.Loc), err error)
}

// refers says whether a record's bytes lie in the cache file.
func refers(k journal.Op) bool { return k == opRef || k == opStagedRef }

func newOperation(k journal.Op) (operation, error) {
	switch k {
	case opWrite:
		return &writeOp{}, nil
	case opRef:
		return &refOp{}, nil
	case opStagedRef:
		return &refOp{staged: true}, nil
	case opSetAttr:
		return &setAttrOp{}, nil
	case opCreate:
		return &createOp{}, nil
	case opLink:
		return &linkOp{}, nil
	case opUnlink:
		return &unlinkOp{}, nil
	case opRename:
		return &renameOp{}, nil
	case opXattr:
		return &xattrOp{}, nil
	case opZero:
		return &zeroOp{}, nil
	case opReap:
		return &reapOp{}, nil
	case opPublish:
		return &publishOp{}, nil
	case opSet:
		return &setOp{}, nil
	case opShare:
		return &shareOp{}, nil
	case opShareFrames:
		return &shareOp{frames: true}, nil
	case opAdopt:
		return &adoptOp{}, nil
	}
	if k <= opLast {
		return nil, fmt.Errorf("%w: a journal record of kind %d, which there is not", ErrDamaged, k)
	}
	return nil, fmt.Errorf("%w: a journal record of kind %d, and this release knows kinds up to %d: mount with the newer one, whose unmount leaves none", ErrNewerFormat, k, opLast)
}

func encodeOp(op operation) []byte {
	c := codec{buf: make([]byte, 0, 64)}
	op.codec(&c)
	return c.buf
}

func decodeOp(r journal.Record) (operation, error) {
	op, err := newOperation(r.Op)
	if err != nil {
		return nil, err
	}
	c := codec{buf: r.Body, decoding: true}
	op.codec(&c)
	if c.err != nil || len(c.buf) != 0 {
		return nil, fmt.Errorf("%w: journal record %d of kind %d does not parse", ErrDamaged, r.LSN, r.Op)
	}
	return op, nil
}

// codec encodes or decodes the fields that it is shown, so that one method per
// operation gives both directions.
type codec struct {
	buf      []byte
	decoding bool
	err      error
}

func (c *codec) fail() { c.err = ErrDamaged }

func (c *codec) u64(p *uint64) {
	if !c.decoding {
		c.buf = binary.AppendUvarint(c.buf, *p)
		return
	}
	x, n := binary.Uvarint(c.buf)
	if n <= 0 {
		c.fail()
		c.buf = nil
		return
	}
	*p, c.buf = x, c.buf[n:]
}

func (c *codec) u32(p *uint32) {
	x := uint64(*p)
	c.u64(&x)
	*p = uint32(x)
}

func (c *codec) ino(p *InodeID) { c.u64((*uint64)(p)) }

// i64 is for sizes and times: zig-zag.
func (c *codec) i64(p *int64) {
	x := uint64(*p<<1) ^ uint64(*p>>63)
	c.u64(&x)
	*p = int64(x>>1) ^ -int64(x&1)
}

func (c *codec) bytes(p *[]byte) {
	n := uint64(len(*p))
	c.u64(&n)
	if !c.decoding {
		c.buf = append(c.buf, *p...)
		return
	}
	if n > uint64(len(c.buf)) {
		c.fail()
		c.buf = nil
		return
	}
	if n > 0 {
		*p = append([]byte(nil), c.buf[:n]...)
	}
	c.buf = c.buf[n:]
}

func (c *codec) str(p *string) {
	b := []byte(*p)
	c.bytes(&b)
	*p = string(b)
}

func (c *codec) bool(p *bool) {
	var x uint64
	if *p {
		x = 1
	}
	c.u64(&x)
	*p = x != 0
}

func (c *codec) sums(p *[]uint32) {
	n := uint64(len(*p))
	c.u64(&n)
	if !c.decoding {
		for _, s := range *p {
			c.buf = binary.LittleEndian.AppendUint32(c.buf, s)
		}
		return
	}
	if n > uint64(len(c.buf))/4 {
		c.fail()
		c.buf = nil
		return
	}
	*p = make([]uint32, n)
	for i := range *p {
		(*p)[i] = binary.LittleEndian.Uint32(c.buf[4*i:])
	}
	c.buf = c.buf[4*n:]
}

// optional fields are preceded by whether they are there.
func optional[T any](c *codec, p **T, field func(*T)) {
	has := *p != nil
	c.bool(&has)
	if !has {
		*p = nil
		return
	}
	if *p == nil {
		*p = new(T)
	}
	field(*p)
}
