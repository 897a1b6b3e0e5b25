package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
)

// Staged bytes that the journal only refers to stay staged, and are there after a power
// loss, also where their cache file could not be synced and the journal has them
// after all. What was staged beyond what is published then is gone.
func TestHandle_Stage_Referenced_StagedAfterAPowerLoss(t *testing.T) {
	for name, fail := range map[string]bool{"synced": false, "the cache file can't be synced": true} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1, 8192)
			v := l.mustMount(nil)
			f := files{}
			f.put(t, v, "a", l.noise(1000), 0)
			h := openPath(t, v, "a")
			more := l.noise(20000)
			var failed atomic.Int64
			l.fault.SetHook(func(op, name string, _ int) error {
				if fail && op == "Sync" && strings.Contains(name, "/cache/") {
					failed.Add(1)
					return syscall.EIO
				}
				return nil
			})
			if _, err := h.Stage(bg, more, 1000); err != nil {
				t.Fatal(err)
			}
			if n := v.Status().ReferenceBytes; n != int64(len(more)) {
				t.Fatalf("%d bytes of %d are referenced", n, len(more))
			}
			mustFsync(t, v)
			if (failed.Load() > 0) != fail {
				t.Fatalf("%d syncs of the cache failed", failed.Load())
			}
			l = l.fork(t, vfs.PowerLoss, 2)
			v = l.mustMount(nil)
			wantFiles(t, v, f, "after the power loss")
			h = openPath(t, v, "a")
			if err := h.Publish(bg, 1000+15000); err != nil {
				t.Fatal(err)
			}
			f["a"] += string(more[:15000])
			wantFiles(t, v, f, "published")
			if err := h.Publish(bg, 1000+20000); err == nil {
				t.Error("what was dropped is published")
			}
			mustCommit(t, v)
			h.Close()
			mustClose(t, v)
			if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
				t.Error(d)
			}
		})
	}
}

// staging is what a relay does with its file: it stages groups, publishes and drops
// them. states are what is to be seen one after the other.
type staging struct {
	first, second, third []byte
	states               []string
	reached, durable     int // of states: the last one asked for, and the last one that is safe
}

func newStaging(l *lab, published []byte) *staging {
	s := &staging{first: l.noise(20000), second: l.noise(9000), third: l.noise(20000)}
	s.states = []string{string(published)}
	for _, p := range [][]byte{s.second, s.third[:15000]} {
		s.states = append(s.states, s.states[len(s.states)-1]+string(p))
	}
	return s
}

