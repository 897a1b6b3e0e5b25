package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// The cases of Storage Manager that ours must get right, at an object size of
// 8 KiB. Cases 10 and 11 are the walks of crash_test.go and the journal's tests
// of state_test.go; 14 and 15 are outage's in durability_test.go.

// site is a volume at one stage of its data's life.
type site struct {
	*lab
	v     *Volume
	stage string
}

var stages = []string{"before commit", "after commit", "after fold", "after eviction", "after remount", "after a crash", "from the bucket alone"}

// settle brings everything so far to the stage.
func (s *site) settle(t *testing.T) {
	t.Helper()
	switch s.stage {
	case "after commit":
		mustCommit(t, s.v)
	case "after fold":
		mustCommit(t, s.v)
		if _, err := s.v.Fold(bg, true); err != nil {
			t.Fatal(err)
		}
		mustCommit(t, s.v)
		s.v.cache.Evict(1 << 40)
	case "after eviction":
		mustCommit(t, s.v)
		s.v.cache.Evict(1 << 40)
	case "after remount":
		mustClose(t, s.v)
		s.v = s.mustMount(nil)
	case "after a crash":
		s.kill(s.v)
		s.v = s.mustMount(nil)
	case "from the bucket alone":
		mustClose(t, s.v)
		if err := s.disk.RemoveAll(s.dir); err != nil {
			t.Fatal(err)
		}
		s.v = s.mustMount(nil)
	}
}

// eachStage runs a case once for every stage.
func eachStage(t *testing.T, run func(t *testing.T, s *site)) {
	for _, stage := range stages {
		t.Run(stage, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, 8, 8192)
				s := &site{lab: l, v: l.mustMount(nil), stage: stage}
				run(t, s)
				mustCommit(t, s.v)
				wantCheckClean(t, s.v)
				mustClose(t, s.v)
			})
		})
	}
}

func (s *site) want(t *testing.T, f files, when string) {
	t.Helper()
	s.settle(t)
	wantFiles(t, s.v, f, when)
}

func TestStorageManager_Case01_WritesAndAppends(t *testing.T) {
	eachStage(t, func(t *testing.T, s *site) {
		f := files{}
		for i, w := range [][2]int{{10, 0}, {4, 8}, {8, 4}, {16, 7}, {8, 32}, {10, 40}, {8, 24}, {96, 0}, {7, 96}, {7, 103}, {7, 110}} {
			f.put(t, s.v, "file", s.noise(w[0]<<10), w[1]<<10)
			s.want(t, f, fmt.Sprintf("write %d of %d KiB at %d KiB", i, w[0], w[1]))
		}
	})
}

func TestStorageManager_Case02_MissingFileAndMissingObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 8, 8192)
		v := l.mustMount(nil)
		_, err := v.Lookup(bg, 1, "nothing")
		wantErr(t, err, ErrNotExist)
		f := files{}
		f.put(t, v, "a", l.noise(8192), 0)
		mustClose(t, v)
		for _, key := range bucketKeys(t, l.bucket) {
			if strings.HasPrefix(key, metadata.ObjectPrefix) {
				harm(t, l.bucket, key, "missing")
				defer func() {
					h := openPath(t, v, "a")
					defer h.Close()
					p := []byte("untouched")
					_, err := h.Read(bg, p, 0)
					wantErr(t, err, ErrDamaged)
					if errors.Is(err, ErrNotExist) || !strings.Contains(fmt.Sprint(err), key) || string(p) != "untouched" {
						t.Errorf("a missing object gives %v and %q", err, p)
					}
					_ = v.Abandon() // nothing is dirty
				}()
			}
		}
		if err := l.disk.RemoveAll(l.dir); err != nil {
			t.Fatal(err)
		}
		v = l.mustMount(nil)
	})
}

func TestStorageManager_Case03_GapsAndTruncatesReadZeros(t *testing.T) {
	eachStage(t, func(t *testing.T, s *site) {
		f := files{}
		f.put(t, s.v, "gap", []byte("0123456789"), 0)
		f.put(t, s.v, "gap", []byte("9876543210"), 4096)
		f.put(t, s.v, "cut", bytes.Repeat([]byte("A"), 8192), 0)
		f.put(t, s.v, "cut write", bytes.Repeat([]byte("A"), 8192), 0)
		s.want(t, f, "written")
		f.truncate(t, s.v, "cut", 100)
		f.truncate(t, s.v, "cut write", 100)
		s.want(t, f, "cut")
		f.truncate(t, s.v, "cut", 8192)
		f.put(t, s.v, "cut write", []byte("on"), 4000)
		s.want(t, f, "extended")
	})
}

