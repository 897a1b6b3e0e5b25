// Command bench compares a cistern mount with what it stands on: the same jobs
// on a directory of the local file system, on a bare FUSE loopback over such a
// directory (bench/loopback), and on a mount of a volume in a file:// store.
//
//	go run ./bench list                 the suites and their jobs
//	go run ./bench io [flags]           run the suite io; -h lists the flags
//	go run ./bench memory [flags]       run the suite memory: a large volume in 512 MiB
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
//
// Concurrency: one job runs at a time; a run is one goroutine.
package main
