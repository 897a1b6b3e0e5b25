// Command bench compares a cistern mount with what it stands on: the same jobs
// on a directory of the local file system, on a bare FUSE loopback over such a
// directory (bench/loopback), and on a mount of a volume in a file:// store. It
// also compares mounts of volumes in an object store with plain requests to it.
//
//	go run ./bench list                 the suites and their jobs
//	go run ./bench io [flags]           run the suite io; -h lists the flags
//	go run ./bench io --store s3        its jobs with an object store; gs, or s3://bucket/prefix
//	go run ./bench memory [flags]       run the suite memory: a large volume in 512 MiB
//	go run ./bench relay [flags]        the binary log relay between a primary and its replica
//	go run ./bench fragment [flags]     a large transaction on its way through the relay
//	go run ./bench lineitem --rows N    TPC-H lineitem rows as tab-separated text
//
// A Suite is a list of Jobs. A Job prepares its files once on each Target and
// then runs once a round on each of them in turn, beginning with another target
// every round (A B C, B C A, …), so that what else the machine does meets all
// alike. What it measured are Metrics; the report gives median, spread and
// ratio of each, and whether it keeps its Bar.
//
//	main.go     commands and flags       target.go   directories, loopback, mounts
//	suite.go    Suite, Job, the rounds   report.go   statistics, Markdown, JSON
//	suite_io.go the jobs of suite io     fio.go, oltp.go, churn.go, upload.go  what they run
//	suite_memory.go, memory.go           the suite memory
//	suite_store.go, raw.go               jobs with an object store, and plain requests to it
//	remote.go, proxy.go                  that store, and the network before it
//	relay*.go, fragment.go               the suites relay and fragment, which have jobs without targets
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
// Concurrency: one job runs at a time; a run is one goroutine.
package main
