package gateway

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/cisternfs/cistern/metadata"
)

// ViewFile is an open regular file of a view. Safe for concurrent use.
type ViewFile struct {
	v      *View
	n      *Inode // as it was when it was opened
	ahead  lookahead
	closed atomic.Bool
}

// Open opens a regular file: one that is read in order is fetched ahead of its
// reader. ErrIsDir, ErrInvalid for what is no regular file, ErrNotExist.
func (v *View) Open(ino InodeID) (*ViewFile, error) {
	n, err := v.Inode(ino)
	if err != nil {
		return nil, err
	}
	switch n.Mode & modeType {
	case modeRegular:
	case modeDir:
		return nil, ErrIsDir
	default:
		return nil, ErrInvalid
	}
	f := &ViewFile{v: v, n: n}
	if v.local != nil {
		f.ahead.pattern.Max = v.local.window
		v.local.whole.opened(ino)
	}
	return f, nil
}

// Inode returns the file's attributes.
func (f *ViewFile) Inode() *Inode { return f.n }

// Read fills p with the file's bytes from off on and returns how many there
// are, which is fewer than len(p) only at the end of the file. Errors:
// ErrDamaged with the object that is damaged, ErrStore, ErrInterrupted.
//
// Of a followed volume they are those of one commit, the last that was moved
// to; ErrStale when the file is no more.
func (f *ViewFile) Read(ctx context.Context, p []byte, off int64) (int, error) {
	if f.v.local != nil && off >= 0 {
		// Before the read itself: what follows is on its way while this waits.
		if from, to, chunk := f.ahead.next(off, int64(len(p)), readAheadChunk); from < to {
			readAhead(f.v.local.ahead, f.n.ID, from, to, chunk)
		}
	}
	return f.read(ctx, p, off)
}

func (f *ViewFile) read(ctx context.Context, p []byte, off int64) (int, error) {
	if f.v.moves == nil {
		return f.v.Read(ctx, f.n, p, off)
	}
	if off < 0 {
		return 0, ErrInvalid
	}
	return f.v.moves.read(ctx, f.v, f.n.ID, p, off)
}

// node returns the file's attributes as they are now.
func (f *ViewFile) node() (*Inode, error) {
	if f.v.moves == nil {
		return f.n, nil
	}
	n, err := f.v.Inode(f.n.ID)
	return n, gone(f.n.ID, err)
}

// Seek finds the next byte of data, or the next hole, at or after off, as
// Handle.Seek does. It needs nothing from the store.
func (f *ViewFile) Seek(ctx context.Context, off int64, whence int) (int64, error) {
	if whence != SeekData && whence != SeekHole {
		return 0, ErrInvalid
	}
	n, err := f.node()
	if err != nil {
		return 0, err
	}
	if off < 0 || off >= n.Size {
		return 0, ErrNoData
	}
	if whence == SeekHole {
		return f.seekHole(ctx, n, off)
	}
	return f.seekData(n, off)
}

// seekHole goes from slot to slot while they follow each other without a hole.
func (f *ViewFile) seekHole(ctx context.Context, n *Inode, off int64) (int64, error) {
	at := int64(-1)
	err := f.v.eachSlot(n, off, n.Size, func(no uint32, s *metadata.Slot, from, to int64) error {
		if ctx.Err() != nil {
			return ErrInterrupted
		}
		start := int64(no) * f.v.doc.ObjectSize
		for _, p := range s.Resolve(uint32(from-start), uint32(to-from)) {
			if p.Kind == metadata.PieceZero {
				at = start + int64(p.Off)
				return errFound
			}
		}
		return nil
	})
	switch {
	case err == errFound:
		return at, nil
	case err != nil:
		return 0, err
	}
	return n.Size, nil
}

// seekData looks at the slots that there are: a hole may be any size.
func (f *ViewFile) seekData(n *Inode, off int64) (int64, error) {
	size := f.v.doc.ObjectSize
	at := int64(-1)
	err := f.v.Index().Slots(n.ID, uint32(off/size), func(no uint32, s *metadata.Slot) bool {
		start := int64(no) * size
		from, to := max(off, start), min(n.Size, start+size)
		if from >= to {
			return false // only staged bytes lie beyond the end
		}
		for _, p := range s.Resolve(uint32(from-start), uint32(to-from)) {
			if p.Kind != metadata.PieceZero {
				at = start + int64(p.Off)
				return false
			}
		}
		return true
	})
	switch {
	case err != nil:
		return 0, fmt.Errorf("slots of inode %d: %w", n.ID, err)
	case at < 0:
		return 0, ErrNoData
	}
	return at, nil
}

// Close gives the file back; closing twice is harmless.
func (f *ViewFile) Close() error {
	if !f.closed.Swap(true) && f.v.local != nil {
		f.v.local.whole.released(f.n.ID)
	}
	return nil
}
