package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	oldrand "math/rand"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// The cases of the local disk and of processes that die: 10 to 13, 16 and 18.

// engineCases are those that need the engine or the store itself.
func engineCases() map[string]func(t *testing.T, b caseBucket) {
	return map[string]func(t *testing.T, b caseBucket){
		"Case02_MissingObject": case02, "Case09_CopyOfAMissingObject": case09, "Case10_KilledAtEveryStep": case10, "Case11_JournalCutAndFlipped": case11,
		"Case12_PowerLoss": case12, "Case13_NoSpaceAtEveryCall": case13, "Case14_Faults": case14, "Case15_Outage": case15, "Case16_TinyCache": case16,
		"Case17_DeleteAndTruncateRace": case17, "Case18_RestartWithAFullCache": case18, "Case19_Sync": case19, "Case22_ConnectionChecks": case22,
	}
}

// contents are the files of a volume, all in its top directory.
type contents map[string]string

func (c contents) put(path string, p []byte, off int) {
	w := []byte(c[path])
	if n := off + len(p); n > len(w) {
		w = append(w, make([]byte, n-len(w))...)
	}
	copy(w[off:], p)
	c[path] = string(w)
}

// put writes to the volume and to what is expected of it.
func (p *inProcess) put(c contents, path string, b []byte, off int) {
	p.t.Helper()
	if err := p.write(path, b, int64(off)); err != nil {
		p.t.Fatal(err)
	}
	c.put(path, b, off)
}

// contents reads all files.
func (p *inProcess) contents() contents {
	p.t.Helper()
	names, err := p.list("")
	if err != nil {
		p.t.Fatal(err)
	}
	c := contents{}
	for _, name := range names {
		b, err := p.read(name)
		if err != nil {
			p.t.Fatal(err)
		}
		c[name] = string(b)
	}
	return c
}

func (p *inProcess) want(c contents, when string) {
	p.t.Helper()
	if got := p.contents(); !maps.Equal(got, c) {
		p.t.Fatalf("%s: the files are not what they should be: %v, want %v", when, got.sizes(), c.sizes())
	}
}

func (c contents) sizes() map[string]int {
	m := map[string]int{}
	for name, b := range c {
		m[name] = len(b)
	}
	return m
}

// dieAt makes the process die at the n-th request to the store from now on: before
// the store has it, or when it has taken effect.
func (p *inProcess) dieAt(n int, kind faultstore.Kind, died func()) {
	from := p.bad.Calls()
	p.bad.SetHook(func(_ faultstore.Op, _ string, i int) faultstore.Fault {
		if i-from < n {
			return faultstore.Fault{}
		}
		defer died()
		if i-from == n {
			return faultstore.Fault{Kind: kind, Err: faultstore.ErrKilled}
		}
		return faultstore.Fault{Kind: faultstore.Before, Err: faultstore.ErrKilled}
	})
}

// dieAtDisk is dieAt for the calls of the disk.
func (p *inProcess) dieAtDisk(n int, died func()) {
	from := p.disk.Calls()
	p.disk.SetHook(func(_, _ string, i int) error {
		if i-from < n {
			return nil
		}
		defer died()
		return vfs.ErrKilled
	})
}

// case10: kill -9 before and after every step of a commit: every acknowledged byte
// reads back, and nothing is missing.
func case10(t *testing.T, b caseBucket) {
	p := b.volume(t, "case10", func(p *inProcess) { p.below, p.state = vfs.NewMem(), "/state" })
	want, round := contents{}, 0
	steps := map[string]func(n int, died func()){
		"before a request":     func(n int, died func()) { p.dieAt(n, faultstore.Before, died) },
		"after a request":      func(n int, died func()) { p.dieAt(n, faultstore.Lost, died) },
		"at a call for a disk": p.dieAtDisk,
	}
	for step, arm := range steps {
		for n := 0; ; n++ {
			round++
			p.put(want, "small", pattern(700, round), round*300)
			p.put(want, "large", pattern(20000, round), 0)
			p.put(want, fmt.Sprint("new", round%4), pattern(9000, round), 0)
			ctx, died := context.WithCancel(t.Context())
			arm(n, died)
			_, err := p.v.Commit(ctx)
			died()
			p.kill()
			p.open()
			p.want(want, fmt.Sprintf("killed %s, number %d", step, n))
			p.sync()
			if err == nil {
				break
			}
			if n > 100 {
				t.Fatal("a commit never ends")
			}
		}
	}
	p.checkAndClose()
}

