package gateway

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// checkBatch bounds the slots that are verified at a time.
const checkBatch = 64

// oneSlot is a slot to verify.
type oneSlot struct {
	ino InodeID
	no  uint32
	s   *metadata.Slot
}

// slots verifies what every slot refers to.
func (c *check) slots(ctx context.Context) error {
	if err := c.measure(); err != nil {
		return err
	}
	var batch []oneSlot
	var first error
	run := func() bool {
		first = c.inParallel(ctx, len(batch), func(ctx context.Context, i int) error {
			return c.slot(ctx, batch[i])
		})
		batch = batch[:0]
		return first == nil
	}
	err := c.ix.AllSlots(func(ino InodeID, no uint32, s *metadata.Slot) bool {
		batch = append(batch, oneSlot{ino, no, s})
		return len(batch) < checkBatch || run()
	})
	if err != nil {
		return fmt.Errorf("slots of the index: %w", err)
	}
	if first == nil && len(batch) > 0 {
		run()
	}
	if first != nil && ctx.Err() != nil {
		return ErrInterrupted
	}
	if first == nil {
		return c.sharers()
	}
	return first
}

// measure counts what there is to do.
func (c *check) measure() error {
	for _, name := range c.head.Settings.KeyNames() {
		c.needs(name, 0)
	}
	err := c.ix.AllSlots(func(_ InodeID, _ uint32, s *metadata.Slot) bool {
		c.r.Slots++
		if b := s.Base; b != nil {
			c.r.Objects++
			c.count(int64(b.Len), b.StoredLen(), b.Cipher)
		}
		for i := range s.Patches {
			if p := &s.Patches[i]; !p.Zero {
				c.count(int64(p.Len), int64(p.StoredLen()), p.Cipher)
			}
		}
		c.total += c.work(s)
		return true
	})
	if err != nil {
		return fmt.Errorf("slots of the index: %w", err)
	}
	return nil
}

// count counts what a reference refers to.
func (c *check) count(plain, stored int64, how metadata.Cipher) {
	c.r.PlainBytes += plain
	c.r.StoredBytes += stored
	if how.Key != "" {
		c.needs(how.Key, stored)
	}
}

func (c *check) needs(key string, stored int64) {
	if c.r.Keys == nil {
		c.r.Keys = map[string]int64{}
	}
	c.r.Keys[key] += stored
}

// work is what a slot counts for the progress.
func (c *check) work(s *metadata.Slot) int64 {
	if !c.o.Data {
		return 1
	}
	n := s.PatchBytes()
	if s.Base != nil {
		n += int64(s.Base.Len)
	}
	return n
}

