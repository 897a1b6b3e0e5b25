package cache

import (
	"errors"
	"fmt"
	"path/filepath"
)

// CheckAccounting compares the account with itself and with the disk. It is for
// tests and tools, at rest: with I/O under way it may report what is only in
// motion. A file may take a few pages more or less than the account says since
// it was last measured, for what the file system needs beside the bytes.
func (c *Cache) CheckAccounting() error { return c.checkAccounting(true) }

func (c *Cache) checkAccounting(tolerant bool) error {
	<-c.scanEnd
	var errs []error
	var sum fileSums
	onDisk := make(map[uint64]bool)
	for _, f := range c.all() {
		s, err := f.check(tolerant)
		if err != nil {
			errs = append(errs, err)
		}
		sum.charged += s.charged
		sum.present += s.present
		sum.pinned += s.pinned
		onDisk[f.ino] = s.exists
	}
	c.pool.mu.Lock()
	allocated, evicting := c.pool.allocated, c.pool.evicting
	c.pool.mu.Unlock()
	if allocated != sum.charged || evicting != 0 {
		errs = append(errs, fmt.Errorf("cache is charged %d bytes, its files %d; %d evictions", allocated, sum.charged, evicting))
	}
	if p, q := c.present.Load(), c.pinned.Load(); p != sum.present || q != sum.pinned {
		errs = append(errs, fmt.Errorf("cache counts %d present and %d pinned bytes, its files %d and %d", p, q, sum.present, sum.pinned))
	}
	return errors.Join(append(errs, c.checkNames(onDisk))...)
}

// checkNames compares the files on disk with those that should be there.
func (c *Cache) checkNames(want map[uint64]bool) error {
	found := 0
	for i := range uint64(shards) {
		entries, err := c.fs.ReadDir(c.shard(i))
		if err != nil {
			return fmt.Errorf("list cache directory %s: %w", c.shard(i), err)
		}
		for _, e := range entries {
			ino, ok := inodeOf(e, i)
			if !ok {
				continue
			}
			if !want[ino] {
				return fmt.Errorf("cache file %s is on disk and in no account", filepath.Join(c.shard(i), e.Name()))
			}
			found++
		}
	}
	for _, exists := range want {
		if exists {
			found--
		}
	}
	if found != 0 {
		return fmt.Errorf("%d cache files in the account are not on disk", -found)
	}
	return nil
}

type fileSums struct {
	charged, present, pinned int64
	exists                   bool
}

// check compares one file's account with its blocks and with the disk.
func (f *File) check(tolerant bool) (fileSums, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var s fileSums
	var pages int64
	var pinned int32
	var errs []error
	f.blocks.ascend(0, 1<<62, func(b *block) bool {
		s.present += b.present()
		pages += pageBytes(b.pages) / pageSize
		if b.pins > 0 {
			pinned++
			s.pinned += pageBytes(b.pages)
		}
		if b.busy != 0 || b.punching || b.inClock != b.wantsClock() || b.disposable() {
			errs = append(errs, fmt.Errorf("block %d of inode %d is not at rest: %d busy, punching %v, in clock %v",
				b.no, f.ino, b.busy, b.punching, b.inClock))
		}
		return true
	})
	if pages != f.npages || pinned != f.pinned || f.moving != 0 || f.busy != 0 || f.users != 0 || f.punches != 0 {
		errs = append(errs, fmt.Errorf("inode %d counts %d pages, %d pinned blocks; its blocks have %d, %d; %d pages moving, %d busy, %d using, %d punching",
			f.ino, f.npages, f.pinned, pages, pinned, f.moving, f.busy, f.users, f.punches))
	}
	if err := f.checkDisk(tolerant); err != nil {
		errs = append(errs, err)
	}
	s.charged, s.exists = f.npages*pageSize+f.other, f.exists
	return s, errors.Join(errs...)
}

// checkDisk compares the charge with what the disk says, and takes over what
// the file system needs beside it. Called with mu held, which it may give up.
func (f *File) checkDisk(tolerant bool) error {
	if !f.exists {
		if f.npages != 0 || f.other != 0 {
			return fmt.Errorf("inode %d has no local file and is charged %d pages and %d bytes", f.ino, f.npages, f.other)
		}
		return nil
	}
	h, err := f.acquire(false)
	if err != nil {
		return err
	}
	defer f.release()
	a, err := h.Allocated()
	if err != nil {
		return fmt.Errorf("size on disk of cache file %s: %w", f.path(), err)
	}
	charged := f.npages*pageSize + f.other
	var slack int64
	if tolerant { // a block of extents for every hundred or so, and two above
		slack = (2 + f.npages/128) * pageSize
	}
	if d := a - charged; d > slack || d < -slack {
		return fmt.Errorf("cache file %s takes %d bytes on disk and is charged %d", f.path(), a, charged)
	}
	f.settle()
	return nil
}
