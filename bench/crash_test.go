package main

import (
	"os"
	"testing"
	"time"
)

func TestCrashLedger_Verify_FindsWhatIsLost(t *testing.T) {
	l := &crashLedger{dir: t.TempDir()}
	begun := time.Now()
	for l.writers[0].next < 3 {
		stop, ended := make(chan struct{}), make(chan struct{})
		go func() { defer close(ended); l.write(stop) }()
		time.Sleep(20 * time.Millisecond)
		close(stop)
		<-ended
	}
	lost, newest, err := l.verify()
	if lost != 0 || err != nil || newest.Before(begun) {
		t.Fatalf("%d, %v, %v", lost, newest, err)
	}
	// The first two of a writer are gone.
	f, err := os.OpenFile(l.name(0), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(make([]byte, 2*crashBlock), crashBlock); err != nil {
		t.Fatal(err)
	}
	if lost, _, err := l.verify(); lost != 2 || err != nil {
		t.Errorf("%d, %v", lost, err)
	}
	if lost, _, err := l.verify(); lost != 0 || err != nil {
		t.Errorf("lost blocks count twice: %d, %v", lost, err)
	}
	if _, err := f.WriteAt([]byte{1}, crashBlock+77); err != nil {
		t.Fatal(err)
	}
	if _, _, err := l.verify(); err == nil {
		t.Error("a block that is not whole is none")
	}
}
