package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore/mem"
)

// What was fsynced survives the loss of power, and what comes back is the state
// after some operation.
func TestStorageManager_Case12_PowerLoss(t *testing.T) {
	for seed := range int64(40) {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 1000+seed, 8192)
			v := l.mustMount(nil)
			f := files{}
			states := []files{{}}
			durable := 0
			for range 60 {
				name := fmt.Sprint("f", l.pick(3))
				_, there := f[name]
				switch k := l.pick(10); {
				case k == 0:
					mustFsync(t, v)
					durable = len(states) - 1
				case k == 1 && there:
					f.truncate(t, v, name, l.pick(len(f[name])+1))
				case k == 2:
					mustCommit(t, v)
					durable = len(states) - 1
				default:
					if !there {
						f.put(t, v, name, nil, 0)
						states = append(states, maps.Clone(f))
					}
					f.put(t, v, name, l.noise(1+l.pick(6000)), l.pick(9000))
				}
				states = append(states, maps.Clone(f))
			}
			l.fault.Kill()
			_ = v.Abandon() // the disk is dead
			l.disk, l.kv = l.disk.Crash(l.diskRng, vfs.PowerLoss), l.kv.Crash(l.rng)
			v = l.mustMount(nil)
			got, err := filesOf(volumeTree{v})
			if err != nil {
				t.Fatal(err)
			}
			at := -1
			for i := len(states) - 1; i >= 0 && at < 0; i-- {
				if states[i].diff(got) == "" {
					at = i
				}
			}
			if at < durable {
				t.Fatalf("seed %d: came back with state %d, %d was durable", seed, at, durable)
			}
			mustClose(t, v)
		})
	}
}

// The disk refuses some calls in a row with ENOSPC: counts, content and sizes
// are right, and it works again afterwards.
func TestStorageManager_Case13_NoSpaceAtEveryCall(t *testing.T) {
	for _, row := range []int{1, 6} {
		t.Run(fmt.Sprint(row, " in a row"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				for n := 0; ; n++ {
					if !noSpaceAt(t, n, row) {
						break
					}
				}
			})
		})
	}
}

func noSpaceAt(t *testing.T, n, row int) (met bool) {
	l := newLab(t, 9, 8192)
	l.opt.LimitENOSPC, l.opt.LimitWait = true, 1
	v := l.mustMount(nil)
	f := files{}
	f.put(t, v, "a", l.noise(20000), 0)
	mustCommit(t, v)
	h := openPath(t, v, "a")
	calls := 0
	var mu sync.Mutex
	l.fault.SetHook(func(op, _ string, _ int) error {
		mu.Lock()
		defer mu.Unlock()
		switch op {
		case "WriteAt", "Allocate", "Truncate", "OpenFile":
			calls++
			if calls > n && calls <= n+row {
				met = true
				return syscall.ENOSPC
			}
		}
		return nil
	})
	b := []byte(f["a"])
	var unclear []byte
	for i := range 12 {
		p := l.noise(500 + 700*i)
		off := i * 2000
		k, err := h.Write(bg, p, int64(off), WriteFlags{})
		if grow := off + k - len(b); k > 0 && grow > 0 {
			b = append(b, make([]byte, grow)...)
		}
		if k > 0 {
			copy(b[off:], p[:k])
		}
		if err != nil && !errors.Is(err, ErrNoSpace) && !errors.Is(err, ErrReadOnly) || err == nil && k != len(p) {
			t.Fatalf("call %d: write gives %d, %v", n, k, err)
		}
		if errors.Is(err, ErrReadOnly) && unclear == nil {
			// The write at which the journal broke was refused; whether it is
			// there, nobody promises.
			unclear = append(bytes.Clone(b), make([]byte, max(0, off+len(p)-len(b)))...)
			copy(unclear[off:], p)
		}
	}
	ferr := v.Fsync(bg, 1)
	l.fault.SetHook(nil)
	f["a"] = string(b)
	if got, err := filesOf(volumeTree{v}); err == nil && unclear != nil && got["a"] == string(unclear) {
		f["a"] = string(unclear)
	}
	wantFiles(t, v, f, fmt.Sprint("call ", n))
	if v.ReadOnly() {
		wantErr(t, v.Stopped(), ErrReadOnly)
	} else {
		if ferr != nil {
			mustFsync(t, v)
		}
		f.put(t, v, "b", l.noise(9000), 50)
		mustCommit(t, v)
		wantCheckClean(t, v)
	}
	h.Close()
	l.kill(v)
	v = l.mustMount(nil)
	if got, err := filesOf(volumeTree{v}); err == nil && unclear != nil && got["a"] == string(b) {
		f["a"] = string(b)
	}
	wantFiles(t, v, f, fmt.Sprint("call ", n, ", mounted again"))
	mustClose(t, v)
	return met
}

