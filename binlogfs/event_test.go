package binlogfs

import (
	"strings"
	"testing"
)

// Whether a source's Rotate has a checksum is not known when it comes: four bytes that
// are digits would make another number of the file's.
func TestDecodeSentRotate_WithAndWithoutChecksum(t *testing.T) {
	const name = "mysql-bin.000042"
	digits := 0
	for id := uint32(1); digits == 0; id++ {
		for _, withChecksum := range []bool{false, true} {
			event := RotateEvent(Header{Flags: flagArtificial, ServerID: id}, name, 4711, withChecksum)
			if sum := string(event[len(event)-checksumSize:]); withChecksum && strings.Trim(sum, "0123456789") == "" {
				digits++
			}
			if file, pos, err := decodeSentRotate(event); err != nil || file != name || pos != 4711 {
				t.Fatalf("server %d, checksum %v: %q, %d, %v", id, withChecksum, file, pos, err)
			}
		}
	}
}
