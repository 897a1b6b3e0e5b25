package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/cisternfs/cistern/internal/harness"
	"github.com/cisternfs/cistern/internal/testenv"
)

// TestSuiteIO_Stores_MeasureEveryRow runs the jobs with an object store, small,
// as the command does.
func TestSuiteIO_Stores_MeasureEveryRow(t *testing.T) {
	testenv.Long(t)
	testenv.NeedFUSE(t)
	dir, program := testenv.TempDir(t), testenv.Binary(t, "./bench")
	for store, jobs := range map[string]string{"s3": "", "gs": "fsync-bucket,cold-read,bulk-write"} {
		t.Run(store, func(t *testing.T) {
			name := filepath.Join(dir, store+".json")
			out, err := harness.Run(t.Context(), "", program, "io", "--store", store, "--jobs", jobs, "--rounds", "1", "--seconds", "1",
				"--file-mib", "32", "--latency", "5ms", "--cistern", testenv.Cistern(t), "--base", dir, "--json", name)
			if err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			var r Report
			if err := json.Unmarshal(text, &r); err != nil {
				t.Fatal(err)
			}
			if r.Store == "" || len(r.Results) == 0 {
				t.Fatalf("the report names no store or has no rows\n%s", out)
			}
			for _, x := range r.Results {
				if x.Error != "" || len(x.Values) != 1 {
					t.Errorf("%s of %s on %s: %v, %s", x.Metric, x.Job, x.Target, x.Values, x.Error)
				}
				if x.Metric == "round trips" && x.Median < 1 {
					t.Errorf("%s: %v round trips: the proxy adds no latency", x.Target, x.Median)
				}
				if x.Metric == "requests" && x.Target == string(Bucket) && x.Median < 2 {
					t.Errorf("an fsync in mode bucket made %v requests: it can't have committed", x.Median)
				}
			}
		})
	}
}

func TestOpenRemote_Nonsense_IsWrongUsage(t *testing.T) {
	for _, store := range []string{"s4", "ftp://host/dir", "file:///dir"} {
		if r, err := OpenRemote(t.Context(), RemoteConfig{Store: store}); !errors.Is(err, errUsage) {
			t.Errorf("%s: %v, %v", store, r, err)
		}
	}
}
