package fuse

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/posixtest"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/metadata"
)

// Variables that make the test's binary a server: nothing may use a mount from
// the process that serves it.
const (
	serveDir     = "CISTERN_TEST_MOUNT"
	serveState   = "CISTERN_TEST_STATE"
	serveOptions = "CISTERN_TEST_OPTIONS"
	serveHelped  = "CISTERN_TEST_HELPED"
	serveBacking = "CISTERN_TEST_BACKING"
	serveView    = "CISTERN_TEST_VIEW"
	serveFollow  = "CISTERN_TEST_FOLLOW"
)

func TestMain(m *testing.M) {
	if os.Getenv(serveDir) != "" {
		if err := serveTest(); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(posixtest.Main(m))
}

// serveTest mounts a new volume and obeys the lines on stdin.
func serveTest() error {
	ctx := context.Background()
	v, closeVolume, err := openTestVolume(ctx, os.Getenv(serveState))
	if err != nil {
		return err
	}
	if os.Getenv(serveView) != "" {
		return serveTestView(ctx, v, closeVolume)
	}
	if os.Getenv(serveFollow) != "" {
		return serveTestFollower(ctx, v, closeVolume)
	}
	o := Options{Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))}
	if err := o.Parse(os.Getenv(serveOptions)); err != nil {
		return err
	}
	if p := os.Getenv(serveBacking); p != "" {
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		o.Passthrough = func(gateway.InodeID) (int, bool) { return int(f.Fd()), true }
	}
	how := (*Server).mountDirect
	if os.Getenv(serveHelped) != "" {
		how = (*Server).mountHelped
	}
	s, err := mount(ctx, live{v}, os.Getenv(serveDir), o, how)
	if err != nil {
		return errors.Join(err, closeVolume())
	}
	fmt.Println("ok")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer, err := obey(ctx, s, v, strings.Fields(lines.Text()))
		if err != nil {
			fmt.Println("error:", err)
			continue
		}
		fmt.Println("ok", answer)
	}
	if err := s.Unmount(); err != nil {
		return errors.Join(err, s.Detach())
	}
	return closeVolume()
}

// obey does one command, most of them on the volume behind the kernel's back.
func obey(ctx context.Context, s *Server, v *gateway.Volume, f []string) (string, error) {
	ino := func(i int) gateway.InodeID {
		n, _ := strconv.ParseUint(f[i], 10, 64)
		return gateway.InodeID(n)
	}
	switch f[0] {
	case "unmount":
		return "", s.Unmount()
	case "detach":
		return "", s.Detach()
	case "dead":
		return strconv.FormatBool(s.dead()), nil
	case "open":
		open := 0
		for fh := uint64(1); fh < 100; fh++ {
			if s.fs.handles.get(fh) != nil {
				open++
			}
		}
		return strconv.Itoa(open), nil
	case "create":
		n, err := v.Create(ctx, metadata.RootInode, f[1], unix.S_IFREG|0o644, 0, gateway.Owner{}, nil)
		if err != nil {
			return "", err
		}
		v.Forget(n.ID, 1)
		return strconv.FormatUint(uint64(n.ID), 10), nil
	case "unlink":
		return "", v.Unlink(ctx, metadata.RootInode, f[1])
	case "write":
		h, err := v.Open(ctx, ino(1))
		if err != nil {
			return "", err
		}
		_, err = h.Write(ctx, []byte(f[2]), 0, gateway.WriteFlags{})
		return "", errors.Join(err, h.Close())
	case "invalidate":
		return "", s.Invalidate(ino(1))
	case "invalidate-attr":
		return "", s.InvalidateAttr(ino(1))
	case "invalidate-entry":
		return "", s.InvalidateEntry(metadata.RootInode, f[1])
	}
	return "", fmt.Errorf("unknown command %q", f)
}

// mounted is a mount that another process serves.
type mounted struct {
	*testing.T
	dir string
	cmd *exec.Cmd
	in  *os.File
	out *bufio.Reader
}

// mountVolume serves a new volume; env holds settings of the server, as
// name=value. The mount is gone when the test ends.
func mountVolume(t *testing.T, env ...string) *mounted {
	t.Helper()
	m, err := tryMount(t, posixtest.Dir(t), env...)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func tryMount(t *testing.T, dir string, env ...string) (*mounted, error) {
	t.Helper()
	testenv.NeedFUSE(t)
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), serveDir+"="+dir, serveState+"="+t.TempDir())
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = inR, outW, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	inR.Close()
	outW.Close()
	m := &mounted{T: t, dir: dir, cmd: cmd, in: inW, out: bufio.NewReader(outR)}
	t.Cleanup(func() {
		inW.Close()
		if err := cmd.Wait(); err != nil && m.out != nil {
			t.Errorf("the server: %v", err)
		}
		outR.Close()
	})
	if _, err := m.answer(); err != nil {
		m.out = nil
		return nil, err
	}
	return m, nil
}

func (m *mounted) answer() (string, error) {
	m.Helper()
	line, err := m.out.ReadString('\n')
	if err != nil {
		m.Fatalf("the server is gone: %v", err)
	}
	line = strings.TrimSpace(line)
	if text, failed := strings.CutPrefix(line, "error: "); failed {
		return "", errors.New(text)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "ok")), nil
}

func (m *mounted) try(format string, args ...any) (string, error) {
	m.Helper()
	if _, err := fmt.Fprintf(m.in, format+"\n", args...); err != nil {
		m.Fatal(err)
	}
	return m.answer()
}

func (m *mounted) do(format string, args ...any) string {
	m.Helper()
	answer, err := m.try(format, args...)
	if err != nil {
		m.Fatalf("%s: %v", format, err)
	}
	return answer
}

func (m *mounted) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}
