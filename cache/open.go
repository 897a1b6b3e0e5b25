package cache

import (
	"fmt"
	"path/filepath"

	"github.com/cisternfs/cistern/internal/vfs"
)

const shards = 256

// Open opens the cache in dir, which it makes. No byte of the files that are
// there is believed: every block is unknown until Verify. Nothing is evicted
// before the first write; pin what must stay before that. No file is opened. When
// there are many, and the cache was closed, Open returns before it has looked at
// them all (scan.go).
func Open(fsys vfs.FS, dir string, o Options) (*Cache, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Cache{
		fs: fsys, dir: dir, log: o.Logger,
		pool: newPool(o.LimitBytes), fds: newDescriptors(o.MaxOpenFiles),
		files: make(map[uint64]*File), scanEnd: make(chan struct{}), scanLater: o.ScanLater,
	}
	if o.KeepFree > 0 {
		c.pool.room = func() (int64, error) {
			free, err := fsys.Free(dir)
			if err != nil {
				return 0, fmt.Errorf("look at the disk of cache directory %s: %w", dir, err)
			}
			return free - o.KeepFree, nil
		}
	}
	c.buffers.New = func() any { return new([BlockSize]byte) }
	left, err := c.makeDirs()
	if err != nil {
		return nil, err
	}
	if err := c.startScan(left); err != nil {
		return nil, err
	}
	return c, nil
}

// makeDirs makes the directories that are missing, durably, so that a new
// file's name needs no more than a sync of its own directory. It takes what Close
// left, which is true until something is written.
func (c *Cache) makeDirs() (left closing, err error) {
	if err := c.fs.MkdirAll(c.dir, 0o700); err != nil {
		return left, fmt.Errorf("make cache directory %s: %w", c.dir, err)
	}
	if err := c.fs.SyncDir(filepath.Dir(c.dir)); err != nil {
		return left, fmt.Errorf("sync the parent of cache directory %s: %w", c.dir, err)
	}
	have, err := c.fs.ReadDir(c.dir)
	if err != nil {
		return left, fmt.Errorf("list cache directory %s: %w", c.dir, err)
	}
	there := make(map[string]bool, len(have))
	for _, e := range have {
		there[e.Name()] = e.IsDir()
	}
	for i := range uint64(shards) {
		if p := c.shard(i); !there[filepath.Base(p)] {
			if err := c.fs.MkdirAll(p, 0o700); err != nil {
				return left, fmt.Errorf("make cache directory %s: %w", p, err)
			}
		}
	}
	if _, ok := there[closingName]; ok {
		if left, err = c.takeClosing(); err != nil {
			return left, err
		}
	}
	if err := c.fs.SyncDir(c.dir); err != nil {
		return left, fmt.Errorf("sync cache directory %s: %w", c.dir, err)
	}
	return left, nil
}