// run goes through it all, or to the first error.
func (s *staging) run(v *Volume) error {
	s.reached, s.durable = 0, 0
	n, err := v.Lookup(bg, metadata.RootInode, "log")
	if err != nil {
		return err
	}
	h, err := v.Open(bg, n.ID)
	v.Forget(n.ID, 1)
	if err != nil {
		return err
	}
	defer h.Close()
	at := func(state int) int64 { return int64(len(s.states[state])) }
	stage := func(p []byte, off int64, referenced bool) error {
		was := v.Status().ReferenceBytes
		if _, err := h.Stage(bg, p, off); err != nil {
			return err
		}
		if got := v.Status().ReferenceBytes - was; referenced != (got == int64(len(p))) {
			return fmt.Errorf("%d bytes at %d: %d are referenced", len(p), off, got)
		}
		return nil
	}
	publish := func(state int, size int64) error {
		s.reached = state
		if err := h.Publish(bg, size); err != nil {
			return err
		}
		if err := v.Fsync(bg, n.ID); err != nil {
			return err
		}
		s.durable = state
		return nil
	}
	ctx, cancel := soon()
	defer cancel()
	for _, do := range []func() error{
		func() error { return stage(s.first[:12000], at(0), true) },
		func() error { return stage(s.first[12000:], at(0)+12000, true) },
		func() error { return publish(0, at(0)) },             // the source went away
		func() error { return stage(s.second, at(0), false) }, // over what is dropped and not committed
		func() error { return publish(1, at(1)) },
		func() error { _, err := v.Commit(ctx); return err },
		func() error { return stage(s.third, at(1), true) },
		func() error { _, err := v.Commit(ctx); return err },
		func() error { return publish(2, at(2)) },
		func() error { _, err := v.Commit(ctx); return err },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// back compares the file with what may have come back.
func (s *staging) back(t *testing.T, l *lab, when string) {
	t.Helper()
	is := func(got, from string) int {
		for i, state := range s.states {
			if got == state {
				return i
			}
		}
		t.Fatalf("%s: %s shows %d bytes, which is no state after some operation", when, from, len(got))
		return 0
	}
	is(bucketFiles(t, l.bucket, 0)["log"], "the bucket")
	v, err := l.mount(l.bucket, nil)
	if err != nil {
		t.Fatalf("%s: mount: %v", when, err)
	}
	got, err := filesOf(volumeTree{v})
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	state := is(got["log"], "the mount")
	if state < s.durable || state > s.reached {
		t.Fatalf("%s: state %d came back; %d was durable and %d asked for", when, state, s.durable, s.reached)
	}
	h := openPath(t, v, "log")
	if err := s.stagedIs(h, state); err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	// The relay drops what is staged when it goes on, and its source sends it anew.
	if err := h.Publish(bg, int64(len(s.states[state]))); err != nil {
		t.Fatalf("%s: drop: %v", when, err)
	}
	for ; state+1 < len(s.states); state++ {
		rest := s.states[state+1][len(s.states[state]):]
		if _, err := h.Stage(bg, []byte(rest), int64(len(s.states[state]))); err != nil {
			t.Fatalf("%s: stage again: %v", when, err)
		}
		if err := h.Publish(bg, int64(len(s.states[state+1]))); err != nil {
			t.Fatalf("%s: publish again: %v", when, err)
		}
	}
	h.Close()
	want := files{"log": s.states[state]}
	wantFiles(t, v, want, when+", gone on")
	mustClose(t, v)
	if err := l.disk.RemoveAll(l.dir); err != nil {
		t.Fatal(err)
	}
	v = l.mustMount(nil)
	wantFiles(t, v, want, when+", from the bucket alone")
	wantCheckClean(t, v)
	wantNoOrphans(t, v)
	mustClose(t, v)
}

// stagedIs compares what is staged behind a state with what was.
func (s *staging) stagedIs(h *Handle, state int) error {
	size := int64(len(s.states[state]))
	p := make([]byte, 40000)
	n, err := h.ReadStaged(bg, p, size)
	if err != nil || n == 0 {
		return err
	}
	for _, was := range [][]byte{s.first, s.second, s.third} {
		if n <= len(was) && string(p[:n]) == string(was[:n]) {
			return nil
		}
	}
	return fmt.Errorf("%d bytes are staged that nobody staged so", n)
}

func TestHandle_Stage_Referenced_DiesAtEveryStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 3, 8192)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "log", l.noise(1000), 0)
		mustCommit(t, v)
		s := newStaging(l, []byte(f["log"]))
		l.fault.Kill()
		if err := v.Abandon(); err != nil && !errors.Is(err, vfs.ErrKilled) {
			t.Fatal(err)
		}
		l.walk(t, false, s.run, func(l *lab, when string) { s.back(t, l, when) })
	})
}

