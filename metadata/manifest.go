package metadata

import (
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"

	"github.com/klauspost/compress/zstd"
)

// Bounds of a manifest's pages, in bytes of uncompressed JSON lines. A page ends
// before a key whose hash says so: changes elsewhere leave it as it is, so that
// it is not written again. All of it is part of the format only as a limit.
const (
	pageMax  = 1 << 20
	pageMin  = 64 << 10
	pageMask = 1<<11 - 1 // of the hash of a key: a page has about 2,000 records
)

// Manifest is the whole metadata as of a commit: where its pages are.
type Manifest struct {
	CommitID
	Head  Head
	Pages []Page // in key order
}

// Page is a part of a manifest: zstd of JSON lines, one a record.
type Page struct {
	Born    CommitID // the manifest that it was first written for
	Hash    string   // hex SHA-256 of the uncompressed lines
	Size    int64    // bytes in the bucket
	Raw     int64    // bytes uncompressed
	Sum     uint32   // CRC32C of the bytes in the bucket
	Records int
}

// Key is where the page lies in the bucket.
func (p *Page) Key() string { return PageKey(p.Born, p.Hash) }

// Diff returns the pages that m has and prev has not, and the other way round.
// prev may be nil.
func (m *Manifest) Diff(prev *Manifest) (born, dead []Page) {
	missing := func(a, b *Manifest) (out []Page) {
		if a == nil {
			return nil
		}
		have := make(map[string]bool)
		if b != nil {
			for i := range b.Pages {
				have[b.Pages[i].Key()] = true
			}
		}
		for i := range a.Pages {
			if !have[a.Pages[i].Key()] {
				out = append(out, a.Pages[i])
			}
		}
		return out
	}
	return missing(m, prev), missing(prev, m)
}

// StoredBytes is what the manifest's pages take in the bucket.
func (m *Manifest) StoredBytes() (n int64) {
	for i := range m.Pages {
		n += m.Pages[i].Size
	}
	return n
}

type manifestDoc struct {
	docHead
	Head  headDoc   `json:"head"`
	Pages []pageDoc `json:"pages,omitempty"`
}

type headDoc struct {
	Epoch    num         `json:"epoch"`
	N        num         `json:"n"`
	Hash     string      `json:"hash"`
	LastLSN  num         `json:"last"`
	Time     snum        `json:"time"`
	Manifest *idDoc      `json:"manifest,omitempty"`
	Settings settingsDoc `json:"settings"`
	Totals   totalsDoc   `json:"totals"`
	Horizon  num         `json:"horizon,omitempty"`
}

type pageDoc struct {
	Epoch   num    `json:"e"`
	N       num    `json:"n"`
	Hash    string `json:"h"`
	Size    int64  `json:"s"`
	Raw     int64  `json:"r"`
	Sum     uint32 `json:"c"`
	Records int    `json:"k"`
}

// EncodeManifest returns the manifest's document.
func EncodeManifest(m *Manifest) []byte {
	h := &m.Head
	d := manifestDoc{
		docHead: docHead{Kind: "manifest", V: formatVersion},
		Head: headDoc{
			Epoch: num(h.Epoch), N: num(h.N), Hash: h.Hash, LastLSN: num(h.LastLSN), Time: snum(h.Time),
			Manifest: newIDDoc(h.Manifest), Settings: newSettingsDoc(h.Settings), Totals: newTotalsDoc(h.Totals), Horizon: num(h.Horizon),
		},
		Pages: mapped(m.Pages, func(p Page) pageDoc {
			return pageDoc{Epoch: num(p.Born.Epoch), N: num(p.Born.N), Hash: p.Hash, Size: p.Size, Raw: p.Raw, Sum: p.Sum, Records: p.Records}
		}),
	}
	return sealDoc(d)
}

