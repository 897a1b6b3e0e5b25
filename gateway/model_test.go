package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
)

// model is a plain file system in memory: what the engine must equal. States
// share what did not change, so that one can be kept for every operation.
type model struct {
	nodes map[InodeID]*mnode
	quota int64
}

type mnode struct {
	mode   uint32
	uid    uint32
	nlink  int
	data   *chunks // regular files
	size   int64
	staged int64 // end of staged bytes, 0: none
	names  map[string]InodeID
	target string
	xattrs map[string]string
}

// chunks are a file's bytes by piece; missing pieces are zeros. Immutable.
type chunks struct{ m map[int64][]byte }

const chunkSize = 4096

func newModel() *model {
	return &model{nodes: map[InodeID]*mnode{1: {mode: modeDir | 0o755, nlink: 2, names: map[string]InodeID{}}}}
}

// next returns a state that shares everything with m.
func (m *model) next() *model { return &model{nodes: maps.Clone(m.nodes), quota: m.quota} }

// edit gives a node of m that may be changed.
func (m *model) edit(ino InodeID) *mnode {
	n := *m.nodes[ino]
	n.names = maps.Clone(n.names)
	n.xattrs = maps.Clone(n.xattrs)
	m.nodes[ino] = &n
	return &n
}

func (c *chunks) write(p []byte, off int64) *chunks {
	out := &chunks{m: map[int64][]byte{}}
	if c != nil {
		out.m = maps.Clone(c.m)
	}
	for len(p) > 0 {
		i, in := off/chunkSize, off%chunkSize
		n := min(int64(len(p)), chunkSize-in)
		piece := make([]byte, chunkSize)
		copy(piece, out.m[i])
		copy(piece[in:], p[:n])
		out.m[i] = piece
		p, off = p[n:], off+n
	}
	return out
}

func (c *chunks) read(p []byte, off int64) {
	clear(p)
	if c == nil {
		return
	}
	for at := int64(0); at < int64(len(p)); {
		i, in := (off+at)/chunkSize, (off+at)%chunkSize
		n := min(int64(len(p))-at, chunkSize-in)
		if piece := c.m[i]; piece != nil {
			copy(p[at:at+n], piece[in:])
		}
		at += n
	}
}

// zero makes [off, end) zeros.
func (c *chunks) zero(off, end int64) *chunks {
	if c == nil {
		return nil
	}
	out := &chunks{m: map[int64][]byte{}}
	for i, piece := range c.m {
		lo, hi := max(off, i*chunkSize), min(end, (i+1)*chunkSize)
		if lo >= hi {
			out.m[i] = piece
			continue
		}
		if hi-lo == chunkSize {
			continue
		}
		cut := slices.Clone(piece)
		clear(cut[lo-i*chunkSize : hi-i*chunkSize])
		out.m[i] = cut
	}
	return out
}

func (n *mnode) dir() bool     { return n.mode&modeType == modeDir }
func (n *mnode) regular() bool { return n.mode&modeType == modeRegular }

func (n *mnode) bytes() []byte {
	p := make([]byte, n.size)
	n.data.read(p, 0)
	return p
}

// dropStaged forgets staged bytes when the size is about to change.
func (n *mnode) dropStaged() {
	if n.staged > 0 {
		n.data = n.data.zero(n.size, wholeFile)
		n.staged = 0
	}
}

func (m *model) lookup(parent InodeID, name string) (InodeID, error) {
	p := m.nodes[parent]
	if p == nil {
		return 0, ErrNotExist
	}
	if !p.dir() {
		return 0, ErrNotDir
	}
	ino, ok := p.names[name]
	if !ok {
		return 0, ErrNotExist
	}
	return ino, nil
}

