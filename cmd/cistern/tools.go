package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/objstore"
)

// toolConfig is where Storage Manager's tools find their configuration.
const toolConfig = "/etc/columnstore/storagemanager.cnf"

// tool is one of the names that this program answers to as Storage Manager's tools
// did: what it does, and what it is like.
type tool struct {
	usage string
	least int // arguments
	most  int // -1: any
	run   func(a *app, ctx context.Context, args []string) error
}

func tools() map[string]tool {
	return map[string]tool{
		"smcat":            {"smcat is like 'cat' for files of DBRoots\nUsage: smcat file1 file2 .. fileN", 1, -1, (*app).smcat},
		"smls":             {"smls is like 'ls -l' for files of DBRoots\nUsage: smls directory", 1, 1, (*app).smls},
		"smput":            {"smput reads from stdin and puts it in a file of a DBRoot\nUsage: smput output_file", 1, 1, (*app).smput},
		"smrm":             {"smrm is like 'rm -r' for files of DBRoots, but with no options or globbing\nUsage: smrm file-or-dir1 file-or-dir2 .. file-or-dirN", 1, -1, (*app).smrm},
		"smps":             {"smps shows requests to the object store that are under way\nUsage: smps [options]\nOptions:\n  -n - sort by id\n  -t - sort by running time\n  -r - reverse order", 0, 3, (*app).smps},
		"smkill":           {"smkill ends requests to the object store, which are then repeated\nUsage: smkill <Id>|all", 1, 1, (*app).smkill},
		"testS3Connection": {"testS3Connection tries what volumes need of the object store that storagemanager.cnf names\nUsage: testS3Connection\nReturns Success=0 Failure=1", 0, 0, (*app).testConnection},
	}
}

func isTool(name string) bool { _, ok := tools()[name]; return ok }

