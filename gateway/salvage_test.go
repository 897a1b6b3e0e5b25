package gateway

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// shelf is a sink in memory.
type shelf struct {
	files map[string]*bytes.Buffer
	about map[string]*SalvagedFile
}

type shelved struct{ *bytes.Buffer }

func (shelved) Close() error { return nil }

func (s *shelf) File(f *SalvagedFile, _ uint32, _ int64) (io.WriteCloser, error) {
	if _, ok := s.files[f.Path]; ok {
		return nil, fmt.Errorf("%s comes twice", f.Path)
	}
	s.files[f.Path], s.about[f.Path] = &bytes.Buffer{}, f
	return shelved{s.files[f.Path]}, nil
}

// salvaged extracts the only journal of a machine's state directory.
func salvaged(t *testing.T, l *lab, bucket objstore.Store) (*SalvageReport, *shelf) {
	t.Helper()
	all, err := Asides(l.disk, l.dir)
	if err != nil || len(all) != 1 {
		t.Fatalf("asides: %+v, %v", all, err)
	}
	return salvageOf(t, l.disk, all[0], bucket)
}

func salvageOf(t *testing.T, disk vfs.FS, aside Aside, bucket objstore.Store) (*SalvageReport, *shelf) {
	t.Helper()
	s, err := openSalvage(disk, aside, bucket, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return extracted(t, s)
}

func openSalvage(disk vfs.FS, aside Aside, bucket objstore.Store, keys *Keys) (*Salvage, error) {
	o := SalvageOptions{FS: disk, Aside: aside, Keys: keys, KV: metadata.NewMemKV()}
	if bucket != nil {
		o.Open = func(ctx context.Context, url string) (objstore.Store, error) {
			s, _, err := Unlock(ctx, bucket, url, keys)
			return s, err
		}
	}
	return OpenSalvage(bg, o)
}

func extracted(t *testing.T, s *Salvage) (*SalvageReport, *shelf) {
	t.Helper()
	out := &shelf{map[string]*bytes.Buffer{}, map[string]*SalvagedFile{}}
	if err := s.Extract(bg, out); err != nil {
		t.Fatal(err)
	}
	return s.Report(), out
}

// loser is a writer that was fenced with much that it had not committed. want
// are the files that it had touched since, as it saw them.
func loser(t *testing.T, durability Durability) (a *lab, v *Volume, want files) {
	t.Helper()
	return loserAs(t, durability, form{})
}

func loserAs(t *testing.T, durability Durability, as form) (a *lab, v *Volume, want files) {
	t.Helper()
	a = newLabAs(t, 5, 8192, as)
	v = a.mustMount(func(o *Options) { o.Durability = durability })
	before := files{}
	for _, name := range []string{"patched", "cut", "moved", "gone", "replaced", "source", "same"} {
		before.put(t, v, name, a.noise(30000), 0)
	}
	mustCommit(t, v)
	want = files{}
	touch := func(name string, p []byte, off int) {
		if old, ok := before[name]; ok && want[name] == "" {
			want[name] = old
		}
		want.put(t, v, name, p, off)
	}
	touch("patched", []byte("small"), 777)
	touch("patched", a.noise(9000), 12345) // by reference
	touch("patched", []byte("over it"), 13000)
	touch("born", a.noise(20001), 0)
	touch("holes", []byte("end"), 50000)
	h := openPath(t, v, "cut")
	if _, err := v.SetAttr(bg, h.Inode(), SetAttr{Size: ptr(int64(10001))}); err != nil {
		t.Fatal(err)
	}
	if err := h.Fallocate(bg, FallocPunchHole|FallocKeepSize, 100, 5000); err != nil {
		t.Fatal(err)
	}
	h.Close()
	cut := []byte(before["cut"][:10001])
	clear(cut[100:5100])
	want["cut"] = string(cut)
	if err := v.Rename(bg, 1, "moved", 1, "new name", 0); err != nil {
		t.Fatal(err)
	}
	touch("temporary", []byte("x"), 0)
	want.drop(t, v, "temporary")
	if err := v.Unlink(bg, 1, "gone"); err != nil {
		t.Fatal(err)
	}
	touch("fresh", a.noise(5000), 0)
	if err := v.Rename(bg, 1, "fresh", 1, "replaced", 0); err != nil {
		t.Fatal(err)
	}
	want["replaced"] = want["fresh"]
	delete(want, "fresh")
	stageBehind(t, a, v, want)
	n, err := v.Create(bg, 1, "dir", modeDir|0o755, 0, Owner{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	h = mkfile(t, v, n.ID, "deep")
	pwrite(t, h, []byte("down there"), 3)
	want["dir/deep"] = "\x00\x00\x00down there"
	h.Close()
	mustFsync(t, v)
	return a, v, want
}

// stageBehind makes a file of staged bytes, all by reference: some are published,
// and nobody sees the others.
func stageBehind(t *testing.T, a *lab, v *Volume, want files) {
	t.Helper()
	h := mkfile(t, v, 1, "log")
	defer h.Close()
	p := a.noise(30000)
	was := v.Status().ReferenceBytes
	for off := 0; off < len(p); off += 10000 {
		if _, err := h.Stage(bg, p[off:off+10000], int64(off)); err != nil {
			t.Fatal(err)
		}
		if off == 10000 {
			if err := h.Publish(bg, 20000); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := v.Status().ReferenceBytes - was; n != int64(len(p)) {
		t.Fatalf("%d bytes are referenced", n)
	}
	want["log"] = string(p[:20000])
}

func (s *shelf) diff(want files) string {
	got := files{}
	for name, b := range s.files {
		got[name] = b.String()
	}
	return want.diff(got)
}

// tree is a snapshot of a directory.
func tree(t *testing.T, disk vfs.FS, dir string, into files) files {
	t.Helper()
	list, err := disk.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		path := dir + "/" + e.Name()
		if e.IsDir() {
			tree(t, disk, path, into)
			continue
		}
		body, err := readFile(disk, path, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		into[path] = string(body)
	}
	return into
}

// What a fenced writer had acknowledged comes back as it saw it: from its state
// directory before the next mount, after the fenced mount was closed, and after
// the next mount has set it aside; and nothing of it changes.
func TestSalvage_FencedWriter_EveryFileAsItSawIt(t *testing.T) {
	for _, how := range []string{"killed", "closed", "mounted again"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, va, want := loser(t, Durability{})
				b := a.machine(2)
				vb := b.mustMount(func(o *Options) { o.Takeover = true })
				theirs := files{}
				theirs.put(t, vb, "b", b.noise(10000), 0)
				mustClose(t, vb)
				switch how {
				case "closed":
					_, err := va.Commit(bg)
					wantErr(t, err, ErrFenced)
					wantErr(t, va.Close(bg), ErrFenced)
				default:
					a.kill(va)
				}
				if how == "mounted again" {
					v := a.mustMount(nil)
					if _, err := v.Lookup(bg, 1, "born"); !errors.Is(err, ErrNotExist) {
						t.Errorf("what was fenced came back: %v", err)
					}
					mustClose(t, v)
					if err := a.disk.RemoveAll(a.dir + "/journal"); err != nil { // the new one
						t.Fatal(err)
					}
				}
				before := tree(t, a.disk, a.dir, files{})
				r, got := salvaged(t, a, a.bucket)
				if d := got.diff(want); d != "" {
					t.Errorf("extracted: %s", d)
				}
				if !r.BaseRead || len(r.Damage) > 0 || r.Base == nil || r.InPlace != (how == "killed") {
					t.Errorf("report: %+v", r)
				}
				for _, f := range r.Files {
					if f.Whole == f.Gone || len(f.Missing)+len(f.Problem) > 0 {
						t.Errorf("file %+v", f)
					}
				}
				var list []string
				for _, o := range r.Operations {
					list = append(list, strings.TrimSpace(o.Op+" "+o.Path+" "+o.To))
					if o.Skipped != "" {
						t.Errorf("skipped: %+v", o)
					}
				}
				text := strings.Join(list, "\n")
				for _, line := range []string{"rename moved new name", "unlink gone", "unlink temporary", "rename fresh replaced", "mkdir dir", "create dir/deep", "truncate cut", "publish log"} {
					if !strings.Contains(text, line) {
						t.Errorf("the operations lack %q:\n%s", line, text)
					}
				}
				if d := before.diff(tree(t, a.disk, a.dir, files{})); d != "" {
					t.Errorf("the salvage changed the state directory: %s", d)
				}
			})
		})
	}
}

// Without the bucket the bytes that the writer wrote come back where it wrote
// them, and the rest is said to be missing.
func TestSalvage_WithoutTheBucket_RangesOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, va, want := loser(t, Durability{})
		vb := a.machine(2).mustMount(func(o *Options) { o.Takeover = true })
		mustClose(t, vb)
		wantErr(t, func() error { _, err := va.Commit(bg); return err }(), ErrFenced)
		wantErr(t, va.Close(bg), ErrFenced)
		r, got := salvaged(t, a, nil)
		if r.BaseRead || r.BaseWhy == "" || len(r.Damage) > 0 {
			t.Errorf("report: %+v", r)
		}
		for _, name := range []string{"born", "holes", "dir/deep", "replaced", "log"} {
			path := name
			if name == "dir/deep" || got.files[path] == nil {
				path = unknownPath(got, name)
			}
			if b := got.files[path]; b == nil || b.String() != want[name] || !got.about[path].Whole {
				t.Errorf("%s, which was born after the last commit, is not whole", name)
			}
		}
		var patched *SalvagedFile
		for path, f := range got.about {
			if len(f.Ranges) == 2 {
				patched = f
				p := got.files[path].String()
				for _, r := range f.Ranges {
					if p[r.Off:r.Off+r.Len] != want["patched"][r.Off:r.Off+r.Len] {
						t.Errorf("bytes %d to %d of the patched file differ", r.Off, r.Off+r.Len)
					}
				}
			}
		}
		if patched == nil || patched.Whole || patched.Missing == nil || patched.Missing[0] != (Range{0, 777}) {
			t.Errorf("the patched file: %+v", patched)
		}
	})
}

