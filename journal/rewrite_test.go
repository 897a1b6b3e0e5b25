package journal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/internal/vfs"
)

// failing makes calls of one kind fail on journal files, so many times.
func failing(f *vfs.Fault, op string, times int, err error) {
	var mu sync.Mutex
	f.SetHook(func(o, name string, _ int) error {
		mu.Lock()
		defer mu.Unlock()
		if o == op && times > 0 && strings.Contains(name, testDir) {
			times--
			return err
		}
		return nil
	})
}

func TestJournal_Sync_FailureRewritesToFreshFile(t *testing.T) {
	for _, durableBefore := range []int{0, 1, 5} {
		t.Run(fmt.Sprint(durableBefore), func(t *testing.T) {
			disk := newDisk(t)
			faulty := vfs.NewFault(disk)
			j := start(t, faulty, bigOptions())
			defer stop(t, j)
			var locs []Loc
			for range durableBefore {
				_, loc := appendNumbered(t, j, 100)
				locs = append(locs, loc)
			}
			syncAll(t, j)
			for range 30 { // more than one file
				_, loc := appendNumbered(t, j, 2000)
				locs = append(locs, loc)
			}
			failing(faulty, "Sync", 1, syscall.EIO)
			syncAll(t, j)
			s := j.Stats()
			if s.Rewrites != 1 || s.UnsyncedBytes != 0 || !errors.Is(s.LastError, syscall.EIO) {
				t.Fatalf("stats %+v", s)
			}
			for i, loc := range locs {
				want := testEntry(uint64(i+1), int(loc.Len)).Data
				p := make([]byte, loc.Len)
				must(t, j.ReadData(loc, p, 0))
				if !bytes.Equal(p, want) {
					t.Fatalf("old loc of lsn %d reads differently", i+1)
				}
			}
			appendNumbered(t, j, 10)
			syncAll(t, j)

			next, err := Open(disk.Crash(nil, vfs.KillProcess), testDir, bigOptions())
			must(t, err)
			defer stop(t, next)
			records, info, err := replayAll(next, 0, j.End())
			must(t, err)
			must(t, checkNumbered(records, 1))
			if info.Last != j.End() || info.Torn {
				t.Fatalf("after the rewrite: %+v, end %d", info, j.End())
			}
		})
	}
}

func TestJournal_Append_FailedWriteIsMended(t *testing.T) {
	disk := newDisk(t)
	faulty := vfs.NewFault(disk)
	j := start(t, faulty, bigOptions())
	defer stop(t, j)
	appendNumbered(t, j, 100)
	failing(faulty, "WriteAt", 1, syscall.EIO)
	lsn, loc := appendNumbered(t, j, 300)
	p := make([]byte, 300)
	must(t, j.ReadData(loc, p, 0))
	if !bytes.Equal(p, testEntry(uint64(lsn), 300).Data) {
		t.Fatal("data of the failed write reads differently")
	}
	if j.Durable() != 2 || j.Stats().Rewrites != 1 {
		t.Fatalf("durable %d, %+v", j.Durable(), j.Stats())
	}
}

// A group commit is under way when the write of another caller fails: what that one
// was to write must not count as durable before it is written anew.
func TestJournal_Sync_WriteFailsDuringTheRound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		disk := newDisk(t)
		faulty := vfs.NewFault(disk)
		o := bigOptions()
		began, goOn := make(chan struct{}), make(chan struct{})
		var once sync.Once
		o.BeforeSync = func() error {
			once.Do(func() {
				close(began)
				<-goOn
			})
			return nil
		}
		o.Expand = func(_ LSN, e Entry) (Entry, error) { return e, nil }
		j := start(t, faulty, o)
		defer stop(t, j)
		lsn, _, err := j.Enqueue(nil, testEntry(1, 100))
		must(t, err)
		synced, written := make(chan error, 1), make(chan error, 1)
		go func() { synced <- j.Sync(t.Context(), lsn) }()
		<-began
		failing(faulty, "WriteAt", 1, syscall.EIO)
		go func() { written <- j.Write(lsn) }()
		synctest.Wait() // it has failed, and waits for the round to mend it
		close(goOn)
		must(t, <-synced)
		must(t, <-written)
		if s := j.Stats(); s.Rewrites != 1 || j.Durable() != lsn {
			t.Errorf("durable is lsn %d after %+v", j.Durable(), s)
		}

		next, err := Open(disk.Crash(rand.New(rand.NewSource(1)), vfs.PowerLoss), testDir, bigOptions())
		must(t, err)
		defer stop(t, next)
		records, _, err := replayAll(next, 0, lsn)
		must(t, err)
		must(t, checkNumbered(records, 1))
		if len(records) != 1 {
			t.Fatalf("%d records are there after a power loss, 1 was durable", len(records))
		}
	})
}

