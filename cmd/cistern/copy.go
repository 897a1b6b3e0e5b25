package main

import (
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

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/internal/progress"
)

func (a *app) putCommand() *cobra.Command {
	var takeover, parents bool
	c := &cobra.Command{
		Use: "put <vol> <local file or directory, or -> <path>", Short: "Copy files into a volume", Args: cobra.ExactArgs(3),
		Long: `Copies a file, a directory with all below it, or standard input (-) into a
volume. Each file appears under its name when it is there to its end, and
replaces one of that name. If the path is a directory, or ends with a slash,
the copy goes into it under its own name.`,
	}
	c.Flags().BoolVarP(&parents, "parents", "p", false, "make missing directories of the path")
	c.Flags().BoolVar(&takeover, "takeover", false, "take the volume at once from its owner, which is fenced if it lives")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		from, to := args[1], args[2]
		name, err := cleanPath(to)
		if err != nil {
			return err
		}
		var st os.FileInfo
		if from != "-" {
			// Before the volume is opened: a mistyped name changes nothing.
			if st, err = os.Stat(from); err != nil {
				return localError(from, err)
			}
			if !st.IsDir() && !st.Mode().IsRegular() && st.Mode()&fs.ModeNamedPipe == 0 {
				return usage(fmt.Errorf("%s is neither a file nor a directory", from))
			}
		} else if name == "" || strings.HasSuffix(to, "/") {
			return usage(errors.New("standard input has no name: give one in the path"))
		}
		s, _, err := a.writer(ctx, args[0], takeover)
		if err != nil {
			return err
		}
		p := &putter{a: a, s: s}
		return finish(ctx, s, p.run(ctx, from, name, strings.HasSuffix(to, "/"), parents, st))
	})
}

// putter copies into a volume.
type putter struct {
	a *app
	s service
}

func (p *putter) run(ctx context.Context, from, name string, into, parents bool, st os.FileInfo) error {
	if from != "-" {
		e, err := p.s.stat(ctx, name, false)
		if into || err == nil && e.dir() {
			abs, err := filepath.Abs(from)
			if err != nil {
				return localError(from, err)
			}
			name = join(name, filepath.Base(abs))
		}
	}
	if parents {
		for i, c := range name {
			if c == '/' {
				if err := p.s.mkdir(ctx, name[:i], putOptions{Mode: 0o755, Owner: callerOwner()}); err != nil {
					return err
				}
			}
		}
	}
	switch {
	case from == "-":
		return p.stream(ctx, p.a.stdin, name, 0, putOptions{Mode: 0o644, Owner: callerOwner()})
	case st.IsDir():
		return p.dir(ctx, from, name)
	}
	return p.file(ctx, from, name, st)
}

func localPut(st os.FileInfo) putOptions {
	return putOptions{Mode: uint32(st.Mode().Perm()), Mtime: st.ModTime().UnixNano(), Owner: callerOwner()}
}

func (p *putter) dir(ctx context.Context, from, name string) error {
	return filepath.WalkDir(from, func(local string, d fs.DirEntry, err error) error {
		if err != nil {
			return localError(local, err)
		}
		rel, err := filepath.Rel(from, local)
		if err != nil {
			return localError(local, err)
		}
		to := name
		if rel != "." {
			to = join(name, filepath.ToSlash(rel))
		}
		st, err := d.Info()
		if err != nil {
			return localError(local, err)
		}
		switch {
		case d.IsDir():
			return p.s.mkdir(ctx, to, localPut(st))
		case d.Type().IsRegular():
			return p.file(ctx, local, to, st)
		}
		p.a.note("%s is neither a file nor a directory and is left out", local)
		return nil
	})
}

func (p *putter) file(ctx context.Context, local, name string, st os.FileInfo) error {
	f, err := os.Open(local)
	if err != nil {
		return localError(local, err)
	}
	defer f.Close() // only read
	return p.stream(ctx, f, name, st.Size(), localPut(st))
}

func (p *putter) stream(ctx context.Context, r io.Reader, name string, total int64, o putOptions) error {
	bar := progress.Start(p.a.stderr, p.a.terminal, name, total)
	e, err := p.s.put(ctx, name, bar.Reader(r), o)
	bar.Done(err == nil)
	if err != nil {
		return err
	}
	return p.a.say("/%s: %d bytes", text(name).shown(), e.Size)
}

