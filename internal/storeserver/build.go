package storeserver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/cisternfs/cistern/internal/harness"
)

// tools is where the servers' module lies, below the main module's root.
const tools = "tools/servers"

// program is one server's main package; the binary has the same name.
type program struct {
	name string
	pkg  string // as go build names it within the module of the tools
}

// build returns the path of a server's binary, compiled when it is not there yet.
func build(ctx context.Context, p program) (path string, err error) {
	root, err := harness.ModuleRoot()
	if err != nil {
		return "", err
	}
	module := filepath.Join(root, filepath.FromSlash(tools))
	dir, err := cacheDir(module)
	if err != nil {
		return "", err
	}
	binary := filepath.Join(dir, p.name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache folder of test servers: %w", err)
	}
	unlock, err := harness.LockFile(filepath.Join(dir, "lock"))
	if err != nil {
		return "", fmt.Errorf("cache folder of test servers: %w", err)
	}
	defer func() { err = errors.Join(err, unlock()) }()
	if _, err := os.Stat(binary); err == nil {
		return binary, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("look for %s: %w", binary, err)
	}
	// A build that is cut off must not leave half a program under its name.
	partial := binary + ".partial"
	if _, err := harness.Run(ctx, module, "go", "build", "-ldflags=-s -w", "-o", partial, p.pkg); err != nil {
		return "", fmt.Errorf("build %s: %w", p.name, err)
	}
	if err := os.Rename(partial, binary); err != nil {
		return "", fmt.Errorf("keep %s: %w", p.name, err)
	}
	return binary, nil
}

// cacheDir is the folder for the programs of the module's present state.
func cacheDir(module string) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the user's cache directory: %w", err)
	}
	hash := sha256.New()
	fmt.Fprintln(hash, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	for _, name := range []string{"go.mod", "go.sum", "rclone/main.go"} {
		text, err := os.ReadFile(filepath.Join(module, filepath.FromSlash(name)))
		if err != nil {
			return "", fmt.Errorf("read the module of the test servers: %w", err)
		}
		fmt.Fprintln(hash, name, len(text))
		hash.Write(text)
	}
	return filepath.Join(cache, "cistern-test", hex.EncodeToString(hash.Sum(nil))[:16]), nil
}
