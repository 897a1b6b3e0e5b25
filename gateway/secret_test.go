package gateway

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/internal/blockcodec"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/mem"
	"github.com/cisternfs/cistern/objstore/objstoretest"
)

// telling is text that compresses and that is found again where it is readable.
func telling(n int) []byte {
	return bytes.Repeat([]byte("the customer's secret order, "), n/29+1)[:n]
}

// told is a lab whose volume has objects, segments, a manifest and files of
// telling names and bytes, unmounted.
func told(t *testing.T, as form) (*lab, files) {
	t.Helper()
	l := newLabAs(t, 17, 8192, as)
	v := l.mustMount(nil)
	f := files{}
	f.put(t, v, "payroll.ibd", telling(3*8192+100), 0)
	mustCommit(t, v)
	f.put(t, v, "payroll.ibd", []byte("overwritten"), 9000)
	f.put(t, v, "small.frm", telling(500), 0)
	mustCommit(t, v)
	if err := v.WriteManifest(bg); err != nil {
		t.Fatal(err)
	}
	mustCommit(t, v)
	mustClose(t, v)
	return l, f
}

// What is in the bucket tells what its form says, and nothing more.
func TestFormat_Encrypted_WhatStaysReadable(t *testing.T) {
	eachForm(t, func(t *testing.T, as form) {
		l, want := told(t, as)
		content, names := false, false
		for _, key := range bucketKeys(t, l.bucket) {
			body, _, err := objstore.ReadAll(bg, l.bucket, key, 1<<30)
			if err != nil {
				t.Fatal(err)
			}
			content = content || bytes.Contains(body, []byte("customer")) || bytes.Contains(body, []byte("overwritten"))
			names = names || bytes.Contains(body, []byte("payroll")) || strings.Contains(key, "payroll")
		}
		if content != (!as.encrypt && as.compress == "") && as.compress == "" {
			t.Errorf("file contents are readable: %v", content)
		}
		if as.encrypt && content {
			t.Error("file contents are readable in an encrypted volume")
		}
		if names != (!as.encrypt || as.plainNames) {
			t.Errorf("file names are readable: %v", names)
		}
		if got := bucketFiles(t, l.bucket, 0); want.diff(got) != "" {
			t.Errorf("the bucket shows %s", want.diff(got))
		}
		_, r := problems(t, l.bucket, true)
		if r.Problems > 0 || as.compress != "" && r.StoredBytes > r.PlainBytes/2 || as == (form{}) && r.StoredBytes != r.PlainBytes {
			t.Errorf("a check finds %+v", r)
		}
		if n := r.Keys[testKey(1).Name()]; as.encrypt != (n == r.StoredBytes) {
			t.Errorf("%d of %d bytes need the key", n, r.StoredBytes)
		}
	})
}

// Without the right key nothing opens, nothing is changed, and the error says
// which key is needed and which ones were given.
func TestVolume_Open_WrongKey(t *testing.T) {
	for name, as := range map[string]form{"documents": {encrypt: true}, "plain names": {encrypt: true, plainNames: true, compress: "lz4"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, want := told(t, as)
				before := len(l.bucket.History())
				for what, keys := range map[string]*Keys{"no key": nil, "empty": testKeys(), "another": testKeys(2)} {
					s, _, err := Unlock(bg, l.bucket, "mem://lab", keys)
					if keys.First() == nil {
						refusesKey(t, what, err, keys)
						s = l.bucket
					}
					if keys.First() != nil || as.plainNames {
						_, err = OpenView(bg, ViewOptions{Store: s, URL: "mem://lab", Keys: keys, KV: metadata.NewMemKV()})
						refusesKey(t, "view, "+what, err, keys)
					}
					m := l.fork(t, vfs.KillProcess, 3)
					m.bucket, m.opt.Keys = l.bucket, keys
					_, err = m.mount(l.bucket, nil)
					refusesKey(t, "mount, "+what, err, keys)
					if n := len(l.bucket.History()); n != before {
						t.Fatalf("%s changed the bucket %d times", what, n-before)
					}
				}
				v := l.mustMount(nil)
				wantFiles(t, v, want, "with the key")
				mustClose(t, v)
			})
		})
	}
}

