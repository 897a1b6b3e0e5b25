package gateway

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/internal/vfs"
	"github.com/cisternfs/cistern/journal"
	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

var (
	seedFlag  = flag.Int64("model.seed", 0, "run the random test with this seed only")
	logFlag   = flag.Bool("model.log", false, "show what the engine logs in random runs")
	stepsFlag = flag.Int("model.steps", 400, "operations of one random run")
)

// volumeTree shows a mounted volume to the model.
type volumeTree struct{ v *Volume }

func (t volumeTree) inodeOf(ino InodeID) (*Inode, error) { return t.v.GetAttr(bg, ino) }

func (t volumeTree) namesOf(ino InodeID) (map[string]InodeID, error) {
	out := map[string]InodeID{}
	last := uint64(0)
	err := t.v.ReadDir(bg, ino, 0, func(d metadata.Dentry) bool {
		if d.Cookie <= last {
			panic("cookies do not ascend")
		}
		last = d.Cookie
		out[d.Name] = d.Inode
		return true
	})
	return out, err
}

func (t volumeTree) bytesOf(n *Inode) ([]byte, error) {
	h, err := t.v.Open(bg, n.ID)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	p := make([]byte, n.Size+10)
	k, err := h.Read(bg, p, 0)
	return p[:k], err
}

// viewTree shows a commit in the bucket to the model.
type viewTree struct{ v *View }

func (t viewTree) inodeOf(ino InodeID) (*Inode, error) { return t.v.Inode(ino) }

func (t viewTree) namesOf(ino InodeID) (map[string]InodeID, error) {
	out := map[string]InodeID{}
	err := t.v.Names(ino, func(d metadata.Dentry) bool { out[d.Name] = d.Inode; return true })
	return out, err
}

func (t viewTree) bytesOf(n *Inode) ([]byte, error) {
	p := make([]byte, n.Size+10)
	k, err := t.v.Read(bg, n, p, 0)
	return p[:k], err
}

// state is the model after the record with an LSN; after a restore, which is none,
// also with the restore's commit.
type state struct {
	lsn      journal.LSN
	m        *model
	restored uint64 // the number of the last restore's commit before it; 0: there was none
}

// run is one random test: a lab, the volume and the model.
type run struct {
	key int // that writes, after the volume's first; 0 or 1: that one
	*lab
	seed    int64
	v       *Volume
	store   objstore.Store
	faulty  *faultstore.Store // below store
	faults  bool
	m       *model
	history []state
	durable journal.LSN // what fsync has promised
	bucket0 journal.LSN // what a commit has promised
	acked   journal.LSN // the last operation that was answered
	// restored is the number of the last restore's commit.
	restored uint64
	open     map[InodeID]*Handle
	step     int
	trace    []string
	size     int64
	maxFile  int64

	connections []*faultstore.Store
	hook        faultstore.Hook
}

func (r *run) fatalf(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf("seed %d, step %d: %s\nlast steps:\n%s", r.seed, r.step, fmt.Sprintf(format, args...), strings.Join(r.trace[max(0, len(r.trace)-25):], "\n"))
}

func (r *run) note(format string, args ...any) {
	r.trace = append(r.trace, fmt.Sprintf("%d: ", r.step)+fmt.Sprintf(format, args...))
}

// lsn is the last record of the volume.
func (r *run) lsn() journal.LSN {
	r.v.mu.RLock()
	defer r.v.mu.RUnlock()
	return max(r.v.active.last, journal.LSN(r.v.head.LastLSN), lastOf(r.v.frozen))
}

func lastOf(l *layer) journal.LSN {
	if l == nil {
		return 0
	}
	return l.last
}

// apply runs an operation on the volume and on the model and compares the
// answers. The state that the model would reach counts as possible also when the
// machine dies on the way.
func (r *run) apply(what string, onModel func(m *model) error, onVolume func() error) error {
	r.note("%s", what)
	next := r.m.next()
	before := r.lsn()
	want := onModel(next)
	err := onVolume()
	if r.died(err) {
		if want == nil {
			r.history = append(r.history, state{before + 1, next, r.restored})
		}
		return err
	}
	if (want == nil) != (err == nil) || want != nil && !errors.Is(err, want) {
		r.fatalf("%s: got %v, want %v", what, err, want)
	}
	if err == nil {
		r.m = next
		r.acked = r.lsn()
		r.history = append(r.history, state{r.acked, next, r.restored})
	}
	return err
}