func (m *model) create(parent InodeID, name string, ino InodeID, mode uint32, target string) error {
	if _, err := m.lookup(parent, name); err == nil {
		return ErrExist
	} else if !errors.Is(err, ErrNotExist) {
		return err
	}
	if p := m.nodes[parent]; p == nil || p.nlink == 0 {
		return ErrNotExist
	}
	n := &mnode{mode: mode, nlink: 1, target: target}
	if n.dir() {
		n.nlink, n.names = 2, map[string]InodeID{}
	}
	m.nodes[ino] = n
	p := m.edit(parent)
	p.names[name] = ino
	if n.dir() {
		p.nlink++
	}
	return nil
}

func (m *model) link(ino, parent InodeID, name string) error {
	n := m.nodes[ino]
	if n == nil {
		return ErrNotExist
	}
	if n.dir() {
		return ErrNotPermit
	}
	if _, err := m.lookup(parent, name); err == nil {
		return ErrExist
	} else if !errors.Is(err, ErrNotExist) {
		return err
	}
	if p := m.nodes[parent]; p == nil || p.nlink == 0 {
		return ErrNotExist
	}
	m.edit(ino).nlink++
	m.edit(parent).names[name] = ino
	return nil
}

func (m *model) unlink(parent InodeID, name string, dir bool) error {
	ino, err := m.lookup(parent, name)
	if err != nil {
		return err
	}
	if err := m.mayGo(ino, dir); err != nil {
		return err
	}
	p := m.edit(parent)
	delete(p.names, name)
	if dir {
		p.nlink--
	}
	m.drop(ino)
	return nil
}

func (m *model) mayGo(ino InodeID, dir bool) error {
	n := m.nodes[ino]
	switch {
	case dir && !n.dir():
		return ErrNotDir
	case !dir && n.dir():
		return ErrIsDir
	case n.dir() && len(n.names) > 0:
		return ErrNotEmpty
	}
	return nil
}

// drop takes a link; an inode without any stays for those who hold it.
func (m *model) drop(ino InodeID) {
	n := m.edit(ino)
	if n.dir() {
		n.nlink = 0
	} else {
		n.nlink--
	}
}

// under says whether directory ino is, or lies below, top.
func (m *model) under(ino, top InodeID) bool {
	if ino == top {
		return true
	}
	for _, child := range m.nodes[top].names {
		if m.nodes[child].dir() && m.under(ino, child) {
			return true
		}
	}
	return false
}

func (m *model) rename(p1 InodeID, n1 string, p2 InodeID, n2 string, flags uint32) error {
	if m.nodes[p2] == nil || m.nodes[p2].nlink == 0 {
		return ErrNotExist
	}
	ino, err := m.lookup(p1, n1)
	if err != nil {
		return err
	}
	n := m.nodes[ino]
	if n.dir() && m.under(p2, ino) {
		return ErrInvalid
	}
	old, err := m.lookup(p2, n2)
	missing := errors.Is(err, ErrNotExist)
	if err != nil && !missing {
		return err
	}
	if flags&RenameExchange != 0 {
		if missing {
			return ErrNotExist
		}
		if m.nodes[old].dir() && m.under(p1, old) {
			return ErrInvalid
		}
		if old == ino {
			return nil
		}
		m.edit(p1).names[n1] = old
		m.edit(p2).names[n2] = ino
		m.moveDir(n.dir(), p1, p2)
		m.moveDir(m.nodes[old].dir(), p2, p1)
		return nil
	}
	if !missing {
		if flags&RenameNoReplace != 0 {
			return ErrExist
		}
		if old == ino {
			return nil
		}
		if err := m.mayGo(old, n.dir()); err != nil {
			return err
		}
		if m.nodes[old].dir() {
			m.edit(p2).nlink--
		}
		m.drop(old)
	}
	delete(m.edit(p1).names, n1)
	m.edit(p2).names[n2] = ino
	m.moveDir(n.dir(), p1, p2)
	return nil
}

func (m *model) moveDir(dir bool, from, to InodeID) {
	if dir {
		m.edit(from).nlink--
		m.edit(to).nlink++
	}
}

func (m *model) write(ino InodeID, p []byte, off int64) {
	n := m.edit(ino)
	if off+int64(len(p)) > n.size {
		n.dropStaged()
	}
	n.data = n.data.write(p, off)
	n.size = max(n.size, off+int64(len(p)))
}

