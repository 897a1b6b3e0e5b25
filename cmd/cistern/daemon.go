package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/cisternfs/cistern/internal/control"
)

// readiness is what a mount's process tells its parent, once.
type readiness struct {
	Ready   bool   `json:"ready"`
	Waiting string `json:"waiting,omitempty"` // what a relay waits for that has not begun to pull
	*control.Error
}

// mountDaemon starts the process that serves the mount and returns when it is
// ready, or with its error.
func (a *app) mountDaemon(o *mountOptions) error {
	if err := os.MkdirAll(o.state, 0o700); err != nil {
		return usage(localError(o.state, err))
	}
	log, err := os.OpenFile(o.logFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return usage(localError(o.logFile, err))
	}
	defer log.Close() // the child has its own
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("pipe to the mount's process: %w", err)
	}
	defer read.Close()
	argv := o.argv
	if argv == nil {
		argv = a.commandLine()
	}
	c := exec.Command(exe, daemonArgs(argv, o)...)
	c.Stdout, c.Stderr, c.ExtraFiles = log, log, []*os.File{write}
	c.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = c.Start()
	write.Close() // the child has its own; this one would hide its end
	if err != nil {
		return fmt.Errorf("start the mount's process: %w", err)
	}
	done := readAnswer(read)
	for {
		select {
		case s := <-a.signals:
			// The child ends and says so, or it was ready a moment before.
			if err := c.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
				return fmt.Errorf("end the mount's process: %w", err)
			}
		case r := <-done:
			return a.daemonAnswer(o, c, r)
		}
	}
}

// readAnswer reads what a mount's process tells its parent over a pipe: nothing when it
// ends before, which ends the reading, too.
func readAnswer(pipe io.Reader) <-chan readiness {
	done := make(chan readiness, 1)
	go func() {
		var r readiness
		if err := json.NewDecoder(io.LimitReader(pipe, 1<<20)).Decode(&r); err != nil {
			r = readiness{}
		}
		done <- r
	}()
	return done
}

// commandLine is what this process was told, as arguments of cistern.
func (a *app) commandLine() []string {
	if a.argv != nil {
		return a.argv
	}
	return os.Args[1:]
}

func (a *app) daemonAnswer(o *mountOptions, c *exec.Cmd, r readiness) error {
	if r.Ready {
		pid := c.Process.Pid // Release forgets it
		if err := c.Process.Release(); err != nil {
			return fmt.Errorf("let the mount's process go: %w", err)
		}
		if err := a.say("%s, served by process %d, log in %s", o.what(o.t.given(), r.Waiting), pid, o.logFile); err != nil || r.Waiting == "" {
			return err
		}
		return a.say("%s", r.Waiting)
	}
	err := c.Wait()
	if r.Error != nil {
		return r.Error
	}
	status := exitFailed
	if code := c.ProcessState.ExitCode(); code > 0 {
		status = code
	}
	return &statusError{fmt.Errorf("the mount's process ended before it was ready (%v): see %s", err, o.logFile), status}
}

// what says what a process does with the volume of that name, and that its relay
// waits for something, if it does.
func (o *mountOptions) what(name, waiting string) string {
	does := ""
	switch {
	case o.relay == nil:
	case waiting != "":
		does = " is not connected to its source yet"
	default:
		does = " relays a binary log"
	}
	if o.dir == "" {
		return name + does
	}
	if does != "" {
		does += " and"
	}
	return fmt.Sprintf("%s%s is mounted on %s", name, does, o.dir)
}

// daemonArgs is a command line with what makes it the mount's process. One that
// writes uses the state directory that was found for it.
func daemonArgs(args []string, o *mountOptions) []string {
	more := []string{"--foreground", "--ready-fd=3"}
	if o.writes() {
		more = append(more, "--state="+o.state)
	}
	return withFlags(args, more...)
}

// withFlags is a command line with more flags.
func withFlags(args []string, more ...string) []string {
	if i := slices.Index(args, "--"); i >= 0 {
		return slices.Concat(args[:i], more, args[i:])
	}
	return slices.Concat(args, more)
}

// tellParent passes an error on to the process that started this one, if one
// did, and returns it.
func (a *app) tellParent(o *mountOptions, err error) error {
	if o.readyFD >= 0 && err != nil {
		a.tell(o, readiness{Error: &control.Error{Message: sentence(err), Status: exitStatus(err)}})
	}
	return err
}

// tell writes to the parent. One that is gone needs no answer.
func (a *app) tell(o *mountOptions, r readiness) {
	if o.readyFD < 0 {
		return
	}
	f := os.NewFile(uintptr(o.readyFD), "readiness pipe")
	o.readyFD = -1
	if err := json.NewEncoder(f).Encode(r); err != nil {
		a.note("the command that started this mount is gone: %v", err)
	}
	f.Close()
}

// detach lets go of what a process in the background must not hold, the working
// directory among it. Names of files that were relative to it stay good.
func (a *app) detach(o *mountOptions) error {
	if o.readyFD < 0 {
		return nil
	}
	syscall.CloseOnExec(o.readyFD)
	var err error
	if a.began, err = os.Getwd(); err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}
	for _, name := range fileVariables() {
		if v := os.Getenv(name); v != "" {
			if err := os.Setenv(name, a.fileName(v)); err != nil {
				return fmt.Errorf("set %s: %w", name, err)
			}
		}
	}
	if err := os.Chdir(string(filepath.Separator)); err != nil {
		return fmt.Errorf("leave the working directory: %w", err)
	}
	return nil
}

// fileVariables are those by which the stores' libraries are told of files.
func fileVariables() []string {
	return []string{
		"AWS_CA_BUNDLE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
		"GOOGLE_APPLICATION_CREDENTIALS",
	}
}

// fileName is the name of a file that a setting gives: relative to where the
// command began, also after it has left that directory.
func (a *app) fileName(given string) string {
	if given == "" || filepath.IsAbs(given) {
		return given
	}
	return filepath.Join(a.began, given)
}
