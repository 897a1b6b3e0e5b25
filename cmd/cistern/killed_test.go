package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/testenv"
)

// start begins the program on a command line with input from a file; "" for none.
func (p *place) start(input string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	p.t.Helper()
	if p.built == "" {
		p.built = testenv.Cistern(p.t)
	}
	c := exec.Command(p.built, args...)
	c.Env = append(os.Environ(), "XDG_STATE_HOME="+p.dir)
	for k, v := range p.env {
		c.Env = append(c.Env, k+"="+v)
	}
	var errs bytes.Buffer
	c.Stderr = &errs
	if input != "" {
		f, err := os.Open(input)
		if err != nil {
			p.t.Fatal(err)
		}
		defer f.Close() // the program has its own
		c.Stdin = f
	}
	if err := c.Start(); err != nil {
		p.t.Fatal(err)
	}
	return c, &errs
}

// killedUntilDone runs a command line again and again, ended by SIGKILL and SIGINT in
// turn, each time a little later, until a run comes to its end, or says that the one
// that was ended had come to its own. It returns how many were ended.
func (p *place) killedUntilDone(input string, args ...string) (ended int) {
	p.t.Helper()
	for wait := 20 * time.Millisecond; ; wait = wait * 3 / 2 {
		c, errs := p.start(input, args...)
		done := make(chan error, 1)
		go func() { done <- c.Wait() }()
		select {
		case err := <-done:
			if half := halfFormat.FindStringSubmatch(errs.String()); err != nil && half != nil {
				p.mustBinary("destroy", "--yes", "--takeover", half[1])
				continue
			}
			if err != nil && (ended == 0 || !strings.Contains(errs.String(), "a clone that is complete") && !strings.Contains(errs.String(), "is not empty")) {
				p.t.Fatalf("cistern %s after %d that were ended: %v\n%s", strings.Join(args, " "), ended, err, errs)
			}
			return ended
		case <-time.After(wait):
		}
		sig := syscall.SIGKILL
		if ended%2 == 1 {
			sig = syscall.SIGINT
		}
		_ = c.Process.Signal(sig) // it may have come to its end meanwhile
		if err := <-done; err == nil {
			return ended
		}
		ended++
	}
}

// wantTree makes sure that a directory of a volume is like a local one.
func (p *place) wantTree(vol, path, local string) {
	p.t.Helper()
	out := p.path(fmt.Sprintf("got-%d", time.Now().UnixNano()))
	p.mustBinary("get", vol, path, out)
	compareTrees(p.t, local, out)
}

