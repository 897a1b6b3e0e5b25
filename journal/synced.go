package journal

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/cisternfs/cistern/internal/vfs"
)

// The constants below are the wire format of the file synced.
const (
	syncedName  = "synced"
	syncedMagic = "CISTSYN1"
	syncedSize  = 64
)

// synced is what the file of that name holds: up to where the records of a journal
// are durable.
type synced struct {
	identity [16]byte
	durable  LSN
}

// encode puts the file's bytes into b, which is syncedSize long.
func (s *synced) encode(b []byte) {
	clear(b)
	copy(b, syncedMagic)
	le.PutUint32(b[12:], formatVersion)
	copy(b[16:], s.identity[:])
	le.PutUint64(b[32:], uint64(s.durable))
	le.PutUint32(b[8:], checksum(b[12:]))
}

func decodeSynced(b []byte) (s synced, err error) {
	if len(b) != syncedSize {
		return s, fmt.Errorf("has %d bytes instead of %d", len(b), syncedSize)
	}
	if string(b[:8]) != syncedMagic {
		return s, errors.New("doesn't say what it is")
	}
	if crc, got := le.Uint32(b[8:]), checksum(b[12:]); got != crc {
		return s, fmt.Errorf("has checksum %08x, its bytes give %08x", crc, got)
	}
	if v := le.Uint32(b[12:]); v != formatVersion {
		return s, fmt.Errorf("has format version %d, this program reads %d", v, formatVersion)
	}
	copy(s.identity[:], b[16:])
	s.durable = LSN(le.Uint64(b[32:]))
	return s, nil
}

// readSynced reads the file of a journal directory. A missing one is fs.ErrNotExist.
func readSynced(fsys vfs.FS, path string) (s synced, err error) {
	f, err := fsys.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return s, fmt.Errorf("can't be opened: %w", err)
	}
	defer f.Close() // only read
	b := make([]byte, syncedSize+1)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return s, fmt.Errorf("can't be read: %w", err)
	}
	return decodeSynced(b[:n])
}

// knownSynced returns the LSN up to which the file says that records are durable; 0
// when it says nothing, as after a power loss that hit it, or in the state directory
// of a version without it.
func (j *Journal) knownSynced() LSN {
	s, err := readSynced(j.fs, j.path(syncedName))
	switch {
	case err == nil && s.identity == j.o.Identity:
		return s.durable
	case err == nil || errors.Is(err, fs.ErrNotExist):
		return 0 // there is none, or it is an earlier journal's
	}
	j.o.Logger.Warn("which journal records were durable is not known: damage of the last ones would look like a torn tail",
		"error", fmt.Errorf("%s %w", j.path(syncedName), err))
	return 0
}

// syncedWriter writes the file. Its calls don't overlap: they belong to Start and
// then to whoever leads the group commit.
type syncedWriter struct {
	f      vfs.File // nil: the file can't be had
	s      synced
	buf    [syncedSize]byte
	failed bool // a write did, which is told once
}

// beginSynced opens the file, or makes it, when Start has made everything up to lsn
// durable. The journal goes on without it.
func (j *Journal) beginSynced(lsn LSN) {
	w := &j.synced
	w.s = synced{identity: j.o.Identity, durable: lsn}
	f, err := j.openSynced()
	if err != nil {
		j.o.Logger.Warn("can't make the file that tells which journal records are durable", "file", j.path(syncedName), "error", err)
		return
	}
	w.f = f
}

// openSynced returns the file with the writer's value in it. A new one is synced, so
// that later writes find its block allocated.
func (j *Journal) openSynced() (f vfs.File, err error) {
	if f, err = j.fs.OpenFile(j.path(syncedName), os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return nil, err
	}
	w := &j.synced
	w.s.encode(w.buf[:])
	size, err := f.Size()
	if err == nil && size > syncedSize {
		err = f.Truncate(syncedSize)
	}
	if err == nil {
		_, err = f.WriteAt(w.buf[:], 0)
	}
	if err == nil && size != syncedSize {
		if err = f.Sync(); err == nil {
			err = j.fs.SyncDir(j.dir)
		}
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// noteSynced writes that everything up to lsn is durable, which it is. It comes before
// those who wait for that return, so that the file knows of all that was promised; it is
// not synced itself, since it is for the death of this process. A failure leaves the file
// with what it said, or with what nobody believes.
func (j *Journal) noteSynced(lsn LSN) {
	w := &j.synced
	if w.f == nil || lsn <= w.s.durable {
		return
	}
	w.s.durable = lsn
	w.s.encode(w.buf[:])
	if _, err := w.f.WriteAt(w.buf[:], 0); err != nil && !w.failed {
		w.failed = true
		j.o.Logger.Warn("can't write which journal records are durable", "file", j.path(syncedName), "error", err)
	}
}