// died says whether the disk is dead: what was under way may or may not be there.
func (r *run) died(err error) bool { return err != nil && r.fault.Killed() }

func (r *run) pick(f func(*mnode) bool) InodeID {
	var list []InodeID
	for ino, n := range r.m.nodes {
		if f(n) && (n.nlink > 0 || r.open[ino] != nil) {
			list = append(list, ino)
		}
	}
	if len(list) == 0 {
		return 0
	}
	sort.Slice(list, func(i, j int) bool { return list[i] < list[j] })
	return list[r.rnd(len(list))]
}

func (r *run) rnd(n int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.rng.IntN(n)
}

func (r *run) pickName() (InodeID, string) {
	dir := r.pick(func(n *mnode) bool { return n.dir() && n.nlink > 0 })
	return dir, "n" + strconv.Itoa(r.rnd(6))
}

func (r *run) handle(ino InodeID) *Handle {
	if h := r.open[ino]; h != nil {
		return h
	}
	h, err := r.v.Open(bg, ino)
	if err != nil {
		r.fatalf("open inode %d: %v", ino, err)
	}
	r.open[ino] = h
	return h
}

func (r *run) bytes() []byte {
	n := 1 + r.rnd(300)
	switch r.rnd(5) {
	case 0:
		n = 1 + r.rnd(int(min(2*r.size, 100000)))
	case 1:
		n = 4096 * (1 + r.rnd(4))
	}
	p := make([]byte, n)
	r.Read(p)
	if r.form.compress != "" && r.rnd(2) == 0 {
		for i := 8; i < n; i++ {
			p[i] = p[i-8] // rows that are alike
		}
	}
	return p
}

func (r *run) offset(n *mnode) int64 {
	switch r.rnd(4) {
	case 0:
		return n.size
	case 1:
		return int64(r.rnd(int(r.maxFile)))
	case 2:
		return int64(r.rnd(int(r.maxFile/4096))) * 4096
	}
	return int64(r.rnd(int(n.size) + 1))
}

// operate does one random operation of a user.
func (r *run) operate() error {
	reg := func(n *mnode) bool { return n.regular() }
	ino := r.pick(reg)
	k := r.rnd(100)
	if ino == 0 && k >= 25 {
		k = 0
	}
	switch {
	case k < 8:
		dir, name := r.pickName()
		mode := uint32(modeRegular | 0o644)
		target := ""
		switch r.rnd(6) {
		case 0, 1:
			mode = modeDir | 0o755
		case 2:
			mode, target = modeLink|0o777, "t"+name
		}
		r.v.mu.RLock()
		id := r.v.nextInode
		r.v.mu.RUnlock()
		return r.apply(fmt.Sprintf("create %d/%s %o", dir, name, mode),
			func(m *model) error { return m.create(dir, name, id, mode, target) },
			func() error {
				n, err := r.v.Create(bg, dir, name, mode, 0, Owner{}, []byte(target))
				if err == nil {
					r.v.Forget(n.ID, 1)
				}
				return err
			})
	case k < 13:
		dir, name := r.pickName()
		isDir := r.rnd(3) == 0
		return r.apply(fmt.Sprintf("unlink %d/%s dir=%v", dir, name, isDir),
			func(m *model) error { return m.unlink(dir, name, isDir) },
			func() error {
				if isDir {
					return r.v.Rmdir(bg, dir, name)
				}
				return r.v.Unlink(bg, dir, name)
			})
	case k < 20:
		d1, n1 := r.pickName()
		d2, n2 := r.pickName()
		flags := uint32(r.rnd(3))
		return r.apply(fmt.Sprintf("rename %d/%s %d/%s flags=%d", d1, n1, d2, n2, flags),
			func(m *model) error { return m.rename(d1, n1, d2, n2, flags) },
			func() error { return r.v.Rename(bg, d1, n1, d2, n2, flags) })
	case k < 23:
		dir, name := r.pickName()
		src := r.pick(func(n *mnode) bool { return n.nlink > 0 })
		return r.apply(fmt.Sprintf("link %d %d/%s", src, dir, name),
			func(m *model) error { return m.link(src, dir, name) },
			func() error {
				_, err := r.v.Link(bg, src, dir, name)
				if err == nil {
					r.v.Forget(src, 1)
				}
				return err
			})
	case k < 25:
		return r.attributes()
	}
	return r.data(ino, k)
}

