package gateway

import (
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
)

// Staged bytes that the journal only refers to stay staged, and are there after a power
// loss, also where their cache file could not be synced and the journal has them
// after all. What was staged beyond what is published then is gone.
func TestHandle_Stage_Referenced_StagedAfterAPowerLoss(t *testing.T) {
	for name, fail := range map[string]bool{"synced": false, "the cache file can't be synced": true} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1, 8192)
			v := l.mustMount(nil)
			f := files{}
			f.put(t, v, "a", l.noise(1000), 0)
			h := openPath(t, v, "a")
			more := l.noise(20000)
			var failed atomic.Int64
			l.fault.SetHook(func(op, name string, _ int) error {
				if fail && op == "Sync" && strings.Contains(name, "/cache/") {
					failed.Add(1)
					return syscall.EIO
				}
				return nil
			})
			if _, err := h.Stage(bg, more, 1000); err != nil {
				t.Fatal(err)
			}
			if n := v.Status().ReferenceBytes; n != int64(len(more)) {
				t.Fatalf("%d bytes of %d are referenced", n, len(more))
			}
			mustFsync(t, v)
			if (failed.Load() > 0) != fail {
				t.Fatalf("%d syncs of the cache failed", failed.Load())
			}
			l = l.fork(t, vfs.PowerLoss, 2)
			v = l.mustMount(nil)
			wantFiles(t, v, f, "after the power loss")
			h = openPath(t, v, "a")
			if err := h.Publish(bg, 1000+15000); err != nil {
				t.Fatal(err)
			}
			f["a"] += string(more[:15000])
			wantFiles(t, v, f, "published")
			if err := h.Publish(bg, 1000+20000); err == nil {
				t.Error("what was dropped is published")
			}
			mustCommit(t, v)
			h.Close()
			mustClose(t, v)
			if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
				t.Error(d)
			}
		})
	}
}
