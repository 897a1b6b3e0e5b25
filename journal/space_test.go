package journal

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math/rand"
	"strings"
	"syscall"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
)

func TestJournal_Reserve_LimitAndPressure(t *testing.T) {
	j := start(t, newDisk(t), smallOptions())
	defer stop(t, j)
	var got []*Reservation
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	full := make(chan error, 1)
	for {
		if s := j.Stats(); s.FreeBytes < 5000 {
			break
		}
		r, err := j.Reserve(ctx, 2000, false)
		must(t, err)
		got = append(got, r)
	}
	if len(got) < 12 {
		t.Fatalf("only %d reservations of 2000 bytes in 64 KiB", len(got))
	}
	go func() {
		_, err := j.Reserve(ctx, 8000, false)
		full <- err
	}()
	<-j.Pressure()
	if s := j.Stats(); s.Waiting != 1 {
		t.Fatalf("%d waiting", s.Waiting)
	}
	// The engine's tenth is still there, and all that was granted can be used.
	e, err := j.Reserve(ctx, 1000, true)
	must(t, err)
	for i, r := range got {
		_, _, err := j.Append(r, testEntry(uint64(i+1), 1990))
		must(t, err)
		r.Release()
	}
	_, _, err = j.Append(e, testEntry(0, 900))
	must(t, err)
	e.Release()
	select {
	case err := <-full:
		t.Fatalf("a reservation beyond the limit: %v", err)
	default:
	}
	syncAll(t, j)
	must(t, j.Free(j.End()))
	must(t, <-full)
}

// fillUp reserves until less than 6000 bytes are left.
func fillUp(t *testing.T, j *Journal) []*Reservation {
	t.Helper()
	var held []*Reservation
	for j.Stats().FreeBytes >= 6000 {
		r, err := j.Reserve(context.Background(), 2500, false)
		must(t, err)
		held = append(held, r)
	}
	return held
}

func TestJournal_Reserve_CancelLetsTheNextPass(t *testing.T) {
	j := start(t, newDisk(t), smallOptions())
	defer stop(t, j)
	held := fillUp(t, j)
	ctx, cancel := context.WithCancel(context.Background())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := j.Reserve(ctx, 11000, false); first <- err }()
	waitFor(t, "the first waits", func() bool { return j.Stats().Waiting == 1 })
	go func() { _, err := j.Reserve(context.Background(), 10, false); second <- err }()
	waitFor(t, "the second waits behind the first", func() bool { return j.Stats().Waiting == 2 })
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled: %v", err)
	}
	must(t, <-second) // small enough once the first is gone
	go func() { _, err := j.Reserve(context.Background(), 11000, false); first <- err }()
	waitFor(t, "a third waits", func() bool { return j.Stats().Waiting == 1 })
	for _, r := range held {
		r.Release()
	}
	must(t, <-first)
}

func TestJournal_Reserve_CloseEndsWaits(t *testing.T) {
	j := start(t, newDisk(t), smallOptions())
	fillUp(t, j)
	done := make(chan error, 1)
	go func() { _, err := j.Reserve(context.Background(), 11000, false); done <- err }()
	waitFor(t, "it waits", func() bool { return j.Stats().Waiting == 1 })
	must(t, j.Close())
	if err := <-done; !errors.Is(err, ErrClosed) {
		t.Fatalf("wait ended by close: %v", err)
	}
	if _, err := j.Reserve(context.Background(), 1, true); !errors.Is(err, ErrClosed) {
		t.Fatalf("reserve after close: %v", err)
	}
}

func TestJournal_Append_BeyondReservationOrFile(t *testing.T) {
	j := start(t, newDisk(t), smallOptions())
	defer stop(t, j)
	r, err := j.Reserve(context.Background(), 100, false)
	must(t, err)
	if _, _, err := j.Append(r, testEntry(1, 5000)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("append beyond the reservation: %v", err)
	}
	_, _, err = j.Append(r, testEntry(1, 92))
	must(t, err)
	r.Release()
	r.Release()
	if s := j.Stats(); s.ReservedBytes != 0 || s.End != 1 {
		t.Errorf("stats %+v", s)
	}
	if _, err := j.Reserve(context.Background(), 16<<10, false); !errors.Is(err, ErrTooLarge) {
		t.Errorf("reservation beyond a file: %v", err)
	}
	if _, _, err := j.Append(nil, testEntry(2, 16<<10)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("append beyond a file: %v", err)
	}
}

