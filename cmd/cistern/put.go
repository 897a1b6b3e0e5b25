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
	var takeover, parents, skip bool
	c := &cobra.Command{
		Use: "put <vol> <local file or directory, or -> <path>", Short: "Copy files into a volume", Args: cobra.ExactArgs(3),
		Long: `Copies a file, a directory with all below it, or standard input (-) into a
volume. Each file appears under its name when it is there to its end, and
replaces one of that name. If the path is a directory, or ends with a slash,
the copy goes into it under its own name.

Symbolic links in a directory are stored as links, one that is named itself is
followed. Modes and times of change are kept; what is made belongs to who runs the
command, and each name of a file with several becomes a file of its own. Devices
and pipes can't be put: they are named, and the exit status is 1 at the end unless
--skip-special says that they may be left out. A socket holds nothing and is left
out.

The - for standard input may come first or last: "put <vol> <path> -" is "put
<vol> - <path>". A file that is called - is ./- here and /- in a volume.`,
		Example: `  mariadb-backup --backup --stream=xbstream | cistern put s3://backups/db full.xb -
  tar -c -C /srv data | cistern put s3://backups/db data.tar -`,
	}
	c.Flags().BoolVarP(&parents, "parents", "p", false, "make missing directories of the path")
	c.Flags().BoolVar(&skip, "skip-special", false, skipSpecialHelp)
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
				return hereError(from, err)
			}
			if !st.IsDir() && !st.Mode().IsRegular() && st.Mode()&fs.ModeNamedPipe == 0 {
				return usage(fmt.Errorf("on this machine: %s is neither a file nor a directory", from))
			}
		} else if name == "" || strings.HasSuffix(to, "/") {
			return usage(errors.New("standard input has no name: give one in the path"))
		}
		s, _, err := a.writer(ctx, args[0], takeover)
		if err != nil {
			return err
		}
		p := &putter{a: a, s: s, special: specials{a: a, skip: skip}}
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
	a       *app
	s       service
	special specials
}

const skipSpecialHelp = "leave devices and pipes out without a failure"

// specials are the things of a directory that are no files, directories or links.
type specials struct {
	a    *app
	skip bool // they may be left out
	left int
}

// leave leaves one out, and says so.
func (s *specials) leave(name string, socket bool) {
	if socket {
		s.a.note("%s is a socket, which holds nothing, and is left out", name)
		return
	}
	s.a.note("%s is a device or pipe and is left out", name)
	if !s.skip {
		s.left++
	}
}

func were(n int) string {
	if n == 1 {
		return "1 device or pipe was"
	}
	return fmt.Sprintf("%d devices or pipes were", n)
}

// err is the failure at the end, when something was left out that might be missed.
func (s *specials) err() error {
	if s.left == 0 {
		return nil
	}
	return fmt.Errorf("%s left out, and everything else is copied: --skip-special says that this is right", were(s.left))
}

func (p *putter) run(ctx context.Context, from, name string, into, parents bool, st os.FileInfo) error {
	if from != "-" {
		e, err := p.s.stat(ctx, name, false)
		if into || err == nil && e.dir() {
			abs, err := filepath.Abs(from)
			if err != nil {
				return hereError(from, err)
			}
			name = join(name, filepath.Base(abs))
		}
	}
	if parents {
		for i, c := range name {
			if c == '/' {
				if err := p.s.mkdir(ctx, name[:i], putOptions{Mode: 0o755, Owner: callerOwner()}); err != nil {
					return thereError(err)
				}
			}
		}
	}
	switch {
	case from == "-":
		return p.stream(ctx, interruptible(ctx, p.a.stdin), name, 0, putOptions{Mode: 0o644, Owner: callerOwner()})
	case st.IsDir():
		if err := p.dir(ctx, from, name); err != nil {
			return err
		}
		return p.special.err()
	}
	return p.file(ctx, from, name, st)
}

func localPut(st os.FileInfo) putOptions {
	return putOptions{Mode: uint32(st.Mode().Perm()), Mtime: st.ModTime().UnixNano(), Owner: callerOwner()}
}

func (p *putter) dir(ctx context.Context, from, name string) error {
	return filepath.WalkDir(from, func(local string, d fs.DirEntry, err error) error {
		if err != nil {
			return hereError(local, err)
		}
		rel, err := filepath.Rel(from, local)
		if err != nil {
			return hereError(local, err)
		}
		to := name
		if rel != "." {
			to = join(name, filepath.ToSlash(rel))
		}
		st, err := d.Info()
		if err != nil {
			return hereError(local, err)
		}
		switch {
		case d.IsDir():
			return thereError(p.s.mkdir(ctx, to, localPut(st)))
		case d.Type().IsRegular():
			return p.file(ctx, local, to, st)
		case d.Type() == fs.ModeSymlink:
			return p.link(ctx, local, to, st)
		}
		p.special.leave(local, d.Type() == fs.ModeSocket)
		return nil
	})
}

// link stores a symbolic link as it is, whether it leads anywhere or not.
func (p *putter) link(ctx context.Context, local, name string, st os.FileInfo) error {
	target, err := os.Readlink(local)
	if err != nil {
		return hereError(local, err)
	}
	if err := p.s.symlink(ctx, name, target, localPut(st)); err != nil {
		return thereError(err)
	}
	return p.a.say("/%s -> %s", text(name).shown(), text(target).shown())
}

func (p *putter) file(ctx context.Context, local, name string, st os.FileInfo) error {
	f, err := os.Open(local)
	if err != nil {
		return hereError(local, err)
	}
	defer f.Close() // only read
	return p.stream(ctx, f, name, st.Size(), localPut(st))
}

func (p *putter) stream(ctx context.Context, r io.Reader, name string, total int64, o putOptions) error {
	bar := progress.Start(p.a.stderr, p.a.terminal, name, total)
	e, err := p.s.put(ctx, name, bar.Reader(r), o)
	bar.Done(err == nil)
	if err != nil {
		return thereError(err)
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