func (r *run) attributes() error {
	ino := r.pick(func(n *mnode) bool { return n.nlink > 0 })
	switch r.rnd(3) {
	case 0:
		mode := uint32(r.rnd(0o1000))
		return r.apply(fmt.Sprintf("chmod %d %o", ino, mode),
			func(m *model) error { n := m.edit(ino); n.mode = n.mode&modeType | mode; return nil },
			func() error { _, err := r.v.SetAttr(bg, ino, SetAttr{Mode: &mode}); return err })
	case 1:
		uid := uint32(r.rnd(5))
		return r.apply(fmt.Sprintf("chown %d %d", ino, uid),
			func(m *model) error { m.edit(ino).uid = uid; return nil },
			func() error { _, err := r.v.SetAttr(bg, ino, SetAttr{UID: &uid}); return err })
	}
	name, value := "user.x"+strconv.Itoa(r.rnd(2)), strconv.Itoa(r.rnd(1000))
	return r.apply(fmt.Sprintf("setxattr %d %s", ino, name),
		func(m *model) error {
			n := m.edit(ino)
			if n.xattrs == nil {
				n.xattrs = map[string]string{}
			}
			n.xattrs[name] = value
			return nil
		},
		func() error { return r.v.SetXattr(bg, ino, name, []byte(value), 0) })
}

// data does one random operation on a file's bytes.
func (r *run) data(ino InodeID, k int) error {
	h := r.handle(ino)
	n := r.m.nodes[ino]
	off := r.offset(n)
	switch {
	case k < 55:
		p := r.bytes()
		off = min(off, r.maxFile)
		return r.apply(fmt.Sprintf("write %d %d+%d", ino, off, len(p)),
			func(m *model) error { m.write(ino, p, off); return nil },
			func() error { _, err := h.Write(bg, p, off, WriteFlags{}); return err })
	case k < 59:
		return r.apply(fmt.Sprintf("truncate %d %d", ino, off),
			func(m *model) error { m.truncate(ino, off); return nil },
			func() error { _, err := r.v.SetAttr(bg, ino, SetAttr{Size: &off}); return err })
	case k < 64:
		length := int64(1 + r.rnd(int(r.maxFile/2)))
		modes := []uint32{FallocPunchHole | FallocKeepSize, FallocZeroRange, FallocZeroRange | FallocKeepSize, 0}
		mode := modes[r.rnd(len(modes))]
		from, size := off, int64(0)
		if mode&FallocKeepSize == 0 {
			size = off + length
		}
		if mode == 0 {
			from = off + length
		}
		return r.apply(fmt.Sprintf("fallocate %d %d+%d mode %d", ino, off, length, mode),
			func(m *model) error { m.punch(ino, from, off+length, size); return nil },
			func() error { return h.Fallocate(bg, mode, off, length) })
	case k < 68:
		p := r.bytes()
		at := max(n.size, n.staged)
		if r.rnd(3) == 0 {
			at = n.size
		}
		if at > r.maxFile {
			return nil
		}
		return r.apply(fmt.Sprintf("stage %d %d+%d", ino, at, len(p)),
			func(m *model) error { return m.stage(ino, p, at) },
			func() error { _, err := h.Stage(bg, p, at); return err })
	case k < 71:
		size := n.size
		if n.staged > n.size && r.rnd(3) > 0 {
			size += int64(r.rnd(int(n.staged-n.size) + 1))
		}
		return r.apply(fmt.Sprintf("publish %d %d", ino, size),
			func(m *model) error { return m.publish(ino, size) },
			func() error { return h.Publish(bg, size) })
	case k < 75:
		return r.copySome(ino, h, n)
	case k < 79:
		return r.readSome(h, n, off)
	}
	if r.rnd(2) == 0 {
		r.note("close %d", ino)
		delete(r.open, ino)
		return h.Close()
	}
	r.note("fsync")
	lsn := r.lsn()
	err := r.v.Fsync(bg, ino)
	if err == nil {
		r.durable = lsn
	}
	return err
}

