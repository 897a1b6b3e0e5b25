// Package metadata holds what a volume knows about its files: inodes, names and
// slots. It turns commits and manifests into JSON documents and back, and keeps
// the state as of the last commit in a local index that can be rebuilt from the
// bucket at any time. It never talks to the bucket itself.
//
// # Documents
//
// Every document is one compact JSON object that ends in its own checksum:
//
//	{"kind":"commit","v":1, … ,"crc32c":"xxxxxxxx"}
//
// The checksum is the CRC32C (Castagnoli) of the whole document with eight
// zeros in its place. Numbers that may pass 2^53 are strings. Names, link targets
// and xattr values that are not valid UTF-8, or hold control characters, are
// {"b64":"…"}. Checksums of blocks are packed: base64 of 4 bytes big-endian each.
//
//	volume.json, clone.json            VolumeDoc   EncodeVolume, DecodeVolume
//	detached.json                      Detached    EncodeDetached, DecodeDetached
//	lease.json                         Lease       EncodeLease, DecodeLease
//	commits/<epoch>/<n>.json           Commit or Seal: DecodeCommitOrSeal
//	manifests/<epoch>/<n>.json         Manifest    EncodeManifest, DecodeManifest
//	manifests/pages/<epoch>-<n>-<hash> zstd of at most 1 MiB of JSON lines
//	pins/<name>~<random>.json          Pin         EncodePin, DecodePin
//	schedules/<name>~<random>.json     Schedule    EncodeSchedule, DecodeSchedule
//
// In a commit a patch is an array of numbers:
//
//	[off, len]                       zeros
//	[off, len, sum]                  goes on where the document's previous patch ended
//	[off, len, sum, gap]             the same, after a gap of so many bytes
//	[off, len, sum, segoff, segment] segment: index into "segs", then into "refs"
//	[off, len, sum, segoff, segment, stored]  the extent is a frame of so many bytes
//
// and a slot without an inode belongs to the inode of the one before it.
//
// # Index
//
// The index is a sorted key-value store (KV). Integers in keys are big-endian, so
// that keys sort like numbers; a value is varints and length-prefixed strings and
// ends in the CRC32C of key and value. formatVersion is part of the head record.
//
//	c ino8 block8          CRC32C of a cached block of the file: local only
//	d death8 key           a dead thing
//	D key                  its death (found from d: not in a manifest)
//	e parent8 cookie8      name, inode, type (found from n: not in a manifest)
//	g key                  a segment
//	h                      the head: the last commit, written last
//	i ino8                 an inode
//	m                      the commit that is being applied, while it takes several updates
//	n parent8 name         inode, type, cookie
//	o ino8                 an inode without names
//	r key                  references to an object, when more than one
//	s ino8 slot4 0         a slot's base
//	s ino8 slot4 1 commit8 off4  a patch
//
// # Promises
//
// The index holds exactly the last commit. Apply is idempotent: after a crash in
// its middle the same commit is applied again and gives the same state; another
// one is refused. The keys of one slot change together, and so do a name and its
// cookie. No value that fails its checksum is returned: ErrDamaged says which.
//
// # Concurrency
//
// All methods of Index and KV may be called from many goroutines; Apply runs one
// at a time. Values that are returned (Inode, Slot) are shared and immutable.
// Callbacks run without locks held and may call the index, but not Apply.
package metadata
