package gateway

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/cisternfs/cistern/internal/extent"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// Aside is a journal of a state directory that holds what its writer
// acknowledged and the bucket may not have.
type Aside struct {
	ID      string `json:"id"`
	Dir     string `json:"directory"`
	InPlace bool   `json:"in_place"` // the state directory's own: the next mount redoes it or sets it aside
}

// unknownJournal stands for the identity of a journal whose owner.json is missing
// or damaged: its records can be read all the same.
const unknownJournal = "journal"

// Asides lists the journals of a state directory: those that were set aside, and
// its own, if it has one.
func Asides(f vfs.FS, state string) ([]Aside, error) {
	var all []Aside
	dir := filepath.Join(state, "quarantine")
	list, err := f.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	for _, e := range list {
		if e.IsDir() {
			all = append(all, Aside{ID: e.Name(), Dir: filepath.Join(dir, e.Name())})
		}
	}
	own, err := f.ReadDir(filepath.Join(state, "journal"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list %s: %w", filepath.Join(state, "journal"), err)
	}
	if len(own) > 0 {
		id := unknownJournal
		if o, err := loadOwner(f, state); err == nil && o.found {
			id = o.Journal
		}
		if id != "" { // else its writer had committed all of it
			all = append(all, Aside{ID: id, Dir: state, InPlace: true})
		}
	}
	if len(all) == 0 {
		if _, err := f.Stat(state); err != nil {
			return nil, fmt.Errorf("state directory: %w", err)
		}
	}
	return all, nil
}

// SalvageOptions tell OpenSalvage what to read. FS and Aside are required.
type SalvageOptions struct {
	FS    vfs.FS
	Aside Aside
	// Open opens the volume's prefix; nil, or an error, which the report then has:
	// what the bucket has stays unknown.
	Open func(ctx context.Context, url string) (objstore.Store, error)
	Keys *Keys       // of an encrypted volume, whose store Open unlocks; a missing one is an error, ErrKey
	KV   metadata.KV // an empty store for the index; closed by Close
	// Logger gets nothing but what a reader of the bucket logs; default none.
	Logger *slog.Logger
}

// Salvage shows what a writer acknowledged and never committed. It changes
// nothing of what it reads. Not safe for concurrent use.
type Salvage struct {
	o      SalvageOptions
	report SalvageReport
	base   *View             // the commit that the journal builds on; nil: not to be had
	v      *Volume           // the layers over it: state only, nothing runs
	lost   bool              // records are missing: no file is known to be whole
	files  map[uint64]string // journal files by incarnation
	names  map[InodeID]place
	touch  map[InodeID]*SalvagedFile
}

// place is a name that an inode has, or had last.
type place struct {
	parent InodeID
	name   string
	gone   bool
}

// SalvageReport is what a salvage found.
type SalvageReport struct {
	Aside
	Volume   string             `json:"volume,omitempty"`
	URL      string             `json:"url,omitempty"`
	Reason   string             `json:"reason,omitempty"` // why it was set aside
	Base     *metadata.CommitID `json:"base,omitempty"`   // the commit that it builds on
	BaseLSN  uint64             `json:"base_lsn"`
	BaseRead bool               `json:"base_read"`              // its content is at hand: files are whole
	BaseWhy  string             `json:"base_missing,omitempty"` // why not
	Records  int                `json:"records"`                // after the base
	First    uint64             `json:"first_lsn,omitempty"`
	Last     uint64             `json:"last_lsn,omitempty"`
	Damage   []string           `json:"damage,omitempty"`
	Torn     []string           `json:"torn,omitempty"` // the end, which was never known durable, is not whole
	Files    []*SalvagedFile    `json:"files"`
	// Changes of names and sizes, in order; at most maxSalvageOps.
	Operations []SalvagedOp `json:"operations"`
	MoreOps    int          `json:"operations_not_listed,omitempty"`
}

// maxSalvageOps bounds the operations that a report lists.
const maxSalvageOps = 100000

// SalvagedFile is a regular file whose bytes the records change.
type SalvagedFile struct {
	Inode   InodeID   `json:"inode"`
	Path    string    `json:"path"` // inode-<n>/… where the names above are not known
	Gone    bool      `json:"gone"` // it has no name any more: not extracted
	Writes  int       `json:"writes"`
	Bytes   int64     `json:"bytes"` // written, counted every time
	Size    int64     `json:"size"`
	First   time.Time `json:"first_time"`
	Last    time.Time `json:"last_time"`
	Ranges  []Range   `json:"ranges"`             // that the records changed, as they are in the end
	Whole   bool      `json:"whole"`              // every byte up to the size is known, and no record is missing that could be about it
	Problem []string  `json:"problems,omitempty"` // of an extraction
	Missing []Range   `json:"missing,omitempty"`  // bytes that an extraction could not bring back

	born bool // by these records: all of it is known
}

// Range is a part of a file in bytes.
type Range struct {
	Off int64 `json:"offset"`
	Len int64 `json:"length"`
}

// SalvagedOp is a change of names or sizes.
type SalvagedOp struct {
	LSN   uint64    `json:"lsn"`
	Op    string    `json:"op"`
	Inode InodeID   `json:"inode,omitempty"`
	Path  string    `json:"path,omitempty"`
	To    string    `json:"to,omitempty"`
	Size  *int64    `json:"size,omitempty"`
	Time  time.Time `json:"time,omitzero"`
	// Skipped: it does not fit what is known of the state.
	Skipped string `json:"skipped,omitempty"`
}

// OpenSalvage reads an aside's journal, and the commit that it builds on, if
// that can be had. What is damaged is in the report, beside all that is not.
func OpenSalvage(ctx context.Context, o SalvageOptions) (*Salvage, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Salvage{o: o, names: map[InodeID]place{}, touch: map[InodeID]*SalvagedFile{}}
	s.report.Aside = o.Aside
	s.report.Files, s.report.Operations = []*SalvagedFile{}, []SalvagedOp{}
	objectSize, err := s.describe()
	if err != nil {
		return nil, err
	}
	log, err := scanJournal(o.FS, filepath.Join(o.Aside.Dir, "journal"))
	if err != nil {
		return nil, err
	}
	s.files = log.names
	why := s.openBase(ctx, log)
	if errors.Is(why, ErrKey) {
		return nil, why // what would be missing is not lost
	}
	if why != nil {
		s.report.BaseWhy = why.Error()
	}
	index, err := s.index(objectSize)
	if err != nil {
		return nil, err
	}
	s.v = &Volume{
		opt: Options{}, log: o.Logger, active: newLayer(), refs: map[InodeID]*extent.Map[refValue]{},
		index: index, objectSize: objectSize, replaying: true, ended: make(chan struct{}),
	}
	if s.base != nil {
		s.v.objectSize = s.base.doc.ObjectSize
		s.v.takeHead(s.base.Head())
		if err := s.baseNames(log); err != nil {
			return nil, err
		}
	}
	s.replay(log)
	return s, s.finish()
}

// describe reads what the aside says about itself, and returns the object size.
func (s *Salvage) describe() (int64, error) {
	r := &s.report
	d, err := loadAside(s.o.FS, s.o.Aside.Dir)
	if err != nil {
		r.Damage = append(r.Damage, err.Error())
	}
	if d != nil && d.Journal == s.o.Aside.ID {
		r.Volume, r.URL, r.Reason, r.BaseLSN = d.Volume, d.URL, d.Reason, d.BaseLSN
		if d.Base.N != 0 {
			r.Base = &d.Base
		}
		return d.ObjectSize, nil
	}
	state := s.o.Aside.Dir
	if !s.o.Aside.InPlace {
		state = filepath.Dir(filepath.Dir(state))
	}
	if o, err := loadOwner(s.o.FS, state); err == nil {
		r.Volume, r.URL = o.Volume, o.URL
	}
	return 5 << 20, nil // it counts for records that share objects only
}

// openBase opens the commit that the journal builds on. The bucket knows it
// best: its writer may have ended before it had noted its last commit.
func (s *Salvage) openBase(ctx context.Context, log *scanned) error {
	r := &s.report
	if s.o.Open == nil || r.URL == "" {
		return errors.New("the bucket was not asked")
	}
	store, err := s.o.Open(ctx, r.URL)
	if err != nil {
		return err
	}
	doc, err := ReadVolumeDoc(ctx, store, r.URL)
	if err != nil {
		return err
	}
	if r.Volume != "" && doc.ID != r.Volume {
		return fmt.Errorf("%w: %s is volume %s now, and the journal is of %s", ErrNoVolume, r.URL, doc.ID, r.Volume)
	}
	if r.Base == nil && log.gone {
		return errors.New("no file of the journal is left, which would tell what it builds on")
	}
	if !log.gone {
		var e *entry
		if e, err = (pathReader{store}).someCommit(ctx, log.epoch, metadata.CommitID{}); err == nil && (r.Base == nil || e.id.N > r.Base.N) {
			r.Base, r.BaseLSN = &e.id, e.commit.LastLSN
		}
		if errors.Is(err, ErrKey) {
			return err
		}
	}
	if r.Base == nil {
		return fmt.Errorf("it is not known which commit the journal builds on: %w", err)
	}
	v, err := OpenView(ctx, ViewOptions{Store: store, Keys: s.o.Keys, URL: r.URL, KV: s.o.KV, Commit: r.Base.N, Logger: s.o.Logger})
	if err != nil {
		return fmt.Errorf("commit %s: %w", r.Base, err)
	}
	s.base, r.BaseRead = v, true
	return nil
}

// index is the base's, or an empty one.
func (s *Salvage) index(objectSize int64) (*metadata.Index, error) {
	if s.base != nil {
		return s.base.Index(), nil
	}
	ix, err := metadata.OpenIndex(metadata.NewMemKV(), objectSize)
	if err != nil {
		return nil, fmt.Errorf("empty index: %w", err)
	}
	return ix, nil
}

// Report is what was found. It is complete, but for what an extraction adds.
func (s *Salvage) Report() *SalvageReport { return &s.report }

// Close gives the index's store back.
func (s *Salvage) Close() error {
	if s.base != nil {
		return s.base.Close()
	}
	return s.o.KV.Close()
}

// scanned is a journal as its files have it: the records that count, in order.
type scanned struct {
	records []journal.Record // without their data
	names   map[uint64]string
	epoch   uint64
	jumps   map[journal.LSN]journal.LSN // from a file's first record back to the one it follows
	durable journal.LSN
	damage  []string // what is not readable, a torn tail among it
	gone    bool     // there is no file at all
}
