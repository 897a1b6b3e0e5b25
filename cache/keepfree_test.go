package cache

import (
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
)

// The disk is smaller than the limit: the cache evicts for what it takes in
// before the disk is full, and gives back what others take of what it keeps free.
func TestCache_KeepFree_BelowItsLimit(t *testing.T) {
	const keep, chunk = 256 << 10, 16 << 10
	disk := vfs.NewMem()
	disk.SetCapacity(1 << 20)
	c := mustOpen(t, disk, "cache", Options{LimitBytes: 1 << 30, KeepFree: keep})
	free := func() int64 {
		n, err := disk.Free("cache")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	f := c.Get(1)
	defer f.Release()
	for i := range int64(200) {
		if ok, err := f.WriteAt(fill(1, i*chunk, 0, chunk), i*chunk); !ok || err != nil {
			t.Fatalf("chunk %d: %v, %v", i, ok, err)
		}
		if n := free(); n < keep {
			t.Fatalf("%d bytes free after chunk %d", n, i)
		}
	}
	if s := c.Stats(); s.Evictions == 0 || s.Failures != 0 {
		t.Errorf("%+v", s)
	}
	disk.SetCapacity(1<<20 - 300<<10) // somebody else's file
	if n := free(); n >= keep {
		t.Fatalf("%d bytes free: the test takes nothing", n)
	}
	if err := c.KeepFree(); err != nil {
		t.Fatal(err)
	}
	if n := free(); n < keep {
		t.Errorf("%d bytes free, %d are to be kept", n, keep)
	}
	// What is pinned stays, and what has no room is not taken in.
	disk.SetCapacity(-1)
	for i := range int64(60) {
		if ok, err := f.WritePinned(fill(1, i*chunk, 1, chunk), i*chunk); !ok || err != nil {
			t.Fatalf("pinned chunk %d: %v, %v", i, ok, err)
		}
	}
	disk.SetCapacity(1 << 20)
	if err := c.KeepFree(); err != nil {
		t.Fatal(err)
	}
	if ok, err := f.WriteAt(fill(1, 100*chunk, 1, chunk), 100*chunk); ok || err != nil {
		t.Errorf("a chunk that has no room: %v, %v", ok, err)
	}
	for i := range int64(60) {
		if !reads(t, f, fill(1, i*chunk, 1, chunk), i*chunk) {
			t.Fatalf("pinned chunk %d is gone", i)
		}
		f.Unpin(i*chunk, chunk)
	}
}
