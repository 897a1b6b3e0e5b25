package journal

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// LSN is a record's number. The first record of a volume has LSN 1; 0 means
// none. LSNs are consecutive, but for the jump that Start may make.
type LSN uint64

// Op says what a record means; the journal doesn't look at it.
type Op uint8

// Entry is a record before it has a number.
type Entry struct {
	Op   Op
	Body []byte // small fields, encoded by the caller
	Data []byte // bulk bytes, which ReadData can read back by their Loc
}

// Loc says where an entry's Data lies. It stays good until the file is freed.
// The zero Loc is that of an entry without Data.
type Loc struct {
	File uint64 // the file's incarnation, unique among all files ever
	Off  int64  // bytes from the start of the file
	Len  uint32 // bytes of Data
	CRC  uint32 // CRC32C of all of Data
}

// Record is an entry as Replay delivers it. Body and Data are valid only until
// the callback returns.
type Record struct {
	LSN   LSN
	Epoch uint64
	Op    Op
	Body  []byte
	Data  []byte
	Loc   Loc
}

// ReplayInfo is what Replay found.
type ReplayInfo struct {
	First, Last LSN    // of the records delivered; both 0 when there were none
	Epoch       uint64 // the epoch of the last record, or else of the newest file; 0 when there is no file
	// GapFirst to GapLast are missing between the caller's after and the first
	// record that the journal still has; both 0 when nothing is missing.
	GapFirst, GapLast LSN
	Torn              bool   // a torn tail was dropped
	TornReason        string // file, offset and why
	TornBytes         int64  // recognisable bytes in the tail
	Durable           LSN    // the highest LSN that anything calls durable
}

// Options configure a journal. The zero value of a field means its default.
type Options struct {
	// Create makes a missing journal: without it Open returns ErrMissing when
	// the directory holds no journal file.
	Create bool
	// FileSize is the size of one file in bytes: 16 KiB to 1 GiB, a multiple
	// of 4096; default 32 MiB. Files of another size stay readable.
	FileSize int64
	// MaxBytes bounds all files together, at least two files; default 1 GiB. A
	// tenth of it is granted to engine reservations only. The rewrite after a
	// failed write may pass it.
	MaxBytes int64
	// KeepFree is what a new file leaves free of the disk, in bytes, for those that
	// need it to free the journal; default none. The files that recovery needs are
	// made all the same.
	KeepFree int64
	// MaxUnsyncedBytes bounds what is kept in memory for a rewrite; an Append
	// that would pass it syncs first. Default 16 MiB.
	MaxUnsyncedBytes int64
	// Identity is the journal's random identity; it is in every file's header.
	Identity [16]byte
	// NoSpaceFails makes Reserve return ErrNoSpace as soon as the disk can't
	// hold another file. Without it Reserve waits as long as files are in use
	// that a commit may free, and returns ErrNoSpace when there are none.
	NoSpaceFails bool
	// BeforeSync runs before each fdatasync of the journal and makes durable
	// what records up to then refer to. An error counts as a failed fdatasync.
	// It must not call the journal. Start calls it too, for replayed records.
	BeforeSync func() error
	// Expand replaces a record's references by their bytes when it is written
	// anew to a fresh file; records without references come back as they are,
	// and existing Data never changes. Where new Data lies is told by Expanded.
	// It must not call the journal. The entry's slices are valid only until
	// Expand returns, and those that it returns are copied.
	Expand func(LSN, Entry) (Entry, error)
	// Verify sees each record of a group before Replay's callback sees the
	// first of them: ErrTorn from it leaves out the whole group.
	Verify func(Record) error
	// Rand is where incarnations come from; default crypto/rand.
	Rand io.Reader
	// Logger; default: none.
	Logger *slog.Logger
}

// Stats is a picture of a journal at one moment.
type Stats struct {
	Files         int   // files with records
	Spares        int   // files ready for use
	LiveBytes     int64 // bytes of groups in files that are not freed
	ReservedBytes int64 // bytes granted and not yet appended
	FreeBytes     int64 // what ordinary reservations may still get
	UnsyncedBytes int64
	Waiting       int // reservations that wait for room
	Appends       uint64
	Records       uint64
	AppendedBytes uint64
	Syncs         uint64 // rounds of group commit
	SyncedGroups  uint64 // groups that those rounds made durable
	MostGroups    int    // the most groups in one round
	Rewrites      uint64 // times that records went anew to a fresh file
	End, Durable  LSN
	LastError     error // the last failure, also one that a rewrite mended
}

// EntryOverhead is what an entry needs in the journal beside its Body and Data,
// in bytes.
const EntryOverhead = entryHeaderSize

// FreeEntries is the number of entries whose overhead Reserve adds by itself.
const FreeEntries = 24

var (
	// ErrMissing: the directory holds no journal file.
	ErrMissing = errors.New("journal is missing")
	// ErrIdentity: a file belongs to another journal.
	ErrIdentity = errors.New("file belongs to another journal")
	// ErrDamaged: bytes that were durable don't match their checksum.
	ErrDamaged = errors.New("journal is damaged")
	// ErrTorn is for callbacks of Replay: the record's references don't match.
	ErrTorn = errors.New("torn record")
	// ErrNoSpace: the disk can't hold another journal file.
	ErrNoSpace = errors.New("no disk space for another journal file")
	// ErrTooLarge: the operation doesn't fit in a file, or in its reservation.
	ErrTooLarge = errors.New("operation is too large for the journal")
	// ErrFreed: the bytes were committed and their file given back.
	ErrFreed = errors.New("journal file was freed")
	// ErrBroken: a write failed and so did writing to a fresh file.
	ErrBroken = errors.New("journal is broken")
	// ErrClosed: the journal is closed.
	ErrClosed = errors.New("journal is closed")
	// ErrState: a call out of order (Replay, then Start, then the rest).
	ErrState = errors.New("journal is not in the right state for this call")
)

// DamageError says where a journal is damaged; errors.Is(err, ErrDamaged) holds.
type DamageError struct {
	File   string
	Off    int64
	Reason string
	// First to Last were durable and can't be delivered; both 0 where that isn't known.
	First, Last LSN
}

func (e *DamageError) Error() string {
	s := fmt.Sprintf("journal is damaged: %s at byte %d: %s", e.File, e.Off, e.Reason)
	switch {
	case e.Last == 0:
		return s
	case e.First == e.Last:
		return fmt.Sprintf("%s; record %d was durable", s, e.Last)
	}
	return fmt.Sprintf("%s; records %d to %d were durable", s, e.First, e.Last)
}

// Is makes the error match ErrDamaged.
func (e *DamageError) Is(target error) bool { return target == ErrDamaged }
