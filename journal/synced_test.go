package journal

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
)

// syncedCase is a journal whose process was killed right after the last Sync: no
// group tells that the last ones were durable.
type syncedCase struct {
	disk *vfs.Mem
	name string // of the newest file
	from int64  // where its last group begins
	to   int64
	last LSN
}

func newSyncedCase(t *testing.T, o Options, records, size int) syncedCase {
	t.Helper()
	disk := newDisk(t)
	j := start(t, disk, o)
	var c syncedCase
	for i := range records {
		before, end := j.current(), j.current().end
		c.last, _ = appendNumbered(t, j, size+i)
		if c.from = headerSize; j.current() == before {
			c.from = end
		}
		c.to = j.current().end
		if i%3 == 0 || i == records-1 {
			syncAll(t, j)
		}
	}
	c.name = j.current().name
	c.disk = disk.Crash(nil, vfs.KillProcess)
	must(t, j.Close())
	return c
}

// harmed returns a disk on which the newest file has these bytes.
func (c *syncedCase) harmed(t *testing.T, b []byte) *vfs.Mem {
	t.Helper()
	disk := c.disk.Crash(nil, vfs.KillProcess)
	writeAll(t, disk, c.name, b)
	return disk
}

// refuses makes sure that a journal is damaged from an LSN to the last one.
func (c *syncedCase) refuses(t *testing.T, disk *vfs.Mem, o Options, first LSN, what string) {
	t.Helper()
	j, err := Open(disk, testDir, o)
	if err == nil {
		defer stop(t, j)
		_, _, err = replayAll(j, 0, 0)
	}
	var damage *DamageError
	if !errors.As(err, &damage) || !errors.Is(err, ErrDamaged) {
		t.Fatalf("%s: replay says %v", what, err)
	}
	if first == 0 {
		return // the header: its file is all that is known
	}
	if damage.First != first || damage.Last != c.last || !strings.HasPrefix(damage.File, testDir) {
		t.Fatalf("%s: records %d to %d of %s are told, want %d to %d", what, damage.First, damage.Last, damage.File, first, c.last)
	}
}

func TestJournal_Replay_LastGroupCutAtEveryByte(t *testing.T) {
	c := newSyncedCase(t, bigOptions(), 5, 60)
	whole := readAll(t, c.disk, c.name)
	for n := c.from; n < c.to; n++ {
		c.refuses(t, c.harmed(t, whole[:n]), bigOptions(), c.last, fmt.Sprintf("cut at byte %d", n))
		b := bytes.Clone(whole)
		clear(b[n:])
		if !bytes.Equal(b, whole) { // the last bytes of a group may be zeros
			c.refuses(t, c.harmed(t, b), bigOptions(), c.last, fmt.Sprintf("zeros from byte %d", n))
		}
	}
}

func TestJournal_Replay_LastGroupFlippedAtEveryByte(t *testing.T) {
	c := newSyncedCase(t, bigOptions(), 5, 60)
	whole := readAll(t, c.disk, c.name)
	rng := rand.New(rand.NewSource(3))
	for at := c.from; at < c.to; at++ {
		b := bytes.Clone(whole)
		b[at] ^= 1 << rng.Intn(8)
		c.refuses(t, c.harmed(t, b), bigOptions(), c.last, fmt.Sprintf("byte %d flipped", at))
	}
	c.back(t, c.disk, bigOptions())
}

// back makes sure that a journal comes back whole, and goes on.
func (c *syncedCase) back(t *testing.T, disk *vfs.Mem, o Options) {
	t.Helper()
	j, err := Open(disk, testDir, o)
	must(t, err)
	defer stop(t, j)
	records, info, err := replayAll(j, 0, 0)
	must(t, err)
	must(t, checkNumbered(records, 1))
	if info.Torn || info.Last != c.last {
		t.Fatalf("an unharmed journal gives %+v", info)
	}
	must(t, j.Start(2, info.Last+1))
	must(t, j.Close())
}

