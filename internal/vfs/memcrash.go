package vfs

import (
	"maps"
	"math/rand"
)

// Crash returns the disk as the next process finds it. The old Mem and its open
// files stay usable and share nothing with the new one that either could see.
// Equal seeds and equal histories give equal disks.
func (m *Mem) Crash(rng *rand.Rand, mode CrashMode) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	d := &memDisk{tokens: m.disk.tokens, zero: m.disk.zero}
	d.capacity.Store(m.disk.capacity.Load())
	c := &memCopier{disk: d, files: map[*memNode]*memNode{}, dirs: map[*memDir]*memDir{}}
	next := &Mem{disk: d, root: c.dir(m.root), locks: map[string]bool{}}
	for _, ch := range m.pending {
		next.pending = append(next.pending, dirChange{c.dir(ch.from), ch.fromName, c.dir(ch.to), ch.toName, c.entry(ch.entry)})
	}
	if mode == PowerLoss {
		next.losePower(rng)
	}
	next.settle(next.root, "", func(_ string, n *memNode) {
		if mode == PowerLoss {
			n.losePower(rng)
		}
		d.used.Add(int64(len(n.pages)))
		n.linked = true
	})
	return next
}

// losePower decides which pending changes of names the disk has.
func (m *Mem) losePower(rng *rand.Rand) {
	style := rng.Intn(4) // all kept, all dropped, a prefix, each by itself
	prefix := rng.Intn(len(m.pending) + 1)
	for i, ch := range m.pending {
		if style == 0 || style == 2 && i < prefix || style == 3 && rng.Intn(2) == 0 {
			ch.apply()
		}
	}
	m.pending = nil
}

// settle walks the live files in order of their names. After a power loss the
// live entries are first made those that were durable.
func (m *Mem) settle(d *memDir, path string, fn func(string, *memNode)) {
	if m.pending == nil {
		d.live = maps.Clone(d.durable)
	}
	for _, name := range sortedKeys(d.live) {
		if e := d.live[name]; e.dir != nil {
			m.settle(e.dir, path+"/"+name, fn)
		} else {
			fn(path+"/"+name, e.file)
		}
	}
}

// apply makes the change durable.
func (ch dirChange) apply() {
	if ch.from != nil && ch.from.durable[ch.fromName] == ch.entry {
		delete(ch.from.durable, ch.fromName)
	}
	if ch.to != nil {
		ch.to.durable[ch.toName] = ch.entry
	}
}

// memCopier maps the files and directories of a disk to their copies.
type memCopier struct {
	disk  *memDisk
	files map[*memNode]*memNode
	dirs  map[*memDir]*memDir
}

func (c *memCopier) entry(e memEntry) memEntry {
	if e.dir != nil {
		return memEntry{dir: c.dir(e.dir)}
	}
	if c.files[e.file] == nil {
		c.files[e.file] = e.file.clone(c.disk)
	}
	return memEntry{file: c.files[e.file]}
}

func (c *memCopier) dir(d *memDir) *memDir {
	if d == nil {
		return nil
	}
	if n := c.dirs[d]; n != nil {
		return n
	}
	n := newMemDir()
	c.dirs[d] = n
	for _, name := range sortedKeys(d.live) {
		n.live[name] = c.entry(d.live[name])
	}
	for _, name := range sortedKeys(d.durable) {
		n.durable[name] = c.entry(d.durable[name])
	}
	return n
}
