package gateway

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// restorePath brings a path back to what it was, as a command does.
func (l *lab) restorePath(v *Volume, n uint64, name string) (r RestoredPath, err error) {
	ctx, cancel := soon()
	defer cancel()
	s := v.store
	p, err := PinCommit(ctx, l.mountPin(s, n))
	if err != nil {
		return r, err
	}
	view, err := OpenView(ctx, ViewOptions{Store: s, Keys: v.opt.Keys, URL: "mem://lab", KV: metadata.NewMemKV(), Commit: n})
	if err != nil {
		return r, err
	}
	defer view.Close()
	if r, err = v.RestorePath(ctx, RestorePathOptions{View: view, Path: name}); err != nil {
		return r, err
	}
	if _, err := v.Commit(ctx); err != nil {
		return r, err
	}
	return r, p.Release(ctx)
}

// hiddenNames are those that a restore left in the top directory.
func hiddenNames(t *testing.T, v *Volume) (list []string) {
	t.Helper()
	err := v.ReadDir(bg, metadata.RootInode, 0, func(d metadata.Dentry) bool {
		if strings.HasPrefix(d.Name, restorePrefix) {
			list = append(list, d.Name)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestVolume_RestorePath_FilesShareObjects(t *testing.T) {
	eachForm(t, func(t *testing.T, as form) {
		l := newLabAs(t, 7, 8192, as)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "big", l.noise(5*8192), 0)
		f.put(t, v, "patched", l.noise(3*8192), 0)
		f.put(t, v, "small", l.noise(200), 0)
		mustCommit(t, v)
		f.put(t, v, "patched", l.noise(50), 9000)
		old := mustCommit(t, v)
		if _, err := CreateSnapshot(bg, l.snapshot(v.store, "old", old.N)); err != nil {
			t.Fatal(err)
		}
		want := files{}
		for name, p := range f {
			want[name] = p
		}
		f.drop(t, v, "big")
		f.put(t, v, "patched", l.noise(3*8192), 0)
		f.put(t, v, "small", l.noise(90), 0)
		mustCommit(t, v)
		time.Sleep(48 * time.Hour)
		mustCollect(t, v)
		held := openPath(t, v, "patched")
		shared := int64(0)
		for _, name := range []string{"big", "patched", "small"} {
			r, err := l.restorePath(v, old.N, name)
			if err != nil || r.Files != 1 || r.Shared+r.Copied != int64(len(want[name])) || r.Replaced != (name != "big") {
				t.Fatalf("%s: %+v, %v", name, r, err)
			}
			shared += r.Shared
		}
		if shared < 5*8192 {
			t.Errorf("%d bytes are shared", shared)
		}
		if got := string(pread(t, held, 3*8192, 0)); got != f["patched"] {
			t.Error("who had the file open lost it")
		}
		held.Close()
		wantFiles(t, v, want, "restored")
		mustCommit(t, v)
		if _, err := DeleteSnapshot(bg, l.bucket, "mem://lab", "old"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			time.Sleep(48 * time.Hour)
			mustCollect(t, v)
		}
		wantCheckClean(t, v)
		mustClose(t, v)
		if d := want.diff(bucketFiles(t, l.bucket, 0)); d != "" {
			t.Error(d)
		}
	})
}

func TestVolume_RestorePath_ADirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 8, 8192)
		v := l.mustMount(nil)
		dir, err := v.Create(bg, 1, "db", modeDir|0o750, 0, Owner{UID: 3, GID: 4}, nil)
		if err != nil {
			t.Fatal(err)
		}
		h := mkfile(t, v, dir.ID, "t.ibd")
		body := l.noise(20000)
		pwrite(t, h, body, 30000) // after a hole
		if err := v.SetXattr(bg, h.Inode(), "user.a", []byte("b"), 0); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"again", "third"} {
			if _, err := v.Link(bg, h.Inode(), dir.ID, name); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := v.Create(bg, dir.ID, "link", modeLink|0o777, 0, Owner{}, []byte("../x")); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Create(bg, dir.ID, "sub", modeDir|0o700, 0, Owner{}, nil); err != nil {
			t.Fatal(err)
		}
		old := mustCommit(t, v)
		then, err := v.GetAttr(bg, h.Inode())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		pwrite(t, h, l.noise(9000), 0)
		if err := v.Unlink(bg, dir.ID, "again"); err != nil {
			t.Fatal(err)
		}
		extra := mkfile(t, v, dir.ID, "later")
		pwrite(t, extra, l.noise(10), 0)
		mustCommit(t, v)
		r, err := l.restorePath(v, old.N, "db")
		if err != nil || r.Files != 1 || r.Others != 3 || !r.Replaced || r.Shared+r.Copied != 20000 {
			t.Fatalf("%+v, %v", r, err)
		}
		now := mustLookup(t, v, 1, "db")
		if now.ID == dir.ID || now.Mode != dir.Mode || now.UID != 3 || now.GID != 4 {
			t.Errorf("%+v", now)
		}
		n := mustLookup(t, v, now.ID, "t.ibd")
		if n.ID != mustLookup(t, v, now.ID, "again").ID || n.Nlink != 3 || n.Size != 50000 || n.Mtime != then.Mtime || n.Alloc != then.Alloc || len(n.Xattrs) != 1 {
			t.Errorf("%+v", n)
		}
		if l := mustLookup(t, v, now.ID, "link"); string(l.Target) != "../x" {
			t.Errorf("%+v", l)
		}
		if _, err := v.Lookup(bg, now.ID, "later"); err == nil {
			t.Error("what came later is still there")
		}
		if got := (volumeTree{v}); n != nil {
			p, err := got.bytesOf(n)
			if err != nil || string(p[30000:]) != string(body) || strings.Trim(string(p[:30000]), "\x00") != "" {
				t.Errorf("content: %d bytes, %v", len(p), err)
			}
		}
		if list := hiddenNames(t, v); len(list) != 0 {
			t.Errorf("left: %v", list)
		}
		for _, bad := range []string{"", "none", "db/none", "db/t.ibd/x", "gone/t.ibd"} {
			if _, err := l.restorePath(v, old.N, bad); err == nil {
				t.Errorf("%q was restored", bad)
			}
		}
		h.Close()
		extra.Close()
		mustCommit(t, v)
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}

// However it dies, the path has what it had or what it is to have.
func TestVolume_RestorePath_DiesAtEveryStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 9, 8192)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "a", l.noise(2*8192+100), 0)
		old := mustCommit(t, v)
		then := f["a"]
		f.put(t, v, "a", l.noise(2*8192+100), 0)
		mustCommit(t, v)
		mustClose(t, v)
		restored := 0
		step := func(v *Volume) error {
			_, err := l.restorePath(v, old.N, "a")
			return err
		}
		l.walk(t, false, step, func(m *lab, when string) {
			v, err := m.mount(m.bucket, nil)
			if err != nil {
				t.Fatalf("%s: mount: %v", when, err)
			}
			got, err := volumeTree{v}.bytesOf(mustLookup(t, v, 1, "a"))
			switch {
			case err != nil:
				t.Fatalf("%s: %v", when, err)
			case string(got) == then:
				restored++
			case string(got) != f["a"]:
				t.Fatalf("%s: neither the present nor the past: %d bytes", when, len(got))
			}
			if _, err := m.restorePath(v, old.N, "a"); err != nil {
				t.Fatalf("%s: once more: %v", when, err)
			}
			if list := hiddenNames(t, v); len(list) != 0 {
				t.Fatalf("%s: left: %v", when, list)
			}
			wantFiles(t, v, files{"a": then}, when)
			mustCommit(t, v)
			wantCheckClean(t, v)
			mustClose(t, v)
		})
		if restored < 4 {
			t.Errorf("%d deaths left a restored file", restored)
		}
	})
}

