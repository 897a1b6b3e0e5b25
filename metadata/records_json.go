package metadata

import (
	"fmt"
	"math"
)

// The JSON forms of the records that commits and manifest pages have in common.

type inodeDoc struct {
	ID     num        `json:"i"`
	Mode   uint32     `json:"m"`
	UID    uint32     `json:"u,omitempty"`
	GID    uint32     `json:"g,omitempty"`
	Nlink  uint32     `json:"l,omitempty"`
	Rdev   uint32     `json:"r,omitempty"`
	Size   snum       `json:"s,omitempty"`
	Staged snum       `json:"st,omitempty"`
	Alloc  snum       `json:"al,omitempty"`
	Atime  snum       `json:"at,omitempty"`
	Mtime  snum       `json:"mt,omitempty"`
	Ctime  snum       `json:"ct,omitempty"`
	Btime  snum       `json:"bt,omitempty"`
	Parent num        `json:"p,omitempty"`
	Target text       `json:"t,omitempty"`
	Xattrs []xattrDoc `json:"x,omitempty"`
}

type xattrDoc struct {
	Name  text `json:"n"`
	Value text `json:"v"`
}

func newInodeDoc(i *Inode) inodeDoc {
	d := inodeDoc{
		ID: num(i.ID), Mode: i.Mode, UID: i.UID, GID: i.GID, Nlink: i.Nlink, Rdev: i.Rdev,
		Size: snum(i.Size), Staged: snum(i.Staged), Alloc: snum(i.Alloc),
		Atime: snum(i.Atime), Mtime: snum(i.Mtime), Ctime: snum(i.Ctime), Btime: snum(i.Btime),
		Parent: num(i.Parent), Target: text(i.Target),
	}
	for _, x := range i.Xattrs {
		d.Xattrs = append(d.Xattrs, xattrDoc{Name: text(x.Name), Value: text(x.Value)})
	}
	return d
}

func (d *inodeDoc) inode() Inode {
	i := Inode{
		ID: InodeID(d.ID), Mode: d.Mode, UID: d.UID, GID: d.GID, Nlink: d.Nlink, Rdev: d.Rdev,
		Size: int64(d.Size), Staged: int64(d.Staged), Alloc: int64(d.Alloc),
		Atime: int64(d.Atime), Mtime: int64(d.Mtime), Ctime: int64(d.Ctime), Btime: int64(d.Btime),
		Parent: InodeID(d.Parent),
	}
	if d.Target != "" {
		i.Target = []byte(d.Target)
	}
	for _, x := range d.Xattrs {
		i.Xattrs = append(i.Xattrs, Xattr{Name: string(x.Name), Value: []byte(x.Value)})
	}
	return i
}

type nameDoc struct {
	Parent num   `json:"p"`
	Name   text  `json:"n"`
	Inode  num   `json:"i,omitempty"`
	Type   uint8 `json:"t,omitempty"`
	Cookie num   `json:"c,omitempty"`
	Old    num   `json:"o,omitempty"`
}

func newNameDoc(d Dentry, old uint64) nameDoc {
	return nameDoc{Parent: num(d.Parent), Name: text(d.Name), Inode: num(d.Inode), Type: d.Type, Cookie: num(d.Cookie), Old: num(old)}
}

func (d *nameDoc) dentry() Dentry {
	return Dentry{Parent: InodeID(d.Parent), Name: string(d.Name), Inode: InodeID(d.Inode), Type: d.Type, Cookie: uint64(d.Cookie)}
}

// frameDoc is a Cipher, beside the reference that it belongs to.
type frameDoc struct {
	Enc        text `json:"e,omitempty"`
	BornVolume text `json:"bv,omitempty"`
	BornKey    text `json:"bk,omitempty"`
}

func newFrameDoc(s Cipher) frameDoc {
	return frameDoc{Enc: text(s.Key), BornVolume: text(s.Born.Volume), BornKey: text(s.Born.Key)}
}

func (d *frameDoc) cipher() Cipher {
	return Cipher{Key: interned(string(d.Enc)), Born: Ref{Volume: interned(string(d.BornVolume)), Key: string(d.BornKey)}}
}