// DecodeManifest verifies and reads a manifest's document: ErrDamaged, ErrNewerFormat.
func DecodeManifest(body []byte) (*Manifest, error) {
	var d manifestDoc
	if err := openDoc(body, "manifest", &d); err != nil {
		return nil, err
	}
	h := &d.Head
	m := &Manifest{
		CommitID: CommitID{Epoch: uint64(h.Epoch), N: uint64(h.N)},
		Pages: mapped(d.Pages, func(p pageDoc) Page {
			return Page{Born: CommitID{Epoch: uint64(p.Epoch), N: uint64(p.N)}, Hash: p.Hash, Size: p.Size, Raw: p.Raw, Sum: p.Sum, Records: p.Records}
		}),
	}
	m.Head = Head{
		CommitID: m.CommitID, Hash: h.Hash, LastLSN: uint64(h.LastLSN), Time: int64(h.Time), Manifest: h.Manifest.id(),
		Settings: h.Settings.settings(), Totals: h.Totals.totals(), Horizon: uint64(h.Horizon),
	}
	for i := range m.Pages {
		p := &m.Pages[i]
		if len(p.Hash) != 64 || p.Raw <= 0 || p.Raw > pageMax || p.Size <= 0 || p.Size > 2*pageMax || p.Records <= 0 {
			return nil, damaged("manifest "+m.String(), "page %d has hash %.70q, %d bytes of %d, %d records", i, p.Hash, p.Size, p.Raw, p.Records)
		}
	}
	return m, nil
}

// WriteManifest writes the state in snap, which must be that as of commit id, as
// pages and returns the manifest and its document. Pages that prev has are not
// put again; prev may be nil, and must be of the volume's own chain. put is
// called from this goroutine, one page at a time, and keeps nothing of body. The
// document goes to ManifestKey(id) after all pages. Memory: a few pages.
func WriteManifest(snap Snapshot, prev *Manifest, id CommitID, put func(key string, body []byte) error) (*Manifest, []byte, error) {
	head, err := snapshotHead(snap, id)
	if err != nil {
		return nil, nil, fmt.Errorf("write manifest %v: %w", id, err)
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		return nil, nil, fmt.Errorf("write manifest %v: %w", id, err)
	}
	w := &pageWriter{m: &Manifest{CommitID: id, Head: head}, put: put, enc: enc, known: make(map[string]Page)}
	if prev != nil {
		for _, p := range prev.Pages {
			w.known[p.Hash] = p
		}
	}
	err = snap.Scan(nil, nil, w.record)
	if err == nil {
		err = w.flush()
	}
	if err = errors.Join(err, enc.Close()); err != nil {
		return nil, nil, fmt.Errorf("write manifest %v: %w", id, err)
	}
	return w.m, EncodeManifest(w.m), nil
}

// snapshotHead refuses a snapshot of another commit or of half of one.
func snapshotHead(snap Snapshot, id CommitID) (Head, error) {
	value, err := snap.Get(headKey())
	if err != nil {
		return Head{}, fmt.Errorf("the head: %w", err)
	}
	head, err := decodeHead(value)
	if err != nil {
		return Head{}, err
	}
	if head.CommitID != id {
		return Head{}, fmt.Errorf("the snapshot is as of commit %v", head.CommitID)
	}
	switch _, err = snap.Get(applyingKey()); {
	case err == nil:
		return Head{}, fmt.Errorf("the snapshot was taken while the next commit was applied")
	case !errors.Is(err, ErrNotExist):
		return Head{}, err
	}
	return head, nil
}

// pageWriter collects lines until a page is full.
type pageWriter struct {
	m       *Manifest
	put     func(key string, body []byte) error
	enc     *zstd.Encoder
	known   map[string]Page
	raw     []byte
	packed  []byte
	records int
}

func (w *pageWriter) record(key, value []byte) error {
	line, err := encodeLine(key, value)
	if err != nil || line == nil {
		return err
	}
	if len(line) > pageMax-1 {
		return fmt.Errorf("the %s takes %d bytes, a page has at most %d", recordName(key), len(line), pageMax)
	}
	if len(w.raw)+len(line)+1 > pageMax || (len(w.raw) >= pageMin && endsPage(key)) {
		if err := w.flush(); err != nil {
			return err
		}
	}
	w.raw = append(append(w.raw, line...), '\n')
	w.records++
	return nil
}