// Whatever was granted can be appended, in any order, without a file being made.
func TestJournal_Reserve_GrantedRoomIsThere(t *testing.T) {
	for seed := range int64(40) {
		rng := rand.New(rand.NewSource(seed))
		faulty := vfs.NewFault(newDisk(t))
		o := smallOptions()
		o.MaxBytes = 128 << 10
		j := start(t, faulty, o)
		for range 4 {
			var held []*Reservation
			var sizes []int
			for {
				n := rng.Intn(6000)
				if int64(n)+3000 > j.Stats().FreeBytes-6000 {
					break
				}
				r, err := j.Reserve(context.Background(), int64(n)+8, rng.Intn(2) == 0)
				must(t, err)
				held, sizes = append(held, r), append(sizes, n)
			}
			waitFor(t, "the preparer rests", func() bool { return !j.wantSpare() })
			faulty.SetHook(func(op, _ string, _ int) error {
				if op == "OpenFile" {
					return syscall.ENOSPC
				}
				return nil
			})
			for _, i := range rng.Perm(len(held)) {
				_, _, err := j.Append(held[i], testEntry(uint64(i), sizes[i]))
				if err != nil {
					t.Fatalf("seed %d: granted %d bytes: %v", seed, sizes[i], err)
				}
				held[i].Release()
			}
			faulty.SetHook(nil)
			syncAll(t, j)
			must(t, j.Free(j.End()))
		}
		must(t, j.Close())
	}
}

func TestJournal_Reserve_DiskFull_WaitsForFree(t *testing.T) {
	disk := newDisk(t)
	j := start(t, disk, bigOptions())
	disk.SetCapacity(disk.Used() + 40<<10) // two files more
	done := make(chan error, 1)
	go func() {
		var err error
		for n := 0; n < 60 && err == nil; n++ {
			_, _, err = j.Append(nil, testEntry(1, 1500))
		}
		done <- err
	}()
	waits := 0
	for {
		select {
		case err := <-done:
			must(t, err)
			if waits == 0 {
				t.Fatal("60 appends in three files waited for nothing")
			}
			must(t, j.Close())
			return
		case <-j.Pressure():
			waits++
			syncAll(t, j)
			must(t, j.Free(j.End()))
		}
	}
}

func TestJournal_Reserve_DiskFull_FailsWhenTold(t *testing.T) {
	disk := newDisk(t)
	o := bigOptions()
	o.NoSpaceFails = true
	var log bytes.Buffer
	o.Logger = slog.New(slog.NewTextHandler(&log, nil))
	j := start(t, disk, o)
	disk.SetCapacity(disk.Used() + 40<<10) // two files more
	var err error
	n := 0
	for ; err == nil; n++ {
		_, _, err = j.Append(nil, testEntry(1, 1500))
	}
	if !errors.Is(err, ErrNoSpace) || !errors.Is(err, syscall.ENOSPC) || n < 10 {
		t.Fatalf("append %d on a full disk: %v", n, err)
	}
	r, err := j.Reserve(context.Background(), 100, true) // the engine's share
	must(t, err)
	_, _, err = j.Append(r, testEntry(1, 50))
	must(t, err)
	r.Release()
	for range 20 {
		if _, _, err := j.Append(nil, testEntry(1, 1500)); !errors.Is(err, ErrNoSpace) {
			t.Fatalf("on a full disk: %v", err)
		}
	}
	disk.SetCapacity(-1)
	_, _, err = j.Append(nil, testEntry(1, 1500))
	must(t, err)
	must(t, j.Close())
	if n := strings.Count(log.String(), "can't prepare a journal file"); n != 1 {
		t.Errorf("a full disk was told %d times", n)
	}
}

