package gateway

import (
	"errors"
	"fmt"

	"github.com/cisternfs/cistern/metadata"
)

// dropSlot takes everything that a slot refers to off the books.
func (b *builder) dropSlot(s *metadata.Slot) {
	if s == nil {
		return
	}
	if s.Base != nil {
		b.refs[s.Base.Key]--
		b.bases[s.Base.Key] = *s.Base
	}
	for i := range s.Patches {
		b.dropPatch(&s.Patches[i])
	}
}

func (b *builder) dropPatch(p *metadata.Patch) {
	if !p.Zero {
		b.live[p.Seg.Key] -= int64(p.StoredLen())
	}
}

// account turns the changes of the books into absolute numbers and deaths.
func (b *builder) account() error {
	for _, key := range sortedKeys(b.refs) {
		if b.refs[key] == 0 {
			continue
		}
		was, dead, err := b.references(key)
		if err != nil {
			return err
		}
		now := int(was) + b.refs[key]
		if dead && now > 0 {
			b.c.Undead = append(b.c.Undead, key)
		}
		if now < 0 {
			return fmt.Errorf("%w: object %s has %d references", ErrDamaged, key, now)
		}
		if now == 0 {
			base := b.bases[key]
			b.die(key, base.StoredLen(), base.Birth)
		}
		if now > 1 || was > 1 {
			b.c.Refs = append(b.c.Refs, metadata.RefCount{Key: key, Count: uint32(now)})
		}
	}
	for _, key := range sortedKeys(b.live) {
		if i, ok := b.newSegs[key]; ok {
			b.c.Segments[i].Live = b.live[key]
			continue
		}
		if b.live[key] == 0 {
			continue
		}
		s, err := b.v.index.Segment(key)
		if err != nil {
			return fmt.Errorf("segment %s: %w", key, err)
		}
		s.Live += b.live[key]
		if s.Live < 0 {
			return fmt.Errorf("%w: segment %s has %d live bytes", ErrDamaged, key, s.Live)
		}
		if s.Live == 0 {
			b.die(key, s.Size, s.Birth)
		}
		b.c.Live = append(b.c.Live, s)
	}
	return nil
}

// references returns how many references an object has, and whether it died.
func (b *builder) references(key string) (n uint32, dead bool, err error) {
	if _, err = b.v.index.Dead(key); err == nil {
		return 0, true, nil
	}
	if !errors.Is(err, metadata.ErrNotExist) {
		return 0, false, fmt.Errorf("dead thing %s: %w", key, err)
	}
	if b.l.adopted[key] {
		return 0, false, nil // nothing is recorded for one reference, and this is the first
	}
	if n, err = b.v.index.RefCount(key); err != nil {
		return 0, false, fmt.Errorf("references to %s: %w", key, err)
	}
	return n, false, nil
}

func (b *builder) die(key string, size int64, birth uint64) {
	b.c.Dead = append(b.c.Dead, metadata.Dead{Key: key, Size: size, Birth: birth, Death: b.c.N, Time: b.v.clocks.latest()})
}
