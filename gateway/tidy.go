package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// dropUnknown removes the cache files of inodes below limit of which gone says
// so. It ends early when the volume closes.
func (v *Volume) dropUnknown(limit InodeID, gone func(InodeID) (bool, error)) error {
	var all []InodeID
	err := v.cache.Inodes(func(ino uint64) error {
		if InodeID(ino) < limit {
			all = append(all, InodeID(ino))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cache files: %w", err)
	}
	slices.Sort(all) // neighbours share a block of the index
	for _, ino := range all {
		select {
		case <-v.quit:
			return nil
		default:
		}
		unknown, err := gone(ino)
		if err != nil {
			return fmt.Errorf("cache files: %w", err)
		}
		if !unknown {
			continue
		}
		if err := v.cache.Remove(uint64(ino)); err != nil {
			v.log.Warn("cache file of an unknown inode stays", "inode", ino, "error", err)
		}
	}
	return nil
}

// isUnknown says whether an inode is gone, as long as nothing is under way.
func (v *Volume) isUnknown(ino InodeID) (bool, error) {
	_, err := v.inode(ino)
	if errors.Is(err, ErrNotExist) {
		return true, nil
	}
	return false, err
}

// isForgotten says whether an inode is gone and its end is committed, too: until
// then a commit that is being built may still read its cache file.
func (v *Volume) isForgotten(ino InodeID) (bool, error) {
	v.mu.RLock()
	defer v.mu.RUnlock()
	if _, ok := v.active.inodes[ino]; ok {
		return false, nil
	}
	if v.frozen != nil {
		if _, ok := v.frozen.inodes[ino]; ok {
			return false, nil
		}
	}
	return v.isUnknown(ino)
}

// runTidy removes what tidy left, once.
func (v *Volume) runTidy(limit InodeID) {
	defer v.group.Done()
	select {
	case <-v.cache.Scanned():
	case <-v.quit:
		return
	}
	if err := v.dropUnknown(limit, v.isForgotten); err != nil {
		v.log.Warn("cache files of unknown inodes stay until the next mount", "error", err)
	}
}

// tidyAtOnce is how many cache files are looked at before the volume serves.
// With more of them that is left to runTidy: a file of an inode that is gone takes
// space, but nobody reads it, since inode numbers are never used again.
const tidyAtOnce = 10_000

// tidy removes cache files of inodes that are gone and frees inodes that
// nobody can hold any more.
func (v *Volume) tidy(ctx context.Context) error {
	many := v.cache.Stats().Files > tidyAtOnce
	select {
	case <-v.cache.Scanned():
	default:
		many = true
	}
	if v.tidyLater = many && !v.opt.Manual; !v.tidyLater {
		if err := v.dropUnknown(v.nextInode, v.isUnknown); err != nil {
			return err
		}
	}
	err := v.index.Orphans(func(ino InodeID) bool {
		v.reaping.add(ino)
		return true
	})
	if err != nil {
		return fmt.Errorf("orphans: %w", err)
	}
	for ino, joined := range v.active.orphans {
		if joined {
			v.reaping.add(ino)
		}
	}
	return nil
}
