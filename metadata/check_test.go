package metadata

import (
	"strings"
	"testing"
)

// checkWorld is a small state with one of everything.
func checkWorld(t *testing.T) *MemKV {
	t.Helper()
	seg := Ref{Key: "segments/0000000001/a.seg"}
	shared := Base{Ref: Ref{Key: "objects/shared"}, Len: 1000, Birth: 1, Sums: []uint32{1}}
	one := shared
	c := rootCommit()
	c.Inodes = []Inode{
		{ID: 1, Mode: modeDir | 0o755, Nlink: 3, Parent: 1},
		{ID: 2, Mode: modeReg | 0o644, Nlink: 1, Size: 1000, Alloc: 1000},
		{ID: 3, Mode: modeDir | 0o755, Nlink: 2, Parent: 1},
		{ID: 4, Mode: modeReg | 0o644, Nlink: 1, Size: 2000, Alloc: 1100},
		{ID: 5, Mode: modeReg | 0o644, Size: 10},
	}
	name := func(parent InodeID, name string, id InodeID, typ uint8) NameChange {
		return NameChange{Dentry: Dentry{Parent: parent, Name: name, Inode: id, Type: typ, Cookie: uint64(id)}}
	}
	c.Names = []NameChange{name(1, "f", 2, 8), name(1, "d", 3, 4), name(3, "g", 4, 8)}
	c.Orphans = []InodeID{5}
	c.Slots = []SlotChange{
		{Inode: 2, Base: &shared},
		{Inode: 4, Base: &one, Add: []Patch{{Commit: 1, Off: 500, Len: 600, Seg: seg, Sum: 1}}},
	}
	c.Segments = []Segment{{Key: seg.Key, Size: 700, Live: 600, Birth: 1, Sum: 1}}
	c.Refs = []RefCount{{Key: "objects/shared", Count: 2}}
	c.Dead = []Dead{{Key: "objects/old", Size: 5, Death: 1, Time: 1}}
	c.Totals = Totals{Inodes: 5, UsedBytes: 2100, NextInode: 6}
	kv := NewMemKV()
	ix := openTestIndex(t, kv)
	must(t, ix.Apply(c, "h", nil))
	checkClean(t, ix)
	return kv
}

