package journal

import (
	"bytes"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/vfs"
)

// parallelWriters append and sync, and keep the Locs of what they wrote.
func parallelWriters(t *testing.T, j *Journal, writers, each int) map[LSN][]byte {
	t.Helper()
	var mu sync.Mutex
	written := map[LSN][]byte{}
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				data := bytes.Repeat([]byte{byte(w + 1)}, 1+(w*131+i*17)%900)
				lsn, locs, err := j.Append(nil, Entry{Op: Op(w + 1), Body: []byte{byte(i)}, Data: data})
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				written[lsn] = data
				mu.Unlock()
				if i%3 == 0 {
					if err := j.Sync(context.Background(), lsn); err != nil {
						t.Error(err)
						return
					}
					if d := j.Durable(); d < lsn {
						t.Errorf("sync of %d returned with durable %d", lsn, d)
					}
				}
				p := make([]byte, len(data))
				switch err := j.ReadData(locs[0], p, 0); {
				case errors.Is(err, ErrFreed):
				case err != nil:
					t.Error(err)
				case !bytes.Equal(p, data):
					t.Errorf("lsn %d reads differently", lsn)
				}
			}
		})
	}
	wg.Wait()
	return written
}

func TestJournal_Parallel_AppendSyncRead(t *testing.T) {
	disk := newDisk(t)
	j := start(t, disk, bigOptions())
	written := parallelWriters(t, j, 8, 150)
	end := j.End()
	if len(written) != 8*150 || end != 8*150 {
		t.Fatalf("%d records, end %d", len(written), end)
	}
	must(t, j.Close())
	j, err := Open(disk, testDir, bigOptions())
	must(t, err)
	defer stop(t, j)
	records, info, err := replayAll(j, 0, end)
	must(t, err)
	for _, r := range records {
		if !bytes.Equal(r.entry.Data, written[r.lsn]) {
			t.Fatalf("lsn %d replays differently", r.lsn)
		}
	}
	if info.Last != end || len(records) != len(written) {
		t.Fatalf("%d records, %+v", len(records), info)
	}
}

// Writers on a full journal, a committer that frees on pressure, and readers of
// what is being freed: all make progress, and no read gives wrong bytes.
func TestJournal_Parallel_FreeUnderPressure(t *testing.T) {
	disk := newDisk(t)
	j := start(t, disk, smallOptions())
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-j.Pressure():
			}
			cut := j.End()
			if err := j.Sync(context.Background(), cut); err != nil {
				t.Error(err)
			}
			r, err := j.Reserve(ctx, 100, true)
			if err != nil {
				return
			}
			if _, _, err := j.Append(r, Entry{Op: 200, Body: []byte("commit")}); err != nil {
				t.Error(err)
			}
			r.Release()
			if err := j.Free(cut); err != nil {
				t.Error(err)
			}
		}
	})
	parallelWriters(t, j, 6, 200)
	cancel()
	wg.Wait()
	if s := j.Stats(); s.Files+s.Spares > 4 || s.ReservedBytes != 0 {
		t.Fatalf("stats %+v", s)
	}
	must(t, j.Close())
}

