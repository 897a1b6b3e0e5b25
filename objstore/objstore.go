package objstore

import (
	"context"
	"errors"
	"io"
	"time"
)

// Store is one bucket, or a prefix of one: the whole contract between the
// engine and an object store. Implementations are safe for concurrent use and
// strongly consistent: a Get or List that starts after a Put returned sees it.
// Every error wraps one of the sentinels below where one applies, and is
// returned within the context's deadline.
type Store interface {
	// Get returns bytes [off, off+length) of an object; length < 0 means to
	// its end. A range that ends past the object's end is cut short; one that
	// starts at or past it gives io.EOF-free empty bytes. The caller closes
	// the reader. Info.Size is the whole object's size.
	Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error)
	// Put stores body (length size) under key, whole or not at all, subject to
	// cond, and returns the new version. A condition that does not hold gives
	// ErrConditionFailed. Any other error leaves it unknown whether the object
	// was stored: see Create.
	Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (Version, error)
	// Head returns what List would say about one key.
	Head(ctx context.Context, key string) (Info, error)
	// List returns up to limit keys (at most 1,000; 0 means 1,000) that begin
	// with prefix and sort after startAfter, in ascending byte order. A page
	// shorter than the limit is the last.
	List(ctx context.Context, prefix, startAfter string, limit int) ([]Info, error)
	// Delete removes a key; a missing key is no error.
	Delete(ctx context.Context, key string) error
}

// Version identifies one body that a key held: an ETag, a generation. It is
// opaque and compared only for equality.
type Version string

// Info is what a store knows about an object.
type Info struct {
	Key      string
	Size     int64 // bytes
	Version  Version
	Modified time.Time // the store's clock
}

// Condition guards a Put. The zero value writes unconditionally.
type Condition struct {
	IfAbsent  bool    // create-only
	IfVersion Version // compare-and-swap; ErrConditionFailed also when the key is missing
}

// The classes of errors. Providers wrap them; callers ask with errors.Is.
var (
	ErrNotExist        = errors.New("object does not exist")
	ErrConditionFailed = errors.New("condition not met")
	ErrPermission      = errors.New("access denied by the object store")
	ErrNoBucket        = errors.New("bucket does not exist")
	// ErrUnavailable marks what may pass: network errors, timeouts, 5xx, 429.
	ErrUnavailable = errors.New("object store unavailable")
	// ErrDamaged marks a body whose checksum or length is not what the store declared.
	ErrDamaged = errors.New("object body damaged")
)
