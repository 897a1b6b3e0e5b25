package metadata

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/pb"
	"github.com/dgraph-io/ristretto/v2/z"
)

// gcRatio is the share of a value log file that must be garbage before it is rewritten.
const gcRatio = 0.5

// openingMark is a file that lies in the directory while it is being opened: a
// store damaged in a way that ends the process is found by it at the next start.
const openingMark = "opening"

// BadgerKV is a KV in a directory of the local disk.
type BadgerKV struct {
	db  *badger.DB
	dir string
	log *badgerLog

	mu     sync.RWMutex // guards closed; held for moments only
	closed bool
	active sync.WaitGroup // calls that run: Close waits for them
}

func (b *BadgerKV) enter() (leave func(), err error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return nil, ErrClosed
	}
	b.active.Add(1)
	return b.active.Done, nil
}

// Get implements KV.
func (b *BadgerKV) Get(key []byte) (value []byte, err error) {
	leave, err := b.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	txn := b.db.NewTransaction(false)
	defer txn.Discard()
	return badgerGet(txn, key)
}

// Scan implements KV.
func (b *BadgerKV) Scan(from, to []byte, fn func(key, value []byte) error) error {
	s := b.Snapshot()
	err := s.Scan(from, to, fn)
	return errors.Join(err, s.Close())
}

// leastFree is what the disk must have free for an update, in bytes: the store
// writes through mapped files that have holes, and where the disk can't fill one
// the process is killed instead of getting an error.
const leastFree = 32 << 20

// roomy returns ENOSPC when the disk is too full for an update.
func (b *BadgerKV) roomy() error {
	var s unix.Statfs_t
	if err := unix.Statfs(b.dir, &s); err != nil {
		return fmt.Errorf("look at the disk of the index %s: %w", b.dir, err)
	}
	if free := int64(s.Bavail) * s.Bsize; free < leastFree {
		return fmt.Errorf("update the index %s: %w: its disk has %d bytes free, %d are needed", b.dir, syscall.ENOSPC, free, leastFree)
	}
	return nil
}

// Update implements KV. ENOSPC when the disk is nearly full.
func (b *BadgerKV) Update(fn func(w Writer) error) error {
	leave, err := b.enter()
	if err != nil {
		return err
	}
	defer leave()
	if err := b.roomy(); err != nil {
		return err
	}
	txn := b.db.NewTransaction(true)
	defer txn.Discard()
	if err := fn(&badgerWriter{txn: txn}); err != nil {
		return err
	}
	if err := txn.Commit(); err != nil {
		return fmt.Errorf("update the index %s: %w", b.dir, err)
	}
	return nil
}

// Fill implements filler: the records go into tables at once, without logs and
// compactions. ENOSPC when the disk is nearly full.
func (b *BadgerKV) Fill(next func() ([]op, error)) error {
	leave, err := b.enter()
	if err != nil {
		return err
	}
	defer leave()
	w := b.db.NewStreamWriter()
	ended := false
	defer func() {
		if !ended {
			w.Cancel()
		}
	}()
	if err := w.Prepare(); err != nil {
		return b.fillError(err)
	}
	if err := b.stream(w, next); err != nil {
		return err
	}
	ended = true // Flush stops what Cancel would, also when it fails
	return b.fillError(w.Flush())
}

// stored is a buffer that may be filled anew, and how storing it went.
type stored struct {
	buf *z.Buffer
	err error
}

// stream stores what next returns: one goroutine stores records while the
// caller's makes the next ones.
func (b *BadgerKV) stream(w *badger.StreamWriter, next func() ([]op, error)) (err error) {
	// Two buffers: one is filled while the other one is stored. Write keeps neither.
	empty, full := make(chan stored, 2), make(chan *z.Buffer)
	for range cap(empty) {
		empty <- stored{buf: z.NewBuffer(1<<20, "index")}
	}
	go func() {
		for buf := range full {
			err := w.Write(buf)
			buf.Reset()
			empty <- stored{buf, err}
		}
	}()
	free := cap(empty) // buffers to come back at the end
	defer func() {
		close(full)
		for range free {
			s := <-empty
			err = errors.Join(err, b.fillError(s.err), s.buf.Release())
		}
	}()
	for {
		ops, err := next()
		if err != nil || len(ops) == 0 {
			return err
		}
		if err := b.roomy(); err != nil {
			return err
		}
		s := <-empty
		if s.err != nil {
			free--
			return errors.Join(b.fillError(s.err), s.buf.Release())
		}
		writeStream(s.buf, ops)
		full <- s.buf
	}
}

func (b *BadgerKV) fillError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("fill the index %s: %w", b.dir, err)
}

// writeStream appends records to a buffer, each kind as a stream of its own.
func writeStream(buf *z.Buffer, ops []op) {
	var kv pb.KV
	for _, o := range ops {
		kv.Key, kv.Value, kv.Version, kv.StreamId = o.key, o.value, 1, uint32(o.key[0])
		badger.KVToBuffer(&kv, buf)
	}
}

// Sync implements KV. Badger's own Sync leaves out the logs of tables that are
// full but not yet written out: all of them are synced here, and the directory.
func (b *BadgerKV) Sync() error {
	leave, err := b.enter()
	if err != nil {
		return err
	}
	defer leave()
	if err := b.db.Sync(); err != nil {
		return fmt.Errorf("sync the index %s: %w", b.dir, err)
	}
	logs, err := filepath.Glob(filepath.Join(b.dir, "*.mem"))
	if err != nil {
		return fmt.Errorf("sync the index %s: %w", b.dir, err)
	}
	for _, name := range append(logs, b.dir) {
		// A log that is gone meanwhile is in a table that was synced first.
		if err := syncPath(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("sync the index: %w", err)
		}
	}
	return nil
}

