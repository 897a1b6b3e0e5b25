package binlogfs

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"testing"
	"time"
)

// A replica that begins where the index allows gets what it would get if everything
// before were read: for random logs of several domains, servers or UUIDs, ordered or
// not, and random replicas.
func TestSkipper_Jump_SendsWhatReadingAllSends(t *testing.T) {
	jumped := map[string]int{}
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		flavor, ordered := []Flavor{MariaDB, MySQL}[seed%2], rnd.IntN(4) > 0
		f, log := randomLog(rnd, flavor, ordered)
		replica := randomReplica(rnd, flavor, log)
		all, some := replica(), replica()
		at := some.jump(f)
		if at > int64(len(magic)) {
			jumped[fmt.Sprint(flavor, " ordered ", ordered)]++
		}
		want, got := "", ""
		for i, g := range log {
			if skip, err := all.group(g); err == nil && !skip {
				want += g.String() + " "
			}
			if offset(i) < at {
				continue
			}
			if skip, err := some.group(g); err == nil && !skip {
				got += g.String() + " "
			}
		}
		if want != got {
			t.Fatalf("seed %d: log %v from %d:\n got %s\nwant %s", seed, log, at, got, want)
		}
	}
	if jumped["mariadb ordered true"] < 100 || jumped["mysql ordered true"] < 100 {
		t.Errorf("it hardly ever jumps: %v", jumped)
	}
}

func offset(i int) int64 { return int64(i)*indexEvery/3 + 400 }

// randomLog is a file of groups, of which every third has a mark.
func randomLog(rnd *rand.Rand, flavor Flavor, ordered bool) (*FileInfo, []GTID) {
	f := &FileInfo{Flavor: flavor, Ordered: true}
	added := NewGTIDState(flavor)
	var log []GTID
	next := map[uint32]uint64{}
	for i := range 5 + rnd.IntN(40) {
		d := rnd.Uint32N(3)
		next[d] += 1 + rnd.Uint64N(2)
		g := GTID{Flavor: flavor, Number: next[d]}
		if !ordered && rnd.IntN(5) == 0 {
			g.Number = 1 + rnd.Uint64N(next[d])
		}
		if flavor == MariaDB {
			g.Domain, g.ServerID = d, 1+rnd.Uint32N(2)
		} else {
			g.SID = fmt.Sprintf("a2bedc31-ecea-11f1-98b0-02fc0000000%d", d)
		}
		if added.Has(g) {
			continue
		}
		before := added.Clone()
		if !f.Ordered {
			before = nil
		}
		f.Ordered = f.Ordered && added.follows(g)
		f.mark(offset(len(log)), time.Unix(int64(i), 0), g, before)
		f.Groups++
		added.Add(g)
		log = append(log, g)
	}
	f.Added = added.String()
	return f, log
}

// randomReplica has come to somewhere in a log; each call makes another of it.
func randomReplica(rnd *rand.Rand, flavor Flavor, log []GTID) func() *skipper {
	if flavor == MySQL {
		have := NewGTIDState(MySQL)
		end := rnd.IntN(len(log) + 1)
		for i, g := range log {
			if i < end || rnd.IntN(10) == 0 {
				have.Add(g)
			}
		}
		return func() *skipper { return &skipper{have: have} }
	}
	wait := map[uint32]GTID{}
	last := rnd.IntN(len(log))
	for _, g := range log[:last] {
		if rnd.IntN(3) > 0 {
			wait[g.Domain] = g
		}
	}
	if rnd.IntN(4) == 0 {
		delete(wait, rnd.Uint32N(3))
	}
	return func() *skipper {
		s := &skipper{wait: map[uint32]GTID{}}
		maps.Copy(s.wait, wait)
		return s
	}
}
