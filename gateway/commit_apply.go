package gateway

import (
	"fmt"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
)

// applyCommit brings the index to a published commit, drops the frozen layer
// and frees the journal. Each step may be repeated after a failure.
func (v *Volume) applyCommit(b *built) error {
	if err := v.index.Apply(b.c, b.hash, v.localSums(b.c)); err != nil {
		return fmt.Errorf("apply commit %s to the local index: %w", b.c.CommitID, err)
	}
	cut := journal.LSN(b.c.LastLSN)
	v.mu.Lock()
	v.frozen = nil
	v.head = v.index.Head()
	freed := v.dropReferences(cut)
	v.notePending()
	v.mu.Unlock()
	v.settleReigns(cut)
	v.commit.done = nil
	v.commit.next = metadata.CommitID{Epoch: b.c.Epoch, N: b.c.N + 1}
	v.afterCommit(b)
	for _, r := range freed {
		v.unpin(r)
	}
	if err := v.journal.Free(cut); err != nil {
		v.log.Warn("journal files stay", "up to", cut, "error", err)
	}
	v.stat.commits.Add(1)
	v.commit.wake(nil)
	v.deleteUnused(b) // last: nobody waits for it
	return nil
}

// settleReigns forgets earlier reigns once all that was redone of their journal
// is committed.
func (v *Volume) settleReigns(cut journal.LSN) {
	if v.redone == 0 || cut < v.redone {
		return
	}
	v.redone = 0
	all := v.owner.Reigns
	v.owner.Reigns = []string{v.owner.current()}
	if err := v.owner.save(); err != nil {
		v.owner.Reigns = all // the next mount has more of them to compare with
		v.log.Warn("owner.json keeps earlier reigns", "error", err)
	}
}

// ownedReference is a reference and whose it is.
type ownedReference struct {
	ino InodeID
	ref *reference
}

// dropReferences takes the references that a commit covers off the books.
// Caller holds v.mu.
func (v *Volume) dropReferences(cut journal.LSN) []ownedReference {
	var freed []ownedReference
	for ino, m := range v.refs {
		var mine []*reference
		m.Visit(0, wholeFile, func(_, _ int64, r refValue) bool {
			if r.lsn <= cut {
				mine = append(mine, r.reference)
			}
			return true
		})
		for _, r := range mine {
			m.Delete(r.off, r.off+r.len)
			v.refBytes -= r.len
			freed = append(freed, ownedReference{ino, r})
		}
		if m.Len() == 0 {
			delete(v.refs, ino)
		}
	}
	return freed
}

// unpin gives a committed reference's bytes back to the cache, after newer
// bytes that had to stay in the journal are put over them.
func (v *Volume) unpin(r ownedReference) {
	f := v.cache.Get(uint64(r.ino))
	defer f.Release()
	defer f.Unpin(r.ref.off, r.ref.len)
	f.DropPages(r.ref.off, r.ref.len)
	nd := v.nodes.use(r.ino)
	defer v.nodes.done(nd)
	held, err := nd.lock.Lock(v.ctx, r.ref.off, r.ref.off+r.ref.len, true)
	if err != nil {
		return
	}
	defer held.Unlock()
	var later []span
	v.mu.RLock()
	// A new reference may have come to the range meanwhile: its bytes stay, and
	// what lies over them is read from the journal until it is committed, too.
	refs := v.refs[r.ino]
	if m := v.active.files[r.ino]; m != nil {
		m.Visit(r.ref.off, r.ref.off+r.ref.len, func(off, end int64, p piece) bool {
			if p.kind == pieceData && (refs == nil || !refs.Overlaps(off, end)) {
				later = append(later, span{off: off, end: end, piece: p})
			}
			return true
		})
	}
	v.mu.RUnlock()
	for _, s := range later {
		buf := make([]byte, s.len())
		if v.readJournal(s.piece, buf) != nil {
			continue // readers take it from the journal, or hear of it
		}
		if ok, err := f.WriteAt(buf, s.off); !ok && err != nil {
			v.stat.cacheErrors.Add(1)
		}
	}
}

// maxLocalSums bounds the blocks that one commit reads back from the cache.
const maxLocalSums = 1024

// localSums computes what the index keeps for believing the cache after a
// restart: the checksums of blocks that a commit changed and that are wholly
// present and not changed since.
func (v *Volume) localSums(c *metadata.Commit) []metadata.LocalSum {
	var sums []metadata.LocalSum
	buf := make([]byte, metadata.BlockSize)
	seen := map[blockKey]bool{}
	for i := range c.Slots {
		s := &c.Slots[i]
		if s.Remove || s.Base != nil && v.objectSize%metadata.BlockSize == 0 && len(s.Add) == 0 {
			continue
		}
		start := int64(s.Slot) * v.objectSize
		touch := func(off, n int64) {
			for b := (start + off) / metadata.BlockSize; b <= (start+off+n-1)/metadata.BlockSize; b++ {
				k := blockKey{ino: s.Inode, block: uint32(b)}
				if seen[k] || len(seen) >= maxLocalSums {
					continue
				}
				seen[k] = true
				if sum, ok := v.localSum(s.Inode, b, buf); ok {
					sums = append(sums, metadata.LocalSum{Inode: s.Inode, Block: b, Sum: sum})
				}
			}
		}
		for _, p := range s.Add {
			touch(int64(p.Off), int64(p.Len))
		}
		if s.Base != nil && v.objectSize%metadata.BlockSize != 0 {
			touch(0, int64(s.Base.Len))
		}
	}
	return sums
}

// localSum reads one block of the cache, if it is what the frozen layer has.
func (v *Volume) localSum(ino InodeID, block int64, buf []byte) (uint32, bool) {
	nd := v.nodes.use(ino)
	defer v.nodes.done(nd)
	off := block * metadata.BlockSize
	held, ok := nd.lock.TryLock(off, off+metadata.BlockSize, false)
	if !ok {
		return 0, false
	}
	defer held.Unlock()
	v.mu.RLock()
	n, ok := v.frozen.inodes[ino]
	if !ok {
		n, _ = v.index.Inode(ino)
	}
	changed := v.active.files[ino] != nil && v.active.files[ino].Overlaps(off, off+metadata.BlockSize)
	v.mu.RUnlock()
	if n == nil || changed || n.Size <= off {
		return 0, false
	}
	size := min(metadata.BlockSize, n.Size-off)
	f := v.cache.Get(uint64(ino))
	defer f.Release()
	whole := int64(0)
	f.Present(off, size, func(_, n int64) bool { whole += n; return true })
	if whole != size {
		return 0, false
	}
	if ok, err := f.ReadAt(buf[:size], off); !ok || err != nil {
		return 0, false
	}
	return checksum(buf[:size]), true
}

// The cache and the format agree on the size of a block.
const (
	_ = uint(cache.BlockSize - metadata.BlockSize)
	_ = uint(metadata.BlockSize - cache.BlockSize)
)