// What the writer of an encrypted volume had acknowledged comes back with the keys.
// Without one nothing is brought back in part unless that was asked for, and the error
// names it; what only the machine's own disk has needs none.
func TestSalvage_Encrypted_WithTheKeyAndWithout(t *testing.T) {
	for name, as := range map[string]form{"documents": {encrypt: true}, "plain names": {encrypt: true, plainNames: true, compress: "lz4"}} {
		for _, next := range [][]int{{1}, {2, 1}} { // the next owner's keys
			t.Run(fmt.Sprint(name, next), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a, va, want := loserAs(t, Durability{}, as)
					b := a.machine(2)
					b.opt.Keys = testKeys(next...)
					vb := b.mustMount(func(o *Options) { o.Takeover = true })
					files{}.put(t, vb, "other", []byte("by the new owner"), 0)
					mustCommit(t, vb)
					mustClose(t, vb)
					wantErr(t, func() error { _, err := va.Commit(bg); return err }(), ErrFenced)
					wantErr(t, va.Close(bg), ErrFenced)
					before := tree(t, a.disk, a.dir, files{})
					salvagesByKey(t, a, want, len(next) == 1)
					if d := before.diff(tree(t, a.disk, a.dir, files{})); d != "" {
						t.Errorf("salvaging changed the state directory: %s", d)
					}
				})
			})
		}
	}
}

