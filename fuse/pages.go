package fuse

import (
	"sync/atomic"

	"github.com/cisternfs/cistern/gateway"
)

const pageTableBits = 1 << 18

// pageTable remembers for which inodes the kernel may hold pages: those that
// were read or written through its cache. Inodes share a bit with others whose
// numbers are a multiple of pageTableBits away, and a bit is never taken back:
// the answer may be yes for too many, never no for too few. Safe for concurrent
// use.
type pageTable [pageTableBits / 64]atomic.Uint64

func (t *pageTable) add(ino gateway.InodeID) {
	word, bit := &t[ino%pageTableBits/64], uint64(1)<<(ino%64)
	if word.Load()&bit == 0 {
		word.Or(bit)
	}
}

func (t *pageTable) has(ino gateway.InodeID) bool {
	return t[ino%pageTableBits/64].Load()&(1<<(ino%64)) != 0
}

// each calls fn for every inode below limit for which has says yes.
func (t *pageTable) each(limit gateway.InodeID, fn func(gateway.InodeID)) {
	for i := range gateway.InodeID(pageTableBits) {
		if !t.has(i) {
			continue
		}
		for ino := i; ino < limit; ino += pageTableBits {
			fn(ino)
		}
	}
}
