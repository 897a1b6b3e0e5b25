package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"
)

//go:embed cpimport.jsonl.gz
var recorded []byte

// Op is one recorded operation. Times are from the recording's begin.
type Op struct {
	Begin, End   time.Duration
	Proc         string // name:pid
	Kind         string // as strace names it
	Path, Path2  string // relative to the root
	FD           int
	Flags, Mode  string
	Offset       int64
	Length       int64
	Result       int64
	Errno        string // ENOENT and the like; empty after success
	waits        []need // for other processes
	after        []int  // for operations of its own process, by index among them
	gap          time.Duration
	indexInPhase int
}

// need asks that the first count operations of a process are done.
type need struct {
	proc  string
	count int
}

// Phase is what was going on at a time: cpimport, q1_cold, drop_table.
type Phase struct {
	Name  string
	Ops   []*Op
	procs map[string]*process
}

// process is one process's part of a phase, in the order of the operations'
// begins.
type process struct {
	ops   []*Op
	width int // most operations under way at a time
}

// Trace is a recording. It is never changed after Load.
type Trace struct {
	Phases []*Phase
}

// Load reads the recording that comes with the package.
func Load() (*Trace, error) { return Read(bytes.NewReader(recorded)) }

// line is a line of the file.
type line struct {
	T     float64 `json:"t"`
	Phase string  `json:"phase"`
	Proc  string  `json:"proc"`
	Op    string  `json:"op"`
	Path  string  `json:"path"`
	Path2 string  `json:"path2"`
	FD    int     `json:"fd"`
	Flags string  `json:"flags"`
	Mode  string  `json:"mode"`
	Off   int64   `json:"off"`
	Len   int64   `json:"len"`
	Ret   int64   `json:"ret"`
	Errno string  `json:"errno"`
	Dur   float64 `json:"dur"`
}

// Read reads a recording in gzip.
func Read(r io.Reader) (*Trace, error) {
	text, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("read a trace: %w", err)
	}
	t := &Trace{}
	lines := bufio.NewScanner(text)
	for n := 1; lines.Scan(); n++ {
		var l line
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return nil, fmt.Errorf("read line %d of a trace: %w", n, err)
		}
		if l.Phase != "" {
			t.Phases = append(t.Phases, &Phase{Name: l.Phase})
			continue
		}
		if len(t.Phases) == 0 || l.Op == "" || l.Proc == "" {
			return nil, fmt.Errorf("line %d of a trace: an operation needs a phase before it, a process and a name", n)
		}
		p := t.Phases[len(t.Phases)-1]
		p.Ops = append(p.Ops, l.op())
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read a trace: %w", err)
	}
	for _, p := range t.Phases {
		p.order()
	}
	return t, nil
}

func (l line) op() *Op {
	at := func(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }
	return &Op{
		Begin: at(l.T), End: at(l.T + l.Dur), Proc: l.Proc, Kind: l.Op, Path: l.Path, Path2: l.Path2, FD: l.FD,
		Flags: l.Flags, Mode: l.Mode, Offset: l.Off, Length: l.Len, Result: l.Ret, Errno: l.Errno,
	}
}

// Phase returns the phase of a name; nil when there is none.
func (t *Trace) Phase(name string) *Phase {
	i := slices.IndexFunc(t.Phases, func(p *Phase) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return t.Phases[i]
}

// order derives from the recorded times what each operation waits for.
func (p *Phase) order() {
	slices.SortStableFunc(p.Ops, func(a, b *Op) int { return int(a.Begin - b.Begin) })
	p.procs = map[string]*process{}
	var lastEnd time.Duration
	if len(p.Ops) > 0 {
		lastEnd = p.Ops[0].Begin
	}
	links := map[string]*linker{}
	for i, o := range p.Ops {
		o.indexInPhase = i
		mine := p.procs[o.Proc]
		if mine == nil {
			mine = &process{}
			p.procs[o.Proc], links[o.Proc] = mine, newLinker()
		}
		for name, other := range p.procs {
			if n := other.endedBefore(o.Begin); name != o.Proc && n > 0 {
				o.waits = append(o.waits, need{name, n})
			}
		}
		o.after = links[o.Proc].link(len(mine.ops), o)
		mine.ops = append(mine.ops, o)
		mine.width = max(mine.width, mine.underWay(o.Begin))
		o.gap = max(0, o.Begin-lastEnd)
		lastEnd = max(lastEnd, o.End)
	}
}

// endedBefore counts the operations from the first on that had all ended.
func (p *process) endedBefore(at time.Duration) int {
	// Those that had not are among the last few: a process has few threads.
	n := len(p.ops)
	for i := n - 1; i >= 0 && i >= n-16; i-- {
		if p.ops[i].End > at {
			n = i
		}
	}
	return n
}

// underWay counts the operations that had not ended, the newest included.
func (p *process) underWay(at time.Duration) int {
	count := 0
	for i := len(p.ops) - 1; i >= 0 && i >= len(p.ops)-16; i-- {
		if p.ops[i].End > at {
			count++
		}
	}
	return max(count, 1)
}
