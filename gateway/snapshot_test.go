package gateway

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cisternfs/cistern/metadata"
	"github.com/cisternfs/cistern/objstore"
	"github.com/cisternfs/cistern/objstore/faultstore"
)

func (l *lab) snapshot(s objstore.Store, name string, n uint64) SnapshotOptions {
	return SnapshotOptions{Store: s, URL: "mem://lab", Name: name, Holder: "lab", Commit: n, Rand: l}
}

func (l *lab) mustSnapshot(t *testing.T, name string, n uint64) SnapshotInfo {
	t.Helper()
	info, err := CreateSnapshot(bg, l.snapshot(l.bucket, name, n))
	if err != nil {
		t.Fatalf("snapshot %s: %v", name, err)
	}
	return info
}

// named are the snapshots of a name that count.
func (l *lab) named(t *testing.T, name string) (list []SnapshotInfo) {
	t.Helper()
	all, err := Snapshots(bg, l.bucket)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Name == name && !s.Expired {
			list = append(list, s)
		}
	}
	return list
}

func TestCheckSnapshotName_GoodAndBad(t *testing.T) {
	for _, name := range []string{"a", "Before-upgrade_2.1", "7-before", "2026", "hourly-2026-11-30", strings.Repeat("x", 100)} {
		if err := CheckNewName(name); err != nil && name != "2026" {
			t.Errorf("%s: %v", name, err)
		}
		if got := metadata.PinKey(name, "r"); got != "pins/"+name+"~r.json" {
			t.Errorf("%s: its key is %s", name, got)
		}
	}
	for _, name := range []string{"", "2026", "0", "-15m", "a b", "a/b", "a@b", "a~b", "über", ".", "..", "_x", "2026-11-30", "2026-11-30T12:00:00Z", "follow", strings.Repeat("x", 101)} {
		wantErr(t, CheckSnapshotName(name), ErrInvalid)
		if _, _, err := parsePoint(name, time.Now()); err == nil && name != "" && CheckSnapshotName(name) == nil {
			t.Errorf("%q is a name and a point, too", name)
		}
	}
	// What was allowed once is found, and not made again.
	for _, name := range []string{"2026-x", "2026-11", "1999-", "2026T10", "15m", "7d", "1w2d"} {
		if err := CheckSnapshotName(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		wantErr(t, CheckNewName(name), ErrInvalid)
	}
}

// A snapshot or schedule with a name that looks like a time is refused; one that is
// there is found, and a schedule of such a name goes on.
func TestSnapshot_NameLikeATime_OnlyWhereItIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 3, 8192)
		v := l.mustMount(nil)
		for _, name := range []string{"2026-x", "15m"} {
			o := l.snapshot(l.bucket, name, 0)
			_, err := CreateSnapshot(bg, o)
			wantErr(t, err, ErrInvalid)
			wantErr(t, SetSchedule(bg, l.bucket, Schedule{Name: name, Every: int64(time.Hour)}, l), ErrInvalid)
			_, err = ResolvePoint(bg, l.bucket, "mem://lab", name)
			if !errors.Is(err, ErrPoint) || !strings.Contains(err.Error(), "a time like 2026-01-31T12:00:00Z") {
				t.Errorf("@%s: %v", name, err)
			}
			o.Tags = map[string]string{ScheduleTag: name}
			x, err := createSnapshot(bg, o)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := ResolvePoint(bg, l.bucket, "mem://lab", name); err != nil || n != x.Commit.N {
				t.Errorf("@%s: %d, %v, want %d", name, n, err, x.Commit.N)
			}
			if _, err := DeleteSnapshot(bg, l.bucket, "mem://lab", name); err != nil {
				t.Error(err)
			}
		}
		mustClose(t, v)
	})
}

