package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// service is a volume that is open for a command.
type service interface {
	calls
	// close ends the service. For a volume that was opened for a command it
	// commits everything and gives the lease back.
	close(ctx context.Context) error
}

// calls are what commands ask of a volume. Paths are from the volume's top,
// without a slash at either end; "" is the top directory.
type calls interface {
	// stat describes what a path names; a symbolic link is not followed.
	stat(ctx context.Context, name string, slots bool) (entry, error)
	// list calls fn for the names in a directory, or for everything below it, a
	// directory before what is in it. What is no directory is listed as itself.
	list(ctx context.Context, name string, o listOptions, fn func(entry) error) error
	// read copies a file's bytes [off, off+n) to w; n < 0 means to its end.
	read(ctx context.Context, name string, off, n int64, w io.Writer) error
	// put makes a file of r's bytes, which appears, whole and durable in the
	// mount's mode, when it is there to its end; it replaces a file of that name.
	put(ctx context.Context, name string, r io.Reader, o putOptions) (entry, error)
	// symlink makes a symbolic link, which replaces a file or link of that name.
	symlink(ctx context.Context, name, target string, o putOptions) error
	// mkdir makes a directory unless it is there.
	mkdir(ctx context.Context, name string, o putOptions) error
	// remove takes a name away, with all below it when recursive, and says how
	// many names went.
	remove(ctx context.Context, name string, recursive bool) (int64, error)

	sync(ctx context.Context) (metadata.CommitID, error)
	collect(ctx context.Context, dry bool) (collected, error)
	check(ctx context.Context, o checkRequest, fn func(checkEvent) error) (checkResult, error)
}

type listOptions struct {
	recursive bool
	slots     bool
}

type putOptions struct {
	Mode  uint32    // permission bits
	Owner [2]uint32 // user and group
	Mtime int64     // nanoseconds since 1970; 0: now
}

// entry describes a file, directory or other node.
type entry struct {
	Path      text       `json:"path"`
	Inode     uint64     `json:"inode"`
	Mode      uint32     `json:"mode"` // st_mode
	Nlink     uint32     `json:"nlink"`
	UID       uint32     `json:"uid"`
	GID       uint32     `json:"gid"`
	Rdev      uint32     `json:"rdev,omitempty"`
	Size      int64      `json:"size"`
	Staged    int64      `json:"staged,omitempty"`
	Allocated int64      `json:"allocated"`
	Mtime     time.Time  `json:"mtime"`
	Ctime     time.Time  `json:"ctime"`
	Btime     time.Time  `json:"btime"`
	Target    text       `json:"target,omitempty"`
	Slots     *slotsInfo `json:"slots,omitempty"`
}

// slotsInfo says how the last commit stores a file.
type slotsInfo struct {
	Slots       int   `json:"slots"`
	Objects     int   `json:"objects"`
	ObjectBytes int64 `json:"object_bytes"`
	Patches     int   `json:"patches"`
	PatchBytes  int64 `json:"patch_bytes"`
	StoredBytes int64 `json:"stored_bytes"` // of objects and patches in the bucket
}

func (e *entry) dir() bool     { return e.Mode&syscall.S_IFMT == syscall.S_IFDIR }
func (e *entry) regular() bool { return e.Mode&syscall.S_IFMT == syscall.S_IFREG }

// collected is what a collection did or would do.
type collected struct {
	Dead    gateway.Collected `json:"dead"`
	Orphans gateway.Collected `json:"orphans,omitempty"`
	DryRun  bool              `json:"dry_run"`
}

type checkRequest struct {
	Data   bool
	Repair bool
}

// checkEvent is one thing that happens during a check.
type checkEvent struct {
	Problem *checkProblem `json:"problem,omitempty"`
	Done    int64         `json:"done,omitempty"`
	Total   int64         `json:"total,omitempty"`
	Result  *checkResult  `json:"result,omitempty"`
}

type checkProblem struct {
	Path   text   `json:"path,omitempty"`
	Inode  uint64 `json:"inode,omitempty"`
	Offset int64  `json:"offset"`
	Length int64  `json:"length,omitempty"`
	Key    string `json:"key,omitempty"`
	Reason string `json:"reason"`
}

