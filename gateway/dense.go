package gateway

import (
	"sync"

	"github.com/cisternfs/cistern/cache"
	"github.com/cisternfs/cistern/metadata"
)

// A reader that comes back to a slot at random places pays a round trip for each
// block, where one request brings the slot whole. So a slot is fetched whole, as if
// it were read ahead, once readers have fetched a share of it, and that share is
// still in the cache: an eighth as long as the cache has room for the rest, half
// when others have to go for it.
//
// Bytes that readers fetch are credit, which is spent by asking. So what is fetched
// unasked is never more than eight times what readers fetched themselves, and no
// more than twice that once the cache is full, whatever they read and however often
// a slot is evicted and comes back. Slots larger than readAheadLargest are taken in
// parts of that size.
const (
	denseShare = 8
	denseFull  = 2                      // in place of denseShare when the cache is full
	denseLeast = 4 * metadata.BlockSize // bytes of credit, however small the slot
	denseParts = 4096                   // whose credit is remembered; beyond that all is forgotten
)

// densePart is a part of a slot.
type densePart struct {
	ino  InodeID
	slot uint32
	part uint32 // counts pieces of readAheadLargest from the slot's start
}

func densePartOf(k blockKey) densePart {
	return densePart{k.ino, k.slot, k.block / (readAheadLargest / metadata.BlockSize)}
}

// span returns the part's bytes in its file, of a slot that ends at end.
func (p densePart) span(objectSize int64, end uint32) (from, to int64) {
	start := int64(p.slot) * objectSize
	from = start + int64(p.part)*readAheadLargest
	return from, min(from+readAheadLargest, start+int64(end))
}

// demand is what one read had to fetch itself.
type demand map[densePart]demanded

type demanded struct {
	bytes int64
	end   uint32 // of the slot
}

// add counts a block; a nil demand counts nothing.
func (d demand) add(k blockKey, got fetched) {
	if d == nil {
		return
	}
	p := densePartOf(k)
	d[p] = demanded{d[p].bytes + int64(len(got.data)), got.slot.End()}
}

// denseTable is the credit of slots. Safe for concurrent use; the zero value is
// ready.
type denseTable struct {
	mu sync.Mutex // guards the field below
	m  map[densePart]denseCredit
}

type denseCredit struct {
	bytes int64
	asked bool // and not answered yet
}

// earn adds to a part's credit and returns it, 0 while the part is on its way.
func (d *denseTable) earn(p densePart, n int64) int64 {
	d.mu.Lock()
	defer d.mu.Unlock()
	c, known := d.m[p]
	if d.m == nil || !known && len(d.m) >= denseParts {
		d.m = map[densePart]denseCredit{}
	}
	if c.asked {
		return 0
	}
	c.bytes += n
	d.m[p] = c
	return c.bytes
}

// spend takes all of a part's credit, if it is as much as it was and nobody else
// has asked.
func (d *denseTable) spend(p densePart, atLeast int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if c := d.m[p]; c.asked || c.bytes < atLeast {
		return false
	}
	d.m[p] = denseCredit{asked: true}
	return true
}

// done lets a part that was asked for be asked for again.
func (d *denseTable) done(t readAheadTask) {
	if t.dense == nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.m, *t.dense)
}

// ask asks for the parts of slots that a read fetched from, where they are dense. It
// never waits.
func (d *denseTable) ask(queue chan<- readAheadTask, c *cache.Cache, f *cache.File, objectSize int64, own demand) {
	for p, x := range own {
		credit := d.earn(p, x.bytes)
		if credit < denseLeast {
			continue
		}
		from, to := p.span(objectSize, x.end)
		here := int64(0)
		f.Present(from, to-from, func(_, n int64) bool { here += n; return true })
		share, rest := min(here, credit), to-from-here
		if rest <= 0 || share*denseShare < to-from || share*denseFull < to-from && c.Room() < rest || !d.spend(p, credit) {
			continue
		}
		t := readAheadTask{ino: p.ino, off: from, end: to, dense: &p}
		select {
		case queue <- t:
		default:
			d.done(t)
		}
	}
}

// whole fills gaps of one block in a list of blocks of a part that was asked for: what
// is here already costs less than another request.
func (p *densePart) whole(blocks []uint32) []uint32 {
	if p == nil {
		return blocks
	}
	var all []uint32
	for i, b := range blocks {
		if i > 0 && b == blocks[i-1]+2 {
			all = append(all, b-1)
		}
		all = append(all, b)
	}
	return all
}
