package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/internal/harness"
)

// Kind is a kind of place to run jobs on.
type Kind string

const (
	Ext4     Kind = "ext4"     // a plain directory of the local file system
	Loopback Kind = "loopback" // the bare FUSE loopback over such a directory
	Mount    Kind = "mount"    // a cistern mount of a volume in a file:// store
	Fixed    Kind = "fixed"    // a read-only cistern mount of one commit
	Store    Kind = "store"    // a cistern mount of a volume in an object store
	StoreGS  Kind = "store-gs" // a cistern mount over the run's own GCS server, beside the S3 of the others
	Bucket   Kind = "bucket"   // as Store, in durability mode bucket
	Raw      Kind = "raw"      // plain requests to that object store
	S3FS     Kind = "s3fs"     // peers: other file systems over an object store
	Rclone   Kind = "rclone"
	JuiceFS  Kind = "juicefs"
	GCSFuse  Kind = "gcsfuse"

	ColumnStore Kind = "columnstore" // the real one of this machine
)

// allKinds are all of them, in the order of a table.
var allKinds = []Kind{Ext4, Loopback, Mount, Fixed, Store, StoreGS, Bucket, Raw, S3FS, Rclone, JuiceFS, GCSFuse, ColumnStore}

// ofCistern says whether such a target is a mount of a volume.
func (k Kind) ofCistern() bool {
	return slices.Contains([]Kind{Mount, Fixed, Store, StoreGS, Bucket}, k)
}

// isPeer says whether such a target is somebody else's file system.
func (k Kind) isPeer() bool { return slices.Contains([]Kind{S3FS, Rclone, JuiceFS, GCSFuse}, k) }

// optional says whether a run does without such a target where it can't be had.
func (k Kind) optional() bool { return k.isPeer() || k == ColumnStore }

// needsRemote says whether such a target needs an object store.
func (k Kind) needsRemote() bool {
	return k.isPeer() || slices.Contains([]Kind{Store, StoreGS, Bucket, Raw}, k)
}

// speaksGS says whether such a target needs an object store that speaks GCS.
func (k Kind) speaksGS() bool { return k == StoreGS || k == GCSFuse }

// describe says in words what such a target is.
func (k Kind) describe() string {
	switch k {
	case Ext4:
		return "a directory of the local file system"
	case Loopback:
		return "a bare FUSE loopback over such a directory"
	case Mount:
		return "a mount of a volume in a file:// store"
	case Fixed:
		return "a read-only mount of one commit in a file:// store"
	case Store:
		return "a mount of a volume in the object store of --store"
	case StoreGS:
		return "a mount over a GCS server of the run's own, beside the S3 of the others"
	case Bucket:
		return "a mount with --durability bucket of a volume in the object store of --store"
	case Raw:
		return "plain requests to the object store of --store"
	case ColumnStore:
		return "the ColumnStore of this machine"
	}
	return peerOf(k).describe()
}

const (
	mountWait  = time.Minute
	umountWait = 3 * time.Minute
)

// Target is one place to run jobs on.
type Target struct {
	Name    string
	Kind    Kind
	Dir     string
	Options string // file system and mount options, for the report
	// NotDurable says why an fsync here does not survive a power cut; empty when it
	// does.
	NotDurable string
	Bucket     string // directory that is the store; empty without one
	State      string // the mount's state directory

	cistern string
	args    []string // further flags of a cistern mount
	mount   *harness.Mount
	remote  *Remote // the object store, or nil

	atRest     bool // nothing was written since the store was last seen at rest
	firstState string
	moves      int      // to fresh state directories
	stale      []string // state directories that were moved from
}

// fixedFile is the file that a Fixed target holds.
const fixedFile = "fixed.dat"

