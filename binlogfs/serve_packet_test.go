package binlogfs

import (
	"bytes"
	"net"
	"testing"

	"github.com/go-mysql-org/go-mysql/packet"
)

// TestPacketWriter_Sizes_ReadBackByTheLibrary crosses the greatest packet.
func TestPacketWriter_Sizes_ReadBackByTheLibrary(t *testing.T) {
	for _, size := range []int{0, 1, maxPacket - 1, maxPacket, maxPacket + 1, 2 * maxPacket, 2*maxPacket + 5} {
		here, there := net.Pipe()
		want := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		done := make(chan error, 1)
		go func() {
			w := newPacketWriter(t.Context(), here, 0)
			err := w.begin(size)
			for at := 0; at < size && err == nil; at += 1 << 20 {
				_, err = w.Write(want[at:min(size, at+1<<20)])
			}
			if err == nil {
				err = w.flush()
			}
			if _, over := w.Write([]byte{1}); err == nil && over == nil {
				t.Errorf("%d bytes: one more was taken", size)
			}
			done <- err
		}()
		got, err := packet.NewConn(there).ReadPacket()
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes: %d came, %v", size, len(got), err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := here.Close(); err != nil {
			t.Error(err)
		}
	}
}
