package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestProcAnonymous_ThisProcess(t *testing.T) {
	block := make([]byte, 64*mebibyte)
	for i := 0; i < len(block); i += 4096 {
		block[i] = 1
	}
	n, err := procAnonymous(os.Getpid())
	if err != nil || n < int64(len(block)) {
		t.Errorf("%d bytes while %d are in use: %v", n, len(block), err)
	}
	if block[0] != 1 {
		t.Error("the block is gone")
	}
	if _, err := procCPU(os.Getpid()); err != nil {
		t.Error(err)
	}
	if _, err := procAnonymous(1 << 30); err == nil {
		t.Error("a process that is not there has memory")
	}
}

// A command that begins in the group is counted there from its first page on.
func TestMemoryGroup_Inside(t *testing.T) {
	g, err := newMemoryGroup(64 << 20)
	if err != nil {
		t.Fatal(err)
	}
	argv := g.inside([]string{"cat", "/proc/self/cgroup"})
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil || !strings.Contains(string(out), filepath.Base(g.dir)) {
		t.Errorf("%v: %s", err, out)
	}
	if err := g.remove(); err != nil {
		t.Error(err)
	}
}

func TestCopyRange_CopiesAll(t *testing.T) {
	from, to := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "b")
	if err := fillFile(from, 3*mebibyte); err != nil {
		t.Fatal(err)
	}
	if err := copyRange(from, to, 3*mebibyte); err != nil {
		t.Fatal(err)
	}
	a, aerr := os.ReadFile(from)
	b, berr := os.ReadFile(to)
	if aerr != nil || berr != nil || string(a) != string(b) {
		t.Errorf("the copy differs: %v, %v", aerr, berr)
	}
	if err := copyRange(from, to, 4*mebibyte); err == nil {
		t.Error("more was copied than there is")
	}
}