// Records over several files; the newest is cut at every group, emptied, removed.
func TestJournal_Replay_NewestFileLost(t *testing.T) {
	c := newSyncedCase(t, bigOptions(), 40, 1500)
	list := names(t, c.disk, inUse)
	if len(list) < 3 {
		t.Fatalf("records lie in %d files", len(list))
	}
	first, _ := fileNumber(c.name, inUse)
	c.refuses(t, c.harmed(t, nil), bigOptions(), LSN(first), "empty")
	whole := readAll(t, c.disk, c.name)
	c.refuses(t, c.harmed(t, whole[:headerSize]), bigOptions(), LSN(first), "cut to its header")
	b := bytes.Clone(whole)
	clear(b[headerSize:])
	c.refuses(t, c.harmed(t, b), bigOptions(), LSN(first), "zeros but for its header")
	c.refuses(t, c.harmed(t, whole[:headerSize-1]), bigOptions(), 0, "header cut")
	disk := c.disk.Crash(nil, vfs.KillProcess)
	must(t, disk.Remove(filepath.Join(testDir, c.name)))
	c.refuses(t, disk, bigOptions(), LSN(first), "removed")
	c.back(t, c.disk, bigOptions())
}

func TestJournal_Replay_TornReferenceBelowSynced(t *testing.T) {
	c := newSyncedCase(t, bigOptions(), 5, 60)
	o := bigOptions()
	o.Verify = func(r Record) error {
		if r.LSN == c.last {
			return fmt.Errorf("%w: file x has other bytes", ErrTorn)
		}
		return nil
	}
	disk := c.disk.Crash(nil, vfs.KillProcess)
	c.refuses(t, disk, o, c.last, "reference")
	j, err := Open(disk, testDir, o)
	must(t, err)
	defer stop(t, j)
	_, _, err = replayAll(j, 0, 0)
	want := fmt.Sprintf("journal is damaged: %s at byte %d: file x has other bytes; record %d was durable", filepath.Join(testDir, c.name), c.from, c.last)
	if err == nil || err.Error() != want {
		t.Errorf("the error is %q, want %q", err, want)
	}
}

// What was appended after the last Sync is nobody's promise.
func TestJournal_Replay_AboveSyncedIsTornTail(t *testing.T) {
	disk := newDisk(t)
	j := start(t, disk, bigOptions())
	appendNumbered(t, j, 50)
	syncAll(t, j)
	from := j.current().end
	appendNumbered(t, j, 50)
	name := j.current().name
	killed := disk.Crash(nil, vfs.KillProcess)
	must(t, j.Close())
	b := readAll(t, killed, name)
	clear(b[from+groupHeaderSize:])
	writeAll(t, killed, name, b)
	j, err := Open(killed, testDir, bigOptions())
	must(t, err)
	defer stop(t, j)
	records, info, err := replayAll(j, 0, 0)
	if err != nil || len(records) != 1 || !info.Torn {
		t.Fatalf("%d records, %+v, %v", len(records), info, err)
	}
}

// Whatever is in the file, a journal whose records are whole comes back; and what
// can't be read, or is of another journal, makes no torn tail damage.
func TestJournal_Synced_NotBelieved(t *testing.T) {
	c := newSyncedCase(t, bigOptions(), 5, 60)
	right := readAll(t, c.disk, syncedName)
	if len(right) != syncedSize {
		t.Fatalf("the file has %d bytes", len(right))
	}
	whole := readAll(t, c.disk, c.name)
	spoilt := map[string][]byte{"empty": {}, "longer": append(bytes.Clone(right), 0), "zeros": make([]byte, syncedSize)}
	for i := range right {
		b := bytes.Clone(right)
		b[i] ^= 0x40
		spoilt[fmt.Sprint("byte flipped ", i)] = b
		spoilt[fmt.Sprint("cut at ", i)] = right[:i]
	}
	other := make([]byte, syncedSize)
	(&synced{identity: [16]byte{1}, durable: 1 << 40}).encode(other)
	spoilt["another journal's"] = other
	for name, b := range spoilt {
		disk := c.disk.Crash(nil, vfs.KillProcess)
		writeAll(t, disk, syncedName, b)
		c.back(t, disk, bigOptions())
		again := readAll(t, disk, syncedName)
		if s, err := decodeSynced(again); err != nil || s.durable != c.last {
			t.Errorf("%s: after a start the file says %+v, %v", name, s, err)
		}
		disk = c.harmed(t, whole[:c.to-5])
		writeAll(t, disk, syncedName, b)
		j, err := Open(disk, testDir, bigOptions())
		must(t, err)
		_, info, err := replayAll(j, 0, 0)
		if err != nil || !info.Torn || info.Last != c.last-1 {
			t.Errorf("%s: a cut journal gives %+v, %v", name, info, err)
		}
		must(t, j.Close())
	}
	disk := c.harmed(t, whole[:c.to-5])
	must(t, disk.Remove(filepath.Join(testDir, syncedName))) // as a version without it left it
	j, err := Open(disk, testDir, bigOptions())
	must(t, err)
	defer stop(t, j)
	if _, info, err := replayAll(j, 0, 0); err != nil || !info.Torn {
		t.Errorf("without the file: %+v, %v", info, err)
	}
}

