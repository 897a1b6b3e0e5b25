package gateway

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// writeUntilRefused writes to files of its own until it is told to stop, and
// returns how many writes were acknowledged and why it ended.
func writeUntilRefused(t *testing.T, v *Volume, name string, pause time.Duration) (acked int, err error) {
	h := mkfile(t, v, metadata.RootInode, name)
	defer h.Close()
	for {
		if _, err := h.Write(bg, []byte{byte(acked)}, int64(acked), WriteFlags{}); err != nil {
			return acked, err
		}
		acked++
		time.Sleep(pause)
	}
}

// Everything that was acknowledged until the hand-over is with the next owner;
// writers are told that it is over, reads and fsyncs go on.
func TestVolume_Handover_WhileWritesGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newLab(t, 1, 8192)
		slow := faultstore.New(a.bucket, func(faultstore.Op, string, int) faultstore.Fault {
			return faultstore.Fault{Delay: 20 * time.Millisecond}
		})
		va, err := a.mount(slow, func(o *Options) { o.Manual = false })
		if err != nil {
			t.Fatal(err)
		}
		var acked [4]int
		var wg sync.WaitGroup
		for i := range acked {
			wg.Go(func() {
				n, err := writeUntilRefused(t, va, fmt.Sprint(i), time.Duration(i+1)*7*time.Millisecond)
				acked[i] = n
				wantErr(t, err, ErrHandedOver)
				wantErr(t, err, ErrReadOnly)
			})
		}
		time.Sleep(3 * time.Second)
		start := time.Now()
		id, err := va.Handover(bg)
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > time.Second {
			t.Errorf("the hand-over took %v", d)
		}
		wg.Wait()
		b := a.machine(2)
		start = time.Now()
		vb := b.mustMount(func(o *Options) { o.RequireReleased = true })
		if time.Since(start) != 0 {
			t.Error("the next owner waited")
		}
		select {
		case <-va.Ended():
		default:
			t.Error("who waits for the end of the volume was not told of the hand-over")
		}
		if h := vb.Head(); h.N != id.N {
			t.Errorf("the hand-over said commit %s, and the next owner begins at %s", id, h)
		}
		got, err := filesOf(volumeTree{vb})
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range acked {
			if len(got[fmt.Sprint(i)]) != n || n == 0 {
				t.Errorf("file %d has %d bytes of %d that were acknowledged", i, len(got[fmt.Sprint(i)]), n)
			}
		}
		wantFiles(t, va, got, "at the old owner, which reads on")
		mustFsync(t, va)
		if _, err := va.Handover(bg); !errors.Is(err, ErrHandedOver) {
			t.Errorf("a second hand-over gives %v", err)
		}
		time.Sleep(time.Minute) // the old owner's background work leaves the lease alone
		files(got).put(t, vb, "b", []byte("by the next owner"), 0)
		mustClose(t, vb)
		if err := va.Close(bg); err != nil {
			t.Errorf("close after a hand-over: %v", err)
		}
		slow.Close()
		va = a.mustMount(func(o *Options) { o.RequireReleased = true })
		wantFiles(t, va, got, "back at the first owner")
		mustClose(t, va)
	})
}

