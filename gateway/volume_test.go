package gateway

import (
	"bytes"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/metadata"
)

func TestVolume_WriteReadRemount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		h := mkfile(t, v, metadata.RootInode, "a")
		data := fill(l.rng, 50000)
		pwrite(t, h, data, 0)
		pwrite(t, h, []byte("hello"), 100)
		copy(data[100:], "hello")
		if got := pread(t, h, 60000, 0); !bytes.Equal(got, data) {
			t.Fatal("read back before commit differs")
		}
		if _, err := v.Commit(bg); err != nil {
			t.Fatal(err)
		}
		if got := pread(t, h, 60000, 0); !bytes.Equal(got, data) {
			t.Fatal("read back after commit differs")
		}
		h.Close()
		mustClose(t, v)
		v = l.mustMount(nil)
		h = openPath(t, v, "a")
		if got := pread(t, h, 60000, 0); !bytes.Equal(got, data) {
			t.Fatal("read back after remount differs")
		}
		h.Close()
		mustClose(t, v)
		// From the bucket alone.
		l.disk.RemoveAll(l.dir)
		v = l.mustMount(nil)
		h = openPath(t, v, "a")
		if got := pread(t, h, 60000, 0); !bytes.Equal(got, data) {
			t.Fatal("read back from the bucket differs")
		}
		h.Close()
		mustClose(t, v)
	})
}

func TestVolume_CrashRedo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 2, 8192)
		v := l.mustMount(nil)
		h := mkfile(t, v, metadata.RootInode, "a")
		data := fill(l.rng, 50000)
		pwrite(t, h, data[:20000], 0)
		if _, err := v.Commit(bg); err != nil {
			t.Fatal(err)
		}
		pwrite(t, h, data[20000:], 20000)
		pwrite(t, h, []byte("hello"), 100)
		copy(data[100:], "hello")
		l.fault.Kill()
		v.Abandon()
		v = l.mustMount(nil)
		h = openPath(t, v, "a")
		if got := pread(t, h, 60000, 0); !bytes.Equal(got, data) {
			t.Fatal("read back after crash differs")
		}
		h.Close()
		mustClose(t, v)
	})
}