// journalFiles returns what the journal's files hold.
func (p *inProcess) journalFiles() map[string][]byte {
	p.t.Helper()
	names, err := filepath.Glob(filepath.Join(p.state, "journal", "*.jnl"))
	if err != nil {
		p.t.Fatal(err)
	}
	files := map[string][]byte{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			p.t.Fatal(err)
		}
		files[name] = b
	}
	return files
}

// case11: the journal is cut, or a byte of it is another one: whole records before
// that stay, the tail goes and this is told, and what is written then reads back.
func case11(t *testing.T, b caseBucket) {
	log := &bytes.Buffer{}
	p := b.volume(t, "case11", func(p *inProcess) { p.log = log })
	want := contents{}
	rng := rand.New(rand.NewPCG(11, 11))
	lost := 0
	for round := range 24 {
		p.put(want, "a", pattern(600, round), 100*round)
		p.fsync()
		before := p.journalFiles()
		states := []contents{maps.Clone(want)}
		for i := range 4 {
			p.put(want, "a", pattern(400, round+i), 250*i)
			states = append(states, maps.Clone(want))
		}
		p.kill()
		name, from, to := grown(t, before, p.journalFiles())
		file, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		at := from + 1 + rng.IntN(to-from-1)
		if round%2 == 0 {
			file = file[:at]
		} else {
			file[at] ^= 1 << (round % 8)
		}
		if err := os.WriteFile(name, file, 0o600); err != nil {
			t.Fatal(err)
		}
		log.Reset()
		p.open()
		got := p.contents()
		k := slices.IndexFunc(states, func(c contents) bool { return maps.Equal(c, got) })
		if k < 0 {
			t.Fatalf("round %d: came back with what there never was", round)
		}
		if k < len(states)-1 {
			lost++
			if !strings.Contains(log.String(), "torn tail") {
				t.Errorf("round %d: nobody is told of the tail that went:\n%s", round, log)
			}
		}
		want = got
		p.put(want, "after", pattern(300, round), 77)
		p.kill()
		p.open()
		p.sync()
		p.want(want, fmt.Sprintf("round %d: after a following write", round))
	}
	if lost < 12 {
		t.Errorf("the damage took a record away in %d rounds only", lost)
	}
	p.checkAndClose()
}

// grown finds the file that was written to, and what of it: a file that is used again
// is not longer for it.
func grown(t *testing.T, before, after map[string][]byte) (name string, from, to int) {
	t.Helper()
	for name, is := range after {
		was, there := before[name]
		if !there || len(was) != len(is) {
			continue
		}
		from, to := 0, len(is)
		for from < to && was[from] == is[from] {
			from++
		}
		for to > from && was[to-1] == is[to-1] {
			to--
		}
		if to > from+10 {
			return name, from, to
		}
	}
	t.Fatalf("no file of %d of the journal was written to", len(after))
	return "", 0, 0
}

// case12: the power goes. What was fsynced is there, and what comes back is the
// state after some operation.
func case12(t *testing.T, b caseBucket) {
	disk := vfs.NewMem()
	p := b.volume(t, "case12", func(p *inProcess) { p.below, p.state = disk, "/state" })
	rng, diskRng := rand.New(rand.NewPCG(12, 12)), oldrand.New(oldrand.NewSource(12))
	want := contents{}
	for round := range 6 {
		states, durable := []contents{maps.Clone(want)}, 0
		for i := range 25 {
			switch rng.IntN(6) {
			case 0:
				p.fsync()
				durable = len(states) - 1
			case 1:
				p.sync()
				durable = len(states) - 1
			default:
				name := fmt.Sprint("f", rng.IntN(3))
				if _, there := want[name]; !there {
					p.put(want, name, nil, 0)
					states = append(states, maps.Clone(want))
				}
				p.put(want, name, pattern(1+rng.IntN(20000), i), rng.IntN(9000))
			}
			states = append(states, maps.Clone(want))
		}
		p.kill()
		disk = disk.Crash(diskRng, vfs.PowerLoss)
		p.below, p.kv = disk, p.kv.Crash(rng)
		p.open()
		got, at := p.contents(), -1
		for i, s := range states {
			if maps.Equal(s, got) {
				at = i
			}
		}
		if at < durable {
			t.Fatalf("round %d: came back with state %d of %d, and %d was fsynced", round, at, len(states), durable)
		}
		want = got
	}
	p.checkAndClose()
}

