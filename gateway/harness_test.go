package gateway

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	oldrand "math/rand"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/cisternfs/cistern/internal/blockcodec"
	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/mem"
)

// lab is a machine with a disk and a bucket, for tests in one process.
type lab struct {
	t      *testing.T
	bucket *mem.Store
	disk   *vfs.Mem
	fault  *vfs.Fault // over disk, of the mount under way
	kv     *metadata.MemKV
	rng    *rand.Rand
	// diskRng is the disk's own, of the package that it takes.
	diskRng *oldrand.Rand
	dir     string
	opt     Options // what every mount gets
	mu      sync.Mutex
	alive   *[]*Volume // of this machine and its forks
	form    form
}

// form is how a volume's blocks and documents are stored.
type form struct {
	compress   string
	encrypt    bool
	plainNames bool
}

// forms are those that differ.
func forms() map[string]form {
	return map[string]form{
		"plain": {}, "lz4": {compress: "lz4"}, "zstd": {compress: "zstd"}, "encrypted": {encrypt: true},
		"all": {compress: "zstd", encrypt: true}, "names readable": {compress: "lz4", encrypt: true, plainNames: true},
	}
}

// testKey is the n-th key of all tests.
func testKey(n int) *blockcodec.Key {
	k, err := blockcodec.ParseKey(bytes.Repeat([]byte{byte(n)}, 32))
	if err != nil {
		panic(err)
	}
	return k
}

// testKeys has the keys with these numbers.
func testKeys(n ...int) *Keys {
	var list []*blockcodec.Key
	for _, n := range n {
		list = append(list, testKey(n))
	}
	return blockcodec.NewRing(list...)
}

// bucketView shows a commit of a bucket, whatever the volume's form.
func bucketView(s objstore.Store, change func(*ViewOptions)) (*View, error) {
	keys := testKeys(1, 2, 3)
	s, _, err := Unlock(bg, s, "mem://lab", keys)
	if err != nil {
		return nil, err
	}
	o := ViewOptions{Store: s, Keys: keys, URL: "mem://lab", KV: metadata.NewMemKV()}
	if change != nil {
		change(&o)
	}
	return OpenView(bg, o)
}

// reap ends what a failed test left, so that nothing of it outlives the bubble.
func (l *lab) reap() {
	for _, v := range *l.alive {
		if !v.closed.Load() {
			_ = v.Abandon() // the test has failed already
		}
	}
}

func newLab(t *testing.T, seed int64, objectSize int64) *lab {
	return newLabAs(t, seed, objectSize, form{})
}

