package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/cisternfs/cistern/gateway"
)

// smCase is one of Storage Manager's cases. settle brings what was done so far to
// the stage that the run is about; want holds what each file must be.
type smCase struct {
	*testing.T
	tree
	settle func()
	want   map[string][]byte
}

func (c *smCase) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

// refuses demands one of several errno.
func (c *smCase) refuses(err error, want ...syscall.Errno) {
	c.Helper()
	for _, w := range want {
		if errors.Is(err, w) {
			return
		}
	}
	c.Errorf("%v, want %v", err, want)
}

func (c *smCase) put(path string, p []byte, off int) {
	c.Helper()
	c.must(c.write(path, p, int64(off)))
	w := c.want[path]
	if n := off + len(p); n > len(w) {
		w = append(w, make([]byte, n-len(w))...)
	}
	copy(w[off:], p)
	c.want[path] = w
}

func (c *smCase) cut(path string, size int) {
	c.Helper()
	c.must(c.truncate(path, int64(size)))
	w := c.want[path]
	if size <= len(w) {
		c.want[path] = w[:size:size]
		return
	}
	c.want[path] = append(w, make([]byte, size-len(w))...)
}

// check compares every file, after settling.
func (c *smCase) check(when string) {
	c.Helper()
	c.settle()
	for path, want := range c.want {
		if got, err := c.read(path); err != nil || !bytes.Equal(got, want) {
			c.Errorf("%s: %.40q: %d bytes, want %d: %v", when, path, len(got), len(want), err)
		}
	}
}

// pattern is n bytes that differ from file to file.
func pattern(n, seed int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8 + seed*31 + 1)
	}
	return p
}

// smCases are those that need nothing but a file system; engineCases are the others
// in process, mountCases through a mount. In depth, with simulated time and random
// seeds, most are walked by TestStorageManager_… of package gateway.
func smCases() map[string]func(c *smCase) {
	return map[string]func(c *smCase){
		"Case01_WritesAndAppends": case01, "Case03_GapsReadZeros": case03, "Case04_Truncate": case04, "Case05_OneByteFarOut": case05,
		"Case06_Names": case06, "Case07_Directories": case07, "Case08_Rename": case08, "Case21_ManyNames": case21,
	}
}

func case01(c *smCase) {
	for i, w := range [][2]int{{10, 0}, {4, 8}, {8, 4}, {16, 7}, {8, 32}, {10, 40}, {8, 24}, {96, 0}, {7, 96}, {7, 103}, {7, 110}} {
		c.put("file", pattern(w[0]<<10, i), w[1]<<10)
		c.check(fmt.Sprintf("write %d of %d KiB at %d KiB", i, w[0], w[1]))
	}
}

func case03(c *smCase) {
	c.put("gap", []byte("0123456789"), 0)
	c.put("gap", []byte("9876543210"), 4096)
	for _, name := range []string{"cut", "cut and written"} {
		c.put(name, bytes.Repeat([]byte("A"), 8192), 0)
		c.cut(name, 100)
	}
	c.check("cut")
	c.cut("cut", 8192)
	c.put("cut and written", []byte("on"), 4000)
	c.check("extended")
}

func case04(c *smCase) {
	c.put("a", pattern(16<<10, 1), 0)
	for _, size := range []int{10240, 6000, 0} {
		c.cut("a", size)
		c.check(fmt.Sprint("truncated to ", size))
	}
}

func case05(c *smCase) {
	const far = 64 << 20 // read back whole; the engine's own test goes to 10 GiB
	c.put("far", []byte("x"), far)
	c.check("one byte")
}

