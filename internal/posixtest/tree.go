package posixtest

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// treeExerciser does the same operations on names below two directories.
type treeExerciser struct {
	t     *testing.T
	rng   *rand.Rand
	roots [2]string
	log   []string
	done  int // operations that succeeded
}

// ExerciseTree does steps random operations on names (create, mkdir, link,
// symlink, rename, exchange, unlink, rmdir, chmod, truncate) below dir and the
// same ones on the local disk. Every errno must be the same, and from time to
// time so must the whole trees: types, modes, sizes, link counts, targets and
// which names are one file. The seed decides everything.
func ExerciseTree(t *testing.T, dir string, seed uint64, steps int) {
	t.Helper()
	t.Logf("ExerciseTree(dir, %d, %d)", seed, steps)
	root := filepath.Join(dir, fmt.Sprintf("tree-%d", seed))
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(root)
	x := &treeExerciser{t: t, rng: rand.New(rand.NewPCG(seed, 2)), roots: [2]string{root, t.TempDir()}}
	for i := range steps {
		x.step()
		if i%200 == 199 || i == steps-1 {
			x.compare()
		}
	}
	if x.done < steps/10 {
		t.Fatalf("only %d of %d operations succeeded: the exercise tests nothing", x.done, steps)
	}
}

// name picks a path of up to four parts from a few names, so that paths meet.
func (x *treeExerciser) name() string {
	parts := make([]string, 1+x.rng.IntN(4))
	for i := range parts {
		parts[i] = [...]string{"a", "b", "c", "d~", "e_f"}[x.rng.IntN(5)]
	}
	return filepath.Join(parts...)
}

func (x *treeExerciser) step() {
	a, b := x.name(), x.name()
	n := x.rng.IntN(5000)
	operations := []struct {
		name string
		call func(a, b string) error
	}{
		{"create", func(a, _ string) error { return os.WriteFile(a, make([]byte, n), 0o644) }},
		{"create anew", func(a, _ string) error { return openErr(a, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR) }},
		{"mkdir", func(a, _ string) error { return unix.Mkdir(a, 0o755) }},
		{"mkdir", func(a, _ string) error { return unix.Mkdir(a, 0o755) }},
		{"mkdir all", func(a, _ string) error { return os.MkdirAll(a, 0o755) }},
		{"unlink", func(a, _ string) error { return unix.Unlink(a) }},
		{"rmdir", func(a, _ string) error { return unix.Rmdir(a) }},
		{"link", unix.Link},
		{"symlink", func(a, _ string) error { return unix.Symlink(b, a) }},
		{"rename", unix.Rename},
		{"rename", unix.Rename},
		{"no replace", func(a, b string) error {
			return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_NOREPLACE)
		}},
		{"exchange", func(a, b string) error {
			return unix.Renameat2(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.RENAME_EXCHANGE)
		}},
		{"chmod", func(a, _ string) error { return unix.Chmod(a, uint32(0o700|n%64)) }},
		{"truncate", func(a, _ string) error { return unix.Truncate(a, int64(n)) }},
		{"fifo", func(a, _ string) error { return unix.Mkfifo(a, 0o644) }},
		{"stat", func(a, _ string) error { return unix.Stat(a, new(unix.Stat_t)) }},
	}
	op := operations[x.rng.IntN(len(operations))]
	if op.name == "create" && x.isFIFO(a) {
		return // would wait for a reader
	}
	x.log = append(x.log, fmt.Sprintf("%s %s %s %d", op.name, a, b, n))
	if len(x.log) > 60 {
		x.log = x.log[1:]
	}
	var got [2]error
	for i, root := range x.roots {
		got[i] = errnoIn(op.call(filepath.Join(root, a), filepath.Join(root, b)))
	}
	if got[0] != got[1] {
		x.fail("the last one gave %v, on the local disk %v", got[0], got[1])
	}
	if got[0] == nil {
		x.done++
	}
}

// isFIFO asks the local disk.
func (x *treeExerciser) isFIFO(a string) bool {
	var st unix.Stat_t
	return unix.Stat(filepath.Join(x.roots[1], a), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFIFO
}

// errnoIn takes paths out of an error.
func errnoIn(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

func (x *treeExerciser) fail(format string, args ...any) {
	x.t.Helper()
	x.t.Fatalf("%s\nthe last operations:\n  %s", fmt.Sprintf(format, args...), strings.Join(x.log, "\n  "))
}

func (x *treeExerciser) compare() {
	x.t.Helper()
	got, want := x.describe(x.roots[0]), x.describe(x.roots[1])
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			x.fail("the trees differ:\n%s\non the local disk:\n%s", strings.Join(got[i:min(i+5, len(got))], "\n"), strings.Join(want[i:min(i+5, len(want))], "\n"))
		}
	}
}

// describe lists everything below root; inode numbers are given names.
func (x *treeExerciser) describe(root string) []string {
	x.t.Helper()
	first := map[uint64]string{}
	var lines []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if d.Type() != fs.FileMode(0) != (st.Mode&unix.S_IFMT != unix.S_IFREG) {
			return fmt.Errorf("%s is listed as %v and has mode %o", rel, d.Type(), st.Mode)
		}
		if first[st.Ino] == "" {
			first[st.Ino] = rel
		}
		line := fmt.Sprintf("%s %o links %d is %s", rel, st.Mode, st.Nlink, first[st.Ino])
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			line += fmt.Sprintf(" size %d", st.Size)
		case unix.S_IFLNK:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			line += " to " + strings.ReplaceAll(target, root, "")
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		x.fail("walk %s: %v", root, err)
	}
	slices.Sort(lines)
	return lines
}