// slot verifies one slot. What is wrong counts only if the slot is still the
// same afterwards: otherwise it was folded, and its old parts may be gone.
func (c *check) slot(ctx context.Context, at oneSlot) error {
	const tries = 5
	var found []Problem
	for range tries {
		var err error
		if found, err = c.verify(ctx, at); err != nil {
			return err
		}
		if len(found) == 0 {
			break
		}
		now, err := c.ix.Slot(at.ino, at.no)
		if err != nil {
			return fmt.Errorf("slot %d of inode %d: %w", at.no, at.ino, err)
		}
		if now.Same(at.s) {
			break
		}
		if found, at.s = nil, now; now == nil {
			break
		}
	}
	for _, p := range found {
		c.problem(p)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.done += c.work(at.s)
	if c.o.Progress != nil {
		c.o.Progress(min(c.done, c.total), c.total)
	}
	return nil
}

func (c *check) own(r metadata.Ref) bool { return r.Volume == "" || r.Volume == c.vol.ID }

func (c *check) verify(ctx context.Context, at oneSlot) ([]Problem, error) {
	var found []Problem
	start := int64(at.no) * c.slotSz
	if b := at.s.Base; b != nil && c.own(b.Ref) {
		wrong, err := c.lookUp(ctx, b.Key, b.StoredLen())
		if err != nil {
			return nil, err
		}
		if wrong != "" {
			found = append(found, Problem{Inode: at.ino, Off: start, Len: int64(b.Len), Key: b.Key, Reason: wrong})
		} else if c.o.Data && c.o.Verified.first(b.Key, 0) {
			if found, err = c.verifyBase(ctx, at, b); err != nil {
				return nil, err
			}
		}
	}
	if !c.o.Data {
		return found, nil
	}
	more, err := c.verifyPatches(ctx, at)
	return append(found, more...), err
}

// checkRun is how many bytes one request of a check reads.
const checkRun = 4 << 20

// read reads a range; what is wrong with it instead of bytes comes as text.
func (c *check) read(ctx context.Context, ref metadata.Ref, off int64, p []byte) (wrong string, err error) {
	return c.readResult(c.readStore(ctx, ref, off, p), len(p))
}

// readResult counts the n bytes that were read, or says what is wrong with them.
func (c *check) readResult(failed error, n int) (wrong string, err error) {
	switch err = failed; {
	case err == nil:
		c.mu.Lock()
		c.r.Bytes += int64(n)
		c.mu.Unlock()
		return "", nil
	case errors.Is(err, objstore.ErrNotExist):
		return "is missing", nil
	case errors.Is(err, ErrDamaged):
		return err.Error(), nil
	}
	return "", err
}

// verifyBase reads a base and compares each block with its checksum.
func (c *check) verifyBase(ctx context.Context, at oneSlot, b *metadata.Base) ([]Problem, error) {
	var found []Problem
	start := int64(at.no) * c.slotSz
	give, err := c.takeMemory(ctx, checkRun, true)
	if err != nil {
		return nil, err
	}
	defer give()
	buf := make([]byte, min(checkRun, int(b.Len)))
	for off := 0; off < int(b.Len); off += len(buf) {
		p := buf[:min(len(buf), int(b.Len)-off)]
		err := c.readBlocks(ctx, b, uint32(off), p, func(at32, n uint32, _ error) error {
			err := ErrDamaged
			if len(found) == 0 { // of an object that is damaged for sure the rest is believed to be
				err = c.again(ctx, b, at32, n)
			}
			if errors.Is(err, ErrDamaged) {
				found = append(found, Problem{Inode: at.ino, Off: start + int64(at32), Len: int64(n), Key: b.Key, Reason: sumMismatch})
				c.bad(at, b.Key, 0, sumMismatch)
				return nil
			}
			return err
		})
		wrong, err := c.readResult(err, len(p))
		if err != nil {
			return nil, err
		}
		if wrong != "" {
			found = append(found, Problem{Inode: at.ino, Off: start + int64(off), Len: int64(len(p)), Key: b.Key, Reason: wrong})
			c.bad(at, b.Key, 0, wrong)
		}
	}
	return found, nil
}

// again reads a block of a base that did not match anew: what was hurt on the way is
// not what is stored. ErrDamaged when it never matches.
func (c *check) again(ctx context.Context, b *metadata.Base, at, n uint32) error {
	p := make([]byte, n)
	return retryDamage(ctx, func() error {
		return c.readBlocks(ctx, b, at, p, func(_, _ uint32, err error) error { return err })
	})
}

// extentAgain is again for an extent.
func (c *check) extentAgain(ctx context.Context, p *metadata.Patch) error {
	raw := make([]byte, p.StoredLen())
	return retryDamage(ctx, func() error {
		err := c.readStore(ctx, p.Seg, int64(p.SegOff), raw)
		if err == nil {
			_, err = c.openExtent(p, raw, p.SegOff)
		}
		return err
	})
}

// verifyPatches reads all extents of a slot's patches, neighbours together, and
// compares their checksums.
func (c *check) verifyPatches(ctx context.Context, at oneSlot) ([]Problem, error) {
	var list []metadata.Patch
	for _, p := range at.s.Patches {
		if !p.Zero && c.own(p.Seg) && c.o.Verified.first(p.Seg.Key, p.SegOff) {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b metadata.Patch) int {
		if d := strings.Compare(a.Seg.Key, b.Seg.Key); d != 0 {
			return d
		}
		return int(int64(a.SegOff) - int64(b.SegOff))
	})
	give, err := c.takeMemory(ctx, checkRun, true)
	if err != nil {
		return nil, err
	}
	defer give()
	var found []Problem
	for len(list) > 0 {
		n, end := 1, list[0].SegOff+list[0].StoredLen()
		for n < len(list) && list[n].Seg == list[0].Seg && list[n].SegOff <= end+extentGap && list[n].SegOff+list[n].StoredLen()-list[0].SegOff <= checkRun {
			end = max(end, list[n].SegOff+list[n].StoredLen())
			n++
		}
		raw := make([]byte, end-list[0].SegOff)
		wrong, err := c.read(ctx, list[0].Seg, int64(list[0].SegOff), raw)
		if err != nil {
			return nil, err
		}
		for _, p := range list[:n] {
			reason := wrong
			if reason == "" {
				_, err := c.openExtent(&p, raw, list[0].SegOff)
				if errors.Is(err, ErrKey) {
					return nil, err
				}
				if err != nil && len(found) == 0 {
					err = c.extentAgain(ctx, &p)
				}
				if err != nil && !errors.Is(err, ErrDamaged) {
					return nil, err
				}
				if err != nil {
					reason = fmt.Sprintf("bytes %d to %d: "+sumMismatch, p.SegOff, p.SegOff+p.StoredLen())
				}
			}
			if reason != "" {
				found = append(found, Problem{Inode: at.ino, Off: int64(at.no)*c.slotSz + int64(p.Off), Len: int64(p.Len), Key: p.Seg.Key, Reason: reason})
				c.bad(at, p.Seg.Key, p.SegOff, reason)
			}
		}
		list = list[n:]
	}
	return found, nil
}
