package metadata

import (
	"errors"
	"fmt"
)

// ErrNotKept: an earlier state refers to something that the volume has no record
// of any more, since it was collected.
var ErrNotKept = errors.New("is not kept any more")

// Rewound counts what a rewind changes of the volume's objects and segments.
type Rewound struct {
	Revived int // dead things that are referred to again
	Died    int // things that only the replaced state referred to
}

// Resets says whether a commit is one that goes back to an earlier state: it
// builds on a manifest of its own number, which is all of its state. It can't
// be applied to its predecessor's.
func (c *Commit) Resets() bool { return c.Manifest == c.CommitID && c.N != 0 }

// Rewind turns a store that holds an earlier state of a volume into the state of
// the commit c, whose body has the given hash, and which goes back to that state:
//
//   - inodes, names, slots and counts of references are the earlier state's;
//   - dead things, segments, settings and the horizon are those of now, the state
//     that c replaces, but for what dies with c and what c refers to again;
//   - also dies what the caller lists as replaced: documents.
//
// What comes back to life has its first birth, so that the interval in which it
// was of use only ever grows. then must be the index over kv; it is of no use
// afterwards. Memory: about 150 bytes an object and segment of both states.
// ErrNotKept, with nothing changed: the earlier state needs what was collected.
func Rewind(kv KV, then, now *Index, c *Commit, hash string, died int64, replaced []Dead) (Rewound, error) {
	r := &rewind{kv: kv, then: then, now: now, c: c, diedAt: died, objects: map[string]bool{}, live: map[string]int64{}, revived: map[string]bool{}}
	for _, step := range []func() error{r.readThen, r.readNow, r.readSegments, r.revive, r.clear} {
		if err := step(); err != nil {
			return Rewound{}, fmt.Errorf("go back with commit %v: %w", c.CommitID, err)
		}
	}
	r.died = append(r.died, replaced...)
	if err := r.write(headAfter(now.Head(), c, hash)); err != nil {
		return Rewound{}, fmt.Errorf("go back with commit %v: %w", c.CommitID, err)
	}
	return Rewound{Revived: len(r.revived), Died: len(r.died) - len(replaced)}, nil
}

type rewind struct {
	kv        KV
	then, now *Index
	c         *Commit
	diedAt    int64 // Unix nanoseconds by the store's clock

	objects  map[string]bool  // of the earlier state; true: now refers to it, too
	live     map[string]int64 // stored bytes of segments that the earlier state refers to
	segments []Segment        // as they are to be
	died     []Dead
	revived  map[string]bool

	batch []op
	bytes int
}

// own says whether a reference is counted by the volume itself.
func own(r Ref) bool { return r.Volume == "" }

func (r *rewind) readThen() error {
	return r.then.AllSlots(func(_ InodeID, _ uint32, s *Slot) bool {
		if s.Base != nil && own(s.Base.Ref) {
			r.objects[s.Base.Key] = false
		}
		for i := range s.Patches {
			if p := &s.Patches[i]; !p.Zero && own(p.Seg) {
				r.live[p.Seg.Key] += int64(p.StoredLen())
			}
		}
		return true
	})
}

// readNow finds the objects that only the replaced state refers to.
func (r *rewind) readNow() error {
	died := map[string]bool{}
	return r.now.AllSlots(func(_ InodeID, _ uint32, s *Slot) bool {
		if s.Base == nil || !own(s.Base.Ref) {
			return true
		}
		key := s.Base.Key
		if _, ok := r.objects[key]; ok {
			r.objects[key] = true
		} else if !died[key] {
			died[key] = true
			r.die(key, s.Base.StoredLen(), s.Base.Birth)
		}
		return true
	})
}

func (r *rewind) die(key string, size int64, birth uint64) {
	r.died = append(r.died, Dead{Key: key, Size: size, Birth: birth, Death: r.c.N, Time: r.diedAt})
}

// readSegments takes the segments as they are now, with the live bytes that they
// had for the earlier state.
func (r *rewind) readSegments() error {
	seen := 0
	err := r.now.Segments(func(s Segment) bool {
		was := s.Live
		s.Live = r.live[s.Key]
		switch {
		case s.Live > 0:
			seen++
			if was == 0 {
				r.revived[s.Key] = true
			}
		case was > 0:
			r.die(s.Key, s.Size, s.Birth)
		}
		r.segments = append(r.segments, s)
		return true
	})
	if err != nil || seen == len(r.live) {
		return err
	}
	known := make(map[string]bool, len(r.segments))
	for i := range r.segments {
		known[r.segments[i].Key] = true
	}
	for key := range r.live {
		if !known[key] {
			return fmt.Errorf("segment %s: %w", key, ErrNotKept)
		}
	}
	return nil
}

// revive finds the dead things that are referred to again. What is neither dead
// nor referred to now was collected.
func (r *rewind) revive() error {
	for key, referred := range r.objects {
		if !referred {
			r.revived[key] = true
		}
	}
	for key := range r.revived {
		_, err := r.now.Dead(key)
		if errors.Is(err, ErrNotExist) {
			return fmt.Errorf("%s: %w", key, ErrNotKept)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// clear removes what the earlier state knew of segments and dead things.
func (r *rewind) clear() error {
	for _, kind := range []byte{kindDead, kindDeadKey, kindSegment, kindLocal} {
		prefix := []byte{kind}
		err := r.kv.Scan(prefix, after(prefix), func(key, _ []byte) error {
			return r.set(append([]byte(nil), key...), nil)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *rewind) write(head Head) error {
	for i := range r.segments {
		s := &r.segments[i]
		if err := r.set(keyString(kindSegment, s.Key), encodeSegment(s)); err != nil {
			return err
		}
	}
	var failed error
	err := r.now.DeadThings(func(d Dead) bool {
		if !r.revived[d.Key] {
			failed = r.putDead(&d)
		}
		return failed == nil
	})
	if err = errors.Join(err, failed); err != nil {
		return err
	}
	for i := range r.died {
		if err := r.putDead(&r.died[i]); err != nil {
			return err
		}
	}
	if err := r.set(headKey(), encodeHead(&head)); err != nil {
		return err
	}
	return r.flush()
}

func (r *rewind) putDead(d *Dead) error {
	key := keyString(kindDeadKey, d.Key)
	if err := r.set(deadKey(d.Death, d.Key), encodeDead(d)); err != nil {
		return err
	}
	return r.set(key, encodeUint(key, d.Death))
}

// set changes a key, or deletes it when value is nil.
func (r *rewind) set(key, value []byte) error {
	r.batch = append(r.batch, op{key, value})
	r.bytes += len(key) + len(value)
	if len(r.batch) < batchOps && r.bytes < batchBytes {
		return nil
	}
	return r.flush()
}

func (r *rewind) flush() error {
	ops := r.batch
	r.batch, r.bytes = nil, 0
	return r.kv.Update(func(w Writer) error { return writeOps(w, ops) })
}
