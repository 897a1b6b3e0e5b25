package gateway

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"

	"github.com/cisternfs/cistern/metadata"
)

// builder makes a commit from the frozen layer: it uploads what changed and
// fills in the document. It reads the index, which holds the predecessor's
// state, and the frozen layer, which does not change.
type builder struct {
	v   *Volume
	ctx context.Context
	l   *layer
	c   *metadata.Commit

	seg     *segment
	scratch []byte                   // of one extent
	packed  int64                    // bytes of extents so far
	refs    map[string]int           // change of an object's references
	bases   map[string]metadata.Base // of objects that lost references
	live    map[string]int64         // change of a segment's live bytes
	newSegs map[string]int           // index into c.Segments
	folds   map[slotKey]*folded
	packs   map[string]bool // segments of the folds
	unused  []string        // keys of uploads that this commit does not name

	group sync.WaitGroup
	mu    sync.Mutex // guards the fields below
	err   error
	stop  context.CancelFunc
}

type slotKey struct {
	ino  InodeID
	slot uint32
}

// build uploads everything that the frozen layer and the additions need and
// returns the finished document.
func (v *Volume) build(ctx context.Context, l *layer, totals metadata.Totals) (*built, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	adds := v.commit.adds
	b := &builder{
		v: v, ctx: ctx, l: l, stop: cancel,
		refs: map[string]int{}, bases: map[string]metadata.Base{}, live: map[string]int64{},
		newSegs: map[string]int{}, folds: map[slotKey]*folded{}, packs: map[string]bool{},
		c: &metadata.Commit{
			CommitID: v.commit.next, Prev: v.head.Hash, FirstLSN: uint64(l.first), LastLSN: max(uint64(l.last), v.head.LastLSN),
			Time: max(v.clock(), v.head.Time), Writer: v.opt.Owner.Host, Reign: v.owner.current(),
			Manifest: v.head.Manifest, Settings: v.settingsAt(l), Totals: totals,
		},
	}
	if b.c.FirstLSN == 0 {
		b.c.FirstLSN = b.c.LastLSN
	}
	err := b.run(&adds)
	if b.seg != nil { // it failed before the last segment was full
		v.uploads.give(b.seg.held)
	}
	b.group.Wait()
	b.mu.Lock()
	if b.err != nil {
		err = b.err
	}
	b.mu.Unlock()
	if err != nil {
		return nil, err
	}
	body := metadata.EncodeCommit(b.c)
	v.commit.adds = additions{}
	return &built{c: b.c, body: body, hash: metadata.Hash(body), adds: adds, unused: b.unused}, nil
}

// settingsAt returns the settings that the commit of a layer gives, nil when they
// stay. In an encrypted volume every commit tells which keys are needed.
func (v *Volume) settingsAt(l *layer) *metadata.Settings {
	if v.doc.Key == "" {
		return l.settings
	}
	s := v.head.Settings
	if l.settings != nil {
		s = *l.settings
	}
	s.Keys = keysOf(v.codec, v.head.Settings)
	return &s
}

func (b *builder) run(adds *additions) error {
	for _, f := range adds.folds {
		k := slotKey{f.ino, f.slot}
		b.discardFold(k) // an earlier one of the same slot
		b.folds[k] = f
		if f.pack != nil {
			b.packs[f.pack.key] = true
		}
	}
	if err := b.inodes(); err != nil {
		return err
	}
	if err := b.names(); err != nil {
		return err
	}
	if err := b.files(); err != nil {
		return err
	}
	if err := b.foldsAlone(); err != nil {
		return err
	}
	b.flush()
	if err := b.orphans(); err != nil {
		return err
	}
	if err := b.account(); err != nil {
		return err
	}
	return b.collection(adds)
}

// inodes lists changed and freed inodes; a freed one's slots go.
func (b *builder) inodes() error {
	for _, ino := range sortedKeys(b.l.inodes) {
		n := b.l.inodes[ino]
		if n != nil {
			b.c.Inodes = append(b.c.Inodes, *n)
			continue
		}
		if _, err := b.v.index.Inode(ino); errors.Is(err, metadata.ErrNotExist) {
			continue // made and freed between two commits
		} else if err != nil {
			return fmt.Errorf("inode %d: %w", ino, err)
		}
		b.c.Gone = append(b.c.Gone, ino)
		err := b.v.index.Slots(ino, 0, func(no uint32, s *metadata.Slot) bool {
			b.dropSlot(s)
			b.c.Slots = append(b.c.Slots, metadata.SlotChange{Inode: ino, Slot: no, Remove: true})
			return true
		})
		if err != nil {
			return fmt.Errorf("slots of inode %d: %w", ino, err)
		}
	}
	return nil
}

