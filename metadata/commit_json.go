package metadata

import "fmt"

type commitDoc struct {
	docHead
	Epoch     num               `json:"epoch"`
	N         num               `json:"n"`
	Prev      string            `json:"prev,omitempty"`
	First     num               `json:"first,omitempty"`
	Last      num               `json:"last,omitempty"`
	Time      snum              `json:"time"`
	Writer    text              `json:"writer,omitempty"`
	Reign     string            `json:"reign,omitempty"`
	Manifest  *idDoc            `json:"manifest,omitempty"`
	Settings  *settingsDoc      `json:"settings,omitempty"`
	Totals    totalsDoc         `json:"totals"`
	Tags      map[string]string `json:"tags,omitempty"`
	Segs      []segmentDoc      `json:"segs,omitempty"`
	Refs      []refDoc          `json:"refs,omitempty"`
	Objects   []objectDoc       `json:"objects,omitempty"`
	Inodes    []inodeDoc        `json:"inodes,omitempty"`
	Gone      []num             `json:"gone,omitempty"`
	Names     []nameDoc         `json:"names,omitempty"`
	Slots     []slotDoc         `json:"slots,omitempty"`
	Orphans   []num             `json:"orphans,omitempty"`
	NoOrphans []num             `json:"no_orphans,omitempty"`
	Live      []segmentDoc      `json:"live,omitempty"`
	Counts    []countDoc        `json:"counts,omitempty"`
	Dead      []deadDoc         `json:"dead,omitempty"`
	Condemned []text            `json:"condemned,omitempty"`
	TakenBack []text            `json:"taken_back,omitempty"`
	Collected []text            `json:"collected,omitempty"`
	Horizon   num               `json:"horizon,omitempty"`
	Undead    []text            `json:"undead,omitempty"`
}

type slotDoc struct {
	Inode  num        `json:"i,omitempty"`
	Slot   uint32     `json:"n,omitempty"`
	Remove bool       `json:"rm,omitempty"`
	Base   *baseDoc   `json:"b,omitempty"`
	Thru   num        `json:"dt,omitempty"`
	Drop   []dropDoc  `json:"d,omitempty"`
	Add    []patchDoc `json:"a,omitempty"`
}

// dropDoc is the patches of one commit that go.
type dropDoc struct {
	Commit num      `json:"c"`
	Offs   []uint32 `json:"o"`
}

// EncodeCommit returns the commit's document: the same bytes for the same commit.
// The tags must be UTF-8. Add[].Commit is not written: it is the commit's own number.
func EncodeCommit(c *Commit) []byte {
	d := commitDoc{
		docHead: docHead{Kind: "commit", V: formatVersion},
		Epoch:   num(c.Epoch), N: num(c.N), Prev: c.Prev, First: num(c.FirstLSN), Last: num(c.LastLSN),
		Time: snum(c.Time), Writer: text(c.Writer), Reign: c.Reign, Manifest: newIDDoc(c.Manifest),
		Totals: newTotalsDoc(c.Totals), Tags: c.Tags, Horizon: num(c.Horizon),
		Segs: mapped(c.Segments, newSegmentDoc), Live: mapped(c.Live, newSegmentDoc),
		Objects: mapped(c.Objects, func(o Object) objectDoc {
			return objectDoc{Key: text(o.Key), Size: snum(o.Size), Sum: o.Sum}
		}),
		Inodes: mapped(c.Inodes, func(i Inode) inodeDoc { return newInodeDoc(&i) }),
		Names:  mapped(c.Names, func(n NameChange) nameDoc { return newNameDoc(n.Dentry, n.OldCookie) }),
		Gone:   mapped(c.Gone, inodeNum), Orphans: mapped(c.Orphans, inodeNum), NoOrphans: mapped(c.NoOrphans, inodeNum),
		Counts:    mapped(c.Refs, func(r RefCount) countDoc { return countDoc{Key: text(r.Key), Count: r.Count} }),
		Dead:      mapped(c.Dead, func(x Dead) deadDoc { return newDeadDoc(&x) }),
		Condemned: mapped(c.Condemned, asText), TakenBack: mapped(c.TakenBack, asText),
		Collected: mapped(c.Collected, asText), Undead: mapped(c.Undead, asText),
	}
	if c.Settings != nil {
		s := newSettingsDoc(*c.Settings)
		d.Settings = &s
	}
	w := newPatchWriter(c.Segments)
	for i := range c.Slots {
		s := newSlotDoc(&c.Slots[i], w)
		if i > 0 && c.Slots[i].Inode == c.Slots[i-1].Inode {
			s.Inode = 0
		}
		d.Slots = append(d.Slots, s)
	}
	w.setCiphers(d.Segs)
	d.Refs = w.extra
	return sealDoc(d)
}

