package binlogfs

import (
	"context"
	"errors"
	"fmt"
)

// cut is an archive up to a place. Safe for concurrent use.
type cut struct {
	Archive
	files []*FileInfo
	end   Position
	state *GTIDState
	never chan struct{}
}

// Cut returns an archive that ends at a place between two groups, for recovery
// to a point in time. It fails where the place is within a group, or nowhere.
func Cut(ctx context.Context, a Archive, end Position) (Archive, error) {
	c := &cut{Archive: a, end: end, never: make(chan struct{})}
	for _, f := range a.Files() {
		if end.before(f) {
			break
		}
		c.files = append(c.files, f)
	}
	n := len(c.files) - 1
	if n < 0 || c.files[n].Epoch != end.Epoch || c.files[n].Name != end.File {
		return nil, fmt.Errorf("%w: %06d/%s", ErrNotFound, end.Epoch, end.File)
	}
	state, err := stateAt(ctx, a, c.files[n], end.Offset)
	if errors.Is(err, errNoEvent) {
		err = fmt.Errorf("%w: %s has no event that ends at %d", ErrNotFound, c.files[n].Path(), end.Offset)
	}
	if err != nil {
		return nil, err
	}
	c.state = state
	last := *c.files[n]
	last.Size, last.Closed, last.Index = end.Offset, false, nil
	c.files[n] = &last
	return c, nil
}

// Files implements Archive.
func (c *cut) Files() []*FileInfo { return c.files }

// End implements Archive.
func (c *cut) End() (Position, <-chan struct{}) { return c.end, c.never }

// State implements Archive.
func (c *cut) State() *GTIDState { return c.state.Clone() }

// GroupEnd is where a group ends that begins at a place.
func GroupEnd(ctx context.Context, a Archive, p Position) (Position, error) {
	for _, f := range a.Files() {
		if f.Epoch != p.Epoch || f.Name != p.File {
			continue
		}
		end := p
		err := walk(ctx, a, f, p.Offset, publishedEnd(a, f), func(w *walker) error {
			end.Offset = w.off + int64(w.head.Size)
			if w.groups.Open() {
				return nil
			}
			return errStop
		})
		return end, err
	}
	return Position{}, fmt.Errorf("%w: %06d/%s", ErrNotFound, p.Epoch, p.File)
}
