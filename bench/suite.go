package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"slices"
	"time"
)

// Suite is a named list of jobs, made for a configuration.
type Suite struct {
	Name string
	What string
	Jobs func(Config) []Job
	// StoreJobs are further jobs, for a run with --store, which then leaves out
	// Jobs unless --jobs names them; nil when the suite has none.
	StoreJobs func(Config) []Job
	// Flags adds flags of the suite's own, kept where its Jobs find them; nil
	// without any.
	Flags func(*flag.FlagSet)
	// Store and Dirs are the suite's own values of --store and --dirs. Empty:
	// file, and all that its jobs run on but the peers.
	Store string
	Dirs  []Kind
	// MountArgs are further flags of the suite's cistern mounts, before those of
	// --mount-arg.
	MountArgs []string
}

// Config is what a run may vary.
type Config struct {
	Rounds    int
	Seconds   int   // of one timed run
	FileBytes int64 // of the files that the jobs work on
	Rows      int   // of each sysbench table
	Loopback  string
	Cistern   string // paths of the programs; empty when no target needs them

	Remote    *Remote       // the object store; nil without one
	RemoteGS  *Remote       // a second one, for targets that speak GCS in a run over S3; nil without
	Latency   time.Duration // of a request to them
	MountArgs []string      // further flags of every cistern mount

	// Quiet is how long a store must not have received anything to count as at
	// rest. Folding begins a minute after the last change of a slot.
	Quiet time.Duration
}

// Job is one kind of work.
type Job struct {
	Name    string
	What    string
	Setting string // file size, engine and cache state, for the reader of the table
	Targets []Kind // where it makes sense; nil means comparedKinds
	Once    bool   // counts rather than times: one round is enough
	Quiet   bool   // counts uploads: begins and ends when the mount has nothing left to upload or fold
	Metrics []Metric

	// Prepare makes the job's files on a target, once before the first round.
	// It may be nil.
	Prepare func(ctx context.Context, t *Target) error
	// Before brings the target into the state that each run begins in; it is no
	// part of what is measured. It may be nil.
	Before func(ctx context.Context, t *Target) error
	// Run measures once and returns a value for each of Metrics, by name.
	Run func(ctx context.Context, t *Target) (map[string]float64, error)
}

// runsOn says whether the job is for targets of this kind. One that doesn't
// choose is for all that are a writable directory.
func (j Job) runsOn(k Kind) bool {
	if j.Targets == nil {
		return !slices.Contains([]Kind{Fixed, Raw, Bucket, ColumnStore}, k)
	}
	return slices.Contains(j.Targets, k)
}

// Metric is one number that a job yields.
type Metric struct {
	Name   string
	Unit   string
	Better Direction
	Bar    Bar
	On     []Kind // where the job yields it; nil: on all of its targets
}

// on says whether the metric is yielded on targets of this kind.
func (m Metric) on(k Kind) bool { return m.On == nil || slices.Contains(m.On, k) }

// Direction says which way a metric is good.
type Direction int

const (
	Higher Direction = iota
	Lower
)

// String is the direction as reports name it.
func (d Direction) String() string {
	if d == Lower {
		return "lower"
	}
	return "higher"
}

// Bar is what a mount must reach. The zero value asks for nothing.
type Bar struct {
	Ext4     float64 // times the median on ext4
	Loopback float64 // times the median on the loopback; with Ext4, the easier of the two counts
	Limit    float64 // an absolute limit, used when Ext4 is 0
	Absolute bool    // Limit is set, also when it is 0
	Other    Kind    // with Factor: times the median on that target
	Factor   float64
	First    bool // better than every other target over an object store whose fsync survives a power cut
}

// AgainstExt4 is a bar relative to ext4.
func AgainstExt4(factor float64) Bar { return Bar{Ext4: factor} }

// AgainstEither is the lower of two bars, relative to ext4 and to the loopback.
func AgainstEither(ext4, loopback float64) Bar { return Bar{Ext4: ext4, Loopback: loopback} }

// AgainstOther is a bar relative to another target.
func AgainstOther(factor float64, other Kind) Bar { return Bar{Other: other, Factor: factor} }

// AtMost is an absolute bar.
func AtMost(limit float64) Bar { return Bar{Limit: limit, Absolute: true} }

// FirstOfDurable asks for the best among those over an object store whose fsync
// survives a power cut.
func FirstOfDurable() Bar { return Bar{First: true} }

// Row is one metric of one job on one target.
type Row struct {
	Job     string    `json:"job"`
	What    string    `json:"what"`
	Setting string    `json:"setting"`
	Metric  string    `json:"metric"`
	Unit    string    `json:"unit"`
	Better  string    `json:"better,omitempty"` // higher or lower
	Target  string    `json:"target"`
	Kind    Kind      `json:"kind"`
	Options string    `json:"mount_options"`
	Values  []float64 `json:"values"`
	Error   string    `json:"error,omitempty"` // the first run that failed
	// NotDurable says why an fsync there does not survive a power cut; empty when
	// it does.
	NotDurable string `json:"not_durable,omitempty"`

	metric Metric
}