func newLabAs(t *testing.T, seed int64, objectSize int64, as form) *lab {
	l := &lab{form: as, t: t, alive: new([]*Volume), bucket: mem.NewRecording(), disk: vfs.NewMem(), kv: metadata.NewMemKV(), rng: rand.New(rand.NewPCG(uint64(seed), 7)), diskRng: oldrand.New(oldrand.NewSource(seed)), dir: "/state"}
	t.Cleanup(l.reap)
	l.opt = Options{
		URL: "mem://lab", Manual: true, CacheBytes: 8 << 20, JournalBytes: 8 << 20, JournalFileBytes: 2 << 20,
		ReferenceBytes: 3000, Rand: l, LeaseDuration: 15 * time.Second,
		Owner: metadata.Owner{Host: "lab", PID: 1, StateDir: l.dir},
	}
	if *logFlag {
		l.opt.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if as.encrypt {
		l.opt.Keys = testKeys(1)
	}
	_, err := Format(context.Background(), FormatOptions{
		Store: l.bucket, URL: "mem://lab", ObjectSize: objectSize, Rand: l, Compress: as.compress, Keys: l.opt.Keys, PlainNames: as.plainNames,
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Read makes the lab a source of random numbers, the same for the same seed.
func (l *lab) Read(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range p {
		p[i] = byte(l.rng.Uint32())
	}
	return len(p), nil
}

// mount opens the volume on the lab's disk, over a store of the caller's.
func (l *lab) mount(s objstore.Store, change func(*Options)) (*Volume, error) {
	v, err := l.open(s, change)
	if err == nil {
		*l.alive = append(slices.DeleteFunc(*l.alive, func(v *Volume) bool { return v.closed.Load() }), v)
	}
	return v, err
}

// open is mount for labs that mount at the same time: the caller ends the volume.
func (l *lab) open(s objstore.Store, change func(*Options)) (*Volume, error) {
	o := l.opt
	if l.form.encrypt {
		var err error
		if s, _, err = Unlock(bg, s, "mem://lab", l.opt.Keys); err != nil {
			return nil, err
		}
	}
	l.fault = vfs.NewFault(l.disk)
	o.Store, o.FS, o.StateDir = s, l.fault, l.dir
	o.OpenKV = func(dir string) (metadata.KV, error) {
		if _, err := l.disk.Stat(dir); err != nil {
			// The directory went, and the store in it.
			if err := l.disk.MkdirAll(dir, 0o700); err != nil {
				return nil, err
			}
			l.kv = metadata.NewMemKV()
		}
		return mountedKV{l.kv, l.fault}, nil
	}
	if change != nil {
		change(&o)
	}
	return Open(context.Background(), o)
}

// mountedKV is the index's store as one mount sees it: it outlives the mount,
// and dies with the process.
type mountedKV struct {
	metadata.KV
	fault *vfs.Fault
}

func (mountedKV) Close() error { return nil }

func (m mountedKV) Update(fn func(metadata.Writer) error) error {
	if m.fault.Killed() {
		return vfs.ErrKilled
	}
	return m.KV.Update(fn)
}

func (m mountedKV) Sync() error {
	if m.fault.Killed() {
		return vfs.ErrKilled
	}
	return m.KV.Sync()
}

func (l *lab) mustMount(change func(*Options)) *Volume {
	l.t.Helper()
	v, err := l.mount(l.bucket, change)
	if err != nil {
		l.t.Fatalf("mount: %v", err)
	}
	return v
}

// checkIndex runs the consistency check of the committed state.
func checkIndex(t *testing.T, ix *metadata.Index) {
	t.Helper()
	if err := ix.Check(func(p string) { t.Errorf("check: %s", p) }); err != nil {
		t.Errorf("check: %v", err)
	}
}

func mustClose(t *testing.T, v *Volume) {
	t.Helper()
	checkAfterCommit(t, v)
	if err := v.Close(context.Background()); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func checkAfterCommit(t *testing.T, v *Volume) {
	t.Helper()
	if _, err := v.Commit(context.Background()); err != nil {
		t.Fatalf("commit: %v", err)
	}
	checkIndex(t, v.index)
	err := v.cache.CheckAccounting()
	for tries := 0; err != nil && !v.opt.Manual && tries < 200; tries++ {
		time.Sleep(50 * time.Millisecond) // reading ahead and folds may be at work in it
		err = v.cache.CheckAccounting()
	}
	if err != nil {
		t.Errorf("cache: %v", err)
	}
}

var bg = context.Background()

func mkfile(t *testing.T, v *Volume, parent InodeID, name string) *Handle {
	t.Helper()
	n, err := v.Create(bg, parent, name, modeRegular|0o644, 0, Owner{}, nil)
	if err != nil {
		t.Fatalf("create %s: %v", name, err)
	}
	h, err := v.Open(bg, n.ID)
	if err != nil {
		t.Fatalf("open %s: %v", name, err)
	}
	v.Forget(n.ID, 1)
	return h
}

func pwrite(t *testing.T, h *Handle, p []byte, off int64) {
	t.Helper()
	if n, err := h.Write(bg, p, off, WriteFlags{}); n != len(p) || err != nil {
		t.Fatalf("write %d at %d: %d, %v", len(p), off, n, err)
	}
}

func pread(t *testing.T, h *Handle, n int, off int64) []byte {
	t.Helper()
	p := make([]byte, n)
	k, err := h.Read(bg, p, off)
	if err != nil {
		t.Fatalf("read %d at %d: %v", n, off, err)
	}
	return p[:k]
}

func openPath(t *testing.T, v *Volume, name string) *Handle {
	t.Helper()
	n, err := v.Lookup(bg, metadata.RootInode, name)
	if err != nil {
		t.Fatalf("lookup %s: %v", name, err)
	}
	h, err := v.Open(bg, n.ID)
	if err != nil {
		t.Fatalf("open %s: %v", name, err)
	}
	v.Forget(n.ID, 1)
	return h
}

func fill(rng *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rng.Uint32())
	}
	return p
}

func ptr[T any](v T) *T { return &v }

func wantErr(t *testing.T, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("got error %v, want %v", err, want)
	}
}