// At every write of the file, and after every power loss then, the records are
// there that it is about to tell of, or a later file tells of more.
func TestJournal_Synced_NeverAheadOfTheDisk(t *testing.T) {
	var rewrites uint64
	for seed := range int64(12) {
		rng := rand.New(rand.NewSource(seed))
		disk := newDisk(t)
		faulty := vfs.NewFault(disk)
		j := start(t, faulty, bigOptions())
		var mu sync.Mutex // of what the hook uses: the journal makes files in the background
		writes, calm := 0, 0
		faulty.SetHook(func(op, name string, _ int) error {
			mu.Lock()
			defer mu.Unlock()
			if op != "WriteAt" || filepath.Base(name) != syncedName {
				if calm--; op == "Sync" && calm < 0 && rng.Intn(6) == 0 {
					calm = 100 // a rewrite follows, which works
					return syscall.EIO
				}
				return nil
			}
			writes++
			told := j.synced.s.durable
			after := disk.Crash(rng, vfs.PowerLoss)
			k, err := Open(after, testDir, bigOptions())
			if err != nil {
				t.Errorf("seed %d: %v", seed, err)
				return nil
			}
			defer k.Close()
			_, info, err := replayAll(k, 0, told)
			if err != nil || info.Last < told {
				t.Errorf("seed %d: lsn %d is told, the disk has %+v, %v", seed, told, info, err)
			}
			return nil
		})
		for range 40 {
			mu.Lock()
			size, syncs := 1+rng.Intn(1500), rng.Intn(3) == 0
			mu.Unlock()
			_, _, err := j.Append(nil, testEntry(uint64(j.End()+1), size))
			if errors.Is(err, syscall.EIO) { // a file could not be begun
				_, _, err = j.Append(nil, testEntry(uint64(j.End()+1), size))
			}
			must(t, err)
			if syncs {
				syncAll(t, j)
				if s, err := decodeSynced(readAll(t, disk, syncedName)); err != nil || s.durable != j.End() {
					t.Fatalf("seed %d: a Sync of lsn %d returned, the file says %+v, %v", seed, j.End(), s, err)
				}
			}
		}
		faulty.SetHook(nil)
		rewrites += j.Stats().Rewrites
		must(t, j.Close())
		if writes < 5 {
			t.Errorf("seed %d: only %d writes", seed, writes)
		}
	}
	if rewrites == 0 {
		t.Error("no failed fdatasync led to a rewrite")
	}
}

// The file fails: nothing else does, it is told once, and nothing untrue is left.
func TestJournal_Synced_EveryCallFails(t *testing.T) {
	for _, fault := range []error{syscall.EIO, syscall.ENOSPC} {
		for n := range 6 {
			disk := newDisk(t)
			faulty := vfs.NewFault(disk)
			calls := 0
			faulty.SetHook(func(_, name string, _ int) error {
				if filepath.Base(name) != syncedName {
					return nil
				}
				if calls++; calls > n {
					return fault
				}
				return nil
			})
			var log bytes.Buffer
			o := bigOptions()
			o.Logger = slog.New(slog.NewTextHandler(&log, nil))
			j := start(t, faulty, o)
			for range 6 {
				appendNumbered(t, j, 30)
				syncAll(t, j)
			}
			want := 1
			if n == 0 { // reading it, too
				want = 2
			}
			if told := strings.Count(log.String(), "level=WARN"); told != want {
				t.Errorf("%v from call %d on was told %d times:\n%s", fault, n, told, log.String())
			}
			if err := j.Stats().LastError; err != nil {
				t.Errorf("%v from call %d on counts as a failure of the journal: %v", fault, n, err)
			}
			killed := disk.Crash(nil, vfs.KillProcess)
			faulty.SetHook(nil)
			must(t, j.Close())
			c := syncedCase{last: 6}
			k, err := Open(killed, testDir, bigOptions())
			must(t, err)
			if known := k.knownSynced(); known > 6 {
				t.Errorf("%v from call %d on: the file says %d", fault, n, known)
			}
			must(t, k.Close())
			c.back(t, killed, bigOptions())
		}
	}
}
