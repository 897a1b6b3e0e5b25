package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// ErrNotToBeHad is the error of a server that its registry says it has not; one
// that can't be reached is a failure.
var ErrNotToBeHad = errors.New("there is no such server to fetch")

// notToBeHad is the exit status of scripts/fetch-server.sh for such a server.
const notToBeHad = 3

// CacheDir is where fetched servers lie, which runs share; it is made when missing.
func CacheDir() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w", err)
	}
	dir = filepath.Join(dir, "cistern-test")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the cache directory: %w", err)
	}
	return dir, nil
}

// LockFile takes a file lock, waiting for who has it, and returns what releases it.
func LockFile(path string) (unlock func() error, err error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f.Close, nil
}

// FetchServer brings the server of a kind of scripts/fetch-server.sh into CacheDir,
// unless it is there, and returns its directory. ErrNotToBeHad with what the script
// printed when there is none.
func FetchServer(ctx context.Context, kind string) (dir string, err error) {
	root, err := ModuleRoot()
	if err != nil {
		return "", err
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(cache, kind)
	unlock, err := LockFile(dir + ".lock")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	out, err := exec.CommandContext(ctx, filepath.Join(root, "scripts", "fetch-server.sh"), kind, dir).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == notToBeHad {
		return "", fmt.Errorf("server %s: %w:\n%s", kind, ErrNotToBeHad, out)
	}
	if err != nil {
		return "", fmt.Errorf("fetch the server %s: %w\n%s", kind, err, out)
	}
	return dir, nil
}

// MySQLProgram is the command line of a fetched MySQL up to its options.
func MySQLProgram(dir string) []string {
	base := filepath.Join(dir, "root", "usr")
	return []string{
		filepath.Join(dir, "run"), "usr/sbin/mysqld", "--no-defaults", "--basedir=" + base, "--lc-messages-dir=" + filepath.Join(base, "share/mysql"),
		"--character-sets-dir=" + filepath.Join(base, "share/mysql/charsets"), "--plugin-dir=" + filepath.Join(base, "lib/mysql/plugin"),
		"--mysqlx=OFF", "--secure-file-priv=",
	}
}
