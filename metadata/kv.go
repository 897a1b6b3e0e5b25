package metadata

import "errors"

// Bounds of one Update: a Writer that is given more returns ErrUpdateTooBig.
const (
	MaxUpdateBytes = 1 << 20 // keys and values together
	MaxUpdateOps   = 8 << 10
)

// ErrUpdateTooBig is returned by a Writer beyond MaxUpdateBytes or MaxUpdateOps.
var ErrUpdateTooBig = errors.New("too much for one update of the index")

// ErrClosed is returned by a KV that was closed.
var ErrClosed = errors.New("the index is closed")

// KV is the sorted key-value store below the index. Safe for concurrent use.
type KV interface {
	// Get returns the value, which the caller may keep; ErrNotExist when there is none.
	Get(key []byte) ([]byte, error)
	// Scan calls fn for the keys in [from, to), ascending, as of one moment; an
	// empty to means no end. key and value are valid during the call only. An
	// error of fn ends the scan and is returned.
	Scan(from, to []byte, fn func(key, value []byte) error) error
	// Update makes all changes of fn, or none when fn or the store fails. It is
	// visible when Update returns and durable after the next Sync.
	Update(fn func(w Writer) error) error
	// Sync makes every Update that returned durable.
	Sync() error
	// Snapshot reads as of now until it is closed.
	Snapshot() Snapshot
	Close() error
}

// Writer collects the changes of one Update. Keys and values are kept: the caller
// does not change them afterwards.
type Writer interface {
	Set(key, value []byte) error
	Delete(key []byte) error
}

// Snapshot is a consistent view of a KV. Safe for concurrent use; Get and Scan
// are as KV's.
type Snapshot interface {
	Get(key []byte) ([]byte, error)
	Scan(from, to []byte, fn func(key, value []byte) error) error
	Close() error
}

// updateSize counts an Update against its bounds.
type updateSize struct{ bytes, ops int }

func (u *updateSize) add(key, value []byte) error {
	u.bytes += len(key) + len(value)
	u.ops++
	if u.bytes > MaxUpdateBytes || u.ops > MaxUpdateOps {
		return ErrUpdateTooBig
	}
	return nil
}
