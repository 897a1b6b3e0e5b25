package trace

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// thinkAtLeast is the shortest sleep: shorter gaps add up until they reach it,
// because a sleep is never as short as that.
const thinkAtLeast = time.Millisecond

// Replay is one replay of a recording below a directory of its own.
type Replay struct {
	trace *Trace
	root  string
	model *model

	buffers pool

	mu      sync.Mutex // guards handles
	handles map[handleKey]*handle
	parked  map[handleKey]*handle // what was open when it was parked
}

// Result is what a phase took and did.
type Result struct {
	Took          time.Duration
	Ops, Fsyncs   int
	Read, Written int64 // bytes
	// Spent is the time in calls of each kind, summed over all that ran at a time.
	Spent map[string]time.Duration
}

// Range is a piece of a file that is read.
type Range struct {
	Path           string
	Offset, Length int64
}

// New makes a replay below root, which must be empty. Another seed gives other
// content.
func New(t *Trace, root string, seed uint64) *Replay {
	return &Replay{trace: t, root: root, model: newModel(seed), handles: map[handleKey]*handle{}}
}

// Run replays a phase. With think the recorded time between operations passes,
// too. The phases before it must have been replayed, in their order. The clock
// stops when the last operation is done.
func (r *Replay) Run(ctx context.Context, phase string, think bool) (Result, error) {
	p := r.trace.Phase(phase)
	if p == nil {
		return Result{}, fmt.Errorf("replay: there is no phase %q", phase)
	}
	begun := time.Now()
	s := newSchedule(p)
	stop := context.AfterFunc(ctx, func() { s.fail(ctx.Err()) })
	defer stop()
	var wg sync.WaitGroup
	for name, proc := range p.procs {
		wg.Go(func() { r.runProcess(s, p, name, proc, think) })
	}
	wg.Wait()
	took := time.Since(begun)
	if s.err != nil {
		return Result{}, fmt.Errorf("replay %s: %w", phase, s.err)
	}
	res := p.Totals()
	res.Took, res.Spent = took, s.spent
	return res, nil
}

// runProcess makes the operations of one recorded process, in order, some at a
// time.
func (r *Replay) runProcess(s *schedule, p *Phase, name string, proc *process, think bool) {
	places := make(chan struct{}, proc.width)
	var wg sync.WaitGroup
	defer wg.Wait()
	var owed time.Duration
	for i, o := range proc.ops {
		if !s.wait(name, o) {
			return
		}
		if owed += o.gap; think && owed >= thinkAtLeast {
			begun := time.Now()
			time.Sleep(owed)
			owed -= time.Since(begun)
		}
		run := func() {
			begun := time.Now()
			err := r.do(p.Name, o)
			s.done(name, i, o.Kind, time.Since(begun), err)
		}
		if proc.width == 1 {
			run()
			continue
		}
		places <- struct{}{}
		wg.Go(func() {
			run()
			<-places
		})
	}
}

// Totals sums up what a phase does, without a time.
func (p *Phase) Totals() Result {
	var res Result
	for _, o := range p.Ops {
		res.Ops++
		switch o.Kind {
		case "fsync":
			res.Fsyncs++
		case "read", "pread":
			res.Read += o.Result
		case "write":
			res.Written += o.Result
		}
	}
	return res
}

// Ranges are the pieces of files that a phase reads with pread, in its order, and
// how many were read at a time.
func (t *Trace) Ranges(phase string) (ranges []Range, width int) {
	p := t.Phase(phase)
	if p == nil {
		return nil, 0
	}
	for _, o := range p.Ops {
		if o.Kind == "pread" && o.Result > 0 {
			ranges = append(ranges, Range{o.Path, o.Offset, o.Result})
			width = max(width, p.procs[o.Proc].width)
		}
	}
	return ranges, width
}

// schedule is what has been done in a phase.
type schedule struct {
	mu      sync.Mutex // guards all below
	changed sync.Cond
	isDone  map[string][]bool
	prefix  map[string]int // so many from the first on are done
	spent   map[string]time.Duration
	err     error // the first failure; nobody goes on after it
}

