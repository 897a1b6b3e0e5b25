package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/faultproxy"
	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// The cases of the object store: 2, 9, 14, 15, 17, 19 and 22.

// loseObjects deletes every object of the volume, and what is local.
func (p *inProcess) loseObjects() string {
	p.t.Helper()
	p.sync()
	last := ""
	for _, prefix := range []string{metadata.ObjectPrefix, metadata.SegmentPrefix} {
		err := objstore.ListAll(p.t.Context(), p.bucket, prefix, "", func(i objstore.Info) error {
			last = i.Key
			return p.bucket.Delete(p.t.Context(), i.Key)
		})
		if err != nil {
			p.t.Fatal(err)
		}
	}
	p.fromBucket()
	return last
}

// case02: a missing file is ENOENT, a missing object EIO with its name, and never zeros.
func case02(t *testing.T, b caseBucket) {
	p := b.volume(t, "case02", nil)
	_, err := p.read("nothing")
	if !errors.Is(err, syscall.ENOENT) {
		t.Errorf("a missing file: %v", err)
	}
	if err := p.write("a", pattern(8192, 1), 0); err != nil {
		t.Fatal(err)
	}
	key := p.loseObjects()
	_, err = p.read("a")
	if !errors.Is(err, syscall.EIO) || errors.Is(err, gateway.ErrNotExist) || !strings.Contains(err.Error(), key) {
		t.Errorf("a missing object: %v, want %s to be named", err, key)
	}
	p.close()
}

