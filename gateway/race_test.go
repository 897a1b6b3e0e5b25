package gateway

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cisternfs/cistern/metadata"
)

// sector is the unit of the patterns: it is written and read whole.
const sector = 512

// stamp fills sectors from a file's offset on so that each tells whose it is.
func stamp(p []byte, file, version uint64, off int64) {
	for at := 0; at < len(p); at += sector {
		no := uint64(off)/sector + uint64(at)/sector
		for i := 0; i < sector; i += 32 {
			b := p[at+i:]
			binary.LittleEndian.PutUint64(b, file)
			binary.LittleEndian.PutUint64(b[8:], no)
			binary.LittleEndian.PutUint64(b[16:], version)
			binary.LittleEndian.PutUint64(b[24:], file^no<<20^version<<40)
		}
	}
}

// stamped returns the version of a sector that is whole and in its place; 0 for zeros.
func stamped(p []byte, file uint64, off int64) (uint64, error) {
	version := binary.LittleEndian.Uint64(p[16:])
	want := make([]byte, sector)
	if version != 0 {
		stamp(want, file, version, off)
	}
	for i := range p {
		if p[i] != want[i] {
			return 0, fmt.Errorf("sector at %d of file %d, version %d: wrong byte at %d", off, file, version, i)
		}
	}
	return version, nil
}

// crowd is many users of one volume, with all background work running.
type crowd struct {
	t     *testing.T
	v     *Volume
	stop  chan struct{}
	ops   atomic.Int64
	wg    sync.WaitGroup
	clock atomic.Uint64 // versions
}

func newCrowd(t *testing.T, l *lab) *crowd {
	t.Helper()
	v := l.mustMount(func(o *Options) {
		live(o)
		o.CommitInterval, o.LeaseDuration = time.Millisecond, time.Second
		o.Collect.Every = 5 * time.Millisecond
		o.Fold.QuietAfter = time.Millisecond
	})
	c := &crowd{t: t, v: v, stop: make(chan struct{})}
	c.loop(3*time.Millisecond, func(*rand.Rand) error { _, err := v.Fold(bg, true); return err })
	c.loop(7*time.Millisecond, func(*rand.Rand) error { return v.WriteManifest(bg) })
	c.loop(2*time.Millisecond, func(*rand.Rand) error { v.cache.Evict(64 << 10); return nil })
	c.loop(11*time.Millisecond, func(*rand.Rand) error { v.Status(); v.Statfs(); return nil })
	return c
}

// loop calls f again and again until the crowd stops.
func (c *crowd) loop(pause time.Duration, f func(*rand.Rand) error) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), 1))
	c.wg.Go(func() {
		for {
			select {
			case <-c.stop:
				return
			default:
			}
			if err := f(rng); err != nil {
				c.t.Error(err)
				return
			}
			c.ops.Add(1)
			if pause > 0 {
				time.Sleep(pause)
			}
		}
	})
}

// end waits until so many operations were done, or one failed.
func (c *crowd) end(ops int64) {
	for c.ops.Load() < ops && !c.t.Failed() {
		time.Sleep(5 * time.Millisecond)
	}
	close(c.stop)
	c.wg.Wait()
}

const crowdFile = 96 << 10 // bytes of a file

// access writes or reads some sectors of a file whose sectors are stamped.
func (c *crowd) access(rng *rand.Rand, h *Handle, file uint64) error {
	off := int64(rng.IntN(crowdFile/sector)) * sector
	p := make([]byte, sector*(1+rng.IntN(20)))
	if rng.IntN(2) == 0 {
		stamp(p, file, c.clock.Add(1), off)
		_, err := h.Write(bg, p, off, WriteFlags{})
		return err
	}
	n, err := h.Read(bg, p, off)
	if err != nil {
		return err
	}
	for at := 0; at+sector <= n; at += sector {
		if _, err := stamped(p[at:at+sector], file, off+int64(at)); err != nil {
			return err
		}
	}
	return nil
}

// cut changes a file's size or makes a hole, at sectors.
func (c *crowd) cut(rng *rand.Rand, h *Handle) error {
	at := int64(rng.IntN(crowdFile/sector)) * sector
	switch rng.IntN(3) {
	case 0:
		return h.Fallocate(bg, FallocPunchHole|FallocKeepSize, at, sector*int64(1+rng.IntN(40)))
	case 1:
		at = 0
	}
	_, err := c.v.SetAttr(bg, h.Inode(), SetAttr{Size: &at})
	return err
}

// Delete and truncate race with upload, eviction and fetch of the same objects.
func TestStorageManager_Case17_DeleteAndTruncateRace(t *testing.T) {
	l := newLab(t, 17, 8192)
	l.opt.CacheBytes = 256 << 10
	c := newCrowd(t, l)
	var mu sync.RWMutex // guards h and file, which change when the file is replaced
	file := uint64(1)
	h := mkfile(t, c.v, 1, "victim")
	for range 4 {
		c.loop(0, func(rng *rand.Rand) error {
			mu.RLock()
			defer mu.RUnlock()
			return c.access(rng, h, file)
		})
	}
	c.loop(time.Millisecond, func(rng *rand.Rand) error {
		mu.RLock()
		defer mu.RUnlock()
		return c.cut(rng, h)
	})
	c.loop(5*time.Millisecond, func(rng *rand.Rand) error {
		mu.Lock()
		defer mu.Unlock()
		if err := c.v.Unlink(bg, 1, "victim"); err != nil {
			return err
		}
		h.Close()
		file++
		n, err := c.v.Create(bg, 1, "victim", modeRegular|0o600, 0, Owner{}, nil)
		if err != nil {
			return err
		}
		defer c.v.Forget(n.ID, 1)
		h, err = c.v.Open(bg, n.ID)
		return err
	})
	c.end(10000)
	h.Close()
	mustCommit(t, c.v)
	wantCheckClean(t, c.v)
	mustClose(t, c.v)
}

