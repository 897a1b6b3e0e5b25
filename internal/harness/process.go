package harness

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"
)

// killWait bounds how long a killed program may take to vanish: one that hangs
// in the kernel on a dead mount must not hang its owner.
const killWait = 15 * time.Second

// Process is one running program and the group of processes that it began.
type Process struct {
	name string
	cmd  *exec.Cmd
	out  *tail
	done chan struct{} // closed when the program has ended
	err  error         // its exit error; read after done is closed
}

// Start runs argv in a process group of its own and keeps the last lines that
// it prints. dir is the working directory; empty means the caller's. env is
// added to the caller's environment.
func Start(argv []string, dir string, env ...string) (*Process, error) {
	if len(argv) == 0 {
		return nil, errors.New("start a program: no name given")
	}
	p := &Process{name: argv[0], out: newTail(), done: make(chan struct{})}
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Dir = dir
	p.cmd.Env = append(p.cmd.Environ(), env...)
	p.cmd.Stdout, p.cmd.Stderr = p.out, p.out
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	p.cmd.WaitDelay = 2 * time.Second // a grandchild may keep the pipe open
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", strings.Join(argv, " "), err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID is the program's process id, which is also its group's.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Alive says whether the program still runs.
func (p *Process) Alive() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// LogTail returns the last lines that the program printed on stdout and stderr.
func (p *Process) LogTail() string { return p.out.String() }

// Kill sends SIGKILL to the whole group and waits for the program to vanish.
// It is no error when it has ended already.
func (p *Process) Kill() error {
	if !p.Alive() {
		return nil
	}
	if err := syscall.Kill(-p.PID(), syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("kill %s (process %d): %w", p.name, p.PID(), err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(killWait):
		return fmt.Errorf("%s (process %d) still there %v after SIGKILL", p.name, p.PID(), killWait)
	}
}

// Stop sends SIGTERM and waits for the end; when ctx ends first, it kills the
// group and says so.
func (p *Process) Stop(ctx context.Context) error {
	if !p.Alive() {
		return nil
	}
	if err := syscall.Kill(p.PID(), syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("stop %s (process %d): %w", p.name, p.PID(), err)
	}
	return p.Wait(ctx)
}

// Wait waits for the program's end and returns its exit error; when ctx ends
// first, it kills the group and says so.
func (p *Process) Wait(ctx context.Context) error {
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("%s: %w\n%s", p.name, p.err, p.LogTail())
		}
		return nil
	case <-ctx.Done():
		err := p.Kill()
		return errors.Join(fmt.Errorf("%s did not end: %w\n%s", p.name, ctx.Err(), p.LogTail()), err)
	}
}

// WaitLine waits until the program has printed word, as a whole word. It fails
// when the program ends or ctx does, with what was printed so far.
func (p *Process) WaitLine(ctx context.Context, word string) error {
	pattern := regexp.MustCompile(`\b` + regexp.QuoteMeta(word) + `\b`)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		if pattern.MatchString(p.LogTail()) {
			return nil
		}
		select {
		case <-p.done:
			if pattern.MatchString(p.LogTail()) {
				return nil
			}
			return fmt.Errorf("%s ended before it said %q: %v\n%s", p.name, word, p.err, p.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("%s has not said %q: %w\n%s", p.name, word, ctx.Err(), p.LogTail())
		case <-tick.C:
		}
	}
}

// Run runs argv to its end and returns what it printed on stdout. An error
// carries the command and what it printed on stderr.
func Run(ctx context.Context, dir string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	cmd.WaitDelay = 2 * time.Second
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s%s", strings.Join(argv, " "), err, stdout.String(), stderr.String())
	}
	return stdout.String(), nil
}

// tailBytes bounds how much of a program's output is kept.
const tailBytes = 64 << 10

// tail keeps the last tailBytes written to it.
type tail struct {
	mu  sync.Mutex // guards buf; never held during I/O
	buf []byte
}

func newTail() *tail { return &tail{} }

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if over := len(t.buf) - tailBytes; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(b), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.buf)
}
