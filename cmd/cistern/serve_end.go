package main

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/cisternfs/cistern/gateway"
)

// serve waits for the mount's end and closes the volume.
func (m *mountProcess) serve(ctx context.Context) {
	var unmounting chan struct{}
	stopped := m.relay.stopped()
	for up := true; up; {
		select {
		case <-m.fs.Done():
			up = false
		case <-unmounting:
			up = false
		case <-stopped:
			stopped = nil
			if unmounting == nil {
				unmounting = m.startUnmount(nil)
			}
		case s := <-m.a.signals:
			m.log.Info("signal", "signal", s.String())
			if unmounting != nil {
				m.leaveRest()
				up = false
				break
			}
			unmounting = m.startUnmount(nil)
		case out := <-m.leave:
			if unmounting != nil {
				close(out) // under way already
				break
			}
			unmounting = m.startUnmount(out)
		}
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		m.gate.shut()
		m.result = m.close(ctx)
	}()
	for open := true; open; {
		select {
		case <-ended:
			open = false
		case s := <-m.a.signals:
			m.log.Info("signal", "signal", s.String())
			m.leaveRest()
		}
	}
	if unmounting != nil {
		<-unmounting
	}
	// The kernel ends the connection first and frees the inodes then: with many of
	// them umount(2) goes on for seconds, and who asked for it has no answer yet.
	m.unmounts.Lock()
	m.unmounts.Unlock()
	close(m.closed)
}

// startUnmount begins to unmount and returns what is closed when that is done.
// out, if any, is closed when the mount is out of the directory tree.
func (m *mountProcess) startUnmount(out chan struct{}) chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.unmountNow(func() {
			if out != nil {
				close(out)
			}
		})
	}()
	return done
}

// unmountNow unmounts though programs may use the mount: they get some time to
// let go of it. It calls gone when the mount is out of the directory tree, or
// could not be taken out.
func (m *mountProcess) unmountNow(gone func()) {
	err := m.fs.Unmount()
	if !errors.Is(err, syscall.EBUSY) {
		gone()
	} else {
		m.log.Warn("programs use the mount; it goes out of the directory tree now and ends soon", "directory", m.fs.Dir(), "wait", busyGrace)
		err = m.fs.Detach()
		gone()
		t := time.NewTimer(busyGrace)
		defer t.Stop()
		select {
		case <-m.fs.Done():
		case <-t.C:
			m.log.Warn("programs still use the mount; what they do from now on fails", "directory", m.fs.Dir())
		}
	}
	if err != nil {
		m.log.Warn("unmount failed; the mount ends with this process", "error", err)
	}
}

// leaveRest ends the wait for the last commit, after the moment that a healthy
// store needs for it.
func (m *mountProcess) leaveRest() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.noWait {
		m.noWait = true
		time.AfterFunc(noWaitGrace, m.hurry)
	}
}

// close closes the volume and says how that went.
func (m *mountProcess) close(ctx context.Context) error {
	err := m.v.Close(ctx)
	if m.o.writes() {
		err = whereLeft(err, m.o.state, m.again())
	}
	m.mu.Lock()
	noWait := m.noWait
	m.mu.Unlock()
	switch {
	case err == nil:
		ended := "unmounted"
		if m.relay != nil {
			ended = "the relay has ended"
		}
		m.log.Info(ended+"; everything is in the bucket", "volume", m.name())
	case noWait && errors.Is(err, gateway.ErrUncommitted):
		m.log.Warn("unmounted as told without waiting", "left", err)
	}
	return err
}

// umountEvent is how far an unmount is.
type umountEvent struct {
	Dirty  int64  `json:"dirty_bytes,omitempty"` // still to be committed
	Commit uint64 `json:"commit,omitempty"`      // the last one, at the end
	Left   string `json:"left,omitempty"`        // what stayed in the journal because that was asked for
}

// shutdown unmounts for `cistern umount` and waits until the volume is closed.
// The mount goes on if programs use it.
func (m *mountProcess) shutdown(ctx context.Context, wait bool, emit func(umountEvent) error) error {
	m.unmounts.RLock()
	err := m.fs.Unmount()
	m.unmounts.RUnlock()
	if err != nil {
		return err
	}
	if !wait {
		m.leaveRest()
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-m.closed:
			m.mu.Lock()
			noWait := m.noWait
			m.mu.Unlock()
			if noWait && errors.Is(m.result, gateway.ErrUncommitted) {
				return emit(umountEvent{Left: m.result.Error()})
			}
			if m.result != nil {
				return m.result
			}
			return emit(umountEvent{Commit: m.v.Status().Commit.N})
		case <-tick.C:
			if err := emit(umountEvent{Dirty: m.v.Status().DirtyBytes}); err != nil {
				return err // nobody listens; the unmount goes on
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
