package metadata

// AllSlots calls fn for every slot of the state, by inode and number, until it
// returns false. fn may call the index. All are as of one moment.
func (ix *Index) AllSlots(fn func(ino InodeID, n uint32, s *Slot) (more bool)) error {
	prefix := []byte{kindSlot}
	err := ix.scanSlots(prefix, after(prefix), func(k slotKey, s *Slot) error {
		if !fn(k.ino, k.slot, s) {
			return errStop
		}
		return nil
	})
	return scanned(err, "slots")
}

// SortedNames calls fn for a directory's entries with names after the one given,
// ascending by name, until it returns false. fn may call the index.
func (ix *Index) SortedNames(parent InodeID, after string, fn func(Dentry) (more bool)) error {
	from := nameKVKey(parent, after)
	if after != "" {
		from = append(from, 0)
	}
	err := ix.kv.Scan(from, key8(kindName, uint64(parent)+1), func(key, value []byte) error {
		d, err := decodeName(key, value)
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

// StagedInodes calls fn for the inodes with bytes stored beyond their size, until
// it returns false. fn may call the index. It reads every inode.
func (ix *Index) StagedInodes(fn func(*Inode) (more bool)) error {
	prefix := []byte{kindInode}
	err := ix.kv.Scan(prefix, after(prefix), func(key, value []byte) error {
		n, err := decodeInode(key, value)
		if err != nil {
			return err
		}
		if n.Staged > n.Size && !fn(n) {
			return errStop
		}
		return nil
	})
	return scanned(err, "inodes")
}
