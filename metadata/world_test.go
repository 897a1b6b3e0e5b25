package metadata

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

const testSlotSize = 3 * BlockSize / 2

// world is a naive model of a volume: it makes random commits and knows the
// state that each must give, by other means than the index.
type world struct {
	rng     *rand.Rand
	head    Head
	inodes  map[InodeID]Inode
	names   map[nameKey]Dentry
	slots   map[slotKey]modelSlot
	orphans map[InodeID]bool
	segs    map[string]Segment
	dead    map[string]Dead
	local   map[[2]int64]uint32
	counts  map[string]uint32
	births  map[string]uint64
	cookie  uint64
	lsn     uint64

	c       *Commit // being made
	touched map[InodeID]bool
	slotted map[slotKey]bool
	named   map[nameKey]NameChange
	seg     string
	segEnd  uint32
}

type modelSlot struct {
	base    *Base
	patches map[PatchKey]Patch
}

func newWorld(seed uint64) *world {
	w := &world{
		rng:    rand.New(rand.NewPCG(seed, 7)),
		inodes: map[InodeID]Inode{}, names: map[nameKey]Dentry{}, slots: map[slotKey]modelSlot{}, orphans: map[InodeID]bool{},
		segs: map[string]Segment{}, dead: map[string]Dead{}, local: map[[2]int64]uint32{}, counts: map[string]uint32{}, births: map[string]uint64{},
	}
	w.head.Epoch = 1
	w.head.Totals.NextInode = RootInode
	return w
}

// next makes a commit of some operations and moves the model to it.
func (w *world) next(ops int) (c *Commit, hash string, local []LocalSum) {
	skip := uint64(0)
	if w.rng.IntN(8) == 0 {
		skip = uint64(w.rng.IntN(3))
	}
	id := CommitID{Epoch: w.head.Epoch + skip, N: w.head.N + 1 + skip}
	w.c = &Commit{
		CommitID: id, Prev: w.head.Hash, FirstLSN: w.lsn + 1, LastLSN: w.lsn + uint64(ops), Time: w.head.Time + 1 + w.rng.Int64N(1e9),
		Writer: "db1/123", Reign: "r-" + fmt.Sprint(id.Epoch), Manifest: w.head.Manifest,
	}
	w.lsn += uint64(ops)
	w.touched, w.slotted, w.named = map[InodeID]bool{}, map[slotKey]bool{}, map[nameKey]NameChange{}
	w.seg, w.segEnd = SegmentKey(id.Epoch, w.c.FirstLSN, w.c.LastLSN, fmt.Sprintf("%08x", w.rng.Uint32())), 0
	oldOrphans := maps.Clone(w.orphans)
	oldInodes := maps.Clone(w.inodes)
	if id.N == w.head.N+1+skip && len(w.inodes) == 0 {
		w.create(modeDir|0o755, 0, "")
	}
	for range ops {
		w.operation()
	}
	w.close(oldInodes, oldOrphans)
	c = w.c
	hash = Hash(EncodeCommit(c))
	local = w.newLocal()
	w.head = headAfter(w.head, c, hash)
	return c, hash, local
}

func (w *world) operation() {
	switch w.rng.IntN(14) {
	case 0, 1, 2:
		w.create(modeReg|0o644, w.someDir(), w.newName())
	case 3:
		w.create(modeDir|0o755, w.someDir(), w.newName())
	case 4:
		w.create(0o120777, w.someDir(), w.newName())
	case 5:
		w.unlink()
	case 6:
		w.link()
	case 7:
		w.rename()
	case 8, 9, 10:
		w.patch()
	case 11:
		w.fold()
	case 12:
		w.attributes()
	case 13:
		w.drop()
	}
}

