package binlogfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/metadata"
)

const (
	marksName   = "marks.json"
	marksFormat = 1
	maxMarks    = 10000
	maxMarkName = 100
)

// ErrMark: a mark's name or place that can't be.
var ErrMark = errors.New("mark")

// KeepMark is an operator's word that everything from a place on is needed, for
// example to bring a backup forward: purging keeps it.
type KeepMark struct {
	Name    string    `json:"name"`
	Epoch   uint32    `json:"epoch"`
	File    string    `json:"file"`
	Offset  int64     `json:"offset"`
	GTID    string    `json:"gtid,omitempty"` // as it was given
	Created time.Time `json:"created"`
}

// Position is the place from which on the mark needs the log.
func (m *KeepMark) Position() Position { return Position{m.Epoch, m.File, m.Offset} }

// marksDoc is marks.json.
type marksDoc struct {
	Format int        `json:"format"`
	Marks  []KeepMark `json:"marks"` // by name
}

// readMarks reads an archive's marks.
func readMarks(ctx context.Context, t Tree, dir string) ([]KeepMark, error) {
	body, err := readFile(ctx, t, path.Join(dir, marksName), maxIdentity*8)
	if errors.Is(err, gateway.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var d marksDoc
	if err := json.Unmarshal(body, &d); err != nil {
		return nil, fmt.Errorf("%w: %s: %v", ErrCorrupt, marksName, err)
	}
	if d.Format != marksFormat {
		return nil, fmt.Errorf("%s has format %d, which this release does not know: use a newer one", marksName, d.Format)
	}
	return d.Marks, nil
}

// checkMarkName refuses names that a command line or a message could not show.
func checkMarkName(name string) error {
	if name == "" || len(name) > maxMarkName || strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._-", r)
	}) {
		return fmt.Errorf("%w: the name %q is not made of up to %d letters, digits, '.', '_' and '-'", ErrMark, name, maxMarkName)
	}
	return nil
}

// Marks returns the marks, by name.
func (l *Log) Marks() []KeepMark {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.marks)
}

// Mark sets or moves a mark, durably. at is a GTID position or set, or
// <file>:<offset>; a file of an earlier epoch is <epoch>/<file>:<offset>.
func (l *Log) Mark(ctx context.Context, name, at string) (KeepMark, error) {
	if err := checkMarkName(name); err != nil {
		return KeepMark{}, err
	}
	pos, gtid, err := markPlace(ctx, l, at)
	if err != nil {
		return KeepMark{}, err
	}
	m := KeepMark{Name: name, Epoch: pos.Epoch, File: pos.File, Offset: pos.Offset, GTID: gtid, Created: l.opt.Now().UTC()}
	return m, l.changeMarks(ctx, func(all []KeepMark) ([]KeepMark, error) {
		all = slices.DeleteFunc(all, func(o KeepMark) bool { return o.Name == name })
		if len(all) >= maxMarks {
			return nil, fmt.Errorf("%w: there are %d already: delete some", ErrMark, len(all))
		}
		return append(all, m), nil
	})
}

// Unmark deletes a mark, durably.
func (l *Log) Unmark(ctx context.Context, name string) error {
	return l.changeMarks(ctx, func(all []KeepMark) ([]KeepMark, error) {
		left := slices.DeleteFunc(slices.Clone(all), func(o KeepMark) bool { return o.Name == name })
		if len(left) == len(all) {
			return nil, fmt.Errorf("%w: there is none called %q", ErrMark, name)
		}
		return left, nil
	})
}

// changeMarks replaces the marks. A mark counts from before it is stored, and
// one that goes until after: purging never overtakes it. One caller at a time.
func (l *Log) changeMarks(ctx context.Context, change func([]KeepMark) ([]KeepMark, error)) error {
	l.marking.Lock()
	defer l.marking.Unlock()
	old := l.Marks()
	marks, err := change(slices.Clone(old))
	if err != nil {
		return err
	}
	slices.SortFunc(marks, func(a, b KeepMark) int { return strings.Compare(a.Name, b.Name) })
	set := func(m []KeepMark) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.marks = m
	}
	set(append(slices.Clone(old), marks...))
	body, err := json.MarshalIndent(marksDoc{Format: marksFormat, Marks: marks}, "", " ")
	if err == nil {
		err = l.t.writeFile(ctx, path.Join(l.opt.Dir, marksName), append(body, '\n'))
	}
	if err == nil {
		err = l.t.V.Fsync(ctx, metadata.RootInode)
	}
	if err != nil {
		set(old)
		return fmt.Errorf("keep the marks: %w", err)
	}
	set(marks)
	return nil
}

