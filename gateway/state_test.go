package gateway

import (
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
)

// copyKV gives an index store with the same content.
func copyKV(t *testing.T, kv metadata.KV) *metadata.MemKV {
	t.Helper()
	out := metadata.NewMemKV()
	err := kv.Scan(nil, nil, func(k, value []byte) error {
		return out.Update(func(w metadata.Writer) error { return w.Set(slices.Clone(k), slices.Clone(value)) })
	})
	if err == nil {
		err = out.Sync()
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// patchFile changes a file of the local disk.
func (l *lab) patchFile(t *testing.T, name string, change func(p []byte) []byte) {
	t.Helper()
	h, err := l.disk.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	size, err := h.Size()
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, size)
	if n, err := h.ReadAt(p, 0); n < len(p) {
		t.Fatal(err)
	}
	p = change(p)
	if err := h.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if _, err := h.WriteAt(p, 0); err != nil {
		t.Fatal(err)
	}
	if err := h.Sync(); err != nil {
		t.Fatal(err)
	}
}

// journalFile is the journal's file with records.
func (l *lab) journalFile(t *testing.T) string {
	t.Helper()
	list, err := l.disk.ReadDir(l.dir + "/journal")
	if err != nil {
		t.Fatal(err)
	}
	last := ""
	for _, d := range list {
		if strings.HasSuffix(d.Name(), ".jnl") {
			last = d.Name()
		}
	}
	if last == "" {
		t.Fatal("the journal has no file")
	}
	return filepath.Join(l.dir, "journal", last)
}

func TestVolume_Open_IndexDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		if err := u.disk.RemoveAll(u.dir + "/index"); err != nil {
			t.Fatal(err)
		}
		u.back(t, u.fork(t, vfs.KillProcess, 1), "index deleted")
	})
}

func TestVolume_Open_IndexDamagedAtOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		first := true
		v := u.mustMount(func(o *Options) {
			open := o.OpenKV
			o.OpenKV = func(dir string) (metadata.KV, error) {
				if first {
					first = false
					return nil, metadata.ErrDamaged
				}
				return open(dir)
			}
		})
		wantFiles(t, v, u.now, "after a damaged index")
		mustClose(t, v)
		if first {
			t.Error("the index was not opened")
		}
	})
}

// Any record of the index may rot: no wrong byte is served, and without the
// index everything is there.
func TestVolume_Open_IndexBitRot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		var keys [][]byte
		err := u.kv.Scan(nil, nil, func(k, _ []byte) error { keys = append(keys, slices.Clone(k)); return nil })
		if err != nil || len(keys) < 20 {
			t.Fatalf("%d keys, %v", len(keys), err)
		}
		for i, key := range keys {
			l := u.fork(t, vfs.KillProcess, int64(i))
			value, err := l.kv.Get(key)
			if err != nil {
				t.Fatal(err)
			}
			value = slices.Clone(value)
			if len(value) == 0 {
				continue
			}
			value[i%len(value)] ^= 1 << (i % 8)
			if err := l.kv.Update(func(w metadata.Writer) error { return w.Set(key, value) }); err != nil {
				t.Fatal(err)
			}
			v, err := l.mount(l.bucket, nil)
			if err == nil {
				var got files
				if got, err = filesOf(volumeTree{v}); err == nil {
					if d := u.now.diff(got); d != "" {
						t.Errorf("record %q rotten: %s", key, d)
					}
				}
				_ = v.Abandon() // as it is
			}
			if err != nil && !errors.Is(err, ErrDamaged) && !errors.Is(err, metadata.ErrDamaged) {
				t.Errorf("record %q rotten: %v", key, err)
			}
			if err := l.disk.RemoveAll(l.dir + "/index"); err != nil {
				t.Fatal(err)
			}
			v = l.mustMount(nil)
			wantFiles(t, v, u.now, "without the rotten index")
			mustClose(t, v)
		}
	})
}

