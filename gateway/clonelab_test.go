package gateway

import (
	"context"
	"errors"
	"fmt"
	oldrand "math/rand"
	"math/rand/v2"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

// buckets are the volumes of a test, by URL.
type buckets map[string]objstore.Store

func (b buckets) open(_ context.Context, url string) (objstore.Store, error) {
	s, ok := b[url]
	if !ok {
		return nil, fmt.Errorf("%w: %s", objstore.ErrNoBucket, url)
	}
	return s, nil
}

// store opens a volume as a command does.
func (b buckets) store(t *testing.T, url string, keys *Keys) objstore.Store {
	t.Helper()
	s, _, err := OpenStore(bg, b[url], url, keys, b.open)
	if err != nil {
		t.Fatalf("open %s: %v", url, err)
	}
	return s
}

// family is a set of volumes of which some are clones of others. All have the
// form and the keys of the first.
type family struct {
	t    *testing.T
	b    buckets
	labs map[string]*lab
}

const parentURL = "mem://lab"

func newFamily(t *testing.T, l *lab) *family {
	return &family{t: t, b: buckets{parentURL: l.bucket}, labs: map[string]*lab{parentURL: l}}
}

// member makes a machine of its own for a volume that is to be at a URL.
func (f *family) member(url string) *lab {
	first := f.labs[parentURL]
	seed := int64(1000 + len(f.labs))
	l := &lab{
		form: first.form, t: f.t, alive: first.alive, bucket: mem.NewRecording(), disk: vfs.NewMem(), kv: metadata.NewMemKV(),
		rng: rand.New(rand.NewPCG(uint64(seed), 7)), diskRng: oldrand.New(oldrand.NewSource(seed)), dir: "/state", opt: first.opt,
	}
	l.opt.URL, l.opt.Rand = url, l
	f.labs[url], f.b[url] = l, l.bucket
	return l
}

// mount mounts a volume over its bucket, or over a store that stands before it.
func (f *family) mount(url string) *Volume {
	f.t.Helper()
	v, err := f.tryMount(url, f.b[url])
	if err != nil {
		f.t.Fatalf("mount %s: %v", url, err)
	}
	return v
}

func (f *family) tryMount(url string, s objstore.Store) (*Volume, error) {
	l := f.labs[url]
	opened, _, err := OpenStore(bg, s, url, l.opt.Keys, f.b.open)
	if err != nil {
		return nil, err
	}
	return l.mount(f.b[url], func(o *Options) { o.Store = opened })
}

func (f *family) options(from, to string, n uint64) CloneOptions {
	l := f.labs[parentURL]
	return CloneOptions{
		Source: f.b.store(f.t, from, testKeys(1, 2, 3)), SourceURL: from, Commit: n, Target: f.b[to], TargetURL: to,
		Keys: testKeys(1, 2, 3), Open: f.b.open, Rand: l,
	}
}

// clone makes a clone at a URL that has nothing yet.
func (f *family) clone(from, to string, n uint64, copied bool) *CloneInfo {
	f.t.Helper()
	f.member(to)
	o := f.options(from, to, n)
	if copied {
		o.Copy = &CopyOptions{}
	}
	info, err := Clone(bg, o)
	if err != nil {
		f.t.Fatalf("clone %s to %s: %v", from, to, err)
	}
	return info
}

func (f *family) detach(url string) (CopyProgress, error) {
	return Detach(bg, DetachOptions{Store: f.b[url], URL: url, Keys: testKeys(1, 2, 3), Open: f.b.open, Rand: f.labs[url]})
}

// files reads the files as a commit has them; 0: the last.
func (f *family) files(url string, n uint64) files {
	f.t.Helper()
	v, err := f.view(url, n)
	if err != nil {
		f.t.Fatalf("view of %s@%d: %v", url, n, err)
	}
	defer v.Close()
	got, err := filesOf(viewTree{v})
	if err != nil {
		f.t.Fatalf("view of %s@%d: %v", url, n, err)
	}
	return got
}

func (f *family) view(url string, n uint64) (*View, error) {
	s, _, err := OpenStore(bg, f.b[url], url, testKeys(1, 2, 3), f.b.open)
	if err != nil {
		return nil, err
	}
	return OpenView(bg, ViewOptions{Store: s, Keys: testKeys(1, 2, 3), URL: url, KV: metadata.NewMemKV(), Commit: n})
}

func (f *family) wantFiles(url string, n uint64, want files, when string) {
	f.t.Helper()
	if d := want.diff(f.files(url, n)); d != "" {
		f.t.Fatalf("%s: %s@%d: %s", when, url, n, d)
	}
}

// wantClean verifies every byte of a volume as its bucket has it.
func (f *family) wantClean(url string) {
	f.t.Helper()
	v, err := f.view(url, 0)
	if err != nil {
		f.t.Fatalf("view of %s: %v", url, err)
	}
	defer v.Close()
	r, err := v.Check(bg, CheckOptions{Data: true, Problem: func(p Problem) { f.t.Errorf("check %s: %s", url, p) }})
	if err != nil {
		f.t.Errorf("check %s: %v", url, err)
	}
	if r.Bytes == 0 {
		f.t.Errorf("check %s read nothing", url)
	}
}

// destroy deletes a volume as the command does.
func (f *family) destroy(url string, force bool) error {
	err := Destroy(bg, f.b[url], url, metadata.Owner{Host: "test"}, true, force, func(int) {})
	if err != nil {
		return err
	}
	return ForgetClone(bg, f.b[url], url, f.b.open)
}

// mustDestroy destroys volumes, none of which is a parent by then.
func (f *family) mustDestroy(urls ...string) {
	f.t.Helper()
	for _, url := range urls {
		if err := f.destroy(url, false); err != nil {
			f.t.Fatalf("destroy %s: %v", url, err)
		}
	}
}

func (f *family) wantEmpty(url string) {
	f.t.Helper()
	if list, err := f.b[url].List(bg, "", "", 0); err != nil || len(list) > 0 {
		f.t.Fatalf("%s holds %v, %v", url, list, err)
	}
}

// purge makes a volume without retention drop all that only the past needs.
func purge(t *testing.T, v *Volume) {
	t.Helper()
	if err := v.WriteManifest(bg); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, v)
	for range 3 {
		mustCollect(t, v)
	}
	if _, err := v.CollectOrphans(bg, false); err != nil && !errors.Is(err, ErrInterrupted) {
		t.Fatal(err)
	}
}