type checkResult struct {
	Commit      metadata.CommitID `json:"commit"`
	Inodes      uint64            `json:"inodes"`
	Slots       int64             `json:"slots"`
	Objects     int64             `json:"objects"`
	Segments    int64             `json:"segments"`
	Commits     int               `json:"commits"`
	Pages       int               `json:"manifest_pages"`
	Bytes       int64             `json:"verified_bytes"`
	Orphans     int               `json:"orphans"`
	OrphanBytes int64             `json:"orphan_bytes,omitempty"`
	Problems    int               `json:"problems"`
	Deleted     int               `json:"deleted_orphans"` // by --repair
	PlainBytes  int64             `json:"plain_bytes"`
	StoredBytes int64             `json:"stored_bytes"`
	Keys        map[string]int64  `json:"encryption_keys,omitempty"` // stored bytes that need each
}

// cleanPath brings a path in a volume into the form that services take.
func cleanPath(name string) (string, error) {
	for part := range strings.SplitSeq(name, "/") {
		if part == ".." {
			return "", usage(fmt.Errorf("path %q: .. is not possible in a volume's paths", name))
		}
	}
	return strings.Trim(path.Clean("/"+name), "/"), nil
}

// pathError is an error about a path in the volume.
func pathError(name string, err error) error {
	return fmt.Errorf("/%s: %w", text(name).shown(), err)
}

// reader opens a volume for a command that only reads: over its owner on this
// machine, else as the bucket has it.
func (a *app) reader(ctx context.Context, arg string) (service, target, error) {
	t, err := a.resolve(arg)
	if err != nil {
		return nil, t, err
	}
	if t.point == "" || t.fixed {
		c, err := a.server(ctx, t)
		if err != nil {
			return nil, t, err
		}
		if c != nil {
			return &remote{c: c}, t, nil
		}
		if t.mount != "" && (!t.fixed || t.follows) {
			a.note("the process that served %s is gone: this is the last commit in %s", t.mount, t.url)
		}
	}
	v, err := a.openView(ctx, t)
	if err != nil {
		return nil, t, err
	}
	return &viewService{reading: reading{viewTree{v.View}}, v: v}, t, nil
}

// view is a gateway.View with the temporary directory that its index is in;
// empty: it is in memory.
type view struct {
	*gateway.View
	dir *tempDir
}

// close gives back what openView took.
func (v *view) close() error { return errors.Join(v.View.Close(), v.dir.remove()) }

// openView reads a volume as of a point from its bucket.
func (a *app) openView(ctx context.Context, t target) (*view, error) {
	s, err := a.openVolume(ctx, t.url)
	if err != nil {
		return nil, err
	}
	sum, err := gateway.Summarize(ctx, s, t.url.String())
	if err != nil {
		return nil, err // before anything is made here
	}
	var n uint64
	if t.point != "" && !t.follows {
		if n, err = resolvePoint(ctx, s, t); err != nil {
			return nil, err
		}
	}
	kv, dir, err := viewKV(&sum.Head)
	if err != nil {
		return nil, err
	}
	v, err := gateway.OpenView(ctx, gateway.ViewOptions{Store: s, Keys: s.keys, URL: t.url.String(), KV: kv, Commit: n})
	if err != nil {
		return nil, errors.Join(err, kv.Close(), dir.remove())
	}
	return &view{View: v, dir: dir}, nil
}

// A volume's index up to about this size is held in memory.
const (
	smallInodes = 10000
	smallBytes  = 4 << 30
)

// smallIndex says whether a commit's index is held in memory.
func smallIndex(head *gateway.CommitInfo) bool {
	return head.Totals.Inodes <= smallInodes && head.Totals.UsedBytes <= smallBytes
}

// viewKV makes a store for the index of a view: in memory, or in a temporary
// directory, which it returns.
func viewKV(head *gateway.CommitInfo) (metadata.KV, *tempDir, error) {
	if smallIndex(head) {
		return metadata.NewMemKV(), nil, nil
	}
	return tempKV(indexPrefix)
}

// tempKV makes a store for an index in a temporary directory.
func tempKV(prefix string) (metadata.KV, *tempDir, error) {
	dir, err := newTempDir(prefix)
	if err != nil {
		return nil, nil, err
	}
	kv, err := metadata.OpenBadgerKV(filepath.Join(dir.path, "index"), quietLogger())
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("temporary index in %s: %w", dir.path, err), dir.remove())
	}
	return kv, dir, nil
}

// writer opens a volume for a command that changes it: over its owner on this
// machine, else by becoming its owner until close.
func (a *app) writer(ctx context.Context, arg string, takeover bool) (service, target, error) {
	t, err := a.resolve(arg)
	if err != nil {
		return nil, t, err
	}
	if t.follows {
		return nil, t, usage(fmt.Errorf("%s follows the volume's writer and changes nothing: give the volume's URL, %s", t.mount, t.url))
	}
	if t.point != "" {
		return nil, t, usage(fmt.Errorf("%s@%s: a point in the past can't be changed", t.url, t.point))
	}
	c, err := a.owner(ctx, t)
	if err != nil {
		return nil, t, err
	}
	if c != nil {
		return &remote{c: c}, t, nil
	}
	s, err := a.openOwn(ctx, t, takeover)
	return s, t, err
}

