package metadata

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/dgraph-io/badger/v4"
	"github.com/dgraph-io/badger/v4/options"
)

// OpenBadgerKV opens or makes the store in dir and verifies every table's
// checksums. ErrDamaged: delete the directory and build the index anew from the
// bucket; so is a directory whose last opening never ended. Errors of the disk
// itself and another process's lock are returned as they are. logger may be nil.
func OpenBadgerKV(dir string, logger *slog.Logger) (kv *BadgerKV, err error) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the index directory: %w", err)
	}
	mark := filepath.Join(dir, openingMark)
	if _, err := os.Lstat(mark); err == nil {
		return nil, damaged("index "+dir, "the last attempt to open it never ended")
	}
	l := &badgerLog{log: logger}
	db, err := openMarked(badgerOptions(dir, l), mark)
	if err != nil {
		return nil, openError(dir, err)
	}
	return &BadgerKV{db: db, dir: dir, log: l}, nil
}

func badgerOptions(dir string, l *badgerLog) badger.Options {
	o := badger.DefaultOptions(dir)
	o.MemTableSize = 8 << 20 // each takes 12 MiB of memory, and there are up to three
	o.NumMemtables = 2
	o.BaseTableSize = 4 << 20
	o.TableSizeMultiplier = 1 // Fill holds a table of each kind in memory, twice
	o.BlockCacheSize = 32 << 20
	o.IndexCacheSize = 16 << 20
	o.ValueLogFileSize = 64 << 20
	o.Compression = options.Snappy
	o.SyncWrites = false // Sync does it, for many updates at once
	o.NumCompactors = 2
	o.NumLevelZeroTables = 3
	o.NumLevelZeroTablesStall = 8
	o.MetricsEnabled = false
	o.DetectConflicts = false // updates write only
	o.ChecksumVerificationMode = options.OnBlockRead
	o.VerifyValueChecksum = true
	o.Logger = l
	return o
}

// openMarked opens and verifies the database between setting and removing the mark.
func openMarked(o badger.Options, mark string) (db *badger.DB, err error) {
	f, err := os.OpenFile(mark, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	if err := f.Close(); err != nil {
		return nil, err
	}
	if err = checkTableEnds(o.Dir); err == nil {
		db, err = openVerified(o)
	}
	if rerr := os.Remove(mark); err == nil && rerr != nil {
		return nil, errors.Join(rerr, db.Close())
	}
	return db, err
}

// checkTableEnds looks at what Badger believes without a check and ends the
// process over: a table ends in | index | length 4B | checksum | length 4B |.
func checkTableEnds(dir string) error {
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil {
		return err
	}
	for _, name := range tables {
		if err := checkTableEnd(name); err != nil {
			return fmt.Errorf("table %s: %w", filepath.Base(name), err)
		}
	}
	return nil
}

func checkTableEnd(name string) (err error) {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	end := info.Size()
	for _, part := range []string{"checksum", "index"} {
		var length [4]byte
		if end < 4 {
			return fmt.Errorf("it ends before its %s", part)
		}
		if _, err := f.ReadAt(length[:], end-4); err != nil {
			return err
		}
		n := int64(binary.BigEndian.Uint32(length[:]))
		if n == 0 || n > end-4 {
			return fmt.Errorf("a %s of %d bytes in %d", part, n, end)
		}
		end -= 4 + n
	}
	return nil
}

func openVerified(o badger.Options) (db *badger.DB, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("its contents made the store panic: %v", p)
		}
		if err != nil && db != nil {
			err = errors.Join(err, db.Close())
			db = nil
		}
	}()
	if db, err = badger.Open(o); err != nil {
		return nil, err
	}
	if l := o.Logger.(*badgerLog); l.errors.Load() > 0 {
		// Badger leaves a table with a bad checksum out and goes on.
		return db, errors.New(l.first())
	}
	return db, db.VerifyChecksum()
}

// openError tells damage, which a rebuild cures, from what it does not.
func openError(dir string, err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != syscall.ENOENT {
		return fmt.Errorf("open the index %s: %w", dir, err)
	}
	if errors.Is(err, fs.ErrPermission) || strings.Contains(err.Error(), "directory lock") {
		return fmt.Errorf("open the index %s: %w", dir, err)
	}
	return damaged("index "+dir, "%v", err)
}
