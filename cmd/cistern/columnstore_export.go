package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func (a *app) exportCommand() *cobra.Command {
	var skip bool
	c := &cobra.Command{
		Use: "export <vol>[@point] <dir>", Short: "Write a volume's files to a local directory", Args: cobra.ExactArgs(2),
		Long: `Copies everything in a volume, or in one of its commits, to a local directory,
which it makes: files, directories and symbolic links with their modes, owners
(for root) and times. Each file appears when it is whole and durable. Devices and
pipes are left out, with exit status 1 at the end unless --skip-special says that
they may be; a socket holds nothing and is left out.`,
	}
	c.Flags().BoolVar(&skip, "skip-special", false, skipSpecialHelp)
	a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		return a.export(ctx, args[0], args[1], skip)
	})
	c.AddCommand(a.exportColumnStoreCommand())
	return c
}

func (a *app) exportColumnStoreCommand() *cobra.Command {
	var names []string
	var skip bool
	c := &cobra.Command{
		Use: "columnstore [vol[@point]] <dir>", Short: "Write DBRoots to a local directory", Args: cobra.RangeArgs(1, 2),
		Long: `Writes the files of ColumnStore's DBRoots to <dir>/data1, <dir>/data2 and so on,
from the volumes that the storagemanager.cnf named by --config tells of; with a
volume, its files to the directory. ColumnStore runs on them without Storage
Manager.`,
	}
	c.Flags().StringArrayVar(&names, "dbroot", nil, "this DBRoot alone; several times for several")
	c.Flags().BoolVar(&skip, "skip-special", false, skipSpecialHelp)
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		if len(args) == 2 {
			return a.export(ctx, args[0], args[1], skip)
		}
		sm, err := a.readStorageManager()
		if err != nil {
			return err
		}
		if len(names) == 0 {
			names = sm.dbroots
		}
		if len(names) == 0 {
			if names, err = a.findDBRoots(ctx, sm); err != nil {
				return err
			}
		}
		if err := makeDir(args[0], 0o755); err != nil {
			return err
		}
		for _, name := range names {
			u, err := sm.volumeURL(name)
			if err != nil {
				return err
			}
			if err := a.export(ctx, u.String(), filepath.Join(args[0], name), skip); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
}

// export copies all of a volume to a directory that is new or empty.
func (a *app) export(ctx context.Context, vol, dir string, skip bool) error {
	list, err := os.ReadDir(dir)
	if err == nil && len(list) > 0 {
		return usage(fmt.Errorf("%s is not empty, it holds %q: choose a new directory", dir, list[0].Name()))
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return usage(localError(dir, err))
	}
	s, t, err := a.reader(ctx, vol)
	if err != nil {
		return err
	}
	g := &getter{a: a, s: s, all: true, parallel: getParallel, special: specials{a: a, skip: skip}}
	if err := finish(ctx, s, g.run(ctx, "", dir)); err != nil {
		return err
	}
	return a.say("%s is in %s: %s, %s", t.given(), dir, count(g.files, "file"), size(g.bytes))
}
