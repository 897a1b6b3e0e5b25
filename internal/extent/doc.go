// Package extent keeps things that cover ranges of a file: which bytes of an
// inode are dirty, where the newest bytes of a range are, which blocks are
// known.
//
//	Map[V]   non-overlapping half-open ranges, each with a value; setting a
//	         range replaces what it overlaps and splits what it overlaps in part
//	Ranges   a plain set of ranges; neighbours melt into one
//
// It is in memory only and has no format.
//
// # Concurrency
//
// Nothing here locks. Readers may run in parallel with each other, a change
// excludes everything else. The functions handed to Visit and Gaps must not
// change the map that calls them.
package extent
