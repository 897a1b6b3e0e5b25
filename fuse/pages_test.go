package fuse

import (
	"testing"

	"github.com/cisternfs/cistern/gateway"
)

func TestPageTable_KnowsWhatWasAdded(t *testing.T) {
	var table pageTable
	added := []gateway.InodeID{1, 2, 63, 64, 65, 4095, pageTableBits - 1, 3*pageTableBits + 7}
	for _, ino := range added {
		table.add(ino)
		table.add(ino)
	}
	for _, ino := range added {
		if !table.has(ino) {
			t.Errorf("inode %d is forgotten", ino)
		}
	}
	for _, ino := range []gateway.InodeID{3, 62, 66, 4094, pageTableBits - 2, 8} {
		if table.has(ino) {
			t.Errorf("inode %d was never added", ino)
		}
	}
	if !table.has(7) {
		t.Error("inode 7 shares the bit of one that was added")
	}
}
