package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func reportOf(suite string, rows ...*Row) Report {
	return Report{Suite: suite, Results: Summarize(rows)}
}

func TestCompare_Table_SaysWhatMovedBeyondTheRounds(t *testing.T) {
	up := Metric{Name: "n", Better: Higher}
	with := func(r *Row) *Row { r.Better = r.metric.Better.String(); return r }
	before := reportOf("io", with(row("faster", Mount, up, 10, 12)), with(row("noise", Mount, up, 10, 12)), with(row("slower", Mount, up, 10, 12)), with(row("lost", Mount, up, 1)))
	down := Metric{Name: "n", Better: Lower}
	before.Results = append(before.Results, Summarize([]*Row{with(row("time", Mount, down, 5))})...)
	after := reportOf("io", with(row("faster", Mount, up, 13, 20)), with(row("noise", Mount, up, 12, 20)), with(row("slower", Mount, up, 1, 2)), with(row("time", Mount, down, 6)), with(row("born", Mount, up, 1)))
	after.FileBytes = 7
	var out bytes.Buffer
	if err := writeComparison(&out, before, after); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| faster | n | mount | 11", "| 1.50 | better |", "| slower | n | mount | 11", "| 0.14 | worse |", "| 1.20 | worse |",
		"| noise | n | mount | 11  | 16  | 1.45 |  |", "| lost | n | mount | 1  | | | gone |", "| born | n | mount | | 1  | | new |",
		"size of files in bytes 0 and 7",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if err := writeComparison(io.Discard, before, reportOf("scale")); !errors.Is(err, errUsage) {
		t.Errorf("two suites: %v", err)
	}
}

