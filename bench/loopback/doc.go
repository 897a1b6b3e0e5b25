// Command loopback shows a directory through FUSE with nothing added: every
// request becomes the same call on the directory below, reads and writes become
// pread and pwrite. It is the yardstick for what FUSE itself costs, so it mounts
// with the flags of a cistern mount and uses no splice, no passthrough and no
// writeback cache.
//
//	loopback SOURCE MOUNTPOINT
//
// It prints "ready" when the mount serves, and ends when it is unmounted.
//
// Every inode that the kernel knows is an O_PATH descriptor; every open file is
// a descriptor of the file below.
//
// Concurrency: requests run in goroutines of the FUSE server; one mutex guards
// the tables of inodes and handles and is never held during I/O on a file.
package main
