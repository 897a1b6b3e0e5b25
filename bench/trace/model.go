package trace

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"path"
	"sync"
)

// noiseBytes is how much noise there is; a write takes its bytes from somewhere
// in it.
const noiseBytes = 16 << 20

// file is what a file must hold.
type file struct {
	mu   sync.Mutex
	data []byte
}

// model is what must be in the root.
type model struct {
	mu    sync.Mutex
	files map[string]*file
	dirs  map[string]bool
	noise []byte
	seed  uint64
}

func newModel(seed uint64) *model {
	m := &model{files: map[string]*file{}, dirs: map[string]bool{"": true}, noise: make([]byte, noiseBytes), seed: seed}
	_, _ = rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), 1}).Read(m.noise) // never fails
	return m
}

// content is what the n-th operation of a phase writes: another piece of the
// noise for each.
func (m *model) content(phase string, n int, length int64) []byte {
	h := m.seed ^ 0xcbf29ce484222325
	for _, c := range []byte(fmt.Sprint(phase, n)) {
		h = (h ^ uint64(c)) * 0x100000001b3
	}
	begin := int64(h % uint64(noiseBytes-length))
	return m.noise[begin : begin+length]
}

// file returns the file of a path, made when it is missing and asked for.
func (m *model) file(name string, create bool) *file {
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.files[name]
	if f == nil && create {
		f = &file{}
		m.files[name] = f
	}
	return f
}

func (m *model) mkdir(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dirs[name] = true
}

// remove forgets a name; who has the file open keeps it.
func (m *model) remove(name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.files, name)
	delete(m.dirs, name)
}

func (m *model) rename(from, to string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.files[from]; f != nil {
		m.files[to] = f
	}
	delete(m.files, from)
}

// children are the names in a folder.
func (m *model) children(dir string) map[string]bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	names := map[string]bool{}
	in := func(name string) bool { return name != "" && path.Dir(name) == path.Clean(dir) }
	for name := range m.files {
		if in(name) {
			names[path.Base(name)] = true
		}
	}
	for name := range m.dirs {
		if in(name) {
			names[path.Base(name)] = true
		}
	}
	return names
}

// write puts bytes at an offset, or at the end for a negative one.
func (f *file) write(p []byte, offset int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if offset < 0 {
		offset = int64(len(f.data))
	}
	if grow := offset + int64(len(p)) - int64(len(f.data)); grow > 0 {
		f.data = append(f.data, make([]byte, grow)...)
	}
	copy(f.data[offset:], p)
}

func (f *file) truncate() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.data = nil
}

func (f *file) size() int64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	return int64(len(f.data))
}

// compare says where bytes read at an offset differ from what must be there.
func (f *file) compare(p []byte, offset int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if offset+int64(len(p)) > int64(len(f.data)) {
		return fmt.Errorf("%d bytes at %d go beyond the end at %d", len(p), offset, len(f.data))
	}
	want := f.data[offset : offset+int64(len(p))]
	if bytes.Equal(p, want) {
		return nil
	}
	for i := range p {
		if p[i] != want[i] {
			return fmt.Errorf("the byte at %d is %#02x instead of %#02x", offset+int64(i), p[i], want[i])
		}
	}
	return nil
}