func newSchedule(p *Phase) *schedule {
	s := &schedule{isDone: map[string][]bool{}, prefix: map[string]int{}, spent: map[string]time.Duration{}}
	s.changed.L = &s.mu
	for name, proc := range p.procs {
		s.isDone[name] = make([]bool, len(proc.ops))
	}
	return s
}

// wait returns when an operation may begin; false after a failure.
func (s *schedule) wait(proc string, o *Op) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	ready := func() bool {
		for _, n := range o.waits {
			if s.prefix[n.proc] < n.count {
				return false
			}
		}
		for _, i := range o.after {
			if !s.isDone[proc][i] {
				return false
			}
		}
		return true
	}
	for s.err == nil && !ready() {
		s.changed.Wait()
	}
	return s.err == nil
}

func (s *schedule) done(proc string, i int, kind string, took time.Duration, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.spent[kind] += took
	if err != nil && s.err == nil {
		s.err = err
	}
	all := s.isDone[proc]
	all[i] = true
	for s.prefix[proc] < len(all) && all[s.prefix[proc]] {
		s.prefix[proc]++
	}
	s.changed.Broadcast()
}

func (s *schedule) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
	s.changed.Broadcast()
}

// Park closes all files, so that the file system can be unmounted. Resume opens
// them again.
func (r *Replay) Park() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var err error
	for _, h := range r.handles {
		err = errors.Join(err, unix.Close(h.fd))
	}
	if r.parked == nil {
		r.parked = r.handles
	}
	r.handles = map[handleKey]*handle{}
	return err
}

// Resume opens the files that were open at the first Park, as often as one likes:
// a phase that changes nothing can so be replayed again.
func (r *Replay) Resume() error {
	if err := r.Park(); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key, was := range r.parked {
		flags := was.flags
		for _, once := range []string{"|O_CREAT", "|O_TRUNC"} {
			flags = cut(flags, once)
		}
		h, err := r.openFile(was.path, flags, 0)
		if err != nil {
			return fmt.Errorf("open %s again: %w", was.path, err)
		}
		h.file = was.file
		r.handles[key] = h
	}
	return nil
}

func cut(s, what string) string {
	if i := len(s) - len(what); i >= 0 && s[i:] == what {
		return s[:i]
	}
	for i := 0; i+len(what) < len(s); i++ {
		if s[i:i+len(what)] == what && s[i+len(what)] == '|' {
			return s[:i] + s[i+len(what):]
		}
	}
	return s
}

// Close closes all files; the root stays.
func (r *Replay) Close() error {
	err := r.Park()
	r.parked = nil
	return err
}

// before finds what must be there when the recording begins: folders and files
// that are used before anything makes them.
func (t *Trace) before() (dirs []string, files map[string]int64) {
	files = map[string]int64{}
	made := map[string]bool{".": true, "": true, "/": true}
	need := func(dir string) {
		for _, d := range append([]string{dir}, folders(dir)...) {
			if !made[d] && d != "." {
				dirs = append(dirs, d)
			}
			made[d] = true
		}
	}
	for _, p := range t.Phases {
		for _, o := range p.Ops {
			if o.Errno != "" {
				continue
			}
			need(path.Dir(o.Path))
			switch {
			case o.Kind == "mkdir", o.Kind == "open" && o.has("O_CREAT"):
				made[o.Path] = true
			case o.Kind == "rename":
				made[o.Path2] = true
			case o.Kind == "open" && !o.has("O_DIRECTORY") && !made[o.Path]:
				files[o.Path], made[o.Path] = 0, true
			case !made[o.Path]:
				need(o.Path)
			}
			if size, ok := files[o.Path]; ok && (o.Kind == "read" || o.Kind == "pread") {
				files[o.Path] = max(size, o.Offset+o.Result)
			}
		}
	}
	slices.Sort(dirs)
	return dirs, files
}

// pool keeps aligned buffers for reads.
type pool struct {
	mu   sync.Mutex
	free [][]byte
}

func (p *pool) get(n int64) []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := len(p.free) - 1; i >= 0; i-- {
		if b := p.free[i]; int64(cap(b)) >= n {
			p.free = slices.Delete(p.free, i, i+1)
			return b[:n]
		}
	}
	return aligned(max(n, 64<<10))[:n]
}

// put keeps a buffer; there are no more than operations under way at a time.
func (p *pool) put(b []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.free = append(p.free, b)
}
