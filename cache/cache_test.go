package cache

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	oldrand "math/rand"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
)

func mustOpen(t testing.TB, fs vfs.FS, dir string, o Options) *Cache {
	t.Helper()
	c, err := Open(fs, dir, o)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// fill returns n bytes that tell inode, offset and version apart, none of them 0.
func fill(ino uint64, off int64, version, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		at := off + int64(i)
		p[i] = byte(uint64(at)*2654435761>>8+ino*31+uint64(version)*97) | 1
	}
	return p
}

func mustWrite(t testing.TB, f *File, p []byte, off int64) {
	t.Helper()
	if ok, err := f.WriteAt(p, off); !ok || err != nil {
		t.Fatalf("write of %d bytes at %d: %v %v (%v)", len(p), off, ok, err, f.c.Stats().LastError)
	}
}

func reads(t testing.TB, f *File, want []byte, off int64) bool {
	t.Helper()
	p := make([]byte, len(want))
	ok, err := f.ReadAt(p, off)
	if err != nil {
		t.Fatalf("read of %d bytes at %d: %v", len(p), off, err)
	}
	if ok && !bytes.Equal(p, want) {
		t.Fatalf("read of %d bytes at %d gives wrong ones", len(p), off)
	}
	return ok
}

func checkAtRest(t testing.TB, c *Cache) {
	t.Helper()
	if err := c.CheckAccounting(); err != nil {
		t.Error(err)
	}
}