func (w *world) newName() string {
	special := []string{"ibdata1", "käse", "a\xffb", "tab\there", `quo"te\`, "x\u2028y", strings.Repeat("n", 255), "<&>"}
	if w.rng.IntN(3) == 0 {
		return special[w.rng.IntN(len(special))]
	}
	return fmt.Sprintf("t%d.ibd", w.rng.IntN(1000))
}

// pick returns a random key of a map, the same for the same seed.
func pick[K cmp.Ordered, V any](w *world, m map[K]V, ok func(K, V) bool) (K, bool) {
	var keys []K
	for k, v := range m {
		if ok(k, v) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	if len(keys) == 0 {
		var zero K
		return zero, false
	}
	return keys[w.rng.IntN(len(keys))], true
}

func isType(i Inode, t uint32) bool { return i.Mode&modeType == t }

func (w *world) someDir() InodeID {
	id, _ := pick(w, w.inodes, func(_ InodeID, i Inode) bool { return isType(i, modeDir) && i.Nlink > 0 })
	return id
}

func (w *world) someFile() (InodeID, bool) {
	return pick(w, w.inodes, func(_ InodeID, i Inode) bool { return isType(i, modeReg) })
}

func (w *world) someName() (nameKey, bool) {
	keys := slices.SortedFunc(maps.Keys(w.names), func(a, b nameKey) int {
		return cmp.Or(cmp.Compare(a.parent, b.parent), cmp.Compare(a.name, b.name))
	})
	if len(keys) == 0 {
		return nameKey{}, false
	}
	return keys[w.rng.IntN(len(keys))], true
}

func (w *world) setInode(i Inode) {
	w.inodes[i.ID] = i
	w.touched[i.ID] = true
}

func (w *world) setName(d Dentry) {
	k := nameKey{d.Parent, d.Name}
	ch := NameChange{Dentry: d}
	if before, ok := w.named[k]; ok {
		ch.OldCookie = before.OldCookie
		if before.Inode == 0 && before.OldCookie == 0 {
			ch.OldCookie = before.Cookie
		}
	} else {
		ch.OldCookie = w.names[k].Cookie
	}
	w.named[k] = ch
	w.names[k] = d
}

func (w *world) removeName(k nameKey) {
	d := w.names[k]
	cookie := d.Cookie
	if before, ok := w.named[k]; ok && before.Inode != 0 {
		cookie = before.OldCookie
	}
	w.named[k] = NameChange{Dentry: Dentry{Parent: k.parent, Name: k.name, Cookie: cookie}}
	delete(w.names, k)
}

func (w *world) create(mode uint32, parent InodeID, name string) {
	if _, ok := w.names[nameKey{parent, name}]; ok {
		return
	}
	id := w.head.Totals.NextInode
	w.head.Totals.NextInode++
	i := Inode{ID: id, Mode: mode, Nlink: 1, UID: 27, Mtime: w.c.Time, Ctime: w.c.Time, Btime: w.c.Time}
	switch {
	case isType(i, modeDir):
		i.Nlink, i.Parent = 2, max(parent, RootInode)
		if parent != 0 {
			p := w.inodes[parent]
			p.Nlink++
			w.setInode(p)
		}
	case !isType(i, modeReg):
		i.Target = []byte("../t\xfe" + name)
	}
	w.setInode(i)
	if parent != 0 {
		w.cookie++
		w.setName(Dentry{Parent: parent, Name: name, Inode: id, Type: uint8(mode >> 12), Cookie: w.cookie})
	}
}

func (w *world) hasNames(dir InodeID) bool {
	for k := range w.names {
		if k.parent == dir {
			return true
		}
	}
	return false
}

// unlink removes a name; half of the inodes that lose their last become orphans.
func (w *world) unlink() {
	if id, ok := pick(w, w.orphans, func(InodeID, bool) bool { return true }); ok && w.rng.IntN(2) == 0 {
		w.gone(id)
		return
	}
	k, ok := w.someName()
	if !ok {
		return
	}
	w.unlinkName(k)
}

func (w *world) unlinkName(k nameKey) {
	i := w.inodes[w.names[k].Inode]
	if isType(i, modeDir) {
		if w.hasNames(i.ID) {
			return
		}
		p := w.inodes[k.parent]
		p.Nlink--
		w.setInode(p)
		i.Nlink = 1
	}
	w.removeName(k)
	i.Nlink--
	w.setInode(i)
	if i.Nlink == 0 {
		w.orphans[i.ID] = true
		if w.rng.IntN(2) == 0 {
			w.gone(i.ID)
		}
	}
}

func (w *world) gone(id InodeID) {
	for k := range w.slots {
		if k.ino == id && w.slotted[k] {
			return // the model changes a slot once a commit
		}
	}
	for k := range w.slots {
		if k.ino == id {
			delete(w.slots, k)
			if w.rng.IntN(2) == 0 {
				w.slotted[k] = true
				w.c.Slots = append(w.c.Slots, SlotChange{Inode: id, Slot: k.slot, Remove: true})
			}
		}
	}
	for k := range w.local {
		if k[0] == int64(id) {
			delete(w.local, k)
		}
	}
	delete(w.orphans, id)
	delete(w.inodes, id)
	w.touched[id] = true
}

func (w *world) link() {
	id, ok := w.someFile()
	dir, name := w.someDir(), w.newName()
	if _, taken := w.names[nameKey{dir, name}]; !ok || taken || w.orphans[id] {
		return
	}
	i := w.inodes[id]
	i.Nlink++
	w.setInode(i)
	w.cookie++
	w.setName(Dentry{Parent: dir, Name: name, Inode: id, Type: uint8(i.Mode >> 12), Cookie: w.cookie})
}

// rename moves a file, perhaps over another one.
func (w *world) rename() {
	from, ok := w.someName()
	to := nameKey{w.someDir(), w.newName()}
	d := w.names[from]
	if !ok || from == to || isType(w.inodes[d.Inode], modeDir) {
		return
	}
	if over, ok := w.names[to]; ok {
		if over.Inode == d.Inode || isType(w.inodes[over.Inode], modeDir) {
			return
		}
		w.unlinkName(to)
	}
	w.removeName(from)
	w.cookie++
	d.Parent, d.Name, d.Cookie = to.parent, to.name, w.cookie
	w.setName(d)
}

func (w *world) attributes() {
	id, ok := w.someFile()
	if !ok {
		return
	}
	i := w.inodes[id]
	i.Mode = modeReg | w.rng.Uint32N(0o1000)
	i.Xattrs = []Xattr{{Name: "user.a", Value: []byte{0, 1, 0xff}}, {Name: "user.b", Value: []byte("plain")}}
	w.setInode(i)
}

// clean returns a slot that this commit has not changed yet.
func (w *world) clean() (slotKey, bool) {
	id, ok := w.someFile()
	k := slotKey{id, w.rng.Uint32N(4)}
	return k, ok && !w.slotted[k]
}

func (w *world) newPatches(n int) []Patch {
	var add []Patch
	at := w.rng.Uint32N(testSlotSize / 2)
	for range n {
		p := Patch{Commit: w.c.N, Off: at, Len: 1 + w.rng.Uint32N(20000)}
		if p.Off+p.Len > testSlotSize {
			break
		}
		at += p.Len + w.rng.Uint32N(3)*1000
		if w.rng.IntN(4) == 0 {
			p.Zero = true
		} else {
			p.Seg, p.SegOff, p.Sum = Ref{Key: w.seg}, w.segEnd, w.rng.Uint32()
			w.segEnd += p.Len + uint32(w.rng.IntN(2))*8
			if w.rng.IntN(10) == 0 {
				p.Seg = Ref{Volume: "parent", Key: "segments/1/x.seg"}
			}
		}
		add = append(add, p)
	}
	return add
}

func (w *world) newBase() *Base {
	if key, ok := pick(w, w.counts, func(string, uint32) bool { return true }); ok && w.rng.IntN(3) == 0 {
		for _, s := range w.slots {
			if s.base != nil && s.base.Key == key {
				b := *s.base
				return &b
			}
		}
	}
	b := &Base{Birth: w.c.N, Len: 1 + w.rng.Uint32N(testSlotSize)}
	for range (b.Len + BlockSize - 1) / BlockSize {
		b.Sums = append(b.Sums, w.rng.Uint32())
	}
	b.Key = ObjectKey(ObjectUUID(w.c.Epoch, [10]byte{byte(w.rng.Uint32()), byte(w.rng.Uint32()), byte(w.rng.Uint32())}), 0, int64(b.Len), "/db/t.ibd")
	if w.rng.IntN(10) == 0 {
		b.Volume = "parent"
	}
	return b
}

func (w *world) patch() {
	if k, ok := w.clean(); ok {
		w.changeSlot(SlotChange{Inode: k.ino, Slot: k.slot, Add: w.newPatches(1 + w.rng.IntN(5))})
	}
}

func (w *world) fold() {
	k, ok := w.clean()
	if !ok {
		return
	}
	ch := SlotChange{Inode: k.ino, Slot: k.slot, Base: w.newBase(), DropThrough: w.head.N - min(w.head.N, uint64(w.rng.IntN(3)))}
	ch.Remove = w.rng.IntN(5) == 0
	if w.rng.IntN(2) == 0 {
		ch.Add = w.newPatches(2)
	}
	w.changeSlot(ch)
}

func (w *world) drop() {
	k, ok := w.clean()
	if !ok {
		return
	}
	ch := SlotChange{Inode: k.ino, Slot: k.slot}
	for p := range w.slots[k].patches {
		ch.Drop = append(ch.Drop, p)
	}
	slices.SortFunc(ch.Drop, func(a, b PatchKey) int {
		return comparePatches(Patch{Commit: a.Commit, Off: a.Off}, Patch{Commit: b.Commit, Off: b.Off})
	})
	if len(ch.Drop) > 1 {
		ch.Drop = ch.Drop[:len(ch.Drop)/2]
	}
	if len(ch.Drop) > 0 {
		w.changeSlot(ch)
	}
}

// changeSlot applies a change to the model.
func (w *world) changeSlot(ch SlotChange) {
	k := slotKey{ch.Inode, ch.Slot}
	s := w.slots[k]
	now := modelSlot{base: s.base, patches: map[PatchKey]Patch{}}
	for pk, p := range s.patches {
		if !ch.Remove && pk.Commit > ch.DropThrough && !slices.Contains(ch.Drop, pk) {
			now.patches[pk] = p
		}
	}
	if ch.Remove {
		now.base = nil
	}
	if ch.Base != nil {
		now.base = ch.Base
	}
	for _, p := range ch.Add {
		now.patches[p.Key()] = p
	}
	delete(w.slots, k)
	if now.base != nil || len(now.patches) > 0 {
		w.slots[k] = now
	}
	w.slotted[k] = true
	w.touched[ch.Inode] = true
	w.c.Slots = append(w.c.Slots, ch)
	w.forget(ch)
}

// forget drops the checksums of the blocks that a change touches.
func (w *world) forget(ch SlotChange) {
	whole := ch.Remove || ch.Base != nil || ch.DropThrough > 0 || len(ch.Drop) > 0
	start := int64(ch.Slot) * testSlotSize
	for k := range w.local {
		lo, hi := k[1]*BlockSize, (k[1]+1)*BlockSize
		hit := whole && lo < start+testSlotSize && start < hi
		for _, p := range ch.Add {
			off := start + int64(p.Off)
			hit = hit || (lo < off+int64(p.Len) && off < hi)
		}
		if k[0] == int64(ch.Inode) && hit {
			delete(w.local, k)
		}
	}
}

func (w *world) newLocal() (local []LocalSum) {
	for range w.rng.IntN(4) {
		if id, ok := w.someFile(); ok {
			l := LocalSum{Inode: id, Block: w.rng.Int64N(6), Sum: w.rng.Uint32()}
			w.local[[2]int64{int64(id), l.Block}] = l.Sum
			local = append(local, l)
		}
	}
	return local
}

// paintNaive says where each byte of a slot comes from: 0 nowhere, 1 the base, else patch i+2.
func (s modelSlot) paintNaive() []int {
	b := make([]int, testSlotSize)
	if s.base != nil {
		for i := range s.base.Len {
			b[i] = 1
		}
	}
	for i, p := range s.sorted() {
		v := i + 2
		if p.Zero {
			v = 0
		}
		for j := range p.Len {
			b[p.Off+j] = v
		}
	}
	return b
}

func (s modelSlot) sorted() []Patch {
	return slices.SortedFunc(maps.Values(s.patches), comparePatches)
}

// close completes the commit: absolute numbers from a look at the whole state.
func (w *world) close(oldInodes map[InodeID]Inode, oldOrphans map[InodeID]bool) {
	c := w.c
	w.measure()
	for _, id := range slices.Sorted(maps.Keys(w.touched)) {
		i, ok := w.inodes[id]
		_, was := oldInodes[id]
		switch {
		case ok:
			c.Inodes = append(c.Inodes, i)
		case was:
			c.Gone = append(c.Gone, id)
		}
		if w.orphans[id] && !oldOrphans[id] {
			c.Orphans = append(c.Orphans, id)
		}
		if !w.orphans[id] && oldOrphans[id] {
			c.NoOrphans = append(c.NoOrphans, id)
		}
	}
	// A slot of an inode that was made and went within the commit is no change.
	c.Slots = slices.DeleteFunc(c.Slots, func(s SlotChange) bool {
		_, is := w.inodes[s.Inode]
		_, was := oldInodes[s.Inode]
		return !is && !was
	})
	keys := slices.SortedFunc(maps.Keys(w.named), func(a, b nameKey) int {
		return cmp.Or(cmp.Compare(a.parent, b.parent), cmp.Compare(a.name, b.name))
	})
	for _, k := range keys {
		c.Names = append(c.Names, w.named[k])
	}
	w.collect()
	c.Totals = Totals{Inodes: uint64(len(w.inodes)), NextInode: w.head.Totals.NextInode}
	for _, i := range w.inodes {
		c.Totals.UsedBytes += i.Alloc
	}
}

// measure sets the size and data bytes of the files that changed.
func (w *world) measure() {
	for id := range w.touched {
		i, ok := w.inodes[id]
		if !ok || !isType(i, modeReg) {
			continue
		}
		i.Alloc = 0
		for k, s := range w.slots {
			if k.ino != id {
				continue
			}
			for off, v := range s.paintNaive() {
				if v != 0 {
					i.Alloc++
					i.Size = max(i.Size, int64(k.slot)*testSlotSize+int64(off)+1)
				}
			}
		}
		w.inodes[id] = i
	}
}

// collect counts references and finds out what died.
func (w *world) collect() {
	c := w.c
	live, counts := map[string]int64{}, map[string]uint32{}
	for _, s := range w.slots {
		if s.base != nil && s.base.Volume == "" {
			counts[s.base.Key]++
			w.births[s.base.Key] = s.base.Birth
		}
		for _, p := range s.patches {
			if !p.Zero && p.Seg.Volume == "" {
				live[p.Seg.Key] += int64(p.Len)
			}
		}
	}
	die := func(key string, size int64, birth uint64) {
		d := Dead{Key: key, Size: size, Birth: birth, Death: c.N, Time: c.Time}
		c.Dead = append(c.Dead, d)
		w.dead[key] = d
	}
	if live[w.seg] > 0 {
		s := Segment{Key: w.seg, Size: int64(w.segEnd) + 100, Live: live[w.seg], Birth: c.N, Sum: 5}
		c.Segments = append(c.Segments, s)
		w.segs[s.Key] = s
	}
	for _, key := range slices.Sorted(maps.Keys(w.segs)) {
		s := w.segs[key]
		if s.Live == live[key] {
			continue
		}
		s.Live = live[key]
		c.Live = append(c.Live, Segment{Key: key, Live: s.Live})
		w.segs[key] = s
		if s.Live == 0 {
			die(key, s.Size, s.Birth)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(w.counts)) {
		if n := counts[key]; n != w.counts[key] && (n > 1 || w.counts[key] > 1) {
			c.Refs = append(c.Refs, RefCount{Key: key, Count: n})
		}
		if counts[key] == 0 {
			die(key, 9, w.births[key])
		}
	}
	for _, key := range slices.Sorted(maps.Keys(counts)) {
		if _, old := w.counts[key]; !old && counts[key] > 1 {
			c.Refs = append(c.Refs, RefCount{Key: key, Count: counts[key]})
		}
		if d, ok := w.dead[key]; ok {
			w.c.Undead = append(w.c.Undead, d.Key)
			delete(w.dead, key)
		}
	}
	w.counts = counts
	w.collectDead()
}

func (w *world) collectDead() {
	for _, key := range slices.Sorted(maps.Keys(w.dead)) {
		d := w.dead[key]
		switch r := w.rng.IntN(6); {
		case d.Death == w.c.N:
		case d.State == DeadKept && r == 0:
			d.State = DeadCondemned
			w.dead[key] = d
			w.c.Condemned = append(w.c.Condemned, key)
			w.c.Horizon = max(w.c.Horizon, d.Death)
		case d.State == DeadCondemned && r == 0:
			d.State = DeadKept
			w.dead[key] = d
			w.c.TakenBack = append(w.c.TakenBack, key)
		case d.State == DeadCondemned && r == 1:
			delete(w.dead, key)
			delete(w.segs, key)
			w.c.Collected = append(w.c.Collected, key)
		}
	}
}

// dump is the model's state as text; withLocal includes the checksums of cached blocks.
func (w *world) dump(withLocal bool) string {
	var b []string
	add := func(format string, args ...any) { b = append(b, fmt.Sprintf(format, args...)) }
	for _, i := range w.inodes {
		add("inode %s", encodeInode(&i))
	}
	for _, d := range w.names {
		add("name %+v", d)
	}
	for k, s := range w.slots {
		add("slot %v %s", k, describeSlot(s.base, s.sorted()))
	}
	for id := range w.orphans {
		add("orphan %d", id)
	}
	for _, s := range w.segs {
		add("segment %+v", s)
	}
	for _, d := range w.dead {
		add("dead %+v", d)
	}
	for k, n := range w.counts {
		add("count %s %d", k, n)
	}
	if withLocal {
		for k, v := range w.local {
			add("local %v %d", k, v)
		}
	}
	add("head %+v", w.head)
	slices.Sort(b)
	return strings.Join(b, "\n")
}

func describeSlot(b *Base, p []Patch) string {
	base := "none"
	if b != nil {
		base = fmt.Sprintf("%+v", *b)
	}
	return fmt.Sprintf("%s %+v", base, p)
}

// dumpIndex is the same of an index, through its methods.
func dumpIndex(t testing.TB, ix *Index, w *world, withLocal bool) string {
	t.Helper()
	var b []string
	add := func(format string, args ...any) { b = append(b, fmt.Sprintf(format, args...)) }
	counts := map[string]bool{}
	for id := InodeID(1); id < w.head.Totals.NextInode; id++ {
		i, err := ix.Inode(id)
		if err == nil {
			add("inode %s", encodeInode(i))
		}
		last := uint64(0)
		must(t, ix.Names(id, 0, func(d Dentry) bool {
			if d.Cookie <= last {
				t.Errorf("cookie %d after %d", d.Cookie, last)
			}
			last = d.Cookie
			byName, err := ix.Lookup(d.Parent, d.Name)
			if must(t, err); byName != d {
				t.Errorf("by name %+v, by cookie %+v", byName, d)
			}
			add("name %+v", d)
			return true
		}))
		must(t, ix.Slots(id, 0, func(n uint32, s *Slot) bool {
			one, err := ix.Slot(id, n)
			if must(t, err); !s.Same(one) {
				t.Errorf("slot %d of inode %d differs when read alone", n, id)
			}
			add("slot %v %s", slotKey{id, n}, describeSlot(s.Base, s.Patches))
			if s.Base != nil && s.Base.Volume == "" && !counts[s.Base.Key] {
				counts[s.Base.Key] = true
				n, err := ix.RefCount(s.Base.Key)
				must(t, err)
				add("count %s %d", s.Base.Key, n)
			}
			return true
		}))
		for block := int64(0); block < 8 && withLocal; block++ {
			v, ok, err := ix.LocalSum(id, block)
			if must(t, err); ok {
				add("local %v %d", [2]int64{int64(id), block}, v)
			}
		}
	}
	must(t, ix.Orphans(func(id InodeID) bool { add("orphan %d", id); return true }))
	must(t, ix.Segments(func(s Segment) bool { add("segment %+v", s); return true }))
	last := uint64(0)
	must(t, ix.DeadThings(func(d Dead) bool {
		one, err := ix.Dead(d.Key)
		if must(t, err); one != d || d.Death < last {
			t.Errorf("dead %+v by key %+v after %d", d, one, last)
		}
		last = d.Death
		add("dead %+v", d)
		return true
	}))
	add("head %+v", ix.Head())
	slices.Sort(b)
	return strings.Join(b, "\n")
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func checkClean(t testing.TB, ix *Index) {
	t.Helper()
	must(t, ix.Check(func(p string) { t.Errorf("check: %s", p) }))
}

// sameText fails with the first line that differs.
func sameText(t testing.TB, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := 0; i < max(len(g), len(w)); i++ {
		switch {
		case i >= len(g):
			t.Fatalf("missing: %q", w[i])
		case i >= len(w):
			t.Fatalf("too much: %q", g[i])
		case g[i] != w[i]:
			t.Fatalf("line %d:\n got %q\nwant %q", i, g[i], w[i])
		}
	}
}
