package gateway

import (
	"slices"
	"sync"
	"time"

	"github.com/cisternfs/cistern/metadata"
)

// foldState knows the slots that have patches. Those for which there is nothing to be
// done are kept apart, since of many small files that is all there is.
type foldState struct {
	mu     sync.Mutex // guards the fields below
	slots  map[slotKey]candidate
	total  int          // patches of all candidates
	idle   restingSlots // not worth it until they change, or until there are too many patches
	packed restingSlots // packed already: that is all that folding would make of them
}

// restingSlots are slots that need nothing for now.
type restingSlots struct {
	slots   map[slotKey]int32 // patches of each
	patches int               // of all
}

func (r *restingSlots) add(k slotKey, patches int) {
	if r.slots == nil {
		r.slots = map[slotKey]int32{}
	}
	r.slots[k] = int32(patches)
	r.patches += patches
}

func (r *restingSlots) remove(k slotKey) {
	r.patches -= int(r.slots[k])
	delete(r.slots, k)
}

// candidate is a slot with patches.
type candidate struct {
	patches int
	bytes   int64
	changed time.Time
	forced  bool      // a segment that it refers to is mostly dead
	crowded bool      // there are too many patches
	resting time.Time // until then it is left alone, for it is damaged
	hot     time.Time // the same whatever changes, for its last fold came too late
}

func (s *foldState) set(k slotKey, slot *metadata.Slot, now time.Time) {
	isPacked := slot != nil && packed(slot)
	s.mu.Lock()
	defer s.mu.Unlock()
	hot := s.slots[k].hot
	s.forget(k)
	switch {
	case slot == nil || len(slot.Patches) == 0:
	case isPacked:
		s.packed.add(k, len(slot.Patches))
	default:
		s.add(k, candidate{patches: len(slot.Patches), bytes: slot.PatchBytes(), changed: now, hot: hot})
	}
}

// forget removes what is known of a slot. Caller holds mu.
func (s *foldState) forget(k slotKey) {
	s.total -= s.slots[k].patches
	delete(s.slots, k)
	s.idle.remove(k)
	s.packed.remove(k)
}

// add adds a candidate. Caller holds mu.
func (s *foldState) add(k slotKey, c candidate) {
	if s.slots == nil {
		s.slots = map[slotKey]candidate{}
	}
	s.slots[k] = c
	s.total += c.patches
}

// force marks a slot to be folded whatever its patches.
func (s *foldState) force(k slotKey, slot *metadata.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.slots[k]
	s.forget(k)
	if len(slot.Patches) > 0 {
		s.add(k, candidate{patches: len(slot.Patches), bytes: slot.PatchBytes(), forced: true, resting: was.resting, hot: was.hot})
	}
}

// late leaves a slot alone for a while, whatever changes in it: a fold that was
// uploaded found it changed, and the next one would so, too.
func (s *foldState) late(k slotKey, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.slots[k]; ok {
		c.hot = until
		s.slots[k] = c
	}
}

// leave makes a candidate rest that was found not to be worth folding, unless it has
// changed since it was looked at.
func (s *foldState) leave(k slotKey, slot *metadata.Slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, ok := s.slots[k]
	if !ok || c.patches != len(slot.Patches) || !c.crowded && c.bytes != slot.PatchBytes() {
		return
	}
	s.forget(k)
	if c.crowded {
		s.packed.add(k, c.patches)
	} else {
		s.idle.add(k, c.patches)
	}
}

// count returns how many slots have patches, and how many they have.
func (s *foldState) count() (slots, patches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.slots) + len(s.idle.slots) + len(s.packed.slots), s.total + s.idle.patches + s.packed.patches
}

// packed says whether folding would make of a slot nothing else than it is:
// it has no object and would get none, and all of it is a piece of a segment, or
// few of them, or the pieces that a fold has made of what is data between holes.
func packed(s *metadata.Slot) bool {
	if s.Base != nil {
		return false
	}
	end := s.End()
	if len(s.Patches) == 1 || int64(end) < minOwnObject && len(s.Patches) <= int(end/metadata.BlockSize)+1 {
		return true
	}
	return s.Coverage(0, end) < end && isPack(s.Patches, extentsOf(s, end))
}

// merged is how many patches a slot has once it is folded.
func merged(s *metadata.Slot) int {
	end := s.End()
	if int64(end) >= minOwnObject && s.Coverage(0, end) == end {
		return 0 // an object
	}
	return len(extentsOf(s, end))
}

// must says whether a slot is to be folded whether or not that is worth it: in any
// case, or to have fewer patches.
func (s *foldState) must(k slotKey) (forced, crowded bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.slots[k]
	return c.forced, c.crowded
}

// rest leaves a damaged slot alone for damageRest, or until it changes.
func (s *foldState) rest(k slotKey, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.slots[k]; ok {
		c.resting = now.Add(damageRest)
		s.slots[k] = c
	}
}

// damageRest is after how long a damaged slot is read again: the damage may have
// been the way's, not the store's.
const damageRest = time.Hour

// ripe chooses slots to fold, those with the most patches first: the ripe ones, and as
// many others as it takes while there are too many patches.
func (v *Volume) ripe(now time.Time, force bool, limit int) []slotKey {
	p := &v.opt.Fold
	s := &v.folds
	s.mu.Lock()
	defer s.mu.Unlock()
	type found struct {
		slotKey
		patches int
		ripe    bool
	}
	var list []found
	over := s.total + s.idle.patches - p.MaxTotal
	for k, c := range s.slots {
		quiet := now.Sub(c.changed) >= p.QuietAfter
		ripe := force || c.forced || c.patches >= p.MaxPatches || float64(c.bytes) >= p.Ratio*float64(v.objectSize) || quiet
		if (ripe || over > 0) && now.After(c.resting) && (force || now.After(c.hot)) {
			list = append(list, found{k, c.patches, ripe})
		}
	}
	if force || over > 0 {
		for k, patches := range s.idle.slots {
			list = append(list, found{k, int(patches), force})
		}
	}
	if force {
		for k, patches := range s.packed.slots {
			list = append(list, found{k, int(patches), true})
		}
	}
	slices.SortFunc(list, func(a, b found) int { return b.patches - a.patches })
	out := make([]slotKey, 0, min(len(list), limit))
	for _, f := range list {
		if len(out) == limit {
			break
		}
		if over > 0 {
			s.crowd(f.slotKey)
			over -= f.patches
		} else if !f.ripe {
			continue
		}
		out = append(out, f.slotKey)
	}
	return out
}

// crowd notes that a slot is to be folded because there are too many patches. Caller
// holds mu.
func (s *foldState) crowd(k slotKey) {
	c, ok := s.slots[k]
	if !ok {
		n, idle := s.idle.slots[k]
		if !idle {
			return
		}
		s.idle.remove(k)
		c = candidate{patches: int(n)}
		s.add(k, c)
	}
	c.crowded = true
	s.slots[k] = c
}
