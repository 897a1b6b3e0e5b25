package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

// Store is one bucket, or a prefix of one: the whole contract between the
// engine and an object store. Implementations are safe for concurrent use and
// strongly consistent: a Get or List that starts after a Put returned sees it.
// Every error wraps one of the sentinels below where one applies, and is
// returned within the context's deadline. When the caller's context ends, the
// error wraps the context's.
type Store interface {
	// Get returns bytes [off, off+length) of an object; length < 0 means to
	// its end. A range that ends past the object's end is cut short; one that
	// starts at or past it, or has length 0, gives an empty body. The caller
	// closes the reader, whose reads are bound to ctx too. Info.Size is the
	// whole object's size. The body is that of Info.Version, whole, also when
	// the key is overwritten meanwhile.
	Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, Info, error)
	// Put stores the size bytes that body holds from its current position on
	// under key, whole or not at all, subject to cond, and returns the new
	// version, which is never empty. A body of another size is an error and
	// stores nothing. A condition that does not hold gives ErrConditionFailed.
	// Any other error leaves it unknown whether the object was stored: see
	// Create. When Put returned nil the object survives a power cut.
	Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond Condition) (Version, error)
	// Head returns what List would say about one key.
	Head(ctx context.Context, key string) (Info, error)
	// List returns up to limit keys (at most MaxList; 0 means MaxList) that
	// begin with prefix and sort after startAfter, in ascending byte order. A
	// page shorter than the limit is the last.
	List(ctx context.Context, prefix, startAfter string, limit int) ([]Info, error)
	// Delete removes a key; a missing key is no error.
	Delete(ctx context.Context, key string) error
}

// Bounds that every store keeps.
const (
	MaxKey  = 1024 // bytes in a key
	MaxList = 1000 // keys in one page of a List
)

// Version identifies one body that a key held: an ETag, a generation. It is
// opaque and compared only for equality; no stored body has the empty one.
type Version string

// Info is what a store knows about an object.
type Info struct {
	Key      string
	Size     int64 // bytes
	Version  Version
	Modified time.Time // the store's clock
}

// Condition guards a Put. The zero value writes unconditionally; at most one
// of the fields is set.
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
	// ErrThrottled marks a store that asks for fewer requests: 429, SlowDown.
	// It is ErrUnavailable too.
	ErrThrottled = fmt.Errorf("%w: too many requests", ErrUnavailable)
	// ErrDamaged marks a body whose checksum or length is not what the store declared.
	ErrDamaged = errors.New("object body damaged")
	// ErrOpaque marks a body that this reader can't make sense of, and so did not
	// write: it is encrypted with a key that it has not.
	ErrOpaque = errors.New("object body can't be opened")
	// ErrTooLarge marks an object that is larger than the caller is ready to read.
	ErrTooLarge = errors.New("object is larger than expected")
)

// CheckKey returns an error unless key is 1 to MaxKey bytes long. Providers
// call it first.
func CheckKey(key string) error {
	if key == "" {
		return errors.New("object key is empty")
	}
	if len(key) > MaxKey {
		return fmt.Errorf("object key %.40q… is %d bytes long; the limit is %d", key, len(key), MaxKey)
	}
	return nil
}

// CheckPut returns an error unless the arguments of a Put are usable.
// Providers call it first.
func CheckPut(key string, size int64, cond Condition) error {
	if err := CheckKey(key); err != nil {
		return err
	}
	if size < 0 {
		return fmt.Errorf("put %s: size %d is negative", key, size)
	}
	if cond.IfAbsent && cond.IfVersion != "" {
		return fmt.Errorf("put %s: create-only and compare-and-swap exclude each other", key)
	}
	return nil
}

// PageSize returns how many keys a List with the given limit may return.
func PageSize(limit int) int {
	if limit <= 0 || limit > MaxList {
		return MaxList
	}
	return limit
}

// At says what was done to which object when it failed. Several layers know that; the
// innermost one that says it is enough.
func At(op, key string, err error) error {
	if Names(err, key) {
		return err
	}
	return fmt.Errorf("%s %s: %w", op, key, err)
}

// Names says whether an error names an object.
func Names(err error, key string) bool {
	return key != "" && strings.Contains(err.Error(), key)
}

// Class names the class of err in one word, as metrics and status show it:
// "ok" for nil, "other" for an error of no class.
func Class(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrNotExist):
		return "not_exist"
	case errors.Is(err, ErrConditionFailed):
		return "condition_failed"
	case errors.Is(err, ErrPermission):
		return "permission"
	case errors.Is(err, ErrNoBucket):
		return "no_bucket"
	case errors.Is(err, ErrDamaged):
		return "damaged"
	case errors.Is(err, ErrThrottled):
		return "throttled"
	case errors.Is(err, ErrUnavailable):
		return "unavailable"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "cancelled"
	default:
		return "other"
	}
}

// Copier is a Store that can make an object of another one by itself, so that its
// bytes don't pass through this machine. Optional: a provider has it or not.
type Copier interface {
	// CopyFrom stores under key, unless it exists, the body that fromKey holds in
	// fromBucket, a bucket of the same provider. A key that exists is no error: its
	// body must be the same. size is the body's in bytes, or -1 when it is not
	// known. errors.ErrUnsupported: the provider can't do it.
	CopyFrom(ctx context.Context, key string, size int64, fromBucket, fromKey string) error
}
