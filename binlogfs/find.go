package binlogfs

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"time"
)

// ErrNotFound: the archive has no such group, time or place.
var ErrNotFound = errors.New("not in the archive")

// Searchable is an archive in which groups can be found: a Log or a FixedLog.
type Searchable interface {
	Open(ctx context.Context, epoch uint32, name string) (File, error)
	count() int
	nameOf(i int) fileName
	info(ctx context.Context, i int) (*FileInfo, error)
}

// Found is a group that a search found.
type Found struct {
	Position           // where its first event begins
	GTID     GTID      // zero when it has none
	Time     time.Time // of its first event
	Read     int64     // bytes of the file that the search read
}

// count and info make a Log searchable. A file that comes or goes meanwhile
// moves the others: the search then says that it found nothing.
func (l *Log) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.files)
}

func (l *Log) info(_ context.Context, i int) (*FileInfo, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i >= len(l.files) {
		return nil, fmt.Errorf("%w: a file was purged meanwhile; search again", ErrNotFound)
	}
	return l.files[i], nil
}

func (l *Log) nameOf(i int) fileName {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i >= len(l.files) {
		return fileName{}
	}
	return fileName{l.files[i].Epoch, l.files[i].Name}
}

// FileNamed returns the catalogue of a file that is named `<epoch>/<name>`, or
// `<name>` for that of the last epoch which has one.
func FileNamed(ctx context.Context, a Searchable, file string) (*FileInfo, error) {
	epoch, name := splitEpoch(file)
	for i := a.count() - 1; i >= 0; i-- {
		if n := a.nameOf(i); n.name == name && (epoch == 0 || n.epoch == epoch) {
			return a.info(ctx, i)
		}
	}
	return nil, fmt.Errorf("%w: no file is called %s", ErrNotFound, file)
}

// firstFile returns the number of the first file for which is says yes, when it
// says no for those before; count when it does for none.
func firstFile(ctx context.Context, a Searchable, is func(i int, f *FileInfo) (bool, error)) (int, error) {
	var failed error
	n := sort.Search(a.count(), func(i int) bool {
		if failed != nil {
			return true
		}
		f, err := a.info(ctx, i)
		if err != nil {
			failed = err
			return true
		}
		yes, err := is(i, f)
		if err != nil {
			failed = err
		}
		return yes
	})
	return n, failed
}

// FindGTID finds a group by its GTID. It reads the catalogues of about log2 of
// the files, and of one file what lies between two entries of its index, mostly
// 1 MiB. It returns ErrNotFound with the reason when the group was purged or
// never archived.
func FindGTID(ctx context.Context, a Searchable, g GTID) (*Found, error) {
	// Each file begins with the GTIDs of all before it.
	n, err := firstFile(ctx, a, func(_ int, f *FileInfo) (bool, error) {
		s, err := stateAfter(f)
		if err != nil || f.Flavor != g.Flavor {
			return false, err
		}
		return s.Has(g), nil
	})
	if err != nil {
		return nil, err
	}
	if n < a.count() {
		f, err := a.info(ctx, n)
		if err != nil {
			return nil, err
		}
		if before, err := ParseGTIDState(f.Flavor, f.Previous); err == nil && n == 0 && before.Has(g) {
			return nil, fmt.Errorf("%w: the group %s was logged before the first file, %s, and is purged or was never archived", ErrNotFound, g, f.Name)
		}
		if found, err := findInFile(ctx, a, f, g); !errors.Is(err, ErrNotFound) {
			return found, err
		}
	}
	return findAnywhere(ctx, a, g)
}

// findAnywhere looks for a group file by file: GTIDs of an archive need not
// ascend, for example after RESET MASTER.
func findAnywhere(ctx context.Context, a Searchable, g GTID) (*Found, error) {
	for i := a.count() - 1; i >= 0; i-- {
		f, err := a.info(ctx, i)
		if err != nil {
			return nil, err
		}
		if f.Flavor != g.Flavor {
			continue
		}
		added, err := ParseGTIDState(f.Flavor, f.Added)
		if err != nil {
			return nil, fmt.Errorf("%w: catalogue of %s: %v", ErrCorrupt, f.Name, err)
		}
		if !added.Has(g) {
			continue
		}
		if found, err := findInFile(ctx, a, f, g); !errors.Is(err, ErrNotFound) {
			return found, err
		}
	}
	return nil, fmt.Errorf("%w: no file has the group %s", ErrNotFound, g)
}

// sameStream says whether two GTIDs count in the same sequence.
func sameStream(a, b GTID) bool {
	a.Number, b.Number = 0, 0
	return a == b
}

// findInFile looks for a group in one file: from the last indexed group of the
// same sequence before it, and from the beginning when it is not there, as
// sequences of a replica with several appliers need not ascend.
func findInFile(ctx context.Context, a Searchable, f *FileInfo, g GTID) (*Found, error) {
	first := f.before(func(Mark) bool { return true })
	from := first
	for _, m := range f.Index {
		if m.GTID == "" {
			continue
		}
		at, err := ParseGTID(f.Flavor, m.GTID)
		if err != nil {
			return nil, fmt.Errorf("%w: catalogue of %s: %v", ErrCorrupt, f.Name, err)
		}
		if sameStream(at, g) && at.Number <= g.Number {
			from = m.Offset
		}
	}
	is := func(e *Event) bool { return e.GTID == g }
	found, err := findFrom(ctx, a, f, from, is)
	if errors.Is(err, ErrNotFound) && from > first {
		return findFrom(ctx, a, f, first, is)
	}
	return found, err
}