func TestStorageManager_Case04_TruncateDropsObjects(t *testing.T) {
	eachStage(t, func(t *testing.T, s *site) {
		f := files{}
		f.put(t, s.v, "a", s.noise(16<<10), 0)
		s.want(t, f, "written")
		for _, size := range []int{10240, 6000, 0} {
			f.truncate(t, s.v, "a", size)
			s.want(t, f, fmt.Sprint("truncated to ", size))
			n, err := s.v.Lookup(bg, 1, "a")
			if err != nil || n.Size != int64(size) || n.Alloc != int64(size) {
				t.Errorf("size %d: %+v, %v", size, n, err)
			}
			s.v.Forget(n.ID, 1)
		}
		mustCommit(t, s.v) // until then the journal may refer to the cache's bytes
		if n := s.v.cache.Stats().Allocated; n != 0 {
			t.Errorf("%d bytes of an empty file are in the cache", n)
		}
		for range 2 {
			if _, err := s.v.Collect(bg, false); err != nil {
				t.Fatal(err)
			}
		}
		for _, key := range bucketKeys(t, s.bucket) {
			if strings.HasPrefix(key, metadata.ObjectPrefix) || strings.HasPrefix(key, metadata.SegmentPrefix) {
				t.Errorf("%s is still there", key)
			}
		}
	})
}

func TestStorageManager_Case05_OneByteAtTenGiB(t *testing.T) {
	eachStage(t, func(t *testing.T, s *site) {
		const far = 10 << 30
		from := s.bucket.Len()
		h := mkfile(t, s.v, 1, "far")
		pwrite(t, h, []byte("x"), far)
		h.Close()
		s.settle(t)
		if n, puts := uploaded(s.bucket, from, metadata.ObjectPrefix, metadata.SegmentPrefix); n > 8192 || puts > 1 && s.stage != "after fold" {
			t.Errorf("%d bytes in %d PUTs", n, puts)
		}
		h = openPath(t, s.v, "far")
		defer h.Close()
		n, err := s.v.GetAttr(bg, h.Inode())
		if err != nil || n.Size != far+1 || n.Alloc > 4096 {
			t.Errorf("%+v, %v", n, err)
		}
		for _, off := range []int64{0, 4096, 1 << 30, far - 9000} {
			if p := pread(t, h, 4000, off); !bytes.Equal(p, make([]byte, 4000)) {
				t.Errorf("the gap at %d is not zeros", off)
			}
		}
		if p := pread(t, h, 10, far); string(p) != "x" {
			t.Errorf("the byte reads %q", p)
		}
		if off, err := h.Seek(bg, 0, SeekData); err != nil || off != far {
			t.Errorf("data begins at %d, %v", off, err)
		}
	})
}

func TestStorageManager_Case06_Names(t *testing.T) {
	names := []string{"a~b", "x~", "~", "a_b__c", "f.meta", "OWNED", "with space", " ", `"quoted"`, "'", `back\slash`, "new\nline", "tab\t", "bad\xffutf", "\x01", "ünï", "a", "a.meta", ".hidden", "...", strings.Repeat("n", 255), strings.Repeat("ü", 127), "lease.json", "volume.json", "commits"}
	eachStage(t, func(t *testing.T, s *site) {
		f := files{}
		for i, name := range names {
			f.put(t, s.v, name, s.noise(10+i*400), 0)
		}
		s.want(t, f, "all names")
		for _, name := range []string{strings.Repeat("n", 256), strings.Repeat("n", 4000)} {
			_, err := s.v.Create(bg, 1, name, modeRegular|0o644, 0, Owner{}, nil)
			wantErr(t, err, ErrNameTooLong)
			wantErr(t, s.v.Rename(bg, 1, "a", 1, name, 0), ErrNameTooLong)
			_, err = s.v.Lookup(bg, 1, name)
			wantErr(t, err, ErrNameTooLong)
		}
		f.drop(t, s.v, "a")
		s.want(t, f, "a is gone, a.meta is not")
		f.put(t, s.v, "a", []byte("again"), 0)
		f.drop(t, s.v, "a.meta")
		s.want(t, f, "a.meta is gone, a is not")
		deepPath(t, s)
	})
}

