// Package blockcodec compresses and encrypts the blocks and extents of objects
// and segments, each on its own, and encrypts whole documents. It knows nothing
// of metadata, the bucket or the engine.
//
// # A frame
//
// One block or extent of at most MaxPlain bytes is stored as one frame. The
// caller keeps the frame's length and the length and checksum of the plain bytes.
//
//	| method 1B | payload |                                       not encrypted
//	| method 1B | salt 8B | AES-256-GCM of the payload | tag 16B |    encrypted
//
//	method   bits 0..1: 0 as they are, 1 lz4 block, 2 zstd frame; bit 7: encrypted
//	payload  the plain bytes, compressed first; as they are when that does not
//	         make them shorter
//
// The salt is random, drawn once a body (an object or a segment). The frame's
// key is HMAC-SHA-256(key, "cistern block 1" 0 volume 0 name 0 salt), volume and
// name being what the body was born as; its nonce is the salt and the frame's
// number in the body (4 bytes, big-endian); associated data are volume 0 name 0
// number 4B method 1B. So no two frames share a key and a nonce, whatever the
// number of bodies, and a frame opens only as what it was made for. A body
// has fewer than 2^32 frames.
//
// # A document
//
//	| "cstnenc1" 8B | key's name 16B | salt 16B | AES-256-GCM, tag 16B | crc32c 4B |
//
// The salt is HMAC-SHA-256(key, "cistern document salt 1" 0 volume 0 name 0
// document), cut: the same document under the same name is the same bytes, so
// that a PUT can be repeated. The document's key is HMAC-SHA-256(key, "cistern
// document 1" 0 volume 0 name 0 salt), its nonce the first 12 bytes of the salt;
// associated data are volume 0 name. The checksum covers all before it: it
// tells damage from a wrong key.
//
// # Keys
//
// A key is 32 random bytes. Its name is 16 hex digits, the first 8 bytes of
// HMAC-SHA-256(key, "cistern key name"): a wrong key shows by its name, and the
// name says nothing about the key. A Ring has the key for writing first and
// further ones for reading.
//
// # Promises
//
// Open gives the plain bytes that were sealed, or ErrDamaged, or ErrNoKey. What
// is left visible: lengths, which method was used, which key, and thereby how
// well bytes compress.
//
// # Concurrency
//
// All types are immutable after they were made, except a Body, which belongs to
// one goroutine. No function starts a goroutine.
package blockcodec
