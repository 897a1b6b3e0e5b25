package metadata

import (
	"errors"
	"fmt"
	"hash/maphash"
)

// Check reads the whole committed state and calls problem for everything in it
// that contradicts itself. The error says that it could not be read. Memory: about
// 60 bytes an inode, 16 a referenced object. Not to be called while Apply runs.
//
// Link counts are those of POSIX: a file's names; a directory's subdirectories and two.
func (ix *Index) Check(problem func(string)) error {
	snap := ix.Snapshot()
	defer snap.Close() // only read
	c := &checker{
		snap: snap, slotSize: ix.slotSize, problem: problem, seed: maphash.MakeSeed(),
		nodes: make(map[InodeID]*checkNode), live: make(map[string]int64),
		objects: make(map[uint64]uint32), segments: make(map[string]bool), dead: make(map[string]Dead),
	}
	for _, step := range []func() error{
		c.readHead, c.readInodes, c.readDead, c.readNames, c.readCookies, c.readSlots, c.readCounts, c.readSegments, c.readOrphans, c.judgeInodes,
	} {
		if err := step(); err != nil {
			return fmt.Errorf("check the index: %w", err)
		}
	}
	return nil
}

// checkNode is what a check remembers of an inode.
type checkNode struct {
	mode    uint32
	nlink   uint32
	names   uint32
	subdirs uint32
	parent  InodeID
	alloc   int64
	end     int64 // of readable and staged bytes
	covered int64
	orphan  bool
	rooted  bool
}

const (
	modeType = 0o170000
	modeDir  = 0o040000
	modeReg  = 0o100000
)

func (n *checkNode) dir() bool { return n.mode&modeType == modeDir }

type checker struct {
	snap     Snapshot
	slotSize int64
	problem  func(string)
	seed     maphash.Seed
	head     Head
	nodes    map[InodeID]*checkNode
	live     map[string]int64  // own segments
	objects  map[uint64]uint32 // references to own objects, by hash
	segments map[string]bool
	dead     map[string]Dead
	used     int64
	names    uint64
	counts   int
}

func (c *checker) say(format string, args ...any) { c.problem(fmt.Sprintf(format, args...)) }

// each scans the records of one kind.
func (c *checker) each(kind byte, fn func(key, value []byte) error) error {
	prefix := []byte{kind}
	return c.snap.Scan(prefix, after(prefix), func(key, value []byte) error {
		err := fn(key, value)
		if errors.Is(err, ErrDamaged) {
			c.say("%v", err)
			return nil
		}
		return err
	})
}

func (c *checker) readHead() error {
	value, err := c.snap.Get(headKey())
	if err != nil {
		return fmt.Errorf("the head: %w", err)
	}
	if c.head, err = decodeHead(value); err != nil {
		return err
	}
	if _, err := c.snap.Get(applyingKey()); err == nil {
		c.say("a commit is half applied")
	} else if !errors.Is(err, ErrNotExist) {
		return err
	}
	return nil
}

func (c *checker) readInodes() error {
	err := c.each(kindInode, func(key, value []byte) error {
		i, err := decodeInode(key, value)
		if err != nil {
			return err
		}
		if err := checkInode(i); err != nil {
			c.say("%v", err)
		}
		if i.ID >= c.head.Totals.NextInode {
			c.say("inode %d is not below the next inode number %d", i.ID, c.head.Totals.NextInode)
		}
		if i.Staged != 0 && i.Staged <= i.Size {
			c.say("inode %d has staged bytes up to %d within its size %d", i.ID, i.Staged, i.Size)
		}
		c.nodes[i.ID] = &checkNode{mode: i.Mode, nlink: i.Nlink, parent: i.Parent, alloc: i.Alloc, end: max(i.Size, i.Staged)}
		c.used += i.Alloc
		return nil
	})
	if err != nil {
		return err
	}
	if n := uint64(len(c.nodes)); n != c.head.Totals.Inodes {
		c.say("there are %d inodes, the totals say %d", n, c.head.Totals.Inodes)
	}
	if c.used != c.head.Totals.UsedBytes {
		c.say("the inodes have %d bytes of data, the totals say %d", c.used, c.head.Totals.UsedBytes)
	}
	if root := c.nodes[RootInode]; root == nil && len(c.nodes) > 0 {
		c.say("there is no root directory")
	} else if root != nil && (!root.dir() || root.parent != RootInode) {
		c.say("the root has mode %o and parent %d", root.mode, root.parent)
	}
	return nil
}

