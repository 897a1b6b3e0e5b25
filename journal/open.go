package journal

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cisternfs/cistern/internal/vfs"
)

// Open reads the headers of the journal in a directory. Errors: ErrMissing when
// it holds no journal file and Options.Create is not set (the caller knows
// whether there should be one), ErrIdentity, ErrDamaged.
func Open(fs vfs.FS, dir string, o Options) (*Journal, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	j := &Journal{
		fs: fs, dir: dir, o: o, maxFiles: int(o.MaxBytes / o.FileSize),
		roundDone: make(chan struct{}), stop: make(chan struct{}),
		moved: map[place]Loc{}, expanded: map[LSN]Loc{},
	}
	j.space.init()
	if err := j.open(); err != nil {
		j.closeFiles()
		return nil, err
	}
	return j, nil
}

func (j *Journal) open() error {
	entries, err := j.fs.ReadDir(j.dir)
	if err != nil && !(j.o.Create && errors.Is(err, fs.ErrNotExist)) {
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%w: no directory %s", ErrMissing, j.dir)
		}
		return fmt.Errorf("list journal directory %s: %w", j.dir, err)
	}
	for _, e := range entries {
		if number, ok := fileNumber(e.Name(), spareFile); ok {
			j.spareName = max(j.spareName, number)
			err = j.openSpare(e.Name())
		} else if first, ok := fileNumber(e.Name(), inUse); ok {
			err = j.openInUse(e.Name(), LSN(first))
		}
		if err != nil {
			return err
		}
	}
	slices.SortFunc(j.files, bySeq)
	if len(j.files) > 0 {
		j.seq = j.files[len(j.files)-1].head.seq
	}
	j.total = len(j.files) + len(j.spares) + len(j.replay.empty)
	if len(j.files) > 0 {
		return nil
	}
	if !j.o.Create {
		return fmt.Errorf("%w: no %s file in %s", ErrMissing, inUse, j.dir)
	}
	return j.create()
}

func bySeq(a, b *file) int { return cmp.Compare(a.head.seq, b.head.seq) }

// create makes the directory durable.
func (j *Journal) create() error {
	if err := j.fs.MkdirAll(j.dir, 0o700); err != nil {
		return fmt.Errorf("make journal directory %s: %w", j.dir, err)
	}
	if err := j.fs.SyncDir(filepath.Dir(j.dir)); err != nil {
		return fmt.Errorf("sync the directory above %s: %w", j.dir, err)
	}
	return nil
}

func (j *Journal) openInUse(name string, first LSN) error {
	f, err := j.openFile(name)
	if err != nil {
		return err
	}
	if f.size == 0 { // holds no record; Replay reports it
		f.head = fileHeader{first: first, seq: 0}
		j.replay.empty = append(j.replay.empty, f)
		return nil
	}
	j.files = append(j.files, f)
	b := make([]byte, headerSize)
	n, err := f.f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return fmt.Errorf("read header of journal file %s: %w", j.path(name), err)
	}
	f.head, f.crc, err = decodeHeader(b[:n])
	if err == nil && f.head.first != first {
		err = fmt.Errorf("header says that the first lsn is %d", f.head.first)
	}
	if err != nil {
		return &DamageError{File: j.path(name), Reason: err.Error()}
	}
	if f.head.identity != j.o.Identity {
		return fmt.Errorf("%w: %s has identity %x, expected %x", ErrIdentity, j.path(name), f.head.identity, j.o.Identity)
	}
	return nil
}

func (j *Journal) openSpare(name string) error {
	f, err := j.openFile(name)
	if err != nil {
		return err
	}
	if f.size == j.o.FileSize {
		j.spares = append(j.spares, f)
		return nil
	}
	// Half made, or of another size.
	closeErr := f.f.Close()
	return errors.Join(closeErr, j.fs.Remove(j.path(name)))
}

func (j *Journal) openFile(name string) (*file, error) {
	f, err := j.fs.OpenFile(j.path(name), os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("open journal file: %w", err)
	}
	size, err := f.Size()
	if err != nil {
		f.Close() // it was only read
		return nil, fmt.Errorf("size of journal file %s: %w", j.path(name), err)
	}
	return &file{f: f, name: name, size: size}, nil
}

func fileName(number uint64, suffix string) string {
	return fmt.Sprintf("%0*d%s", nameDigits, number, suffix)
}

func fileNumber(name, suffix string) (uint64, bool) {
	digits, ok := strings.CutSuffix(name, suffix)
	if !ok || len(digits) != nameDigits {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil
}
