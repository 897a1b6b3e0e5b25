package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
)

// halfFilled is a filler with one file of two pieces under way.
func halfFilled(t *testing.T) (*filler, *fillFile) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ibdata1")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	n := &gateway.Inode{Mode: 0o100640, Size: 8192, Mtime: time.Unix(1500000000, 1).UnixNano()}
	if err := out.Truncate(n.Size); err != nil {
		t.Fatal(err)
	}
	task := &cloneTask{s: cloneStatus{Stages: []cloneStage{{Stage: stageFiles}}}, saved: time.Now()}
	return &filler{task: task}, &fillFile{fillNode: fillNode{path, n}, f: out, left: 2}
}

// A file of which a piece failed never looks whole, although its last piece is
// copied before anybody else is told; one with all its pieces does.
func TestFiller_One_FailedPieceNeverLooksWhole(t *testing.T) {
	dead, cancel := context.WithCancel(context.Background())
	cancel()
	for _, failed := range []int{0, 1, -1} {
		f, file := halfFilled(t)
		for i := range 2 {
			ctx, w := context.Background(), fillWork{file: file}
			if i == failed {
				ctx, w.end = dead, 4096
			}
			err := f.one(ctx, w, nil)
			if i == failed && !errors.Is(err, gateway.ErrInterrupted) || i != failed && err != nil {
				t.Errorf("piece %d of which %d fails: %v", i, failed, err)
			}
		}
		if got := f.whole(file.fillNode); got != (failed < 0) {
			t.Errorf("piece %d failed: the file looks whole: %v", failed, got)
		}
	}
}

func TestFiller_One_FailedCloseNeverLooksWhole(t *testing.T) {
	f, file := halfFilled(t)
	file.left = 1
	file.f.Close() // so that the next one fails
	if err := f.one(context.Background(), fillWork{file: file}, nil); !errors.Is(err, os.ErrClosed) {
		t.Errorf("close: %v", err)
	}
	if f.whole(file.fillNode) {
		t.Error("a file whose close failed looks whole")
	}
}

func TestFiller_Drained_NeverLooksWhole(t *testing.T) {
	f, file := halfFilled(t)
	f.drained(file, 1)
	if err := f.one(context.Background(), fillWork{file: file}, nil); err != nil {
		t.Error(err)
	}
	if f.whole(file.fillNode) {
		t.Error("a file with a piece that was never copied looks whole")
	}
}

// --replace deletes nothing behind a mount point, nor the volume itself; what an
// attempt left that ended while it wrote its mark is no foreign file.
func TestApp_Clone_To_DeletesNothingElse(t *testing.T) {
	p := newPlace(t)
	p.must("format", p.url())
	p.stdin = "x"
	p.must("put", p.url(), "-", "file")
	p.write("out/keep/other", []byte("mine"))
	point := p.path("out", "keep")
	if err := unix.Mount("tmpfs", point, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(point, unix.MNT_DETACH) }) // gone already when the test passed
	p.write("out/keep/precious", []byte("mounted"))
	if err := os.Symlink(p.path("out"), p.path("link")); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{p.path("out"), p.path("link")} {
		p.fails(2, "something is mounted on "+point, "clone", p.url(), "--to", to, "--replace")
	}
	if got, err := os.ReadFile(filepath.Join(point, "precious")); err != nil || string(got) != "mounted" {
		t.Errorf("behind the mount point: %q, %v", got, err)
	}
	if err := unix.Unmount(point, 0); err != nil {
		t.Fatal(err)
	}
	bucket := strings.TrimPrefix(p.url(), "file://")
	for _, to := range []string{bucket, filepath.Dir(bucket), filepath.Join(bucket, "sub")} {
		p.fails(2, "lie in each other", "clone", p.url(), "--to", to, "--replace")
	}
	p.must("clone", p.url(), "--to", p.path("out"), "--replace")
	if got, err := os.ReadFile(p.path("out", "file")); err != nil || string(got) != "x" {
		t.Errorf("the copy: %q, %v", got, err)
	}
	p.write("new/"+cloneMarkNew, []byte("{"))
	p.must("clone", p.url(), "--to", p.path("new"))
	if list, err := os.ReadDir(p.path("new")); err != nil || len(list) != 1 {
		t.Errorf("the copy holds %v, %v", list, err)
	}
	p.must("check", "--data", p.url())
}

// newTerminal returns a terminal to write to, and what ends it and returns all that was
// written.
func newTerminal(t *testing.T) (screen *os.File, shown func() string) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { master.Close() }) // it has been read to its end
	fd := int(master.Fd())
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err == nil {
		err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0)
	}
	if err == nil {
		err = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 120})
	}
	if err == nil {
		screen, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	read := make(chan string, 1)
	go func() {
		all, _ := io.ReadAll(master) // EIO when the other side is closed
		read <- string(all)
	}()
	return screen, func() string {
		if err := screen.Close(); err != nil {
			t.Error(err)
		}
		return <-read
	}
}

// Copies show a bar on a terminal, as all long work does, or the lines of --progress.
func TestApp_Clone_Bar_OnATerminal(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u)
	p.write("src/file", random(3<<20))
	p.must("put", u, p.path("src"), "src")
	p.must("clone", u, p.at("shared"))
	run := func(terminal bool, args ...string) string {
		t.Helper()
		var out bytes.Buffer
		screen, shown := newTerminal(t)
		a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: screen, terminal: terminal, base: p.path("base"), lookup: func(string) (string, bool) { return "", false }}
		status := a.run(t.Context(), args)
		errs := shown()
		if status != exitDone {
			t.Fatalf("%v: %d, %s", args, status, errs)
		}
		return errs
	}
	for name, args := range map[string][]string{
		"to": {"clone", u, "--to", p.path("to")}, "copy": {"clone", u, p.at("copied"), "--copy"}, "detach": {"clone", "--detach", p.at("shared")},
	} {
		if errs := run(true, args...); !strings.Contains(errs, "copying ") {
			t.Errorf("%s on a terminal: %q", name, errs)
		}
	}
	if errs := run(true, "clone", u, "--to", p.path("to"), "--replace"); !strings.Contains(errs, "deleting ") || !strings.Contains(errs, "copying ") {
		t.Errorf("--replace on a terminal: %q", errs)
	}
	if errs := run(true, "clone", u, "--to", p.path("lines"), "--progress"); strings.Contains(errs, "copying ") || !strings.Contains(errs, "FILE COPY: completed") {
		t.Errorf("--progress on a terminal: %q", errs)
	}
	if errs := run(false, "clone", u, "--to", p.path("quiet")); errs != "" {
		t.Errorf("elsewhere: %q", errs)
	}
}