func (c *checker) readDead() error {
	err := c.each(kindDead, func(key, value []byte) error {
		d, err := decodeDead(key, value)
		if err != nil {
			return err
		}
		if _, twice := c.dead[d.Key]; twice {
			c.say("%s is dead twice", d.Key)
		}
		if d.Birth > d.Death || d.Death > c.head.N || d.State > DeadCondemned {
			c.say("%s is born with commit %d, died with %d, state %d", d.Key, d.Birth, d.Death, d.State)
		}
		c.dead[d.Key] = d
		return nil
	})
	if err != nil {
		return err
	}
	found := 0
	err = c.each(kindDeadKey, func(key, value []byte) error {
		death, err := decodeUint(key, value)
		if err != nil {
			return err
		}
		found++
		if d, ok := c.dead[string(key[1:])]; !ok || d.Death != death {
			c.say("the death of %s is recorded as of commit %d only by key", key[1:], death)
		}
		return nil
	})
	if err == nil && found != len(c.dead) {
		c.say("%d dead things, %d of them found by key", len(c.dead), found)
	}
	return err
}

func (c *checker) readNames() error {
	return c.each(kindName, func(key, value []byte) error {
		d, err := decodeName(key, value)
		if err != nil {
			return err
		}
		c.names++
		c.readName(&d)
		ck := cookieKey(d.Parent, d.Cookie)
		value, err = c.snap.Get(ck)
		if errors.Is(err, ErrNotExist) {
			c.say("name %q in directory %d is not found by its cookie %d", d.Name, d.Parent, d.Cookie)
			return nil
		}
		if err != nil {
			return err
		}
		e, err := decodeCookie(ck, value)
		if err == nil && e != d {
			c.say("cookie %d of directory %d gives %q (inode %d), not %q (inode %d)", d.Cookie, d.Parent, e.Name, e.Inode, d.Name, d.Inode)
		}
		return err
	})
}

func (c *checker) readName(d *Dentry) {
	if !validName(d.Name) || d.Cookie == 0 {
		c.say("name %q in directory %d has cookie %d", d.Name, d.Parent, d.Cookie)
	}
	dir := c.nodes[d.Parent]
	if dir == nil || !dir.dir() {
		c.say("name %q is in inode %d, which is no directory", d.Name, d.Parent)
	}
	n := c.nodes[d.Inode]
	if n == nil {
		c.say("name %q in directory %d is for inode %d, which does not exist", d.Name, d.Parent, d.Inode)
		return
	}
	n.names++
	if uint32(d.Type) != n.mode>>12 {
		c.say("name %q in directory %d has type %d, its inode %d has mode %o", d.Name, d.Parent, d.Type, d.Inode, n.mode)
	}
	if n.dir() {
		if dir != nil {
			dir.subdirs++
		}
		if n.parent != d.Parent {
			c.say("directory %d is named in %d and says its parent is %d", d.Inode, d.Parent, n.parent)
		}
	}
}

func (c *checker) readCookies() error {
	var cookies uint64
	err := c.each(kindCookie, func(key, value []byte) error {
		if _, err := decodeCookie(key, value); err != nil {
			return err
		}
		cookies++
		return nil
	})
	if err == nil && cookies != c.names {
		c.say("%d names and %d cookies", c.names, cookies)
	}
	return err
}

func (c *checker) readSlots() error {
	prefix := []byte{kindSlot}
	err := scanSlots(c.snap, prefix, after(prefix), func(k slotKey, s *Slot) error {
		c.readSlot(k, s)
		return nil
	})
	if errors.Is(err, ErrDamaged) {
		c.say("%v", err)
		return nil
	}
	return err
}

func (c *checker) readSlot(k slotKey, s *Slot) {
	n := c.nodes[k.ino]
	if n == nil || n.mode&modeType != modeReg {
		c.say("slot %d belongs to inode %d, which is no file", k.slot, k.ino)
	}
	limit := uint64(c.slotSize)
	if b := s.Base; b != nil {
		if uint64(b.Len) > limit || b.Birth > c.head.N {
			c.say("slot %d of inode %d has a base of %d bytes born with commit %d", k.slot, k.ino, b.Len, b.Birth)
		}
		if err := checkBase(b); err != nil {
			c.say("slot %d of inode %d has %v", k.slot, k.ino, err)
		}
		if b.Volume == "" {
			c.objects[maphash.String(c.seed, b.Key)]++
			c.refersTo(k, b.Key)
		}
	}
	c.readPatches(k, s.Patches, limit)
	if n == nil {
		return
	}
	n.covered += int64(s.Coverage(0, uint32(c.slotSize)))
	if end := s.End(); end > 0 && int64(k.slot)*c.slotSize+int64(end) > n.end {
		c.say("slot %d of inode %d has data up to %d, beyond the file's end %d", k.slot, k.ino, int64(k.slot)*c.slotSize+int64(end), n.end)
	}
}

