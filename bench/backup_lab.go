package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
)

// volume is a mounted volume in a file:// store of the run's own.
type volume struct {
	c      figureConfig
	url    string
	dir    string // where it is mounted
	home   string // everything of it
	mount  *harness.Mount
	clones int
}

// newVolume makes a volume and mounts it; args are further flags of the mount.
func (c figureConfig) newVolume(ctx context.Context, name string, args ...string) (*volume, error) {
	url, err := c.format(ctx, name)
	if err != nil {
		return nil, err
	}
	return c.mountVolume(ctx, name, url, args...)
}

// newBriefVolume is newVolume of one that keeps nothing that it no longer shows:
// copies of a large database that follow each other would fill the disk.
func (c figureConfig) newBriefVolume(ctx context.Context, name string) (*volume, error) {
	url, err := c.format(ctx, name, "--retention", "0")
	if err != nil {
		return nil, err
	}
	return c.mountVolume(ctx, name, url)
}

// format makes a volume below the run's directory of that name; args are further
// flags.
func (c figureConfig) format(ctx context.Context, name string, args ...string) (url string, err error) {
	bucket := filepath.Join(c.base, name, "bucket")
	if err := os.MkdirAll(bucket, 0o755); err != nil {
		return "", fmt.Errorf("make the store: %w", err)
	}
	url = "file://" + filepath.Join(bucket, "v")
	_, err = harness.Run(ctx, "", append([]string{c.Cistern, "format", url}, args...)...)
	return url, err
}

// mountVolume mounts a volume that is there, with fresh local state below the
// run's directory of that name.
func (c figureConfig) mountVolume(ctx context.Context, name, url string, args ...string) (*volume, error) {
	v := &volume{c: c, url: url, home: filepath.Join(c.base, name)}
	v.dir = filepath.Join(v.home, "dir")
	ready, cancel := context.WithTimeout(ctx, mountWait)
	defer cancel()
	var err error
	v.mount, err = harness.StartMount(ready, harness.CisternMount(c.Cistern, url, v.dir, filepath.Join(v.home, "state"), args...))
	return v, err
}

// cistern runs a command.
func (v *volume) cistern(ctx context.Context, args ...string) (string, error) {
	return harness.Run(ctx, "", append([]string{v.c.Cistern}, args...)...)
}

// sync makes everything written so far a commit and returns its number.
func (v *volume) sync(ctx context.Context) (string, error) {
	out, err := v.cistern(ctx, "sync", v.dir)
	if err != nil {
		return "", err
	}
	return harness.CommitNumber(out)
}

// rest waits until everything is committed and written back to the disk.
func (v *volume) rest(ctx context.Context) error {
	_, err := v.sync(ctx)
	return errors.Join(err, dropPageCache())
}

// collect deletes what the store has and nobody needs.
func (v *volume) collect(ctx context.Context) error {
	_, err := v.cistern(ctx, "collect", v.dir)
	return err
}

// clone makes a volume of this one beside it, and returns its URL and the seconds
// that it took. from is the mount, or the volume's URL with a point.
func (v *volume) clone(ctx context.Context, from string) (url string, took float64, err error) {
	v.clones++
	url = fmt.Sprintf("%s-clone-%d", v.url, v.clones)
	begun := time.Now()
	_, err = v.cistern(ctx, "clone", from, url)
	return url, time.Since(begun).Seconds(), err
}

// close unmounts the volume, also one whose clean end failed or a run that was
// interrupted, and removes what it had.
func (v *volume) close(ctx context.Context) error {
	if v == nil {
		return nil
	}
	var err error
	if v.mount != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), umountWait)
		defer cancel()
		err = v.mount.Umount(end)
	}
	return errors.Join(err, os.RemoveAll(v.home))
}

// loadedVolume makes a volume with a MariaDB in its directory db that has
// sysbench's tables.
func (c figureConfig) loadedVolume(ctx context.Context, name string) (v *volume, db *databaseServer, err error) {
	if v, err = c.newVolume(ctx, name); err != nil {
		return nil, nil, err
	}
	if db, err = c.startDatabase(ctx, filepath.Join(name, "dir", "db"), 1); err == nil {
		err = c.loadTables(ctx, db, c.Rows)
	}
	if err != nil {
		return nil, nil, errors.Join(err, db.close(), v.close(ctx))
	}
	return v, db, nil
}

func (c figureConfig) loadTables(ctx context.Context, db *databaseServer, rows int) error {
	if err := db.exec(ctx, "CREATE DATABASE sbtest"); err != nil {
		return err
	}
	_, err := sysbench(ctx, db.MariaDB, rows, "--threads=2", "prepare")
	return err
}

// rowsIn counts the rows of sysbench's tables.
func rowsIn(ctx context.Context, db queryer) (n int64, err error) {
	for i := range oltpTables {
		var k int64
		if err := db.QueryRowContext(ctx, fmt.Sprintf("SELECT COUNT(*) FROM sbtest.sbtest%d", i+1)).Scan(&k); err != nil {
			return 0, fmt.Errorf("count the rows of table %d: %w", i+1, err)
		}
		n += k
	}
	return n, nil
}

// shell runs a pipe of programs; args are its $1 and so on.
func shell(ctx context.Context, script string, args ...string) error {
	_, err := harness.Run(ctx, "", append([]string{"bash", "-eu", "-o", "pipefail", "-c", script, "bash"}, args...)...)
	return err
}

// missingProgram names the first program that the machine lacks; empty when none.
func missingProgram(names ...string) string {
	for _, name := range names {
		if strings.TrimSpace(firstLine("which", name)) == "" {
			return name
		}
	}
	return ""
}
