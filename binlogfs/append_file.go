package binlogfs

import (
	"context"
	"errors"
	"fmt"
	"path"

	"github.com/cisternfs/cistern/gateway"
)

// Rotate goes on in a file of the source, from offset on: a new one, or the last.
func (a *Appender) Rotate(ctx context.Context, name string, offset int64) error {
	if a.t != nil && a.t.info.Name == name && offset <= a.t.end {
		return nil // sent again
	}
	if !isLogName(name) {
		return errLogName(name)
	}
	if err := a.leave(ctx); err != nil {
		return err
	}
	last, end := a.Resume()
	if last == name {
		if offset > end {
			return fmt.Errorf("%w: it sends %s from %d on, and the archive ends at %d", ErrGap, name, offset, end)
		}
		return a.reopen(ctx, name)
	}
	if offset > int64(len(magic)) {
		return fmt.Errorf("%w: it sends %s from %d on, and the archive has nothing of that file", ErrGap, name, offset)
	}
	if last != "" && logNumber(name) != logNumber(last)+1 {
		return fmt.Errorf("%w: %s follows %s", ErrGap, name, last)
	}
	return a.create(ctx, name)
}

func errLogName(name string) error {
	return fmt.Errorf("%w: the source goes on in a file called %.80q, which is no binary log's name", ErrCorrupt, name)
}

// leave ends work on the present file.
func (a *Appender) leave(ctx context.Context) error {
	if a.t == nil {
		return nil
	}
	if err := a.Flush(ctx); err != nil {
		return err
	}
	if err := a.drop(ctx); err != nil {
		return err
	}
	err := a.hard.wait(ctx)
	if err == nil && a.published > 0 {
		err = a.save(ctx)
	}
	cerr := a.h.Close()
	a.h, a.t = nil, nil
	if err == nil {
		err = cerr
	}
	return err
}

// create begins a file.
func (a *Appender) create(ctx context.Context, name string) error {
	l := a.l
	give, err := l.takeNames(ctx)
	if err != nil {
		return err
	}
	defer give()
	l.mu.Lock()
	epoch := l.ident.Sources[len(l.ident.Sources)-1].Epoch
	names := append(l.namesLocked(epoch), name)
	l.mu.Unlock()
	a.t = newTracker(epoch, name)
	a.file = path.Join(l.opt.Dir, epochDir(epoch), name)
	err = l.t.create(ctx, a.file, modeFile)
	if errors.Is(err, gateway.ErrExist) {
		// An attempt that failed before the list knew of the file left it empty.
		if size, serr := l.t.size(ctx, a.file); serr == nil && size == 0 {
			err = nil
		}
	}
	if err == nil {
		err = l.saveIndex(ctx, epoch, names)
	}
	if err == nil {
		a.h, err = l.t.handle(ctx, a.file)
	}
	if err != nil {
		a.t = nil
		return err
	}
	a.t.magic()
	a.buf = append(a.buf[:0], magic...)
	a.staged, a.published, a.ready, a.saved = 0, 0, int64(len(magic)), 0
	l.mu.Lock()
	l.files = append(l.files, &FileInfo{Format: catalogueFormat, Epoch: epoch, Name: name})
	l.mu.Unlock()
	return nil
}

// reopen goes on in the last file.
func (a *Appender) reopen(ctx context.Context, name string) error {
	l := a.l
	l.mu.Lock()
	info := l.files[len(l.files)-1]
	l.mu.Unlock()
	a.file = l.path(info)
	h, err := l.t.handle(ctx, a.file)
	if err != nil {
		return fmt.Errorf("%s: %w", a.file, err)
	}
	a.h = h
	if a.t, err = l.rescan(ctx, info, a.file); err != nil {
		return errors.Join(err, h.Close())
	}
	a.buf = a.buf[:0]
	if a.t.end == 0 { // it was made, and nothing was published
		a.t.magic()
		a.buf = append(a.buf, magic...)
	}
	a.staged = a.t.end - int64(len(a.buf))
	a.ready, a.published, a.saved = a.t.end, a.staged, info.Size
	if a.own == nil {
		a.received(name, a.t.end)
	}
	// What is staged beyond is of a group that the source sends anew.
	return a.h.Publish(ctx, a.staged)
}

// save stores the catalogue of what is published.
func (a *Appender) save(ctx context.Context) error {
	info := a.t.catalogue()
	if err := a.l.saveCatalogue(ctx, info); err != nil {
		return err
	}
	a.saved = info.Size
	return nil
}

// drop forgets the open group: its source is gone, or sends it anew.
func (a *Appender) drop(ctx context.Context) error {
	if a.t == nil || a.t.end == a.ready && a.staged <= a.ready {
		return nil
	}
	if err := a.Flush(ctx); err != nil {
		return err
	}
	info := a.t.catalogue()
	t, err := resume(info, a.t.format)
	if err != nil {
		return err
	}
	a.buf, a.skipping = a.buf[:0], false
	a.setPending(nil)
	a.t, a.staged = t, a.ready
	if err := a.h.Publish(ctx, a.ready); err != nil {
		return fmt.Errorf("drop the open group of %s: %w", a.file, err)
	}
	return nil
}
