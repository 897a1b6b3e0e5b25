package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/go-mysql-org/go-mysql/client"
	"github.com/go-mysql-org/go-mysql/mysql"
)

// logReader reads a binary log as a replica does and keeps nothing of it, so
// that it takes little of the time that is measured.
type logReader struct {
	c  *client.Conn
	in *bufio.Reader
}

const (
	dumpNonBlock = 1 // the server ends the stream with its log
	dumpAnnotate = 2
)

// openReader asks a server or a relay for its log from a file's beginning on.
func openReader(ctx context.Context, addr string, serverID uint32, file string, flags uint16) (*logReader, error) {
	c, err := client.ConnectWithDialer(ctx, "", addr, replUser, replPassword, "", (&net.Dialer{}).DialContext)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	r := &logReader{c: c}
	if _, err := c.Execute("SET @master_binlog_checksum='CRC32', @mariadb_slave_capability=4"); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", addr, err), c.Close())
	}
	b := append([]byte{0, 0, 0, 0, mysql.COM_BINLOG_DUMP}, 4, 0, 0, 0)
	b = binary.LittleEndian.AppendUint16(b, flags)
	b = append(binary.LittleEndian.AppendUint32(b, serverID), file...)
	c.ResetSequence()
	if err := c.WritePacket(b); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: ask for the log: %w", addr, err), c.Close())
	}
	r.in = bufio.NewReaderSize(c.Conn.Conn, 512<<10)
	return r, nil
}

func (r *logReader) close() error { return r.c.Close() }

// next reads an event's header and throws the rest away. io.EOF is the end of
// the log.
func (r *logReader) next() (kind byte, logPos uint32, n int64, err error) {
	const header = 19
	for first := true; ; first = false {
		head, err := r.in.Peek(4)
		if err != nil {
			return 0, 0, 0, err
		}
		length := int(head[0]) | int(head[1])<<8 | int(head[2])<<16
		if first {
			b, err := r.in.Peek(4 + min(length, 1+header))
			if err != nil {
				return 0, 0, 0, err
			}
			b = b[4:]
			switch {
			case len(b) > 0 && b[0] == mysql.EOF_HEADER && length < 9:
				return 0, 0, 0, io.EOF
			case len(b) < 1+header || b[0] != mysql.OK_HEADER:
				return 0, 0, 0, fmt.Errorf("the stream ends with %q", b)
			}
			kind, logPos = b[1+4], binary.LittleEndian.Uint32(b[1+13:])
			n = int64(binary.LittleEndian.Uint32(b[1+9:]))
		}
		if _, err := r.in.Discard(4 + length); err != nil {
			return 0, 0, 0, err
		}
		if length < 1<<24-1 {
			return kind, logPos, n, nil
		}
	}
}

// readAll reads a log to its end, and returns its bytes and the time it took.
func readAll(ctx context.Context, addr string, serverID uint32, file string) (bytes int64, took time.Duration, err error) {
	begun := time.Now()
	r, err := openReader(ctx, addr, serverID, file, dumpNonBlock|dumpAnnotate)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	for {
		_, _, n, err := r.next()
		if errors.Is(err, io.EOF) {
			return bytes, time.Since(begun), nil
		}
		if err != nil {
			return bytes, 0, fmt.Errorf("read the log of %s: %w", addr, err)
		}
		bytes += n
	}
}
