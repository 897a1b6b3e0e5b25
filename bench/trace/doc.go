// Package trace replays the recorded file operations of a real MariaDB
// ColumnStore on any directory: as many at a time as were recorded, as fast as
// the file system goes or with the recorded think time, with content that is
// compared whenever it is read.
//
// The recording is cpimport.jsonl.gz (README.md says what is in it), a JSON
// document a line: where a phase begins, or an operation.
//
//	{"t":22.7,"phase":"cpimport"}
//	{"t":23.6,"proc":"cpimport.bin:3434","op":"write","path":"data1/…/FILE000.cdf","fd":9,"off":8192,"len":1048576,"ret":1048576,"dur":0.0004}
//
// An operation waits for
//
//   - all that had ended in other processes when it was recorded to begin: what
//     one process told another by the network is thereby kept;
//   - what its own process did before on the same descriptor and path, on the
//     folders above it, and, for a removed or listed folder, below it;
//   - a free place among its process's operations under way, which are never more
//     than were recorded at the same time.
//
// A Replay knows what every file must hold (its model) and fails when a result,
// a size, a listing or a byte differs.
//
//	load.go   the recording          model.go   what must be there
//	replay.go the order and the clock   run.go  one operation
//
// Concurrency: a Replay is used by one goroutine at a time; while it runs a phase
// it has one goroutine for each recorded process and one for each operation under
// way, all of which end before Run returns.
package trace
