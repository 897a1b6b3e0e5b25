package main

import (
	"errors"
	"flag"
	"fmt"
)

func relaySuite() figureSuite {
	return figureSuite{
		"relay", "the binary log relay between a primary and its replica", relayJobs(),
		figureConfig{Rounds: 10, Seconds: 30, Threads: 16, Rows: 10_000}, relayFlags, relaySetting,
	}
}

func fragmentSuite() figureSuite {
	s := relaySuite()
	s.name, s.what, s.jobs = "fragment", "a large transaction on its way through the relay, and small ones beside it", fragmentJobs()
	return s
}

func relayFlags(flags *flag.FlagSet, c *figureConfig) func(quick bool, given map[string]bool) error {
	mib := flags.Int64("mib", 1024, "size in MiB of the log that is pulled and served, and of the large transaction; 64 with --quick")
	flags.StringVar(&c.Ack, "ack", "journal", "the relay's --ack: journal, bucket or memory")
	return func(quick bool, given map[string]bool) error {
		if quick && !given["mib"] {
			*mib = 64
		}
		c.LogBytes = *mib * mebibyte
		if *mib < 16 {
			return errors.New("mib must be at least 16")
		}
		return nil
	}
}

func relaySetting(c figureConfig) string {
	return fmt.Sprintf("logs of %s, --ack %s", size(c.LogBytes), c.Ack)
}

func relayJobs() []figureJob {
	return []figureJob{
		{"throughput", "sysbench oltp_write_only on a primary that waits for its replica (semi-synchronous): a direct one, or the relay with the replica behind it, in turn", runRelayThroughput},
		{"lag", "how much later an event reaches a reader of the relay than a reader of the primary, at 200 transactions a second", runRelayLag},
		{"pull", "a log of large groups, and one of small ones: the relay from an empty volume, mariadb-binlog -R --raw, and a copy over loopback", runRelayPull},
		{"serve", "the same logs sent to a reader that throws them away: the primary's own dump, the relay's, eight at once, and by a relay that has nothing but the bucket", runRelayServe},
		{"memory", "one transaction as large as --mib through the relay: memory above the idle relay's", runRelayMemory},
	}
}

func fragmentJobs() []figureJob {
	return []figureJob{{"fragment", "one transaction as large as --mib while 8 threads commit small ones: the longest wait of a small commit, and the replica's lag", runFragment}}
}
