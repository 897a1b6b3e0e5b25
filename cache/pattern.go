package cache

import "sync"

const (
	firstReadAhead = 1 << 20
	// DefaultMaxReadAhead is six objects of the default size.
	DefaultMaxReadAhead = 30 << 20
	// A request of a sequential reader may arrive as far from its place as that
	// many of its size, within bounds: the kernel sends its own read-ahead in
	// parallel requests, and the next while some of them are under way.
	reorderRequests = 16
	minReorder      = 1 << 20
	maxReorder      = 16 << 20
	maxStreams      = 4
	// A request this large is a piece of a scan or of a larger read, which the
	// kernel sends one after the other: twice as much is worth fetching at once.
	bulkRequest = 512 << 10
)

// Pattern tells sequential readers from random ones, by the requests that one
// open handle makes. It follows several streams at once: a scan by several
// threads shares a descriptor. The zero value is ready; it is safe for
// concurrent use.
type Pattern struct {
	Max int64 // bytes to read ahead at most; 0: DefaultMaxReadAhead; set before use

	mu      sync.Mutex
	clock   uint64
	streams [maxStreams]stream
}

// stream is one run of requests, each where the one before it ended.
type stream struct {
	next   int64  // where the run goes on
	run    int64  // bytes read in order since the window last grew
	window int64  // bytes to read ahead; 0 until the run has proved itself
	used   uint64 // clock of the last request; 0: free
}

// Observe notes a read of n bytes at off and returns how many bytes from off+n
// on are worth fetching before they are asked for: 0 for a random reader, for a
// sequential one 1 MiB, doubling as it goes on, and for one of large requests twice
// their size from the first on.
func (p *Pattern) Observe(off, n int64) int64 {
	if checkRange(off, n) != nil || n == 0 {
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.clock++
	s := p.find(off, n)
	if s == nil {
		s = p.oldest()
		*s = stream{next: off + n, run: n, used: p.clock}
		if n >= bulkRequest {
			s.window = min(2*n, p.limit())
		}
		return s.window
	}
	s.used = p.clock
	if off != s.next { // out of order within a proven stream: no step forward
		s.next = max(s.next, off+n)
		return s.window
	}
	s.next = off + n
	s.run += n
	limit := p.limit()
	switch {
	case s.window == 0:
		s.window, s.run = min(firstReadAhead, limit), 0
	case s.run >= s.window/2:
		s.window, s.run = min(2*s.window, limit), 0
	}
	return s.window
}

func (p *Pattern) limit() int64 {
	if p.Max > 0 {
		return p.Max
	}
	return DefaultMaxReadAhead
}

// find returns the stream that a read of n bytes at off belongs to.
func (p *Pattern) find(off, n int64) *stream {
	reorder := min(max(min(n, maxReorder)*reorderRequests, minReorder), maxReorder)
	var near *stream
	for i := range p.streams {
		s := &p.streams[i]
		switch d := off - s.next; {
		case s.used == 0:
		case d == 0:
			return s
		case s.window > 0 && -reorder <= d && d <= reorder:
			near = s
		}
	}
	return near
}

func (p *Pattern) oldest() *stream {
	o := &p.streams[0]
	for i := range p.streams {
		if p.streams[i].used < o.used {
			o = &p.streams[i]
		}
	}
	return o
}