func refusesKey(t *testing.T, what string, err error, keys *Keys) {
	t.Helper()
	if !errors.Is(err, ErrKey) || errors.Is(err, ErrDamaged) {
		t.Errorf("%s: %v", what, err)
		return
	}
	for _, name := range append(keys.Names(), testKey(1).Name()) {
		if !strings.Contains(err.Error(), name) {
			t.Errorf("%s: the error does not name key %s: %v", what, name, err)
		}
	}
}

// A new key is for what is written from then on; the old one is needed to read, and
// refused for writing.
func TestVolume_Keys_Changed(t *testing.T) {
	for name, as := range map[string]form{"documents": {encrypt: true}, "plain names": {encrypt: true, plainNames: true, compress: "zstd"}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, want := told(t, as)
				l.opt.Keys = testKeys(2, 1)
				v := l.mustMount(nil)
				wantFiles(t, v, want, "with both keys")
				want.put(t, v, "new", telling(2*8192), 0)
				want.put(t, v, "small.frm", []byte("changed"), 20)
				mustCommit(t, v)
				if got := v.Status().Keys; !slices.Equal(got, []string{testKey(2).Name(), testKey(1).Name()}) {
					t.Errorf("status names the keys %v", got)
				}
				mustClose(t, v)
				_, r := problems(t, l.bucket, true)
				if a, b := r.Keys[testKey(1).Name()], r.Keys[testKey(2).Name()]; r.Problems > 0 || a == 0 || b == 0 || a+b != r.StoredBytes {
					t.Errorf("a check counts %v of %d", r.Keys, r.StoredBytes)
				}
				for _, only := range []int{1, 2} {
					l.opt.Keys = testKeys(only)
					if _, err := l.mount(l.bucket, nil); !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), testKey(3-only).Name()) {
						t.Errorf("with key %d only: %v", only, err)
					}
				}
				before := len(l.bucket.History())
				l.opt.Keys = testKeys(1, 2)
				_, err := l.mount(l.bucket, nil)
				if wantErr(t, err, ErrKey); err != nil && !strings.Contains(err.Error(), testKey(1).Name()+" was replaced by key "+testKey(2).Name()) {
					t.Errorf("a replaced key to write with: %v", err)
				}
				if n := len(l.bucket.History()); n != before {
					t.Errorf("a replaced key changed the bucket %d times", n-before)
				}
				l.opt.Keys = testKeys(3, 1, 2)
				v = l.mustMount(nil)
				want.put(t, v, "newer", telling(9000), 0)
				mustCommit(t, v)
				wantFiles(t, v, want, "with a third key")
				if got := v.Status().Keys; !slices.Equal(got, []string{testKey(3).Name(), testKey(2).Name(), testKey(1).Name()}) {
					t.Errorf("status names the keys %v", got)
				}
				mustClose(t, v)
				if got := bucketFiles(t, l.bucket, 0); want.diff(got) != "" { // the order is of no matter for reading
					t.Errorf("the bucket shows %s", want.diff(got))
				}
			})
		})
	}
}

// A frame opens as what its body was born as, wherever the body lies.
func TestFetcher_ReadBlocks_BodyThatMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, want := told(t, form{encrypt: true, compress: "lz4"})
		v, err := bucketView(l.bucket, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer v.Close()
		n, err := v.Lookup("payroll.ibd")
		if err != nil {
			t.Fatal(err)
		}
		s, err := v.Index().Slot(n.ID, 0)
		if err != nil || s.Base == nil {
			t.Fatalf("%+v, %v", s, err)
		}
		body, _, err := objstore.ReadAll(bg, l.bucket, s.Base.Key, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		moved := *s.Base
		moved.Key = "objects/elsewhere"
		if err := objstore.Create(bg, l.bucket, moved.Key, body); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, moved.Len)
		read := func() error {
			return v.readBlocks(bg, &moved, 0, got, func(_, _ uint32, err error) error { return err })
		}
		if err := read(); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "objects/elsewhere, block 0") {
			t.Errorf("under another name: %v", err)
		}
		moved.Cipher.Born = metadata.Ref{Volume: v.doc.ID, Key: s.Base.Key}
		if err := read(); err != nil || string(got) != want["payroll.ibd"][:len(got)] {
			t.Errorf("with what it was born as: %v", err)
		}
		moved.Cipher.Born.Volume = "another"
		if err := read(); !errors.Is(err, ErrDamaged) {
			t.Errorf("of another volume: %v", err)
		}
	})
}

