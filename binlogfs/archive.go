package binlogfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"sync"

	"github.com/cisternfs/cistern/gateway"
)

// FixedLog is an archive of binary logs that nobody writes to meanwhile: one
// commit of its volume. Safe for concurrent use.
type FixedLog struct {
	t     Tree
	dir   string
	ident identity
	names []fileName
	marks []KeepMark

	mu    sync.Mutex // guards the field below; not held over the volume
	infos map[int]*FileInfo

	last  *GTIDState
	end   Position
	never chan struct{}
}

var _ Archive = (*FixedLog)(nil)

// fileName names a file of the archive.
type fileName struct {
	epoch uint32
	name  string
}

// catalogueReads is how many catalogues are read at a time.
const catalogueReads = 16

// OpenArchive opens the archive in a directory of a tree and reads its
// catalogues. The groups that the last file has beyond its catalogue are found by
// reading them. It returns ErrNoLog where there is no archive, or an empty one.
func OpenArchive(ctx context.Context, t Tree, dir string) (*FixedLog, error) {
	l, err := OpenForSearch(ctx, t, dir)
	if err == nil {
		err = l.load(ctx)
	}
	if err != nil {
		return nil, err
	}
	return l, nil
}

// OpenForSearch is OpenArchive, but for the catalogues, which are read as they
// are needed: a search reads a few of a thousand. Files returns those that were.
func OpenForSearch(ctx context.Context, t Tree, dir string) (*FixedLog, error) {
	ident, names, err := readNames(ctx, t, dir)
	if err != nil {
		return nil, err
	}
	l := &FixedLog{t: t, dir: dir, ident: *ident, names: names, infos: map[int]*FileInfo{}, never: make(chan struct{})}
	if l.marks, err = readMarks(ctx, t, dir); err != nil {
		return nil, err
	}
	// A file that was made and got nothing is no file yet.
	for len(l.names) > 0 {
		f, err := l.info(ctx, len(l.names)-1)
		if err != nil {
			return nil, err
		}
		if f.Size > 0 {
			if l.last, err = stateAfter(f); err != nil {
				return nil, err
			}
			l.end = Position{f.Epoch, f.Name, f.Size}
			return l, nil
		}
		delete(l.infos, len(l.names)-1)
		l.names = l.names[:len(l.names)-1]
	}
	return nil, NoLog(dir)
}

// NoLog is ErrNoLog about a directory of a volume.
func NoLog(dir string) error {
	if dir == "" {
		dir = "the top directory"
	}
	return fmt.Errorf("%w in %s", ErrNoLog, dir)
}

// readNames reads an archive's identity and the names of its files.
func readNames(ctx context.Context, t Tree, dir string) (*identity, []fileName, error) {
	ident, err := readIdentity(ctx, t, dir)
	if err != nil {
		return nil, nil, err
	}
	var all []fileName
	for i, s := range ident.Sources {
		if i > 0 && s.Epoch == ident.Sources[i-1].Epoch {
			continue
		}
		names, err := logNames(ctx, t, path.Join(dir, epochDir(s.Epoch)))
		if err != nil {
			return nil, nil, err
		}
		for _, n := range names {
			all = append(all, fileName{s.Epoch, n})
		}
	}
	return ident, all, nil
}

// info returns the catalogue of the i-th file, with what the file has beyond it
// where it was not closed.
func (l *FixedLog) info(ctx context.Context, i int) (*FileInfo, error) {
	l.mu.Lock()
	f := l.infos[i]
	l.mu.Unlock()
	if f != nil {
		return f, nil
	}
	n := l.names[i]
	f, err := readCatalogue(ctx, l.t, l.dir, n.epoch, n.name)
	if errors.Is(err, gateway.ErrNotExist) {
		f, err = &FileInfo{Format: catalogueFormat, Epoch: n.epoch, Name: n.name}, nil
	}
	if err == nil && !f.Closed {
		f, err = catchUp(ctx, l.t, l.dir, f)
	}
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	l.infos[i] = f
	l.mu.Unlock()
	return f, nil
}

// catchUp brings a catalogue up to its file's published end.
func catchUp(ctx context.Context, t Tree, dir string, info *FileInfo) (*FileInfo, error) {
	name := path.Join(dir, info.Path())
	f, err := t.Open(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer f.Close() // only read
	var one [1]byte
	n, err := f.Read(ctx, one[:], info.Size)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if n == 0 {
		return info, nil
	}
	tr := newTracker(info.Epoch, info.Name)
	if info.Size > 0 {
		if tr, err = resume(info, info.format()); err != nil {
			return nil, err
		}
	}
	err = scan(ctx, &reader{ctx: ctx, f: f, off: tr.end}, tr, nil)
	if errors.Is(err, io.ErrUnexpectedEOF) || err == nil && tr.info.Size != tr.end {
		return nil, fmt.Errorf("%w: %s ends at %d, which is within a group", ErrCorrupt, name, tr.end)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return tr.catalogue(), nil
}

// format is what the catalogue knows of the file's format description.
func (f *FileInfo) format() Format {
	return Format{Server: f.Server, Checksum: f.Checksum, Flavor: f.Flavor}
}

// load reads the catalogues of all files, several at a time.
func (l *FixedLog) load(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	next := make(chan int)
	for range min(catalogueReads, len(l.names)) {
		group.Go(func() {
			for i := range next {
				if _, err := l.info(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	for i := range l.names {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	group.Wait()
	return context.Cause(ctx)
}

// Files returns the catalogues, the oldest file first. They must not be changed.
func (l *FixedLog) Files() []*FileInfo {
	l.mu.Lock()
	defer l.mu.Unlock()
	files := make([]*FileInfo, 0, len(l.infos))
	for i := range l.names {
		if f := l.infos[i]; f != nil {
			files = append(files, f)
		}
	}
	return files
}

// Open opens a file for reading.
func (l *FixedLog) Open(ctx context.Context, epoch uint32, name string) (File, error) {
	return l.t.Open(ctx, path.Join(l.dir, epochDir(epoch), name))
}

// End returns the archive's end, and a channel that is never closed.
func (l *FixedLog) End() (Position, <-chan struct{}) { return l.end, l.never }

// State returns the GTIDs at the end.
func (l *FixedLog) State() *GTIDState { return l.last.Clone() }

// Sources returns the server of each epoch.
func (l *FixedLog) Sources() []Source { return slices.Clone(l.ident.Sources) }

// Need has nothing to do: a commit is purged of nothing.
func (l *FixedLog) Need(any, Position) {}

// Done has nothing to do either.
func (l *FixedLog) Done(any) {}

// Marks returns the marks of the archive, by their names.
func (l *FixedLog) Marks() []KeepMark { return slices.Clone(l.marks) }

func (l *FixedLog) count() int { return len(l.names) }

func (l *FixedLog) nameOf(i int) fileName { return l.names[i] }