func TestCompareCommand_BadInput(t *testing.T) {
	broken := filepath.Join(t.TempDir(), "broken.json")
	if err := os.WriteFile(broken, []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{nil, {"one"}, {broken, broken}, {"/missing", broken}, {"--flag", "a", "b"}} {
		if err := command(t.Context(), append([]string{"compare"}, args...)); err == nil {
			t.Errorf("compare %v must fail", args)
		}
	}
}

func TestReport_JSON_ReadsBackTheSame(t *testing.T) {
	m := Metric{Name: "throughput", Unit: "MiB/s", Bar: AgainstExt4(0.8)}
	r := reportOf("io", row("seq", Ext4, m, 100), row("seq", Mount, m, 90))
	r.NotMeasured = []string{"gcsfuse"}
	name := filepath.Join(t.TempDir(), "r.json")
	if err := r.WriteJSON(name); err != nil {
		t.Fatal(err)
	}
	got, err := ReadReport(name)
	if err != nil || len(got.Results) != 2 || got.Results[1].Median != 90 || got.Results[1].Verdict != "pass" || got.NotMeasured[0] != "gcsfuse" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestReport_WriteChart_SVGAndPNG(t *testing.T) {
	m := Metric{Name: "throughput", Unit: "MiB/s"}
	failed := row("seq", Store, m)
	peer := row("seq", S3FS, m, 10, 20)
	peer.NotDurable = "says so"
	r := reportOf("io", row("seq", Ext4, m, 100, 120), row("seq", Mount, m, 90), failed, peer, row("nothing", Mount, m), row("zero", Mount, m, 0))
	dir := t.TempDir()
	svg := filepath.Join(dir, "c.svg")
	if err := r.WriteChart(svg); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(svg)
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal(text, new(struct{})); err != nil {
		t.Errorf("no well-formed SVG: %v", err)
	}
	for _, want := range []string{"seq: throughput", "MiB/s", "ext4", "s3fs*", "zero: throughput"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("no %q in the chart", want)
		}
	}
	if bytes.Contains(text, []byte("nothing: throughput")) {
		t.Error("a metric without values has a tile")
	}
	picture := filepath.Join(dir, "c.png")
	if err := r.WriteChart(picture); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(picture)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := png.Decode(f); err != nil {
		t.Errorf("no PNG: %v", err)
	}
	if err := r.WriteChart(filepath.Join(dir, "missing", "c.svg")); err == nil {
		t.Error("a folder that is missing must be an error")
	}
}

func TestSummarize_FirstOfDurable(t *testing.T) {
	for _, c := range []struct {
		name          string
		better        Direction
		ours, durable float64
		verdict       string
	}{
		{"faster", Higher, 11, 10, "pass"},
		{"slower", Higher, 9, 10, "fail"},
		{"quicker", Lower, 9, 10, "pass"},
		{"later", Lower, 11, 10, "fail"},
	} {
		m := Metric{Better: c.better, Bar: FirstOfDurable()}
		loose := row("j", Rclone, m, map[Direction]float64{Higher: 1000, Lower: 1}[c.better])
		loose.NotDurable = "fsync does nothing"
		results := Summarize([]*Row{row("j", Store, m, c.ours), row("j", S3FS, m, c.durable), loose, row("j", JuiceFS, m)})
		if results[0].Verdict != c.verdict || results[1].Verdict != "" {
			t.Errorf("%s: %q, want %q", c.name, results[0].Verdict, c.verdict)
		}
		if alone := Summarize([]*Row{row("j", Store, m, 1), loose}); alone[0].Verdict != "nothing to compare with" {
			t.Errorf("alone: %q", alone[0].Verdict)
		}
	}
}

func TestJobsOf_StoreHasJobsOfItsOwn(t *testing.T) {
	s := suiteIO()
	names := func(args ...string) string {
		c, o, err := parseFlags(s, args)
		if err != nil {
			t.Fatal(err)
		}
		jobs, err := jobsOf(s, c, o)
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, j := range jobs {
			all = append(all, j.Name)
		}
		return strings.Join(all, " ") + ": " + kindNames(kindsFor(jobs, o.kinds(s)))
	}
	if got := names("--store", "s3", "--jobs", "churn"); got != "churn: ext4,loopback,mount,store" {
		t.Errorf("a plain job with a store: %s", got)
	}
	if got := names("--jobs", "churn"); got != "churn: ext4,loopback,mount" {
		t.Errorf("a plain job: %s", got)
	}
	if got := names("--store", "gs"); !strings.HasPrefix(got, "fsync-local fsync-bucket") || strings.Contains(got, "churn") || strings.Contains(got, "s3fs") {
		t.Errorf("jobs with a store: %s", got)
	}
	if got := names("--store", "s3", "--jobs", "churn", "--dirs", "s3fs,store-gs,raw"); got != "churn: s3fs,store-gs" {
		t.Errorf("named targets: %s", got)
	}
}

func TestRcloneDirty_FindsTheMark(t *testing.T) {
	dir := t.TempDir()
	put := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	put("clean", `{"ModTime": "2026", "Dirty": false}`)
	if dirty, err := rcloneDirty(dir); dirty != "" || err != nil {
		t.Errorf("clean: %q, %v", dirty, err)
	}
	put("late", `{"ModTime": "2026", "Dirty": true}`)
	if dirty, err := rcloneDirty(dir); filepath.Base(dirty) != "late" || err != nil {
		t.Errorf("dirty: %q, %v", dirty, err)
	}
	if dirty, err := rcloneDirty(filepath.Join(dir, "missing")); dirty != "" || err != nil {
		t.Errorf("no cache yet: %q, %v", dirty, err)
	}
}

func TestSuites_Jobs_AreWellFormed(t *testing.T) {
	for _, s := range suites() {
		c, o, err := parseFlags(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		jobs, err := jobsOf(s, c, o)
		if err != nil || len(jobs) == 0 {
			t.Fatalf("%s: %d jobs, %v", s.Name, len(jobs), err)
		}
		for _, k := range o.kinds(s) {
			if k.needsRemote() && !o.remote() {
				t.Errorf("suite %s: without a flag it runs on %s, and has no object store", s.Name, k)
			}
		}
		seen := map[string]bool{}
		for _, j := range jobs {
			if seen[j.Name] || j.What == "" || j.Setting == "" || len(j.Metrics) == 0 || j.Run == nil {
				t.Errorf("suite %s: job %+v", s.Name, j)
			}
			seen[j.Name] = true
			for _, m := range j.Metrics {
				if !slices.ContainsFunc(o.kinds(s), func(k Kind) bool { return j.runsOn(k) && m.on(k) }) {
					t.Errorf("suite %s, job %s: no target of the suite yields %s", s.Name, j.Name, m.Name)
				}
			}
		}
	}
}

func TestRunAppends_GivesAllThree(t *testing.T) {
	dir := t.TempDir()
	values, err := runAppends(dir)
	if err != nil || values["to 1 MB"] <= 0 || values["to 100 GB"] <= 0 || values["100 GB / 1 MB"] <= 0 {
		t.Errorf("%v, %v", values, err)
	}
	if left, err := os.ReadDir(dir); len(left) != 0 || err != nil {
		t.Errorf("left %v, %v", left, err)
	}
}

func TestReadSample_FindsWhatMakeFoldersMade(t *testing.T) {
	dir := t.TempDir()
	if err := makeFolders(dir, 2000); err != nil {
		t.Fatal(err)
	}
	if err := readSample(dir, 2000); err != nil {
		t.Error(err)
	}
	if err := readSample(dir, 3000); err == nil {
		t.Error("a missing file must be an error")
	}
}