// A share of an object with frames survives recovery, and only the blocks that
// are read are fetched.
func TestVolume_CopyRange_FramesAndRanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLabAs(t, 5, 1<<20, form{encrypt: true})
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "a", l.noise(1<<20), 0)
		mustCommit(t, v)
		uploaded := v.Status().Uploaded
		src, dst := openPath(t, v, "a"), mkfile(t, v, metadata.RootInode, "b")
		if n, err := v.CopyRange(bg, src, 0, dst, 0, 1<<20); n != 1<<20 || err != nil {
			t.Fatal(n, err)
		}
		f["b"] = f["a"]
		src.Close()
		dst.Close()
		if err := v.Fsync(bg, 1); err != nil {
			t.Fatal(err)
		}
		l.kill(v)
		v = l.mustMount(nil)
		mustCommit(t, v)
		if n := v.Status().Uploaded; n > uploaded/8 {
			t.Errorf("a copy uploaded %d bytes", n)
		}
		v.cache.Evict(1 << 30)
		before := v.Status().Fetched
		h := openPath(t, v, "b")
		if got := pread(t, h, 4096, 5*metadata.BlockSize+100); string(got) != f["b"][5*metadata.BlockSize+100:][:4096] {
			t.Error("wrong bytes")
		}
		h.Close()
		if n := v.Status().Fetched - before; n != metadata.BlockSize+blockcodec.Overhead {
			t.Errorf("4 KiB of one block cost %d fetched bytes", n)
		}
		wantFiles(t, v, f, "after recovery")
		mustClose(t, v)
	})
}

func TestFormat_Options_Refused(t *testing.T) {
	for _, o := range []FormatOptions{{Compress: "gzip"}, {PlainNames: true}} {
		o.Store, o.URL = mem.New(), "mem://x"
		if _, err := Format(bg, o); !errors.Is(err, ErrInvalid) {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestSecretStore_KeepsTheContract(t *testing.T) {
	doc := &metadata.VolumeDoc{ID: "v", Key: testKey(1).Name()}
	objstoretest.Run(t, func(t *testing.T) objstore.Store {
		return objstore.WithPrefix(unlock(mem.New(), doc, testKeys(1)), metadata.CommitPrefix)
	})
}

// A document that was put twice, or by two writers of the same, is one body.
func TestSecretStore_Put_SameBytes(t *testing.T) {
	doc := &metadata.VolumeDoc{ID: "v", Key: testKey(1).Name()}
	var bodies []string
	for range 2 {
		below := mem.New()
		s := unlock(below, doc, testKeys(1))
		if err := objstore.Create(bg, s, "commits/1", []byte("document")); err != nil {
			t.Fatal(err)
		}
		if err := objstore.Create(bg, s, "commits/1", []byte("document")); err != nil {
			t.Errorf("again: %v", err)
		}
		if err := objstore.Create(bg, s, "commits/1", []byte("another")); !errors.Is(err, objstore.ErrConditionFailed) {
			t.Errorf("another: %v", err)
		}
		b, _, err := objstore.ReadAll(bg, below, "commits/1", 1000)
		if err != nil {
			t.Fatal(err)
		}
		bodies = append(bodies, string(b))
	}
	if bodies[0] != bodies[1] || strings.Contains(bodies[0], "document") {
		t.Errorf("%q", bodies)
	}
}

// Forms that are drawn at random are all drawn.
func TestRandomForm_DrawsAll(t *testing.T) {
	seen := map[form]bool{}
	for seed := range int64(60) {
		seen[randomForm(seed)] = true
	}
	want := slices.Collect(maps.Values(forms()))
	for _, f := range want {
		if f.compress != "lz4" && !seen[f] {
			t.Errorf("%+v is never drawn", f)
		}
	}
}