// endsPage says whether a page of enough bytes ends before this key.
func endsPage(key []byte) bool {
	h := fnv.New64a()
	h.Write(key) // a hash's Write does not fail
	v := h.Sum64()
	return (v^v>>29)&pageMask == 0
}

func (w *pageWriter) flush() error {
	if w.records == 0 {
		return nil
	}
	hash := Hash(w.raw)
	p, ok := w.known[hash]
	if !ok {
		w.packed = w.enc.EncodeAll(w.raw, w.packed[:0])
		p = Page{
			Born: w.m.CommitID, Hash: hash, Size: int64(len(w.packed)), Raw: int64(len(w.raw)),
			Sum: crc32.Checksum(w.packed, castagnoli()), Records: w.records,
		}
		if err := w.put(p.Key(), w.packed); err != nil {
			return fmt.Errorf("page %s: %w", p.Key(), err)
		}
	}
	w.m.Pages = append(w.m.Pages, p)
	w.raw, w.records = w.raw[:0], 0
	return nil
}

// lineDoc is a page's line: exactly one field is set. The rest of the index is
// derived from these, or local.
type lineDoc struct {
	Dead    *deadDoc      `json:"d,omitempty"`
	Segment *segmentDoc   `json:"g,omitempty"`
	Inode   *inodeDoc     `json:"i,omitempty"`
	Name    *nameDoc      `json:"n,omitempty"`
	Orphan  *num          `json:"o,omitempty"`
	Count   *countDoc     `json:"r,omitempty"`
	Base    *slotBaseDoc  `json:"b,omitempty"`
	Patch   *slotPatchDoc `json:"p,omitempty"`
}

type slotBaseDoc struct {
	Inode num    `json:"i"`
	Slot  uint32 `json:"s,omitempty"`
	baseDoc
}

type slotPatchDoc struct {
	Inode  num    `json:"i"`
	Slot   uint32 `json:"s,omitempty"`
	Commit num    `json:"c"`
	Off    uint32 `json:"o,omitempty"`
	Len    uint32 `json:"l"`
	Key    text   `json:"k,omitempty"` // empty: zeros
	Volume text   `json:"w,omitempty"`
	SegOff uint32 `json:"p,omitempty"`
	Sum    uint32 `json:"x,omitempty"`
	Stored uint32 `json:"z,omitempty"`
	frameDoc
}

// encodeLine returns a record's line; nil for one that is not in a manifest.
func encodeLine(key, value []byte) ([]byte, error) {
	if len(key) == 0 {
		return nil, damaged("index", "a record without a key")
	}
	var l lineDoc
	switch key[0] {
	case kindHead, kindLocal, kindDeadKey, kindCookie:
		return nil, nil
	case kindDead:
		x, err := decodeDead(key, value)
		if err != nil {
			return nil, err
		}
		d := newDeadDoc(&x)
		l.Dead = &d
	case kindSegment:
		x, err := decodeSegment(key, value)
		if err != nil {
			return nil, err
		}
		d := newSegmentDoc(x)
		l.Segment = &d
	case kindInode:
		x, err := decodeInode(key, value)
		if err != nil {
			return nil, err
		}
		d := newInodeDoc(x)
		l.Inode = &d
	case kindName:
		x, err := decodeName(key, value)
		if err != nil {
			return nil, err
		}
		d := newNameDoc(x, 0)
		l.Name = &d
	case kindOrphan:
		if _, err := decodeUint(key, value); err != nil {
			return nil, err
		}
		id := num(keyUint(key, 1))
		l.Orphan = &id
	case kindCount:
		n, err := decodeUint(key, value)
		if err != nil {
			return nil, err
		}
		l.Count = &countDoc{Key: text(key[1:]), Count: uint32(n)}
	case kindSlot:
		if err := l.slot(key, value); err != nil {
			return nil, err
		}
	default:
		return nil, damaged("index", "an unknown record %q", key)
	}
	return marshal(l), nil
}