// findFrom returns the first group from a boundary on for whose first event is
// says yes.
func findFrom(ctx context.Context, a Searchable, f *FileInfo, from int64, is func(*Event) bool) (*Found, error) {
	var found *Found
	err := Walk(ctx, a, f, from, func(e *Event) error {
		if (e.Step == StepBegin || e.Step == StepWhole) && is(e) {
			found = &Found{Position: Position{f.Epoch, f.Name, e.Offset}, GTID: e.GTID, Time: time.Unix(int64(e.Time), 0).UTC(), Read: e.Offset - from}
			return errStop
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, fmt.Errorf("%w: %s", ErrNotFound, f.Name)
	}
	return found, nil
}

// errStop ends a walk that has what it was for.
var errStop = errors.New("found")

// Walk calls fn for the events of a file from a boundary on, which is where no
// group is under way: its beginning, or an entry of its index. It verifies the
// events' checksums. fn's error ends it.
func Walk(ctx context.Context, a Searchable, f *FileInfo, from int64, fn func(*Event) error) error {
	in, err := a.Open(ctx, f.Epoch, f.Name)
	if err != nil {
		return fmt.Errorf("%s: %w", f.Path(), err)
	}
	defer in.Close() // only read
	t := newTracker(f.Epoch, f.Name)
	if from > int64(len(magic)) {
		t.info.Server, t.info.Flavor, t.format, t.end = f.Server, f.Flavor, f.format(), from
		t.noGTIDs(f.Flavor)
	}
	err = scan(ctx, &reader{ctx: ctx, f: in, off: t.end}, t, fn)
	switch {
	case errors.Is(err, errStop):
		return nil
	case err != nil:
		return fmt.Errorf("%s: %w", f.Path(), err)
	}
	return nil
}

// FindTime finds the first group whose time is at or after t, in the order of
// the log. Times of neighbouring groups may be out of order by as long as their
// transactions took.
func FindTime(ctx context.Context, a Searchable, t time.Time) (*Found, error) {
	n, err := firstFile(ctx, a, func(i int, f *FileInfo) (bool, error) {
		last, err := lastTime(ctx, a, i, f)
		return !last.IsZero() && !last.Before(t), err
	})
	if err != nil {
		return nil, err
	}
	for ; n < a.count(); n++ {
		f, err := a.info(ctx, n)
		if err != nil {
			return nil, err
		}
		from := f.before(func(m Mark) bool { return !m.Time.Before(t) })
		found, err := findFrom(ctx, a, f, from, func(e *Event) bool { return int64(e.Time) >= ceilSeconds(t) })
		if !errors.Is(err, ErrNotFound) {
			return found, err
		}
	}
	return nil, fmt.Errorf("%w: it ends before %s", ErrNotFound, t.UTC().Format(time.RFC3339))
}

// lastTime is the time of the last group in file number i, which is f, or, when
// that has none, as after a restart of the server or a FLUSH, in the nearest
// file before it; zero when there is no such group.
func lastTime(ctx context.Context, a Searchable, i int, f *FileInfo) (time.Time, error) {
	for i > 0 && f.LastTime.IsZero() {
		var err error
		i--
		if f, err = a.info(ctx, i); err != nil {
			return time.Time{}, err
		}
	}
	return f.LastTime, nil
}

// ceilSeconds is the first whole second at or after t.
func ceilSeconds(t time.Time) int64 {
	s := t.Unix()
	if t.Nanosecond() > 0 {
		s++
	}
	return s
}

// FindPosition finds the group that has the byte at an offset of a file, or the
// next one when that is between groups.
func FindPosition(ctx context.Context, a Searchable, f *FileInfo, offset int64) (*Found, error) {
	if offset < 0 || offset >= f.Size {
		return nil, fmt.Errorf("%w: %s has %d bytes, and none at %d", ErrNotFound, f.Path(), f.Size, offset)
	}
	from := f.before(func(m Mark) bool { return m.Offset > offset })
	var open, found *Found
	err := Walk(ctx, a, f, from, func(e *Event) error {
		if e.Step == StepHead {
			return nil
		}
		if e.Step == StepBegin || e.Step == StepWhole {
			open = &Found{Position: Position{f.Epoch, f.Name, e.Offset}, GTID: e.GTID, Time: time.Unix(int64(e.Time), 0).UTC()}
		}
		if e.Offset+int64(e.Size) <= offset {
			return nil
		}
		found = open
		found.Read = e.Offset - from
		return errStop
	})
	if err != nil {
		return nil, err
	}
	if found == nil {
		return nil, fmt.Errorf("%w: no group of %s is at or after %d", ErrNotFound, f.Path(), offset)
	}
	return found, nil
}
