package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
)

// fioSide is what fio reports of one direction.
type fioSide struct {
	IOPS      float64 `json:"iops"`
	Bytes     int64   `json:"io_bytes"`
	RuntimeMs int64   `json:"runtime"`
	Clat      fioLat  `json:"clat_ns"`
}

// fioLat is a distribution of latencies in ns.
type fioLat struct {
	Mean       float64            `json:"mean"`
	Percentile map[string]float64 `json:"percentile"`
}

// fioJob is what fio reports of a group of jobs.
type fioJob struct {
	Error int     `json:"error"`
	Read  fioSide `json:"read"`
	Write fioSide `json:"write"`
	Sync  struct {
		Lat fioLat `json:"lat_ns"`
	} `json:"sync"`
}

// p50 returns the median in ns.
func (l fioLat) p50() float64 { return l.Percentile["50.000000"] }

// runFio runs one job on existing files of dir. What is common to all jobs: the
// page cache is left alone, results are grouped, and the data can't be
// compressed.
func runFio(ctx context.Context, dir string, args ...string) (fioJob, error) {
	common := []string{
		"--name=job", "--directory=" + dir, "--output-format=json", "--group_reporting",
		"--invalidate=0", "--refill_buffers", "--fallocate=none", "--thread",
	}
	cmd := exec.CommandContext(ctx, "fio", append(common, args...)...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return fioJob{}, fmt.Errorf("fio %s: %w\n%s%s", strings.Join(args, " "), err, out, stderr.String())
	}
	job, err := parseFio(out)
	if err != nil {
		return fioJob{}, fmt.Errorf("fio %s: %w", strings.Join(args, " "), err)
	}
	return job, nil
}

// parseFio reads fio's JSON, which warnings may stand in front of.
func parseFio(out []byte) (fioJob, error) {
	begin := strings.IndexByte(string(out), '{')
	if begin < 0 {
		return fioJob{}, fmt.Errorf("it printed no JSON: %s", out)
	}
	var report struct {
		Jobs []fioJob `json:"jobs"`
	}
	if err := json.Unmarshal(out[begin:], &report); err != nil {
		return fioJob{}, fmt.Errorf("read its JSON: %w", err)
	}
	if len(report.Jobs) != 1 {
		return fioJob{}, fmt.Errorf("it reports %d groups of jobs instead of one", len(report.Jobs))
	}
	if job := report.Jobs[0]; job.Error != 0 {
		return fioJob{}, fmt.Errorf("it met error %d", job.Error)
	}
	return report.Jobs[0], nil
}

// timed are the arguments for a run of so many seconds.
func timed(seconds int, args ...string) []string {
	return append(args, "--time_based", fmt.Sprintf("--runtime=%d", seconds))
}
