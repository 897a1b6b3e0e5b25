// Command bench compares a cistern mount with what it stands on: the same jobs
// on a directory of the local file system, on a bare FUSE loopback over such a
// directory (bench/loopback), and on a mount of a volume in a file:// store. It
// also compares mounts of volumes in an object store with plain requests to it,
// and with other file systems over it that are found on the machine.
//
//	go run ./bench list                 the suites and their jobs
//	go run ./bench io [flags]           run the suite io; -h lists the flags
//	go run ./bench io --store s3        its jobs with an object store; gs, or s3://bucket/prefix
//	go run ./bench cpimport [flags]     run another suite: oltp, memory, recovery, relay, fragment, backup, …
//	go run ./bench compare OLD NEW      what moved between two runs, from their JSON
//	go run ./bench lineitem --scale F   TPC-H lineitem rows as tab-separated text
//
// A Suite is a list of Jobs. A Job prepares its files once on each Target and
// then runs once a round on each of them in turn, beginning with another target
// every round (A B C, B C A, …), so that what else the machine does meets all
// alike. What it measured are Metrics; the report gives median, spread and
// ratio of each, and whether it keeps its Bar.
//
//	main.go      commands                 flags.go, run.go  a suite's flags and run
//	suite.go     Suite, Job, the rounds   target.go, peer.go  where jobs run
//	report.go    statistics, JSON         markdown.go, chart.go, compare.go  what is shown
//	crash.go     what suite recovery writes and compares
//	figures.go   suites whose jobs have no targets: relay*.go, fragment.go, backup_*.go
//	suite_*.go   a suite's jobs each      the other files: what they run
//	trace        the recorded operations of a ColumnStore and their replay
//
// With --store the volumes lie in a server of the run's own (versitygw or
// fake-gcs-server). Between it and all its clients is a proxy that adds latency
// and limits bandwidth, a process of its own (`bench proxy`):
//
//	mount (store, bucket) ─┐
//	plain requests (raw) ──┴▶ proxy: 20 ms, 100 MiB/s each way ──▶ server
//
// A bucket that is named by its URL is reached as the environment says, without
// a proxy; what the run put there stays.
//
// The peers are found in PATH (Debian has s3fs and rclone); a report lists what
// was not, and marks as not durable those whose fsync returned before the data
// had left the machine, which the proxy tells. The suite cpimport gives its mounts
// a small cache and journal (--mount-arg changes them), so that its loads are twice
// as much; the jobs of suite scale with a million files, --max-files 1000000, take
// many minutes.
//
// Concurrency: one job runs at a time; a run is one goroutine.
package main