func TestStorageManager_Case16_TinyCache(t *testing.T) {
	for _, background := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, 8, 8192)
			l.opt.CacheBytes = 100 << 10
			v := l.mustMount(func(o *Options) { o.Manual = !background })
			const each, workers = 64 << 10, 8
			h := mkfile(t, v, 1, "a")
			var wg sync.WaitGroup
			whole := make([]byte, each*workers)
			l.Read(whole)
			for w := range workers {
				wg.Go(func() {
					mine := whole[w*each : (w+1)*each]
					for round := range 5 {
						for off := 0; off < each; off += 5000 {
							end := min(off+5000, each)
							if round == 0 {
								if _, err := h.Write(bg, mine[off:end], int64(w*each+off), WriteFlags{}); err != nil {
									t.Error(err)
								}
								if off%20000 == 0 {
									if _, err := v.Commit(bg); err != nil {
										t.Error(err)
									}
								}
								continue
							}
							p := make([]byte, end-off)
							if n, err := h.Read(bg, p, int64(w*each+off)); n != len(p) || err != nil || !slices.Equal(p, mine[off:end]) {
								t.Errorf("worker %d at %d: %d, %v, or wrong bytes", w, off, n, err)
							}
							if st := v.cache.Stats(); st.Allocated > st.Limit {
								t.Errorf("the cache holds %d bytes, its limit is %d", st.Allocated, st.Limit)
							}
						}
					}
				})
			}
			wg.Wait()
			h.Close()
			mustCommit(t, v)
			if st := v.cache.Stats(); st.Allocated != du(t, l.disk, l.dir+"/cache") || st.Pinned != 0 {
				t.Errorf("the cache counts %d bytes, %d pinned, and the disk %d", st.Allocated, st.Pinned, du(t, l.disk, l.dir+"/cache"))
			}
			wantFiles(t, v, files{"a": string(whole)}, "at the end")
			mustClose(t, v)
		})
	}
}

