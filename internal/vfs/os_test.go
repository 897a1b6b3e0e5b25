package vfs

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// However a write lies to the pieces that it is made in, all of it is there.
func TestOS_WriteAt_Pieces(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS().OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	must(t, err)
	defer f.Close()
	rng := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, BulkBytes+2*writePiece)
	for _, off := range []int64{0, 1, writePiece - 1, writePiece, writePiece + 1} {
		for _, n := range []int{0, 1, writePiece - 1, writePiece, writePiece + 1, 2*writePiece + 5, BulkBytes, BulkBytes + 1} {
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(rng.Uint32())
			}
			copy(want[off:], p)
			if m, err := f.WriteAt(p, off); m != n || err != nil {
				t.Fatalf("%d bytes at %d: %d, %v", n, off, m, err)
			}
			got := make([]byte, len(want))
			size, err := f.Size()
			must(t, err)
			if _, err := f.ReadAt(got[:size], 0); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got[:size], want[:size]) {
				t.Fatalf("%d bytes at %d are not what was written", n, off)
			}
		}
	}
	if _, err := f.WriteAt(make([]byte, 10), -1); err == nil {
		t.Error("a write before the file's start")
	}
}

// Small writes over what was written by large ones, while that is in the
// kernel's cache and after it was dropped from there; and over what was read by
// large reads.
func BenchmarkOS_WriteAt_Overwrite16K(b *testing.B) {
	for _, c := range []struct {
		name   string
		before func(f File)
	}{
		{"written", func(File) {}},
		{"dropped", func(f File) { f.DropPages(0, overwritten) }},
		{"read", func(f File) {
			f.DropPages(0, overwritten)
			readBulk(b, f)
		}},
		{"read-dropped", func(f File) {
			readBulk(b, f)
			f.DropPages(0, overwritten)
		}},
	} {
		b.Run(c.name, func(b *testing.B) { overwrite(b, c.before) })
	}
}

const overwritten = 256 << 20

func readBulk(b *testing.B, f File) {
	p := make([]byte, 1<<20)
	for off := int64(0); off < overwritten; off += int64(len(p)) {
		if _, err := f.ReadAt(p, off); err != nil {
			b.Fatal(err)
		}
	}
}

func overwrite(b *testing.B, before func(f File)) {
	f, err := OS().OpenFile(filepath.Join(b.TempDir(), "f"), os.O_RDWR|os.O_CREATE, 0o600)
	must(b, err)
	defer f.Close()
	for off := int64(0); off < overwritten; off += 1 << 20 {
		if _, err := f.WriteAt(make([]byte, 1<<20), off); err != nil {
			b.Fatal(err)
		}
	}
	must(b, f.Sync())
	before(f)
	p := make([]byte, 16<<10)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		if _, err := f.WriteAt(p, rand.Int64N(1<<14)<<14); err != nil {
			b.Fatal(err)
		}
	}
}