func newSlotDoc(s *SlotChange, w *patchWriter) slotDoc {
	d := slotDoc{Inode: num(s.Inode), Slot: s.Slot, Remove: s.Remove, Base: newBaseDoc(s.Base), Thru: num(s.DropThrough)}
	for _, k := range s.Drop {
		if n := len(d.Drop); n == 0 || d.Drop[n-1].Commit != num(k.Commit) {
			d.Drop = append(d.Drop, dropDoc{Commit: num(k.Commit)})
		}
		last := &d.Drop[len(d.Drop)-1]
		last.Offs = append(last.Offs, k.Off)
	}
	for i := range s.Add {
		d.Add = append(d.Add, w.write(&s.Add[i]))
	}
	return d
}

// DecodeCommit verifies and reads a commit's document: ErrDamaged, ErrNewerFormat.
func DecodeCommit(body []byte) (*Commit, error) {
	var d commitDoc
	if err := openDoc(body, "commit", &d); err != nil {
		return nil, err
	}
	c := &Commit{
		CommitID: CommitID{Epoch: uint64(d.Epoch), N: uint64(d.N)}, Prev: d.Prev,
		FirstLSN: uint64(d.First), LastLSN: uint64(d.Last), Time: int64(d.Time), Writer: string(d.Writer),
		Reign: d.Reign, Manifest: d.Manifest.id(), Totals: d.Totals.totals(), Tags: d.Tags, Horizon: uint64(d.Horizon),
		Segments: mapped(d.Segs, func(s segmentDoc) Segment { return s.segment() }),
		Live:     mapped(d.Live, func(s segmentDoc) Segment { return s.segment() }),
		Objects: mapped(d.Objects, func(o objectDoc) Object {
			return Object{Key: string(o.Key), Size: int64(o.Size), Sum: o.Sum}
		}),
		Inodes: mapped(d.Inodes, func(i inodeDoc) Inode { return i.inode() }),
		Names:  mapped(d.Names, func(n nameDoc) NameChange { return NameChange{Dentry: n.dentry(), OldCookie: uint64(n.Old)} }),
		Gone:   mapped(d.Gone, asInode), Orphans: mapped(d.Orphans, asInode), NoOrphans: mapped(d.NoOrphans, asInode),
		Refs:      mapped(d.Counts, func(r countDoc) RefCount { return RefCount{Key: string(r.Key), Count: r.Count} }),
		Dead:      mapped(d.Dead, func(x deadDoc) Dead { return x.dead() }),
		Condemned: mapped(d.Condemned, asString), TakenBack: mapped(d.TakenBack, asString),
		Collected: mapped(d.Collected, asString), Undead: mapped(d.Undead, asString),
	}
	if d.Settings != nil {
		s := d.Settings.settings()
		c.Settings = &s
	}
	r := &patchReader{commit: c.N}
	for i, s := range c.Segments {
		r.refs, r.ciphers = append(r.refs, Ref{Key: s.Key}), append(r.ciphers, d.Segs[i].cipher())
	}
	for _, x := range d.Refs {
		r.refs, r.ciphers = append(r.refs, Ref{Volume: string(x.Volume), Key: string(x.Key)}), append(r.ciphers, x.cipher())
	}
	for i := range d.Slots {
		if i > 0 && d.Slots[i].Inode == 0 {
			d.Slots[i].Inode = d.Slots[i-1].Inode
		}
		s, err := d.Slots[i].change(r)
		if err != nil {
			return nil, damaged("commit "+c.String(), "slot %d of inode %d: %v", d.Slots[i].Slot, d.Slots[i].Inode, err)
		}
		c.Slots = append(c.Slots, s)
	}
	if err := c.Validate(); err != nil {
		return nil, damaged("commit "+c.String(), "%v", err)
	}
	return c, nil
}