func TestIndex_Check_FindsEachDamage(t *testing.T) {
	inode := func(w Writer, i Inode) error { return w.Set(inodeKey(i.ID), encodeInode(&i)) }
	segment := func(w Writer, s Segment) error { return w.Set(keyString(kindSegment, s.Key), encodeSegment(&s)) }
	head := func(w Writer, tot Totals) error {
		h := Head{CommitID: CommitID{Epoch: 1, N: 1}, Hash: "h", Time: 1, Totals: tot}
		return w.Set(headKey(), encodeHead(&h))
	}
	name := func(w Writer, d Dentry, byCookie bool) error {
		if byCookie {
			if err := w.Set(cookieKey(d.Parent, d.Cookie), encodeCookie(&d)); err != nil {
				return err
			}
		}
		return w.Set(nameKVKey(d.Parent, d.Name), encodeName(&d))
	}
	patch := func(w Writer, k slotKey, p Patch) error {
		key := patchKey(k, p.Key())
		return w.Set(key, encodePatch(key, &p))
	}
	base := func(w Writer, k slotKey, b Base) error { return w.Set(baseKey(k), encodeBase(baseKey(k), &b)) }
	file := func(id InodeID) Inode { return Inode{ID: id, Mode: modeReg | 0o644, Nlink: 1, Size: 1000, Alloc: 1000} }

	for _, c := range []struct {
		want string
		edit func(w Writer) error
	}{
		{"is for inode 4, which does not exist", func(w Writer) error { return w.Delete(inodeKey(4)) }},
		{"inode 2 has no name", func(w Writer) error { return w.Delete(nameKVKey(1, "f")) }},
		{"2 names and 3 cookies", func(w Writer) error { return w.Delete(nameKVKey(1, "f")) }},
		{"is not found by its cookie 2", func(w Writer) error { return w.Delete(cookieKey(1, 2)) }},
		{"has type 4", func(w Writer) error {
			return name(w, Dentry{Parent: 1, Name: "f", Inode: 2, Type: 4, Cookie: 2}, true)
		}},
		{"cookie 2 of directory 1 gives", func(w Writer) error {
			return w.Set(cookieKey(1, 2), encodeCookie(&Dentry{Parent: 1, Name: "other", Inode: 2, Type: 8, Cookie: 2}))
		}},
		{"which is no directory", func(w Writer) error {
			return name(w, Dentry{Parent: 2, Name: "x", Inode: 2, Type: 8, Cookie: 9}, true)
		}},
		{"inode 2 has 2 links and 1 names", func(w Writer) error {
			i := file(2)
			i.Nlink = 2
			return inode(w, i)
		}},
		{"directory 3 has 1 names, 3 links", func(w Writer) error {
			return inode(w, Inode{ID: 3, Mode: modeDir, Nlink: 3, Parent: 1})
		}},
		{"says its parent is 2", func(w Writer) error {
			return inode(w, Inode{ID: 3, Mode: modeDir, Nlink: 2, Parent: 2})
		}},
		{"directory 3 is not below the root", func(w Writer) error {
			if err := inode(w, Inode{ID: 3, Mode: modeDir, Nlink: 3, Parent: 3}); err != nil {
				return err
			}
			if err := w.Delete(nameKVKey(1, "d")); err != nil {
				return err
			}
			return name(w, Dentry{Parent: 3, Name: "d", Inode: 3, Type: 4, Cookie: 3}, true)
		}},
		{"the root has", func(w Writer) error { return inode(w, Inode{ID: 1, Mode: modeDir, Nlink: 2, Parent: 1}) }},
		{"the root has mode", func(w Writer) error { return inode(w, Inode{ID: 1, Mode: modeReg, Nlink: 3, Parent: 1}) }},
		{"there is no root", func(w Writer) error { return w.Delete(inodeKey(1)) }},
		{"belongs to inode 9", func(w Writer) error { return patch(w, slotKey{9, 0}, Patch{Commit: 1, Len: 5, Zero: true}) }},
		{"inode 2 has 990 bytes of data, recorded are 1000", func(w Writer) error {
			return patch(w, slotKey{2, 0}, Patch{Commit: 1, Off: 5, Len: 10, Zero: true})
		}},
		{"has data up to", func(w Writer) error {
			i := file(2)
			i.Size = 999
			return inode(w, i)
		}},
		{"has a patch of commit 2", func(w Writer) error {
			return patch(w, slotKey{4, 0}, Patch{Commit: 2, Off: 1100, Len: 10, Zero: true})
		}},
		{"overlap at 600", func(w Writer) error {
			return patch(w, slotKey{4, 0}, Patch{Commit: 1, Off: 600, Len: 1, Zero: true})
		}},
		{"of 1 blocks with 0 frames and 2 checksums", func(w Writer) error {
			return base(w, slotKey{2, 0}, Base{Ref: Ref{Key: "objects/shared"}, Len: 1000, Birth: 1, Sums: []uint32{1, 2}})
		}},
		{"has a base of", func(w Writer) error {
			return base(w, slotKey{2, 0}, Base{Ref: Ref{Key: "objects/shared"}, Len: 1000, Birth: 7, Sums: []uint32{1}})
		}},
		{"has 600 live bytes, recorded are 601", func(w Writer) error {
			return segment(w, Segment{Key: "segments/0000000001/a.seg", Size: 700, Live: 601, Birth: 1})
		}},
		{"600 live bytes and no record", func(w Writer) error { return w.Delete(keyString(kindSegment, "segments/0000000001/a.seg")) }},
		{"no live bytes and is not dead", func(w Writer) error {
			return segment(w, Segment{Key: "segments/0000000001/b.seg", Size: 700, Birth: 1})
		}},
		{"is referred to 2 times, recorded are 3", func(w Writer) error {
			k := keyString(kindCount, "objects/shared")
			return w.Set(k, encodeUint(k, 3))
		}},
		{"1 objects are shared, 0 have", func(w Writer) error { return w.Delete(keyString(kindCount, "objects/shared")) }},
		{"objects/gone is referred to 0 times", func(w Writer) error {
			k := keyString(kindCount, "objects/gone")
			return w.Set(k, encodeUint(k, 2))
		}},
		{"with 0 links and 1 names", func(w Writer) error {
			return name(w, Dentry{Parent: 1, Name: "o", Inode: 5, Type: 8, Cookie: 5}, true)
		}},
		{"inode 5 has no name and is not in the list", func(w Writer) error { return w.Delete(orphanKey(5)) }},
		{"inode 8 is in the list of inodes without names and does not exist", func(w Writer) error {
			return w.Set(orphanKey(8), encodeUint(orphanKey(8), 1))
		}},
		{"there are 5 inodes, the totals say 6", func(w Writer) error { return head(w, Totals{Inodes: 6, UsedBytes: 2100, NextInode: 6}) }},
		{"2100 bytes of data, the totals say 2101", func(w Writer) error { return head(w, Totals{Inodes: 5, UsedBytes: 2101, NextInode: 6}) }},
		{"inode 5 is not below the next inode number 5", func(w Writer) error { return head(w, Totals{Inodes: 5, UsedBytes: 2100, NextInode: 5}) }},
		{"refers to objects/shared, which died", func(w Writer) error {
			d := Dead{Key: "objects/shared", Death: 1}
			return w.Set(deadKey(1, d.Key), encodeDead(&d))
		}},
		{"2 dead things, 1 of them found by key", func(w Writer) error {
			d := Dead{Key: "objects/x", Death: 1}
			return w.Set(deadKey(1, d.Key), encodeDead(&d))
		}},
		{"as of commit 1 only by key", func(w Writer) error { return w.Delete(deadKey(1, "objects/old")) }},
		{"is born with commit 9", func(w Writer) error {
			d := Dead{Key: "objects/old", Birth: 9, Death: 1}
			return w.Set(deadKey(1, d.Key), encodeDead(&d))
		}},
		{"staged bytes up to 5 within", func(w Writer) error {
			i := file(2)
			i.Staged = 5
			return inode(w, i)
		}},
		{"a commit is half applied", func(w Writer) error { return w.Set(applyingKey(), encodeApplying(applying{})) }},
		{"its checksum does not match", func(w Writer) error { return w.Set(inodeKey(2), []byte("not an inode")) }},
		{"of slot 0 of inode 2 is damaged", func(w Writer) error { return w.Set(baseKey(slotKey{2, 0}), []byte("not a base")) }},
	} {
		kv := checkWorld(t)
		must(t, kv.Update(c.edit))
		var found []string
		must(t, openTestIndex(t, kv).Check(func(p string) { found = append(found, p) }))
		if !strings.Contains(strings.Join(found, "\n"), c.want) {
			t.Errorf("%q is not among the problems:\n%s", c.want, strings.Join(found, "\n"))
		}
	}
}

func TestIndex_Check_EmptyStateIsClean(t *testing.T) {
	checkClean(t, openTestIndex(t, NewMemKV()))
}