// du returns the bytes that the files of a real directory take.
func du(t testing.TB, dir string) (sum int64) {
	t.Helper()
	err := filepath.Walk(dir, func(_ string, info os.FileInfo, err error) error {
		if err == nil && !info.IsDir() {
			sum += info.Sys().(*syscall.Stat_t).Blocks * 512
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return sum
}

// TestCache_SmallLimit_EightThreads is a cache of 100 KiB under eight threads
// that work on 500 KiB each.
func TestCache_SmallLimit_EightThreads(t *testing.T) {
	const limit, size, chunk = 100 << 10, 500 << 10, 10 << 10
	mem := vfs.NewMem()
	for name, fs := range map[string]vfs.FS{"mem": mem, "os": vfs.OS()} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "cache")
			c := mustOpen(t, fs, dir, Options{LimitBytes: limit, MaxOpenFiles: 3})
			var wg sync.WaitGroup
			var hits, stored [8]int
			for g := range 8 {
				wg.Go(func() {
					r := rand.New(rand.NewPCG(uint64(g), 5))
					ino := uint64(g / 2) // two threads a file, on halves
					base := int64(g%2) * size
					f := c.Get(ino)
					defer f.Release()
					for range 400 {
						off := base + r.Int64N(size/chunk)*chunk
						p := fill(ino, off, 0, chunk)
						switch ok, err := f.WriteAt(p, off); {
						case err != nil:
							t.Error(err)
						case ok:
							stored[g]++
						}
						off = base + r.Int64N(size-chunk)
						if reads(t, f, fill(ino, off, 0, 100), off) {
							hits[g]++
						}
						if s := c.Stats(); s.Allocated > limit || s.OpenFiles > 3 {
							t.Errorf("%d bytes allocated, %d files open", s.Allocated, s.OpenFiles)
						}
						if used := mem.Used(); used > limit {
							t.Errorf("%d bytes on disk", used)
						}
					}
				})
			}
			wg.Wait()
			for g := range 8 {
				if stored[g] == 0 || hits[g] == 0 {
					t.Errorf("thread %d stored %d times and hit %d times", g, stored[g], hits[g])
				}
			}
			checkAtRest(t, c)
			if s := c.Stats(); name == "os" && s.Allocated != du(t, dir) {
				t.Errorf("charged %d, du %d", s.Allocated, du(t, dir))
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestCache_Mix_Concurrent runs everything against everything, each thread in
// its own byte range of shared files, as the gateway's range lock has it.
func TestCache_Mix_Concurrent(t *testing.T) {
	const region = 200_000 // not a multiple of anything: threads share pages and blocks
	c := mustOpen(t, vfs.NewMem(), "cache", Options{LimitBytes: 600 << 10, MaxOpenFiles: 2})
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() { mix(t, c, g, region) })
	}
	wg.Go(func() {
		for range 200 {
			c.Evict(50 << 10)
			c.Stats()
		}
	})
	wg.Wait()
	if err := c.checkAccounting(false); err != nil {
		t.Error(err)
	}
	c.Evict(math.MaxInt64)
	if s := c.Stats(); s.Allocated != 0 || s.Files != 0 || s.Pinned != 0 {
		t.Errorf("left after evicting all: %+v", s)
	}
}

func mix(t *testing.T, c *Cache, g int, region int64) {
	r := rand.New(rand.NewPCG(uint64(g), 9))
	version := make(map[uint64]int)
	for i := range 600 {
		ino := uint64(r.IntN(3))
		f := c.Get(ino)
		n := 1 + r.Int64N(30_000)
		off := int64(g)*region + r.Int64N(region-n)
		v := version[ino]
		switch r.IntN(8) {
		case 0, 1:
			if _, err := f.WriteAt(fill(ino, off, v, int(n)), off); err != nil {
				t.Error(err)
			}
		case 2:
			if _, err := f.WriteAbsent(fill(ino, off, v, int(n)), off, nil); err != nil {
				t.Error(err)
			}
		case 3:
			p := fill(ino, off, v, int(n))
			if ok, err := f.WritePinned(p, off); err != nil {
				t.Error(err)
			} else if ok {
				c.Evict(n)
				got := make([]byte, n)
				if err := f.ReadPinned(got, off); err != nil || !bytes.Equal(got, p) {
					t.Errorf("pinned bytes changed, or %v", err)
				}
				f.Unpin(off, n)
			}
		case 4:
			if err := f.Drop(off, off+n); err != nil {
				t.Error(err)
			}
			if reads(t, f, make([]byte, n), off) {
				t.Error("dropped bytes are present")
			}
		case 5:
			if i%5 == 0 {
				if err := f.Sync(); err != nil {
					t.Error(err)
				}
			}
			if i%9 == 0 { // new content for the whole region: all of the old must go
				if err := f.Drop(int64(g)*region, int64(g+1)*region); err != nil {
					t.Error(err)
				}
				version[ino]++
			}
		default:
			reads(t, f, fill(ino, off, v, int(n)), off)
		}
		f.Release()
	}
}

func TestCache_Descriptors_Bounded(t *testing.T) {
	fault := vfs.NewFault(vfs.OS())
	c := mustOpen(t, fault, filepath.Join(t.TempDir(), "c"), Options{MaxOpenFiles: 5})
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				ino := uint64(i % 40)
				f := c.Get(ino)
				off := int64(g) * 4096
				mustWrite(t, f, fill(ino, off, 0, 4096), off)
				if !reads(t, f, fill(ino, off, 0, 4096), off) {
					t.Error("miss without any pressure")
				}
				if n := c.Stats().OpenFiles; n > 5 {
					t.Errorf("%d files open", n)
				}
				f.Release()
			}
		})
	}
	wg.Wait()
	checkAtRest(t, c)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if n := c.Stats().OpenFiles; n != 0 {
		t.Errorf("%d files open after Close", n)
	}
	f := c.Get(1)
	if _, err := f.WriteAt([]byte{1}, 0); !errors.Is(err, ErrClosed) {
		t.Errorf("write after Close: %v", err)
	}
}

