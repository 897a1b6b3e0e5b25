package cache

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"

	"github.com/cisternfs/cistern/internal/vfs"
)

const (
	shards      = 256
	openWorkers = 4
)

// Open opens the cache in dir, which it makes. No byte of the files that are
// there is believed: every block is unknown until Verify. Nothing is evicted
// before the first write; pin what must stay before that. No file is opened, so
// 100,000 of them take a fraction of a second.
func Open(fsys vfs.FS, dir string, o Options) (*Cache, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := &Cache{
		fs: fsys, dir: dir, log: o.Logger,
		pool: newPool(o.LimitBytes), fds: newDescriptors(o.MaxOpenFiles),
		files: make(map[uint64]*File),
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
	if err := c.makeDirs(); err != nil {
		return nil, err
	}
	if err := c.scan(); err != nil {
		return nil, err
	}
	return c, nil
}

// makeDirs makes the directories that are missing, durably, so that a new
// file's name needs no more than a sync of its own directory.
func (c *Cache) makeDirs() error {
	if err := c.fs.MkdirAll(c.dir, 0o700); err != nil {
		return fmt.Errorf("make cache directory %s: %w", c.dir, err)
	}
	if err := c.fs.SyncDir(filepath.Dir(c.dir)); err != nil {
		return fmt.Errorf("sync the parent of cache directory %s: %w", c.dir, err)
	}
	have, err := c.fs.ReadDir(c.dir)
	if err != nil {
		return fmt.Errorf("list cache directory %s: %w", c.dir, err)
	}
	there := make(map[string]bool, len(have))
	for _, e := range have {
		there[e.Name()] = e.IsDir()
	}
	for i := range uint64(shards) {
		if p := c.shard(i); !there[filepath.Base(p)] {
			if err := c.fs.MkdirAll(p, 0o700); err != nil {
				return fmt.Errorf("make cache directory %s: %w", p, err)
			}
		}
	}
	if err := c.fs.SyncDir(c.dir); err != nil {
		return fmt.Errorf("sync cache directory %s: %w", c.dir, err)
	}
	return nil
}

// scan takes the files that are there into the account, with openWorkers at a
// time, which are done when it returns.
func (c *Cache) scan() error {
	next := make(chan uint64, shards)
	for i := range uint64(shards) {
		next <- i
	}
	close(next)
	var wg sync.WaitGroup
	errs := make([]error, openWorkers)
	for w := range errs {
		wg.Go(func() {
			for i := range next {
				if errs[w] == nil {
					errs[w] = c.scanShard(i)
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Cache) scanShard(i uint64) error {
	dir := c.shard(i)
	entries, err := c.fs.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list cache directory %s: %w", dir, err)
	}
	var found []*File
	var sum int64
	for _, e := range entries {
		ino, ok := inodeOf(e, i)
		if !ok {
			c.log.Warn("not a cache file; left alone", "file", filepath.Join(dir, e.Name()))
			continue
		}
		f := &File{c: c, ino: ino, exists: true, newName: true}
		size, allocated, err := c.measure(e, f.path())
		if err != nil {
			return err
		}
		f.unknownEnd = (size + BlockSize - 1) / BlockSize
		f.other = allocated
		sum += allocated
		found = append(found, f)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range found {
		c.files[f.ino] = f
		if f.unknownEnd > 0 {
			c.pool.unknown = append(c.pool.unknown, f)
		}
	}
	c.pool.charge(sum)
	return nil
}

// inodeOf returns the inode whose cache file e is, in shard i.
func inodeOf(e fs.DirEntry, i uint64) (uint64, bool) {
	ino, err := strconv.ParseUint(e.Name(), 16, 64)
	ok := err == nil && !e.IsDir() && ino%shards == i && strconv.FormatUint(ino, 16) == e.Name()
	return ino, ok
}

// measure returns the size of a file and what it takes on disk.
func (c *Cache) measure(e fs.DirEntry, path string) (size, allocated int64, err error) {
	info, err := e.Info()
	if err != nil {
		return 0, 0, fmt.Errorf("size of cache file %s: %w", path, err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return info.Size(), st.Blocks * 512, nil
	}
	h, err := c.fs.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return 0, 0, fmt.Errorf("open cache file %s: %w", path, err)
	}
	defer h.Close() // read-only: nothing can be lost
	allocated, err = h.Allocated()
	if err != nil {
		return 0, 0, fmt.Errorf("size on disk of cache file %s: %w", path, err)
	}
	return info.Size(), allocated, nil
}
