package gateway

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
)

// fsynced is a machine that was killed right after an fsync: nothing came after
// the last group, which journals bytes, or refers to them.
func fsynced(t *testing.T, last int) (l *lab, committed, now files) {
	t.Helper()
	l = newLab(t, 77, 8192)
	v := l.mustMount(nil)
	now = files{}
	now.put(t, v, "old", l.noise(9000), 0)
	mustCommit(t, v)
	committed = maps.Clone(now)
	now.put(t, v, "old", l.noise(500), 100)
	now.put(t, v, "new", l.noise(700), 0)
	mustFsync(t, v)
	now.put(t, v, "new", l.noise(last), 700)
	mustFsync(t, v)
	l.kill(v)
	return l, committed, now
}

// usedEnd is where the journal file's last group ends.
func (l *lab) usedEnd(t *testing.T) int {
	t.Helper()
	used := 0
	l.patchFile(t, l.journalFile(t), func(p []byte) []byte {
		for used = len(p); used > 0 && p[used-1] == 0; used-- {
		}
		return p
	})
	return used
}

// refusesLoss mounts a machine on which durable bytes were harmed: that is said, and
// once it is accepted the last commit is what there is, and the rest is set aside.
func (l *lab) refusesLoss(t *testing.T, committed files, what string, names ...string) *SalvageReport {
	t.Helper()
	for range 2 {
		_, err := l.mount(l.bucket, nil)
		if !errors.Is(err, ErrDamaged) {
			t.Fatalf("%s: mount: %v", what, err)
		}
		for _, name := range append(names, ".jnl at byte ", "durable", "--accept-lost-journal") {
			if !strings.Contains(err.Error(), name) {
				t.Fatalf("%s: the error %q has no %q", what, err, name)
			}
		}
	}
	v := l.mustMount(func(o *Options) { o.AcceptLostJournal = true })
	wantFiles(t, v, committed, what)
	f := maps.Clone(committed)
	f.put(t, v, "after", []byte("goes on"), 0)
	mustFsync(t, v)
	l.kill(v)
	v = l.mustMount(nil)
	wantFiles(t, v, f, what+", killed again")
	mustClose(t, v)
	all, err := Asides(l.disk, l.dir)
	if err != nil || len(all) == 0 || all[0].InPlace {
		t.Fatalf("%s: asides are %+v, %v", what, all, err)
	}
	r, _ := salvageOf(t, l.disk, all[0], l.bucket)
	return r
}

// The last group's bytes are cut off, zeroed, flipped after a kill: no torn tail.
func TestVolume_Open_LastFsyncedGroupHarmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, committed, now := fsynced(t, 600)
		end, name := l.usedEnd(t), l.journalFile(t)
		for i, back := 0, 1; back < 640; i, back = i+1, back+23 {
			m := l.fork(t, vfs.KillProcess, int64(back))
			how := []string{"cut", "zeroed", "flipped"}[i%3]
			m.patchFile(t, name, func(p []byte) []byte {
				switch how {
				case "cut":
					return p[:end-back]
				case "zeroed":
					clear(p[end-back:])
				default:
					p[end-back] ^= 0x20
				}
				return p
			})
			r := m.refusesLoss(t, committed, fmt.Sprintf("%s %d bytes before the end", how, back), "record")
			if len(r.Damage) == 0 || !strings.Contains(strings.Join(r.Damage, " "), "which were durable, are missing") {
				t.Fatalf("%s %d bytes before the end: salvage says %q and %q", how, back, r.Damage, r.Torn)
			}
			for _, f := range r.Files {
				if f.Whole {
					t.Fatalf("%s: %s may lack writes and is called whole", how, f.Path)
				}
			}
		}
		v := l.mustMount(nil)
		wantFiles(t, v, now, "unharmed")
		mustClose(t, v)
	})
}

// The bytes that the last record refers to are harmed in the cache.
func TestVolume_Open_LastFsyncedReferenceHarmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, committed, now := fsynced(t, 8000)
		cached := ""
		for path, body := range tree(t, l.disk, l.dir+"/cache", files{}) {
			if len(body) > 700 && strings.HasSuffix(now["new"], body[len(body)-100:]) {
				cached = path
			}
		}
		if cached == "" {
			t.Fatal("no cache file has the bytes of the reference")
		}
		for at := 700; at < 8700; at += 403 {
			m := l.fork(t, vfs.KillProcess, int64(at))
			m.patchFile(t, cached, func(p []byte) []byte { p[at] ^= 1; return p })
			m.refusesLoss(t, committed, fmt.Sprintf("byte %d flipped", at), "cache file")
		}
		for _, size := range []int{0, 700, 5000, 8699} {
			m := l.fork(t, vfs.KillProcess, int64(size))
			m.patchFile(t, cached, func(p []byte) []byte { return p[:size] })
			m.refusesLoss(t, committed, fmt.Sprintf("cut to %d bytes", size), "cache file")
		}
		m := l.fork(t, vfs.KillProcess, 1)
		m.patchFile(t, cached, func(p []byte) []byte { clear(p[4096:]); return p })
		m.refusesLoss(t, committed, "a hole", "cache file")
		m = l.fork(t, vfs.KillProcess, 2)
		if err := m.disk.Remove(cached); err != nil {
			t.Fatal(err)
		}
		m.refusesLoss(t, committed, "removed", cached)
		v := l.mustMount(nil)
		wantFiles(t, v, now, "unharmed")
		mustClose(t, v)
	})
}