// deepPath makes and finds a path of 4,000 bytes.
func deepPath(t *testing.T, s *site) {
	t.Helper()
	dir := InodeID(1)
	part := strings.Repeat("d", 199)
	for range 20 {
		n, err := s.v.Create(bg, dir, part, modeDir|0o755, 0, Owner{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		dir = n.ID
	}
	h := mkfile(t, s.v, dir, "file")
	pwrite(t, h, bytes.Repeat([]byte("deep"), 2048), 0)
	h.Close()
	s.settle(t)
	at := InodeID(1)
	for range 20 {
		n, err := s.v.Lookup(bg, at, part)
		if err != nil {
			t.Fatal(err)
		}
		at = n.ID
	}
	n, err := s.v.Lookup(bg, at, "file")
	if err != nil || n.Size != 8192 {
		t.Errorf("at the end of a long path: %+v, %v", n, err)
	}
}

func TestStorageManager_Case07_DirectoriesAndAttributes(t *testing.T) {
	eachStage(t, func(t *testing.T, s *site) {
		mode, uid, mtime := uint32(0o4751), uint32(1234), int64(1234567890123456789)
		empty, err := s.v.Create(bg, 1, "empty", modeDir|0o711, 0, Owner{7, 8}, nil)
		if err != nil {
			t.Fatal(err)
		}
		full, err := s.v.Create(bg, 1, "full", modeDir|0o755, 0, Owner{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		h := mkfile(t, s.v, full.ID, "f")
		for i := range 5 {
			pwrite(t, h, s.noise(3000), int64(2000*i))
			mustCommit(t, s.v)
		}
		if _, err := s.v.SetAttr(bg, h.Inode(), SetAttr{Mode: &mode, UID: &uid, Mtime: &mtime}); err != nil {
			t.Fatal(err)
		}
		file := h.Inode()
		h.Close()
		s.settle(t)
		if _, err := s.v.Fold(bg, true); err != nil {
			t.Fatal(err)
		}
		mustCommit(t, s.v)
		n, err := s.v.GetAttr(bg, file)
		if err != nil || n.Mode != modeRegular|mode || n.UID != uid || n.Mtime != mtime {
			t.Errorf("attributes: %+v, %v", n, err)
		}
		n, err = s.v.GetAttr(bg, empty.ID)
		if err != nil || n.Mode != modeDir|0o711 || n.UID != 7 || n.GID != 8 || n.Nlink != 2 {
			t.Errorf("empty directory: %+v, %v", n, err)
		}
		wantErr(t, s.v.Unlink(bg, 1, "empty"), ErrIsDir)
		wantErr(t, s.v.Rmdir(bg, 1, "full"), ErrNotEmpty)
		_, err = s.v.Create(bg, full.ID, "f", modeRegular|0o644, 0, Owner{}, nil)
		wantErr(t, err, ErrExist)
		wantErr(t, s.v.Rmdir(bg, full.ID, "f"), ErrNotDir)
		if err := s.v.Rmdir(bg, 1, "empty"); err != nil {
			t.Error(err)
		}
	})
}

func TestStorageManager_Case08_Rename(t *testing.T) {
	eachStage(t, func(t *testing.T, s *site) {
		f := files{}
		f.put(t, s.v, "old", s.noise(20000), 0)
		f.put(t, s.v, "new", s.noise(30000), 0)
		s.settle(t)
		h := openPath(t, s.v, "old")
		was := f["old"]
		mustCommit(t, s.v)
		from := s.bucket.Len()
		if err := s.v.Rename(bg, 1, "new", 1, "old", 0); err != nil {
			t.Fatal(err)
		}
		f["old"] = f["new"]
		delete(f, "new")
		if p := pread(t, h, 40000, 0); string(p) != was {
			t.Error("the replaced file's handle reads something else")
		}
		wantFiles(t, s.v, f, "renamed over")
		if err := s.v.Rename(bg, 1, "old", 1, "old", 0); err != nil {
			t.Errorf("rename onto itself: %v", err)
		}
		mustCommit(t, s.v)
		s.v.cache.Evict(1 << 40)
		if p := pread(t, h, 40000, 0); string(p) != was {
			t.Error("after a commit the replaced file's handle reads something else")
		}
		h.Close()
		s.want(t, f, "at the end")
		if n, _ := uploaded(s.bucket, from, metadata.ObjectPrefix, metadata.SegmentPrefix); n != 0 && s.stage != "after fold" {
			t.Errorf("renames uploaded %d bytes of data", n)
		}
	})
}

func TestStorageManager_Case08_RenameLargeDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 8, 8192)
		v := l.mustMount(nil)
		d, err := v.Create(bg, 1, "dir", modeDir|0o755, 0, Owner{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := range 10000 {
			n, err := v.Create(bg, d.ID, fmt.Sprint("file", i), modeRegular|0o644, 0, Owner{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			v.Forget(n.ID, 1)
			if i%3000 == 0 {
				mustCommit(t, v)
			}
		}
		mustCommit(t, v)
		from, lsn := l.bucket.Len(), v.journal.End()
		if err := v.Rename(bg, 1, "dir", 1, "moved", 0); err != nil {
			t.Fatal(err)
		}
		if n := v.journal.End() - lsn; n != 1 {
			t.Errorf("a rename took %d records", n)
		}
		mustCommit(t, v)
		if n, puts := uploaded(l.bucket, from); n > 4096 || puts != 1 {
			t.Errorf("a rename uploaded %d bytes in %d PUTs", n, puts)
		}
		mustClose(t, v)
	})
}

// A kill at any point of a rename-over leaves one of the two states.
func TestStorageManager_Case08_RenameKilled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 8, 8192)
		v := l.mustMount(nil)
		before := files{}
		before.put(t, v, "a", l.noise(9000), 0)
		mustCommit(t, v)
		before.put(t, v, "a.tmp", l.noise(9500), 0)
		mustFsync(t, v)
		l.kill(v)
		after := files{"a": before["a.tmp"]}
		l.walk(t, false, func(v *Volume) error {
			if err := v.Rename(bg, 1, "a.tmp", 1, "a", 0); err != nil {
				return err
			}
			if err := v.Fsync(bg, 1); err != nil {
				return err
			}
			ctx, cancel := soon()
			defer cancel()
			_, err := v.Commit(ctx)
			return err
		}, func(l *lab, when string) {
			v := l.mustMount(nil)
			got, err := filesOf(volumeTree{v})
			if err != nil {
				t.Fatalf("%s: %v", when, err)
			}
			if d1, d2 := before.diff(got), after.diff(got); d1 != "" && d2 != "" {
				t.Fatalf("%s: neither before (%s) nor after (%s)", when, d1, d2)
			}
			mustClose(t, v)
		})
	})
}

