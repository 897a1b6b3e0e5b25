package cache

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
)

// Open looks at every file that is there, for its size and what it takes on disk:
// a million of them take seconds. When Close left word of many files, that goes on
// in the background:
//
//	<dir>/closed    {"files": n, "bytes": n}    written by Close, deleted by Open
//
// Until it has ended, who gets a file that was not looked at looks first, and what
// Close said stands for the rest in the account: the limit holds. Nothing else
// follows from it, and no byte is believed by it. Without it, after a crash, Open
// looks at all files before it returns.
const (
	closingName      = "closed"
	defaultScanLater = 20_000 // files
	scanWorkers      = 4      // while Open waits; one when nobody does
)

// closing is what Close leaves.
type closing struct {
	Files int64 `json:"files"`
	Bytes int64 `json:"bytes"`
}

// takeClosing reads what Close left and deletes it: it is true once. What can't be
// understood says nothing.
func (c *Cache) takeClosing() (left closing, err error) {
	path := filepath.Join(c.dir, closingName)
	h, err := c.fs.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return left, fmt.Errorf("open %s: %w", path, err)
	}
	var p [100]byte
	n, _ := h.ReadAt(p[:], 0) // short, and then not understood
	err = errors.Join(h.Close(), c.fs.Remove(path))
	if err != nil {
		return left, fmt.Errorf("take %s away: %w", path, err)
	}
	if json.Unmarshal(p[:n], &left) != nil || left.Files < 0 || left.Bytes < 0 {
		return closing{}, nil
	}
	return left, nil
}

// leaveClosing tells the next Open what is there. Without it that takes longer.
func (c *Cache) leaveClosing() error {
	var left closing
	for _, f := range c.all() {
		f.mu.Lock()
		if f.exists {
			left.Files++
		}
		f.mu.Unlock()
	}
	if !c.scanned { // it was closed before that
		left.Files = max(left.Files, c.left.Files)
	}
	c.pool.mu.Lock()
	left.Bytes = c.pool.allocated // with what was expected, if it was closed before that
	c.pool.mu.Unlock()
	if left.Files < c.scanLater {
		return nil
	}
	p, err := json.Marshal(left)
	if err != nil {
		return err
	}
	path := filepath.Join(c.dir, closingName)
	h, err := c.fs.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("make %s: %w", path, err)
	}
	_, err = h.WriteAt(p, 0)
	if err = errors.Join(err, h.Close()); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// startScan begins to look at the files that are there, and waits for the end
// unless Close left word of many.
func (c *Cache) startScan(left closing) error {
	c.unseen, c.left = true, left
	workers, later := scanWorkers, left.Files >= c.scanLater
	if later {
		workers = 1
		c.pool.expect(left.Bytes)
	}
	next := make(chan uint64, shards)
	for i := range uint64(shards) {
		next <- i
	}
	close(next)
	errs := make([]error, workers)
	var wg sync.WaitGroup
	for w := range errs {
		wg.Go(func() {
			for i := range next {
				if err := c.scanShard(i); err != nil && errs[w] == nil {
					errs[w] = err
				}
			}
		})
	}
	if !later {
		wg.Wait()
		return c.endScan(errors.Join(errs...))
	}
	go func() {
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			c.failed(err)
		}
		_ = c.endScan(errors.Join(errs...)) // told
	}()
	return nil
}

// endScan ends the time in which a file can be there that is in no account. After
// an error it never ends: who gets a file looks first.
func (c *Cache) endScan(err error) error {
	c.scanErr = err
	c.scanned = err == nil && !c.closed.Load()
	if c.scanned {
		c.mu.Lock()
		c.unseen = false
		c.mu.Unlock()
		c.pool.expect(0)
	}
	close(c.scanEnd)
	return err
}

// Scanned is closed once all files that were there at Open are looked at.
func (c *Cache) Scanned() <-chan struct{} { return c.scanEnd }

// scanShard looks at the files of a shard, until the cache is closed.
func (c *Cache) scanShard(i uint64) error {
	dir := c.shard(i)
	entries, err := c.fs.ReadDir(dir)
	if err != nil {
		return fmt.Errorf("list cache directory %s: %w", dir, err)
	}
	for _, e := range entries {
		if c.closed.Load() {
			return nil
		}
		ino, ok := inodeOf(e, i)
		if !ok {
			c.log.Warn("not a cache file; left alone", "file", filepath.Join(dir, e.Name()))
			continue
		}
		f := c.enter(ino)
		err := f.look()
		f.mu.Lock()
		gone := !f.exists
		f.mu.Unlock()
		if gone { // meanwhile
			f.Release()
		} else {
			f.refs.Add(-1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// look finds out what there is of a file, once. When that fails the file is taken
// to be there, with nothing in it that can be verified; it stays, since who pins
// something of it reads it all the same.
func (f *File) look() error {
	if !f.unseen.Load() {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.unseen.Load() {
		return nil
	}
	defer f.unseen.Store(false)
	info, err := f.c.fs.Stat(f.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	f.exists, f.newName, f.unmet = true, true, true
	if err != nil {
		return fmt.Errorf("size of cache file %s: %w", f.path(), err)
	}
	allocated, err := f.c.allocated(info, f.path())
	if err != nil {
		return err
	}
	f.unmet = false
	f.unknownEnd = (info.Size() + BlockSize - 1) / BlockSize
	f.other = allocated
	f.c.pool.found(f)
	return nil
}

// inodeOf returns the inode whose cache file e is, in shard i.
func inodeOf(e fs.DirEntry, i uint64) (uint64, bool) {
	ino, err := strconv.ParseUint(e.Name(), 16, 64)
	ok := err == nil && !e.IsDir() && ino%shards == i && strconv.FormatUint(ino, 16) == e.Name()
	return ino, ok
}

// allocated returns what a file takes on disk.
func (c *Cache) allocated(info fs.FileInfo, path string) (int64, error) {
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		return st.Blocks * 512, nil
	}
	h, err := c.fs.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		return 0, fmt.Errorf("open cache file %s: %w", path, err)
	}
	defer h.Close() // read-only: nothing can be lost
	n, err := h.Allocated()
	if err != nil {
		return 0, fmt.Errorf("size on disk of cache file %s: %w", path, err)
	}
	return n, nil
}
