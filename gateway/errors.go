package gateway

import (
	"errors"

	"github.com/cisternfs/cistern/internal/blockcodec"
)

// What an operation can answer besides success. The fuse package maps each to
// one errno; everything else is an I/O error.
var (
	ErrNotExist    = errors.New("no such file or directory")
	ErrExist       = errors.New("file exists")
	ErrNotDir      = errors.New("not a directory")
	ErrIsDir       = errors.New("is a directory")
	ErrNotEmpty    = errors.New("directory not empty")
	ErrNameTooLong = errors.New("file name too long")
	ErrInvalid     = errors.New("invalid argument")
	ErrTooBig      = errors.New("file too large")
	ErrTooManyLink = errors.New("too many links")
	ErrNotPermit   = errors.New("operation not permitted")
	ErrNoXattr     = errors.New("no such extended attribute")
	ErrXattrBig    = errors.New("extended attribute too large")
	ErrNoData      = errors.New("no data at or after the offset") // SEEK_DATA, SEEK_HOLE past the end
	ErrNotSupport  = errors.New("operation not supported")
	ErrNoSpace     = errors.New("no space left")
	ErrQuota       = errors.New("quota of the volume exceeded")
	ErrReadOnly    = errors.New("read-only volume")
	ErrStale       = errors.New("stale handle")
	ErrInterrupted = errors.New("interrupted")

	// ErrFenced: another writer has taken the volume over.
	ErrFenced = errors.New("another writer owns the volume")
	// ErrHandedOver: this mount gave the volume away with everything committed.
	ErrHandedOver = errors.New("volume was handed over")
	// ErrOwned: another writer holds the lease and was heard of lately.
	ErrOwned = errors.New("volume is owned by another writer")
	// ErrPinned: a snapshot, a clone or another pin without an end keeps the volume.
	ErrPinned = errors.New("volume is pinned")
	// ErrDamaged: a checksum does not match or something referred to is missing.
	ErrDamaged = errors.New("damage found")
	// ErrParentGone: the volume that a clone shares with is not where it was. It is
	// an ErrDamaged, too: what the two share can't be read.
	ErrParentGone = errors.New("the parent of the clone is gone")
	// ErrLostJournal: the state directory's journal is missing or not the one it should be.
	ErrLostJournal = errors.New("journal lost")
	// ErrKey: an encryption key that the volume needs was not given, or is not usable.
	ErrKey = blockcodec.ErrNoKey
	// ErrStore: the object store can't be reached or refuses.
	ErrStore = errors.New("object store failed")
	// ErrClosed: the volume is closed.
	ErrClosed = errors.New("volume is closed")
	// ErrNoVolume: the prefix holds no volume.
	ErrNoVolume = errors.New("no volume here")
	// ErrNewerFormat: a newer version formatted the volume, or wrote the document or
	// the journal.
	ErrNewerFormat = errors.New("made by a newer version of cistern")
)
