package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func row(job string, on Kind, m Metric, values ...float64) *Row {
	return &Row{Job: job, Metric: m.Name, Unit: m.Unit, Target: string(on), Kind: on, Values: values, metric: m}
}

func TestSummarize_Bars(t *testing.T) {
	for _, c := range []struct {
		name                  string
		metric                Metric
		ext4, loopback, mount float64
		verdict               string
	}{
		{"throughput kept", Metric{Better: Higher, Bar: AgainstExt4(0.9)}, 100, 50, 90, "pass"},
		{"throughput missed", Metric{Better: Higher, Bar: AgainstExt4(0.9)}, 100, 50, 89, "fail"},
		{"latency kept", Metric{Better: Lower, Bar: AgainstExt4(1.3)}, 100, 500, 130, "pass"},
		{"latency missed", Metric{Better: Lower, Bar: AgainstExt4(1.3)}, 100, 500, 131, "fail"},
		{"the loopback is easier", Metric{Better: Higher, Bar: AgainstEither(0.6, 1.0)}, 100, 40, 41, "pass"},
		{"ext4 is easier", Metric{Better: Higher, Bar: AgainstEither(0.6, 1.0)}, 100, 90, 60, "pass"},
		{"both missed", Metric{Better: Higher, Bar: AgainstEither(0.6, 1.0)}, 100, 90, 59, "fail"},
		{"absolute kept", Metric{Better: Lower, Bar: AtMost(1.2)}, 0, 0, 1.2, "pass"},
		{"absolute missed", Metric{Better: Lower, Bar: AtMost(0)}, 0, 0, 1, "fail"},
		{"no bar", Metric{}, 1, 1, 1, ""},
		{"nothing to compare", Metric{Bar: AgainstExt4(1)}, 0, 0, 5, "nothing to compare with"},
	} {
		t.Run(c.name, func(t *testing.T) {
			results := Summarize([]*Row{
				row("j", Ext4, c.metric, c.ext4), row("j", Loopback, c.metric, c.loopback),
				row("j", Mount, c.metric, 0, c.mount, 1e9),
			})
			if got := results[2].Verdict; got != c.verdict {
				t.Errorf("%q, want %q (ratios %v, %v)", got, c.verdict, results[2].RatioExt4, results[2].RatioLoopback)
			}
			if results[0].Verdict != "" {
				t.Error("only mounts are judged")
			}
		})
	}
}

func TestSummarize_AgainstOther_JudgesAllButThatOne(t *testing.T) {
	m := Metric{Bar: AgainstOther(0.8, Raw)}
	slower := Metric{Better: Lower, Bar: AgainstOther(1.2, Mount)}
	results := Summarize([]*Row{
		row("kept", Store, m, 80), row("kept", Raw, m, 100), row("missed", Store, m, 79), row("missed", Raw, m, 100), row("alone", Store, m, 79),
		row("fsync", Mount, slower, 10), row("fsync", Store, slower, 13),
	})
	for i, want := range []string{"pass", "", "fail", "", "nothing to compare with", "", "fail"} {
		if got := results[i].Verdict; got != want {
			t.Errorf("%s on %s: %q, want %q (ratio %v)", results[i].Job, results[i].Target, got, want, results[i].RatioOther)
		}
	}
}

func TestSummarize_FailedRun_FailsItsBar(t *testing.T) {
	m := Metric{Bar: AgainstExt4(0.1)}
	failed := row("j", Mount, m, 100)
	failed.Error = "broken"
	if got := Summarize([]*Row{row("j", Ext4, m, 100), failed})[1].Verdict; got != "fail" {
		t.Errorf("verdict %q", got)
	}
}

func TestMedianOf_OddAndEven(t *testing.T) {
	if medianOf([]float64{9, 1, 5}) != 5 || medianOf([]float64{4, 1, 2, 9}) != 3 {
		t.Error("wrong median")
	}
}

