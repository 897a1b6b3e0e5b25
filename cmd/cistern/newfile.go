package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// newFile is a file that gets its name when it is whole, in the place of what had it.
// Until then it has none where the file system can do that, so that a process that is
// killed leaves nothing; elsewhere a hidden one.
type newFile struct {
	*os.File
	dir    string
	hidden string // its name so far; empty: none
}

const hiddenPrefix = ".cistern-get-"

// createNew makes such a file in a directory.
func createNew(dir string) (*newFile, error) {
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_WRONLY|unix.O_CLOEXEC, 0o600)
	if err == nil {
		return &newFile{File: os.NewFile(uintptr(fd), dir), dir: dir}, nil
	}
	f, err := os.CreateTemp(dir, hiddenPrefix)
	if err != nil {
		return nil, hereError(dir, err)
	}
	return &newFile{File: f, dir: dir, hidden: f.Name()}, nil
}

// own is the path of the file itself, whatever its name.
func (f *newFile) own() string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// place makes the file durable with its mode and time, and gives it its name.
func (f *newFile) place(to string, mode fs.FileMode, at time.Time) error {
	for _, step := range []func() error{
		func() error { return f.Chmod(mode) },
		func() error { return os.Chtimes(f.own(), at, at) },
		f.Sync,
		func() error { return f.name(to) },
		f.Close,
	} {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// name gives the file its name. A name can be taken over only from another name.
func (f *newFile) name(to string) error {
	if f.hidden == "" {
		link := func(to string) error {
			return unix.Linkat(unix.AT_FDCWD, f.own(), unix.AT_FDCWD, to, unix.AT_SYMLINK_FOLLOW)
		}
		err := link(to)
		if !errors.Is(err, fs.ErrExist) {
			return err
		}
		for i := os.Getpid(); errors.Is(err, fs.ErrExist); i++ {
			f.hidden = filepath.Join(f.dir, fmt.Sprintf("%s%d-%d", hiddenPrefix, f.Fd(), i))
			err = link(f.hidden)
		}
		if err != nil {
			f.hidden = ""
			return err
		}
	}
	return os.Rename(f.hidden, to)
}

// drop removes the file, which did not get its name.
func (f *newFile) drop() error {
	err := ignoreClosed(f.Close())
	if f.hidden == "" {
		return err
	}
	if rerr := os.Remove(f.hidden); !errors.Is(rerr, fs.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	return err
}

func ignoreClosed(err error) error {
	if errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}
