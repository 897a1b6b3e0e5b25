package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// fillSize is how much a new file's zeros are written at a time.
const fillSize = 256 << 10

// createSpare makes a file full of zeros, durable under a spare name. Without
// excess it fails when the journal has all the files it may have.
func (j *Journal) createSpare(excess bool) (*file, error) {
	if !excess && j.o.KeepFree > 0 {
		if err := j.roomOnDisk(); err != nil {
			return nil, err
		}
	}
	j.mu.Lock()
	if j.total >= j.maxFiles && !excess {
		j.mu.Unlock()
		return nil, fmt.Errorf("%w: the journal has its %d files of %d bytes", ErrNoSpace, j.total, j.o.FileSize)
	}
	j.total++
	j.spareName++
	f := &file{name: fileName(j.spareName, spareFile), size: j.o.FileSize}
	j.mu.Unlock()
	err := j.fill(f)
	if err == nil {
		return f, nil
	}
	return nil, errors.Join(fmt.Errorf("make journal file %s: %w", j.path(f.name), diskError(err)), j.discard(f))
}

// roomOnDisk returns ErrNoSpace when another file would take what others need.
func (j *Journal) roomOnDisk() error {
	free, err := j.fs.Free(j.dir)
	if err != nil {
		return fmt.Errorf("look at the disk of journal %s: %w", j.dir, err)
	}
	if free < j.o.FileSize+j.o.KeepFree {
		return fmt.Errorf("%w: the disk of journal %s has %d bytes free; a file takes %d, and %d stay free", ErrNoSpace, j.dir, free, j.o.FileSize, j.o.KeepFree)
	}
	return nil
}

// fill writes zeros: an fdatasync of unwritten blocks would change metadata.
func (j *Journal) fill(f *file) error {
	var err error
	if f.f, err = j.fs.OpenFile(j.path(f.name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return err
	}
	zeros := make([]byte, min(fillSize, f.size))
	for off := int64(0); off < f.size; off += int64(len(zeros)) {
		if _, err := f.f.WriteAt(zeros[:min(int64(len(zeros)), f.size-off)], off); err != nil {
			return err
		}
	}
	if err := f.f.Sync(); err != nil {
		return err
	}
	return j.fs.SyncDir(j.dir)
}

// discard removes a file for good.
func (j *Journal) discard(f *file) error {
	var err error
	if f.f != nil {
		err = f.f.Close()
	}
	if !f.replaced {
		if e := j.fs.Remove(j.path(f.name)); e != nil && !errors.Is(e, fs.ErrNotExist) {
			err = errors.Join(err, e)
		}
	}
	j.mu.Lock()
	j.total--
	j.mu.Unlock()
	if err != nil {
		return fmt.Errorf("remove journal file %s: %w", j.path(f.name), err)
	}
	return nil
}

// takeSpare returns a spare file, from stock or new.
func (j *Journal) takeSpare() (*file, error) {
	j.mu.Lock()
	if n := len(j.spares); n > 0 {
		f := j.spares[n-1]
		j.spares = j.spares[:n-1]
		j.mu.Unlock()
		return f, nil
	}
	j.mu.Unlock()
	return j.createSpare(false)
}

// newFile puts a spare file that take returns to use: it is durable under its
// name when it returns. A file that fails is given up and another one tried, once. After a
// failure named tells that a file may come back under the name after a power
// loss; what is appended to an older file would then be dead. The append lock is
// held.
func (j *Journal) newFile(head fileHeader, take func() (*file, error)) (f *file, named bool, err error) {
	var failures error
	for range 2 {
		f, err := take()
		if err != nil {
			return nil, named, errors.Join(err, failures)
		}
		if err = j.writeHeader(f, head); err == nil {
			err = f.f.Sync()
		}
		if err == nil {
			named = true
			err = j.giveName(f)
		}
		if err == nil {
			if err = j.fs.SyncDir(j.dir); err == nil {
				return f, false, nil
			}
		}
		failures = errors.Join(failures, fmt.Errorf("begin journal file %s: %w", j.path(f.name), diskError(err)), j.discard(f))
		j.note("can't begin a journal file", failures)
	}
	return nil, named, failures
}

// writeHeader gives a spare file its header; it fills in what isn't the caller's.
func (j *Journal) writeHeader(f *file, head fileHeader) error {
	incarnation, err := j.incarnation()
	if err != nil {
		return err
	}
	j.seq++
	head.identity, head.incarnation, head.seq = j.o.Identity, incarnation, j.seq
	head.size = f.size
	b, crc := head.encode()
	if _, err := f.f.WriteAt(b, 0); err != nil {
		return err
	}
	f.head, f.crc, f.end, f.last = head, crc, headerSize, 0
	return nil
}

// giveName renames a spare file to the name of a file in use.
func (j *Journal) giveName(f *file) error {
	name := fileName(uint64(f.head.first), inUse)
	if err := j.fs.Rename(j.path(f.name), j.path(name)); err != nil {
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	f.name = name
	for _, other := range j.files {
		if other.name == name && other != f {
			other.replaced = true
		}
	}
	return nil
}

// Free gives back the files whose records are all at or below upTo and durable,
// but for the current one. Readers under way get ErrFreed or the right bytes.
func (j *Journal) Free(upTo LSN) error {
	upTo = min(upTo, j.Durable())
	j.mu.Lock()
	if j.state != stateStarted {
		err := j.usable()
		j.mu.Unlock()
		return err
	}
	n := 0
	for n < len(j.files)-1 && j.files[n].last <= upTo {
		n++
	}
	var idle []*file
	for _, f := range j.files[:n] {
		if j.forget(f) {
			idle = append(idle, f)
		}
	}
	j.files = append([]*file(nil), j.files[n:]...)
	j.mu.Unlock()
	return j.recycle(idle)
}

// forget marks a file as freed; true when no reader is in it. mu is held.
func (j *Journal) forget(f *file) bool {
	f.freed = true
	for from, to := range j.moved {
		if to.File == f.head.incarnation {
			delete(j.moved, from)
		}
	}
	for lsn, loc := range j.expanded {
		if loc.File == f.head.incarnation {
			delete(j.expanded, lsn)
		}
	}
	return f.refs == 0
}

// recycle turns freed files without readers into spare ones, and removes those
// that failed, have another size, or are too many.
func (j *Journal) recycle(freed []*file) error {
	var ready []*file
	var err error
	for _, f := range freed {
		j.mu.Lock()
		closed := j.state == stateClosed
		drop := f.failed || f.replaced || f.size != j.o.FileSize || j.total > j.maxFiles
		j.spareName++
		name := fileName(j.spareName, spareFile)
		j.mu.Unlock()
		switch {
		case closed:
			err = errors.Join(err, f.f.Close())
			continue
		case drop:
			err = errors.Join(err, j.discard(f))
			continue
		}
		if e := j.fs.Rename(j.path(f.name), j.path(name)); e != nil {
			err = errors.Join(err, fmt.Errorf("recycle journal file %s: %w", j.path(f.name), e), j.discard(f))
			continue
		}
		ready = append(ready, &file{f: f.f, name: name, size: f.size})
	}
	if len(ready) > 0 {
		// Before a header is written the old name must be gone for good.
		if e := j.fs.SyncDir(j.dir); e != nil {
			err = errors.Join(err, fmt.Errorf("sync journal directory %s: %w", j.dir, e))
			for _, f := range ready {
				err = errors.Join(err, j.discard(f))
			}
			ready = nil
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, f := range ready {
		j.addSpare(f)
	}
	j.admit(nil)
	return err
}
