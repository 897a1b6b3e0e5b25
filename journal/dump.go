package journal

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/cisternfs/cistern/internal/vfs"
)

// DumpKind says what a DumpItem shows.
type DumpKind string

// The kinds of items, in the order in which a file gives them.
const (
	DumpFile   DumpKind = "file"   // a file in use and its header
	DumpGroup  DumpKind = "group"  // a group that is whole
	DumpRecord DumpKind = "record" // one of its records
	DumpDamage DumpKind = "damage" // bytes that should be something, but aren't
	DumpSpare  DumpKind = "spare"  // a file that is not in use
	DumpSynced DumpKind = "synced" // the file that tells what is durable; comes last
)

// DumpItem is one thing in a journal. Which fields count depends on its kind.
type DumpItem struct {
	Kind        DumpKind
	File        string // name within the directory
	Off         int64  // bytes from the start of the file
	Length      int64  // of the file or the group in bytes
	Identity    [16]byte
	Incarnation uint64
	Sequence    uint64
	Epoch       uint64
	First, Last LSN // of the group; First also of the file
	After       LSN // up to here the files before this one count
	Durable     LSN
	Count       int    // records of the group
	Record      Record // valid until the callback returns
	Reason      string // of the damage; of DumpSynced: why it says nothing
}

// Dump shows what the files of a journal hold, file by file in order of their
// names, dead records and damaged files included. It changes nothing and takes
// no lock; of a journal in use it shows what it finds. It ends with the first
// error of fn.
func Dump(fs vfs.FS, dir string, fn func(DumpItem) error) error {
	entries, err := fs.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list journal directory %s: %w", dir, err)
	}
	for _, e := range entries {
		if _, ok := fileNumber(e.Name(), spareFile); ok {
			err = fn(DumpItem{Kind: DumpSpare, File: e.Name()})
		} else if _, ok := fileNumber(e.Name(), inUse); ok {
			err = dumpFile(fs, dir, e.Name(), fn)
		} else if e.Name() == syncedName {
			err = fn(dumpSynced(fs, dir))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func dumpSynced(fs vfs.FS, dir string) DumpItem {
	s, err := readSynced(fs, filepath.Join(dir, syncedName))
	if err != nil {
		return DumpItem{Kind: DumpSynced, File: syncedName, Reason: err.Error()}
	}
	return DumpItem{Kind: DumpSynced, File: syncedName, Length: syncedSize, Identity: s.identity, Durable: s.durable}
}

func dumpFile(fs vfs.FS, dir, name string, fn func(DumpItem) error) error {
	buf, err := readFile(fs, filepath.Join(dir, name))
	if err != nil {
		return err
	}
	d := dumper{name: name, buf: buf, fn: fn}
	h, crc, err := decodeHeader(buf)
	if err != nil {
		if err := d.damage(0, err.Error()); err != nil {
			return err
		}
		d.walk = walker{buf: buf, head: guessHeader(buf), off: headerSize}
		return d.rest()
	}
	item := DumpItem{Kind: DumpFile, File: name, Length: int64(len(buf)), Identity: h.identity, Incarnation: h.incarnation,
		Sequence: h.seq, Epoch: h.epoch, First: h.first, After: h.after, Durable: h.durable}
	if err := fn(item); err != nil {
		return err
	}
	d.walk = walker{buf: buf, head: h, prev: crc, off: headerSize, next: h.first}
	return d.groups()
}

func readFile(fs vfs.FS, path string) (buf []byte, err error) {
	f, err := fs.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("open journal file: %w", err)
	}
	defer f.Close() // only read
	size, err := f.Size()
	if err != nil {
		return nil, fmt.Errorf("size of journal file %s: %w", path, err)
	}
	buf = make([]byte, size)
	n, err := f.ReadAt(buf, 0)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("read journal file %s: %w", path, err)
	}
	return buf[:n], nil
}

// guessHeader stands in for a header that can't be read: the first group that is
// whole says which incarnation counts.
func guessHeader(buf []byte) fileHeader {
	for off := int64(headerSize); off+groupHeaderSize <= int64(len(buf)); off += 8 {
		if h, err := parseGroup(buf[off:]); err == nil {
			return fileHeader{incarnation: h.incarnation, epoch: h.epoch, first: h.first}
		}
	}
	return fileHeader{}
}

type dumper struct {
	name string
	buf  []byte
	walk walker
	fn   func(DumpItem) error
}

func (d *dumper) damage(off int64, reason string) error {
	return d.fn(DumpItem{Kind: DumpDamage, File: d.name, Off: off, Reason: reason})
}

// groups shows the groups that follow one another, and then those behind damage.
func (d *dumper) groups() error {
	for {
		h, b, err := d.walk.group()
		if err != nil {
			if err := d.damage(d.walk.off, err.Error()); err != nil {
				return err
			}
			return d.rest()
		}
		if b == nil {
			return nil
		}
		if err := d.group(d.walk.off, h); err != nil {
			return err
		}
		d.walk.skip(h)
	}
}

// rest shows the whole groups behind damage.
func (d *dumper) rest() error {
	var err error
	findGroups(d.buf, d.walk.off, d.walk.head.incarnation, 0, func(off int64, h groupHeader) {
		if err == nil {
			err = d.group(off, h)
		}
	})
	return err
}

func (d *dumper) group(off int64, h groupHeader) error {
	item := DumpItem{Kind: DumpGroup, File: d.name, Off: off, Length: int64(h.length), Incarnation: h.incarnation,
		Epoch: h.epoch, First: h.first, Last: h.last(), Durable: h.durable, Count: int(h.count)}
	if err := d.fn(item); err != nil {
		return err
	}
	lsn := h.first
	_, err := eachEntry(d.buf[off:off+int64(h.length)], h.count, func(e Entry, dataOff int, crc uint32) error {
		rec := Record{LSN: lsn, Epoch: h.epoch, Op: e.Op, Body: e.Body, Data: e.Data}
		lsn++
		if len(e.Data) > 0 {
			rec.Loc = Loc{File: h.incarnation, Off: off + int64(dataOff), Len: uint32(len(e.Data)), CRC: crc}
		}
		return d.fn(DumpItem{Kind: DumpRecord, File: d.name, Off: off, Epoch: h.epoch, First: rec.LSN, Last: rec.LSN, Record: rec})
	})
	return err
}
