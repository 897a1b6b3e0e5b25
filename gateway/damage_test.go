package gateway

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

// damages are what can happen to an object in the bucket; nil: it goes.
var damages = map[string]func(p []byte) []byte{
	"missing":   func([]byte) []byte { return nil },
	"truncated": func(p []byte) []byte { return p[:len(p)/2] },
	"flipped": func(p []byte) []byte {
		p = bytes.Clone(p)
		p[len(p)/2] ^= 8
		return p
	},
	"first bit": func(p []byte) []byte {
		p = bytes.Clone(p)
		p[0] ^= 1
		return p
	},
	"empty": func([]byte) []byte { return []byte{} },
}

// harm damages one object.
func harm(t *testing.T, s *mem.Store, key, how string) {
	t.Helper()
	p, _, err := objstore.ReadAll(bg, s, key, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	if p = damages[how](p); p == nil {
		err = s.Delete(bg, key)
	} else {
		_, err = s.Put(bg, key, bytes.NewReader(p), int64(len(p)), objstore.Condition{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// rich is a bucket with everything that there can be: several epochs with
// commits and without, manifests, objects, segments that are mixed of live and dead.
func rich(t *testing.T, as form) (*lab, files) {
	t.Helper()
	u := newUsedAs(t, 8192, as)
	rng := rand.New(rand.NewPCG(6, 6))
	v := u.mustMount(nil)
	mustCommit(t, v)
	if err := v.WriteManifest(bg); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, v)
	mustClose(t, v)
	mustClose(t, u.mustMount(nil)) // an epoch without commits
	v = u.mustMount(nil)
	for i := range 3 {
		u.now.put(t, v, "base", fill(rng, 300), 7000*i)
		u.now.put(t, v, "late", fill(rng, 8192), 8192*i)
		mustCommit(t, v)
	}
	mustClose(t, v)
	return u.lab, u.now
}

func bucketKeys(t *testing.T, s objstore.Store) []string {
	t.Helper()
	var keys []string
	err := objstore.ListAll(bg, s, "", "", func(i objstore.Info) error { keys = append(keys, i.Key); return nil })
	if err != nil {
		t.Fatal(err)
	}
	return keys
}

// damageAnswer says whether an error is what damage of a key may give.
func damageAnswer(t *testing.T, what, key, how string, err error) {
	t.Helper()
	want := []error{ErrDamaged, ErrNewerFormat}
	if key == metadata.VolumeKey && how == "missing" {
		want = []error{ErrNoVolume}
	}
	ok := false
	for _, w := range want {
		ok = ok || errors.Is(err, w)
	}
	if !ok || errors.Is(err, ErrNotExist) {
		t.Errorf("%s, %s %s: got %v", what, key, how, err)
	}
	if !strings.Contains(err.Error(), key) {
		t.Errorf("%s, %s %s: the error names another thing: %v", what, key, how, err)
	}
}

// eachForm runs a test in simulated time for every form of a volume.
func eachForm(t *testing.T, f func(t *testing.T, as form)) {
	for name, as := range forms() {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { f(t, as) }) })
	}
}

// Every object of the bucket in every way: a view and a mount from the bucket
// alone show what was committed or say which object is damaged.
func TestView_Read_EveryObjectDamaged(t *testing.T) {
	eachForm(t, func(t *testing.T, as form) {
		l, want := rich(t, as)
		hurt := map[string]int{}
		for _, key := range bucketKeys(t, l.bucket) {
			for how := range damages {
				s := l.bucket.Snapshot()
				harm(t, s, key, how)
				v, err := bucketView(s, nil)
				var got files
				if err == nil {
					got, err = filesOf(viewTree{v})
					v.Close()
				}
				if err != nil {
					damageAnswer(t, "view", key, how, err)
					kind, _, _ := strings.Cut(key, "/")
					if strings.HasPrefix(key, metadata.PagePrefix) {
						kind = "page"
					}
					hurt[kind]++
				} else if d := want.diff(got); d != "" {
					t.Errorf("view, %s %s: wrong bytes: %s", key, how, d)
				}
			}
		}
		for _, kind := range []string{"volume.json", "lease.json", "commits", "manifests", "page", "objects", "segments"} {
			if hurt[kind] == 0 {
				t.Errorf("no damage of %s was noticed", kind)
			}
		}
	})
}

func TestVolume_Open_EveryObjectDamaged(t *testing.T) {
	eachForm(t, func(t *testing.T, as form) {
		l, want := rich(t, as)
		for i, key := range bucketKeys(t, l.bucket) {
			for how := range damages {
				m := l.fork(t, vfs.KillProcess, int64(i))
				m.disk, m.kv = vfs.NewMem(), metadata.NewMemKV()
				harm(t, m.bucket, key, how)
				v, err := m.mount(m.bucket, nil)
				if err != nil {
					damageAnswer(t, "mount", key, how, err)
					continue
				}
				damagedVolume(t, v, maps.Clone(want), key, how)
			}
		}
	})
}

// damagedVolume reads what can be read and writes elsewhere.
func damagedVolume(t *testing.T, v *Volume, want files, key, how string) {
	t.Helper()
	bad := map[string]bool{}
	for name, p := range want {
		h := openPath(t, v, name)
		buf := make([]byte, len(p)+10)
		n, err := h.Read(bg, buf, 0)
		h.Close()
		if err != nil {
			damageAnswer(t, "read of "+name, key, how, err)
			bad[name] = true
		} else if string(buf[:n]) != p {
			t.Errorf("%s %s: wrong bytes in %s", key, how, name)
		}
	}
	files{}.put(t, v, "elsewhere", bytes.Repeat([]byte("elsewhere"), 3000), 0)
	for name := range want {
		if bad[name] {
			want.put(t, v, name, []byte("over it"), 0) // a write never fetches
			break
		}
	}
	mustCommit(t, v)
	h := openPath(t, v, "elsewhere")
	if got := pread(t, h, 9, 9*2999); string(got) != "elsewhere" {
		t.Errorf("%s %s: a new file reads %q", key, how, got)
	}
	h.Close()
	if len(bad) > 0 {
		if v.Status().Damage == 0 {
			t.Errorf("%s %s: status shows no damage", key, how)
		}
		named := 0 // file, range and object
		_, err := v.Check(bg, CheckOptions{Data: true, Problem: func(p Problem) {
			if p.Key == key && want[p.Path] != "" && p.Len > 0 {
				named++
			}
		}})
		if err != nil || named == 0 {
			t.Errorf("%s %s: check names no file and range, %v", key, how, err)
		}
	}
	if err := v.Close(bg); err != nil {
		t.Errorf("%s %s: close: %v", key, how, err)
	}
}

// Once the object is back, the same handle reads it.
func TestHandle_Read_DamageDoesNotStick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, want := rich(t, form{})
		for _, key := range bucketKeys(t, l.bucket) {
			if !strings.HasPrefix(key, metadata.ObjectPrefix) && !strings.HasPrefix(key, metadata.SegmentPrefix) {
				continue
			}
			m := l.fork(t, vfs.KillProcess, 1)
			m.disk, m.kv = vfs.NewMem(), metadata.NewMemKV()
			p, _, err := objstore.ReadAll(bg, m.bucket, key, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			harm(t, m.bucket, key, "missing")
			v := m.mustMount(nil)
			for name := range want {
				h := openPath(t, v, name)
				defer h.Close()
				buf := make([]byte, len(want[name]))
				if _, err := h.Read(bg, buf, 0); err == nil {
					continue
				}
				if err := objstore.Create(bg, m.bucket, key, p); err != nil {
					t.Fatal(err)
				}
				if _, err := h.Read(bg, buf, 0); err != nil || string(buf) != want[name] {
					t.Errorf("%s is back and %s gives %v", key, name, err)
				}
				harm(t, m.bucket, key, "missing")
			}
			_ = v.Abandon() // nothing is dirty
		}
	})
}

// A copy whose source is damaged fails and leaves the destination as it was.
func TestVolume_CopyRange_SourceObjectMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "src", l.noise(8192), 0)
		f.put(t, v, "dst", l.noise(3000), 0)
		mustCommit(t, v)
		v.cache.Evict(1 << 30)
		for _, key := range bucketKeys(t, l.bucket) {
			if strings.HasPrefix(key, metadata.ObjectPrefix) {
				harm(t, l.bucket, key, "missing")
			}
		}
		src, dst := openPath(t, v, "src"), openPath(t, v, "dst")
		n, err := v.CopyRange(bg, src, 0, dst, 100, 8192)
		if n != 0 || !errors.Is(err, ErrDamaged) {
			t.Errorf("copied %d bytes, %v", n, err)
		}
		if got := pread(t, dst, 5000, 0); string(got) != f["dst"] {
			t.Error("the destination changed")
		}
		src.Close()
		dst.Close()
		_ = v.Abandon() // nothing is dirty
	})
}
