package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cisternfs/cistern/gateway"
)

// fillPiece is what one reader fetches at a time; a large file has several.
const fillPiece = 16 << 20

// fillFile is a regular file under way.
type fillFile struct {
	fillNode
	f      *os.File
	left   int  // pieces, under filler.mu
	failed bool // one of them, so that it never looks whole; under filler.mu
}

// fillWork is one piece of a file, or another node whole.
type fillWork struct {
	file     *fillFile
	node     fillNode
	off, end int64
}

// copyFiles copies everything that is no directory, several at a time.
func (f *filler) copyFiles(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	work := make(chan fillWork)
	var group sync.WaitGroup
	for range f.parallel {
		group.Go(func() {
			buf := make([]byte, 1<<20)
			for w := range work {
				if err := f.one(ctx, w, buf); err != nil {
					cancel(err)
				}
			}
		})
	}
	err := f.feed(ctx, work)
	close(work)
	group.Wait()
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	if ctx.Err() != nil {
		return gateway.ErrInterrupted
	}
	return err
}

// feed hands the work out.
func (f *filler) feed(ctx context.Context, work chan<- fillWork) error {
	send := func(w fillWork) error {
		select {
		case work <- w:
			return nil
		case <-ctx.Done():
			return gateway.ErrInterrupted
		}
	}
	for _, n := range f.files {
		if f.believe && f.whole(n) {
			f.finished(n, true)
			continue
		}
		if n.n.Mode&typeMask != typeReg {
			if err := send(fillWork{node: n}); err != nil {
				return err
			}
			continue
		}
		file, pieces, err := f.open(ctx, n)
		if err != nil {
			return err
		}
		for i, p := range pieces {
			if err := send(p); err != nil {
				f.drained(file, len(pieces)-i)
				return err
			}
		}
	}
	return nil
}

// drained closes a file of which pieces are not handed out.
func (f *filler) drained(file *fillFile, pieces int) {
	if last, _ := f.handedIn(file, pieces, false); last {
		_ = file.f.Close() // the copy has failed already
	}
}

// whole says whether an earlier attempt has made a node.
func (f *filler) whole(n fillNode) bool {
	st, err := os.Lstat(n.path)
	if err != nil || n.n.Mode&typeMask != typeReg {
		return false
	}
	return st.Mode().IsRegular() && st.Size() == n.n.Size && st.ModTime().UnixNano() == n.n.Mtime
}

// open makes a file of its full length, all hole, and cuts its data into pieces.
func (f *filler) open(ctx context.Context, n fillNode) (*fillFile, []fillWork, error) {
	if err := os.Remove(n.path); err != nil && !os.IsNotExist(err) {
		return nil, nil, localError(n.path, err)
	}
	out, err := os.OpenFile(n.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, nil, localError(n.path, err)
	}
	file := &fillFile{fillNode: n, f: out}
	pieces, err := f.pieces(ctx, file)
	if err == nil {
		err = out.Truncate(n.n.Size)
	}
	if err != nil {
		return nil, nil, errors.Join(localError(n.path, err), out.Close())
	}
	file.left = len(pieces)
	return file, pieces, nil
}

func (f *filler) pieces(ctx context.Context, file *fillFile) ([]fillWork, error) {
	in, err := f.v.Open(file.n.ID)
	if err != nil {
		return nil, err
	}
	var list []fillWork
	for off := int64(0); off < file.n.Size; {
		data, err := in.Seek(ctx, off, gateway.SeekData)
		if errors.Is(err, gateway.ErrNoData) {
			break
		}
		if err != nil {
			return nil, err
		}
		end, err := in.Seek(ctx, data, gateway.SeekHole)
		if err != nil {
			return nil, err
		}
		for ; data < end; data += fillPiece {
			list = append(list, fillWork{file: file, off: data, end: min(end, data+fillPiece)})
		}
		off = end
	}
	if len(list) == 0 {
		list = []fillWork{{file: file}}
	}
	return list, nil
}

// one does one piece of work.
func (f *filler) one(ctx context.Context, w fillWork, buf []byte) error {
	if w.file == nil {
		return f.special(w.node)
	}
	err := f.copyPiece(ctx, w, buf)
	last, whole := f.handedIn(w.file, 1, err == nil)
	if !last {
		return err
	}
	if cerr := w.file.f.Close(); cerr != nil {
		return errors.Join(err, localError(w.file.path, cerr))
	}
	if !whole {
		return err // of this piece; who has met another one's has told of it
	}
	if err := f.attributes(w.file.fillNode); err != nil {
		return err
	}
	f.finished(w.file.fillNode, false)
	return nil
}

// handedIn counts pieces that are done with. last: there are no more of the file,
// and the caller closes it; whole: all of them were copied.
func (f *filler) handedIn(file *fillFile, pieces int, copied bool) (last, whole bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	file.left -= pieces
	file.failed = file.failed || !copied
	return file.left == 0, !file.failed
}

func (f *filler) copyPiece(ctx context.Context, w fillWork, buf []byte) error {
	for off := w.off; off < w.end; {
		if ctx.Err() != nil {
			return gateway.ErrInterrupted
		}
		p := buf[:min(int64(len(buf)), w.end-off)]
		k, err := f.v.Read(ctx, w.file.n, p, off)
		if err == nil && k == 0 {
			err = fmt.Errorf("%w: it ends at %d", gateway.ErrDamaged, off)
		}
		if err != nil {
			return fmt.Errorf("read %s at %d: %w", text(w.file.path).shown(), off, err)
		}
		if _, err := w.file.f.WriteAt(p[:k], off); err != nil {
			return localError(w.file.path, err)
		}
		off += int64(k)
		f.mu.Lock()
		f.done.DoneBytes += int64(k)
		f.told()
		f.mu.Unlock()
	}
	return nil
}

// told shows how far it is. Caller holds f.mu.
func (f *filler) told() {
	p := f.done
	f.task.moved(stageFiles, func(s *cloneStage) {
		s.Things, s.Bytes, s.Finished, s.Done = p.Things, p.Bytes, p.DoneThings, min(p.DoneBytes, p.Bytes)
	})
}

func (f *filler) finished(n fillNode, found bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.done.DoneThings++
	if found {
		f.done.Found++
		f.done.DoneBytes += n.n.Alloc
	}
	f.told()
}
