package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/progress"
)

func (a *app) putCommand() *cobra.Command {
	var takeover, parents bool
	c := &cobra.Command{
		Use: "put <vol> <local file or directory, or -> <path>", Short: "Copy files into a volume", Args: cobra.ExactArgs(3),
		Long: `Copies a file, a directory with all below it, or standard input (-) into a
volume. Each file appears under its name when it is there to its end, and
replaces one of that name. If the path is a directory, or ends with a slash,
the copy goes into it under its own name.

The - for standard input may come first or last: "put <vol> <path> -" is "put
<vol> - <path>". A file that is called - is ./- here and /- in a volume.`,
		Example: `  mariadb-backup --backup --stream=xbstream | cistern put s3://backups/db full.xb -
  tar -c -C /srv data | cistern put s3://backups/db data.tar -`,
	}
	c.Flags().BoolVarP(&parents, "parents", "p", false, "make missing directories of the path")
	c.Flags().BoolVar(&takeover, "takeover", false, "take the volume at once from its owner, which is fenced if it lives")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		from, to := putArgs(args[1], args[2])
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

// putArgs tells what is copied from where it goes, with the - of standard input on
// either side.
func putArgs(first, second string) (from, to string) {
	if second == "-" {
		return second, first
	}
	return first, second
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
		return p.stream(ctx, interruptible(ctx, p.a.stdin), name, 0, putOptions{Mode: 0o644, Owner: callerOwner()})
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

// inputPoll is how long a read of standard input waits before it looks whether the
// command was interrupted, in milliseconds.
const inputPoll = 100

// interruptible lets a read of a pipe or terminal end with ctx: a read that has
// begun would wait for bytes that may never come, and with it the command.
func interruptible(ctx context.Context, r io.Reader) io.Reader {
	f, ok := r.(*os.File)
	if !ok {
		return r
	}
	return &inputReader{ctx, f}
}

type inputReader struct {
	ctx context.Context
	f   *os.File
}

func (r *inputReader) Read(p []byte) (int, error) {
	for {
		if r.ctx.Err() != nil {
			return 0, gateway.ErrInterrupted
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(r.f.Fd()), Events: unix.POLLIN}}, inputPoll)
		switch {
		case err != nil && err != unix.EINTR:
			return 0, fmt.Errorf("wait for standard input: %w", err)
		case n > 0:
			return r.f.Read(p)
		}
	}
}
