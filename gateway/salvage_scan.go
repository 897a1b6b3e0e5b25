package gateway

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/journal"
)

// scanFile is one journal file while it is looked at.
type scanFile struct {
	name    string
	seq     uint64
	after   journal.LSN
	records []journal.Record
}

// scanJournal reads all records of a journal that count, also those of files
// and groups behind damage, and changes nothing. Redo is stricter: it stops at
// the first byte that it can't trust, since what follows may not fit; here
// what follows is better than nothing.
func scanJournal(f vfs.FS, dir string) (*scanned, error) {
	s := &scanned{names: map[uint64]string{}, jumps: map[journal.LSN]journal.LSN{}}
	var files []*scanFile
	at := func(name string) *scanFile {
		if n := len(files); n > 0 && files[n-1].name == name {
			return files[n-1]
		}
		files = append(files, &scanFile{name: name})
		return files[len(files)-1]
	}
	var identity [16]byte // of the files
	err := journal.Dump(f, dir, func(i journal.DumpItem) error {
		switch i.Kind {
		case journal.DumpFile:
			x := at(i.File)
			x.seq, x.after, identity = i.Sequence, i.After, i.Identity
			s.names[i.Incarnation] = i.File
			s.epoch = max(s.epoch, i.Epoch)
			s.durable = max(s.durable, i.Durable)
			s.jumps[i.First] = i.After
		case journal.DumpGroup:
			s.names[i.Incarnation] = i.File
			s.durable = max(s.durable, i.Durable)
		case journal.DumpRecord:
			r := i.Record
			r.Body, r.Data = bytes.Clone(r.Body), nil
			x := at(i.File)
			x.records = append(x.records, r)
		case journal.DumpSynced: // after all files
			if i.Identity == identity || len(files) == 0 {
				s.durable = max(s.durable, i.Durable)
			}
		case journal.DumpDamage:
			at(i.File)
			s.damage = append(s.damage, fmt.Sprintf("%s at byte %d: %s", filepath.Join(dir, i.File), i.Off, i.Reason))
		}
		return nil
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("journal: %w", err)
	}
	if len(files) == 0 {
		s.gone = true
		s.damage = append(s.damage, fmt.Sprintf("%s has no file of the journal any more", dir))
	}
	s.order(files)
	return s, nil
}

// order puts the records that count into order: what a later file says it
// comes after ends the files before it. A file whose header is damaged goes by its records.
func (s *scanned) order(files []*scanFile) {
	slices.SortStableFunc(files, func(a, b *scanFile) int {
		if a.seq == 0 || b.seq == 0 {
			return cmp.Compare(firstLSN(a), firstLSN(b))
		}
		return cmp.Compare(a.seq, b.seq)
	})
	least := ^journal.LSN(0)
	for i := len(files) - 1; i >= 0; i-- {
		x := files[i]
		x.records = slices.DeleteFunc(x.records, func(r journal.Record) bool { return r.LSN > least })
		if x.seq != 0 {
			least = min(least, x.after)
		}
	}
	last := journal.LSN(0)
	for _, x := range files {
		for _, r := range x.records {
			if r.LSN > last { // a damaged file may repeat what another has
				s.records = append(s.records, r)
				last = r.LSN
			}
		}
	}
}

func firstLSN(x *scanFile) journal.LSN {
	if len(x.records) == 0 {
		return 0
	}
	return x.records[0].LSN
}
