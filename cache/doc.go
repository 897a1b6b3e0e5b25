// Package cache is the buffer pool: one sparse local file per inode, with
// exact knowledge of which bytes of it may be served. It knows nothing of
// metadata, journal or objects, and nothing that is dirty depends on it: what
// it forgets is fetched or read from the journal.
//
// # On disk
//
//	<dir>/<inode & 0xff, 2 hex digits>/<inode, hex>     e.g. cache/2a/12a
//
// A file's byte at offset n is the inode's byte at offset n. There is no header
// and no index: holes are bytes that are not here, but not every byte that is
// here is believed. Files of before a restart are there with every block
// unknown, until Verify has compared the block with what it should be.
//
//	<dir>/closed    from Close to Open: how many files there are and what they take
//
// # In memory
//
//	Cache ─ files: inode → File ─ block (128 KiB) ─ present: sorted byte ranges
//	      │                             │           pages: bitmap of 32 × 4 KiB on disk
//	      │                             │           pins, busy: reasons not to evict
//	      └ pool: bytes allocated, the limit, the clock over all unpinned blocks
//
// A block is the unit of verification, pinning and eviction; a page is the unit
// of accounting; presence is exact to the byte.
//
// # Promises
//
//   - ReadAt returns only bytes that were written through this package, or
//     verified, and not dropped or evicted since.
//   - The pages on disk never exceed the limit: room is reserved before a write
//     and given back after the hole is punched. Who finds no room is told so and
//     waits for nobody but a punch under way. What the file system needs beside
//     the pages (extent trees) is measured and counted when it shows.
//   - A pinned block is neither evicted nor punched, whatever else happens.
//   - A write that fails or falls short leaves its range absent.
//   - A failure of the local disk is never the caller's: writes are not stored,
//     reads report it and forget the range. Only Sync passes it on, because a
//     journal reference relies on it.
//
// # Concurrency
//
// Everything may be called from any goroutine. The caller holds its own lock
// over the bytes (exclusive to change, shared to read); this package keeps
// eviction, descriptors and accounting apart from them. No lock is held during
// a read or write of the disk: a block with I/O in flight is busy and is left
// alone, a block being punched is waited for. Lock order: Cache.mu, File.mu,
// then pool.mu or descriptors.mu, of which none is held while another is taken.
package cache
