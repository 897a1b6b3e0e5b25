package metadata

import (
	"errors"
	"slices"
)

func (a *applier) applyInodes() error {
	for i := range a.c.Inodes {
		n := &a.c.Inodes[i]
		a.unit.set(inodeKey(n.ID), encodeInode(n))
		a.unit.inodes = append(a.unit.inodes, n.ID)
		if err := a.end(); err != nil {
			return err
		}
	}
	for _, id := range a.c.Orphans {
		key := orphanKey(id)
		a.unit.set(key, encodeUint(key, 1))
		if err := a.end(); err != nil {
			return err
		}
	}
	for _, id := range a.c.NoOrphans {
		a.unit.delete(orphanKey(id))
		if err := a.end(); err != nil {
			return err
		}
	}
	return nil
}

func (a *applier) applyNames() error {
	for i := range a.c.Names {
		if err := a.applyName(&a.c.Names[i]); err != nil {
			return err
		}
		if err := a.end(); err != nil {
			return err
		}
	}
	return nil
}

// applyName changes a name and its cookie. Which cookies go is taken from the
// records, too: applied again, the name may already have its new one.
func (a *applier) applyName(n *NameChange) error {
	key := nameKVKey(n.Parent, n.Name)
	old := []uint64{n.OldCookie}
	if n.Inode == 0 {
		old = append(old, n.Cookie)
	}
	value, ok, err := a.find(key)
	if err != nil {
		return err
	}
	if ok {
		d, err := decodeName(key, value)
		if err != nil {
			return err
		}
		old = append(old, d.Cookie)
	}
	slices.Sort(old)
	for _, c := range slices.Compact(old) {
		if c == 0 || (n.Inode != 0 && c == n.Cookie) {
			continue
		}
		if err := a.deleteCookie(n, c); err != nil {
			return err
		}
	}
	if n.Inode == 0 {
		a.unit.delete(key)
	} else {
		a.unit.set(key, encodeName(&n.Dentry))
		a.unit.set(cookieKey(n.Parent, n.Cookie), encodeCookie(&n.Dentry))
	}
	a.unit.names = append(a.unit.names, nameKey{n.Parent, n.Name})
	return nil
}

// deleteCookie removes a cookie unless another name has it by now.
func (a *applier) deleteCookie(n *NameChange, cookie uint64) error {
	key := cookieKey(n.Parent, cookie)
	value, ok, err := a.find(key)
	if err != nil || !ok {
		return err
	}
	d, err := decodeCookie(key, value)
	if err != nil {
		return err
	}
	if d.Name == n.Name {
		a.unit.delete(key)
	}
	return nil
}

func (a *applier) applySlots() error {
	for i := range a.c.Slots {
		ch := &a.c.Slots[i]
		k := slotKey{ch.Inode, ch.Slot}
		old, err := a.ix.Slot(k.ino, k.slot)
		if err != nil {
			return err
		}
		a.changeSlot(k, old, old.With(*ch))
		if err := a.forgetLocal(ch); err != nil {
			return err
		}
		if err := a.end(); err != nil {
			return err
		}
	}
	return nil
}

// changeSlot writes the difference of two versions of a slot.
func (a *applier) changeSlot(k slotKey, old, now *Slot) {
	if a.unit.slots == nil {
		a.unit.slots = make(map[slotKey]*Slot)
	}
	a.unit.slots[k] = now
	var was, is Slot
	if old != nil {
		was.Base, was.Patches = old.Base, old.Patches
	}
	if now != nil {
		is.Base, is.Patches = now.Base, now.Patches
	}
	if is.Base != was.Base {
		key := baseKey(k)
		if is.Base == nil {
			a.unit.delete(key)
		} else {
			a.unit.set(key, encodeBase(key, is.Base))
		}
	}
	i, j := 0, 0
	for i < len(was.Patches) || j < len(is.Patches) {
		switch c := comparePatchAt(was.Patches, i, is.Patches, j); {
		case c < 0:
			a.unit.delete(patchKey(k, was.Patches[i].Key()))
			i++
		case c > 0:
			key := patchKey(k, is.Patches[j].Key())
			a.unit.set(key, encodePatch(key, &is.Patches[j]))
			j++
		default:
			if was.Patches[i] != is.Patches[j] {
				key := patchKey(k, is.Patches[j].Key())
				a.unit.set(key, encodePatch(key, &is.Patches[j]))
			}
			i, j = i+1, j+1
		}
	}
}

func comparePatchAt(a []Patch, i int, b []Patch, j int) int {
	switch {
	case i == len(a):
		return 1
	case j == len(b):
		return -1
	}
	return comparePatches(a[i], b[j])
}

// forgetLocal deletes the checksums of cached blocks that a change of a slot
// touches: all of the slot's, unless it only adds patches.
func (a *applier) forgetLocal(ch *SlotChange) error {
	start := int64(ch.Slot) * a.ix.slotSize
	touched := [][2]int64{{start, start + a.ix.slotSize}}
	if !ch.Remove && ch.Base == nil && ch.DropThrough == 0 && len(ch.Drop) == 0 {
		if len(ch.Add) == 0 {
			return nil
		}
		touched = touched[:0]
		for i := range ch.Add {
			off := start + int64(ch.Add[i].Off)
			touched = append(touched, [2]int64{off, off + int64(ch.Add[i].Len)})
		}
	}
	first, last := touched[0][0]/BlockSize, (touched[len(touched)-1][1]-1)/BlockSize
	at := 0
	return a.ix.kv.Scan(localKey(ch.Inode, first), localKey(ch.Inode, last+1), func(key, _ []byte) error {
		lo := int64(keyUint(key, 9)) * BlockSize
		for at < len(touched) && touched[at][1] <= lo {
			at++
		}
		if at < len(touched) && touched[at][0] < lo+BlockSize {
			a.unit.delete(slices.Clone(key))
		}
		return nil
	})
}

