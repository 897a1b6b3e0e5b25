package gateway

import (
	"math/rand/v2"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/local"
)

// benchVolume is a volume on the real disk with all background work running.
func benchVolume(b *testing.B) *Volume {
	b.Helper()
	dir := b.TempDir()
	s, err := local.Create(filepath.Join(dir, "bucket"))
	if err != nil {
		b.Fatal(err)
	}
	if _, err := Format(bg, FormatOptions{Store: s, URL: "file://bench"}); err != nil {
		b.Fatal(err)
	}
	v, err := Open(bg, Options{
		Store: s, URL: "file://bench", FS: vfs.OS(), StateDir: filepath.Join(dir, "state"),
		OpenKV: func(dir string) (metadata.KV, error) { return metadata.OpenBadgerKV(dir, nil) },
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := v.Close(bg); err != nil {
			b.Error(err)
		}
	})
	return v
}

func BenchmarkVolume_Write16KFsync(b *testing.B) {
	for _, jobs := range []int{1, 16} {
		b.Run(strconv.Itoa(jobs), func(b *testing.B) {
			v := benchVolume(b)
			var wg sync.WaitGroup
			b.SetBytes(16 << 10)
			b.ResetTimer()
			for j := range jobs {
				wg.Add(1)
				go func() {
					defer wg.Done()
					n, err := v.Create(bg, metadata.RootInode, "f"+strconv.Itoa(j), modeRegular|0o644, 0, Owner{}, nil)
					if err != nil {
						b.Error(err)
						return
					}
					h, err := v.Open(bg, n.ID)
					if err != nil {
						b.Error(err)
						return
					}
					defer h.Close()
					p := make([]byte, 16<<10)
					for range b.N / jobs {
						if _, err := h.Write(bg, p, rand.Int64N(1024)<<14, WriteFlags{}); err != nil {
							b.Error(err)
							return
						}
						if err := v.Fsync(bg, n.ID); err != nil {
							b.Error(err)
							return
						}
					}
				}()
			}
			wg.Wait()
		})
	}
}

func BenchmarkVolume_Read16K(b *testing.B) {
	v := benchVolume(b)
	n, err := v.Create(bg, metadata.RootInode, "f", modeRegular|0o644, 0, Owner{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	h, err := v.Open(bg, n.ID)
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	for off := int64(0); off < 64<<20; off += 1 << 20 {
		if _, err := h.Write(bg, make([]byte, 1<<20), off, WriteFlags{}); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(16 << 10)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		p := make([]byte, 16<<10)
		for pb.Next() {
			if _, err := h.Read(bg, p, rand.Int64N(4096)<<14); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

// Writes of 32 at a time to one file, as asynchronous direct I/O makes them.
func BenchmarkVolume_Write16KDeep(b *testing.B) {
	v := benchVolume(b)
	n, err := v.Create(bg, metadata.RootInode, "f", modeRegular|0o644, 0, Owner{}, nil)
	if err != nil {
		b.Fatal(err)
	}
	h, err := v.Open(bg, n.ID)
	if err != nil {
		b.Fatal(err)
	}
	defer h.Close()
	b.SetBytes(16 << 10)
	b.SetParallelism(16)
	b.ResetTimer()
	b.RunParallel(func(pb *testing.PB) {
		p := make([]byte, 16<<10)
		for pb.Next() {
			if _, err := h.Write(bg, p, rand.Int64N(16384)<<14, WriteFlags{}); err != nil {
				b.Error(err)
				return
			}
		}
	})
}
