package journal

import (
	"errors"
	"math/rand"
	"testing"

	"github.com/cisternfs/cistern/internal/vfs"
)

// tornCase is a small journal whose process was killed: 6 records, of which the
// first 4 are said to be durable by the ones after them.
type tornCase struct {
	disk  *vfs.Mem
	name  string
	bytes []byte
	ends  []int64 // where the group of lsn i+1 ends
}

func newTornCase(t *testing.T) tornCase {
	t.Helper()
	c := tornCase{disk: newDisk(t)}
	j := start(t, c.disk, bigOptions())
	for i := range 6 {
		appendNumbered(t, j, 40+30*i)
		c.ends = append(c.ends, j.current().end)
		if i == 3 {
			syncAll(t, j)
		}
	}
	c.name = names(t, c.disk, inUse)[0]
	next := c.disk.Crash(nil, vfs.KillProcess)
	must(t, j.Close())
	c.disk = next
	c.bytes = readAll(t, next, c.name)
	return c
}

// whole returns how many records lie wholly before an offset.
func (c *tornCase) whole(off int64) LSN {
	n := 0
	for n < len(c.ends) && c.ends[n] <= off {
		n++
	}
	return LSN(n)
}

// check replays a changed journal, goes on with it, and replays it again.
func (c *tornCase) check(t *testing.T, b []byte, damagedAt int64) {
	t.Helper()
	disk := newDisk(t)
	must(t, disk.MkdirAll(testDir, 0o700))
	writeAll(t, disk, c.name, b)
	j, err := Open(disk, testDir, bigOptions())
	if damagedAt < headerSize && len(b) > 0 {
		if !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d: open says %v", damagedAt, err)
		}
		return
	}
	must(t, err)
	defer stop(t, j)
	want := c.whole(damagedAt)
	records, info, err := replayAll(j, 0, 0)
	if e := checkNumbered(records, 1); e != nil || LSN(len(records)) != want {
		t.Fatalf("byte %d: %d records, want %d: %v", damagedAt, len(records), want, e)
	}
	durableSeen := LSN(0) // what is left tells
	if len(b) == len(c.bytes) && want < 5 || want >= 5 {
		durableSeen = 4
	}
	if want < durableSeen {
		var damage *DamageError
		if !errors.As(err, &damage) || damage.File != j.path(c.name) || damage.Off > damagedAt {
			t.Fatalf("byte %d: %d records, error %v", damagedAt, want, err)
		}
		return
	}
	if err != nil || !info.Torn || info.TornReason == "" || info.Last != want {
		t.Fatalf("byte %d: %+v, %v", damagedAt, info, err)
	}
	must(t, j.Start(2, want+1))
	appendNumbered(t, j, 50)
	must(t, j.Close())
	j, err = Open(disk, testDir, bigOptions())
	must(t, err)
	defer stop(t, j)
	records, info, err = replayAll(j, 0, want+1)
	must(t, err)
	must(t, checkNumbered(records, 1))
	if info.Torn || info.Last != want+1 {
		t.Fatalf("byte %d: after going on %+v", damagedAt, info)
	}
}

func TestJournal_Replay_CutAtEveryByte(t *testing.T) {
	c := newTornCase(t)
	for n := int64(0); n <= c.ends[5]; n++ {
		at := n
		if n == 0 {
			at = headerSize // holds nothing
		}
		c.check(t, c.bytes[:n], at)
	}
}

func TestJournal_Replay_FlippedAtEveryByte(t *testing.T) {
	c := newTornCase(t)
	rng := rand.New(rand.NewSource(1))
	for at := int64(0); at < c.ends[5]; at++ {
		b := append([]byte(nil), c.bytes...)
		b[at] ^= byte(1 << rng.Intn(8))
		c.check(t, b, at)
	}
}

func TestJournal_Replay_KnownDurableMakesTornTailDamage(t *testing.T) {
	c := newTornCase(t)
	b := append([]byte(nil), c.bytes...)
	b[c.ends[5]-9] ^= 1
	writeAll(t, c.disk, c.name, b)
	j, err := Open(c.disk, testDir, bigOptions())
	must(t, err)
	defer stop(t, j)
	if _, _, err := replayAll(j, 0, 6); !errors.Is(err, ErrDamaged) {
		t.Fatalf("a bad record that the last commit calls durable: %v", err)
	}
}