func TestVolume_Open_IndexBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 3, 8192)
		v := l.mustMount(nil)
		f := files{}
		var old []*metadata.MemKV
		for i := range 8 {
			f.put(t, v, "a", l.noise(6000), 5000*i)
			mustCommit(t, v)
			old = append(old, copyKV(t, l.kv))
			if i == 4 {
				if err := v.WriteManifest(bg); err != nil {
					t.Fatal(err)
				}
			}
		}
		f.drop(t, v, "a")
		f.put(t, v, "b", l.noise(100), 0)
		mustCommit(t, v)
		if c, err := v.Collect(bg, false); err != nil || c.Things == 0 {
			t.Fatalf("collected %d, %v", c.Things, err)
		}
		f.put(t, v, "c", l.noise(100), 0)
		mustFsync(t, v)
		l.kill(v)
		for i, kv := range old {
			m := l.fork(t, vfs.KillProcess, int64(i))
			m.kv = kv
			v := m.mustMount(nil)
			wantFiles(t, v, f, "with an index from the past")
			mustClose(t, v)
		}
	})
}

// The head is gone and the seal after it is there: what lies before is not the
// head.
func TestVolume_Open_HeadMissingBelowItsSeal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 3, 8192)
		f := files{}
		for i := range 3 {
			v := l.mustMount(nil)
			f.put(t, v, "a", l.noise(5000), 4000*i)
			mustClose(t, v)
		}
		mustClose(t, l.mustMount(nil)) // seals the epoch of the head
		head, err := pathReaderHead(l.bucket)
		if err != nil {
			t.Fatal(err)
		}
		harm(t, l.bucket, metadata.CommitKey(head), "missing")
		_, err = bucketView(l.bucket, nil)
		wantErr(t, err, ErrDamaged)
		if err == nil || !strings.Contains(err.Error(), metadata.CommitKey(head)) {
			t.Errorf("error %v does not name %s", err, metadata.CommitKey(head))
		}
		m := l.machine(7)
		_, err = m.mount(m.bucket, nil)
		wantErr(t, err, ErrDamaged)
	})
}

// pathReaderHead is the number of the last commit.
func pathReaderHead(s objstore.Store) (metadata.CommitID, error) {
	lease, _, err := readLease(bg, s)
	if err != nil {
		return metadata.CommitID{}, err
	}
	head, _, err := pathReader{s}.head(bg, lease.Epoch, lease.Hint)
	if err != nil {
		return metadata.CommitID{}, err
	}
	return head.id, nil
}

// The bucket was rolled back: nobody may go on from there unasked.
func TestVolume_Open_BucketRolledBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 3, 8192)
		l.opt.ReferenceBytes = 1 << 30
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "a", l.noise(5000), 0)
		mustCommit(t, v)
		then, past := l.bucket.Len(), maps.Clone(f)
		for i := range 3 {
			f.put(t, v, "a", l.noise(5000), 4000*i)
			f.put(t, v, "b", l.noise(1100000), 0) // more than a journal file
			mustCommit(t, v)
		}
		f.put(t, v, "c", l.noise(50), 0)
		mustFsync(t, v)
		l.kill(v)

		m := l.fork(t, vfs.KillProcess, 1)
		m.bucket = l.bucket.At(then)
		_, err := m.mount(m.bucket, nil)
		wantErr(t, err, ErrDamaged)
		if err == nil || !strings.Contains(err.Error(), "bucket lost commits") {
			t.Errorf("error %v does not say what happened", err)
		}
		if err := m.disk.RemoveAll(m.dir + "/index"); err != nil {
			t.Fatal(err)
		}
		_, err = m.mount(m.bucket, nil)
		wantErr(t, err, ErrLostJournal)
		v = m.mustMount(func(o *Options) { o.AcceptLostJournal = true })
		got, err := filesOf(volumeTree{v})
		if err != nil {
			t.Fatal(err)
		}
		if d := past.diff(got); d != "" {
			t.Errorf("after the loss was accepted: %s", d)
		}
		past.put(t, v, "d", []byte("going on"), 0)
		mustClose(t, v)
		v = m.mustMount(nil)
		wantFiles(t, v, past, "after going on")
		mustClose(t, v)
	})
}