// TestCache_Fault_EveryCall fails each call to the disk in turn, with each kind
// of error: what is read afterwards is right or absent, and the account holds.
func TestCache_Fault_EveryCall(t *testing.T) {
	for _, fail := range []error{syscall.ENOSPC, syscall.EIO} {
		for n := 0; ; n++ {
			mem := vfs.NewMem()
			fault := vfs.NewFault(mem)
			c := mustOpen(t, fault, "cache", Options{LimitBytes: 300 << 10, MaxOpenFiles: 1})
			before := fault.Calls()
			var op string
			fault.SetHook(func(o, name string, i int) error {
				if i != before+n {
					return nil
				}
				op = o + " " + name
				return fail
			})
			told := script(t, c, fail)
			done := fault.Calls()-before <= n
			fault.SetHook(nil)
			if !done && c.Stats().Failures == 0 && !told {
				t.Errorf("call %d, %s, failed with %v and nobody was told", n, op, fail)
			}
			if err := c.checkAccounting(false); err != nil {
				t.Errorf("call %d failed with %v: %v", n, fail, err)
			}
			c.Evict(math.MaxInt64)
			c.Evict(math.MaxInt64)
			if mem.Used() != 0 {
				t.Errorf("call %d failed with %v: %d bytes can't be evicted", n, fail, mem.Used())
			}
			f := c.Get(1) // and everything works again
			mustWrite(t, f, fill(1, 0, 7, 5000), 0)
			if !reads(t, f, fill(1, 0, 7, 5000), 0) {
				t.Errorf("call %d: does not recover", n)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
			if done {
				if n < 20 {
					t.Fatalf("the script makes only %d calls", n)
				}
				break
			}
		}
	}
}

// script does some of everything and tells whether a call returned an error.
func script(t *testing.T, c *Cache, fail error) (told bool) {
	f, g := c.Get(1), c.Get(2)
	defer f.Release()
	defer g.Release()
	tryRead := func(f *File, want []byte, off int64) {
		p := make([]byte, len(want))
		ok, err := f.ReadAt(p, off)
		if ok && (err != nil || !bytes.Equal(p, want)) {
			t.Errorf("read is ok with wrong bytes, or with %v", err)
		}
		if err != nil && !errors.Is(err, fail) {
			t.Errorf("read: %v", err)
		}
		if err != nil {
			if ok, err := f.ReadAt(p, off); ok || err != nil {
				t.Errorf("after a failed read: %v %v", ok, err)
			}
		}
	}
	for i := range int64(4) {
		p := fill(1, i*100_000, 0, 90_000)
		ok, err := f.WriteAt(p, i*100_000)
		if err != nil {
			t.Errorf("write: %v", err)
		}
		if !ok && reads(t, f, make([]byte, 1), i*100_000+89_999) {
			t.Error("the end of a failed write is present")
		}
		tryRead(f, p, i*100_000)
	}
	tryRead(f, fill(1, 100_000, 0, 90_000), 100_000)
	p := fill(2, 5, 0, 50_000)
	ok, err := g.WritePinned(p, 5)
	if err != nil {
		t.Errorf("write pinned: %v", err)
	}
	tryRead(f, fill(1, 300_000, 0, 90_000), 300_000)
	if err := g.Sync(); err != nil && !errors.Is(err, fail) {
		t.Errorf("sync: %v", err)
	} else if told = err != nil; told && reads(t, g, p, 5) {
		t.Error("bytes are present after a failed sync")
	}
	if ok {
		got := make([]byte, len(p))
		if err := g.ReadPinned(got, 5); err != nil && !errors.Is(err, fail) {
			t.Errorf("read pinned: %v", err)
		} else {
			told = told || err != nil
		}
		g.Unpin(5, 50_000)
	}
	if err := f.Drop(50_000, 250_000); err != nil {
		t.Errorf("drop: %v", err)
	}
	if reads(t, f, make([]byte, 1), 60_000) {
		t.Error("dropped bytes are present")
	}
	h := c.Get(3)
	if _, err := h.WriteAt(p, 0); err != nil {
		t.Errorf("write: %v", err)
	}
	if err := c.Remove(3); err != nil && !errors.Is(err, fail) {
		t.Errorf("remove: %v", err)
	} else if err != nil {
		told = true
		if err := c.Remove(3); err != nil {
			t.Errorf("remove again: %v", err)
		}
	}
	h.Release()
	return told
}

func TestFile_WriteAt_FullDisk(t *testing.T) {
	mem := vfs.NewMem()
	c := mustOpen(t, mem, "cache", Options{})
	f := c.Get(9)
	mustWrite(t, f, fill(9, 0, 0, 40_960), 0)
	mem.SetCapacity(60_000)
	if ok, err := f.WriteAt(fill(9, 20_480, 1, 65_536), 20_480); ok || err != nil {
		t.Fatalf("write to a full disk: %v %v", ok, err)
	}
	if s := c.Stats(); !errors.Is(s.LastError, syscall.ENOSPC) || s.Failures != 1 {
		t.Errorf("stats: %v, %d failures", s.LastError, s.Failures)
	}
	if !reads(t, f, fill(9, 0, 0, 20_480), 0) {
		t.Error("bytes before the failed write are gone")
	}
	if reads(t, f, make([]byte, 1), 20_480) {
		t.Error("a byte of the failed write is present")
	}
	if err := c.checkAccounting(false); err != nil {
		t.Error(err)
	}
	mem.SetCapacity(-1)
	mustWrite(t, f, fill(9, 20_480, 1, 65_536), 20_480)
	if err := c.checkAccounting(false); err != nil {
		t.Error(err)
	}
}

// TestCache_Crash_VerifyDecides cuts the power: what verify accepts reads back
// right, pinned bytes that were synced are all there, and the account is right.
func TestCache_Crash_VerifyDecides(t *testing.T) {
	for seed := range uint64(40) {
		r := oldrand.New(oldrand.NewSource(int64(seed)))
		mem := vfs.NewMem()
		c := mustOpen(t, mem, "cache", Options{})
		sums := map[int64]uint32{}
		f := c.Get(5)
		for no := range int64(6) {
			p := fill(5, no*BlockSize, int(seed), BlockSize)
			sums[no] = crc32.ChecksumIEEE(p)
			mustWrite(t, f, p, no*BlockSize)
		}
		ref := fill(5, 7*BlockSize, 3, 70_000)
		if ok, err := f.WritePinned(ref, 7*BlockSize); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if err := f.Sync(); err != nil {
			t.Fatal(err)
		}
		torn := fill(5, 2*BlockSize, 99, BlockSize)
		sums[2] = crc32.ChecksumIEEE(torn)
		mustWrite(t, f, torn, 2*BlockSize)
		if err := f.Drop(4*BlockSize, 5*BlockSize); err != nil {
			t.Fatal(err)
		}
		after := mem.Crash(r, []vfs.CrashMode{vfs.KillProcess, vfs.PowerLoss}[seed%2])
		c = mustOpen(t, after, "cache", Options{LimitBytes: after.Used()})
		f = c.Get(5)
		f.Pin(7*BlockSize, int64(len(ref)))
		got := make([]byte, len(ref))
		if err := f.ReadPinned(got, 7*BlockSize); err != nil || !bytes.Equal(got, ref) {
			t.Fatalf("seed %d: synced pinned bytes: %v, or they changed", seed, err)
		}
		if s := c.Stats(); s.Allocated != after.Used() {
			t.Fatalf("seed %d: charged %d, on disk %d", seed, s.Allocated, after.Used())
		}
		err := f.Verify(0, 7*BlockSize, func(no int64, data []byte) int64 {
			if sum, ok := sums[no]; ok && crc32.ChecksumIEEE(data) == sum {
				return BlockSize
			}
			return 0
		})
		if err != nil {
			t.Fatal(err)
		}
		for no := range int64(6) {
			version := int(seed)
			if no == 2 {
				version = 99
			}
			ok := reads(t, f, fill(5, no*BlockSize, version, BlockSize), no*BlockSize)
			if !ok && no != 2 && no != 4 {
				t.Errorf("seed %d: synced block %d is absent", seed, no)
			}
		}
		if err := c.checkAccounting(false); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
		f.Unpin(7*BlockSize, int64(len(ref)))
		if err := f.Drop(0, math.MaxInt64); err != nil {
			t.Fatal(err)
		}
		f.Release()
		if s := c.Stats(); s.Allocated != 0 || after.Used() != 0 {
			t.Errorf("seed %d: %d bytes charged, %d on disk after dropping all", seed, s.Allocated, after.Used())
		}
	}
}

func TestCache_Open_UnknownIsEvictedButNotPinned(t *testing.T) {
	mem := vfs.NewMem()
	c := mustOpen(t, mem, "cache", Options{})
	for ino := range uint64(10) {
		f := c.Get(ino)
		mustWrite(t, f, fill(ino, 0, 0, 3*BlockSize), 0)
		mustWrite(t, f, fill(ino, 1<<33, 0, 100), 1<<33) // far away: the hole must be passed quickly
		f.Release()
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	c = mustOpen(t, mem, "cache", Options{LimitBytes: 31 * BlockSize})
	found := 0
	if err := c.Inodes(func(uint64) error { found++; return nil }); err != nil || found != 10 {
		t.Fatalf("%d files found, %v", found, err)
	}
	f := c.Get(4)
	f.Pin(BlockSize, 10)
	g := c.Get(100)
	for i := range int64(29) {
		mustWrite(t, g, fill(100, i*BlockSize, 0, BlockSize), i*BlockSize)
		if mem.Used() > 31*BlockSize {
			t.Fatalf("%d bytes on disk", mem.Used())
		}
	}
	got := make([]byte, BlockSize)
	if err := f.ReadPinned(got, BlockSize); err != nil || !bytes.Equal(got, fill(4, BlockSize, 0, BlockSize)) {
		t.Errorf("pinned block of before the restart: %v, or it changed", err)
	}
	if s := c.Stats(); s.Files > 3 { // the two and a last page somewhere
		t.Errorf("%d files are kept", s.Files)
	}
	if err := c.checkAccounting(false); err != nil {
		t.Error(err)
	}
}

func TestCache_Open_OpensNoFile(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "cache")
	c := mustOpen(t, vfs.OS(), dir, Options{})
	for ino := range uint64(2000) {
		f := c.Get(ino)
		mustWrite(t, f, []byte("x"), 0)
		f.Release()
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "00", "notes.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	fault := vfs.NewFault(vfs.OS())
	fault.SetHook(func(op, name string, _ int) error {
		if op == "OpenFile" {
			t.Errorf("opens %s", name)
		}
		return nil
	})
	c = mustOpen(t, fault, dir, Options{})
	fault.SetHook(nil)
	if s := c.Stats(); s.Files != 2000 || s.Allocated != 2000*pageSize {
		t.Errorf("%+v", s)
	}
	checkAtRest(t, c)
}

func TestCache_Remove_WaitsForTheLastPin(t *testing.T) {
	mem := vfs.NewMem()
	c := mustOpen(t, mem, "cache", Options{})
	f := c.Get(3)
	p := fill(3, 0, 0, 10_000)
	for range 2 {
		if ok, err := f.WritePinned(p, 0); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	if err := c.Remove(3); err != nil {
		t.Fatal(err)
	}
	f.Unpin(0, 10_000)
	got := make([]byte, len(p))
	if err := f.ReadPinned(got, 0); err != nil || !bytes.Equal(got, p) {
		t.Fatalf("pinned bytes of a removed inode: %v, or they changed", err)
	}
	if reads(t, f, p, 0) {
		t.Error("bytes of a removed inode are present")
	}
	f.Unpin(0, 10_000)
	if s := c.Stats(); s.Allocated != 0 || s.Pinned != 0 || mem.Used() != 0 {
		t.Errorf("left: %+v, %d on disk", s, mem.Used())
	}
	f.Release()
	if n := c.Stats().Files; n != 0 {
		t.Errorf("%d entries left", n)
	}
	if err := c.Remove(3); err != nil {
		t.Errorf("remove of an inode that is not cached: %v", err)
	}
}

func TestFile_Sync_NewNameIsDurable(t *testing.T) {
	mem := vfs.NewMem()
	if err := errors.Join(mem.MkdirAll("state", 0o700), mem.SyncDir(".")); err != nil {
		t.Fatal(err)
	}
	c := mustOpen(t, mem, "state/cache", Options{})
	f := c.Get(0xabc)
	p := fill(0xabc, 0, 0, 5000)
	if ok, err := f.WritePinned(p, 0); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	after := mem.Crash(oldrand.New(oldrand.NewSource(1)), vfs.PowerLoss)
	if _, err := after.Stat("state/cache"); err != nil {
		t.Fatalf("cache directory after power loss: %v", err)
	}
	h, err := after.OpenFile("state/cache/bc/abc", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(p))
	if _, err := h.ReadAt(got, 0); err != nil || !bytes.Equal(got, p) {
		t.Fatalf("synced bytes: %v, or they changed", err)
	}
}

func TestFile_Ranges_Refused(t *testing.T) {
	c := mustOpen(t, vfs.NewMem(), "cache", Options{})
	f := c.Get(1)
	if _, err := f.WriteAt([]byte{1}, -1); err == nil {
		t.Error("write at -1")
	}
	if _, err := f.ReadAt(make([]byte, 2), math.MaxInt64-1); err == nil {
		t.Error("read past the end of the world")
	}
	if err := f.Drop(5, 4); err == nil {
		t.Error("drop backwards")
	}
	if _, err := f.WriteAbsent([]byte{1, 2}, 10, []Range{{Off: 10, End: 13}}); err == nil {
		t.Error("hydrates more than it has")
	}
	if _, err := Open(vfs.NewMem(), "cache", Options{LimitBytes: -1}); err == nil {
		t.Error("negative limit")
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("unpin of what is not pinned does not panic")
			}
		}()
		f.Unpin(0, 1)
	}()
}

func TestBlock_Spans_Bounded(t *testing.T) {
	c := mustOpen(t, vfs.NewMem(), "cache", Options{})
	f := c.Get(1)
	p := fill(1, 0, 0, BlockSize)
	for i := int64(0); i < BlockSize; i += 100 {
		mustWrite(t, f, p[i:i+1+i%50], i)
	}
	n := 0
	f.Present(0, BlockSize, func(off, k int64) bool {
		n++
		if !reads(t, f, p[off:off+k], off) {
			t.Errorf("[%d,+%d) is present and can't be read", off, k)
		}
		return true
	})
	if n == 0 || n > maxSpans {
		t.Errorf("%d spans", n)
	}
	mustWrite(t, f, p, 0)
	if !reads(t, f, p, 0) {
		t.Error("whole block is absent")
	}
}

func TestCache_Clock_KeepsWhatIsRead(t *testing.T) {
	c := mustOpen(t, vfs.NewMem(), "cache", Options{LimitBytes: 20 * BlockSize})
	f := c.Get(1)
	hot := fill(1, 0, 0, 4*BlockSize)
	mustWrite(t, f, hot, 0)
	scan := c.Get(2)
	for i := range int64(200) {
		mustWrite(t, scan, fill(2, i*BlockSize, 0, BlockSize), i*BlockSize)
		reads(t, f, hot, 0)
	}
	if !reads(t, f, hot, 0) {
		t.Error("a scan pushed out what is read all the time")
	}
	if s := c.Stats(); s.Evictions < 180 || s.Hits < 200 {
		t.Errorf("%+v", s)
	}
}

func TestPattern_Observe_Kinds(t *testing.T) {
	var seq Pattern
	var last int64
	for i := range int64(400) {
		got := seq.Observe(i<<17, 1<<17)
		if got < last {
			t.Fatalf("read-ahead shrinks from %d to %d", last, got)
		}
		if i == 1 && got != firstReadAhead {
			t.Fatalf("second request: %d", got)
		}
		last = got
	}
	if last != DefaultMaxReadAhead {
		t.Errorf("sequential reader ends at %d", last)
	}
	var two Pattern
	for i := range int64(50) {
		a, b := two.Observe(i<<17, 1<<17), two.Observe(1<<40+i<<17, 1<<17)
		if i > 0 && (a == 0 || b == 0) {
			t.Fatalf("two scans of one descriptor: %d %d", a, b)
		}
	}
	var swapped Pattern
	swapped.Observe(0, 1<<17)
	swapped.Observe(1<<17, 1<<17)
	for i := int64(2); i < 40; i += 2 {
		if swapped.Observe((i+1)<<17, 1<<17) == 0 || swapped.Observe(i<<17, 1<<17) == 0 {
			t.Fatal("requests that overtake each other look random")
		}
	}
	var random Pattern
	r := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		if n := random.Observe(r.Int64N(1<<26)<<14, 16<<10); n != 0 {
			t.Fatalf("random reader reads %d ahead", n)
		}
	}
	small := Pattern{Max: 100}
	small.Observe(0, 10)
	if n := small.Observe(10, 10); n != 100 {
		t.Errorf("maximum of 100 gives %d", n)
	}
}