// copySome copies a slot, or some bytes, of a file to another or the same.
func (r *run) copySome(ino InodeID, h *Handle, n *mnode) error {
	dst := r.pick(func(n *mnode) bool { return n.regular() })
	from := int64(r.rnd(int(n.size/r.size)+1)) * r.size
	to := int64(r.rnd(int(r.maxFile/r.size)+1)) * r.size
	length := min(r.size, n.size-from)
	if r.rnd(4) == 0 {
		from += int64(r.rnd(100))
		length = min(length, n.size-from)
	}
	if length <= 0 || dst == ino && from < to+length && to < from+length {
		return nil
	}
	p := make([]byte, length)
	n.data.read(p, from)
	return r.apply(fmt.Sprintf("copy %d %d+%d to %d %d", ino, from, length, dst, to),
		func(m *model) error { m.write(dst, p, to); return nil },
		func() error {
			k, err := r.v.CopyRange(bg, h, from, r.handle(dst), to, length)
			if err == nil && k != length {
				r.fatalf("copied %d bytes of %d", k, length)
			}
			return err
		})
}

func (r *run) readSome(h *Handle, n *mnode, off int64) error {
	p := make([]byte, 1+r.rnd(int(r.maxFile)))
	k, err := h.Read(bg, p, off)
	if err != nil {
		return err
	}
	want := make([]byte, max(0, min(int64(len(p)), n.size-off)))
	n.data.read(want, off)
	if k != len(want) || !slices.Equal(p[:k], want) {
		r.fatalf("read inode %d at %d: %d bytes, want %d (or other ones)", h.Inode(), off, k, len(want))
	}
	return r.seekSome(h, n, off)
}

// seekSome checks that what is called a hole is zeros, and that the answers fit
// together.
func (r *run) seekSome(h *Handle, n *mnode, off int64) error {
	data, err := h.Seek(bg, off, SeekData)
	if errors.Is(err, ErrNoData) {
		data = n.size
	} else if err != nil {
		return err
	}
	if off < n.size && (data < off || data > n.size) {
		r.fatalf("seek data in inode %d from %d: %d, size %d", h.Inode(), off, data, n.size)
	}
	if off < data {
		hole := make([]byte, data-off)
		n.data.read(hole, off)
		for i, b := range hole {
			if b != 0 {
				r.fatalf("seek data in inode %d from %d: %d, but there is data at %d", h.Inode(), off, data, off+int64(i))
			}
		}
	}
	hole, err := h.Seek(bg, off, SeekHole)
	switch {
	case off >= n.size && errors.Is(err, ErrNoData):
	case err != nil:
		return err
	case hole < off || hole > n.size || data == off && hole == off && off < n.size:
		r.fatalf("seek hole in inode %d from %d: %d, data at %d, size %d", h.Inode(), off, hole, data, n.size)
	}
	return nil
}

// background does one random piece of background work.
func (r *run) background() error {
	ctx, cancel := context.WithTimeout(bg, time.Hour)
	defer cancel()
	switch k := r.rnd(20); {
	case k < 10:
		r.note("commit")
		lsn := r.lsn()
		_, err := r.v.Commit(ctx)
		if err == nil {
			r.bucket0, r.durable = lsn, max(lsn, r.durable)
		}
		return err
	case k < 14:
		r.note("fold")
		_, err := r.v.Fold(ctx, true)
		return err
	case k < 16:
		r.note("manifest")
		return r.v.WriteManifest(ctx)
	case k < 18:
		r.note("collect")
		if _, err := r.v.Collect(ctx, false); err != nil {
			return err
		}
		_, err := r.v.CollectOrphans(ctx, false)
		return err
	case k < 19:
		r.note("renew")
		return r.v.RenewLease(ctx)
	}
	r.note("evict")
	r.v.cache.Evict(1 << 30)
	return nil
}