func TestJournal_BrokenAfterSecondFailure(t *testing.T) {
	for _, op := range []string{"Sync", "WriteAt"} {
		t.Run(op, func(t *testing.T) {
			disk := newDisk(t)
			faulty := vfs.NewFault(disk)
			j := start(t, faulty, bigOptions())
			_, loc := appendNumbered(t, j, 100)
			failing(faulty, op, 1000, syscall.EIO)
			var err error
			if op == "Sync" {
				err = j.Sync(context.Background(), 1)
			} else {
				_, _, err = j.Append(nil, testEntry(2, 10))
			}
			if !errors.Is(err, ErrBroken) || !errors.Is(err, syscall.EIO) {
				t.Fatalf("first failure: %v", err)
			}
			faulty.SetHook(nil)
			if err := j.Sync(context.Background(), 1); !errors.Is(err, ErrBroken) {
				t.Errorf("sync of a broken journal: %v", err)
			}
			if _, _, err := j.Append(nil, testEntry(2, 10)); !errors.Is(err, ErrBroken) {
				t.Errorf("append to a broken journal: %v", err)
			}
			if _, err := j.Reserve(context.Background(), 1, true); !errors.Is(err, ErrBroken) {
				t.Errorf("reserve in a broken journal: %v", err)
			}
			must(t, j.ReadData(loc, make([]byte, 100), 0))
			if err := j.Close(); !errors.Is(err, ErrBroken) {
				t.Errorf("close of a broken journal: %v", err)
			}
			// What was acknowledged is still there for the next process.
			next, err := Open(disk.Crash(nil, vfs.KillProcess), testDir, bigOptions())
			must(t, err)
			defer stop(t, next)
			records, _, err := replayAll(next, 0, 0)
			must(t, err)
			must(t, checkNumbered(records, 1))
			if len(records) == 0 {
				t.Fatal("the acknowledged record is gone")
			}
		})
	}
}

// A file that was given its name but whose name could not be made durable may
// come back after a power loss: appending to the older file would be lost.
func TestJournal_Append_NameOfNextFileFails(t *testing.T) {
	for seed := range int64(30) {
		disk := newDisk(t)
		faulty := vfs.NewFault(disk)
		j := start(t, faulty, bigOptions())
		for j.current().size-j.current().end > 1000 {
			appendNumbered(t, j, 700)
		}
		waitFor(t, "the preparer rests", func() bool { return !j.wantSpare() })
		end := j.End()
		failing(faulty, "SyncDir", 1+int(seed%2), syscall.EIO)
		_, _, err := j.Append(nil, testEntry(uint64(end)+1, 3000))
		if seed%2 == 0 {
			must(t, err) // with the second file
			end++
		} else if !errors.Is(err, ErrBroken) || !errors.Is(err, syscall.EIO) {
			t.Fatalf("both files failed: %v", err)
		}
		if _, _, err := j.Append(nil, testEntry(uint64(end)+1, 10)); err == nil {
			end++
			syncAll(t, j)
		}
		durable := j.Durable()
		next := disk.Crash(rand.New(rand.NewSource(seed)), vfs.PowerLoss)
		if err := j.Close(); err != nil && !errors.Is(err, ErrBroken) {
			t.Fatal(err)
		}
		j, err = Open(next, testDir, bigOptions())
		must(t, err)
		records, _, err := replayAll(j, 0, durable)
		must(t, err)
		must(t, checkNumbered(records, 1))
		must(t, j.Close())
	}
}

