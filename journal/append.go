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
	errRollFirst    = errors.New("current file is full")
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
	first, locs, err := j.Enqueue(r, entries...)
	if err != nil {
		return 0, nil, err
	}
	if err := j.Write(first + LSN(len(entries)) - 1); err != nil {
		return 0, nil, err
	}
	j.forward(locs)
	return first, locs, nil
}

// Enqueue is the first half of Append: the operation has its LSNs and its place,
// ReadData and Sync know it, and Write hands it over. Between the two the caller
// may let others go on; nothing is acknowledged before Write returned. Errors are
// those of Append.
func (j *Journal) Enqueue(r *Reservation, entries ...Entry) (LSN, []Loc, error) {
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
	first, err := j.enqueueGroup(g, r, locs)
	if err != nil {
		return 0, nil, fmt.Errorf("append to journal: %w", err)
	}
	return first, locs, nil
}

// enqueueGroup numbers the group, which becomes the journal's, and completes the
// locs.
func (j *Journal) enqueueGroup(g *group, r *Reservation, locs []Loc) (LSN, error) {
	for {
		first, err := j.tryEnqueue(g, r, locs)
		switch err {
		case nil:
			return first, nil
		case errSyncFirst:
			err = j.Sync(context.Background(), j.End())
		case errRewriteFirst:
			err = j.mend()
		case errRollFirst:
			err = j.rollFor(int64(len(g.buf)))
		}
		if err != nil {
			return 0, err
		}
	}
}

// tryEnqueue is one attempt.
func (j *Journal) tryEnqueue(g *group, r *Reservation, locs []Loc) (LSN, error) {
	size := int64(len(g.buf))
	j.wr.Lock()
	defer j.wr.Unlock()
	f, err := j.admitGroup(size, r)
	if err != nil {
		return 0, err
	}
	if f.end+size > f.size {
		return 0, errRollFirst
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
	j.queue = append(j.queue, g)
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
	return g.first, nil
}

// Write hands everything up to lsn to the kernel, in order: one caller does it
// for all who wait. Errors: ErrBroken, ErrClosed.
func (j *Journal) Write(lsn LSN) error {
	for LSN(j.written.Load()) < lsn {
		j.out.Lock()
		if LSN(j.written.Load()) >= lsn {
			j.out.Unlock()
			break
		}
		j.mu.Lock()
		err, failed := j.usable(), j.failed
		j.mu.Unlock()
		if err == nil && failed == nil {
			failed = j.writeQueue()
		}
		j.out.Unlock()
		if err == nil && failed != nil {
			err = j.mend()
		}
		if err != nil {
			return fmt.Errorf("append to journal: %w", err)
		}
	}
	return nil
}

// writeQueue writes the queued groups; out is held.
func (j *Journal) writeQueue() error {
	j.wr.Lock()
	queue := j.queue
	j.queue = nil
	j.wr.Unlock()
	return j.writeGroups(queue)
}

// joinBytes is how many bytes of groups one pwrite takes at most.
const joinBytes = 256 << 10

// writeGroups writes groups that follow each other, joined where they are small;
// out is held. A failure is noted for the rewrite.
func (j *Journal) writeGroups(queue []*group) error {
	for len(queue) > 0 {
		n, size := 1, len(queue[0].buf)
		for n < len(queue) && queue[n].file == queue[0].file && size+len(queue[n].buf) <= joinBytes {
			size += len(queue[n].buf)
			n++
		}
		first, last := queue[0], queue[n-1]
		buf := first.buf
		if n > 1 {
			j.joined = j.joined[:0]
			for _, g := range queue[:n] {
				j.joined = append(j.joined, g.buf...)
			}
			buf = j.joined
		}
		if _, err := first.file.f.WriteAt(buf, first.off); err != nil {
			err = fmt.Errorf("write %d bytes at %d of journal file %s: %w", size, first.off, j.path(first.file.name), err)
			j.mu.Lock()
			j.failed = err
			j.mu.Unlock()
			return err
		}
		j.written.Store(uint64(last.last()))
		queue = queue[n:]
	}
	return nil
}

// rollFor goes on to the next file unless the current one has room again. What is
// queued for the old one is written first: no file may begin before the one ahead
// of it is whole.
func (j *Journal) rollFor(size int64) error {
	j.out.Lock()
	defer j.out.Unlock()
	j.wr.Lock()
	defer j.wr.Unlock()
	j.mu.Lock()
	f, err, failed := j.current(), j.usable(), j.failed
	j.mu.Unlock()
	if err != nil {
		return err
	}
	if failed != nil || f.end+size <= f.size {
		return nil // the next attempt sees it
	}
	queue := j.queue
	j.queue = nil
	if j.writeGroups(queue) != nil {
		return nil // noted: the next attempt mends it
	}
	_, err = j.roll()
	return err
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
	f, named, err := j.newFile(fileHeader{epoch: j.epoch, first: next, after: next - 1, durable: j.Durable()}, j.takeSpare)
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
