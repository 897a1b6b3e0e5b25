package trace

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// direct is the alignment of memory for O_DIRECT.
const direct = 4096

// handle is an open file.
type handle struct {
	fd      int
	path    string // relative to the root
	flags   string
	file    *file           // nil for a folder
	listed  map[string]bool // names that have come so far
	atBegin map[string]bool // names when the listing began; nil before
}

// handleKey is a recorded process's descriptor.
type handleKey struct {
	proc string
	fd   int
}

var openFlags = map[string]int{
	"O_RDONLY": unix.O_RDONLY, "O_WRONLY": unix.O_WRONLY, "O_RDWR": unix.O_RDWR, "O_CREAT": unix.O_CREAT, "O_TRUNC": unix.O_TRUNC,
	"O_APPEND": unix.O_APPEND, "O_DIRECT": unix.O_DIRECT, "O_NOATIME": unix.O_NOATIME, "O_NONBLOCK": unix.O_NONBLOCK,
	"O_NOFOLLOW": unix.O_NOFOLLOW, "O_CLOEXEC": unix.O_CLOEXEC, "O_DIRECTORY": unix.O_DIRECTORY,
}

var errnos = map[string]error{"ENOENT": unix.ENOENT, "EEXIST": unix.EEXIST, "ENOTDIR": unix.ENOTDIR, "ENOTEMPTY": unix.ENOTEMPTY}

func (o *Op) has(flag string) bool { return strings.Contains("|"+o.Flags+"|", "|"+flag+"|") }

// do makes an operation and compares its result with the recorded one.
func (r *Replay) do(phase string, o *Op) error {
	err := r.perform(phase, o)
	if o.Errno != "" {
		want, known := errnos[o.Errno]
		if !known {
			return fmt.Errorf("the recorded error %s is unknown", o.Errno)
		}
		if !errors.Is(err, want) {
			return fmt.Errorf("%s %s: %v instead of %s", o.Kind, o.Path, err, o.Errno)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s %s (%s at %v): %w", o.Kind, o.Path, o.Proc, o.Begin, err)
	}
	return nil
}

func (r *Replay) perform(phase string, o *Op) error {
	name := filepath.Join(r.root, o.Path)
	switch o.Kind {
	case "open":
		return r.open(o)
	case "close":
		return r.close(o)
	case "read", "pread":
		return r.read(o)
	case "write":
		return r.write(phase, o)
	case "lseek":
		return r.seek(o)
	case "fsync":
		return r.withHandle(o, func(h *handle) error { return unix.Fsync(h.fd) })
	case "getdents64":
		return r.list(o)
	case "fcntl": // flags of a descriptor: no file system is asked
		return nil
	case "stat", "statx":
		return r.stat(o)
	case "statfs":
		return statfs(name)
	case "access":
		return unix.Access(name, unix.R_OK|unix.W_OK)
	case "chmod":
		return unix.Chmod(name, o.mode())
	case "chown":
		return unix.Chown(name, os.Getuid(), os.Getgid())
	case "mkdir":
		err := unix.Mkdir(name, o.mode())
		if err == nil {
			r.model.mkdir(o.Path)
		}
		return err
	case "rmdir", "unlink":
		err := unix.Unlink(name)
		if o.Kind == "rmdir" {
			err = unix.Rmdir(name)
		}
		if err == nil {
			r.model.remove(o.Path)
		}
		return err
	case "rename":
		err := unix.Rename(name, filepath.Join(r.root, o.Path2))
		if err == nil {
			r.model.rename(o.Path, o.Path2)
		}
		return err
	}
	return fmt.Errorf("the operation is unknown")
}

// mode is the recorded mode of a new file or folder.
func (o *Op) mode() uint32 {
	mode, err := strconv.ParseUint(o.Mode, 8, 32)
	if err != nil {
		return 0o666
	}
	return uint32(mode)
}

func (r *Replay) open(o *Op) error {
	h, err := r.openFile(o.Path, o.Flags, o.mode())
	if err != nil {
		return err
	}
	if !o.has("O_DIRECTORY") {
		h.file = r.model.file(o.Path, o.has("O_CREAT"))
		if h.file == nil {
			return errors.Join(errors.New("it was opened, though there must be no such file"), unix.Close(h.fd))
		}
		if o.has("O_TRUNC") {
			h.file.truncate()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.handles[handleKey{o.Proc, int(o.Result)}] = h
	return nil
}

func (r *Replay) openFile(name, flags string, mode uint32) (*handle, error) {
	bits := 0
	for word := range strings.SplitSeq(flags, "|") {
		bit, known := openFlags[word]
		if !known {
			return nil, fmt.Errorf("the flag %s is unknown", word)
		}
		bits |= bit
	}
	fd, err := unix.Open(filepath.Join(r.root, name), bits|unix.O_CLOEXEC, mode)
	if err != nil {
		return nil, err
	}
	return &handle{fd: fd, path: name, flags: flags, listed: map[string]bool{}}, nil
}

func (r *Replay) withHandle(o *Op, do func(*handle) error) error {
	r.mu.Lock()
	h := r.handles[handleKey{o.Proc, o.FD}]
	r.mu.Unlock()
	if h == nil {
		return fmt.Errorf("descriptor %d is not open", o.FD)
	}
	return do(h)
}

// close closes a descriptor. A process that was just forked closes those of its
// parent, too: of them the recording has no open, and the replay no copy.
func (r *Replay) close(o *Op) error {
	key := handleKey{o.Proc, o.FD}
	r.mu.Lock()
	h := r.handles[key]
	delete(r.handles, key)
	r.mu.Unlock()
	if h == nil {
		return nil
	}
	return unix.Close(h.fd)
}

// aligned is memory that O_DIRECT takes.
func aligned(n int64) []byte {
	b := make([]byte, n+direct)
	skip := (direct - int64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))%direct)) % direct
	return b[skip : skip+n]
}

