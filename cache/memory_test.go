//go:build !race

package cache

import (
	"runtime"
	"testing"
)

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestCache_Memory_Bounded(t *testing.T) {
	for _, tc := range []struct {
		name         string
		files, parts int64
		most         int64
	}{
		{"200000 files", 200_000, 1, 60 << 20},
		{"131072 ranges", 1, 131_072, 40 << 20},
		{"131072 ranges, 4 a block", 1, -131_072, 40 << 20},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := &Cache{pool: newPool(1 << 40), files: map[uint64]*File{}}
			before := heap()
			step := int64(BlockSize)
			if tc.parts < 0 {
				tc.parts, step = -tc.parts, BlockSize/4
			}
			for ino := range tc.files {
				f := c.Get(uint64(ino))
				f.mu.Lock()
				for i := range tc.parts {
					off := i * step
					no := off / BlockSize
					f.begin(no, no)
					f.addPages(f.block(no), pageMask(within(no, off, off+16<<10)))
					f.markPresent(off, off+16<<10)
					f.end(no, no)
				}
				f.mu.Unlock()
			}
			if got := heap() - before; got > tc.most {
				t.Errorf("%d bytes, want %d at most", got, tc.most)
			} else {
				t.Logf("%d KiB", got>>10)
			}
			runtime.KeepAlive(c)
		})
	}
}
