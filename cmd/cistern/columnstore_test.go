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

	"github.com/cisternfs/cistern/columnstore"
	"github.com/cisternfs/cistern/columnstore/storagemanager/smtest"
	"github.com/cisternfs/cistern/internal/testenv"
)

// smPlace is a place with a Storage Manager's state and its configuration file.
func smPlace(t *testing.T, more string) (*place, *smtest.World, string) {
	t.Helper()
	p := newPlace(t)
	w := smtest.New(t, p.path("sm"), 3, 1<<20)
	dbroots := p.path("columnstore")
	if err := os.Mkdir(dbroots, 0o755); err != nil {
		t.Fatal(err)
	}
	depth := strings.Count(dbroots, "/")
	p.env["SM"] = p.path("sm")
	conf := fmt.Sprintf(`[ObjectStorage]
service = LocalStorage
object_size = 1M
metadata_path = ${SM}/metadata
journal_path = ${SM}/journal
max_concurrent_downloads = 21
max_concurrent_uploads = 21
common_prefix_depth = %d

[S3]
region = some_region
bucket = some_bucket

[LocalStorage]
path = ${SM}/fake-cloud
fake_latency = n
max_latency = 50000

[Cache]
cache_size = 64m
path = ${SM}/cache
%s`, depth, more)
	name := p.path("storagemanager.cnf")
	if err := os.WriteFile(name, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	return p, w, name
}

func TestImportColumnStore_RoundTrip(t *testing.T) {
	for _, how := range []string{"by reference", "by copy"} {
		t.Run(how, func(t *testing.T) {
			p, w, conf := smPlace(t, "")
			w.Shapes("data1")
			w.File("data2/000.dir/FILE000.cdf", w.Whole(3<<20)...)
			args := []string{"import", "columnstore", "--config", conf}
			if how == "by copy" {
				args = append(args, "--copy")
			}
			out := p.must(args...)
			if strings.Count(out, "is in file://"+p.path("sm", "fake-cloud", "cistern")) != 2 {
				t.Errorf("%s", out)
			}
			if how == "by copy" { // Storage Manager's own objects can go
				list, err := filepath.Glob(p.path("sm", "fake-cloud", "*_*"))
				if err != nil || len(list) < 10 {
					t.Fatal(list, err)
				}
				for _, name := range list {
					if err := os.Remove(name); err != nil {
						t.Fatal(err)
					}
				}
			}
			p.must("export", "columnstore", "--config", conf, p.path("out"))
			w.Compare(p.path("out", "data1"), "data1")
			w.Compare(p.path("out", "data2"), "data2")
			vol := "file://" + p.path("sm", "fake-cloud", "cistern", "data1")
			p.must("export", vol, p.path("plain"))
			w.Compare(p.path("plain"), "data1")
			p.must("check", vol, "--data")
			p.fails(2, "is not empty", "export", vol, p.path("plain"))
			if how == "by reference" {
				r := decode[[]imported](t, p.must(append(args, "--json")...))
				if len(r) != 2 || r[0].Files != 0 || r[0].Skipped == 0 || r[1].Skipped != 1 {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

// An export has the owners and times of directories and links, too, the top's among them.
func TestExport_DirectoriesAndLinks_OwnersModesAndTimes(t *testing.T) {
	testenv.NeedFUSE(t)
	p, mnt := mountPlace(t)
	p.mount()
	const uid, gid = 1234, 2345
	at := time.Unix(1_700_000_000, 123_456_789)
	for _, err := range []error{
		os.MkdirAll(filepath.Join(mnt, "d", "e"), 0o755), os.WriteFile(filepath.Join(mnt, "d", "f"), []byte("x"), 0o640), os.Symlink("f", filepath.Join(mnt, "d", "l")),
		os.Chmod(filepath.Join(mnt, "d", "e"), 0o577), os.Chmod(mnt, 0o711),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	names := []string{"d/e", "d/f", "d/l", "d", ""}
	for _, name := range names {
		path := filepath.Join(mnt, name)
		ts := []unix.Timespec{unix.NsecToTimespec(at.UnixNano()), unix.NsecToTimespec(at.UnixNano())}
		if err := errors.Join(os.Lchown(path, uid, gid), unix.UtimesNanoAt(unix.AT_FDCWD, path, ts, unix.AT_SYMLINK_NOFOLLOW)); err != nil {
			t.Fatal(path, err)
		}
	}
	out := p.path("out")
	p.must("export", mnt, out)
	for _, name := range names {
		want, err := os.Lstat(filepath.Join(mnt, name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := os.Lstat(filepath.Join(out, name))
		if err != nil {
			t.Fatal(err)
		}
		st := got.Sys().(*syscall.Stat_t)
		if got.Mode() != want.Mode() || !got.ModTime().Equal(at) || st.Uid != uid || st.Gid != gid {
			t.Errorf("%q: %v of %d:%d at %v, want %v at %v", name, got.Mode(), st.Uid, st.Gid, got.ModTime(), want.Mode(), at)
		}
	}
	// Over what is there, links included.
	for range 2 {
		p.must("get", mnt, "d", p.path("again"))
	}
	if to, err := os.Readlink(filepath.Join(p.path("again"), "l")); err != nil || to != "f" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
}

func TestImportColumnStore_SaysWhatIsWrong(t *testing.T) {
	p, w, conf := smPlace(t, "")
	w.File("data1/good", w.Whole(100)...)
	lost := w.File("data1/lost", w.Whole(100)...)
	w.Lose(lost[0])
	status, _, errs := p.run("import", "columnstore", "--config", conf)
	if status != 4 || !strings.Contains(errs, "lost: "+lost[0]+": the object is missing") {
		t.Errorf("%d, %s", status, errs)
	}
	if err := os.WriteFile(filepath.Join(w.Tree.Metadata, "data1", "OWNED"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	p.fails(3, "OWNED", "import", "columnstore", "--config", conf)
	p.fails(2, "metadata of data7", "import", "columnstore", "--config", conf, "--dbroot", "data7")
	p.must("format", p.url(), "--object-size", "1M")
	p.fails(2, "was not made to refer", "import", "columnstore", "--config", conf, "--accept-owned", "--dbroot", "data1", p.url())
	r := decode[[]imported](t, strings.TrimSpace(func() string {
		status, out, _ := p.run("import", "columnstore", "--config", conf, "--accept-owned", "--copy", "--json", p.url())
		if status != 4 {
			t.Errorf("status %d", status)
		}
		return out
	}()))
	if len(r) != 1 || r[0].Missing != 1 || r[0].Files != 1 || len(r[0].Found) != 1 || r[0].Found[0] != (columnstore.Problem{Path: "lost", Key: lost[0], Reason: r[0].Found[0].Reason, Left: true}) {
		t.Errorf("%+v", r)
	}
}

// One command mounts every DBRoot as a volume of its own, with its own owner.
func TestMount_DBRoots_EachHasItsOwner(t *testing.T) {
	testenv.NeedFUSE(t)
	p, w, conf := smPlace(t, "")
	dir := p.path("columnstore")
	for _, root := range []string{"data1", "data2", "data3"} {
		w.File(root+"/f", w.Whole(2<<20+5)...)
	}
	p.must("import", "columnstore", "--config", conf)
	conf2 := p.plainConfig(conf)
	t.Cleanup(func() {
		for _, d := range []string{filepath.Join(dir, "data1"), filepath.Join(dir, "data2"), filepath.Join(dir, "data3"), p.path("other")} {
			if r, ok := (&app{lookup: os.LookupEnv}).findRecord(d); ok {
				p.kill(r.PID)
			}
			_ = syscall.Unmount(d, syscall.MNT_DETACH) // fails where nothing is mounted any more
		}
	})
	// data3 is another node's.
	other := p.path("other")
	if err := os.Mkdir(other, 0o755); err != nil {
		t.Fatal(err)
	}
	data3 := "file://" + p.path("sm", "fake-cloud", "cistern", "data3")
	p.mustBinary("mount", data3, other, "--state", p.path("state3"))
	status, out, errs := p.binary("mount", "--config", conf2, "--state", p.path("state"), dir)
	if status != 3 || strings.Count(out, "is mounted on "+dir) != 2 || !strings.Contains(errs, "data3 is not mounted") {
		t.Fatalf("%d\n%s\n%s", status, out, errs)
	}
	for _, root := range []string{"data1", "data2"} {
		got, err := os.ReadFile(filepath.Join(dir, root, "f"))
		if err != nil || !bytes.Equal(got, w.Want[root+"/f"]) {
			t.Errorf("%s: %v", root, err)
		}
	}
	// data3 moves over, data2 away; data1 stays as it is.
	p.must("handover", other)
	p.mustBinary("mount", "--config", conf2, filepath.Join(dir, "data3"), "--state", p.path("state", "data3"))
	if got, err := os.ReadFile(filepath.Join(dir, "data3", "f")); err != nil || !bytes.Equal(got, w.Want["data3/f"]) {
		t.Errorf("data3 after its move: %v", err)
	}
	p.must("handover", filepath.Join(dir, "data2"))
	if list, err := os.ReadDir(filepath.Join(dir, "data2")); err != nil || len(list) != 0 {
		t.Errorf("what was handed over is still to be seen: %v, %v", list, err)
	}
	p.mustBinary("mount", "file://"+p.path("sm", "fake-cloud", "cistern", "data2"), other, "--state", p.path("state2"))
	if err := os.WriteFile(filepath.Join(dir, "data1", "x"), nil, 0o644); err != nil {
		t.Error(err)
	}
	for _, d := range []string{filepath.Join(dir, "data1"), other, filepath.Join(dir, "data3")} {
		p.must("umount", d)
	}
}

// What the file says of mounts counts for each DBRoot, the second as well as the first.
func TestMount_DBRoots_SettingsOfTheFileCountForEach(t *testing.T) {
	testenv.NeedFUSE(t)
	p, w, conf := smPlace(t, "")
	dir, state := p.path("columnstore"), p.path("state")
	for _, root := range []string{"data1", "data2"} {
		w.File(root+"/f", w.Whole(5)...)
	}
	p.must("import", "columnstore", "--config", conf)
	plain := p.plainConfig(conf)
	text := readFile(t, plain) + "[mount]\njournal_size = 8m\nstate = " + state + "\n"
	if err := os.WriteFile(plain, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	roots := []string{filepath.Join(dir, "data1"), filepath.Join(dir, "data2")}
	t.Cleanup(func() {
		for _, d := range roots {
			if r, ok := (&app{lookup: os.LookupEnv}).findRecord(d); ok {
				p.kill(r.PID)
			}
			_ = syscall.Unmount(d, syscall.MNT_DETACH) // fails where nothing is mounted any more
		}
	})
	p.mustBinary("mount", "--config", plain, "--read-only", dir)
	for _, d := range roots {
		if got, err := os.ReadFile(filepath.Join(d, "f")); err != nil || len(got) != 5 {
			t.Errorf("%s: %d bytes, %v", d, len(got), err)
		}
		if r, _ := (&app{lookup: os.LookupEnv}).findRecord(d); string(r.StateDir) != filepath.Join(state, filepath.Base(d)) {
			t.Errorf("%s has its state in %s", d, r.StateDir)
		}
		p.must("umount", d)
	}
}

// plainConfig writes the file anew without variables, which the program of its own
// has not.
func (p *place) plainConfig(conf string) string {
	text := strings.ReplaceAll(readFile(p.t, conf), "${SM}", p.env["SM"])
	name := p.path("plain.cnf")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return name
}

func TestMount_SIGHUP_TakesNewValuesOrKeepsTheOld(t *testing.T) {
	p, mnt := mountPlace(t)
	conf := p.path("c.cnf")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("[Cache]\ncache_size = 64M\n[ObjectStorage]\nmax_concurrent_downloads = 5\n")
	// By a relative path: the mount's process leaves this directory.
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	relative, err := filepath.Rel(here, conf)
	if err != nil {
		t.Fatal(err)
	}
	pid := p.mount("--config", relative)
	limit := func() (int64, int) {
		t.Helper()
		s := decode[mountStatus](t, p.must("status", "--json", mnt))
		return s.Cache.Limit, s.Requests.Downloads.Most
	}
	if c, d := limit(); c != 64<<20 || d != 5 {
		t.Fatalf("%d, %d", c, d)
	}
	reload := func(want string) {
		t.Helper()
		before := strings.Count(readFile(t, p.path("state", logName)), want)
		if err := syscall.Kill(pid, syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		for strings.Count(readFile(t, p.path("state", logName)), want) == before {
			time.Sleep(10 * time.Millisecond)
		}
	}
	write("[Cache]\ncache_size = 32M\n[ObjectStorage]\nmax_concurrent_downloads = 40\n[mount]\nupload_limit = 50M\n")
	reload("configuration read anew")
	if c, d := limit(); c != 32<<20 || d != 40 {
		t.Errorf("%d, %d", c, d)
	}
	for _, bad := range []string{"cache_size = 8q", "cache_size = 1M", "cache = 64M", "cache_size ="} {
		write("[Cache]\n" + bad + "\n")
		reload("configuration refused")
		if c, d := limit(); c != 32<<20 || d != 40 {
			t.Errorf("%s: %d, %d", bad, c, d)
		}
	}
	if log := readFile(t, p.path("state", logName)); !strings.Contains(log, `[Cache] cache_size = \"8q\": unknown unit`) {
		t.Errorf("the log does not say why:\n%s", log)
	}
	p.must("umount", mnt)
}
