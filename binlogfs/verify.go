package binlogfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
)

// Verify reads a file whole and compares every event's checksum and place, and
// the file, with its catalogue. It returns ErrCorrupt with the file's name and
// the offset.
func Verify(ctx context.Context, t Tree, dir string, info *FileInfo) error {
	f, err := t.Open(ctx, path.Join(dir, info.Path()))
	if err != nil {
		return fmt.Errorf("%s: %w", info.Path(), err)
	}
	defer f.Close() // only read
	tr := newTracker(info.Epoch, info.Name)
	err = scan(ctx, io.LimitReader(&reader{ctx: ctx, f: f}, info.Size), tr, func(e *Event) error {
		if end := e.Offset + int64(e.Size); e.LogPos != uint32(end) && (e.LogPos != 0 || e.Step == StepHead || e.Step == StepEnd) {
			return fmt.Errorf("%w: the event %s at %d ends at %d and says %d", ErrCorrupt, EventName(e.Type), e.Offset, end, e.LogPos)
		}
		return nil
	})
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %s ends within the event at %d", ErrCorrupt, info.Path(), tr.end)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", info.Path(), err)
	}
	got := tr.catalogue()
	if got.Size != info.Size || got.CRC32C != info.CRC32C || got.Groups != info.Groups || got.Added != info.Added || got.Previous != info.Previous {
		return fmt.Errorf("%w: %s is not what its catalogue says: whole groups up to %d, %d of them, with checksum %08x, where it says %d, %d and %08x",
			ErrCorrupt, info.Path(), got.Size, got.Groups, got.CRC32C, info.Size, info.Groups, info.CRC32C)
	}
	return nil
}

// Follows says whether a file begins where the one before it ended: with the
// next number, and with the GTIDs of all before. Files of different epochs need
// not. It returns ErrCorrupt with what is missing.
func Follows(before, f *FileInfo) error {
	if before.Epoch != f.Epoch {
		return nil
	}
	if logNumber(f.Name) != logNumber(before.Name)+1 {
		return fmt.Errorf("%w: %s follows %s: the files between them are missing", ErrCorrupt, f.Path(), before.Path())
	}
	had, err := stateAfter(before)
	if err != nil {
		return err
	}
	begins, err := ParseGTIDState(f.Flavor, f.Previous)
	if err != nil {
		return fmt.Errorf("%w: catalogue of %s: %v", ErrCorrupt, f.Name, err)
	}
	if had.Flavor() != begins.Flavor() {
		return fmt.Errorf("%w: %s is %s's, and %s is %s's", ErrCorrupt, f.Path(), f.Flavor, before.Path(), before.Flavor)
	}
	if more := had.Missing(begins); more != "" {
		return fmt.Errorf("%w: %s begins after %s, which %s does not have at its end", ErrCorrupt, f.Path(), more, before.Path())
	}
	if less := begins.Missing(had); less != "" {
		return fmt.Errorf("%w: %s begins without %s, which %s has at its end", ErrCorrupt, f.Path(), less, before.Path())
	}
	return nil
}
