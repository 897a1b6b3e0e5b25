package gateway

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// grown fills a volume with files of every kind of slot, over a manifest and
// commits after it.
func grown(t *testing.T, v *Volume, l *lab, f files) {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 6))
	f.put(t, v, "large", fill(rng, 3*int(v.ObjectSize())+100), 0)
	f.put(t, v, "gone", fill(rng, 9000), 0)
	mustCommit(t, v)
	if err := v.WriteManifest(bg); err != nil {
		t.Fatal(err)
	}
	f.drop(t, v, "gone")
	for i := range 4 {
		f.put(t, v, "large", fill(rng, 300), 5000*i+3)
		f.put(t, v, fmt.Sprint("small", i), fill(rng, 600+i), 0)
		mustCommit(t, v)
	}
}

// grownFamily is a parent with files of every kind of slot, mounted.
func grownFamily(t *testing.T, seed int64, as form) (l *lab, f *family, v *Volume, parent files) {
	t.Helper()
	l = newLabAs(t, seed, 8192, as)
	f, parent = newFamily(t, l), files{}
	v = f.mount(parentURL)
	grown(t, v, l, parent)
	return l, f, v, parent
}

// A clone shows the commit that it was made of and goes its own way; nothing that
// either of them does is seen by the other; it survives its parent when it was
// detached; and all of that in every form.
func TestClone_GoesItsOwnWay(t *testing.T) {
	eachForm(t, func(t *testing.T, as form) {
		l, f, v, parent := grownFamily(t, 7, as)
		at := mustCommit(t, v)
		then := maps.Clone(parent)
		puts := l.bucket.Len()
		info := f.clone(parentURL, "mem://one", 0, false)
		if info.Commit != at || info.Resumed || info.Doc.Base() != at {
			t.Errorf("clone of %v: %+v", at, info)
		}
		if n, _ := uploaded(l.bucket, puts, metadata.ObjectPrefix, metadata.SegmentPrefix); n != 0 {
			t.Errorf("making a clone wrote %d bytes into the parent", n)
		}
		f.wantFiles("mem://one", 0, then, "the new clone")

		// The parent goes on, and drops all that it can.
		for i := range 3 {
			parent.put(t, v, "large", l.noise(8192), 8192*i)
			parent.drop(t, v, fmt.Sprint("small", i))
		}
		purge(t, v)
		f.wantFiles("mem://one", 0, then, "the parent has collected")
		f.wantClean("mem://one")

		// So does the clone, and its clone.
		c := f.mount("mem://one")
		one := maps.Clone(then)
		wantFiles(t, c, one, "the clone, mounted")
		one.put(t, c, "large", l.noise(700), 100)
		one.drop(t, c, "small3")
		one.put(t, c, "new", l.noise(20000), 0)
		purge(t, c)
		wantCheckClean(t, c)
		f.clone("mem://one", "mem://two", 0, false)
		two := maps.Clone(one)
		one.put(t, c, "new", l.noise(20000), 0)
		one.put(t, c, "large", l.noise(3*8192), 0)
		purge(t, c)
		if _, err := c.Fold(bg, true); err != nil {
			t.Fatal(err)
		}
		purge(t, c)
		mustClose(t, c)
		mustClose(t, v)
		f.wantFiles("mem://one", 0, one, "the clone")
		f.wantFiles("mem://two", 0, two, "the clone's clone")
		f.wantFiles(parentURL, 0, parent, "the parent")
		for _, url := range []string{parentURL, "mem://one", "mem://two"} {
			f.wantClean(url)
		}

		// Without its parents a clone is nothing, until it is detached.
		for _, url := range []string{parentURL, "mem://one"} {
			if err := f.destroy(url, false); !errors.Is(err, ErrPinned) || !strings.Contains(fmt.Sprint(err), "mem://two") {
				t.Fatalf("destroy %s: %v", url, err)
			}
		}
		for _, url := range []string{"mem://one", "mem://two"} {
			if _, err := f.detach(url); err != nil {
				t.Fatalf("detach %s: %v", url, err)
			}
		}
		for _, url := range []string{parentURL, "mem://one"} {
			f.mustDestroy(url)
			f.wantEmpty(url)
		}
		f.wantFiles("mem://two", 0, two, "detached and alone")
		f.wantClean("mem://two")
		c = f.mount("mem://two")
		two.put(t, c, "large", l.noise(100), 0)
		purge(t, c)
		wantFiles(t, c, two, "detached and mounted")
		wantNothingDead(t, c, f.labs["mem://two"])
		mustClose(t, c)

		// A clone of a detached clone, and then destroyed in the right order.
		f.clone("mem://two", "mem://three", 0, false)
		f.wantFiles("mem://three", 0, two, "clone of a detached clone")
		wantErr(t, f.destroy("mem://two", false), ErrPinned)
		for _, url := range []string{"mem://three", "mem://two"} {
			f.mustDestroy(url)
			f.wantEmpty(url)
		}
	})
}