func case06(c *smCase) {
	names := []string{"a~b", "x~", "a_b__c", "f.meta", "OWNED", "with space", `"quoted" 'too'`, `back\slash`, "new\nline", "bad\xffutf", "a", "a.meta", strings.Repeat("n", 255)}
	for i, name := range names {
		c.put(name, pattern(10+i*400, i), 0)
	}
	c.refuses(c.write(strings.Repeat("n", 256), []byte("x"), 0), syscall.ENAMETOOLONG)
	c.check("all names")
	c.must(c.unlink("a"))
	delete(c.want, "a")
	c.check("a is gone")
	got, err := c.list("")
	c.must(err)
	want := slices.Sorted(slices.Values(slices.DeleteFunc(names, func(n string) bool { return n == "a" })))
	if slices.Sort(got); !slices.Equal(got, want) {
		c.Errorf("listed %q, want %q", got, want)
	}
	dir := ""
	for range 15 {
		dir += strings.Repeat("d", 199) + "/"
		c.must(c.mkdir(strings.TrimSuffix(dir, "/")))
	}
	c.put(dir+"deep", pattern(9000, 3), 0)
	c.check("a path of 3,000 bytes")
}

func case07(c *smCase) {
	c.must(c.mkdir("empty"))
	c.must(c.mkdir("full"))
	c.put("full/f", pattern(9000, 1), 0)
	c.check("made")
	c.refuses(c.unlink("full"), syscall.EISDIR, syscall.EPERM)
	c.refuses(c.rmdir("full"), syscall.ENOTEMPTY)
	c.refuses(c.mkdir("empty"), syscall.EEXIST)
	if list, err := c.list("empty"); err != nil || len(list) != 0 {
		c.Errorf("%q, %v", list, err)
	}
	c.must(c.rmdir("empty"))
	c.settle()
	_, err := c.list("empty")
	c.refuses(err, syscall.ENOENT)
}

func case08(c *smCase) {
	c.put("old", pattern(20000, 1), 0)
	c.put("new", pattern(30000, 2), 0)
	c.settle()
	c.must(c.rename("new", "old"))
	c.want["old"] = c.want["new"]
	delete(c.want, "new")
	c.must(c.rename("old", "old"))
	c.check("renamed over")
	_, err := c.read("new")
	c.refuses(err, syscall.ENOENT)
	c.must(c.mkdir("dir"))
	for i := range 200 {
		c.put(fmt.Sprint("dir/", i), []byte{byte(i)}, 0)
	}
	c.must(c.rename("dir", "moved"))
	for i := range 200 {
		c.want[fmt.Sprint("moved/", i)] = c.want[fmt.Sprint("dir/", i)]
		delete(c.want, fmt.Sprint("dir/", i))
	}
	c.check("a directory moved")
}

func case21(c *smCase) {
	c.must(c.mkdir("many"))
	var names []string
	for i := range 1000 {
		name := fmt.Sprintf("%04d", i)
		name += strings.Repeat("x", i%252)
		names = append(names, name)
		c.must(c.write("many/"+name, nil, 0))
	}
	c.settle()
	got, err := c.list("many")
	c.must(err)
	if slices.Sort(got); !slices.Equal(got, names) {
		c.Errorf("%d names are listed", len(got))
	}
}

// Every case on every store; those of the file system with their data before the
// commit, and in the bucket alone.
func TestStorageManager_Cases_OnEveryStore(t *testing.T) {
	for store, open := range caseStores() {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			bucket := open(t)
			for name, run := range smCases() {
				for _, stage := range []string{"before commit", "bucket alone"} {
					t.Run(name+"/"+stage, func(t *testing.T) {
						p := bucket.volume(t, name+strings.Fields(stage)[0], nil)
						settle := func() {}
						if stage == "bucket alone" {
							settle = p.fromBucket
						}
						run(&smCase{T: t, tree: p, settle: settle, want: map[string][]byte{}})
						p.checkAndClose()
					})
				}
			}
			for name, run := range engineCases() {
				t.Run(name, func(t *testing.T) { run(t, bucket) })
			}
		})
	}
}

func (p *inProcess) checkAndClose() {
	p.t.Helper()
	p.sync()
	if _, err := p.v.Check(p.t.Context(), gateway.CheckOptions{Data: true, Problem: func(f gateway.Problem) { p.t.Error("check: ", f) }}); err != nil {
		p.t.Error(err)
	}
	p.close()
}
