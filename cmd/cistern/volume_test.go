package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func random(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(n)})
	r.Read(b)
	return b
}

func TestApp_Files_RoundTripWithoutMount(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u, "--object-size", "1M")
	for name, n := range map[string]int{"src/big": 3<<20 + 12345, "src/empty": 0, "src/sub/deep/small": 1000, "src/b\xff\n": 10} {
		p.write(name, random(n))
	}
	if err := os.Chmod(p.path("src", "big"), 0o750); err != nil {
		t.Fatal(err)
	}
	p.must("put", u, p.path("src"), "data")
	p.stdin = "from standard input"
	p.must("put", "-p", u, "-", "new/dir/stdin")

	if got := p.must("cat", u, "new/dir/stdin"); got != "from standard input" {
		t.Errorf("cat: %q", got)
	}
	if got := p.must("cat", u, "/data/big", "--offset", "1048570", "--length", "20"); got != string(random(3<<20 + 12345)[1048570:1048590]) {
		t.Error("cat of a range differs")
	}
	if got := p.must("ls", u); got != "data/\nnew/\n" {
		t.Errorf("ls: %q", got)
	}
	if got := p.must("ls", u, "data"); got != "data/big\n\"data/b\\xff\\n\"\ndata/empty\ndata/sub/\n" {
		t.Errorf("ls data: %q", got)
	}
	long := p.must("ls", "-l", "--slots", u, "data/big")
	if !strings.HasPrefix(long, "-rwxr-x---") || !strings.Contains(long, "[4 slots, ") {
		t.Errorf("ls -l: %q", long)
	}
	entries := decode[[]entry](t, p.must("ls", "-R", "--json", u, "data"))
	if len(entries) != 6 || entries[1].Path != "data/b\xff\n" {
		t.Errorf("ls --json: %+v", entries)
	}
	st := decode[[]entry](t, p.must("stat", "--json", "--slots", u, "data/big"))[0]
	if st.Size != 3<<20+12345 || st.Allocated != st.Size || st.Slots.Slots != 4 || st.Mode != syscall.S_IFREG|0o750 {
		t.Errorf("stat: %+v", st)
	}
	if text := p.must("stat", u, "data/big"); !strings.Contains(text, "3158073") {
		t.Errorf("stat: %q", text)
	}
	used := decode[[]usedBy](t, p.must("du", "--json", "-d", "2", u, "data"))
	if len(used) != 3 || used[0].Files != 7 || used[0].Size != 3<<20+12345+1010 || used[1].Path != "data/sub" || used[1].Size != 1000 || used[2].Path != "data/sub/deep" {
		t.Errorf("du: %+v", used)
	}

	p.must("get", u, "data", p.path("out"))
	compareTrees(t, p.path("src"), p.path("out"))
	if got := p.must("get", u, "data/sub/deep/small", "-"); got != string(random(1000)) {
		t.Error("get to standard output differs")
	}

	// Replacing keeps the commit before readable.
	before := decode[struct{ N uint64 }](t, p.must("sync", "--json", u)).N
	p.stdin = "second"
	p.must("put", u, "new/dir/stdin", "-")
	if got := p.must("cat", u, "new/dir/stdin"); got != "second" {
		t.Errorf("after put over it: %q", got)
	}
	if got := p.must("cat", fmt.Sprintf("%s@%d", u, before), "new/dir/stdin"); got != "from standard input" {
		t.Errorf("in the commit before: %q", got)
	}

	p.fails(1, "-r removes a directory", "rm", u, "data")
	if got := p.must("rm", "-r", u, "data"); got != "/data: 7 names removed\n" {
		t.Errorf("rm -r: %q", got)
	}
	p.must("rm", u, "new/dir/stdin")
	if got := p.must("ls", "-R", u); got != "new/\nnew/dir/\n" {
		t.Errorf("after rm: %q", got)
	}
	p.must("check", "--data", u)
	lines := decode[[]logLine](t, p.must("log", "--json", "-n", "0", u))
	if n := len(lines); n < 5 || lines[n-1].Commit != 1 || !slices.IsSortedFunc(lines, func(a, b logLine) int { return int(b.Commit) - int(a.Commit) }) {
		t.Errorf("log: %+v", lines)
	}
	if got := p.must("log", "-n", "2", u); strings.Count(got, "\n") != 2 {
		t.Errorf("log -n 2: %q", got)
	}
	if left, err := filepath.Glob(p.path("base", "*")); err != nil || len(left) > 0 {
		t.Errorf("commands left %v, %v", left, err)
	}
}