func (l *lineDoc) slot(key, value []byte) error {
	if len(key) < 14 {
		return damaged(recordName(key), "a key of %d bytes", len(key))
	}
	ino, n := num(keyUint(key, 1)), uint32(keyUint(key, 5))
	if key[13] == slotBase {
		b, err := decodeBase(key, value)
		if err != nil {
			return err
		}
		l.Base = &slotBaseDoc{Inode: ino, Slot: n, baseDoc: *newBaseDoc(b)}
		return nil
	}
	p, err := decodePatch(key, value)
	if err != nil {
		return err
	}
	l.Patch = &slotPatchDoc{
		Inode: ino, Slot: n, Commit: num(p.Commit), Off: p.Off, Len: p.Len,
		Key: text(p.Seg.Key), Volume: text(p.Seg.Volume), SegOff: p.SegOff, Sum: p.Sum,
		Stored: p.Stored, frameDoc: newFrameDoc(p.Cipher),
	}
	return nil
}

// decode calls set for the records that a line stands for.
func (r *lineReader) decode(line []byte, set func(key, value []byte)) error {
	l, err := r.read(line)
	if err != nil {
		return err
	}
	switch {
	case l.Dead != nil && l.Dead.Key != "":
		d := l.Dead.dead()
		key := keyString(kindDeadKey, d.Key)
		set(deadKey(d.Death, d.Key), encodeDead(&d))
		set(key, encodeUint(key, d.Death))
	case l.Segment != nil && l.Segment.Key != "":
		s := l.Segment.segment()
		set(keyString(kindSegment, s.Key), encodeSegment(&s))
	case l.Inode != nil:
		i := l.Inode.inode()
		if err := checkInode(&i); err != nil {
			return err
		}
		set(inodeKey(i.ID), encodeInode(&i))
	case l.Name != nil:
		d := l.Name.dentry()
		if !validName(d.Name) || d.Parent == 0 || d.Inode == 0 || d.Cookie == 0 {
			return fmt.Errorf("name %q in directory %d for inode %d with cookie %d", d.Name, d.Parent, d.Inode, d.Cookie)
		}
		set(nameKVKey(d.Parent, d.Name), encodeName(&d))
		set(cookieKey(d.Parent, d.Cookie), encodeCookie(&d))
	case l.Orphan != nil && *l.Orphan != 0:
		key := orphanKey(InodeID(*l.Orphan))
		set(key, encodeUint(key, 1))
	case l.Count != nil && l.Count.Key != "":
		key := keyString(kindCount, string(l.Count.Key))
		set(key, encodeUint(key, uint64(l.Count.Count)))
	case l.Base != nil && l.Base.Inode != 0:
		b, err := l.Base.base()
		if err != nil {
			return err
		}
		key := baseKey(slotKey{InodeID(l.Base.Inode), l.Base.Slot})
		set(key, encodeBase(key, b))
	case l.Patch != nil && l.Patch.Inode != 0:
		p := l.Patch.patch()
		if err := checkPatch(&p); err != nil {
			return err
		}
		key := patchKey(slotKey{InodeID(l.Patch.Inode), l.Patch.Slot}, p.Key())
		set(key, encodePatch(key, &p))
	default:
		return fmt.Errorf("a record without a key or of a kind that this release does not know")
	}
	return nil
}

func (d *slotPatchDoc) patch() Patch {
	return Patch{
		Commit: uint64(d.Commit), Off: d.Off, Len: d.Len, Zero: d.Key == "",
		Seg: Ref{Volume: string(d.Volume), Key: string(d.Key)}, SegOff: d.SegOff, Sum: d.Sum,
		Stored: d.Stored, Cipher: d.cipher(),
	}
}