func TestStorageManager_Case09_CopyOfAMissingObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 8, 8192)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "src", l.noise(16384), 0)
		f.put(t, v, "dst", l.noise(5000), 0)
		mustCommit(t, v)
		v.cache.Evict(1 << 40)
		kept := map[string][]byte{}
		for _, key := range bucketKeys(t, l.bucket) {
			if strings.HasPrefix(key, metadata.ObjectPrefix) {
				p, _, err := objstore.ReadAll(bg, l.bucket, key, 1<<20)
				if err != nil {
					t.Fatal(err)
				}
				kept[key] = p
				harm(t, l.bucket, key, "missing")
			}
		}
		src, dst := openPath(t, v, "src"), openPath(t, v, "dst")
		n, err := v.CopyRange(bg, src, 5, dst, 0, 9000)
		if n != 0 || !errors.Is(err, ErrDamaged) {
			t.Errorf("copied %d, %v", n, err)
		}
		if p := pread(t, dst, 9000, 0); string(p) != f["dst"] {
			t.Error("the destination changed")
		}
		for key, p := range kept {
			if err := objstore.Create(bg, l.bucket, key, p); err != nil {
				t.Fatal(err)
			}
		}
		if n, err := v.CopyRange(bg, src, 5, dst, 0, 9000); n != 9000 || err != nil {
			t.Errorf("with the object back: %d, %v", n, err)
		}
		src.Close()
		dst.Close()
		f["dst"] = f["src"][5:9005]
		wantFiles(t, v, f, "at the end")
		mustClose(t, v)
	})
}

func TestStorageManager_Case19_SyncUnderConstantWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 8, 8192)
		v := l.mustMount(live)
		h := mkfile(t, v, 1, "busy")
		stop, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			for i := int64(0); ; i++ {
				select {
				case <-stop:
					return
				case <-time.After(time.Millisecond):
				}
				if _, err := h.Write(bg, []byte("constantly"), i%5000, WriteFlags{}); err != nil {
					t.Error(err)
					return
				}
			}
		}()
		f := files{}
		for i := range 10 {
			name := fmt.Sprint("mark", i)
			f.put(t, v, name, l.noise(100), 0)
			id, err := v.Sync(bg)
			if err != nil {
				t.Fatal(err)
			}
			if got := bucketFiles(t, l.bucket, id.N); got[name] != f[name] {
				t.Errorf("commit %s, which sync named, has not what was dirty at the call", id)
			}
		}
		close(stop)
		<-done
		h.Close()
		mustClose(t, v)
	})
}