// case13: the disk is full at one call after another, and writes are short: counts,
// sizes and bytes are right, and all works again when there is space.
func case13(t *testing.T, b caseBucket) {
	p := b.volume(t, "case13", func(p *inProcess) {
		p.change = func(o *gateway.Options) { o.LimitENOSPC, o.LimitWait, o.ReferenceBytes = true, 1, 3000 }
	})
	want := contents{}
	met := true
	for n := 0; met; n += 3 {
		p.disk.SetHook(noSpace(n, 6, &met))
		// The write at which the volume stopped was refused, and may be there.
		unclear := contents(nil)
		for i := range 8 {
			b := pattern(500+900*i, n+i)
			k, err := p.writeSome("a", b, int64(2500*i))
			if k > 0 {
				want.put("a", b[:k], 2500*i)
			}
			switch {
			case errors.Is(err, gateway.ErrReadOnly) && unclear == nil:
				unclear = maps.Clone(want)
				unclear.put("a", b, 2500*i)
			case err == nil && k == len(b), errors.Is(err, gateway.ErrNoSpace), errors.Is(err, gateway.ErrReadOnly):
			default:
				t.Fatalf("from call %d: a write gives %d of %d, %v", n, k, len(b), err)
			}
		}
		p.disk.SetHook(nil)
		if p.v.Stopped() == nil {
			p.want(want, fmt.Sprint("from call ", n))
			p.put(want, "later", pattern(9000, n), 0)
			p.sync()
		}
		p.kill()
		p.open()
		got := p.contents()
		if !maps.Equal(got, want) && (unclear == nil || !maps.Equal(got, unclear)) {
			t.Fatalf("from call %d, mounted again: %v, want %v", n, got.sizes(), want.sizes())
		}
		want = got
	}
	p.checkAndClose()
}

// noSpace refuses some calls in a row, from the n-th on of those that need room, and
// tells whether there were so many.
func noSpace(n, row int, met *bool) func(op, _ string, _ int) error {
	*met = false
	var mu sync.Mutex
	calls := 0
	return func(op, _ string, _ int) error {
		mu.Lock()
		defer mu.Unlock()
		switch op {
		case "WriteAt", "Allocate", "Truncate", "OpenFile":
			if calls++; calls > n && calls <= n+row {
				*met = true
				return syscall.ENOSPC
			}
		}
		return nil
	}
}

// writeSome makes the file, if it has to, and writes as much as there is room for.
func (p *inProcess) writeSome(path string, b []byte, off int64) (int, error) {
	n, err := p.find(path)
	if errors.Is(err, syscall.ENOENT) {
		n, err = p.v.Create(p.t.Context(), metadata.RootInode, path, 0o100644, 0, gateway.Owner{}, nil)
		if err == nil {
			p.v.Forget(n.ID, 1)
		}
	}
	if err != nil {
		return 0, err
	}
	h, err := p.v.Open(p.t.Context(), n.ID)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	return h.Write(p.t.Context(), b, off, gateway.WriteFlags{})
}