// The record is there and its bytes are not: a torn tail begins with it where nothing
// tells that it was durable, and it is damage where something does.
func TestHandle_Stage_Referenced_BytesLost(t *testing.T) {
	for _, durable := range []bool{false, true} {
		t.Run(fmt.Sprintf("durable %v", durable), func(t *testing.T) {
			l := newLab(t, 4, 8192)
			v := l.mustMount(nil)
			f := files{}
			f.put(t, v, "a", l.noise(1000), 0)
			mustFsync(t, v)
			h := openPath(t, v, "a")
			more := l.noise(20000)
			if _, err := h.Stage(bg, more, 1000); err != nil {
				t.Fatal(err)
			}
			if durable {
				mustFsync(t, v)
			}
			if err := h.Publish(bg, 21000); err != nil { // its group tells what was durable before
				t.Fatal(err)
			}
			l.kill(v)
			flipped := 0
			for path, body := range tree(t, l.disk, l.dir+"/cache", files{}) {
				if i := strings.Index(body, string(more)); i >= 0 {
					flip(t, l.disk, path, i+19999)
					flipped++
				}
			}
			if flipped != 1 {
				t.Fatalf("the staged bytes are in %d cache files", flipped)
			}
			v, err := l.mount(l.bucket, nil)
			if durable {
				if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "was durable") {
					t.Fatalf("mounted: %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			wantFiles(t, v, f, "after the torn tail")
			n, err := v.Lookup(bg, metadata.RootInode, "a")
			if err != nil || n.Staged > n.Size || v.Status().ReferenceBytes != 0 {
				t.Errorf("%+v, %v, %d bytes referenced", n, err, v.Status().ReferenceBytes)
			}
			mustClose(t, v)
		})
	}
}

// Nothing but the cache has the bytes, so that no eviction takes them, however much
// else is read and staged; and what does not fit is in the journal.
func TestHandle_Stage_Referenced_NotEvicted(t *testing.T) {
	l := newLab(t, 5, 128<<10)
	l.opt.CacheBytes = 1 << 20
	v := l.mustMount(nil)
	f := files{}
	f.put(t, v, "other", l.noise(2<<20), 0)
	f.put(t, v, "log", l.noise(1000), 0)
	mustCommit(t, v)
	h := openPath(t, v, "log")
	var staged []byte
	for range 10 {
		p := l.noise(100 << 10)
		if _, err := h.Stage(bg, p, int64(1000+len(staged))); err != nil {
			t.Fatal(err)
		}
		staged = append(staged, p...)
		wantFiles(t, v, f, "while more is staged") // reads twice what the cache holds
	}
	if n := v.Status().ReferenceBytes; n == 0 || n > l.opt.CacheBytes/2 {
		t.Errorf("%d bytes are referenced, of a cache of %d", n, l.opt.CacheBytes)
	}
	p := make([]byte, len(staged)+1)
	if n, err := h.ReadStaged(bg, p, 1000); err != nil || string(p[:n]) != string(staged) {
		t.Errorf("%d bytes are staged, %v, or others", n, err)
	}
	mustFsync(t, v)
	l.kill(v)
	v = l.mustMount(nil)
	h = openPath(t, v, "log")
	if err := h.Publish(bg, int64(1000+len(staged))); err != nil {
		t.Fatal(err)
	}
	h.Close()
	f["log"] += string(staged)
	wantFiles(t, v, f, "published after a kill")
	mustClose(t, v)
	if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
		t.Error(d)
	}
}

// Journal files are used again while references live, and no record of a live one is
// lost with them.
func TestHandle_Stage_Referenced_JournalFilesUsedAgain(t *testing.T) {
	l := newLab(t, 6, 128<<10)
	l.opt.JournalBytes, l.opt.JournalFileBytes, l.opt.ReferenceBytes = 4<<20, 1<<20, 150<<10
	v := l.mustMount(nil)
	f := files{}
	f.put(t, v, "log", l.noise(1000), 0)
	h := openPath(t, v, "log")
	for i := range 40 {
		p := l.noise(200 << 10)
		if _, err := h.Stage(bg, p, int64(len(f["log"]))); err != nil {
			t.Fatal(err)
		}
		f.put(t, v, "small", l.noise(140<<10), 100*i) // fills the journal's files
		if i%3 == 0 {
			mustCommit(t, v) // the open group among the rest
		}
		if err := h.Publish(bg, int64(len(f["log"])+len(p))); err != nil {
			t.Fatal(err)
		}
		f["log"] += string(p)
		if i%7 == 0 {
			mustFsync(t, v)
			h.Close()
			l.kill(v)
			v = l.mustMount(nil)
			wantFiles(t, v, f, fmt.Sprint("after round ", i))
			h = openPath(t, v, "log")
		}
	}
	h.Close()
	mustClose(t, v)
	if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
		t.Error(d)
	}
}