// check compares everything that can be seen.
func (r *run) check() {
	r.disarm()
	d := r.m.diff(volumeTree{r.v})
	for range 3 { // a read may give up when all its attempts meet a fault, which is no other content
		if !strings.Contains(d, ErrStore.Error()) {
			break
		}
		d = r.m.diff(volumeTree{r.v})
	}
	if d != "" {
		r.fatalf("volume differs: %s", d)
	}
}

// checkBucket compares the last commit with the state at its cut.
func (r *run) checkBucket(s objstore.Store) {
	v, err := bucketView(s, nil)
	if err != nil {
		r.fatalf("view: %v", err)
	}
	defer v.Close()
	if d := r.atCommit(v.Head().N, v.Head().LastLSN).diff(viewTree{v}); d != "" {
		r.fatalf("commit %v differs from the state at lsn %d: %s", v.Head().CommitID, v.Head().LastLSN, d)
	}
}

// at returns the state after a record. Records without an entry (frees, and
// what the engine does by itself) change nothing that is seen.
func (r *run) at(lsn journal.LSN) *model {
	i := sort.Search(len(r.history), func(i int) bool { return r.history[i].lsn > lsn })
	return r.history[i-1].m
}

// atCommit returns the state of a commit by its number and its last record.
func (r *run) atCommit(n, lsn uint64) *model {
	i := sort.Search(len(r.history), func(i int) bool { return r.history[i].lsn > journal.LSN(lsn) }) - 1
	for r.history[i].restored > n {
		i--
	}
	return r.history[i].m
}

// recovered finds the state that a volume came back to, after a crash that may
// lose what is above lost.
func (r *run) recovered(promised journal.LSN, what string) {
	lsn := r.lsn()
	if lsn < promised {
		r.fatalf("%s: came back at lsn %d, %d was promised", what, lsn, promised)
	}
	r.m = r.at(lsn)
	i := sort.Search(len(r.history), func(i int) bool { return r.history[i].lsn > lsn })
	r.history = r.history[:i]
	r.durable, r.bucket0, r.acked = lsn, min(r.bucket0, lsn), lsn
	r.check()
	// What nobody holds any more is gone, also for the model.
	next := r.m.next()
	for ino, n := range next.nodes {
		if n.nlink == 0 {
			delete(next.nodes, ino)
		}
	}
	r.m = next
	r.history = append(r.history, state{lsn, next, r.restored})
}

// crash ends the mount without warning and mounts again.
func (r *run) crash() {
	power := r.rnd(2) == 0
	r.note("crash power=%v at lsn %d, durable %d, bucket %d, killed %v", power, r.lsn(), r.durable, r.bucket0, r.fault.Killed())
	r.fault.Kill()
	r.faulty.Kill()
	if err := r.v.Abandon(); err != nil && !errors.Is(err, vfs.ErrKilled) {
		r.note("abandon: %v", err)
	}
	r.open = map[InodeID]*Handle{}
	promised := r.acked
	r.mu.Lock()
	if power {
		promised = r.durable
		r.disk = r.disk.Crash(r.diskRng, vfs.PowerLoss)
		r.kv = r.kv.Crash(r.rng)
	} else {
		r.disk = r.disk.Crash(r.diskRng, vfs.KillProcess)
	}
	r.mu.Unlock()
	r.remount("crash", promised)
}

// loseDisk ends the mount and forgets the state directory.
func (r *run) loseDisk() {
	r.note("lose the disk")
	r.fault.Kill()
	r.faulty.Kill()
	_ = r.v.Abandon() // the disk is dead
	r.open = map[InodeID]*Handle{}
	if err := r.disk.RemoveAll(r.dir); err != nil {
		r.fatalf("%v", err)
	}
	r.remount("lost disk", r.bucket0)
}

func (r *run) remount(what string, promised journal.LSN) {
	r.mountAgain(what)
	r.recovered(promised, what)
}

