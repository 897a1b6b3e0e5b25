package gateway

import (
	"bytes"
	"errors"
	"fmt"
	"path"
	"strconv"
	"testing"
	"time"

	"github.com/cisternfs/cistern/objstore"
)

// kept is a snapshot with what it must show.
type kept struct {
	info SnapshotInfo
	m    *model
}

// snapshots takes, deletes and reads snapshots beside a random run: an oracle
// of what each of them has to show for as long as it is there.
type snapshots struct {
	list    []kept
	next    int
	traced  int // steps of the run that were looked at
	checked int
}

// step does one thing at random, and reads every snapshot after a collection.
func (o *snapshots) step(r *run) {
	time.Sleep(time.Microsecond) // no two operations are of one moment
	s, _, err := Unlock(bg, r.bucket, "mem://lab", testKeys(1, 2, 3))
	if err != nil {
		r.fatalf("%v", err)
	}
	switch k := r.rnd(40); {
	case k < 3:
		o.create(r, s)
	case k < 4 && len(o.list) > 0:
		i := r.rnd(len(o.list))
		x := o.list[i].info
		if _, err := DeleteSnapshot(bg, s, "mem://lab", x.Name); err != nil {
			r.fatalf("delete snapshot %s: %v", x.Name, err)
		}
		r.note("snapshot %s of commit %d is deleted", x.Name, x.Commit.N)
		o.list = append(o.list[:i:i], o.list[i+1:]...)
	case k < 5 && len(o.list) > 1:
		a, b := r.rnd(len(o.list)), r.rnd(len(o.list))
		diffOf(r, s, o.list[a].info.Name, o.list[b].info.Name)
	}
	for ; o.traced < len(r.trace); o.traced++ {
		if r.trace[o.traced] == strconv.Itoa(r.step)+": collect" {
			o.check(r, s)
		}
	}
}

// create keeps the last commit, or one some commits back, which may be gone.
func (o *snapshots) create(r *run, s objstore.Store) {
	n := uint64(0)
	if r.rnd(2) == 0 {
		head, err := FindCommit(bg, s, 0, "mem://lab")
		if err != nil {
			r.fatalf("head: %v", err)
		}
		n = head.ID.N - uint64(r.rnd(int(min(head.ID.N, 5))))
	}
	name := fmt.Sprint("s", o.next)
	o.next++
	x := r.snapshot(s, name, n)
	info, err := CreateSnapshot(bg, x)
	r.note("snapshot %s of commit %d: %v, %v", name, n, info.Commit, err)
	if err != nil {
		if n == 0 || !r.allowed(err) && !errors.Is(err, ErrCollected) {
			r.fatalf("snapshot %s of commit %d: %v", name, n, err)
		}
		return
	}
	c, err := FindCommit(bg, s, info.Commit.N, "mem://lab")
	if err != nil {
		r.fatalf("commit %v of snapshot %s: %v", info.Commit, name, err)
	}
	o.list = append(o.list, kept{info, r.atCommit(c.ID.N, c.LastLSN)})
}

func (o *snapshots) check(r *run, s objstore.Store) {
	for _, x := range o.list {
		v := viewOfPoint(r, s, x.info.Name)
		if v.Head().CommitID != x.info.Commit {
			r.fatalf("snapshot %s shows commit %v, want %v", x.info.Name, v.Head().CommitID, x.info.Commit)
		}
		if d := x.m.diff(viewTree{v}); d != "" {
			r.fatalf("snapshot %s of commit %v: %s", x.info.Name, x.info.Commit, d)
		}
		v.Close()
		o.checked++
	}
}

func viewOfPoint(r *run, s objstore.Store, point string) *View {
	n, err := ResolvePoint(bg, s, "mem://lab", point)
	if err != nil {
		r.fatalf("@%s: %v", point, err)
	}
	v, err := bucketView(r.bucket, func(o *ViewOptions) { o.Commit = n })
	if err != nil {
		r.fatalf("view of @%s: %v", point, err)
	}
	return v
}