func TestRunJobs_InterleavesAndLeavesOutWhatFailed(t *testing.T) {
	var order []string
	note := func(name string, fail Kind) Job {
		return Job{Name: name, Metrics: []Metric{{Name: "n"}}, Run: func(_ context.Context, t *Target) (map[string]float64, error) {
			order = append(order, name+t.Name)
			if t.Kind == fail {
				return nil, errors.New("broken")
			}
			return map[string]float64{"n": 1}, nil
		}}
	}
	once := note("c", "")
	once.Once = true
	targets := []*Target{{Name: "A", Kind: Ext4}, {Name: "B", Kind: Loopback}, {Name: "C", Kind: Loopback}}
	rows, err := RunJobs(t.Context(), Config{Rounds: 3}, []Job{note("a", ""), note("b", Ext4), once}, targets, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	want := "aA aB aC bA bB bC cA cB cC aB aC aA bC bB aC aA aB bB bC"
	if got := strings.Join(order, " "); got != want {
		t.Errorf("order\n%s, want\n%s", got, want)
	}
	for _, r := range rows {
		wantError := r.Job == "b" && r.Target == "A"
		if (r.Error != "") != wantError {
			t.Errorf("%s on %s: error %q", r.Job, r.Target, r.Error)
		}
	}
	if err := failures(rows); err == nil || !strings.Contains(err.Error(), "b on A") {
		t.Errorf("failures: %v", err)
	}
}

func TestRunJobs_MissingValue_IsAFailure(t *testing.T) {
	j := Job{Name: "a", Metrics: []Metric{{Name: "n"}}, Run: func(context.Context, *Target) (map[string]float64, error) { return nil, nil }}
	rows, err := RunJobs(t.Context(), Config{Rounds: 1}, []Job{j}, []*Target{{Name: "A", Kind: Ext4}}, io.Discard)
	if err != nil || rows[0].Error == "" {
		t.Errorf("row %+v, %v", rows[0], err)
	}
}

func TestParseFio_Cases(t *testing.T) {
	good := `fio: a warning
{"jobs": [{"error": 0, "write": {"iops": 2000.5, "io_bytes": 4096, "runtime": 10, "clat_ns": {"percentile": {"50.000000": 1500}}},
 "sync": {"lat_ns": {"percentile": {"50.000000": 90000}}}}]}`
	job, err := parseFio([]byte(good))
	if err != nil || job.Write.IOPS != 2000.5 || job.Write.Clat.p50() != 1500 || job.Sync.Lat.p50() != 90000 || job.Write.Bytes != 4096 {
		t.Errorf("%+v, %v", job, err)
	}
	for _, bad := range []string{"", "no json", `{"jobs": []}`, `{"jobs": [{"error": 5}]}`, `{"jobs": [`} {
		if _, err := parseFio([]byte(bad)); err == nil {
			t.Errorf("%q must be an error", bad)
		}
	}
}

func TestParseTPS_Cases(t *testing.T) {
	tps, err := parseTPS("SQL statistics:\n    transactions:                        1204   (602.13 per sec.)\n")
	if err != nil || tps != 602.13 {
		t.Errorf("%v, %v", tps, err)
	}
	if _, err := parseTPS("FATAL: no connection"); err == nil {
		t.Error("output without a rate must be an error")
	}
}

func TestStoreMeter_CountsNewKeysOnce(t *testing.T) {
	dir := t.TempDir()
	put := func(key string, n int) {
		t.Helper()
		name := filepath.Join(dir, key)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, make([]byte, n), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("segments/1/old.seg", 1000)
	m, err := newStoreMeter(dir)
	if err != nil {
		t.Fatal(err)
	}
	err = m.during(func() error {
		put("segments/1/new.seg", 10)
		put("commits/1/2.json", 3)
		put("objects/x", 500)
		put("lease.json", 70)
		put("objects/.unfinished", 900)
		put("objects/empty", 0)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	// What the collection deletes has been uploaded all the same.
	if err := os.Remove(filepath.Join(dir, "objects/x")); err != nil {
		t.Fatal(err)
	}
	if found, err := m.look(); found || err != nil {
		t.Errorf("look: %v, %v", found, err)
	}
	if total, n := m.bytes(); total != 513 || n != 4 {
		t.Errorf("all: %d bytes in %d", total, n)
	}
	if total, n := m.bytes("segments", "commits"); total != 13 || n != 2 {
		t.Errorf("segments and commits: %d bytes in %d", total, n)
	}
}

func TestStoreMeter_During_ReturnsTheError(t *testing.T) {
	m, err := newStoreMeter(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	broken := errors.New("broken")
	if err := m.during(func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

func TestChurn_LeavesNothing(t *testing.T) {
	dir := t.TempDir()
	if n, err := churn(dir, 20*time.Millisecond); n == 0 || err != nil {
		t.Fatalf("%d files, %v", n, err)
	}
	if left, err := os.ReadDir(dir); len(left) != 0 || err != nil {
		t.Errorf("left %v, %v", left, err)
	}
	if _, err := churn(filepath.Join(dir, "missing"), time.Second); err == nil {
		t.Error("a missing directory must be an error")
	}
}

func TestFillFile_WritesAllBytes(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	const want = mebibyte + 12345
	if err := fillFile(name, want); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(name)
	if err != nil || len(b) != want || bytes.Equal(b[:4096], make([]byte, 4096)) {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if err := readThrough(name); err != nil {
		t.Error(err)
	}
	if n, err := allocated(filepath.Dir(name)); err != nil || n < want {
		t.Errorf("allocated %d, %v", n, err)
	}
}

func TestProcWriteBytes_Self(t *testing.T) {
	before, err := procWriteBytes(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	// Not in the temporary directory: that may be memory.
	name := filepath.Join(".", ".procwrite.tmp")
	defer os.Remove(name)
	if err := fillFile(name, 4*mebibyte); err != nil {
		t.Fatal(err)
	}
	after, err := procWriteBytes(os.Getpid())
	if err != nil || after-before < 4*mebibyte {
		t.Errorf("%d bytes counted for 4 MiB, %v", after-before, err)
	}
}

func TestParseFlags_QuickAndNonsense(t *testing.T) {
	c, _, err := parseFlags(suiteIO(), []string{"--quick", "--seconds", "7"})
	if err != nil || c.Rounds != 2 || c.Seconds != 7 {
		t.Errorf("%+v, %v", c, err)
	}
	if c, o, err := parseFlags(suiteIO(), []string{"--store", "s3", "--bandwidth", "50MiB"}); err != nil || c.FileBytes != storeFileBytes || !o.remote() || o.bandwidth.Bytes != 50*mebibyte {
		t.Errorf("with a store: %+v, %+v, %v", c, o, err)
	}
	if _, o, err := parseFlags(suiteIO(), []string{"--store", "file"}); err != nil || o.remote() {
		t.Errorf("with a directory: %+v, %v", o, err)
	}
	for _, bad := range [][]string{{"--rounds", "0"}, {"--file-mib", "17"}, {"--rows", "-1"}, {"--store", "s3", "--latency", "0s"}, {"--dirs", "typo"}, {"--chart", "x.pdf"}, {"stray"}} {
		if _, _, err := parseFlags(suiteIO(), bad); !errors.Is(err, errUsage) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

func TestSuiteIO_Jobs_AreWellFormed(t *testing.T) {
	seen := map[string]bool{}
	for _, j := range append(suiteIO().Jobs(defaults()), storeJobs(defaults())...) {
		if seen[j.Name] || j.What == "" || j.Setting == "" || len(j.Metrics) == 0 || j.Run == nil {
			t.Errorf("job %+v", j)
		}
		seen[j.Name] = true
	}
	chosen, err := choose(suiteIO().Jobs(defaults()), "oltp,fsync-1")
	if err != nil || len(chosen) != 2 || chosen[1].Name != "fsync-1" {
		t.Errorf("%v, %v", chosen, err)
	}
	if _, err := choose(nil, "nothing"); !errors.Is(err, errUsage) {
		t.Errorf("an unknown job: %v", err)
	}
	if kinds := kindsFor(chosen, []Kind{Ext4, Fixed, Store}); !slices.Equal(kinds, []Kind{Ext4, Store}) {
		t.Errorf("kinds %v", kinds)
	}
}

func TestReport_WriteMarkdown_StatesEverything(t *testing.T) {
	m := Metric{Name: "throughput", Unit: "MiB/s", Bar: AgainstExt4(0.8)}
	a, b := row("seq", Ext4, m, 100, 110), row("seq", Mount, m, 90)
	b.Options, b.Setting = "fuse.cistern rw", "1 GiB file"
	var out bytes.Buffer
	r := Report{Suite: "io", Results: Summarize([]*Row{a, b})}
	if err := r.WriteMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| seq | throughput | mount | 90 MiB/s |", "0.86", "≥ 0.8 × ext4", "pass", "fuse.cistern rw", "1 GiB file"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	name := filepath.Join(t.TempDir(), "r.json")
	if err := r.WriteJSON(name); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(name); err != nil || !bytes.Contains(text, []byte(`"ratio_ext4": 0.857`)) {
		t.Errorf("%s, %v", text, err)
	}
}
