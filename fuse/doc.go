// Package fuse answers the kernel's FUSE requests with calls to a
// gateway.Volume, or read-only to a gateway.View of one commit, and turns their
// errors into errnos. It holds nothing
// that must survive: the table of open handles, and which inodes are open in
// passthrough. A node id is the inode's number and the generation is 0, since
// a volume never reuses a number.
//
// # What it asks of the kernel, and why
//
//   - default_permissions: the kernel checks modes, owners and sticky
//     directories. What the kernel leaves to the file system is done here:
//     directories with the set-group-id bit hand it and their group down, and
//     the set-id bits go on write, truncate, fallocate and chown
//     (HANDLE_KILLPRIV_V2; without it every write costs a GETXATTR).
//   - Explicit invalidation: this mount is the volume's only writer, so names,
//     missing names, attributes, directory listings and pages are cached for
//     as long as the kernel likes. Whoever changes the volume behind the
//     kernel's back calls Server.Invalidate or Server.InvalidateEntry. A mount
//     that follows another writer (follow.go) drops what a move changes.
//   - No FUSE locks: the kernel's POSIX, flock and OFD locks work on this
//     machine and die with their process, so no lock outlives a crash.
//   - No writeback cache: it would lose the order of writes. Pages made dirty
//     through a shared mapping are the one exception, and come as writes.
//   - Asynchronous direct I/O: without it libaio has a queue depth of one.
//     FOPEN_DIRECT_IO is not used: the kernel keeps O_DIRECT and the page cache
//     of a file coherent by itself, and shared mappings work.
//   - O_TRUNC comes as a SETATTR after the OPEN: truncation has one path, under
//     the kernel's inode lock, which also cuts the page cache. Doing it inside
//     OPEN would save a round trip of some 20 µs and need a second path.
//   - The kernel follows an O_SYNC or O_DSYNC write with an FSYNC of its own,
//     except after asynchronous direct I/O; that one is synced here.
//   - Export support: a file handle (open_by_handle_at, NFS) leads to its inode
//     for as long as that exists, across mounts, too. The kernel looks "." up
//     in the inode's number.
//   - The umask is taken off by the kernel: there are no POSIX ACLs, whose
//     defaults would be the reason to take it off here.
//
// Access times are not kept: atime changes by utimensat only.
//
// # Signals
//
// Databases do not expect EINTR from a file. The kernel reports every signal
// that its caller gets while it waits; only one that ends the caller, the
// death of the mount, or the end of the context given to Mount stops a call.
// After any other the call goes on.
//
// # Concurrency
//
// Every request may run beside every other one; go-fuse reads the device with
// as many goroutines as there are processors and starts more while requests
// wait. No lock is taken on read, write or getattr. The contexts given to the
// volume are valid during the call only.
package fuse
