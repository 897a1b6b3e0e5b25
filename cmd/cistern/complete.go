package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// completions tells shells what arguments and flags may be: mounted
// directories for a <vol>, the choices of a flag, files for the rest.
func completions(root *cobra.Command) {
	root.InitDefaultCompletionCmd()
	if c, _, err := root.Find([]string{"completion"}); err == nil {
		c.Args, c.RunE = root.Args, func(c *cobra.Command, _ []string) error { return c.Help() }
	}
	helpFails(root)
	for _, c := range root.Commands() {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			var values []string
			switch v := f.Value.(type) {
			case *choice:
				values = v.of
			case *durability:
				values = []string{"local", "bucket", "lag=2s"}
			default:
				return
			}
			// It fails for a flag that has a function already, and none has.
			_ = c.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
		})
		if word, _, _ := strings.Cut(strings.TrimPrefix(c.Use, c.Name()+" "), " "); c.ValidArgsFunction == nil && firstIsVolume(c.Name(), word) {
			c.ValidArgsFunction = completeVolume
		}
	}
}

// helpFails makes `help` fail for a command that there is not: cobra's own tells of it
// and succeeds.
func helpFails(root *cobra.Command) {
	root.InitDefaultHelpCmd()
	c, _, err := root.Find([]string{"help"})
	if err != nil {
		return // there is none whose answer could be wrong
	}
	c.Run, c.RunE = nil, func(c *cobra.Command, args []string) error {
		of, rest, err := root.Find(args)
		if err == nil && len(rest) == 0 {
			of.InitDefaultHelpFlag() // so that the help lists it
			return of.Help()
		}
		if len(rest) == 0 {
			rest = args
		}
		within := root
		if of != nil {
			within = of
		}
		return badUsage(c, fmt.Errorf("%s has no command %q", within.CommandPath(), rest[0]))
	}
}

// firstIsVolume says whether a command's first argument may be a mounted directory.
func firstIsVolume(name, word string) bool {
	return strings.HasPrefix(word, "<vol>") || word == "<dir>" && name != "mount"
}

// completeVolume offers the directories on which volumes are mounted for the
// first argument, and leaves the others to the shell.
func completeVolume(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	return mountPoints(string(table)), cobra.ShellCompDirectiveDefault
}

// mountPoints returns the directories of a mount table on which volumes are.
func mountPoints(table string) (dirs []string) {
	for line := range strings.Lines(table) {
		left, right, cut := strings.Cut(strings.TrimSpace(line), " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if cut && len(l) >= 5 && len(r) >= 2 && r[0] == mountType {
			dirs = append(dirs, unescapeMount(l[4]))
		}
	}
	return dirs
}
