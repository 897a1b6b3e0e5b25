package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"

	"github.com/cisternfs/cistern/binlogfs"
)

func (a *app) binlogStatusCommand() *cobra.Command {
	var asJSON bool
	c := &cobra.Command{
		Use: "status <vol>", Short: "Show how a running relay is", Args: cobra.ExactArgs(1),
		Long: `Shows a relay of this machine: its source, how far it has come, which groups are
under way, its replicas, and its last error. The exit status is 1 when it
does not pull.`,
	}
	c.Flags().BoolVar(&asJSON, "json", false, "one JSON document")
	return a.command(c, func(ctx context.Context, _ *cobra.Command, args []string) error {
		_, s, err := a.relayOf(ctx, args[0])
		if err != nil {
			return err
		}
		if asJSON {
			err = a.printJSON(s)
		} else {
			err = a.writeOut(func(w io.Writer) { writeRelayStatus(w, &s) })
		}
		if err == nil && !s.Pulling {
			return said(exitFailed)
		}
		return err
	})
}

// writeRelayStatus shows a relay to people.
func writeRelayStatus(w io.Writer, s *binlogfs.RelayStatus) {
	row := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%s\t%s\n", name, fmt.Sprintf(format, args...))
	}
	state := tryingText(s)
	switch {
	case s.Stopped:
		state = "stopped by the last error"
	case !s.Pulling:
		state = "stopped by a command"
	case s.Connected:
		state = "connected since " + s.Since.UTC().Format(time.RFC3339)
	case state == "":
		state = "about to connect"
	}
	row("source", "%s, %s", orDash(s.Source), state)
	row("server", "%s, server id %d %s", orDash(s.Server), s.ServerID, s.UUID)
	row("published", "%06d/%s:%d, %s, %s", s.Epoch, orDash(s.File), s.Offset, count(s.Files, "file"), size(s.Bytes))
	row("GTIDs", "%s", orDash(s.GTIDs))
	behind := "bytes behind not known"
	if s.LagBytes >= 0 {
		behind = size(s.LagBytes) + " behind"
	}
	row("received", "%s, %.1f s and %s, %s", size(s.Received), s.LagSeconds, behind, count(s.Reconnects, "reconnect"))
	row("acknowledged", "when durable in: %s; semi-synchronous: %v", s.Ack, s.SemiSync)
	for _, p := range s.Pending {
		row("pending", "%s from %s:%d on, %s in %s, %s", orDash(p.GTID), p.File, p.Offset, size(p.Bytes), count(p.Fragments, "part"), count(p.Events, "event"))
	}
	for i := range s.Replicas {
		row("replica", "%s", replicaText(&s.Replicas[i]))
	}
	row("last error", "%s", orDash(s.LastError))
}

// tryingText says what a relay that pulls and is not connected is trying, and since
// when; empty for one that is connected.
func tryingText(s *binlogfs.RelayStatus) string {
	if s.Connected || len(s.Trying) == 0 {
		return ""
	}
	return fmt.Sprintf("trying to connect to %s since %s", strings.Join(s.Trying, " and "), s.Since.UTC().Format(time.RFC3339))
}

// replicaText is a replica in a line.
func replicaText(r *binlogfs.Replica) string {
	state := "reading"
	if r.Waiting {
		state = "has everything"
	}
	text := fmt.Sprintf("server id %d at %s, user %s, since %s, sent up to %06d/%s:%d, %s",
		r.ServerID, r.Address, r.User, r.Since.UTC().Format(time.RFC3339), r.Sent.Epoch, orDash(r.Sent.File), r.Sent.Offset, state)
	if r.SemiSync {
		text += fmt.Sprintf(", acknowledged up to %06d/%s:%d", r.Acked.Epoch, orDash(r.Acked.File), r.Acked.Offset)
	}
	return text
}

// relayCollector shows a relay's status as metrics.
type relayCollector struct {
	status  func() binlogfs.RelayStatus
	metrics []relayMetric
}

