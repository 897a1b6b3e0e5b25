package metadata

import (
	"errors"
	"fmt"
)

// ErrNotNext is returned by Apply for a commit that does not follow the head.
var ErrNotNext = errors.New("not the commit that follows the index's last one")

// Apply brings the index from a commit's predecessor to the commit and makes it
// durable; hash is that of the commit's body. local are checksums of cached blocks
// as of this commit: those of all other blocks whose content the commit may change
// are forgotten. For the commit that is the head already it does nothing.
//
// After an error or a crash the same commit is applied again. ErrNotNext: the
// commit does not follow, or goes back to an earlier state (Resets), or another
// one was interrupted before.
func (ix *Index) Apply(c *Commit, hash string, local []LocalSum) error {
	ix.applyMu.Lock()
	defer ix.applyMu.Unlock()
	head := ix.Head()
	if head.CommitID == c.CommitID && head.Hash == hash {
		return nil
	}
	if err := ix.follows(&head, c, hash); err != nil {
		return fmt.Errorf("apply commit %v: %w", c.CommitID, err)
	}
	a := &applier{ix: ix, c: c, mark: applying{id: c.CommitID, hash: hash}}
	if err := a.run(headAfter(head, c, hash), local); err != nil {
		return fmt.Errorf("apply commit %v: %w", c.CommitID, err)
	}
	return nil
}

// follows checks that c is next on the path: a seal takes a number and leads to
// the next epoch.
func (ix *Index) follows(head *Head, c *Commit, hash string) error {
	at := head.CommitID
	if at == (CommitID{}) {
		at.Epoch = 1
	}
	switch {
	case c.Resets():
		return fmt.Errorf("it goes back to an earlier state: %w", ErrNotNext)
	case c.Epoch < at.Epoch || c.N <= at.N || c.N-at.N != c.Epoch-at.Epoch+1:
		return fmt.Errorf("after commit %v: %w", head.CommitID, ErrNotNext)
	case c.Prev != head.Hash:
		return fmt.Errorf("its predecessor's hash is %.16q, the index has %.16q: %w", c.Prev, head.Hash, ErrNotNext)
	}
	ix.mu.RLock()
	p := ix.pending
	ix.mu.RUnlock()
	if p != nil && (p.id != c.CommitID || p.hash != hash) {
		return fmt.Errorf("commit %v (%.16s) was interrupted and comes first: %w", p.id, p.hash, ErrNotNext)
	}
	return c.Validate()
}

func headAfter(h Head, c *Commit, hash string) Head {
	h.CommitID, h.Hash, h.LastLSN, h.Time, h.Manifest, h.Totals = c.CommitID, hash, c.LastLSN, c.Time, c.Manifest, c.Totals
	if c.Settings != nil {
		h.Settings = *c.Settings
	}
	if c.Horizon != 0 {
		h.Horizon = c.Horizon
	}
	return h
}

// op is one change of a key; a nil value deletes it.
type op struct{ key, value []byte }

// changes are ops with the cached values that they make stale.
type changes struct {
	ops    []op
	bytes  int
	slots  map[slotKey]*Slot
	inodes []InodeID
	names  []nameKey
}

func (u *changes) set(key, value []byte) {
	u.ops = append(u.ops, op{key, value})
	u.bytes += len(key) + len(value)
}

func (u *changes) delete(key []byte) { u.set(key, nil) }

// Bounds of what an applier collects for one update: half of what one may hold.
const (
	batchBytes = MaxUpdateBytes / 2
	batchOps   = MaxUpdateOps / 2
)

func (u *changes) over(more *changes, maxOps int) bool {
	return u.bytes+more.bytes > batchBytes || len(u.ops)+len(more.ops) > maxOps
}

// applier turns a commit into updates of bounded size. A unit is what must be in
// one update; units are collected in batch until it is full.
type applier struct {
	ix      *Index
	c       *Commit
	mark    applying
	marked  bool
	batch   changes
	written map[InodeID]bool  // whose slots the commit changes
	overlay map[string][]byte // the batch's values by key; nil: deleted
	unit    changes
}

