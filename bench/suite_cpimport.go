package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cisternfs/cistern/bench/trace"
)

// Phases of the recording that jobs name.
const (
	phaseLoad  = "cpimport"
	phaseQuery = "q1_cold"
)

// queryRoots is how many DBRoots a query reads, one after the other.
const queryRoots = 4

// importSuite is what the jobs of suite cpimport share.
type importSuite struct {
	loads   int // cpimports a round, each into a DBRoot of its own
	trace   *trace.Trace
	queries map[*Target]*queryState
	rounds  int // rounds' folders so far
}

// queryState is a target's loaded DBRoots that only queries touch, parked; or why
// there are none.
type queryState struct {
	roots []*trace.Replay
	err   error
}

// suiteCpimport replays what a ColumnStore does.
func suiteCpimport() Suite {
	s := &importSuite{queries: map[*Target]*queryState{}}
	return Suite{
		Name:  "cpimport",
		What:  "a ColumnStore's recorded file operations: cpimport of 1.2 million lineitem rows, Query 1, DML, drop (bench/trace)",
		Store: "s3", Dirs: []Kind{Ext4, Loopback, Mount, Store, Raw, ColumnStore},
		// Little, so that some loads are twice as much.
		MountArgs: []string{"--cache-size=128M", "--journal-size=128M"},
		Flags: func(f *flag.FlagSet) {
			f.IntVar(&s.loads, "loads", 8, "cpimports of a job, one after the other, each of 65 MB into a DBRoot of its own")
		},
		Jobs: func(Config) []Job {
			return []Job{s.loadJob(true), s.loadJob(false), s.queryJob(true), s.queryJob(false), s.coldQueryJob(), s.statementsJob(), columnStoreJob()}
		},
	}
}

// recording loads the trace once.
func (s *importSuite) recording() (*trace.Trace, error) {
	if s.trace == nil {
		var err error
		if s.trace, err = trace.Load(); err != nil {
			return nil, err
		}
	}
	return s.trace, nil
}

// newRoots makes DBRoots with a catalogue and an empty table each.
func (s *importSuite) newRoots(ctx context.Context, dir string, n int) ([]*trace.Replay, error) {
	t, err := s.recording()
	if err != nil {
		return nil, err
	}
	var roots []*trace.Replay
	for i := range n {
		root := filepath.Join(dir, fmt.Sprintf("dbroot%d", i+1))
		if err := os.MkdirAll(root, 0o755); err != nil {
			return roots, fmt.Errorf("make a DBRoot: %w", err)
		}
		r := trace.New(t, root, uint64(i))
		roots = append(roots, r)
		if err := r.Prepare(); err != nil {
			return roots, err
		}
		for _, phase := range []string{"start", "dbbuilder", "create_table"} {
			if _, err := r.Run(ctx, phase, false); err != nil {
				return roots, err
			}
		}
	}
	return roots, nil
}

func closeRoots(roots []*trace.Replay) error {
	var err error
	for _, r := range roots {
		err = errors.Join(err, r.Close())
	}
	return err
}

// inFreshRoots runs f on fresh DBRoots of a target and removes them.
func (s *importSuite) inFreshRoots(ctx context.Context, t *Target, n int, f func([]*trace.Replay) error) (err error) {
	s.rounds++
	dir := filepath.Join(t.Dir, fmt.Sprintf("import%d", s.rounds))
	roots, err := s.newRoots(ctx, dir, n)
	defer func() { err = errors.Join(err, closeRoots(roots), os.RemoveAll(dir)) }()
	if err != nil {
		return err
	}
	if err := errors.Join(t.Quiesce(ctx), t.writeBack()); err != nil {
		return err
	}
	return f(roots)
}

func paceOf(think bool) (name, words string) {
	if think {
		return "think", "with the recorded think time"
	}
	return "fast", "as fast as it goes"
}

