package main

import (
	"log/slog"
	"sync"

	"github.com/cisternfs/cistern/gateway"
)

// unshown is a volume that no directory shows.
type unshown struct {
	done chan struct{} // closed by the first Unmount
	once sync.Once
}

func newUnshown() *unshown { return &unshown{done: make(chan struct{})} }

func (*unshown) Dir() string             { return "" }
func (u *unshown) Done() <-chan struct{} { return u.done }

func (u *unshown) Unmount() error {
	u.once.Do(func() { close(u.done) })
	return nil
}

func (u *unshown) Detach() error                               { return u.Unmount() }
func (*unshown) Invalidate(gateway.InodeID) error              { return nil }
func (*unshown) InvalidateEntry(gateway.InodeID, string) error { return nil }

// relayShown is the directory of a relay. Who unmounts it with umount(8) takes the
// directory away and no more: the source waits for the relay, and replicas read
// from it. Safe for concurrent use.
type relayShown struct {
	log *slog.Logger
	end *unshown // whose Done ends the relay

	mu     sync.Mutex // guards the fields below; not held while anything waits
	in     shown      // the directory; unshown when it is gone
	ending int        // calls of Unmount and Detach under way, and those that succeeded
}

// showRelay takes over a mounted directory. The goroutine that it starts ends with
// the mount.
func showRelay(in shown, log *slog.Logger) *relayShown {
	r := &relayShown{log: log, end: newUnshown(), in: in}
	go func() {
		<-in.Done()
		r.mu.Lock()
		told := r.ending > 0
		r.in = r.end
		r.mu.Unlock()
		if told {
			_ = r.end.Unmount() // it never fails
			return
		}
		log.Warn("the directory was unmounted, and the relay goes on without it; `cistern binlog stop` ends the relay", "directory", in.Dir())
	}()
	return r
}

func (r *relayShown) now() shown {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.in
}

// leave calls Unmount or Detach of what is shown; by the end of that the relay ends.
func (r *relayShown) leave(f func(shown) error) error {
	r.mu.Lock()
	r.ending++
	in := r.in
	r.mu.Unlock()
	err := f(in)
	if err != nil {
		r.mu.Lock()
		r.ending--
		r.mu.Unlock()
	}
	return err
}

func (r *relayShown) Dir() string           { return r.now().Dir() }
func (r *relayShown) Done() <-chan struct{} { return r.end.Done() }
func (r *relayShown) Unmount() error        { return r.leave(shown.Unmount) }
func (r *relayShown) Detach() error         { return r.leave(shown.Detach) }

func (r *relayShown) Invalidate(ino gateway.InodeID) error { return r.now().Invalidate(ino) }

func (r *relayShown) InvalidateEntry(parent gateway.InodeID, name string) error {
	return r.now().InvalidateEntry(parent, name)
}