func TestJournal_BeforeSyncFailure_ExpandsReferences(t *testing.T) {
	disk := newDisk(t)
	o := bigOptions()
	fail := true
	o.BeforeSync = func() error {
		if fail {
			fail = false
			return syscall.EIO
		}
		return nil
	}
	bulk := bytes.Repeat([]byte("bulk"), 1000)
	o.Expand = func(lsn LSN, e Entry) (Entry, error) {
		if e.Op == 9 {
			return Entry{Op: 10, Body: e.Body, Data: bulk}, nil
		}
		return e, nil
	}
	j := start(t, disk, o)
	_, locs, err := j.Append(nil, Entry{Op: 9, Body: []byte("ref")}, Entry{Op: 1, Body: []byte("b"), Data: []byte("plain")})
	must(t, err)
	syncAll(t, j)
	loc, ok := j.Expanded(1)
	if !ok || int(loc.Len) != len(bulk) {
		t.Fatalf("expanded loc %+v, %v", loc, ok)
	}
	p := make([]byte, len(bulk))
	must(t, j.ReadData(loc, p, 0))
	if !bytes.Equal(p, bulk) {
		t.Fatal("expanded data reads differently")
	}
	must(t, j.ReadData(locs[1], p[:5], 0))
	if string(p[:5]) != "plain" {
		t.Fatal("plain data reads differently")
	}
	must(t, j.Close())
	j, err = Open(disk, testDir, o)
	must(t, err)
	defer stop(t, j)
	records, _, err := replayAll(j, 0, 2)
	must(t, err)
	if len(records) != 2 || records[0].entry.Op != 10 || !bytes.Equal(records[0].entry.Data, bulk) || string(records[1].entry.Data) != "plain" {
		t.Fatalf("replayed %d records", len(records))
	}
}

func TestJournal_BeforeSyncFailure_WithoutExpandBreaks(t *testing.T) {
	o := bigOptions()
	o.BeforeSync = func() error { return syscall.EIO }
	j := start(t, newDisk(t), o)
	appendNumbered(t, j, 10)
	if err := j.Sync(context.Background(), 1); !errors.Is(err, ErrBroken) || !errors.Is(err, syscall.EIO) {
		t.Fatalf("sync: %v", err)
	}
	if err := j.Close(); !errors.Is(err, ErrBroken) {
		t.Fatalf("close: %v", err)
	}
}

// After a failed fdatasync the kernel may hand out anything for the bytes that
// it did not write; the record is still in memory.
func TestJournal_ReadData_UnsyncedBytesSurviveABadPage(t *testing.T) {
	disk := newDisk(t)
	j := start(t, disk, bigOptions())
	defer stop(t, j)
	lsn, loc := appendNumbered(t, j, 500)
	f := j.current()
	_, err := f.f.WriteAt(make([]byte, 200), loc.Off)
	must(t, err)
	p := make([]byte, 100)
	must(t, j.ReadData(loc, p, 50))
	if !bytes.Equal(p, testEntry(uint64(lsn), 500).Data[50:150]) {
		t.Fatal("data reads differently")
	}
	syncAll(t, j)
	var damage *DamageError
	if err := j.ReadData(loc, p, 50); !errors.As(err, &damage) || damage.Off != loc.Off || damage.File != j.path(f.name) {
		t.Fatalf("damaged data: %v", err)
	}
}

// A rewrite of several files and then a kill or power cut at each of its steps:
// what was durable is there, and after a kill all that was acknowledged.
func TestJournal_Rewrite_KilledAtEveryStep(t *testing.T) {
	for n := 0; ; n++ {
		disk := newDisk(t)
		faulty := vfs.NewFault(disk)
		j := start(t, faulty, bigOptions())
		for i := range 24 {
			appendNumbered(t, j, 2500)
			if i == 3 {
				syncAll(t, j)
			}
		}
		waitFor(t, "the preparer rests", func() bool { return !j.wantSpare() })
		var mu sync.Mutex
		base, failed := 0, false
		faulty.SetHook(func(op, name string, call int) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case !failed && op == "Sync":
				base, failed = call, true
				return syscall.EIO
			case failed && call == base+1+n:
				return vfs.ErrKilled
			}
			return nil
		})
		err := j.Sync(context.Background(), j.End())
		killed := faulty.Killed()
		if err != nil && !killed {
			t.Fatal(err)
		}
		if !killed {
			faulty.SetHook(nil)
			must(t, j.Close())
			if n < 10 {
				t.Fatalf("a rewrite of only %d calls", n)
			}
			return
		}
		next, err := Open(disk.Crash(nil, vfs.KillProcess), testDir, bigOptions())
		must(t, err)
		records, info, err := replayAll(next, 0, 4)
		must(t, err)
		must(t, checkNumbered(records, 1))
		if info.Last != 24 || info.Torn {
			t.Fatalf("killed at step %d: %+v", n, info)
		}
		must(t, next.Start(2, 25))
		must(t, next.Close())
		j.Close() // dead
	}
}