// A hand-over that fails at any request leaves a mount that takes writes, and
// nothing is lost, whoever has the volume then.
func TestVolume_Handover_FailsAtEveryRequest(t *testing.T) {
	for _, kind := range []faultstore.Kind{faultstore.Before, faultstore.Lost} {
		failed := 0
		for n := 0; ; n++ {
			var met atomic.Bool
			synctest.Test(t, func(t *testing.T) {
				a := newLab(t, 1, 8192)
				s := faultstore.New(a.bucket, nil)
				va, err := a.mount(s, nil)
				if err != nil {
					t.Fatal(err)
				}
				f := files{}
				f.put(t, va, "a", a.noise(30000), 0)
				var count atomic.Int64
				s.SetHook(func(op faultstore.Op, key string, _ int) faultstore.Fault {
					if count.Add(1) > int64(n) { // the store is away from the n-th request on
						met.Store(true)
						return faultstore.Fault{Kind: kind}
					}
					return faultstore.Fault{}
				})
				_, err = va.Handover(bg)
				s.SetHook(nil)
				if err == nil {
					if met.Load() && kind == faultstore.Before {
						t.Error("it succeeded without the store")
					}
				} else {
					failed++
					if errors.Is(err, ErrHandedOver) || va.ReadOnly() {
						t.Fatalf("request %d: failed with %v and left the mount read-only", n, err)
					}
					f.put(t, va, "b", []byte("the mount goes on"), 0)
					if err := va.RenewLease(bg); err != nil {
						t.Fatalf("request %d: %v", n, err)
					}
					b := a.machine(2)
					_, err := b.mount(b.bucket, func(o *Options) { o.RequireReleased = true })
					wantErr(t, err, ErrOwned)
				}
				if err := va.Close(bg); err != nil {
					t.Fatalf("request %d: close: %v", n, err)
				}
				s.Close()
				b := a.machine(3)
				vb := b.mustMount(func(o *Options) { o.RequireReleased = true })
				wantFiles(t, vb, f, fmt.Sprintf("failure at request %d", n))
				mustClose(t, vb)
			})
			if t.Failed() {
				t.Fatalf("kind %v, request %d", kind, n)
			}
			if !met.Load() {
				break
			}
		}
		if failed < 3 {
			t.Errorf("kind %v: only %d requests could fail", kind, failed)
		}
	}
}

// A machine that dies at any call of a hand-over leaves the volume as any crash
// does: the next mount with its disk brings all that was acknowledged.
func TestVolume_Handover_DiesAtEveryStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 3, 8192)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "a", l.noise(20000), 0)
		mustFsync(t, v)
		l.kill(v)
		step := func(v *Volume) error {
			ctx, cancel := soon()
			defer cancel()
			_, err := v.Handover(ctx)
			return err
		}
		l.walk(t, false, step, func(c *lab, when string) {
			v := c.mustMount(nil)
			wantFiles(t, v, f, when)
			mustClose(t, v)
		})
	})
}

// Who interrupts a hand-over gets the mount back at once.
func TestVolume_Handover_Interrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newLab(t, 1, 8192)
		s := faultstore.New(a.bucket, nil)
		va, err := a.mount(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		f := files{}
		f.put(t, va, "a", a.noise(30000), 0)
		s.SetHook(func(faultstore.Op, string, int) faultstore.Fault { return faultstore.Fault{Delay: 5 * time.Second} })
		ctx, cancel := context.WithTimeout(bg, 3*time.Second)
		defer cancel()
		_, err = va.Handover(ctx)
		wantErr(t, err, ErrInterrupted)
		s.SetHook(nil)
		f.put(t, va, "b", []byte("the mount goes on"), 0)
		mustClose(t, va)
		s.Close()
		if d := f.diff(bucketFiles(t, a.bucket, 0)); d != "" {
			t.Error(d)
		}
	})
}

func TestWriterGate_Close_WaitsForThoseInside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var g writerGate
		if err := g.enter(bg); err != nil {
			t.Fatal(err)
		}
		closed := make(chan error, 1)
		go func() { closed <- g.close(bg) }()
		synctest.Wait()
		if len(closed) > 0 {
			t.Fatal("it closed over somebody inside")
		}
		ctx, cancel := context.WithTimeout(bg, time.Second)
		defer cancel()
		wantErr(t, g.enter(ctx), context.DeadlineExceeded)
		entered := make(chan error, 1)
		go func() { entered <- g.enter(bg) }()
		g.leave()
		if err := <-closed; err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(entered) > 0 {
			t.Fatal("somebody entered a gate that is shut")
		}
		g.open()
		if err := <-entered; err != nil {
			t.Fatal(err)
		}
		ctx, cancel = context.WithTimeout(bg, time.Second)
		defer cancel()
		wantErr(t, g.close(ctx), context.DeadlineExceeded)
		if err := g.enter(bg); err != nil { // a close that was given up leaves it open
			t.Fatal(err)
		}
	})
}