func (b *builder) names() error {
	for _, parent := range sortedKeys(b.l.dirs) {
		dir := b.l.dirs[parent]
		for _, name := range sortedKeys(dir.byName) {
			e := dir.byName[name]
			old, err := b.v.index.Lookup(parent, name)
			missing := errors.Is(err, metadata.ErrNotExist)
			if err != nil && !missing {
				return fmt.Errorf("name %q in directory %d: %w", name, parent, err)
			}
			switch {
			case e == nil && missing:
			case e == nil:
				b.c.Names = append(b.c.Names, metadata.NameChange{Dentry: metadata.Dentry{Parent: parent, Name: name, Cookie: old.Cookie}})
			default:
				b.c.Names = append(b.c.Names, metadata.NameChange{Dentry: *e, OldCookie: old.Cookie})
			}
		}
	}
	return nil
}

func (b *builder) orphans() error {
	was := map[InodeID]bool{}
	err := b.v.index.Orphans(func(ino InodeID) bool {
		if _, ok := b.l.orphans[ino]; ok {
			was[ino] = true
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("orphans: %w", err)
	}
	for _, ino := range sortedKeys(b.l.orphans) {
		switch joined := b.l.orphans[ino]; {
		case joined && !was[ino]:
			b.c.Orphans = append(b.c.Orphans, ino)
		case !joined && was[ino]:
			b.c.NoOrphans = append(b.c.NoOrphans, ino)
		}
	}
	return nil
}

// files turns the layer's pieces into objects and patches, slot by slot.
func (b *builder) files() error {
	for _, ino := range sortedKeys(b.l.files) {
		n := b.l.inodes[ino]
		if n == nil {
			continue // freed
		}
		if err := b.file(n); err != nil {
			return err
		}
		if err := b.failed(); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) failed() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// file gathers an inode's pieces by slot.
func (b *builder) file(n *Inode) error {
	size := b.v.objectSize
	var err error
	var pending []span
	no := int64(-1)
	flush := func() {
		if len(pending) > 0 && err == nil {
			err = b.slot(n, uint32(no), pending)
		}
		pending = pending[:0]
	}
	b.l.files[n.ID].Visit(0, wholeFile, func(off, end int64, p piece) bool {
		for off < end && err == nil {
			if off/size != no {
				flush()
				no = off / size
			}
			slotEnd := (no + 1) * size
			if p.kind == pieceZero && end > slotEnd {
				pending = append(pending, span{off: off, end: slotEnd, piece: p})
				flush()
				if err == nil {
					err = b.zeroSlots(n, uint32(no+1), end)
				}
				off = max(slotEnd, end/size*size)
				if end == wholeFile {
					return false
				}
				no = -1
				continue
			}
			e := min(end, slotEnd)
			pending = append(pending, span{off: off, end: e, piece: p})
			if p.kind == pieceData {
				p.off += e - off
			}
			off = e
		}
		return err == nil
	})
	flush()
	return err
}

// zeroSlots removes the committed slots from the given one on that end at or
// before end: all of them are zeros now.
func (b *builder) zeroSlots(n *Inode, from uint32, end int64) error {
	err := b.v.index.Slots(n.ID, from, func(no uint32, s *metadata.Slot) bool {
		if end != wholeFile && (int64(no)+1)*b.v.objectSize > end {
			return false
		}
		b.removeSlot(n.ID, no, s)
		return true
	})
	if err != nil {
		return fmt.Errorf("slots of inode %d: %w", n.ID, err)
	}
	return nil
}

func (b *builder) removeSlot(ino InodeID, no uint32, s *metadata.Slot) {
	b.discardFold(slotKey{ino, no})
	b.dropSlot(s)
	b.c.Slots = append(b.c.Slots, metadata.SlotChange{Inode: ino, Slot: no, Remove: true})
}

// slot builds one slot's change from its pieces, which ascend and do not
// overlap.
func (b *builder) slot(n *Inode, no uint32, pieces []span) error {
	old, err := b.v.index.Slot(n.ID, no)
	if err != nil {
		return fmt.Errorf("slot %d of inode %d: %w", no, n.ID, err)
	}
	start := int64(no) * b.v.objectSize
	if hasShare(pieces) {
		return b.sharedSlot(n, no, old, pieces)
	}
	whole := min(b.v.objectSize, max(n.Size, n.Staged)-start)
	if contiguous(pieces, start, start+whole) && (whole == b.v.objectSize || whole >= minOwnObject) {
		return b.wholeSlot(n, no, old, pieces, whole)
	}
	if !hasData(pieces) {
		if old == nil {
			return nil // zeros over nothing
		}
		if b.emptied(start, old, pieces) {
			b.removeSlot(n.ID, no, old)
			return nil
		}
	}
	base := old
	ch := metadata.SlotChange{Inode: n.ID, Slot: no}
	if f := b.takeFold(slotKey{n.ID, no}, old); f != nil {
		b.useFold(&ch, f, old)
		base = f.after(old)
	}
	if ch.Add, err = b.patches(n.ID, start, base, pieces); err != nil {
		return err
	}
	b.supersede(&ch, base)
	b.c.Slots = append(b.c.Slots, ch)
	return nil
}

// emptied says whether zeros leave nothing of a slot.
func (b *builder) emptied(start int64, old *metadata.Slot, zeros []span) bool {
	var add []metadata.Patch
	for _, s := range zeros {
		if p, ok := zeroPatch(old, b.c.N, uint32(s.off-start), uint32(s.end-start)); ok {
			add = append(add, p)
		}
	}
	after := old.With(metadata.SlotChange{Add: add})
	return after == nil || after.Coverage(0, after.End()) == 0
}

func hasShare(pieces []span) bool {
	for _, s := range pieces {
		if s.piece.kind == pieceShare {
			return true
		}
	}
	return false
}

// sharedSlot makes a slot start anew from an object of another one, under what
// was written over it since. A slot has one object: pieces of a second one are
// under the first's (it was shared over), or over it with nothing of it left.
func (b *builder) sharedSlot(n *Inode, no uint32, old *metadata.Slot, pieces []span) error {
	b.discardFold(slotKey{n.ID, no})
	start := int64(no) * b.v.objectSize
	var base *metadata.Base
	var rest []span
	for _, s := range pieces {
		if s.piece.kind != pieceShare {
			rest = append(rest, s)
		} else if base == nil || base.Ref == s.piece.base.Ref {
			base = s.piece.base
		} else {
			panic("gateway: a slot refers to two shared objects")
		}
	}
	b.dropSlot(old)
	b.refs[base.Key]++
	ch := metadata.SlotChange{Inode: n.ID, Slot: no, Base: base}
	if old != nil && len(old.Patches) > 0 {
		ch.DropThrough = b.c.N - 1
	}
	// What the old slot had and the share did not cover is behind the object's
	// end and was not live, or is in the pieces.
	var err error
	if ch.Add, err = b.patches(n.ID, start, &metadata.Slot{Base: base}, rest); err != nil {
		return err
	}
	b.c.Slots = append(b.c.Slots, ch)
	return nil
}

func hasData(pieces []span) bool {
	for _, s := range pieces {
		if s.piece.kind != pieceZero {
			return true
		}
	}
	return false
}

// supersede drops older patches that new ones cover wholly.
func (b *builder) supersede(ch *metadata.SlotChange, base *metadata.Slot) {
	if base == nil {
		return
	}
	for i := range base.Patches {
		p := &base.Patches[i]
		if coveredBy(ch.Add, p.Off, p.Off+p.Len) {
			ch.Drop = append(ch.Drop, p.Key())
			b.dropPatch(p)
		}
	}
}

// coveredBy says whether ascending patches cover [off, end).
func coveredBy(patches []metadata.Patch, off, end uint32) bool {
	i := sort.Search(len(patches), func(i int) bool { return patches[i].Off+patches[i].Len > off })
	for ; i < len(patches) && patches[i].Off <= off; i++ {
		off = patches[i].Off + patches[i].Len
		if off >= end {
			return true
		}
	}
	return off >= end
}
