package binlogfs

import (
	"context"
	"errors"
	"testing"
	"time"
)

// After a publication that could not be made durable no later one is told of:
// who resumes there would miss the groups between.
func TestAppender_HardenFailed_NothingIsToldAfterIt(t *testing.T) {
	p := newPlace(t)
	l := p.log()
	told := 0
	a, err := l.Append(t.Context(), testSource, false, func(SourcePlace) { told++ })
	if err != nil {
		t.Fatal(err)
	}
	failed := errors.New("the first one failed")
	a.hard.mu.Lock()
	a.hard.err = failed
	a.hard.next = &published{info: &FileInfo{Epoch: 1, Name: "mysql-bin.000001", Size: 1000, Flavor: MariaDB}, prev: NewGTIDState(MariaDB)}
	a.hard.wake <- struct{}{}
	a.hard.mu.Unlock()
	if err := a.Close(t.Context()); !errors.Is(err, failed) {
		t.Errorf("closing returned %v", err)
	}
	if end, _ := l.End(); end != (Position{}) || told != 0 {
		t.Errorf("%+v is told, %d times", end, told)
	}
}

// Who waits for what can't become durable, as while the bucket is away, can be ended.
func TestHardener_Wait_EndsWithItsContext(t *testing.T) {
	p := newPlace(t)
	l, s := p.log(), recordedStream(t, "m1011")
	under, held := make(chan struct{}, 100), make(chan struct{})
	a, err := l.Append(t.Context(), testSource, false, func(SourcePlace) { under <- struct{}{}; <-held })
	if err != nil {
		t.Fatal(err)
	}
	s.names, s.bodies = s.names[:1], s.bodies[:1]
	if err := feed(t.Context(), a, s.from(t, "", 4), always); err != nil {
		t.Fatal(err)
	}
	<-under
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(time.Millisecond, cancel)
	if err := a.hard.wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting ended with %v", err)
	}
	close(held)
	if err := a.hard.wait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := a.Close(t.Context()); err != nil {
		t.Error(err)
	}
	s.check(t, l, true)
}
