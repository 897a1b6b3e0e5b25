package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cisternfs/cistern/journal"
)

// extractPiece is how much of a file is assembled at a time, in bytes.
const extractPiece = 1 << 20

// SalvageSink takes what an extraction brings back.
type SalvageSink interface {
	// File makes a file for a path from the volume's top, with what the writer
	// called its permission bits.
	File(f *SalvagedFile, mode uint32, mtime int64) (io.WriteCloser, error)
}

// Extract gives every file that has a name to the sink, in the order of their
// paths: the bytes as its writer saw them, zeros where they can't be had, which
// the report then says. It returns the first error of the sink, or of ctx.
func (s *Salvage) Extract(ctx context.Context, sink SalvageSink) error {
	for _, f := range s.report.Files {
		if f.Gone {
			continue
		}
		if ctx.Err() != nil {
			return ErrInterrupted
		}
		n, err := s.v.inode(f.Inode)
		if err != nil {
			return fmt.Errorf("inode %d: %w", f.Inode, err)
		}
		w, err := sink.File(f, n.Mode&modePerm, n.Mtime)
		if err != nil {
			return err
		}
		err = s.extract(ctx, f, w)
		if cerr := w.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Salvage) extract(ctx context.Context, f *SalvagedFile, w io.Writer) error {
	for off := int64(0); off < f.Size; off += extractPiece {
		end := min(f.Size, off+extractPiece)
		spans, err := s.v.resolve(f.Inode, off, end, nil)
		if err != nil {
			return err
		}
		buf := make([]byte, end-off)
		for _, sp := range spans {
			p := buf[sp.off-off : sp.end-off]
			known, err := s.bytes(ctx, f, sp, p)
			if ctx.Err() != nil {
				return ErrInterrupted
			}
			if err != nil {
				f.Problem = append(f.Problem, fmt.Sprintf("bytes %d to %d: %v", sp.off, sp.end, err))
			}
			if !known {
				clear(p)
				f.miss(sp.off, sp.end)
			}
		}
		if _, err := w.Write(buf); err != nil {
			return err
		}
	}
	return nil
}

// miss notes a range that could not be brought back.
func (f *SalvagedFile) miss(off, end int64) {
	f.Whole = false
	if k := len(f.Missing); k > 0 && f.Missing[k-1].Off+f.Missing[k-1].Len == off {
		f.Missing[k-1].Len += end - off
		return
	}
	f.Missing = append(f.Missing, Range{off, end - off})
}

// bytes fills p from where a span's bytes are; false when they are not known.
func (s *Salvage) bytes(ctx context.Context, f *SalvagedFile, sp span, p []byte) (bool, error) {
	var err error
	switch {
	case sp.piece.kind == pieceZero:
		clear(p)
	case sp.piece.kind == pieceData:
		err = s.journaled(sp.piece.loc, p, sp.piece.off)
	case sp.piece.kind == pieceRef:
		err = s.referenced(sp.piece.ref, f.Inode, p, sp.off)
	case s.base != nil && sp.slot != nil:
		err = s.base.readSlot(ctx, sp.slot, uint32(sp.off-int64(sp.slotNo)*s.v.objectSize), p)
	case s.base != nil || f.born && sp.slot == nil:
		clear(p) // a hole
	default:
		return false, nil // only the bucket has it
	}
	return err == nil, err
}

// journaled reads a part of a record's data and verifies all of it.
func (s *Salvage) journaled(loc journal.Loc, p []byte, off int64) error {
	name, ok := s.files[loc.File]
	if !ok {
		return fmt.Errorf("%w: no file of the journal has the bytes", ErrDamaged)
	}
	path := filepath.Join(s.o.Aside.Dir, "journal", name)
	all := make([]byte, loc.Len)
	if err := s.readAt(path, all, loc.Off); err != nil {
		return err
	}
	if checksum(all) != loc.CRC {
		return fmt.Errorf("%w: %s, %d bytes at %d: checksum does not match", ErrDamaged, path, loc.Len, loc.Off)
	}
	copy(p, all[off:])
	return nil
}

// referenced reads a part of the bytes that a record refers to, and verifies
// the blocks that it lies in.
func (s *Salvage) referenced(ref *reference, ino InodeID, p []byte, off int64) error {
	path := filepath.Join(s.o.Aside.Dir, "cache", fmt.Sprintf("%02x", uint64(ino)&0xff), fmt.Sprintf("%x", uint64(ino)))
	for b := ref.piece(off); b <= ref.piece(off+int64(len(p))-1); b++ {
		from, to := ref.bounds(b)
		block := make([]byte, to-from)
		if err := s.readAt(path, block, from); err != nil {
			return err
		}
		if checksum(block) != ref.sums[b] {
			return fmt.Errorf("%w: %s, bytes %d to %d: checksum of journal record %d does not match", ErrDamaged, path, from, to, ref.lsn)
		}
		lo, hi := max(from, off), min(to, off+int64(len(p)))
		copy(p[lo-off:hi-off], block[lo-from:])
	}
	return nil
}

func (s *Salvage) readAt(path string, p []byte, off int64) error {
	h, err := s.o.FS.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	defer h.Close() // only read
	if n, err := h.ReadAt(p, off); n < len(p) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("%w: %s, %d bytes at %d: %w", ErrDamaged, path, len(p), off, err)
	}
	return nil
}
