package storagemanager

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// JournalSuffix ends the names of journals.
const JournalSuffix = ".journal"

const (
	headerSize = 52
	entryHead  = 16
)

// Journal is what a journal holds.
type Journal struct {
	Entries []Entry // in the order in which they were written: the later wins
	// Torn is how many bytes at the end are no whole entry; Why says why.
	Torn int64
	Why  string
}

// Entry is one change of an object.
type Entry struct {
	Offset int64 // in the object, bytes
	Length int64
	At     int64 // where the bytes begin in the journal
}

// ReadJournal reads a journal's headers. An empty file is an empty journal. ErrDamaged
// when the header is none; what does not parse behind it is the torn tail.
func ReadJournal(r io.ReaderAt, size int64) (*Journal, error) {
	j := &Journal{}
	if size == 0 {
		return j, nil
	}
	if size < headerSize {
		j.Torn, j.Why = size, "the header is cut"
		return j, nil
	}
	head := make([]byte, headerSize)
	if _, err := r.ReadAt(head, 0); err != nil {
		return nil, fmt.Errorf("read the header: %w", err)
	}
	if err := checkHeader(head); err != nil {
		return nil, err
	}
	for at := int64(headerSize); at < size; {
		e, why, err := readEntry(r, at, size)
		if err != nil {
			return nil, err
		}
		if why != "" {
			j.Torn, j.Why = size-at, why
			break
		}
		if e.Length > 0 {
			j.Entries = append(j.Entries, e)
		}
		at = e.At + e.Length
	}
	return j, nil
}

// readEntry reads the head of the entry at at; why says that there is no whole one.
func readEntry(r io.ReaderAt, at, size int64) (e Entry, why string, err error) {
	if size-at < entryHead {
		return e, fmt.Sprintf("the entry at byte %d is cut", at), nil
	}
	var head [entryHead]byte
	if _, err := r.ReadAt(head[:], at); err != nil {
		return e, "", fmt.Errorf("read the entry at byte %d: %w", at, err)
	}
	off, n := binary.LittleEndian.Uint64(head[:]), binary.LittleEndian.Uint64(head[8:])
	switch {
	case off > MaxObject || n > MaxObject:
		return e, fmt.Sprintf("the entry at byte %d says %d bytes at %d", at, n, off), nil
	case int64(n) > size-at-entryHead:
		return e, fmt.Sprintf("the entry at byte %d is cut", at), nil
	}
	return Entry{int64(off), int64(n), at + entryHead}, "", nil
}

func checkHeader(head []byte) error {
	text, _, ok := bytes.Cut(head, []byte{0})
	var doc struct {
		Version string `json:"version"`
		Max     string `json:"max_offset"`
	}
	if !ok || json.Unmarshal(text, &doc) != nil {
		return fmt.Errorf("%w: the journal does not begin with a header", ErrDamaged)
	}
	if v, err := strconv.Atoi(doc.Version); err != nil || v != 1 {
		return fmt.Errorf("%w: a journal of version %q; only version 1 is known", ErrDamaged, doc.Version)
	}
	if _, err := strconv.ParseUint(doc.Max, 10, 62); err != nil {
		return fmt.Errorf("%w: the journal's header has the offset %q", ErrDamaged, doc.Max)
	}
	return nil
}

// Change is an entry with its bytes, for AppendJournal.
type Change struct {
	Offset int64
	Bytes  []byte
}

// EncodeJournal writes a journal as Storage Manager does.
func EncodeJournal(changes []Change) []byte {
	end := int64(0)
	for _, c := range changes {
		end = max(end, c.Offset+int64(len(c.Bytes))-1)
	}
	b := fmt.Appendf(nil, "{ \"version\" : \"%03d\", \"max_offset\" : \"%011d\" }\x00", 1, end)
	for _, c := range changes {
		b = binary.LittleEndian.AppendUint64(b, uint64(c.Offset))
		b = binary.LittleEndian.AppendUint64(b, uint64(len(c.Bytes)))
		b = append(b, c.Bytes...)
	}
	return b
}

// Overlay lays a journal's entries over an object's bytes: what the object holds of
// a piece of a file. data is cut or filled with zeros to length bytes.
func (j *Journal) Overlay(r io.ReaderAt, data []byte, length int64) ([]byte, error) {
	out := make([]byte, length)
	copy(out, data)
	for _, e := range j.Entries {
		if e.Offset >= length {
			continue
		}
		n := min(e.Length, length-e.Offset)
		if _, err := r.ReadAt(out[e.Offset:e.Offset+n], e.At); err != nil && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("read the entry at byte %d: %w", e.At, err)
		}
	}
	return out, nil
}
