package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/progress"
)

func (a *app) getCommand() *cobra.Command {
	var parallel int
	var skip bool
	c := &cobra.Command{
		Use: "get <vol>[@point] <path> [local file or directory, or -]", Short: "Copy files out of a volume", Args: cobra.RangeArgs(2, 3),
		Long: `Copies a file, or a directory with all below it, out of a volume: to a name in
the current directory, to the local path that is given, or to standard output
(-). Each file appears under its name when it is there to its end. Of a
directory, several files are copied at a time, and the first error ends all.

Symbolic links are made as they are, modes and times of change of files are kept;
what is made belongs to who runs the command (` + "`cistern export` keeps owners, and\n`cistern clone --to` keeps all" + `), and each name of a file with several becomes a
file of its own. Devices and pipes can't be got: they are named, and the exit
status is 1 at the end unless --skip-special says that they may be left out. A
socket holds nothing and is left out.`,
		Example: `  cistern get s3://backups/db full.xb - | mbstream -x -C /srv/restored
  cistern get s3://backups/db@before-upgrade shop /srv/restored`,
	}
	c.Flags().IntVar(&parallel, "concurrency", getParallel, fmt.Sprintf("files of a directory that are copied at a time, 1 to %d", maxGetParallel))
	c.Flags().BoolVar(&skip, "skip-special", false, skipSpecialHelp)
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		if parallel < 1 || parallel > maxGetParallel {
			return usage(fmt.Errorf("--concurrency %d: must be 1 to %d", parallel, maxGetParallel))
		}
		name, err := cleanPath(args[1])
		if err != nil {
			return err
		}
		s, _, err := a.reader(ctx, args[0])
		if err != nil {
			return err
		}
		to := ""
		if len(args) == 3 {
			to = args[2]
		}
		g := &getter{a: a, s: s, parallel: parallel, special: specials{a: a, skip: skip}}
		return finish(ctx, s, g.run(ctx, name, to))
	})
}

// Files of a directory that are copied at a time; each takes a buffer of readPiece.
const (
	getParallel    = 8
	maxGetParallel = 64
)

// getter copies out of a volume.
type getter struct {
	a *app
	s service
	// all: it is an export, which keeps owners and tells of the sum alone.
	all      bool
	parallel int           // files of a directory at a time
	bar      *progress.Bar // of the directory; nil for a single file
	special  specials      // what of it is left out
	dirs     []gotDir      // of an export: parents before what is in them

	mu           sync.Mutex // guards what follows, and lines about files
	files, bytes int64
}

// gotDir is a directory that was made.
type gotDir struct {
	entry
	to string
}

func (g *getter) run(ctx context.Context, name, to string) error {
	e, err := g.s.stat(ctx, name, false)
	if err != nil {
		return thereError(err)
	}
	if to == "-" {
		return thereError(g.s.read(ctx, name, 0, -1, g.a.stdout))
	}
	base := path.Base(name)
	if name == "" {
		base = ""
	}
	switch st, err := os.Stat(to); {
	case to == "" && base == "":
		return usage(errors.New("the top directory has no name: say where to copy it"))
	case to == "":
		to = base
	case err == nil && st.IsDir() && base != "":
		to = filepath.Join(to, base)
	}
	if !e.dir() {
		if err := errors.Join(g.node(ctx, e, to), g.special.err()); err != nil {
			return err
		}
		return syncDir(filepath.Dir(to))
	}
	return g.dir(ctx, e, name, to)
}

// syncDir makes the names in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return hereError(dir, err)
	}
	defer f.Close() // it was synced
	if err := f.Sync(); err != nil {
		return hereError(dir, err)
	}
	return nil
}

// syncFS makes everything in a directory's file system durable.
func syncFS(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return localError(dir, err)
	}
	defer f.Close() // only read
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return localError(dir, err)
	}
	return nil
}

// dir copies a directory. One goroutine walks and makes directories and links, so
// that a directory is there before its files; it waits while as many others as may
// run copy files. The first error of any ends all. What is there when it has
// succeeded is durable.
func (g *getter) dir(ctx context.Context, top entry, name, to string) error {
	if err := g.directory(top, to); err != nil {
		return err
	}
	made, err := os.Open(to)
	if err != nil {
		return hereError(to, err)
	}
	defer made.Close() // only read
	total, err := g.total(ctx, name)
	if err != nil {
		return err
	}
	g.bar = progress.Start(g.a.stderr, g.a.terminal, to, total)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(g.parallel + 1)
	group.Go(func() error {
		return thereError(g.s.list(ctx, name, listOptions{recursive: true}, func(e entry) error {
			rel := strings.TrimPrefix(strings.TrimPrefix(string(e.Path), name), "/")
			local := filepath.Join(to, filepath.FromSlash(rel))
			if !e.regular() {
				return g.node(ctx, e, local)
			}
			group.Go(func() error {
				if ctx.Err() != nil {
					return gateway.ErrInterrupted // while it waited for its turn
				}
				return g.file(ctx, e, local)
			})
			return nil
		}))
	})
	err = group.Wait()
	if err == nil {
		err = g.directories()
	}
	if err == nil {
		if serr := unix.Syncfs(int(made.Fd())); serr != nil {
			err = hereError(to, serr)
		}
	}
	g.bar.Done(err == nil)
	if err == nil {
		err = g.special.err()
	}
	if err != nil || g.all {
		return err
	}
	return g.a.say("%s: %s, %s", to, count(g.files, "file"), size(g.bytes))
}

