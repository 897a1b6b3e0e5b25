package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// paths cleans the path arguments of a command; none means the top directory.
func paths(args []string) ([]string, error) {
	if len(args) == 0 {
		return []string{""}, nil
	}
	out := make([]string, len(args))
	for i, p := range args {
		var err error
		if out[i], err = cleanPath(p); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// reads runs a command that reads paths of a volume.
func (a *app) reads(c *cobra.Command, f func(ctx context.Context, s service, names []string) error) *cobra.Command {
	return a.readsAfter(c, func() error { return nil }, f)
}

// readsAfter is reads with a look at the flags before the volume is opened.
func (a *app) readsAfter(c *cobra.Command, check func() error, f func(ctx context.Context, s service, names []string) error) *cobra.Command {
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		if err := check(); err != nil {
			return usage(err)
		}
		names, err := paths(args[1:])
		if err != nil {
			return err
		}
		s, _, err := a.reader(ctx, args[0])
		if err != nil {
			return err
		}
		return finish(ctx, s, f(ctx, s, names))
	})
}

func (a *app) lsCommand() *cobra.Command {
	var long, asJSON, self bool
	var o listOptions
	c := &cobra.Command{Use: "ls <vol>[@commit] [path…]", Short: "List files of a volume", Args: cobra.MinimumNArgs(1)}
	c.Flags().BoolVarP(&long, "long", "l", false, "modes, owners, sizes, allocated bytes, times")
	c.Flags().BoolVarP(&o.recursive, "recursive", "R", false, "all below, too")
	c.Flags().BoolVarP(&self, "directory", "d", false, "directories themselves instead of what is in them")
	c.Flags().BoolVar(&o.slots, "slots", false, "how the last commit stores each file; implies -l")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.reads(c, func(ctx context.Context, s service, names []string) error {
		all := []entry{}
		show := func(e entry) error {
			if asJSON {
				all = append(all, e)
				return nil
			}
			return a.showEntry(e, long || o.slots)
		}
		var failed error
		for _, name := range names {
			var err error
			if self {
				var e entry
				if e, err = s.stat(ctx, name, o.slots); err == nil {
					err = show(e)
				}
			} else {
				err = s.list(ctx, name, o, show)
			}
			if err != nil && (len(names) == 1 || exitStatus(err) != exitFailed || ctx.Err() != nil) {
				return err
			}
			if err != nil { // as ls(1): the others are shown
				a.note("%s", sentence(err))
				failed = said(exitFailed)
			}
		}
		if asJSON {
			if err := a.printJSON(all); err != nil {
				return err
			}
		}
		return failed
	})
}

func (a *app) showEntry(e entry, long bool) error {
	name := e.Path.shown()
	if e.Path == "" {
		name = "/"
	}
	if e.dir() && e.Path != "" {
		name += "/"
	}
	if !long {
		return a.say("%s", name)
	}
	if e.Target != "" {
		name += " -> " + e.Target.shown()
	}
	if e.Slots != nil {
		name += "  " + e.Slots.String()
	}
	return a.say("%s %3d %5d %5d %12d %12d %s %s", modeString(e.Mode), e.Nlink, e.UID, e.GID, e.Size, e.Allocated, e.Mtime.Local().Format(timeLayout), name)
}

func (s *slotsInfo) String() string {
	return fmt.Sprintf("[%s, %s of %s, %s of %s]", count(s.Slots, "slot"), count(s.Objects, "object"), size(s.ObjectBytes), count(s.Patches, "patch"), size(s.PatchBytes))
}

// modeString is a mode as ls(1) shows it.
func modeString(mode uint32) string {
	kinds := map[uint32]byte{
		syscall.S_IFDIR: 'd', syscall.S_IFREG: '-', syscall.S_IFLNK: 'l', syscall.S_IFIFO: 'p',
		syscall.S_IFSOCK: 's', syscall.S_IFCHR: 'c', syscall.S_IFBLK: 'b',
	}
	kind, ok := kinds[mode&syscall.S_IFMT]
	if !ok {
		kind = '?'
	}
	b := []byte(string(kind) + "rwxrwxrwx")
	for i := range 9 {
		if mode&(1<<(8-i)) == 0 {
			b[i+1] = '-'
		}
	}
	for _, s := range []struct {
		bit uint32
		at  int
		set byte
	}{{syscall.S_ISUID, 3, 's'}, {syscall.S_ISGID, 6, 's'}, {syscall.S_ISVTX, 9, 't'}} {
		if mode&s.bit == 0 {
			continue
		}
		if b[s.at] == '-' {
			s.set -= 'a' - 'A'
		}
		b[s.at] = s.set
	}
	return string(b)
}

