package gateway

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// lines counts the lines that have a text.
func (l *logBuffer) lines(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

func TestOutage_Note_BeginChangeEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b logBuffer
		log := slog.New(slog.NewTextHandler(&b, nil))
		var o outage
		want := func(fails, works int) {
			t.Helper()
			if f, w := b.lines("folding fails"), b.lines("folding works again"); f != fails || w != works {
				t.Errorf("%d lines of failures and %d of successes, want %d and %d", f, w, fails, works)
			}
		}
		o.note(log, workFold, nil)
		want(0, 0)
		began := time.Now()
		for i := range 100 { // the same reason for another object each time
			o.note(log, workFold, fmt.Errorf("write object %d: %w", i, objstore.ErrUnavailable))
			time.Sleep(time.Second)
		}
		want(1, 0)
		o.note(log, workFold, fmt.Errorf("apply: %w", syscall.ENOSPC))
		want(2, 0)
		list := o.appendTo(nil, workFold)
		if len(list) != 1 || list[0].Work != workFold || !list[0].Since.Equal(began) || list[0].Times != 101 || list[0].Error != "apply: no space left on device" {
			t.Errorf("status: %+v", list)
		}
		o.note(log, workFold, nil)
		want(2, 1)
		if list := o.appendTo(nil, workFold); len(list) != 0 {
			t.Errorf("status after the end: %+v", list)
		}
		for range 20 { // comes and goes
			o.note(log, workFold, fmt.Errorf("apply: %w", syscall.ENOSPC))
			time.Sleep(time.Second)
			o.note(log, workFold, nil)
		}
		want(2, 1)
		time.Sleep(2 * outageAgain)
		o.note(log, workFold, fmt.Errorf("apply: %w", syscall.ENOSPC))
		want(3, 1)
		for i := range 100 { // never the same
			o.note(log, workFold, errors.New(fmt.Sprint("reason ", i)))
		}
		want(2+outageReasons, 1)
		o.note(log, workFold, nil)
		want(2+outageReasons, 2)
	})
}

func TestRootReason_NamesNoObjects(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("put objects/a: %w", objstore.ErrUnavailable), "object store unavailable"},
		{fmt.Errorf("put b: %w: %w", objstore.ErrUnavailable, syscall.ECONNREFUSED), "object store unavailable: connection refused"},
		{fmt.Errorf("c: %w", objstore.ErrThrottled), "object store unavailable"},
		{errors.Join(errors.New("x"), errors.New("y")), "x: y"},
	} {
		if got := rootReason(c.err); got != c.want {
			t.Errorf("%v: %q, want %q", c.err, got, c.want)
		}
	}
}

// TestVolume_Outage_ToldOnceAndInStatus has the bucket away for ten minutes under
// load: each kind of work says so once, and status since when.
func TestVolume_Outage_ToldOnceAndInStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 43, 1<<20)
		store := faultstore.New(l.bucket, nil)
		defer store.Close()
		var log logBuffer
		v, err := l.mount(store, func(o *Options) {
			o.Manual, o.Logger = false, slog.New(slog.NewTextHandler(&log, nil))
		})
		if err != nil {
			t.Fatal(err)
		}
		h := mkfile(t, v, metadata.RootInode, "a")
		time.Sleep(10 * time.Second)
		down := time.Now()
		store.SetOutage(faultstore.Refusing)
		for range 600 {
			if _, err := h.Write(bg, []byte("x"), 0, WriteFlags{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
		}
		for _, line := range []string{"object store fails", workLease + " fails"} {
			if n := log.lines(line); n != 1 {
				t.Errorf("%q was logged %d times", line, n)
			}
		}
		s := v.Status()
		if s.StoreError == "" || s.StoreSince == nil || s.StoreSince.Before(down) || s.StoreSince.After(down.Add(30*time.Second)) {
			t.Errorf("status: store error %q since %v, down since %v", s.StoreError, s.StoreSince, down)
		}
		if len(s.Failing) == 0 || s.Failing[0].Work != workLease || s.Failing[0].Since.Before(down) || s.Failing[0].Times < 50 {
			t.Errorf("status: failing %+v", s.Failing)
		}
		if why := s.Stuck(); why != "" {
			t.Errorf("a store that is away keeps this machine from committing: %s", why)
		}
		store.SetOutage(faultstore.Up)
		time.Sleep(time.Minute)
		for _, line := range []string{"object store works again", workLease + " works again"} {
			if n := log.lines(line); n != 1 {
				t.Errorf("%q was logged %d times", line, n)
			}
		}
		if s := v.Status(); s.StoreError != "" || len(s.Failing) != 0 {
			t.Errorf("status after the outage: %q, %+v", s.StoreError, s.Failing)
		}
		h.Close()
		if err := v.Close(bg); err != nil {
			t.Error(err)
		}
	})
}

// fullKV is an index store whose disk is full while it is told so.
type fullKV struct {
	metadata.KV
	full *atomic.Bool
}

func (k fullKV) Update(fn func(metadata.Writer) error) error {
	if k.full.Load() {
		return syscall.ENOSPC
	}
	return k.KV.Update(fn)
}

// A reason of this machine that keeps commits from getting on is in the status, as
// long as it lasts.
func TestStatus_Stuck_LocalDiskKeepsCommitsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 44, 1<<20)
		var full atomic.Bool
		v := l.mustMount(func(o *Options) {
			o.Manual = false
			open := o.OpenKV
			o.OpenKV = func(dir string) (metadata.KV, error) {
				kv, err := open(dir)
				return fullKV{kv, &full}, err
			}
		})
		h := mkfile(t, v, metadata.RootInode, "a")
		defer h.Close()
		for range 3 {
			full.Store(true)
			pwrite(t, h, []byte("x"), 0)
			time.Sleep(10 * time.Second)
			s := v.Status()
			if !strings.Contains(s.Stuck(), syscall.ENOSPC.Error()) || s.Damaged {
				t.Errorf("status of a full disk: %q, failing %+v", s.Stuck(), s.Failing)
			}
			full.Store(false)
			time.Sleep(10 * time.Second)
			if s := v.Status(); s.Stuck() != "" {
				t.Errorf("status once there is space: %q", s.Stuck())
			}
		}
		mustClose(t, v)
	})
}
