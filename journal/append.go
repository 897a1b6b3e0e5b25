package journal

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"sync"
)

// group is an appended operation: its bytes stay until they are known durable.
type group struct {
	buf   []byte
	first LSN
	count uint32
	epoch uint64
	file  *file
	off   int64
}

func (g *group) last() LSN { return g.first + LSN(g.count) - 1 }

// bufferPools keep groups by the power of two of their capacity.
type bufferPools [32]sync.Pool

const smallestBuffer = 9 // 512 bytes

func (p *bufferPools) get(n int64) *group {
	class := max(smallestBuffer, bits.Len64(uint64(n-1)))
	if g, ok := p[class].Get().(*group); ok {
		g.buf = g.buf[:n]
		return g
	}
	return &group{buf: make([]byte, n, 1<<class)}
}

func (p *bufferPools) put(g *group) {
	class := bits.Len(uint(cap(g.buf))) - 1
	*g = group{buf: g.buf}
	p[class].Put(g)
}

// What an append has to do before it can go on.
var (
	errSyncFirst    = errors.New("too many unsynced bytes")
	errRewriteFirst = errors.New("current file failed")
)

// Append writes one operation: its entries get consecutive LSNs, of which it
// returns the first, and the Locs of their Data, in order. The bytes have been
// handed to the kernel when it returns. The LSNs of calls that don't overlap are
// in the order of the calls.
//
// The room comes from r, of which the rest stays; with a nil r Append reserves
// for itself and waits as Reserve does. Errors: ErrTooLarge, ErrBroken, ErrClosed;
// ErrNoSpace or an I/O error when no file could be begun, and then nothing was
// appended. After ErrBroken a recovery may find the operation or not.
func (j *Journal) Append(r *Reservation, entries ...Entry) (LSN, []Loc, error) {
	if len(entries) == 0 {
		return 0, nil, errors.New("append to journal: no entries")
	}
	size := groupSize(entries)
	if size > j.o.FileSize-headerSize {
		return 0, nil, fmt.Errorf("%w: operation of %d bytes, a file holds %d", ErrTooLarge, size, j.o.FileSize-headerSize)
	}
	if r == nil {
		own, err := j.Reserve(context.Background(), max(0, size-groupHeaderSize-FreeEntries*entryHeaderSize), false)
		if err != nil {
			return 0, nil, err
		}
		defer own.Release()
		r = own
	}
	g := j.pools.get(size)
	g.count = uint32(len(entries))
	locs := make([]Loc, len(entries))
	putEntries(g.buf, entries, func(i, off int, crc uint32) {
		if n := len(entries[i].Data); n > 0 {
			locs[i] = Loc{Off: int64(off), Len: uint32(n), CRC: crc}
		}
	})
	first, err := j.appendGroup(g, r, locs)
	if err != nil {
		return 0, nil, fmt.Errorf("append to journal: %w", err)
	}
	return first, locs, nil
}

// appendGroup numbers and writes the group; it becomes the journal's. It
// completes the locs.
func (j *Journal) appendGroup(g *group, r *Reservation, locs []Loc) (LSN, error) {
	for {
		first, err := j.tryAppend(g, r, locs)
		switch err {
		case nil:
			return first, nil
		case errSyncFirst:
			err = j.Sync(context.Background(), j.End())
		case errRewriteFirst:
			if err = j.mend(); err == nil && first != 0 {
				j.forward(locs)
				return first, nil
			}
		}
		if err != nil {
			return 0, err
		}
	}
}

// tryAppend is one attempt. With errRewriteFirst and an LSN the group is among
// the pending ones and its records are written by the rewrite.
func (j *Journal) tryAppend(g *group, r *Reservation, locs []Loc) (LSN, error) {
	size := int64(len(g.buf))
	j.wr.Lock()
	defer j.wr.Unlock()
	f, err := j.admitGroup(size, r)
	if err != nil {
		return 0, err
	}
	if f.end+size > f.size {
		if f, err = j.roll(); err != nil {
			return 0, err
		}
	}
	for i := range locs {
		if locs[i].Len > 0 {
			locs[i].File = f.head.incarnation
			locs[i].Off += f.end
		}
	}
	g.file, g.off, g.first, g.epoch = f, f.end, j.nextLSN(), j.epoch
	head := groupHeader{count: g.count, epoch: g.epoch, incarnation: f.head.incarnation, prev: j.prev, durable: j.Durable(), first: g.first}
	j.prev = seal(g.buf, head)
	_, writeErr := f.f.WriteAt(g.buf, g.off)
	first := g.first
	j.mu.Lock()
	defer j.mu.Unlock()
	j.consume(r, size)
	j.pending = append(j.pending, g)
	j.unsynced += size
	j.end = g.last()
	f.end += size
	f.last = j.end
	j.stats.Appends++
	j.stats.Records += uint64(g.count)
	j.stats.AppendedBytes += uint64(size)
	if f.end >= f.size/2 && len(j.spares) == 0 && j.total < j.maxFiles {
		j.kick()
	}
	if writeErr != nil {
		j.failed = fmt.Errorf("write %d bytes at %d of journal file %s: %w", size, g.off, j.path(f.name), writeErr)
		return first, errRewriteFirst
	}
	return first, nil
}

// admitGroup tells whether a group may be appended now, and to which file as far
// as it fits.
func (j *Journal) admitGroup(size int64, r *Reservation) (*file, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch err := j.usable(); {
	case err != nil:
		return nil, err
	case j.failed != nil:
		return nil, errRewriteFirst
	case size > r.left:
		return nil, fmt.Errorf("%w: it takes %d bytes, its reservation has %d left", ErrTooLarge, size, r.left)
	case j.unsynced > 0 && j.unsynced+size > j.o.MaxUnsyncedBytes:
		return nil, errSyncFirst
	}
	return j.current(), nil
}

func (j *Journal) nextLSN() LSN {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.end + 1
}

// roll goes on to the next file.
func (j *Journal) roll() (*file, error) {
	next := j.nextLSN()
	f, named, err := j.newFile(fileHeader{epoch: j.epoch, first: next, after: next - 1, durable: j.Durable()})
	if err != nil {
		if named {
			err = j.giveUp(err)
		}
		return nil, err
	}
	j.prev = f.crc
	j.mu.Lock()
	defer j.mu.Unlock()
	j.files = append(j.files, f)
	return f, nil
}

// forward replaces Locs by where a rewrite put the bytes.
func (j *Journal) forward(locs []Loc) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for i := range locs {
		locs[i] = j.follow(locs[i])
	}
}

// follow returns where the bytes of a Loc are now; mu is held.
func (j *Journal) follow(loc Loc) Loc {
	for {
		to, ok := j.moved[place{loc.File, loc.Off}]
		if !ok {
			return loc
		}
		loc = to
	}
}
