// Package gateway is the storage engine: it joins the journal, the cache, the
// metadata and the object store into a Volume that a file system can be served
// from.
//
// # State
//
// The state of a volume is layered, newest first:
//
//	active layer    changes since the last cut; every one is in the journal
//	frozen layer    changes up to the cut that is being committed, if one is
//	index           the last commit, in metadata.Index
//
// A layer holds whole inodes, names, and for each file an interval map from
// byte ranges to where the bytes are: in a journal record, in the cache file
// under a journaled reference, or nowhere because they are zeros. A commit
// freezes the active layer in O(1), builds objects and segments from the
// frozen one while writes go on in a new active one, publishes the commit
// document, applies it to the index and drops the frozen layer. Until then the
// frozen layer stays on top, so that no reader sees a half-applied commit.
//
// # Paths
//
// An operation is validated, journaled and applied to the active layer in one
// critical section (Volume.mu), so that the order of LSNs is the order of
// states, and replaying any prefix of the journal gives the state that was.
// Data is then put into the cache file under the inode's range lock; the cache
// may refuse, since the journal has the bytes. A byte that the cache calls
// present is the live byte. Everything else is resolved through the layers and
// fetched from the store, verified against the checksums of the index.
//
// # Recovery
//
// Open takes an epoch (lease.go), brings the index to the head of the path of
// commits (recover.go), and replays the journal's records after it into the
// active layer (redo.go): the same apply methods as live.
//
// # One writer
//
// lease.go takes and renews the lease, handover.go gives it away; gate.go is
// what every operation passes, so that writers can be held. A fenced writer's
// journal is set aside (aside.go) with the commit that it builds on:
//
//	aside.json   {format, volume, url, object size, journal, reason, base, base lsn, crc32c}
//
// and read by a Salvage (salvage.go), which changes nothing.
//
// # Views and pins
//
// A View (view.go) is one commit, read from the bucket alone, with a cache of
// what was read (viewcache.go): it needs no lease and no journal. What keeps
// its objects from collection is a Pin (pin.go), an object in the bucket:
//
//	pins/<name>~<random>.json   {kind, name, commit, holder, expiry}
//
// A pin begins as one of kind claim. It is proven by the last commit's horizon,
// or by another pin on the same commit, and is then written anew under its own
// kind and another key, since a key is used for one body ever.
//
// A Follower (follow.go) is a View that moves from commit to commit after the
// writer; it reads only, and Delta says what a move changes.
//
// A restore (restore.go) is a commit that names a manifest of its own number: its
// state is that manifest's, which metadata.Rewind makes from an earlier one.
//
// # Clones
//
// A clone (clone.go) is a volume whose past is another's. Its identity lists the
// ancestors, and every key says whose it is; lineage.go is the store that reads
// each where it lies:
//
//	parent's prefix                     clone's prefix
//	commits/…/n  ◄─ hash ── commits/<epoch>/n+1 (seal) ── commits/<epoch+1>/n+2, …
//	manifests, segments, objects of      clone.json, volume.json, lease.json,
//	epochs up to <epoch>                 and what is born from here on
//
// A pin in every volume that holds bodies of it keeps them (clonepin.go), until
// they are copied (detach.go). Making it is create-only PUTs that follow from the
// claim, volume.json last: every attempt goes on where the one before ended.
//
// # Locks, in the order in which they are taken
//
//	Follower.names  held shared by requests for names and attributes, and
//	                exclusive by a move until the kernel has dropped old pages
//	View.moving     held shared to plan a read, exclusive while a move applies
//
// and of a Volume:
//
//	gate       an operation is inside while it may journal something
//	node.lock  range lock of one inode's bytes; never held over the network
//	Volume.mu  the layers and everything in them; held for one append to the
//	           journal at most, never over the network
//
// Every goroutine belongs to Volume.group; Close waits for all of them.
package gateway
