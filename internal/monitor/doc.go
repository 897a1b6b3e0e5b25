// Package monitor makes the Go scheduler's monitor thread wake less often.
//
// The runtime's monitor (sysmon in runtime/proc.go) takes processors back from
// threads that stay in the kernel. Wherever it had something to take, or the whole
// process had been idle, it looks again after 20 µs, for a millisecond at least: in
// a process whose threads come and go from fdatasync, FUSE's device and sockets
// thousands of times a second it never rests, and on a machine of few cores it
// takes from each request what a thread switch costs, several times. The runtime
// has no setting for it; the kernel has: the slack of a thread's timers
// (PR_SET_TIMERSLACK in prctl(2), /proc/PID/timerslack_ns in proc_pid(5)), by which a
// sleep may be longer than it was asked to be.
//
// What it costs: a goroutine that is ready while every processor's thread is in the
// kernel waits up to the slack instead of about 70 µs.
package monitor
