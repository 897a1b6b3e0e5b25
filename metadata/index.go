package metadata

import (
	"errors"
	"fmt"
	"sync"
)

// Bounds of the decoded values that an index keeps in memory, in bytes.
const (
	slotCacheBytes  = 32 << 20
	inodeCacheBytes = 8 << 20
	nameCacheBytes  = 8 << 20
)

// errStop ends a scan early; it never leaves the package.
var errStop = errors.New("stop")

// Index is the committed state as of one commit. Safe for concurrent use; while
// Apply runs, readers see any mixture of the states before and after.
type Index struct {
	kv       KV
	slotSize int64
	maxOps   int // of one update, batchOps but in tests

	applyMu sync.Mutex   // serializes Apply; taken before all others
	wide    sync.RWMutex // exclusive while one slot changes in several updates

	mu      sync.RWMutex // guards the two below
	head    Head
	pending *applying // a commit whose Apply has not ended

	slots  *lru[slotKey, *Slot] // nil: no such slot
	inodes *lru[InodeID, *Inode]
	names  *lru[nameKey, Dentry] // Inode 0: no such name
}

// LocalSum is the CRC32C of a block of a file as this machine's cache holds it:
// the file's bytes [Block*BlockSize, …) as of a commit. It is never in a manifest.
type LocalSum struct {
	Inode InodeID
	Block int64
	Sum   uint32
}

// OpenIndex opens the index in a store. slotSize is the volume's object size in
// bytes. An empty store becomes the empty state. ErrDamaged: the store holds
// something else or a half-loaded manifest; delete it and load a manifest anew.
// When a crash interrupted Apply, Pending names the commit that must be applied again first.
func OpenIndex(kv KV, slotSize int64) (*Index, error) {
	if slotSize <= 0 || slotSize > maxSlotSize {
		return nil, fmt.Errorf("a slot size of %d bytes: 1 byte to 64 MiB are possible", slotSize)
	}
	ix := &Index{
		kv: kv, slotSize: slotSize, maxOps: batchOps,
		slots:  newLRU[slotKey, *Slot](slotCacheBytes),
		inodes: newLRU[InodeID, *Inode](inodeCacheBytes),
		names:  newLRU[nameKey, Dentry](nameCacheBytes),
	}
	value, err := kv.Get(headKey())
	switch {
	case errors.Is(err, ErrNotExist):
		if err := ix.makeEmpty(); err != nil {
			return nil, err
		}
		return ix, nil
	case err != nil:
		return nil, fmt.Errorf("open the index: %w", err)
	}
	if ix.head, err = decodeHead(value); err != nil {
		return nil, err
	}
	// A process that was killed may have left the head visible and not durable.
	if err := kv.Sync(); err != nil {
		return nil, fmt.Errorf("open the index: %w", err)
	}
	value, err = kv.Get(applyingKey())
	if errors.Is(err, ErrNotExist) {
		return ix, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open the index: %w", err)
	}
	a, err := decodeApplying(value)
	if err != nil {
		return nil, err
	}
	ix.pending = &a
	return ix, nil
}

// makeEmpty writes the head of the empty state, so that a store without one is
// known to be half-written.
func (ix *Index) makeEmpty() error {
	if err := mustBeEmpty(ix.kv); err != nil {
		return err
	}
	err := ix.kv.Update(func(w Writer) error { return w.Set(headKey(), encodeHead(&ix.head)) })
	if err == nil {
		err = ix.kv.Sync()
	}
	if err != nil {
		return fmt.Errorf("make an empty index: %w", err)
	}
	return nil
}

func mustBeEmpty(kv KV) error {
	return kv.Scan(nil, nil, func(key, _ []byte) error {
		return damaged("index", "it holds records (the first is the %s) and no head", recordName(key))
	})
}

// Head returns the last commit applied; its zero value is the empty state.
func (ix *Index) Head() Head {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	return ix.head
}

// Pending returns the commit whose Apply was interrupted. Until it is applied
// again the index is between two states, and no other commit is accepted.
func (ix *Index) Pending() (id CommitID, hash string, ok bool) {
	ix.mu.RLock()
	defer ix.mu.RUnlock()
	if ix.pending == nil {
		return CommitID{}, "", false
	}
	return ix.pending.id, ix.pending.hash, true
}

// Snapshot returns the store as of now, for WriteManifest. Taken while Apply runs
// it may hold half of a commit: WriteManifest refuses it.
func (ix *Index) Snapshot() Snapshot {
	ix.wide.RLock() // so that no slot is seen between two updates
	defer ix.wide.RUnlock()
	return ix.kv.Snapshot()
}

