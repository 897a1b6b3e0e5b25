package fuse

import (
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
)

// Options of a mount. The zero value is right for a database's directory.
type Options struct {
	ReadOnly   bool // refuse writes in the kernel; always so when the volume is read-only
	AllowOther bool // let other users in; always so when mounted by root
	NoAtime    bool // shown in the mount table; access times are never kept
	NonEmpty   bool // mount over a directory that is not empty, or over another mount
	Suid       bool // honour set-id bits of programs on the mount
	Dev        bool // honour device nodes on the mount
	NoExec     bool // refuse to run programs from the mount

	FSName        string // what df shows as the file system; default "cistern"
	MaxRead       int    // largest request in bytes, 4096 to 1 MiB; default 1 MiB
	MaxBackground int    // reads-ahead and asynchronous I/O in flight, 1 to 65535; default 256
	ReadAheadKiB  int    // of the kernel for a sequential reader; default 4096

	// CacheTimeout is how long the kernel believes names and attributes
	// without asking; 0 is for ever, which is right unless the volume changes
	// without anyone calling Server.Invalidate.
	CacheTimeout time.Duration

	// Passthrough returns a descriptor of a local file with exactly the bytes
	// of ino, which the kernel then reads by itself, or false. It is for mounts
	// of a fixed commit. The descriptor stays the volume's, which keeps it open
	// for as long as the mount lives. Nil: every read comes to this process.
	Passthrough func(ino gateway.InodeID) (fd int, ok bool)

	Logger *slog.Logger // default slog.Default()
	Debug  bool         // log every request
}

const (
	maxRequest           = 1 << 20
	minRequest           = 4096
	defaultMaxBackground = 256
	defaultReadAheadKiB  = 4096
	forEver              = 10 * 365 * 24 * time.Hour
)

// Validate reports the first option out of its range.
func (o *Options) Validate() error {
	switch {
	case o.MaxRead != 0 && (o.MaxRead < minRequest || o.MaxRead > maxRequest):
		return fmt.Errorf("mount option max_read=%d: must be %d to %d bytes", o.MaxRead, minRequest, maxRequest)
	case o.MaxBackground < 0 || o.MaxBackground > math.MaxUint16:
		return fmt.Errorf("mount option max_background=%d: must be 1 to %d", o.MaxBackground, math.MaxUint16)
	case o.ReadAheadKiB < 0:
		return fmt.Errorf("read-ahead of %d KiB: must not be negative", o.ReadAheadKiB)
	case o.CacheTimeout < 0:
		return fmt.Errorf("cache timeout of %v: must not be negative", o.CacheTimeout)
	case strings.ContainsAny(o.FSName, "\x00\n"):
		return fmt.Errorf("file system name %q: must not hold a newline or NUL", o.FSName)
	}
	return nil
}

// withDefaults returns o with its zero values replaced.
func (o Options) withDefaults() Options {
	if o.FSName == "" {
		o.FSName = "cistern"
	}
	if o.MaxRead == 0 {
		o.MaxRead = maxRequest
	}
	if o.MaxBackground == 0 {
		o.MaxBackground = defaultMaxBackground
	}
	if o.ReadAheadKiB == 0 {
		o.ReadAheadKiB = defaultReadAheadKiB
	}
	if o.CacheTimeout == 0 {
		o.CacheTimeout = forEver
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	return o
}

// Parse sets what list says, the argument of -o: options separated by commas,
// later ones winning. Options that only mount(8) and fstab care about are
// accepted; one that is not known is an error that names it.
func (o *Options) Parse(list string) error {
	for item := range strings.SplitSeq(list, ",") {
		if item == "" {
			continue
		}
		name, value, has := strings.Cut(item, "=")
		known, err := o.set(name, value, has)
		if err != nil {
			return err
		}
		if !known {
			return fmt.Errorf("unknown mount option %q", item)
		}
	}
	return nil
}

func (o *Options) set(name, value string, has bool) (known bool, err error) {
	if strings.HasPrefix(name, "x-") {
		return true, nil
	}
	if has {
		return o.setValue(name, value)
	}
	switch name {
	case "ro":
		o.ReadOnly = true
	case "rw":
		o.ReadOnly = false
	case "allow_other":
		o.AllowOther = true
	case "noatime":
		o.NoAtime = true
	case "nonempty":
		o.NonEmpty = true
	case "suid":
		o.Suid = true
	case "nosuid":
		o.Suid = false
	case "dev":
		o.Dev = true
	case "nodev":
		o.Dev = false
	case "exec":
		o.NoExec = false
	case "noexec":
		o.NoExec = true
	case "debug":
		o.Debug = true
	case "default_permissions": // always so
	case "default", "defaults", "auto", "noauto", "nofail", "_netdev", "user", "nouser", "async":
	default:
		return false, nil
	}
	return true, nil
}

func (o *Options) setValue(name, value string) (known bool, err error) {
	switch name {
	case "fsname":
		o.FSName = value
	case "max_read":
		o.MaxRead, err = strconv.Atoi(value)
	case "max_background":
		o.MaxBackground, err = strconv.Atoi(value)
	default:
		return false, nil
	}
	if err != nil {
		return true, fmt.Errorf("mount option %s=%s: not a number", name, value)
	}
	if name == "max_read" && o.MaxRead == 0 || name == "max_background" && o.MaxBackground == 0 {
		return true, fmt.Errorf("mount option %s=%s: must be positive", name, value)
	}
	return true, o.Validate()
}

// mountFlags are the flags of mount(2).
func (o *Options) mountFlags() uintptr {
	var flags uintptr
	for _, f := range []struct {
		on   bool
		flag uintptr
	}{
		{o.ReadOnly, unix.MS_RDONLY}, {o.NoAtime, unix.MS_NOATIME}, {!o.Suid, unix.MS_NOSUID},
		{!o.Dev, unix.MS_NODEV}, {o.NoExec, unix.MS_NOEXEC},
	} {
		if f.on {
			flags |= f.flag
		}
	}
	return flags
}

// helperOptions are the same for fusermount3, which adds nosuid and nodev.
func (o *Options) helperOptions() []string {
	options := []string{"default_permissions"}
	for _, f := range []struct {
		on   bool
		name string
	}{
		{o.ReadOnly, "ro"}, {o.NoAtime, "noatime"}, {o.NoExec, "noexec"},
		{o.Suid, "suid"}, {o.Dev, "dev"},
	} {
		if f.on {
			options = append(options, f.name)
		}
	}
	return options
}