func TestJournal_Reserve_DiskFullAndNothingToFree(t *testing.T) {
	disk := newDisk(t)
	j := start(t, disk, bigOptions())
	defer stop(t, j)
	disk.SetCapacity(disk.Used())
	var err error
	for err == nil {
		_, _, err = j.Append(nil, testEntry(1, 1500))
	}
	if !errors.Is(err, ErrNoSpace) {
		t.Fatalf("on a full disk: %v", err)
	}
	end := j.End()
	syncAll(t, j)
	disk.SetCapacity(-1)
	_, _, err = j.Append(nil, testEntry(1, 1500))
	must(t, err)
	if j.End() != end+1 {
		t.Fatalf("end %d after %d", j.End(), end)
	}
}

func TestJournal_Append_MaxUnsyncedBytes(t *testing.T) {
	o := bigOptions()
	o.MaxUnsyncedBytes = 10000
	j := start(t, newDisk(t), o)
	defer stop(t, j)
	for range 50 {
		appendNumbered(t, j, 1500)
		if s := j.Stats(); s.UnsyncedBytes > o.MaxUnsyncedBytes {
			t.Fatalf("%d unsynced bytes", s.UnsyncedBytes)
		}
	}
	if j.Durable() == 0 {
		t.Fatal("nothing was synced")
	}
}

// A process killed while its journal is full leaves no file for the next one:
// that one begins all the same, as often as it is killed, and the engine's
// reservation, by which records get to the bucket and are freed, is granted.
func TestJournal_Start_AfterAKillOfAFullJournal(t *testing.T) {
	for _, synced := range []bool{true, false} {
		t.Run(map[bool]string{true: "synced", false: "unsynced"}[synced], func(t *testing.T) {
			disk := newDisk(t)
			j := start(t, disk, smallOptions())
			reserved := func() {
				t.Helper()
				r, err := j.Reserve(context.Background(), 5000, true)
				must(t, err)
				_, _, err = j.Append(r, testEntry(uint64(j.End()+1), 4900))
				must(t, err)
				r.Release()
			}
			for j.Stats().Files < 4 {
				reserved()
			}
			if synced {
				syncAll(t, j)
			}
			if s := j.Stats(); s.Files != 4 || s.Spares != 0 {
				t.Fatalf("the journal is not full: %+v", s)
			}
			end := j.End()
			for range 3 {
				disk = disk.Crash(nil, vfs.KillProcess)
				j = start(t, disk, smallOptions())
				if j.End() != end {
					t.Fatalf("it went on after lsn %d, not %d", j.End(), end)
				}
				reserved()
				end = j.End()
			}
			syncAll(t, j)
			must(t, j.Free(end))
			stop(t, j)
			j = start(t, disk, smallOptions())
			defer stop(t, j)
			if s := j.Stats(); s.Files+s.Spares > 4 {
				t.Fatalf("the journal is above its limit after everything was freed: %+v", s)
			}
			r, err := j.Reserve(context.Background(), 2500, false)
			must(t, err)
			r.Release()
		})
	}
}

// What is to stay free of the disk is not made into files, but for those without
// which the journal can't begin.
func TestJournal_KeepFree_NewFilesLeaveIt(t *testing.T) {
	disk := newDisk(t)
	o := bigOptions()
	o.KeepFree, o.NoSpaceFails = 100<<10, true
	disk.SetCapacity(disk.Used() + 50<<10)
	j := start(t, disk, o) // one file, of what is to stay free
	defer stop(t, j)
	disk.SetCapacity(disk.Used() + 150<<10)
	var err error
	for err == nil {
		_, _, err = j.Append(nil, testEntry(1, 1500))
	}
	free, ferr := disk.Free(testDir)
	must(t, ferr)
	if !errors.Is(err, ErrNoSpace) || free < o.KeepFree || free > o.KeepFree+o.FileSize {
		t.Fatalf("%v with %d bytes free", err, free)
	}
	syncAll(t, j)
	must(t, j.Free(j.End()))
	_, _, err = j.Append(nil, testEntry(1, 1500))
	must(t, err)
}