// A copied clone shares nothing from the first.
func TestClone_Copy_SharesNothing(t *testing.T) {
	eachForm(t, func(t *testing.T, as form) {
		l, f, v, parent := grownFamily(t, 8, as)
		mustClose(t, v)
		f.clone(parentURL, "mem://shares", 0, false)
		c := f.mount("mem://shares")
		want := maps.Clone(parent)
		want.put(t, c, "large", l.noise(900), 9000)
		mustClose(t, c)
		info := f.clone("mem://shares", "mem://copy", 0, true)
		if p := info.Copied; p.Things == 0 || p.DoneThings != p.Things || p.DoneBytes != p.Bytes || p.Found != 0 {
			t.Errorf("copied %+v", p)
		}
		f.mustDestroy("mem://shares", parentURL)
		f.wantFiles("mem://copy", 0, want, "alone")
		f.wantClean("mem://copy")
		c = f.mount("mem://copy")
		want.put(t, c, "more", l.noise(10000), 0)
		purge(t, c)
		wantFiles(t, c, want, "mounted")
		wantNothingDead(t, c, f.labs["mem://copy"])
		mustClose(t, c)
	})
}

// Bytes that the parent's writer has staged are not a clone's; its own are.
func TestClone_DropsStagedBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 9, 8192)
		f := newFamily(t, l)
		v := f.mount(parentURL)
		h := mkfile(t, v, metadata.RootInode, "log")
		pwrite(t, h, []byte("published"), 0)
		if _, err := h.Stage(bg, l.noise(20000), 9); err != nil {
			t.Fatal(err)
		}
		mustCommit(t, v)
		f.clone(parentURL, "mem://one", 0, false)
		c := f.mount("mem://one")
		n, err := c.Lookup(bg, metadata.RootInode, "log")
		if err != nil || n.Size != 9 || n.Staged != 0 {
			t.Fatalf("in the clone: %+v, %v", n, err)
		}
		wantFiles(t, c, files{"log": "published"}, "the clone")
		// What its own writer stages before the first commit outlives a crash.
		ch := openPath(t, c, "log")
		if _, err := ch.Stage(bg, []byte("more"), 9); err != nil {
			t.Fatal(err)
		}
		mustFsync(t, c)
		f.labs["mem://one"].fault.Kill()
		_ = c.Abandon() // the disk is dead
		c = f.mount("mem://one")
		ch = openPath(t, c, "log")
		if err := ch.Publish(bg, 13); err != nil {
			t.Fatalf("publish after a crash: %v", err)
		}
		wantFiles(t, c, files{"log": "publishedmore"}, "the clone after a crash")
		ch.Close()
		mustClose(t, c)
		if err := h.Publish(bg, 20009); err != nil {
			t.Errorf("the parent's staged bytes: %v", err)
		}
		h.Close()
		mustClose(t, v)
	})
}