// A collection that had chosen an earlier state's objects, while nothing kept
// them, leaves those alone that a restore has brought back since.
func TestVolume_RestorePath_CollectionBegunBefore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 10, 8192)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		f := files{}
		f.put(t, v, "a", l.noise(3*8192), 0)
		old, then := mustCommit(t, v), f["a"]
		f.put(t, v, "a", l.noise(3*8192), 0)
		mustCommit(t, v)
		<-v.commit.run
		done := make(chan error, 2)
		go func() {
			_, err := v.Collect(bg, false)
			done <- err
		}()
		synctest.Wait() // it has chosen, and waits to commit the choice
		go func() {
			_, err := l.restorePath(v, old.N, "a")
			done <- err
		}()
		synctest.Wait() // pinned, written, and waits to commit
		s.SetHook(func(op faultstore.Op, key string, _ int) faultstore.Fault {
			if op == faultstore.List && strings.HasPrefix(key, metadata.PinPrefix) {
				return faultstore.Fault{Delay: time.Second} // until the restore's pin is gone
			}
			return faultstore.Fault{}
		})
		v.commit.run <- struct{}{}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		s.SetHook(nil)
		v.cache.Evict(1 << 30)
		wantFiles(t, v, files{"a": then}, "restored")
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}

// The object of an earlier state that a restore refers to is not collected while
// the restore is not committed.
func TestVolume_RestorePath_CollectionAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 10, 8192)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "a", l.noise(3*8192), 0)
		old, then := mustCommit(t, v), f["a"]
		l.mustSnapshot(t, "old", old.N)
		f.put(t, v, "a", l.noise(3*8192), 0)
		mustCommit(t, v)
		time.Sleep(48 * time.Hour)
		view, err := OpenView(bg, ViewOptions{Store: l.bucket, URL: "mem://lab", KV: metadata.NewMemKV(), Commit: old.N})
		if err != nil {
			t.Fatal(err)
		}
		r, err := v.RestorePath(bg, RestorePathOptions{View: view, Path: "a"})
		if err != nil || r.Shared != 3*8192 {
			t.Fatalf("%+v, %v", r, err)
		}
		// Not committed: only the journal refers to the objects.
		if _, err := DeleteSnapshot(bg, l.bucket, "mem://lab", "old"); err != nil {
			t.Fatal(err)
		}
		mustCollect(t, v)
		mustCommit(t, v)
		time.Sleep(48 * time.Hour)
		mustCollect(t, v)
		wantFiles(t, v, files{"a": then}, "restored")
		wantCheckClean(t, v)
		view.Close()
		mustClose(t, v)
		err = objstore.ListAll(bg, l.bucket, metadata.PinPrefix, "", func(i objstore.Info) error { t.Errorf("left: %s", i.Key); return nil })
		if err != nil {
			t.Fatal(err)
		}
	})
}

func mustLookup(t *testing.T, v *Volume, parent InodeID, name string) *Inode {
	t.Helper()
	n, err := v.Lookup(bg, parent, name)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	v.Forget(n.ID, 1)
	return n
}