func TestJournal_Parallel_RewritesUnderLoad(t *testing.T) {
	disk := newDisk(t)
	faulty := vfs.NewFault(disk)
	j := start(t, faulty, bigOptions())
	var calls atomic.Int64
	medium := errors.New("medium error")
	faulty.SetHook(func(op, name string, _ int) error {
		n := calls.Add(1)
		if op == "WriteAt" && n%190 == 0 || op == "Sync" && n%210 == 0 {
			return medium
		}
		return nil
	})
	func() {
		defer faulty.SetHook(nil)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 150 {
					lsn, _, err := j.Append(nil, Entry{Op: 1, Body: []byte("b"), Data: make([]byte, 700)})
					if err == nil {
						err = j.Sync(context.Background(), lsn)
					}
					if err != nil && !errors.Is(err, medium) {
						t.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
	}()
	s := j.Stats()
	if s.Rewrites == 0 {
		t.Fatal("no rewrite happened")
	}
	durable := j.Durable()
	next, err := Open(disk.Crash(nil, vfs.KillProcess), testDir, bigOptions())
	must(t, err)
	defer stop(t, next)
	records, info, err := replayAll(next, 0, durable)
	must(t, err)
	if info.Last < durable || LSN(len(records)) != info.Last {
		t.Fatalf("%d records, %+v, durable %d", len(records), info, durable)
	}
	if err := j.Close(); err != nil && !errors.Is(err, ErrBroken) {
		t.Fatal(err)
	}
}

func TestJournal_Sync_OneRoundForAllWaiters(t *testing.T) {
	disk := newDisk(t)
	faulty := vfs.NewFault(disk)
	j := start(t, faulty, bigOptions())
	entered, pass := make(chan struct{}, 100), make(chan struct{})
	faulty.SetHook(func(op, _ string, _ int) error {
		if op == "Sync" {
			entered <- struct{}{}
			<-pass
		}
		return nil
	})
	var wg sync.WaitGroup
	doSync := func(lsn LSN) {
		wg.Go(func() {
			if err := j.Sync(context.Background(), lsn); err != nil {
				t.Error(err)
			}
		})
	}
	appendNumbered(t, j, 10)
	doSync(1)
	<-entered
	for i := range 20 { // appends go on meanwhile, and wait for the next round
		appendNumbered(t, j, 10)
		doSync(LSN(i + 2))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := j.Sync(ctx, 5); !errors.Is(err, context.Canceled) {
		t.Fatalf("a wait whose context ended: %v", err)
	}
	if d := j.Durable(); d != 0 {
		t.Fatalf("durable %d before the fdatasync returned", d)
	}
	close(pass)
	wg.Wait()
	if s := j.Stats(); s.Syncs > 3 || s.MostGroups < 15 || s.Durable != 21 {
		t.Fatalf("stats %+v", s)
	}
	faulty.SetHook(nil)
	must(t, j.Close())
}

func TestJournal_ReadData_RacesWithFree(t *testing.T) {
	disk := newDisk(t)
	j := start(t, disk, smallOptions())
	for round := range 60 {
		var locs []Loc
		first := j.End() + 1
		for range 12 {
			_, loc := appendNumbered(t, j, 1500)
			locs = append(locs, loc)
		}
		syncAll(t, j)
		var wg sync.WaitGroup
		for i, loc := range locs {
			wg.Go(func() {
				want := testEntry(uint64(first)+uint64(i), 1500).Data
				p := make([]byte, 1500)
				switch err := j.ReadData(loc, p, 0); {
				case errors.Is(err, ErrFreed):
				case err != nil:
					t.Errorf("round %d: %v", round, err)
				case !bytes.Equal(p, want):
					t.Errorf("round %d: wrong bytes", round)
				}
			})
		}
		must(t, j.Free(j.End()))
		appendNumbered(t, j, 1500)
		wg.Wait()
	}
	must(t, j.Close())
}

// The file of a reader under way is not used again before the reader ends.
func TestJournal_Free_WaitsForReaders(t *testing.T) {
	disk := newDisk(t)
	faulty := vfs.NewFault(disk)
	j := start(t, faulty, smallOptions())
	_, loc := appendNumbered(t, j, 1000)
	for len(j.files) < 2 {
		appendNumbered(t, j, 1000)
	}
	syncAll(t, j)
	entered, pass := make(chan struct{}), make(chan struct{})
	faulty.SetHook(func(op, _ string, _ int) error {
		if op == "ReadAt" {
			close(entered)
			<-pass
		}
		return nil
	})
	done := make(chan error)
	p := make([]byte, 1000)
	go func() { done <- j.ReadData(loc, p, 0) }()
	<-entered
	must(t, j.Free(j.End()))
	if err := j.ReadData(loc, make([]byte, 1000), 0); !errors.Is(err, ErrFreed) {
		t.Fatalf("read after free: %v", err)
	}
	for range 15 {
		appendNumbered(t, j, 1000)
	}
	close(pass)
	must(t, <-done)
	if !bytes.Equal(p, testEntry(1, 1000).Data) {
		t.Fatal("wrong bytes from a freed file")
	}
	faulty.SetHook(nil)
	must(t, j.Close())
}

// waitFor polls a condition that another goroutine brings about.
func waitFor(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for range 100000 {
		if cond() {
			return
		}
		time.Sleep(100 * time.Microsecond)
	}
	t.Fatalf("never: %s", what)
}