// commandLocal is what a command that owns a volume takes on the local disk, in bytes:
// at most so much for its journal, and for its cache.
const commandLocal = 256 << 20

// openOwn makes this command the volume's owner, with a state directory of its own,
// or with that of a command that was killed.
func (a *app) openOwn(ctx context.Context, t target, takeover bool) (service, error) {
	s, err := a.openVolume(ctx, t.url)
	if err != nil {
		return nil, err
	}
	// Before anything is made here, and before the lease is taken: a volume whose
	// end can't be read is left as it is.
	if _, err := gateway.Summarize(ctx, s, t.url.String()); err != nil {
		return nil, err
	}
	dir, err := a.leftState(ctx, s)
	left := dir != ""
	if err == nil && !left && takeover {
		err = keepsJournal(ctx, s, t.url.String())
	}
	if err == nil && !left {
		dir, err = a.newCommandState()
	}
	if err != nil {
		return nil, err
	}
	v, err := gateway.Open(ctx, gateway.Options{
		Store: s, Keys: s.keys, URL: t.url.String(), FS: vfs.OS(), StateDir: dir, OpenKV: openKV(quietLogger()),
		CacheBytes: cmp.Or(a.local, commandLocal), JournalBytes: cmp.Or(a.local, commandLocal), KeepFree: keepFree, RequireReleased: true, Takeover: takeover,
		Owner: gateway.HostOwner(dir), Logger: quietLogger(),
	})
	if err != nil && left {
		return nil, err
	}
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir)) // nothing was acknowledged
	}
	for _, err := range a.sweepCommands(v.ID()) {
		a.note("%s", sentence(err))
	}
	return &ownService{live: newLive(v, nil), dir: dir, url: t.url.String()}, nil
}

// keepsJournal refuses to take a volume over for a command while the owner's
// journal lies on this machine: what it holds beyond the bucket would be set
// aside, and a mount with it brings it back.
func keepsJournal(ctx context.Context, s objstore.Store, url string) error {
	l, err := gateway.ReadLease(ctx, s)
	if err != nil {
		return err
	}
	dir := l.Owner.StateDir
	if l.Released || l.Owner.Host != gateway.HostOwner("").Host || dir == "" {
		return nil
	}
	if _, err := os.Stat(filepath.Join(dir, "journal")); err != nil {
		return nil // gone with its machine, or not to be seen
	}
	return fmt.Errorf("%w: the journal in %s may hold what %s has not: mount with --state %s, which takes the lease back at once, and unmount; or remove that directory, if what only it has may go",
		gateway.ErrOwned, dir, url, dir)
}

// ownService is a volume that a command owns while it runs.
type ownService struct {
	*live
	dir, url string
}

// close commits, releases the lease and removes the state directory, which
// stays when something is only there.
func (s *ownService) close(ctx context.Context) error {
	// A signal ends the work, not the commit of what it did.
	err := s.v.Close(context.WithoutCancel(ctx))
	if err != nil {
		again := fmt.Sprintf("cistern mount %s <dir> --state %s", s.url, s.dir)
		return errors.Join(whereLeft(err, s.dir, again), keepCommandState(s.dir))
	}
	if err := dropCommandState(s.dir); err != nil {
		return fmt.Errorf("everything is committed, but the state directory can't be removed: %w", err)
	}
	return nil
}

// finish closes a service after a command's work and returns the error that
// counts.
func finish(ctx context.Context, s service, err error) error {
	cerr := s.close(ctx)
	switch {
	case cerr == nil:
		return err
	case err == nil:
		return cerr
	}
	return errors.Join(err, cerr)
}

// localError turns an error about a local file into a sentence.
func localError(name string, err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		err = pe.Err
	}
	return fmt.Errorf("%s: %w", name, err)
}

// hereError is localError for a command that has paths of this machine and of a
// volume.
func hereError(name string, err error) error {
	return fmt.Errorf("on this machine: %w", localError(name, err))
}

// thereError says the same of an error that begins with a path in the volume.
func thereError(err error) error {
	if err == nil || !strings.HasPrefix(err.Error(), "/") {
		return err
	}
	return fmt.Errorf("in the volume: %w", err)
}
