package binlogfs

import (
	"context"
	"sync"
)

// hardener makes published groups durable beside the appending, many at a time,
// and tells of them: the log's readers, and ack.
type hardener struct {
	a *Appender

	mu     sync.Mutex // guards the fields below
	next   *published // the latest publication that is not durable
	err    error      // of the first that failed; nothing is told after it
	wake   chan struct{}
	idle   *sync.Cond
	busy   bool
	closed bool
	done   chan struct{}
	cancel context.CancelFunc // ends the waiting for the volume
}

// published is a publication on its way to being durable.
type published struct {
	info   *FileInfo
	prev   *GTIDState // at the beginning of the file; not changed any more
	added  *GTIDState // its groups
	source SourcePlace
	first  bool // of its file: what the file begins with counts, too
}

func (d *hardener) start(ctx context.Context, a *Appender) {
	d.a, d.wake, d.done = a, make(chan struct{}, 1), make(chan struct{})
	d.idle = sync.NewCond(&d.mu)
	ctx, d.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go d.run(ctx)
}

// add hands a publication over.
func (d *hardener) add(p *published) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return d.err
	}
	if d.next != nil {
		d.next.added.Merge(p.added)
		p.added, p.first = d.next.added, p.first || d.next.first
	}
	d.next = p
	select {
	case d.wake <- struct{}{}:
	default:
	}
	return nil
}

// wait returns when all publications are durable, or when ctx ends: while the store
// is away none becomes durable with AckBucket.
func (d *hardener) wait(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.idle.Broadcast()
	})()
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.err == nil && (d.next != nil || d.busy) {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		d.idle.Wait()
	}
	return d.err
}

// stop ends the goroutine when everything is told, or cancel was called.
func (d *hardener) stop() error {
	err := d.wait(context.Background())
	d.mu.Lock()
	closed := d.closed
	d.closed = true
	d.mu.Unlock()
	if !closed {
		close(d.wake)
	}
	<-d.done
	return err
}

func (d *hardener) run(ctx context.Context) {
	defer close(d.done)
	defer d.cancel()
	for range d.wake {
		d.mu.Lock()
		p := d.next
		if d.err != nil {
			p = nil // it would be told of without those before it
		}
		d.next, d.busy = nil, p != nil
		d.mu.Unlock()
		if p == nil {
			continue
		}
		err := d.a.l.harden(ctx)
		if err == nil {
			d.a.l.advance(p)
			if d.a.ack != nil {
				d.a.ack(p.source)
			}
		}
		d.mu.Lock()
		d.busy = false
		if d.err == nil {
			d.err = err
		}
		d.idle.Broadcast()
		d.mu.Unlock()
	}
}

// advance tells readers of a publication that is durable.
func (l *Log) advance(p *published) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := len(l.files) - 1; i >= 0; i-- {
		if l.files[i].Epoch == p.info.Epoch && l.files[i].Name == p.info.Name {
			l.files[i] = p.info
			break
		}
	}
	if l.last == nil || l.last.Flavor() != p.info.Flavor {
		l.last = NewGTIDState(p.info.Flavor)
	}
	// A later epoch begins with groups that the archive has.
	merge := l.last.Merge
	if p.info.Epoch > 1 {
		merge = l.last.MergeNew
	}
	if p.first {
		merge(p.prev)
	}
	merge(p.added)
	l.end = Position{p.info.Epoch, p.info.Name, p.info.Size}
	close(l.changed)
	l.changed = make(chan struct{})
}
