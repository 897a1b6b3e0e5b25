package e2e

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

// backend is a directory to put a data directory on, and what serves it.
type backend struct {
	name  string
	dir   string         // where the file system shows
	mount *harness.Mount // nil for a plain directory

	remount func(t *testing.T) *harness.Mount // after a kill; nil for a plain directory
}

func plainBackend(t *testing.T) *backend {
	return &backend{name: "plain", dir: testenv.TempDir(t)}
}

func loopbackBackend(t *testing.T) *backend {
	below, dir := testenv.TempDir(t), filepath.Join(testenv.TempDir(t), "mnt")
	b := &backend{name: "loopback", dir: dir}
	b.remount = func(t *testing.T) *harness.Mount { return testenv.Loopback(t, below, dir) }
	b.mount = b.remount(t)
	return b
}

// cisternBackend formats a volume in a directory and mounts it. The state
// directory stays the same over remounts; flags are added to every mount.
func cisternBackend(t *testing.T, flags ...string) (b *backend, url string) {
	url = "file://" + filepath.Join(testenv.TempDir(t), "bucket")
	if err := os.MkdirAll(url[len("file://"):], 0o755); err != nil {
		t.Fatal(err)
	}
	return mountedAt(t, url, flags...), url
}

// mountedAt formats a volume at url and mounts it.
func mountedAt(t *testing.T, url string, flags ...string) *backend {
	t.Helper()
	testenv.Format(t, url)
	o := testenv.MountOptions{
		Dir:      filepath.Join(testenv.TempDir(t), "mnt"),
		StateDir: filepath.Join(testenv.TempDir(t), "state"),
		Args:     flags,
	}
	b := &backend{name: "cistern", dir: o.Dir}
	b.remount = func(t *testing.T) *harness.Mount { return testenv.Mount(t, url, o) }
	b.mount = b.remount(t)
	return b
}

// killMount ends the mount's program; what follows sees a dead mount point.
func (b *backend) killMount(t *testing.T) {
	t.Helper()
	if err := b.mount.Kill(); err != nil {
		t.Fatal(err)
	}
	b.mount = nil
}

// load is a ledger's writers at work.
type load struct {
	cancel  context.CancelFunc
	done    chan struct{}
	reasons []error
}

// startLoad lets the ledger's writers run until stop or until the server dies.
func startLoad(t *testing.T, l *Ledger, server *harness.MariaDB) *load {
	t.Helper()
	db, err := server.Open("ledger")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w := &load{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		defer db.Close()
		w.reasons = l.Write(ctx, db)
	}()
	t.Cleanup(func() { cancel(); <-w.done })
	return w
}

// stop ends the writers between two transactions and returns why each ended.
func (w *load) stop() []error {
	w.cancel()
	<-w.done
	return w.reasons
}

// waitTotal waits until n transactions are acknowledged or the load has ended.
func (w *load) waitTotal(t *testing.T, l *Ledger, n int) {
	t.Helper()
	for l.Total() < n {
		select {
		case <-w.done:
			t.Fatalf("the load ended at %d of %d transactions: %v", l.Total(), n, w.reasons)
		case <-time.After(5 * time.Millisecond):
		}
	}
}
