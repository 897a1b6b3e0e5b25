package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cisternfs/cistern/internal/storeserver"
	"github.com/cisternfs/cistern/internal/testenv"
	"github.com/cisternfs/cistern/objstore"
)

func (p *place) at(name string) string { return "file://" + p.path(name) }

// wantStages checks the stages of a clone: those named are completed, the others
// say why they don't apply.
func wantStages(t *testing.T, stages []cloneStage, completed ...string) {
	t.Helper()
	if len(stages) != 7 {
		t.Errorf("stages: %+v", stages)
	}
	for _, s := range stages {
		want := stateNone
		for _, name := range completed {
			if s.Stage == name {
				want = stateCompleted
			}
		}
		if s.State != want || want == stateNone && s.Why == "" || want == stateCompleted && (s.Started == nil || s.Ended == nil || s.Percent != 100) {
			t.Errorf("stage %+v, want it %s", s, want)
		}
	}
}

func TestApp_Clone_SharesDetachesAndIsDestroyed(t *testing.T) {
	p := newPlace(t)
	u, one, two := p.url(), p.at("one"), p.at("two")
	p.must("format", u, "--object-size", "1M", "--retention", "0s", "--quota", "1G")
	p.write("src/big", random(3<<20+5))
	p.write("src/sub/small", random(700))
	p.must("put", u, p.path("src"), "data")
	p.must("snapshot", "create", u, "before")
	p.must("rm", u, "data/sub/small")

	made := decode[cloned](t, p.must("clone", u+"@before", one, "--json"))
	if !made.Shared || made.Commit == 0 || made.Source != u || made.Target != one || made.Copied.Things != 0 {
		t.Errorf("clone: %+v", made)
	}
	wantStages(t, made.Stages)
	if got := p.must("clone", u, two); !strings.Contains(got, two+" is a clone of commit ") || !strings.Contains(got, "it shares") {
		t.Errorf("clone: %q", got)
	}
	p.must("get", one, "data", p.path("out"))
	compareTrees(t, p.path("src"), p.path("out"))
	if got := p.must("ls", "-R", two, "data"); got != "data/big\ndata/sub/\n" {
		t.Errorf("ls of a clone of the present: %q", got)
	}
	if lines := decode[[]logLine](t, p.must("log", "--json", one)); len(lines) != 1 {
		t.Errorf("log of a new clone: %+v", lines)
	}
	p.fails(2, u, "cat", fmt.Sprintf("%s@%d", one, made.Commit), "data/big")
	list := decode[[]cloneLine](t, p.must("clone", "list", "--json", u))
	if len(list) != 2 || list[0].Lost || list[1].Lost || list[0].URL == list[1].URL {
		t.Errorf("list: %+v", list)
	}
	p.fails(1, one+" and at "+two, "destroy", "--yes", u)

	// Each goes its own way.
	p.must("rm", "-r", u, "data")
	p.must("snapshot", "delete", u, "before")
	p.must("collect", u)
	p.stdin = "new in the clone"
	p.must("put", one, "-", "new")
	p.must("snapshot", "create", one, "own")
	p.must("check", "--data", one)
	p.must("check", "--data", u)
	if got := p.must("du", one); !strings.Contains(got, "3.0 MiB") {
		t.Errorf("du: %q", got)
	}
	if got := decode[[]snapshotLine](t, p.must("snapshot", "list", "--json", one)); len(got) != 1 || got[0].Name != "own" {
		t.Errorf("snapshots of the clone: %+v", got)
	}

	made = decode[cloned](t, p.must("clone", "--detach", one, "--json"))
	if made.Shared || made.Copied.Things == 0 || made.Copied.DoneThings != made.Copied.Things {
		t.Errorf("detach: %+v", made)
	}
	wantStages(t, made.Stages, stageFiles)
	if again := p.must("clone", "--detach", one); !strings.Contains(again, "stands alone") {
		t.Errorf("detach again: %q", again)
	}
	p.fails(2, "is no clone", "clone", "--detach", u)
	p.must("destroy", "--yes", two)
	p.must("destroy", "--yes", u)
	for _, dir := range []string{"bucket", "two"} {
		if left, err := os.ReadDir(p.path(dir)); err == nil && len(left) > 0 {
			t.Errorf("%s holds %v", dir, left)
		}
	}
	p.must("check", "--data", one)
	p.must("get", one, "data", p.path("alone"))
	compareTrees(t, p.path("src"), p.path("alone"))

	// A copy, and one that has to do with nothing.
	made = decode[cloned](t, p.must("clone", "--copy", one, p.at("three"), "--json"))
	if made.Shared || made.Copied.Things == 0 {
		t.Errorf("copy: %+v", made)
	}
	wantStages(t, made.Stages, stageFiles)
	p.must("snapshot", "delete", one, "own")
	p.must("destroy", "--yes", one)
	p.must("check", "--data", p.at("three"))

	all := decode[[]cloneStatus](t, p.must("clone", "status", "--json"))
	if len(all) != 6 || all[0].State != stateCompleted || all[0].Target != p.at("three") || all[0].Ended == nil || all[5].Target != one {
		t.Errorf("status: %+v", all)
	}
	wantStages(t, all[0].Stages, stageFiles)
	if got := p.must("clone", "status"); !strings.Contains(got, "FILE COPY") || !strings.Contains(got, "100 %") || !strings.Contains(got, "PAGE COPY") {
		t.Errorf("status: %q", got)
	}
}

