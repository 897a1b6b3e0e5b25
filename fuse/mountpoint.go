package fuse

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mountEntry is a line of /proc/self/mountinfo.
type mountEntry struct {
	device string // major:minor
	path   string
	fsType string
}

// mountTable reads what is mounted, oldest first. It touches no mount, so a
// dead one can't hang it.
func mountTable() ([]mountEntry, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	return parseMountTable(string(text)), nil
}

// parseMountTable skips lines that it does not understand.
func parseMountTable(text string) []mountEntry {
	var table []mountEntry
	for line := range strings.Lines(text) {
		mount, fs, ok := strings.Cut(strings.TrimSpace(line), " - ")
		fields := strings.Fields(mount)
		fsFields := strings.Fields(fs)
		if !ok || len(fields) < 5 || len(fsFields) < 1 {
			continue
		}
		table = append(table, mountEntry{device: fields[2], path: unescape(fields[4]), fsType: fsFields[0]})
	}
	return table
}

// unescape undoes the table's octal escapes of space, tab, newline and backslash.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+3 < len(s) {
			if c, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// mountedAt returns what is on top at path, an absolute path without links.
func mountedAt(path string) (mountEntry, bool, error) {
	table, err := mountTable()
	if err != nil {
		return mountEntry{}, false, err
	}
	for i := len(table) - 1; i >= 0; i-- {
		if table[i].path == path {
			return table[i], true, nil
		}
	}
	return mountEntry{}, false, nil
}

// checkMountPoint resolves dir to an absolute path without links and refuses
// what should not be mounted over. It looks at the mount table before it
// touches dir: what is mounted there may be dead.
func checkMountPoint(dir string, nonEmpty bool) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("mount point %s: %w", dir, err)
	}
	if parent, err := filepath.EvalSymlinks(filepath.Dir(abs)); err == nil {
		abs = filepath.Join(parent, filepath.Base(abs))
	}
	if err := refuseMounted(abs, nonEmpty); err != nil {
		return "", err
	}
	real, err := filepath.EvalSymlinks(abs)
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("mount point %s does not exist: make the directory first: %w", dir, err)
	}
	if err != nil {
		return "", fmt.Errorf("mount point %s: %w", dir, err)
	}
	if real != abs {
		if err := refuseMounted(real, nonEmpty); err != nil {
			return "", err
		}
	}
	return real, checkDirectory(real, nonEmpty)
}

func refuseMounted(path string, nonEmpty bool) error {
	m, found, err := mountedAt(path)
	if err != nil || !found {
		return err
	}
	if strings.HasPrefix(m.fsType, "fuse") {
		return fmt.Errorf("mount point %s is a mount of type %s already: unmount it first: %w", path, m.fsType, unix.EBUSY)
	}
	if !nonEmpty {
		return fmt.Errorf("mount point %s is a mount of type %s already (-o nonempty mounts over it): %w", path, m.fsType, unix.EBUSY)
	}
	return nil
}

func checkDirectory(dir string, nonEmpty bool) error {
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("mount point: %w", err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("mount point: %w", err)
	}
	if !st.IsDir() {
		return fmt.Errorf("mount point %s is not a directory: %w", dir, unix.ENOTDIR)
	}
	if nonEmpty {
		return nil
	}
	names, err := f.Readdirnames(1)
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("list mount point %s: %w", dir, err)
	}
	if len(names) > 0 {
		return fmt.Errorf("mount point %s is not empty, it holds %q (-o nonempty hides what is in it): %w", dir, names[0], unix.ENOTEMPTY)
	}
	return nil
}

// openDevice opens /dev/fuse.
func openDevice() (int, error) {
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
		return -1, fmt.Errorf("there is no FUSE here: load the kernel's fuse module, or give the container /dev/fuse: %w", err)
	default:
		return -1, fmt.Errorf("open /dev/fuse: %w", err)
	}
}

// mountDevice mounts the connection of fd on dir with mount(2).
func mountDevice(fd int, dir string, o *Options) error {
	options := []string{
		"fd=" + strconv.Itoa(fd),
		"rootmode=40000",
		"user_id=" + strconv.Itoa(os.Geteuid()),
		"group_id=" + strconv.Itoa(os.Getegid()),
		"default_permissions",
		"max_read=" + strconv.Itoa(o.MaxRead),
	}
	if o.AllowOther {
		options = append(options, "allow_other")
	}
	err := unix.Mount(o.FSName, dir, fsType, o.mountFlags(), strings.Join(options, ","))
	if err != nil {
		return fmt.Errorf("mount on %s: %w", dir, err)
	}
	return nil
}

// helperPath finds fusermount3, which mounts for ordinary users.
func helperPath() (string, error) {
	path, err := exec.LookPath("fusermount3")
	if err != nil {
		if path, err2 := exec.LookPath("fusermount"); err2 == nil {
			return path, nil
		}
		return "", fmt.Errorf("no permission to mount: run as root (CAP_SYS_ADMIN), or install fusermount3 (package fuse3): %w", errors.Join(err, unix.EPERM))
	}
	return path, nil
}

// setReadAhead lets the kernel read further ahead than FUSE's 128 KiB, which
// is also what it asks for at once.
func setReadAhead(device string, kib int) error {
	path := "/sys/class/bdi/" + device + "/read_ahead_kb"
	if err := os.WriteFile(path, []byte(strconv.Itoa(kib)), 0o644); err != nil {
		return fmt.Errorf("raise read-ahead: %w", err)
	}
	return nil
}

// hungUp says whether the kernel has given up the connection of device, or
// device is closed.
func hungUp(device *os.File) bool {
	conn, err := device.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = conn.Control(func(fd uintptr) {
		poll := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(poll, 0)
		gone = err == nil && n > 0 && poll[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0
	})
	return err != nil || gone
}
