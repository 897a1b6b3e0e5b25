// Package harness starts the real programs that tests and benchmarks run
// against: a private MariaDB server, a FUSE mount in a process of its own, and
// the cistern binary, built once.
//
// A Process is one program in its own process group with the last lines of its
// output kept in memory. MariaDB and Mount are a Process plus what is known
// about starting it, asking whether it is ready, stopping and killing it. The
// package never touches a program that it did not start.
//
// Concurrency: every Process has one goroutine that waits for it and ends with
// it; Stop and Kill return after that. A value is used by one goroutine at a
// time, except that Kill, Done, Alive and LogTail may be called from any.
package harness
