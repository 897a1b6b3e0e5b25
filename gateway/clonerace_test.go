package gateway

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

// A clone that is made while its parent collects is whole, or is refused and
// leaves nothing: at every call of making it, the parent collects all that it can.
func TestClone_RaceWithCollect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole, refused := 0, 0
		for n := 0; ; n++ {
			l, f, v, parent := grownFamily(t, 29, form{})
			old := mustCommit(t, v)
			then := maps.Clone(parent)
			parent.put(t, v, "large", l.noise(3*8192), 0)
			mustCommit(t, v)
			f.member("mem://one")
			s := faultstore.New(l.bucket, nil)
			ran := raceAt(s, n, func() { purge(t, v) })
			o := f.options(parentURL, "mem://one", old.N)
			o.Source = s
			_, err := Clone(bg, o)
			done := ran()
			s.Close()
			switch {
			case err == nil:
				whole++
				f.wantFiles("mem://one", 0, then, fmt.Sprintf("collected at call %d", n))
				f.wantClean("mem://one")
			case errors.Is(err, ErrCollected), errors.Is(err, ErrNotExist):
				refused++
				f.wantEmpty("mem://one")
			default:
				t.Fatalf("call %d: %v", n, err)
			}
			mustClose(t, v)
			if !done {
				break
			}
		}
		if whole < 2 || refused < 2 {
			t.Errorf("%d clones were whole and %d refused", whole, refused)
		}
	})
}

// Of a clone that is made and a parent that is destroyed at the same time exactly
// one goes on.
func TestClone_RaceWithDestroy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		made, gone := 0, 0
		for n := 0; ; n++ {
			l, f, v, parent := grownFamily(t, 31, form{})
			mustClose(t, v)
			f.member("mem://one")
			s := faultstore.New(l.bucket, nil)
			var destroyed error
			ran := raceAt(s, n, func() {
				destroyed = Destroy(bg, l.bucket, parentURL, metadata.Owner{}, false, false, func(int) {})
			})
			o := f.options(parentURL, "mem://one", 0)
			o.Source = s
			_, err := Clone(bg, o)
			done := ran()
			s.Close()
			switch {
			case err == nil && done && destroyed == nil:
				t.Fatalf("call %d: the clone was made and its parent destroyed", n)
			case err == nil:
				made++
				f.wantFiles("mem://one", 0, parent, fmt.Sprintf("destroyed at call %d", n))
				v := f.mount(parentURL) // it was left as it is
				mustClose(t, v)
			case destroyed == nil:
				gone++
				if _, err := f.view("mem://one", 0); !errors.Is(err, ErrNoVolume) {
					t.Fatalf("call %d: the refused clone: %v", n, err)
				}
			default:
				t.Fatalf("call %d: neither: %v; %v", n, err, destroyed)
			}
			if !done {
				break
			}
		}
		if made < 2 || gone < 2 {
			t.Errorf("%d clones were made, %d parents destroyed", made, gone)
		}
	})
}

// At every call of making a clone another process takes its claim up and makes
// it: what the first run takes back when it dies or is refused is its own, and
// the other's clone stays whole however the parent collects.
func TestClone_TakeBack_LeavesAnotherRunsClone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := 0
		for n := 0; ; n++ {
			when := fmt.Sprintf("taken up at call %d", n)
			l, f, v, parent := grownFamily(t, 33, form{})
			mustCommit(t, v)
			mustClose(t, v)
			f.clone(parentURL, "mem://one", 0, false)
			v = f.mount(parentURL)
			c := f.mount("mem://one")
			mustCommit(t, c)
			f.member("mem://two")
			ctx, cancel := context.WithCancel(bg)
			s := faultstore.New(l.bucket, nil)
			var made error
			ran := raceAt(s, n, func() {
				_, made = Clone(bg, f.options("mem://one", "mem://two", 0))
				cancel()
			})
			o := f.options("mem://one", "mem://two", 0)
			o.Open = func(ctx context.Context, url string) (objstore.Store, error) {
				if url == parentURL {
					return s, nil
				}
				return f.b.open(ctx, url)
			}
			_, err := Clone(ctx, o)
			cancel()
			done := ran()
			s.Close()
			if err != nil {
				failed++
			}
			if done && made == nil {
				then := maps.Clone(parent)
				for i := range 3 {
					parent.put(t, v, "large", l.noise(8192), 8192*i)
					parent.drop(t, v, fmt.Sprint("small", i))
				}
				purge(t, v)
				purge(t, c)
				f.wantFiles("mem://two", 0, then, when)
				f.wantClean("mem://two")
				for _, url := range []string{parentURL, "mem://one"} {
					if !keptFor(t, f.b[url], "mem://two") {
						t.Errorf("%s: %s has no pin of the clone", when, url)
					}
				}
			}
			mustClose(t, c)
			mustClose(t, v)
			if !done {
				break
			}
		}
		if failed < 2 {
			t.Errorf("%d runs failed", failed)
		}
	})
}

