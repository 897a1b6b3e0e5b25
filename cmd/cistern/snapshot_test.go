package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cisternfs/cistern/gateway"
)

func (p *place) snapshots() []snapshotLine {
	p.t.Helper()
	return decode[[]snapshotLine](p.t, p.must("snapshot", "list", "--json", p.url()))
}

func TestApp_Snapshot_OfAnUnmountedVolume(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u, "--object-size", "1M", "--retention", "0s")
	if got := p.must("snapshot", "list", u); got != "no snapshots\n" {
		t.Errorf("list: %q", got)
	}
	put := func(name string, body []byte) {
		t.Helper()
		p.stdin = string(body)
		p.must("put", "-p", u, "-", name)
	}
	put("dir/a", random(2<<20+5))
	put("dir/gone", nil)
	put("old", random(7))
	first := p.must("snapshot", "create", u, "before-upgrade", "--tag", "why=upgrade", "--tag", "a=", "--expiry", "7d")
	if !strings.HasPrefix(first, "snapshot before-upgrade: commit ") || !strings.Contains(first, "2.0 MiB in 5 inodes") {
		t.Errorf("create: %q", first)
	}
	put("dir/a", random(2<<20+6))
	put("dir/new", nil)
	p.must("rm", u, "dir/gone")
	made := decode[snapshotLine](t, p.must("snapshot", "create", "--json", u, "after"))
	if made.Expiry != nil || made.Name != "after" || made.Inodes != 5 {
		t.Errorf("create --json: %+v", made)
	}
	p.must("collect", u)

	list := p.snapshots()
	if len(list) != 2 || list[0].Name != "before-upgrade" || list[0].Tags["why"] != "upgrade" || list[0].Expiry == nil || list[0].Expired || list[1].Key != made.Key || !list[1].Time.Equal(made.Time) {
		t.Errorf("list: %+v", list)
	}
	text := p.must("snapshot", "list", u)
	if lines := strings.Split(text, "\n"); len(lines) != 4 || !strings.HasPrefix(lines[0], "NAME ") || !strings.HasSuffix(lines[1], " a= why=upgrade") || !strings.Contains(lines[2], " never ") {
		t.Errorf("list: %q", text)
	}
	for _, point := range []string{"before-upgrade", fmt.Sprint(list[0].Commit)} {
		if got := p.must("cat", u+"@"+point, "dir/a"); got != string(random(2<<20+5)) {
			t.Errorf("@%s: other bytes", point)
		}
	}
	if got := p.must("ls", u+"@before-upgrade", "dir"); got != "dir/a\ndir/gone\n" {
		t.Errorf("ls of a snapshot: %q", got)
	}
	p.must("get", u+"@before-upgrade", "old", p.path("old"))
	p.must("check", "--data", u+"@before-upgrade")

	want := []string{"+ /dir/new", "- /dir/gone", "M /dir/a  (content)"}
	for _, args := range [][]string{{"before-upgrade"}, {"before-upgrade", "after"}, {fmt.Sprint(list[0].Commit), "@-0s"}} {
		got := strings.Split(strings.TrimSpace(p.must(append([]string{"snapshot", "diff", u}, args...)...)), "\n")
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("diff %v: %q", args, got)
		}
	}
	if got := p.must("snapshot", "diff", u, "after"); got != "" {
		t.Errorf("diff of the same: %q", got)
	}
	if got := decode[[]changeLine](t, p.must("snapshot", "diff", "--json", u, "after", "before-upgrade")); len(got) != 3 {
		t.Errorf("diff --json: %+v", got)
	}
	if got := decode[[]changeLine](t, p.must("snapshot", "diff", "--json", u, "after")); len(got) != 0 {
		t.Errorf("diff --json of the same: %+v", got)
	}
	shown := decode[snapshotShown](t, p.must("snapshot", "show", "--json", u, "before-upgrade"))
	if d := shown.Differs; shown.Commit != list[0].Commit || d[gateway.ChangeAdded] != 1 || d[gateway.ChangeRemoved] != 1 || d[gateway.ChangeChanged] != 1 || d[gateway.ChangeRenamed] != 0 {
		t.Errorf("show: %+v", shown)
	}
	if got := p.must("snapshot", "show", u, "before-upgrade"); !strings.Contains(got, "1 path added, 1 removed, 1 changed, 0 renamed") || !strings.Contains(got, "a= why=upgrade") {
		t.Errorf("show: %q", got)
	}

	// A snapshot of a snapshot outlives it.
	p.must("snapshot", "create", u+"@before-upgrade", "copy")
	if got := p.must("snapshot", "delete", u, "before-upgrade"); got != fmt.Sprintf("snapshot before-upgrade of commit %d is deleted\n", list[0].Commit) {
		t.Errorf("delete: %q", got)
	}
	p.must("collect", u)
	if got := p.must("cat", u+"@copy", "dir/a"); got != string(random(2<<20+5)) {
		t.Error("@copy: other bytes")
	}
	p.fails(1, "is kept by the snapshot", "destroy", "--yes", u)
}