// mountAgain mounts over a fresh connection to the bucket.
func (r *run) mountAgain(what string) {
	r.newStore()
	r.rotate()
	v, err := r.mount(r.store, nil)
	for try := 0; errors.Is(err, ErrStore) && try < 20; try++ {
		v, err = r.mount(r.store, nil)
	}
	if err != nil {
		r.fatalf("mount after %s: %v", what, err)
	}
	r.v = v
}

// newStore connects to the bucket: what is under way on an old connection may
// still arrive there.
func (r *run) newStore() {
	var hook faultstore.Hook
	if r.faults {
		hook = faultstore.Random(uint64(r.rnd(1<<30)), faultstore.Rates{
			Before: 0.03, Lost: 0.03, Late: 0.02, Duplicate: 0.02, Cut: 0.01, Flip: 0.01,
			MaxDelay: time.Second, MaxLate: time.Minute,
		})
	}
	r.faulty = faultstore.New(r.bucket, hook)
	r.connections = append(r.connections, r.faulty)
	r.store = objstore.WithRetry(r.faulty, objstore.RetryOptions{})
	r.hook = hook
}

// killAtStore makes the machine die at a later request to the bucket.
func (r *run) killAtStore(in int) {
	n := r.faulty.Calls() + in
	r.faulty.SetHook(func(op faultstore.Op, key string, i int) faultstore.Fault {
		if i >= n {
			r.fault.Kill()
			r.faulty.Kill()
		}
		if r.hook != nil {
			return r.hook(op, key, i)
		}
		return faultstore.Fault{}
	})
}

// killAtDisk makes the machine die at a later call of the local disk.
func (r *run) killAtDisk(in int) {
	n := r.fault.Calls() + in
	r.fault.SetHook(func(op, name string, i int) error {
		if i >= n {
			r.fault.Kill()
			r.faulty.Kill()
		}
		return nil
	})
}

// disarm lets the machine live on.
func (r *run) disarm() {
	r.fault.SetHook(nil)
	r.faulty.SetHook(r.hook)
}

// restart unmounts and mounts again.
func (r *run) restart() {
	r.disarm()
	r.note("clean restart")
	for _, h := range r.open {
		h.Close()
	}
	r.open = map[InodeID]*Handle{}
	if _, err := r.v.Commit(bg); err != nil {
		r.fatalf("commit: %v", err)
	}
	checkIndex(r.t, r.v.index)
	if err := r.v.cache.CheckAccounting(); err != nil {
		r.fatalf("cache: %v", err)
	}
	lsn := r.lsn()
	if err := r.v.Close(bg); err != nil {
		r.fatalf("close: %v", err)
	}
	r.remount("clean restart", lsn)
}

// randomForm draws how a volume is stored: a third of them as it is.
func randomForm(seed int64) form {
	rng := rand.New(rand.NewPCG(uint64(seed), 3))
	if rng.IntN(3) == 0 {
		return form{}
	}
	f := form{compress: []string{"", "lz4", "zstd"}[rng.IntN(3)], encrypt: rng.IntN(3) > 0}
	f.plainNames = f.encrypt && rng.IntN(2) == 0
	return f
}

// rotate sometimes mounts with another key for writing, the earlier ones behind it.
func (r *run) rotate() {
	if !r.form.encrypt || r.rnd(3) > 0 {
		return
	}
	r.key = min(r.key+1, 3) // a key that was replaced never writes again
	r.note("key %d", r.key)
	r.opt.Keys = testKeys(r.key, 1, 2, 3)
}

