package testenv

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
)

// readyWait bounds how long a server or a mount may take to become ready, and
// goodOrder how long it may take to end. They stop a hanging test; no test
// measures against them.
const (
	readyWait = 2 * time.Minute
	goodOrder = 2 * time.Minute
)

// TempDir is t.TempDir with a short path on the local disk, since a Unix
// socket's path has at most 107 bytes.
func TempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "cst-")
	if err != nil {
		t.Fatalf("make a temporary directory: %v", err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Errorf("remove the test's directory: %v", err)
		}
	})
	return dir
}

// Binary compiles a main package of this module and returns the program's path.
// Go's caches make every call but the first cheap; a file lock keeps test
// binaries that run side by side from replacing what the other one starts.
func Binary(t testing.TB, pkg string) string {
	t.Helper()
	root, err := harness.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(root, "bin", "test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	unlock, err := harness.LockFile(filepath.Join(dir, "lock"))
	if err != nil {
		t.Fatal(err)
	}
	path, err := harness.Build(t.Context(), pkg, dir)
	if err := errors.Join(err, unlock()); err != nil {
		t.Fatal(err)
	}
	return path
}

// Cistern returns the path of the cistern binary: what CISTERN_BINARY names, so
// that a released one can be tested, or this module's, built.
func Cistern(t testing.TB) string {
	t.Helper()
	if binary := os.Getenv("CISTERN_BINARY"); binary != "" {
		return binary
	}
	return Binary(t, "./cmd/cistern")
}

// Format makes a volume at url; args are further flags of `cistern format`.
func Format(t testing.TB, url string, args ...string) {
	t.Helper()
	if _, err := harness.Run(t.Context(), "", append([]string{Cistern(t), "format", url}, args...)...); err != nil {
		t.Fatal(err)
	}
}

// MountOptions says where a mount and its state go; empty fields get fresh
// directories of the test's.
type MountOptions struct {
	Dir      string
	StateDir string
	Args     []string // further flags of `cistern mount`
}

// Mount mounts the volume at url and returns when it is ready. At the test's
// end the mount is killed if it still runs; its log is shown when the test failed.
func Mount(t testing.TB, url string, o MountOptions) *harness.Mount {
	t.Helper()
	NeedFUSE(t)
	if o.Dir == "" {
		o.Dir = filepath.Join(TempDir(t), "mnt")
	}
	if o.StateDir == "" {
		o.StateDir = filepath.Join(TempDir(t), "state")
	}
	return startMount(t, harness.CisternMount(Cistern(t), url, o.Dir, o.StateDir, o.Args...))
}

// Loopback shows source under dir through the bare FUSE loopback.
func Loopback(t testing.TB, source, dir string) *harness.Mount {
	t.Helper()
	NeedFUSE(t)
	return startMount(t, harness.LoopbackMount(Binary(t, "./bench/loopback"), source, dir))
}

func startMount(t testing.TB, c harness.MountConfig) *harness.Mount {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyWait)
	defer cancel()
	m, err := harness.StartMount(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log of the mount at %s:\n%s", m.Dir, m.LogTail())
		}
		if err := m.Kill(); err != nil {
			t.Errorf("clean up the mount: %v", err)
		}
	})
	return m
}

// Umount unmounts in good order and fails the test when that fails.
func Umount(t testing.TB, m *harness.Mount) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), goodOrder)
	defer cancel()
	if err := m.Umount(ctx); err != nil {
		t.Fatal(err)
	}
}

// MariaDB makes a server on dataDir, installed but not started when dataDir is
// missing or empty. At the test's end it is killed if it still runs; its error
// log is shown when the test failed.
func MariaDB(t testing.TB, dataDir string, args ...string) *harness.MariaDB {
	t.Helper()
	NeedPrograms(t, "mariadbd", "mariadb-install-db")
	m := &harness.MariaDB{DataDir: dataDir, RunDir: TempDir(t), Args: args}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(m.ErrorLogTail())
		}
		if err := m.Kill(); err != nil {
			t.Errorf("clean up MariaDB: %v", err)
		}
	})
	if entries, err := os.ReadDir(dataDir); err != nil || len(entries) == 0 {
		ctx, cancel := context.WithTimeout(t.Context(), readyWait)
		defer cancel()
		if err := m.Install(ctx); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// StartMariaDB starts the server and returns when it answers.
func StartMariaDB(t testing.TB, m *harness.MariaDB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), readyWait)
	defer cancel()
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
}

// StopMariaDB shuts the server down in good order.
func StopMariaDB(t testing.TB, m *harness.MariaDB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), goodOrder)
	defer cancel()
	if err := m.Stop(ctx); err != nil {
		t.Fatal(err)
	}
}
