package main

import (
	"context"
	"fmt"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// version is the release.
const version = "0.1"

// buildRevision is the source's revision, set by the linker in `make build`; a
// plain `go build` stamps it where the toolchain does that.
var buildRevision string

// root is the program's command line.
func (a *app) root() *cobra.Command {
	c := &cobra.Command{
		Use: "cistern", Short: "Database directories on object storage", Version: version,
		Long: `Cistern keeps database directories on object storage: a volume is a prefix in a
bucket, and a mount shows it as an ordinary directory.

A <url> is s3://bucket/prefix, gs://bucket/prefix or file:///dir; a <vol> is a
URL or a directory on which a volume is mounted. Exit status: 0 done, 1 failed,
2 wrong usage or configuration, 3 owned by another writer or fenced, 4 damage
found, 5 the store can't be reached.`,
		SilenceErrors: true, SilenceUsage: true,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) > 0 {
				if near := c.SuggestionsFor(args[0]); len(near) > 0 {
					return badUsage(c, fmt.Errorf("there is no command %q: do you mean %s", args[0], strings.Join(near, " or ")))
				}
				return badUsage(c, fmt.Errorf("there is no command %q", args[0]))
			}
			return nil
		},
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.SetFlagErrorFunc(badUsage)
	c.SuggestionsMinimumDistance = 2
	c.PersistentFlags().StringVar(&a.configFlag, "config", "", "INI file with settings, in sections [mount], [relay], [S3] and others; ColumnStore's storagemanager.cnf is one")
	c.PersistentFlags().StringArrayVar(&a.keyFiles, "encrypt-key-file", nil, "file with an encrypted volume's key; several times when keys were changed, the one to write with first")
	c.AddCommand(
		a.formatCommand(), a.mountCommand(), a.umountCommand(), a.handoverCommand(), a.salvageCommand(), a.statusCommand(), a.topCommand(), a.syncCommand(),
		a.lsCommand(), a.catCommand(), a.statCommand(), a.putCommand(), a.getCommand(), a.rmCommand(), a.duCommand(),
		a.logCommand(), a.checkCommand(), a.dumpCommand(), a.collectCommand(), a.snapshotCommand(), a.cloneCommand(), a.restoreCommand(), a.destroyCommand(), a.probeCommand(), a.binlogCommand(),
		a.importCommand(), a.exportCommand(), a.configCommand(), a.toolsCommand(), a.versionCommand(),
	)
	c.SetOut(a.stdout) // cobra's completion writes to what is set by now
	completions(c)
	return c
}

func (a *app) versionCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{Use: "version", Short: "Show the version", Args: cobra.NoArgs}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(context.Context, *cobra.Command, []string) error {
		revision := buildRevision
		if info, ok := debug.ReadBuildInfo(); ok && revision == "" {
			for _, s := range info.Settings {
				if s.Key == "vcs.revision" {
					revision = s.Value[:min(len(s.Value), 12)]
				}
			}
		}
		if asJSON {
			return a.printJSON(map[string]string{"version": version, "revision": revision, "go": runtime.Version()})
		}
		if revision != "" {
			revision = " (" + revision + ")"
		}
		return a.say("cistern %s%s, %s", version, revision, runtime.Version())
	})
}
