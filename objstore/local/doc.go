// Package local is the object store behind file:// URLs: a directory as bucket.
//
// # On disk
//
// A key is cut at its slashes. Each segment but the last is a directory, the
// last one a file that holds the body and nothing else:
//
//	commits/0000000001/00000000000000000007.json
//	objects/<uuid>_0_5242880_data1~000.dir~FILE000.cdf
//	.tmp/<pid>-<random>      bodies being written
//	.lock/<00…3f>            empty; flock'ed while a key of that hash is changed
//	.lock/dirs               flock'ed, shared, while a key is made; its size counts removed directories
//
// A segment becomes a file name like this:
//
//	bytes          '%', NUL, control bytes, bytes from 0x7f up and a leading '.' are written %XX
//	empty          %_
//	file           without a '.' in it: a '%' is appended
//	directory      with a '.' in it: a '%' is appended
//	long           over 240 bytes when written so: cut into pieces, all but the last of which are
//	               directories with '%%' appended
//
// so that the keys a and a/b can both exist and usual names look as in any
// bucket. Names that this package would not have written are not objects.
//
// The version of an object is its file's modification time in nanoseconds and
// its size. Every writer sets that time, and sets it later than the one that
// it replaces. A copy of the directory is a bucket as good as the original,
// whether or not times were copied; it only must not be copied into under a
// running writer.
//
// # Promises
//
// A body is written to .tmp and fsynced; create-only then makes it appear with
// link(2), anything else compares and renames under the lock; the directory is
// fsynced before Put returns, and so is the parent of each directory on the
// way that this process has not yet seen to be durable. A Delete removes the
// directories that it leaves empty, under the lock .lock/dirs, which keeps
// creators out; what a process knows of durable directories is forgotten when
// that file's size tells that some were removed.
//
// A List reads only the directories that can hold keys of its prefix after
// startAfter, each of them whole: a page costs the names of one directory and
// one stat a key returned.
//
// # Concurrency
//
// Safe for concurrent use by goroutines and by processes of one machine.
// Readers take no lock: they open the old file or the new one. Writers of one
// key exclude each other by one of 64 locks, which they wait for within their
// context's deadline.
package local
