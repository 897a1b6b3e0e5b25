package binlogfs

import (
	"context"
	"fmt"
	"io"

	"github.com/go-mysql-org/go-mysql/replication"
)

// store adds an event to the buffer, and the buffer to the volume as it fills.
func (a *Appender) store(ctx context.Context, raw []byte, h Header, body []byte, whole int, r io.Reader) error {
	if err := a.t.begin(raw, h, body, whole); err != nil {
		return err
	}
	if a.t.step == StepBegin {
		a.setPending(&Pending{GTID: a.t.groups.GTID(), Began: a.l.opt.Now(), File: a.t.info.Name, Offset: a.t.end})
	}
	a.pend(func(p *Pending) { p.Events++ })
	a.t.bytes(raw)
	a.sum(body)
	if err := a.put(ctx, raw); err != nil {
		return err
	}
	if err := a.put(ctx, body); err != nil {
		return err
	}
	if err := a.storeRest(ctx, whole-len(body), r); err != nil {
		return err
	}
	if a.t.format.Checksum || h.Type == replication.FORMAT_DESCRIPTION_EVENT {
		var sum [checksumSize]byte
		if _, err := io.ReadFull(r, sum[:]); err != nil {
			return unexpected(err)
		}
		if err := a.rightSum(sum[:]); err != nil {
			return err
		}
		a.t.bytes(sum[:])
		if err := a.put(ctx, sum[:]); err != nil {
			return err
		}
	}
	if err := a.rightEnd(h); err != nil {
		return err
	}
	boundary, err := a.t.finish()
	if err != nil {
		return err
	}
	if a.own == nil {
		a.received(a.t.info.Name, a.t.end)
	} else {
		a.received(a.own.file, a.own.end)
	}
	if boundary {
		a.ready = a.t.end
		if a.own != nil {
			a.ownGroup()
		}
		a.setPending(nil)
		return nil
	}
	return a.fragment(ctx, raw, h, body)
}

// sum takes bytes of an event's body into its checksums.
func (a *Appender) sum(p []byte) {
	a.t.bytes(p)
	a.t.crc32.add(p)
	if a.own != nil {
		a.own.check.add(p)
	}
}

// rightSum verifies the checksum with which an event came, and makes it that of
// the event as it is stored.
func (a *Appender) rightSum(sum []byte) error {
	if a.own != nil {
		return a.ownSum(sum)
	}
	return a.t.verify(sum)
}

// rightEnd verifies that a group ends where its last event says.
func (a *Appender) rightEnd(h Header) error {
	if a.t.step != StepEnd {
		return nil
	}
	file, end, says := a.t.info.Name, a.t.end+int64(h.Size), h.LogPos
	if a.own != nil {
		file, end, says = a.own.file, a.own.end, a.own.logPos
	}
	if says != uint32(end) {
		return fmt.Errorf("%w: the group %v ends at %d of %s, where its last event says %d", ErrCorrupt, a.t.groups.GTID(), end, file, says)
	}
	return nil
}

// storeRest streams what is left of a body.
func (a *Appender) storeRest(ctx context.Context, n int, r io.Reader) error {
	for n > 0 {
		if len(a.buf) >= a.part() {
			if err := a.spill(ctx); err != nil {
				return err
			}
		}
		at := len(a.buf)
		k := min(n, max(a.part()-at, 1))
		a.buf = grow(a.buf, k)
		if _, err := io.ReadFull(r, a.buf[at:]); err != nil {
			return unexpected(err)
		}
		a.sum(a.buf[at:])
		n -= k
	}
	return nil
}

func grow(b []byte, n int) []byte {
	if cap(b)-len(b) < n {
		b = append(make([]byte, 0, max(2*cap(b), len(b)+n)), b...)
	}
	return b[:len(b)+n]
}

// put appends to the buffer.
func (a *Appender) put(ctx context.Context, p []byte) error {
	for len(p) > 0 {
		if len(a.buf) >= a.part() {
			if err := a.spill(ctx); err != nil {
				return err
			}
		}
		n := min(len(p), max(a.part()-len(a.buf), 1))
		a.buf = append(a.buf, p[:n]...)
		p = p[n:]
	}
	return nil
}

// spill hands the buffer to the volume: complete groups are published, and the
// bytes of the open one stay invisible beyond them.
func (a *Appender) spill(ctx context.Context) error {
	if err := a.Flush(ctx); err != nil {
		return err
	}
	return a.stage(ctx)
}

// Flush publishes all complete groups. The caller calls it when the source has
// nothing more to send at the moment.
func (a *Appender) Flush(ctx context.Context) error {
	if a.t == nil || a.ready <= a.published || a.t.info.Server == "" {
		return nil // a magic alone is no log
	}
	// Publishing drops what is staged beyond: so much is staged and no more.
	if n := a.ready - a.staged; n > 0 {
		rest := a.buf[n:]
		a.buf = a.buf[:n]
		if err := a.stage(ctx); err != nil {
			return err
		}
		a.buf = append(a.buf, rest...)
	}
	if err := a.h.Publish(ctx, a.ready); err != nil {
		return fmt.Errorf("publish groups of %s: %w", a.file, err)
	}
	if err := a.hard.add(&published{info: a.t.catalogue(), added: a.t.take(), prev: a.t.prev, first: a.published == 0, source: a.sourceEnd()}); err != nil {
		return err
	}
	a.published = a.ready
	if a.t.info.Size-a.saved >= catalogueEvery {
		return a.save(ctx)
	}
	return nil
}

// sourceEnd is the place in the source's log of what is ready.
func (a *Appender) sourceEnd() SourcePlace {
	if a.own != nil {
		return SourcePlace{a.own.file, a.own.boundary}
	}
	return SourcePlace{a.t.info.Name, a.ready}
}

// stage hands the buffer to the volume.
func (a *Appender) stage(ctx context.Context) error {
	if len(a.buf) == 0 {
		return nil
	}
	if _, err := a.h.Stage(ctx, a.buf, a.staged); err != nil {
		return fmt.Errorf("store events of %s: %w", a.file, err)
	}
	a.staged += int64(len(a.buf))
	a.buf = a.buf[:0]
	if a.staged > a.ready {
		a.pend(func(p *Pending) { p.Bytes, p.Fragments = a.staged-p.Offset, p.Fragments+1 })
	}
	return nil
}

type sliceReader struct{ b []byte }

// Read implements io.Reader.
func (s *sliceReader) Read(p []byte) (int, error) {
	if len(s.b) == 0 {
		return 0, io.EOF
	}
	n := copy(p, s.b)
	s.b = s.b[n:]
	return n, nil
}

func discard(r io.Reader, n int64) error {
	_, err := io.CopyN(io.Discard, r, n)
	return unexpected(err)
}
