package main

import (
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cisternfs/cistern/internal/config"
)

func defaults() Config {
	return Config{Rounds: 5, Seconds: 10, FileBytes: 256 * mebibyte, Rows: 100_000, Latency: 20 * time.Millisecond, Quiet: 75 * time.Second}
}

// storeFileBytes is the usual size of a file with an object store, in bytes.
const storeFileBytes = 1024 * mebibyte

// options are the flags of a run beside its Config.
type options struct {
	json, chart, out string
	jobs, dirs, base string
	store            string
	bandwidth        config.Size
}

// remote says whether the run is about an object store.
func (o options) remote() bool { return o.store != "" && o.store != "file" }

// kinds are the kinds of targets that the run asks for.
func (o options) kinds(s Suite) []Kind {
	var kinds []Kind
	switch {
	case o.dirs != "":
		for name := range strings.SplitSeq(o.dirs, ",") {
			kinds = append(kinds, Kind(name))
		}
	case len(s.Dirs) > 0:
		for _, k := range s.Dirs {
			if o.remote() || !k.needsRemote() {
				kinds = append(kinds, k)
			}
		}
	default:
		for _, k := range allKinds {
			if !k.optional() && k != StoreGS && (o.remote() || !k.needsRemote()) {
				kinds = append(kinds, k)
			}
		}
	}
	return kinds
}

func kindNames(kinds []Kind) string {
	var names []string
	for _, k := range kinds {
		names = append(names, string(k))
	}
	return strings.Join(names, ",")
}

// flagsOf makes the flags of a suite's run.
func flagsOf(s Suite, c *Config, o *options) (flags *flag.FlagSet, quick *bool, mib *int64) {
	flags = flag.NewFlagSet(s.Name, flag.ContinueOnError)
	quick = flags.Bool("quick", false, "a short run, of about 4 minutes: 2 rounds of 2 s, small files, uploads counted without the folding that comes a minute later; says little about the bars")
	flags.IntVar(&c.Rounds, "rounds", c.Rounds, "rounds")
	flags.IntVar(&c.Seconds, "seconds", c.Seconds, "duration of a timed run; sysbench runs twice as long")
	mib = flags.Int64("file-mib", c.FileBytes/mebibyte, "size of the files in MiB, a multiple of 16; with --store usually 1024")
	flags.IntVar(&c.Rows, "rows", c.Rows, "rows of each of sysbench's 4 tables")
	flags.StringVar(&o.json, "json", "", "also write the results to this file")
	flags.StringVar(&o.chart, "chart", "", "also draw them into this file, .svg or .png")
	flags.StringVar(&o.out, "out", "", "also write <suite>-<commit> as .md, .json and .svg into this directory")
	flags.StringVar(&o.jobs, "jobs", "", "jobs to run, by comma; all when empty")
	flags.StringVar(&o.dirs, "dirs", "", "what to run on, by comma, of "+kindNames(allKinds)+"; what the suite is about when empty")
	flags.StringVar(&c.Cistern, "cistern", "", "cistern binary to measure; this module's, built, when empty")
	flags.StringVar(&o.base, "base", "", "directory on the disk to be measured; a fresh one in the temporary directory when empty")
	flags.StringVar(&o.store, "store", o.store, "what volumes lie in: file, or an object store: s3 or gs for a server of the run's own behind a proxy, or a URL like s3://bucket/prefix")
	flags.DurationVar(&c.Latency, "latency", c.Latency, "what the proxy adds to each request")
	flags.Var(&o.bandwidth, "bandwidth", "bytes per second that the proxy passes each way")
	flags.Func("mount-arg", "a further flag of every cistern mount, like --mount-arg=--cache-size=1G; may be repeated", func(arg string) error {
		name, _, _ := strings.Cut(arg, "=")
		c.MountArgs = append(slices.DeleteFunc(c.MountArgs, func(was string) bool { return strings.HasPrefix(was, name+"=") }), arg)
		return nil
	})
	if s.Flags != nil {
		s.Flags(flags)
	}
	return flags, quick, mib
}

func parseFlags(s Suite, args []string) (Config, options, error) {
	c, o := defaults(), options{bandwidth: config.Size{Bytes: 100 * mebibyte}, store: s.Store}
	if o.store == "" {
		o.store = "file"
	}
	c.MountArgs = slices.Clone(s.MountArgs)
	flags, quick, mib := flagsOf(s, &c, &o)
	if err := flags.Parse(args); err != nil {
		return c, o, errors.Join(errUsage, err)
	}
	if flags.NArg() > 0 {
		return c, o, fmt.Errorf("what is %q: %w", flags.Arg(0), errUsage)
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	set := func(name string, apply func()) {
		if !given[name] {
			apply()
		}
	}
	c.FileBytes = *mib * mebibyte
	if o.remote() && s.StoreJobs != nil {
		set("file-mib", func() { c.FileBytes = storeFileBytes })
	}
	if *quick {
		set("rounds", func() { c.Rounds = 2 })
		set("seconds", func() { c.Seconds = 2 })
		set("file-mib", func() { c.FileBytes = 64 * mebibyte })
		set("rows", func() { c.Rows = 10_000 })
		c.Quiet = 10 * time.Second
	}
	if o.remote() && c.Latency < time.Millisecond {
		return c, o, fmt.Errorf("--latency %v: with less than 1ms a round trip means nothing: %w", c.Latency, errUsage)
	}
	if c.Rounds < 1 || c.Seconds < 1 || c.FileBytes < 16*mebibyte || c.FileBytes%(16*mebibyte) != 0 || c.Rows < 1 {
		return c, o, fmt.Errorf("rounds, seconds and rows must be at least 1, file-mib a multiple of 16: %w", errUsage)
	}
	if ext := chartFormat(o.chart); o.chart != "" && ext == "" {
		return c, o, fmt.Errorf("--chart %s: a chart is drawn as .svg or .png: %w", o.chart, errUsage)
	}
	for _, k := range o.kinds(s) {
		if !slices.Contains(allKinds, k) {
			return c, o, fmt.Errorf("no target %q; there are %s: %w", k, kindNames(allKinds), errUsage)
		}
	}
	return c, o, nil
}

// jobsOf picks the jobs of a run: those that are named, else all that belong to
// its kind of store.
func jobsOf(s Suite, c Config, o options) ([]Job, error) {
	usual := s.Jobs(c)
	all := usual
	if s.StoreJobs != nil && o.remote() {
		all = append(s.StoreJobs(c), usual...)
		usual = s.StoreJobs(c)
	}
	if o.jobs == "" {
		return usual, nil
	}
	return choose(all, o.jobs)
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

// kindsFor keeps the kinds that at least one job runs on.
func kindsFor(jobs []Job, asked []Kind) []Kind {
	var kinds []Kind
	for _, k := range asked {
		if slices.ContainsFunc(jobs, func(j Job) bool { return j.runsOn(k) }) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}
