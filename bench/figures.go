package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
)

// figureConfig is what a run of a suite of figures may vary.
type figureConfig struct {
	Rounds  int
	Seconds int // of one timed run
	Threads int // of sysbench
	Rows    int // of each of its tables
	Cistern string

	LogBytes int64  // relay, fragment: of the log that is pulled and served, and of the large transaction
	Ack      string // of the relay

	DataBytes int64   // backup: of the database that is backed up
	Sizes     []int64 // backup: of the volumes that are cloned, in bytes

	base string
	jobs []string
	json string
	log  io.Writer
}

// figureJob is a part of a suite of figures. It makes its servers itself, since
// each needs other ones.
type figureJob struct {
	name, what string
	run        func(ctx context.Context, c figureConfig, f *figures) error
}

// figureSuite is a list of such jobs, whose results are single figures rather than
// a table of targets.
type figureSuite struct {
	name, what string
	jobs       []figureJob
	usual      figureConfig // what its flags are without being given
	// flags adds flags of the suite's own; read makes of them what the jobs use,
	// quick for a short run, as far as they were not given.
	flags   func(*flag.FlagSet, *figureConfig) (read func(quick bool, given map[string]bool) error)
	setting func(figureConfig) string // in words, for the report
}

func figureSuites() []figureSuite { return []figureSuite{relaySuite(), fragmentSuite(), backupSuite()} }

// figure is one number of a suite.
type figure struct {
	Job    string    `json:"job"`
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Values []float64 `json:"values"`
	Median float64   `json:"median"`
	// Low and High hold the median of what more rounds would give with 95 %; with
	// fewer than six rounds they are the extremes.
	Low     float64 `json:"low"`
	High    float64 `json:"high"`
	Bar     string  `json:"bar,omitempty"`
	Verdict string  `json:"verdict,omitempty"`
}

// figures are those of a run so far.
type figures struct {
	job     string
	log     io.Writer
	all     []*figure
	missing []string // what could not be measured, and why
}

// add enters a value; values of the same name are rounds.
func (f *figures) add(name, unit string, value float64) {
	fmt.Fprintf(f.log, "%-11s %s = %s %s\n", f.job, name, number(value), unit)
	i := slices.IndexFunc(f.all, func(g *figure) bool { return g.Job == f.job && g.Name == name })
	if i < 0 {
		i = len(f.all)
		f.all = append(f.all, &figure{Job: f.job, Name: name, Unit: unit})
	}
	g := f.all[i]
	g.Values = append(g.Values, value)
	g.Median = medianOf(g.Values)
	g.Low, g.High = medianInterval(g.Values)
}

// bar says what the median of a figure that was added must keep.
func (f *figures) bar(name string, better Direction, limit float64) {
	for _, g := range f.all {
		if g.Job == f.job && g.Name == name {
			g.Bar = fmt.Sprintf("%s %g %s", map[Direction]string{Higher: "≥", Lower: "≤"}[better], limit, g.Unit)
			g.Verdict = "pass"
			if better == Higher && g.Median < limit || better == Lower && g.Median > limit {
				g.Verdict = "fail"
			}
		}
	}
}

// median is that of a figure of the job that was added.
func (f *figures) median(name string) float64 {
	for _, g := range f.all {
		if g.Job == f.job && g.Name == name {
			return g.Median
		}
	}
	return 0
}

// medianInterval is the interval of order statistics that holds the median with
// at least 95 %: the k-th smallest and largest value, where fewer than k of n
// fair coins show heads with at most 2.5 %. With fewer than six values there is
// none, and the extremes are returned.
func medianInterval(values []float64) (low, high float64) {
	s := slices.Sorted(slices.Values(values))
	n := len(s)
	k, p, sum := 0, 1.0, 0.0
	for range n {
		p /= 2 // p is the chance of exactly k heads: none to begin with
	}
	for ; k < n/2; k++ {
		if sum += p; sum > 0.025 {
			break
		}
		p *= float64(n-k) / float64(k+1)
	}
	k = max(k, 1)
	return s[k-1], s[n-k]
}

