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

// relayConfig is what a run of the suites relay and fragment may vary.
type relayConfig struct {
	Rounds   int
	Seconds  int   // of one timed run
	Threads  int   // of sysbench
	Rows     int   // of each of its tables
	LogBytes int64 // of the log that is pulled and served, and of the large transaction
	Ack      string
	Cistern  string

	base string
	jobs []string
	json string
	log  io.Writer
}

// relayJob is a part of these suites. It makes its servers itself, since each
// needs other ones.
type relayJob struct {
	name, what string
	run        func(ctx context.Context, c relayConfig, f *figures) error
}

// relaySuite is a list of such jobs.
type relaySuite struct {
	name, what string
	jobs       []relayJob
}

func relaySuites() []relaySuite {
	return []relaySuite{
		{"relay", "the binary log relay between a primary and its replica", relayJobs()},
		{"fragment", "a large transaction on its way through the relay, and small ones beside it", fragmentJobs()},
	}
}

func relayJobs() []relayJob {
	return []relayJob{
		{"throughput", "sysbench oltp_write_only on a primary that waits for its replica (semi-synchronous): a direct one, or the relay with the replica behind it, in turn", runRelayThroughput},
		{"lag", "how much later an event reaches a reader of the relay than a reader of the primary, at 200 transactions a second", runRelayLag},
		{"pull", "a log of large groups, and one of small ones: the relay from an empty volume, mariadb-binlog -R --raw, and a copy over loopback", runRelayPull},
		{"serve", "the same logs sent to a reader that throws them away: the primary's own dump, the relay's, eight at once, and by a relay that has nothing but the bucket", runRelayServe},
		{"memory", "one transaction as large as --mib through the relay: memory above the idle relay's", runRelayMemory},
	}
}

func fragmentJobs() []relayJob {
	return []relayJob{{"fragment", "one transaction as large as --mib while 8 threads commit small ones: the longest wait of a small commit, and the replica's lag", runFragment}}
}

// figure is one number of these suites.
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
	job string
	log io.Writer
	all []*figure
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

// runRelaySuite is the command `bench relay` or `bench fragment`.
func runRelaySuite(ctx context.Context, s relaySuite, args []string) (err error) {
	name, jobs := s.name, s.jobs
	c, err := parseRelayFlags(name, jobs, args)
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
	r := relayReport{
		Suite: name, Begun: time.Now(), Commit: firstLine("git", "describe", "--always", "--dirty"), Machine: describeMachine(),
		Rounds: c.Rounds, Seconds: c.Seconds, LogBytes: c.LogBytes, Ack: c.Ack,
	}
	f := &figures{log: c.log}
	for _, j := range jobs {
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
	r.Figures = f.all
	err = errors.Join(err, r.writeMarkdown(os.Stdout, jobs))
	if c.json != "" {
		err = errors.Join(err, r.writeJSON(c.json))
	}
	return err
}

func parseRelayFlags(name string, jobs []relayJob, args []string) (relayConfig, error) {
	c := relayConfig{log: os.Stderr}
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	quick := flags.Bool("quick", false, "a short run: 1 round of 2 s and logs of 64 MiB, unless told otherwise; says little about the bars")
	flags.IntVar(&c.Rounds, "rounds", 10, "rounds of the throughput; the rates have at most 3")
	flags.IntVar(&c.Seconds, "seconds", 30, "duration of a timed run")
	flags.IntVar(&c.Threads, "threads", 16, "threads of sysbench")
	flags.IntVar(&c.Rows, "rows", 10_000, "rows of each of sysbench's 4 tables")
	mib := flags.Int64("mib", 1024, "size in MiB of the log that is pulled and served, and of the large transaction")
	flags.StringVar(&c.Ack, "ack", "journal", "the relay's --ack: journal, bucket or memory")
	only := flags.String("jobs", "", "jobs to run, by comma; all when empty")
	flags.StringVar(&c.json, "json", "", "also write the results to this file")
	flags.StringVar(&c.Cistern, "cistern", "", "cistern binary to measure; this module's, built, when empty")
	flags.StringVar(&c.base, "base", "", "directory on the disk to be used; a fresh one in the temporary directory when empty")
	if err := flags.Parse(args); err != nil {
		return c, errors.Join(errUsage, err)
	}
	if *quick {
		given := map[string]bool{}
		flags.Visit(func(f *flag.Flag) { given[f.Name] = true })
		for name, set := range map[string]func(){
			"rounds": func() { c.Rounds = 1 }, "seconds": func() { c.Seconds = 2 }, "mib": func() { *mib = 64 }, "rows": func() { c.Rows = 1000 },
		} {
			if !given[name] {
				set()
			}
		}
	}
	c.LogBytes = *mib * mebibyte
	if c.Rounds < 1 || c.Seconds < 1 || c.Threads < 1 || c.Rows < 1 || *mib < 16 {
		return c, fmt.Errorf("rounds, seconds, threads and rows must be at least 1, mib at least 16: %w", errUsage)
	}
	if *only != "" {
		c.jobs = strings.Split(*only, ",")
		for _, want := range c.jobs {
			if !slices.ContainsFunc(jobs, func(j relayJob) bool { return j.name == want }) {
				return c, fmt.Errorf("no job %q; bench list names them: %w", want, errUsage)
			}
		}
	}
	return c, nil
}

// relayReport is everything that a run of these suites says.
type relayReport struct {
	Suite    string    `json:"suite"`
	Begun    time.Time `json:"begun"`
	Commit   string    `json:"commit"`
	Rounds   int       `json:"rounds"`
	Seconds  int       `json:"seconds"`
	LogBytes int64     `json:"log_bytes"`
	Ack      string    `json:"ack"`
	Machine  Machine   `json:"machine"`
	Figures  []*figure `json:"figures"`
}

func (r relayReport) writeMarkdown(w io.Writer, jobs []relayJob) error {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "Suite %s, commit %s, begun %s: %d rounds of %d s, logs of %s, --ack %s.\n", r.Suite, r.Commit, r.Begun.UTC().Format(time.DateTime), r.Rounds, r.Seconds, size(r.LogBytes), r.Ack)
	fmt.Fprintf(&b, "Linux %s, %d CPUs, %d MiB of memory, load %.1f at the begin; %s, MariaDB %s.\n\n", m.Kernel, m.CPUs, m.MemoryBytes/mebibyte, m.LoadAtBegin, m.Sysbench, m.MariaDB)
	b.WriteString("| job | figure | median | interval | rounds | bar | |\n|---|---|---:|---|---:|---|---|\n")
	for _, f := range r.Figures {
		interval := ""
		if len(f.Values) > 1 {
			interval = number(f.Low) + " to " + number(f.High)
		}
		fmt.Fprintf(&b, "| %s | %s | %s %s | %s | %d | %s | %s |\n", f.Job, f.Name, number(f.Median), f.Unit, interval, len(f.Values), f.Bar, f.Verdict)
	}
	b.WriteString("\n| job | work |\n|---|---|\n")
	for _, j := range jobs {
		fmt.Fprintf(&b, "| %s | %s |\n", j.name, j.what)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r relayReport) writeJSON(name string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err == nil {
		err = os.WriteFile(filepath.Clean(name), append(text, '\n'), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}
