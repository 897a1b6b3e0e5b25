package metadata

import (
	"encoding/binary"
)

// The values of the index, one pair of functions a kind.

func encodeInode(i *Inode) []byte {
	e := &encoder{b: make([]byte, 0, 96)}
	e.uint(uint64(i.Mode))
	e.uint(uint64(i.UID))
	e.uint(uint64(i.GID))
	e.uint(uint64(i.Nlink))
	e.uint(uint64(i.Rdev))
	for _, v := range []int64{i.Size, i.Staged, i.Alloc, i.Atime, i.Mtime, i.Ctime, i.Btime} {
		e.int(v)
	}
	e.uint(uint64(i.Parent))
	e.bytes(i.Target)
	e.uint(uint64(len(i.Xattrs)))
	for _, x := range i.Xattrs {
		e.string(x.Name)
		e.bytes(x.Value)
	}
	return e.value(inodeKey(i.ID))
}

func decodeInode(key, value []byte) (*Inode, error) {
	d, err := newDecoder(key, value)
	if err != nil {
		return nil, err
	}
	i := &Inode{
		ID:   InodeID(keyUint(key, 1)),
		Mode: d.uint32(), UID: d.uint32(), GID: d.uint32(), Nlink: d.uint32(), Rdev: d.uint32(),
	}
	for _, v := range []*int64{&i.Size, &i.Staged, &i.Alloc, &i.Atime, &i.Mtime, &i.Ctime, &i.Btime} {
		*v = d.int()
	}
	i.Parent = InodeID(d.uint())
	if t := d.view(); len(t) > 0 {
		i.Target = append([]byte(nil), t...)
	}
	for n := d.uint(); n > 0 && !d.bad; n-- {
		i.Xattrs = append(i.Xattrs, Xattr{Name: d.string(), Value: append([]byte{}, d.view()...)})
	}
	return i, d.end(key)
}

func encodeName(n *Dentry) []byte {
	e := &encoder{b: make([]byte, 0, 32)}
	e.uint(uint64(n.Inode))
	e.uint(uint64(n.Type))
	e.uint(n.Cookie)
	return e.value(nameKVKey(n.Parent, n.Name))
}

func decodeName(key, value []byte) (Dentry, error) {
	d, err := newDecoder(key, value)
	if err != nil {
		return Dentry{}, err
	}
	if len(key) < 10 {
		d.bad = true
		return Dentry{}, d.end(key)
	}
	n := Dentry{Parent: InodeID(keyUint(key, 1)), Name: string(key[9:])}
	n.Inode, n.Type, n.Cookie = InodeID(d.uint()), uint8(d.uint32()), d.uint()
	return n, d.end(key)
}

func encodeCookie(n *Dentry) []byte {
	e := &encoder{b: make([]byte, 0, 32+len(n.Name))}
	e.uint(uint64(n.Inode))
	e.uint(uint64(n.Type))
	e.string(n.Name)
	return e.value(cookieKey(n.Parent, n.Cookie))
}

func decodeCookie(key, value []byte) (Dentry, error) {
	d, err := newDecoder(key, value)
	if err != nil {
		return Dentry{}, err
	}
	n := Dentry{Parent: InodeID(keyUint(key, 1)), Cookie: keyUint(key, 9)}
	n.Inode, n.Type, n.Name = InodeID(d.uint()), uint8(d.uint32()), d.string()
	return n, d.end(key)
}

func encodeBase(key []byte, b *Base) []byte {
	e := &encoder{b: make([]byte, 0, 128+4*len(b.Sums))}
	e.string(b.Volume)
	e.string(b.Key)
	e.uint(uint64(b.Len))
	e.uint(b.Birth)
	e.uint(uint64(len(b.Sums)))
	for _, s := range b.Sums {
		e.sum(s)
	}
	if b.Stored != nil {
		e.uint(uint64(len(b.Stored)))
		for _, n := range b.Stored {
			e.uint(uint64(n))
		}
		e.cipher(b.Cipher)
	}
	return e.value(key)
}

func (e *encoder) cipher(s Cipher) {
	e.string(s.Key)
	e.string(s.Born.Volume)
	e.string(s.Born.Key)
}

func (d *decoder) cipher() Cipher {
	return Cipher{Key: d.interned(), Born: Ref{Volume: d.interned(), Key: d.interned()}}
}

func decodeBase(key, value []byte) (*Base, error) {
	d, err := newDecoder(key, value)
	if err != nil {
		return nil, err
	}
	b := &Base{Ref: Ref{Volume: d.interned(), Key: d.string()}, Len: d.uint32(), Birth: d.uint()}
	n := d.uint()
	if n > uint64(len(d.b)/4) {
		d.bad = true
		return nil, d.end(key)
	}
	if n > 0 {
		b.Sums = make([]uint32, n)
		for i := range b.Sums {
			b.Sums[i] = d.sum()
		}
	}
	if len(d.b) > 0 { // the object has frames
		if n = d.uint(); n > uint64(len(d.b)) {
			d.bad = true
			return nil, d.end(key)
		}
		b.Stored = make([]uint32, n)
		for i := range b.Stored {
			b.Stored[i] = d.uint32()
		}
		b.Cipher = d.cipher()
	}
	return b, d.end(key)
}

