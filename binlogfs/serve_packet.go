package binlogfs

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"time"

	"github.com/go-mysql-org/go-mysql/mysql"
)

const sendBuffer = 256 << 10

// packetWriter writes messages as the protocol's packets:
//
//	length 3B | sequence 1B | payload
//
// A message of maxPacket bytes or a multiple ends with an empty packet. It is
// used by one goroutine.
type packetWriter struct {
	out  *bufio.Writer
	seq  byte
	left int  // of the message
	room int  // in the packet
	full bool // the packet has the greatest size: another follows it
}

func newPacketWriter(ctx context.Context, c net.Conn, seq byte) *packetWriter {
	return &packetWriter{out: bufio.NewWriterSize(&deadlineWriter{ctx, c}, sendBuffer), seq: seq}
}

// begin starts a message of n bytes, all of which must be written.
func (w *packetWriter) begin(n int) error {
	w.left = n
	return w.packet()
}

// packet starts the next packet of the message.
func (w *packetWriter) packet() error {
	w.room = min(w.left, maxPacket)
	w.full = w.room == maxPacket
	head := [4]byte{byte(w.room), byte(w.room >> 8), byte(w.room >> 16), w.seq}
	w.seq++
	_, err := w.out.Write(head[:])
	return err
}

// Write implements io.Writer.
func (w *packetWriter) Write(p []byte) (int, error) {
	n := 0
	for len(p) > 0 {
		k := min(len(p), w.room)
		if k == 0 {
			return n, io.ErrShortWrite // more than begin was told
		}
		m, err := w.out.Write(p[:k])
		n += m
		if err != nil {
			return n, err
		}
		p, w.left, w.room = p[k:], w.left-k, w.room-k
		if w.room == 0 && w.full {
			if err := w.packet(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (w *packetWriter) flush() error { return w.out.Flush() }

// deadlineWriter gives up on a client that takes nothing for writeTime.
type deadlineWriter struct {
	ctx context.Context
	c   net.Conn
}

// Write implements io.Writer.
func (d *deadlineWriter) Write(p []byte) (int, error) {
	if err := d.ctx.Err(); err == nil {
		if err := d.c.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
			return 0, err
		}
	}
	return d.c.Write(p)
}

// errorMessage is the message that ends a dump with an error.
func errorMessage(e *mysql.MyError) []byte {
	msg := []byte{mysql.ERR_HEADER, byte(e.Code), byte(e.Code >> 8), '#'}
	return append(append(msg, e.State...), e.Message...)
}

// eofMessage ends a dump that was to end.
func eofMessage() []byte { return []byte{mysql.EOF_HEADER, 0, 0, 2, 0} }

// readAcks reads what a replica sends during a dump: the acknowledgements of
// semi-synchronous replication,
//
//	EF | position 8B | file
//
// until the connection ends.
func readAcks(c net.Conn, acked func(file string, pos int64)) error {
	in := bufio.NewReaderSize(c, 1024)
	for {
		var head [4]byte
		if _, err := io.ReadFull(in, head[:]); err != nil {
			return err
		}
		n := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
		if n < 9 || n > 1024 {
			return io.ErrUnexpectedEOF // it is no acknowledgement: the client wants to end
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(in, body); err != nil {
			return err
		}
		if body[0] != semiSyncMagic {
			return io.ErrUnexpectedEOF
		}
		acked(string(body[9:]), int64(binary.LittleEndian.Uint64(body[1:])))
	}
}