// runFigures is the command `bench relay`, `bench backup` and so on.
func runFigures(ctx context.Context, s figureSuite, args []string) (err error) {
	c, err := s.parse(args)
	if err != nil {
		return err
	}
	if c.base, err = os.MkdirTemp(c.base, "bench-"); err != nil {
		return fmt.Errorf("make a directory for the run: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(c.base)) }()
	if c.Cistern == "" {
		if c.Cistern, err = harness.Build(ctx, "./cmd/cistern", c.base); err != nil {
			return err
		}
	}
	r := figureReport{
		Suite: s.name, Begun: time.Now(), Commit: firstLine("git", "describe", "--always", "--dirty"), Machine: describeMachine(),
		Rounds: c.Rounds, Seconds: c.Seconds, Setting: s.setting(c),
	}
	f := &figures{log: c.log}
	for _, j := range s.jobs {
		if len(c.jobs) > 0 && !slices.Contains(c.jobs, j.name) {
			continue
		}
		f.job = j.name
		if jerr := j.run(ctx, c, f); jerr != nil {
			err = errors.Join(err, fmt.Errorf("job %s: %w", j.name, jerr))
		}
		if ctx.Err() != nil {
			break
		}
	}
	r.Figures, r.NotMeasured = f.all, f.missing
	err = errors.Join(err, r.writeMarkdown(os.Stdout, s.jobs))
	if c.json != "" {
		err = errors.Join(err, r.writeJSON(c.json))
	}
	return err
}

// parse reads the suite's flags.
func (s figureSuite) parse(args []string) (figureConfig, error) {
	c := s.usual
	c.log = os.Stderr
	flags := flag.NewFlagSet(s.name, flag.ContinueOnError)
	quick := flags.Bool("quick", false, "a short run: 1 round of 2 s with little data, unless told otherwise; says little about the bars")
	flags.IntVar(&c.Rounds, "rounds", c.Rounds, "rounds of what is compared in turn; what takes long has at most 3")
	flags.IntVar(&c.Seconds, "seconds", c.Seconds, "duration of a timed run")
	flags.IntVar(&c.Threads, "threads", c.Threads, "threads of sysbench")
	flags.IntVar(&c.Rows, "rows", c.Rows, "rows of each of sysbench's 4 tables")
	only := flags.String("jobs", "", "jobs to run, by comma; all when empty")
	flags.StringVar(&c.json, "json", "", "also write the results to this file")
	flags.StringVar(&c.Cistern, "cistern", "", "cistern binary to measure; this module's, built, when empty")
	flags.StringVar(&c.base, "base", "", "directory on the disk to be used; a fresh one in the temporary directory when empty")
	read := s.flags(flags, &c)
	if err := flags.Parse(args); err != nil {
		return c, errors.Join(errUsage, err)
	}
	given := map[string]bool{}
	flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
	if *quick {
		for name, set := range map[string]func(){
			"rounds": func() { c.Rounds = 1 }, "seconds": func() { c.Seconds = 2 }, "rows": func() { c.Rows = 1000 },
		} {
			if !given[name] {
				set()
			}
		}
	}
	if err := read(*quick, given); err != nil {
		return c, errors.Join(errUsage, err)
	}
	if c.Rounds < 1 || c.Seconds < 1 || c.Threads < 1 || c.Rows < 1 {
		return c, fmt.Errorf("rounds, seconds, threads and rows must be at least 1: %w", errUsage)
	}
	if *only != "" {
		c.jobs = strings.Split(*only, ",")
		for _, want := range c.jobs {
			if !slices.ContainsFunc(s.jobs, func(j figureJob) bool { return j.name == want }) {
				return c, fmt.Errorf("no job %q; bench list names them: %w", want, errUsage)
			}
		}
	}
	return c, nil
}

// figureReport is everything that a run of such a suite says.
type figureReport struct {
	Suite   string    `json:"suite"`
	Begun   time.Time `json:"begun"`
	Commit  string    `json:"commit"`
	Rounds  int       `json:"rounds"`
	Seconds int       `json:"seconds"`
	Setting string    `json:"setting"`
	Machine Machine   `json:"machine"`
	Figures []*figure `json:"figures"`
	// NotMeasured says what is missing on the machine, and why.
	NotMeasured []string `json:"not_measured,omitempty"`
}

func (r figureReport) writeMarkdown(w io.Writer, jobs []figureJob) error {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "Suite %s, commit %s, begun %s: %d rounds of %d s, %s.\n", r.Suite, r.Commit, r.Begun.UTC().Format(time.DateTime), r.Rounds, r.Seconds, r.Setting)
	fmt.Fprintf(&b, "Linux %s, %d CPUs, %d MiB of memory, load %.1f at the begin; %s, MariaDB %s.\n\n", m.Kernel, m.CPUs, m.MemoryBytes/mebibyte, m.LoadAtBegin, m.Sysbench, m.MariaDB)
	b.WriteString("| job | figure | median | interval | rounds | bar | |\n|---|---|---:|---|---:|---|---|\n")
	for _, f := range r.Figures {
		interval := ""
		if len(f.Values) > 1 {
			interval = number(f.Low) + " to " + number(f.High)
		}
		fmt.Fprintf(&b, "| %s | %s | %s %s | %s | %d | %s | %s |\n", f.Job, f.Name, number(f.Median), f.Unit, interval, len(f.Values), f.Bar, f.Verdict)
	}
	for _, missing := range r.NotMeasured {
		fmt.Fprintf(&b, "\nNot measured: %s.\n", missing)
	}
	b.WriteString("\n| job | work |\n|---|---|\n")
	for _, j := range jobs {
		fmt.Fprintf(&b, "| %s | %s |\n", j.name, j.what)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r figureReport) writeJSON(name string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Clean(name), append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