// randomRun is one run of the random test from a seed. each is called after
// every step that left the volume mounted.
func randomRun(t *testing.T, seed int64, steps int, faults bool, each ...func(r *run)) {
	synctest.Test(t, func(t *testing.T) {
		rng := rand.New(rand.NewPCG(uint64(seed), 1))
		sizes := []int64{4096, 8192, 12288, 131072, 262144}
		size := sizes[rng.IntN(len(sizes))]
		l := newLabAs(t, seed, size, randomForm(seed))
		l.opt.CacheBytes = []int64{64 << 10, 512 << 10, 8 << 20}[rng.IntN(3)]
		if *logFlag {
			l.opt.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
		}
		r := &run{lab: l, seed: seed, m: newModel(), open: map[InodeID]*Handle{}, size: size, maxFile: min(4*size, 400000)}
		if size < 100000 {
			r.maxFile = 12 * size
		}
		r.history = []state{{lsn: 0, m: r.m}}
		r.faults = faults
		defer func() {
			if t.Failed() && r.v != nil {
				r.fault.Kill()
				r.faulty.Kill()
				_ = r.v.Abandon() // so that nothing of it outlives the bubble
			}
			for _, c := range r.connections {
				c.Close()
			}
		}()
		r.mountAgain("format")
		killed := false
		for r.step = 0; r.step < steps; r.step++ {
			if !killed && r.rnd(60) == 0 {
				killed = true
				if r.rnd(2) == 0 {
					r.killAtDisk(r.rnd(400))
				} else {
					r.killAtStore(r.rnd(30))
				}
			}
			var err error
			switch k := r.rnd(100); {
			case k < 80:
				err = r.operate()
			case k < 96:
				err = r.background()
			case k < 97:
				r.check()
				killed = false
			case k < 98:
				r.restart()
				killed = false
			case k < 99:
				r.loseDisk()
				killed = false
			default:
				r.crash()
				killed = false
			}
			if r.fault.Killed() {
				r.crash()
				killed = false
			} else if err != nil && !r.allowed(err) {
				r.fatalf("%v", err)
			}
			for _, fn := range each {
				fn(r)
			}
		}
		r.restart()
		r.checkBucket(l.bucket)
		r.prefixes(seed)
		r.disarm()
		wantFoldedForGood(t, r.v)
		r.check()
		mustClose(t, r.v)
	})
}

// allowed says which errors of an operation are answers and not failures.
func (r *run) allowed(err error) bool {
	for _, e := range []error{ErrExist, ErrNotExist, ErrNotDir, ErrIsDir, ErrNotEmpty, ErrInvalid, ErrNotPermit} {
		if errors.Is(err, e) {
			return true
		}
	}
	return r.faults && (errors.Is(err, ErrStore) || errors.Is(err, ErrDamaged) || errors.Is(err, objstore.ErrUnavailable))
}

// prefixes mounts the bucket as it was after some of its changes: every one of
// them shows the state at some record.
func (r *run) prefixes(seed int64) {
	n := len(r.bucket.History())
	count := prefixCount()
	rng := rand.New(rand.NewPCG(uint64(seed), 2))
	for range count {
		i := rng.IntN(n) + 1
		s := r.bucket.At(i)
		if _, err := s.Head(bg, metadata.VolumeKey); err != nil {
			continue // the format had not ended
		}
		v, err := bucketView(s, nil)
		if err != nil {
			r.fatalf("after %d of %d changes of the bucket: %v", i, n, err)
		}
		if d := r.atCommit(v.Head().N, v.Head().LastLSN).diff(viewTree{v}); d != "" {
			r.fatalf("after %d of %d changes of the bucket, commit %v: %s", i, n, v.Head().CommitID, d)
		}
		v.Close()
	}
}

func prefixCount() int {
	if s := os.Getenv("SOAK_PREFIXES"); s != "" {
		if n, err := strconv.Atoi(s); err == nil {
			return n
		}
	}
	return 6
}

func TestVolume_Random(t *testing.T) {
	if *seedFlag != 0 {
		randomRun(t, *seedFlag, *stepsFlag, *seedFlag%2 == 0)
		return
	}
	runs := 60
	if testing.Short() {
		runs = 15
	}
	for i := range runs {
		seed := int64(i + 1)
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) { randomRun(t, seed, *stepsFlag, seed%2 == 0) })
	}
	for start, seed := time.Now(), time.Now().UnixNano()%1e9; time.Since(start) < soakTime(t) && !t.Failed(); seed++ {
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) { randomRun(t, seed, *stepsFlag, seed%2 == 0) })
	}
}

// soakTime is how long random tests go on beyond their short form.
func soakTime(t *testing.T) time.Duration {
	s := os.Getenv("SOAK_SECONDS")
	if s == "" {
		return 0
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatalf("SOAK_SECONDS=%q: %v", s, err)
	}
	return time.Duration(n) * time.Second
}
