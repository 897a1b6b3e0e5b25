package gateway

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// counted counts requests.
type counted struct {
	objstore.Store
	n *atomic.Int64
}

func (c counted) Get(ctx context.Context, key string, off, length int64) (io.ReadCloser, objstore.Info, error) {
	c.n.Add(1)
	return c.Store.Get(ctx, key, off, length)
}

func (c counted) Put(ctx context.Context, key string, body io.ReadSeeker, size int64, cond objstore.Condition) (objstore.Version, error) {
	c.n.Add(1)
	return c.Store.Put(ctx, key, body, size, cond)
}

func (c counted) Head(ctx context.Context, key string) (objstore.Info, error) {
	c.n.Add(1)
	return c.Store.Head(ctx, key)
}

func (c counted) List(ctx context.Context, prefix, after string, limit int) ([]objstore.Info, error) {
	c.n.Add(1)
	return c.Store.List(ctx, prefix, after, limit)
}

func (c counted) Delete(ctx context.Context, key string) error {
	c.n.Add(1)
	return c.Store.Delete(ctx, key)
}

// Making a clone of 100,000 files takes fewer than 100 requests, and as many as
// one of ten files; so does a clone's clone.
func TestClone_Cost_SameForEverySize(t *testing.T) {
	requests := map[int]int64{}
	for _, n := range []int{10, 100000} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 23, 1<<20)
			l.opt.JournalBytes, l.opt.JournalFileBytes, l.opt.MemoryBytes = 256<<20, 16<<20, 256<<20
			f := newFamily(t, l)
			v := f.mount(parentURL)
			dir := metadata.RootInode
			for i := range n {
				if i%1000 == 0 {
					d, err := v.Create(bg, metadata.RootInode, fmt.Sprint("dir", i), modeDir|0o755, 0, Owner{}, nil)
					if err != nil {
						t.Fatal(err)
					}
					dir = d.ID
				}
				c, err := v.Create(bg, dir, fmt.Sprint("file", i), modeRegular|0o644, 0, Owner{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				v.Forget(c.ID, 1)
			}
			mustCommit(t, v)
			if err := v.WriteManifest(bg); err != nil {
				t.Fatal(err)
			}
			mustClose(t, v)
			for _, pair := range [][2]string{{parentURL, "mem://one"}, {"mem://one", "mem://two"}} {
				f.member(pair[1])
				var calls atomic.Int64
				b := buckets{}
				for url, s := range f.b {
					b[url] = counted{s, &calls}
				}
				src, _, err := OpenStore(bg, b[pair[0]], pair[0], nil, b.open)
				if err != nil {
					t.Fatal(err)
				}
				begun := time.Now()
				o := f.options(pair[0], pair[1], 0)
				o.Source, o.Target, o.Open = src, b[pair[1]], b.open
				if _, err := Clone(bg, o); err != nil {
					t.Fatal(err)
				}
				t.Logf("%d files, %s: %d requests, %v", n, pair[1], calls.Load(), time.Since(begun))
				if calls.Load() >= 100 {
					t.Errorf("a clone of %d files took %d requests", n, calls.Load())
				}
				if pair[1] == "mem://one" {
					requests[n] = calls.Load()
				}
			}
			v = f.mount("mem://two")
			st, err := v.Lookup(bg, metadata.RootInode, "dir0")
			if err != nil {
				t.Fatal(err)
			}
			if _, err := v.Lookup(bg, st.ID, "file7"); err != nil {
				t.Error(err)
			}
			mustClose(t, v)
		})
	}
	if requests[10] != requests[100000] {
		t.Errorf("requests by files: %v", requests)
	}
}