// walkClone lets making a clone die at every call of the stores, lets the parent
// collect then, and makes the clone again.
func walkClone(t *testing.T, as form, copied bool) {
	synctest.Test(t, func(t *testing.T) {
		for n := 0; ; n++ {
			when := fmt.Sprintf("death at call %d", n)
			l, f, v, parent := grownFamily(t, 11, as)
			mustCommit(t, v)
			mustClose(t, v)
			f.clone(parentURL, "mem://one", 0, false)
			v = f.mount("mem://one")
			parent.put(t, v, "large", l.noise(500), 0)
			mustCommit(t, v)
			f.member("mem://two")
			var dead atomic.Bool
			var calls atomic.Int64 // hooks run in parallel
			mortal := map[string]*faultstore.Store{}
			dying := buckets{}
			for url, s := range f.b {
				m := faultstore.New(s, nil)
				mortal[url], dying[url] = m, m
			}
			for _, m := range mortal {
				m.SetHook(func(faultstore.Op, string, int) faultstore.Fault {
					if calls.Add(1)-1 == int64(n) {
						dead.Store(true)
						for _, m := range mortal {
							m.Kill()
						}
					}
					return faultstore.Fault{}
				})
			}
			o := f.options("mem://one", "mem://two", 0)
			o.Open, o.Target = dying.open, dying["mem://two"]
			if copied {
				o.Copy = &CopyOptions{Parallel: 1}
			}
			ctx, cancel := soon()
			src, _, err := OpenStore(ctx, dying["mem://one"], "mem://one", testKeys(1), dying.open)
			if err == nil {
				o.Source = src
				_, err = Clone(ctx, o)
			}
			cancel()
			for _, m := range mortal {
				m.Close()
			}
			if !dead.Load() && err != nil {
				t.Fatalf("%s: failed without a death: %v", when, err)
			}
			_, seen := f.b["mem://two"].Head(bg, metadata.VolumeKey)
			then := maps.Clone(parent)
			parent.put(t, v, "large", l.noise(3*8192), 0)
			purge(t, v)
			if seen == nil {
				f.wantFiles("mem://two", 0, then, when+", it is there")
			} else {
				if !dead.Load() {
					t.Fatalf("%s: there is no clone", when)
				}
				info, err := Clone(bg, func() CloneOptions {
					o := f.options("mem://one", "mem://two", 0)
					if copied {
						o.Copy = &CopyOptions{Parallel: 1}
					}
					return o
				}())
				if errors.Is(err, ErrCollected) || errors.Is(err, ErrNotExist) {
					// It died before the pin: what it had begun can be cleared away.
					if err := f.destroy("mem://two", false); err != nil {
						t.Fatalf("%s: clear: %v", when, err)
					}
					f.wantEmpty("mem://two")
					info, err = Clone(bg, f.options("mem://one", "mem://two", 0))
				}
				if err != nil {
					t.Fatalf("%s: again: %v", when, err)
				}
				if info.Resumed {
					f.wantFiles("mem://two", 0, then, when+", gone on with")
				} else {
					f.wantFiles("mem://two", 0, parent, when+", made anew")
				}
			}
			f.wantClean("mem://two")
			mustClose(t, v)
			// Nothing keeps the others once it is destroyed.
			for _, url := range []string{"mem://two", "mem://one", parentURL} {
				if err := f.destroy(url, false); err != nil {
					t.Fatalf("%s: destroy %s: %v", when, url, err)
				}
				f.wantEmpty(url)
			}
			if !dead.Load() {
				if n < 10 {
					t.Fatalf("making a clone took %d calls", n)
				}
				return
			}
		}
	})
}

func TestClone_DiesAtEveryStep(t *testing.T) { walkClone(t, form{}, false) }

func TestClone_Encrypted_DiesAtEveryStep(t *testing.T) { walkClone(t, form{encrypt: true}, false) }

func TestClone_Copy_DiesAtEveryStep(t *testing.T) { walkClone(t, form{}, true) }

// A clone that is being detached is whole all the time, and so is its parent.
func TestDetach_DiesAtEveryStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n := 0; ; n++ {
			when := fmt.Sprintf("death at call %d", n)
			l, f, v, parent := grownFamily(t, 13, form{})
			mustClose(t, v)
			f.clone(parentURL, "mem://one", 0, false)
			c := f.mount("mem://one")
			one := maps.Clone(parent)
			one.put(t, c, "large", l.noise(100), 7)
			old := mustCommit(t, c)
			key := pin(t, f.b["mem://one"], "kept", old, 0)
			then := maps.Clone(one)
			one.put(t, c, "large", l.noise(2*8192), 0)
			one.drop(t, c, "small0")
			purge(t, c)

			dead, calls := false, 0
			mortal := map[string]*faultstore.Store{}
			dying := buckets{}
			for url, s := range f.b {
				m := faultstore.New(s, nil)
				mortal[url], dying[url] = m, m
			}
			for _, m := range mortal {
				m.SetHook(func(faultstore.Op, string, int) faultstore.Fault {
					if calls++; calls-1 == n {
						dead = true
						for _, m := range mortal {
							m.Kill()
						}
					}
					return faultstore.Fault{}
				})
			}
			ctx, cancel := soon()
			_, err := Detach(ctx, DetachOptions{Store: dying["mem://one"], URL: "mem://one", Open: dying.open, Copy: CopyOptions{Parallel: 1}, Rand: l})
			cancel()
			for _, m := range mortal {
				m.Close()
			}
			if !dead && err != nil {
				t.Fatalf("%s: failed without a death: %v", when, err)
			}
			// The mount that was there all the time goes on.
			one.put(t, c, "new", l.noise(9000), 0)
			purge(t, c)
			wantFiles(t, c, one, when)
			f.wantFiles("mem://one", 0, one, when)
			f.wantFiles("mem://one", old.N, then, when)
			f.wantClean("mem://one")
			if _, err := f.detach("mem://one"); err != nil {
				t.Fatalf("%s: again: %v", when, err)
			}
			if err := f.destroy(parentURL, false); err != nil {
				t.Fatalf("%s: destroy the parent: %v", when, err)
			}
			f.labs["mem://one"].kv = metadata.NewMemKV()
			c.cache.Evict(1 << 30)
			wantFiles(t, c, one, when+", without the parent")
			f.wantFiles("mem://one", old.N, then, when+", without the parent")
			// Who died has left a pin that ends by itself.
			for _, k := range append(bucketKeys(t, f.labs["mem://one"].bucket), key) {
				if !strings.HasPrefix(k, metadata.PinPrefix) {
					continue
				}
				if err := f.b["mem://one"].Delete(bg, k); err != nil {
					t.Fatal(err)
				}
			}
			purge(t, c)
			f.wantClean("mem://one")
			mustClose(t, c)
			// Copies of what died meanwhile don't stay.
			c = f.mount("mem://one")
			purge(t, c)
			wantNothingDead(t, c, f.labs["mem://one"])
			mustClose(t, c)
			if !dead {
				if n < 10 {
					t.Fatalf("detaching took %d calls", n)
				}
				return
			}
		}
	})
}