func (a *app) statCommand() *cobra.Command {
	var slots, asJSON bool
	c := &cobra.Command{Use: "stat <vol>[@commit] [path…]", Short: "Show what a volume knows of a file", Args: cobra.MinimumNArgs(1)}
	c.Flags().BoolVar(&slots, "slots", false, "how the last commit stores the file")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.reads(c, func(ctx context.Context, s service, names []string) error {
		all := make([]entry, 0, len(names))
		for _, name := range names {
			e, err := s.stat(ctx, name, slots)
			if err != nil {
				return err
			}
			all = append(all, e)
		}
		if asJSON {
			return a.printJSON(all)
		}
		return a.writeOut(func(w io.Writer) {
			for i := range all {
				writeStat(w, &all[i])
			}
		})
	})
}

func writeStat(w io.Writer, e *entry) {
	row := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
	row("path", "/%s", e.Path.shown())
	row("inode", "%d", e.Inode)
	row("mode", "%s (%04o), %s", modeString(e.Mode), e.Mode&0o7777, count(uint64(e.Nlink), "link"))
	row("owner", "%d:%d", e.UID, e.GID)
	row("size", "%d (%s)", e.Size, size(e.Size))
	if e.Staged > 0 {
		row("staged", "up to %d", e.Staged)
	}
	row("allocated", "%d (%s)", e.Allocated, size(e.Allocated))
	if e.Target != "" {
		row("target", "%s", e.Target.shown())
	}
	const layout = "2006-01-02 15:04:05.000000000 -0700"
	row("modified", "%s", e.Mtime.Local().Format(layout))
	row("changed", "%s", e.Ctime.Local().Format(layout))
	row("born", "%s", e.Btime.Local().Format(layout))
	if e.Slots != nil {
		row("stored", "%s", strings.Trim(e.Slots.String(), "[]"))
	}
}

func (a *app) catCommand() *cobra.Command {
	var off, length int64
	c := &cobra.Command{Use: "cat <vol>[@commit] <path…>", Short: "Write files of a volume to standard output", Args: cobra.MinimumNArgs(2)}
	c.Flags().Int64Var(&off, "offset", 0, "where to begin, in bytes")
	c.Flags().Int64Var(&length, "length", -1, "how many bytes; -1 means to the end")
	check := func() error {
		if off < 0 || length < -1 {
			return fmt.Errorf("--offset %d --length %d: must not be negative, but for the length -1, which means to the end", off, length)
		}
		return nil
	}
	return a.readsAfter(c, check, func(ctx context.Context, s service, names []string) error {
		for _, name := range names {
			if err := s.read(ctx, name, off, length, a.stdout); err != nil {
				return err
			}
		}
		return nil
	})
}

// usedBy is what du counts of a path.
type usedBy struct {
	Path      text       `json:"path"`
	Files     int64      `json:"files"` // names, directories included
	Size      int64      `json:"size"`
	Allocated int64      `json:"allocated"`
	Slots     *slotsInfo `json:"slots,omitempty"`
}

func (a *app) duCommand() *cobra.Command {
	var asJSON, slots bool
	var depth int
	c := &cobra.Command{Use: "du <vol>[@commit] [path…]", Short: "Show what files of a volume take", Args: cobra.MinimumNArgs(1)}
	c.Flags().IntVarP(&depth, "depth", "d", 1, "how far down directories get lines of their own")
	c.Flags().BoolVar(&slots, "slots", false, "how the last commit stores them")
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	check := func() error {
		if depth < 0 {
			return fmt.Errorf("--depth %d: must not be negative", depth)
		}
		return nil
	}
	return a.readsAfter(c, check, func(ctx context.Context, s service, names []string) error {
		var all []usedBy
		for _, name := range names {
			lines, err := diskUsage(ctx, s, name, depth, slots)
			if err != nil {
				return err
			}
			all = append(all, lines...)
		}
		if asJSON {
			return a.printJSON(all)
		}
		return a.writeOut(func(w io.Writer) {
			fmt.Fprintln(w, "SIZE\tALLOCATED\tNAMES\tPATH")
			for _, u := range all {
				fmt.Fprintf(w, "%s\t%s\t%d\t/%s", size(u.Size), size(u.Allocated), u.Files, u.Path.shown())
				if u.Slots != nil {
					fmt.Fprintf(w, "\t%s", u.Slots)
				}
				fmt.Fprintln(w)
			}
		})
	})
}

