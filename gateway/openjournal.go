package gateway

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/cisternfs/cistern/journal"
)

// openJournal opens the journal and redoes it if it is this owner's to redo.
func (v *Volume) openJournal(ctx context.Context, path *pathEnd) error {
	epoch := v.epoch()
	dir := filepath.Join(v.opt.StateDir, "journal")
	known := v.owner.Journal
	if known == "" || v.owner.Aside {
		return v.freshJournal(dir, epoch)
	}
	id, err := hex.DecodeString(known)
	if err != nil || len(id) != 16 {
		return fmt.Errorf("%w: %s names journal %q", ErrDamaged, v.owner.path, known)
	}
	j, err := journal.Open(v.fs, dir, v.journalOptions([16]byte(id), false))
	if err == nil {
		v.journal = j
		return v.redoOwn(ctx, dir, epoch, path)
	}
	if errors.Is(err, journal.ErrMissing) || errors.Is(err, journal.ErrIdentity) {
		if !v.opt.AcceptLostJournal {
			return fmt.Errorf("%w: %s: %w; what it held beyond commit %s is lost: bring it back, or mount with --accept-lost-journal", ErrLostJournal, dir, err, v.head.CommitID)
		}
		v.log.Warn("journal is lost and that was accepted", "directory", dir, "error", err)
		return v.asideFrom("the journal was lost: " + err.Error())
	}
	return v.journalDamaged(dir, err)
}

// journalDamaged answers a journal that can't be read: its damage is accepted
// only when that was said.
func (v *Volume) journalDamaged(dir string, err error) error {
	if !errors.Is(err, journal.ErrDamaged) {
		return journalError(err)
	}
	if !v.opt.AcceptLostJournal {
		return fmt.Errorf("%w; mount with --accept-lost-journal to set %s aside and go on from commit %s", journalError(err), dir, v.head.CommitID)
	}
	v.log.Warn("journal is damaged and that was accepted", "directory", dir, "error", err)
	return v.asideFrom(err.Error())
}

func journalError(err error) error {
	if errors.Is(err, journal.ErrDamaged) {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return fmt.Errorf("journal: %w", err)
}

func (v *Volume) journalOptions(id [16]byte, create bool) journal.Options {
	v.journalBytes = v.journalLimit()
	return journal.Options{
		Create: create, FileSize: v.opt.JournalFileBytes, MaxBytes: v.journalBytes, KeepFree: v.keepFree(), Identity: id,
		BeforeSync: v.syncReferences, Expand: v.expandReference, Verify: v.verifyRecord,
		Rand: v.opt.Rand, Logger: v.log,
	}
}

// keepFree is what cache and journal leave free of their disk: with what the index
// needs for a commit, the files that a recovery makes before it can give any back,
// which are up to two of records written anew and the one that follows.
func (v *Volume) keepFree() int64 {
	const files = 3
	if v.opt.KeepFree == 0 {
		return 0
	}
	return v.opt.KeepFree + files*v.opt.JournalFileBytes
}

// journalLimit is the journal's limit in bytes for this mount. Every mount
// begins a file, and one that ends before its first commit leaves it: however
// many did, there is room to begin another.
func (v *Volume) journalLimit() int64 {
	const spare = 3
	list, err := v.fs.ReadDir(filepath.Join(v.opt.StateDir, "journal"))
	if err != nil {
		return v.opt.JournalBytes // opening the journal meets it, too
	}
	return max(v.opt.JournalBytes, int64(len(list)+spare)*v.opt.JournalFileBytes)
}

// freshJournal starts an empty journal under a new identity, which owner.json
// has before any record is written.
func (v *Volume) freshJournal(dir string, epoch uint64) error {
	// What lies there without an identity in owner.json never held a record.
	if err := v.fs.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	if err := makeDir(v.fs, dir); err != nil {
		return err
	}
	id, err := v.randomHex(16)
	if err != nil {
		return err
	}
	raw, err := hex.DecodeString(id)
	if err != nil {
		return err
	}
	j, err := journal.Open(v.fs, dir, v.journalOptions([16]byte(raw), true))
	if err != nil {
		return journalError(err)
	}
	v.journal = j
	if err := j.Start(epoch, journal.LSN(v.head.LastLSN+1)); err != nil {
		return journalError(err)
	}
	v.owner.Journal, v.owner.Aside = id, false
	v.owner.Reigns = []string{v.owner.current()}
	return v.owner.save()
}
