package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"

	"github.com/cisternfs/cistern/journal"
)

// redoOwn replays the journal of this state directory, or sets it aside when
// another owner has written to the volume since.
func (v *Volume) redoOwn(ctx context.Context, dir string, epoch uint64, path *pathEnd) error {
	from := v.journal.Epoch()
	own, err := v.sealedByUs(ctx, from, epoch, path)
	if err != nil {
		return err
	}
	if !own {
		empty, err := v.nothingBeyond(ctx, from)
		if err != nil {
			return err
		}
		if empty {
			v.log.Info("another owner has written to the volume since; this journal held nothing beyond the bucket", "epoch", from)
			return v.beginAnew(dir, epoch)
		}
		v.log.Warn("another owner has written to the volume since: what this journal held beyond the bucket is set aside", "epoch", from)
		return v.asideWith(ctx, from, fmt.Sprintf("another owner has written to the volume since epoch %d", from))
	}
	v.replaying = true
	defer func() { v.replaying = false }()
	info, err := v.journal.Replay(journal.LSN(v.head.LastLSN), journal.LSN(v.head.LastLSN), v.redo)
	if info.GapFirst != 0 { // and what comes after it need not fit
		return v.redoGap(dir, info)
	}
	if err != nil {
		return v.journalDamaged(dir, err)
	}
	if info.Torn {
		v.log.Warn("journal ended in a torn tail, as a crash leaves it of what nothing tells to have been durable", "reason", info.TornReason, "bytes", info.TornBytes)
	}
	next := max(info.Last, journal.LSN(v.head.LastLSN)) + 1
	if err := v.journal.Start(epoch, next); err != nil {
		return journalError(err)
	}
	if v.active.first == 0 {
		// Nothing of earlier reigns is left to redo.
		v.owner.Reigns = []string{v.owner.current()}
		return v.owner.save()
	}
	v.redone = v.active.last
	v.log.Info("journal redone", "first", v.active.first, "last", v.active.last)
	return nil
}

// nothingBeyond says whether the bucket has all that the journal holds, whose newest
// epoch is given, as after a clean hand-over. The journal can't be started afterwards.
func (v *Volume) nothingBeyond(ctx context.Context, epoch uint64) (bool, error) {
	_, lsn, err := v.baseOf(ctx, epoch)
	if err != nil || lsn == 0 {
		return false, err
	}
	more := errors.New("there is more")
	info, err := v.journal.Replay(journal.LSN(lsn), journal.LSN(lsn), func(journal.Record) error { return more })
	return err == nil && info.First == 0 && info.GapFirst == 0 && !info.Torn, nil
}

// beginAnew begins a journal in the place of one that nobody needs. owner.json forgets
// that first: one that it names and that is not there would count as lost.
func (v *Volume) beginAnew(dir string, epoch uint64) error {
	old := v.journal
	v.journal, v.owner.Journal = nil, ""
	if err := errors.Join(old.Close(), v.owner.save()); err != nil {
		return journalError(err)
	}
	return v.freshJournal(dir, epoch)
}

// redoGap answers a journal whose first records are missing: what follows them
// has nothing to be applied to.
func (v *Volume) redoGap(dir string, info journal.ReplayInfo) error {
	if !v.opt.AcceptLostJournal {
		return fmt.Errorf("%w: records %d to %d are missing between commit %s and the journal in %s; mount with --accept-lost-journal to go on from the commit", ErrLostJournal, info.GapFirst, info.GapLast, v.head.CommitID, dir)
	}
	v.log.Warn("journal has a gap and that was accepted", "directory", dir, "first", info.GapFirst, "last", info.GapLast)
	return v.asideFrom(fmt.Sprintf("records %d to %d of the journal were lost", info.GapFirst, info.GapLast))
}

// sealedByUs says whether every epoch from the journal's to the one before
// ours was closed by this state directory's own reigns: then nobody else has
// committed since the journal was written.
func (v *Volume) sealedByUs(ctx context.Context, from, epoch uint64, path *pathEnd) (bool, error) {
	r := pathReader{v.store}
	for e := max(from, 1); e < epoch; e++ {
		by := ""
		if t := path.tail; t.seal != nil && t.id.Epoch == e {
			by = t.seal.By
		} else {
			var err error
			if by, err = r.sealedBy(ctx, e, v.lease.doc.Hint); err != nil {
				return false, err
			}
		}
		if !v.owner.has(by) {
			return false, nil
		}
	}
	return true, nil
}

// redo applies one record to the state, as when it was new.
func (v *Volume) redo(r journal.Record) error {
	op, err := decodeOp(r)
	if err != nil {
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if ref, ok := op.(*refOp); ok {
		if err := v.adoptReference(ref); err != nil {
			return err
		}
	}
	apply, err := op.plan(v)
	if err != nil {
		return fmt.Errorf("%w: journal record %d does not fit the state: %w", ErrDamaged, r.LSN, err)
	}
	v.applied(r.LSN, apply, r.Loc)
	return nil
}

// verifyRecord tells the journal whether a record's reference holds: above the
// durable LSN one that doesn't begins the torn tail.
func (v *Volume) verifyRecord(r journal.Record) error {
	if !refers(r.Op) || uint64(r.LSN) <= v.head.LastLSN {
		return nil
	}
	op, err := decodeOp(r)
	if err != nil {
		return err
	}
	o := op.(*refOp)
	_, err = v.readReference(o.reference(r.LSN), o.ino, o.off, o.off+o.length)
	if errors.Is(err, ErrDamaged) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("%w: %w", journal.ErrTorn, err)
	}
	return err
}

// adoptReference pins the bytes of a replayed reference, whose checksums
// verifyRecord has seen, and makes the cache believe nothing else there.
// Caller holds v.mu.
func (v *Volume) adoptReference(o *refOp) error {
	f := v.cache.Get(uint64(o.ino))
	defer f.Release()
	f.Pin(o.off, o.length)
	v.unsynced.add(o.ino) // after a kill the bytes may be nowhere but in the kernel
	none := func(int64, []byte) int64 { return 0 }
	if err := f.Verify(o.off, o.length, none); err != nil {
		return fmt.Errorf("cache file of inode %d: %w", o.ino, err)
	}
	return nil
}