// OpenTarget makes a target below base. Close ends it.
func OpenTarget(ctx context.Context, kind Kind, base string, c Config) (*Target, error) {
	t := &Target{
		Name: string(kind), Kind: kind, cistern: c.Cistern, args: c.MountArgs, remote: c.Remote,
		Dir:   filepath.Join(base, string(kind), "dir"),
		State: filepath.Join(base, string(kind), "state"), Bucket: filepath.Join(base, string(kind), "bucket"),
	}
	if kind.speaksGS() && c.RemoteGS != nil {
		t.remote = c.RemoteGS
	}
	t.firstState = t.State
	if err := os.MkdirAll(t.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make %s: %w", t.Dir, err)
	}
	var err error
	switch kind {
	case Ext4:
		t.Bucket, t.State = "", ""
		t.Options, err = localOptions(t.Dir)
	case Loopback:
		t.Bucket, t.State = "", ""
		below := filepath.Join(base, string(kind), "below")
		if err = os.MkdirAll(below, 0o755); err == nil {
			err = t.start(ctx, harness.LoopbackMount(c.Loopback, below, t.Dir))
		}
	case Mount, Store, StoreGS, Bucket:
		if err = t.needRemote(kind != Mount); err == nil {
			err = t.format(ctx)
		}
		if err == nil {
			err = t.start(ctx, t.mountConfig())
		}
	case Raw:
		if err = t.needRemote(true); err == nil {
			t.Options = "no file system: requests to " + c.Remote.What
		}
	case Fixed:
		err = t.openFixed(ctx, c.FileBytes)
	case ColumnStore:
		err = t.openColumnStore()
	case S3FS, Rclone, JuiceFS, GCSFuse:
		err = t.openPeer(ctx, base)
	default:
		err = fmt.Errorf("no such target %q; there are %v", kind, allKinds)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open target %s: %w", kind, err), t.Close())
	}
	return t, nil
}

// needRemote keeps the object store where it is wanted and forgets the bucket
// directory with it.
func (t *Target) needRemote(want bool) error {
	if want && t.remote == nil {
		return errors.New("it needs an object store: give one with --store")
	}
	if want {
		t.Bucket = ""
	}
	return nil
}

// inRemote says whether the target's volume lies in the object store.
func (t *Target) inRemote() bool { return t.Kind == Store || t.Kind == StoreGS || t.Kind == Bucket }

func (t *Target) url() string {
	if t.inRemote() {
		return t.remote.URL(t.Name)
	}
	return "file://" + t.Bucket
}

func (t *Target) format(ctx context.Context) error {
	argv := []string{t.cistern, "format", t.url()}
	if t.inRemote() {
		argv = append(append([]string{"env"}, t.remote.Env...), argv...)
	} else if err := os.MkdirAll(t.Bucket, 0o755); err != nil {
		return fmt.Errorf("make the store: %w", err)
	}
	_, err := harness.Run(ctx, "", argv...)
	return err
}

// mountConfig is the writable mount of the target's volume, with further flags.
func (t *Target) mountConfig(more ...string) harness.MountConfig {
	args := append(slices.Clone(t.args), more...)
	if t.Kind == Bucket {
		args = append(args, "--durability", "bucket")
	}
	c := harness.CisternMount(t.cistern, t.url(), t.Dir, t.State, args...)
	if t.inRemote() {
		c.Env = t.remote.Env
	}
	return c
}

func (t *Target) start(ctx context.Context, c harness.MountConfig) error {
	ctx, cancel := context.WithTimeout(ctx, mountWait)
	defer cancel()
	m, err := harness.StartMount(ctx, c)
	if err != nil {
		return err
	}
	t.mount = m
	t.Options, err = harness.MountOptions(t.Dir)
	if t.Kind == Bucket {
		t.Options += ", --durability bucket"
	}
	if t.Kind.ofCistern() && len(t.args) > 0 {
		t.Options += ", " + strings.Join(t.args, " ")
	}
	if t.inRemote() {
		t.Options += "; " + t.remote.What
	}
	return err
}

