package gateway

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/metadata"
)

// The kernel's bounds are the volume's: the longest value that setxattr(2)
// takes can be kept, and what it takes can be listed.
func TestVolume_SetXattr_Bounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 5, 8192)
		v := l.mustMount(nil)
		h := mkfile(t, v, metadata.RootInode, "a")
		ino := h.Inode()
		h.Close()
		longest := fill(l.rng, maxXattrValue)
		if err := v.SetXattr(bg, ino, "user.longest", longest, 0); err != nil {
			t.Fatalf("a value of %d bytes: %v", len(longest), err)
		}
		wantErr(t, v.SetXattr(bg, ino, "user.longer", append(longest, 0), 0), ErrXattrBig)

		// Names are bounded by what listxattr can answer.
		names := len("user.longest") + 1
		for i := 0; ; i++ {
			name := fmt.Sprintf("user.%04d%s", i, strings.Repeat("n", MaxNameLen-9))
			err := v.SetXattr(bg, ino, name, nil, 0)
			if names+len(name)+1 > maxXattrNames {
				wantErr(t, err, ErrXattrBig)
				break
			}
			if err != nil {
				t.Fatalf("name %d, after %d bytes of names: %v", i, names, err)
			}
			names += len(name) + 1
		}
		list, err := v.ListXattr(bg, ino)
		if err != nil || len(strings.Join(list, "\x00"))+1 != names {
			t.Fatalf("the names come to %d bytes, want %d (%v)", len(strings.Join(list, "\x00"))+1, names, err)
		}

		// The names and the longest value fit together, a second such value not.
		wantErr(t, v.SetXattr(bg, ino, list[0], longest, 0), ErrXattrBig)
		mustClose(t, v)

		l.disk.RemoveAll(l.dir)
		v = l.mustMount(nil)
		if got, err := v.GetXattr(bg, ino, "user.longest"); err != nil || !bytes.Equal(got, longest) {
			t.Fatalf("the longest value read back from the bucket: %d bytes, %v", len(got), err)
		}
		if again, err := v.ListXattr(bg, ino); err != nil || len(again) != len(list) {
			t.Fatalf("%d names read back from the bucket, want %d (%v)", len(again), len(list), err)
		}
		mustClose(t, v)
	})
}