type relayMetric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(s *binlogfs.RelayStatus) float64
}

func newRelayCollector(status func() binlogfs.RelayStatus) *relayCollector {
	c := &relayCollector{status: status}
	add := func(kind prometheus.ValueType, name, help string, value func(s *binlogfs.RelayStatus) float64) {
		c.metrics = append(c.metrics, relayMetric{prometheus.NewDesc("cistern_binlog_"+name, help, nil, nil), kind, value})
	}
	flag := func(on bool) float64 {
		if on {
			return 1
		}
		return 0
	}
	gauge, counter := prometheus.GaugeValue, prometheus.CounterValue
	add(gauge, "connected", "1 while the relay is connected to its source.", func(s *binlogfs.RelayStatus) float64 { return flag(s.Connected) })
	add(gauge, "stopped", "1 when pulling has stopped for an error that does not heal by itself.", func(s *binlogfs.RelayStatus) float64 { return flag(s.Stopped) })
	add(gauge, "semi_sync", "1 while the source waits for acknowledgements.", func(s *binlogfs.RelayStatus) float64 { return flag(s.SemiSync) })
	add(gauge, "lag_seconds", "Age of the last event when it came; 0 when the source has no more.", func(s *binlogfs.RelayStatus) float64 { return s.LagSeconds })
	add(gauge, "lag_bytes", "Bytes that the source has logged and that did not come; NaN when it does not tell.", func(s *binlogfs.RelayStatus) float64 {
		if s.LagBytes < 0 {
			return math.NaN()
		}
		return float64(s.LagBytes)
	})
	add(counter, "received_bytes_total", "Bytes of events received.", func(s *binlogfs.RelayStatus) float64 { return float64(s.Received) })
	add(counter, "reconnects_total", "Attempts to connect to the source again.", func(s *binlogfs.RelayStatus) float64 { return float64(s.Reconnects) })
	add(gauge, "epoch", "The archive's epoch.", func(s *binlogfs.RelayStatus) float64 { return float64(s.Epoch) })
	add(gauge, "published_offset_bytes", "Published end in the last file.", func(s *binlogfs.RelayStatus) float64 { return float64(s.Offset) })
	add(gauge, "files", "Files of the archive.", func(s *binlogfs.RelayStatus) float64 { return float64(s.Files) })
	add(gauge, "bytes", "Bytes of the archive.", func(s *binlogfs.RelayStatus) float64 { return float64(s.Bytes) })
	add(gauge, "replicas", "Replicas that are connected.", func(s *binlogfs.RelayStatus) float64 { return float64(len(s.Replicas)) })
	add(gauge, "pending_groups", "Groups that are under way.", func(s *binlogfs.RelayStatus) float64 { return float64(len(s.Pending)) })
	add(gauge, "pending_bytes", "Bytes in the volume of groups that are under way.", func(s *binlogfs.RelayStatus) float64 {
		total := int64(0)
		for _, p := range s.Pending {
			total += p.Bytes
		}
		return float64(total)
	})
	return c
}

// Describe implements prometheus.Collector.
func (c *relayCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, m := range c.metrics {
		ch <- m.desc
	}
	ch <- replicaSent
}

// replicaSent is how far the log was sent to a replica.
var replicaSent = prometheus.NewDesc("cistern_binlog_replica_sent_offset_bytes", "End of what was sent of the file to a replica.", []string{"replica", "address", "file"}, nil)

// Collect implements prometheus.Collector.
func (c *relayCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.status()
	for _, m := range c.metrics {
		ch <- prometheus.MustNewConstMetric(m.desc, m.kind, m.value(&s))
	}
	for i := range s.Replicas {
		r := &s.Replicas[i]
		ch <- prometheus.MustNewConstMetric(replicaSent, prometheus.GaugeValue, float64(r.Sent.Offset), strconv.FormatUint(uint64(r.ServerID), 10), r.Address, r.Sent.File)
	}
}