// tellTree returns the inodes of a commit by path.
func tellTree(r *run, v *View) map[string]*Inode {
	out := map[string]*Inode{}
	var walk func(dir InodeID, at string)
	walk = func(dir InodeID, at string) {
		names, err := viewTree{v}.namesOf(dir)
		if err != nil {
			r.fatalf("names: %v", err)
		}
		for name, ino := range names {
			n, err := v.Inode(ino)
			if err != nil {
				r.fatalf("%s: %v", name, err)
			}
			out[path.Join(at, name)] = n
			if n.Mode&modeType == modeDir {
				walk(ino, path.Join(at, name))
			}
		}
	}
	walk(1, "")
	return out
}

// diffOf checks Diff against the two trees: whatever differs is told, and what
// is told differs.
func diffOf(r *run, s objstore.Store, from, to string) {
	a, b := viewOfPoint(r, s, from), viewOfPoint(r, s, to)
	defer a.Close()
	defer b.Close()
	before, after := tellTree(r, a), tellTree(r, b)
	added, removed, came, left, changed := map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]Change{}
	err := Diff(bg, a, b, func(c Change) error {
		switch c.Kind {
		case ChangeAdded:
			added[c.Path] = true
		case ChangeRemoved:
			removed[c.Path] = true
		case ChangeRenamed:
			came[c.Path], left[c.From] = true, true
			if before[c.From] == nil || after[c.Path] == nil || before[c.From].ID != after[c.Path].ID {
				r.fatalf("diff %s %s: renamed from %q to %q", from, to, c.From, c.Path)
			}
		}
		if c.Kind != ChangeRemoved && after[c.Path] == nil && c.Path != "" || c.Kind == ChangeRemoved && before[c.Path] == nil {
			r.fatalf("diff %s %s: %s %q is not there", from, to, c.Kind, c.Path)
		}
		changed[c.Path] = c
		return nil
	})
	if err != nil {
		r.fatalf("diff %s %s: %v", from, to, err)
	}
	above := func(m map[string]bool, p string) bool {
		for p = path.Dir(p); p != "."; p = path.Dir(p) {
			if m[p] {
				return true
			}
		}
		return false
	}
	for p, n := range after {
		old := before[p]
		moved := above(came, p)
		if old == nil && !added[p] && !came[p] && !moved || old != nil && added[p] && old.ID == n.ID {
			r.fatalf("diff %s %s: %q was %v, added %v, renamed %v, above it %v", from, to, p, old, added[p], came[p], moved)
		}
		if n.Mode&modeType != modeRegular || moved || came[p] || added[p] || old == nil || old.Mode&modeType != modeRegular {
			continue
		}
		x, errA := viewTree{a}.bytesOf(old)
		y, errB := viewTree{b}.bytesOf(n)
		if errA != nil || errB != nil {
			r.fatalf("diff %s %s: %q: %v, %v", from, to, p, errA, errB)
		}
		if !bytes.Equal(x, y) && !changed[p].Content {
			r.fatalf("diff %s %s: the content of %q changed: %+v", from, to, p, changed[p])
		}
		if old.ID == n.ID && old.Ctime == n.Ctime && changed[p].Path != "" {
			r.fatalf("diff %s %s: %q is the same: %+v", from, to, p, changed[p])
		}
	}
	for p := range before {
		if after[p] == nil && !removed[p] && !left[p] && !above(left, p) {
			r.fatalf("diff %s %s: %q went untold", from, to, p)
		}
	}
}

// Snapshots are taken and deleted at random beside everything else: after every
// collection each of them reads back whole.
func TestVolume_Random_Snapshots(t *testing.T) {
	runs, checked := 10, 0
	for i := range runs {
		seed := int64(5000 + i)
		t.Run(strconv.FormatInt(seed, 10), func(t *testing.T) {
			o := &snapshots{}
			randomRun(t, seed, *stepsFlag, seed%2 == 0, o.step)
			checked += o.checked
		})
	}
	if checked == 0 && !t.Failed() {
		t.Error("no snapshot was ever read after a collection")
	}
	t.Logf("%d snapshots read after collections", checked)
}