// du sums what the files of a tree occupy.
func du(t *testing.T, m *vfs.Mem, dir string) int64 {
	t.Helper()
	list, err := m.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	sum := int64(0)
	for _, d := range list {
		name := filepath.Join(dir, d.Name())
		if d.IsDir() {
			sum += du(t, m, name)
			continue
		}
		h, err := m.OpenFile(name, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		n, err := h.Allocated()
		h.Close()
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// A restart asks the store about the volume, not about what is cached.
func TestStorageManager_Case18_RestartWithAFullCache(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var counts []mem.Stats
		for _, objects := range []int{4, 160} {
			l := newLab(t, 8, 128<<10)
			l.opt.CacheBytes, l.opt.JournalBytes = 64<<20, 64<<20
			v := l.mustMount(nil)
			f := files{}
			f.put(t, v, "a", l.noise(objects*128<<10), 0)
			mustCommit(t, v)
			f.put(t, v, "dirty", l.noise(500), 0)
			mustFsync(t, v)
			l.kill(v)
			l.bucket.ResetStats()
			v = l.mustMount(nil)
			st := l.bucket.Stats()
			st.Put.Bytes, st.Get.Bytes = 0, 0
			counts = append(counts, st)
			l.bucket.ResetStats()
			wantFiles(t, v, f, "after the restart")
			if st := l.bucket.Stats(); st.Get.Requests+st.Head.Requests+st.List.Requests != 0 {
				t.Errorf("%d cached objects were read with %+v", objects, st)
			}
			mustCommit(t, v)
			if d := f.diff(bucketFiles(t, l.bucket, 0)); d != "" {
				t.Errorf("what was dirty: %s", d)
			}
			mustClose(t, v)
		}
		if counts[0] != counts[1] {
			t.Errorf("a mount makes %+v with 4 objects and %+v with 160", counts[0], counts[1])
		}
	})
}

func TestStorageManager_Case21_TenThousandNames(t *testing.T) {
	eachStage(t, func(t *testing.T, s *site) {
		d, err := s.v.Create(bg, 1, "dir", modeDir|0o755, 0, Owner{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]bool{}
		for i := range 10000 {
			name := fmt.Sprintf("%d", i)
			name += strings.Repeat("n", i%(256-len(name)))
			n, err := s.v.Create(bg, d.ID, name, modeRegular|0o644, 0, Owner{}, nil)
			if err != nil {
				t.Fatalf("%q: %v", name, err)
			}
			s.v.Forget(n.ID, 1)
			want[name] = true
			if i%7 == 0 {
				gone := fmt.Sprintf("%d", i)
				gone += strings.Repeat("n", i%(256-len(gone)))
				if err := s.v.Unlink(bg, d.ID, gone); err != nil {
					t.Fatal(err)
				}
				delete(want, gone)
			}
			if i == 5000 {
				s.settle(t)
			}
		}
		s.settle(t)
		var list []metadata.Dentry
		collect := func(after uint64, limit int) []metadata.Dentry {
			var out []metadata.Dentry
			err := s.v.ReadDir(bg, d.ID, after, func(e metadata.Dentry) bool {
				if limit == 0 {
					return false
				}
				limit--
				out = append(out, e)
				return true
			})
			if err != nil {
				t.Fatal(err)
			}
			return out
		}
		list = collect(0, -1)
		if len(list) != len(want) {
			t.Fatalf("%d names, want %d", len(list), len(want))
		}
		for i, e := range list {
			if !want[e.Name] {
				t.Fatalf("%q should not be there, or twice", e.Name)
			}
			delete(want, e.Name)
			if i%397 == 0 {
				if rest := collect(e.Cookie, 5); len(rest) > 0 && !slices.Equal(rest, list[i+1:min(i+6, len(list))]) {
					t.Errorf("resumed after entry %d: other names", i)
				}
			}
		}
		if names, err := (volumeTree{s.v}).namesOf(1); err != nil || len(names) != 1 {
			t.Errorf("the top directory holds %v, %v", names, err)
		}
	})
}

// Sums of df and du are those of what was written, and a quota refuses before
// the acknowledgement.
func TestVolume_Quota_AndSums(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 8, 8192)
		v := l.mustMount(nil)
		const quota = 40 << 10
		if err := v.SetSettings(bg, quota, 0); err != nil {
			t.Fatal(err)
		}
		f := files{}
		sums := func(when string) {
			t.Helper()
			var used int64
			inodes := uint64(1)
			names, err := (volumeTree{v}).namesOf(1)
			if err != nil {
				t.Fatal(err)
			}
			for _, ino := range names {
				n, err := v.GetAttr(bg, ino)
				if err != nil || n.Alloc < 0 || n.Alloc > n.Size {
					t.Fatalf("%s: %+v, %v", when, n, err)
				}
				used += n.Alloc
				inodes++
			}
			if st := v.Statfs(); st.Used != used || st.Inodes != inodes || st.Total != quota || st.Used > quota {
				t.Fatalf("%s: statfs %+v, the files use %d in %d inodes", when, st, used, inodes)
			}
		}
		refused := 0
		for i := range 400 {
			name := fmt.Sprint("f", l.pick(6))
			p, there := f[name]
			switch k := l.pick(12); {
			case k == 0 && there:
				f.drop(t, v, name)
			case k == 1 && there:
				f.truncate(t, v, name, l.pick(2*len(p)+1))
			case k == 2 && there:
				f.punch(t, v, name, l.pick(len(p)+1), len(p)+l.pick(100))
			case k == 3:
				mustCommit(t, v)
			case !there:
				f.put(t, v, name, nil, 0)
			default:
				h := openPath(t, v, name)
				off, data := l.pick(30000), l.noise(1+l.pick(9000))
				n, err := h.Write(bg, data, int64(off), WriteFlags{})
				h.Close()
				if err != nil {
					refused++
					wantErr(t, err, ErrQuota)
					if n != 0 {
						t.Fatalf("a refused write stored %d bytes", n)
					}
					break
				}
				b := append([]byte(p), make([]byte, max(0, off+n-len(p)))...)
				copy(b[off:], data)
				f[name] = string(b)
			}
			// An unlinked file's bytes count until it is freed.
			if err := v.reapAll(bg); err != nil {
				t.Fatal(err)
			}
			sums(fmt.Sprint("step ", i))
		}
		if refused == 0 {
			t.Error("the quota was never reached")
		}
		wantFiles(t, v, f, "at the end")
		mustClose(t, v)
		v = l.mustMount(nil)
		sums("after a remount")
		for name := range maps.Clone(f) {
			f.drop(t, v, name)
		}
		mustCommit(t, v)
		if st := v.Statfs(); st.Used != 0 || st.Inodes != 1 {
			t.Errorf("empty: %+v", st)
		}
		mustClose(t, v)
	})
}

