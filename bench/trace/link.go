package trace

import (
	"fmt"
	"path"
	"slices"
)

// linker finds what an operation has to wait for within its own process.
type linker struct {
	touched map[string]int   // a path or descriptor: the last operation on it
	changed map[string]int   // a path: the last one that made, moved or removed it
	below   map[string][]int // a folder: all on anything below it
}

func newLinker() *linker {
	return &linker{touched: map[string]int{}, changed: map[string]int{}, below: map[string][]int{}}
}

// link returns the operations that the n-th one waits for, and notes it.
func (l *linker) link(n int, o *Op) []int {
	var after []int
	add := func(i int) {
		if !slices.Contains(after, i) {
			after = append(after, i)
		}
	}
	wait := func(m map[string]int, key string) {
		if i, ok := m[key]; ok {
			add(i)
		}
	}
	paths := []string{o.Path}
	if o.Path2 != "" {
		paths = append(paths, o.Path2)
	}
	keys := paths
	if fd := o.descriptor(); fd >= 0 {
		keys = append(slices.Clone(paths), fmt.Sprintf("#%d", fd))
	}
	for _, key := range keys {
		wait(l.touched, key)
	}
	for _, p := range paths {
		if o.Kind == "rmdir" || o.Kind == "getdents64" || o.Kind == "rename" {
			for _, i := range l.below[p] {
				add(i)
			}
		}
		for _, above := range folders(p) {
			wait(l.changed, above)
		}
	}
	for _, key := range keys {
		l.touched[key] = n
	}
	for _, p := range paths {
		if o.changesNames() {
			l.changed[p] = n
		}
		for _, above := range folders(p) {
			l.below[above] = append(l.below[above], n)
		}
	}
	return after
}

// folders are the folders above a path, below the root.
func folders(name string) []string {
	var all []string
	for dir := path.Dir(name); dir != "." && dir != "/"; dir = path.Dir(dir) {
		all = append(all, dir)
	}
	return all
}

// descriptor is the one that an operation works on or opens; -1 without any.
func (o *Op) descriptor() int {
	if o.Kind == "open" && o.Errno == "" {
		return int(o.Result)
	}
	if o.FD > 0 {
		return o.FD
	}
	return -1
}

func (o *Op) changesNames() bool {
	switch o.Kind {
	case "mkdir", "rmdir", "unlink", "rename":
		return true
	case "open":
		return o.has("O_CREAT")
	}
	return false
}