func syncPath(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// GC does one bounded step of collecting the value log and says whether another
// one may find something. The owner calls it now and then.
func (b *BadgerKV) GC() (more bool, err error) {
	leave, err := b.enter()
	if err != nil {
		return false, err
	}
	defer leave()
	switch err := b.db.RunValueLogGC(gcRatio); {
	case err == nil:
		return true, nil
	case errors.Is(err, badger.ErrNoRewrite), errors.Is(err, badger.ErrRejected):
		return false, nil
	default:
		return false, fmt.Errorf("collect garbage in the index %s: %w", b.dir, err)
	}
}

// Verify reads everything on disk and checks it: ErrDamaged. For scrubs: a table
// that is damaged while the store is open would otherwise look like missing keys.
func (b *BadgerKV) Verify() error {
	leave, err := b.enter()
	if err != nil {
		return err
	}
	defer leave()
	if err := b.db.VerifyChecksum(); err != nil {
		return damaged("index "+b.dir, "%v", err)
	}
	return nil
}

// Close waits for calls that run (a scan's callback gets ErrClosed), writes out what is in memory and closes the
// store. Snapshots must be closed before.
func (b *BadgerKV) Close() error {
	b.mu.Lock()
	was := b.closed
	b.closed = true
	b.mu.Unlock()
	b.active.Wait()
	if was {
		return nil
	}
	if err := b.db.Close(); err != nil {
		return fmt.Errorf("close the index %s: %w", b.dir, err)
	}
	return nil
}

// Snapshot implements KV.
func (b *BadgerKV) Snapshot() Snapshot {
	leave, err := b.enter()
	if err != nil {
		return &badgerSnapshot{kv: b}
	}
	defer leave()
	return &badgerSnapshot{kv: b, txn: b.db.NewTransaction(false)}
}

// badgerSnapshot has no txn when the store was closed already.
type badgerSnapshot struct {
	kv     *BadgerKV
	txn    *badger.Txn
	closed atomic.Bool
}

func (s *badgerSnapshot) Get(key []byte) ([]byte, error) {
	leave, err := s.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	return badgerGet(s.txn, key)
}

func (s *badgerSnapshot) Scan(from, to []byte, fn func(key, value []byte) error) error {
	leave, err := s.enter()
	if err != nil {
		return err
	}
	defer leave()
	return badgerScan(s.txn, from, to, fn)
}

func (s *badgerSnapshot) Close() error {
	if s.txn != nil && s.closed.CompareAndSwap(false, true) {
		s.txn.Discard()
	}
	return nil
}

func (s *badgerSnapshot) enter() (func(), error) {
	if s.txn == nil || s.closed.Load() {
		return nil, ErrClosed
	}
	return s.kv.enter()
}

func badgerGet(txn *badger.Txn, key []byte) ([]byte, error) {
	it, err := txn.Get(key)
	if errors.Is(err, badger.ErrKeyNotFound) {
		return nil, ErrNotExist
	}
	if err != nil {
		return nil, fmt.Errorf("read the index: %w", err)
	}
	v, err := it.ValueCopy(nil)
	if err != nil {
		return nil, fmt.Errorf("read the index: %w", err)
	}
	return v, nil
}

func badgerScan(txn *badger.Txn, from, to []byte, fn func(key, value []byte) error) error {
	o := badger.DefaultIteratorOptions
	o.PrefetchValues = false // values lie beside their keys
	o.Prefix = commonPrefix(from, to)
	it := txn.NewIterator(o)
	defer it.Close()
	for it.Seek(from); it.Valid(); it.Next() {
		item := it.Item()
		k := item.Key()
		if len(to) > 0 && string(k) >= string(to) {
			return nil
		}
		if err := item.Value(func(v []byte) error { return fn(k, v) }); err != nil {
			return err
		}
	}
	return nil
}

// commonPrefix lets Badger leave out tables that cannot hold a key of [from, to).
func commonPrefix(from, to []byte) []byte {
	n := 0
	for n < len(from) && n < len(to) && from[n] == to[n] {
		n++
	}
	return from[:n]
}

type badgerWriter struct {
	txn  *badger.Txn
	size updateSize
}

func (w *badgerWriter) Set(key, value []byte) error {
	if err := w.size.add(key, value); err != nil {
		return err
	}
	return w.txn.Set(key, value)
}

func (w *badgerWriter) Delete(key []byte) error {
	if err := w.size.add(key, nil); err != nil {
		return err
	}
	return w.txn.Delete(key)
}

// badgerLog passes Badger's log on, and counts its errors: some damage is only told there.
type badgerLog struct {
	log    *slog.Logger
	errors atomic.Int64
	text   atomic.Pointer[string]
}

func (l *badgerLog) first() string {
	if s := l.text.Load(); s != nil {
		return *s
	}
	return ""
}

// Errorf implements badger.Logger.
func (l *badgerLog) Errorf(format string, args ...any) {
	s := strings.TrimSpace(fmt.Sprintf(format, args...))
	l.text.CompareAndSwap(nil, &s)
	l.errors.Add(1)
	l.log.Error("index store", "message", s)
}

// Warningf implements badger.Logger.
func (l *badgerLog) Warningf(format string, args ...any) {
	l.log.Warn("index store", "message", strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// Infof implements badger.Logger: what is news to Badger is detail here.
func (l *badgerLog) Infof(format string, args ...any) {
	l.log.Debug("index store", "message", strings.TrimSpace(fmt.Sprintf(format, args...)))
}

// Debugf implements badger.Logger.
func (l *badgerLog) Debugf(string, ...any) {}
