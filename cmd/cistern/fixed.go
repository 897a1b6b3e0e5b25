package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cisternfs/cistern/fuse"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

const (
	// fixedName is the directory, in a state directory, of what a mount of a
	// fixed point keeps there: nothing that outlives it. A mount that is written
	// to keeps its own things elsewhere in its state directory.
	fixedName = "fixed"

	pinLifetime = 24 * time.Hour
	unpinWait   = 5 * time.Second // for the pin's end when the store is away
)

// preflightPoint finds what would make a mount of a point fail, and the commit.
func (o *mountOptions) preflightPoint(ctx context.Context, s *store) error {
	if err := foreignState(o.state); err != nil {
		return err
	}
	url := o.t.url.String()
	if _, err := gateway.ReadVolumeDoc(ctx, s, url); err != nil {
		return err
	}
	n, err := resolvePoint(ctx, s, o.t)
	if err != nil {
		return err
	}
	o.commit = n
	return probeLock(o.state)
}

// resolvePoint returns the number of the commit that a target's point names.
func resolvePoint(ctx context.Context, s *store, t target) (uint64, error) {
	n, err := gateway.ResolvePoint(ctx, s, t.url.String(), t.point)
	return n, pointError(err)
}

// pointError makes what names no commit a mistake of usage.
func pointError(err error) error {
	if errors.Is(err, gateway.ErrPoint) || errors.Is(err, gateway.ErrCollected) {
		return usage(fmt.Errorf("%w; `cistern log` lists the commits, `cistern snapshot list` the snapshots", err))
	}
	return err
}

// fixed is one commit of a volume, pinned, for the process that mounts it.
type fixed struct {
	view  *gateway.View
	pin   *gateway.Pin
	point string // as it was given
	state string
	lock  io.Closer
	log   *slog.Logger

	stop  context.CancelFunc
	group sync.WaitGroup // of the goroutine that renews the pin
}

// openFixed pins a commit and reads its metadata.
func openFixed(ctx context.Context, o *mountOptions, s *store, log *slog.Logger) (_ *fixed, err error) {
	if err := os.MkdirAll(o.state, 0o700); err != nil {
		return nil, usage(localError(o.state, err))
	}
	f := &fixed{point: o.t.point, state: o.state, log: log}
	if f.lock, err = vfs.OS().Lock(filepath.Join(o.state, "lock")); err != nil {
		return nil, fmt.Errorf("state directory %s is in use by another mount or command: choose another with --state: %w", o.state, err)
	}
	if err = f.open(ctx, o, s); err != nil {
		return nil, errors.Join(err, f.Close(ctx))
	}
	ctx, f.stop = context.WithCancel(context.WithoutCancel(ctx))
	f.group.Add(1)
	go func() {
		defer f.group.Done()
		f.pin.Keep(ctx, log)
	}()
	return f, nil
}

func (f *fixed) open(ctx context.Context, o *mountOptions, s *store) (err error) {
	url := o.t.url.String()
	dir := filepath.Join(o.state, fixedName)
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove what an earlier mount left: %w", localError(dir, err))
	}
	host := gateway.HostOwner(o.state)
	f.pin, err = gateway.PinCommit(ctx, gateway.PinOptions{
		Store: s, URL: url, Kind: gateway.PinMount, Name: "mount-" + host.Host, Commit: o.commit, Lifetime: pinLifetime,
		Holder: fmt.Sprintf("%s, process %d, mounted on %s", host.Host, host.PID, text(o.dir).shown()),
	})
	if err != nil {
		return err
	}
	info, err := gateway.FindCommit(ctx, s, o.commit, url)
	if err != nil {
		return err
	}
	kv := metadata.KV(metadata.NewMemKV())
	if !smallIndex(&info) {
		index := filepath.Join(dir, "index")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return localError(dir, err)
		}
		if kv, err = metadata.OpenBadgerKV(index, f.log); err != nil {
			return fmt.Errorf("index in %s: %w", index, err)
		}
	}
	f.view, err = gateway.OpenView(ctx, gateway.ViewOptions{
		Store: s, Keys: s.keys, URL: url, KV: kv, Commit: o.commit, Fetches: s.requests.downloads,
		FS: vfs.OS(), CacheDir: filepath.Join(dir, "cache"), CacheBytes: o.cache.Bytes, KeepFree: keepFree, Logger: f.log,
	})
	if err != nil {
		return errors.Join(err, kv.Close())
	}
	return nil
}

func (f *fixed) mount(ctx context.Context, dir string, o fuse.Options) (*fuse.Server, error) {
	o.Passthrough = f.view.Backing
	return fuse.MountView(ctx, f.view, dir, o)
}

func (f *fixed) calls(func(gateway.InodeID, string)) calls {
	return &viewService{reading: reading{viewTree{f.view}}, v: &view{View: f.view}}
}

// Status is the engine's, with what is the mount's.
func (f *fixed) Status() gateway.Status {
	s := f.view.Status()
	s.StateDir, s.Durability = f.state, "none: read-only"
	return s
}

func (f *fixed) ObjectSize() int64 { return f.view.Doc().ObjectSize }

