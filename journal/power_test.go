package journal

import (
	"context"
	"errors"
	"fmt"
	"math/rand"
	"sync"
	"syscall"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
)

// model is what a journal must still hold after a crash.
type model struct {
	sizes    map[LSN]int // of every record appended in the history that counts
	groupEnd map[LSN]bool
	end      LSN // numbered
	handed   LSN // acknowledged: an append returned, or a Write or Sync did
	synced   LSN // a Sync of it returned
	freed    LSN
}

// verify compares a recovery with the model and cuts the model to it.
func (m *model) verify(records []seen, info ReplayInfo, least LSN) error {
	if err := checkNumbered(records, m.freed+1); err != nil {
		return err
	}
	last := m.freed + LSN(len(records))
	switch {
	case info.GapFirst != 0:
		return fmt.Errorf("gap %d to %d, freed up to %d", info.GapFirst, info.GapLast, m.freed)
	case last < least:
		return fmt.Errorf("records end at lsn %d, %d must be there (end %d): %+v", last, least, m.end, info)
	case last != m.freed && !m.groupEnd[last]:
		return fmt.Errorf("records end at lsn %d, within an operation", last)
	}
	for _, r := range records {
		if size, ok := m.sizes[r.lsn]; ok && size != len(r.entry.Data) {
			return fmt.Errorf("lsn %d has %d bytes of data, want %d", r.lsn, len(r.entry.Data), size)
		}
	}
	for lsn := range m.groupEnd {
		if lsn > last {
			delete(m.groupEnd, lsn)
			delete(m.sizes, lsn)
		}
	}
	m.end, m.handed, m.synced = last, last, max(m.synced, last)
	return nil
}

// appendRandom appends an operation of 1 to 3 records. The model knows of it even
// when it fails: it may be found then, whole.
func (m *model) appendRandom(rng *rand.Rand, j *Journal) error {
	n := 1 + rng.Intn(3)
	var entries []Entry
	for i := range n {
		lsn := m.end + 1 + LSN(i)
		m.sizes[lsn] = rng.Intn(2500)
		entries = append(entries, testEntry(uint64(lsn), m.sizes[lsn]))
	}
	last := m.end + LSN(n)
	m.groupEnd[last] = true
	// Both halves of an append at once, or what is queued waits for whatever
	// comes next: a later Write, a Sync, a roll, a rewrite, the end.
	add, both := j.Append, rng.Intn(2) == 0
	if !both {
		add = j.Enqueue
	}
	first, locs, err := add(nil, entries...)
	if err != nil {
		if !errors.Is(err, ErrBroken) && !errors.Is(err, vfs.ErrKilled) {
			delete(m.groupEnd, last) // nothing was appended
		}
		return err
	}
	if first != m.end+1 {
		return fmt.Errorf("append got lsn %d, want %d", first, m.end+1)
	}
	m.end = last
	if both {
		m.handed = last
	}
	for i, loc := range locs {
		p := make([]byte, len(entries[i].Data))
		if err := j.ReadData(loc, p, 0); err != nil {
			return fmt.Errorf("read back lsn %d: %w", first+LSN(i), err)
		}
		if string(p) != string(entries[i].Data) {
			return fmt.Errorf("lsn %d reads back differently", first+LSN(i))
		}
	}
	if rng.Intn(2) == 0 {
		if err := j.Write(last); err != nil {
			return err
		}
		m.handed = last
	}
	return nil
}

func (m *model) step(rng *rand.Rand, j *Journal) error {
	switch r := rng.Intn(10); {
	case r < 7:
		return m.appendRandom(rng, j)
	case r < 9:
		if err := j.Sync(context.Background(), m.end); err != nil {
			return err
		}
		m.synced, m.handed = m.end, m.end
		return nil
	}
	if m.end == m.freed {
		return nil
	}
	upTo := m.freed + LSN(rng.Int63n(int64(m.end-m.freed)+1))
	for upTo > m.freed && !m.groupEnd[upTo] {
		upTo--
	}
	upTo = min(upTo, m.synced)
	if upTo <= m.freed {
		return nil
	}
	m.freed = upTo
	return j.Free(upTo)
}

