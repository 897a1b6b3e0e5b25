package gateway

import (
	"context"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

// stopped is a store whose client can be stopped as SIGSTOP does: its calls
// freeze before their request or before their answer, until it goes on.
type stopped struct {
	objstore.Store
	mu     sync.Mutex    // guards the fields below
	frozen chan struct{} // nil: it runs
}

func (s *stopped) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = make(chan struct{})
}

func (s *stopped) goOn() {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.frozen)
	s.frozen = nil
}

// wait freezes while the client is stopped.
func (s *stopped) wait() {
	s.mu.Lock()
	ch := s.frozen
	s.mu.Unlock()
	if ch != nil {
		<-ch
	}
}

func (s *stopped) Get(ctx context.Context, key string, off, n int64) (io.ReadCloser, objstore.Info, error) {
	s.wait()
	defer s.wait()
	return s.Store.Get(ctx, key, off, n)
}

func (s *stopped) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, c objstore.Condition) (objstore.Version, error) {
	s.wait()
	defer s.wait()
	return s.Store.Put(ctx, key, body, size, c)
}

func (s *stopped) Delete(ctx context.Context, key string) error {
	s.wait()
	defer s.wait()
	return s.Store.Delete(ctx, key)
}

func (s *stopped) List(ctx context.Context, prefix, after string, limit int) ([]objstore.Info, error) {
	s.wait()
	defer s.wait()
	return s.Store.List(ctx, prefix, after, limit)
}

// ledger is what a writer was told: the state after each operation that was
// acknowledged, and how many of them an fsync had confirmed.
type ledger struct {
	states []files
	synced int
}

func (g *ledger) last() files { return g.states[len(g.states)-1] }

// scribble writes, truncates, renames and removes at random until the volume
// refuses, or ctx ends.
func (g *ledger) scribble(ctx context.Context, v *Volume, rng *rand.Rand) error {
	for step := 0; ctx.Err() == nil; step++ {
		next := maps.Clone(g.last())
		name := "f" + strconv.Itoa(rng.IntN(7))
		err := g.one(v, rng, next, name)
		if err != nil {
			return err
		}
		g.states = append(g.states, next)
		if rng.IntN(4) == 0 {
			n := len(g.states)
			if err := v.Fsync(ctx, metadata.RootInode); err != nil {
				return err
			}
			g.synced = n
		}
		time.Sleep(time.Duration(rng.IntN(60)) * time.Millisecond)
	}
	return nil
}

// one does one operation on the volume and on next.
func (g *ledger) one(v *Volume, rng *rand.Rand, next files, name string) error {
	old, exists := next[name]
	switch k := rng.IntN(10); {
	case exists && k == 0:
		delete(next, name)
		return v.Unlink(bg, metadata.RootInode, name)
	case exists && k == 1:
		to := "f" + strconv.Itoa(rng.IntN(7))
		delete(next, name)
		next[to] = old
		return v.Rename(bg, metadata.RootInode, name, metadata.RootInode, to, 0)
	}
	var ino InodeID
	if exists {
		n, err := v.Lookup(bg, metadata.RootInode, name)
		if err != nil {
			return err
		}
		ino = n.ID
	} else {
		n, err := v.Create(bg, metadata.RootInode, name, modeRegular|0o644, 0, Owner{}, nil)
		if err != nil {
			return err
		}
		ino = n.ID
		// Creating and writing are two operations.
		created := maps.Clone(next)
		created[name] = ""
		g.states = append(g.states, created)
	}
	defer v.Forget(ino, 1)
	h, err := v.Open(bg, ino)
	if err != nil {
		return err
	}
	defer h.Close()
	if exists && rng.IntN(5) == 0 {
		size := rng.IntN(len(old) + 1)
		next[name] = old[:size]
		_, err := v.SetAttr(bg, ino, SetAttr{Size: ptr(int64(size))})
		return err
	}
	p := fill(rng, 1+rng.IntN(9000))
	off := rng.IntN(len(old) + 2000)
	b := append([]byte(old), make([]byte, max(0, off+len(p)-len(old)))...)
	copy(b[off:], p)
	next[name] = string(b)
	_, err = h.Write(bg, p, int64(off), WriteFlags{})
	return err
}