func (d *slotDoc) change(r *patchReader) (SlotChange, error) {
	s := SlotChange{Inode: InodeID(d.Inode), Slot: d.Slot, Remove: d.Remove, DropThrough: uint64(d.Thru)}
	base, err := d.Base.base()
	if err != nil {
		return s, err
	}
	s.Base = base
	for _, g := range d.Drop {
		for _, off := range g.Offs {
			s.Drop = append(s.Drop, PatchKey{Commit: uint64(g.Commit), Off: off})
		}
	}
	for _, a := range d.Add {
		p, err := r.read(a)
		if err != nil {
			return s, err
		}
		s.Add = append(s.Add, p)
	}
	return s, nil
}

// Validate refuses a commit that could not be applied or read back: EncodeCommit
// writes anything, and Apply and DecodeCommit check it.
func (c *Commit) Validate() error {
	seen := make(map[slotKey]bool, len(c.Slots))
	for i := range c.Slots {
		s := &c.Slots[i]
		k := slotKey{s.Inode, s.Slot}
		if s.Inode == 0 || seen[k] {
			return fmt.Errorf("slot %d of inode %d is changed twice or has no inode", s.Slot, s.Inode)
		}
		seen[k] = true
		if s.Base != nil {
			if err := checkBase(s.Base); err != nil {
				return fmt.Errorf("slot %d of inode %d: %w", s.Slot, s.Inode, err)
			}
		}
		if err := c.validateAdd(s); err != nil {
			return fmt.Errorf("slot %d of inode %d: %w", s.Slot, s.Inode, err)
		}
	}
	for i := range c.Inodes {
		if err := checkInode(&c.Inodes[i]); err != nil {
			return err
		}
	}
	for i := range c.Names {
		n := &c.Names[i]
		if n.Parent == 0 || !validName(n.Name) || (n.Inode != 0 && n.Cookie == 0) {
			return fmt.Errorf("name %q in directory %d for inode %d with cookie %d", n.Name, n.Parent, n.Inode, n.Cookie)
		}
	}
	return nil
}

func (c *Commit) validateAdd(s *SlotChange) error {
	for i := range s.Add {
		p := &s.Add[i]
		if err := checkPatch(p); err != nil {
			return err
		}
		if p.Commit != c.N {
			return fmt.Errorf("a patch of commit %d in commit %d", p.Commit, c.N)
		}
		if i > 0 && uint64(p.Off) < uint64(s.Add[i-1].Off)+uint64(s.Add[i-1].Len) {
			return fmt.Errorf("patches at %d and %d overlap or are out of order", s.Add[i-1].Off, p.Off)
		}
	}
	return nil
}

// checkInode holds an inode to what one record can carry.
func checkInode(i *Inode) error {
	n := len(i.Target)
	for _, x := range i.Xattrs {
		n += len(x.Name) + len(x.Value)
	}
	switch {
	case i.ID == 0:
		return fmt.Errorf("inode 0")
	case n > MaxInodeBytes:
		return fmt.Errorf("inode %d has %d bytes of xattrs and link target, at most %d are possible", i.ID, n, MaxInodeBytes)
	case i.Size < 0 || i.Alloc < 0 || i.Staged < 0:
		return fmt.Errorf("inode %d has size %d, %d bytes of data and staged bytes up to %d", i.ID, i.Size, i.Alloc, i.Staged)
	}
	return nil
}

func validName(s string) bool {
	if s == "" || s == "." || s == ".." || len(s) > MaxName {
		return false
	}
	for i := range len(s) {
		if s[i] == '/' || s[i] == 0 {
			return false
		}
	}
	return true
}

func inodeNum(i InodeID) num { return num(i) }
func asInode(n num) InodeID  { return InodeID(n) }
func asText(s string) text   { return text(s) }
func asString(t text) string { return string(t) }

func mapped[A, B any](in []A, fn func(A) B) []B {
	if len(in) == 0 {
		return nil
	}
	out := make([]B, len(in))
	for i, v := range in {
		out[i] = fn(v)
	}
	return out
}