// loadJob is cpimport itself and the drain after it.
func (s *importSuite) loadJob(think bool) Job {
	pace, words := paceOf(think)
	load := Metric{Name: "load", Unit: "s", Better: Lower}
	if think {
		load.Bar = AgainstExt4(1.15)
	}
	overStore := []Kind{Store, StoreGS}
	return Job{
		Name: "cpimport-" + pace, What: "replay of cpimport " + words + ", then the drain until the store has everything",
		Setting: fmt.Sprintf("%d loads of 65 MB one after the other, up to 3 operations at a time, until the last close; every read is compared; the drain ends with `cistern sync`, plain PUTs of as much as it uploaded follow in the same round", s.loads),
		Metrics: []Metric{
			load,
			{Name: "in writes", Unit: "s", Better: Lower}, {Name: "in reads", Unit: "s", Better: Lower}, {Name: "in fsyncs", Unit: "s", Better: Lower}, {Name: "in calls on names", Unit: "s", Better: Lower},
			{Name: "drain", Unit: "s", Better: Lower, On: []Kind{Mount, Store, StoreGS}},
			{Name: "uploaded by the drain", Unit: "MiB", Better: Lower, On: overStore},
			{Name: "drain / plain PUTs", Unit: "×", Better: Lower, Bar: AtMost(1.25), On: overStore},
		},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			values := map[string]float64{}
			err := s.inFreshRoots(ctx, t, s.loads, func(roots []*trace.Replay) error {
				begun := time.Now()
				for _, r := range roots {
					res, err := r.Run(ctx, phaseLoad, think)
					if err != nil {
						return err
					}
					addSpent(values, res)
				}
				values["load"] = time.Since(begun).Seconds()
				if err := s.drain(ctx, t, values); err != nil {
					return err
				}
				return roots[len(roots)-1].Verify()
			})
			return values, err
		},
	}
}

// addSpent adds where a load's time went.
func addSpent(values map[string]float64, res trace.Result) {
	for kind, took := range res.Spent {
		switch kind {
		case "write":
			values["in writes"] += took.Seconds()
		case "read", "pread":
			values["in reads"] += took.Seconds()
		case "fsync":
			values["in fsyncs"] += took.Seconds()
		default:
			values["in calls on names"] += took.Seconds()
		}
	}
}

// drain waits until the store has everything and compares the upload with plain
// PUTs of as many bytes.
func (s *importSuite) drain(ctx context.Context, t *Target, values map[string]float64) error {
	if !t.Kind.ofCistern() {
		return nil
	}
	begun := time.Now()
	before, err := t.uploaded(ctx)
	if err != nil {
		return err
	}
	if _, err := t.sync(ctx); err != nil {
		return err
	}
	took := time.Since(begun).Seconds()
	values["drain"] = took
	if !t.inRemote() {
		return nil
	}
	after, err := t.uploaded(ctx)
	if err != nil {
		return err
	}
	set := newRawSet(t.remote.Raw, "drain", max(after-before, 1))
	plain, err := set.put(ctx)
	values["uploaded by the drain"] = float64(after-before) / mebibyte
	values["drain / plain PUTs"] = took / plain.Seconds()
	return errors.Join(err, set.delete(ctx))
}

func (t *Target) uploaded(ctx context.Context) (int64, error) {
	if !t.inRemote() {
		return 0, nil
	}
	return t.remote.Uploaded(ctx)
}

// prepareQueries makes the DBRoots that queries read.
func (s *importSuite) prepareQueries(ctx context.Context, t *Target) error {
	if was := s.queries[t]; was != nil {
		return was.err
	}
	roots, err := s.newRoots(ctx, filepath.Join(t.Dir, "query"), queryRoots)
	for _, r := range roots {
		if err == nil {
			_, err = r.Run(ctx, phaseLoad, false)
		}
		err = errors.Join(err, r.Park())
	}
	s.queries[t] = &queryState{roots, err}
	return err
}

// query runs Query 1 on a target's DBRoots from the first to the n-th.
func (s *importSuite) query(ctx context.Context, t *Target, n int, think bool) (map[string]float64, error) {
	roots := s.queries[t].roots[:n]
	var took time.Duration
	for _, r := range roots {
		if err := r.Resume(); err != nil {
			return nil, err
		}
		res, err := r.Run(ctx, phaseQuery, think)
		if err = errors.Join(err, r.Park()); err != nil {
			return nil, err
		}
		took += res.Took
	}
	return map[string]float64{"time": took.Seconds()}, nil
}

