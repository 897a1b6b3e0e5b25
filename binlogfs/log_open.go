package binlogfs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"

	"github.com/cisternfs/cistern/gateway"
)

// readIdentity reads relay.json; an empty one where there is none.
func readIdentity(ctx context.Context, t Tree, dir string) (*identity, error) {
	ident := identity{Format: catalogueFormat}
	body, err := readFile(ctx, t, path.Join(dir, IdentityName), maxIdentity)
	if errors.Is(err, gateway.ErrNotExist) {
		return &ident, nil
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body, &ident); err != nil {
		return nil, fmt.Errorf("%w: %s: %v", ErrCorrupt, IdentityName, err)
	}
	if ident.Format != catalogueFormat {
		return nil, fmt.Errorf("the archive has format %d, which this release does not know: use a newer one", ident.Format)
	}
	return &ident, nil
}

// readArchive reads an archive's identity and the catalogues of its files. A file
// without a catalogue has one with its name only.
func readArchive(ctx context.Context, t Tree, dir string) (*identity, []*FileInfo, error) {
	ident, names, err := readNames(ctx, t, dir)
	if err != nil {
		return nil, nil, err
	}
	var files []*FileInfo
	for _, n := range names {
		info, err := readCatalogue(ctx, t, dir, n.epoch, n.name)
		if errors.Is(err, gateway.ErrNotExist) {
			info, err = &FileInfo{Format: catalogueFormat, Epoch: n.epoch, Name: n.name}, nil
		}
		if err != nil {
			return nil, nil, err
		}
		files = append(files, info)
	}
	return ident, files, nil
}

// logNames lists the binary logs of an epoch by their numbers.
func logNames(ctx context.Context, t Tree, dir string) ([]string, error) {
	all, err := t.Names(ctx, dir)
	if errors.Is(err, gateway.ErrNotExist) {
		return nil, nil // its first file was not made yet
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	names := slices.DeleteFunc(all, func(n string) bool { return !isLogName(n) })
	slices.SortStableFunc(names, compareNumbers)
	return names, nil
}

// recover brings the catalogues up to what the files hold, and takes the end of
// the last file as published and durable: what is visible in the volume now is
// in its journal, and made as durable as Ack asks before anybody is told.
func (l *Log) recover(ctx context.Context) error {
	for i, info := range l.files {
		name := l.path(info)
		size, err := l.t.size(ctx, name)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if info.Size == size && size > 0 {
			continue
		}
		t, err := l.rescan(ctx, info, name)
		if err != nil {
			return err
		}
		if err := l.saveCatalogue(ctx, t.catalogue()); err != nil {
			return err
		}
		l.files[i] = t.catalogue()
	}
	if len(l.files) == 0 {
		return nil
	}
	if err := l.harden(ctx); err != nil {
		return err
	}
	f := l.files[len(l.files)-1]
	state, err := l.stateAt(f)
	if err != nil {
		return err
	}
	l.last, l.end = state, Position{f.Epoch, f.Name, f.Size}
	return nil
}

// rescan reads what a file has beyond its catalogue. A file whose published end
// is no boundary is damaged.
func (l *Log) rescan(ctx context.Context, info *FileInfo, name string) (*tracker, error) {
	h, err := l.t.handle(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	defer h.Close()
	t := newTracker(info.Epoch, info.Name)
	if info.Size > 0 {
		f, err := formatOf(ctx, h, info.Name)
		if err != nil {
			return nil, err
		}
		if t, err = resume(info, f); err != nil {
			return nil, err
		}
	}
	size, err := l.t.size(ctx, name)
	if err != nil {
		return nil, err
	}
	if size == 0 {
		return t, nil // made, and nothing published yet
	}
	if err := scan(ctx, &reader{ctx: ctx, f: h, off: t.end}, t, nil); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if t.info.Size != size {
		return nil, fmt.Errorf("%w: %s is published up to %d, which is within a group", ErrCorrupt, name, size)
	}
	return t, nil
}

// formatOf reads the format description at the beginning of a file.
func formatOf(ctx context.Context, f File, name string) (Format, error) {
	head := make([]byte, 4096)
	n, err := f.Read(ctx, head, int64(len(magic)))
	if err != nil {
		return Format{}, fmt.Errorf("%s: %w", name, err)
	}
	h, err := DecodeHeader(head[:n])
	if err != nil {
		return Format{}, fmt.Errorf("%s: %w", name, err)
	}
	if int64(h.Size) > int64(n) {
		return Format{}, fmt.Errorf("%w: %s ends within its format description", ErrCorrupt, name)
	}
	return DecodeFormat(head[:h.Size])
}

// stateAfter is the state of GTIDs at the end of a file.
func stateAfter(f *FileInfo) (*GTIDState, error) {
	s, err := ParseGTIDState(f.Flavor, f.Previous)
	if err != nil {
		return nil, fmt.Errorf("%w: catalogue of %s: %v", ErrCorrupt, f.Name, err)
	}
	added, err := ParseGTIDState(f.Flavor, f.Added)
	if err != nil {
		return nil, fmt.Errorf("%w: catalogue of %s: %v", ErrCorrupt, f.Name, err)
	}
	s.Merge(added)
	return s, nil
}

// stateAt is the state of GTIDs at the end of the last file f. An epoch's first
// files may begin with groups that earlier epochs have.
func (l *Log) stateAt(f *FileInfo) (*GTIDState, error) {
	state, err := stateAfter(f)
	for i := len(l.files) - 1; i >= 0 && err == nil; i-- {
		g := l.files[i]
		if g.Epoch == f.Epoch || g.Flavor != f.Flavor {
			continue
		}
		before, berr := l.stateAt(g)
		if berr != nil {
			return nil, berr
		}
		before.MergeNew(state)
		return before, nil
	}
	return state, err
}