func compareTrees(t *testing.T, a, b string) {
	t.Helper()
	names := func(dir string) (list []string) {
		filepath.Walk(dir, func(path string, st os.FileInfo, err error) error {
			if err != nil {
				t.Fatal(err)
			}
			rel, _ := filepath.Rel(dir, path)
			list = append(list, fmt.Sprintf("%s %v", rel, st.Mode()))
			return nil
		})
		return list
	}
	if na, nb := names(a), names(b); !slices.Equal(na, nb) {
		t.Fatalf("%q\nand %q differ", na, nb)
	}
	filepath.Walk(a, func(path string, st os.FileInfo, err error) error {
		rel, _ := filepath.Rel(a, path)
		if st.Mode().IsRegular() {
			x, errA := os.ReadFile(path)
			y, errB := os.ReadFile(filepath.Join(b, rel))
			if errA != nil || errB != nil || !bytes.Equal(x, y) {
				t.Errorf("%s differs: %v, %v", rel, errA, errB)
			}
		}
		return nil
	})
}

func TestApp_Check_NamesFileRangeAndObject(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u, "--object-size", "1M")
	p.write("big", random(2<<20))
	p.write("small", random(5000))
	p.must("put", "-p", u, p.path("big"), "dir/big")
	p.must("put", u, p.path("small"), "dir/")
	p.must("check", u)
	p.must("check", "--data", u)

	object := p.find("objects/")
	body, err := os.ReadFile(object)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(object)
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(body)
	damaged[300000] ^= 1
	if err := os.WriteFile(object, damaged, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(object, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	p.must("check", u) // sizes are right
	status, out, errs := p.run("check", "--data", u)
	at := 0
	if strings.Contains(object, "_1048576_1048576_") {
		at = 1 << 20
	}
	want := fmt.Sprintf("damage: /dir/big: bytes %d to %d: objects/", at+262144, at+393216)
	checkFailure(t, []string{"check --data"}, 4, "damage found: 1 problem", status, errs)
	if !strings.Contains(out, want) || !strings.Contains(out, "checksum does not match") {
		t.Errorf("got %q, want %q", out, want)
	}
	r := decode[checkReport](t, func() string { _, out, _ := p.run("check", "--data", "--json", u); return out }())
	if r.Problems != 1 || len(r.Found) != 1 || r.Found[0].Path != "dir/big" || r.Found[0].Length != 131072 {
		t.Errorf("%+v", r)
	}
	p.fails(4, "checksum does not match", "cat", u, "dir/big")
	// --repair mends nothing that would lose data.
	p.fails(4, "damage found", "check", "--data", "--repair", u)

	if err := os.Truncate(object, 100); err != nil {
		t.Fatal(err)
	}
	status, out, _ = p.run("check", u)
	if status != 4 || !strings.Contains(out, "has 100 bytes instead of 1048576") {
		t.Errorf("short object: %d %q", status, out)
	}
	if err := os.Remove(object); err != nil {
		t.Fatal(err)
	}
	status, out, _ = p.run("check", u)
	if status != 4 || !strings.Contains(out, "is missing") || !strings.Contains(out, "/dir/big") {
		t.Errorf("missing object: %d %q", status, out)
	}
	p.write(strings.TrimPrefix(object, p.dir+"/"), body)
	p.must("check", "--data", u)

	// The small file lies in a segment.
	segment := p.find("segments/")
	if body, err = os.ReadFile(segment); err != nil {
		t.Fatal(err)
	}
	body[len(body)-1] ^= 1
	if err := os.WriteFile(segment, body, 0o644); err != nil {
		t.Fatal(err)
	}
	status, out, _ = p.run("check", "--data", u)
	if status != 4 || !strings.Contains(out, "/dir/small: bytes 0 to 5000: segments/") {
		t.Errorf("damaged segment: %d %q", status, out)
	}
}

func TestApp_CheckRepair_DeletesOrphansOfSealedEpochs(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u)
	p.write("a", random(2<<20))
	p.must("put", u, p.path("a"), "a")
	// What a writer of epoch 1 left between an upload and its commit.
	orphan := "objects/00000000-0001-aaaa-bbbb-cccccccccccc_0_3_a"
	p.write("bucket/"+orphan+"%", []byte("abc"))
	r := decode[checkReport](t, p.must("check", "--json", u))
	if r.Orphans != 1 || r.OrphanBytes != 3 {
		t.Fatalf("%+v", r.checkResult)
	}
	if out := p.must("collect", "--dry-run", u); !strings.Contains(out, orphan+"\n") || !strings.Contains(out, "1 orphan of 3 B") {
		t.Errorf("collect --dry-run: %q", out)
	}
	r = decode[checkReport](t, p.must("check", "--repair", "--json", u))
	if r.Deleted != 1 {
		t.Errorf("repair: %+v", r.checkResult)
	}
	if r = decode[checkReport](t, p.must("check", "--json", u)); r.Orphans != 0 {
		t.Errorf("after repair: %+v", r.checkResult)
	}
	p.must("check", "--data", u)
}

