package main

import (
	"os/exec"
	"runtime"
	"syscall"
)

// child is a process that does not outlive this one, whatever ends this one.
type child struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has
}

// startChild starts a process that gets a signal when this one dies. Signals from the
// terminal come to this process alone, which ends the other in order. The kernel takes
// the end of the thread that starts a process for its parent's (prctl(2),
// PR_SET_PDEATHSIG), and forgets it when the process changes its user: so the thread is
// kept until then, and who is to run as another user is started as that user.
func startChild(c *exec.Cmd, dies syscall.Signal) (*child, error) {
	if c.SysProcAttr == nil {
		c.SysProcAttr = &syscall.SysProcAttr{}
	}
	c.SysProcAttr.Setpgid, c.SysProcAttr.Pdeathsig = true, dies
	p := &child{cmd: c, ended: make(chan struct{})}
	started := make(chan error, 1)
	go func() {
		defer close(p.ended)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.Start()
		started <- err
		if err == nil {
			_ = c.Wait() // its status is in c.ProcessState
		}
	}()
	if err := <-started; err != nil {
		<-p.ended
		return nil, err
	}
	return p, nil
}