func encodePatch(key []byte, p *Patch) []byte {
	e := &encoder{b: make([]byte, 0, 128)}
	if p.Zero {
		e.uint(flagZero)
		e.uint(uint64(p.Len))
		return e.value(key)
	}
	flags := uint64(0)
	if p.Seg.Volume != "" {
		flags |= flagVolume
	}
	if p.Stored != 0 {
		flags |= flagFrame
	}
	e.uint(flags)
	e.uint(uint64(p.Len))
	e.uint(uint64(p.SegOff))
	e.sum(p.Sum)
	e.string(p.Seg.Key)
	if flags&flagVolume != 0 {
		e.string(p.Seg.Volume)
	}
	if flags&flagFrame != 0 {
		e.uint(uint64(p.Stored))
		e.cipher(p.Cipher)
	}
	return e.value(key)
}

func decodePatch(key, value []byte) (Patch, error) {
	d, err := newDecoder(key, value)
	if err != nil {
		return Patch{}, err
	}
	if len(key) != 26 {
		d.bad = true
		return Patch{}, d.end(key)
	}
	p := Patch{Commit: keyUint(key, 14), Off: binary.BigEndian.Uint32(key[22:])}
	flags := d.uint()
	p.Len = d.uint32()
	if flags&flagZero != 0 {
		p.Zero = true
		return p, d.end(key)
	}
	p.SegOff, p.Sum, p.Seg.Key = d.uint32(), d.sum(), d.interned()
	if flags&flagVolume != 0 {
		p.Seg.Volume = d.interned()
	}
	if flags&flagFrame != 0 {
		p.Stored, p.Cipher = d.uint32(), d.cipher()
	}
	return p, d.end(key)
}

func encodeSegment(s *Segment) []byte {
	e := &encoder{}
	e.int(s.Size)
	e.int(s.Live)
	e.uint(s.Birth)
	e.sum(s.Sum)
	return e.value(keyString(kindSegment, s.Key))
}

func decodeSegment(key, value []byte) (Segment, error) {
	d, err := newDecoder(key, value)
	if err != nil {
		return Segment{}, err
	}
	s := Segment{Key: string(key[1:]), Size: d.int(), Live: d.int(), Birth: d.uint(), Sum: d.sum()}
	return s, d.end(key)
}

func encodeDead(x *Dead) []byte {
	e := &encoder{}
	e.int(x.Size)
	e.uint(x.Birth)
	e.int(x.Time)
	e.uint(uint64(x.State))
	return e.value(deadKey(x.Death, x.Key))
}

func decodeDead(key, value []byte) (Dead, error) {
	d, err := newDecoder(key, value)
	if err != nil {
		return Dead{}, err
	}
	if len(key) < 10 {
		d.bad = true
		return Dead{}, d.end(key)
	}
	x := Dead{Key: string(key[9:]), Death: keyUint(key, 1), Size: d.int(), Birth: d.uint(), Time: d.int(), State: DeadState(d.uint32())}
	return x, d.end(key)
}

// encodeUint and decodeUint are the values that are one number: a death, a count, a sum.
func encodeUint(key []byte, v uint64) []byte {
	e := &encoder{b: make([]byte, 0, 16)}
	e.uint(v)
	return e.value(key)
}

func decodeUint(key, value []byte) (uint64, error) {
	d, err := newDecoder(key, value)
	if err != nil {
		return 0, err
	}
	v := d.uint()
	return v, d.end(key)
}

func encodeHead(h *Head) []byte {
	e := &encoder{}
	e.uint(formatVersion)
	e.uint(h.Epoch)
	e.uint(h.N)
	e.string(h.Hash)
	e.uint(h.LastLSN)
	e.int(h.Time)
	e.uint(h.Manifest.Epoch)
	e.uint(h.Manifest.N)
	e.int(h.Settings.QuotaBytes)
	e.int(h.Settings.RetentionSec)
	e.uint(h.Totals.Inodes)
	e.int(h.Totals.UsedBytes)
	e.uint(uint64(h.Totals.NextInode))
	e.uint(h.Horizon)
	if h.Settings.Keys != "" {
		e.string(h.Settings.Keys)
	}
	return e.value(headKey())
}

func decodeHead(value []byte) (Head, error) {
	key := headKey()
	d, err := newDecoder(key, value)
	if err != nil {
		return Head{}, err
	}
	if v := d.uint(); v != formatVersion {
		return Head{}, damaged(recordName(key), "the index has format %d, this release makes %d", v, formatVersion)
	}
	var h Head
	h.Epoch, h.N, h.Hash, h.LastLSN, h.Time = d.uint(), d.uint(), d.string(), d.uint(), d.int()
	h.Manifest.Epoch, h.Manifest.N = d.uint(), d.uint()
	h.Settings.QuotaBytes, h.Settings.RetentionSec = d.int(), d.int()
	h.Totals.Inodes, h.Totals.UsedBytes, h.Totals.NextInode = d.uint(), d.int(), InodeID(d.uint())
	h.Horizon = d.uint()
	if len(d.b) > 0 { // of an encrypted volume
		h.Settings.Keys = d.string()
	}
	return h, d.end(key)
}

// applying is the record of a commit that takes several updates.
type applying struct {
	id   CommitID
	hash string
}

func encodeApplying(a applying) []byte {
	e := &encoder{}
	e.uint(a.id.Epoch)
	e.uint(a.id.N)
	e.string(a.hash)
	return e.value(applyingKey())
}

func decodeApplying(value []byte) (applying, error) {
	key := applyingKey()
	d, err := newDecoder(key, value)
	if err != nil {
		return applying{}, err
	}
	a := applying{id: CommitID{Epoch: d.uint(), N: d.uint()}, hash: d.string()}
	return a, d.end(key)
}

// keyUint returns the 8-byte number in a key, 0 where the key is too short.
func keyUint(key []byte, at int) uint64 {
	if len(key) < at+8 {
		return 0
	}
	return binary.BigEndian.Uint64(key[at:])
}
