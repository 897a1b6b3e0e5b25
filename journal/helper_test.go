package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
)

const testDir = "/state/journal"

var testIdentity = [16]byte{0: 0xc1, 15: 0x5e}

// smallOptions give a journal of four files of 16 KiB.
func smallOptions() Options {
	return Options{Create: true, FileSize: 16 << 10, MaxBytes: 64 << 10, MaxUnsyncedBytes: 1 << 20, Identity: testIdentity}
}

// bigOptions give room that no test fills.
func bigOptions() Options {
	o := smallOptions()
	o.MaxBytes = 64 << 20
	return o
}

// newDisk returns a disk on which the state directory is durable.
func newDisk(t testing.TB) *vfs.Mem {
	t.Helper()
	m := vfs.NewMem()
	must(t, m.MkdirAll(filepath.Dir(testDir), 0o700))
	must(t, m.SyncDir("/"))
	return m
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start opens, replays and starts a journal whose records are all wanted.
func start(t testing.TB, fs vfs.FS, o Options) *Journal {
	t.Helper()
	j, err := Open(fs, testDir, o)
	must(t, err)
	info, err := j.Replay(0, 0, func(Record) error { return nil })
	must(t, err)
	must(t, j.Start(info.Epoch+1, info.Last+1))
	return j
}

// stop closes a journal at the end of a test, when the test has not done so.
func stop(t testing.TB, j *Journal) {
	t.Helper()
	if err := j.Close(); err != nil && !errors.Is(err, ErrClosed) {
		t.Error(err)
	}
}

func syncAll(t testing.TB, j *Journal) {
	t.Helper()
	must(t, j.Sync(context.Background(), j.End()))
}

// testEntry is an entry whose content follows from a number.
func testEntry(n uint64, size int) Entry {
	rng := rand.New(rand.NewSource(int64(n)))
	data := make([]byte, size)
	rng.Read(data)
	return Entry{Op: Op(n%250 + 1), Body: binary.BigEndian.AppendUint64(nil, n), Data: data}
}

// appendNumbered appends one entry with the content of its coming LSN.
func appendNumbered(t testing.TB, j *Journal, size int) (LSN, Loc) {
	t.Helper()
	want := j.End() + 1
	lsn, locs, err := j.Append(nil, testEntry(uint64(want), size))
	must(t, err)
	if lsn != want {
		t.Fatalf("append got lsn %d, want %d", lsn, want)
	}
	return lsn, locs[0]
}

// seen is a copy of a record.
type seen struct {
	lsn   LSN
	epoch uint64
	entry Entry
	loc   Loc
}

// replayAll returns the records above after.
func replayAll(j *Journal, after, durable LSN) ([]seen, ReplayInfo, error) {
	var records []seen
	info, err := j.Replay(after, durable, func(r Record) error {
		records = append(records, seen{r.LSN, r.Epoch, Entry{r.Op, append([]byte(nil), r.Body...), append([]byte(nil), r.Data...)}, r.Loc})
		return nil
	})
	return records, info, err
}

// checkNumbered verifies that records are consecutive from first and have the
// content of testEntry.
func checkNumbered(records []seen, first LSN) error {
	for i, r := range records {
		if want := first + LSN(i); r.lsn != want {
			return fmt.Errorf("record %d has lsn %d, want %d", i, r.lsn, want)
		}
		if err := sameEntry(r.entry, testEntry(uint64(r.lsn), len(r.entry.Data))); err != nil {
			return fmt.Errorf("lsn %d: %w", r.lsn, err)
		}
	}
	return nil
}

func sameEntry(got, want Entry) error {
	if got.Op != want.Op || string(got.Body) != string(want.Body) || string(got.Data) != string(want.Data) {
		return fmt.Errorf("entry is op %d, body %x, %d bytes of data; want op %d, body %x, %d bytes",
			got.Op, got.Body, len(got.Data), want.Op, want.Body, len(want.Data))
	}
	return nil
}

// readAll reads a file of the disk.
func readAll(t testing.TB, fs vfs.FS, name string) []byte {
	t.Helper()
	b, err := readFile(fs, filepath.Join(testDir, name))
	must(t, err)
	return b
}

// writeAll replaces a file of the disk.
func writeAll(t testing.TB, fs vfs.FS, name string, b []byte) {
	t.Helper()
	f, err := fs.OpenFile(filepath.Join(testDir, name), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	must(t, err)
	_, err = f.WriteAt(b, 0)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
	must(t, fs.SyncDir(testDir))
}

// names returns the names of the journal's files with a suffix.
func names(t testing.TB, fs vfs.FS, suffix string) []string {
	t.Helper()
	entries, err := fs.ReadDir(testDir)
	must(t, err)
	var list []string
	for _, e := range entries {
		if filepath.Ext(e.Name()) == suffix {
			list = append(list, e.Name())
		}
	}
	return list
}