func (a *app) getCommand() *cobra.Command {
	c := &cobra.Command{
		Use: "get <vol>[@commit] <path> [local file or directory, or -]", Short: "Copy files out of a volume", Args: cobra.RangeArgs(2, 3),
		Long: `Copies a file, or a directory with all below it, out of a volume: to a name in
the current directory, to the local path that is given, or to standard output
(-). Each file appears under its name when it is there to its end.`,
	}
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
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
		g := &getter{a: a, s: s}
		return finish(ctx, s, g.run(ctx, name, to))
	})
}

// getter copies out of a volume.
type getter struct {
	a *app
	s service
	// all: it is an export, which keeps owners and tells of the sum alone.
	all          bool
	files, bytes int64
}

func (g *getter) run(ctx context.Context, name, to string) error {
	e, err := g.s.stat(ctx, name, false)
	if err != nil {
		return err
	}
	if to == "-" {
		return g.s.read(ctx, name, 0, -1, g.a.stdout)
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
		return g.node(ctx, e, to)
	}
	if err := makeDir(to, e.Mode); err != nil {
		return err
	}
	return g.s.list(ctx, name, listOptions{recursive: true}, func(e entry) error {
		rel := strings.TrimPrefix(strings.TrimPrefix(string(e.Path), name), "/")
		return g.node(ctx, e, filepath.Join(to, filepath.FromSlash(rel)))
	})
}

func makeDir(dir string, mode uint32) error {
	err := os.Mkdir(dir, fs.FileMode(mode&0o777)|0o700)
	if errors.Is(err, fs.ErrExist) {
		if st, serr := os.Stat(dir); serr == nil && st.IsDir() {
			return nil
		}
	}
	if err != nil {
		return localError(dir, err)
	}
	return nil
}

func (g *getter) node(ctx context.Context, e entry, to string) error {
	switch e.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		if err := makeDir(to, e.Mode); err != nil {
			return err
		}
		return g.own(e, to)
	case syscall.S_IFLNK:
		if err := os.Symlink(string(e.Target), to); err != nil {
			return localError(to, err)
		}
		return g.own(e, to)
	case syscall.S_IFREG:
		return g.file(ctx, e, to)
	}
	g.a.note("/%s is neither a file, a directory nor a link and is left out", e.Path.shown())
	return nil
}

// own gives what was made its owner, if that is to be kept and can be.
func (g *getter) own(e entry, to string) error {
	if !g.all || os.Geteuid() != 0 {
		return nil
	}
	if err := os.Lchown(to, int(e.UID), int(e.GID)); err != nil {
		return localError(to, err)
	}
	return nil
}

// file copies to a hidden name beside the wanted one and renames.
func (g *getter) file(ctx context.Context, e entry, to string) (err error) {
	f, err := os.CreateTemp(filepath.Dir(to), ".cistern-get-")
	if err != nil {
		return localError(filepath.Dir(to), err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, ignoreClosed(f.Close()), os.Remove(f.Name()))
		}
	}()
	bar := progress.Start(g.a.stderr, g.a.terminal, string(e.Path), e.Size)
	err = g.s.read(ctx, string(e.Path), 0, -1, bar.Writer(f))
	bar.Done(err == nil)
	if err != nil {
		return err
	}
	for _, step := range []func() error{
		func() error { return g.own(e, f.Name()) },
		func() error { return f.Chmod(fs.FileMode(e.Mode & 0o777)) },
		f.Sync,
		f.Close,
		func() error { return os.Chtimes(f.Name(), e.Mtime, e.Mtime) },
		func() error { return os.Rename(f.Name(), to) },
	} {
		if err := step(); err != nil {
			return localError(to, err)
		}
	}
	g.files++
	g.bytes += e.Size
	if g.all {
		return nil
	}
	return g.a.say("%s: %d bytes", to, e.Size)
}

func ignoreClosed(err error) error {
	if errors.Is(err, fs.ErrClosed) {
		return nil
	}
	return err
}