// salvagesByKey salvages a's journal with keys right and wrong; one: the volume has
// never had another than the first.
func salvagesByKey(t *testing.T, a *lab, want files, one bool) {
	t.Helper()
	all, err := Asides(a.disk, a.dir)
	if err != nil || len(all) != 1 {
		t.Fatalf("asides: %+v, %v", all, err)
	}
	for what, keys := range map[string]*Keys{"no key": nil, "another": testKeys(3), "the next owner's alone": testKeys(2)} {
		if _, err := openSalvage(a.disk, all[0], a.bucket, keys); !errors.Is(err, ErrKey) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, keys := range map[string]*Keys{"its key": testKeys(1), "all keys": testKeys(2, 1)} {
		s, err := openSalvage(a.disk, all[0], a.bucket, keys)
		if !one && !a.form.plainNames && what == "its key" {
			// The end of the path tells what is kept, and is the next owner's.
			if !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), testKey(2).Name()) {
				t.Errorf("%s, and the next owner has changed it: %v", what, err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		r, got := extracted(t, s)
		if d := got.diff(want); d != "" || !r.BaseRead || len(r.Damage) > 0 {
			t.Errorf("%s: %s, %+v", what, d, r)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	s, err := openSalvage(a.disk, all[0], nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, got := extracted(t, s)
	if b := got.files[unknownPath(got, "born")]; b == nil || b.String() != want["born"] {
		t.Error("without the bucket a file that was born on the machine does not come back")
	}
}

// unknownPath finds a file by the last part of its path.
func unknownPath(s *shelf, name string) string {
	for path := range s.files {
		if strings.HasSuffix(path, name[strings.LastIndexByte(name, '/')+1:]) {
			return path
		}
	}
	return name
}

// A flipped byte anywhere in the journal or the cache: a file comes back as it
// was, or the report says that it may not be.
func TestSalvage_FlippedBytes_AreSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, va, want := loser(t, Durability{})
		vb := a.machine(2).mustMount(func(o *Options) { o.Takeover = true })
		mustClose(t, vb)
		a.kill(va)
		said, whole := 0, 0
		for path, body := range tree(t, a.disk, a.dir, files{}) {
			if !strings.Contains(path, "/journal/") && !strings.Contains(path, "/cache/") {
				continue
			}
			for off := 0; off < min(len(body), 120000); off += 331 {
				if strings.Trim(body[off:min(len(body), off+331)], "\x00") == "" {
					continue // nothing is there
				}
				flip(t, a.disk, path, off)
				all, err := Asides(a.disk, a.dir)
				if err != nil || len(all) != 1 {
					t.Fatalf("asides: %+v, %v", all, err)
				}
				r, got := salvageOf(t, a.disk, all[0], a.bucket)
				told := len(r.Damage) > 0
				for _, f := range r.Files {
					told = told || len(f.Problem) > 0
				}
				if d := got.diff(want); d != "" && !told {
					t.Fatalf("byte %d of %s: %s, and nothing tells", off, path, d)
				}
				for name, f := range got.about {
					if b := got.files[name].String(); want[name] != "" && len(r.Damage) == 0 && f.Whole && b != want[name] {
						t.Fatalf("byte %d of %s: %s is called whole and differs", off, path, name)
					}
				}
				if told {
					said++
				} else {
					whole++
				}
				if told && len(got.files) == 0 && strings.Contains(path, "/cache/") {
					t.Errorf("byte %d of %s: nothing was brought back", off, path)
				}
				flip(t, a.disk, path, off)
			}
		}
		if said < 50 {
			t.Errorf("only %d flips were said, %d did no harm", said, whole)
		}
	})
}

func flip(t *testing.T, disk vfs.FS, path string, off int) {
	t.Helper()
	h, err := disk.OpenFile(path, 2, 0) // O_RDWR
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	var b [1]byte
	if _, err := h.ReadAt(b[:], int64(off)); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0xff
	if _, err := h.WriteAt(b[:], int64(off)); err != nil {
		t.Fatal(err)
	}
}

// A fenced writer that had committed everything leaves nothing to salvage.
func TestSalvage_NothingUncommitted_NothingAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newLab(t, 1, 8192)
		va := a.mustMount(nil)
		files{}.put(t, va, "a", a.noise(20000), 0)
		mustCommit(t, va)
		vb := a.machine(2).mustMount(func(o *Options) { o.Takeover = true })
		wantErr(t, va.RenewLease(bg), ErrFenced)
		wantErr(t, va.Close(bg), ErrFenced)
		mustClose(t, vb)
		if _, err := a.disk.ReadDir(a.dir + "/quarantine"); err == nil {
			t.Error("something was set aside")
		}
		mustClose(t, a.mustMount(nil))
	})
}

// Without a readable owner.json no mount takes the journal: salvage still does.
func TestSalvage_OwnerUnreadable_JournalIsRead(t *testing.T) {
	for name, spoil := range map[string]func(l *lab) error{
		"missing": func(l *lab) error { return l.disk.Remove(l.dir + "/" + ownerFileName) },
		"damaged": func(l *lab) error { flip(l.t, l.disk, l.dir+"/"+ownerFileName, 20); return nil },
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 1, 8192)
			v := l.mustMount(nil)
			want := files{}
			want.put(t, v, "a", l.noise(20000), 0)
			mustFsync(t, v)
			l.kill(v)
			if err := spoil(l); err != nil {
				t.Fatal(err)
			}
			all, err := Asides(l.disk, l.dir)
			if err != nil || len(all) != 1 || !all[0].InPlace || all[0].ID != unknownJournal {
				t.Fatalf("owner.json is %s: asides are %+v, %v", name, all, err)
			}
			_, got := salvageOf(t, l.disk, all[0], nil)
			if d := got.diff(want); d != "" {
				t.Errorf("owner.json is %s: %s", name, d)
			}
		})
	}
}