func TestVolume_Open_PendingApply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		for n := 0; ; n++ {
			m := u.fork(t, vfs.KillProcess, int64(n))
			fail := &failingKV{MemKV: m.kv, at: -1}
			v := m.mustMount(func(o *Options) {
				o.OpenKV = func(string) (metadata.KV, error) { return mountedKV{fail, m.fault}, nil }
			})
			fail.at = n
			_, err := v.Commit(bg)
			if err == nil {
				_ = v.Abandon()
				if n < 2 {
					t.Errorf("a commit is applied in %d steps", n)
				}
				break
			}
			wantFiles(t, v, u.now, "half applied")
			if n%2 == 0 {
				mustCommit(t, v)
				wantFiles(t, v, u.now, "applied again")
				mustClose(t, v)
				continue
			}
			_ = v.Abandon()
			m.disk = m.disk.Crash(m.diskRng, vfs.KillProcess)
			u.back(t, m, "half applied")
		}
	})
}

// failingKV fails its n-th Update or Sync, once.
type failingKV struct {
	*metadata.MemKV
	at, n int
}

func (k *failingKV) step() error {
	if k.at < 0 {
		return nil
	}
	k.n++
	if k.n-1 == k.at {
		return errors.New("index: disk full")
	}
	return nil
}

func (k *failingKV) Update(fn func(metadata.Writer) error) error {
	if err := k.step(); err != nil {
		return err
	}
	return k.MemKV.Update(fn)
}

func (k *failingKV) Sync() error {
	if err := k.step(); err != nil {
		return err
	}
	return k.MemKV.Sync()
}

func TestVolume_Open_StateOfAnotherVolume(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		other := newLab(t, 77, 8192)
		m := u.fork(t, vfs.KillProcess, 1)
		_, err := m.mount(other.bucket, nil)
		if err == nil || !strings.Contains(err.Error(), "belongs to volume") {
			t.Fatalf("mounting another volume with this state directory: %v", err)
		}
		u.back(t, m, "after the refusal")
	})
}

func TestVolume_Open_StateInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		fault := l.fault
		_, err := l.mount(l.bucket, nil)
		if err == nil || !strings.Contains(err.Error(), "in use") {
			t.Fatalf("second mount: %v", err)
		}
		l.fault = fault
		f := files{}
		f.put(t, v, "a", []byte("x"), 0)
		mustClose(t, v)
	})
}

// No damaged byte of owner.json makes the journal somebody else's.
func TestVolume_Open_OwnerFileDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		size := 0
		u.patchFile(t, u.dir+"/owner.json", func(p []byte) []byte { size = len(p); return p })
		for i := 0; i < size; i += 3 {
			m := u.fork(t, vfs.KillProcess, int64(i))
			m.patchFile(t, m.dir+"/owner.json", func(p []byte) []byte { p[i] ^= 1 << (i % 7); return p })
			before := m.bucket.Len()
			_, err := m.mount(m.bucket, nil)
			if !errors.Is(err, ErrDamaged) && !errors.Is(err, ErrNewerFormat) {
				t.Fatalf("byte %d flipped: %v", i, err)
			}
			if m.bucket.Len() != before {
				t.Fatal("the bucket was changed")
			}
			m.patchFile(t, m.dir+"/owner.json", func(p []byte) []byte { p[i] ^= 1 << (i % 7); return p })
			if i%60 == 0 {
				u.back(t, m, "owner.json restored")
			}
		}
		for n := range 4 {
			m := u.fork(t, vfs.KillProcess, int64(n))
			m.patchFile(t, m.dir+"/owner.json", func(p []byte) []byte { return p[:n*len(p)/4] })
			_, err := m.mount(m.bucket, nil)
			wantErr(t, err, ErrDamaged)
		}
	})
}