type baseDoc struct {
	Key    text   `json:"k"`
	Volume text   `json:"w,omitempty"`
	Len    uint32 `json:"l"`
	Birth  num    `json:"b"`
	Sums   sums   `json:"c,omitempty"`
	Stored sums   `json:"z,omitempty"`
	frameDoc
}

func newBaseDoc(b *Base) *baseDoc {
	if b == nil {
		return nil
	}
	return &baseDoc{Key: text(b.Key), Volume: text(b.Volume), Len: b.Len, Birth: num(b.Birth), Sums: b.Sums, Stored: b.Stored, frameDoc: newFrameDoc(b.Cipher)}
}

func (d *baseDoc) base() (*Base, error) {
	if d == nil {
		return nil, nil
	}
	b := &Base{Ref: Ref{Volume: string(d.Volume), Key: string(d.Key)}, Len: d.Len, Birth: uint64(d.Birth), Sums: d.Sums, Stored: d.Stored, Cipher: d.cipher()}
	return b, checkBase(b)
}

// checkBase refuses a base that no reader could use.
func checkBase(b *Base) error {
	if b.Key == "" || b.Len > maxSlotSize {
		return fmt.Errorf("a base %q of %d bytes", b.Key, b.Len)
	}
	blocks := (int(b.Len) + BlockSize - 1) / BlockSize
	if len(b.Sums) != blocks || b.Stored != nil && len(b.Stored) != blocks || b.Stored == nil && b.Cipher != (Cipher{}) {
		return fmt.Errorf("a base %q of %d blocks with %d frames and %d checksums", b.Key, blocks, len(b.Stored), len(b.Sums))
	}
	for i, n := range b.Stored {
		if n == 0 || n > maxFrame {
			return fmt.Errorf("a base %q whose frame %d has %d bytes", b.Key, i, n)
		}
	}
	return nil
}

// checkPatch refuses a patch that no reader could use.
func checkPatch(p *Patch) error {
	switch {
	case p.Len == 0 || uint64(p.Off)+uint64(p.Len) > maxSlotSize:
		return fmt.Errorf("a patch of %d bytes at %d", p.Len, p.Off)
	case !p.Zero && (p.Seg.Key == "" || p.Len > MaxExtent):
		return fmt.Errorf("a patch of %d bytes in segment %q", p.Len, p.Seg.Key)
	case p.Stored > maxFrame || p.Stored == 0 && p.Cipher != (Cipher{}) || p.Zero && p.Stored != 0:
		return fmt.Errorf("a patch of %d bytes whose frame in segment %q has %d", p.Len, p.Seg.Key, p.Stored)
	}
	return nil
}

type refDoc struct {
	Key    text `json:"k"`
	Volume text `json:"w,omitempty"`
	frameDoc
}

type segmentDoc struct {
	Key      text   `json:"k"`
	Size     snum   `json:"s,omitempty"`
	Live     snum   `json:"l,omitempty"`
	Birth    num    `json:"b,omitempty"`
	Sum      uint32 `json:"c,omitempty"`
	frameDoc        // of the patches that the document has
}

func newSegmentDoc(s Segment) segmentDoc {
	return segmentDoc{Key: text(s.Key), Size: snum(s.Size), Live: snum(s.Live), Birth: num(s.Birth), Sum: s.Sum}
}

func (d *segmentDoc) segment() Segment {
	return Segment{Key: string(d.Key), Size: int64(d.Size), Live: int64(d.Live), Birth: uint64(d.Birth), Sum: d.Sum}
}

type objectDoc struct {
	Key  text   `json:"k"`
	Size snum   `json:"s,omitempty"`
	Sum  uint32 `json:"c,omitempty"`
}

type countDoc struct {
	Key   text   `json:"k"`
	Count uint32 `json:"n"`
}

type deadDoc struct {
	Key   text  `json:"k"`
	Size  snum  `json:"s,omitempty"`
	Birth num   `json:"b,omitempty"`
	Death num   `json:"d,omitempty"`
	Time  snum  `json:"t,omitempty"`
	State uint8 `json:"st,omitempty"`
}

func newDeadDoc(d *Dead) deadDoc {
	return deadDoc{Key: text(d.Key), Size: snum(d.Size), Birth: num(d.Birth), Death: num(d.Death), Time: snum(d.Time), State: uint8(d.State)}
}