// TestPattern_Observe_KernelWindows gives what the kernel sends of a scan with 8
// MiB of its own read-ahead, each window's requests in the wrong order; and then
// small requests about as far from the scan, which are none of it.
func TestPattern_Observe_KernelWindows(t *testing.T) {
	const request, window = 1 << 20, 8
	var p Pattern
	p.Observe(0, request)
	p.Observe(request, request)
	at := int64(2)
	for range 20 {
		for i := int64(window - 1); i >= 0; i-- {
			if p.Observe((at+i)*request, request) == 0 {
				t.Fatalf("request %d of the window at %d MiB looks random", i, at)
			}
		}
		at += window
	}
	for _, d := range []int64{-7, -3, 3, 7} {
		if n := p.Observe((at+d)*request, 16<<10); n != 0 {
			t.Errorf("a page %d MiB from the scan reads %d ahead", d, n)
		}
	}
}

func benchFile(b *testing.B, size int64) (*Cache, *File) {
	c := mustOpen(b, vfs.OS(), filepath.Join(b.TempDir(), "c"), Options{LimitBytes: 4 << 30})
	f := c.Get(1)
	p := make([]byte, 1<<20)
	for i := range p {
		p[i] = byte(i) | 1
	}
	for off := int64(0); off < size; off += 1 << 20 {
		mustWrite(b, f, p, off)
	}
	b.Cleanup(func() { c.Close() })
	return c, f
}