// A journal whose owner.json is gone is not thrown away.
func TestVolume_Open_OwnerFileMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		if err := u.disk.Remove(u.dir + "/owner.json"); err != nil {
			t.Fatal(err)
		}
		m := u.fork(t, vfs.KillProcess, 1)
		_, err := m.mount(m.bucket, nil)
		wantErr(t, err, ErrLostJournal)
		v := m.mustMount(func(o *Options) { o.AcceptLostJournal = true })
		wantFiles(t, v, u.committed, "from the bucket")
		mustClose(t, v)
		wantAside(t, m, "accepted")
	})
}

func TestVolume_Open_JournalMissing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		if err := u.disk.RemoveAll(u.dir + "/journal"); err != nil {
			t.Fatal(err)
		}
		m := u.fork(t, vfs.KillProcess, 1)
		for range 2 {
			_, err := m.mount(m.bucket, nil)
			wantErr(t, err, ErrLostJournal)
			if err == nil || !strings.Contains(err.Error(), "--accept-lost-journal") {
				t.Errorf("error %v does not say what to do", err)
			}
		}
		v := m.mustMount(func(o *Options) { o.AcceptLostJournal = true })
		wantFiles(t, v, u.committed, "from the bucket")
		f := maps.Clone(u.committed)
		f.put(t, v, "new", []byte("x"), 0)
		m.kill(v)
		v = m.mustMount(nil)
		wantFiles(t, v, f, "with the new journal")
		mustClose(t, v)
	})
}

func TestVolume_Open_JournalForeign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		other := newUsed(t, 8192)
		m := u.fork(t, vfs.KillProcess, 1)
		o := other.fork(t, vfs.KillProcess, 2)
		v := o.mustMount(func(o *Options) { o.AcceptLostJournal = true })
		_ = v.Abandon()
		if err := m.disk.RemoveAll(m.dir + "/journal"); err != nil {
			t.Fatal(err)
		}
		id := ""
		m.patchFile(t, m.dir+"/owner.json", func(p []byte) []byte { id = string(p); return p })
		// The other machine's journal under this one's owner.json.
		fresh := newLab(t, 99, 8192)
		fresh.mustMount(nil).Abandon()
		moveTree(t, fresh.disk, fresh.dir+"/journal", m.disk, m.dir+"/journal")
		_, err := m.mount(m.bucket, nil)
		wantErr(t, err, ErrLostJournal)
		v = m.mustMount(func(o *Options) { o.AcceptLostJournal = true })
		wantFiles(t, v, u.committed, "from the bucket")
		mustClose(t, v)
		if !strings.Contains(id, `"journal"`) {
			t.Errorf("owner.json %q", id)
		}
	})
}

// moveTree copies the files of a directory between disks.
func moveTree(t *testing.T, from *vfs.Mem, dir string, to *vfs.Mem, target string) {
	t.Helper()
	list, err := from.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := to.MkdirAll(target, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, d := range list {
		h, err := from.OpenFile(dir+"/"+d.Name(), os.O_RDONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		size, _ := h.Size()
		p := make([]byte, size)
		if n, err := h.ReadAt(p, 0); n < len(p) {
			t.Fatal(err)
		}
		h.Close()
		if err := writeFile(to, target+"/"+d.Name(), p); err != nil {
			t.Fatal(err)
		}
	}
}

// Damage below what is known durable stops the mount; nothing is changed by it.
func TestVolume_Open_JournalDamagedInTheMiddle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 5, 8192)
		v := l.mustMount(nil)
		f := files{}
		for i := range 10 {
			f.put(t, v, "a", l.noise(1000), 900*i)
			mustFsync(t, v)
		}
		l.kill(v)
		for i := range 12 {
			m := l.fork(t, vfs.KillProcess, int64(i))
			at := 4096 + 100 + 500*i
			flip := func(p []byte) []byte { p[at] ^= 4; return p }
			m.patchFile(t, m.journalFile(t), flip)
			_, err := m.mount(m.bucket, nil)
			wantErr(t, err, ErrDamaged)
			if err == nil || !strings.Contains(err.Error(), ".jnl") {
				t.Errorf("error %v names no file", err)
			}
			m.patchFile(t, m.journalFile(t), flip)
			v := m.mustMount(nil)
			wantFiles(t, v, f, "with the byte restored")
			mustClose(t, v)
		}
	})
}