// total is how many bytes a directory's files have, for a bar that is seen.
func (g *getter) total(ctx context.Context, name string) (sum int64, err error) {
	if !g.a.terminal {
		return 0, nil
	}
	err = g.s.list(ctx, name, listOptions{recursive: true}, func(e entry) error {
		if e.regular() {
			sum += e.Size
		}
		return nil
	})
	return sum, thereError(err)
}

func makeDir(dir string, mode uint32) error {
	err := os.Mkdir(dir, fs.FileMode(mode&0o777)|0o700)
	if errors.Is(err, fs.ErrExist) {
		if st, serr := os.Stat(dir); serr == nil && st.IsDir() {
			return nil
		}
	}
	if err != nil {
		return hereError(dir, err)
	}
	return nil
}

func (g *getter) node(ctx context.Context, e entry, to string) error {
	switch e.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		return g.directory(e, to)
	case syscall.S_IFLNK:
		return g.link(e, to)
	case syscall.S_IFREG:
		return g.file(ctx, e, to)
	}
	g.special.leave("/"+e.Path.shown(), e.Mode&syscall.S_IFMT == syscall.S_IFSOCK)
	return nil
}

func (g *getter) directory(e entry, to string) error {
	if g.all {
		g.dirs = append(g.dirs, gotDir{e, to})
	}
	return makeDir(to, e.Mode)
}

// directories gives an export's directories what they have in the volume, when all
// that is in them is there.
func (g *getter) directories() error {
	for _, d := range slices.Backward(g.dirs) {
		for _, step := range []func() error{
			func() error { return g.own(d.entry, d.to) },
			func() error { return os.Chmod(d.to, fs.FileMode(d.Mode&0o777)) },
			func() error { return os.Chtimes(d.to, d.Mtime, d.Mtime) },
		} {
			if err := step(); err != nil {
				return hereError(d.to, err)
			}
		}
	}
	return nil
}

// link makes a symbolic link, in the place of one that is there.
func (g *getter) link(e entry, to string) error {
	err := os.Symlink(string(e.Target), to)
	if st, serr := os.Lstat(to); errors.Is(err, fs.ErrExist) && serr == nil && st.Mode().Type() == fs.ModeSymlink {
		if err = os.Remove(to); err == nil {
			err = os.Symlink(string(e.Target), to)
		}
	}
	if err == nil {
		err = g.own(e, to)
	}
	if err == nil && g.all {
		at := unix.NsecToTimespec(e.Mtime.UnixNano())
		err = unix.UtimesNanoAt(unix.AT_FDCWD, to, []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW)
	}
	if err != nil {
		return hereError(to, err)
	}
	return nil
}

// own gives what was made its owner, if that is to be kept and can be.
func (g *getter) own(e entry, to string) error {
	if !g.all || os.Geteuid() != 0 {
		return nil
	}
	return os.Lchown(to, int(e.UID), int(e.GID))
}

// file copies to a file that gets its name when it is whole.
func (g *getter) file(ctx context.Context, e entry, to string) (err error) {
	f, err := createNew(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.drop())
		}
	}()
	bar := g.bar
	if bar == nil {
		bar = progress.Start(g.a.stderr, g.a.terminal, string(e.Path), e.Size)
	}
	err = g.s.read(ctx, string(e.Path), 0, -1, bar.Writer(f))
	if g.bar == nil {
		bar.Done(err == nil)
	}
	if err != nil {
		return thereError(err)
	}
	if g.all && os.Geteuid() == 0 {
		if err := f.Chown(int(e.UID), int(e.GID)); err != nil {
			return hereError(to, err)
		}
	}
	if err := f.place(to, fs.FileMode(e.Mode&0o777), e.Mtime); err != nil {
		return hereError(to, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.files++
	g.bytes += e.Size
	if g.all || g.bar != nil && g.a.terminal {
		return nil // the bar shows it, or the sum is told
	}
	return g.a.say("%s: %d bytes", to, e.Size)
}
