package posixtest

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

func dirBehaviours() []behaviour {
	return []behaviour{
		{"10000 names of 1 to 255 bytes, and going on from any offset", manyNames},
		{"listing while names go and come", listWhileChanging},
		{"renaming what is listed meets every file once", renameWhatIsListed},
		{"dot and dot dot", func(e *env) {
			d := e.mkdir("d", 0o755)
			names, _ := e.list(e.open(d, unix.O_DIRECTORY), 4096)
			slices.Sort(names)
			e.equal("names", fmt.Sprint(names), "[. ..]")
			e.equal("dot", e.stat(d+"/.").Ino, e.stat(d).Ino)
			e.equal("dot dot", e.stat(d+"/..").Ino, e.stat(e.dir).Ino)
		}},
		{"a listing begun before a change, rewound, shows the change", func(e *env) {
			d := e.mkdir("d", 0o755)
			e.file("d/a", 0o644, "")
			fd := e.open(d, unix.O_DIRECTORY)
			for i, change := range []func(){
				func() {},
				func() { e.file("d/b", 0o644, "") },
				func() { e.must(unix.Unlink(d + "/a")) },
				func() { e.must(unix.Rename(d+"/b", d+"/c")) },
				func() { e.mkdir("d/e", 0o755) },
				func() { e.must(unix.Rename(d+"/c", e.path("c"))) },
				func() { e.must(unix.Link(e.path("c"), d+"/g")) },
			} {
				change()
				_, err := unix.Seek(fd, 0, 0)
				e.must(err)
				names, _ := e.list(fd, 4096)
				slices.Sort(names)
				want := [...]string{"a", "a b", "b", "c", "c e", "e", "e g"}[i]
				e.equal("names", strings.Join(names, " "), ". .. "+want)
			}
		}},
		{"types in a listing", func(e *env) {
			e.file("file", 0o644, "")
			e.mkdir("dir", 0o755)
			e.symlink("t", "link")
			e.must(unix.Mkfifo(e.path("fifo"), 0o644))
			entries, err := os.ReadDir(e.dir)
			e.must(err)
			for _, d := range entries {
				info, err := d.Info()
				e.must(err)
				e.equal(d.Name(), d.Type(), info.Mode().Type())
			}
			e.equal("entries", len(entries), 4)
		}},
		{"fsync of a directory", func(e *env) {
			d := e.mkdir("d", 0o755)
			e.file("d/f", 0o644, "")
			e.must(unix.Fsync(e.open(d, unix.O_DIRECTORY|unix.O_RDONLY)))
			e.must(unix.Fdatasync(e.open(d, unix.O_DIRECTORY|unix.O_RDONLY)))
		}},
	}
}

func manyNames(e *env) {
	const count = 10000
	want := make([]string, 0, count+2)
	for i := range count {
		name := fmt.Sprintf("%d", i)
		name += strings.Repeat("x", max(0, i%255+1-len(name)))
		want = append(want, name)
		fd, err := unix.Open(e.path(name), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY, 0o644)
		e.must(err)
		unix.Close(fd)
	}
	want = append(want, ".", "..")
	slices.Sort(want)
	fd := e.open(e.dir, unix.O_DIRECTORY)
	first, offs := e.list(fd, 32768)
	sorted := slices.Sorted(slices.Values(first))
	if !slices.Equal(sorted, want) {
		e.Fatalf("listed %d names, want the %d that are there", len(sorted), len(want))
	}
	for i := 0; i < len(first); i += 997 {
		_, err := unix.Seek(fd, offs[i], 0)
		e.must(err)
		rest, _ := e.list(fd, 700+i)
		if !slices.Equal(rest, first[i+1:]) {
			e.Fatalf("from the offset after name %d: %d names, want %d", i, len(rest), len(first)-i-1)
		}
	}
}

// listWhileChanging deletes what was listed and adds names between two reads:
// what stays from beginning to end comes exactly once.
func listWhileChanging(e *env) {
	const count = 2000
	for i := range count {
		e.file(fmt.Sprintf("stay%04d", i), 0o644, "")
		e.file(fmt.Sprintf("go%04d", i), 0o644, "")
	}
	fd := e.open(e.dir, unix.O_DIRECTORY)
	seen := map[string]int{}
	buf := make([]byte, 2048)
	for round := 0; ; round++ {
		n, err := unix.Getdents(fd, buf)
		e.must(err)
		if n == 0 {
			break
		}
		for b := buf[:n]; len(b) > 0; {
			name, _, size := direntName(b)
			b = b[size:]
			seen[name]++
			if strings.HasPrefix(name, "go") {
				e.must(unix.Unlink(e.path(name)))
			}
		}
		if round < 500 {
			e.file(fmt.Sprintf("new%04d", round), 0o644, "")
		}
	}
	for name, times := range seen {
		if times != 1 {
			e.Errorf("%s was listed %d times", name, times)
		}
	}
	for i := range count {
		for _, kind := range []string{"stay", "go"} {
			if name := fmt.Sprintf("%s%04d", kind, i); seen[name] == 0 {
				e.Fatalf("%s was left out", name)
			}
		}
	}
}

// renameWhatIsListed is what a script does that gives every file of a directory
// a new name: it must not meet the new names without end.
func renameWhatIsListed(e *env) {
	const files = 64
	d := e.mkdir("d", 0o755)
	for i := range files {
		e.file(fmt.Sprintf("d/%d", i), 0o644, "")
	}
	fd := e.open(d, unix.O_DIRECTORY)
	met := 0
	for buf := make([]byte, 4096); met <= 2*files; {
		n, err := unix.Getdents(fd, buf)
		e.must(err)
		if n == 0 {
			break
		}
		for b := buf[:n]; len(b) > 0; {
			name, _, size := direntName(b)
			b = b[size:]
			if name == "." || name == ".." {
				continue
			}
			met++
			e.must(unix.Rename(d+"/"+name, d+"/"+name+".old"))
		}
	}
	e.equal("files met", met, files)
}
