package vfs

import (
	"errors"
	"math/rand"
	"os"
	"syscall"
	"testing"
)

func TestFault_FailAt_OnceAndCounted(t *testing.T) {
	f := NewFault(NewMem())
	f.FailAt(1, syscall.EIO)
	must(t, f.MkdirAll("/d", 0o700))
	if err := f.MkdirAll("/e", 0o700); !errors.Is(err, syscall.EIO) {
		t.Fatalf("call 1: %v", err)
	}
	must(t, f.MkdirAll("/e", 0o700))
	if n := f.Calls(); n != 3 {
		t.Fatalf("%d calls", n)
	}
}

func TestFault_ShortWriteBeforeENOSPC(t *testing.T) {
	f := NewFault(NewMem())
	file := create(t, f, "/a")
	f.FailAt(f.Calls(), syscall.ENOSPC)
	n, err := file.WriteAt([]byte("12345678"), 0)
	if n != 4 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("wrote %d, %v", n, err)
	}
	if got := content(t, file); got != "1234" {
		t.Fatalf("file has %q", got)
	}
	f.FailAt(f.Calls(), syscall.EIO)
	if n, err := file.WriteAt([]byte("xxxx"), 0); n != 0 || !errors.Is(err, syscall.EIO) {
		t.Fatalf("wrote %d, %v", n, err)
	}
	if got := content(t, file); got != "1234" {
		t.Fatalf("file has %q", got)
	}
}

func TestFault_Kill_IsForEverAndFreesLocks(t *testing.T) {
	m := NewMem()
	f := NewFault(m)
	file := create(t, f, "/a")
	l, err := f.Lock("/lock")
	must(t, err)
	f.SetHook(func(op, name string, n int) error {
		if op == "WriteAt" && name == "/a" {
			return ErrKilled
		}
		return nil
	})
	if n, err := file.WriteAt([]byte("1234"), 0); n != 2 || !errors.Is(err, ErrKilled) {
		t.Fatalf("wrote %d, %v", n, err)
	}
	f.SetHook(nil)
	_, openErr := f.OpenFile("/a", os.O_RDWR, 0)
	_, lockErr := f.Lock("/lock2")
	_, freeErr := f.Free("/")
	_, readErr := file.ReadAt(make([]byte, 1), 0)
	_, writeErr := file.WriteAt([]byte("56"), 2)
	for i, err := range []error{openErr, lockErr, freeErr, readErr, writeErr, file.Sync(), file.Truncate(0), file.Close(),
		f.Rename("/a", "/b"), f.Remove("/a"), f.SyncDir("/"), l.Close()} {
		if !errors.Is(err, ErrKilled) {
			t.Errorf("call %d of a dead process: %v", i, err)
		}
	}
	if got := fileOrNone("/a")(m); got != "12" {
		t.Fatalf("the disk has %q", got)
	}
	l, err = m.Lock("/lock")
	must(t, err)
	must(t, l.Close())
}

// After a failed fdatasync Linux calls the pages clean: a second one succeeds
// and the bytes are lost all the same.
func TestFault_FailedSync_MustNotBeRetried(t *testing.T) {
	m := NewMem()
	f := NewFault(m)
	file := create(t, f, "/a")
	write(t, file, "old", 0)
	must(t, file.Sync())
	must(t, f.SyncDir("/"))
	write(t, file, "new", 0)
	f.FailAt(f.Calls(), syscall.EIO)
	if err := file.Sync(); !errors.Is(err, syscall.EIO) {
		t.Fatal(err)
	}
	must(t, file.Sync())
	got := outcomes(m, PowerLoss, fileOrNone("/a"))
	if got["old"] == 0 {
		t.Fatalf("found %v", got)
	}
	write(t, file, "New", 0) // dirty anew
	must(t, file.Sync())
	wantOutcomes(t, outcomes(m, PowerLoss, fileOrNone("/a")), "New")
	m.Crash(rand.New(rand.NewSource(1)), PowerLoss)
}
