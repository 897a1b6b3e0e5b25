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
	"sync"
	"syscall"
	"testing"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/testenv"
)

func TestApp_Get_DirectoryWithAnyConcurrency(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u, "--object-size", "1M")
	for i := range 40 {
		p.write(fmt.Sprintf("src/%d/%d/file%d", i%3, i%5, i), random(i*i*i+i))
	}
	p.write("src/big", random(5<<20+3))
	p.must("put", u, p.path("src"), "data")
	for _, flags := range [][]string{nil, {"--concurrency", "1"}, {"--concurrency", "3"}, {"--concurrency", "64"}} {
		out := p.path("out" + strings.Join(flags, ""))
		said := p.must(append([]string{"get", u, "data", out}, flags...)...)
		compareTrees(t, p.path("src"), out)
		if strings.Count(said, "\n") != 42 || !strings.Contains(said, out+": 41 files, ") {
			t.Errorf("get %v: %q", flags, said)
		}
	}
}

// faultyFiles is a directory of files in which the read number failAt fails; those
// before it succeed, and those after it go on until they are told to stop.
type faultyFiles struct {
	service
	files, failAt, together int

	mu           sync.Mutex
	begun        int
	running, top int
	full         chan struct{} // closed when together reads run
}

var errFaultyFile = errors.New("this file can't be read")

const faultyBody = "all of it"

func (s *faultyFiles) stat(context.Context, string, bool) (entry, error) {
	return entry{Mode: syscall.S_IFDIR | 0o755}, nil
}

func (s *faultyFiles) list(_ context.Context, _ string, _ listOptions, fn func(entry) error) error {
	for i := range s.files {
		if err := fn(entry{Path: text(fmt.Sprintf("dir/%d", i)), Mode: syscall.S_IFREG | 0o644, Size: int64(len(faultyBody))}); err != nil {
			return err
		}
	}
	return nil
}

func (s *faultyFiles) read(ctx context.Context, _ string, _, _ int64, w io.Writer) error {
	s.mu.Lock()
	n := s.begun
	s.begun++
	s.running++
	s.top = max(s.top, s.running)
	if s.running == s.together {
		close(s.full)
		s.together = 0 // once
	}
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.running--
		s.mu.Unlock()
	}()
	<-s.full
	switch {
	case n == s.failAt:
		return errFaultyFile
	case n > s.failAt:
		if _, err := io.WriteString(w, faultyBody[:3]); err != nil {
			return err
		}
		<-ctx.Done()
		return gateway.ErrInterrupted
	}
	_, err := io.WriteString(w, faultyBody)
	return err
}

func TestGetter_Dir_FirstErrorStopsAllAndLeavesWholeFilesOnly(t *testing.T) {
	const files, parallel = 12, 4
	for failAt := 0; failAt <= files; failAt++ {
		dir := testenv.TempDir(t)
		var out, errs bytes.Buffer
		s := &faultyFiles{files: files, failAt: failAt, together: parallel, full: make(chan struct{})}
		g := &getter{a: &app{stdout: &out, stderr: &errs}, s: s, parallel: parallel}
		err := g.run(t.Context(), "dir", filepath.Join(dir, "to"))
		if failAt < files && !errors.Is(err, errFaultyFile) || failAt == files && err != nil {
			t.Errorf("read %d fails: %v", failAt, err)
		}
		if s.top != parallel || s.begun > failAt+parallel {
			t.Errorf("read %d fails: %d reads ran at a time, %d began", failAt, s.top, s.begun)
		}
		list, err := os.ReadDir(filepath.Join(dir, "to"))
		if err != nil || len(list) != failAt {
			t.Errorf("read %d fails: it left %v, %v", failAt, list, err)
		}
		for _, e := range list {
			if got := readFile(t, filepath.Join(dir, "to", e.Name())); got != faultyBody {
				t.Errorf("read %d fails: %s holds %q", failAt, e.Name(), got)
			}
		}
	}
}