// case09: a copy whose source object is missing leaves the destination as it was.
func case09(t *testing.T, b caseBucket) {
	p := b.volume(t, "case09", nil)
	if err := p.write("a", pattern(8192, 1), 0); err != nil {
		t.Fatal(err)
	}
	p.loseObjects()
	was := pattern(3000, 2)
	if err := p.write("b", was, 0); err != nil {
		t.Fatal(err)
	}
	from, err := p.find("a")
	if err != nil {
		t.Fatal(err)
	}
	to, err := p.find("b")
	if err != nil {
		t.Fatal(err)
	}
	src, err := p.v.Open(t.Context(), from.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	dst, err := p.v.Open(t.Context(), to.ID)
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	if n, err := p.v.CopyRange(t.Context(), src, 1, dst, 0, 4000); n != 0 || !errors.Is(err, gateway.ErrDamaged) {
		t.Errorf("the copy: %d, %v", n, err)
	}
	if got, err := p.read("b"); err != nil || !bytes.Equal(got, was) {
		t.Errorf("the destination changed: %v", err)
	}
	_ = p.v.Abandon() // its objects are gone, and nothing of it matters
}

// case19: sync returns when all that was there at the call is in a commit, under
// constant writes.
func case19(t *testing.T, b caseBucket) {
	p := b.volume(t, "case19", nil)
	stop, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for i := 0; err == nil; i++ {
			select {
			case <-stop:
				ended <- nil
				return
			default:
				err = p.write("busy", pattern(3000, i), int64(i%50)*3000)
			}
		}
		ended <- err
	}()
	for i := range 5 {
		name := fmt.Sprint("done", i)
		if err := p.write(name, pattern(5000, i), 0); err != nil {
			t.Fatal(err)
		}
		p.sync()
		v, err := gateway.OpenView(t.Context(), gateway.ViewOptions{Store: p.store, URL: "test://volume", KV: metadata.NewMemKV()})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := v.Lookup(name); err != nil {
			t.Errorf("%s is not in the bucket after sync: %v", name, err)
		}
		if err := v.Close(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	p.close()
}

// firstOf gives a fault to the first n requests of each method and path.
func firstOf(n int, f faultproxy.Fault) faultproxy.Chooser {
	var mu sync.Mutex
	seen := map[string]int{}
	return func(r *http.Request) faultproxy.Fault {
		mu.Lock()
		defer mu.Unlock()
		key := r.Method + r.URL.Path
		if seen[key]++; seen[key] > n {
			return faultproxy.Fault{}
		}
		return f
	}
}

// firstCalls is firstOf for a store without a network.
func firstCalls(n int, f faultstore.Fault) faultstore.Hook {
	var mu sync.Mutex
	seen := map[string]int{}
	return func(op faultstore.Op, key string, _ int) faultstore.Fault {
		mu.Lock()
		defer mu.Unlock()
		if seen[string(op)+key]++; seen[string(op)+key] > n {
			return faultstore.Fault{}
		}
		return f
	}
}

// passing are the faults that pass, as what makes the next requests meet them.
func (b caseBucket) passing(p *inProcess) map[string]func(n int) {
	out := map[string]func(n int){}
	if b.proxy == nil {
		for name, f := range map[string]faultstore.Fault{
			"refused": {Kind: faultstore.Before}, "throttled": {Kind: faultstore.Before, Err: objstore.ErrThrottled}, "no reply": {Kind: faultstore.Lost},
			"hang": {Kind: faultstore.Hang}, "cut": {Kind: faultstore.Cut, At: 300}, "bit": {Kind: faultstore.Flip, At: 77},
		} {
			out[name] = func(n int) {
				if f.Kind == faultstore.Hang {
					n = 1 // each costs the deadline
				}
				p.bad.SetHook(firstCalls(n, f))
			}
		}
		return out
	}
	for name, f := range map[string]faultproxy.Fault{
		"500": {Kind: faultproxy.Status, Status: 500}, "503": {Kind: faultproxy.Status, Status: 503}, "hang": {Kind: faultproxy.Hang}, "reset": {Kind: faultproxy.Reset},
		"no reply": {Kind: faultproxy.LostReply}, "cut": {Kind: faultproxy.HalfReply}, "half a request": {Kind: faultproxy.HalfRequest}, "bit": {Kind: faultproxy.WrongReply},
	} {
		out[name] = func(n int) {
			if f.Kind == faultproxy.Hang {
				n = 1 // each costs the deadline
			}
			b.proxy.Choose(firstOf(n, f))
		}
	}
	return out
}

func (b caseBucket) sound(p *inProcess) {
	p.bad.SetHook(nil)
	if b.proxy != nil {
		b.proxy.Choose(nil)
	}
}

// case14: the store answers 500, 503, nothing in time, a reset, half a body, a
// flipped bit: a few times, and all is right after that; or for good, and an error
// says so in bounded time.
func case14(t *testing.T, b caseBucket) {
	p := b.volume(t, "case14", nil)
	defer b.sound(p)
	want := contents{}
	i := 0
	for name, arm := range b.passing(p) {
		i++
		p.put(want, name, pattern(30000, i), 0)
		arm(2)
		p.sync()
		b.sound(p)
		p.fromBucket()
		arm(2) // for the process that has just begun
		p.want(want, name)
		b.sound(p)
	}
	for name, c := range b.lasting(p) {
		p.put(want, name, pattern(9000, 1), 0)
		p.fromBucket()
		c.arm()
		p.put(want, "goes on", []byte(name), 0)
		if _, err := p.read(name); !errors.Is(err, c.want) {
			t.Errorf("%s: a read gives %v, want %v", name, err, c.want)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := p.v.Commit(ctx)
		cancel()
		if told := p.v.Status().StoreError; err == nil || !strings.Contains(told, c.want.Error()) {
			t.Errorf("%s: a commit gives %v, and status %q", name, err, told)
		}
		b.sound(p)
		p.want(want, name)
	}
	p.checkAndClose()
}

// lastingFault does not pass until sound is called.
type lastingFault struct {
	arm  func()
	want error
}

func (b caseBucket) lasting(p *inProcess) map[string]lastingFault {
	if b.proxy == nil {
		forGood := func(err error) lastingFault {
			return lastingFault{func() { p.bad.SetHook(firstCalls(1<<30, faultstore.Fault{Kind: faultstore.Before, Err: err})) }, err}
		}
		return map[string]lastingFault{"denied": forGood(objstore.ErrPermission), "no bucket": forGood(objstore.ErrNoBucket)}
	}
	forGood := func(status int, code string, want error) lastingFault {
		f := faultproxy.Fault{Kind: faultproxy.Status, Status: status, Code: code}
		return lastingFault{func() { b.proxy.Choose(func(*http.Request) faultproxy.Fault { return f }) }, want}
	}
	out := map[string]lastingFault{"403": forGood(403, "", objstore.ErrPermission)}
	if b.kind != storeserver.FakeGCS { // S3's answers
		out["no bucket"] = forGood(404, "NoSuchBucket", objstore.ErrNoBucket)
		out["301"] = forGood(301, "PermanentRedirect", objstore.ErrNoBucket)
	}
	return out
}

// case15: the bucket can't be reached while writers work: they go on, what is here
// is read, status says what waits and for how long, the end of the volume comes in
// bounded time, and all drains without a restart.
func case15(t *testing.T, b caseBucket) {
	p := b.volume(t, "case15", func(p *inProcess) {
		p.change = func(o *gateway.Options) { o.Manual, o.CommitInterval = false, 50*time.Millisecond }
	})
	want := contents{}
	p.put(want, "before", pattern(30000, 1), 0)
	p.sync()
	for round, kind := range []faultstore.Outage{faultstore.Refusing, faultstore.Silent} {
		p.bad.SetOutage(kind)
		for i := range 60 {
			p.put(want, fmt.Sprint("w", i%7), pattern(3000, round+i), 500*i)
			if i%5 == 0 {
				p.fsync()
			}
			time.Sleep(5 * time.Millisecond)
		}
		p.want(want, "during the outage")
		s := p.v.Status()
		if s.DirtyBytes == 0 || s.DirtySeconds <= 0 {
			t.Errorf("status during the outage: %d bytes wait, for %v s", s.DirtyBytes, s.DirtySeconds)
		}
		if p.v.Statfs().Inodes == 0 {
			t.Error("statfs knows nothing")
		}
		p.bad.SetOutage(faultstore.Up)
		p.sync()
		if n := p.v.Status().DirtyBytes; n != 0 {
			t.Errorf("%d bytes are left after the outage", n)
		}
	}
	p.bad.SetOutage(faultstore.Silent)
	p.put(want, "left", pattern(5000, 9), 0)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := p.v.Close(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the end during an outage gives %v", err)
	}
	p.change = nil
	p.open()
	p.want(want, "mounted again")
	p.checkAndClose()
}

// case17: unlink and truncate race with upload, eviction and fetch of the same
// objects.
func case17(t *testing.T, b caseBucket) {
	p := b.volume(t, "case17", func(p *inProcess) {
		p.change = func(o *gateway.Options) {
			o.Manual, o.CommitInterval, o.CacheBytes, o.ReferenceBytes = false, 2*time.Millisecond, 200<<10, 3000
			o.Fold.QuietAfter = time.Millisecond
		}
	})
	const size, rounds = 96 << 10, 500
	// Each byte of the file tells where it is, in every version.
	all := pattern(size, 17)
	var group sync.WaitGroup
	for w := range 4 {
		group.Go(func() {
			rng := rand.New(rand.NewPCG(17, uint64(w)))
			for range rounds {
				if err := p.raceOnce(rng, all); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
	p.checkAndClose()
}

// raceOnce writes, reads, cuts or replaces the file. Others may do so at the same
// time: a byte is the pattern's or zero, whatever comes between.
func (p *inProcess) raceOnce(rng *rand.Rand, all []byte) error {
	off := rng.IntN(len(all) - 1)
	n := 1 + rng.IntN(min(12000, len(all)-off))
	var err error
	switch k := rng.IntN(20); {
	case k == 0:
		err = p.unlink("victim")
	case k < 3:
		err = p.truncate("victim", int64(off))
	case k < 10:
		err = p.write("victim", all[off:off+n], int64(off))
	default:
		var got []byte
		if got, err = p.readAt("victim", n, int64(off)); err == nil {
			for i, c := range got {
				if c != 0 && c != all[off+i] {
					return fmt.Errorf("byte %d is another one", off+i)
				}
			}
		}
	}
	if errors.Is(err, syscall.ENOENT) || errors.Is(err, syscall.EEXIST) || errors.Is(err, gateway.ErrNotExist) {
		return nil // another one has just replaced it
	}
	return err
}

// case22: many nodes try the connection at once: all pass, and nothing is left.
func case22(t *testing.T, b caseBucket) {
	s := objstore.WithPrefix(b.bare, "case22/")
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() {
			if err := objstore.Probe(t.Context(), objstore.WithRetry(s, objstore.RetryOptions{})); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	err := objstore.ListAll(t.Context(), s, "", "", func(i objstore.Info) error {
		t.Errorf("%s is left", i.Key)
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