// diskUsage sums a path up: it, and the directories down to a depth below it. A
// file with several names counts once.
func diskUsage(ctx context.Context, s service, name string, depth int, slots bool) ([]usedBy, error) {
	top, err := s.stat(ctx, name, slots)
	if err != nil {
		return nil, err
	}
	index := map[string]int{}
	var lines []usedBy
	line := func(path string) {
		index[path] = len(lines)
		u := usedBy{Path: text(path)}
		if slots {
			u.Slots = &slotsInfo{}
		}
		lines = append(lines, u)
	}
	line(name)
	linked := map[uint64]bool{}
	count := func(e entry) error {
		again := e.Nlink > 1 && !e.dir() && linked[e.Inode]
		if e.Nlink > 1 && !e.dir() {
			linked[e.Inode] = true
		}
		below := strings.TrimPrefix(strings.TrimPrefix(string(e.Path), name), "/")
		if e.dir() && below != "" && strings.Count(below, "/") < depth {
			line(string(e.Path))
		}
		for path := string(e.Path); ; path = path[:max(strings.LastIndexByte(path, '/'), 0)] {
			if i, ok := index[path]; ok {
				lines[i].add(&e, again)
			}
			if len(path) <= len(name) {
				return nil
			}
		}
	}
	if err := count(top); err != nil || !top.dir() {
		return lines, err
	}
	return lines, s.list(ctx, name, listOptions{recursive: true, slots: slots}, count)
}

func (u *usedBy) add(e *entry, again bool) {
	u.Files++
	if again {
		return
	}
	if e.regular() {
		u.Size += e.Size
	}
	u.Allocated += e.Allocated
	if u.Slots != nil && e.Slots != nil {
		u.Slots.Slots += e.Slots.Slots
		u.Slots.Objects += e.Slots.Objects
		u.Slots.ObjectBytes += e.Slots.ObjectBytes
		u.Slots.Patches += e.Slots.Patches
		u.Slots.PatchBytes += e.Slots.PatchBytes
	}
}

func (a *app) rmCommand() *cobra.Command {
	var recursive, takeover bool
	c := &cobra.Command{Use: "rm <vol> <path…>", Short: "Remove files of a volume", Args: cobra.MinimumNArgs(2)}
	c.Flags().BoolVarP(&recursive, "recursive", "r", false, "directories with all below them")
	c.Flags().BoolVar(&takeover, "takeover", false, "take the volume at once from its owner, which is fenced if it lives")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		names, err := paths(args[1:])
		if err != nil {
			return err
		}
		for _, name := range names {
			if name == "" {
				return usage(fmt.Errorf("the top directory can't be removed; `cistern destroy` deletes a volume"))
			}
		}
		s, _, err := a.writer(ctx, args[0], takeover)
		if err != nil {
			return err
		}
		return finish(ctx, s, func() error {
			for _, name := range names {
				n, err := s.remove(ctx, name, recursive)
				if err != nil {
					return err
				}
				if recursive {
					if err := a.say("/%s: %s removed", text(name).shown(), count(n, "name")); err != nil {
						return err
					}
				}
			}
			return nil
		}())
	})
}

// confirm asks for a word on standard input.
func (a *app) confirm(question, word string) error {
	fmt.Fprintln(a.stderr, question)
	var line bytes.Buffer
	one := make([]byte, 1)
	for line.Len() < 4096 {
		n, err := a.stdin.Read(one)
		if n == 0 && err != nil || n == 1 && one[0] == '\n' {
			break
		}
		line.Write(one[:n])
	}
	if got := strings.TrimSpace(line.String()); got != word {
		return usage(fmt.Errorf("%q is not %q: nothing is changed", got, word))
	}
	return nil
}

// callerOwner is who new files belong to.
func callerOwner() [2]uint32 { return [2]uint32{uint32(os.Geteuid()), uint32(os.Getegid())} }
