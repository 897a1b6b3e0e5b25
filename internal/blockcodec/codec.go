package blockcodec

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
)

// MaxPlain is the most plain bytes that a frame holds.
const MaxPlain = 128 << 10

// Overhead is by how much a frame may be longer than its plain bytes.
const Overhead = 1 + saltSize + tagSize

const (
	saltSize = 8
	tagSize  = 16
)

// Method says how bytes are compressed: part of the format.
type Method byte

// The methods.
const (
	None Method = 0
	LZ4  Method = 1
	Zstd Method = 2

	methodMask = 0x03
	encrypted  = 0x80
)

// ParseMethod reads none, lz4 or zstd; the empty string is none.
func ParseMethod(s string) (Method, error) {
	switch s {
	case "", "none":
		return None, nil
	case "lz4":
		return LZ4, nil
	case "zstd":
		return Zstd, nil
	}
	return None, fmt.Errorf("compression %q: choose none, lz4 or zstd", s)
}

func (m Method) String() string {
	switch m {
	case None:
		return "none"
	case LZ4:
		return "lz4"
	case Zstd:
		return "zstd"
	}
	return fmt.Sprintf("method %d", byte(m))
}

// ID is what a body was born as: the volume's id and the body's key in it.
type ID struct {
	Volume string
	Name   string
}

// Codec makes frames by one method and one key, and opens those of any method
// and of the keys that it has. Safe for concurrent use.
type Codec struct {
	method Method
	key    *Key // nil: frames are not encrypted
	ring   *Ring
	enc    *zstd.Encoder
	dec    *zstd.Decoder
	lz4    sync.Pool // of *lz4.Compressor
}

// New makes a codec. With encrypt, frames are encrypted by the ring's first
// key: ErrNoKey when it has none.
func New(method Method, ring *Ring, encrypt bool) (*Codec, error) {
	c := &Codec{method: method, ring: ring}
	if encrypt {
		if c.key = ring.First(); c.key == nil {
			return nil, ErrNoKey
		}
	}
	var err error
	if method == Zstd {
		c.enc, err = zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(false),
			zstd.WithWindowSize(MaxPlain), zstd.WithSingleSegment(true))
		if err != nil {
			return nil, fmt.Errorf("zstd: %w", err)
		}
	}
	if c.dec, err = zstd.NewReader(nil, zstd.WithDecoderMaxMemory(MaxPlain), zstd.WithDecoderLowmem(true)); err != nil {
		return nil, fmt.Errorf("zstd: %w", err)
	}
	c.lz4.New = func() any { return new(lz4.Compressor) }
	return c, nil
}

// Framing says whether this codec changes bytes at all: if not, bodies are
// better stored without frames.
func (c *Codec) Framing() bool { return c.method != None || c.key != nil }

// KeyName is the name of the key that encrypts; empty when none does.
func (c *Codec) KeyName() string {
	if c.key == nil {
		return ""
	}
	return c.key.name
}

// Body makes the frames of one object or segment.
type Body struct {
	c    *Codec
	id   ID
	salt [saltSize]byte
	seal func(dst, nonce, plain, extra []byte) []byte
	pack []byte // scratch
}

// NewBody begins a body that is born as id; random gives its salt.
func (c *Codec) NewBody(id ID, random io.Reader) (*Body, error) {
	b := &Body{c: c, id: id}
	if c.key == nil {
		return b, nil
	}
	if _, err := io.ReadFull(random, b.salt[:]); err != nil {
		return nil, fmt.Errorf("random numbers: %w", err)
	}
	b.seal = c.key.derive("cistern block 1", id.Volume, id.Name, string(b.salt[:])).Seal
	return b, nil
}

// Append appends the frame of plain, 1 to MaxPlain bytes, to dst. No two frames
// of a body have the same number.
func (b *Body) Append(dst, plain []byte, number uint32) []byte {
	if len(plain) == 0 || len(plain) > MaxPlain {
		panic(fmt.Sprintf("blockcodec: a frame of %d bytes", len(plain)))
	}
	payload, method := b.compress(plain)
	if b.seal == nil {
		return append(append(dst, byte(method)), payload...)
	}
	tag := byte(method) | encrypted
	dst = append(append(dst, tag), b.salt[:]...)
	return b.seal(dst, nonce(b.salt, number), payload, extra(b.id, number, tag))
}