func TestApp_Collect_DeletesWhatIsDead(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u, "--retention", "0s")
	p.write("a", random(6<<20))
	p.must("put", u, p.path("a"), "a")
	p.must("rm", u, "a")
	dry := decode[collected](t, p.must("collect", "--dry-run", "--json", u))
	if dry.Dead.Things == 0 || dry.Dead.Bytes < 6<<20 {
		t.Errorf("dry run: %+v", dry)
	}
	if got := decode[collected](t, p.must("collect", "--json", u)); got.Dead.Things != dry.Dead.Things {
		t.Errorf("collected %+v after a dry run of %+v", got, dry)
	}
	for name := range p.bucketFiles() {
		if strings.HasPrefix(name, "objects/") {
			t.Errorf("%s is left", name)
		}
	}
	p.must("check", "--data", u)
}

func TestApp_Dump_ShowsDocuments(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u)
	p.stdin = "hello"
	p.must("put", u, "-", "a")
	for _, kind := range []string{"commit", "lease"} {
		if out := p.must("dump", kind, u); !json.Valid([]byte(out)) || !strings.Contains(out, `"epoch"`) {
			t.Errorf("dump %s: %q", kind, out)
		}
	}
	if out := p.must("dump", "commit", u, "1"); !strings.Contains(out, `"n": "1"`) {
		t.Errorf("dump commit 1: %q", out)
	}
	if out := p.must("dump", "manifest", u); !strings.Contains(out, "no manifest") {
		t.Errorf("dump manifest: %q", out)
	}
	if out := p.must("dump", "pin", u); out != "" {
		t.Errorf("dump pin: %q", out)
	}
	list := p.must("dump", "segment", u)
	key, _, _ := strings.Cut(list, " ")
	if !strings.HasPrefix(key, "segments/") {
		t.Fatalf("dump segment: %q", list)
	}
	if out := p.must("dump", "segment", u, key); strings.Count(out, "inode 2 at 0") != 1 {
		t.Errorf("dump segment %s: %q", key, out)
	}
	if err := os.WriteFile(p.path("bucket", "lease.json"), []byte("not JSON"), 0o644); err != nil {
		t.Fatal(err)
	}
	status, out, errs := p.run("dump", "lease", u)
	if status != 4 || out != "not JSON\n" || !strings.Contains(errs, "lease.json") {
		t.Errorf("dump of a damaged lease: %d %q %q", status, out, errs)
	}
}

func TestApp_Destroy_DeletesEverything(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u)
	p.write("a", random(2<<20))
	p.must("put", u, p.path("a"), "a")
	p.stdin = "no\n"
	if status, _, errs := p.run("destroy", u); status != 2 || !strings.Contains(errs, "\ncistern: \"no\" is not") {
		t.Errorf("destroy with a wrong answer: %d %q", status, errs)
	}
	p.must("check", "--data", u)
	p.stdin = u + "\n"
	if status, out, _ := p.run("destroy", u); status != 0 || !strings.Contains(out, "is deleted") {
		t.Fatalf("destroy: %d %q", status, out)
	}
	if left := p.bucketFiles(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	p.fails(2, "no volume here", "ls", u)
	p.must("format", u)
	p.must("check", u)
}

func TestApp_Status_OfABucket(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u, "--quota", "1G")
	s := decode[volumeStatus](t, p.must("status", "--json", u))
	if s.URL != u || !s.Released || s.Commit.N != 1 || s.Inodes != 1 {
		t.Errorf("%+v", s)
	}
	if out := p.must("status", u); !strings.Contains(out, "not on this machine") {
		t.Errorf("%q", out)
	}
}
