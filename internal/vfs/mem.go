package vfs

import (
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// CrashMode says how Mem.Crash ends the machine.
type CrashMode int

const (
	// KillProcess is kill -9: everything handed over survives, and what was
	// unsynced still is.
	KillProcess CrashMode = iota
	// PowerLoss keeps what was synced; each unsynced change is there, not there
	// or torn.
	PowerLoss
)

// Mem is a disk in memory that knows what of it is durable. Names are kept as
// filepath.Clean makes them; "/" and "." exist and are the same directory.
// Capacity counts 4 KiB pages of file content; names cost nothing.
type Mem struct {
	disk *memDisk

	mu      sync.Mutex // guards the fields below and memNode.handles and linked; taken before memNode.mu
	root    *memDir
	pending []dirChange // changes of directories that are not durable, in order
	locks   map[string]bool
}

// memDir is a directory: its live entries and those that a power loss keeps.
type memDir struct {
	live, durable map[string]memEntry
}

// memEntry is a file or a directory; the other field is nil.
type memEntry struct {
	file *memNode
	dir  *memDir
}

// dirChange is one atomic change of names: an entry removed from a name, set at
// a name, or both (a rename).
type dirChange struct {
	from     *memDir
	fromName string
	to       *memDir
	toName   string
	entry    memEntry
}

// NewMem returns an empty disk without a limit.
func NewMem() *Mem {
	d := &memDisk{tokens: new(atomic.Uint64), zero: new(page)}
	d.capacity.Store(-1)
	return &Mem{disk: d, root: newMemDir(), locks: map[string]bool{}}
}

func newMemDir() *memDir {
	return &memDir{live: map[string]memEntry{}, durable: map[string]memEntry{}}
}

// SetCapacity limits the disk to so many bytes, rounded down to pages; negative
// means without limit. What is there stays when it is more.
func (m *Mem) SetCapacity(bytes int64) {
	if bytes < 0 {
		m.disk.capacity.Store(-1)
		return
	}
	m.disk.capacity.Store(bytes / pageSize)
}

// Used returns the bytes that files occupy, unlinked open ones included.
func (m *Mem) Used() int64 { return m.disk.used.Load() * pageSize }

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// split returns the elements of a path; none for the root.
func split(name string) []string {
	name = strings.Trim(filepath.Clean(name), "/")
	if name == "" || name == "." {
		return nil
	}
	return strings.Split(name, "/")
}

// lookup finds an entry; m.mu is held.
func (m *Mem) lookup(elems []string) (memEntry, error) {
	e := memEntry{dir: m.root}
	for _, elem := range elems {
		if e.dir == nil {
			return memEntry{}, syscall.ENOTDIR
		}
		next, ok := e.dir.live[elem]
		if !ok {
			return memEntry{}, syscall.ENOENT
		}
		e = next
	}
	return e, nil
}

// parent returns the directory that holds the name, and its last element.
func (m *Mem) parent(name string) (*memDir, string, error) {
	elems := split(name)
	if len(elems) == 0 {
		return nil, "", syscall.EBUSY
	}
	e, err := m.lookup(elems[:len(elems)-1])
	if err != nil {
		return nil, "", err
	}
	if e.dir == nil {
		return nil, "", syscall.ENOTDIR
	}
	return e.dir, elems[len(elems)-1], nil
}

func pathError(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// change makes a change of names, live and pending.
func (m *Mem) change(ch dirChange) {
	if ch.from != nil {
		delete(ch.from.live, ch.fromName)
	}
	if ch.to != nil {
		ch.to.live[ch.toName] = ch.entry
	}
	m.pending = append(m.pending, ch)
}

// OpenFile implements FS.
func (m *Mem) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.open(name, flag)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	n.mu.Lock()
	n.handles++
	n.mu.Unlock()
	if flag&os.O_TRUNC != 0 {
		n.truncate(0)
	}
	return &memFile{fs: m, node: n, name: name, writable: flag&(os.O_RDWR|os.O_WRONLY) != 0}, nil
}

func (m *Mem) open(name string, flag int) (*memNode, error) {
	dir, last, err := m.parent(name)
	if err != nil {
		return nil, err
	}
	e, ok := dir.live[last]
	switch {
	case ok && flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
		return nil, syscall.EEXIST
	case ok && e.dir != nil:
		return nil, syscall.EISDIR
	case ok:
		return e.file, nil
	case flag&os.O_CREATE == 0:
		return nil, syscall.ENOENT
	}
	n := newNode(m.disk)
	m.change(dirChange{to: dir, toName: last, entry: memEntry{file: n}})
	return n, nil
}

// MkdirAll implements FS.
func (m *Mem) MkdirAll(name string, perm fs.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := m.root
	for _, elem := range split(name) {
		e, ok := d.live[elem]
		if !ok {
			e = memEntry{dir: newMemDir()}
			m.change(dirChange{to: d, toName: elem, entry: e})
		}
		if e.dir == nil {
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
		d = e.dir
	}
	return nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, last, err := m.parent(name)
	if err != nil {
		return pathError("remove", name, err)
	}
	e, ok := dir.live[last]
	if !ok {
		return pathError("remove", name, syscall.ENOENT)
	}
	if e.dir != nil && len(e.dir.live) > 0 {
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	m.unlink(dir, last, e)
	return nil
}

func (m *Mem) unlink(dir *memDir, name string, e memEntry) {
	m.change(dirChange{from: dir, fromName: name, entry: e})
	e.unlinked()
}

func (e memEntry) unlinked() {
	if e.file == nil {
		return
	}
	e.file.mu.Lock()
	defer e.file.mu.Unlock()
	e.file.linked = false
	e.file.release()
}

// RemoveAll implements FS.
func (m *Mem) RemoveAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, last, err := m.parent(name)
	if err == syscall.ENOENT {
		return nil
	}
	if err != nil {
		return pathError("remove", name, err)
	}
	if e, ok := dir.live[last]; ok {
		m.removeTree(dir, last, e)
	}
	return nil
}

func (m *Mem) removeTree(dir *memDir, name string, e memEntry) {
	if e.dir != nil {
		for _, child := range sortedKeys(e.dir.live) {
			m.removeTree(e.dir, child, e.dir.live[child])
		}
	}
	m.unlink(dir, name, e)
}

// Rename implements FS.
func (m *Mem) Rename(oldname, newname string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.rename(oldname, newname); err != nil {
		return &os.LinkError{Op: "rename", Old: oldname, New: newname, Err: err}
	}
	return nil
}

func (m *Mem) rename(oldname, newname string) error {
	from, fromName, err := m.parent(oldname)
	if err != nil {
		return err
	}
	to, toName, err := m.parent(newname)
	if err != nil {
		return err
	}
	e, ok := from.live[fromName]
	if !ok {
		return syscall.ENOENT
	}
	replaced, exists := to.live[toName]
	switch {
	case exists && replaced == e:
		return nil
	case exists && replaced.dir != nil && e.dir == nil:
		return syscall.EISDIR
	case exists && replaced.dir == nil && e.dir != nil:
		return syscall.ENOTDIR
	case exists && replaced.dir != nil && len(replaced.dir.live) > 0:
		return syscall.ENOTEMPTY
	case e.dir != nil && strings.HasPrefix(filepath.Clean(newname)+"/", filepath.Clean(oldname)+"/"):
		return syscall.EINVAL
	}
	m.change(dirChange{from: from, fromName: fromName, to: to, toName: toName, entry: e})
	if exists {
		replaced.unlinked()
	}
	return nil
}

// ReadDir implements FS.
func (m *Mem) ReadDir(name string) ([]fs.DirEntry, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.lookup(split(name))
	if err == nil && e.dir == nil {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	var list []fs.DirEntry
	for _, child := range sortedKeys(e.dir.live) {
		list = append(list, fs.FileInfoToDirEntry(e.dir.live[child].info(child)))
	}
	return list, nil
}

// Stat implements FS.
func (m *Mem) Stat(name string) (fs.FileInfo, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.lookup(split(name))
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return e.info(filepath.Base(name)), nil
}

// SyncDir implements FS. Of a rename between two directories either one's sync
// makes the whole durable.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	e, err := m.lookup(split(name))
	if err == nil && e.dir == nil {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return pathError("sync", name, err)
	}
	var rest []dirChange
	for _, ch := range m.pending {
		if ch.from != e.dir && ch.to != e.dir {
			rest = append(rest, ch)
			continue
		}
		if ch.from != nil && ch.from != e.dir { // an earlier name must not come back
			rest = slices.DeleteFunc(rest, func(p dirChange) bool { return p.entry == ch.entry })
		}
		ch.apply()
	}
	m.pending = rest
	return nil
}

// Lock implements FS. A crash frees all locks.
func (m *Mem) Lock(name string) (io.Closer, error) {
	f, err := m.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	key := filepath.Clean(name)
	held := m.locks[key]
	m.locks[key] = true
	m.mu.Unlock()
	if held {
		f.Close() // nothing was written to it
		return nil, fmt.Errorf("lock %s: %w", name, ErrLocked)
	}
	return &memLock{fs: m, key: key, file: f}, nil
}

// Free implements FS.
func (m *Mem) Free(dir string) (int64, error) {
	if _, err := m.Stat(dir); err != nil {
		return 0, err
	}
	limit := m.disk.capacity.Load()
	if limit < 0 {
		limit = math.MaxInt64 / pageSize / 2
	}
	return max(0, limit-m.disk.used.Load()) * pageSize, nil
}

type memLock struct {
	fs   *Mem
	key  string
	file File
	once sync.Once
}

func (l *memLock) Close() error {
	l.once.Do(func() {
		l.fs.mu.Lock()
		delete(l.fs.locks, l.key)
		l.fs.mu.Unlock()
	})
	return l.file.Close()
}

// memInfo describes an entry; times and permissions are not kept.
type memInfo struct {
	name string
	size int64
	mode fs.FileMode
}

func (e memEntry) info(name string) fs.FileInfo {
	if e.dir != nil {
		return memInfo{name: name, mode: fs.ModeDir | 0o700}
	}
	e.file.mu.RLock()
	defer e.file.mu.RUnlock()
	return memInfo{name: name, size: e.file.size, mode: 0o600}
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) Mode() fs.FileMode  { return i.mode }
func (i memInfo) ModTime() time.Time { return time.Time{} }
func (i memInfo) IsDir() bool        { return i.mode.IsDir() }
func (i memInfo) Sys() any           { return nil }