// Another owner finds what is staged, by reference here, and goes on with it or drops
// it.
func TestHandle_Stage_Referenced_TakenOver(t *testing.T) {
	for _, publish := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 7, 8192)
			v := l.mustMount(nil)
			f := files{}
			f.put(t, v, "log", l.noise(1000), 0)
			h := openPath(t, v, "log")
			more := l.noise(20000)
			if _, err := h.Stage(bg, more, 1000); err != nil {
				t.Fatal(err)
			}
			h.Close()
			mustClose(t, v)
			o := l.machine(8).mustMount(nil)
			wantFiles(t, o, f, "at the next owner")
			h = openPath(t, o, "log")
			p := make([]byte, 30000)
			if n, err := h.ReadStaged(bg, p, 1000); err != nil || string(p[:n]) != string(more) {
				t.Errorf("the next owner finds %d staged bytes, %v, or others", n, err)
			}
			size := int64(1000)
			if publish {
				size += int64(len(more))
				f["log"] += string(more)
			}
			if err := h.Publish(bg, size); err != nil {
				t.Fatal(err)
			}
			h.Close()
			mustClose(t, o)
			if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
				t.Error(d)
			}
		})
	}
}

// A small part is referred to where its file has to be synced anyway, and is in the
// journal where it would cost a sync more.
func TestHandle_Stage_SmallPart_ReferencedWithAnother(t *testing.T) {
	l := newLab(t, 9, 128<<10)
	l.opt.ReferenceBytes = 100 << 10
	v := l.mustMount(nil)
	h := mkfile(t, v, metadata.RootInode, "log")
	var all []byte
	for i, part := range []struct {
		bytes      int
		referenced bool
		sync       bool
	}{{20 << 10, false, false}, {150 << 10, true, false}, {20 << 10, true, false}, {4 << 10, false, true}, {20 << 10, false, true}} {
		p := l.noise(part.bytes)
		was := v.Status().ReferenceBytes
		if _, err := h.Stage(bg, p, int64(len(all))); err != nil {
			t.Fatal(err)
		}
		if got := v.Status().ReferenceBytes - was; (got == int64(len(p))) != part.referenced || got != 0 && !part.referenced {
			t.Errorf("part %d: %d of %d bytes are referenced", i, got, len(p))
		}
		all = append(all, p...)
		if part.sync {
			mustFsync(t, v)
		}
	}
	l = l.fork(t, vfs.PowerLoss, 3)
	v = l.mustMount(nil)
	h = openPath(t, v, "log")
	if err := h.Publish(bg, int64(len(all))); err != nil {
		t.Fatal(err)
	}
	h.Close()
	mustClose(t, v)
	if d := (files{"log": string(all)}).diff(bucketFiles(t, l.bucket, 0)); d != "" {
		t.Error(d)
	}
}

// A slot that is adopted behind staged bytes drops them, also from the cache.
func TestHandle_Adopt_DropsWhatIsStaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		v.doc.Adopted = &metadata.Adopted{}
		h := mkfile(t, v, metadata.RootInode, "a")
		pwrite(t, h, []byte("here"), 0)
		if _, err := h.Stage(bg, l.noise(5000), 4); err != nil {
			t.Fatal(err)
		}
		if err := h.Adopt(bg, 8192, "k", l.noise(100)); err != nil {
			t.Fatal(err)
		}
		want := append([]byte("here"), make([]byte, 5000)...)
		for _, n := range []int{4, 1000, 5004} { // also what lies within what was staged
			if got := pread(t, h, n, 5004-int64(n)); !bytes.Equal(got, want[5004-n:]) {
				t.Errorf("the last %d bytes: those that were staged and dropped are read", n)
			}
		}
		h.Close()
		_ = v.Abandon() // there is no such object
	})
}
