package gateway

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
)

func TestResolvePoint_NumbersAndTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		type made struct {
			n  uint64
			at time.Time
		}
		head, err := FindCommit(bg, l.bucket, 0, "mem://lab")
		if err != nil {
			t.Fatal(err)
		}
		all := []made{{head.ID.N, time.Unix(0, head.Time)}}
		for epoch := range 5 {
			v := l.mustMount(nil)
			for i := range 1 + 7*epoch {
				time.Sleep(time.Duration(1+l.pick(50)) * time.Minute)
				files{}.put(t, v, fmt.Sprint("f", epoch, i), l.noise(10), 0)
				id := mustCommit(t, v)
				all = append(all, made{id.N, time.Unix(0, v.head.Time)})
			}
			time.Sleep(time.Minute)
			mustClose(t, v)
			if h, err := FindCommit(bg, l.bucket, 0, "mem://lab"); err != nil {
				t.Fatal(err)
			} else if h.ID.N != all[len(all)-1].n {
				all = append(all, made{h.ID.N, time.Unix(0, h.Time)})
			}
		}
		time.Sleep(90 * time.Second)
		want := func(at time.Time) (n uint64) {
			for _, m := range all {
				if !m.at.After(at) {
					n = m.n
				}
			}
			return n
		}
		resolve := func(point string, want uint64) {
			t.Helper()
			if n, err := ResolvePoint(bg, l.bucket, "mem://lab", point); err != nil || n != want {
				t.Errorf("point %q: %d, %v, want %d", point, n, err, want)
			}
		}
		for _, m := range all {
			resolve(fmt.Sprint(m.n), m.n)
			for _, d := range []time.Duration{0, time.Nanosecond, 30 * time.Second} {
				at := m.at.Add(d)
				resolve(at.UTC().Format(time.RFC3339Nano), want(at))
				resolve(fmt.Sprintf("-%v", time.Since(at)), want(at))
			}
			if before := m.at.Add(-time.Nanosecond); want(before) != 0 {
				resolve(before.Format(time.RFC3339Nano), want(before))
			}
		}
		resolve("", all[len(all)-1].n)
		resolve("2199-01-01T00:00:00Z", all[len(all)-1].n)
		for point, want := range map[string]error{
			"nightly": ErrPoint, "0": ErrPoint, "-x": ErrPoint, "--5m": ErrPoint, "2026-13-01T00:00:00Z": ErrPoint, "1815-01-01T00:00:00Z": ErrPoint,
			"99999": ErrNotExist, "-3000d": ErrCollected, all[0].at.Add(-time.Second).Format(time.RFC3339Nano): ErrCollected,
		} {
			n, err := ResolvePoint(bg, l.bucket, "mem://lab", point)
			if !errors.Is(err, want) || n != 0 {
				t.Errorf("point %q: %d, %v, want %v", point, n, err, want)
			}
		}
	})
}

// Of collected commits nothing is told, also where older ones are kept.
func TestResolvePoint_BetweenCollectedCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		var times []time.Time
		var ids []metadata.CommitID
		for i := range 12 {
			time.Sleep(time.Minute)
			files{}.put(t, v, fmt.Sprint("f", i), l.noise(5000), 0)
			ids = append(ids, mustCommit(t, v))
			times = append(times, time.Unix(0, v.head.Time))
			if i == 3 || i == 9 {
				if err := v.WriteManifest(bg); err != nil {
					t.Fatal(err)
				}
			}
		}
		kept := ids[5]
		pin(t, l.bucket, "p", kept, 0)
		for range 2 {
			mustCollect(t, v)
		}
		found := 0
		for i := range ids {
			n, err := ResolvePoint(bg, l.bucket, "mem://lab", times[i].Format(time.RFC3339Nano))
			if err != nil {
				wantErr(t, err, ErrCollected)
				continue
			}
			found++
			// Several commits may have one time: the last of them is meant.
			at, err := FindCommit(bg, l.bucket, n, "mem://lab")
			next, nerr := FindCommit(bg, l.bucket, n+1, "mem://lab")
			if err != nil || at.Time != times[i].UnixNano() || n < v.head.N && (nerr != nil || next.Time <= at.Time) {
				t.Errorf("time of commit %s gives %d: %v, %v", ids[i], n, err, nerr)
			}
		}
		if found == 0 || found == len(ids) {
			t.Errorf("%d of %d times gave a commit", found, len(ids))
		}
		if _, err := FindCommit(bg, l.bucket, ids[7].N, "mem://lab"); err == nil {
			t.Error("nothing between the pinned commit and the present was collected: the test shows nothing")
		}
		mustClose(t, v)
	})
}
