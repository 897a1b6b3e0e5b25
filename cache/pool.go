package cache

import "sync"

// maxRounds bounds how often one reservation evicts, when others take what it
// freed.
const maxRounds = 10_000

// pool is the room on disk and the order in which it is taken back: first
// blocks that nobody has asked for since the restart, then by a clock over all
// known blocks that are not pinned.
type pool struct {
	mu        sync.Mutex // a leaf: nothing is locked under it
	limit     int64
	allocated int64    // charged bytes of all files, reservations and expected included
	expected  int64    // bytes of files that were not looked at yet
	clock     []*block // unordered but for the hand
	hand      int
	unknown   []*File               // may hold unknown blocks; the last one is next
	room      func() (int64, error) // bytes that the disk has above what stays free; nil: don't ask
	budget    int64                 // of room, as it was when last asked for, not yet taken
	evicting  int                   // evictions under way
	ended     *sync.Cond
	evictions int64
}

func newPool(limit int64) *pool {
	p := &pool{limit: limit}
	p.ended = sync.NewCond(&p.mu)
	return p
}

func (p *pool) add(b *block) {
	p.mu.Lock()
	b.slot = int32(len(p.clock))
	p.clock = append(p.clock, b)
	p.mu.Unlock()
}

func (p *pool) remove(b *block) {
	p.mu.Lock()
	last := p.clock[len(p.clock)-1]
	p.clock[b.slot], last.slot = last, b.slot
	p.clock[len(p.clock)-1] = nil
	p.clock = p.clock[:len(p.clock)-1]
	p.mu.Unlock()
}

// charge changes the bytes in use by n without regard to the limit.
func (p *pool) charge(n int64) {
	if n == 0 {
		return
	}
	p.mu.Lock()
	p.allocated += n
	p.mu.Unlock()
}

// expect sets what files take that were not looked at yet.
func (p *pool) expect(n int64) {
	p.mu.Lock()
	p.allocated += n - p.expected
	p.expected = n
	p.mu.Unlock()
}

// found charges a file that was there, as far as that was not expected. Called with
// its mu held.
func (p *pool) found(f *File) {
	p.mu.Lock()
	defer p.mu.Unlock()
	known := min(f.other, p.expected)
	p.expected -= known
	p.allocated += f.other - known
	if f.unknownEnd > 0 {
		p.unknown = append(p.unknown, f)
	}
}

// reserve takes n bytes under the limit and of what the disk has, evicting for
// them; false when there is nothing more to evict. Called without any lock.
func (p *pool) reserve(n int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for round := 0; ; round++ {
		if p.allocated+n <= p.limit && p.take(n) {
			p.allocated += n
			return true
		}
		if n > p.limit || round == maxRounds {
			return false
		}
		if _, ok := p.evictOne(); ok {
			continue
		}
		if p.evicting == 0 {
			return false
		}
		p.ended.Wait()
	}
}

// askEvery is how many bytes are given away before the disk is asked again what
// it has: others write to it, too.
const askEvery = 8 << 20

// take takes n bytes of what the disk has; false when it hasn't so many. A disk
// that can't be asked tells by its writes. mu is held, and given up meanwhile.
func (p *pool) take(n int64) bool {
	if p.room == nil {
		return true
	}
	if p.budget < n {
		p.mu.Unlock()
		room, err := p.room()
		p.mu.Lock()
		if err != nil {
			return true
		}
		p.budget = min(room, max(n, askEvery))
	}
	if p.budget < n || p.allocated+n > p.limit {
		return false
	}
	p.budget -= n
	return true
}

// forgetRoom makes the next reservation ask the disk.
func (p *pool) forgetRoom() {
	p.mu.Lock()
	p.budget = 0
	p.mu.Unlock()
}

// setLimit changes the limit and evicts what is above it and can go. What is
// pinned goes later: until then no new room is given.
func (p *pool) setLimit(n int64) {
	p.mu.Lock()
	p.limit = n
	over := p.allocated - n
	p.mu.Unlock()
	if over > 0 {
		p.evict(over)
	}
}

// evict frees about n bytes and returns how many it freed.
func (p *pool) evict(n int64) int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	var sum int64
	for sum < n {
		freed, ok := p.evictOne()
		if !ok {
			break
		}
		sum += freed
	}
	return sum
}

// outcome of one try to evict.
type outcome int

const (
	evicted outcome = iota
	skipped         // pinned, busy or gone
	broken          // the disk did not give the room back
)

// evictOne evicts the next block or run of unknown blocks that can go; ok is
// false when none can, or when the disk fails: the next caller tries another
// one. Called with mu held, which it gives up meanwhile.
func (p *pool) evictOne() (freed int64, ok bool) {
	for tries := len(p.unknown); tries > 0 && len(p.unknown) > 0; tries-- {
		f := p.unknown[len(p.unknown)-1]
		p.unknown = p.unknown[:len(p.unknown)-1]
		var o outcome
		var more bool
		p.outside(func() { freed, o, more = f.evictUnknown() })
		switch {
		case more && o == evicted:
			p.unknown = append(p.unknown, f)
		case more: // its turn comes after all others
			p.unknown = append(p.unknown, nil)
			copy(p.unknown[1:], p.unknown)
			p.unknown[0] = f
		}
		if o != skipped {
			return p.result(freed, o)
		}
	}
	for tries := 2*len(p.clock) + 1; tries > 0 && len(p.clock) > 0; tries-- {
		if p.hand >= len(p.clock) {
			p.hand = 0
		}
		b := p.clock[p.hand]
		p.hand++
		if b.recent.Swap(false) {
			continue
		}
		var o outcome
		p.outside(func() { freed, o = b.file.evict(b) })
		if o != skipped {
			return p.result(freed, o)
		}
	}
	return 0, false
}

func (p *pool) result(freed int64, o outcome) (int64, bool) {
	if o == evicted {
		p.evictions++
	}
	return freed, o == evicted
}

// outside runs fn without mu, counted as an eviction under way.
func (p *pool) outside(fn func()) {
	p.evicting++
	p.mu.Unlock()
	fn()
	p.mu.Lock()
	p.evicting--
	p.ended.Broadcast()
}