func BenchmarkFile_ReadAt_16KiB_32Deep(b *testing.B) {
	_, f := benchFile(b, 256<<20)
	b.SetParallelism(16)
	b.SetBytes(16 << 10)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		p := make([]byte, 16<<10)
		r := rand.New(rand.NewPCG(rand.Uint64(), 1))
		for pb.Next() {
			if ok, err := f.ReadAt(p, r.Int64N(256<<20/16384)*16384); !ok || err != nil {
				b.Error(ok, err)
			}
		}
	})
}

func BenchmarkFile_WriteAt_16KiB_32Deep(b *testing.B) {
	_, f := benchFile(b, 256<<20)
	b.SetParallelism(16)
	b.SetBytes(16 << 10)
	b.ReportAllocs()
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		p := make([]byte, 16<<10)
		r := rand.New(rand.NewPCG(rand.Uint64(), 1))
		for pb.Next() {
			if ok, err := f.WriteAt(p, r.Int64N(256<<20/16384)*16384); !ok || err != nil {
				b.Error(ok, err)
			}
		}
	})
}

func BenchmarkFile_WriteAt_Evicting(b *testing.B) {
	c := mustOpen(b, vfs.OS(), filepath.Join(b.TempDir(), "c"), Options{LimitBytes: 16 << 20})
	f := c.Get(1)
	p := fill(1, 0, 0, 128<<10)
	b.SetBytes(128 << 10)
	i := int64(0)
	for b.Loop() {
		mustWrite(b, f, p, i%4096*BlockSize)
		i++
	}
	b.StopTimer()
	c.Close()
}

