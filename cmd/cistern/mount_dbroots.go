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
	"syscall"

	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/fuse"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// dbroot is one of ColumnStore's DBRoots: a volume, and where it is to be mounted.
type dbroot struct {
	name string
	url  objstore.URL
	dir  string
}

// mountDBRoots mounts the DBRoots that the configuration file tells of, each as a
// volume of its own with a process of its own.
func (a *app) mountDBRoots(ctx context.Context, c *cobra.Command, o *mountOptions, dir string) error {
	roots, err := a.dbroots(ctx, o.dbroots, dir)
	if err != nil {
		return a.tellParent(o, err)
	}
	if o.dbroot != "" {
		roots = slices.DeleteFunc(roots, func(r dbroot) bool { return r.name != o.dbroot })
	}
	if len(roots) > 1 && (o.foreground || o.metrics != "") {
		return usage(errors.New("--foreground and --metrics-addr are for one volume: mount the DBRoots one by one"))
	}
	file, err := a.readConfig()
	if err == nil {
		err = a.applyMountFile(o, c.Flags(), file)
	}
	if err != nil {
		return a.tellParent(o, usage(err))
	}
	var all error
	base := *o
	for _, r := range roots {
		if err := a.mountDBRoot(ctx, c, o, &base, r, len(roots) > 1); err != nil {
			all = errors.Join(all, fmt.Errorf("%s: %w", r.name, err))
			if len(roots) > 1 {
				a.note("%s is not mounted: %s", r.name, sentence(err))
			}
		}
	}
	if all != nil && len(roots) > 1 {
		return said(exitStatus(all))
	}
	return all
}

func (a *app) mountDBRoot(ctx context.Context, c *cobra.Command, o, base *mountOptions, r dbroot, several bool) error {
	o.state, o.logFile, o.fuse = base.state, base.logFile, fuse.Options{}
	if several && o.state != "" {
		o.state = filepath.Join(o.state, r.name)
	}
	if several && o.logFile != "" {
		o.logFile += "." + r.name
	}
	o.argv = withFlags(a.commandLine(), "--one-dbroot="+r.name)
	if several && base.state != "" {
		o.argv = withFlags(o.argv, "--state="+o.state)
	}
	if err := makeMountPoint(r.dir); err != nil {
		return a.tellParent(o, err)
	}
	return a.mountVolume(ctx, c, o, []string{r.url.String(), r.dir})
}

// makeMountPoint makes the directory that a DBRoot is mounted on, in a directory
// that is there.
func makeMountPoint(dir string) error {
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return usage(localError(dir, err))
	}
	return nil
}

// dbroots finds out which volumes are to be mounted and where: those that were
// named, else those of the configuration file, else all that there are.
func (a *app) dbroots(ctx context.Context, named []string, dir string) ([]dbroot, error) {
	sm, err := a.readStorageManager()
	if err != nil {
		return nil, err
	}
	if sm.file == "" {
		return nil, usage(errors.New("say which volume to mount (`cistern mount <url> <dir>`), or name storagemanager.cnf with --config"))
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, usage(localError(dir, err))
	}
	depth := strings.Count(strings.TrimSuffix(abs, "/"), "/")
	names, at := named, abs
	switch depth {
	case sm.depth + 1:
		if len(named) > 0 {
			return nil, usage(fmt.Errorf("%s is one DBRoot's directory (common_prefix_depth = %d): leave --dbroot out, or name the directory above", abs, sm.depth))
		}
		names, at = []string{filepath.Base(abs)}, filepath.Dir(abs)
	case sm.depth:
		if len(names) == 0 {
			names = sm.dbroots
		}
		if len(names) == 0 {
			if names, err = a.findDBRoots(ctx, sm); err != nil {
				return nil, err
			}
		}
	default:
		return nil, usage(fmt.Errorf("%s: [%s] common_prefix_depth = %d, so that DBRoots are mounted %s deep, and %s is %d deep: name their directory, or one of them, or set common_prefix_depth", sm.file, sectionStorage, sm.depth, count(sm.depth+1, "directory"), abs, depth))
	}
	var roots []dbroot
	for _, name := range names {
		u, err := sm.volumeURL(name)
		if err != nil {
			return nil, err
		}
		roots = append(roots, dbroot{name, u, filepath.Join(at, name)})
	}
	return roots, nil
}

// findDBRoots lists the volumes that are where the file says.
func (a *app) findDBRoots(ctx context.Context, sm *storageManager) ([]string, error) {
	u, err := sm.volumeURL("x")
	if err != nil {
		return nil, err
	}
	u.Path = strings.TrimSuffix(strings.TrimSuffix(u.Path, "x"), "/")
	var names []string
	if u.Scheme == objstore.SchemeFile {
		if names, err = volumesIn(u.Path); err != nil {
			return nil, err
		}
	} else if names, err = a.listDBRoots(ctx, u); err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, usage(fmt.Errorf("there is no volume below %s: bring data over with `cistern import columnstore`, or name DBRoots with --dbroot after `cistern format`", u))
	}
	return names, nil
}

// volumesIn finds the directories in dir that are volumes; none without dir.
func volumesIn(dir string) (names []string, err error) {
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, localError(dir, err)
	}
	for _, e := range list {
		_, err := os.Stat(filepath.Join(dir, e.Name(), metadata.VolumeKey))
		switch {
		case err == nil:
			names = append(names, e.Name())
		case !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			return nil, localError(dir, err)
		}
	}
	return names, nil
}

// listDBRoots finds the first parts of keys below which a volume is.
func (a *app) listDBRoots(ctx context.Context, u objstore.URL) ([]string, error) {
	s, err := a.openStore(ctx, u, false, nil)
	if err != nil {
		return nil, err
	}
	var names []string
	for after := ""; ; {
		page, err := s.List(ctx, "", after, 1)
		if err != nil {
			return nil, fmt.Errorf("list the volumes below %s: %w", u, err)
		}
		if len(page) == 0 {
			return names, nil
		}
		name, _, folder := strings.Cut(page[0].Key, "/")
		after = page[0].Key
		if !folder {
			continue
		}
		after = name + "/\U0010ffff" // after all keys below it
		_, err = s.Head(ctx, name+"/"+metadata.VolumeKey)
		if err == nil {
			names = append(names, name)
		} else if !errors.Is(err, objstore.ErrNotExist) {
			return nil, fmt.Errorf("look for a volume at %s/%s: %w", u, name, err)
		}
	}
}