func keptFor(t *testing.T, s objstore.Store, url string) bool {
	t.Helper()
	pins, err := ClonePins(bg, s)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pins {
		if p.URL == url {
			return true
		}
	}
	return false
}

// A store that stops answering once the clone can be seen does not make it vanish.
func TestClone_Publish_PassingErrorLeavesTheClone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f, v, parent := grownFamily(t, 35, form{})
		mustClose(t, v)
		target := f.member("mem://one")
		s := faultstore.New(target.bucket, nil)
		defer s.Close()
		seen := false
		s.SetHook(func(op faultstore.Op, key string, _ int) faultstore.Fault {
			if op == faultstore.Get && key == metadata.LeaseKey {
				if _, err := target.bucket.Head(bg, metadata.VolumeKey); err == nil {
					seen = true
					return faultstore.Fault{Kind: faultstore.Before}
				}
			}
			return faultstore.Fault{}
		})
		o := f.options(parentURL, "mem://one", 0)
		o.Target = s
		if _, err := Clone(bg, o); !errors.Is(err, ErrStore) || !seen {
			t.Errorf("clone: %v, asked once it was there: %v", err, seen)
		}
		f.wantFiles("mem://one", 0, parent, "after the error")
		if !keptFor(t, l.bucket, "mem://one") {
			t.Error("the parent has no pin of the clone")
		}
	})
}

// children are clones that are taken, changed, detached and destroyed beside a
// random run: an oracle of what each of them has to show.
type children struct {
	f       *family
	list    []child
	next    int
	traced  int
	checked int
}

type child struct {
	url string
	m   *model
}

func (o *children) step(r *run) {
	if o.f == nil {
		o.f = newFamily(r.t, r.lab)
	}
	switch k := r.rnd(60); {
	case k < 3:
		o.take(r)
	case k < 4 && len(o.list) > 0:
		i := r.rnd(len(o.list))
		x := o.list[i]
		err := o.f.destroy(x.url, false)
		r.note("destroy %s: %v", x.url, err)
		if err == nil {
			o.list = append(o.list[:i:i], o.list[i+1:]...)
		} else if !errors.Is(err, ErrPinned) { // it has clones
			r.fatalf("destroy %s: %v", x.url, err)
		}
	case k < 5 && len(o.list) > 0:
		x := o.list[r.rnd(len(o.list))]
		r.note("detach %s", x.url)
		if _, err := o.f.detach(x.url); err != nil {
			r.fatalf("detach %s: %v", x.url, err)
		}
	case k < 6 && len(o.list) > 0:
		o.use(r, &o.list[r.rnd(len(o.list))])
	}
	for ; o.traced < len(r.trace); o.traced++ {
		if r.trace[o.traced] == strconv.Itoa(r.step)+": collect" {
			o.check(r)
		}
	}
}

