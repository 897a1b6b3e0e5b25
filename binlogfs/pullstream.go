package binlogfs

import (
	"bufio"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
	"github.com/klauspost/compress/zstd"
)

// readBuffer is how many bytes of a stream are read ahead. An event is passed on
// from here and never held whole.
const readBuffer = 512 << 10

// maxPacket is the length of a packet that another one follows.
const maxPacket = 1<<24 - 1

// errEnded: the source has ended the stream in good order, as when it shuts down.
var errEnded = errors.New("the source has ended the stream")

// events reads a replication stream:
//
//	packet: length 3B | sequence 1B | 00 | [EF | flag] | event …
//
// An event that ends with a packet of the greatest length goes on in the next.
type events struct {
	in       *bufio.Reader
	semiSync bool // each event has EF and a flag before it

	left int  // bytes of the packet that are not read
	more bool // another one follows it
	read int64
}

// ready says whether a whole packet is buffered: next would not wait.
func (e *events) ready() bool {
	n := e.in.Buffered()
	if n < 4 {
		return false
	}
	b, err := e.in.Peek(4)
	return err == nil && n >= 4+packetLength(b)
}

func packetLength(b []byte) int { return int(b[0]) | int(b[1])<<8 | int(b[2])<<16 }

// next waits for an event and returns its header, which stays unread.
func (e *events) next() (Header, error) {
	if err := e.packet(); err != nil {
		return Header{}, err
	}
	b, err := e.in.Peek(1)
	if err != nil {
		return Header{}, unexpected(err)
	}
	switch {
	case b[0] == mysql.ERR_HEADER:
		return Header{}, e.refused()
	case b[0] == mysql.EOF_HEADER && e.left < 9:
		return Header{}, errEnded
	case b[0] != mysql.OK_HEADER:
		return Header{}, fmt.Errorf("%w: a packet of the stream begins with %#x", ErrCorrupt, b[0])
	}
	skip := 1
	if e.semiSync {
		skip = 3
	}
	if e.left < skip+headerSize {
		return Header{}, fmt.Errorf("%w: a packet of %d bytes", ErrCorrupt, e.left)
	}
	if b, err = e.in.Peek(skip + headerSize); err != nil {
		return Header{}, unexpected(err)
	}
	if e.semiSync && b[1] != semiSyncMagic {
		return Header{}, fmt.Errorf("%w: an event without the mark of semi-synchronous replication", ErrCorrupt)
	}
	h, err := DecodeHeader(b[skip:])
	if err != nil {
		return Header{}, err
	}
	if _, err := e.in.Discard(skip); err != nil {
		return Header{}, err
	}
	e.left -= skip
	if !e.more && int(h.Size) != e.left {
		return Header{}, fmt.Errorf("%w: an event %v of %d bytes in a packet with %d", ErrCorrupt, h.Type, h.Size, e.left)
	}
	e.read += int64(h.Size)
	return h, nil
}

// accepted waits for the first packet and returns the source's refusal, if it is
// one; else it stays unread.
func (e *events) accepted() error {
	b, err := e.in.Peek(5)
	if err != nil {
		return unexpected(err)
	}
	if b[4] == mysql.OK_HEADER {
		return nil
	}
	_, err = e.next()
	return err
}

// packet reads a packet's header.
func (e *events) packet() error {
	var b [4]byte
	if _, err := io.ReadFull(e.in, b[:]); err != nil {
		return unexpected(err)
	}
	e.left = packetLength(b[:])
	e.more = e.left == maxPacket
	return nil
}

// Read implements io.Reader for the present event.
func (e *events) Read(p []byte) (int, error) {
	for e.left == 0 {
		if !e.more {
			return 0, io.EOF
		}
		if err := e.packet(); err != nil {
			return 0, err
		}
	}
	n, err := e.in.Read(p[:min(len(p), e.left)])
	e.left -= n
	if err != nil {
		err = unexpected(err)
	}
	return n, err
}

// end closes the event: an empty packet may follow it, and nothing else.
func (e *events) end() error {
	if e.left == 0 && e.more {
		if err := e.packet(); err != nil {
			return err
		}
	}
	if e.left != 0 || e.more {
		return fmt.Errorf("%w: packets that are longer than their event", ErrCorrupt)
	}
	return nil
}

// taken returns the bytes of events since it was called last.
func (e *events) taken() int64 {
	n := e.read
	e.read = 0
	return n
}

// refused reads the error that a source sends instead of an event.
func (e *events) refused() error {
	const most = 64 << 10
	if e.left > most || e.left < 3 {
		return fmt.Errorf("%w: an error packet of %d bytes", ErrCorrupt, e.left)
	}
	b := make([]byte, e.left)
	if _, err := io.ReadFull(e.in, b); err != nil {
		return unexpected(err)
	}
	my := &mysql.MyError{Code: binary.LittleEndian.Uint16(b[1:]), Message: string(b[3:])}
	if len(b) >= 9 && b[3] == '#' {
		my.State, my.Message = string(b[4:9]), string(b[9:])
	}
	return explain(my)
}

// timeoutReader reads a connection that must not be silent for longer.
type timeoutReader struct {
	c       net.Conn
	timeout time.Duration
}

// Read implements io.Reader.
func (r *timeoutReader) Read(p []byte) (int, error) {
	if err := r.c.SetReadDeadline(time.Now().Add(r.timeout)); err != nil {
		return 0, err
	}
	n, err := r.c.Read(p)
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		err = fmt.Errorf("nothing came for %v, not even a heartbeat", r.timeout)
	}
	return n, err
}

// frames reads what a compressed connection carries:
//
//	frame: length 3B | sequence 1B | length when unpacked 3B, 0: it is not packed | bytes
type frames struct {
	in   *bufio.Reader
	zstd bool

	raw    io.LimitedReader // the rest of the frame
	body   io.Reader        // nil between frames
	zlib   io.ReadCloser
	decode *zstd.Decoder
}

// Read implements io.Reader.
func (f *frames) Read(p []byte) (int, error) {
	for {
		if f.body == nil {
			if err := f.open(); err != nil {
				return 0, err
			}
		}
		n, err := f.body.Read(p)
		if errors.Is(err, io.EOF) {
			err, f.body = nil, nil
			if _, derr := io.Copy(io.Discard, &f.raw); derr != nil {
				return n, derr
			}
			if f.raw.N > 0 {
				return n, io.ErrUnexpectedEOF
			}
		}
		if n > 0 || err != nil {
			return n, err
		}
	}
}

// open begins a frame.
func (f *frames) open() (err error) {
	var b [7]byte
	if _, err := io.ReadFull(f.in, b[:]); err != nil {
		return err
	}
	f.raw = io.LimitedReader{R: f.in, N: int64(packetLength(b[:]))}
	switch {
	case packetLength(b[4:]) == 0:
		f.body = &f.raw
	case f.zstd && f.decode == nil:
		f.decode, err = zstd.NewReader(&f.raw, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(64<<20))
		f.body = f.decode
	case f.zstd:
		err = f.decode.Reset(&f.raw)
		f.body = f.decode
	case f.zlib == nil:
		f.zlib, err = zlib.NewReader(&f.raw)
		f.body = f.zlib
	default:
		err = f.zlib.(zlib.Resetter).Reset(&f.raw, nil)
		f.body = f.zlib
	}
	if err != nil {
		f.body = nil
		return fmt.Errorf("%w: a compressed frame: %v", ErrCorrupt, err)
	}
	return nil
}

// close lets the decoders go.
func (f *frames) close() {
	if f != nil && f.decode != nil {
		f.decode.Close()
	}
}