func TestApp_Snapshot_BadInput(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.fails(2, "make a volume with `cistern format`", "snapshot", "create", u, "x")
	p.fails(2, "make a volume with `cistern format`", "snapshot", "list", u)
	p.must("format", u)
	p.must("snapshot", "create", u, "nightly")
	create := func(more ...string) []string { return append([]string{"snapshot", "create", u}, more...) }
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{2, "0 arguments where it is", []string{"snapshot", "create"}},
		{2, "name is taken: " + u + " has a snapshot nightly already, of commit 1", create("nightly")},
		{2, "would be a commit's number", create("15")},
		{2, "looks like a time", create("2026-11-30")},
		{2, "looks like a time", create("2026-x")},
		{2, "looks like a time", create("15m")},
		{2, "looks like a time", []string{"snapshot", "schedule", u, "--every", "1h", "--name", "2026-x"}},
		{2, "looks like a time", []string{"restore", u + "@1", "--keep", "2026-x"}},
		{2, "would be a time back from now", create("--", "-15m")},
		{2, "a letter or digit first", create("--", "-x")},
		{2, "letters, digits, dots", create("a b")},
		{2, "letters, digits, dots", create("a/b")},
		{2, "letters, digits, dots", create("a@b")},
		{2, "is taken for mounts", create("follow")},
		{2, "it is empty", create("")},
		{2, "give it as key=value", create("x", "--tag", "novalue")},
		{2, "each key once", create("x", "--tag", "a=1", "--tag", "a=2")},
		{2, "tag \"a b\"", create("x", "--tag", "a b=1")},
		{2, "give a time to come", create("x", "--expiry", "soon")},
		{2, "give a time to come", create("x", "--expiry", "2020-01-01T00:00:00Z")},
		{2, "give a time to come", create("x", "--expiry", "-5h")},
		{2, "is below 4h", create("x", "--expiry", "30m")},
		{2, "has no commit 99", []string{"snapshot", "create", u + "@99", "x"}},
		{2, "has no snapshot nightli: the nearest are nightly", []string{"snapshot", "create", u + "@nightli", "x"}},
		{2, "give the volume without a point", []string{"snapshot", "list", u + "@1"}},
		{2, "has no snapshot weekly: the nearest are nightly", []string{"snapshot", "show", u, "weekly"}},
		{2, "has no snapshot weekly: the nearest are nightly", []string{"snapshot", "delete", u, "weekly"}},
		{2, "would be a commit's number", []string{"snapshot", "delete", u, "1"}},
		{2, "has no snapshot weekly: the nearest are nightly", []string{"snapshot", "diff", u, "weekly"}},
		{2, "a point is empty", []string{"snapshot", "diff", u, "nightly", ""}},
		{2, "has no commit 99", []string{"snapshot", "diff", u, "1", "99"}},
		{2, "has no snapshot weekly: the nearest are nightly", []string{"cat", u + "@weekly", "x"}},
		{2, "nor a directory on which", []string{"snapshot", "list", p.path("none")}},
	} {
		p.fails(c.status, c.want, c.args...)
	}
	if list := p.snapshots(); len(list) != 1 || len(p.pins()) != 1 {
		t.Errorf("%+v, %v", list, p.pins())
	}
}

func TestApp_Snapshot_DamagedPin(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u)
	p.must("snapshot", "create", u, "bad")
	p.must("snapshot", "create", u, "good")
	key := p.find("pins/bad~")
	body, err := os.ReadFile(key)
	if err != nil {
		t.Fatal(err)
	}
	body[len(body)/2] ^= 1
	if err := os.WriteFile(key, body, 0o644); err != nil {
		t.Fatal(err)
	}
	status, out, errs := p.run("snapshot", "list", u)
	if status != 4 || !strings.Contains(out, "good") || !strings.Contains(errs, "pins/bad~") {
		t.Errorf("%d, %q, %q", status, out, errs)
	}
	p.fails(4, "pins/bad~", "ls", u+"@bad")
	p.must("ls", u+"@good")
}

func TestMount_Snapshot_OfABusyMount(t *testing.T) {
	p, mnt, _, _ := fixedPlace(t)
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		f, err := os.Create(filepath.Join(mnt, "busy"))
		for i := 0; err == nil; i++ {
			select {
			case <-stop:
				done <- f.Close()
				return
			default:
				_, err = f.WriteAt(random(8192), int64(i%500)*8192)
			}
		}
		done <- err
	}()
	want := random(2 << 20)
	if err := os.WriteFile(filepath.Join(mnt, "file"), want, 0o644); err != nil {
		t.Fatal(err)
	}
	one := decode[snapshotLine](t, p.must("snapshot", "create", mnt, "one", "--json", "--tag", "k=v"))
	two := decode[snapshotLine](t, p.must("snapshot", "create", p.url(), "two", "--json", "--last-commit"))
	if two.Commit < one.Commit || one.Tags["k"] != "v" || time.Since(one.Created) > time.Hour {
		t.Errorf("%+v, %+v", one, two)
	}
	p.fails(2, "name is taken", "snapshot", "create", mnt, "one")
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	p.must("rm", mnt, "file")
	if got := p.must("snapshot", "diff", mnt, "one"); !strings.Contains(got, "- /file\n") {
		t.Errorf("diff with the present: %q", got)
	}
	p.must("collect", mnt)

	dir := p.mountPoint("snapshot")
	p.mustBinary("mount", p.url()+"@one", dir)
	if got := readFile(t, filepath.Join(dir, "file")); got != string(want) {
		t.Error("the mounted snapshot shows other bytes")
	}
	st := decode[mountStatus](t, p.must("status", "--json", dir))
	if st.Point == nil || st.Point.Point != "one" || st.Commit.N != one.Commit {
		t.Errorf("status: %+v", st)
	}
	// A mount protects itself.
	p.must("snapshot", "delete", mnt, "one")
	p.must("sync", mnt)
	p.must("collect", mnt)
	if got := readFile(t, filepath.Join(dir, "file")); got != string(want) {
		t.Error("the mounted snapshot shows other bytes once it is deleted")
	}
	// What a mount shows can be kept, too.
	p.must("snapshot", "create", dir, "again")
	p.mustBinary("umount", dir)
	if got := p.must("cat", p.url()+"@again", "file"); got != string(want) {
		t.Error("@again: other bytes")
	}
}
