package gateway

import (
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

// used is a volume with some past: objects, patches, a manifest, dead things,
// an inode without names, and changes that only the journal has.
type used struct {
	*lab
	committed files // as of the last commit
	now       files // acknowledged and durable
}

func newUsed(t *testing.T, objectSize int64) *used { return newUsedAs(t, objectSize, form{}) }

func newUsedAs(t *testing.T, objectSize int64, as form) *used {
	t.Helper()
	l := newLabAs(t, 41, objectSize, as)
	rng := rand.New(rand.NewPCG(41, 42))
	v := l.mustMount(nil)
	u := &used{lab: l, now: files{}}
	u.now.put(t, v, "base", fill(rng, 3*int(objectSize)+100), 0)
	u.now.put(t, v, "small", fill(rng, 700), 0)
	u.now.put(t, v, "gone", fill(rng, 9000), 0)
	mustCommit(t, v)
	if err := v.WriteManifest(bg); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		u.now.put(t, v, "base", fill(rng, 200), 1000*i+3)
		u.now.put(t, v, "small", fill(rng, 90), 50*i)
		mustCommit(t, v)
	}
	u.now.drop(t, v, "gone")
	mustCommit(t, v)
	u.committed = files{}
	for name, p := range u.now {
		u.committed[name] = p
	}
	u.now.put(t, v, "base", fill(rng, 500), 2*int(objectSize)-200)
	u.now.put(t, v, "whole", fill(rng, int(objectSize)), 0) // under a reference
	u.now.put(t, v, "whole", fill(rng, 100), 10)            // over it
	u.now.put(t, v, "tiny", []byte("tiny"), 0)
	if err := v.Rename(bg, 1, "tiny", 1, "renamed", 0); err != nil {
		t.Fatal(err)
	}
	u.now["renamed"] = u.now["tiny"]
	delete(u.now, "tiny")
	mustFsync(t, v)
	u.fault.Kill()
	if err := v.Abandon(); err != nil && !errors.Is(err, vfs.ErrKilled) {
		t.Fatal(err)
	}
	return u
}

// back mounts a machine that came back and compares everything.
func (u *used) back(t *testing.T, l *lab, when string) {
	t.Helper()
	got := bucketFiles(t, l.bucket, 0)
	if d1, d2 := u.committed.diff(got), u.now.diff(got); d1 != "" && d2 != "" {
		t.Fatalf("%s: the bucket shows neither the last commit (%s) nor what is acknowledged (%s)", when, d1, d2)
	}
	v, err := l.mount(l.bucket, nil)
	if err != nil {
		t.Fatalf("%s: mount: %v", when, err)
	}
	wantFiles(t, v, u.now, when+", mounted again")
	mustClose(t, v)
	if err := l.disk.RemoveAll(l.dir); err != nil {
		t.Fatal(err)
	}
	v, err = l.mount(l.bucket, nil)
	if err != nil {
		t.Fatalf("%s: mount from the bucket alone: %v", when, err)
	}
	wantFiles(t, v, u.now, when+", from the bucket alone")
	wantCheckClean(t, v)
	wantNoOrphans(t, v)
	mustClose(t, v)
}

// wantCheckClean verifies every byte that the bucket has for the volume.
func wantCheckClean(t *testing.T, v *Volume) {
	t.Helper()
	_, err := v.Check(bg, CheckOptions{Data: true, Problem: func(p Problem) { t.Errorf("check: %s", p) }})
	if err != nil {
		t.Errorf("check: %v", err)
	}
}

// wantNoOrphans makes sure that a scan leaves nothing that no state refers to.
func wantNoOrphans(t *testing.T, v *Volume) {
	t.Helper()
	if _, err := v.CollectOrphans(bg, false); err != nil {
		t.Errorf("collect orphans: %v", err)
	}
	r, err := v.Check(bg, CheckOptions{Problem: func(p Problem) { t.Errorf("check after the scan: %s", p) }})
	if err != nil || r.Orphans != 0 {
		t.Errorf("%d orphans are left, %v", r.Orphans, err)
	}
}

// walkUsed walks the deaths of one step of a used volume.
func walkUsed(t *testing.T, early bool, step func(v *Volume) error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		u.walk(t, early, step, func(l *lab, when string) { u.back(t, l, when) })
	})
}

func TestVolume_Open_DiesAtEveryStep(t *testing.T) { walkUsed(t, true, nil) }

func TestVolume_Commit_DiesAtEveryStep(t *testing.T) {
	walkUsed(t, false, func(v *Volume) error {
		ctx, cancel := soon()
		defer cancel()
		_, err := v.Commit(ctx)
		return err
	})
}

func TestVolume_Close_DiesAtEveryStep(t *testing.T) {
	walkUsed(t, false, func(v *Volume) error {
		ctx, cancel := soon()
		defer cancel()
		return v.Close(ctx)
	})
}