// What may come over the bytes of a durable reference and is no damage: writes that
// are journaled, or that another reference has, holes, other sizes, the end of the
// file, a commit and what the cache does with its bytes afterwards.
func TestVolume_Open_DurableReferenceOverwritten(t *testing.T) {
	over := map[string]func(t *testing.T, l *lab, v *Volume, f files){
		"write":     func(t *testing.T, l *lab, v *Volume, f files) { f.put(t, v, "a", l.noise(300), 1000) },
		"reference": func(t *testing.T, l *lab, v *Volume, f files) { f.put(t, v, "a", l.noise(8000), 0) },
		"beside":    func(t *testing.T, l *lab, v *Volume, f files) { f.put(t, v, "a", l.noise(8000), 8000) },
		"punch":     func(t *testing.T, l *lab, v *Volume, f files) { f.punch(t, v, "a", 500, 5000) },
		"truncate":  func(t *testing.T, l *lab, v *Volume, f files) { f.truncate(t, v, "a", 100) },
		"to nothing and anew": func(t *testing.T, l *lab, v *Volume, f files) {
			f.truncate(t, v, "a", 0)
			f.put(t, v, "a", l.noise(8000), 0)
		},
		"unlink": func(t *testing.T, l *lab, v *Volume, f files) { f.drop(t, v, "a") },
		"unlink and free": func(t *testing.T, l *lab, v *Volume, f files) {
			f.drop(t, v, "a")
			if err := v.reapAll(bg); err != nil {
				t.Fatal(err)
			}
		},
		"rename over": func(t *testing.T, l *lab, v *Volume, f files) {
			f.put(t, v, "b", l.noise(4000), 0)
			if err := v.Rename(bg, metadata.RootInode, "b", metadata.RootInode, "a", 0); err != nil {
				t.Fatal(err)
			}
			f["a"] = f["b"]
			delete(f, "b")
		},
		"commit and evict": func(t *testing.T, l *lab, v *Volume, f files) {
			mustCommit(t, v)
			v.cache.Evict(1 << 30)
		},
		"commit, write and evict": func(t *testing.T, l *lab, v *Volume, f files) {
			mustCommit(t, v)
			f.put(t, v, "a", l.noise(8000), 0)
			mustFsync(t, v)
			v.cache.Evict(1 << 30)
		},
	}
	for name, change := range over {
		for _, sync := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				l := newLab(t, 78, 8192)
				v := l.mustMount(nil)
				f := files{}
				f.put(t, v, "a", l.noise(8000), 0)
				mustFsync(t, v)
				change(t, l, v, f)
				if sync {
					mustFsync(t, v)
				}
				for i := range 3 { // kills before the next commit, each recovery's own among them
					l.kill(v)
					v = l.mustMount(nil)
					wantFiles(t, v, f, fmt.Sprintf("%s, kill %d", name, i+1))
				}
				l.fault.Kill()
				_ = v.Abandon() // the disk is dead
				l.disk, l.kv = l.disk.Crash(l.diskRng, vfs.PowerLoss), l.kv.Crash(l.rng)
				v = l.mustMount(nil)
				wantFiles(t, v, f, name+", power lost")
				mustClose(t, v)
			})
		}
	}
}

// A state directory of a version that did not write the file mounts as before.
func TestVolume_Open_StateOfVersionWithoutSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, now := fsynced(t, 8000)
		if err := l.disk.Remove(l.dir + "/journal/synced"); err != nil {
			t.Fatal(err)
		}
		v := l.mustMount(nil)
		wantFiles(t, v, now, "without the file")
		mustClose(t, v)
		if _, err := l.disk.Stat(l.dir + "/journal/synced"); err != nil {
			t.Errorf("the mount made none: %v", err)
		}
	})
}