// toolNames are all names of links to this program.
func toolNames() []string {
	names := []string{mountHelper}
	for name := range tools() {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func (a *app) toolsCommand() *cobra.Command {
	c := &cobra.Command{Use: "tools", Short: "Names of Storage Manager's tools for this program", Args: cobra.NoArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	install := &cobra.Command{
		Use: "install <dir>", Short: "Make links by which this program is smcat, smls, smput, smrm, smps, smkill, testS3Connection and mount.cistern", Args: cobra.ExactArgs(1),
		Long: `Makes symbolic links to this program in a directory. A link that leads here
already is left; anything else of that name is kept, and told. mount(8) looks for
mount.cistern in /sbin.`,
	}
	c.AddCommand(a.command(install, func(_ context.Context, _ *cobra.Command, args []string) error { return a.installTools(args[0]) }))
	return c
}

func (a *app) installTools(dir string) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	var taken []string
	for _, name := range toolNames() {
		link := filepath.Join(dir, name)
		err := os.Symlink(exe, link)
		if errors.Is(err, fs.ErrExist) {
			if to, rerr := os.Readlink(link); rerr != nil || to != exe {
				taken = append(taken, link)
			}
			continue
		}
		if err != nil {
			return localError(link, err)
		}
	}
	if len(taken) > 0 {
		return fmt.Errorf("%s: something else has the name and is kept: move it away, or choose another directory", strings.Join(taken, ", "))
	}
	return a.say("%s in %s", strings.Join(toolNames(), ", "), dir)
}

// runTool runs as the tool of that name, with its habits: paths begin with the
// DBRoot, and exit status 1 stands for every failure.
func (a *app) runTool(ctx context.Context, name string, args []string) int {
	t := tools()[name]
	if slices.Contains(args, "-h") {
		fmt.Fprintln(a.stdout, t.usage)
		return exitDone
	}
	if len(args) < t.least || t.most >= 0 && len(args) > t.most {
		fmt.Fprintln(a.stderr, t.usage)
		return exitFailed
	}
	if a.configFlag == "" {
		if _, given := a.lookup("CISTERN_CONFIG"); !given {
			a.configFlag = toolConfig
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-a.signals:
			cancel()
		case <-ctx.Done():
		}
	}()
	err := t.run(a, ctx, args)
	cancel()
	<-ended
	if err == nil {
		return exitDone
	}
	if !errors.Is(err, errSaid) {
		fmt.Fprintf(a.stderr, "%s: %s\n", name, sentence(err))
	}
	return exitFailed
}

// toolPath splits a path as the tools have it, data1/dir/file, into the DBRoot's
// volume and the path in it.
func (a *app) toolPath(arg string) (vol, path string, err error) {
	sm, err := a.readStorageManager()
	if err != nil {
		return "", "", err
	}
	clean, err := cleanPath(arg)
	if err != nil {
		return "", "", err
	}
	root, path, _ := strings.Cut(clean, "/")
	if root == "" {
		return "", "", usage(fmt.Errorf("%q names no DBRoot: paths begin with one, like data1/systemFiles", arg))
	}
	u, err := sm.volumeURL(root)
	return u.String(), path, err
}

// eachPath runs a function for each path and goes on after a failure, which is told.
func (a *app) eachPath(ctx context.Context, tool string, args []string, fn func(vol, path string) error) error {
	failed := false
	for _, arg := range args {
		vol, path, err := a.toolPath(arg)
		if err == nil {
			err = fn(vol, path)
		}
		if err != nil {
			failed = true
			fmt.Fprintf(a.stderr, "%s: %s: %s\n", tool, text(arg).shown(), sentence(err))
		}
		if ctx.Err() != nil {
			break
		}
	}
	if failed {
		return said(exitFailed)
	}
	return nil
}

func (a *app) smcat(ctx context.Context, args []string) error {
	return a.eachPath(ctx, "smcat", args, func(vol, path string) error {
		s, _, err := a.reader(ctx, vol)
		if err != nil {
			return err
		}
		return finish(ctx, s, s.read(ctx, path, 0, -1, a.stdout))
	})
}

func (a *app) smls(ctx context.Context, args []string) error {
	clean, err := cleanPath(args[0])
	if err != nil {
		return err
	}
	if clean == "" {
		return a.smlsRoots(ctx)
	}
	vol, path, err := a.toolPath(args[0])
	if err != nil {
		return err
	}
	s, _, err := a.reader(ctx, vol)
	if err != nil {
		return err
	}
	return finish(ctx, s, s.list(ctx, path, listOptions{}, func(e entry) error {
		name := string(e.Path)
		return a.smlsLine(e.dir(), e.Size, e.Mtime, name[strings.LastIndexByte(name, '/')+1:])
	}))
}

func (a *app) smlsLine(dir bool, n int64, at time.Time, name string) error {
	mark := " "
	if dir {
		mark = "d"
	}
	return a.say("%s%14d %s %s", mark, n, at.Format("Jan _2 15:04"), text(name).shown())
}

// smlsRoots lists the DBRoots.
func (a *app) smlsRoots(ctx context.Context) error {
	sm, err := a.readStorageManager()
	if err != nil {
		return err
	}
	names, err := a.findDBRoots(ctx, sm)
	if err != nil {
		return err
	}
	for _, name := range names {
		u, err := sm.volumeURL(name)
		if err != nil {
			return err
		}
		s, _, err := a.reader(ctx, u.String())
		if err != nil {
			return err
		}
		e, err := s.stat(ctx, "", false)
		if err := finish(ctx, s, err); err != nil {
			return err
		}
		if err := a.smlsLine(true, e.Size, e.Mtime, name); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) smput(ctx context.Context, args []string) error {
	vol, path, err := a.toolPath(args[0])
	if err != nil {
		return err
	}
	if path == "" {
		return fmt.Errorf("%s is a DBRoot: name a file in it", args[0])
	}
	s, _, err := a.writer(ctx, vol, false)
	if err != nil {
		return err
	}
	// Directories need no making with Storage Manager.
	for i, c := range path {
		if c == '/' && err == nil {
			err = s.mkdir(ctx, path[:i], putOptions{Mode: 0o755, Owner: callerOwner()})
		}
	}
	if err == nil {
		_, err = s.put(ctx, path, interruptible(ctx, a.stdin), putOptions{Mode: 0o644, Owner: callerOwner()})
	}
	return finish(ctx, s, err)
}

func (a *app) smrm(ctx context.Context, args []string) error {
	return a.eachPath(ctx, "smrm", args, func(vol, path string) error {
		if path == "" {
			return errors.New("it is a whole DBRoot: `cistern destroy` deletes a volume")
		}
		s, _, err := a.writer(ctx, vol, false)
		if err != nil {
			return err
		}
		_, err = s.remove(ctx, path, true)
		return finish(ctx, s, err)
	})
}

// testConnection tries the bucket that the volumes are in. Its first line is the one
// that scripts look for; where no S3 was asked, a second one says so.
func (a *app) testConnection(ctx context.Context, _ []string) error {
	u, err := a.tryConnection(ctx)
	if err == nil {
		err = a.say("S3 Storage Manager Configuration OK")
		if err == nil && u.Scheme != objstore.SchemeS3 {
			err = a.say("No S3 was asked: the volumes of this configuration are below %s, which is fit for them", strings.TrimSuffix(u.String(), "/connectivity_test"))
		}
		return err
	}
	return errors.Join(a.say("S3 Storage Manager Configuration Error:\n%s", sentence(err)), said(exitFailed))
}

// tryConnection returns where it tried.
func (a *app) tryConnection(ctx context.Context) (u objstore.URL, err error) {
	sm, err := a.readStorageManager()
	if err != nil {
		return u, err
	}
	if u, err = sm.volumeURL("connectivity_test"); err != nil {
		return u, err
	}
	if u.Scheme == objstore.SchemeFile {
		u.Path = filepath.Dir(u.Path)
		if err := os.MkdirAll(u.Path, 0o755); err != nil {
			return u, localError(u.Path, err)
		}
	}
	s, err := a.openStore(ctx, u, false, nil)
	if err != nil {
		return u, err
	}
	if err := objstore.Probe(ctx, s.bare()); err != nil {
		return u, err
	}
	if errors.Is(ctx.Err(), context.Canceled) {
		return u, gateway.ErrInterrupted
	}
	return u, nil
}