func TestApp_Clone_BadInput(t *testing.T) {
	p := newPlace(t)
	u := p.url()
	p.must("format", u, "--object-size", "1M")
	p.stdin = "x"
	p.must("put", u, "-", "file")
	p.must("format", p.at("taken"))
	p.write("foreign/file", []byte("x"))
	p.write("full/file", []byte("mine"))
	before := p.bucketFiles()
	for _, c := range []struct {
		status int
		want   string
		args   []string
	}{
		{2, "say where to", []string{u}},
		{2, "the volume itself", []string{u, u}},
		{2, "no such point", []string{u + "@nosuch", p.at("new")}},
		{2, "has no commit 999", []string{u + "@999", p.at("new")}},
		{2, "is a volume already", []string{u, p.at("taken")}},
		{2, "is not empty", []string{u, p.at("foreign")}},
		{2, "does not exist", []string{u, p.at("no/such/parent")}},
		{2, "there is no", []string{p.at("nothing"), p.at("new")}},
		{2, "is not empty (it holds file)", []string{u, "--to", p.path("full")}},
		{2, "leave the second URL out", []string{u, p.at("new"), "--to", p.path("x")}},
		{2, "--replace goes with --to", []string{u, p.at("new"), "--replace"}},
		{2, "--copy and --detach", []string{u, "--to", p.path("x"), "--detach"}},
		{2, "must be 1 to", []string{u, p.at("new"), "--concurrency", "0"}},
		{2, "name a directory of its own", []string{u, "--to", "/", "--replace"}},
		{2, "a point in the past", []string{u, p.at("new") + "@5"}},
	} {
		got, _, errs := p.run(append([]string{"clone"}, c.args...)...)
		if c.want == "there is no" {
			c.want = "" // the store's own sentence
		}
		checkFailure(t, c.args, c.status, c.want, got, errs)
	}
	if after := p.bucketFiles(); len(after) != len(before) {
		t.Errorf("the bucket had %d files and has %d", len(before), len(after))
	}
	if got, err := os.ReadFile(p.path("full", "file")); err != nil || string(got) != "mine" {
		t.Errorf("the full directory: %q, %v", got, err)
	}
	p.must("clone", u, p.at("new"))
}