func (a *applier) run(head Head, local []LocalSum) error {
	a.overlay = make(map[string][]byte)
	a.written = make(map[InodeID]bool)
	for i := range a.c.Slots {
		a.written[a.c.Slots[i].Inode] = true
	}
	a.marked = a.ix.isPending()
	for _, step := range []func() error{
		a.applyInodes, a.applyNames, a.applySlots, a.applyGone, a.applySegments, a.applyDead,
		func() error { return a.applyLocal(local) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return a.finish(head)
}

func (ix *Index) isPending() bool {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	return ix.pending != nil
}

// finish writes the head: with all changes where they fit into one update,
// otherwise when they are durable.
func (a *applier) finish(head Head) error {
	var none changes
	if !a.marked && a.batch.over(&none, a.ix.maxOps) {
		// Too big for one update: the head must not be in it.
		if err := a.flush(); err != nil {
			return err
		}
	}
	if a.marked {
		if err := a.flush(); err != nil {
			return err
		}
		if err := a.ix.kv.Sync(); err != nil {
			return err
		}
		a.batch.delete(applyingKey())
	}
	a.batch.set(headKey(), encodeHead(&head))
	if err := a.write(); err != nil {
		return err
	}
	if err := a.ix.kv.Sync(); err != nil {
		// Until it is known to be durable the commit is still to be applied.
		return err
	}
	a.ix.mu.Lock()
	a.ix.head, a.ix.pending = head, nil
	a.ix.mu.Unlock()
	return nil
}

// end closes a unit.
func (a *applier) end() error {
	u := a.unit
	a.unit = changes{}
	if len(a.batch.ops) > 0 && a.batch.over(&u, a.ix.maxOps) {
		if err := a.flush(); err != nil {
			return err
		}
	}
	a.batch.ops = append(a.batch.ops, u.ops...)
	a.batch.bytes += u.bytes
	a.batch.inodes = append(a.batch.inodes, u.inodes...)
	a.batch.names = append(a.batch.names, u.names...)
	for k, s := range u.slots {
		if a.batch.slots == nil {
			a.batch.slots = make(map[slotKey]*Slot)
		}
		a.batch.slots[k] = s
	}
	for _, o := range u.ops {
		a.overlay[string(o.key)] = o.value
	}
	return nil
}

// flush writes the batch, which is not the last one: the mark goes before.
func (a *applier) flush() error {
	if len(a.batch.ops) == 0 {
		return nil
	}
	if !a.marked {
		kv := a.ix.kv
		err := kv.Update(func(w Writer) error { return w.Set(applyingKey(), encodeApplying(a.mark)) })
		if err == nil {
			err = kv.Sync()
		}
		if err != nil {
			return err
		}
		mark := a.mark
		a.ix.mu.Lock()
		a.ix.pending = &mark
		a.ix.mu.Unlock()
		a.marked = true
	}
	return a.write()
}

// write makes one update of the batch, or several while no slot is read when a
// single unit is too big for one, and forgets the cached values.
func (a *applier) write() (err error) {
	b := a.batch
	a.batch = changes{}
	clear(a.overlay)
	defer func() { a.ix.changed(&b, err == nil) }() // after an error too: the update may have happened
	var none changes
	if b.over(&none, batchOps) {
		a.ix.wide.Lock()
		defer a.ix.wide.Unlock()
	}
	for ops := b.ops; len(ops) > 0; {
		n, size := 0, 0
		for n < len(ops) && n < MaxUpdateOps {
			size += len(ops[n].key) + len(ops[n].value)
			if size > MaxUpdateBytes {
				break
			}
			n++
		}
		if err := a.ix.kv.Update(func(w Writer) error { return writeOps(w, ops[:n]) }); err != nil {
			return err
		}
		ops = ops[n:]
	}
	return nil
}

func writeOps(w Writer, ops []op) error {
	for _, o := range ops {
		var err error
		if o.value == nil {
			err = w.Delete(o.key)
		} else {
			err = w.Set(o.key, o.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// changed forgets cached values that an update made stale. Slots are hot where
// they change: the new ones stay, unless the update failed and nobody knows which
// version is there.
func (ix *Index) changed(b *changes, done bool) {
	if len(b.slots) > 0 {
		ix.slots.change(func(remove func(slotKey), replace func(slotKey, *Slot, int64)) {
			for k, s := range b.slots {
				if done {
					replace(k, s, s.cost())
				} else {
					remove(k)
				}
			}
		})
	}
	if len(b.inodes) > 0 {
		ix.inodes.change(func(remove func(InodeID), _ func(InodeID, *Inode, int64)) {
			for _, k := range b.inodes {
				remove(k)
			}
		})
	}
	if len(b.names) > 0 {
		ix.names.change(func(remove func(nameKey), _ func(nameKey, Dentry, int64)) {
			for _, k := range b.names {
				remove(k)
			}
		})
	}
}

// Get reads a key as the batch leaves it.
func (a *applier) Get(key []byte) ([]byte, error) {
	if v, ok := a.overlay[string(key)]; ok {
		if v == nil {
			return nil, ErrNotExist
		}
		return v, nil
	}
	return a.ix.kv.Get(key)
}

// find is Get for a record that may be missing.
func (a *applier) find(key []byte) (value []byte, ok bool, err error) {
	value, err = a.Get(key)
	if errors.Is(err, ErrNotExist) {
		return nil, false, nil
	}
	return value, err == nil, err
}
