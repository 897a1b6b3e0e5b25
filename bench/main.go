package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/cisternfs/cistern/bench/tpch"
	"github.com/cisternfs/cistern/internal/config"
	"github.com/cisternfs/cistern/internal/harness"
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

var errUsage = errors.New("usage: bench list | bench <suite> [flags] | bench lineitem --rows N")

// suites are all suites, in the order of the list.
func suites() []Suite { return []Suite{suiteIO(), suiteMemory()} }

func command(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errUsage
	}
	switch args[0] {
	case "list":
		return list()
	case "churn":
		return churnCommand(args[1:])
	case "lineitem":
		return lineitem(args[1:])
	case "proxy":
		return proxyCommand(ctx, args[1:])
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
		c := defaults()
		show(s.Name, s.What, s.Jobs(c))
		if s.StoreJobs != nil {
			c.FileBytes = storeFileBytes
			show(s.Name+" --store s3", "a volume in an object store 20 ms and 100 MiB/s away, against plain requests to it", s.StoreJobs(c))
		}
	}
	return nil
}

func lineitem(args []string) error {
	flags := flag.NewFlagSet("lineitem", flag.ContinueOnError)
	rows := flags.Int("rows", 100_000, "rows to write to standard output")
	seed := flags.Uint64("seed", 1, "seed; the same seed gives the same rows")
	sql := flags.String("sql", "", "print SQL instead: create (the table's definition) or query1")
	if err := flags.Parse(args); err != nil {
		return errors.Join(errUsage, err)
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

func defaults() Config {
	return Config{Rounds: 5, Seconds: 10, FileBytes: 256 * mebibyte, Rows: 100_000, Latency: 20 * time.Millisecond}
}

// storeFileBytes is the usual size of a file with an object store, in bytes.
const storeFileBytes = 1024 * mebibyte

// options are the flags of a run beside its Config.
type options struct {
	json, jobs, kinds, base string
	store                   string
	bandwidth               config.Size
}

// remote says whether the run is about an object store.
func (o options) remote() bool { return o.store != "" && o.store != "file" }

func kindNames() []string {
	var names []string
	for _, k := range allKinds {
		names = append(names, string(k))
	}
	return names
}

func parseFlags(s Suite, args []string) (Config, options, error) {
	c, o := defaults(), options{bandwidth: config.Size{Bytes: 100 * mebibyte}}
	flags := flag.NewFlagSet(s.Name, flag.ContinueOnError)
	quick := flags.Bool("quick", false, "a short run, of about 4 minutes: 2 rounds of 2 s, small files; says little about the bars")
	rounds := flags.Int("rounds", c.Rounds, "rounds")
	seconds := flags.Int("seconds", c.Seconds, "duration of a timed run; sysbench runs twice as long")
	mib := flags.Int64("file-mib", c.FileBytes/mebibyte, "size of the files in MiB, a multiple of 16; with --store usually 1024")
	rows := flags.Int("rows", c.Rows, "rows of each of sysbench's 4 tables")
	flags.StringVar(&o.json, "json", "", "also write the results to this file")
	flags.StringVar(&o.jobs, "jobs", "", "jobs to run, by comma; all when empty")
	flags.StringVar(&o.kinds, "dirs", strings.Join(kindNames(), ","), "what to run on, by comma")
	flags.StringVar(&c.Cistern, "cistern", "", "cistern binary to measure; this module's, built, when empty")
	flags.StringVar(&o.base, "base", "", "directory on the disk to be measured; a fresh one in the temporary directory when empty")
	if s.StoreJobs != nil {
		flags.StringVar(&o.store, "store", "file", "what volumes lie in: file, or an object store, which has jobs of its own: s3 or gs for a server of the run's own behind a proxy, or a URL like s3://bucket/prefix")
		flags.DurationVar(&c.Latency, "latency", c.Latency, "what the proxy adds to each request")
		flags.Var(&o.bandwidth, "bandwidth", "bytes per second that the proxy passes each way")
	}
	if err := flags.Parse(args); err != nil {
		return c, o, errors.Join(errUsage, err)
	}
	c.Rounds, c.Seconds, c.FileBytes, c.Rows = *rounds, *seconds, *mib*mebibyte, *rows
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	set := func(name string, apply func()) {
		if !given[name] {
			apply()
		}
	}
	if o.remote() {
		set("file-mib", func() { c.FileBytes = storeFileBytes })
	}
	if *quick {
		set("rounds", func() { c.Rounds = 2 })
		set("seconds", func() { c.Seconds = 2 })
		set("file-mib", func() { c.FileBytes = 64 * mebibyte })
		set("rows", func() { c.Rows = 10_000 })
	}
	if o.remote() && c.Latency < time.Millisecond {
		return c, o, fmt.Errorf("--latency %v: with less than 1ms a round trip means nothing: %w", c.Latency, errUsage)
	}
	if c.Rounds < 1 || c.Seconds < 1 || c.FileBytes < 16*mebibyte || c.FileBytes%(16*mebibyte) != 0 || c.Rows < 1 {
		return c, o, fmt.Errorf("rounds, seconds and rows must be at least 1, file-mib a multiple of 16: %w", errUsage)
	}
	return c, o, nil
}

// choose picks the named jobs; all of them when names is empty.
func choose(all []Job, names string) ([]Job, error) {
	if names == "" {
		return all, nil
	}
	var chosen []Job
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(all, func(j Job) bool { return j.Name == name })
		if i < 0 {
			return nil, fmt.Errorf("no job %q; bench list names them: %w", name, errUsage)
		}
		chosen = append(chosen, all[i])
	}
	return chosen, nil
}

func runSuite(ctx context.Context, s Suite, args []string) (err error) {
	c, o, err := parseFlags(s, args)
	if err != nil {
		return err
	}
	all := s.Jobs
	if o.remote() {
		all = s.StoreJobs
	}
	jobs, err := choose(all(c), o.jobs)
	if err != nil {
		return err
	}
	base, err := os.MkdirTemp(o.base, "bench-")
	if err != nil {
		return fmt.Errorf("make a directory for the run: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(base)) }()
	kinds := kindsFor(jobs, strings.Split(o.kinds, ","))
	programs := filepath.Join(base, "programs")
	if err := os.Mkdir(programs, 0o755); err != nil {
		return fmt.Errorf("make a directory for the programs: %w", err)
	}
	if err := buildPrograms(ctx, kinds, programs, &c); err != nil {
		return err
	}
	if o.remote() {
		if c.Remote, err = openRemote(ctx, c, o); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, c.Remote.Close()) }()
	}
	report := Report{
		Suite: s.Name, Begun: time.Now(), Commit: firstLine("git", "describe", "--always", "--dirty"),
		Rounds: c.Rounds, Seconds: c.Seconds, FileBytes: c.FileBytes, Machine: describeMachine(),
	}
	if c.Remote != nil {
		report.Store = c.Remote.What
	}
	rows, err := onTargets(ctx, c, jobs, kinds, base)
	report.Results = Summarize(rows)
	if len(rows) > 0 {
		err = errors.Join(err, report.WriteMarkdown(os.Stdout))
		if o.json != "" {
			err = errors.Join(err, report.WriteJSON(o.json))
		}
	}
	return errors.Join(err, failures(rows))
}

func openRemote(ctx context.Context, c Config, o options) (*Remote, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	return OpenRemote(ctx, RemoteConfig{Store: o.store, Latency: c.Latency, Bandwidth: o.bandwidth.Bytes, Program: program})
}

// kindsFor keeps the kinds that at least one job runs on.
func kindsFor(jobs []Job, names []string) []Kind {
	var kinds []Kind
	for _, name := range names {
		needed := func(j Job) bool { return j.runsOn(Kind(name)) }
		if known := slices.Contains(allKinds, Kind(name)); !known || slices.ContainsFunc(jobs, needed) {
			kinds = append(kinds, Kind(name))
		}
	}
	return kinds
}

func buildPrograms(ctx context.Context, kinds []Kind, dir string, c *Config) (err error) {
	if slices.Contains(kinds, Loopback) {
		if c.Loopback, err = harness.Build(ctx, "./bench/loopback", dir); err != nil {
			return err
		}
	}
	mounts := func(k Kind) bool { return k == Mount || k == Fixed || k == Store || k == Bucket }
	if c.Cistern == "" && slices.ContainsFunc(kinds, mounts) {
		if c.Cistern, err = harness.Build(ctx, "./cmd/cistern", dir); err != nil {
			return err
		}
	}
	return nil
}

// onTargets opens the targets, runs the jobs and closes the targets again.
func onTargets(ctx context.Context, c Config, jobs []Job, kinds []Kind, base string) (rows []*Row, err error) {
	var targets []*Target
	defer func() {
		for _, t := range targets {
			err = errors.Join(err, t.Close())
		}
	}()
	for _, kind := range kinds {
		t, err := OpenTarget(ctx, kind, base, c)
		if err != nil {
			return nil, err
		}
		targets = append(targets, t)
	}
	return RunJobs(ctx, c, jobs, targets, os.Stderr)
}

// failures says which jobs did not run; a bar that was missed is a result, not a
// failure.
func failures(rows []*Row) error {
	var names []string
	for _, r := range rows {
		if name := r.Job + " on " + r.Target; r.Error != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("failed: %s", strings.Join(names, ", "))
}