func TestJournal_Replay_CleanCloseMakesEveryFlipDamage(t *testing.T) {
	fs := newDisk(t)
	j := start(t, fs, bigOptions())
	for range 3 {
		appendNumbered(t, j, 20)
	}
	end := j.current().end
	must(t, j.Close())
	name := names(t, fs, inUse)[0]
	whole := readAll(t, fs, name)
	for at := int64(0); at < end; at++ {
		b := append([]byte(nil), whole...)
		b[at] ^= 0x10
		writeAll(t, fs, name, b)
		j, err := Open(fs, testDir, bigOptions())
		if err == nil {
			_, _, err = replayAll(j, 0, 0)
			must(t, j.Close())
		}
		if !errors.Is(err, ErrDamaged) {
			t.Fatalf("byte %d flipped after a clean close: %v", at, err)
		}
	}
}

func TestJournal_Replay_ErrTornFromCallback(t *testing.T) {
	for _, viaVerify := range []bool{false, true} {
		for bad := LSN(1); bad <= 6; bad++ {
			c := newTornCase(t)
			check := func(r Record) error {
				if r.LSN == bad {
					return ErrTorn
				}
				return nil
			}
			o := bigOptions()
			fn := check
			if viaVerify {
				o.Verify, fn = check, func(Record) error { return nil }
			}
			j, err := Open(c.disk, testDir, o)
			must(t, err)
			info, err := j.Replay(0, 0, fn)
			if bad <= 4 {
				if !errors.Is(err, ErrDamaged) {
					t.Fatalf("durable lsn %d torn: %v", bad, err)
				}
				must(t, j.Close())
				continue
			}
			if err != nil || !info.Torn || info.Last != bad-1 {
				t.Fatalf("lsn %d torn: %+v, %v", bad, info, err)
			}
			must(t, j.Start(2, bad+100))
			must(t, j.Close())
			// The record matches now, but was given up.
			o.Verify = nil
			j, err = Open(c.disk, testDir, o)
			must(t, err)
			records, info, err := replayAll(j, 0, 0)
			if err != nil || info.Torn || len(records) != int(bad)-1 {
				t.Fatalf("torn tail came back: %d records, %+v, %v", len(records), info, err)
			}
			must(t, j.Close())
		}
	}
}

func TestJournal_Replay_VerifyLeavesOutWholeGroup(t *testing.T) {
	fs := newDisk(t)
	j := start(t, fs, bigOptions())
	appendNumbered(t, j, 5)
	_, _, err := j.Append(nil, testEntry(2, 5), testEntry(3, 5))
	must(t, err)
	next := fs.Crash(nil, vfs.KillProcess)
	must(t, j.Close())
	o := bigOptions()
	o.Verify = func(r Record) error {
		if r.LSN == 3 {
			return ErrTorn
		}
		return nil
	}
	j, err = Open(next, testDir, o)
	must(t, err)
	defer stop(t, j)
	records, info, err := replayAll(j, 0, 0)
	if err != nil || len(records) != 1 || info.Last != 1 || !info.Torn {
		t.Fatalf("%d records, %+v, %v", len(records), info, err)
	}
}

// A recycled file's stale groups lie right behind the new ones, with matching
// offsets and any LSN; none may ever count.
func TestJournal_Replay_StaleTailsOfRecycledFiles(t *testing.T) {
	fs := newDisk(t)
	j := start(t, fs, smallOptions())
	for i := range 500 {
		appendNumbered(t, j, 1000)
		if i%10 == 9 {
			syncAll(t, j)
			must(t, j.Free(j.End()))
		}
		if i%7 != 0 {
			continue
		}
		next := fs.Crash(nil, vfs.KillProcess)
		j2, err := Open(next, testDir, smallOptions())
		must(t, err)
		records, info, err := replayAll(j2, 0, j.Durable())
		must(t, err)
		must(t, checkNumbered(records, info.First))
		if info.Torn || info.Last != j.End() {
			t.Fatalf("append %d: %+v", i, info)
		}
		must(t, j2.Close())
	}
	if s := j.Stats(); s.Files+s.Spares > 4 {
		t.Fatalf("%d files and %d spares, 4 allowed", s.Files, s.Spares)
	}
	must(t, j.Close())
}