// queryJob is Query 1 from local bytes that are not in the page cache.
func (s *importSuite) queryJob(think bool) Job {
	pace, words := paceOf(think)
	bar := map[bool]float64{true: 1.05, false: 1.5}[think]
	return Job{
		Name: "query1-" + pace, What: "replay of Query 1 " + words + ", from the cache files",
		Setting: "18.9 MB by O_DIRECT in pieces of 1 to 4 MiB, 2 at a time; the query ran once before, then the page cache dropped",
		Metrics: []Metric{{Name: "time", Unit: "s", Better: Lower, Bar: AgainstExt4(bar)}},
		Prepare: s.prepareQueries,
		Before: func(ctx context.Context, t *Target) error {
			if _, err := s.query(ctx, t, 1, false); err != nil {
				return err
			}
			return dropPageCache()
		},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) { return s.query(ctx, t, 1, think) },
	}
}

// coldQueryJob is Query 1 on data that only the store has.
func (s *importSuite) coldQueryJob() Job {
	return Job{
		Name: "query1-cold", What: "replay of Query 1 as fast as it goes on a fresh state directory; plain GETs of the same ranges",
		Setting: fmt.Sprintf("%d DBRoots one after the other, 18.9 MB of each, page cache dropped; plain GETs: %d at a time, or as many as recorded (2)", queryRoots, rawDownloads),
		Targets: []Kind{Store, StoreGS, Raw},
		Metrics: []Metric{
			{Name: "time", Unit: "s", Better: Lower, Bar: AgainstOther(1.25, Raw)},
			{Name: "time of 2 GETs at a time", Unit: "s", Better: Lower, On: []Kind{Raw}},
		},
		Prepare: func(ctx context.Context, t *Target) error {
			if t.Kind == Raw {
				return s.putRanges(ctx, t)
			}
			return s.prepareQueries(ctx, t)
		},
		Before: func(ctx context.Context, t *Target) error {
			if t.Kind != Raw {
				if err := t.moveFresh(ctx); err != nil {
					return err
				}
			}
			return dropPageCache() // the server's, too
		},
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			if t.Kind != Raw {
				return s.query(ctx, t, queryRoots, false)
			}
			_, width, err := s.ranges()
			if err != nil {
				return nil, err
			}
			values := map[string]float64{}
			for name, parallel := range map[string]int{"time": rawDownloads, "time of 2 GETs at a time": width} {
				took, err := s.getRanges(ctx, t, parallel)
				if err != nil {
					return nil, err
				}
				values[name] = took.Seconds()
			}
			return values, nil
		},
	}
}

// statementsJob is what comes after a load: query, DML, a second load, drop.
func (s *importSuite) statementsJob() Job {
	parts := []struct {
		name   string
		phases []string
	}{
		{"Query 1 after the load", []string{phaseQuery}},
		{"DML", []string{"dml_1_insert", "dml_2_insert", "dml_3_update", "dml_4_update", "dml_5_delete", "dml_6_select"}},
		{"second cpimport", []string{"cpimport_append"}},
		{"insert select", []string{"insert_select"}},
		{"drop table", []string{"drop_table", "stop"}},
	}
	job := Job{
		Name: "statements", What: "replay of Query 1, INSERT, UPDATE and DELETE, a second cpimport, INSERT … SELECT and DROP TABLE as fast as it goes",
		Setting: "one DBRoot, just loaded; every read is compared, and the whole DBRoot at the end",
		Run: func(ctx context.Context, t *Target) (map[string]float64, error) {
			values := map[string]float64{}
			err := s.inFreshRoots(ctx, t, 1, func(roots []*trace.Replay) error {
				if _, err := roots[0].Run(ctx, phaseLoad, false); err != nil {
					return err
				}
				for _, part := range parts {
					for _, phase := range part.phases {
						res, err := roots[0].Run(ctx, phase, false)
						if err != nil {
							return err
						}
						values[part.name] += res.Took.Seconds()
					}
				}
				return roots[0].Verify()
			})
			return values, err
		},
	}
	for _, part := range parts {
		job.Metrics = append(job.Metrics, Metric{Name: part.name, Unit: "s", Better: Lower})
	}
	return job
}