// Bad input changes nothing, says what is wrong, and works once it is mended.
func TestClone_BadInput(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, f, v, parent := grownFamily(t, 17, form{})
		old := mustCommit(t, v)
		parent.put(t, v, "large", l.noise(3*8192), 0)
		purge(t, v)
		head := mustCommit(t, v)
		f.member("mem://taken")
		if _, err := Format(bg, FormatOptions{Store: f.b["mem://taken"], URL: "mem://taken", Rand: l}); err != nil {
			t.Fatal(err)
		}
		f.member("mem://foreign")
		if err := objstore.Create(bg, f.b["mem://foreign"], "a/file", []byte("x")); err != nil {
			t.Fatal(err)
		}
		f.clone(parentURL, "mem://done", 0, false)
		f.member("mem://free")
		for name, c := range map[string]struct {
			to   string
			n    uint64
			want error
			says string
		}{
			"unknown commit":   {"mem://free", head.N + 100, ErrNotExist, "its last is"},
			"collected commit": {"mem://free", old.N - 3, ErrCollected, "collect"},
			"a volume":         {"mem://taken", 0, ErrExist, "is a volume already"},
			"a clone":          {"mem://done", 0, ErrExist, "is a volume already"},
			"other files":      {"mem://foreign", 0, ErrExist, "not empty"},
		} {
			before := len(bucketKeys(t, f.labs[c.to].bucket))
			_, err := Clone(bg, f.options(parentURL, c.to, c.n))
			if name == "collected commit" && errors.Is(err, ErrNotExist) {
				err = errors.Join(err, ErrCollected) // its document is gone, too
			}
			if !errors.Is(err, c.want) || !strings.Contains(fmt.Sprint(err), c.says) {
				t.Errorf("%s: %v", name, err)
			}
			if now := len(bucketKeys(t, f.labs[c.to].bucket)); now != before {
				t.Errorf("%s: %d keys became %d", name, before, now)
			}
		}
		// A clone's past is its parent's, and it says so.
		_, err := Clone(bg, f.options("mem://done", "mem://free", head.N))
		if !errors.Is(err, ErrNotExist) || !strings.Contains(fmt.Sprint(err), parentURL) {
			t.Errorf("a commit from before a clone's birth: %v", err)
		}
		if _, err := f.detach(parentURL); !errors.Is(err, ErrInvalid) {
			t.Errorf("detach what is no clone: %v", err)
		}
		if pins, err := ClonePins(bg, l.bucket); err != nil || len(pins) != 1 || pins[0].URL != "mem://done" {
			t.Errorf("clones: %+v, %v", pins, err)
		}
		if _, err := Clone(bg, f.options(parentURL, "mem://free", 0)); err != nil {
			t.Errorf("after all: %v", err)
		}
		mustClose(t, v)
	})
}

// A pin whose clone is gone can be told, and forgotten; that of a living one not.
func TestPruneClonePin_OnlyOfDeadClones(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 19, 8192)
		f := newFamily(t, l)
		v := f.mount(parentURL)
		grown(t, v, l, files{})
		mustClose(t, v)
		f.clone(parentURL, "mem://one", 0, false)
		pins, err := ClonePins(bg, l.bucket)
		if err != nil || len(pins) != 1 {
			t.Fatalf("clones: %+v, %v", pins, err)
		}
		wantErr(t, PruneClonePin(bg, l.bucket, f.b["mem://one"], pins[0]), ErrPinned)
		if err := Destroy(bg, f.b["mem://one"], "mem://one", metadata.Owner{}, false, false, func(int) {}); err != nil {
			t.Fatal(err)
		}
		wantErr(t, f.destroy(parentURL, false), ErrPinned) // the clone's destruction did not end
		wantErr(t, PruneClonePin(bg, l.bucket, f.b["mem://one"], pins[0]), ErrPinned)
		if err := f.b["mem://one"].Delete(bg, metadata.ClaimKey); err != nil {
			t.Fatal(err)
		}
		if err := PruneClonePin(bg, l.bucket, f.b["mem://one"], pins[0]); err != nil {
			t.Fatal(err)
		}
		if err := f.destroy(parentURL, false); err != nil {
			t.Errorf("destroy: %v", err)
		}
		f.wantEmpty(parentURL)
	})
}
