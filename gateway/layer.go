package gateway

import (
	"math"
	"slices"
	"sort"
	"time"

	"github.com/cisternfs/cistern/internal/extent"
	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
)

// pieceKind says where the bytes of a piece are.
type pieceKind uint8

const (
	pieceZero  pieceKind = iota // nowhere: zeros
	pieceData                   // in a journal record
	pieceRef                    // in the cache file, under a journaled reference
	pieceShare                  // in an object that another file's slot has, too
	pieceSlot                   // in the committed state (only resolve returns it)
)

// piece is what a layer knows of a range of a file.
type piece struct {
	kind pieceKind
	loc  journal.Loc // of pieceData: the record's data
	off  int64       // of pieceData: where in the data the range starts
	ref  *reference  // of pieceRef
	// of pieceShare: the object, which is the base of the slot that the range
	// lies in
	base *metadata.Base
}

// Slice gives the part of the piece that starts delta bytes later.
func (p piece) Slice(delta int64) piece {
	p.off += delta
	return p
}

// reference is a write whose bytes were put into the cache file; the journal
// has their checksums. Immutable.
type reference struct {
	lsn    journal.LSN
	off    int64 // in the file
	len    int64
	origin int64    // from where on pieces are counted: off, or the begin of the block that it lies in
	sums   []uint32 // CRC32C of each BlockSize piece
}

// piece is the number of the piece that has a byte of the file.
func (r *reference) piece(off int64) int64 { return (off - r.origin) / metadata.BlockSize }

// bounds is where a piece lies in the file.
func (r *reference) bounds(piece int64) (from, to int64) {
	from = r.origin + piece*metadata.BlockSize
	return max(from, r.off), min(from+metadata.BlockSize, r.off+r.len)
}

// layer is a set of changes over an older state. Guarded by Volume.mu; a
// frozen layer does not change.
type layer struct {
	inodes  map[InodeID]*Inode // nil: freed
	dirs    map[InodeID]*dirLayer
	files   map[InodeID]*extent.Map[piece]
	orphans map[InodeID]bool // true: joined the list, false: left it
	first   journal.LSN      // of the records in it; 0 when there are none
	last    journal.LSN
	data    int64 // bytes of data and references
	bulk    int64 // of these, bytes of references
	mem     int64 // estimate of memory used
	usedBy  int64 // change of Totals.UsedBytes
	born    int64 // change of Totals.Inodes

	settings *metadata.Settings
	shares   []string        // keys of objects that pieces refer to
	adopted  map[string]bool // keys that no older layer refers to; nil: none

	// Set when the layer is frozen.
	totals metadata.Totals
	since  time.Time // when its oldest change was made
}

func newLayer() *layer {
	return &layer{
		inodes:  map[InodeID]*Inode{},
		dirs:    map[InodeID]*dirLayer{},
		files:   map[InodeID]*extent.Map[piece]{},
		orphans: map[InodeID]bool{},
	}
}

// Estimated memory of one entry, in bytes.
const (
	memInode = 320
	memName  = 256
	memPiece = 160
)

func (l *layer) empty() bool { return l.first == 0 && l.settings == nil }

func (l *layer) setInode(n *Inode) {
	if _, ok := l.inodes[n.ID]; !ok {
		l.mem += memInode
	}
	l.inodes[n.ID] = n
}

func (l *layer) file(ino InodeID) *extent.Map[piece] {
	m := l.files[ino]
	if m == nil {
		m = &extent.Map[piece]{}
		l.files[ino] = m
	}
	return m
}

func (l *layer) setPiece(ino InodeID, off, end int64, p piece) {
	m := l.file(ino)
	before := m.Len()
	m.Set(off, end, p)
	l.mem += memPiece * int64(m.Len()-before)
	if p.kind != pieceZero && end != math.MaxInt64 {
		l.data += end - off
	}
	if p.kind == pieceRef {
		l.bulk += end - off
	}
}

func (l *layer) setName(d metadata.Dentry) {
	dir := l.dirs[d.Parent]
	if dir == nil {
		dir = &dirLayer{byName: map[string]*metadata.Dentry{}}
		l.dirs[d.Parent] = dir
	}
	l.mem += memName + int64(len(d.Name))
	e := &d
	dir.byName[d.Name] = e
	dir.insert(e)
	dir.compact()
}

func (l *layer) dropName(parent InodeID, name string) {
	dir := l.dirs[parent]
	if dir == nil {
		dir = &dirLayer{byName: map[string]*metadata.Dentry{}}
		l.dirs[parent] = dir
	}
	if _, ok := dir.byName[name]; !ok {
		l.mem += memName + int64(len(name))
	}
	dir.byName[name] = nil
	dir.compact()
}

// dirLayer is what a layer changes in one directory.
type dirLayer struct {
	byName map[string]*metadata.Dentry // nil: removed
	list   []*metadata.Dentry          // set names in the order of their cookies; stale ones are skipped
}

// insert puts e in its place, mostly the end. A rename hands a cookie on: an
// entry with e's cookie is stale.
func (d *dirLayer) insert(e *metadata.Dentry) {
	i := len(d.list)
	if i > 0 && d.list[i-1].Cookie >= e.Cookie {
		i = sort.Search(i, func(i int) bool { return d.list[i].Cookie >= e.Cookie })
		if d.list[i].Cookie == e.Cookie {
			d.list[i] = e
			return
		}
	}
	d.list = slices.Insert(d.list, i, e)
}

// live says whether an entry of list still stands in this layer.
func (d *dirLayer) live(e *metadata.Dentry) bool { return d.byName[e.Name] == e }

// compact drops stale entries of list once they are most of it.
func (d *dirLayer) compact() {
	if len(d.list) < 64 || len(d.list) < 2*len(d.byName) {
		return
	}
	kept := d.list[:0]
	for _, e := range d.list {
		if d.live(e) {
			kept = append(kept, e)
		}
	}
	clear(d.list[len(kept):])
	d.list = kept
}

// after returns the entries of list whose cookie is above the given one.
func (d *dirLayer) after(cookie uint64) []*metadata.Dentry {
	i := sort.Search(len(d.list), func(i int) bool { return d.list[i].Cookie > cookie })
	return d.list[i:]
}
