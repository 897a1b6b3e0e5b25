package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// A private mount is a restore's own, while its server needs one. Of its temporary
// directory
//
//	cistern-restore-<random>/mnt       shows the volume
//	cistern-restore-<random>/server    has the private server's files
//
// Its process and the server end when the restore is killed: the server at once, the
// mount when everything is committed, or is left in its journal. What is left of the
// directory, and a mount that has not ended yet, the next restore takes away.
const (
	privateMountPoint = "mnt"
	privateServerDir  = "server"
)

type privateMount struct {
	a          *app
	dir        *tempDir
	mnt, state string
	process    *child // nil: it was never started
	served     bool   // it was ready: its journal may have what the bucket has not
}

// mountPrivately mounts a volume for this command alone.
func (a *app) mountPrivately(ctx context.Context, url string) (*privateMount, error) {
	dir, err := newTempDir(restorePrefix)
	if err != nil {
		return nil, err
	}
	m := &privateMount{a: a, dir: dir, mnt: filepath.Join(dir.path, privateMountPoint)}
	if m.state, err = a.newCommandState(); err == nil {
		err = errors.Join(os.Chmod(dir.path, 0o755), os.Mkdir(m.mnt, 0o700)) // the server's user goes through it
	}
	if err == nil {
		err = m.start(ctx, url)
	}
	if err != nil {
		return nil, errors.Join(err, m.end(ctx))
	}
	return m, nil
}

// start returns when the mount is ready, or with its error.
func (m *privateMount) start(ctx context.Context, url string) error {
	c, err := m.a.selfCommand("mount", url, m.mnt, "--state", m.state, "--foreground", "--ready-fd=3")
	if err != nil {
		return err
	}
	path := filepath.Join(m.state, logName)
	log, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return localError(path, err)
	}
	defer log.Close() // the child has its own
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("pipe to the mount's process: %w", err)
	}
	defer read.Close()
	c.Stdout, c.Stderr, c.ExtraFiles = log, log, []*os.File{write}
	m.process, err = startChild(c, syscall.SIGTERM)
	write.Close() // the child has its own; this one would hide its end
	if err != nil {
		return fmt.Errorf("start the mount's process: %w", err)
	}
	answer := readAnswer(read)
	var r readiness
	select {
	case r = <-answer:
	case <-ctx.Done():
		m.terminate()
		if r = <-answer; r.Ready {
			return ctx.Err()
		}
	}
	switch {
	case r.Ready:
		m.served = true
		return nil
	case r.Error != nil:
		return r.Error
	}
	return fmt.Errorf("the mount's process ended before it was ready: see %s", path)
}

// terminate tells the process to unmount and to end.
func (m *privateMount) terminate() {
	_ = m.process.cmd.Process.Signal(syscall.SIGTERM) // unless it has ended
}

// end takes the mount away, if there is one, and what it used: a mount that failed
// may be there all the same. The state directory stays unless the process said that
// it had ended in order: a mount that was killed is unmounted as easily.
func (m *privateMount) end(ctx context.Context) error {
	err := m.a.unmountPrivate(ctx, m.mnt)
	if m.process != nil {
		m.await(err == nil && m.served)
		if status := m.process.cmd.ProcessState; err == nil && m.served && !status.Success() {
			err = fmt.Errorf("its process ended by itself: %v", status)
		}
	}
	if err == nil {
		err = dropPrivate(m.dir, m.state)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("the private mount on %s did not end in order, and what is left of its state is in %s: %w", m.mnt, m.state, err), m.dir.lock.Close())
	}
	return nil
}

// await waits for the process's end, which comes by itself where it was unmounted in
// order.
func (m *privateMount) await(unmounted bool) {
	if unmounted {
		select {
		case <-m.process.ended:
			return
		case <-time.After(selfEnd):
		}
	}
	m.terminate()
	<-m.process.ended
}

// unmountPrivate unmounts a private mount if there is one, and waits for its end.
func (a *app) unmountPrivate(ctx context.Context, mnt string) error {
	_, there, err := findMount(mnt)
	if err != nil || !there {
		return err
	}
	return a.self(context.WithoutCancel(ctx), "umount", mnt)
}

// dropPrivate removes what was made for a private mount that has gone. Nothing is
// deleted through the mount point, below which the volume may lie, and no journal that
// is in use; without a state directory none is touched.
func dropPrivate(d *tempDir, state string) error {
	if state != "" {
		if err := probeLock(state); err != nil {
			return err
		}
	}
	mnt := filepath.Join(d.path, privateMountPoint)
	if err := os.Remove(mnt); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return localError(mnt, err)
	}
	if err := d.remove(); err != nil || state == "" {
		return err
	}
	return os.RemoveAll(state)
}

// sweepRestores takes away what killed restores have left: mounts that have not ended
// yet, which commit what they have first, and temporary directories. What such a mount
// could not commit is in its state directory, which the volume's next owner finds.
func (a *app) sweepRestores(ctx context.Context) error {
	for _, d := range leftTempDirs(restorePrefix) {
		mnt := filepath.Join(d.path, privateMountPoint)
		err := a.unmountPrivate(ctx, mnt)
		if _, there, ferr := findMount(mnt); ferr == nil && !there {
			err = dropPrivate(d, "") // also when its process was dead: it is out of the tree
		}
		if err != nil {
			return errors.Join(fmt.Errorf("what a killed restore left in %s can't be taken away: %w", d.path, err), d.lock.Close())
		}
		a.note("what a killed restore had left in %s was taken away", d.path)
	}
	return nil
}

// selfEnd is how long a command of this program may take to end in order.
const selfEnd = time.Minute

// selfCommand is a command line of this program, with what this one was told of
// configuration and keys.
func (a *app) selfCommand(args ...string) (*exec.Cmd, error) {
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program's file: %w", err)
	}
	if a.configFlag != "" {
		args = append(args, "--config", a.configFlag)
	}
	for _, k := range a.keyFiles {
		args = append(args, "--encrypt-key-file", k)
	}
	return exec.Command(exe, args...), nil
}

// self runs a command of this program in another process. When ctx ends it is told
// to end in order; a signal from the terminal comes to this process alone.
func (a *app) self(ctx context.Context, args ...string) error {
	line, err := a.selfCommand(args...)
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, line.Path, line.Args[1:]...)
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = selfEnd
	out, err := c.CombinedOutput()
	if err != nil {
		return fmt.Errorf("cistern %s: %w: %s", args[0], err, lastLine(out))
	}
	return nil
}
