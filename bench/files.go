package main

import (
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
)

const mebibyte = 1 << 20

// fillFile writes size bytes of noise to a new file, 1 MiB at a time, and
// fsyncs it: no holes, no unwritten extents, nothing to compress.
func fillFile(name string, size int64) error {
	f, err := os.Create(name)
	if err != nil {
		return fmt.Errorf("make %s: %w", name, err)
	}
	err = writeNoise(f, size)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("fill %s: %w", name, err)
	}
	return nil
}

// writeNoise writes to an empty file and fsyncs it.
func writeNoise(f *os.File, size int64) error {
	source := rand.NewChaCha8([32]byte{1})
	buf := make([]byte, mebibyte)
	for off := int64(0); off < size; off += mebibyte {
		source.Read(buf) // never fails
		if _, err := f.WriteAt(buf[:min(mebibyte, size-off)], off); err != nil {
			return err
		}
	}
	return f.Sync()
}

// noise is n bytes that can't be compressed.
func noise(n int) []byte {
	p := make([]byte, n)
	rand.NewChaCha8([32]byte{2}).Read(p) // never fails
	return p
}

// readThrough reads a file from begin to end.
func readThrough(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	defer f.Close()
	// The wrapper hides File's own WriteTo, which would splice.
	if _, err := io.CopyBuffer(io.Discard, struct{ io.Reader }{f}, make([]byte, mebibyte)); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	return nil
}

// allocated sums what the files below dir take on the disk, in bytes.
func allocated(dir string) (int64, error) {
	var total int64
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return ignoreGone(err)
		}
		info, err := d.Info()
		if err != nil {
			return ignoreGone(err)
		}
		total += info.Sys().(*syscall.Stat_t).Blocks * 512
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("sum up %s: %w", dir, err)
	}
	return total, nil
}

// ignoreGone lets a walk go on when a file vanished under it.
func ignoreGone(err error) error {
	if os.IsNotExist(err) {
		return nil
	}
	return err
}
