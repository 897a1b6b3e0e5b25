package gateway

import (
	"testing"

	"github.com/cisternfs/cistern/metadata"
)

// TestVolume_DropUnknown_OnlyWhatIsGoneAndCommitted looks at cache files beside
// work that is under way: one whose inode was removed stays as long as a commit
// may read it, and nothing at or above the limit is looked at.
func TestVolume_DropUnknown_OnlyWhatIsGoneAndCommitted(t *testing.T) {
	l := newLab(t, 1, 1<<20)
	v := l.mustMount(nil)
	kept, gone := mkfile(t, v, metadata.RootInode, "kept"), mkfile(t, v, metadata.RootInode, "gone")
	pwrite(t, kept, []byte("kept"), 0)
	pwrite(t, gone, []byte("gone"), 0)
	keptIno, goneIno := kept.node.id, gone.node.id
	if _, err := v.Commit(bg); err != nil {
		t.Fatal(err)
	}
	limit := v.nextInode
	// A file that a crash left: its inode is older than the limit and nowhere.
	const never = 1 << 40
	f := v.cache.Get(never)
	if ok, err := f.WriteAbsent([]byte("never"), 0, nil); err != nil {
		t.Fatal(ok, err)
	}
	f.Release()
	files := func() map[InodeID]bool {
		found := map[InodeID]bool{}
		if err := v.cache.Inodes(func(ino uint64) error { found[InodeID(ino)] = true; return nil }); err != nil {
			t.Fatal(err)
		}
		return found
	}
	if !files()[never] {
		t.Fatal("the left file is not there")
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(v.dropUnknown(limit, v.isForgotten))
	if !files()[never] {
		t.Error("a file at or above the limit was looked at")
	}
	gone.Close()
	must(v.Unlink(bg, metadata.RootInode, "gone"))
	if forgotten, err := v.isForgotten(goneIno); forgotten || err != nil {
		t.Errorf("removed, but not committed: %v, %v", forgotten, err)
	}
	must(v.reapAll(bg))
	_, err := v.Commit(bg)
	must(err)
	if forgotten, err := v.isForgotten(goneIno); !forgotten || err != nil {
		t.Errorf("removed and committed: %v, %v", forgotten, err)
	}
	must(v.dropUnknown(never+1, v.isForgotten))
	if found := files(); found[never] || !found[keptIno] {
		t.Errorf("files %v: the left one must go, the living one stay", found)
	}
	if got := pread(t, kept, 4, 0); string(got) != "kept" {
		t.Errorf("read %q", got)
	}
	kept.Close()
	mustClose(t, v)
}