// openFixed makes a volume with one file and mounts its last commit, read-only.
// The file is read once, so that it lies in the cache whole.
func (t *Target) openFixed(ctx context.Context, size int64) error {
	if err := t.format(ctx); err != nil {
		return err
	}
	if err := t.start(ctx, harness.CisternMount(t.cistern, t.url(), t.Dir, t.State)); err != nil {
		return err
	}
	if err := fillFile(filepath.Join(t.Dir, fixedFile), size); err != nil {
		return err
	}
	commit, err := t.sync(ctx)
	if err != nil {
		return err
	}
	if err := t.mount.Umount(ctx); err != nil {
		return err
	}
	t.mount = nil
	t.State += "-fixed"
	if err := t.start(ctx, harness.CisternMount(t.cistern, t.url()+"@"+commit, t.Dir, t.State, "--read-only")); err != nil {
		return err
	}
	return readThrough(filepath.Join(t.Dir, fixedFile))
}

// sync makes everything written so far a commit and returns its number.
func (t *Target) sync(ctx context.Context) (string, error) {
	out, err := harness.Run(ctx, "", t.cistern, "sync", t.Dir)
	if err != nil {
		return "", err
	}
	return harness.CommitNumber(out)
}

// Quiesce waits until the target has nothing to upload.
func (t *Target) Quiesce(ctx context.Context) error {
	if t.mount != nil && t.Kind.isPeer() {
		return t.quiescePeer(ctx)
	}
	if t.mount == nil || t.Kind != Mount && !t.inRemote() {
		return nil
	}
	_, err := t.sync(ctx)
	return errors.Join(err, t.clearStale())
}

// writeBack has the file system below the target's directory write everything
// back, so that the disk has nothing left to do.
func (t *Target) writeBack() error {
	if t.Dir == "" {
		return nil
	}
	f, err := os.Open(filepath.Dir(t.Dir))
	if err != nil {
		return fmt.Errorf("write back: %w", err)
	}
	defer f.Close() // only a directory
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return fmt.Errorf("write back below %s: %w", t.Dir, err)
	}
	return nil
}

// settle waits until nothing has arrived in the target's store for so long.
func (t *Target) settle(ctx context.Context, quiet time.Duration) error {
	m, err := newStoreMeter(t.Bucket)
	if err != nil {
		return err
	}
	return m.settle(ctx, quiet)
}

// PID is the process that serves the target; 0 for a plain directory.
func (t *Target) PID() int {
	if t.mount == nil {
		return 0
	}
	return t.mount.PID()
}

// Close unmounts the target, whatever state it is in. Its files stay.
func (t *Target) Close() error {
	if t.mount == nil {
		return nil
	}
	// The run may have been interrupted: its context is no use here.
	ctx, cancel := context.WithTimeout(context.Background(), umountWait)
	defer cancel()
	return t.mount.Umount(ctx)
}

// localOptions names the file system of a directory and its options.
func localOptions(dir string) (string, error) {
	for {
		if options, err := harness.MountOptions(dir); err != nil || options != "" {
			return options, err
		}
		if dir == "/" {
			return "", errors.New("the root directory is not among the mounts")
		}
		dir = filepath.Dir(dir)
	}
}

// dropPageCache writes everything back and empties the machine's page cache.
func dropPageCache() error {
	syscall.Sync()
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("1\n"), 0o200); err != nil {
		return fmt.Errorf("drop the page cache (needs root): %w", err)
	}
	return nil
}

// procWriteBytes is what a process has caused to be written to local disks,
// in bytes.
func procWriteBytes(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
	if err != nil {
		return 0, fmt.Errorf("read what process %d wrote: %w", pid, err)
	}
	var written, cancelled int64
	for line := range strings.Lines(string(text)) {
		fmt.Sscanf(line, "write_bytes: %d", &written)
		fmt.Sscanf(line, "cancelled_write_bytes: %d", &cancelled)
	}
	return written - cancelled, nil
}
