package main

import (
	"fmt"
	"io"
	"strings"
	"time"
)

// WriteMarkdown prints the report as tables.
func (r Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "Suite %s, commit %s, begun %s: %d rounds of %d s, files of %s.\n", r.Suite, r.Commit, r.Begun.UTC().Format(time.DateTime), r.Rounds, r.Seconds, size(r.FileBytes))
	fmt.Fprintf(&b, "Linux %s, %d CPUs, %d MiB of memory, load %.1f at the begin; %s, %s, MariaDB %s.\n\n", m.Kernel, m.CPUs, m.MemoryBytes/mebibyte, m.LoadAtBegin, m.Fio, m.Sysbench, m.MariaDB)
	fmt.Fprintf(&b, "| job | metric | on | median | spread | × ext4 | × loopback | × other | bar | |\n|---|---|---|---:|---:|---:|---:|---:|---|---|\n")
	for _, x := range r.Results {
		median, spread := number(x.Median)+" "+x.Unit, fmt.Sprintf("%.0f %%", x.SpreadPercent)
		if len(x.Values) == 0 {
			median, spread = "failed", ""
		}
		on := x.Target
		if x.NotDurable != "" {
			on += " (not durable)"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", x.Job, x.Metric, on, median, spread, ratioText(x.RatioExt4), ratioText(x.RatioLoopback), ratioText(x.RatioOther), x.Bar, x.Verdict)
	}
	r.writeSettings(&b)
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("print the report: %w", err)
	}
	return nil
}

// writeSettings says for each job what it does and on what, for each target how
// it is mounted, and lists the errors.
func (r Report) writeSettings(b *strings.Builder) {
	said := map[string]bool{}
	once := func(format string, args ...any) {
		if line := fmt.Sprintf(format, args...); !said[line] {
			said[line] = true
			b.WriteString(line)
		}
	}
	b.WriteString("\n| job | work | setting |\n|---|---|---|\n")
	for _, x := range r.Results {
		once("| %s | %s | %s |\n", x.Job, x.What, x.Setting)
	}
	b.WriteString("\n| on | file system and mount options |\n|---|---|\n")
	for _, x := range r.Results {
		once("| %s | %s |\n", x.Target, x.Options)
	}
	for _, x := range r.Results {
		if x.NotDurable != "" {
			once("\n%s is not durable: %s.\n", x.Target, x.NotDurable)
		}
	}
	for _, missing := range r.NotMeasured {
		once("\nNot measured: %s.\n", missing)
	}
	for _, x := range r.Results {
		if x.Error != "" {
			first, _, _ := strings.Cut(x.Error, "\n")
			once("\n%s on %s failed: %s\n", x.Job, x.Target, first)
		}
	}
}

func ratioText(v float64) string {
	if v == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f", v)
}