// pointStatus is what `cistern status` shows of a mount of a fixed point beside
// what every mount has.
type pointStatus struct {
	Point string            `json:"point"` // as it was given
	Pin   gateway.PinStatus `json:"pin"`
}

func (f *fixed) pinned() *pointStatus { return &pointStatus{Point: f.point, Pin: f.pin.Status()} }

// Close gives everything back. A pin that can't be deleted is told in the log
// and ends by itself: that is no failure of the unmount.
func (f *fixed) Close(ctx context.Context) error {
	var errs []error
	if f.stop != nil {
		f.stop()
	}
	f.group.Wait()
	if f.view != nil {
		errs = append(errs, f.view.Close())
	}
	dir := filepath.Join(f.state, fixedName)
	if err := os.RemoveAll(dir); err != nil {
		errs = append(errs, localError(dir, err))
	}
	if f.pin != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unpinWait)
		if err := f.pin.Release(ctx); err != nil {
			f.log.Warn("the pin stays and counts until it ends", "key", f.pin.Status().Key, "ends", f.pin.Status().Expiry, "error", err)
		}
		cancel()
	}
	return errors.Join(append(errs, f.lock.Close())...)
}

// dropPointState removes what a read-only mount that was killed left.
func dropPointState(state string) error {
	if state == "" || probeLock(state) != nil {
		return nil // not known, or somebody's by now
	}
	for _, dir := range []string{filepath.Join(state, fixedName), filepath.Join(state, followName, "cache")} {
		if err := os.RemoveAll(dir); err != nil {
			return fmt.Errorf("the mount is taken away, but what it kept stays: %w", localError(dir, err))
		}
	}
	return nil
}

// pointMount returns where a volume is mounted read-only on this machine; empty
// when it is nowhere.
func (a *app) pointMount(ctx context.Context, t target) string {
	for r := range a.allRecords() {
		u, err := objstore.ParseURL(r.URL)
		if err != nil || u.Point == "" {
			continue
		}
		volume := u
		if volume.Point = ""; volume != t.url {
			continue
		}
		if c, _, err := pingSocket(ctx, string(r.Socket), u); c != nil || err != nil {
			return string(r.MountPoint)
		}
	}
	return ""
}

// lapsed says what is wrong with a mount of a fixed point; empty: nothing.
func (p *pointStatus) lapsed() string {
	if p == nil || !p.Pin.Lapsed {
		return ""
	}
	return "the pin of commit " + strconv.FormatUint(p.Pin.Commit.N, 10) + " ended before it could be renewed, and collection may take what is not in the cache: " + p.Pin.Error
}

// writePointStatus writes the status of a mount of a fixed point.
func writePointStatus(w io.Writer, s *mountStatus) {
	row := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	row("volume", "%s", s.Volume)
	row("url", "%s", s.URL)
	row("point", "%s: commit %d of %s, read-only", text(s.Point.Point).shown(), s.Commit.N, s.CommitTime.Format(time.RFC3339))
	row("mounted", "on %s since %s, process %d", s.MountPoint.shown(), s.Started.Format(time.RFC3339), s.PID)
	row("state", "%s", s.StateDir)
	row("health", "%s", healthText(s))
	row("used", "%s in %s", size(s.UsedBytes), count(s.Inodes, "inode"))
	row("cache", "%s of %s, %s in files that the kernel reads, %s, %s", size(s.Cache.Allocated), size(s.Cache.Limit), size(s.Cache.Pinned), count(s.Cache.Hits, "hit"), count(s.Cache.Misses, "miss"))
	row("traffic", "%s fetched", size(s.Fetched))
	ends := "does not end"
	if s.Point.Pin.Expiry != nil {
		ends = "counts until " + s.Point.Pin.Expiry.Format(time.RFC3339)
	}
	row("pin", "%s, %s", s.Point.Pin.Key, ends)
	for _, e := range [][2]string{{"pin error", s.Point.Pin.Error}, {"store error", s.StoreError}, {"cache error", s.Cache.Error}} {
		if e[1] != "" {
			row(e[0], "%s", strings.ReplaceAll(e[1], "\n", "; "))
		}
	}
	if s.Damage > 0 {
		row("damage", "seen %s: `cistern check --data` names it", count(s.Damage, "time"))
	}
}

// writePointTop writes a picture of `cistern top` of such a mount.
func writePointTop(w io.Writer, f *topFrame) {
	s, r := &f.Status, &f.Rates
	fmt.Fprintf(w, "%s\ton %s\t%s\n", s.URL, s.MountPoint.shown(), healthText(s))
	fmt.Fprintf(w, "point\t%s\tcommit %d\tread-only\n", text(s.Point.Point).shown(), s.Commit.N)
	fmt.Fprintf(w, "fetched\t%s/s\t%.1f GET/s\tcache %s of %s, %.0f %% hits\n", size(int64(r.Fetched)), r.Fetches, size(s.Cache.Allocated), size(s.Cache.Limit), 100*r.Hits)
	fmt.Fprintf(w, "used\t%s\t%s\t%s in files that the kernel reads\n", size(s.UsedBytes), count(s.Inodes, "inode"), size(s.Cache.Pinned))
}
