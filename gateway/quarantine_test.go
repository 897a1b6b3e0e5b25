package gateway

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
)

// A writer that was replaced keeps what it acknowledged: also the bytes that
// its journal only refers to.
func TestVolume_Open_SetsReferencedBytesAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 31, 1<<20)
		v := l.mustMount(nil)
		h := mkfile(t, v, metadata.RootInode, "a")
		data := fill(l.rng, 50000)
		pwrite(t, h, data, 0) // large enough for a reference
		if err := v.Fsync(bg, h.Inode()); err != nil {
			t.Fatal(err)
		}
		l.fault.Kill()
		_ = v.Abandon() // the disk is dead to it

		other := &lab{t: t, alive: l.alive, bucket: l.bucket, disk: vfs.NewMem(), kv: metadata.NewMemKV(), rng: l.rng, diskRng: l.diskRng, dir: "/other", opt: l.opt, form: l.form}
		o := other.mustMount(func(o *Options) { o.Takeover = true })
		mkfile(t, o, metadata.RootInode, "b").Close()
		mustClose(t, o)

		v = l.mustMount(nil)
		if _, err := v.Lookup(bg, metadata.RootInode, "a"); err == nil {
			t.Error("the replaced writer's file came back")
		}
		mustClose(t, v)
		if !holds(t, l, "/state/quarantine", data) {
			t.Error("the bytes of the replaced writer are nowhere in the quarantine")
		}
	})
}

// holds says whether a file below dir has the bytes.
func holds(t *testing.T, l *lab, dir string, want []byte) bool {
	t.Helper()
	list, err := l.disk.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		path := dir + "/" + e.Name()
		if e.IsDir() {
			if holds(t, l, path, want) {
				return true
			}
			continue
		}
		body, err := readFile(l.disk, path, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(body, want) {
			return true
		}
	}
	return false
}
