package journal

import (
	"fmt"
	"io"
)

// ReadData fills p with Data[off:off+len(p)] of the entry that loc describes. It
// reads and verifies all of Data. Errors: ErrFreed, also when the file was freed
// during the call; ErrDamaged, naming file and offset; ErrClosed.
func (j *Journal) ReadData(loc Loc, p []byte, off int64) error {
	if off < 0 || off+int64(len(p)) > int64(loc.Len) {
		return fmt.Errorf("read %d bytes at %d of journaled data of %d bytes: out of range", len(p), off, loc.Len)
	}
	if len(p) == 0 {
		return nil
	}
	for {
		f, now, err := j.acquire(loc)
		if err != nil {
			return err
		}
		err = j.readVerified(f, now, p, off)
		j.release(f)
		if err == nil {
			return nil
		}
		// What an fdatasync failed to write may read back as anything: the
		// record is in memory then, or was moved meanwhile.
		again, found := j.readPending(loc, now, p, off)
		if found {
			return nil
		}
		if !again {
			return err
		}
	}
}

// acquire returns the file that has the bytes, held against being reused, and
// where they are in it.
func (j *Journal) acquire(loc Loc) (*file, Loc, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.state == stateClosed {
		return nil, loc, ErrClosed
	}
	loc = j.follow(loc)
	for _, f := range j.files {
		if f.head.incarnation != loc.File {
			continue
		}
		if loc.Off < headerSize || loc.Off+int64(loc.Len) > f.size {
			return nil, loc, fmt.Errorf("journaled data at %d to %d of %s: out of the file", loc.Off, loc.Off+int64(loc.Len), j.path(f.name))
		}
		f.refs++
		return f, loc, nil
	}
	return nil, loc, ErrFreed
}

// release lets go of a file; the last reader gives a freed one away.
func (j *Journal) release(f *file) {
	j.mu.Lock()
	f.refs--
	last := f.freed && f.refs == 0
	j.mu.Unlock()
	if !last {
		return
	}
	if err := j.recycle([]*file{f}); err != nil {
		j.note("can't recycle a journal file", err)
	}
}

func (j *Journal) readVerified(f *file, loc Loc, p []byte, off int64) error {
	all := p
	if len(p) != int(loc.Len) {
		g := j.pools.get(int64(loc.Len))
		defer j.pools.put(g)
		all = g.buf
	}
	n, err := f.f.ReadAt(all, loc.Off)
	if n < len(all) {
		if err == nil || err == io.EOF {
			return &DamageError{File: j.path(f.name), Off: loc.Off, Reason: fmt.Sprintf("file ends after %d of %d bytes of data", n, len(all))}
		}
		return fmt.Errorf("read %d bytes at %d of journal file %s: %w", len(all), loc.Off, j.path(f.name), err)
	}
	if got := checksum(all); got != loc.CRC {
		return &DamageError{File: j.path(f.name), Off: loc.Off, Reason: fmt.Sprintf("%d bytes of data have checksum %08x, expected %08x", len(all), got, loc.CRC)}
	}
	copy(p, all[off:])
	return nil
}

// readPending serves a read from a group that is not known durable yet. Again
// tells that the bytes were moved since they were looked for.
func (j *Journal) readPending(loc, tried Loc, p []byte, off int64) (again, found bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	now := j.follow(loc)
	if now != tried {
		return true, false
	}
	for _, g := range j.pending {
		if g.file.head.incarnation != now.File {
			continue
		}
		if in := now.Off - g.off; in >= groupHeaderSize && in+int64(now.Len) <= int64(len(g.buf)) {
			copy(p, g.buf[in+off:])
			return false, true
		}
	}
	return false, false
}

// Expanded returns where the Data lies that a rewrite gave to a record without
// any, until its file is freed.
func (j *Journal) Expanded(lsn LSN) (Loc, bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	loc, ok := j.expanded[lsn]
	if ok {
		loc = j.follow(loc)
	}
	return loc, ok
}
