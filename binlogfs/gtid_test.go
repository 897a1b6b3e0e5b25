package binlogfs

import (
	"errors"
	"testing"

	"github.com/go-mysql-org/go-mysql/replication"
)

// taggedBody is a tagged Gtid event of MySQL in a group: with its first four fields,
// two more, and the ticket of a group replication, which most events leave out.
func taggedBody() []byte {
	b := []byte{1 << 1, 40 << 1, 12 << 1,
		0, 1 << 1, // gtid_flags
		1 << 1}
	for i := range byte(15) {
		b = append(b, i<<1) // uuid: a byte below 128 in one byte
	}
	b = append(b, 0x3f<<2|1, 3) // and 0xff in two
	b = append(b, 2<<1, 5<<2)   // gno
	b = append(b, 3<<1, 4<<1)
	b = append(b, "blue"...)
	return append(b, 4<<1, 1<<2, 5<<1, 2<<2, 11<<1, 9<<1)
}

func TestGTID_DecodeGTID_TaggedWithTicket(t *testing.T) {
	g, standalone, err := decodeGTID(Header{Type: replication.GTID_TAGGED_LOG_EVENT}, taggedBody())
	if err != nil || standalone {
		t.Fatalf("standalone %v: %v", standalone, err)
	}
	if got, want := g.String(), "00010203-0405-0607-0809-0a0b0c0d0eff:blue:5"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// An event's body is read before its checksum: whatever is in it must not end the process.
func TestGTID_DecodeGTID_DamagedEvents(t *testing.T) {
	whole := taggedBody()
	decode := func(body []byte) {
		for _, kind := range []EventType{replication.MARIADB_GTID_EVENT, replication.GTID_EVENT, replication.GTID_TAGGED_LOG_EVENT} {
			if _, _, err := decodeGTID(Header{Type: kind}, body); err != nil && !errors.Is(err, ErrCorrupt) {
				t.Errorf("%v of % x: %v, want ErrCorrupt", kind, body, err)
			}
		}
	}
	for n := range whole {
		decode(whole[:n])
		for bit := range 8 {
			flipped := append([]byte(nil), whole...)
			flipped[n] ^= 1 << bit
			decode(flipped)
		}
	}
	decode(make([]byte, 60))
	for _, bad := range [][]byte{nil, whole[:2], whole[:5], make([]byte, 60)} {
		if g, _, err := decodeGTID(Header{Type: replication.GTID_TAGGED_LOG_EVENT}, bad); !errors.Is(err, ErrCorrupt) {
			t.Errorf("% x: %v, %v, want ErrCorrupt", bad, g, err)
		}
	}
}
