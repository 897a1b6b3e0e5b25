// Package vfs is the local disk behind a small interface: the real one (OS),
// one in memory that can lose power (Mem), and one that fails the n-th call or
// dies at it (Fault). The engine does all its local I/O through FS and File, so
// that a test runs it whole in one process and crashes it at any step.
//
// What a crash keeps, the contract that all code above relies on:
//
//	written (WriteAt, Truncate, Rename, … returned)  survives kill -9
//	file bytes and size after File.Sync              survive a power loss
//	names in a directory after SyncDir               survive a power loss
//	anything else, after a power loss                is there, or not, or torn
//	                                                 at 512-byte sectors
//
// A file's Sync does not make its name durable, and SyncDir doesn't make the
// bytes of the files durable. A failed Sync must not be repeated: what it
// should have written may be lost although the next Sync returns no error.
//
// Concurrency: every implementation is safe for concurrent use. Reads and
// writes of the same range of one file at the same moment may mix. Closing a
// file while another call uses it is an error of the caller.
package vfs