// compress returns the payload and how it was compressed.
func (b *Body) compress(plain []byte) ([]byte, Method) {
	switch b.c.method {
	case Zstd:
		b.pack = b.c.enc.EncodeAll(plain, b.pack[:0])
		if len(b.pack) < len(plain) {
			return b.pack, Zstd
		}
	case LZ4:
		if cap(b.pack) < MaxPlain {
			b.pack = make([]byte, MaxPlain)
		}
		z := b.c.lz4.Get().(*lz4.Compressor)
		// Where the result would not be shorter there is no room for it: 0, or an error.
		n, err := z.CompressBlock(plain, b.pack[:len(plain)-1])
		b.c.lz4.Put(z)
		if err == nil && n > 0 {
			return b.pack[:n], LZ4
		}
	}
	return plain, None
}

// Open puts the plain bytes of a frame into dst, all of it: the caller knows
// how many they are. id and number are those that the frame was made with, key
// the name of the key that its reference gives, empty when it gives none.
// ErrDamaged leaves anything in dst; ErrNoKey.
func (c *Codec) Open(dst, frame []byte, key string, id ID, number uint32) error {
	if len(frame) == 0 || len(dst) > MaxPlain {
		return fmt.Errorf("%w: a frame of %d bytes for %d", ErrDamaged, len(frame), len(dst))
	}
	tag, payload := frame[0], frame[1:]
	if tag&^(methodMask|encrypted) != 0 || tag&encrypted != 0 != (key != "") {
		return fmt.Errorf("%w: a frame begins with 0x%02x", ErrDamaged, tag)
	}
	if key != "" {
		k, err := c.ring.Need(key)
		if err != nil {
			return err
		}
		if len(payload) < saltSize+tagSize {
			return fmt.Errorf("%w: an encrypted frame of %d bytes", ErrDamaged, len(frame))
		}
		salt := [saltSize]byte(payload)
		aead := k.derive("cistern block 1", id.Volume, id.Name, string(salt[:]))
		// Bytes that were not compressed go where they belong at once.
		var into []byte
		if Method(tag&methodMask) == None && len(payload)-saltSize-tagSize == len(dst) {
			into = dst[:0]
		}
		if payload, err = aead.Open(into, nonce(salt, number), payload[saltSize:], extra(id, number, tag)); err != nil {
			return fmt.Errorf("%w: authentication failed", ErrDamaged)
		}
	}
	return c.unpack(dst, payload, Method(tag&methodMask))
}

// unpack decompresses a payload to exactly dst.
func (c *Codec) unpack(dst, payload []byte, method Method) error {
	n := -1
	switch method {
	case None:
		n = len(payload)
		if n == len(dst) {
			copy(dst, payload)
		}
	case LZ4:
		var err error
		if n, err = lz4.UncompressBlock(payload, dst); err != nil {
			return fmt.Errorf("%w: lz4: %w", ErrDamaged, err)
		}
	case Zstd:
		out, err := c.dec.DecodeAll(payload, dst[:0:len(dst)])
		if err != nil {
			return fmt.Errorf("%w: zstd: %w", ErrDamaged, err)
		}
		if n = len(out); n == len(dst) && n > 0 && &out[0] != &dst[0] {
			copy(dst, out)
		}
	}
	if n != len(dst) {
		return fmt.Errorf("%w: %d bytes instead of %d", ErrDamaged, n, len(dst))
	}
	return nil
}

func nonce(salt [saltSize]byte, number uint32) []byte {
	return binary.BigEndian.AppendUint32(salt[:], number)
}

// extra is the data that a frame is bound to.
func extra(id ID, number uint32, tag byte) []byte {
	b := append(append([]byte(id.Volume), 0), id.Name...)
	return append(binary.BigEndian.AppendUint32(append(b, 0), number), tag)
}
