package gateway

import (
	"context"
	"fmt"
	"maps"
	oldrand "math/rand"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

// files are the regular files of a volume's top directory and their bytes.
type files map[string]string

// filesOf reads all files of the top directory.
func filesOf(r treeReader) (files, error) {
	names, err := r.namesOf(metadata.RootInode)
	if err != nil {
		return nil, err
	}
	out := files{}
	for name, ino := range names {
		n, err := r.inodeOf(ino)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if n.Mode&modeType != modeRegular {
			continue
		}
		p, err := r.bytesOf(n)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		out[name] = string(p)
	}
	return out, nil
}

// diff says how other states differ; "" when they don't.
func (f files) diff(other files) string {
	for _, name := range slices.Sorted(maps.Keys(f)) {
		got, ok := other[name]
		switch want := f[name]; {
		case !ok:
			return fmt.Sprintf("%s is missing", name)
		case got != want:
			i := 0
			for i < min(len(got), len(want)) && got[i] == want[i] {
				i++
			}
			return fmt.Sprintf("%s has %d bytes, want %d; first difference at %d", name, len(got), len(want), i)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(other)) {
		if _, ok := f[name]; !ok {
			return fmt.Sprintf("%s should not be there", name)
		}
	}
	return ""
}

func wantFiles(t *testing.T, v *Volume, want files, when string) {
	t.Helper()
	got, err := filesOf(volumeTree{v})
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	if d := want.diff(got); d != "" {
		t.Fatalf("%s: %s", when, d)
	}
}

// bucketFiles reads the files as a commit in a bucket has them; 0: the last.
func bucketFiles(t *testing.T, s objstore.Store, commit uint64) files {
	t.Helper()
	v, err := bucketView(s, func(o *ViewOptions) { o.Commit = commit })
	if err != nil {
		t.Fatalf("view of commit %d: %v", commit, err)
	}
	defer v.Close()
	got, err := filesOf(viewTree{v})
	if err != nil {
		t.Fatalf("view of commit %d: %v", commit, err)
	}
	return got
}

// put writes into a file of the top directory, on the volume and in f.
func (f files) put(t *testing.T, v *Volume, name string, p []byte, off int) {
	t.Helper()
	var h *Handle
	if _, ok := f[name]; ok {
		h = openPath(t, v, name)
	} else {
		h = mkfile(t, v, metadata.RootInode, name)
	}
	defer h.Close()
	pwrite(t, h, p, int64(off))
	b := []byte(f[name])
	if grow := off + len(p) - len(b); grow > 0 {
		b = append(b, make([]byte, grow)...)
	}
	copy(b[off:], p)
	f[name] = string(b)
}

func (f files) drop(t *testing.T, v *Volume, name string) {
	t.Helper()
	if err := v.Unlink(bg, metadata.RootInode, name); err != nil {
		t.Fatalf("unlink %s: %v", name, err)
	}
	delete(f, name)
}

func mustCommit(t *testing.T, v *Volume) metadata.CommitID {
	t.Helper()
	id, err := v.Commit(bg)
	if err != nil {
		t.Fatalf("commit: %v", err)
	}
	return id
}

func mustFsync(t *testing.T, v *Volume) {
	t.Helper()
	if err := v.Fsync(bg, metadata.RootInode); err != nil {
		t.Fatalf("fsync: %v", err)
	}
}

// fork gives a machine whose disk, index and bucket are what these are after a
// crash, and independent of them.
func (l *lab) fork(t *testing.T, mode vfs.CrashMode, seed int64) *lab {
	t.Helper()
	kv := l.kv.Crash(rand.New(rand.NewPCG(uint64(seed), 3)))
	if mode == vfs.KillProcess {
		kv = copyKV(t, l.kv)
	}
	rng := oldrand.New(oldrand.NewSource(seed))
	c := &lab{
		t: t, bucket: l.bucket.Snapshot(), disk: l.disk.Crash(rng, mode), kv: kv,
		rng: rand.New(rand.NewPCG(uint64(seed), 5)), diskRng: rng, alive: l.alive, dir: l.dir, opt: l.opt, form: l.form,
	}
	c.opt.Rand = c
	return c
}

// mortal is a machine that dies at its n-th call of disk, index or store.
type mortal struct {
	*lab
	store *faultstore.Store
	calls atomic.Int64
	at    int64
}

// dieAt makes a machine that dies at its n-th call from arm on.
func (l *lab) dieAt(n int) *mortal {
	m := &mortal{lab: l, at: int64(n)}
	m.store = faultstore.New(l.bucket, nil)
	return m
}

func (m *mortal) step() {
	if m.calls.Add(1)-1 == m.at {
		m.fault.Kill()
		m.store.Kill()
	}
}

// arm begins to count.
func (m *mortal) arm() {
	m.fault.SetHook(func(string, string, int) error { m.step(); return nil })
	m.store.SetHook(func(faultstore.Op, string, int) faultstore.Fault { m.step(); return faultstore.Fault{} })
}

// died says whether the machine met its n-th call.
func (m *mortal) died() bool { return m.calls.Load() > m.at }

// mountArmed mounts; with early the mount itself is counted.
func (m *mortal) mountArmed(early bool) (*Volume, error) {
	return m.mount(m.store, func(o *Options) {
		open := o.OpenKV
		o.OpenKV = func(dir string) (metadata.KV, error) {
			kv, err := open(dir)
			if err != nil {
				return nil, err
			}
			return steppedKV{kv, m}, nil
		}
		if early {
			m.arm()
		}
	})
}

// steppedKV counts the changes of the index as calls.
type steppedKV struct {
	metadata.KV
	m *mortal
}

func (k steppedKV) Update(fn func(metadata.Writer) error) error {
	if k.m.calls.Load() > 0 {
		k.m.step()
	}
	return k.KV.Update(fn)
}

func (k steppedKV) Sync() error {
	if k.m.calls.Load() > 0 {
		k.m.step()
	}
	return k.KV.Sync()
}

// walk lets the machine die at every call that step makes after prepare, in
// both ways, and calls check with the machine that comes back.
func (l *lab) walk(t *testing.T, early bool, step func(v *Volume) error, check func(l *lab, when string)) {
	t.Helper()
	for _, mode := range []vfs.CrashMode{vfs.KillProcess, vfs.PowerLoss} {
		for n := 0; ; n++ {
			when := fmt.Sprintf("mode %d, death at call %d", mode, n)
			m := l.fork(t, vfs.KillProcess, int64(n)).dieAt(n)
			v, err := m.mountArmed(early)
			if err == nil && !early {
				m.arm()
			}
			if err == nil && step != nil {
				err = step(v)
			}
			died := m.died()
			if !died && err != nil {
				t.Fatalf("%s: failed without a death: %v", when, err)
			}
			m.fault.Kill()
			m.store.Kill()
			if v != nil && !v.closed.Load() {
				_ = v.Abandon() // the disk is dead
			}
			m.store.Close()
			check(m.lab.fork(t, mode, int64(n)+1000), when)
			if t.Failed() {
				t.Fatalf("%s", when)
			}
			if !died {
				if n == 0 {
					t.Fatalf("%s: the step made no call", when)
				}
				break
			}
			if n > 5000 {
				t.Fatalf("the step does not end")
			}
		}
	}
}

// soon bounds a call of a dead machine in simulated time.
func soon() (context.Context, context.CancelFunc) { return context.WithTimeout(bg, time.Minute) }

func conditionOf(v objstore.Version) objstore.Condition { return objstore.Condition{IfVersion: v} }

// noise returns random bytes, also while the engine draws some.
func (l *lab) noise(n int) []byte {
	p := make([]byte, n)
	_, _ = l.Read(p) // never fails
	return p
}