func (m *model) stage(ino InodeID, p []byte, off int64) error {
	n := m.edit(ino)
	if off < n.size {
		return ErrInvalid
	}
	n.data = n.data.write(p, off)
	n.staged = max(n.staged, off+int64(len(p)))
	return nil
}

func (m *model) publish(ino InodeID, size int64) error {
	n := m.edit(ino)
	if size < n.size || size > max(n.staged, n.size) {
		return ErrInvalid
	}
	n.data = n.data.zero(size, wholeFile)
	n.size, n.staged = size, 0
	return nil
}

func (m *model) truncate(ino InodeID, size int64) {
	n := m.edit(ino)
	if size != n.size {
		n.dropStaged()
	}
	if size < n.size {
		n.data = n.data.zero(size, wholeFile)
	}
	n.size = size
}

func (m *model) punch(ino InodeID, off, end, size int64) {
	n := m.edit(ino)
	if size > n.size {
		n.dropStaged()
	}
	n.data = n.data.zero(off, min(end, max(n.size, size)))
	n.size = max(n.size, size)
}

// treeReader is what the volume and a view of the bucket have in common.
type treeReader interface {
	inodeOf(ino InodeID) (*Inode, error)
	namesOf(ino InodeID) (map[string]InodeID, error)
	bytesOf(n *Inode) ([]byte, error)
}

// diff compares a whole tree with the model; "" when they are equal.
func (m *model) diff(r treeReader) string {
	seen := map[InodeID]bool{}
	return m.diffNode(r, 1, "/", seen)
}

func (m *model) diffNode(r treeReader, ino InodeID, path string, seen map[InodeID]bool) string {
	want := m.nodes[ino]
	got, err := r.inodeOf(ino)
	if err != nil {
		return fmt.Sprintf("%s: %v", path, err)
	}
	if got.Mode != want.mode || int(got.Nlink) != want.nlink || got.UID != want.uid {
		return fmt.Sprintf("%s: mode %o nlink %d uid %d, want %o %d %d", path, got.Mode, got.Nlink, got.UID, want.mode, want.nlink, want.uid)
	}
	if len(got.Xattrs) != len(want.xattrs) {
		return fmt.Sprintf("%s: %d xattrs, want %d", path, len(got.Xattrs), len(want.xattrs))
	}
	for _, x := range got.Xattrs {
		if v, ok := want.xattrs[x.Name]; !ok || v != string(x.Value) {
			return fmt.Sprintf("%s: xattr %s is %q, want %q", path, x.Name, x.Value, v)
		}
	}
	if seen[ino] {
		return ""
	}
	seen[ino] = true
	switch {
	case want.regular():
		if got.Size != want.size || got.Staged != want.staged {
			return fmt.Sprintf("%s: size %d staged %d, want %d %d", path, got.Size, got.Staged, want.size, want.staged)
		}
		p, err := r.bytesOf(got)
		if err != nil {
			return fmt.Sprintf("%s: read: %v", path, err)
		}
		if w := want.bytes(); !bytes.Equal(p, w) {
			i := 0
			for i < len(p) && i < len(w) && p[i] == w[i] {
				i++
			}
			return fmt.Sprintf("%s (inode %d): %d bytes, want %d; first difference at %d", path, ino, len(p), len(w), i)
		}
	case want.dir():
		names, err := r.namesOf(ino)
		if err != nil {
			return fmt.Sprintf("%s: %v", path, err)
		}
		if !maps.Equal(names, want.names) {
			return fmt.Sprintf("%s: names %v, want %v", path, names, want.names)
		}
		list := slices.Collect(maps.Keys(names))
		sort.Strings(list)
		for _, name := range list {
			if d := m.diffNode(r, names[name], path+name+"/", seen); d != "" {
				return d
			}
		}
	default:
		if string(got.Target) != want.target {
			return fmt.Sprintf("%s: target %q, want %q", path, got.Target, want.target)
		}
	}
	return ""
}