// A pin of a clone whose directory was just removed keeps its parent until it is
// told to be forgotten.
func TestApp_Clone_PruneOfAGoneClone(t *testing.T) {
	p := newPlace(t)
	p.must("format", p.url())
	p.must("clone", p.url(), p.at("one"))
	if err := os.RemoveAll(p.path("one")); err != nil {
		t.Fatal(err)
	}
	p.fails(1, "clone list --prune", "destroy", "--yes", p.url())
	// It is not pruned by its absence: the disk may only not be mounted.
	got := p.must("clone", "list", p.url())
	line := strings.Fields(strings.Split(got, "\n")[1])
	if !strings.Contains(got, "not found: once") {
		t.Errorf("list: %q", got)
	}
	p.fails(2, "no clone with this id", "clone", "list", "--prune", "another", p.url())
	if got := p.must("clone", "list", p.url()); !strings.Contains(got, "not found: once") {
		t.Errorf("list: %q", got)
	}
	if got := p.must("clone", "list", "--prune", line[1], p.url()); !strings.Contains(got, "forgotten") {
		t.Errorf("prune: %q", got)
	}
	if got := p.must("clone", "list", p.url()); got != "no clones share with it\n" {
		t.Errorf("list: %q", got)
	}
	p.must("destroy", "--yes", p.url())
}

func TestApp_Clone_ParentGone_SaysSo(t *testing.T) {
	p := newPlace(t)
	p.must("format", p.url())
	p.stdin = "x"
	p.must("put", p.url(), "-", "file")
	p.must("clone", p.url(), p.at("one"))
	p.must("clone", p.at("one"), p.at("two"))
	id := decode[volumeStatus](t, p.must("status", "--json", p.url())).Volume
	aside := p.path("aside")
	if err := os.Rename(p.path("bucket"), aside); err != nil {
		t.Fatal(err)
	}
	gone := func(why string) {
		t.Helper()
		for _, clone := range []string{"one", "two"} {
			u := p.at(clone)
			want := "the parent of clone " + u + " is gone: it shares with volume " + id + " at " + p.url() + ", and " + why +
				"; bring that volume back there (mount its disk, or copy its bucket back), since what the two share is nowhere else; if it is gone for good, `cistern destroy " + u + "` deletes the clone\n"
			for _, args := range [][]string{{"cat", u, "file"}, {"get", u, "file", p.path("out")}, {"ls", u}, {"clone", u, "--to", p.path("to " + clone)}} {
				p.fails(exitDamaged, want, args...)
			}
			if _, _, errs := p.run("cat", u, "file"); strings.Contains(errs, "damage") || strings.Count(errs, "objects/") > 0 {
				t.Errorf("cat says %s", errs)
			}
		}
	}
	gone("that bucket or directory does not exist")
	p.must("format", p.url())
	gone("volume " + decode[volumeStatus](t, p.must("status", "--json", p.url())).Volume + " is there now")
	p.must("destroy", "--yes", p.url())
	gone("there is no volume there any more")
	if err := errors.Join(os.RemoveAll(p.path("bucket")), os.Rename(aside, p.path("bucket"))); err != nil {
		t.Fatal(err)
	}
	if got := p.must("cat", p.at("two"), "file"); got != "x" {
		t.Errorf("with the parent back: %q", got)
	}
	p.must("destroy", "--yes", "--force", p.url())
	gone("there is no volume there any more")
	p.must("destroy", "--yes", p.at("two"))
	p.must("destroy", "--yes", p.at("one"))
}

// A clone that was opened while its parent was there says so, too, when it misses
// something.
func TestMount_Clone_ParentGoes_SaysSo(t *testing.T) {
	p, mnt := mountPlace(t)
	p.stdin = string(random(100))
	p.must("put", p.url(), "-", "file")
	p.stdin = string(random(100))
	p.must("put", p.url(), "-", "other")
	p.must("clone", p.url(), p.at("one"))
	p.mustBinary("mount", p.at("one"), mnt, "--state", p.path("state"))
	p.must("cat", mnt, "other") // the parent's store is open
	p.must("destroy", "--yes", "--force", p.url())
	p.fails(exitDamaged, "the parent of clone "+p.at("one")+" is gone", "cat", mnt, "file")
	p.endMount(mnt)
}