// take clones the volume, or a clone of it.
func (o *children) take(r *run) {
	url := fmt.Sprint("mem://child", o.next)
	o.next++
	from, m := parentURL, (*model)(nil)
	if len(o.list) > 0 && r.rnd(3) == 0 {
		x := o.list[r.rnd(len(o.list))]
		from, m = x.url, x.m
	}
	s, _, err := OpenStore(bg, o.f.b[from], from, testKeys(1, 2, 3), o.f.b.open)
	if err != nil {
		r.fatalf("%v", err)
	}
	l := &lab{t: r.t, bucket: mem.New(), opt: r.opt, form: r.form, rng: r.rng}
	o.f.labs[url], o.f.b[url] = l, l.bucket
	c := CloneOptions{Source: s, SourceURL: from, Target: l.bucket, TargetURL: url, Keys: testKeys(max(r.key, 1), 1, 2, 3), Open: o.f.b.open, Rand: r}
	if r.rnd(4) == 0 {
		c.Copy = &CopyOptions{}
	}
	info, err := Clone(bg, c)
	r.note("clone %s of %s: %v", url, from, err)
	if err != nil {
		r.fatalf("clone %s of %s: %v", url, from, err)
	}
	if m == nil {
		e, err := FindCommit(bg, s, info.Commit.N, from)
		if err != nil {
			r.fatalf("commit %v: %v", info.Commit, err)
		}
		m = r.atCommit(e.ID.N, e.LastLSN)
	}
	o.list = append(o.list, child{url, m})
}

// use mounts a clone, which commits, writes a manifest and collects.
func (o *children) use(r *run, x *child) {
	x.m = x.m.next()
	for ino := range x.m.nodes {
		x.m.edit(ino).dropStaged() // they were its parent's
	}
	s, _, err := OpenStore(bg, o.f.b[x.url], x.url, testKeys(1, 2, 3), o.f.b.open)
	if err != nil {
		r.fatalf("%v", err)
	}
	m := o.f.member(x.url + "-machine")
	delete(o.f.b, x.url+"-machine")
	v, err := m.mount(m.bucket, func(o *Options) { o.Store, o.URL = s, x.url })
	if err != nil {
		r.fatalf("mount %s: %v", x.url, err)
	}
	r.note("mount %s", x.url)
	if d := x.m.diff(volumeTree{v}); d != "" {
		r.fatalf("%s, mounted: %s", x.url, d)
	}
	ctx, cancel := context.WithTimeout(bg, timeoutOfUse)
	defer cancel()
	n, err := v.Create(ctx, metadata.RootInode, "\x01passing", modeRegular|0o600, 0, Owner{}, nil)
	if err == nil {
		v.Forget(n.ID, 1)
		err = v.Unlink(ctx, metadata.RootInode, "\x01passing")
	}
	if err == nil {
		_, err = v.Fold(ctx, true)
	}
	if err == nil {
		err = v.WriteManifest(ctx)
	}
	for range 2 {
		if err == nil {
			_, err = v.Commit(ctx)
		}
		if err == nil {
			_, err = v.Collect(ctx, false)
		}
	}
	if err == nil {
		_, err = v.CollectOrphans(ctx, false)
	}
	if err == nil {
		err = v.Close(ctx)
	}
	if err != nil {
		r.fatalf("use %s: %v", x.url, err)
	}
}

func (o *children) check(r *run) {
	for _, x := range o.list {
		v, err := o.f.view(x.url, 0)
		if err != nil {
			r.fatalf("view of %s: %v", x.url, err)
		}
		if d := x.m.diff(viewTree{v}); d != "" {
			r.fatalf("%s: %s", x.url, d)
		}
		v.Close()
		o.checked++
	}
}

const timeoutOfUse = 3600e9

// Clones are taken, used, detached and destroyed at random beside everything
// else: after every collection each of them reads back whole.
func TestVolume_Random_Clones(t *testing.T) {
	runs, checked := 8, 0
	if testing.Short() {
		runs = 3
	}
	for i := range runs {
		seed := int64(7000 + i)
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) {
			o := &children{}
			randomRun(t, seed, *stepsFlag, seed%2 == 0, o.step)
			checked += o.checked
		})
	}
	if checked == 0 && !t.Failed() {
		t.Error("no clone was ever read after a collection")
	}
	t.Logf("%d clones read after collections", checked)
}
