package columnstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cisternfs/cistern/columnstore/storagemanager"
	"github.com/cisternfs/cistern/columnstore/storagemanager/smtest"
	"github.com/cisternfs/cistern/gateway"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

const slotSize = 8192

// site is a Storage Manager's world and a volume in memory.
type site struct {
	t      *testing.T
	w      *smtest.World
	bucket *mem.Store // the volume's
	from   objstore.Store
	disk   *vfs.Mem
	found  []Problem
}

func newSite(t *testing.T, adopt bool) *site {
	w := smtest.New(t, t.TempDir(), 1, slotSize)
	d, err := storagemanager.OpenDir(w.Bucket)
	if err != nil {
		t.Fatal(err)
	}
	s := &site{t: t, w: w, bucket: mem.NewRecording(), from: d, disk: vfs.NewMem()}
	o := gateway.FormatOptions{Store: s.bucket, URL: "mem://v", ObjectSize: slotSize}
	if adopt {
		o.Adopted = &metadata.Adopted{URL: "file://" + w.Bucket}
	}
	if _, err := gateway.Format(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) store() objstore.Store {
	return objstore.WithAdopted(s.bucket, metadata.AdoptedPrefix, s.from)
}

func (s *site) open() *gateway.Volume {
	s.t.Helper()
	v, err := gateway.Open(s.t.Context(), gateway.Options{
		Store: s.store(), URL: "mem://v", FS: s.disk, StateDir: "/state", Manual: true, CacheBytes: 16 << 20, JournalBytes: 16 << 20, JournalFileBytes: 2 << 20,
		OpenKV: func(string) (metadata.KV, error) { return metadata.NewMemKV(), nil }, Owner: gateway.HostOwner("/state"),
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return v
}

func (s *site) run(v *gateway.Volume, prefix string, adopt bool) (Result, error) {
	s.found = nil
	im := Import{
		Volume: v, Tree: s.w.Tree, Prefix: prefix, Bucket: s.from, KeyPrefix: s.w.KeyPrefix, Adopt: adopt, Parallel: 3,
		Problem: func(p Problem) { s.found = append(s.found, p) },
	}
	return im.Run(s.t.Context())
}

func (s *site) close(v *gateway.Volume) {
	s.t.Helper()
	if err := v.Close(context.Background()); err != nil {
		s.t.Fatal(err)
	}
}

// read returns a file's bytes, and its inode.
func read(t *testing.T, v *gateway.Volume, name string) ([]byte, *gateway.Inode, error) {
	t.Helper()
	n := &gateway.Inode{ID: metadata.RootInode}
	for part := range strings.SplitSeq(name, "/") {
		next, err := v.Lookup(t.Context(), n.ID, part)
		if err != nil {
			return nil, nil, err
		}
		v.Forget(next.ID, 1)
		n = next
	}
	h, err := v.Open(t.Context(), n.ID)
	if err != nil {
		return nil, nil, err
	}
	defer h.Close()
	buf := make([]byte, n.Size)
	for off := 0; off < len(buf); {
		k, err := h.Read(t.Context(), buf[off:], int64(off))
		if err != nil || k == 0 {
			return nil, n, fmt.Errorf("read at %d: %w", off, errors.Join(err, io.ErrUnexpectedEOF))
		}
		off += k
	}
	return buf, n, nil
}

// want compares every file of a prefix with the volume, but those named.
func (s *site) want(v *gateway.Volume, prefix string, without ...string) {
	s.t.Helper()
	for name, want := range s.w.Want {
		rel, ok := strings.CutPrefix(name, prefix+"/")
		if !ok {
			continue
		}
		got, _, err := read(s.t, v, rel)
		if slices.Contains(without, rel) {
			if !errors.Is(err, gateway.ErrNotExist) {
				s.t.Errorf("%s is in the volume: %v", rel, err)
			}
			continue
		}
		if err != nil || !bytes.Equal(got, want) {
			s.t.Errorf("%s: %d bytes that are not the %d wanted: %v", rel, len(got), len(want), err)
		}
	}
}

func (s *site) wantClean(v *gateway.Volume) {
	s.t.Helper()
	_, err := v.Check(s.t.Context(), gateway.CheckOptions{Data: true, Problem: func(p gateway.Problem) { s.t.Error("check: ", p) }})
	if err != nil {
		s.t.Error(err)
	}
}

// uploaded counts the bytes of objects and segments in the volume's own bucket.
func (s *site) uploaded() int64 {
	var sum int64
	for _, prefix := range []string{metadata.ObjectPrefix, metadata.SegmentPrefix} {
		err := objstore.ListAll(s.t.Context(), s.bucket, prefix, "", func(i objstore.Info) error { sum += i.Size; return nil })
		if err != nil {
			s.t.Fatal(err)
		}
	}
	return sum
}

func TestImport_Run_EveryShape(t *testing.T) {
	for _, adopt := range []bool{true, false} {
		t.Run(fmt.Sprintf("adopt=%v", adopt), func(t *testing.T) {
			s := newSite(t, adopt)
			s.w.Shapes("data1")
			s.w.File("data2/other", s.w.Whole(100)...)
			v := s.open()
			r, err := s.run(v, "data1", adopt)
			if err != nil || len(s.found) > 0 {
				t.Fatalf("%+v, %v, %v", r, s.found, err)
			}
			s.want(v, "data1")
			if _, _, err := read(t, v, "other"); !errors.Is(err, gateway.ErrNotExist) {
				t.Errorf("a file of another prefix: %v", err)
			}
			if r.Files != int64(len(s.w.Want)-1) || r.FromCache != 2 || adopt != (r.Adopted > 20) || r.Copied == 0 {
				t.Errorf("%+v", r)
			}
			s.wantClean(v)
			s.close(v)
			if err := s.disk.RemoveAll("/state"); err != nil {
				t.Fatal(err)
			}
			v = s.open() // from the bucket alone
			s.want(v, "data1")
			again, err := s.run(v, "data1", adopt)
			if err != nil || again.Skipped != r.Files || again.Files != 0 || len(s.found) > 0 {
				t.Errorf("again: %+v, %v, %v", again, s.found, err)
			}
			s.close(v)
		})
	}
}

// By reference no object is copied: what goes up is metadata.
func TestImport_Run_AdoptsWithoutCopying(t *testing.T) {
	s := newSite(t, true)
	for i := range 5 {
		s.w.File(fmt.Sprintf("data1/f%d", i), s.w.Whole(10*slotSize+100)...)
	}
	v := s.open()
	r, err := s.run(v, "data1", true)
	if err != nil || r.Adopted != 55 || r.Copied != 0 || r.CopiedBytes != 0 {
		t.Fatalf("%+v, %v", r, err)
	}
	if n := s.uploaded(); n != 0 {
		t.Errorf("%d bytes were uploaded", n)
	}
	s.close(v)
}

// An adopted object lives as long as something refers to it, and is never deleted
// in Storage Manager's bucket.
func TestVolume_Adopt_LivesAndDies(t *testing.T) {
	s := newSite(t, true)
	s.w.File("data1/a", s.w.Whole(3*slotSize)...)
	s.w.File("data1/b", s.w.Whole(slotSize)...)
	v := s.open()
	if err := v.SetSettings(t.Context(), 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.run(v, "data1", true); err != nil {
		t.Fatal(err)
	}
	_, a, err := read(t, v, "a")
	if err != nil {
		t.Fatal(err)
	}
	h, err := v.Open(t.Context(), a.ID)
	if err != nil {
		t.Fatal(err)
	}
	n, err := v.Create(t.Context(), 1, "copy", 0o100644, 0, gateway.Owner{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	c, err := v.Open(t.Context(), n.ID)
	if err != nil {
		t.Fatal(err)
	}
	if k, err := v.CopyRange(t.Context(), h, 0, c, 0, 3*slotSize); k != 3*slotSize || err != nil {
		t.Fatal(k, err)
	}
	patch := bytes.Repeat([]byte("p"), 100)
	if _, err := h.Write(t.Context(), patch, 50, gateway.WriteFlags{}); err != nil {
		t.Fatal(err)
	}
	copied := slices.Clone(s.w.Want["data1/a"])
	copy(s.w.Want["data1/a"][50:], patch)
	h.Close()
	c.Close()
	v.Forget(n.ID, 1)
	commit := func() {
		t.Helper()
		if _, err := v.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := v.Collect(t.Context(), false); err != nil {
				t.Fatal(err)
			}
		}
		s.wantClean(v)
	}
	objects := func() int {
		list, err := os.ReadDir(s.w.Bucket)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	commit()
	if _, err := v.Fold(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	commit()
	if objects() != 4 {
		t.Errorf("%d objects are left while the copy lives", objects())
	}
	s.want(v, "data1")
	if got, _, err := read(t, v, "copy"); err != nil || !bytes.Equal(got, copied) {
		t.Errorf("the copy differs: %v", err)
	}
	for _, name := range []string{"a", "copy"} {
		if err := v.Unlink(t.Context(), 1, name); err != nil {
			t.Fatal(err)
		}
	}
	commit()
	if got := objects(); got != 4 {
		t.Errorf("%d objects are left of 4", got)
	}
	delete(s.w.Want, "data1/a")
	s.want(v, "data1")
	s.close(v)
}

// A file of which an object is missing is left out after others of its objects were
// adopted. Commits and collection in between leave Storage Manager's objects alone:
// the file is imported when the missing one is there again.
func TestImport_Run_LeftOutAndCollected_ImportedLater(t *testing.T) {
	s := newSite(t, true)
	keys := s.w.File("data1/a", s.w.Whole(3*slotSize)...)
	name := filepath.Join(s.w.Bucket, keys[2])
	last, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	v := s.open()
	if err := v.SetSettings(t.Context(), 0, 0); err != nil {
		t.Fatal(err)
	}
	// What adopted the others is committed before it is dropped.
	s.from = &committing{s.from, t, v}
	r, err := s.run(v, "data1", true)
	if err != nil || r.Left != 1 || r.Missing != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	for range 3 {
		if _, err := v.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Collect(t.Context(), false); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range keys[:2] {
		if _, err := os.Stat(filepath.Join(s.w.Bucket, key)); err != nil {
			t.Errorf("an object of Storage Manager: %v", err)
		}
	}
	if err := os.WriteFile(name, last, 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err = s.run(v, "data1", true); err != nil || r.Files != 1 || r.Adopted != 3 {
		t.Errorf("%+v, %v", r, err)
	}
	s.want(v, "data1")
	s.wantClean(v)
	s.close(v)
}

// committing makes the volume commit before every Get.
type committing struct {
	objstore.Store
	t *testing.T
	v *gateway.Volume
}

func (c *committing) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	if _, err := c.v.Sync(ctx); err != nil {
		c.t.Error(err)
	}
	return c.Store.Get(ctx, key, off, length)
}

func TestImport_Run_NamesWhatIsMissingTornAndOrphaned(t *testing.T) {
	s := newSite(t, true)
	s.w.File("data1/good", s.w.Whole(20000)...)
	lost := s.w.File("data1/lost", s.w.Whole(20000)...)
	s.w.Lose(lost[1])
	torn := s.w.File("data1/torn", smtest.Piece{Length: 100, Stored: s.w.Noise(100), Changes: []storagemanager.Change{s.w.Change(10, 20)}, Tail: s.w.Noise(5)})
	gone := s.w.File("data1/gone", s.w.Whole(10)...)
	delete(s.w.Want, "data1/gone")
	for _, err := range []error{
		os.Remove(filepath.Join(s.w.Tree.Metadata, "data1/gone.meta")),
		os.WriteFile(filepath.Join(s.w.Tree.Metadata, "data1/broken.meta"), []byte(`{"version": "1", "objects": [{"offset": "x"}]}`), 0o600),
		os.WriteFile(filepath.Join(s.w.Tree.Metadata, "data1/OWNED"), nil, 0o600),
		os.WriteFile(filepath.Join(s.w.Tree.Metadata, "data1/stray"), nil, 0o600),
		os.WriteFile(filepath.Join(s.w.Tree.Journal, "data1", gone[0]+".journal"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	v := s.open()
	r, err := s.run(v, "data1", true)
	if err != nil {
		t.Fatal(err)
	}
	var text []string
	for _, p := range s.found {
		text = append(text, p.String())
	}
	all := strings.Join(text, "\n")
	for _, want := range []string{
		"lost: " + lost[1] + ": the object is missing", "torn: " + torn[0] + ": the last 5 bytes of its journal are torn",
		gone[0] + ": orphan: an object of 10 bytes", gone[0] + ": orphan: a journal", "broken: its metadata is damaged", "stray: is no metadata",
	} {
		if !strings.Contains(all, want) {
			t.Errorf("nothing says %q in\n%s", want, all)
		}
	}
	if r.Missing != 1 || r.Torn != 1 || r.Orphans != 2 || r.Left != 2 || r.Files != 2 || r.Problems != int64(len(s.found)) || len(s.found) != 6 {
		t.Errorf("%+v\n%s", r, all)
	}
	s.want(v, "data1", "lost")
	s.wantClean(v)
	// The object is back: a second run brings the file.
	if err := os.WriteFile(filepath.Join(s.w.Bucket, lost[1]), s.w.Want["data1/lost"][slotSize:2*slotSize], 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err = s.run(v, "data1", true); err != nil || r.Files != 1 || r.Skipped != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	s.want(v, "data1")
	s.close(v)
}

// A file that changed since, or was never imported, is not touched.
func TestImport_Run_NeverOverwrites(t *testing.T) {
	s := newSite(t, false)
	s.w.File("data1/a", s.w.Whole(100)...)
	s.w.File("data1/b", s.w.Whole(100)...)
	v := s.open()
	n, err := v.Create(t.Context(), 1, "b", 0o100644, 0, gateway.Owner{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	v.Forget(n.ID, 1)
	if r, err := s.run(v, "data1", false); err != nil || r.Files != 1 || r.Left != 1 || !strings.Contains(s.found[0].String(), "b: the volume has a file of this name") {
		t.Fatalf("%+v, %v, %v", r, s.found, err)
	}
	was := s.w.Want["data1/a"]
	s.w.File("data1/a", s.w.Whole(50)...)
	if r, err := s.run(v, "data1", false); err != nil || r.Left != 2 {
		t.Errorf("%+v, %v", r, err)
	}
	if got, _, err := read(t, v, "a"); err != nil || !bytes.Equal(got, was) {
		t.Errorf("a changed: %v", err)
	}
	s.close(v)
}

// Every request to Storage Manager's bucket fails once: the import ends with an
// error, the files that it made are whole, and the next run goes on.
func TestImport_Run_FailsAtEveryRequest(t *testing.T) {
	s := newSite(t, true)
	for i := range 6 {
		s.w.File(path.Join("data1", fmt.Sprint("dir", i%2), fmt.Sprint("f", i)), append(s.w.Whole(slotSize), smtest.Piece{Offset: slotSize, Length: 90, Stored: s.w.Noise(50), Changes: []storagemanager.Change{s.w.Change(40, 50)}})...)
	}
	plain := s.from
	v := s.open()
	var imported int64
	for n := 0; ; n++ {
		fault := faultstore.New(plain, faultstore.FailNth(n, faultstore.Fault{Kind: faultstore.Before}))
		s.from = fault
		r, err := s.run(v, "data1", true)
		fault.Close()
		s.from = plain
		imported += r.Files
		if err == nil {
			if n == 0 || imported != 6 {
				t.Errorf("%d files were imported, the run without a failure was the %d-th", imported, n)
			}
			break
		}
		if !errors.Is(err, objstore.ErrUnavailable) {
			t.Fatal(err)
		}
		if n%2 == 0 {
			s.close(v)
		} else if err := v.Abandon(); err != nil { // what is in the journal alone is redone
			t.Fatal(err)
		}
		v = s.open()
		s.wantWhole(v)
	}
	s.want(v, "data1")
	s.wantClean(v)
	s.close(v)
}

// wantWhole: what has a name holds all its bytes.
func (s *site) wantWhole(v *gateway.Volume) {
	s.t.Helper()
	for name, want := range s.w.Want {
		got, _, err := read(s.t, v, strings.TrimPrefix(name, "data1/"))
		if errors.Is(err, gateway.ErrNotExist) {
			continue
		}
		if err != nil || !bytes.Equal(got, want) {
			s.t.Errorf("%s is there and differs: %v", name, err)
		}
	}
}

// The top directory gets the prefix's owner once, before there is anything in it.
func TestImport_TopDirectory_HasThePrefixesOwner(t *testing.T) {
	s := newSite(t, false)
	s.w.File("data1/f", s.w.Whole(5)...)
	v := s.open()
	for _, uid := range []int{1234, 4321} {
		if err := os.Chown(filepath.Join(s.w.Tree.Metadata, "data1"), uid, uid+1); err != nil {
			t.Fatal(err)
		}
		if _, err := s.run(v, "data1", false); err != nil {
			t.Fatal(err)
		}
		n, err := v.GetAttr(t.Context(), metadata.RootInode)
		if err != nil || n.UID != 1234 || n.GID != 1235 {
			t.Errorf("after an import of %d's: %d:%d, %v", uid, n.UID, n.GID, err)
		}
	}
	s.close(v)
}