// Whatever is cut off or damaged above what is known durable: whole operations
// before it stay, and a following write reads back right.
func TestVolume_Open_JournalTornTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 5, 8192)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "a", l.noise(500), 0)
		mustCommit(t, v)
		states := []files{maps.Clone(f)}
		for i := range 6 {
			f.put(t, v, "a", l.noise(300), 250*i)
			states = append(states, maps.Clone(f))
		}
		end := int(v.journal.Stats().LiveBytes)
		l.kill(v)
		name := l.journalFile(t)
		used := 0
		l.patchFile(t, name, func(p []byte) []byte {
			for used = len(p); used > 0 && p[used-1] == 0; used-- {
			}
			return p
		})
		if end == 0 || used < 3000 {
			t.Fatalf("journal of %d live bytes, %d in its file", end, used)
		}
		seen := map[int]bool{}
		for i := 0; i < 2400; i += 37 {
			m := l.fork(t, vfs.KillProcess, int64(i))
			m.patchFile(t, name, func(p []byte) []byte {
				if i%2 == 0 {
					clear(p[used-i:])
				} else {
					p[used-i] ^= 0x10
				}
				return p
			})
			v, err := m.mount(m.bucket, nil)
			if errors.Is(err, ErrDamaged) {
				continue // below what is known durable
			}
			if err != nil {
				t.Fatalf("%d bytes before the end: %v", i, err)
			}
			got, err := filesOf(volumeTree{v})
			if err != nil {
				t.Fatal(err)
			}
			k := slices.IndexFunc(states, func(f files) bool { return f.diff(got) == "" })
			if k < 0 {
				t.Fatalf("%d bytes before the end: came back with no state that there was", i)
			}
			seen[k] = true
			got.put(t, v, "a", []byte("a following write"), 123)
			m.kill(v)
			v = m.mustMount(nil)
			wantFiles(t, v, got, "after a torn tail and a write")
			mustClose(t, v)
		}
		if len(seen) < 4 {
			t.Errorf("only %d different states came back", len(seen))
		}
	})
}

// A journal file without a byte, which no crash leaves, is a lost journal.
func TestVolume_Open_JournalFileEmpty(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		m := u.fork(t, vfs.KillProcess, 1)
		m.patchFile(t, m.journalFile(t), func([]byte) []byte { return nil })
		_, err := m.mount(m.bucket, nil)
		if !errors.Is(err, ErrLostJournal) && !errors.Is(err, ErrDamaged) {
			t.Fatalf("mount: %v", err)
		}
		u.back(t, u.fork(t, vfs.KillProcess, 2), "untouched")
	})
}

// However many mounts end before their first commit, the next one works.
func TestVolume_Open_ManyMountsWithoutACommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 5, 8192)
		l.opt.JournalBytes = 4 << 20
		f := files{}
		for i := range 12 {
			v := l.mustMount(nil)
			wantFiles(t, v, f, "after a kill")
			f.put(t, v, "a", l.noise(500), 400*i)
			mustFsync(t, v)
			if i == 11 {
				mustClose(t, v)
			} else {
				l.kill(v)
			}
		}
		v := l.mustMount(nil)
		wantFiles(t, v, f, "after a clean end")
		mustClose(t, v)
	})
}

// The longest write fits into the smallest journal.
func TestHandle_Write_LongestInSmallestJournal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 5, 8192)
		l.opt.JournalBytes, l.opt.JournalFileBytes, l.opt.ReferenceBytes = 4<<20, 0, 1<<30
		v := l.mustMount(func(o *Options) { o.Manual = false })
		f := files{}
		for i := range 6 {
			f.put(t, v, "a", l.noise(maxWrite), i*maxWrite)
		}
		wantFiles(t, v, f, "after long writes")
		mustClose(t, v)
	})
}
