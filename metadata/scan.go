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