// markPlace finds the place that a mark's text names.
func markPlace(ctx context.Context, a Searchable, at string) (Position, string, error) {
	if file, offset, ok := ParsePlace(at); ok {
		f, err := FileNamed(ctx, a, file)
		if err != nil {
			return Position{}, "", err
		}
		if err := betweenGroups(ctx, a, f, offset); err != nil {
			return Position{}, "", err
		}
		return Position{f.Epoch, f.Name, offset}, "", nil
	}
	if a.count() == 0 {
		return Position{}, "", ErrNoLog
	}
	last, err := a.info(ctx, a.count()-1)
	if err != nil {
		return Position{}, "", err
	}
	state, err := ParseGTIDState(last.Flavor, at)
	if err != nil || state.Empty() {
		return Position{}, "", fmt.Errorf("%w: %q is neither a GTID position of %s nor <file>:<offset>", ErrMark, at, last.Flavor)
	}
	has, err := stateAfter(last)
	if err != nil {
		return Position{}, "", err
	}
	if err := checkOnce(state, at); err != nil {
		return Position{}, "", err
	}
	if missing := has.lacks(state); missing != "" {
		return Position{}, "", fmt.Errorf("%w: the group %s, where the archive ends at %s; mark it when that has come", ErrNotFound, missing, has.end())
	}
	if missing := has.Missing(state); missing != "" {
		return Position{}, "", fmt.Errorf("%w: the group %s; the archive has others up to %s, so this is the position of another server", ErrNotFound, missing, has.end())
	}
	f, err := FileAfter(ctx, a, state)
	if err != nil {
		return Position{}, "", err
	}
	return Position{f.Epoch, f.Name, int64(len(magic))}, at, nil
}

// checkOnce refuses a text that gives a server's last group in a domain of MariaDB's
// twice.
func checkOnce(state *GTIDState, text string) error {
	if state.flavor == MariaDB && len(state.list()) <= strings.Count(text, ",") {
		return fmt.Errorf("%w: %q names two groups of one server in one domain, and a position has the last one", ErrMark, text)
	}
	return nil
}

// betweenGroups refuses an offset that no position can mean: beyond the end, or within
// a group or an event. It reads from the last indexed group before it on.
func betweenGroups(ctx context.Context, a Searchable, f *FileInfo, offset int64) error {
	switch {
	case offset == f.Size:
		return nil
	case offset > f.Size:
		return fmt.Errorf("%w: %s has %d bytes, and %d lies beyond", ErrMark, f.Path(), f.Size, offset)
	case offset < int64(len(magic)):
		return fmt.Errorf("%w: the first position of a binary log is %d, not %d", ErrMark, len(magic), offset)
	}
	from := f.before(func(m Mark) bool { return m.Offset > offset })
	if from > offset {
		from = int64(len(magic))
	}
	begins, last := false, from // last: the place between groups before the offset
	err := Walk(ctx, a, f, from, func(e *Event) error {
		between := e.Step == StepHead || e.Step == StepBegin || e.Step == StepWhole
		switch {
		case e.Offset >= offset:
			begins = between && e.Offset == offset
			return errStop
		case between:
			last = e.Offset
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !begins {
		return fmt.Errorf("%w: %d of %s lies within the event or group that begins at %d", ErrMark, offset, f.Path(), last)
	}
	return nil
}

// FileAfter returns the file in which the first group lies, or will, that is not
// in a state: where a replica with that state begins to read. It returns
// ErrNotFound when groups that the state lacks are purged.
func FileAfter(ctx context.Context, a Searchable, state *GTIDState) (*FileInfo, error) {
	for i := a.count() - 1; i >= 0; i-- {
		f, err := a.info(ctx, i)
		if err != nil {
			return nil, err
		}
		before, err := ParseGTIDState(f.Flavor, f.Previous)
		if err != nil {
			return nil, fmt.Errorf("%w: catalogue of %s: %v", ErrCorrupt, f.Name, err)
		}
		missing := state.lacks(before)
		if missing == "" {
			return f, nil
		}
		if i == 0 {
			return nil, fmt.Errorf("%w: the groups up to %s were logged before the first file, %s, and are purged or were never archived", ErrNotFound, missing, f.Name)
		}
	}
	return nil, ErrNoLog
}

// end is where a state ends, for a message.
func (s *GTIDState) end() string {
	if s.Empty() {
		return "no group"
	}
	return s.Position()
}

// lacks returns what a replica in state s has not of o; empty when it has it all.
// MariaDB's replicas know the last group of each domain alone, and sequence
// numbers ascend within a domain.
func (s *GTIDState) lacks(o *GTIDState) string {
	if s.flavor != MariaDB {
		return s.Missing(o)
	}
	var list []string
	for _, id := range o.Domains() {
		if last := o.Last(id); last.Number > s.Last(id).Number {
			list = append(list, last.String())
		}
	}
	return strings.Join(list, ",")
}
