package gateway

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// Verified remembers which objects and extents were read and verified, so that a
// check of several commits reads what they share once, unless it is damaged: then each
// commit's check names the files that have it. It takes 16 bytes each; two of
// ten million have the same hash with a probability of one in a hundred thousand.
// Safe for concurrent use.
type Verified struct {
	seed maphash.Seed

	mu   sync.Mutex // guards the field below
	seen map[uint64]struct{}
}

// NewVerified remembers nothing yet.
func NewVerified() *Verified {
	return &Verified{seed: maphash.MakeSeed(), seen: map[uint64]struct{}{}}
}

func (v *Verified) hash(key string, off uint32) uint64 {
	var h maphash.Hash
	h.SetSeed(v.seed)
	h.WriteString(key)
	var b [4]byte
	binary.LittleEndian.PutUint32(b[:], off)
	h.Write(b[:])
	return h.Sum64()
}

// forget makes a thing new again.
func (v *Verified) forget(key string, off uint32) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.seen, v.hash(key, off))
}

// first says whether a thing is new, and remembers it. Of nil everything is new.
func (v *Verified) first(key string, off uint32) bool {
	if v == nil {
		return true
	}
	sum := v.hash(key, off)
	v.mu.Lock()
	defer v.mu.Unlock()
	_, seen := v.seen[sum]
	v.seen[sum] = struct{}{}
	return !seen
}

// Mark remembers all that a view's commit refers to, which was verified before, but
// for what lies under the keys that were found damaged.
func (v *Verified) Mark(view *View, damaged map[string]bool) error {
	err := view.Index().AllSlots(func(_ InodeID, _ uint32, s *metadata.Slot) bool {
		if s.Base != nil && !damaged[s.Base.Key] {
			v.first(s.Base.Key, 0)
		}
		for i := range s.Patches {
			if p := &s.Patches[i]; !p.Zero && !damaged[p.Seg.Key] {
				v.first(p.Seg.Key, p.SegOff)
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("slots of commit %s: %w", view.Head().CommitID, err)
	}
	return nil
}

// PinnedCommit is a commit that pins keep.
type PinnedCommit struct {
	N     uint64
	Names []string // of the pins
}

// PinnedCommits lists the commits that pins keep which have not expired, ascending.
// Claims that nobody has proven are left out. Errors: ErrDamaged when a pin can't be
// read, ErrStore.
func PinnedCommits(ctx context.Context, s objstore.Store) (list []PinnedCommit, err error) {
	names := map[uint64][]string{}
	now := time.Now().UnixNano()
	err = objstore.ListAll(ctx, s, metadata.PinPrefix, "", func(i objstore.Info) error {
		err := readDocument(ctx, s, i.Key, maxPinBytes, func(body []byte, info objstore.Info) error {
			p, err := decodePin(body, info)
			if err == nil && p.Kind != pinClaim && (p.Expiry == 0 || p.Expiry > now) {
				names[p.Commit.N] = append(names[p.Commit.N], p.Name)
			}
			return err
		})
		if errors.Is(err, objstore.ErrNotExist) {
			return nil // taken away meanwhile
		}
		return err
	})
	if err != nil && !isDamage(err) && !errors.Is(err, ErrNewerFormat) && !errors.Is(err, ErrStore) {
		err = storeError("list pins", err)
	}
	for n, of := range names {
		list = append(list, PinnedCommit{n, of})
	}
	slices.SortFunc(list, func(a, b PinnedCommit) int { return cmp.Compare(a.N, b.N) })
	return list, err
}