func TestCreateSnapshot_KeepsItsCommitUntilDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		old, then, now := someDead(t, l, v)
		o := l.snapshot(l.bucket, "nightly", old.N)
		o.Tags = map[string]string{"why": "upgrade"}
		info, err := CreateSnapshot(bg, o)
		if err != nil {
			t.Fatal(err)
		}
		c, err := FindCommit(bg, l.bucket, old.N, "mem://lab")
		if err != nil || info.Commit != old || info.Time.UnixNano() != c.Time || info.Totals.UsedBytes != c.Totals.UsedBytes || info.Tags["why"] != "upgrade" || info.Holder != "lab" || !info.Expiry.IsZero() || info.Created.IsZero() {
			t.Errorf("%+v, %v", info, err)
		}
		for range 3 {
			time.Sleep(48 * time.Hour)
			if c := mustCollect(t, v); c.Things != 0 || c.Kept == 0 {
				t.Errorf("collected %+v", c)
			}
		}
		if n, err := ResolvePoint(bg, l.bucket, "mem://lab", "nightly"); err != nil || n != old.N {
			t.Errorf("@nightly: %d, %v", n, err)
		}
		if d := then.diff(bucketFiles(t, l.bucket, old.N)); d != "" {
			t.Error(d)
		}
		_, err = CreateSnapshot(bg, l.snapshot(l.bucket, "nightly", 0))
		wantErr(t, err, ErrNameTaken)
		l.mustSnapshot(t, "nightly2", 0)
		_, err = DeleteSnapshot(bg, l.bucket, "mem://lab", "nightlx")
		wantErr(t, err, ErrPoint)
		if !strings.Contains(err.Error(), "the nearest are nightly, nightly2") {
			t.Errorf("near names: %v", err)
		}
		if gone, err := DeleteSnapshot(bg, l.bucket, "mem://lab", "nightly"); err != nil || gone.Commit != old {
			t.Errorf("deleted %+v, %v", gone, err)
		}
		if c := mustCollect(t, v); c.Things == 0 {
			t.Errorf("a deleted snapshot keeps its commit: %+v", c)
		}
		_, err = ResolvePoint(bg, l.bucket, "mem://lab", "nightly")
		wantErr(t, err, ErrPoint)
		l.mustSnapshot(t, "nightly", 0) // the name is free again
		wantFiles(t, v, now, "afterwards")
		mustClose(t, v)
	})
}

func TestCreateSnapshot_BadOptions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		for what, change := range map[string]func(o *SnapshotOptions){
			"name":             func(o *SnapshotOptions) { o.Name = "a@b" },
			"lifetime":         func(o *SnapshotOptions) { o.Lifetime = time.Hour },
			"tag key":          func(o *SnapshotOptions) { o.Tags = map[string]string{"a=b": ""} },
			"a schedule's tag": func(o *SnapshotOptions) { o.Tags = map[string]string{ScheduleTag: "auto"} },
			"a restore's tag":  func(o *SnapshotOptions) { o.Tags = map[string]string{restoreTag: "1"} },
			"tag value":        func(o *SnapshotOptions) { o.Tags = map[string]string{"a": "\xff"} },
			"tags": func(o *SnapshotOptions) {
				o.Tags = map[string]string{}
				for i := range maxTags + 1 {
					o.Tags[fmt.Sprint(i)] = ""
				}
			},
		} {
			o := l.snapshot(l.bucket, "x", 0)
			change(&o)
			if _, err := CreateSnapshot(bg, o); !errors.Is(err, ErrInvalid) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := CreateSnapshot(bg, l.snapshot(l.bucket, "x", 99))
		wantErr(t, err, ErrNotExist)
		wantKinds(t, l.bucket, "nothing was made")
	})
}

func TestSnapshot_Expiry_EndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		old, _, _ := someDead(t, l, v)
		o := l.snapshot(l.bucket, "short", old.N)
		o.Lifetime = 5 * time.Hour
		if _, err := CreateSnapshot(bg, o); err != nil {
			t.Fatal(err)
		}
		time.Sleep(5*time.Hour + time.Second)
		_, err := ResolvePoint(bg, l.bucket, "mem://lab", "short")
		wantErr(t, err, ErrPoint)
		if !strings.Contains(err.Error(), "expired at") {
			t.Error(err)
		}
		if list, err := Snapshots(bg, l.bucket); err != nil || len(list) != 1 || !list[0].Expired {
			t.Errorf("%+v, %v", list, err)
		}
		if c := mustCollect(t, v); c.Things == 0 {
			t.Errorf("an expired snapshot keeps its commit: %+v", c)
		}
		again := l.mustSnapshot(t, "short", 0)
		if x, err := FindSnapshot(bg, l.bucket, "mem://lab", "short"); err != nil || x.Key != again.Key {
			t.Errorf("%+v, %v", x, err)
		}
		if _, err := DeleteSnapshot(bg, l.bucket, "mem://lab", "short"); err != nil {
			t.Error(err)
		}
		wantKinds(t, l.bucket, "deleted with the expired one")
		mustClose(t, v)
	})
}