func (c *checker) readPatches(k slotKey, patches []Patch, limit uint64) {
	for i := range patches {
		p := &patches[i]
		if err := checkPatch(p); err != nil {
			c.say("slot %d of inode %d: %v", k.slot, k.ino, err)
		}
		end := uint64(p.Off) + uint64(p.Len)
		if end > limit || p.Commit == 0 || p.Commit > c.head.N {
			c.say("slot %d of inode %d has a patch of commit %d up to %d", k.slot, k.ino, p.Commit, end)
		}
		if i+1 < len(patches) && patches[i+1].Commit == p.Commit && uint64(patches[i+1].Off) < end {
			c.say("slot %d of inode %d has patches of commit %d that overlap at %d", k.slot, k.ino, p.Commit, patches[i+1].Off)
		}
		if !p.Zero && p.Seg.Volume == "" {
			c.live[p.Seg.Key] += int64(p.StoredLen())
			c.refersTo(k, p.Seg.Key)
		}
	}
}

func (c *checker) refersTo(k slotKey, key string) {
	if d, ok := c.dead[key]; ok {
		c.say("slot %d of inode %d refers to %s, which died with commit %d", k.slot, k.ino, key, d.Death)
	}
}

// readCounts compares the recorded references with those of the slots.
func (c *checker) readCounts() error {
	err := c.each(kindCount, func(key, value []byte) error {
		n, err := decodeUint(key, value)
		if err != nil {
			return err
		}
		c.counts++
		if got := c.objects[maphash.Bytes(c.seed, key[1:])]; uint64(got) != n || n < 2 {
			c.say("%s is referred to %d times, recorded are %d", key[1:], got, n)
		}
		return nil
	})
	if err != nil {
		return err
	}
	shared := 0
	for _, n := range c.objects {
		if n > 1 {
			shared++
		}
	}
	if shared != c.counts {
		c.say("%d objects are shared, %d have a recorded number of references", shared, c.counts)
	}
	return nil
}

func (c *checker) readSegments() error {
	err := c.each(kindSegment, func(key, value []byte) error {
		s, err := decodeSegment(key, value)
		if err != nil {
			return err
		}
		c.segments[s.Key] = true
		if s.Live != c.live[s.Key] {
			c.say("segment %s has %d live bytes, recorded are %d", s.Key, c.live[s.Key], s.Live)
		}
		if s.Birth > c.head.N || s.Size <= 0 {
			c.say("segment %s of %d bytes is born with commit %d", s.Key, s.Size, s.Birth)
		}
		if _, dead := c.dead[s.Key]; !dead && s.Live == 0 {
			c.say("segment %s has no live bytes and is not dead", s.Key)
		}
		return nil
	})
	for key, n := range c.live {
		if !c.segments[key] {
			c.say("segment %s has %d live bytes and no record", key, n)
		}
	}
	return err
}

func (c *checker) readOrphans() error {
	return c.each(kindOrphan, func(key, value []byte) error {
		if _, err := decodeUint(key, value); err != nil {
			return err
		}
		id := InodeID(keyUint(key, 1))
		n := c.nodes[id]
		if n == nil {
			c.say("inode %d is in the list of inodes without names and does not exist", id)
			return nil
		}
		n.orphan = true
		if n.names != 0 || n.nlink != 0 {
			c.say("inode %d is in the list of inodes without names with %d links and %d names", id, n.nlink, n.names)
		}
		return nil
	})
}

func (c *checker) judgeInodes() error {
	for id, n := range c.nodes {
		if n.covered != n.alloc {
			c.say("inode %d has %d bytes of data, recorded are %d", id, n.covered, n.alloc)
		}
		if n.orphan || id == RootInode {
			if id == RootInode && (n.names != 0 || n.nlink != 2+n.subdirs) {
				c.say("the root has %d names, %d links and %d subdirectories", n.names, n.nlink, n.subdirs)
			}
			continue
		}
		switch {
		case n.names == 0:
			c.say("inode %d has no name and is not in the list of those", id)
		case n.dir() && (n.names != 1 || n.nlink != 2+n.subdirs):
			c.say("directory %d has %d names, %d links and %d subdirectories", id, n.names, n.nlink, n.subdirs)
		case !n.dir() && n.nlink != n.names:
			c.say("inode %d has %d links and %d names", id, n.nlink, n.names)
		case n.dir() && !c.reachable(id, n):
			c.say("directory %d is not below the root", id)
		}
	}
	return nil
}

// reachable climbs to the root, or to a directory known to be below it.
func (c *checker) reachable(id InodeID, n *checkNode) bool {
	var path []*checkNode
	for ; id != RootInode && !n.rooted; n = c.nodes[id] {
		path = append(path, n)
		id = n.parent
		if c.nodes[id] == nil || len(path) > len(c.nodes) {
			return false
		}
	}
	for _, p := range path {
		p.rooted = true
	}
	return true
}