// recover opens the journal on a disk after a crash and starts it.
func (m *model) recover(disk vfs.FS, o Options, least LSN, epoch uint64) (*Journal, error) {
	j, err := Open(disk, testDir, o)
	if err != nil {
		return nil, err
	}
	records, info, err := replayAll(j, m.freed, m.synced)
	if err == nil {
		err = m.verify(records, info, least)
	}
	if err == nil {
		err = j.Start(epoch, m.end+1)
	}
	if err != nil {
		return nil, errors.Join(err, j.Close())
	}
	return j, nil
}

func TestJournal_PowerLoss_RandomOperations(t *testing.T) {
	rounds := 270
	if testing.Short() {
		rounds = 12
	}
	for seed := range int64(rounds) {
		if err := powerLossHistory(t, seed); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}

// medium makes about one write or fdatasync in so many fail with EIO; 0: none.
func medium(f *vfs.Fault, rng *rand.Rand, oneIn int) {
	var mu sync.Mutex
	own := rand.New(rand.NewSource(rng.Int63()))
	f.SetHook(func(op, _ string, _ int) error {
		mu.Lock()
		defer mu.Unlock()
		if oneIn > 0 && (op == "WriteAt" || op == "Sync" || op == "SyncDir" || op == "Rename") && own.Intn(oneIn) == 0 {
			return syscall.EIO
		}
		return nil
	})
}

func powerLossHistory(t *testing.T, seed int64) error {
	rng := rand.New(rand.NewSource(seed))
	disk, o := newDisk(t), bigOptions()
	faulty := vfs.NewFault(disk)
	m := &model{sizes: map[LSN]int{}, groupEnd: map[LSN]bool{}}
	j, err := m.recover(faulty, o, 0, 1)
	if err != nil {
		return err
	}
	for crash := range 12 {
		medium(faulty, rng, []int{0, 15, 60}[seed%3])
		for range rng.Intn(60) {
			if err := m.step(rng, j); err != nil {
				if !errors.Is(err, syscall.EIO) {
					return fmt.Errorf("crash %d: %w", crash, err)
				}
				if errors.Is(err, ErrBroken) {
					break
				}
			}
		}
		faulty.SetHook(nil)
		mode, least := vfs.PowerLoss, m.synced
		if rng.Intn(3) == 0 {
			mode, least = vfs.KillProcess, m.handed
		}
		next := disk.Crash(rng, mode)
		if err := j.Close(); err != nil && !errors.Is(err, ErrBroken) { // touches the old disk only
			return err
		}
		disk, faulty = next, vfs.NewFault(next)
		o.FileSize = int64(16+4*rng.Intn(3)) << 10
		if j, err = m.recover(faulty, o, least, uint64(crash)+2); err != nil {
			return fmt.Errorf("crash %d, mode %d: %w", crash, mode, err)
		}
	}
	return j.Close()
}

// A process whose fdatasync failed is killed. The next one finds its records in
// the kernel's memory, but an fdatasync of that file would not write them.
func TestJournal_Start_RewritesWhatAFailedSyncLeft(t *testing.T) {
	for seed := range int64(50) {
		disk := newDisk(t)
		faulty := vfs.NewFault(disk)
		j := start(t, faulty, bigOptions())
		for range 20 {
			appendNumbered(t, j, 1500)
		}
		failing(faulty, "Sync", 1000, syscall.EIO)
		if err := j.Sync(context.Background(), 20); !errors.Is(err, ErrBroken) {
			t.Fatal(err)
		}
		rng := rand.New(rand.NewSource(seed))
		next := disk.Crash(rng, vfs.KillProcess)
		j.Close() // broken
		j, err := Open(next, testDir, bigOptions())
		must(t, err)
		records, info, err := replayAll(j, 0, 0)
		must(t, err)
		must(t, checkNumbered(records, 1))
		must(t, j.Start(2, info.Last+1))
		for _, r := range records { // their Locs are still good
			p := make([]byte, len(r.entry.Data))
			must(t, j.ReadData(r.loc, p, 0))
			if string(p) != string(r.entry.Data) {
				t.Fatalf("lsn %d reads differently", r.lsn)
			}
		}
		last := next.Crash(rng, vfs.PowerLoss)
		must(t, j.Close())
		j, err = Open(last, testDir, bigOptions())
		must(t, err)
		records, info, err = replayAll(j, 0, 20)
		must(t, err)
		must(t, checkNumbered(records, 1))
		if info.Last != 20 || records[19].epoch != 1 {
			t.Fatalf("seed %d: %+v", seed, info)
		}
		must(t, j.Close())
	}
}

// failWalk runs one history with the n-th call failing, then loses power.
func failWalk(t *testing.T, n int, fault error) (done bool) {
	rng := rand.New(rand.NewSource(7))
	disk := newDisk(t)
	faulty := vfs.NewFault(disk)
	m := &model{sizes: map[LSN]int{}, groupEnd: map[LSN]bool{}}
	o := bigOptions()
	j, err := m.recover(faulty, o, 0, 1)
	must(t, err)
	faulty.FailAt(faulty.Calls()+n, fault)
	last := faulty.Calls() + n
	for range 60 {
		if err := m.step(rng, j); err != nil {
			if !errors.Is(err, fault) {
				t.Fatalf("call %d failing with %v: %v", n, fault, err)
			}
			if errors.Is(err, ErrBroken) || faulty.Killed() {
				break
			}
		}
	}
	done = faulty.Calls() <= last
	killed := faulty.Killed()
	next := disk.Crash(rng, vfs.PowerLoss)
	if killed {
		next = disk.Crash(rng, vfs.KillProcess)
	}
	if err := j.Close(); err != nil && !errors.Is(err, fault) {
		t.Fatalf("call %d failing with %v: close: %v", n, fault, err)
	}
	least := m.synced
	if killed {
		least = m.handed
	}
	j, err = m.recover(next, o, least, 2)
	if err != nil {
		t.Fatalf("call %d failing with %v: recovery: %v", n, fault, err)
	}
	must(t, j.Close())
	return done
}

func TestJournal_FailEveryCall(t *testing.T) {
	for _, fault := range []error{syscall.EIO, syscall.ENOSPC, vfs.ErrKilled} {
		t.Run(fault.Error(), func(t *testing.T) {
			for n := 0; !failWalk(t, n, fault); n++ {
				if n > 5000 {
					t.Fatal("the history never ends")
				}
			}
		})
	}
}

func TestJournal_Start_KilledAtEveryCall(t *testing.T) {
	for n := 0; ; n++ {
		c := newTornCase(t)
		faulty := vfs.NewFault(c.disk)
		faulty.FailAt(n, vfs.ErrKilled)
		j, err := Open(faulty, testDir, bigOptions())
		var info ReplayInfo
		if err == nil {
			_, info, err = replayAll(j, 2, 4)
		}
		if err == nil {
			err = j.Start(2, info.Last+1)
		}
		if !faulty.Killed() {
			must(t, err)
			must(t, j.Close())
			if n < 10 {
				t.Fatalf("a recovery of only %d calls", n)
			}
			return
		}
		if j != nil {
			j.Close() // dead
		}
		next, err := Open(c.disk.Crash(rand.New(rand.NewSource(int64(n))), vfs.PowerLoss), testDir, bigOptions())
		must(t, err)
		records, info, err := replayAll(next, 2, 4)
		must(t, err)
		must(t, checkNumbered(records, 3))
		if info.Last < 4 {
			t.Fatalf("killed at call %d: %+v", n, info)
		}
		must(t, next.Start(3, info.Last+1))
		must(t, next.Close())
	}
}
