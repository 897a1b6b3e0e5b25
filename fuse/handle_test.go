package fuse

import (
	"errors"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A file handle finds its file after the kernel has forgotten it, until the
// file is deleted.
func TestMount_OpenByHandle(t *testing.T) {
	m := mountVolume(t)
	forget := func() { // a remount drops what is not in use
		t.Helper()
		m.must(unix.Mount("", m.dir, "", unix.MS_REMOUNT|unix.MS_NOSUID|unix.MS_NODEV, ""))
	}
	m.must(os.MkdirAll(m.dir+"/a/b", 0o755))
	file, dir := m.dir+"/a/b/f", m.dir+"/a/b"
	m.must(os.WriteFile(file, []byte("content"), 0o644))
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, file, 0)
	m.must(err)
	dirHandle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, dir, 0)
	m.must(err)
	root, err := unix.Open(m.dir, unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	m.must(err)
	defer unix.Close(root)

	forget()
	fd, err := unix.OpenByHandleAt(root, handle, unix.O_RDONLY)
	m.must(err)
	buf := make([]byte, 16)
	n, err := unix.Read(fd, buf)
	if err != nil || string(buf[:n]) != "content" {
		t.Errorf("read through the handle: %q, %v", buf[:n], err)
	}
	m.must(unix.Close(fd))

	forget()
	fd, err = unix.OpenByHandleAt(root, dirHandle, unix.O_RDONLY|unix.O_DIRECTORY)
	m.must(err)
	if path, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd)); err != nil || path != dir {
		t.Errorf("the directory's handle leads to %s, %v", path, err)
	}
	m.must(unix.Close(fd))

	m.must(os.Remove(file))
	forget()
	if fd, err = unix.OpenByHandleAt(root, handle, unix.O_RDONLY); !errors.Is(err, unix.ESTALE) {
		t.Errorf("a deleted file's handle: %d, %v", fd, err)
	}
}