// A destroy that could not take the pins out of the parent goes on later, and then
// still finds the clone's local state.
func TestApp_Destroy_CloneWhoseParentCannotBeRead_GoesOn(t *testing.T) {
	p := newPlace(t)
	p.must("format", p.url())
	made := decode[cloned](t, p.must("clone", p.url(), p.at("one"), "--json"))
	a := &app{base: p.path("base"), lookup: func(string) (string, bool) { return "", false }}
	u, err := objstore.ParseURL(p.at("one"))
	if err != nil {
		t.Fatal(err)
	}
	state, err := a.volumeState(u, made.Volume)
	if err != nil {
		t.Fatal(err)
	}
	p.leaveOwner(state, made.Volume)
	name := p.path("bucket", "volume.json")
	whole := readFile(t, name)
	if err := os.WriteFile(name, []byte(whole[:len(whole)/2]), 0o600); err != nil {
		t.Fatal(err)
	}
	p.fails(4, "stays pinned for the clone", "destroy", "--yes", p.at("one"))
	if err := os.WriteFile(name, []byte(whole), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := p.must("destroy", "--yes", p.at("one")); !strings.Contains(got, "its local state in "+state+" is deleted too") {
		t.Errorf("%q", got)
	}
	p.must("destroy", "--yes", p.url())
}

// An old record that can't be removed is told, and no reason not to make a clone.
func TestApp_Clone_OldRecordThatStays(t *testing.T) {
	p := newPlace(t)
	p.must("format", p.url())
	record := func(i int) string { return p.path("base", cloneStateDir, fmt.Sprintf("2000%04d", i)) }
	for i := range clonesKept + 2 {
		if err := errors.Join(os.MkdirAll(record(i), 0o700), os.WriteFile(filepath.Join(record(i), cloneFile), []byte(`{"state":"completed"}`), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	held := filepath.Join(record(0), "held")
	if err := errors.Join(os.Mkdir(held, 0o700), unix.Mount("tmpfs", held, "tmpfs", 0, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(held, 0); err != nil {
			t.Error(err)
		}
	})
	if status, _, errs := p.run("clone", p.url(), p.at("one")); status != 0 || !strings.Contains(errs, "the record of an old clone stays") {
		t.Errorf("status %d: %s", status, errs)
	}
}

// everyKind fills a mount with every kind of node.
func everyKind(t *testing.T, dir string) {
	t.Helper()
	do := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	old := time.Unix(1500000000, 123456789)
	do(os.Mkdir(at("dir"), 0o750), os.Mkdir(at("dir/empty"), 0o700), os.WriteFile(at("dir/big"), random(40<<20+77), 0o640))
	do(os.WriteFile(at("b\xff\n"), random(5000), 0o600), os.WriteFile(at("none"), nil, 0o444), os.Link(at("dir/big"), at("second")))
	do(os.Symlink("dir/big\xfe", at("link")), unix.Mkfifo(at("fifo"), 0o620), unix.Setxattr(at("dir/big"), "user.k", []byte("v\x00w"), 0))
	f, err := os.Create(at("holes"))
	do(err)
	_, err = f.WriteAt(random(4096), 20<<20)
	do(err, f.Truncate(50<<20), f.Close(), os.Lchown(at("none"), 123, 456), os.Chmod(at("none"), 0o2755))
	do(os.Chtimes(at("dir/big"), old, old), os.Chtimes(at("dir"), old, old))
}

// compareNodes compares attributes and bytes of two trees.
func compareNodes(t *testing.T, a, b string) {
	t.Helper()
	compareTrees(t, a, b)
	err := filepath.Walk(a, func(path string, _ os.FileInfo, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(a, path)
		var x, y syscall.Stat_t
		if err := syscall.Lstat(path, &x); err != nil {
			return err
		}
		if err := syscall.Lstat(filepath.Join(b, rel), &y); err != nil {
			return err
		}
		dir := x.Mode&syscall.S_IFMT == syscall.S_IFDIR
		if x.Mode != y.Mode || x.Uid != y.Uid || x.Gid != y.Gid || x.Mtim != y.Mtim || x.Rdev != y.Rdev || !dir && (x.Size != y.Size || x.Nlink != y.Nlink) {
			t.Errorf("%s: %+v, copied as %+v", rel, x, y)
		}
		if x.Mode&syscall.S_IFMT == syscall.S_IFREG && y.Blocks*512 > x.Size/2+1<<20 && x.Blocks*512 < x.Size/4 {
			t.Errorf("%s: of %d bytes %d became %d blocks", rel, x.Size, x.Blocks, y.Blocks)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	v := make([]byte, 10)
	if n, err := unix.Getxattr(filepath.Join(b, "dir/big"), "user.k", v); err != nil || string(v[:n]) != "v\x00w" {
		t.Errorf("extended attribute: %q, %v", v[:max(n, 0)], err)
	}
	if to, err := os.Readlink(filepath.Join(b, "link")); err != nil || to != "dir/big\xfe" {
		t.Errorf("link to %q, %v", to, err)
	}
}

// A mount is cloned to a local directory and into a volume, every kind of node
// with all it has; what was interrupted is gone on with.
func TestMount_Clone_EveryKindOfNode(t *testing.T) {
	p, mnt, _, _ := fixedPlace(t)
	everyKind(t, mnt)
	out := p.path("out")
	made := decode[cloned](t, p.must("clone", mnt, "--to", out, "--json"))
	if made.Target != out || made.Commit == 0 || made.Copied.DoneThings != made.Copied.Things {
		t.Errorf("clone: %+v", made)
	}
	wantStages(t, made.Stages, stageFiles, stageSync)
	compareNodes(t, mnt, out)
	p.fails(2, "is not empty", "clone", mnt, "--to", out)

	// Half of it is there: what looks whole is left as it is, the rest is copied.
	mark := fmt.Sprintf(`{"source":"x","volume":%q,"commit":%d,"boot":%q}`, decode[mountStatus](t, p.must("status", "--json", mnt)).Volume, made.Commit, bootID())
	for _, err := range []error{
		os.WriteFile(filepath.Join(out, cloneMark), []byte(mark), 0o600), os.Truncate(filepath.Join(out, "b\xff\n"), 17),
		os.Remove(filepath.Join(out, "second")), os.Remove(filepath.Join(out, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	u := fmt.Sprintf("%s@%d", p.url(), made.Commit)
	made = decode[cloned](t, p.must("clone", u, "--to", out, "--json"))
	if !made.Resumed || made.Copied.Found == 0 || made.Copied.Found == made.Copied.Things {
		t.Errorf("gone on: %+v", made)
	}
	compareNodes(t, mnt, out)

	// Another commit's beginning is not gone on with, and replaced when told.
	if err := os.WriteFile(filepath.Join(out, cloneMark), []byte(strings.Replace(mark, `"commit":`, `"commit":1`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	p.fails(2, "holds the beginning", "clone", u, "--to", out)
	made = decode[cloned](t, p.must("clone", u, "--to", out, "--replace", "--json", "--bandwidth", "1G", "--concurrency", "3"))
	wantStages(t, made.Stages, stageDrop, stageFiles, stageSync)
	compareNodes(t, mnt, out)

	// The clone is mounted beside its parent.
	p.must("clone", mnt, p.at("copy"))
	dir := p.mountPoint("clone")
	p.mustBinary("mount", p.at("copy"), dir, "--state", p.path("clone-state"))
	compareNodes(t, mnt, dir)
	want := random(3 << 20)
	if err := os.WriteFile(filepath.Join(dir, "dir/big"), want, 0o640); err != nil {
		t.Fatal(err)
	}
	p.must("sync", dir)
	follow := p.mountPoint("follow")
	p.mustBinary("mount", "--read-only", p.at("copy"), follow, "--state", p.path("follow-state"))
	if got, err := os.ReadFile(filepath.Join(follow, "dir/big")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the clone, followed: %d bytes, %v", len(got), err)
	}
	if got, err := os.ReadFile(filepath.Join(mnt, "second")); err != nil || !bytes.Equal(got, random(40<<20+77)) {
		t.Errorf("the parent's file: %v", err)
	}
	p.mustBinary("umount", follow)
	p.mustBinary("umount", dir)
	p.must("check", "--data", p.at("copy"))
}

func TestSameBucket(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"s3://b/one", "s3://b/two", true}, {"s3://b/one", "s3://c/one", false}, {"s3://b/one", "gs://b/one", false},
		{"file:///a", "file:///b", true}, {"file:///a", "s3://b/x", false},
	} {
		a, errA := objstore.ParseURL(c.a)
		b, errB := objstore.ParseURL(c.b)
		if errA != nil || errB != nil || sameBucket(a, b) != c.want {
			t.Errorf("%s and %s: %v", c.a, c.b, !c.want)
		}
	}
}

// Between stores bodies go through this machine; within one the store copies them
// by itself, if it can.
func TestClone_AcrossStores(t *testing.T) {
	testenv.Long(t)
	p := newPlace(t)
	google := testenv.StoreServer(t, storeserver.FakeGCS)
	amazon := testenv.StoreServer(t, storeserver.Versitygw)
	p.env["CISTERN_CONFIG"] = p.write("stores.ini", fmt.Appendf(nil, "[GCS]\nendpoint = %s\nanonymous = yes\n[S3]\nendpoint = %s\nregion = %s\naws_access_key_id = %s\naws_secret_access_key = %s\n",
		google.Endpoint, amazon.Endpoint, amazon.Region, amazon.AccessKey, amazon.SecretKey))
	p.env["CISTERN_ENCRYPT_KEY"] = strings.Repeat("ab", 32)
	p.must("format", p.url(), "--object-size", "1M", "--compress", "lz4")
	p.write("src/big", random(5<<20+5))
	p.write("src/sub/small", random(700))
	p.must("put", p.url(), p.path("src"), "data")
	s3, gs := "s3://"+amazon.Bucket+"/copy", "gs://"+google.Bucket+"/copy"
	for i, step := range []struct {
		from, to       string
		shared, served bool
	}{
		{p.url(), s3, false, false}, {s3, s3 + "-shares", true, false}, {s3 + "-shares", s3 + "-detached", false, true},
		{s3 + "-shares", gs, false, false}, {gs, gs + "-copy", false, true}, {gs, p.at("back"), false, false},
	} {
		args := []string{"clone", step.from, step.to, "--json"}
		if step.served {
			args = append(args, "--copy")
		}
		made := decode[cloned](t, p.must(args...))
		if made.Shared != step.shared || made.Copied.DoneThings != made.Copied.Things || step.served != (made.Copied.Served > 0) || step.shared == (made.Copied.Things > 0) {
			t.Errorf("%s to %s: %+v", step.from, step.to, made)
		}
		p.must("check", "--data", step.to)
		out := p.path(fmt.Sprint("out", i))
		p.must("get", step.to, "data", out)
		compareTrees(t, p.path("src"), out)
	}
	p.must("clone", "--detach", s3+"-shares")
	p.must("destroy", "--yes", s3)
	p.must("check", "--data", s3+"-shares")
	p.fails(2, "", "clone", p.url(), "s3://no-such-bucket-here/x")
	p.env["CISTERN_ENCRYPT_KEY"] = strings.Repeat("cd", 32)
	p.fails(2, "key", "clone", s3+"-shares", s3+"-other-key")
}
