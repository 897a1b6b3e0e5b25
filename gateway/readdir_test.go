package gateway

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/metadata"
)

func listNames(t *testing.T, v *Volume) []string {
	t.Helper()
	var names []string
	last := uint64(0)
	err := v.ReadDir(bg, metadata.RootInode, 0, func(d metadata.Dentry) bool {
		if d.Cookie <= last {
			t.Errorf("%s has cookie %d, after %d", d.Name, d.Cookie, last)
		}
		last = d.Cookie
		names = append(names, d.Name)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A name keeps its place in the listing through renames, wherever the newest of
// it is: in the layers, in the index, or in both.
func TestVolume_ReadDir_RenameKeepsThePlace(t *testing.T) {
	rename := func(v *Volume, from, to string, flags uint32) error {
		return v.Rename(bg, metadata.RootInode, from, metadata.RootInode, to, flags)
	}
	steps := []struct {
		from, to string
		flags    uint32
		want     []string
	}{
		{"b", "z", 0, []string{"a", "z", "c", "d", "e"}},
		{"e", "a", 0, []string{"a", "z", "c", "d"}},
		{"a", "d", RenameExchange, []string{"a", "z", "c", "d"}},
		{"z", "y", 0, []string{"a", "y", "c", "d"}},
		{"y", "b", 0, []string{"a", "b", "c", "d"}},
		{"c", "e", 0, []string{"a", "b", "e", "d"}},
	}
	for commitAt := range 1 << len(steps) {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 6, 8192)
			v := l.mustMount(nil)
			for _, name := range []string{"a", "b", "c", "d", "e"} {
				mkfile(t, v, metadata.RootInode, name).Close()
			}
			for i, s := range steps {
				if commitAt>>i&1 != 0 {
					if _, err := v.Commit(bg); err != nil {
						t.Fatal(err)
					}
				}
				if err := rename(v, s.from, s.to, s.flags); err != nil {
					t.Fatalf("rename %s to %s: %v", s.from, s.to, err)
				}
				if got := listNames(t, v); !slices.Equal(got, s.want) {
					t.Fatalf("commits at %b: after %s to %s: %v, want %v", commitAt, s.from, s.to, got, s.want)
				}
			}
			last := steps[len(steps)-1].want
			mustClose(t, v)
			l.disk.RemoveAll(l.dir)
			v = l.mustMount(nil)
			if got := listNames(t, v); !slices.Equal(got, last) {
				t.Fatalf("commits at %b: from the bucket: %v, want %v", commitAt, got, last)
			}
			mustClose(t, v)
		})
	}
}

// A program that renames what it lists, in pieces, comes to an end.
func TestVolume_ReadDir_RenamingWhatIsListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const files = 300
		l := newLab(t, 7, 8192)
		v := l.mustMount(nil)
		for i := range files {
			mkfile(t, v, metadata.RootInode, fmt.Sprint(i)).Close()
			if i == files/2 {
				if _, err := v.Commit(bg); err != nil {
					t.Fatal(err)
				}
			}
		}
		met, after := 0, uint64(0)
		for met <= files {
			var piece []metadata.Dentry
			err := v.ReadDir(bg, metadata.RootInode, after, func(d metadata.Dentry) bool {
				piece = append(piece, d)
				return len(piece) < 7
			})
			if err != nil {
				t.Fatal(err)
			}
			if len(piece) == 0 {
				break
			}
			for _, d := range piece {
				if err := v.Rename(bg, d.Parent, d.Name, d.Parent, d.Name+".old", 0); err != nil {
					t.Fatal(err)
				}
			}
			met += len(piece)
			after = piece[len(piece)-1].Cookie
		}
		if met != files {
			t.Fatalf("met %d names of %d files", met, files)
		}
		for _, name := range listNames(t, v) {
			if len(name) < 4 || name[len(name)-4:] != ".old" {
				t.Fatalf("%s was not met", name)
			}
		}
		mustClose(t, v)
	})
}
