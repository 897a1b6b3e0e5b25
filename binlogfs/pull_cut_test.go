package binlogfs

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"testing"

	"github.com/cisternfs/cistern/internal/testenv"
)

// packets are what a source sends of a stream over the network, each event in a
// packet.
func packets(in []byte) (out []byte) {
	for seq := byte(1); len(in) > 0; seq++ {
		n := int(binary.LittleEndian.Uint32(in))
		out = append(out, byte(n+1), byte((n+1)>>8), byte((n+1)>>16), seq, 0)
		out = append(out, in[4:4+n]...)
		in = in[4+n:]
	}
	return out
}

// resent is how many bytes go before the first event that is new: the Rotate and the
// format description that begin every stream, which were cut before.
func resent(net []byte) (n int) {
	for range 2 {
		n += 4 + packetLength(net[n:])
	}
	return n
}

// cutStride is how many bytes lie between two cuts at most: one where SOAK_SECONDS
// asks for the long form.
func cutStride() int {
	if os.Getenv("SOAK_SECONDS") != "" {
		return 1
	}
	return 23
}

// nextCut is where a stream is cut after a cut behind length bytes: stride bytes
// later, or before that at a packet's end, a byte before it or a byte behind it.
func nextCut(net []byte, length, stride int) int {
	next := length + stride
	for end := 0; end < len(net) && end <= next; {
		end += 4 + packetLength(net[end:])
		for _, at := range []int{end - 1, end, end + 1} {
			if at > length {
				next = min(next, at)
			}
		}
	}
	return next
}

// The connection is cut around every packet's end and at every so manieth byte of
// the stream, in the long form at every byte, one after another: the relay goes on
// from what it has published, and the next cut comes later than the one before. The
// streams have 20 KB together. Now and then the relay is killed, too.
func TestPuller_CutAtEveryByte_GoesOnByteIdentical(t *testing.T) {
	testenv.Long(t)
	stride := cutStride()
	for _, kind := range []string{"m1011", "m118", "my56", "my97"} {
		t.Run(kind, func(t *testing.T) {
			p := newPlace(t)
			l, s := p.log(), recordedStream(t, kind)
			told, length, cuts := Position{}, 0, 0
			for {
				a := p.appender(l)
				file, offset := a.Resume()
				net := packets(s.from(t, file, max(offset, 4)))
				length = min(length, len(net))
				whole := length == len(net)
				err := (&Puller{l: l}).stream(t.Context(), &sourceConn{in: &events{in: bufio.NewReaderSize(bytes.NewReader(net[:length]), 512)}}, a)
				if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
					t.Fatalf("cut behind %d bytes from %s %d on: %v", length, file, offset, err)
				}
				if err := a.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				if cuts++; cuts%53 == 0 {
					p.kill()
					l = p.log()
				}
				end, _ := l.End()
				if logNumber(end.File) < logNumber(told.File) || end.File == told.File && end.Offset < told.Offset {
					t.Fatalf("the published end went back from %v to %v", told, end)
				}
				length = nextCut(net, length, stride)
				if end != told {
					s.check(t, l, false)
					told, length = end, resent(packets(s.from(t, end.File, end.Offset)))+1
				}
				if whole {
					break
				}
			}
			s.check(t, l, true)
			t.Logf("%d cuts", cuts)
		})
	}
}
