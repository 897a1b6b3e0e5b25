package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/cisternfs/cistern/bench/tpch"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		if errors.Is(err, errUsage) {
			os.Exit(2)
		}
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: bench list | bench <suite> [flags] | bench compare OLD NEW | bench lineitem --rows N | --scale F")

// suites are all suites, in the order of the list.
func suites() []Suite {
	return []Suite{suiteIO(), suiteOLTP(), suiteMemory(), suiteCpimport(), suiteRecovery(), suiteScale(), suitePeers()}
}

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	switch args[0] {
	case "list":
		return list()
	case "churn":
		return churnCommand(args[1:])
	case "compare":
		return compareCommand(args[1:])
	case "lineitem":
		return lineitem(args[1:])
	case "proxy":
		return proxyCommand(ctx, args[1:])
	}
	for _, s := range figureSuites() {
		if s.name == args[0] {
			return runFigures(ctx, s, args[1:])
		}
	}
	for _, s := range suites() {
		if s.Name == args[0] {
			return runSuite(ctx, s, args[1:])
		}
	}
	return fmt.Errorf("no suite %q: %w", args[0], errUsage)
}

func list() error {
	show := func(title, what string, jobs []Job) {
		fmt.Printf("%s: %s\n", title, what)
		for _, j := range jobs {
			fmt.Printf("    %-17s %s\n    %-17s   %s\n", j.Name, j.What, "", j.Setting)
		}
	}
	for _, s := range suites() {
		c, _, err := parseFlags(s, nil)
		if err != nil {
			return err
		}
		show(s.Name, s.What, s.Jobs(c))
		if s.StoreJobs != nil {
			c.FileBytes = storeFileBytes
			show(s.Name+" --store s3", "a volume in an object store 20 ms and 100 MiB/s away, against plain requests to it", s.StoreJobs(c))
		}
	}
	for _, s := range figureSuites() {
		fmt.Printf("%s: %s\n", s.name, s.what)
		for _, j := range s.jobs {
			fmt.Printf("    %-17s %s\n", j.name, j.what)
		}
	}
	fmt.Println("targets (--dirs):")
	for _, k := range allKinds {
		fmt.Printf("    %-17s %s\n", k, k.describe())
	}
	return nil
}

func lineitem(args []string) error {
	flags := flag.NewFlagSet("lineitem", flag.ContinueOnError)
	rows := flags.Int("rows", 100_000, "rows to write to standard output")
	scale := flags.Float64("scale", 0, "TPC-H's scale factor instead of --rows: 1 is 6 million rows, about 750 MB")
	seed := flags.Uint64("seed", 1, "seed; the same seed gives the same rows")
	sql := flags.String("sql", "", "print SQL instead: create (the table's definition) or query1")
	if err := flags.Parse(args); err != nil {
		return errors.Join(errUsage, err)
	}
	if *scale > 0 {
		*rows = int(*scale * tpch.RowsPerScale)
	}
	switch *sql {
	case "":
		return tpch.WriteLineitem(os.Stdout, *rows, *seed)
	case "create":
		fmt.Println(tpch.CreateTable + ";")
	case "query1":
		fmt.Println(tpch.Query1 + ";")
	default:
		return fmt.Errorf("no SQL %q, only create and query1: %w", *sql, errUsage)
	}
	return nil
}