// Inode returns a node's attributes, shared and immutable; ErrNotExist.
func (ix *Index) Inode(id InodeID) (*Inode, error) {
	if i, ok := ix.inodes.get(id); ok {
		return i, nil
	}
	gen := ix.inodes.begin()
	key := inodeKey(id)
	value, err := ix.kv.Get(key)
	if err != nil {
		return nil, fmt.Errorf("inode %d: %w", id, err)
	}
	i, err := decodeInode(key, value)
	if err != nil {
		return nil, err
	}
	ix.inodes.put(gen, id, i, inodeMemory(i))
	return i, nil
}

// inodeMemory estimates a decoded inode's memory in bytes.
func inodeMemory(i *Inode) int64 {
	n := int64(168 + len(i.Target))
	for _, x := range i.Xattrs {
		n += int64(48 + len(x.Name) + len(x.Value))
	}
	return n
}

// Lookup returns a directory's entry of that name; ErrNotExist.
func (ix *Index) Lookup(parent InodeID, name string) (Dentry, error) {
	k := nameKey{parent, name}
	if d, ok := ix.names.get(k); ok {
		return foundName(d, k)
	}
	gen := ix.names.begin()
	key := nameKVKey(parent, name)
	value, err := ix.kv.Get(key)
	var d Dentry
	switch {
	case errors.Is(err, ErrNotExist):
	case err != nil:
		return Dentry{}, fmt.Errorf("name %q in directory %d: %w", name, parent, err)
	default:
		if d, err = decodeName(key, value); err != nil {
			return Dentry{}, err
		}
	}
	ix.names.put(gen, k, d, int64(80+2*len(name)))
	return foundName(d, k)
}

func foundName(d Dentry, k nameKey) (Dentry, error) {
	if d.Inode == 0 {
		return Dentry{}, fmt.Errorf("name %q in directory %d: %w", k.name, k.parent, ErrNotExist)
	}
	return d, nil
}

// Names calls fn for a directory's entries with cookies above after, ascending by
// cookie, until it returns false. fn may call the index.
func (ix *Index) Names(parent InodeID, after uint64, fn func(Dentry) (more bool)) error {
	from := append(cookieKey(parent, after), 0)
	err := ix.kv.Scan(from, key8(kindCookie, uint64(parent)+1), func(key, value []byte) error {
		d, err := decodeCookie(key, value)
		if err != nil {
			return err
		}
		if !fn(d) {
			return errStop
		}
		return nil
	})
	return scanned(err, "names of directory %d", parent)
}

// Slot returns a file's n-th slot, shared and immutable; nil without an error
// when there is none. A cached one takes well under a microsecond.
func (ix *Index) Slot(ino InodeID, n uint32) (*Slot, error) {
	k := slotKey{ino, n}
	if s, ok := ix.slots.get(k); ok {
		return s, nil
	}
	gen := ix.slots.begin()
	s, err := ix.loadSlot(k)
	if err != nil {
		return nil, err
	}
	ix.slots.put(gen, k, s, s.cost())
	return s, nil
}

func (ix *Index) loadSlot(k slotKey) (found *Slot, err error) {
	prefix := slotPrefix(k)
	err = ix.scanSlots(prefix, after(prefix), func(_ slotKey, s *Slot) error {
		found = s
		return nil
	})
	return found, scanned(err, "slot %d of inode %d", k.slot, k.ino)
}

// Slots calls fn for a file's slots from number from on, ascending, until it
// returns false. fn may call the index. All are as of one moment.
func (ix *Index) Slots(ino InodeID, from uint32, fn func(n uint32, s *Slot) (more bool)) error {
	err := ix.scanSlots(slotPrefix(slotKey{ino, from}), key8(kindSlot, uint64(ino)+1), func(k slotKey, s *Slot) error {
		if !fn(k.slot, s) {
			return errStop
		}
		return nil
	})
	return scanned(err, "slots of inode %d", ino)
}

func (ix *Index) scanSlots(from, to []byte, fn func(k slotKey, s *Slot) error) error {
	snap := ix.Snapshot()
	return errors.Join(scanSlots(snap, from, to, fn), snap.Close())
}

// scanner is what KV and Snapshot have in common.
type scanner interface {
	Scan(from, to []byte, fn func(key, value []byte) error) error
}