// case16: a cache of 100 KiB under reads and writes of 500 KiB by 8 threads.
func case16(t *testing.T, b caseBucket) {
	disk := vfs.NewMem()
	p := b.volume(t, "case16", func(p *inProcess) {
		p.below, p.state = disk, "/state"
		p.change = func(o *gateway.Options) { o.Manual, o.CacheBytes, o.ReferenceBytes = false, 100<<10, 3000 }
	})
	const each, workers = 64 << 10, 8
	ended := make(chan error, workers)
	for w := range workers {
		go func() { ended <- p.churn(fmt.Sprint("f", w), each, w) }()
	}
	for range workers {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	p.sync()
	if c := p.v.Status().Cache; c.Allocated > c.Limit || c.Pinned != 0 {
		t.Errorf("at rest the cache has %d bytes of %d, %d of them pinned", c.Allocated, c.Limit, c.Pinned)
	}
	p.checkAndClose() // which compares the account with the disk
	p.start()
	p.change = func(o *gateway.Options) { o.CacheBytes = 100 << 10 }
	if err := p.tryOpen(); err != nil {
		t.Fatal(err)
	}
	if got, on := p.v.Status().Cache.Allocated, du(t, disk, "/state/cache"); got != on {
		t.Errorf("the cache counts %d bytes and the disk %d", got, on)
	}
	for w := range workers {
		got, err := p.read(fmt.Sprint("f", w))
		if err != nil || !bytes.Equal(got, pattern(each, w)) {
			t.Errorf("worker %d: %d bytes, %v", w, len(got), err)
		}
	}
	p.close()
}

// churn writes a file piece by piece and reads it back, twice.
func (p *inProcess) churn(name string, size, seed int) error {
	mine := pattern(size, seed)
	for round := range 3 {
		for off := 0; off < size; off += 5000 {
			end := min(off+5000, size)
			if round == 0 {
				if err := p.write(name, mine[off:end], int64(off)); err != nil {
					return err
				}
				continue
			}
			got, err := p.readAt(name, end-off, int64(off))
			if err != nil || !bytes.Equal(got, mine[off:end]) {
				return fmt.Errorf("%s at %d: %d bytes, or wrong ones: %w", name, off, len(got), err)
			}
			if c := p.v.Status().Cache; c.Allocated > c.Limit {
				return fmt.Errorf("the cache has %d bytes, its limit is %d", c.Allocated, c.Limit)
			}
		}
	}
	return nil
}

// readAt reads a part of a file.
func (p *inProcess) readAt(path string, n int, off int64) ([]byte, error) {
	inode, err := p.find(path)
	if err != nil {
		return nil, err
	}
	h, err := p.v.Open(p.t.Context(), inode.ID)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	b := make([]byte, n)
	k, err := h.Read(p.t.Context(), b, off)
	return b[:k], err
}

// du sums what the files below a directory occupy.
func du(t *testing.T, disk vfs.FS, dir string) int64 {
	t.Helper()
	list, err := disk.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for _, d := range list {
		name := filepath.Join(dir, d.Name())
		if d.IsDir() {
			sum += du(t, disk, name)
			continue
		}
		f, err := disk.OpenFile(name, os.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		n, err := f.Allocated()
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// case18: a restart with a full cache asks the store about none of its objects, and
// what was dirty is uploaded then.
func case18(t *testing.T, b caseBucket) {
	p := b.volume(t, "case18", func(p *inProcess) {
		p.change = func(o *gateway.Options) { o.ReferenceBytes = 8192 }
	})
	want := contents{}
	p.put(want, "a", pattern(300*8192, 1), 0)
	p.sync()
	p.put(want, "dirty", pattern(700, 2), 0)
	p.fsync()
	p.kill()
	p.start()
	p.bad.SetHook(func(op faultstore.Op, key string, _ int) faultstore.Fault {
		if strings.HasPrefix(key, metadata.ObjectPrefix) || strings.HasPrefix(key, metadata.SegmentPrefix) {
			t.Errorf("the restart asks the store: %s %s", op, key)
		}
		return faultstore.Fault{}
	})
	if err := p.tryOpen(); err != nil {
		t.Fatal(err)
	}
	if p.v.Status().DirtyBytes == 0 {
		t.Error("nothing waits for its upload")
	}
	calls := p.bad.Calls()
	p.want(want, "after the restart")
	if n := p.bad.Calls() - calls; n != 0 {
		t.Errorf("reading what is cached makes %d requests", n)
	}
	p.bad.SetHook(nil)
	p.fromBucket()
	p.want(want, "from the bucket")
	p.checkAndClose()
}
