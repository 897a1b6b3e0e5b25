package posixtest

import (
	"errors"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// locked makes a file and a helper that has it open.
func locked(e *env) (fd int, h *helper) {
	e.Helper()
	p := e.file("f", 0o644, "0123456789")
	h = startHelper(e.T)
	e.must(h.do("open %s", p))
	return e.open(p, unix.O_RDWR), h
}

func lockCases() []errnoCase {
	return []errnoCase{
		{op: "fcntl lock", want: unix.EAGAIN, name: "exclusive against exclusive", call: func(e *env) error {
			fd, h := locked(e)
			e.must(h.do("lock w 0 0 0"))
			return setLock(fd, false, "w", 0, 0, false)
		}},
		{op: "fcntl lock", want: unix.EAGAIN, name: "exclusive against shared", call: func(e *env) error {
			fd, h := locked(e)
			e.must(h.do("lock r 0 5 0"))
			return setLock(fd, false, "w", 4, 1, false)
		}},
		{op: "fcntl lock", want: unix.EAGAIN, name: "upgrade of a lock that two share", call: func(e *env) error {
			fd, h := locked(e)
			e.must(h.do("lock r 0 0 0"))
			e.must(setLock(fd, false, "r", 0, 0, false))
			return setLock(fd, false, "w", 0, 0, false)
		}},
		{op: "fcntl lock", want: unix.EBADF, name: "exclusive on a file opened for reading", call: func(e *env) error {
			return setLock(e.open(e.file("f", 0o644, ""), unix.O_RDONLY), false, "w", 0, 0, false)
		}},
		{op: "fcntl lock", want: unix.EBADF, name: "shared on a file opened for writing", call: func(e *env) error {
			return setLock(e.open(e.file("f", 0o644, ""), unix.O_WRONLY), false, "r", 0, 0, false)
		}},
		{op: "fcntl lock", want: unix.EINVAL, name: "negative start", call: func(e *env) error {
			return setLock(e.open(e.file("f", 0o644, ""), unix.O_RDWR), false, "r", -1, 1, false)
		}},
		{op: "fcntl lock", want: unix.EDEADLK, name: "deadlock", call: func(e *env) error {
			fd, h := locked(e)
			e.must(setLock(fd, false, "w", 0, 1, false))
			e.must(h.do("lock w 1 1 0"))
			h.send("lock w 0 1 1") // waits for us
			waitForWaiter(e, h)
			err := setLock(fd, false, "w", 1, 1, true)
			e.must(setLock(fd, false, "u", 0, 1, false))
			e.must(h.answer())
			return err
		}},
		{op: "ofd lock", want: unix.EAGAIN, name: "two descriptions of one process", call: func(e *env) error {
			fd, _ := locked(e)
			e.must(setLock(fd, true, "w", 0, 0, false))
			return setLock(e.open(e.path("f"), unix.O_RDWR), true, "w", 0, 0, false)
		}},
		{op: "ofd lock", want: unix.EAGAIN, name: "against a process's lock", call: func(e *env) error {
			fd, h := locked(e)
			e.must(h.do("lock w 2 2 0"))
			return setLock(fd, true, "r", 3, 1, false)
		}},
		{op: "flock", want: unix.EWOULDBLOCK, name: "exclusive against exclusive", call: func(e *env) error {
			fd, h := locked(e)
			e.must(h.do("flock %d", unix.LOCK_EX))
			return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		}},
		{op: "flock", want: unix.EWOULDBLOCK, name: "exclusive against shared", call: func(e *env) error {
			fd, h := locked(e)
			e.must(h.do("flock %d", unix.LOCK_SH))
			return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		}},
		{op: "flock", want: unix.EINVAL, name: "no operation", call: func(e *env) error { fd, _ := locked(e); return unix.Flock(fd, 0) }},
		{op: "flock", want: unix.EBADF, name: "closed", call: func(*env) error { return unix.Flock(-1, unix.LOCK_SH) }},
	}
}

// waitForWaiter returns when the kernel shows h waiting for a lock.
func waitForWaiter(e *env, h *helper) {
	e.Helper()
	pid := strconv.Itoa(h.cmd.Process.Pid)
	for {
		table, err := os.ReadFile("/proc/locks")
		e.must(err)
		for line := range strings.Lines(string(table)) {
			f := strings.Fields(line)
			if len(f) > 5 && f[1] == "->" && f[5] == pid {
				return
			}
		}
		time.Sleep(time.Millisecond)
	}
}

func lockBehaviours() []behaviour {
	return []behaviour{
		{"locks of different ranges do not meet", func(e *env) {
			fd, h := locked(e)
			e.must(h.do("lock w 0 5 0"))
			e.must(setLock(fd, false, "w", 5, 5, false))
		}},
		{"shared locks are shared", func(e *env) {
			fd, h := locked(e)
			e.must(h.do("lock r 0 0 0"))
			e.must(setLock(fd, false, "r", 0, 0, false))
			e.must(h.do("flock %d", unix.LOCK_SH))
			e.must(unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB))
		}},
		{"a lock dies with its process", func(e *env) {
			fd, h := locked(e)
			e.must(h.do("lock w 0 0 0"))
			e.must(h.do("flock %d", unix.LOCK_EX))
			if err := setLock(fd, false, "w", 0, 0, false); !errors.Is(err, unix.EAGAIN) {
				e.Fatalf("the lock did not hold: %v", err)
			}
			h.kill()
			e.must(setLock(fd, false, "w", 0, 0, false))
			e.must(unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB))
		}},
		{"a waiter gets the lock when it is free", func(e *env) {
			fd, h := locked(e)
			e.must(setLock(fd, false, "w", 0, 0, false))
			h.send("lock w 0 0 1")
			waitForWaiter(e, h)
			e.must(setLock(fd, false, "u", 0, 0, false))
			e.must(h.answer())
			if err := setLock(fd, false, "w", 0, 0, false); !errors.Is(err, unix.EAGAIN) {
				e.Fatalf("the waiter's lock does not hold: %v", err)
			}
		}},
		{"closing any descriptor drops the process's record locks, not its OFD locks", func(e *env) {
			fd, h := locked(e)
			e.must(setLock(fd, false, "w", 0, 5, false))
			e.must(setLock(fd, true, "w", 5, 5, false))
			other, err := unix.Open(e.path("f"), unix.O_RDONLY|unix.O_CLOEXEC, 0)
			e.must(err)
			e.must(unix.Close(other))
			e.must(h.do("lock w 0 5 0"))
			if err := h.do("lock w 5 5 0"); !errors.Is(err, unix.EAGAIN) {
				e.Fatalf("the OFD lock is gone: %v", err)
			}
		}},
		{"F_GETLK names the holder", func(e *env) {
			fd, h := locked(e)
			e.must(h.do("lock w 3 4 0"))
			lk := unix.Flock_t{Type: unix.F_WRLCK}
			e.must(unix.FcntlFlock(uintptr(fd), unix.F_GETLK, &lk))
			e.equal("holder", int(lk.Pid), h.cmd.Process.Pid)
			e.equal("start", lk.Start, int64(3))
			e.equal("length", lk.Len, int64(4))
		}},
	}
}