func BenchmarkOpen_100000Files(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "c")
	c := mustOpen(b, vfs.OS(), dir, Options{})
	for ino := range uint64(100_000) {
		f := c.Get(ino)
		mustWrite(b, f, []byte("x"), 0)
		f.Release()
	}
	if err := c.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		c := mustOpen(b, vfs.OS(), dir, Options{})
		if n := c.Stats().Files; n != 100_000 {
			b.Fatal(n)
		}
		c.Close()
	}
}

func ExampleCache() {
	c, err := Open(vfs.NewMem(), "cache", Options{LimitBytes: 1 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	f := c.Get(42)
	defer f.Release()
	if ok, _ := f.WriteAt([]byte("hello"), 100); !ok {
		fmt.Println("no room: the bytes stay in the journal")
	}
	p := make([]byte, 5)
	ok, _ := f.ReadAt(p, 100)
	fmt.Println(ok, string(p))
	ok, _ = f.ReadAt(p, 98)
	fmt.Println(ok)
	// Output:
	// true hello
	// false
}

// dropsFS notes what is dropped from the kernel's cache.
type dropsFS struct {
	vfs.FS
	dropped *[]Range
}

type dropsFile struct {
	vfs.File
	dropped *[]Range
}

func (d dropsFS) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	f, err := d.FS.OpenFile(name, flag, perm)
	return dropsFile{f, d.dropped}, err
}

func (d dropsFile) DropPages(off, n int64) {
	*d.dropped = append(*d.dropped, Range{Off: off, End: off + n})
}

func TestFile_LargeReadsAndWrites_LeaveTheKernelsCache(t *testing.T) {
	var dropped []Range
	c := mustOpen(t, dropsFS{vfs.NewMem(), &dropped}, "/cache", Options{LimitBytes: 64 << 20})
	f := c.Get(7)
	p := fill(7, 0, 1, 4<<20)
	if ok, err := f.WritePinned(p, 0); !ok || err != nil {
		t.Fatal(ok, err)
	}
	f.DropPages(1<<20, vfs.BulkBytes-1) // not that large
	if len(dropped) != 0 {
		t.Errorf("before anything is done: %v", dropped)
	}
	f.DropPages(0, int64(len(p)))
	f.Unpin(0, int64(len(p)))
	reads(t, f, p[:16<<10], 0)
	reads(t, f, p[3<<20:], 3<<20)
	if want := []Range{{Off: 0, End: 4 << 20}, {Off: 2 << 20, End: 4 << 20}}; !slices.Equal(dropped, want) {
		t.Errorf("dropped %v, want %v", dropped, want)
	}
	f.Release()
	checkAtRest(t, c)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

func TestPattern_Observe_LargeRequestsFromTheFirstOn(t *testing.T) {
	var p Pattern
	p.Observe(0, 12<<10) // a header
	if n := p.Observe(8<<10, 1<<20); n != 2<<20 {
		t.Errorf("the first large request: %d bytes", n)
	}
	if n := p.Observe(8<<10+1<<20, 1<<20); n != 4<<20 {
		t.Errorf("the one after it: %d bytes", n)
	}
	if n := p.Observe(1<<40, bulkRequest-1); n != 0 {
		t.Errorf("one that is not large: %d bytes", n)
	}
	bounded := Pattern{Max: 1 << 20}
	if n := bounded.Observe(0, 4<<20); n != 1<<20 {
		t.Errorf("beyond what may be read ahead: %d bytes", n)
	}
}