// Many users of overlapping files: no wrong byte, no lost update.
func TestVolume_ManyUsers(t *testing.T) {
	l := newLab(t, 18, 8192)
	l.opt.CacheBytes = 512 << 10
	c := newCrowd(t, l)
	const shared = 3
	var open []*Handle
	for i := range shared {
		open = append(open, mkfile(t, c.v, 1, fmt.Sprint("shared", i)))
	}
	for range 6 {
		c.loop(0, func(rng *rand.Rand) error {
			i := rng.IntN(shared)
			if rng.IntN(30) == 0 {
				return c.cut(rng, open[i])
			}
			return c.access(rng, open[i], uint64(i+1))
		})
	}
	// Each of these owns every fourth sector of one file and knows what is there.
	stripes := mkfile(t, c.v, 1, "stripes")
	const owners = 4
	var known [owners][crowdFile / sector / owners]uint64
	for w := range owners {
		c.loop(0, func(rng *rand.Rand) error {
			k := rng.IntN(len(known[w]))
			off := int64(k*owners+w) * sector
			p := make([]byte, sector)
			if rng.IntN(2) == 0 {
				version := c.clock.Add(1)
				stamp(p, 99, version, off)
				if _, err := stripes.Write(bg, p, off, WriteFlags{}); err != nil {
					return err
				}
				known[w][k] = version
				return nil
			}
			if _, err := stripes.Read(bg, p, off); err != nil {
				return err
			}
			got, err := stamped(p, 99, off)
			if err == nil && got != known[w][k] {
				err = fmt.Errorf("stripe %d at %d reads version %d, want %d", w, off, got, known[w][k])
			}
			return err
		})
	}
	for w := range 3 {
		c.loop(0, func(rng *rand.Rand) error { return c.replace(rng, uint64(1000+w)) })
	}
	c.loop(10*time.Millisecond, func(*rand.Rand) error { return c.v.Fsync(bg, 1) })
	ops := int64(20000)
	if testing.Short() {
		ops = 5000
	}
	c.end(ops)
	for _, h := range open {
		h.Close()
	}
	stripes.Close()
	mustCommit(t, c.v)
	wantCheckClean(t, c.v)
	mustClose(t, c.v)
	v := l.mustMount(nil)
	h := openPath(t, v, "stripes")
	for w := range owners {
		for k, version := range known[w] {
			p := make([]byte, sector)
			off := int64(k*owners+w) * sector
			if _, err := h.Read(bg, p, off); err != nil {
				t.Fatal(err)
			}
			if got, err := stamped(p, 99, off); err != nil || got != version {
				t.Errorf("after a remount stripe %d at %d reads version %d, want %d, %v", w, off, got, version, err)
			}
		}
	}
	h.Close()
	mustClose(t, v)
}

// replace writes a temporary file and renames it over another, or reads one
// that somebody made so: it is whole.
func (c *crowd) replace(rng *rand.Rand, me uint64) error {
	target := fmt.Sprint("table", rng.IntN(4))
	if rng.IntN(2) == 0 {
		return c.readWhole(target)
	}
	tmp := fmt.Sprint("tmp", me)
	n, err := c.v.Create(bg, 1, tmp, modeRegular|0o600, 0, Owner{}, nil)
	if err != nil {
		return err
	}
	defer c.v.Forget(n.ID, 1)
	h, err := c.v.Open(bg, n.ID)
	if err != nil {
		return err
	}
	defer h.Close()
	p := make([]byte, sector*(1+rng.IntN(40)))
	stamp(p, 7, c.clock.Add(1), 0)
	if _, err := h.Write(bg, p, 0, WriteFlags{}); err != nil {
		return err
	}
	if rng.IntN(5) == 0 {
		return c.v.Unlink(bg, 1, tmp)
	}
	return c.v.Rename(bg, 1, tmp, 1, target, 0)
}

func (c *crowd) readWhole(name string) error {
	n, err := c.v.Lookup(bg, metadata.RootInode, name)
	if errors.Is(err, ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer c.v.Forget(n.ID, 1)
	h, err := c.v.Open(bg, n.ID)
	if err != nil {
		return err
	}
	defer h.Close()
	p := make([]byte, 64<<10)
	k, err := h.Read(bg, p, 0)
	if err != nil {
		return err
	}
	first := uint64(0)
	for at := 0; at+sector <= k; at += sector {
		version, err := stamped(p[at:at+sector], 7, int64(at))
		if err != nil {
			return err
		}
		if at == 0 {
			first = version
		}
		if version == 0 || version != first {
			return fmt.Errorf("%s is mixed of versions %d and %d", name, first, version)
		}
	}
	if k == 0 {
		return fmt.Errorf("%s is empty", name)
	}
	return nil
}
