package fuse

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/cisternfs/cistern/gateway"
)

// request is a FUSE request's cancel channel as a context. It needs no
// allocation. go-fuse uses the channel again for a later request, so a request
// must not be kept beyond the call it is given to.
type request <-chan struct{}

func (r request) Deadline() (time.Time, bool) { return time.Time{}, false }
func (r request) Done() <-chan struct{}       { return r }
func (r request) Value(any) any               { return nil }

func (r request) Err() error {
	select {
	case <-r:
		return context.Canceled
	default:
		return nil
	}
}

// attend runs call for a request, once more if a signal stopped it that does
// not end the caller. A call that was stopped must have had no effect.
func (fs *fileSystem) attend(cancel <-chan struct{}, h *fuse.InHeader, call func(context.Context) error) error {
	err := call(request(cancel))
	if err == nil || !interrupted(err) {
		return err
	}
	return fs.persist(h, call)
}

// dyingPoll is how often an interrupted request looks whether its caller is
// being killed: the kernel reports a request's first signal only.
const dyingPoll = 50 * time.Millisecond

// persist runs call under a context that ends when the caller is being killed
// or the mount dies.
func (fs *fileSystem) persist(h *fuse.InHeader, call func(context.Context) error) error {
	if fs.ctx.Err() != nil || fs.dead() || dying(h.Pid) {
		return gateway.ErrInterrupted
	}
	ctx, stop := context.WithCancel(fs.ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		tick := time.NewTicker(dyingPoll)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if fs.dead() || dying(h.Pid) {
					stop()
					return
				}
			}
		}
	}()
	err := call(ctx)
	stop()
	<-watched
	return err
}

// dying says whether thread tid is gone or has a signal pending that will end
// it. A thread of another pid namespace shows as 0: it may be dying.
func dying(tid uint32) bool {
	if tid == 0 {
		return true
	}
	status, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(tid), 10) + "/status")
	if err != nil {
		return true
	}
	return fatalPending(status)
}

// fatalPending reads a /proc/<pid>/status: is a signal pending that is neither
// blocked, ignored nor caught, and whose default is to end the process?
func fatalPending(status []byte) bool {
	var pending, harmless uint64
	for _, sig := range []syscall.Signal{
		syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGURG, syscall.SIGWINCH,
		syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU,
	} {
		harmless |= 1 << (uint(sig) - 1)
	}
	lines := bufio.NewScanner(bytes.NewReader(status))
	for lines.Scan() {
		name, value, ok := bytes.Cut(lines.Bytes(), []byte(":"))
		if !ok {
			continue
		}
		value = bytes.TrimSpace(value)
		switch string(name) {
		case "State":
			if len(value) > 0 && (value[0] == 'Z' || value[0] == 'X') {
				return true
			}
		case "SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt":
			set, err := strconv.ParseUint(string(value), 16, 64)
			if err != nil {
				continue
			}
			if name[3] == 'P' || name[0] == 'S' && name[1] == 'h' {
				pending |= set
			} else {
				harmless |= set
			}
		}
	}
	return pending&^harmless != 0
}
