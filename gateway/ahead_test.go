package gateway

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/objstore/faultstore"
)

// A mount on an empty state directory does not wait for each commit in turn,
// also where mounts ended and began between them.
func TestVolume_Open_ReadsCommitsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		f := files{}
		const mounts, commits = 4, 60
		for m := range mounts {
			v := l.mustMount(nil)
			for c := range commits {
				f.put(t, v, fmt.Sprintf("f%d-%d", m, c%7), l.noise(100+c), 0)
				mustCommit(t, v)
			}
			mustClose(t, v)
		}
		const latency = 100 * time.Millisecond
		s := faultstore.New(l.bucket, slow(latency))
		fresh := l.forkEmpty(2)
		start := time.Now()
		v, err := fresh.mount(s, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d := time.Since(start); d > mounts*commits*latency/4 {
			t.Errorf("the mount took %v for %d commits at %v a request", d, mounts*commits, latency)
		}
		s.SetHook(nil)
		wantFiles(t, v, f, "from the bucket")
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}

// The commits after a manifest stay few in bytes, also when a mount ends before
// the manifest that is due was written.
func TestVolume_Close_LeavesTheManifestThatIsDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(live)
		f := files{}
		f.put(t, v, "a", l.noise(30000), 0)
		mustCommit(t, v)
		if v.ManifestDue() {
			t.Fatal("a manifest is due after two commits")
		}
		mustClose(t, v)

		v = l.mustMount(live)
		if n := v.head.Manifest.N; n != 0 {
			t.Fatalf("a manifest as of commit %d that was not due", n)
		}
		v.mu.Lock()
		v.sinceManifest.bytes = manifestLeast
		v.mu.Unlock()
		last := v.head.N
		mustClose(t, v)

		v = l.mustMount(live)
		if n := v.head.Manifest.N; n != last {
			t.Fatalf("the manifest is as of commit %d, not of %d", n, last)
		}
		if s := v.sinceManifest.size; s != 0 {
			t.Errorf("the manifest's size is %d before one was written", s)
		}
		wantFiles(t, v, f, "after the manifest")
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}

// A manifest that is due does not keep an unmount from ending when the bucket is away.
func TestVolume_Close_ManifestDueAndBucketAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		s := faultstore.New(l.bucket, nil)
		v, err := l.mount(s, live)
		if err != nil {
			t.Fatal(err)
		}
		f := files{}
		f.put(t, v, "a", l.noise(30000), 0)
		mustCommit(t, v)
		s.SetOutage(faultstore.Refusing)
		v.mu.Lock()
		v.sinceManifest.bytes = manifestLeast
		v.mu.Unlock()
		start := time.Now()
		err = v.Close(bg)
		if d := time.Since(start); d > 3*stallTime {
			t.Errorf("close took %v: %v", d, err)
		}
		s.SetOutage(faultstore.Up)
		v = l.mustMount(nil)
		wantFiles(t, v, f, "at the next mount")
		mustClose(t, v)
	})
}

// Every reign since the last manifest costs a mount from the bucket alone some
// requests: they stay few, however little each of them commits.
func TestVolume_Close_ManyReigns_LeaveAManifest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		f := files{}
		for i := range 3 * manifestEpochs {
			v := l.mustMount(live)
			f.put(t, v, "a", l.noise(100), 10*i)
			mustClose(t, v)
			v = l.mustMount(live)
			if behind := v.head.Epoch - v.head.Manifest.Epoch; behind > manifestEpochs {
				t.Fatalf("%d reigns since the last manifest", behind)
			}
			mustClose(t, v)
		}
		v := l.mustMount(live)
		wantFiles(t, v, f, "afterwards")
		wantCheckClean(t, v)
		mustClose(t, v)
	})
}
