package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// compareCommand is the command `bench compare OLD NEW`: what changed between two
// reports that WriteJSON wrote.
func compareCommand(args []string) error {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	if err := flags.Parse(args); err != nil || flags.NArg() != 2 {
		return fmt.Errorf("compare takes two reports, written with --json or --out: %w", errUsage)
	}
	before, err := ReadReport(flags.Arg(0))
	if err != nil {
		return err
	}
	after, err := ReadReport(flags.Arg(1))
	if err != nil {
		return err
	}
	return writeComparison(os.Stdout, before, after)
}

// writeComparison prints a line for each metric that both reports or one of them
// have. Runs on different machines, or with others at work beside them, differ
// for reasons that no report knows: what moved as much on the plain directory,
// too, is the machine.
func writeComparison(w io.Writer, before, after Report) error {
	if before.Suite != after.Suite {
		return fmt.Errorf("the reports are of suites %s and %s, which have nothing in common: %w", before.Suite, after.Suite, errUsage)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Suite %s: commit %s (load %.1f at the begin) against %s (load %.1f).\n", after.Suite, before.Commit, before.Machine.LoadAtBegin, after.Commit, after.Machine.LoadAtBegin)
	for _, differ := range settingsThatDiffer(before, after) {
		fmt.Fprintf(&b, "The two are not alike: %s.\n", differ)
	}
	fmt.Fprintf(&b, "\n| job | metric | on | before | after | after / before | |\n|---|---|---|---:|---:|---:|---|\n")
	for _, old := range before.Results {
		now, ok := after.find(old)
		if !ok {
			fmt.Fprintf(&b, "| %s | %s | %s | %s | | | gone |\n", old.Job, old.Metric, old.Target, medianText(old))
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s |\n", old.Job, old.Metric, old.Target, medianText(old), medianText(now), ratioText(quotient(now, old)), change(old, now))
	}
	for _, now := range after.Results {
		if _, ok := before.find(now); !ok {
			fmt.Fprintf(&b, "| %s | %s | %s | | %s | | new |\n", now.Job, now.Metric, now.Target, medianText(now))
		}
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the comparison: %w", err)
	}
	return nil
}

func (r Report) find(like Result) (Result, bool) {
	i := slices.IndexFunc(r.Results, func(x Result) bool {
		return x.Job == like.Job && x.Metric == like.Metric && x.Target == like.Target
	})
	if i < 0 {
		return Result{}, false
	}
	return r.Results[i], true
}

func settingsThatDiffer(a, b Report) []string {
	var differ []string
	note := func(what string, a, b any) {
		if a != b {
			differ = append(differ, fmt.Sprintf("%s %v and %v", what, a, b))
		}
	}
	note("store", a.Store, b.Store)
	note("size of files in bytes", a.FileBytes, b.FileBytes)
	note("seconds", a.Seconds, b.Seconds)
	note("CPUs", a.Machine.CPUs, b.Machine.CPUs)
	note("kernel", a.Machine.Kernel, b.Machine.Kernel)
	return differ
}

func medianText(r Result) string {
	if len(r.Values) == 0 {
		return "failed"
	}
	return number(r.Median) + " " + r.Unit
}

func quotient(now, old Result) float64 {
	if old.Median == 0 || len(now.Values) == 0 || len(old.Values) == 0 {
		return 0
	}
	return now.Median / old.Median
}

// change says better or worse when all rounds of the one are on the same side of
// all rounds of the other, and nothing when they overlap.
func change(old, now Result) string {
	if len(old.Values) == 0 || len(now.Values) == 0 {
		return ""
	}
	higher, lower := now.Min > old.Max, now.Max < old.Min
	switch {
	case !higher && !lower:
		return ""
	case now.Better == "":
		return "moved"
	case higher == (now.Better == "higher"):
		return "better"
	default:
		return "worse"
	}
}
