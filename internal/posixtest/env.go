package posixtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Two ordinary users.
const (
	userA = 65533
	userB = 65534
)

// kind is what the directory under test is on.
type kind int

const (
	local kind = iota
	onFUSE
)

// env is a case's surroundings: a fresh directory that everybody may use.
type env struct {
	*testing.T
	dir  string
	kind kind
}

// Dir makes a directory on the local disk that every user can reach, unlike
// the testing package's, and removes it when the test ends.
func Dir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "posixtest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// kindOf tells a FUSE mount from everything else.
func kindOf(t *testing.T, dir string) kind {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatalf("statfs %s: %v", dir, err)
	}
	if st.Type == unix.FUSE_SUPER_MAGIC {
		return onFUSE
	}
	return local
}

// fresh makes a directory for one case in root and removes it at its end.
func fresh(t *testing.T, root string) *env {
	t.Helper()
	dir, err := os.MkdirTemp(root, "case-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("clean up: %v", err)
		}
	})
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return &env{T: t, dir: dir, kind: kindOf(t, root)}
}

func (e *env) path(names ...string) string {
	return filepath.Join(append([]string{e.dir}, names...)...)
}

func (e *env) must(err error) {
	e.Helper()
	if err != nil {
		e.Fatal(err)
	}
}

// file makes a file with mode and content and returns its path.
func (e *env) file(name string, mode uint32, content string) string {
	e.Helper()
	p := e.path(name)
	e.must(os.WriteFile(p, []byte(content), 0o600))
	e.must(unix.Chmod(p, mode))
	return p
}

func (e *env) mkdir(name string, mode uint32) string {
	e.Helper()
	p := e.path(name)
	e.must(unix.Mkdir(p, 0o700))
	e.must(unix.Chmod(p, mode))
	return p
}

func (e *env) symlink(target, name string) string {
	e.Helper()
	p := e.path(name)
	e.must(unix.Symlink(target, p))
	return p
}

// open opens p and closes it at the case's end.
func (e *env) open(p string, flags int) int {
	e.Helper()
	fd, err := unix.Open(p, flags|unix.O_CLOEXEC, 0o644)
	if err != nil {
		e.Fatalf("open %s: %v", p, err)
	}
	e.Cleanup(func() { unix.Close(fd) })
	return fd
}

func (e *env) stat(p string) unix.Stat_t {
	e.Helper()
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		e.Fatalf("stat %s: %v", p, err)
	}
	return st
}

func (e *env) content(p string) string {
	e.Helper()
	b, err := os.ReadFile(p)
	e.must(err)
	return string(b)
}

func (e *env) equal(what string, got, want any) {
	e.Helper()
	if got != want {
		e.Fatalf("%s: got %v, want %v", what, got, want)
	}
}

// as makes a call as another user, without any supplementary group and
// without capabilities.
func as(uid, gid int, call func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		result <- func() error {
			if _, _, e := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); e != 0 {
				return fmt.Errorf("setgroups: %d", int(e))
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); e != 0 {
				return fmt.Errorf("setresgid: %d", int(e))
			}
			if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); e != 0 {
				return fmt.Errorf("setresuid: %d", int(e))
			}
			return call()
		}()
	}()
	return <-result
}

func asA(call func() error) error { return as(userA, userA, call) }

// helperVariable makes the test's binary the second process of a case.
const helperVariable = "POSIXTEST_HELPER"

// Main is os.Exit's argument in a TestMain of tests that call Run.
func Main(m *testing.M) int {
	if os.Getenv(helperVariable) != "" {
		return serveHelper()
	}
	return m.Run()
}

// helper is a second process that takes locks on request.
type helper struct {
	t   *testing.T
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Reader
}

func startHelper(t *testing.T) *helper {
	t.Helper()
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), helperVariable+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inR.Close()
	outW.Close()
	h := &helper{t: t, cmd: cmd, in: inW, out: bufio.NewReader(outR)}
	t.Cleanup(func() {
		h.in.Close()
		h.kill()
		outR.Close()
	})
	return h
}

// kill ends the helper without a chance to unlock, and waits for its death.
func (h *helper) kill() {
	if h.cmd.ProcessState == nil {
		h.cmd.Process.Kill()
		h.cmd.Wait()
	}
}

// send gives the helper a command; its answer is read by answer.
func (h *helper) send(format string, args ...any) {
	h.t.Helper()
	if _, err := fmt.Fprintf(h.in, format+"\n", args...); err != nil {
		h.t.Fatalf("helper: %v", err)
	}
}

func (h *helper) answer() error {
	h.t.Helper()
	line, err := h.out.ReadString('\n')
	if err != nil {
		h.t.Fatalf("helper: %v", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		h.t.Fatalf("helper said %q", line)
	}
	if n == 0 {
		return nil
	}
	return unix.Errno(n)
}

func (h *helper) do(format string, args ...any) error {
	h.t.Helper()
	h.send(format, args...)
	return h.answer()
}

// serveHelper answers each line of stdin with an errno on a line of stdout:
// "open <path>", "lock|ofd <r|w|u> <start> <length> <wait>", "flock <how>".
func serveHelper() int {
	lines := bufio.NewScanner(os.Stdin)
	fd := -1
	for lines.Scan() {
		op, rest, _ := strings.Cut(lines.Text(), " ")
		var err error
		switch op {
		case "open":
			fd, err = unix.Open(rest, unix.O_RDWR|unix.O_CLOEXEC, 0)
		case "lock", "ofd":
			var typ string
			var start, length int64
			var wait int
			fmt.Sscan(rest, &typ, &start, &length, &wait)
			err = setLock(fd, op == "ofd", typ, start, length, wait != 0)
		case "flock":
			how, _ := strconv.Atoi(rest)
			err = unix.Flock(fd, how)
		default:
			err = unix.ENOSYS
		}
		errno, _ := err.(unix.Errno)
		fmt.Println(int(errno))
	}
	return 0
}

// setLock sets a record lock, of the process or of the open file description.
func setLock(fd int, ofd bool, typ string, start, length int64, wait bool) error {
	types := map[string]int16{"r": unix.F_RDLCK, "w": unix.F_WRLCK, "u": unix.F_UNLCK}
	cmd := unix.F_SETLK
	switch {
	case ofd && wait:
		cmd = unix.F_OFD_SETLKW
	case ofd:
		cmd = unix.F_OFD_SETLK
	case wait:
		cmd = unix.F_SETLKW
	}
	return unix.FcntlFlock(uintptr(fd), cmd, &unix.Flock_t{Type: types[typ], Start: start, Len: length})
}
