package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
)

// runSuite runs a suite as its flags say and reports.
func runSuite(ctx context.Context, s Suite, args []string) (err error) {
	c, o, err := parseFlags(s, args)
	if err != nil {
		return err
	}
	jobs, err := jobsOf(s, c, o)
	if err != nil {
		return err
	}
	base, err := os.MkdirTemp(o.base, "bench-")
	if err != nil {
		return fmt.Errorf("make a directory for the run: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(base)) }()
	kinds := kindsFor(jobs, o.kinds(s))
	programs := filepath.Join(base, "programs")
	if err := os.Mkdir(programs, 0o755); err != nil {
		return fmt.Errorf("make a directory for the programs: %w", err)
	}
	if err := buildPrograms(ctx, kinds, programs, &c); err != nil {
		return err
	}
	closeRemotes, err := openRemotes(ctx, &c, o, kinds)
	defer func() { err = errors.Join(err, closeRemotes()) }()
	if err != nil {
		return err
	}
	report := Report{
		Suite: s.Name, Begun: time.Now(), Commit: firstLine("git", "describe", "--always", "--dirty"),
		Rounds: c.Rounds, Seconds: c.Seconds, FileBytes: c.FileBytes, Machine: describeMachine(),
	}
	if c.Remote != nil {
		report.Store = c.Remote.What
	}
	rows, missing, err := onTargets(ctx, c, jobs, kinds, base)
	report.Results, report.NotMeasured = Summarize(rows), missing
	if len(rows) > 0 {
		err = errors.Join(err, report.publish(o))
	}
	return errors.Join(err, failures(rows))
}

// publish writes the report wherever the flags want it.
func (r Report) publish(o options) error {
	err := r.WriteMarkdown(os.Stdout)
	if o.json != "" {
		err = errors.Join(err, r.WriteJSON(o.json))
	}
	if o.chart != "" {
		err = errors.Join(err, r.WriteChart(o.chart))
	}
	if o.out == "" {
		return err
	}
	name := filepath.Join(o.out, r.Suite+"-"+r.Commit)
	f, ferr := os.Create(name + ".md")
	if ferr != nil {
		return errors.Join(err, fmt.Errorf("write the report: %w", ferr))
	}
	return errors.Join(err, r.WriteMarkdown(f), f.Close(), r.WriteJSON(name+".json"), r.WriteChart(name+".svg"))
}

// openRemotes opens the object stores that the run needs into c. The returned
// function closes them, also after an error.
func openRemotes(ctx context.Context, c *Config, o options, kinds []Kind) (func() error, error) {
	var opened []*Remote
	closeAll := func() error {
		var err error
		for _, r := range opened {
			err = errors.Join(err, r.Close())
		}
		return err
	}
	open := func(store string) (*Remote, error) {
		program, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("find this program: %w", err)
		}
		r, err := OpenRemote(ctx, RemoteConfig{Store: store, Latency: c.Latency, Bandwidth: o.bandwidth.Bytes, Program: program})
		if err == nil {
			opened = append(opened, r)
		}
		return r, err
	}
	var err error
	if o.remote() {
		if c.Remote, err = open(o.store); err != nil {
			return closeAll, err
		}
	}
	if o.store != "gs" && slices.ContainsFunc(kinds, Kind.speaksGS) {
		c.RemoteGS, err = open("gs")
	}
	return closeAll, err
}

func buildPrograms(ctx context.Context, kinds []Kind, dir string, c *Config) (err error) {
	if slices.Contains(kinds, Loopback) {
		if c.Loopback, err = harness.Build(ctx, "./bench/loopback", dir); err != nil {
			return err
		}
	}
	if c.Cistern == "" && slices.ContainsFunc(kinds, Kind.ofCistern) {
		if c.Cistern, err = harness.Build(ctx, "./cmd/cistern", dir); err != nil {
			return err
		}
	}
	return nil
}

// onTargets opens the targets, runs the jobs and closes the targets again. What
// is optional and can't be opened is missing, which is no error.
func onTargets(ctx context.Context, c Config, jobs []Job, kinds []Kind, base string) (rows []*Row, missing []string, err error) {
	var targets []*Target
	defer func() {
		for _, t := range targets {
			cerr := t.Close()
			if t.Kind.isPeer() && cerr != nil {
				fmt.Fprintln(os.Stderr, "bench:", cerr) // a peer's bad end is not ours
				continue
			}
			err = errors.Join(err, cerr)
		}
	}()
	for _, kind := range kinds {
		t, err := OpenTarget(ctx, kind, base, c)
		if err != nil && kind.optional() && ctx.Err() == nil {
			first, _, _ := strings.Cut(err.Error(), "\n")
			missing = append(missing, first)
			fmt.Fprintln(os.Stderr, "not measured:", err)
			continue
		}
		if err != nil {
			return nil, missing, err
		}
		targets = append(targets, t)
	}
	rows, err = RunJobs(ctx, c, jobs, targets, os.Stderr)
	return rows, missing, err
}

// failures says which jobs did not run; a bar that was missed is a result, not a
// failure, and so is what a peer can't do.
func failures(rows []*Row) error {
	var names []string
	for _, r := range rows {
		if name := r.Job + " on " + r.Target; r.Error != "" && !r.Kind.isPeer() && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("failed: %s", strings.Join(names, ", "))
}
