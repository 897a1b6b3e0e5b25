package gateway

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"testing"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// A clone is restored to commits of its own, and a restored volume is cloned, copied
// and detached: its head names a manifest of its own number.
func TestVolume_Restore_AndClones(t *testing.T) {
	eachForm(t, func(t *testing.T, as form) {
		l, f, v, parent := grownFamily(t, 11, as)
		mustClose(t, v)

		base := f.clone(parentURL, "mem://one", 0, false).Commit.N
		c := f.mount("mem://one")
		one := maps.Clone(parent)
		one.put(t, c, "new", l.noise(20000), 0)
		at, then := mustCommit(t, c), maps.Clone(one)
		one.put(t, c, "large", l.noise(900), 100)
		one.drop(t, c, "new")
		present := mustCommit(t, c)
		if _, err := f.labs["mem://one"].restore(c, base, "no"); err == nil {
			t.Error("a clone was restored to a commit of its parent")
		}
		if r := f.labs["mem://one"].mustRestore(t, c, at.N, "present"); r.Then.CommitID != at {
			t.Errorf("restored %+v", r)
		}
		f.wantFiles("mem://one", 0, then, "the restored clone")
		f.wantFiles("mem://one", present.N, one, "what was replaced")
		f.wantFiles(parentURL, 0, parent, "the parent")
		f.wantClean("mem://one")

		f.clone("mem://one", "mem://shares", 0, false)
		f.clone("mem://one", "mem://copy", 0, true)
		f.clone("mem://one", "mem://detached", 0, false)
		if _, err := f.detach("mem://detached"); err != nil {
			t.Fatal(err)
		}
		for _, url := range []string{"mem://shares", "mem://copy", "mem://detached"} {
			f.wantFiles(url, 0, then, url)
			f.wantClean(url)
			c := f.mount(url)
			want := maps.Clone(then)
			want.put(t, c, "more", l.noise(10000), 0)
			mustCommit(t, c)
			purge(t, c)
			wantFiles(t, c, want, url+", mounted")
			mustClose(t, c)
		}
		for _, url := range []string{"mem://shares", "mem://one", parentURL} {
			if err := f.destroy(url, url == "mem://one"); err != nil { // its snapshot goes with it
				t.Fatalf("destroy %s: %v", url, err)
			}
		}
		for _, url := range []string{"mem://copy", "mem://detached"} {
			f.wantClean(url)
		}
	})
}

// restores rolls the volume back to a snapshot now and then beside a random run.
type restores struct {
	s *snapshots
	n int
}

func (o *restores) step(r *run) {
	if r.faults || len(o.s.list) == 0 || r.rnd(40) > 0 {
		return
	}
	r.disarm()
	for _, h := range r.open {
		h.Close()
	}
	r.open = map[InodeID]*Handle{}
	if _, err := r.v.Commit(bg); err != nil {
		r.fatalf("commit before a restore: %v", err)
	}
	x := o.s.list[r.rnd(len(o.s.list))]
	if x.info.Commit == r.v.Head() {
		return
	}
	present := fmt.Sprint("present", o.n)
	o.n++
	r.note("restore snapshot %s of commit %v", x.info.Name, x.info.Commit)
	res, err := r.restore(r.v, x.info.Commit.N, present)
	if err != nil {
		r.fatalf("restore snapshot %s of commit %v: %v", x.info.Name, x.info.Commit, err)
	}
	o.s.list = append(o.s.list, kept{res.Replaced, r.m})
	m := x.m.next()
	m.quota = r.m.quota
	r.m, r.restored = m, res.Commit.N
	lsn := r.lsn()
	r.history = append(r.history, state{lsn, m, r.restored})
	if err := r.v.Close(bg); err != nil {
		r.fatalf("close after a restore: %v", err)
	}
	r.remount("restore", lsn)
}

// Snapshots, clones, restores and collections at random in one run, beside everything
// else: after every collection each pin reads back whole.
func TestVolume_Random_SnapshotsClonesRestores(t *testing.T) {
	runs, restored := 10, 0
	if testing.Short() {
		runs = 4
	}
	for i := range runs {
		seed := int64(9000 + i)
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) {
			s, c := &snapshots{}, &children{}
			o := &restores{s: s}
			randomRun(t, seed, *stepsFlag, seed%5 == 0, s.step, c.step, o.step)
			restored += o.n
		})
	}
	if restored == 0 && !t.Failed() {
		t.Error("nothing was ever restored")
	}
	t.Logf("%d restores", restored)
}

// What a fenced writer of a clone had acknowledged comes back whole, the bytes that
// the clone shares with its parent included.
func TestSalvage_Clone_WithItsParentsBytes(t *testing.T) {
	eachForm(t, func(t *testing.T, as form) {
		l := newLabAs(t, 12, 8192, as)
		f := newFamily(t, l)
		v := f.mount(parentURL)
		parent := files{}
		parent.put(t, v, "old", l.noise(50000), 0)
		mustClose(t, v)
		f.clone(parentURL, "mem://one", 0, false)

		a := f.labs["mem://one"]
		va := f.mount("mem://one")
		want := maps.Clone(parent)
		want.put(t, va, "old", []byte("the clone's own"), 20000)
		want.put(t, va, "new", a.noise(9000), 0)
		mustFsync(t, va)
		b := a.machine(2)
		vb, err := b.mount(a.bucket, func(o *Options) { o.Store, o.Takeover = f.b.store(t, "mem://one", testKeys(1, 2, 3)), true })
		if err != nil {
			t.Fatal(err)
		}
		wantFiles(t, vb, parent, "the next owner")
		mustClose(t, vb)
		a.kill(va)

		all, err := Asides(a.disk, a.dir)
		if err != nil || len(all) != 1 {
			t.Fatalf("asides: %+v, %v", all, err)
		}
		s, err := OpenSalvage(bg, SalvageOptions{FS: a.disk, Aside: all[0], Keys: testKeys(1, 2, 3), KV: metadata.NewMemKV(), Open: func(context.Context, string) (objstore.Store, error) {
			return f.b.store(t, "mem://one", testKeys(1, 2, 3)), nil
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		r, got := extracted(t, s)
		if d := got.diff(want); d != "" {
			t.Errorf("extracted: %s", d)
		}
		if !r.BaseRead || len(r.Damage) > 0 || len(r.Files) != 2 || !r.Files[0].Whole || !r.Files[1].Whole {
			t.Errorf("report: %+v", r)
		}
	})
}