func TestVolume_TwoWriters_Torture(t *testing.T) {
	rounds := 36
	if testing.Short() {
		rounds = 12
	}
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("CISTERN_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("CISTERN_SEED: %v", err)
		}
		seed = n
	}
	if text := os.Getenv("CISTERN_ROUNDS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatalf("CISTERN_ROUNDS: %v", err)
		}
		rounds = 10 * n
	}
	modes := []Durability{{Mode: ModeLocal}, {Mode: ModeBucket}, {Mode: ModeLag, Lag: 2 * time.Second}}
	salvaged := 0
	for i := range rounds {
		s := seed + uint64(i)
		synctest.Test(t, func(t *testing.T) {
			n := duelRound(t, s, modes[i%len(modes)])
			salvaged += n
		})
		if t.Failed() {
			t.Fatalf("round %d, mode %s: CISTERN_SEED=%d repeats it as round 0 of its mode", i, modes[i%len(modes)], s)
		}
	}
	if salvaged == 0 {
		t.Error("no round had anything to salvage")
	}
}

// duelRound is one round: a writes and is stopped at a random moment; b takes
// over, writes and collects; a goes on and must do no harm. It returns how many
// files only the salvage had.
func duelRound(t *testing.T, seed uint64, mode Durability) (salvagedFiles int) {
	rng := rand.New(rand.NewPCG(seed, 9))
	a := newLab(t, int64(seed>>1), 8192)
	jump := time.Duration(rng.IntN(3)-1) * time.Hour
	store := &stopped{Store: a.bucket}
	va, err := a.mount(store, func(o *Options) {
		o.Now = func() time.Time { return time.Now().Add(jump) }
		o.Manual, o.Durability, o.StopOnLeaseLost = false, mode, rng.IntN(3) == 0
		o.Collect.Every = 700 * time.Millisecond
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := va.SetSettings(bg, 0, 0); err != nil { // nothing is retained: collection deletes all it may
		t.Fatal(err)
	}
	told := ledger{states: []files{{}}}
	fate := make(chan error, 1)
	go func() { fate <- told.scribble(bg, va, rand.New(rand.NewPCG(seed, 11))) }()
	time.Sleep(time.Duration(500+rng.IntN(6000)) * time.Millisecond)
	store.stop()
	b := a.machine(int64(seed%1000) + 2)
	vb := b.mustMount(func(o *Options) {
		o.Takeover = rng.IntN(2) == 0
		o.Now = func() time.Time { return time.Now().Add(-jump) }
	})
	inherited, err := filesOf(volumeTree{vb})
	if err != nil {
		t.Fatal(err)
	}
	pinned := rng.IntN(3) > 0 // who knows that there is something to salvage keeps what it builds on
	if pinned {
		if _, err := PinCommit(bg, b.mountPin(a.bucket, vb.Head().N)); err != nil {
			t.Fatal(err)
		}
	}
	theirs := maps.Clone(inherited)
	theirs.put(t, vb, "by b", b.noise(20000), 0)
	if _, ok := theirs["f1"]; ok {
		theirs.drop(t, vb, "f1")
	}
	theirs.put(t, vb, "f2", b.noise(700), 100)
	mustCommit(t, vb)
	if _, err := vb.Collect(bg, false); err != nil {
		t.Fatal(err)
	}
	if _, err := vb.CollectOrphans(bg, false); err != nil {
		t.Fatal(err)
	}
	before := a.bucket.Len()
	store.goOn()
	wantErr(t, <-fate, ErrFenced)
	wantErr(t, va.Close(bg), ErrFenced)
	wantHarmless(t, a.bucket.History(), before, va.epoch())
	wantFiles(t, vb, theirs, "at the new owner")
	wantCheckClean(t, vb)
	mustClose(t, vb)
	if diff := theirs.diff(bucketFiles(t, a.bucket, 0)); diff != "" {
		t.Errorf("a reader of the bucket: %s", diff)
	}
	told.wantInherited(t, inherited, mode)
	salvagedFiles = told.wantSalvaged(t, a, inherited, pinned)

	va = a.mustMount(nil)
	wantFiles(t, va, theirs, "back at the first owner")
	theirs.put(t, va, "f3", a.noise(100), 0)
	mustClose(t, va)
	return salvagedFiles
}

// wantInherited: the next owner began with a state that the old one had, and in
// mode bucket with all that any fsync had ever confirmed.
func (g *ledger) wantInherited(t *testing.T, got files, mode Durability) {
	t.Helper()
	for i := len(g.states) - 1; i >= 0; i-- {
		if g.states[i].diff(got) != "" {
			continue
		}
		if mode.Mode == ModeBucket && i < g.synced-1 {
			t.Errorf("fsync confirmed %d operations, and the next owner began with %d", g.synced, i+1)
		}
		return
	}
	t.Errorf("the next owner began with a state that the old one never had: %s", g.last().diff(got))
}

// wantSalvaged: every file that the old owner had changed since what the next one
// began with comes back as the old one saw it last.
func (g *ledger) wantSalvaged(t *testing.T, a *lab, inherited files, pinned bool) int {
	t.Helper()
	all, err := Asides(a.disk, a.dir)
	if err != nil {
		t.Fatal(err)
	}
	last := g.last()
	if len(all) == 0 {
		if diff := last.diff(inherited); diff != "" {
			t.Errorf("nothing was set aside, and what was acknowledged is not with the next owner: %s", diff)
		}
		return 0
	}
	r, got := salvaged(t, a, a.bucket)
	if len(r.Damage) > 0 || pinned && !r.BaseRead {
		t.Errorf("salvage: %v, %q", r.Damage, r.BaseWhy)
	}
	if !r.BaseRead {
		g.wantRanges(t, r, got)
		return len(got.files)
	}
	for name, body := range got.files {
		if body.String() != last[name] || len(got.about[name].Missing) > 0 {
			t.Errorf("%s comes back with %d bytes, want %d; %+v", name, body.Len(), len(last[name]), got.about[name])
		}
	}
	renamed := map[string]bool{}
	for _, op := range r.Operations {
		renamed[op.To] = true
	}
	for name, want := range last {
		if _, ok := got.files[name]; !ok && want != inherited[name] && !renamed[name] {
			t.Errorf("%s is not salvaged", name)
		}
	}
	return len(got.files)
}

// wantRanges: where the commit that the journal builds on was collected, what was
// written is in a file that was there, where it was. It may have gone since: only
// the bucket knew its name.
func (g *ledger) wantRanges(t *testing.T, r *SalvageReport, got *shelf) {
	t.Helper()
	for _, f := range r.Files {
		found := f.Gone
		for i := len(g.states) - 1; i >= 0 && !found; i-- {
			for _, body := range g.states[i] {
				same := len(body) >= int(f.Size) // which is known only as far as it was written
				for _, x := range f.Ranges {
					same = same && got.files[f.Path].String()[x.Off:x.Off+x.Len] == body[x.Off:x.Off+x.Len]
				}
				found = found || same
			}
		}
		if !found {
			t.Errorf("no file has the ranges of %+v", f)
		}
	}
}

// wantHarmless: what a replaced writer of an epoch did to the bucket from a
// moment on stores nothing under a key that anybody had used, and deletes only
// what its own commits or earlier ones had condemned, or what it had
// uploaded and no commit names.
func wantHarmless(t *testing.T, history []mem.Mutation, from int, epoch uint64) {
	t.Helper()
	used, condemned, named := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, m := range history[:from] {
		used[m.Key] = true
		if !strings.HasPrefix(m.Key, metadata.CommitPrefix) || m.Delete {
			continue
		}
		c, _, err := metadata.DecodeCommitOrSeal(m.Body)
		if err != nil {
			t.Fatal(err)
		}
		if c == nil {
			continue
		}
		for _, o := range c.Objects {
			named[o.Key] = true
		}
		for _, o := range c.Segments {
			named[o.Key] = true
		}
		if c.Epoch > epoch {
			continue
		}
		for _, key := range c.Condemned {
			condemned[key] = true
		}
		for _, key := range c.TakenBack {
			delete(condemned, key)
		}
	}
	for _, m := range history[from:] {
		switch {
		case m.Delete && !condemned[m.Key] && named[m.Key]:
			t.Errorf("the replaced writer deleted %s, which was not condemned", m.Key)
		case !m.Delete && used[m.Key]:
			t.Errorf("the replaced writer wrote %s, which was there", m.Key)
		case !m.Delete && !strings.HasPrefix(m.Key, metadata.ObjectPrefix) && !strings.HasPrefix(m.Key, metadata.SegmentPrefix):
			t.Errorf("the replaced writer wrote %s", m.Key)
		}
	}
}