// TestBinary_EndedInTheMidst_TheNextRunGoesOn: whatever a command was about when it
// was killed or interrupted, the same command line comes to the right end.
func TestBinary_EndedInTheMidst_TheNextRunGoesOn(t *testing.T) {
	testenv.Long(t)
	p := newPlace(t)
	u := p.url()
	p.mustBinary("format", u, "--object-size", "1M")
	for i := range 60 {
		p.write(fmt.Sprintf("src/%d/%d", i%7, i), random(50_000+i))
	}
	p.write("src/large", random(9<<20+1))
	src := p.path("src")

	// With a slash at its end a path is where a copy goes into, however often.
	ended := map[string]int{"put": p.killedUntilDone("", "put", u, src, "in/", "-p")}
	p.mustBinary("put", u, src, "data")
	p.wantTree(u, "in/src", src)
	p.wantTree(u, "data", src)
	stream := p.write("stream", random(12<<20+7))
	ended["put -"] = p.killedUntilDone(stream, "put", u, "stream", "-")
	if got := p.mustBinary("cat", u, "stream"); got != readFile(t, stream) {
		t.Error("the stream is not what was put")
	}
	if err := os.Mkdir(p.path("out"), 0o755); err != nil {
		t.Fatal(err)
	}
	ended["get"] = p.killedUntilDone("", "get", u, "data", p.path("out"))
	compareTrees(t, src, p.path("out", "data"))

	p.mustBinary("snapshot", "create", u, "whole")
	p.mustBinary("rm", "-r", u, "data")
	ended["restore"] = p.killedUntilDone("", "restore", u+"@whole")
	p.wantTree(u, "data", src)
	for name, args := range map[string][]string{
		"clone":        {"clone", u, p.at("shared")},
		"clone --copy": {"clone", u, p.at("copied"), "--copy"},
	} {
		ended[name] = p.killedUntilDone("", args...)
		p.wantTree(args[2], "data", src)
		p.mustBinary("check", "--data", args[2])
	}
	ended["clone --detach"] = p.killedUntilDone("", "clone", "--detach", p.at("shared"))
	ended["clone --to"] = p.killedUntilDone("", "clone", u, "--to", p.path("to"))
	compareTrees(t, src, p.path("to", "data"))
	p.mustBinary("check", "--data", u)
	for name, n := range ended {
		if n == 0 {
			t.Errorf("%s was never ended in its midst", name)
		}
	}
	t.Log(ended)
	if left, err := filepath.Glob(p.path("to", ".cistern*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// halfFormat is a volume whose format was ended in its midst, as it is told of.
var halfFormat = regexp.MustCompile("(file://\\S+) holds a volume whose format did not end; unless it is under way, `cistern destroy --yes --takeover` clears it")

func TestBinary_ImportEndedInTheMidst_TheNextRunGoesOn(t *testing.T) {
	testenv.Long(t)
	p, w, conf := smPlace(t, "")
	w.Shapes("data1")
	w.File("data2/000.dir/FILE000.cdf", w.Whole(9<<20)...)
	if ended := p.killedUntilDone("", "import", "columnstore", "--config", conf, "--copy"); ended == 0 {
		t.Error("it was never ended in its midst")
	}
	p.mustBinary("export", "columnstore", "--config", conf, p.path("out"))
	w.Compare(p.path("out", "data1"), "data1")
	w.Compare(p.path("out", "data2"), "data2")
}

// TestApp_Clone_OfAChangingParent_GoesOnAtItsCommit: the present that the second run
// finds is another one, and what the first has copied is not lost.
func TestApp_Clone_OfAChangingParent_GoesOnAtItsCommit(t *testing.T) {
	p, mnt := mountPlace(t)
	pid := p.mount()
	for i := range 4 {
		p.write(fmt.Sprintf("mnt/data/%d", i), random(1<<20+i))
	}
	p.write("mnt/last", []byte("old"))
	for name, args := range map[string][]string{
		"volume":    {"clone", mnt, p.at("copied"), "--copy"},
		"directory": {"clone", mnt, "--to", p.path("to")},
	} {
		p.write("mnt/last", []byte("old"))
		c, errs := p.start("", append(args, "--bandwidth", "1M", "--concurrency", "1")...)
		begun := p.path("copied", "objects", "*")
		if name == "directory" {
			begun = p.path("to", "data", "*")
		}
		eventually(t, name, func() bool { found, err := filepath.Glob(begun); return err == nil && len(found) > 0 })
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err == nil || errs.Len() > 0 {
			t.Fatalf("%s: the first run: %v, %q", name, err, errs)
		}
		p.write("mnt/last", []byte("new"))
		p.mustBinary("sync", mnt)
		status, out, said := p.binary(args...)
		if status != 0 || strings.Count(said, "\n") != 1 || !strings.Contains(said, "an earlier run had begun with commit ") {
			t.Fatalf("%s: the second run: %d, %q, %q", name, status, out, said)
		}
		if name == "directory" {
			if got := readFile(t, p.path("to", "last")); got != "old" {
				t.Errorf("directory: %q", got)
			}
			compareTrees(t, p.path("mnt", "data"), p.path("to", "data"))
			continue
		}
		if got := p.mustBinary("cat", p.at("copied"), "last"); got != "old" {
			t.Errorf("volume: %q", got)
		}
		p.wantTree(p.at("copied"), "data", p.path("mnt", "data"))
		if !strings.Contains(out, "by an earlier attempt") {
			t.Errorf("volume: %q", out)
		}
	}
	p.mustBinary("umount", mnt)
	p.unmounted(pid)
}