func TestVolume_WriteManifest_DiesAtEveryStep(t *testing.T) {
	walkUsed(t, false, func(v *Volume) error {
		ctx, cancel := soon()
		defer cancel()
		if err := v.WriteManifest(ctx); err != nil {
			return err
		}
		_, err := v.Commit(ctx)
		return err
	})
}

func TestVolume_Fold_DiesAtEveryStep(t *testing.T) {
	walkUsed(t, false, func(v *Volume) error {
		ctx, cancel := soon()
		defer cancel()
		if err := v.findPatched(); err != nil {
			return err
		}
		n, err := v.Fold(ctx, true)
		if err == nil && n == 0 {
			return errors.New("nothing was folded")
		}
		if err == nil {
			_, err = v.Commit(ctx)
		}
		return err
	})
}

func TestVolume_Collect_DiesAtEveryStep(t *testing.T) {
	walkUsed(t, false, func(v *Volume) error {
		ctx, cancel := soon()
		defer cancel()
		c, err := v.Collect(ctx, false)
		if err == nil && c.Things == 0 {
			return errors.New("nothing was collected")
		}
		if err == nil {
			_, err = v.CollectOrphans(ctx, false)
		}
		return err
	})
}

// A volume whose format died is no volume, or a whole one.
func TestFormat_DiesAtEveryStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for n := 0; ; n++ {
			l := newLab(t, int64(n), 8192)
			l.bucket = mem.NewRecording()
			s := faultstore.New(l.bucket, nil)
			s.SetHook(func(_ faultstore.Op, _ string, i int) faultstore.Fault {
				if i == n {
					s.Kill()
				}
				return faultstore.Fault{}
			})
			_, err := Format(bg, FormatOptions{Store: s, URL: "mem://lab", ObjectSize: 8192, Rand: l})
			died := s.Calls() > n
			if (err == nil) == died && l.bucket.Len() < 4 {
				t.Fatalf("call %d: died %v, error %v", n, died, err)
			}
			v, merr := l.mount(l.bucket, nil)
			switch {
			case merr == nil:
				wantFiles(t, v, files{}, "a new volume")
				f := files{}
				f.put(t, v, "a", []byte("hello"), 0)
				mustClose(t, v)
				if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
					t.Fatalf("call %d: %s", n, d)
				}
			case errors.Is(merr, ErrNoVolume) && died:
				_, err := Format(bg, FormatOptions{Store: l.bucket, URL: "mem://lab", ObjectSize: 8192, Rand: l})
				if l.bucket.Len() > 0 && err != nil {
					wantErr(t, err, ErrExist)
					if !strings.Contains(err.Error(), "did not end") {
						t.Errorf("call %d: the error %q does not say what is there", n, err)
					}
				} else if err != nil {
					t.Errorf("call %d: format anew: %v", n, err)
				}
			default:
				t.Fatalf("call %d: mount: %v", n, merr)
			}
			if !died {
				break
			}
		}
	})
}

// Once a mount is set aside as not one's own, dying on the way must not make
// the next one believe that a journal was lost.
func TestVolume_Open_DiesWhileSettingAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		b := u.fork(t, vfs.KillProcess, 1)
		b.bucket = u.bucket
		b.disk, b.kv = vfs.NewMem(), metadata.NewMemKV()
		v := b.mustMount(func(o *Options) { o.Takeover = true })
		after := files{}
		for name, p := range u.committed {
			after[name] = p
		}
		after.put(t, v, "other", []byte("of the other owner"), 0)
		mustClose(t, v)
		u.walk(t, true, nil, func(l *lab, when string) {
			v, err := l.mount(l.bucket, nil)
			if err != nil {
				t.Fatalf("%s: mount: %v", when, err)
			}
			wantFiles(t, v, after, when)
			mustClose(t, v)
			wantAside(t, l, when)
		})
	})
}

// wantAside finds the journal that was set aside, with records in it.
func wantAside(t *testing.T, l *lab, when string) {
	t.Helper()
	list, err := l.disk.ReadDir(l.dir + "/quarantine")
	if err != nil {
		t.Fatalf("%s: quarantine: %v", when, err)
	}
	for _, d := range list {
		in, err := l.disk.ReadDir(l.dir + "/quarantine/" + d.Name() + "/journal")
		if errors.Is(err, fs.ErrNotExist) {
			continue // the move did not come that far
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range in {
			h, err := l.disk.OpenFile(l.dir+"/quarantine/"+d.Name()+"/journal/"+f.Name(), os.O_RDONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			p := make([]byte, 1<<20)
			n, _ := h.ReadAt(p, 0) // short at the end
			h.Close()
			if strings.Contains(string(p[:n]), "renamed") {
				return
			}
		}
	}
	t.Errorf("%s: the journal that was set aside is not there", when)
}
