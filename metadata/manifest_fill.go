package metadata

import (
	"bytes"
	"fmt"
	"slices"
)

// derivedMax is how many bytes of derived records wait to be put in order.
const derivedMax = 32 << 20

// filler is a store that takes records in key order faster than by updates.
type filler interface {
	// Fill puts records into the empty store: next is called until it returns
	// none. The keys of one kind, which is a key's first byte, ascend. After an
	// error the store holds any part of them.
	Fill(next func() ([]op, error)) error
}

// fill puts the records that next returns into an empty store.
func fill(kv KV, next func() ([]op, error)) error {
	if f, ok := kv.(filler); ok {
		return f.Fill(next)
	}
	for {
		ops, err := next()
		if err != nil || len(ops) == 0 {
			return err
		}
		if err := storeOps(kv, ops); err != nil {
			return err
		}
	}
}

// storeOps makes as few updates as it can.
func storeOps(kv KV, ops []op) error {
	for len(ops) > 0 {
		n, size := 0, 0
		for n < len(ops) && n < MaxUpdateOps {
			size += len(ops[n].key) + len(ops[n].value)
			if n > 0 && size > MaxUpdateBytes {
				break
			}
			n++
		}
		if err := kv.Update(func(w Writer) error { return writeOps(w, ops[:n]) }); err != nil {
			return err
		}
		ops = ops[n:]
	}
	return nil
}

// pageFill turns pages into records in the order that a filler wants. Records of
// pages are in key order; those derived from them are in order only within a
// group, a directory's cookies or all dead things, so that a group is collected
// and sorted. What is beyond the limit is left out: the pages that it comes from
// are in again.
type pageFill struct {
	pages *pageLoader
	limit int
	last  [256][]byte // the last key of each kind

	group []byte // prefix of the keys in late
	late  []op
	bytes int
	full  bool // the group has passed the limit
	again []int
}

// next returns the records of the next page that has any.
func (f *pageFill) next() ([]op, error) {
	for {
		ch, ok := <-f.pages.queue
		if !ok {
			return f.endGroup(nil), nil
		}
		p := <-ch
		if p.err != nil {
			return nil, p.err
		}
		out, err := f.page(&p)
		if err != nil || len(out) > 0 {
			return out, err
		}
	}
}

func (f *pageFill) page(p *pageOps) ([]op, error) {
	out := make([]op, 0, len(p.ops))
	for _, o := range p.ops {
		if g := derivedGroup(o.key); g != nil {
			if !bytes.Equal(g, f.group) {
				out = f.endGroup(out)
				f.group, f.full = g, false
			}
			out = f.collect(out, p.page, o)
			continue
		}
		last := &f.last[o.key[0]]
		if bytes.Compare(o.key, *last) <= 0 {
			return nil, damaged("manifest page "+f.pages.m.Pages[p.page].Key(), "the %s is out of order", recordName(o.key))
		}
		*last = o.key
		out = append(out, o)
	}
	return out, nil
}

// derivedGroup returns the prefix that a derived record shares with those that
// it is sorted with; nil for a record that is in a page.
func derivedGroup(key []byte) []byte {
	switch key[0] {
	case kindCookie:
		return key[:9]
	case kindDeadKey:
		return key[:1]
	}
	return nil
}

func (f *pageFill) collect(out []op, page int, o op) []op {
	if !f.full && f.bytes >= f.limit {
		out = f.endGroup(out)
		f.full = true
	}
	if f.full {
		if n := len(f.again); n == 0 || f.again[n-1] != page {
			f.again = append(f.again, page)
		}
		return out
	}
	f.late = append(f.late, o)
	f.bytes += len(o.key) + len(o.value)
	return out
}

// endGroup appends what was collected, sorted.
func (f *pageFill) endGroup(out []op) []op {
	slices.SortFunc(f.late, func(a, b op) int { return bytes.Compare(a.key, b.key) })
	// Two names with one cookie would be damage that the check of names finds:
	// the last one stays here, as it would with updates.
	for i, o := range f.late {
		if i+1 == len(f.late) || !bytes.Equal(o.key, f.late[i+1].key) {
			out = append(out, o)
		}
	}
	f.late, f.bytes = nil, 0
	return out
}

// storeDerived stores the derived records of a page by updates.
func storeDerived(p pageOps, kv KV) error {
	if p.err != nil {
		return p.err
	}
	p.ops = slices.DeleteFunc(p.ops, func(o op) bool { return derivedGroup(o.key) == nil })
	if err := storeOps(kv, p.ops); err != nil {
		return fmt.Errorf("store what follows from names: %w", err)
	}
	return nil
}
