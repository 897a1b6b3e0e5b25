package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

func TestMedianInterval_OrderStatistics(t *testing.T) {
	upTo := func(n int) (v []float64) {
		for i := range n {
			v = append(v, float64(n-i))
		}
		return v
	}
	// The ranks of tables for the sign test.
	for n, want := range map[int][2]float64{1: {1, 1}, 2: {1, 2}, 5: {1, 5}, 6: {1, 6}, 8: {1, 8}, 9: {2, 8}, 10: {2, 9}, 12: {3, 10}, 20: {6, 15}} {
		if low, high := medianInterval(upTo(n)); low != want[0] || high != want[1] {
			t.Errorf("of %d values from %v to %v, want %v", n, low, high, want)
		}
	}
}

func TestFigures_Bar_JudgesTheMedian(t *testing.T) {
	f := &figures{job: "j", log: io.Discard}
	for _, v := range []float64{1, 0.9, 0.98} {
		f.add("ratio", "", v)
	}
	f.bar("ratio", Higher, 0.95)
	g := f.all[0]
	if len(f.all) != 1 || g.Median != 0.98 || g.Verdict != "pass" || g.Low != 0.9 || g.High != 1 {
		t.Errorf("%+v", g)
	}
	if f.bar("ratio", Lower, 0.5); g.Verdict != "fail" {
		t.Errorf("%+v", g)
	}
}

func TestAddedLag_OnlyWhatBothSaw(t *testing.T) {
	at := time.Now()
	primary, relay := map[uint32]time.Time{}, map[uint32]time.Time{}
	for i := range uint32(100) {
		primary[i] = at
		if i < 95 {
			relay[i] = at.Add(time.Duration(i+1) * time.Millisecond)
		}
	}
	f := &figures{job: "lag", log: io.Discard}
	if err := addedLag(primary, relay, f); err != nil || f.all[0].Median != 95 || f.all[1].Median != 48 || f.all[1].Verdict != "fail" {
		t.Errorf("%v: %+v", err, f.all)
	}
	clear(relay)
	if err := addedLag(primary, relay, f); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("nothing arrived: %v", err)
	}
}

func TestParseRelayFlags_QuickAndNonsense(t *testing.T) {
	c, err := parseRelayFlags("relay", relayJobs(), []string{"--quick", "--mib", "32", "--jobs", "pull,lag"})
	if err != nil || c.Rounds != 1 || c.LogBytes != 32*mebibyte || !slices.Equal(c.jobs, []string{"pull", "lag"}) {
		t.Errorf("%+v, %v", c, err)
	}
	for _, bad := range [][]string{{"--rounds", "0"}, {"--mib", "1"}, {"--jobs", "pul"}, {"--nonsense"}} {
		if _, err := parseRelayFlags("relay", relayJobs(), bad); !errors.Is(err, errUsage) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// TestRelaySuites_EveryJob_Measures runs both suites, small, as the commands do.
func TestRelaySuites_EveryJob_Measures(t *testing.T) {
	testenv.Long(t)
	testenv.NeedPrograms(t, "mariadbd", "mariadb-install-db", "mariadb-binlog", "sysbench")
	dir, program := testenv.TempDir(t), testenv.Binary(t, "./bench")
	for suite, jobs := range map[string][]relayJob{"relay": relayJobs(), "fragment": fragmentJobs()} {
		t.Run(suite, func(t *testing.T) {
			name := filepath.Join(dir, suite+".json")
			out, err := harness.Run(t.Context(), "", program, suite, "--quick", "--seconds", "1", "--mib", "16", "--cistern", testenv.Cistern(t), "--base", dir, "--json", name)
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var r relayReport
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
			for _, j := range jobs {
				if !slices.ContainsFunc(r.Figures, func(f *figure) bool { return f.Job == j.name }) {
					t.Errorf("job %s has no figure\n%s", j.name, out)
				}
			}
			for _, f := range r.Figures {
				if len(f.Values) != 1 || f.Median < 0 || f.Median == 0 && f.Unit != "ms" {
					t.Errorf("%s of %s: %v %s", f.Name, f.Job, f.Values, f.Unit)
				}
			}
		})
	}
}