// Damage of owner.json can be accepted, like that of the journal: nothing that is
// there is lost by it.
func TestVolume_Open_OwnerFileDamageAccepted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		u := newUsed(t, 8192)
		size := 0
		u.patchFile(t, u.dir+"/owner.json", func(p []byte) []byte { size = len(p); return p })
		for i := 0; i < size; i += 11 {
			m := u.fork(t, vfs.KillProcess, int64(i))
			spoil := func(p []byte) []byte { p[i] ^= 1 << (i % 7); return p }
			if i == 0 {
				spoil = func([]byte) []byte { return nil }
			}
			m.patchFile(t, m.dir+"/owner.json", spoil)
			_, err := m.mount(m.bucket, nil)
			if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "--accept-lost-journal") {
				t.Fatalf("byte %d: the error %v does not say what to do", i, err)
			}
			v := m.mustMount(func(o *Options) { o.AcceptLostJournal, o.Takeover = true, true })
			wantFiles(t, v, u.committed, "from the bucket")
			mustClose(t, v)
			wantAside(t, m, "accepted")
			if _, err := m.disk.Stat(m.dir + "/owner.json" + damagedSuffix); err != nil {
				t.Fatalf("byte %d: the damaged file is gone: %v", i, err)
			}
			mustClose(t, m.mustMount(nil))
		}
	})
}

// A lost journal that was accepted: salvage says what is known of it.
func TestSalvage_JournalLost_SaysWhatIsMissing(t *testing.T) {
	lose := map[string]func(l *lab) error{
		"the directory": func(l *lab) error { return l.disk.RemoveAll(l.dir + "/journal") },
		"its files": func(l *lab) error {
			for path := range tree(l.t, l.disk, l.dir+"/journal", files{}) {
				if strings.HasSuffix(path, ".jnl") {
					if err := l.disk.Remove(path); err != nil {
						return err
					}
				}
			}
			return nil
		},
	}
	for name, f := range lose {
		synctest.Test(t, func(t *testing.T) {
			l, committed, _ := fsynced(t, 600)
			if err := f(l); err != nil {
				t.Fatal(err)
			}
			_, err := l.mount(l.bucket, nil)
			wantErr(t, err, ErrLostJournal)
			v := l.mustMount(func(o *Options) { o.AcceptLostJournal = true })
			wantFiles(t, v, committed, name)
			mustClose(t, v)
			all, err := Asides(l.disk, l.dir)
			if err != nil || len(all) == 0 {
				t.Fatalf("%s: asides are %+v, %v", name, all, err)
			}
			r, _ := salvageOf(t, l.disk, all[0], l.bucket)
			text := strings.Join(r.Damage, "; ")
			if !strings.Contains(text, "has no file of the journal any more") || r.Base == nil || !r.BaseRead || strings.Contains(r.BaseWhy, "format") {
				t.Errorf("%s: damage %q, base %v: %s", name, text, r.Base, r.BaseWhy)
			}
			if name == "its files" && !strings.Contains(text, "which were durable, are missing") {
				t.Errorf("the damage %q does not say which records there were", text)
			}
		})
	}
}

// Files that share a damaged object are named, all of them, also where a check of
// several commits reads it once.
func TestView_Check_SharedObjectDamaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 79, 8192)
		v := l.mustMount(nil)
		f := files{}
		f.put(t, v, "a", l.noise(8192), 0)
		mustCommit(t, v)
		for i := range 5 {
			f.put(t, v, fmt.Sprint("copy", i), nil, 0)
			src, dst := openPath(t, v, "a"), openPath(t, v, fmt.Sprint("copy", i))
			if n, err := v.CopyRange(bg, src, 0, dst, 0, 8192); n != 8192 || err != nil {
				t.Fatalf("copy: %d, %v", n, err)
			}
			src.Close()
			dst.Close()
		}
		id := mustCommit(t, v)
		f.put(t, v, "later", l.noise(100), 0)
		mustCommit(t, v)
		mustClose(t, v)
		hurt := ""
		for _, key := range bucketKeys(t, l.bucket) {
			if strings.HasPrefix(key, metadata.ObjectPrefix) {
				hurt = key
				harm(t, l.bucket, key, "flipped")
			}
		}
		seen := NewVerified()
		for _, n := range []uint64{0, id.N} {
			w, err := bucketView(l.bucket, func(o *ViewOptions) { o.Commit = n })
			if err != nil {
				t.Fatal(err)
			}
			named := map[string]int{}
			r, err := w.Check(bg, CheckOptions{Data: true, Verified: seen, Problem: func(p Problem) {
				if p.Key != hurt || p.Len == 0 || !strings.Contains(p.Reason, sumMismatch) {
					t.Errorf("commit %d: %s", n, p)
				}
				named[p.Path]++
			}})
			if err != nil || len(named) != 6 || r.Problems != 6 {
				t.Errorf("commit %d: files named %v, %d problems, %v", n, named, r.Problems, err)
			}
			w.Close()
		}
	})
}