// applyGone removes inodes with all that belongs to them. Their slots go in
// as many updates as it takes: nobody reads a file that is gone.
func (a *applier) applyGone() error {
	for _, id := range a.c.Gone {
		a.unit.delete(inodeKey(id))
		a.unit.delete(orphanKey(id))
		a.unit.inodes = append(a.unit.inodes, id)
		if err := a.end(); err != nil {
			return err
		}
		if a.written[id] {
			// What the batch sets must be in the store to be found and deleted.
			if err := a.flush(); err != nil {
				return err
			}
		}
		for _, kind := range []byte{kindSlot, kindLocal} {
			if err := a.deleteRange(key8(kind, uint64(id)), key8(kind, uint64(id)+1)); err != nil {
				return err
			}
		}
	}
	return nil
}

// deleteRange removes what the store has in a range.
func (a *applier) deleteRange(from, to []byte) error {
	return a.ix.kv.Scan(from, to, func(key, _ []byte) error {
		k := slices.Clone(key)
		a.unit.delete(k)
		if k[0] == kindSlot && len(k) >= 14 {
			sk := slotKey{InodeID(keyUint(k, 1)), uint32(keyUint(k, 5))}
			a.unit.slots = map[slotKey]*Slot{sk: nil}
		}
		return a.end()
	})
}

func (a *applier) applySegments() error {
	for i := range a.c.Segments {
		s := &a.c.Segments[i]
		a.unit.set(keyString(kindSegment, s.Key), encodeSegment(s))
		if err := a.end(); err != nil {
			return err
		}
	}
	for _, s := range a.c.Live {
		key := keyString(kindSegment, s.Key)
		value, ok, err := a.find(key)
		if err != nil {
			return err
		}
		if ok {
			live := s.Live
			if s, err = decodeSegment(key, value); err != nil {
				return err
			}
			s.Live = live
		}
		a.unit.set(key, encodeSegment(&s))
		if err := a.end(); err != nil {
			return err
		}
	}
	for _, r := range a.c.Refs {
		key := keyString(kindCount, r.Key)
		if r.Count > 1 {
			a.unit.set(key, encodeUint(key, uint64(r.Count)))
		} else {
			a.unit.delete(key)
		}
		if err := a.end(); err != nil {
			return err
		}
	}
	return nil
}

func (a *applier) applyDead() error {
	each := func(keys []string, fn func(d *Dead)) error {
		for _, key := range keys {
			if err := a.changeDead(key, fn); err != nil {
				return err
			}
		}
		return nil
	}
	for i := range a.c.Dead {
		d := &a.c.Dead[i]
		if err := a.removeDead(d.Key); err != nil {
			return err
		}
		a.putDead(d)
		if err := a.end(); err != nil {
			return err
		}
	}
	if err := each(a.c.Condemned, func(d *Dead) { d.State = DeadCondemned }); err != nil {
		return err
	}
	if err := each(a.c.TakenBack, func(d *Dead) { d.State = DeadKept }); err != nil {
		return err
	}
	if err := each(a.c.Undead, nil); err != nil {
		return err
	}
	for _, key := range a.c.Collected {
		a.unit.delete(keyString(kindSegment, key))
		if err := a.changeDead(key, nil); err != nil {
			return err
		}
	}
	return nil
}

// changeDead changes or, without fn, forgets a dead thing. One that is not there
// is no error: applied again, the record may be gone already.
func (a *applier) changeDead(key string, fn func(d *Dead)) error {
	d, err := readDead(a, key)
	if err != nil && !errors.Is(err, ErrNotExist) {
		return err
	}
	if err == nil {
		if fn == nil {
			if err := a.removeDead(key); err != nil {
				return err
			}
		} else {
			fn(&d)
			a.putDead(&d)
		}
	}
	return a.end()
}

func (a *applier) putDead(d *Dead) {
	key := keyString(kindDeadKey, d.Key)
	a.unit.set(deadKey(d.Death, d.Key), encodeDead(d))
	a.unit.set(key, encodeUint(key, d.Death))
}

func (a *applier) removeDead(key string) error {
	k := keyString(kindDeadKey, key)
	value, ok, err := a.find(k)
	if err != nil || !ok {
		return err
	}
	death, err := decodeUint(k, value)
	if err != nil {
		return err
	}
	a.unit.delete(deadKey(death, key))
	a.unit.delete(k)
	return nil
}

func (a *applier) applyLocal(local []LocalSum) error {
	for _, l := range local {
		key := localKey(l.Inode, l.Block)
		a.unit.set(key, encodeUint(key, uint64(l.Sum)))
		if err := a.end(); err != nil {
			return err
		}
	}
	return nil
}