// rowKey finds a row.
type rowKey struct{ job, metric, target string }

// runner collects the rows of a run.
type runner struct {
	config  Config
	targets []*Target
	log     io.Writer
	rows    []*Row
	byKey   map[rowKey]*Row
	broken  map[[2]string]bool // job and target that have failed: not run again
}

// RunJobs prepares all jobs and runs the rounds. A job that fails on a target is
// noted in its rows and left out there from then on; the returned error is for
// ctx alone, and the rows so far are returned with it.
func RunJobs(ctx context.Context, c Config, jobs []Job, targets []*Target, log io.Writer) ([]*Row, error) {
	r := &runner{config: c, targets: targets, log: log, byKey: map[rowKey]*Row{}, broken: map[[2]string]bool{}}
	for _, j := range jobs {
		r.addRows(j)
		for _, t := range r.targetsOf(j) {
			if j.Prepare == nil {
				continue
			}
			fmt.Fprintf(log, "prepare %s on %s\n", j.Name, t.Name)
			if err := j.Prepare(ctx, t); err != nil {
				r.fail(j, t, fmt.Errorf("prepare: %w", err))
			}
			if ctx.Err() != nil {
				return r.rows, ctx.Err()
			}
		}
	}
	for round := range c.Rounds {
		for _, j := range jobs {
			if j.Once && round > 0 {
				continue
			}
			if err := r.runOne(ctx, j, round); err != nil {
				return r.rows, err
			}
		}
	}
	return r.rows, nil
}

func (r *runner) targetsOf(j Job) []*Target {
	var on []*Target
	for _, t := range r.targets {
		if j.runsOn(t.Kind) && !r.broken[[2]string{j.Name, t.Name}] {
			on = append(on, t)
		}
	}
	return on
}

func (r *runner) addRows(j Job) {
	for _, m := range j.Metrics {
		for _, t := range r.targetsOf(j) {
			if !m.on(t.Kind) {
				continue
			}
			row := &Row{
				Job: j.Name, What: j.What, Setting: j.Setting, Metric: m.Name, Unit: m.Unit, Better: m.Better.String(),
				Target: t.Name, Kind: t.Kind, Options: t.Options, NotDurable: t.NotDurable, metric: m,
			}
			r.rows = append(r.rows, row)
			r.byKey[rowKey{j.Name, m.Name, t.Name}] = row
		}
	}
}

func (r *runner) fail(j Job, t *Target, err error) {
	fmt.Fprintf(r.log, "%s on %s failed: %v\n", j.Name, t.Name, err)
	r.broken[[2]string{j.Name, t.Name}] = true
	for _, m := range j.Metrics {
		if row := r.byKey[rowKey{j.Name, m.Name, t.Name}]; row != nil {
			row.Error = err.Error()
		}
	}
}

// runOne runs a job on each of its targets, beginning with another one every
// round.
func (r *runner) runOne(ctx context.Context, j Job, round int) error {
	on := r.targetsOf(j)
	for i := range on {
		t := on[(i+round)%len(on)]
		values, err := r.measure(ctx, j, t)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			r.fail(j, t, err)
			continue
		}
		for _, m := range j.Metrics {
			if !m.on(t.Kind) {
				continue
			}
			value, ok := values[m.Name]
			if !ok {
				r.fail(j, t, fmt.Errorf("the job gave no value for %s", m.Name))
				break
			}
			row := r.byKey[rowKey{j.Name, m.Name, t.Name}]
			row.Values = append(row.Values, value)
			fmt.Fprintf(r.log, "round %d  %-16s %-9s %s = %s %s\n", round+1, j.Name, t.Name, m.Name, number(value), m.Unit)
		}
	}
	return nil
}

// measure runs a job once on a machine whose disks have nothing left to do from
// the run before.
func (r *runner) measure(ctx context.Context, j Job, t *Target) (map[string]float64, error) {
	for _, other := range r.targets {
		if err := other.Quiesce(ctx); err != nil {
			return nil, err
		}
	}
	if j.Before != nil {
		if err := j.Before(ctx, t); err != nil {
			return nil, fmt.Errorf("before the run: %w", err)
		}
	}
	if err := t.writeBack(); err != nil {
		return nil, err
	}
	atRest := t.atRest
	t.atRest = false
	if j.Quiet && !atRest {
		if err := t.settle(ctx, r.config.Quiet); err != nil {
			return nil, fmt.Errorf("wait until nothing is uploaded: %w", err)
		}
	}
	values, err := j.Run(ctx, t)
	t.atRest = j.Quiet && err == nil
	return values, err
}