func (r *Replay) read(o *Op) error {
	return r.withHandle(o, func(h *handle) error {
		buf := r.buffers.get(o.Length)
		defer r.buffers.put(buf)
		n, err := unix.Pread(h.fd, buf, o.Offset)
		if err != nil {
			return err
		}
		if int64(n) != o.Result {
			return fmt.Errorf("%d bytes at %d instead of %d", n, o.Offset, o.Result)
		}
		return h.file.compare(buf[:n], o.Offset)
	})
}

func (r *Replay) write(phase string, o *Op) error {
	return r.withHandle(o, func(h *handle) error {
		p := r.model.content(phase, o.indexInPhase, o.Length)
		var n int
		var err error
		at := o.Offset
		if strings.Contains(h.flags, "O_APPEND") {
			at = -1
			n, err = unix.Write(h.fd, p)
		} else {
			n, err = unix.Pwrite(h.fd, p, at)
		}
		if err == nil && n != len(p) {
			err = fmt.Errorf("%d of %d bytes written", n, len(p))
		}
		if err == nil {
			h.file.write(p, at)
		}
		return err
	})
}

// seek makes the call for its own sake: reads and writes name their offsets.
func (r *Replay) seek(o *Op) error {
	whence := map[string]int{"SEEK_SET": 0, "SEEK_CUR": 1, "SEEK_END": 2}[o.Flags]
	if whence == 1 {
		return nil // from a position that only read and write would move
	}
	return r.withHandle(o, func(h *handle) error {
		got, err := unix.Seek(h.fd, o.Offset, whence)
		if err == nil && h.file != nil && got != o.Result {
			return fmt.Errorf("position %d instead of %d", got, o.Result)
		}
		return err
	})
}

func (r *Replay) stat(o *Op) error {
	var st unix.Stat_t
	if o.FD > 0 {
		return r.withHandle(o, func(h *handle) error {
			if err := unix.Fstat(h.fd, &st); err != nil || h.file == nil {
				return err
			}
			if want := h.file.size(); st.Size != want {
				return fmt.Errorf("%d bytes instead of %d", st.Size, want)
			}
			return nil
		})
	}
	return unix.Stat(filepath.Join(r.root, o.Path), &st)
}

func statfs(name string) error {
	var st unix.Statfs_t
	if err := unix.Statfs(name, &st); err != nil {
		return err
	}
	if st.Blocks == 0 || st.Bavail > st.Blocks {
		return fmt.Errorf("%d of %d blocks free", st.Bavail, st.Blocks)
	}
	return nil
}

// list reads a part of a folder. At its end all names must have come that are
// still there, and none that was not there at its begin.
func (r *Replay) list(o *Op) error {
	return r.withHandle(o, func(h *handle) error {
		buf := make([]byte, o.Length)
		if h.atBegin == nil {
			h.atBegin = r.model.children(h.path)
		}
		n, err := unix.Getdents(h.fd, buf)
		if err != nil {
			return err
		}
		if n > 0 {
			_, _, names := unix.ParseDirent(buf[:n], -1, nil)
			for _, name := range names {
				h.listed[name] = true
			}
			return nil
		}
		for name := range r.model.children(h.path) {
			if !h.listed[name] {
				return fmt.Errorf("the listing lacks %s", name)
			}
		}
		for name := range h.listed {
			if !h.atBegin[name] {
				return fmt.Errorf("the listing has %s, which was not there", name)
			}
		}
		return nil
	})
}

// Prepare makes what was there before the recording.
func (r *Replay) Prepare() error {
	dirs, files := r.trace.before()
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(r.root, dir), 0o755); err != nil {
			return fmt.Errorf("prepare a replay: %w", err)
		}
		r.model.mkdir(dir)
	}
	for name, size := range files {
		p := r.model.content("before "+name, 0, size)
		if err := os.WriteFile(filepath.Join(r.root, name), p, 0o666); err != nil {
			return fmt.Errorf("prepare a replay: %w", err)
		}
		r.model.file(name, true).write(p, 0)
	}
	return nil
}

// Verify compares the whole root with what must be there.
func (r *Replay) Verify() error {
	seen := 0
	err := filepath.WalkDir(r.root, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(r.root, name)
		if err != nil {
			return err
		}
		seen++
		f := r.model.file(rel, false)
		if f == nil {
			return fmt.Errorf("%s must not be there", rel)
		}
		got, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if int64(len(got)) != f.size() {
			return fmt.Errorf("%s has %d bytes instead of %d", rel, len(got), f.size())
		}
		if err := f.compare(got, 0); err != nil {
			return fmt.Errorf("%s: %w", rel, err)
		}
		return nil
	})
	if err == nil && seen != len(r.model.files) {
		err = fmt.Errorf("%d files instead of %d", seen, len(r.model.files))
	}
	if err != nil {
		return fmt.Errorf("verify %s: %w", r.root, err)
	}
	return nil
}
