package gateway

import (
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/metadata"
)

// A commit that collection has passed is said to be collected, not damaged.
func TestOpenView_CollectedCommitIsNoDamage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 51, 8192)
		v := l.mustMount(nil)
		h := mkfile(t, v, metadata.RootInode, "a")
		pwrite(t, h, fill(l.rng, 20000), 0)
		old, err := v.Commit(bg)
		if err != nil {
			t.Fatal(err)
		}
		pwrite(t, h, fill(l.rng, 20000), 0)
		h.Close()
		checkAfterCommit(t, v)
		open := func() error {
			view, err := OpenView(bg, ViewOptions{Store: l.bucket, URL: "mem://lab", KV: metadata.NewMemKV(), Commit: old.N})
			if err == nil {
				err = view.Close()
			}
			return err
		}
		if err := open(); err != nil {
			t.Errorf("before collection: %v", err)
		}
		if _, err := v.Collect(bg, false); err != nil {
			t.Fatal(err)
		}
		wantErr(t, open(), ErrCollected)
		mustClose(t, v)
	})
}
