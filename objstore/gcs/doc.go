// Package gcs is the object store behind gs:// URLs: a bucket of Google Cloud
// Storage, or of a server that speaks its JSON API.
//
// # On the wire
//
//	Put      POST /upload/storage/v1/b/<bucket>/o?uploadType=multipart&name=<key>[&ifGenerationMatch=<n>]
//	         {"name", "crc32c", "cacheControl": "no-store, no-transform"} and the body, in one request
//	Get      GET  /storage/v1/b/<bucket>/o/<key>?alt=media     Range: bytes=<first>-<last>
//	Head     GET  /storage/v1/b/<bucket>/o/<key>
//	List     GET  /storage/v1/b/<bucket>/o?prefix=&startOffset=&maxResults=&pageToken=
//	Delete   DELETE /storage/v1/b/<bucket>/o/<key>
//
// The version of an object is its generation in decimal. Create-only is
// ifGenerationMatch=0, compare-and-swap the generation itself; the server
// compares and stores in one step. Objects are marked no-store so that no cache
// between a public bucket and a reader answers with an old lease, and
// no-transform so that they come back as they were sent.
//
// # Promises
//
// The CRC32C of a body travels in front of it, so that the server stores it
// whole or not at all; it is computed in a pass of its own, which also finds a
// body of the wrong size before a request is made. A body that is read whole is
// compared with the server's CRC32C, one that is read in part has exactly the
// length of the range. Each call makes one attempt: nothing is repeated here
// or in the library beneath, because repeating is the decorators' work, and of
// a conditional Put that of objstore.Create. Two calls ask twice: a range that
// starts past the end is followed by a Head, and an answer "not found" that
// does not say what is missing by a listing of one key.
//
// Metadata, listings, uploads and deletes go through
// cloud.google.com/go/storage. Bodies are read by a request of this package's
// own over the same connections: the library's reader asks again for the rest
// of a broken body without bound or pause, and with it the JSON API does not
// let a reader ask for stored bytes as they are.
//
// # Concurrency
//
// A Store is safe for concurrent use and holds nothing but its connections.
// The library runs an upload in a goroutine of its own, for which Put waits.
// Credentials refresh themselves in the background and bound that in time.
package gcs