// scanSlots puts slots together from their records.
func scanSlots(sc scanner, from, to []byte, fn func(k slotKey, s *Slot) error) error {
	var at slotKey
	var s *Slot
	err := sc.Scan(from, to, func(key, value []byte) error {
		if len(key) < 14 {
			return damaged(recordName(key), "a key of %d bytes", len(key))
		}
		k := slotKey{InodeID(keyUint(key, 1)), uint32(keyUint(key, 5))}
		if s != nil && k != at {
			if err := fn(at, s); err != nil {
				return err
			}
			s = nil
		}
		if s == nil {
			at, s = k, &Slot{}
		}
		return s.addRecord(key, value)
	})
	if err == nil && s != nil {
		err = fn(at, s)
	}
	return err
}

// addRecord adds a record of the slot while it is put together.
func (s *Slot) addRecord(key, value []byte) (err error) {
	if key[13] == slotBase {
		s.Base, err = decodeBase(key, value)
		return err
	}
	p, err := decodePatch(key, value)
	if err != nil {
		return err
	}
	s.Patches = append(s.Patches, p)
	return nil
}

// Orphans calls fn for the inodes without names until it returns false.
func (ix *Index) Orphans(fn func(InodeID) (more bool)) error {
	prefix := []byte{kindOrphan}
	err := ix.kv.Scan(prefix, after(prefix), func(key, value []byte) error {
		if _, err := decodeUint(key, value); err != nil {
			return err
		}
		if !fn(InodeID(keyUint(key, 1))) {
			return errStop
		}
		return nil
	})
	return scanned(err, "inodes without names")
}

// Segment returns a segment's record; ErrNotExist. It stays until the segment is collected.
func (ix *Index) Segment(key string) (Segment, error) {
	k := keyString(kindSegment, key)
	value, err := ix.kv.Get(k)
	if err != nil {
		return Segment{}, fmt.Errorf("segment %s: %w", key, err)
	}
	return decodeSegment(k, value)
}

// Segments calls fn for all segments, by key, until it returns false.
func (ix *Index) Segments(fn func(Segment) (more bool)) error {
	prefix := []byte{kindSegment}
	err := ix.kv.Scan(prefix, after(prefix), func(key, value []byte) error {
		s, err := decodeSegment(key, value)
		if err != nil {
			return err
		}
		if !fn(s) {
			return errStop
		}
		return nil
	})
	return scanned(err, "segments")
}

// RefCount returns how many slots refer to an object: 1 when nothing is recorded.
func (ix *Index) RefCount(key string) (uint32, error) {
	k := keyString(kindCount, key)
	value, err := ix.kv.Get(k)
	if errors.Is(err, ErrNotExist) {
		return 1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("references to %s: %w", key, err)
	}
	n, err := decodeUint(k, value)
	return uint32(n), err
}

// DeadThings calls fn for what is no longer referred to, ascending by the commit
// that it died with, until it returns false.
func (ix *Index) DeadThings(fn func(Dead) (more bool)) error {
	prefix := []byte{kindDead}
	err := ix.kv.Scan(prefix, after(prefix), func(key, value []byte) error {
		d, err := decodeDead(key, value)
		if err != nil {
			return err
		}
		if !fn(d) {
			return errStop
		}
		return nil
	})
	return scanned(err, "dead things")
}

// Dead returns the record of a dead thing; ErrNotExist when it is none.
func (ix *Index) Dead(key string) (Dead, error) { return readDead(ix.kv, key) }

type getter interface {
	Get(key []byte) ([]byte, error)
}

func readDead(g getter, key string) (Dead, error) {
	k := keyString(kindDeadKey, key)
	value, err := g.Get(k)
	if err != nil {
		return Dead{}, fmt.Errorf("dead thing %s: %w", key, err)
	}
	death, err := decodeUint(k, value)
	if err != nil {
		return Dead{}, err
	}
	k = deadKey(death, key)
	if value, err = g.Get(k); err != nil {
		return Dead{}, fmt.Errorf("dead thing %s: %w", key, err)
	}
	return decodeDead(k, value)
}

// LocalSum returns the checksum of a cached block, when one is known.
func (ix *Index) LocalSum(ino InodeID, block int64) (uint32, bool, error) {
	k := localKey(ino, block)
	value, err := ix.kv.Get(k)
	if errors.Is(err, ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("checksum of cached block %d of inode %d: %w", block, ino, err)
	}
	n, err := decodeUint(k, value)
	return uint32(n), err == nil, err
}

// scanned turns the end of a scan into the caller's error.
func scanned(err error, format string, args ...any) error {
	if err == nil || errors.Is(err, errStop) {
		return nil
	}
	return fmt.Errorf(format+": %w", append(args, err)...)
}