// One snapshot that is damaged hides no other, and is told.
func TestSnapshots_Damaged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		bad, good := l.mustSnapshot(t, "bad", 0), l.mustSnapshot(t, "good", 0)
		harm(t, l.bucket, bad.Key, "flipped")
		list, err := Snapshots(bg, l.bucket)
		wantErr(t, err, ErrDamaged)
		if len(list) != 1 || list[0].Key != good.Key || !strings.Contains(err.Error(), bad.Key) {
			t.Errorf("%+v, %v", list, err)
		}
		if _, err := FindSnapshot(bg, l.bucket, "mem://lab", "good"); err != nil {
			t.Error(err)
		}
		_, err = FindSnapshot(bg, l.bucket, "mem://lab", "bad")
		wantErr(t, err, ErrDamaged)
		_, err = CreateSnapshot(bg, l.snapshot(l.bucket, "bad", 0))
		wantErr(t, err, ErrDamaged)
	})
}

// Two take one name: the second begins in each request of the first, stops in
// each of its own and goes on in each later one of the first.
func TestCreateSnapshot_TwoOfOneName(t *testing.T) {
	firstWon, secondWon := 0, 0
	for first, begins := 0, true; begins; first++ {
		begins = false
		for second, far := first, true; far; second++ {
			far = false
			for stop, stops := 0, true; stops; stop++ {
				synctest.Test(t, func(t *testing.T) {
					l := newLab(t, 1, 8192)
					s, o := faultstore.New(l.bucket, nil), faultstore.New(l.bucket, nil)
					errOne, errTwo := errors.New("never begun"), errors.New("never begun")
					other := func() { _, errTwo = CreateSnapshot(bg, l.snapshot(o, "name", 0)) }
					far, stops = interleave(s, first, second, o, stop, other, func() { _, errOne = CreateSnapshot(bg, l.snapshot(s, "name", 0)) })
					if begins = begins || far; !far {
						return
					}
					got := len(l.named(t, "name"))
					switch {
					case errOne == nil && errTwo == nil, errOne != nil && errTwo != nil, got != 1:
						t.Errorf("begun in request %d, stopped in its %d, gone on in %d: %d snapshots, %v, %v", first, stop, second, got, errOne, errTwo)
					case errOne == nil:
						firstWon++
						wantErr(t, errTwo, ErrNameTaken)
					default:
						secondWon++
						wantErr(t, errOne, ErrNameTaken)
					}
				})
				if !far {
					break
				}
			}
		}
	}
	if firstWon == 0 || secondWon == 0 {
		t.Errorf("the first won %d times, the second %d", firstWon, secondWon)
	}
}

// Every request of create and of delete fails once, or is the last one before
// the process dies: what was promised holds, and to say it again ends well.
func TestSnapshot_CreateDelete_EveryFailure(t *testing.T) {
	steps := map[string]func(l *lab, s objstore.Store, old uint64) error{
		"create": func(l *lab, s objstore.Store, old uint64) error {
			_, err := CreateSnapshot(bg, l.snapshot(s, "name", old))
			return err
		},
		"delete": func(l *lab, s objstore.Store, _ uint64) error {
			_, err := DeleteSnapshot(bg, s, "mem://lab", "name")
			return err
		},
	}
	for what, step := range steps {
		for _, death := range []bool{false, true} {
			for _, kind := range []faultstore.Kind{faultstore.Before, faultstore.Lost} {
				for n, more := 0, true; more; n++ {
					synctest.Test(t, func(t *testing.T) {
						l := newLab(t, 1, 8192)
						v := l.mustMount(nil)
						old, then, now := someDead(t, l, v)
						if what == "delete" {
							l.mustSnapshot(t, "name", old.N)
						}
						s := faultstore.New(l.bucket, nil)
						more = false
						s.SetHook(func(_ faultstore.Op, _ string, i int) faultstore.Fault {
							switch {
							case i == n:
								more = true
								return faultstore.Fault{Kind: kind}
							case i > n && death:
								return faultstore.Fault{Kind: faultstore.Before}
							}
							return faultstore.Fault{}
						})
						err := step(l, s, old.N)
						s.SetHook(nil)
						where := fmt.Sprintf("%s, request %d, kind %v, death %v: %v", what, n, kind, death, err)
						if more && death {
							time.Sleep(time.Minute)
						}
						if what == "delete" {
							if err != nil {
								err = step(l, l.bucket, 0)
							}
							if err != nil && !errors.Is(err, ErrPoint) || len(l.named(t, "name")) != 0 {
								t.Errorf("%s; again: %v", where, err)
							}
							if c := mustCollect(t, v); c.Things == 0 {
								t.Errorf("%s: %+v is kept", where, c)
							}
							wantFiles(t, v, now, "afterwards")
							mustClose(t, v)
							return
						}
						if err != nil {
							err = step(l, l.bucket, old.N)
						}
						if err != nil && !errors.Is(err, ErrNameTaken) || len(l.named(t, "name")) != 1 {
							t.Errorf("%s; again: %v", where, err)
						}
						time.Sleep(claimLifetime + time.Second)
						mustCollect(t, v)
						if d := then.diff(bucketFiles(t, l.bucket, old.N)); d != "" {
							t.Errorf("%s: %s", where, d)
						}
						wantFiles(t, v, now, "afterwards")
						mustClose(t, v)
					})
				}
			}
		}
	}
}

