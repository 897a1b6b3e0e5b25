package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Report is everything that a run says.
type Report struct {
	Suite     string    `json:"suite"`
	Begun     time.Time `json:"begun"`
	Commit    string    `json:"commit"` // of the source tree; "-dirty" when files differ from it
	Rounds    int       `json:"rounds"`
	Seconds   int       `json:"seconds"` // of one timed run
	FileBytes int64     `json:"file_bytes"`
	Store     string    `json:"store,omitempty"` // the object store and its network
	Machine   Machine   `json:"machine"`
	Results   []Result  `json:"results"`
	// NotMeasured names what was asked for and is missing on the machine, with the
	// reason.
	NotMeasured []string `json:"not_measured,omitempty"`
}

// ReadReport reads what WriteJSON wrote.
func ReadReport(name string) (Report, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return Report{}, fmt.Errorf("read a report: %w", err)
	}
	var r Report
	if err := json.Unmarshal(text, &r); err != nil {
		return Report{}, fmt.Errorf("read the report %s: %w", name, err)
	}
	return r, nil
}

// Machine is where it ran.
type Machine struct {
	Kernel      string  `json:"kernel"`
	CPUs        int     `json:"cpus"`
	MemoryBytes uint64  `json:"memory_bytes"`
	LoadAtBegin float64 `json:"load_at_begin"` // 1 minute's load average: others at work
	Fio         string  `json:"fio"`
	Sysbench    string  `json:"sysbench"`
	MariaDB     string  `json:"mariadb"`
}

// Result is a row with its statistics. Ratios are of medians and 0 where there is
// nothing to compare with.
type Result struct {
	Row
	Median        float64 `json:"median"`
	Min           float64 `json:"min"`
	Max           float64 `json:"max"`
	SpreadPercent float64 `json:"spread_percent"` // (max - min) / median
	RatioExt4     float64 `json:"ratio_ext4"`
	RatioLoopback float64 `json:"ratio_loopback"`
	RatioOther    float64 `json:"ratio_other,omitempty"` // to the target that the bar names
	Bar           string  `json:"bar,omitempty"`
	Verdict       string  `json:"verdict,omitempty"` // pass, fail, or why there is none
}

// Summarize computes the statistics of rows and holds them against their bars.
func Summarize(rows []*Row) []Result {
	median := map[rowKey]float64{}
	for _, r := range rows {
		if len(r.Values) > 0 {
			median[rowKey{r.Job, r.Metric, r.Target}] = medianOf(r.Values)
		}
	}
	var results []Result
	for _, r := range rows {
		res := Result{Row: *r}
		if len(r.Values) > 0 {
			res.Median, res.Min, res.Max = medianOf(r.Values), slices.Min(r.Values), slices.Max(r.Values)
			if res.Median != 0 {
				res.SpreadPercent = 100 * (res.Max - res.Min) / res.Median
			}
		}
		ratio := func(base Kind) float64 {
			if m := median[rowKey{r.Job, r.Metric, string(base)}]; m != 0 && r.Kind != base {
				return res.Median / m
			}
			return 0
		}
		res.RatioExt4, res.RatioLoopback = ratio(Ext4), ratio(Loopback)
		if other := r.metric.Bar.Other; other != "" {
			res.RatioOther = ratio(other)
		}
		if r.metric.Bar.First && r.Kind.ofCistern() {
			if best := bestDurable(rows, r); best != 0 {
				res.RatioOther = res.Median / best
			}
		}
		if r.Kind.ofCistern() && r.Kind != r.metric.Bar.Other {
			res.Bar, res.Verdict = judge(r.metric, res)
		}
		results = append(results, res)
	}
	return results
}

// bestDurable is the best median of a row's peers whose fsync survives a power
// cut; 0 when none of them has one.
func bestDurable(rows []*Row, of *Row) float64 {
	best := 0.0
	for _, r := range rows {
		if r.Job != of.Job || r.Metric != of.Metric || !r.Kind.isPeer() || r.NotDurable != "" || len(r.Values) == 0 {
			continue
		}
		m := medianOf(r.Values)
		if best == 0 || (of.metric.Better == Lower) == (m < best) {
			best = m
		}
	}
	return best
}

func medianOf(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// judge returns the bar in words and whether the result keeps it.
func judge(m Metric, r Result) (bar, verdict string) {
	sign := map[Direction]string{Higher: "≥", Lower: "≤"}[m.Better]
	switch {
	case m.Bar.Absolute:
		bar = fmt.Sprintf("%s %s %s", sign, number(m.Bar.Limit), m.Unit)
	case m.Bar.First:
		bar = "first of those that are durable"
	case m.Bar.Other != "":
		bar = fmt.Sprintf("%s %g × %s", sign, m.Bar.Factor, m.Bar.Other)
	case m.Bar.Loopback != 0:
		bar = fmt.Sprintf("%s %g × ext4 or %g × loopback", sign, m.Bar.Ext4, m.Bar.Loopback)
	case m.Bar.Ext4 != 0:
		bar = fmt.Sprintf("%s %g × ext4", sign, m.Bar.Ext4)
	default:
		return "", ""
	}
	if r.Error != "" || len(r.Values) == 0 {
		return bar, "fail"
	}
	keeps := func(value, limit float64) bool {
		if m.Better == Lower {
			return value <= limit
		}
		return value >= limit
	}
	pass := false
	switch {
	case m.Bar.Absolute:
		pass = keeps(r.Median, m.Bar.Limit)
	case m.Bar.First:
		if r.RatioOther == 0 {
			return bar, "nothing to compare with"
		}
		pass = keeps(r.RatioOther, 1)
	case m.Bar.Other != "":
		if r.RatioOther == 0 {
			return bar, "nothing to compare with"
		}
		pass = keeps(r.RatioOther, m.Bar.Factor)
	case r.RatioExt4 == 0 && (m.Bar.Loopback == 0 || r.RatioLoopback == 0):
		return bar, "nothing to compare with"
	default:
		pass = r.RatioExt4 != 0 && keeps(r.RatioExt4, m.Bar.Ext4) ||
			m.Bar.Loopback != 0 && r.RatioLoopback != 0 && keeps(r.RatioLoopback, m.Bar.Loopback)
	}
	if pass {
		return bar, "pass"
	}
	return bar, "fail"
}

// number prints three or more significant digits without exponents.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a >= 100 || a == math.Trunc(a):
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

// WriteJSON writes the report to a file.
func (r Report) WriteJSON(name string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	if err := os.WriteFile(name, append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("write the report: %w", err)
	}
	return nil
}

// describeMachine gathers what the report says of the machine; a program that
// can't be asked is left empty.
func describeMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), Fio: firstLine("fio", "--version"), Sysbench: firstLine("sysbench", "--version")}
	if fields := strings.Fields(firstLine("mariadbd", "--version")); len(fields) > 2 {
		m.MariaDB = fields[2]
	}
	m.Kernel = firstLine("uname", "-r")
	var info syscall.Sysinfo_t
	if err := syscall.Sysinfo(&info); err == nil {
		m.MemoryBytes = info.Totalram * uint64(info.Unit)
		m.LoadAtBegin = float64(info.Loads[0]) / 65536
	}
	return m
}

func firstLine(argv ...string) string {
	out, err := exec.Command(argv[0], argv[1:]...).Output()
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	return line
}
