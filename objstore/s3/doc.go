// Package s3 is the object store behind s3:// URLs: a bucket of Amazon S3 or of
// a store that speaks its protocol.
//
// # On the wire
//
//	Get     GET with Range for a part of an object
//	Put     one PUT of the whole body; If-None-Match: * or If-Match: "<etag>"
//	Head    HEAD
//	List    GET ?list-type=2 with prefix, start-after, max-keys, encoding-type=url
//	Delete  DELETE of one key
//
// A version is the ETag without its quotes. A key's object is never made of
// several parts, so that one PUT is atomic and conditional.
//
// # Checksums
//
// A PUT carries x-amz-checksum-crc32c and Content-MD5, and over plain HTTP the
// SHA-256 that is part of the signature: what a store knows of these it
// verifies before it stores, and what it declares in its reply is compared. The
// MD5 costs more CPU than all the rest of a PUT; a large body goes without it
// once a reply had the CRC32C, which the store then computes by itself. A
// GET of a whole object is verified against the CRC32C that the store declares,
// and every body against its declared length and range. A store that knows no
// CRC32C leaves the way back unguarded here; the engine verifies its own CRC32C
// of every block, extent and document in any case.
//
// # Requests are made once
//
// The SDK's retries are off, because a conditional PUT whose outcome is unknown
// must be settled by objstore.Create; the decorators of package objstore repeat
// the rest. Checksums are sent as headers and not as trailers, and no request
// waits for "100 Continue": many compatible stores know neither.
//
// Some stores (Ceph RGW 16.2) refuse If-Match with a quoted ETag though it
// matches. When a refusal can't be true, Put finds out on a key of its own
// whether the store judges an ETag without quotes rightly, accepting the right
// one and refusing a wrong one, and then goes on without quotes.
//
// # Errors
//
//	404 NoSuchKey                          ErrNotExist
//	404 NoSuchBucket, 301                  ErrNoBucket; a 301 names the right region
//	400 InvalidBucketName                  ErrNoBucket
//	412, 404 of an If-Match                ErrConditionFailed
//	409 ConditionalRequestConflict         ErrUnavailable: not applied, to be settled
//	401, 403, expired or wrong keys        ErrPermission, and which of these
//	429, SlowDown and its like             ErrThrottled, which is ErrUnavailable
//	5xx, network, a skewed clock           ErrUnavailable
//	a reply without length or ETag         ErrUnavailable
//	BadDigest, wrong length or checksum    ErrDamaged
//	501 of a conditional PUT               ErrGuarantee
//
// A HEAD has no body to tell a missing bucket from a missing key: it gives
// ErrNotExist for both.
//
// # Concurrency
//
// A Store is safe for concurrent use. It starts no goroutines but those of the
// HTTP client's connections, which end when they are idle for 30 s. Credentials
// are fetched once for all who wait for them and cached until shortly before
// they expire.
package s3
