// Package journal is the redo log: one sequence of records, numbered by LSN,
// in a few preallocated files that are used again and again. It knows nothing
// of what the records mean, of files or of objects.
//
// # Life
//
// Open reads the headers, Replay delivers the records, Start begins a new file;
// from then on Reserve, Append, Sync, ReadData and Free run in parallel until
// Close. Dump shows a journal's bytes as they are, damaged ones too.
//
// # Format (version 1, little endian; testdata/v1 must open for ever)
//
// A file in use is named <first lsn, 20 digits>.jnl, a spare one
// <number, 20 digits>.spare; what a spare file holds means nothing.
//
//	file:    header, 4096 bytes | group | group | … | zeros or stale bytes
//
//	header:  magic "CISTJNL1" 8 | crc32c 4 | version 4 | identity 16 |
//	         incarnation 8 | sequence 8 | epoch 8 | first lsn 8 | after lsn 8 |
//	         durable lsn 8 | file size 8 | zeros to 4096
//	         The crc covers all that follows it, zeros included.
//
//	group:   magic "CJG1" 4 | crc32c 4 | length 4 | count 4 | epoch 8 |
//	         incarnation 8 | crc of the group before 4 | zero 4 |
//	         durable lsn 8 | first lsn 8 | count entries | zeros to a multiple of 8
//	         The length counts all of it; the crc covers all that follows it. The
//	         group before the first is the header. A group of no entries only
//	         tells the durable LSN.
//
//	entry:   op 1 | zeros 3 | body length 4 | data length 4 | crc32c of data 4 |
//	         body | data
//
// A group is one operation: all of it is found again, or nothing. It never spans
// files. The incarnation is random for each use of a file, so that the stale
// groups of an earlier use never match.
//
// The file named synced tells up to where records are durable:
//
//	synced:  magic "CISTSYN1" 8 | crc32c 4 | version 4 | identity 16 |
//	         durable lsn 8 | zeros to 64
//	         The crc covers all that follows it, zeros included.
//
// It is written over after each fdatasync of the journal, before those who wait for
// that return, and is not synced itself.
//
// # Recovery
//
// The order of files is that of their sequence numbers, not of their names.
// "After" in a header says up to which LSN the files before it count: what they
// hold above that is dead for ever. So a torn tail never comes back to life (the
// first file after a recovery says where the good records end), and a file that
// was rewritten after a failed write takes the place of the failed one. LSNs
// between after and first were never used.
//
// A bad group at or below the highest LSN that anything calls durable (a group,
// also one found behind the bad one; a header; the file synced; the caller) is damage,
// and Replay stops. Above it, it and everything behind it is the torn tail. A header is
// durable before its file is used, so a bad one is damage; only a file of
// length 0 counts as holding nothing.
//
// After a kill the file synced speaks for the last group commit, of which no later
// group tells. After a power loss it may be older, or torn: what it says was true when
// it was written, and stays so under its identity, so an older one is only less; of one
// that can't be read, or is another journal's, or missing, nothing is believed.
//
// Replayed records that are not known durable are written anew by Start: the last
// process may have died of a failed fdatasync, after which another one of the
// same file proves nothing.
//
// # Promises
//
//   - An Append that returned survives kill -9; a Sync that returned survives a
//     power loss. Records come back in order, without holes.
//   - After a failed write, fdatasync or BeforeSync the file is not written
//     again. All records not known durable go anew, under their LSNs, to a fresh
//     file; only then do waiting calls return. If that fails too, the journal is
//     broken and says so at every call.
//   - Files never take more than MaxBytes, but for such a rewrite. An Append with
//     a reservation doesn't fail for lack of space, unless a rewrite used it up.
//   - ReadData returns the bytes of the Append or an error, never others.
//
// # Concurrency
//
// All methods but Open, Replay, Start and Close may run in parallel. Operations
// are numbered one at a time (Enqueue); one caller hands all that are queued to
// the kernel, in order, for those who wait (Write), in parallel with the one group
// commit that runs for all waiting Syncs, whose leader writes the file synced. The order of locks is leadership of the
// group commit, output lock, append lock, Journal.mu; no I/O happens under the last.
package journal