// Two commits of one small tree, with each kind of change.
func TestDiff_EachKindOfChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, 1, 8192)
		v := l.mustMount(nil)
		f := files{}
		for _, name := range []string{"same", "content", "gone", "moved", "mode", "linked", "replaced", "kept"} {
			f.put(t, v, name, l.noise(20000), 0)
		}
		dir := func(parent InodeID, name string) InodeID {
			n, err := v.Create(bg, parent, name, modeDir|0o755, 0, Owner{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			v.Forget(n.ID, 1)
			return n.ID
		}
		d := dir(metadata.RootInode, "d")
		dir(d, "inner")
		mustCommit(t, v)
		if _, err := v.Fold(bg, true); err != nil {
			t.Fatal(err)
		}
		from := mustCommit(t, v)

		time.Sleep(time.Second)
		root := InodeID(metadata.RootInode)
		ino := func(name string) InodeID {
			n, err := v.Lookup(bg, root, name)
			if err != nil {
				t.Fatal(err)
			}
			v.Forget(n.ID, 1)
			return n.ID
		}
		f.put(t, v, "content", []byte("x"), 5)
		f.drop(t, v, "gone")
		mode := uint32(0o600)
		if _, err := v.SetAttr(bg, ino("mode"), SetAttr{Mode: &mode}); err != nil {
			t.Fatal(err)
		}
		if _, err := v.Link(bg, ino("linked"), root, "second"); err != nil {
			t.Fatal(err)
		}
		v.Forget(ino("linked"), 1)
		f.put(t, v, "new", l.noise(10), 0)
		for _, x := range [][2]string{{"moved", "moved2"}, {"d", "e"}, {"new", "replaced"}} {
			if err := v.Rename(bg, root, x[0], root, x[1], 0); err != nil {
				t.Fatal(err)
			}
		}
		if err := v.Rmdir(bg, d, "inner"); err != nil {
			t.Fatal(err)
		}
		dir(dir(d, "fresh"), "deep")
		f.put(t, v, "added", l.noise(10), 0)
		to := mustCommit(t, v)

		got := func(a, b uint64) (list []string) {
			va, err := bucketView(l.bucket, func(o *ViewOptions) { o.Commit = a })
			if err != nil {
				t.Fatal(err)
			}
			defer va.Close()
			vb, err := bucketView(l.bucket, func(o *ViewOptions) { o.Commit = b })
			if err != nil {
				t.Fatal(err)
			}
			defer vb.Close()
			err = Diff(bg, va, vb, func(c Change) error {
				list = append(list, fmt.Sprintf("%s %s %s %v %v", c.Kind, c.From, c.Path, c.Content, c.Attributes))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			stop := errors.New("stop")
			if err := Diff(bg, va, vb, func(Change) error { return stop }); err != nil && !errors.Is(err, stop) || err == nil && len(list) > 0 {
				t.Errorf("an error of the function: %v", err)
			}
			return list
		}
		want := []string{
			"added  added false false", "changed  content true false", "renamed d e false false", "added  e/fresh false false",
			"added  e/fresh/deep false false", "removed  d/inner false false", "removed  gone false false", "changed  mode false true",
			"renamed moved moved2 false false", "changed  replaced true false", "added  second false false",
		}
		if list := got(from.N, to.N); fmt.Sprint(list) != fmt.Sprint(want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(list, "\n"), strings.Join(want, "\n"))
		}
		if list := got(from.N-1, from.N); len(list) != 0 {
			t.Errorf("folding changes %v", list)
		}
		mustClose(t, v)
	})
}
