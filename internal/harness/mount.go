package harness

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"
)

// Mount is a FUSE file system served by a program of its own.
type Mount struct {
	Dir      string // where it is mounted
	StateDir string // the local state directory; empty for a program without one

	proc   *Process
	umount []string // command that unmounts it in good order
}

// MountConfig says how a mount is begun and ended.
type MountConfig struct {
	Argv     []string // runs in the foreground and prints a line with "ready", unless Silent
	Umount   []string // unmounts in good order
	Dir      string   // made when missing
	StateDir string
	Env      []string
	Silent   bool // the program doesn't say when it is ready: it is when something is mounted at Dir
}

// CisternMount describes `cistern mount url dir` with its state in stateDir;
// args are further flags.
func CisternMount(binary, url, dir, stateDir string, args ...string) MountConfig {
	argv := append([]string{binary, "mount", url, dir, "--state", stateDir, "--foreground"}, args...)
	return MountConfig{Argv: argv, Umount: []string{binary, "umount", dir}, Dir: dir, StateDir: stateDir}
}

// LoopbackMount describes the bare FUSE loopback (bench/loopback) that shows
// source under dir.
func LoopbackMount(binary, source, dir string) MountConfig {
	return MountConfig{Argv: []string{binary, source, dir}, Umount: []string{"umount", dir}, Dir: dir}
}

// StartMount runs the program and returns when it says that the mount is ready.
func StartMount(ctx context.Context, c MountConfig) (*Mount, error) {
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the mount point: %w", err)
	}
	proc, err := Start(c.Argv, "", c.Env...)
	if err != nil {
		return nil, err
	}
	m := &Mount{Dir: c.Dir, StateDir: c.StateDir, proc: proc, umount: c.Umount}
	ready := func() error { return proc.WaitLine(ctx, "ready") }
	if c.Silent {
		ready = func() error { return m.waitMounted(ctx) }
	}
	if err := ready(); err != nil {
		return nil, errors.Join(fmt.Errorf("mount %s: %w", c.Dir, err), m.Kill())
	}
	if mounted, err := IsMounted(c.Dir); err != nil || !mounted {
		return nil, errors.Join(fmt.Errorf("mount %s: the program says ready, but nothing is mounted there (%v)", c.Dir, err), m.Kill())
	}
	return m, nil
}

// waitMounted waits until something is mounted at the mount's directory.
func (m *Mount) waitMounted(ctx context.Context) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if mounted, err := IsMounted(m.Dir); mounted || err != nil {
			return err
		}
		select {
		case <-m.proc.Done():
			return fmt.Errorf("the program ended:\n%s", m.LogTail())
		case <-ctx.Done():
			return fmt.Errorf("nothing is mounted there: %w\n%s", ctx.Err(), m.LogTail())
		case <-tick.C:
		}
	}
}

// PID is the process id of the program that serves the mount.
func (m *Mount) PID() int { return m.proc.PID() }

// Alive says whether the program that serves the mount still runs.
func (m *Mount) Alive() bool { return m.proc.Alive() }

// LogTail returns the last lines that the program printed.
func (m *Mount) LogTail() string { return m.proc.LogTail() }

// Kill ends the serving program with SIGKILL and detaches the dead mount point.
// Files that others keep open there fail with ENOTCONN from then on. It is no
// error when the mount is gone already.
func (m *Mount) Kill() error {
	err := m.proc.Kill()
	// EINVAL: nothing is mounted there any more, which is what is wanted.
	if uerr := syscall.Unmount(m.Dir, syscall.MNT_DETACH); uerr != nil && !errors.Is(uerr, syscall.EINVAL) && !errors.Is(uerr, syscall.ENOENT) {
		err = errors.Join(err, fmt.Errorf("detach %s: %w", m.Dir, uerr))
	}
	return err
}

// Umount unmounts in good order and waits for the serving program's end; when
// ctx ends first, it kills the program and says so.
func (m *Mount) Umount(ctx context.Context) error {
	if !m.proc.Alive() {
		return errors.Join(fmt.Errorf("umount %s: its program has ended\n%s", m.Dir, m.LogTail()), m.Kill())
	}
	if _, err := Run(ctx, "", m.umount...); err != nil {
		return errors.Join(fmt.Errorf("umount %s: %w\n%s", m.Dir, err, m.LogTail()), m.Kill())
	}
	return m.proc.Wait(ctx)
}

// IsMounted says whether dir, an absolute path without links, is a mount point.
func IsMounted(dir string) (bool, error) {
	options, err := MountOptions(dir)
	return options != "", err
}

// MountOptions returns the file system and options of the mount at dir as
// /proc/self/mountinfo shows them, or "" when nothing is mounted there.
func MountOptions(dir string) (string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return "", fmt.Errorf("list mounts: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	found := ""
	for lines.Scan() {
		// id parent major:minor root POINT options tags… - type source superoptions
		fields := strings.Fields(lines.Text())
		if len(fields) < 10 || unescapeMount(fields[4]) != dir {
			continue
		}
		for i := 6; i+3 < len(fields); i++ {
			if fields[i] == "-" {
				found = fields[i+1] + " " + fields[5] + " " + fields[i+3]
			}
		}
	}
	return found, lines.Err()
}

// unescapeMount undoes the octal escapes of /proc/self/mountinfo.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