func (d *deadDoc) dead() Dead {
	return Dead{Key: string(d.Key), Size: int64(d.Size), Birth: uint64(d.Birth), Death: uint64(d.Death), Time: int64(d.Time), State: DeadState(d.State)}
}

type totalsDoc struct {
	Inodes num  `json:"inodes,omitempty"`
	Used   snum `json:"used,omitempty"`
	Next   num  `json:"next,omitempty"`
}

func newTotalsDoc(t Totals) totalsDoc {
	return totalsDoc{Inodes: num(t.Inodes), Used: snum(t.UsedBytes), Next: num(t.NextInode)}
}

func (d totalsDoc) totals() Totals {
	return Totals{Inodes: uint64(d.Inodes), UsedBytes: int64(d.Used), NextInode: InodeID(d.Next)}
}

// patchDoc is one patch as an array; see the package comment.
type patchDoc []uint32

// patchWriter and patchReader hold where the document's previous patch ended: at
// first the start of its first segment.
type patchWriter struct {
	index   map[Ref]uint32
	extra   []refDoc // segments that patches name and "segs" does not list
	ciphers map[uint32]Cipher
	seg     uint32
	end     uint64
}

func newPatchWriter(segs []Segment) *patchWriter {
	w := &patchWriter{index: make(map[Ref]uint32, len(segs)), ciphers: map[uint32]Cipher{}}
	for _, s := range segs {
		w.index[Ref{Key: s.Key}] = uint32(len(w.index))
	}
	return w
}

func (w *patchWriter) write(p *Patch) patchDoc {
	if p.Zero {
		return patchDoc{p.Off, p.Len}
	}
	seg, ok := w.index[p.Seg]
	if !ok {
		seg = uint32(len(w.index))
		w.index[p.Seg] = seg
		w.extra = append(w.extra, refDoc{Key: text(p.Seg.Key), Volume: text(p.Seg.Volume)})
	}
	if p.Cipher != (Cipher{}) {
		w.ciphers[seg] = p.Cipher
	}
	goesOn := w.seg == seg && w.end <= uint64(p.SegOff)
	gap := uint64(p.SegOff) - w.end
	w.seg, w.end = seg, uint64(p.SegOff)+uint64(p.StoredLen())
	if p.Stored != 0 {
		return patchDoc{p.Off, p.Len, p.Sum, p.SegOff, seg, p.Stored}
	}
	switch {
	case goesOn && gap == 0:
		return patchDoc{p.Off, p.Len, p.Sum}
	case goesOn:
		return patchDoc{p.Off, p.Len, p.Sum, uint32(gap)}
	}
	return patchDoc{p.Off, p.Len, p.Sum, p.SegOff, seg}
}

// setCiphers completes the lists of segments when all patches are written.
func (w *patchWriter) setCiphers(segs []segmentDoc) {
	for i, s := range w.ciphers {
		if int(i) < len(segs) {
			segs[i].frameDoc = newFrameDoc(s)
		} else {
			w.extra[int(i)-len(segs)].frameDoc = newFrameDoc(s)
		}
	}
}

type patchReader struct {
	commit  uint64
	refs    []Ref
	ciphers []Cipher // of the frames in refs
	seg     uint64
	end     uint64
}

func (r *patchReader) read(d patchDoc) (Patch, error) {
	p := Patch{Commit: r.commit}
	switch len(d) {
	case 2:
		p.Off, p.Len, p.Zero = d[0], d[1], true
		return p, checkPatch(&p)
	case 3:
	case 4:
		r.end += uint64(d[3])
	case 5, 6:
		r.seg, r.end = uint64(d[4]), uint64(d[3])
	default:
		return p, fmt.Errorf("a patch has %d numbers", len(d))
	}
	if r.seg >= uint64(len(r.refs)) || r.end > math.MaxUint32 {
		return p, fmt.Errorf("a patch lies at %d in segment %d of %d", r.end, r.seg, len(r.refs))
	}
	p.Off, p.Len, p.Sum, p.SegOff, p.Seg = d[0], d[1], d[2], uint32(r.end), r.refs[r.seg]
	if len(d) == 6 {
		p.Stored, p.Cipher = d[5], r.ciphers[r.seg]
	}
	r.end += uint64(p.StoredLen())
	return p, checkPatch(&p)
}