// 250 clients make and drop temporary tables: nothing leaks.
func TestVolume_TemporaryTables(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 8, 8192)
		v := l.mustMount(live)
		var wg sync.WaitGroup
		for c := range 250 {
			wg.Go(func() {
				for i := range 4 {
					name := fmt.Sprintf("#sql-%d-%d", c, i)
					n, err := v.Create(bg, 1, name, modeRegular|0o600, 0, Owner{}, nil)
					if err != nil {
						t.Error(err)
						return
					}
					h, err := v.Open(bg, n.ID)
					if err != nil {
						t.Error(err)
						return
					}
					if err := v.Unlink(bg, 1, name); err != nil {
						t.Error(err)
					}
					p := l.noise(3500)
					if _, err := h.Write(bg, p, 100, WriteFlags{}); err != nil {
						t.Error(err)
					}
					if c%10 == 0 {
						if err := v.Fsync(bg, n.ID); err != nil {
							t.Error(err)
						}
						if _, err := v.Commit(bg); err != nil {
							t.Error(err)
						}
					}
					got := make([]byte, 3600)
					if k, err := h.Read(bg, got, 0); k != 3600 || err != nil || string(got[100:]) != string(p) {
						t.Errorf("%s reads %d bytes, %v, or wrong ones", name, k, err)
					}
					h.Close()
					v.Forget(n.ID, 1)
				}
			})
		}
		wg.Wait()
		for range 2 {
			mustCommit(t, v)
		}
		for range 3 {
			if _, err := v.Collect(bg, false); err != nil {
				t.Fatal(err)
			}
		}
		if st := v.Statfs(); st.Used != 0 || st.Inodes != 1 {
			t.Errorf("statfs: %+v", st)
		}
		if n := v.nodes.len(); n != 0 {
			t.Errorf("%d nodes are held", n)
		}
		if st := v.cache.Stats(); st.Allocated != 0 || st.Pinned != 0 {
			t.Errorf("cache: %d bytes, %d pinned", st.Allocated, st.Pinned)
		}
		wantNothingDead(t, v, l)
		for _, key := range bucketKeys(t, l.bucket) {
			if strings.HasPrefix(key, metadata.ObjectPrefix) || strings.HasPrefix(key, metadata.SegmentPrefix) {
				t.Errorf("%s is left", key)
			}
		}
		mustClose(t, v)
	})
}

// What the layers say about their memory is what they take, so that the limit
// on it is one.
func TestVolume_MemoryBytes_Estimate(t *testing.T) {
	s := mem.New()
	if _, err := Format(bg, FormatOptions{Store: s, URL: "mem://x", ObjectSize: 8192}); err != nil {
		t.Fatal(err)
	}
	v, err := Open(bg, Options{
		Store: s, URL: "mem://x", FS: vfs.OS(), StateDir: filepath.Join(t.TempDir(), "state"), Manual: true,
		OpenKV: func(string) (metadata.KV, error) { return metadata.NewMemKV(), nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		mustFsync(t, v)
		runtime.GC()
		runtime.GC()
		var st runtime.MemStats
		runtime.ReadMemStats(&st)
		return int64(st.HeapAlloc)
	}
	h := mkfile(t, v, 1, "a")
	before, said := heap(), v.Status().MemoryBytes
	for i := range int64(30000) {
		pwrite(t, h, []byte("scattered"), (i*7919%30000)*100)
	}
	for i := range 10000 {
		n, err := v.Create(bg, 1, fmt.Sprint("file ", i), modeRegular|0o600, 0, Owner{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		v.Forget(n.ID, 1)
	}
	took, says := heap()-before, v.Status().MemoryBytes-said
	t.Logf("%d bytes taken, %d estimated", took, says)
	if took > says*3/2 || says > took*4 {
		t.Errorf("%d bytes of memory are called %d", took, says)
	}
	h.Close()
	mustCommit(t, v)
	if n := v.Status().MemoryBytes; n != 0 {
		t.Errorf("%d bytes after a commit", n)
	}
	mustClose(t, v)
}
